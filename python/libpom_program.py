"""The command `pom` of an installed package: starts the program that lies beside libpom.so.

A module of its own, because importing the package imports torch, which takes seconds the program need not
wait for.
"""

import json
import os
import re
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn


def _folder(package: str) -> Path | None:
    """Of an installed package, without importing it."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _stop(words: str) -> NoReturn:
    print(f"pom: {words}", file=sys.stderr)
    raise SystemExit(1)


def _note(lib: Path) -> dict:
    """What the installer wrote beside the library."""
    try:
        return json.loads((lib / "build.json").read_text())
    except (OSError, ValueError):
        return {}


def why_absent(note: dict) -> str:
    """Why the package was installed without the program, and what to do."""
    words = [part for part in note.get("left_out", ()) if part.startswith("the program pom ")]
    if words:
        return f"{words[0]}: install that, then libpom again"
    if "reason" in note:
        return f"the package was installed without its compiled parts: {note['reason']}"
    return "the package was installed without the program: install libpom again"


def _torch(note: dict) -> Path:
    """The folder of the torch that the program was built for."""
    folder = _folder("torch")
    if folder is None:
        _stop("torch is not installed, and the program needs its libraries: pip install torch")
    text = (folder / "version.py").read_text() if (folder / "version.py").is_file() else ""
    found = re.search(r"__version__ = ['\"]([^'\"]+)", text)
    built, here = note.get("torch", ""), found[1] if found else ""
    if built and here and built.split(".")[:2] != here.split(".")[:2]:
        _stop(f"it was built for torch {built} and this is torch {here}: install libpom again")
    return folder


def environment(lib: Path, torch: Path) -> dict[str, str]:
    """With the folders in which the loader finds our libraries, torch's, and those that came with torch."""
    beside = torch.parent
    folders = [lib, torch / "lib", beside / "torch.libs", *sorted(beside.glob("nvidia/*/lib"))]
    paths = [str(folder) for folder in folders if folder.is_dir()]
    if before := os.environ.get("LD_LIBRARY_PATH"):
        paths.append(before)
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def main() -> NoReturn:
    package = _folder("libpom")
    if package is None:
        _stop("the package libpom is not installed")
    lib = package / "lib"
    note, program = _note(lib), lib / "pom"
    if not program.is_file():
        _stop(why_absent(note))
    variables = environment(lib, _torch(note))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and what is ignored stays so
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execve(program, ["pom", *sys.argv[1:]], variables)
    except OSError as error:
        _stop(f"{program} cannot be started: {error.strerror}")
