#!/bin/sh
# Every chapter as on Colab: the torch backend, and a Python in which DGL cannot be imported (tests/no_dgl does that).
set -u
PY=.venv/bin/python
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"    # the tests run in several processes already
START=$(date +%s)
NOTEBOOKS=$(ls book/*.ipynb 2>/dev/null)
[ -n "$NOTEBOOKS" ] || { echo "make: no notebook was found in book/." >&2; exit 1; }

export EASYDGL_BACKEND=torch EASYDGL_EXPECT_NO_DGL=1
PYTHONPATH="$(pwd)/tests/no_dgl${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH

printf '\n=== DGL is out of reach, in a kernel too ===\n'
"$PY" -m pytest tests/test_colab.py -q || exit 1
printf '\n=== Chapters without DGL (nbval, outputs not compared) ===\n'
# shellcheck disable=SC2086
"$PY" -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=300 -n "${JOBS:-2}" --dist loadscope -q $NOTEBOOKS || {
    echo "make test-colab FAILED."; exit 1
}
printf '\nTotal time: %s s\nmake test-colab passed.\n' "$(($(date +%s) - START))"
