"""The operators as functions: checks the mask's kind, then torch.ops.pom.* where the library serves the
device, else reference.py. `force` chooses a path for tests and benchmarks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from . import _library, masks, reference
from .errors import Error, fail
from .split import SplitTokens

_PATHS = {"auto": 0, "fused": 1, "composed": 2, "python": 0}
_python = False  # force("python"): the operations of reference.py even where the library could
_parts_on = {"cuda"}  # devices on which a compiler gets the layer in parts; tests add the processor


def has_extension() -> bool:
    """Whether libpom.so is loaded; without it the package runs on plain torch operations (`python -m libpom`:
    why)."""
    return _library.path is not None


@contextmanager
def force(path: str) -> Iterator[None]:
    """`with libpom.force("fused")`: "auto", "fused" (the kernels, or an error where they cannot), "composed"
    (the library's plain ATen reference) or "python" (that of this package, for the whole process)."""
    global _python
    if path not in _PATHS:
        fail("force: path", "one of " + ", ".join(repr(name) for name in _PATHS), repr(path))
    if path in ("fused", "composed") and not has_extension():
        fail("force: path", "'auto' or 'python' without the extension", repr(path))
    before = _python, torch.ops.pom.set_path(_PATHS[path]) if has_extension() else 0
    _python = path == "python"
    try:
        yield
    finally:
        _python = before[0]
        if has_extension():
            torch.ops.pom.set_path(before[1])


def by_library(device: torch.device) -> bool:
    """Whether operators on this device are the library's."""
    return not _python and _library.serves(device)


def path() -> str:
    """What `force` or POM_PATH has chosen: "auto", "fused", "composed" or "python"."""
    if _python or not has_extension():
        return "python" if _python else "auto"
    chosen = torch.ops.pom.set_path(0)
    torch.ops.pom.set_path(chosen)
    return ("auto", "fused", "composed")[chosen]


def _call(name: str, lead: Tensor, *args: object) -> Any:
    """The operator `name` by the library where it serves the device of `lead`, else in plain torch."""
    if not by_library(lead.device):
        return getattr(reference, name)(*args)
    op = getattr(torch.ops.pom, name).default
    if torch.compiler.is_compiling():
        return op(*args)
    inside = torch._C._functorch.peek_interpreter_stack()  # pyright: ignore[reportAttributeAccessIssue]
    if inside is not None:  # torch.func composes with plain torch only
        return getattr(reference, name)(*args)
    try:
        return op(*args)
    except NotImplementedError:  # tensors of several devices: the checks there say which
        return getattr(reference, name)(*args)
    except RuntimeError as error:
        if str(error).startswith("mixer"):  # ours, for a caller's mistake; anything else goes on as it is
            raise Error(str(error).split("\n")[0]) from None
        raise


def _in_parts(x: Tensor, packed: bool) -> bool:
    """Whether a compiler should see the layer's plain products and reductions beside libpom's operators
    (pom/ops/dispatcher/register_parts.cpp). Not what is exported, which stays one operator, nor packed
    sequences, whose lengths the operator reads itself."""
    if packed or not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return x.device.type in _parts_on and by_library(x.device) and _library.has_parts(x.device)


def mixer(
    ho: Tensor,
    se: Tensor,
    order: int,
    mask: masks.Mask = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:
    """The mixer between projections: sigmoid(se) * H(ho).

    ho (B, n, k*D) is the projected context and se (B, m, k*D) the projected queries, before GELU and sigmoid;
    the result is (B, m, k*D). `mask` is None, a bool or 0/1 tensor (B, n) or (B, m, n), `libpom.causal` or
    `libpom.block_causal(K, window)`. With cu_seqlens (queries) and cu_seqlens_k (context; the same when left
    out) sequences are packed: (total_q, k*D) and (total_k, k*D).
    """
    tensor, block, window = masks.resolve("mixer", mask, se, ho)
    cu_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    return _call("mixer", ho, ho, se, order, tensor, block, window, cu_seqlens, cu_k)


def mixer_layer(
    xq: Tensor,
    xc: Tensor,
    ho_weight: Tensor,
    ho_bias: Tensor | None,
    se_weight: Tensor,
    se_bias: Tensor | None,
    ag_weight: Tensor,
    ag_bias: Tensor | None,
    order: int,
    mask: masks.Mask = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:
    """The whole layer, projections included: xq (B, m, d), xc (B, n, d) -> (B, m, d). Masks and packing as in
    mixer; pass the same tensor as xq and xc for self-mixing."""
    tensor, block, window = masks.resolve("mixer_layer", mask, xq, xc)
    cu_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    weights = (ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias)
    if _in_parts(xq, cu_k is not None):
        return torch.ops.pom.mixer_layer_in_parts.default(xq, xc, *weights, order, tensor, block, window)
    return _call("mixer_layer", xq, xq, xc, *weights, order, tensor, block, window, cu_seqlens, cu_k)


def mixer_layer_split(
    xq: Tensor,
    xc: Tensor,
    weights: tuple[Tensor | None, ...],
    order: int,
    split: SplitTokens,
    mask: masks.Mask = None,
) -> Tensor:
    """mixer_layer over this rank's tokens of sequences that are split over processes. `weights` are the six
    of mixer_layer; `split` says how the context is dealt out."""
    tensor, block, window = masks.resolve("mixer_layer_split", mask, xq, xc)
    if not by_library(xq.device):
        fail("mixer_layer_split: xq", "a device that libpom.so serves, with split tokens", xq.device)
    try:
        return torch.ops.pom.mixer_layer_split(
            xq, xc, *weights, order, tensor, block, window, split.group_name, split.counts, split.exact
        )
    except RuntimeError as error:
        if str(error).startswith("mixer"):
            raise Error(str(error).split("\n")[0]) from None
        raise


def mixer_summary(
    xc: Tensor, ho_weight: Tensor, ho_bias: Tensor | None, order: int, mask: Tensor | None = None
) -> Tensor:
    """The sum over tokens of the running products: xc (B, n, d) -> (B, k*D), fp32 (fp64 for fp64)."""
    return _call("mixer_summary", xc, xc, ho_weight, ho_bias, order, mask)


def mixer_select(
    xq: Tensor,
    H: Tensor,
    se_weight: Tensor,
    se_bias: Tensor | None,
    ag_weight: Tensor,
    ag_bias: Tensor | None,
) -> Tensor:
    """What queries xq (B, m, d) take from the mean H (B, k*D): (B, m, d)."""
    return _call("mixer_select", xq, xq, H, se_weight, se_bias, ag_weight, ag_bias)


def mixer_scan(
    x: Tensor,
    ho_weight: Tensor,
    ho_bias: Tensor | None,
    se_weight: Tensor,
    se_bias: Tensor | None,
    ag_weight: Tensor,
    ag_bias: Tensor | None,
    order: int,
    sum: Tensor,
    count: Tensor,
) -> tuple[Tensor, Tensor]:
    """The causal layer over x (B, n, d), going on from a running sum (B, k*D) and count (B): output and new
    sum."""
    weights = (ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias)
    return _call("mixer_scan", x, x, *weights, order, sum, count)
