"""Check that every page of ``_toc.yml`` was rendered; used by ``make book``."""

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def pages(toc):
    """Documents of a Jupyter Book table of contents, the root first, in reading order."""
    found = [toc["root"]]
    for part in toc.get("parts", []):
        found += [chapter["file"] for chapter in part["chapters"]]
    return found


def main():
    """Exit with the names of missing or nearly empty pages, if there are any."""
    html = ROOT / "_build" / "html"
    wanted = [html / "index.html"] + [
        html / f"{p}.html" for p in pages(yaml.safe_load((ROOT / "_toc.yml").read_text()))
    ]
    missing = [str(p.relative_to(ROOT)) for p in wanted if not p.exists() or p.stat().st_size < 50]
    if missing:
        sys.exit(f"make: the book was built but these pages are missing or empty: {', '.join(missing)}.")
    print(f"{len(wanted) - 1} pages are there.")


if __name__ == "__main__":
    main()
