"""Decoder: one token after the other through a stack of causal blocks.

B sequences, L blocks, d width, kD features. What a sequence was so far is L sums of kD values and a count,
however long it is.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import functional
from .errors import fail
from .module import Polymorpher, is_plain
from .state import MixerState


class Decoder:
    """A stack of `Polymorpher` blocks that sees one token of each of `batch` sequences at a time.

        decoder = libpom.Decoder(blocks, batch=1)
        y = decoder.prefill(prompt)     # (B, n, d), as the blocks with mask=libpom.causal would give it
        y = decoder.step(y[:, -1])      # (B, d) -> (B, d), as often as wanted

    The state is the decoder's own and changes with every call; `states` and `load` take it out and put it in.
    The blocks' weights may be changed in place. On a GPU of compute capability 9.0, with blocks in bf16 or
    fp16, orders up to 4 and at most 8 sequences, a step is one kernel in a CUDA graph, which takes about as
    long as reading the weights once, and the residual stream between the blocks is fp32; elsewhere the blocks
    run one by one. `fused` says which it was. There are no gradients.
    """

    @torch.inference_mode(False)  # a decoder that was made in it goes on outside
    def __init__(self, blocks: Sequence[Polymorpher], batch: int) -> None:
        blocks = list(blocks)
        if not blocks or not all(isinstance(block, Polymorpher) for block in blocks):
            fail("Decoder: blocks", "Polymorpher blocks", [type(block).__name__ for block in blocks])
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            fail("Decoder: batch", "an integer of at least 1", repr(batch))
        kinds = {_kind(block) for block in blocks}
        if len(kinds) > 1:
            fail("Decoder: blocks", "blocks of one kind", " and ".join(sorted(map(str, kinds))))
        self.blocks, self.batch = blocks, batch
        weight = blocks[0].pom.ho_proj.weight
        self.dim, features = weight.shape[1], weight.shape[0]
        self.fused: bool | None = None  # whether the last step was one kernel
        exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
        made = {"dtype": exact, "device": weight.device}
        self._x = torch.zeros(batch, self.dim, **made)
        self._sums = torch.zeros(len(blocks), batch, features, **made)
        self._count = torch.zeros(batch, dtype=torch.int64, device=weight.device)
        self._plain = all(_plain_block(block) for block in blocks)
        self._weights = [layer.weight for block in blocks for layer in _layers(block)]
        self._sources = [layer.bias for block in blocks for layer in _layers(block)]
        self._norms = [norm for block in blocks for norm in (block.norm1, block.norm2)]
        self._modulation = torch.zeros(len(blocks), batch, 6 * self.dim, **made)
        self._biases: list[Tensor | None] = []  # in fp32
        self._seen: list[int] = []  # addresses and versions of what the graph reads and those two are made of
        self._graph: torch.cuda.CUDAGraph | None = None

    # --- tokens ---

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """The next token of each sequence, (B, d) or (B, 1, d); the result has its shape and dtype."""
        shape = (self.batch, self.dim)
        if tuple(x.shape) not in (shape, (self.batch, 1, self.dim)):
            fail("Decoder.step: x", f"{shape} or ({self.batch}, 1, {self.dim})", tuple(x.shape))
        if x.device != self._x.device:
            fail("Decoder.step: x", f"a tensor on {self._x.device}", f"one on {x.device}")
        if not self._plain or not functional.by_library(x.device):
            self.fused = False
            return self.prefill(x.reshape(self.batch, 1, self.dim)).reshape(x.shape)
        self._refresh()
        self._x.copy_(x.reshape(shape))
        if self._graph is not None:
            self._graph.replay()
        else:
            self.fused = self._run()
            if self.fused and not torch.cuda.is_current_stream_capturing():
                self._capture()
        return self._x.to(x.dtype, copy=True).reshape(x.shape)

    @torch.no_grad()
    def prefill(self, x: Tensor) -> Tensor:
        """Tokens (B, n, d) at once, each of which sees itself and what came before."""
        if x.dim() != 3 or x.shape[0] != self.batch or x.shape[2] != self.dim:
            fail("Decoder.prefill: x", f"({self.batch}, n, {self.dim})", tuple(x.shape))
        for i, (block, state) in enumerate(zip(self.blocks, self.states(), strict=True)):
            x, state = block.step_causal(x, state)
            self._sums[i].copy_(state.sum)
        self._count.add_(x.shape[1])
        return x

    # --- the state ---

    def reset(self) -> None:
        """Before the first token."""
        self._sums.zero_()
        self._count.zero_()

    def states(self) -> list[MixerState]:
        """A copy of the state, one of each block, as `Polymorpher.step_causal` has it."""
        return [MixerState(total.clone(), self._count.clone()) for total in self._sums]

    def load(self, states: Sequence[MixerState]) -> None:
        """What `states` gave, here or of another decoder of these blocks."""
        if len(states) != len(self.blocks):
            fail("Decoder.load: states", f"{len(self.blocks)}, one of each block", len(states))
        for state in states:
            if state.window is not None or state.sum.shape != self._sums.shape[1:]:
                want = f"sums of shape {tuple(self._sums.shape[1:])} without a window"
                fail("Decoder.load: states", want, f"{tuple(state.sum.shape)}, window {state.window}")
            if not torch.equal(state.count, states[0].count):
                fail("Decoder.load: states", "the same number of tokens in every block", "several")
        for total, state in zip(self._sums, states, strict=True):
            total.copy_(state.sum)
        self._count.copy_(states[0].count)

    # --- within ---

    def _run(self) -> bool:
        first = self.blocks[0]
        order, eps = first.pom.order, first.norm1.eps
        state = self._sums, self._count
        return torch.ops.pom.stack_step(
            self._x, self._weights, self._biases, self._modulation, *state, order, eps
        )

    def _capture(self) -> None:
        """The steps to come are one launch."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        self._graph = graph

    def _refresh(self) -> None:
        """Norms and biases in the form that the kernel reads, made again after they have changed."""
        norms = [t for norm in self._norms for t in (norm.weight, norm.bias)]
        small = [t for t in (*norms, *self._sources) if t is not None]
        seen = [t.data_ptr() for t in (*self._weights, *small)] + [_version(t) for t in small]
        if seen == self._seen:
            return
        self._seen, self._graph = seen, None
        self._biases = [None if bias is None else bias.detach().to(self._x.dtype) for bias in self._sources]
        rows = self._modulation.view(len(self.blocks), self.batch, 2, 3, self.dim)
        for i, norm in enumerate(self._norms):
            row = rows[i // 2, :, i % 2]
            row[:, 0] = norm.weight.detach().to(row.dtype) - 1
            row[:, 1] = norm.bias.detach().to(row.dtype)
            row[:, 2] = 1


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version  # such a tensor counts none


def _layers(block: Polymorpher) -> list[nn.Module]:
    return [block.pom.ho_proj, block.pom.se_proj, block.pom.ag_proj, block.ffw[0], block.ffw[2]]


def _kind(block: Polymorpher) -> tuple:
    shapes = tuple(tuple(layer.weight.shape) for layer in _layers(block))
    weight = block.pom.ho_proj.weight
    return block.pom.order, shapes, str(weight.dtype), str(weight.device)


def _plain_block(block: Polymorpher) -> bool:
    """Whether its layers are their weights and nothing else, so that the whole stack may be one operator."""
    norms = (block.norm1, block.norm2)
    return (
        all(is_plain(layer) and layer.weight.is_contiguous() for layer in _layers(block))
        and all(type(norm) is nn.LayerNorm and norm.bias is not None for norm in norms)
        and norms[0].eps == norms[1].eps
        and type(block.ffw[1]) is nn.GELU
        and block.ffw[1].approximate == "none"
    )
