"""The blocks of the networks: mixing and feed-forward, each behind a layer norm that the condition modulates
and a gate that it sets.

B batch, N tokens, d width, L tokens of text. A block starts as the identity: its gates are shut.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import masks
from ..errors import fail
from ..module import PoM
from .config import Gelu, Mixer

NORM_EPS = 1e-6  # of the layer norms, which have no weights of their own


def modulated_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """layer_norm(x) (1 + scale) + shift: x (B, N, d); scale and shift (B, 1, d)."""
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPS) * (1 + scale) + shift


def silu_linear(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), nn.Linear(width, out))


def feed_forward(dim: int, expand: int, gelu: Gelu = "erf") -> nn.Sequential:
    act = nn.GELU(approximate="tanh" if gelu == "tanh" else "none")
    return nn.Sequential(nn.Linear(dim, expand * dim), act, nn.Linear(expand * dim, dim))


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, visible: Tensor | None = None) -> Tensor:
    """Queries (B, m, d) over keys and values (B, n, d); `visible` is bool and broadcasts to (B, heads, m,
    n)."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))  # (B, heads, ., d / heads)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2).flatten(2)


@torch.no_grad()
def reset_linears(module: nn.Module) -> None:
    """Xavier-uniform weights, which keep the variance forward and backward, and zero biases."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


class Attention(nn.Module):
    """Multi-head self-attention, the baseline that the mixer is compared with."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads != 0:
            fail("Attention: heads", f"a divisor of dim = {dim}", heads)
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: masks.Mask = None) -> Tensor:
        """(B, N, d) -> (B, N, d). `mask` as `libpom.PoM` takes it for queries and keys: a causal one is
        written out, (N, N)."""
        q, k, v = self.qkv(x).chunk(3, -1)
        if isinstance(mask, masks.CausalMask):
            mask = mask.dense(x.shape[1], x.device)
        elif mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        return self.proj(attend(q, k, v, self.heads, mask))


class CrossAttention(nn.Module):
    """Multi-head attention of queries over a context, under a mask of its tokens."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads != 0:
            fail("CrossAttention: heads", f"a divisor of dim = {dim}", heads)
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor) -> Tensor:
        """(B, N, d), (B, L, d), (B, L) bool -> (B, N, d)."""
        k, v = self.kv(context).chunk(2, -1)
        return self.proj(attend(self.q(x), k, v, self.heads, mask[:, None, None]))


class Block(nn.Module):
    """What the blocks of images and of clips share: the mixer of the tokens, the feed-forward, and the maps
    from the condition to scales, shifts and gates. Gates are 1 + g around the mixer, g around attention."""

    def __init__(
        self,
        dim: int,
        mixer: Mixer,
        order: int,
        order_expand: int,
        heads: int,
        ffw_expand: int,
        modulations: int,
        gates: int,
        gelu: Gelu = "erf",
    ) -> None:
        super().__init__()
        self.attention = mixer == "attention"
        if self.attention:
            self.attn = Attention(dim, heads)
        else:
            self.pom = PoM(dim, order, order_expand)
        self.ffw = feed_forward(dim, ffw_expand, gelu)
        self.cond_mlp = silu_linear(dim, modulations * dim)
        self.gate_mlp = silu_linear(dim, gates * dim)
        self.gate_base = 0.0 if self.attention else 1.0

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The values before training."""
        reset_linears(self)
        condition, gate = cast(nn.Linear, self.cond_mlp[1]), cast(nn.Linear, self.gate_mlp[1])
        nn.init.zeros_(condition.weight)
        nn.init.zeros_(gate.weight)
        nn.init.constant_(gate.bias, -self.gate_base)

    def mix(self, x: Tensor, mask: masks.Mask = None) -> Tensor:
        return self.attn(x, mask) if self.attention else self.pom(x, mask=mask)

    def gated(self, y: Tensor, gate: Tensor) -> Tensor:
        return y * (self.gate_base + gate)


class ModulatedBlock(Block):
    """The block of DiPoM and DiT.

    x = x + mixer(LN(x) (1 + s1) + b1) gate1, then x = x + ffw(LN(x) (1 + s2) + b2) gate2.
    """

    def __init__(
        self,
        dim: int,
        *,
        mixer: Mixer = "pom",
        order: int = 2,
        order_expand: int = 2,
        heads: int = 6,
        ffw_expand: int = 3,
        gelu: Gelu = "erf",
    ) -> None:
        super().__init__(
            dim, mixer, order, order_expand, heads, ffw_expand, modulations=4, gates=2, gelu=gelu
        )
        self.reset_parameters()

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """(B, N, d) and the condition (B, d) -> (B, N, d)."""
        s1, b1, s2, b2 = self.cond_mlp(c).unsqueeze(1).chunk(4, -1)  # (B, 1, d)
        g1, g2 = self.gate_mlp(c).unsqueeze(1).chunk(2, -1)
        x = x + self.gated(self.mix(modulated_norm(x, s1, b1)), g1)
        return x + self.gated(self.ffw(modulated_norm(x, s2, b2)), g2)


class VideoBlock(Block):
    """The block of V-DiPoM and V-DiT: text mixed into the video, the video mixed under a temporal mask, and
    feed-forward."""

    def __init__(
        self,
        dim: int,
        *,
        mixer: Mixer = "pom",
        order: int = 2,
        order_expand: int = 2,
        heads: int = 6,
        ffw_expand: int = 3,
    ) -> None:
        super().__init__(dim, mixer, order, order_expand, heads, ffw_expand, modulations=8, gates=3)
        if self.attention:
            self.c_attn = CrossAttention(dim, heads)
        else:
            self.c_pom = PoM(dim, order, order_expand)
        self.reset_parameters()

    def forward(self, x: Tensor, time: Tensor, text: Tensor, keys: Tensor, mask: masks.Mask = None) -> Tensor:
        """Video (B, N, d), time (B, d), text (B, L, d) with keys (B, L) bool -> (B, N, d).

        A clip may have one text for each of P equal parts: (B * P, L, d) and (B * P, L), clip by clip.
        """
        m = self.cond_mlp(time).unsqueeze(1).chunk(8, -1)  # (B, 1, d)
        g = self.gate_mlp(time).unsqueeze(1).chunk(3, -1)
        texts = text.shape[0] // x.shape[0]  # of a clip
        told = modulated_norm(
            text, m[2].repeat_interleave(texts, dim=0), m[3].repeat_interleave(texts, dim=0)
        )
        x = x + self.gated(self.mix_text(modulated_norm(x, m[0], m[1]), told, keys), g[0])
        x = x + self.gated(self.mix(modulated_norm(x, m[4], m[5]), mask), g[1])
        return x + self.gated(self.ffw(modulated_norm(x, m[6], m[7])), g[2])

    def mix_text(self, x: Tensor, text: Tensor, keys: Tensor) -> Tensor:
        """Where a clip has several texts, its tokens are as many sequences."""
        folded = x.reshape(text.shape[0], -1, x.shape[2])
        cross = self.c_attn if self.attention else self.c_pom
        return cross(folded, text, keys).reshape(x.shape)


class PatchEmbedding(nn.Module):
    """Patches of a latent to tokens: a convolution whose stride is its kernel, computed as the one product it
    is, whose gradients are the same from run to run on every device.

    `weight` (d, C, *patch) and `bias` (d) are those of nn.Conv2d and nn.Conv3d.
    """

    def __init__(self, channels: int, dim: int, patch: tuple[int, ...]) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(dim, channels, *patch))
        self.bias = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        bound = math.sqrt(6 / (self.weight[0].numel() + self.weight.shape[0]))  # Xavier, of the product
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, patch={self.patch}"

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W), or (B, C, T, H, W) -> (B, N, d), row by row and block by block."""
        sides = [(size // p, p) for size, p in zip(x.shape[2:], self.patch, strict=True)]
        axes = range(2, 2 + 2 * len(sides))
        cut = x.reshape(*x.shape[:2], *(size for side in sides for size in side))
        cut = cut.permute(0, *axes[::2], 1, *axes[1::2])  # (B, rows, columns, C, p, p)
        tokens = cut.flatten(1, len(sides)).flatten(2)  # (B, N, C * p * p)
        return F.linear(tokens, self.weight.flatten(1), self.bias)


def unpatchify(tokens: Tensor, like: torch.Size, patch: tuple[int, ...]) -> Tensor:
    """(B, N, values of a patch, channel fastest) -> a latent of the shape `like`."""
    counts = [size // p for size, p in zip(like[2:], patch, strict=True)]
    cut = tokens.reshape(like[0], *counts, *patch, like[1])  # (B, rows, columns, p, p, C)
    n = len(patch)
    pairs = [axis for i in range(n) for axis in (1 + i, 1 + n + i)]
    return cut.permute(0, 1 + 2 * n, *pairs).reshape(like)
