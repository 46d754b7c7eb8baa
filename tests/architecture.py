"""Checks that the rooms know each other in one direction only, by the includes in their sources.

A room may include itself and the rooms of the layers before its own. The rooms in TORCH_FREE include nothing
of torch. Prints each offence as file:line, and exits with 1 where there is one.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYERS = [
    {"base"},
    {"io", "kernels"},
    {"net", "parallel"},
    {"ops"},
    {"nn"},
    {"models", "diffusion", "codecs"},
    {"generate", "data"},
    {"train", "eval"},
    {"serve"},
    {"cli", "python"},  # of these two the folders are at the root
]
TORCH_FREE = {"base", "io", "kernels", "net"}
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
PRIVATE = {"pom/ops/cpu/": "ops"}  # not installed: folders that only their own room may include

INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


def allowed(room: str) -> set[str]:
    depth = next(i for i, layer in enumerate(LAYERS) if room in layer)
    return {room}.union(*LAYERS[:depth])


def sources() -> Iterator[tuple[Path, str]]:
    """Every source file of the library and its programs, with its room."""
    for path in sorted((ROOT / "pom").rglob("*")):
        if path.suffix in SUFFIXES:
            yield path, path.relative_to(ROOT / "pom").parts[0]
    for room in ("cli", "python"):
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path, room


def offence(room: str, quote: str, header: str) -> str | None:
    """What is wrong with this room including this header."""
    if room in TORCH_FREE and header.startswith(TORCH):
        return f"{room} knows no torch, and includes {header}"
    if room == "cli" and header.startswith("cli/"):
        return None if (ROOT / header).is_file() else f"{header} does not exist"
    if not header.startswith("pom/"):
        return f'"{header}": write it as "pom/..."' if quote == '"' else None
    if not (ROOT / header).is_file():
        return f"{header} does not exist"
    other = Path(header).parts[1]
    if other not in allowed(room):
        may = ", ".join(name for layer in LAYERS for name in sorted(layer) if name in allowed(room))
        return f"{room} may include {may}, and includes {header}"
    for folder, owner in PRIVATE.items():
        if header.startswith(folder) and room != owner:
            return f"{header} is private to {owner}, and {room} includes it"
    return None


def main() -> int:
    rooms, files, offences = set().union(*LAYERS), 0, []
    for path, room in sources():
        files += 1
        name = path.relative_to(ROOT)
        if room not in rooms:
            offences.append(f"{name}:1: pom/{room} is not a room: add it to LAYERS in tests/architecture.py")
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            found = INCLUDE.match(line)
            if found and (what := offence(room, *found.groups())):
                offences.append(f"{name}:{number}: {what}")
    for line in offences:
        print(line)
    print(f"architecture: {files} files, {len(offences)} offences")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
