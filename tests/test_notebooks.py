"""Notebook hygiene: what a reader of a chapter relies on, as checks that return a list of complaints.

Each check takes a notebook (a dict) and its name; each is itself tested on a notebook with that one fault.
"""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
PAGES = NOTEBOOKS + sorted(BOOK.glob("*.md"))
NOT_CHAPTERS = {"tour"}  # no exercises or closing sections asked of them

MAX_LINES = 20
MAX_BYTES = 1_500_000
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:root|work|home|tmp|Users|private|var/folders)/|[A-Za-z]:\\+Users\\|site-packages"
)
SECTIONS = ("Pitfalls", "Summary", "Exercises", "References")


def address():
    """``owner/name`` of the repository, from the one place that holds it."""
    url = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
    return url.removeprefix("https://github.com/")


def install_cell(repo):
    """The install cell every notebook starts with."""
    return (
        "# On Colab this installs the package; anywhere else it does nothing.\n"
        "import sys\n\n"
        'if "google.colab" in sys.modules:\n'
        f'    %pip install -q "easydgl-mini @ git+https://github.com/{repo}"'
    )


def source(cell):
    """A cell's text."""
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def code_cells(notebook):
    """The code cells, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def markdown(notebook):
    """All Markdown of a notebook as one text."""
    return "\n\n".join(source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown")


def tags(cell):
    """A cell's tags."""
    return cell.get("metadata", {}).get("tags", [])


def has_figure(cell):
    """Does a code cell store an image?"""
    return any(kind.startswith("image/") for output in cell.get("outputs", []) for kind in output.get("data", {}))


def ignored(cell):
    """Is a cell's output left out of the comparison?"""
    return "nbval-ignore-output" in tags(cell) or re.search(r"#\s*NBVAL_IGNORE_OUTPUT", source(cell)) is not None


def check_executed(notebook, name):
    """Every code cell was run, once, in order."""
    counts = [cell.get("execution_count") for cell in code_cells(notebook)]
    expected = list(range(1, len(counts) + 1))
    if not counts:
        return ["no code cell"]
    return [] if counts == expected else [f"execution counts are {counts}, not 1 to {len(counts)}: run make execute"]


def check_never_skipped(notebook, name):
    """No cell is hidden from nbval altogether."""
    wrong = [
        i for i, c in enumerate(notebook["cells"]) if "nbval-skip" in tags(c) or re.search(r"#\s*NBVAL_SKIP", source(c))
    ]
    return [f"cell {i} is skipped by nbval" for i in wrong]


def check_outputs(notebook, name):
    """No stored error and nothing on stderr."""
    wrong = []
    for i, cell in enumerate(notebook["cells"]):
        for output in cell.get("outputs", []):
            if output["output_type"] == "error" and "raises-exception" not in tags(cell):
                wrong.append(f"cell {i} stores an error: {output.get('ename')}")
            if output.get("name") == "stderr":
                wrong.append(f"cell {i} stores output on stderr: {''.join(output['text'])[:60]!r}")
    return wrong


def check_machine_paths(notebook, name):
    """No path of the author's machine, in sources, outputs or metadata."""
    slim = copy.deepcopy(notebook)
    for cell in slim["cells"]:
        cell.pop("attachments", None)
        for output in cell.get("outputs", []):
            for kind in [k for k in output.get("data", {}) if k.startswith("image/") and k != "image/svg+xml"]:
                del output["data"][kind]
    texts = [f"cell {i}: {json.dumps(cell, ensure_ascii=False)}" for i, cell in enumerate(slim["cells"])]
    texts.append(f"metadata: {json.dumps(slim['metadata'])}")
    return [
        f"{text.split(':')[0]} holds a machine path: {m.group()}" for text in texts if (m := MACHINE_PATH.search(text))
    ]


def check_alt_text(notebook, name):
    """Each figure has alternative text that says something."""
    wrong = []
    for i, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code" and has_figure(cell):
            alt = cell.get("metadata", {}).get("mystnb", {}).get("image", {}).get("alt", "")
            if len(alt.split()) < 3:
                wrong.append(f"cell {i} has a figure without alternative text (metadata mystnb.image.alt)")
    return wrong


def check_captions(notebook, name):
    """The cell after a figure starts with its caption."""
    cells = [*notebook["cells"], {"cell_type": "none", "source": ""}]
    return [
        f"cell {i} has a figure, but the next cell does not start with **Figure.**"
        for i, (cell, after) in enumerate(zip(cells, cells[1:], strict=False))
        if cell["cell_type"] == "code"
        and has_figure(cell)
        and not (after["cell_type"] == "markdown" and source(after).startswith("**Figure.**"))
    ]


def check_markdown_images(notebook, name):
    """Images in Markdown have alternative text and exist."""
    wrong = []
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)", markdown(notebook)):
        if not alt.strip():
            wrong.append(f"image {target} has no alternative text")
        if not re.match(r"https?:|attachment:|data:", target) and not (BOOK / target).exists():
            wrong.append(f"image {target} does not exist")
    return wrong


def check_install_cell(notebook, name, repo=None):
    """The first code cell is the install cell, word for word, second in the notebook."""
    cells = notebook["cells"]
    if len(cells) < 2 or cells[1]["cell_type"] != "code":
        return ["the second cell must be the install cell"]
    found = source(cells[1]).rstrip("\n")
    return [] if found == install_cell(repo or address()) else ["the install cell differs from the canonical one"]


def check_first_cell(notebook, name, repo=None):
    """The first cell holds the title and a badge that opens this very file."""
    repo = repo or address()
    first = source(notebook["cells"][0]) if notebook["cells"] else ""
    badge = (
        "[![Open In Colab](figures/colab-badge.svg)]"
        f"(https://colab.research.google.com/github/{repo}/blob/main/book/{name}.ipynb)"
    )
    wrong = [] if first.startswith("# ") else ["the first cell must start with the title"]
    return wrong + ([] if badge in first else ["the badge is missing or opens another file"])


def check_cell_length(notebook, name):
    """Code cells stay short enough to read."""
    lengths = [(i, len(source(c).splitlines())) for i, c in enumerate(notebook["cells"]) if c["cell_type"] == "code"]
    return [f"cell {i} has {n} lines, {MAX_LINES} are allowed" for i, n in lengths if n > MAX_LINES]


def check_size(notebook, name):
    """The file stays small."""
    size = len(json.dumps(notebook, ensure_ascii=False).encode())
    return [] if size < MAX_BYTES else [f"{size} bytes, {MAX_BYTES} are allowed"]


def check_kernel(notebook, name):
    """The kernel is the one everybody has, and no volatile metadata is stored."""
    meta = notebook["metadata"]
    wrong = [] if meta.get("kernelspec", {}).get("name") == "python3" else ["the kernel must be python3"]
    wrong += ["language_info.version is stored: run make execute"] if "version" in meta.get("language_info", {}) else []
    timed = [i for i, c in enumerate(notebook["cells"]) if "execution" in c.get("metadata", {})]
    return wrong + [f"cell {i} stores the time of its execution: run make execute" for i in timed]


def check_sections(notebook, name):
    """A chapter closes with pitfalls, summary, exercises and references, in this order."""
    if name in NOT_CHAPTERS:
        return []
    headings = re.findall(r"^##\s+(?:\d[\d.]*\s*)?(.+?)\s*$", markdown(notebook), re.MULTILINE)
    places = [headings.index(s) if s in headings else None for s in SECTIONS]
    missing = [f"no section '## {s}'" for s, place in zip(SECTIONS, places, strict=True) if place is None]
    if missing or places == sorted(places):
        return missing
    return [f"the closing sections must come in the order {', '.join(SECTIONS)}"]


def check_exercises(notebook, name):
    """Four exercises or more, each with a drop-down solution that holds an executed cell; all solutions are closed."""
    if name in NOT_CHAPTERS:
        return []
    exercises = re.findall(r"\{exercise(?:-start)?\}[^\n]*\n:label:\s*(\S+)", markdown(notebook))
    wrong = [] if len(exercises) >= 4 else [f"{len(exercises)} exercises, at least four are wanted"]
    solved, open_label, ran = [], None, False
    for cell in notebook["cells"]:
        text = source(cell)
        if cell["cell_type"] == "code":
            ran = True
            continue
        if start := re.search(r"\{solution-start\}\s*(\S+)\n(?::class:\s*(\S+))?", text):
            if open_label:
                wrong.append(f"the solution of {open_label} is not closed")
            open_label, ran = start.group(1), False
            if start.group(2) != "dropdown":
                wrong.append(f"the solution of {open_label} is not a drop-down")
        if "{solution-end}" in text:
            if open_label and not ran:
                wrong.append(f"the solution of {open_label} has no executed cell")
            solved, open_label = [*solved, open_label], None
    if open_label:
        wrong.append(f"the solution of {open_label} is not closed")
    wrong += [f"exercise {label} has no solution" for label in exercises if label not in solved]
    return wrong + [f"solution of an unknown exercise: {label}" for label in solved if label not in exercises]


def check_ignored_outputs(notebook, name):
    """A result whose output is not compared is followed, within two code cells, by an assertion."""
    cells = code_cells(notebook)
    wrong = []
    for i, cell in enumerate(cells):
        if ignored(cell) and cell.get("outputs"):
            nearby = [source(c) for c in cells[i + 1 : i + 3]]
            if not any(re.search(r"^\s*assert\b", text, re.MULTILINE) for text in nearby):
                wrong.append(f"code cell {i + 1} is not compared, and no assert follows within two code cells")
    return wrong


def check_object_reprs(notebook, name):
    """No output that changes from run to run: object addresses and timings."""
    wrong = []
    for i, cell in enumerate(notebook["cells"]):
        for output in cell.get("outputs", []):
            text = "".join(output.get("text", "")) + "".join(output.get("data", {}).get("text/plain", ""))
            if re.search(r" at 0x[0-9a-fA-F]{6,}", text):
                wrong.append(f"cell {i} shows an object's address in memory")
    return wrong


CHECKS = [value for key, value in list(globals().items()) if key.startswith("check_")]


# The chapters ---------------------------------------------------------------------------------------------------------


def test_there_are_notebooks():
    assert NOTEBOOKS, "book/ holds no notebook"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, check):
    complaints = check(json.loads(path.read_text(encoding="utf-8")), path.stem)
    assert not complaints, f"{path.name}: " + "; ".join(complaints)


def toc_files():
    """Documents of the table of contents, in reading order."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"]] + [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]


def test_table_of_contents_and_folder_agree():
    listed = toc_files()
    there = [f"book/{path.stem}" for path in PAGES]
    assert sorted(listed) == sorted(there)


def test_parts_are_numbered():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    assert all(part.get("numbered") for part in toc["parts"])


def page_text(path):
    """The Markdown of a page, notebook or not."""
    text = path.read_text(encoding="utf-8")
    return markdown(json.loads(text)) if path.suffix == ".ipynb" else text


def labels(text):
    """Labels of equations, exercises and theorems defined in a text."""
    equations = re.findall(r"\$\$\s*\(([\w:-]+)\)", text)
    return (
        equations
        + re.findall(r"^:label:\s*(\S+)", text, re.MULTILINE)
        + re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    )


def test_labels_are_unique_and_references_resolve():
    owner = {}
    for path in PAGES:
        for label in labels(page_text(path)):
            assert label not in owner, f"label {label} is defined in {owner[label]} and in {path.name}"
            owner[label] = path.name
    for path in PAGES:
        for label in re.findall(r"\{(?:eq|prf:ref|ref|numref)\}`(?:[^`<]*<)?([\w:-]+)>?`", page_text(path)):
            assert label in owner, f"{path.name} refers to {label}, which nothing defines"


def heading_anchors(text):
    """Anchors MyST gives to headings up to the third level, as on GitHub."""
    found = set()
    for title in re.findall(r"^#{1,3}\s+(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"[`*_]|\{[^}]*\}", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain)))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_internal_links_resolve(path):
    text = re.sub(r"```.*?```", "", page_text(path), flags=re.DOTALL)
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        where = path if not file else (BOOK / file)
        assert where.exists(), f"{path.name} links to {target}, which does not exist"
        if anchor and where.suffix in (".md", ".ipynb"):
            known = heading_anchors(page_text(where)) | set(labels(page_text(where)))
            assert anchor in known, f"{path.name} links to {target}: no such heading"


def bibliography_keys():
    """Keys of the bibliography, in the order of the file."""
    return re.findall(r"^@\w+\{([^,\s]+),", (BOOK / "references.bib").read_text(encoding="utf-8"), re.MULTILINE)


def test_bibliography_is_sorted_and_has_no_doubles():
    keys = bibliography_keys()
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_citations_resolve_and_are_listed(path):
    text = page_text(path)
    cited = re.findall(r"\{footcite(?::[tp])?\}`([^`]+)`", text)
    keys = {key.strip() for group in cited for key in group.split(",")}
    assert keys <= set(bibliography_keys()), f"{path.name}: not in references.bib: {keys - set(bibliography_keys())}"
    assert not re.search(r"\{cite(?::\w+)?\}`", text), (
        f"{path.name}: use footcite, so that the chapter lists its references"
    )
    if keys:
        assert text.count("{footbibliography}") == 1, f"{path.name} cites but does not list its references exactly once"


# The checks themselves ------------------------------------------------------------------------------------------------


def md(text):
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def code(text, count, outputs=(), **metadata):
    return {
        "cell_type": "code",
        "metadata": metadata,
        "source": text,
        "execution_count": count,
        "outputs": [copy.deepcopy(output) for output in outputs],
    }


PNG = {
    "output_type": "display_data",
    "data": {"image/png": "iVBORw0KGgo/root/+x", "text/plain": "<Figure size>"},
    "metadata": {},
}
STDERR = {"output_type": "stream", "name": "stderr", "text": ["a warning\n"]}
STDOUT = {"output_type": "stream", "name": "stdout", "text": ["0.5\n"]}
ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []}


def sound():
    """A notebook without a fault: cells 0-2 are the head, 3-4 a figure, 5-6 training, 7 sections, then solutions."""
    badge = f"https://colab.research.google.com/github/{address()}/blob/main/book/demo.ipynb"
    exercises = "".join(f"\n```{{exercise}}\n:label: ex-demo-{i}\nWhy?\n```\n" for i in range(4))
    cells = [
        md(f"# Demo\n\n[![Open In Colab](figures/colab-badge.svg)]({badge})\n\n**You will be able to** …"),
        code(install_cell(address()), 1),
        code("import numpy as np", 2),
        code("plt.show()", 3, [PNG], mystnb={"image": {"alt": "A line that rises"}}),
        md("**Figure.** A line."),
        code("fit()", 4, [STDOUT], tags=["nbval-ignore-output"]),
        code("assert loss < 1", 5),
        md("## Pitfalls\n\n## Summary\n\n## Exercises\n" + exercises),
    ]
    for i in range(4):
        start, end = md(f"```{{solution-start}} ex-demo-{i}\n:class: dropdown\n```"), md("```{solution-end}\n```")
        cells += [start, code("print(2)", 6 + i), end]
    cells.append(md("## References\n\n```{footbibliography}\n```"))
    return {"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sound_notebook_passes(check):
    assert check(sound(), "demo") == []


def edit(index, **changes):
    """A fault: change the fields of one cell."""
    return lambda notebook: notebook["cells"][index].update(changes)


def drop(index):
    """A fault: remove one cell."""
    return lambda notebook: notebook["cells"].pop(index)


def replace(index, old, new):
    """A fault: replace a piece of one cell's text."""

    def fault(notebook):
        cell = notebook["cells"][index]
        assert old in cell["source"], "the fault must change something"
        cell["source"] = cell["source"].replace(old, new)

    return fault


FAULTS = [
    (check_executed, edit(2, execution_count=None)),
    (check_executed, edit(2, execution_count=7)),
    (check_executed, edit(3, execution_count=2)),
    (check_executed, lambda notebook: notebook.update(cells=[md("# Demo")])),
    (check_never_skipped, edit(2, metadata={"tags": ["nbval-skip"]})),
    (check_never_skipped, edit(2, source="# NBVAL_SKIP\nimport numpy")),
    (check_outputs, edit(2, outputs=[ERROR])),
    (check_outputs, edit(2, outputs=[STDOUT, STDERR])),
    (check_machine_paths, edit(2, source='open("/root/data.csv")')),
    (check_machine_paths, edit(2, outputs=[{**STDOUT, "text": ["/Users/me/x.py\n"]}])),
    (check_machine_paths, edit(2, outputs=[{**STDOUT, "text": ["C:\\Users\\me\n"]}])),
    (check_machine_paths, edit(2, outputs=[{**STDOUT, "text": ["…/lib/python3.11/site-packages/torch\n"]}])),
    (check_machine_paths, lambda notebook: notebook["metadata"].update(path="/home/me/")),
    (check_alt_text, edit(3, metadata={})),
    (check_alt_text, edit(3, metadata={"mystnb": {"image": {"alt": "figure"}}})),
    (check_captions, drop(4)),
    (check_captions, edit(4, source="A line. **Figure.**")),
    (check_markdown_images, edit(4, source="**Figure.** ![](figures/colab-badge.svg)")),
    (check_markdown_images, edit(4, source="**Figure.** ![A drawing](figures/nowhere.svg)")),
    (check_install_cell, drop(1)),
    (check_install_cell, replace(1, "-q ", "")),
    (check_install_cell, replace(1, address(), "someone/else")),
    (check_first_cell, replace(0, "# Demo", "## Demo")),
    (check_first_cell, replace(0, "demo.ipynb", "other.ipynb")),
    (check_first_cell, replace(0, address(), "someone/else")),
    (check_cell_length, edit(2, source="\n".join(["x = 1"] * 21))),
    (check_size, edit(2, outputs=[{**STDOUT, "text": ["x" * MAX_BYTES]}])),
    (check_kernel, lambda notebook: notebook["metadata"].update(kernelspec={"name": "venv"})),
    (check_kernel, lambda notebook: notebook["metadata"].update(language_info={"version": "3.11.7"})),
    (check_kernel, edit(2, metadata={"execution": {"iopub.execute_input": "2024"}})),
    (check_sections, replace(7, "## Pitfalls", "## Traps")),
    (check_sections, replace(7, "## Summary", "### Summary")),
    (check_sections, replace(7, "## Pitfalls\n\n## Summary", "## Summary\n\n## Pitfalls")),
    (check_sections, drop(-1)),
    (check_exercises, replace(7, "ex-demo-3", "ex-demo-9")),
    (check_exercises, replace(7, "```{exercise}\n:label: ex-demo-3\nWhy?\n```", "")),
    (check_exercises, drop(10)),
    (check_exercises, drop(9)),
    (check_exercises, replace(8, "dropdown", "note")),
    (check_ignored_outputs, edit(6, source="print(loss)  # we assert nothing")),
    (check_ignored_outputs, edit(2, source="# NBVAL_IGNORE_OUTPUT\nfit()", outputs=[STDOUT])),
    (check_object_reprs, edit(2, outputs=[{**STDOUT, "text": ["<Line2D at 0x7f31aabbccdd>\n"]}])),
]


@pytest.mark.parametrize(("check", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_found(check, fault):
    notebook = sound()
    fault(notebook)
    assert check(notebook, "demo")


def test_every_check_is_tried_on_a_fault():
    assert {check for check, _ in FAULTS} == set(CHECKS)


def test_an_expected_error_may_be_stored():
    notebook = sound()
    edit(2, outputs=[ERROR], metadata={"tags": ["raises-exception"]})(notebook)
    assert check_outputs(notebook, "demo") == []


def test_an_image_is_no_machine_path():
    assert "/root/" in PNG["data"]["image/png"]
    assert check_machine_paths(sound(), "demo") == []
    assert MACHINE_PATH.search("github.com/x/blob/main/home/") is None


def test_labels_and_anchors():
    text = (
        "$$ x = 1 $$ (eq-a-one)\n\n```{exercise}\n:label: ex-a-1\n```\n(here)=\n## From counts to $\\lambda$: *why*?\n"
    )
    assert labels(text) == ["eq-a-one", "ex-a-1", "here"]
    assert heading_anchors("## Attention that knows, *at last*") == {"attention-that-knows-at-last"}
