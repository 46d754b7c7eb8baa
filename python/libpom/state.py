"""MixerState: all that is left of the tokens a mixer has seen.

B batch, W window in blocks, kD features. Values only: every step returns a new state and leaves the old one
as it was, so keeping a state is forking it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import fail


@dataclass(frozen=True, eq=False)
class MixerState:
    """`sum` (B, kD) of the running products of the visible tokens, fp32 (fp64 for fp64), and their `count`
    (B) int64.

    With a window also the sums of the last W blocks, `ring_sum` (B, W, kD), oldest first, with `ring_count`
    (B, W) tokens each, of which the last `filled` (B) have come so far. `sum` is then their sum, added anew
    in order at each step: a running sum from which old blocks were subtracted would drift.
    """

    sum: Tensor
    count: Tensor
    ring_sum: Tensor | None = None
    ring_count: Tensor | None = None
    filled: Tensor | None = None

    @staticmethod
    def empty(
        batch: int,
        features: int,
        window: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> "MixerState":
        """The state before the first token."""
        if window is not None and (isinstance(window, bool) or window < 1):
            fail("init_state: window", "an integer of at least 1 or None", repr(window))
        count = torch.zeros(batch, dtype=torch.int64, device=device)
        total = torch.zeros(batch, features, dtype=dtype, device=device)
        if window is None:
            return MixerState(total, count)
        ring = torch.zeros(batch, window, features, dtype=dtype, device=device)
        return MixerState(
            total, count, ring, torch.zeros_like(ring[..., 0], dtype=torch.int64), count.clone()
        )

    @property
    def window(self) -> int | None:
        return None if self.ring_sum is None else self.ring_sum.shape[1]

    def ring(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """ring_sum, ring_count and filled of a state with a window: all of them, or none."""
        if self.ring_sum is None or self.ring_count is None or self.filled is None:
            return None
        return self.ring_sum, self.ring_count, self.filled

    def push(self, total: Tensor, count: Tensor | int) -> "MixerState":
        """The state after one more block of `count` (B) tokens whose running products sum to `total` (B,
        kD)."""
        ours = self.ring()
        if ours is None:
            return MixerState(self.sum + total, self.count + count)
        ring_sum, ring_count, filled = ours
        count = torch.zeros_like(self.count) + count
        ring = torch.cat([ring_sum[:, 1:], total.unsqueeze(1)], dim=1)
        ring_count = torch.cat([ring_count[:, 1:], count.unsqueeze(1)], dim=1)
        filled = (filled + 1).clamp(max=ring.shape[1])
        return MixerState(ring.sum(1), ring_count.sum(1), ring, ring_count, filled)

    def merge(self, other: "MixerState") -> "MixerState":
        """The state of this state's tokens followed by those of `other`, whose summary began empty."""
        if not isinstance(other, MixerState):
            fail("merge: other", "a MixerState", type(other).__name__)
        if self.window != other.window or self.sum.shape != other.sum.shape:
            fail("merge: other", f"a state of shape {tuple(self.sum.shape)} and window {self.window}",
                 f"{tuple(other.sum.shape)} and window {other.window}")  # fmt: skip
        ours, theirs = self.ring(), other.ring()
        if ours is None or theirs is None:
            return MixerState(self.sum + other.sum, self.count + other.count)
        # Slot s of the result is slot s + f of the two rings laid end to end, less other's W - f empty slots.
        window = ours[0].shape[1]
        fresh = theirs[2].unsqueeze(1)
        slot = torch.arange(window, device=ours[0].device)
        slot = torch.where(slot >= window - fresh, slot + window, slot + fresh)
        ring_count = torch.cat([ours[1], theirs[1]], 1).gather(1, slot)
        wide = slot.unsqueeze(-1).expand(-1, -1, ours[0].shape[2])
        ring = torch.cat([ours[0], theirs[0]], 1).gather(1, wide)
        filled = (ours[2] + theirs[2]).clamp(max=window)
        return MixerState(ring.sum(1), ring_count.sum(1), ring, ring_count, filled)

    # --- copies, devices, files ---

    def _map(self, function: Callable[[Tensor], Tensor]) -> "MixerState":
        ring = self.ring()
        kept = () if ring is None else tuple(map(function, ring))
        return MixerState(function(self.sum), function(self.count), *kept)

    def clone(self) -> "MixerState":
        """A copy that shares no memory; steps never write in place, so a fork does not need one."""
        return self._map(torch.Tensor.clone)

    def detach(self) -> "MixerState":
        """Cuts the graph here, for training on pieces of a long sequence."""
        return self._map(torch.Tensor.detach)

    def to(self, device: torch.device | str) -> "MixerState":
        return self._map(lambda tensor: tensor.to(device))

    def __getitem__(self, index) -> "MixerState":
        """States of some sequences of the batch: a slice, a mask or indices, repeated ones too (beam
        search)."""
        if isinstance(index, int):
            index = slice(index, index + 1 or None)
        return self._map(lambda tensor: tensor[index])

    def state_dict(self) -> dict[str, Tensor]:
        """Plain tensors for torch.save or safetensors, under the names of the C++ library: `sums` (B, r, kD)
        and `counts` (B, r) of the r blocks kept (one row without a window), and `window` (0 for none)."""
        ring = self.ring()
        if ring is None:
            sums, counts = self.sum.unsqueeze(1), self.count.unsqueeze(1)
        else:
            sums, counts, filled = ring
            first = sums.shape[1] - (int(filled.max()) if filled.numel() else 0)
            sums, counts = sums[:, first:], counts[:, first:]
        window = torch.tensor(self.window or 0)
        return {"sums": sums.contiguous(), "counts": counts.contiguous(), "window": window}

    @staticmethod
    def from_state_dict(tensors: dict[str, Tensor]) -> "MixerState":
        """The state that state_dict, here or in C++, was made of."""
        if not isinstance(tensors, dict) or set(tensors) != {"sums", "counts", "window"}:
            names = sorted(tensors) if isinstance(tensors, dict) else type(tensors).__name__
            fail("from_state_dict: tensors", "a dict of sums, counts and window", names)
        sums, counts, window = tensors["sums"], tensors["counts"], int(tensors["window"])
        kept = sums.shape[1] if sums.dim() == 3 else -1
        if not (kept == 1 if window == 0 else 0 <= kept <= window):
            most = "one" if window == 0 else f"at most {window}"
            fail(
                "from_state_dict: sums",
                f"(batch, blocks, features) with {most} of the blocks",
                tuple(sums.shape),
            )
        if counts.shape != sums.shape[:2] or counts.dtype != torch.int64:
            got = f"{counts.dtype} {tuple(counts.shape)}"
            fail("from_state_dict: counts", f"{torch.int64} {tuple(sums.shape[:2])}", got)
        if window == 0:
            return MixerState(sums[:, 0], counts[:, 0])
        ring_sum = torch.nn.functional.pad(sums, (0, 0, window - kept, 0))
        ring_count = torch.nn.functional.pad(counts, (window - kept, 0))
        filled = torch.full_like(counts.sum(1), kept)
        return MixerState(ring_sum.sum(1), ring_count.sum(1), ring_sum, ring_count, filled)


# A state goes in and out of exported programs, and of files that torch.load reads with weights_only.
torch.export.register_dataclass(MixerState, serialized_type_name="libpom.MixerState")
torch.serialization.add_safe_globals([MixerState])
