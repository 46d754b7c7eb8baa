"""Finds the torch that libpom is being installed beside, without importing it and without an isolated build's
own sys.path, which hides it."""

import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST, NEWEST = (2, 11), (2, 13)  # as `dependencies` in pyproject.toml


@dataclass(frozen=True)
class Torch:
    folder: Path  # site-packages/torch
    version: str  # 2.13.0+cpu

    @property
    def cmake(self) -> Path:
        return self.folder / "share" / "cmake" / "Torch"


def _folders() -> Iterator[Path]:
    """Where torch may be: what LIBPOM_TORCH names, what can be imported, then the environment's own folders.
    pip's isolation changes sys.path and nothing else; other installers build in a new environment of their
    own, started from the active one."""
    if named := os.environ.get("LIBPOM_TORCH"):
        yield Path(named)
        return
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        yield Path(spec.origin).parent
    homes = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if prefix := os.environ.get(variable):
            names = {"base": prefix, "platbase": prefix}
            scheme = "venv" if "venv" in sysconfig.get_scheme_names() else sysconfig.get_default_scheme()
            homes += [sysconfig.get_path(kind, scheme, names) for kind in ("purelib", "platlib")]
    if _sees_outside():
        homes += [
            site.getusersitepackages(),
            *site.getsitepackages(),
            *site.getsitepackages([sys.base_prefix]),
        ]
    for home in dict.fromkeys(homes):
        yield Path(home) / "torch"


def _sees_outside() -> bool:
    """Whether the user's and the system's packages are this interpreter's too: not in a plain virtual
    environment."""
    if sys.prefix == sys.base_prefix:
        return True
    settings = Path(sys.prefix) / "pyvenv.cfg"
    return settings.is_file() and re.search(
        r"(?mi)^include-system-site-packages\s*=\s*true", settings.read_text()
    )


def find() -> Torch | None:
    for folder in _folders():
        if (folder / "version.py").is_file():
            text = (folder / "version.py").read_text()
            if match := re.search(r"__version__\s*=\s*['\"]([^'\"]+)['\"]", text):
                return Torch(folder, match.group(1))
    return None


def check() -> Torch | None:
    """find(), refusing a torch that the dependency would make pip replace."""
    torch = find()
    if torch is not None:
        minor = tuple(int(part) for part in torch.version.split(".")[:2])
        if not OLDEST <= minor <= NEWEST:
            (a, b), (c, d) = OLDEST, NEWEST
            raise SystemExit(
                f"libpom: torch: expected {a}.{b} to {c}.{d}, got {torch.version} in {torch.folder}. libpom "
                "does not replace it: install one of those first."
            )
    return torch
