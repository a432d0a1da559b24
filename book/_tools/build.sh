#!/bin/sh
# Render the book from the stored outputs, with warnings as errors, and check that the pages are there.
set -u
PY=.venv/bin/python
LOG=_build/book.log

mkdir -p _build || { echo "make: _build could not be made; is this folder writable and the disk not full?" >&2; exit 1; }
rm -rf _build/html _build/.doctrees _build/jupyter_execute
echo "Rendering the book from the stored outputs (about a second a chapter) ..."
{ .venv/bin/jupyter-book build -W --keep-going . 2>&1; echo $? > "$LOG.rc"; } | tr -d '\033' | sed 's/\[[0-9;][0-9;]*m//g' | tee "$LOG" |
    grep -E '(reading sources|writing output)\.\.\. .*100%|WARNING|ERROR|Error|error:|build (succeeded|finished)'
[ "$(cat "$LOG.rc")" = 0 ] || {
    if grep -qi 'no space left' "$LOG"; then echo "make: the disk is full; free some space and run the same command again." >&2
    else echo "make: the book has warnings or errors (lines above; everything is in $LOG); mend them and run make book again." >&2; fi
    exit 1
}
"$PY" book/_tools/check_pages.py || exit 1
echo "The book is ready: open file://$(pwd -P)/_build/html/index.html"
