#!/bin/sh
# Everything `make test` checks, each step under a heading; all steps run, and the exit code tells if one failed.
set -u
PY=.venv/bin/python
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"    # the tests run in several processes already
START=$(date +%s)
FAILED=
NOTEBOOKS=$(ls book/*.ipynb 2>/dev/null)

step() {                    # step "heading" command...
    heading=$1; shift
    printf '\n=== %s ===\n' "$heading"
    before=$(date +%s)
    if "$@"; then result=passed; else result=FAILED; FAILED="$FAILED, $heading"; fi
    printf -- '--- %s: %s in %s s\n' "$heading" "$result" "$(($(date +%s) - before))"
}

style() { "$PY" -m ruff check . && "$PY" -m ruff format --check .; }
unit() { "$PY" -m pytest tests -n "${JOBS:-2}" -q -rs --ignore=tests/test_browser.py; }
chapters() {
    [ -n "$NOTEBOOKS" ] || { echo "no notebook was found in book/"; return 1; }
    # shellcheck disable=SC2086
    "$PY" -m pytest --nbval --nbval-current-env --nbval-cell-timeout=300 -n "${JOBS:-2}" --dist loadscope -q $NOTEBOOKS
}
book() { sh book/_tools/build.sh; }
browser() { EASYDGL_REQUIRE_BOOK=1 "$PY" -m pytest tests/test_browser.py -q -rs; }

step "Style (ruff)" style
step "Unit tests (pytest)" unit
step "Chapters, compared strictly (nbval)" chapters
step "The book (jupyter-book, warnings as errors)" book
step "The rendered pages (Chromium)" browser

printf '\nTotal time: %s s\n' "$(($(date +%s) - START))"
if [ -n "$FAILED" ]; then printf 'make test FAILED at: %s\n' "${FAILED#, }"; exit 1; fi
echo "make test passed: all five steps."
