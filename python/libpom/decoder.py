"""Decoder: one token after the other through a stack of causal blocks.

B sequences, L blocks, d width, kD features. What a sequence was so far is L sums of kD values and a count,
however long it is.
"""

import os
from collections.abc import Sequence
from operator import is_
from typing import Any, cast

import torch
from torch import Tensor, nn

from . import functional
from .errors import Error, fail
from .module import Polymorpher, PoM, is_plain
from .state import MixerState


class Decoder:
    """A stack of `Polymorpher` blocks that sees one token of each of `batch` sequences at a time.

        decoder = libpom.Decoder(blocks, batch=1)
        y = decoder.prefill(prompt)     # (B, n, d), as the blocks with mask=libpom.causal would give it
        y = decoder.step(y[:, -1])      # (B, d) -> (B, d), as often as wanted

    The state is the decoder's own and changes with every call; `states` and `load` take it out and put it in.
    There are no gradients. A decoder belongs to one thread and one stream at a time.

    On a GPU of compute capability 9.0, with blocks in bf16 or fp16, orders up to 4, at most 8 sequences, a
    width of at most 2304 and at most 9216 features and hidden features, all multiples of 8, a step is one
    kernel in a CUDA graph, with one sequence about 1.3 times as long as reading the weights; elsewhere, and
    where a layer is more than its weights (an adapter, a hook), the blocks run one by one. `fused` says which
    it was. Between the blocks a compiled step has the residual stream in fp32, `prefill` in the blocks'
    dtype.

    Updates of weights in place and other tensors in their place are followed. Changes that torch does not
    count are not noticed: writes through `.data`, and to tensors of the inference mode. After one of these,
    and after a layer was exchanged or got a hook, call `refresh`.
    """

    @torch.inference_mode(False)  # a decoder that was made in it goes on outside
    def __init__(self, blocks: Sequence[Polymorpher], batch: int) -> None:
        self.blocks, self.batch = list(blocks), batch
        if not self.blocks or not all(isinstance(block, Polymorpher) for block in self.blocks):
            fail("Decoder: blocks", "Polymorpher blocks", [type(block).__name__ for block in self.blocks])
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            fail("Decoder: batch", "an integer of at least 1", repr(batch))
        kinds = {_kind(block) for block in self.blocks}
        if len(kinds) > 1:
            fail("Decoder: blocks", "blocks of one kind", " and ".join(sorted(map(str, kinds))))
        pom, like = self.blocks[0].pom, next(self.blocks[0].parameters())
        self.dim, self.dtype, self.device = pom.dim, like.dtype, like.device
        self.fused: bool | None = None  # whether the last step was one kernel
        made: dict[str, Any] = {
            "dtype": torch.float64 if like.dtype == torch.float64 else torch.float32,
            "device": like.device,
        }
        self._x = torch.zeros(batch, self.dim, **made)
        self._sums = torch.zeros(len(self.blocks), batch, pom.order * pom.order_expand * self.dim, **made)
        self._count = torch.zeros(batch, dtype=torch.int64, device=like.device)
        self._modulation = torch.zeros(len(self.blocks), batch, 2, 3, self.dim, **made)
        self.refresh()

    # --- tokens ---

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """The next token of each sequence, (B, d) or (B, 1, d); the result has its shape and dtype."""
        shape = (self.batch, self.dim)
        if tuple(x.shape) not in (shape, (self.batch, 1, self.dim)):
            fail("Decoder.step: x", f"{shape} or ({self.batch}, 1, {self.dim})", tuple(x.shape))
        self._check("step", x)
        if not self._plain or not functional.by_library(x.device) or not hasattr(torch.ops.pom, "stack_step"):
            self.fused = False
            y = self._prefill(x.reshape(self.batch, 1, self.dim).to(self.dtype))
            return y.to(x.dtype).reshape(x.shape)
        capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
        self._follow(capturing)
        self._x.copy_(x.reshape(shape))
        if self._graph is not None and not capturing and functional.path() != "composed":
            self._graph.replay()
            self.fused = True
        else:
            self.fused = self._run()
            if self.fused and self._graphs and self._graph is None and not capturing:
                self._capture()
        return self._x.to(x.dtype, copy=True).reshape(x.shape)

    @torch.no_grad()
    def prefill(self, x: Tensor) -> Tensor:
        """Tokens (B, n, d) at once, each of which sees itself and what came before, the state included."""
        if x.dim() != 3 or x.shape[0] != self.batch or x.shape[2] != self.dim:
            fail("Decoder.prefill: x", f"({self.batch}, n, {self.dim})", tuple(x.shape))
        self._check("prefill", x)
        return self._prefill(x.to(self.dtype)).to(x.dtype)

    # --- the state ---

    @torch.no_grad()
    def reset(self) -> None:
        """Before the first token."""
        self._sums.zero_()
        self._count.zero_()

    @torch.no_grad()
    def states(self) -> list[MixerState]:
        """A copy of the state, one of each block, as `Polymorpher.step_causal` has it."""
        return [MixerState(total.clone(), self._count.clone()) for total in self._sums]

    @torch.no_grad()
    def load(self, states: Sequence[MixerState]) -> None:
        """What `states` gave, here or of another decoder of these blocks."""
        if len(states) != len(self.blocks):
            fail("Decoder.load: states", f"{len(self.blocks)}, one of each block", len(states))
        for state in states:
            if not isinstance(state, MixerState):
                fail("Decoder.load: states", "a MixerState of each block", type(state).__name__)
            if state.window is not None or state.sum.shape != self._sums.shape[1:]:
                want = f"sums of shape {tuple(self._sums.shape[1:])} without a window"
                fail("Decoder.load: states", want, f"{tuple(state.sum.shape)}, window {state.window}")
        counts = torch.stack([state.count for state in states])
        if not torch.equal(counts, counts[:1].expand_as(counts)):
            fail("Decoder.load: states", "the same number of tokens in every block", "several")
        self._sums.copy_(torch.stack([state.sum for state in states]))
        self._count.copy_(counts[0])

    # --- the blocks ---

    def refresh(self) -> None:
        """Takes the blocks as they are now."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._graphs = self.device.type == "cuda" and os.environ.get("POM_GRAPHS", "") != "0"
        self._plain = all(_plain_block(block) for block in self.blocks) and _alike(self.blocks)
        self._slots: list[tuple[dict, str]] = []  # where modules keep their tensors, biases and norms last
        if self._plain:
            layers = [layer._parameters for block in self.blocks for layer in _layers(block)]
            norms = [norm._parameters for block in self.blocks for norm in (block.norm1, block.norm2)]
            self._slots = [(layer, "weight") for layer in layers] + [(layer, "bias") for layer in layers]
            self._slots += [(norm, name) for name in ("weight", "bias") for norm in norms]
        self._tensors: list[Tensor | None] = []  # those that the rest was made of,
        self._places: list[int] = []  # where they were,
        self._versions: list[int] = []  # and how old

    @torch.inference_mode(False)  # what is made here is written again outside of it
    @torch.no_grad()
    def _follow(self, capturing: bool) -> None:
        """What the kernel reads beside the matrices, biases in fp32 and norms, as they are now."""
        matrices = 5 * len(self.blocks)
        tensors = [holder[name] for holder, name in self._slots]
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        places = [0 if t is None else t.data_ptr() for t in tensors]
        small = [t for t in tensors[matrices:] if t is not None]
        versions = [0 if t.is_inference() else t._version for t in small]
        moved = not same or places != self._places
        if not moved and versions == self._versions:
            return
        if capturing:
            raise Error("Decoder.step: run one step before capturing a graph, and after weights changed")
        biases, norms = tensors[matrices : 2 * matrices], tensors[2 * matrices :]
        halves = norms[: len(norms) // 2], norms[len(norms) // 2 :]  # scales, shifts
        if moved:
            exact = self._x.dtype
            self._biases = [None if b is None else b.detach().to(exact, copy=True) for b in biases]
            self._graph = None
        else:
            for ours, theirs in zip(self._biases, biases, strict=True):
                if ours is not None:
                    ours.copy_(theirs)
        rows = self._modulation.transpose(1, 2)  # (L, 2, B, 3, d)
        scales, shifts = (torch.stack(part).view(-1, 2, 1, self.dim) for part in halves)
        rows[:, :, :, 0] = scales.to(rows.dtype) - 1
        rows[:, :, :, 1] = shifts.to(rows.dtype)
        rows[:, :, :, 2] = 1
        self._tensors, self._places, self._versions = tensors, places, versions

    # --- within ---

    def _check(self, name: str, x: Tensor) -> None:
        if x.device != self.device or not x.is_floating_point():
            want = f"a tensor of floating-point numbers on {self.device}"
            fail(f"Decoder.{name}: x", want, f"{x.dtype} on {x.device}")

    def _prefill(self, x: Tensor) -> Tensor:
        sums = []
        for block, state in zip(self.blocks, self.states(), strict=True):
            x, state = block.step_causal(x, state)
            sums.append(state.sum)
        self._sums.copy_(torch.stack(sums))  # only now: nothing has changed where a block fails
        self._count.add_(x.shape[1])
        return x

    def _run(self) -> bool:
        first, matrices = self.blocks[0], 5 * len(self.blocks)
        modulation = self._modulation.flatten(2)
        weights = self._tensors[:matrices]
        state = self._sums, self._count
        try:
            return torch.ops.pom.stack_step(
                self._x, weights, self._biases, modulation, *state, first.pom.order, first.norm1.eps
            )
        except RuntimeError as error:
            if str(error).startswith("stack_step"):
                raise Error(str(error).split("\n")[0]) from None
            raise

    def _capture(self) -> None:
        """The steps to come are one launch; where that fails, they go on as they are."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.device)
        try:
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self._run()
        except RuntimeError:
            if os.environ.get("POM_GRAPHS") == "always":
                raise
            self._graphs = False
        else:
            self._graph = graph

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_graph": None, "_slots": [], "_tensors": []}  # of this process

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.refresh()


def _layers(block: Polymorpher) -> list[nn.Linear]:
    """What stands where a linear layer was; is_plain says whether it is one."""
    first, second = cast(nn.Linear, block.ffw[0]), cast(nn.Linear, block.ffw[2])
    return [block.pom.ho_proj, block.pom.se_proj, block.pom.ag_proj, first, second]


def _kind(block: Polymorpher) -> tuple:
    like = next(block.parameters())
    return block.pom.dim, block.pom.order, block.pom.order_expand, str(like.dtype), str(like.device)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _plain_block(block: Polymorpher) -> bool:
    """Whether it is its weights and nothing else, so that the whole stack may be one operator."""
    if type(block) is not Polymorpher or type(block.pom) is not PoM or type(block.ffw) is not nn.Sequential:
        return False
    norms = (block.norm1, block.norm2)
    return (
        len(block.ffw) == 3
        and all(is_plain(layer) and layer.weight.is_contiguous() for layer in _layers(block))
        and all(type(norm) is nn.LayerNorm and norm.weight is not None for norm in norms)
        and all(norm.bias is not None and norm.eps == norms[0].eps for norm in norms)
        and type(block.ffw[1]) is nn.GELU
        and block.ffw[1].approximate == "none"
        and not any(map(_hooked, (block, block.pom, block.ffw, block.ffw[1], *norms)))
    )


def _alike(blocks: list[Polymorpher]) -> bool:
    """Of plain blocks: shapes, dtypes and eps."""
    kinds = {
        (block.norm1.eps, *((layer.weight.shape, layer.weight.dtype) for layer in _layers(block)))
        for block in blocks
    }
    return len(kinds) == 1
