"""The masks that need no tensor: `causal` and `block_causal(K, window)`.

They are plain values. Before an operator is called they become two integers (block, window; 0 = absent), so
that torch.compile and torch.export see tensors and integers only, and nothing of size n x n is ever made.
"""

from dataclasses import dataclass

import torch

from .errors import Error, fail


@dataclass(frozen=True)
class CausalMask:
    """Query i sees key j when floor(j/block) <= floor(i/block), and, with a window, when j's block is one of
    the last `window` up to i's own. The last block may be short."""

    block: int = 1
    window: int | None = None

    def dense(self, tokens: int, device: torch.device | str | None = None) -> torch.Tensor:
        """The same mask as a (tokens, tokens) boolean tensor, to look at; the operators never make it."""
        block = torch.arange(tokens, device=device) // self.block
        age = block[:, None] - block[None, :]
        return (age >= 0) & (age < self.window) if self.window is not None else age >= 0

    def __repr__(self) -> str:
        if self == CausalMask():
            return "libpom.causal"
        window = "" if self.window is None else f", window={self.window}"
        return f"libpom.block_causal({self.block}{window})"


# Export takes a mask among a program's inputs as its two integers: export(pom, (x,), {"mask": causal}).
torch.export.register_dataclass(CausalMask, serialized_type_name="libpom.CausalMask")
torch.serialization.add_safe_globals([CausalMask])

causal = CausalMask()


def block_causal(block: int, window: int | None = None) -> CausalMask:
    """Tokens see their own block of `block` tokens and the blocks before it: all of them, or with `window` as
    many as make `window` blocks together with their own. `block_causal(1, window=W)` is a sliding window of W
    tokens."""
    return _valid(CausalMask(block, window))


def _valid(mask: CausalMask) -> CausalMask:
    """Checked here and where masks are used, not where they are made: export makes them of its own values."""
    if type(mask.block) is not int or mask.block < 1:
        fail("block_causal: block", "an integer of at least 1", repr(mask.block))
    if mask.window is not None and (type(mask.window) is not int or mask.window < 1):
        fail("block_causal: window", "an integer of at least 1 or None", repr(mask.window))
    return mask


Mask = torch.Tensor | CausalMask | None


def resolve(
    op: str, mask: Mask, query: torch.Tensor, context: torch.Tensor
) -> tuple[torch.Tensor | None, int, int]:
    """What an operator takes: (mask tensor or None, block or 0, window or 0)."""
    if mask is None:
        return None, 0, 0
    if isinstance(mask, CausalMask):
        return None, _valid(mask).block, mask.window or 0
    if isinstance(mask, torch.Tensor):
        _refuse_square(op, mask, query, context)
        return mask, 0, 0
    raise Error(
        f"{op}: mask: expected None, a (batch, context) or (batch, query, context) tensor, libpom.causal or "
        f"libpom.block_causal(K, window=None), got {mask!r}"
    )


def _refuse_square(op: str, mask: torch.Tensor, query: torch.Tensor, context: torch.Tensor) -> None:
    """A (m, n) mask for all sequences, as attention takes it, is none here: two dimensions are (B, n)."""
    if mask.dim() != 2 or query.dim() != 3 or context.dim() != 3 or mask.shape[0] == query.shape[0]:
        return
    (batch, m, _), n = query.shape, context.shape[1]
    if mask.shape[0] == m and mask.shape[1] == n:
        raise Error(
            f"{op}: mask: expected ({batch}, {n}) for keys or ({batch}, {m}, {n}) for queries and keys, "
            f"got ({m}, {n}): if every token sees those before it, use mask=libpom.causal; "
            f"else mask.expand({batch}, {m}, {n})"
        )
