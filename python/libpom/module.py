"""PoM and Polymorpher as torch modules.

B batch, m queries, n context tokens, d = dim, k = order, e = order_expand, kD = k*e*d.
"""

import difflib
from typing import Any

import torch
from torch import Tensor, nn

from . import checks, functional, masks, reference
from .errors import Error, fail
from .split import SplitTokens
from .state import MixerState

_OTHER_OPERATOR = (
    "the authors' 2026 package PoM(dim, degree, expand, n_groups, n_sel_heads) is another operator "
    "(clamped leaky ReLU, coefficients, hard sigmoid, shared gates), and its weights are not ours; this is "
    "the paper's"
)
_THEIR_ARGUMENTS = ("degree", "expand", "n_groups", "n_sel_heads")
_THEIR_WEIGHTS = ("po_coeff", "qc_proj.weight", "po_proj.weight")
_SIGNATURE = "PoM(dim, order=2, order_expand=2, bias=True)"


def _refuse(arguments: dict, extra: tuple, bias: object) -> None:
    theirs = [name for name in _THEIR_ARGUMENTS if name in arguments]
    if theirs or extra or not isinstance(bias, bool):
        got = ", ".join(theirs) or f"further positional arguments {(bias, *extra)}"
        raise Error(
            f"PoM: {theirs[0] if theirs else 'bias'}: expected {_SIGNATURE}, got {got}: {_OTHER_OPERATOR}"
        )
    if arguments:
        name = next(iter(arguments))
        near = difflib.get_close_matches(name, ("dim", "order", "order_expand", "bias", "device", "dtype"), 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise Error(f"PoM: {name}: expected {_SIGNATURE}, got an unknown argument {name}{hint}")


def is_plain(linear: nn.Module) -> bool:
    """Whether a projection is its weight and bias and nothing else, so that the whole layer may be one
    operator. An adapter, a quantised layer, a parametrisation or a hook must run as the module it is."""
    return type(linear) is nn.Linear and not (
        linear._forward_hooks
        or linear._forward_pre_hooks
        or linear._backward_hooks
        or linear._backward_pre_hooks
    )


class PoM(nn.Module):
    """The Polynomial Mixer, in place of multi-head attention and linear in the number of tokens.

    Args:
        dim: width d of the tokens.
        order: degree k of the polynomial.
        order_expand: each degree has D = order_expand * dim features.
        bias: whether the three projections have one.
    """

    def __init__(
        self,
        dim: int,
        order: int = 2,
        order_expand: int = 2,
        bias: bool = True,
        *extra: object,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **arguments: object,
    ) -> None:
        super().__init__()
        _refuse(arguments, extra, bias)
        for name, value in (("dim", dim), ("order", order), ("order_expand", order_expand)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                fail(f"PoM: {name}", "an integer of at least 1", repr(value))
        self.dim, self.order, self.order_expand = dim, order, order_expand
        features = order * order_expand * dim
        self.ho_proj = nn.Linear(
            dim, features, bias=bias, device=device, dtype=dtype
        )  # d -> kD, of the context
        self.se_proj = nn.Linear(
            dim, features, bias=bias, device=device, dtype=dtype
        )  # d -> kD, of the queries
        self.ag_proj = nn.Linear(features, dim, bias=bias, device=device, dtype=dtype)  # kD -> d

    def extra_repr(self) -> str:
        return f"dim={self.dim}, order={self.order}, order_expand={self.order_expand}"

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any, **named: Any) -> None:
        for name in _THEIR_WEIGHTS:
            if prefix + name in state_dict:
                ours = "expected ho_proj, se_proj and ag_proj"
                raise Error(f"PoM: {prefix}{name}: {ours}, got {name}: {_OTHER_OPERATOR}")
        super()._load_from_state_dict(state_dict, prefix, *args, **named)

    def _plain(self) -> bool:
        return is_plain(self.ho_proj) and is_plain(self.se_proj) and is_plain(self.ag_proj)

    def forward(
        self,
        xq: Tensor,
        xc: Tensor | None = None,
        mask: masks.Mask = None,
        cu_seqlens: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        split: SplitTokens | None = None,
    ) -> Tensor:
        """Mixes a context into queries.

        Args:
            xq: queries (B, m, d), or packed (total_q, d) with cu_seqlens.
            xc: context (B, n, d) or (total_k, d); the queries themselves when left out.
            mask: None; a bool or 0/1 tensor, (B, n) for keys or (B, m, n) for queries and keys;
                `libpom.causal`; or `libpom.block_causal(K, window=None)`. A query that sees nothing gets
                H = 0, so the output bias.
            cu_seqlens: int32 or int64 cumulative lengths (S + 1) of packed sequences, as flash-attn has them.
            cu_seqlens_k: those of the context when xc is given.
            split: xq and xc are this rank's tokens of sequences whose context is split over processes.
        """
        packed = cu_seqlens is not None or cu_seqlens_k is not None
        self._check_tokens("PoM", "x" if xc is None else "xq", xq, packed)
        if xc is None:
            xc = xq
        else:
            self._check_tokens("PoM", "xc", xc, packed)
            if cu_seqlens is not None and cu_seqlens_k is None:
                fail("PoM: cu_seqlens_k", "cumulative lengths of the packed context xc", None)
        if split is not None:
            return self._forward_split(xq, xc, mask, packed, split)
        ho, se, ag = self.ho_proj, self.se_proj, self.ag_proj  # once: a module looks them up slowly
        if not (is_plain(ho) and is_plain(se) and is_plain(ag)):
            mixed = functional.mixer(ho(xc), se(xq), self.order, mask, cu_seqlens, cu_seqlens_k)  # (B, m, kD)
            return ag(mixed)
        return functional.mixer_layer(
            xq, xc, ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias, self.order, mask,
            cu_seqlens, cu_seqlens_k,
        )  # fmt: skip

    def _forward_split(
        self, xq: Tensor, xc: Tensor, mask: masks.Mask, packed: bool, split: SplitTokens
    ) -> Tensor:
        if packed or not self._plain():
            got = "cu_seqlens" if packed else "a projection that was replaced or has hooks"
            fail("PoM: split", "plain projections and no packing with split tokens", got)
        weights = (
            self.ho_proj.weight, self.ho_proj.bias, self.se_proj.weight, self.se_proj.bias,
            self.ag_proj.weight, self.ag_proj.bias,
        )  # fmt: skip
        return functional.mixer_layer_split(xq, xc, weights, self.order, split, mask)

    def _check_tokens(self, op: str, name: str, x: Tensor, packed: bool = False) -> None:
        if not isinstance(x, Tensor):
            fail(f"{op}: {name}", "a tensor (batch, tokens, width)", type(x).__name__)
        # An adapter in a projection's place may take another width.
        if x.dim() != (2 if packed else 3) or (x.shape[-1] != self.dim and self._plain()):
            want = f"(total tokens, {self.dim}) with cu_seqlens" if packed else f"(batch, tokens, {self.dim})"
            fail(f"{op}: {name}", want, checks.shape(x))

    # --- the recurrent form ---

    def _check_state(self, op: str, x: Tensor, state: MixerState) -> None:
        checks.state(op, state, x.shape[0], self.order * self.order_expand * self.dim)
        if state.sum.dtype != reference.accumulator(x.dtype) or state.sum.device != x.device:
            want = f"{reference.accumulator(x.dtype)} on {x.device}, for tokens of {x.dtype}"
            fail(f"{op}: state", want, f"{state.sum.dtype} on {state.sum.device}")

    def init_state(self, batch: int, window: int | None = None) -> MixerState:
        """The state of `batch` sequences before their first token. With a window of W, each step sees its own
        block and the W - 1 before it, as `block_causal(K, window=W)` does."""
        weight = next(self.parameters())  # of a projection, or of the adapter that stands for it
        dtype = reference.accumulator(weight.dtype)
        return MixerState.empty(
            batch, self.order * self.order_expand * self.dim, window, dtype, weight.device
        )

    def summarize(
        self, xc: Tensor, state: MixerState | None = None, mask: Tensor | None = None
    ) -> MixerState:
        """The state after one more block of context (B, n, d); `mask` (B, n) leaves padding out. For a
        context that many queries read (a prompt, one half of a sequence) this is all that need be kept of
        it."""
        self._check_tokens("summarize", "xc", xc)
        state = self.init_state(xc.shape[0]) if state is None else state
        self._check_state("summarize", xc, state)
        if is_plain(self.ho_proj):
            total = functional.mixer_summary(xc, self.ho_proj.weight, self.ho_proj.bias, self.order, mask)
        else:
            total = reference.summary(self.ho_proj(xc), self.order, mask)
        return state.push(total, xc.shape[1] if mask is None else mask.long().sum(1))

    def select(self, xq: Tensor, state: MixerState) -> Tensor:
        """What queries (B, m, d) read from a state, which stays as it is."""
        self._check_tokens("select", "xq", xq)
        self._check_state("select", xq, state)
        H = reference.mean(state.sum, state.count)
        se, ag = self.se_proj, self.ag_proj
        if is_plain(se) and is_plain(ag):
            return functional.mixer_select(xq, H, se.weight, se.bias, ag.weight, ag.bias)
        return ag(reference.gate(se(xq), H.unsqueeze(1)))

    def step(
        self, x: Tensor, state: MixerState | None = None, xc: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, MixerState]:
        """Takes a block (B, m, d) of any size, whose tokens all see each other and what came before: the
        output and the new state. Steps of K tokens equal forward with `block_causal(K)`. With xc the block's
        context is xc."""
        state = self.summarize(x if xc is None else xc, state, mask)
        return self.select(x, state), state

    def step_causal(self, x: Tensor, state: MixerState | None = None) -> tuple[Tensor, MixerState]:
        """Takes tokens (B, n, d) that see themselves and what came before: forward with `causal`, in pieces.
        With a window each token is a block."""
        self._check_tokens("step_causal", "x", x)
        state = self.init_state(x.shape[0]) if state is None else state
        self._check_state("step_causal", x, state)
        if (ring := state.ring()) is not None:
            return self._step_causal_windowed(x, *ring)
        if self._plain():
            y, total = functional.mixer_scan(
                x, self.ho_proj.weight, self.ho_proj.bias, self.se_proj.weight, self.se_proj.bias,
                self.ag_proj.weight, self.ag_proj.bias, self.order, state.sum, state.count,
            )  # fmt: skip
        else:
            y, total = reference.scan(self.ho_proj(x), self.se_proj(x), self.order, state.sum, state.count)
            y = self.ag_proj(y)
        return y, MixerState(total, state.count + x.shape[1])

    def _step_causal_windowed(
        self, x: Tensor, ring_sum: Tensor, ring_count: Tensor, filled: Tensor
    ) -> tuple[Tensor, MixerState]:
        window, n = ring_sum.shape[1], x.shape[1]
        p = reference.polynomial(self.ho_proj(x), self.order)  # (B, n, kD)
        ring = torch.cat(
            [ring_sum, p], dim=1
        )  # (B, W + n, kD): the blocks there were, then each token as one
        ring_count = torch.cat([ring_count, torch.ones_like(p[..., 0], dtype=torch.int64)], dim=1)
        before = torch.cat([ring_count.new_zeros(ring_count.shape[0], 1), ring_count.cumsum(1)], dim=1)
        seen = (before[:, window:] - before[:, :-window])[:, 1:]  # (B, n); integers subtract exactly
        H = reference.mean(reference.sliding_sum(ring, window)[:, window:], seen)
        y = self.ag_proj(reference.gate(self.se_proj(x), H))
        ring, ring_count = ring[:, n:].contiguous(), ring_count[:, n:].contiguous()
        return y, MixerState(ring.sum(1), ring_count.sum(1), ring, ring_count, (filled + n).clamp(max=window))


class Polymorpher(nn.Module):
    """The paper's block, with norms before its two residual branches: x + PoM(LN(x)), then x + FF(LN(x))."""

    def __init__(
        self,
        dim: int,
        order: int = 2,
        order_expand: int = 2,
        ffw_expand: int = 4,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm1 = nn.LayerNorm(dim, **made)
        self.pom = PoM(dim, order, order_expand, bias, **made)
        self.norm2 = nn.LayerNorm(dim, **made)
        self.ffw = nn.Sequential(
            nn.Linear(dim, ffw_expand * dim, bias=bias, **made),
            nn.GELU(),
            nn.Linear(ffw_expand * dim, dim, bias=bias, **made),
        )

    def forward(
        self,
        x: Tensor,
        mask: masks.Mask = None,
        cu_seqlens: Tensor | None = None,
        split: SplitTokens | None = None,
    ) -> Tensor:
        """x (B, n, d), or packed (total, d) with cu_seqlens; with `split` this rank's tokens."""
        x = x + self.pom(self.norm1(x), mask=mask, cu_seqlens=cu_seqlens, split=split)
        return x + self.ffw(self.norm2(x))

    def init_state(self, batch: int, window: int | None = None) -> MixerState:
        return self.pom.init_state(batch, window)

    def step(self, x: Tensor, state: MixerState | None = None) -> tuple[Tensor, MixerState]:
        """A block (B, m, d) whose tokens all see each other and what came before."""
        y, state = self.pom.step(self.norm1(x), state)
        x = x + y
        return x + self.ffw(self.norm2(x)), state

    def step_causal(self, x: Tensor, state: MixerState | None = None) -> tuple[Tensor, MixerState]:
        """Tokens (B, n, d) that see themselves and what came before."""
        y, state = self.pom.step_causal(self.norm1(x), state)
        x = x + y
        return x + self.ffw(self.norm2(x)), state
