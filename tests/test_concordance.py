"""The concordance names equations, functions and tests that exist."""

import ast
import functools
import importlib.util
import json
import re
from pathlib import Path

import pytest

import easydgl_mini as em

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("concordance", ROOT / "book/_tools/concordance.py")
concordance = importlib.util.module_from_spec(spec)
spec.loader.exec_module(concordance)
ROWS = [row for row in concordance.ROWS if row[1] is not None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_exists(row):
    label, _, place, function, test = row
    if place:
        notebook, equation = place
        cells = json.loads((ROOT / f"book/{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        assert re.search(rf"\$\$\s*\({re.escape(equation)}\)", text), f"{equation} is not an equation of {notebook}"
    if function:
        assert callable(functools.reduce(getattr, function.split("."), em))
        assert test, f"{label} has a function but no test"
    if test:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_page_is_the_one_the_script_writes():
    written = (ROOT / "book/concordance.md").read_text(encoding="utf-8")
    assert written == concordance.page(), "run: python book/_tools/concordance.py"


def test_labels_are_not_repeated():
    labels = [row[0] for row in ROWS]
    assert len(labels) == len(set(labels))
