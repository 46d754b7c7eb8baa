"""What the operators of reference.py ask of their arguments, said in the words of the C++ side.

B batch, m queries, n context tokens, d width, k order, D features of one degree, S packed sequences.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch

from .errors import fail
from .state import MixerState

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def shape(tensor: torch.Tensor) -> str:
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


def order(op: str, k: int, width: int) -> None:
    if not isinstance(k, (int, torch.SymInt)) or isinstance(k, bool) or k < 1:
        fail(f"{op}: order", "an integer of at least 1", repr(k))
    if width % k != 0:
        fail(f"{op}: order", f"a divisor of the projected width {width}", k)


def floats(op: str, tensors: dict[str, torch.Tensor | None]) -> None:
    """One floating dtype and one device for all that are given; under autocast the dtypes may differ."""
    given = _given(tensors)
    first, lead = next(given)
    if lead.dtype not in _DTYPES:
        fail(f"{op}: {first}", "float32, float64, bfloat16 or float16", lead.dtype)
    mixed = torch.is_autocast_enabled(lead.device.type)
    for name, tensor in given:
        if tensor.device != lead.device:
            fail(f"{op}: {name}", f"device {lead.device} as {first}", tensor.device)
        if tensor.dtype != lead.dtype and not (mixed and tensor.dtype in _DTYPES):
            fail(f"{op}: {name}", f"{lead.dtype} as {first}", tensor.dtype)


def _given(tensors: dict[str, torch.Tensor | None]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, tensor) for name, tensor in tensors.items() if tensor is not None)


def has_shape(op: str, name: str, tensor: torch.Tensor | None, want: tuple, words: str) -> None:
    if tensor is not None and tuple(tensor.shape) != tuple(want):
        fail(f"{op}: {name}", f"({', '.join(map(str, want))}), {words}", shape(tensor))


def tokens(op: str, name: str, tensor: torch.Tensor, packed: bool = False) -> None:
    if tensor.dim() != (2 if packed else 3):
        want = (
            "2 dimensions (total tokens, width) with cu_seqlens"
            if packed
            else "3 dimensions (batch, tokens, width)"
        )
        fail(f"{op}: {name}", want, shape(tensor))


def pair(op: str, query: torch.Tensor, context: torch.Tensor, names: tuple[str, str], packed: bool) -> None:
    """Queries and context: ranks, one batch, one width, and a context that is not empty."""
    tokens(op, names[0], query, packed)
    tokens(op, names[1], context, packed)
    if query.shape[-1] != context.shape[-1]:
        fail(f"{op}: {names[1]}", f"width {query.shape[-1]} as {names[0]}", shape(context))
    if not packed and query.shape[0] != context.shape[0]:
        fail(f"{op}: {names[1]}", f"batch {query.shape[0]} as {names[0]}", shape(context))
    if not packed and context.shape[1] == 0:
        fail(f"{op}: {names[1]}", "at least one context token", shape(context))


def keys_mask(op: str, mask: torch.Tensor | None, batch: int, n: int) -> None:
    if mask is not None:
        has_shape(op, "mask", mask, (batch, n), "a mask of the context tokens")
        _mask_values(op, mask)


def _mask_values(op: str, mask: torch.Tensor) -> None:
    if mask.dtype.is_complex:
        fail(f"{op}: mask", "bool or only the values 0 and 1", mask.dtype)
    if mask.dtype == torch.bool or torch.compiler.is_compiling():
        return
    try:
        ok = torch.equal(mask.ne(0), mask.eq(1))
    except RuntimeError:  # no values here: meta tensors, tracing, transforms
        return
    if not ok:
        fail(f"{op}: mask", "bool or only the values 0 and 1", f"others in a tensor of {mask.dtype}")


def state(op: str, state: MixerState, batch: int, features: int) -> None:
    """A state of so many sequences and of a layer with so many features."""
    if not isinstance(state, MixerState):
        hint = ": MixerState.from_state_dict makes one of it" if isinstance(state, dict) else ""
        want = "a MixerState, as init_state, summarize and step give it"
        fail(f"{op}: state", want, ("None" if state is None else f"a {type(state).__name__}") + hint)
    if tuple(state.sum.shape) != (batch, features):
        fail(f"{op}: state", f"({batch}, {features}), batch and features", shape(state.sum))
    has_shape(op, "state.count", state.count, (batch,), "one for each sequence")
    if (window := state.window) is not None:
        has_shape(op, "state.ring_sum", state.ring_sum, (batch, window, features), "the blocks of its window")
        has_shape(op, "state.ring_count", state.ring_count, (batch, window), "the blocks of its window")


def masks(
    op: str,
    query: torch.Tensor,
    context: torch.Tensor,
    mask: torch.Tensor | None,
    block: int,
    window: int,
    packed: bool,
) -> None:
    if block < 0:
        fail(f"{op}: block", "0 (no causal mask) or a block of at least 1 token", block)
    if window < 0 or (window > 0 and block == 0):
        fail(f"{op}: window", "0 (no window), or at least 1 with a block", window)
    if block > 0 and query.shape[:-1] != context.shape[:-1]:
        fail(
            f"{op}: mask",
            "as many queries as context tokens for a causal one",
            f"{shape(query)}, {shape(context)}",
        )
    if mask is None:
        return
    if block > 0:
        fail(f"{op}: mask", "either a mask tensor or a causal form", "both")
    if packed:
        fail(f"{op}: mask", "no mask tensor with cu_seqlens", shape(mask))
    if mask.device != context.device:
        fail(f"{op}: mask", f"device {context.device} as the context", mask.device)
    (batch, n), m = context.shape[:2], query.shape[1]
    if tuple(mask.shape) not in ((batch, n), (batch, m, n)):
        fail(
            f"{op}: mask", f"({batch}, {n}) for keys or ({batch}, {m}, {n}) for queries and keys", shape(mask)
        )
    _mask_values(op, mask)


def packing(
    op: str,
    query: torch.Tensor,
    context: torch.Tensor,
    names: tuple[str, str],
    cu_q: torch.Tensor | None,
    cu_k: torch.Tensor | None,
    block: int,
) -> bool:
    """Whether the inputs are packed; cumulative lengths must fit them."""
    if cu_q is None and cu_k is None:
        return False
    if cu_q is None or cu_k is None:
        fail(
            f"{op}: {'cu_q' if cu_q is None else 'cu_k'}",
            "cumulative lengths for queries and context",
            "only one",
        )
    for name, cu in (("cu_q", cu_q), ("cu_k", cu_k)):
        if cu.dtype not in (torch.int32, torch.int64) or cu.dim() != 1 or cu.numel() < 1:
            fail(
                f"{op}: {name}",
                "1-D int32 or int64 cumulative lengths, starting with 0",
                f"{cu.dtype} {shape(cu)}",
            )
        if cu.device != context.device:
            fail(f"{op}: {name}", f"device {context.device} as the context", cu.device)
    if cu_q.shape != cu_k.shape:
        fail(f"{op}: cu_k", f"{cu_q.shape[0]} cumulative lengths as cu_q", cu_k.shape[0])
    if query.dim() == 2 and context.dim() == 2 and not torch.compiler.is_compiling():
        _packed_values(op, names[1], query.shape[0], context.shape[0], cu_q, cu_k, block)
    return True


def _packed_values(
    op: str, context: str, total_q: int, total_k: int, cu_q: torch.Tensor, cu_k: torch.Tensor, block: int
) -> None:
    try:
        queries, keys = cu_q.tolist(), cu_k.tolist()
    except RuntimeError:  # no values here: meta tensors, tracing, transforms
        return
    if type(queries[0]) is not int:  # tracing gives symbols
        return
    for name, values, total in (("cu_q", queries, total_q), ("cu_k", keys, total_k)):
        if values[0] != 0 or values[-1] != total or any(a > b for a, b in pairwise(values)):
            fail(f"{op}: {name}", f"lengths accumulated from 0 to {total}, never falling", values)
    if block > 0 and queries != keys:
        fail(
            f"{op}: mask",
            "as many queries as context tokens for a causal one",
            f"cu_q {queries} and cu_k {keys}",
        )
    for s in range(len(keys) - 1):
        if keys[s] == keys[s + 1] and queries[s] < queries[s + 1]:
            fail(f"{op}: {context}", "at least one context token for each query", f"none in sequence {s}")
