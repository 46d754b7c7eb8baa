"""Finds and loads libpom.so, whose static initialisers register torch.ops.pom.*; remembers why it cannot.

The library is the file named by $LIBPOM_LIBRARY, else lib/libpom.so beside this file, else none: the package
then runs on the plain torch operations of reference.py. $LIBPOM_DISABLE_EXTENSION=1 chooses those anyway.
"""

import json
import os
import warnings
from pathlib import Path

import torch

from .errors import Error

_HERE = Path(__file__).resolve().parent / "lib"
_OPS = ("mixer", "mixer_layer", "mixer_summary", "mixer_select", "mixer_scan")

path: Path | None = None  # the loaded library
reason = ""  # why there is none
_devices: frozenset[str] = frozenset()  # the device types all of its ops have kernels for
_parts: frozenset[str] = frozenset()  # those on which the layer in parts is made of kernels too


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])


def _built_for() -> dict:
    """What the installer wrote beside the library: {"torch": "2.13.0+cpu"} or {"reason": "no compiler"}."""
    try:
        return json.loads((_HERE / "build.json").read_text())
    except (OSError, ValueError):
        return {}


def _load() -> None:
    global path, reason, _devices, _parts
    if os.environ.get("LIBPOM_DISABLE_EXTENSION", "0") not in ("", "0"):
        reason = "LIBPOM_DISABLE_EXTENSION is set"
        return
    named = os.environ.get("LIBPOM_LIBRARY")
    library = Path(named) if named else _HERE / "libpom.so"
    if not library.is_file():
        if named:  # a library asked for by name is never silently left out
            raise Error(f"libpom: LIBPOM_LIBRARY: expected the path of libpom.so, got {named} (no such file)")
        reason = _built_for().get("reason", "the package was installed without it")
        return
    built = "" if named else _built_for().get("torch", "")
    if built and _minor(built) != _minor(torch.__version__):
        reason = f"it was built for torch {built} and this is torch {torch.__version__}: reinstall libpom"
    else:
        # On some processors MKL adds up long sums in another order for another number of threads, unless told
        # otherwise before torch's first product.
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
        try:
            torch.ops.load_library(str(library))
        except OSError as error:
            if named:
                raise Error(f"libpom: LIBPOM_LIBRARY: expected a library that loads, got {error}") from error
            reason = f"it does not load ({error}): reinstall libpom"
    if reason:
        warnings.warn(f"libpom: lib/libpom.so is not used, {reason}", RuntimeWarning, stacklevel=3)
        return
    path = library
    _devices = frozenset(
        key.lower()
        for key in ("CPU", "CUDA", "Meta")
        if all(torch._C._dispatch_has_kernel_for_dispatch_key(f"pom::{op}", key) for op in _OPS)
    )
    if hasattr(torch.ops.pom, "mixer_layer_in_parts"):
        _parts = frozenset({"cpu", "cuda"} if build().get("cuda_kernels") == "yes" else {"cpu"})


def serves(device: torch.device) -> bool:
    """Whether tensors of this device go to the library (the others go to the pure-torch operations)."""
    return device.type in _devices


def has_parts(device: torch.device) -> bool:
    """Whether the library has the layer in parts, with kernels for this device."""
    return device.type in _parts


def build() -> dict[str, str]:
    """What the library says of itself: version, line, torch, cpu, cuda_kernels. Nothing where there is none,
    or one of before it could say."""
    return dict(torch.ops.pom.build()) if path is not None and hasattr(torch.ops.pom, "build") else {}


_load()
