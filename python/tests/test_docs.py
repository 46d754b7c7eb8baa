"""The documentation is true: its Python runs, and the files it points to exist."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANY_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name(page):
    return str(page.relative_to(ROOT))


def blocks(page):
    """The Python blocks, each after blank lines that give tracebacks the page's line numbers."""
    text = page.read_text()
    return ["\n" * text.count("\n", 0, m.start(1)) + m.group(1) for m in BLOCK.finditer(text)]


def anchors(page):
    """The fragments of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(ANY_BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_python_blocks_run(page):
    """All blocks of a page, in order, in one namespace."""
    namespace = {"__name__": "docs"}
    for source in blocks(page):
        exec(compile(source, name(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(ANY_BLOCK.sub("", page.read_text())):
        if "://" in target:
            continue
        path, _, fragment = unquote(target).partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{name(page)} points to {target}, which does not exist"
        assert not fragment or fragment in anchors(file), f"{name(page)}: {target} has no such heading"
