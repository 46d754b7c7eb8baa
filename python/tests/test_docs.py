"""The documentation is true: its Python and its commands run, and the files it points to exist.

On the pages of RUN_PAGES a `sh` block is run as it stands and must succeed; a `console` block has commands
after "$ ", run one after the other, each with the output that the page says it has (stdout and stderr).
Blocks of another kind (`text`) only show what differs from machine to machine.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from serving import Serving
from tools import built_program, referee

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
RUN_PAGES = [ROOT / "docs" / page for page in ("guide.md", "models.md")]
PICTURES = ROOT / "docs" / "pictures"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```(sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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


@pytest.fixture
def server_of_the_docs():
    """The address of a `pom serve`, for docs/serve.md."""
    referee("openai")
    built_program()
    with Serving(ROOT / "assets/shapes64", ROOT / "assets/sprites32") as server:
        yield f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_python_blocks_run(page, monkeypatch, request):
    """All blocks of a page, in order, in one namespace, at the root of the repository."""
    monkeypatch.chdir(ROOT)
    namespace = {"__name__": "docs"}
    if any("libpom.Engine" in source for source in blocks(page)):
        request.getfixturevalue("extension")
    address = "127.0.0.1:8000"  # of the pages; here any that is free
    if any(address in source for source in blocks(page)):
        address = request.getfixturevalue("server_of_the_docs")
    for source in blocks(page):
        exec(compile(source.replace("127.0.0.1:8000", address), name(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(ANY_BLOCK.sub("", page.read_text())):
        if "://" in target:
            continue
        path, _, fragment = unquote(target).partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{name(page)} points to {target}, which does not exist"
        assert not fragment or fragment in anchors(file), f"{name(page)}: {target} has no such heading"


def sessions(page):
    """(commands, what they print or None) of a page's shell blocks, a console block cut into its commands."""
    text = page.read_text()
    for match in COMMANDS.finditer(text):
        if match.group(1) == "sh":
            yield match.group(2), None
            continue
        for part in re.split(r"^\$ ", match.group(2), flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs commands as bash does, `pom` among them, in a folder with assets, recipes and nothing else."""
    program = built_program()
    folder = tmp_path_factory.mktemp("guide")
    for kept in ("assets", "recipes"):
        (folder / kept).symlink_to(ROOT / kept)
    path = f"{program.resolve().parent}:{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k not in ("POM_MODELS", "POM_CPU_ISA")}

    def run(commands, output=None):  # with an output to compare, a pipe may drop what a failure means
        words = ["bash", "-eu", *(["-o", "pipefail"] if output is None else []), "-c", commands]
        return subprocess.run(
            words,
            cwd=folder,
            env=environment | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    run.folder = folder
    return run


@pytest.fixture(scope="module")
def guide(shell):
    """What the guide's commands printed, and the folder with what they made."""
    page = ROOT / "docs" / "guide.md"
    return [(commands, output, shell(commands, output)) for commands, output in sessions(page)], shell.folder


def check_session(page, commands, output, result):
    assert result.returncode == 0, f"{name(page)}: {commands}\n{result.stdout}"
    if output is not None:
        assert result.stdout == output, f"{name(page)}: {commands}"


def test_commands_of_the_guide_run(guide):
    assert len(guide[0]) > 10
    for commands, output, result in guide[0]:
        check_session(ROOT / "docs" / "guide.md", commands, output, result)


@pytest.mark.parametrize("page", [page for page in RUN_PAGES if page.name != "guide.md"], ids=name)
def test_commands_run(page, shell):
    found = list(sessions(page))
    assert found, f"{name(page)} has no command to run"
    for commands, output in found:
        check_session(page, commands, output, shell(commands, output))


def texts(picture):
    """What the PNG says made it, apart from the version."""
    Image = referee("PIL.Image")
    text = {key: json.loads(value) for key, value in Image.open(picture).text.items() if key != "parameters"}
    return {key: {k: v for k, v in value.items() if k != "version"} for key, value in text.items()}


@pytest.mark.parametrize(
    "picture", sorted(PICTURES.rglob("*.png")), ids=lambda p: str(p.relative_to(PICTURES))
)
def test_pictures_are_what_the_guide_makes(picture, guide):
    """With the settings shown and the weights that are there; docs/make_pictures.sh makes them anew. Another
    processor may round a grey level otherwise."""
    numpy, Image = referee("numpy"), referee("PIL.Image")
    made = guide[1] / "out" / picture.relative_to(PICTURES)
    assert made.is_file(), f"no command of docs/guide.md makes {name(picture)}"
    assert texts(picture) == texts(made)
    ours, shown = (numpy.asarray(Image.open(file).convert("RGB")).astype(int) for file in (made, picture))
    assert ours.shape == shown.shape and abs(ours - shown).max() <= 2


def test_every_picture_is_shown():
    shown = set(re.findall(r"\(pictures/([^)]+)\)", (ROOT / "docs" / "guide.md").read_text()))
    assert shown == {str(file.relative_to(PICTURES)) for file in PICTURES.rglob("*.png")}
