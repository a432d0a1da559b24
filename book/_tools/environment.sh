#!/bin/sh
# Make or refresh .venv/. Called by the Makefile from the repository's root; safe to run again at any time.
# Variables: PYTHON (an interpreter to use), TORCH_INDEX (a package index to take torch from, e.g. PyTorch's CPU builds).
set -u

VENV=.venv
STAMP=$VENV/.stamp          # written last: holds what the environment was made from
BUSY=$VENV/.installing      # there while an installation runs: found at the start, it means an interrupted one
NEED_GB=4

say() { printf '%s\n' "$*"; }
fail() { printf '\nmake: %s\n' "$*" >&2; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {             # 3.11 first: DGL has builds for it
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null 2>&1 || fail "PYTHON=$PYTHON was not found; give the name or path of a Python 3.11 or newer."
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 or newer ($("$PYTHON" --version 2>&1)); give a newer one."
        say "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
        if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then say "$candidate"; return; fi
    done
    fail "no Python 3.11 or newer was found; install one (https://www.python.org/downloads) or name it: make book PYTHON=/path/to/python3.11."
}

wanted() {                  # what the environment must have been made from, in one line
    sum=$(cat pyproject.toml constraints.txt | cksum | tr -d '\n')
    say "$sum|$(pwd -P)|${PYTHON:-any}"
}

up_to_date() {
    [ -f "$STAMP" ] && [ ! -e "$BUSY" ] || return 1
    have=$(cat "$STAMP")
    want=$(wanted)
    [ "${have%|*}" = "${want%|*}" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "${have##*|}" = "$PYTHON" ] || same_version "$PYTHON" || return 1
    "$VENV/bin/python" -c '' >/dev/null 2>&1
}

same_version() {
    [ "$("$1" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null)" = \
      "$("$VENV/bin/python" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null)" ]
}

usable() {                  # may the .venv that is here be installed into?
    [ ! -e "$BUSY" ] || { say "An earlier installation was interrupted: starting again with a fresh $VENV."; return 1; }
    { [ -x "$VENV/bin/python" ] && new_enough "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; } ||
        { say "The $VENV that is here does not work: starting again with a fresh one."; return 1; }
    [ ! -f "$STAMP" ] || [ "$(cut -d'|' -f2 "$STAMP")" = "$(pwd -P)" ] ||
        { say "The repository was moved: starting again with a fresh $VENV."; return 1; }
    [ -z "${PYTHON:-}" ] || same_version "$PYTHON" ||
        { say "$VENV has another Python than the one asked for: starting again with a fresh one."; return 1; }
}

run_pip() {                 # pip with its output shown and kept, so that a failure can be named
    log=$VENV/install.log
    : > "$log.rc"
    { "$VENV/bin/python" -m pip "$@" 2>&1; echo $? > "$log.rc"; } | tee "$log"
    [ "$(cat "$log.rc")" = 0 ] && return 0
    if grep -qi 'no space left' "$log"; then
        fail "the disk is full; free at least $NEED_GB GB where this folder and the temporary folder are, and run the same command again."
    elif grep -qiE 'NewConnectionError|Failed to establish|name resolution|NameResolutionError|ConnectTimeout|Read timed out|ProxyError|Network is unreachable|Connection (refused|reset|broken)|Max retries|SSLError' "$log"; then
        fail "the package index could not be reached; check the network (or pip's proxy settings) and run the same command again: finished downloads are kept."
    elif grep -qiE 'No matching distribution|Could not find a version' "$log"; then
        fail "a pinned package has no build for this machine or this Python (see 'No matching distribution' above); try another one, for example: make book PYTHON=python3.11."
    fi
    fail "installing the packages failed; the lines above say why (all of them are in $log)."
}

if up_to_date; then exit 0; fi

python=$(find_python) || exit 1
free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
[ "${free:-99}" -ge "$NEED_GB" ] ||
    fail "only $free GB are free on this disk and the environment needs $NEED_GB GB; free some space and run the same command again."

if [ -d "$VENV" ] && ! usable; then rm -rf "$VENV" || fail "the folder $VENV could not be removed; remove it by hand and run the same command again."; fi
if [ ! -d "$VENV" ]; then
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
        fail "$python has no venv module; install it (Debian and Ubuntu: apt install python3-venv) and run the same command again."
    say "Making $VENV with $("$python" --version 2>&1) ..."
    "$python" -m venv "$VENV" || fail "$python could not make $VENV; is this folder writable and the disk not full?"
fi

: > "$BUSY" || fail "$VENV is not writable; check its owner or remove it."
rm -f "$STAMP"
say "Installing the packages (about 2 GB; a minute or two with a good connection) ..."
run_pip install --quiet --upgrade "pip>=25.1"
torch=$(grep '^torch==' constraints.txt)
if [ -n "${TORCH_INDEX:-}" ]; then run_pip install --progress-bar off --index-url "$TORCH_INDEX" "$torch"; fi
run_pip install --progress-bar off -c constraints.txt -e ".[dev]"
wanted > "$STAMP"
rm -f "$BUSY"
say "The environment is ready in $VENV."
