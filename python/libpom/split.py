"""Sequences whose tokens are split over processes: `pom(x, mask=…, split=libpom.SplitTokens(n))`.

A rank has the same stretch of every sequence of a batch. A layer exchanges sums of k·D numbers for each
sequence, forward and backward, however long the sequences are.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from . import _library
from .errors import Error, fail


class SplitTokens:
    """How `total` tokens are dealt out to the ranks of `group` (by default all processes), in order.

    Args:
        total: the number of tokens of a sequence.
        group: a group of torch.distributed.
        unit: ranks get whole runs of this many tokens, as even as that goes.
        counts: the tokens of each rank, in place of `unit`.
        exact: sums over ranks are taken in the order of ranks, so that their bits depend on the shares alone.
    """

    def __init__(
        self,
        total: int,
        group: dist.ProcessGroup | None = None,
        unit: int = 1,
        counts: Sequence[int] | None = None,
        exact: bool = True,
    ) -> None:
        if _library.path is None:
            raise Error(f"SplitTokens: expected libpom.so, got none: {_library.reason}")
        if not dist.is_initialized():
            raise Error("SplitTokens: expected torch.distributed.init_process_group() before it")
        self.group = group if group is not None else dist.group.WORLD
        assert self.group is not None
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            fail("SplitTokens: group", "a group that this process is in", "another")
        self.total, self.exact = total, exact
        self.counts = list(
            counts if counts is not None else torch.ops.pom.share_counts(total, self.ranks, unit)
        )
        if len(self.counts) != self.ranks or sum(self.counts) != total or min(self.counts) < 1:
            fail(
                "SplitTokens: counts",
                f"{self.ranks} numbers of at least 1 that make {total}",
                f"{self.counts}",
            )

    @property
    def group_name(self) -> str:
        assert self.group is not None  # as torch.distributed is initialized
        return self.group.group_name

    @property
    def first(self) -> int:
        """This rank's first token."""
        return sum(self.counts[: self.rank])

    @property
    def count(self) -> int:
        """How many tokens this rank has."""
        return self.counts[self.rank]

    def of(self, whole: Tensor, dim: int = 1) -> Tensor:
        """This rank's tokens of sequences that it has whole."""
        if whole.shape[dim] != self.total:
            fail("SplitTokens.of: whole", f"{self.total} tokens along dimension {dim}", tuple(whole.shape))
        return whole.narrow(dim, self.first, self.count)

    def gather(self, mine: Tensor, dim: int = 1) -> Tensor:
        """All tokens, on every rank; without gradients."""
        if mine.shape[dim] != self.count:
            fail("SplitTokens.gather: mine", f"{self.count} tokens along dimension {dim}", tuple(mine.shape))
        shape = list(mine.shape)
        parts = []
        for count in self.counts:
            shape[dim] = count
            parts.append(torch.empty(shape, dtype=mine.dtype, device=mine.device))
        for rank, part in enumerate(parts):
            if rank == self.rank:
                part.copy_(mine.detach())
            dist.broadcast(part, group_src=rank, group=self.group)
        return torch.cat(parts, dim)

    def traffic(self) -> tuple[int, int, int]:
        """Calls, numbers and bytes that this rank has handed in to the group so far, through the library."""
        return tuple(torch.ops.pom.traffic(self.group_name))

    def __repr__(self) -> str:
        return (
            f"SplitTokens(tokens {self.first} to {self.first + self.count} of {self.total}, "
            f"rank {self.rank} of {self.ranks})"
        )
