"""Write the repository's address everywhere it is used: ``make address REPO=owner/name``.

The address lives in ``_config.yml`` (``repository.url``). This script reads the old one there and rewrites it in the
configuration, the package's metadata, the citation file, the Markdown pages, and the source lines (badge, install cell)
of every notebook. Everything else stays as it is, byte for byte, and running it twice changes nothing.
"""

import json
import re
import sys
from pathlib import Path

PLACEHOLDER = "YOUR_ACCOUNT/easydgl-book"  # GitHub allows no underscore in an account's name: nobody can register it
TEXT_FILES = ("_config.yml", "pyproject.toml", "CITATION.cff", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
OWNER = re.compile(r"[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38}")
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def validate(repo):
    """Return ``repo`` if it is an address GitHub could have given out (or the placeholder), else raise ValueError."""
    if repo == PLACEHOLDER:
        return repo
    owner, slash, name = repo.partition("/")
    if not slash or "/" in name:
        raise ValueError(f"REPO must look like owner/name, got {repo!r}")
    if not OWNER.fullmatch(owner) or len(owner) > 39:
        raise ValueError(
            f"REPO's owner {owner!r} is no GitHub account: 1 to 39 letters, digits, single hyphens, no hyphen at an end"
        )
    if not NAME.fullmatch(name) or name in (".", "..") or name.lower().endswith((".git", ".wiki")):
        raise ValueError(
            f"REPO's name {name!r} is no GitHub repository: 1 to 100 letters, digits, '.', '-', '_', no .git at the end"
        )
    return repo


def current(root):
    """The address that ``_config.yml`` holds, as ``owner/name``."""
    text = (Path(root) / "_config.yml").read_text(encoding="utf-8")
    found = re.search(r"^\s+url:\s*https://github\.com/([^/\s]+/[^/\s]+?)/?\s*$", text, re.MULTILINE)
    if not found:
        raise ValueError("_config.yml has no line 'url: https://github.com/owner/name' under repository")
    return found.group(1)


def pattern(repo):
    """Where ``repo`` stands as a GitHub address, and not as the beginning of a longer name."""
    return re.compile(rf"(github\.com/|colab\.research\.google\.com/github/){re.escape(repo)}(?=\.git\b|\.?(?![\w.-]))")


def rewrite(text, old, new):
    """``text`` with the address ``old`` replaced by ``new``."""
    return pattern(old).sub(lambda match: match.group(1) + new, text)


def rewrite_notebook(raw, old, new):
    """The raw JSON of a notebook with the address rewritten in its cells' sources, never in outputs or metadata."""
    lines = set()
    for cell in json.loads(raw)["cells"]:
        source = cell["source"]
        lines.update([source] if isinstance(source, str) else source)
    for line in sorted(lines):
        changed = rewrite(line, old, new)
        if changed == line:
            continue
        for ascii_only in (False, True):
            raw = raw.replace(json.dumps(line, ensure_ascii=ascii_only), json.dumps(changed, ensure_ascii=ascii_only))
    return raw


def files(root):
    """The files in which the address may stand."""
    root = Path(root)
    found = [root / name for name in TEXT_FILES] + sorted((root / "book").glob("*.md"))
    return [path for path in found if path.exists()] + sorted((root / "book").glob("*.ipynb"))


def change(root, repo):
    """Rewrite the address under ``root``; return the files that changed. Nothing is written if anything is wrong."""
    new, old, todo = validate(repo), current(root), {}
    for path in files(root):
        raw = path.read_bytes().decode("utf-8")
        changed = rewrite_notebook(raw, old, new) if path.suffix == ".ipynb" else rewrite(raw, old, new)
        if changed != raw:
            todo[path] = changed
    for path, changed in todo.items():
        path.write_bytes(changed.encode("utf-8"))
    return list(todo)


def main(arguments):
    """The command line: one argument, ``owner/name``."""
    root = Path(__file__).resolve().parents[2]
    if len(arguments) != 1 or not arguments[0]:
        sys.exit(f"make address needs the repository: make address REPO=owner/name (now: {current(root)})")
    try:
        changed = change(root, arguments[0])
    except ValueError as error:
        sys.exit(f"make address: {error}")
    for path in changed:
        print("rewrote", path.relative_to(root))
    print(f"The address is https://github.com/{arguments[0]} ({len(changed)} files changed).")


if __name__ == "__main__":
    main(sys.argv[1:])
