"""The repository agrees with itself: versions, dependencies, address, commands, and the direction of imports."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import easydgl_mini as em

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = runpy.run_path(str(ROOT / "book" / "_tools" / "address.py"))
CONDA_NAMES = {"pytorch": "torch"}


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


# Dependencies ---------------------------------------------------------------------------------------------------------


def project():
    return tomllib.loads(read("pyproject.toml"))["project"]


def direct_dependencies():
    """Every direct requirement, extras included, by name."""
    extras = project()["optional-dependencies"]
    lines = project()["dependencies"] + [line for extra in extras.values() for line in extra]
    found = [Requirement(line) for line in lines]
    return {each.name: each for each in found if each.name != "easydgl-mini"}


def constraints():
    lines = [line.split("#")[0].strip() for line in read("constraints.txt").splitlines()]
    return {each.name.lower().replace("_", "-"): each for each in map(Requirement, filter(None, lines))}


def environment():
    """Requirements of environment.yml: those of conda, then those of pip."""
    conda, pip = [], []
    for entry in yaml.safe_load(read("environment.yml"))["dependencies"]:
        if isinstance(entry, dict):
            pip = entry["pip"]
        else:
            conda.append(re.sub(r"(?<![<>=])=(?!=)", "==", entry))  # conda's python=3.11
    assert "-e ." in pip
    found = [Requirement(line) for line in conda + [line for line in pip if line != "-e ."]]
    return {CONDA_NAMES.get(each.name, each.name): each for each in found}


def test_extras_are_there():
    assert {"book", "test", "dev"} <= set(project()["optional-dependencies"])


def test_environment_has_what_pyproject_asks_for():
    conda, wanted = environment(), direct_dependencies()
    assert set(conda) - {"python", "pip"} == set(wanted)
    for name, requirement in wanted.items():
        assert conda[name].specifier == requirement.specifier, f"{name}: {conda[name]} against {requirement}"


def test_environment_python_is_one_that_dgl_has_builds_for():
    python = environment()["python"].specifier
    assert "3.11" in python and "3.12" not in python
    assert project()["requires-python"] == ">=3.11"


def test_dgl_is_asked_for_only_where_it_has_builds():
    marker = direct_dependencies()["dgl"].marker
    assert marker.evaluate({"python_version": "3.11"})
    assert not marker.evaluate({"python_version": "3.12"})
    assert not marker.evaluate({"python_version": "3.13"})


def test_the_package_has_lower_bounds_only():
    for line in project()["dependencies"]:
        requirement = Requirement(line)
        operators = {each.operator for each in requirement.specifier}
        assert operators == {">="} or (requirement.name == "dgl" and operators == {">=", "<"}), line


def test_constraints_pin_every_direct_dependency_within_its_bounds():
    pins = constraints()
    for name, requirement in direct_dependencies().items():
        assert name in pins, f"constraints.txt does not pin {name}"
        version = next(iter(pins[name].specifier)).version
        assert requirement.specifier.contains(version), f"{pins[name]} is outside {requirement}"


def test_constraints_are_exact_public_and_without_doubles():
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(constraints())
    for name, pin in constraints().items():
        (only,) = pin.specifier
        assert only.operator == "==", name
        assert Version(only.version).local is None, f"{pin}: a local version such as +cpu exists on one machine only"


# Versions -------------------------------------------------------------------------------------------------------------


def test_there_is_one_version():
    assert "version" in project()["dynamic"] and "version" not in project()
    assert tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "easydgl_mini.__version__"
    }
    assert yaml.safe_load(read("CITATION.cff"))["version"] == em.__version__
    assert re.search(rf"^## {re.escape(em.__version__)}\b", read("CHANGELOG.md"), re.MULTILINE)


def test_citation_has_what_the_format_wants():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)
    assert citation["license"] == project()["license"] == "MIT"
    assert read("LICENSE").startswith("MIT License")


# Address --------------------------------------------------------------------------------------------------------------


def addresses(root):
    """Every GitHub address of this book in the repository: (file, owner/name)."""
    name = ADDRESS["current"](root).split("/")[1]
    found = []
    for path in ADDRESS["files"](root):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "".join(line for cell in json.loads(text)["cells"] for line in cell["source"])
        for owner in re.findall(rf"github(?:\.com)?/([\w-]+)/{re.escape(name)}(?![\w-])", text):
            found.append((path.name, f"{owner}/{name}"))
    return found


def check_addresses(root):
    """All places agree with _config.yml, and the places that must have the address have it."""
    repo, found = ADDRESS["current"](root), addresses(root)
    assert {address for _, address in found} == {repo}
    files = {name for name, _ in found}
    assert {"_config.yml", "pyproject.toml", "CITATION.cff", "README.md"} <= files
    for path in (Path(root) / "book").glob("*.ipynb"):
        assert sum(name == path.name for name, _ in found) >= 2, f"{path.name}: badge and install cell need the address"


def test_addresses_agree():
    check_addresses(ROOT)


def test_the_placeholder_can_not_be_registered():
    owner = ADDRESS["PLACEHOLDER"].split("/")[0]
    assert "_" in owner and not ADDRESS["OWNER"].fullmatch(owner)


@pytest.fixture
def copy(tmp_path):
    """A copy of the files that hold the address, with a small notebook of our own."""
    for path in ADDRESS["files"](ROOT):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    repo = ADDRESS["current"](ROOT)
    badge = f"[![Open](b.svg)](https://colab.research.google.com/github/{repo}/blob/main/book/mine.ipynb) für λ"
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Mine\n", "\n", badge]},
        {
            "cell_type": "code",
            "execution_count": 1,
            "metadata": {"note": f"https://github.com/{repo}"},
            "outputs": [{"name": "stdout", "output_type": "stream", "text": [f"https://github.com/{repo} stays\n"]}],
            "source": [f'%pip install "easydgl-mini @ git+https://github.com/{repo}"\n', f"# github.com/{repo}-other"],
        },
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    text = json.dumps(notebook, indent=3, ensure_ascii=False) + "\r\n"  # an unusual form that must survive
    (tmp_path / "book" / "mine.ipynb").write_bytes(text.encode())
    return tmp_path


def test_one_command_rewrites_the_address_everywhere(copy):
    repo = ADDRESS["current"](copy)
    before = {path: path.read_bytes() for path in ADDRESS["files"](copy)}
    changed = ADDRESS["change"](copy, "ada-l/notes.on_graphs")
    check_addresses(copy)
    assert ADDRESS["current"](copy) == "ada-l/notes.on_graphs"
    assert {path for path in before if path.read_bytes() != before[path]} == set(changed)

    mine = copy / "book" / "mine.ipynb"
    old, new = before[mine].decode(), mine.read_bytes().decode()
    assert new.count("ada-l/notes.on_graphs") == 2  # badge and install line
    assert new.count(repo) == old.count(repo) - 2  # output, metadata and another repository stay
    assert new.replace("ada-l/notes.on_graphs", repo) == old  # nothing else moved, byte for byte

    assert ADDRESS["change"](copy, "ada-l/notes.on_graphs") == []  # again: nothing to do
    ADDRESS["change"](copy, repo)
    assert {path: path.read_bytes() for path in before} == before  # there and back


@pytest.mark.parametrize(
    "repo",
    ["", "name", "a/b/c", "-a/b", "a-/b", "a--b/c", "a_b/c", "ä/b", "x" * 40 + "/b", "a/", "a/..", "a/b.git", "a/b c"]
    + ["https://github.com/a/b", "a/" + "b" * 101, "OTHER_ACCOUNT/easydgl-book"],
)
def test_an_address_github_forbids_is_refused_and_nothing_is_written(copy, repo):
    before = {path: path.read_bytes() for path in ADDRESS["files"](copy)}
    with pytest.raises(ValueError, match="REPO"):
        ADDRESS["change"](copy, repo)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("repo", ["a/b", "x" * 39 + "/b", "a-b-c/d_e.f-g", "A1/" + "b" * 100, "a/.github"])
def test_an_address_github_allows_is_accepted(repo):
    assert ADDRESS["validate"](repo) == repo


# Commands -------------------------------------------------------------------------------------------------------------


def make_targets():
    return set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), re.MULTILINE))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "book/how_to.md", "book/intro.md"])
def test_commands_in_the_text_exist(name):
    commands = set(re.findall(r"(?:`|^\s*|\$ )make ([a-z][a-z-]+)", read(name), re.MULTILINE))
    assert commands <= make_targets(), f"{name} names {commands - make_targets()}"


def test_readme_names_the_two_commands():
    text = read("README.md")
    assert "make book" in text and "make test" in text


def test_make_help_is_the_default_and_lists_every_target():
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  ([a-z-]+) ", done.stdout, re.MULTILINE))
    assert listed == make_targets()


def test_the_ci_script_runs_both_test_commands():
    text = read(".ci/run")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert re.search(r"^make test$", text, re.MULTILINE) and re.search(r"^make test-colab$", text, re.MULTILINE)
    assert "set -euo pipefail" in text


def test_readme_python_block_runs():
    blocks = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    assert blocks, "README.md has no Python block"
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


# Scripts --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def empty_repository(tmp_path):
    """A folder with just what book/_tools/environment.sh reads, and a PATH that holds the usual tools but no Python."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("torch==1\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "cksum", "tr", "df", "awk", "rm", "grep", "tee", "cut", "touch"):
        (tools / name).symlink_to(shutil.which(name))
    return tmp_path, tools


def setup_environment(folder, tools, **environment):
    script = ROOT / "book" / "_tools" / "environment.sh"
    variables = {"PATH": str(tools), "HOME": str(folder), **environment}
    return subprocess.run(["/bin/sh", str(script)], cwd=folder, env=variables, capture_output=True, text=True)


def fake(tools, name, body):
    """A small shell script in place of a program."""
    (tools / name).unlink(missing_ok=True)
    (tools / name).write_text(f"#!/bin/sh\n{body}\n")
    (tools / name).chmod(0o755)


def last_line(done):
    return done.stderr.strip().splitlines()[-1]


def test_no_python_says_so(empty_repository):
    done = setup_environment(*empty_repository)
    assert done.returncode != 0 and "no Python 3.11 or newer was found" in last_line(done)


def test_an_old_python_is_not_taken(empty_repository):
    folder, tools = empty_repository
    fake(tools, "python3", 'case "$1" in --version) echo Python 3.9.1;; *) exit 1;; esac')
    assert "no Python 3.11 or newer was found" in last_line(setup_environment(folder, tools))
    assert "is not Python 3.11 or newer (Python 3.9.1)" in last_line(setup_environment(folder, tools, PYTHON="python3"))
    assert "PYTHON=nowhere was not found" in last_line(setup_environment(folder, tools, PYTHON="nowhere"))


def test_a_full_disk_says_so(empty_repository):
    folder, tools = empty_repository
    (tools / "python3").symlink_to(sys.executable)
    fake(tools, "df", 'echo "Filesystem 1024-blocks Used Available"; echo "/dev/x 9 9 2097152 99% /"')
    done = setup_environment(folder, tools)
    assert done.returncode != 0 and "only 2 GB are free" in last_line(done)
    assert not (folder / ".venv").exists()


def test_a_python_without_venv_says_so(empty_repository):
    folder, tools = empty_repository
    fake(tools, "python3", 'case "$2" in *venv*) exit 1;; *) exit 0;; esac')
    done = setup_environment(folder, tools)
    assert done.returncode != 0 and "has no venv module" in last_line(done)


FAKE_PYTHON = """
# a Python whose "-m venv" makes a copy of itself and whose pip does what $FAKE_PIP says
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo made >> made.log; exit; fi
if [ "$1 $2 $3" = "-m pip --version" ]; then exit 0; fi
if [ "$1 $2" = "-m pip" ]; then eval "$FAKE_PIP"; fi
exit 0
"""


@pytest.mark.parametrize(
    ("pip", "words"),
    [
        ("echo \"NewConnectionError('Temporary failure in name resolution')\"; exit 1", "index could not be reached"),
        ('echo "OSError: [Errno 28] No space left on device"; exit 1', "the disk is full"),
        ('echo "ERROR: No matching distribution found for torch==9"; exit 1', "no build for this machine"),
        ('echo "ERROR: something else"; exit 1', "the lines above say why"),
    ],
    ids=["network", "disk", "no build", "other"],
)
def test_a_failed_install_says_what_to_do_and_the_next_one_starts_afresh(empty_repository, pip, words):
    folder, tools = empty_repository
    for name in ("mkdir", "cp"):
        (tools / name).symlink_to(shutil.which(name))
    fake(tools, "python3", FAKE_PYTHON)
    done = setup_environment(folder, tools, FAKE_PIP=pip)
    assert done.returncode != 0 and words in last_line(done)
    assert not (folder / ".venv" / ".stamp").exists()

    done = setup_environment(folder, tools, FAKE_PIP="exit 0")  # now pip works
    assert done.returncode == 0 and "interrupted: starting again" in done.stdout
    assert (folder / "made.log").read_text().count("made") == 2

    done = setup_environment(folder, tools, FAKE_PIP="exit 1")  # up to date: pip is not called
    assert done.returncode == 0 and done.stdout == ""
    (folder / "constraints.txt").write_text("torch==2\n")
    done = setup_environment(folder, tools, FAKE_PIP="exit 0")  # a changed pin: install again, into the same .venv
    assert "Installing" in done.stdout and (folder / "made.log").read_text().count("made") == 2


def test_a_broken_environment_is_made_again(empty_repository):
    folder, tools = empty_repository
    for name in ("mkdir", "cp"):
        (tools / name).symlink_to(shutil.which(name))
    fake(tools, "python3", FAKE_PYTHON)
    (folder / ".venv" / "bin").mkdir(parents=True)
    done = setup_environment(folder, tools, FAKE_PIP="exit 0")
    assert done.returncode == 0 and "does not work: starting again" in done.stdout


def test_execute_replaces_a_notebook_only_when_every_cell_ran(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    execute = runpy.run_path(str(ROOT / "book" / "_tools" / "execute.py"))
    cells = [nbformat.v4.new_code_cell("print(1 + 1)"), nbformat.v4.new_code_cell("x = 1 / d")]
    path = tmp_path / "mine.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    before = path.read_bytes()
    with pytest.raises(Exception, match="NameError"):
        execute["execute"](path)
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["mine.ipynb"]

    cells[1]["source"] = "d = 2"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    execute["execute"](path)
    first = path.read_bytes()
    done = json.loads(first)
    assert [cell["execution_count"] for cell in done["cells"]] == [1, 2]
    assert done["cells"][0]["outputs"][0]["text"] == ["2\n"]
    assert "execution" not in done["cells"][0]["metadata"]
    assert "version" not in done["metadata"]["language_info"]
    execute["execute"](path)
    assert path.read_bytes() == first  # running it again leaves nothing to commit


# Imports --------------------------------------------------------------------------------------------------------------

LAYERS = [
    {"graph", "events"},
    {"simulate"},
    {"data"},  # its simulated raw files come from the worlds
    {"encode"},
    {"train"},
    {"interpret"},
    {"baselines"},
    {"reproduce"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports_of(text, module):
    """Parts of the package (first level) that a module's source imports; ``module`` is its dotted name inside it."""
    found, parts = set(), module.split(".")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("easydgl_mini.")}
            if any(alias.name == "easydgl_mini" for alias in node.names):
                found.add("__init__")
        elif isinstance(node, ast.ImportFrom):
            name = node.module.split(".") if node.module else []
            if node.level:
                inside = parts[: len(parts) - node.level] + name
            elif name and name[0] == "easydgl_mini":
                inside = name[1:]
            else:
                continue
            found |= {inside[0]} if inside else {alias.name for alias in node.names}
    return found


def wrong_imports(text, module):
    """Names of parts that ``module`` must not import."""
    own = module.split(".")[0]
    wrong = set()
    for name in imports_of(text, module) - {own, "plotting", "__version__"}:
        if own == "plotting" or name == "__init__" or LEVEL.get(name, 99) > LEVEL[own]:
            wrong.add(name)
        elif LEVEL[name] == LEVEL[own] and name != own:
            wrong.add(name) if LEVEL[own] else None  # graph and events may know each other
    return wrong


def package_modules():
    for path in sorted((ROOT / "easydgl_mini").rglob("*.py")):
        parts = path.relative_to(ROOT / "easydgl_mini").with_suffix("").parts
        if parts != ("__init__",):
            yield ".".join(parts), path


@pytest.mark.parametrize(
    ("module", "path"), list(package_modules()), ids=lambda value: str(value) if "/" not in str(value) else ""
)
def test_imports_go_one_way(module, path):
    assert module.split(".")[0] in LEVEL.keys() | {"plotting"}, f"{module} has no place in the order of imports"
    wrong = wrong_imports(path.read_text(encoding="utf-8"), module)
    assert not wrong, f"{module} must not import {sorted(wrong)}"


@pytest.mark.parametrize(
    ("text", "module", "wrong"),
    [
        ("from ..graph import aggregate", "encode.aia", set()),
        ("from . import scores", "encode.aia", set()),
        ("from .scores import x", "encode.aia", set()),
        ("from .. import graph, train", "encode.aia", {"train"}),
        ("from ..train.cam import CaM", "encode.aia", {"train"}),
        ("import easydgl_mini.train", "encode.aia", {"train"}),
        ("import easydgl_mini as em", "encode.aia", {"__init__"}),
        ("from easydgl_mini.train import fit", "encode.models", {"train"}),
        ("from easydgl_mini import interpret", "train.fit", {"interpret"}),
        ("def f():\n    from .encode import scores", "graph", {"encode"}),
        ("from .graph import TemporalGraph", "events", set()),
        ("from . import data", "simulate", {"data"}),
        ("from .plotting import COLORS", "graph", set()),
        ("from .graph import TemporalGraph", "plotting", {"graph"}),
        ("from . import __version__, graph, simulate", "cli", set()),
        ("import numpy\nfrom torch import nn", "graph", set()),
    ],
)
def test_the_import_check_bites(text, module, wrong):
    assert wrong_imports(text, module) == wrong


def test_the_package_does_not_know_the_book():
    for module, path in package_modules():
        assert not re.search(r"^\s*(from|import) book\b", path.read_text(encoding="utf-8"), re.MULTILINE), module
