"""Networks as others wrote them, in plain torch and under their names: what `pom convert` is judged by.

The authors' networks (pictures with both position codes, clips) by their published facts, and the official
DiT and SiT. Nothing here comes from libpom, every mask is written out and nothing is fused. B batch, C
channels, h and w tokens, d width. A time is the authors' and DiT's number of a step, 0 ... 1000, or SiT's in
[0, 1].
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def modulate(x, scale, shift):
    return x * (1 + scale) + shift


def norm(x):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


def silu_linear(width, out):
    return nn.Sequential(nn.SiLU(), nn.Linear(width, out))


# --- position codes ---


def waves(angle):
    return torch.cat([angle.sin(), angle.cos()], -1)


def odd(side, channels):
    """(side, channels): [sin, cos] of pi f u, f odd."""
    f = 2 * torch.arange(channels // 2, dtype=torch.float64) + 1
    return waves(torch.linspace(0, 1, side, dtype=torch.float64)[:, None] * f * math.pi)


def narrow(side, channels):
    f = torch.linspace(0.5, 2, channels // 2, dtype=torch.float64)
    return waves(torch.linspace(0, 1, side, dtype=torch.float64)[:, None] * f * math.pi + f)


def numbered(side, channels):
    """DiT's: n 10000^(-i / F)."""
    i = torch.arange(channels // 2, dtype=torch.float64)
    return waves(torch.arange(side, dtype=torch.float64)[:, None] / 10000 ** (i / (channels // 2)))


def places(h, w, d, axis):
    """(h w, d): the column's code, then the row's."""
    x, y = axis(w, d // 2), axis(h, d // 2)
    return torch.stack([torch.cat([x[j], y[i]]) for i in range(h) for j in range(w)])


# --- the authors' ---


class HoM(nn.Module):
    def __init__(self, dim, order, order_expand):
        super().__init__()
        self.order = order
        self.ho_proj = nn.Linear(dim, order * order_expand * dim)
        self.se_proj = nn.Linear(dim, order * order_expand * dim)
        self.ag_proj = nn.Linear(order * order_expand * dim, dim)

    def forward(self, xq, xc=None, mask=None):
        """`mask` is of keys (B, n), or of queries and keys (B, m, n)."""
        xc = xq if xc is None else xc
        parts = list(F.gelu(self.ho_proj(xc)).chunk(self.order, -1))
        for i in range(1, self.order):
            parts[i] = parts[i] * parts[i - 1]
        h = torch.cat(parts, -1)
        if mask is None:
            h = h.mean(1, keepdim=True)
        else:
            seen = (mask if mask.dim() == 3 else mask[:, None]).to(h.dtype)
            h = (seen @ h) / (1e-7 + seen.sum(-1, keepdim=True))
        return self.ag_proj(torch.sigmoid(self.se_proj(xq)) * h)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, d))


class HommBlock(nn.Module):
    def __init__(self, dim, order, order_expand, ffw_expand, heads):
        super().__init__()
        if heads:
            self.mha = Attention(dim, heads)
        else:
            self.hom = HoM(dim, order, order_expand)
        self.ffw = nn.Sequential(
            nn.Linear(dim, ffw_expand * dim), nn.GELU(), nn.Linear(ffw_expand * dim, dim)
        )
        self.cond_mlp = silu_linear(dim, 4 * dim)
        self.gate_mlp = silu_linear(dim, 2 * dim)

    def forward(self, x, c):
        s1, b1, s2, b2 = self.cond_mlp(c)[:, None].chunk(4, -1)
        g1, g2 = self.gate_mlp(c)[:, None].chunk(2, -1)
        mixer, one = (self.mha, 0) if hasattr(self, "mha") else (self.hom, 1)
        x = x + mixer(modulate(norm(x), s1, b1)) * (one + g1)
        return x + self.ffw(modulate(norm(x), s2, b2)) * (one + g2)


class HommNetwork(nn.Module):
    """What the authors' networks share: the time, and the last layers."""

    def __init__(self, dim, steps=1000):
        super().__init__()
        i = torch.arange(dim // 2, dtype=torch.float64)
        self.freqs = nn.Parameter(torch.exp(-2 * math.log(steps) * i / dim), requires_grad=False)
        self.time_emb = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        self.out_mod = silu_linear(dim, 2 * dim)

    def time(self, time):
        angle = time[:, None] * self.freqs
        return self.time_emb(torch.cat([angle.cos(), angle.sin()], 1))

    def last(self, x, c):
        s, b = self.out_mod(c)[:, None].chunk(2, -1)
        return self.out_proj(modulate(norm(x), s, b))


class HommPictures(HommNetwork):
    def __init__(
        self, dim=32, depth=2, patch=2, channels=4, classes=7, order=2, order_expand=2, ffw_expand=3, heads=0,
        axis=odd, steps=1000,
    ):  # fmt: skip
        super().__init__(dim, steps)
        self.dim, self.patch, self.axis = dim, patch, axis
        self.classes_emb = nn.Embedding(classes + 1, dim)
        self.in_conv = nn.Conv2d(channels, dim, patch, patch)
        block = lambda: HommBlock(dim, order, order_expand, ffw_expand, heads)  # noqa: E731
        self.layers = nn.ModuleList(block() for _ in range(depth))
        self.out_proj = nn.Linear(dim, patch * patch * channels)

    def forward(self, img, time, cls):
        x = self.in_conv(img)
        b, _, h, w = x.shape
        x = x.flatten(2).transpose(1, 2) + places(h, w, self.dim, self.axis)
        c = self.classes_emb(cls) + self.time(time)
        for layer in self.layers:
            x = layer(x, c)
        x = self.last(x, c).reshape(b, h, w, self.patch, self.patch, -1)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(img.shape)


class ClipBlock(nn.Module):
    def __init__(self, dim, order, order_expand, ffw_expand):
        super().__init__()
        self.hom = HoM(dim, order, order_expand)
        self.c_hom = HoM(dim, order, order_expand)
        self.ffw = nn.Sequential(
            nn.Linear(dim, ffw_expand * dim), nn.GELU(), nn.Linear(ffw_expand * dim, dim)
        )
        self.cond_mlp = silu_linear(dim, 8 * dim)
        self.gate_mlp = silu_linear(dim, 3 * dim)

    def forward(self, x, t, text, keys, temporal):
        sx, bx, sc, bc, s1, b1, s2, b2 = self.cond_mlp(t)[:, None].chunk(8, -1)
        gc, g1, g2 = self.gate_mlp(t)[:, None].chunk(3, -1)
        x = x + self.c_hom(modulate(norm(x), sx, bx), modulate(norm(text), sc, bc), keys) * (1 + gc)
        x = x + self.hom(modulate(norm(x), s1, b1), mask=temporal) * (1 + g1)
        return x + self.ffw(modulate(norm(x), s2, b2)) * (1 + g2)


class HommClips(HommNetwork):
    def __init__(
        self, dim=32, depth=2, patch=2, patch_time=2, channels=4, text=10, order=2, order_expand=2,
        ffw_expand=3, causal=True,
    ):  # fmt: skip
        super().__init__(dim)
        self.dim, self.patch, self.patch_time, self.causal = dim, patch, patch_time, causal
        self.text_emb = nn.Linear(text, dim)
        self.in_proj = nn.Linear(patch_time * patch * patch * channels, dim)
        self.layers = nn.ModuleList(ClipBlock(dim, order, order_expand, ffw_expand) for _ in range(depth))
        self.out_proj = nn.Linear(dim, patch_time * patch * patch * channels)

    def forward(self, vid, time, text, keys):
        """(B, C, T, H, W), (B), (B, L, text), (B, L)."""
        b, c, frames, height, width = vid.shape
        s, k = self.patch_time, self.patch
        t, h, w = frames // s, height // k, width // k
        cut = vid.reshape(b, c, t, s, h, k, w, k).permute(0, 2, 4, 6, 3, 5, 7, 1)  # b t h w (s k l c)
        x = self.in_proj(cut.reshape(b, t * h * w, -1))
        when = narrow(t, self.dim // 2).repeat_interleave(h * w, 0)
        where = places(h, w, self.dim // 2, narrow).repeat(t, 1)
        x = x + torch.cat([when, where], -1)
        now, told = self.time(time), self.text_emb(text)
        block = torch.arange(t).repeat_interleave(h * w)
        temporal = (block[:, None] >= block[None, :]).expand(b, -1, -1) if self.causal else None
        for layer in self.layers:
            x = layer(x, now, told, keys, temporal)
        x = self.last(x, now).reshape(b, t, h, w, s, k, k, c)
        return x.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(vid.shape)


# --- the official DiT and SiT ---


class DitMlp(nn.Module):
    def __init__(self, dim, expand):
        super().__init__()
        self.fc1 = nn.Linear(dim, expand * dim)
        self.fc2 = nn.Linear(expand * dim, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class DitBlock(nn.Module):
    def __init__(self, dim, heads, expand):
        super().__init__()
        self.attn = Attention(dim, heads)
        self.mlp = DitMlp(dim, expand)
        self.adaLN_modulation = silu_linear(dim, 6 * dim)

    def forward(self, x, c):
        b1, s1, g1, b2, s2, g2 = self.adaLN_modulation(c)[:, None].chunk(6, -1)
        x = x + g1 * self.attn(modulate(norm(x), s1, b1))
        return x + g2 * self.mlp(modulate(norm(x), s2, b2))


class DiT(nn.Module):
    """All 2 C channels of the result where it has learned a variance."""

    def __init__(
        self, dim=32, depth=2, patch=2, channels=4, classes=7, heads=4, expand=4, side=8, features=256,
        learned=True,
    ):  # fmt: skip
        super().__init__()
        self.patch, self.features, h = patch, features, side // patch
        self.x_embedder = nn.ModuleDict({"proj": nn.Conv2d(channels, dim, patch, patch)})
        mlp = nn.Sequential(nn.Linear(features, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.t_embedder = nn.ModuleDict({"mlp": mlp})
        self.y_embedder = nn.ModuleDict({"embedding_table": nn.Embedding(classes + 1, dim)})
        self.pos_embed = nn.Parameter(places(h, h, dim, numbered)[None], requires_grad=False)
        self.blocks = nn.ModuleList(DitBlock(dim, heads, expand) for _ in range(depth))
        last = {"linear": nn.Linear(dim, patch * patch * channels * (1 + learned))}
        self.final_layer = nn.ModuleDict(last | {"adaLN_modulation": silu_linear(dim, 2 * dim)})

    def forward(self, x, t, y):
        """Of a square; t as the network counts it."""
        x = self.x_embedder["proj"](x)
        b, _, h, w = x.shape
        x = x.flatten(2).transpose(1, 2) + self.pos_embed
        i = torch.arange(self.features // 2, dtype=torch.float64)
        angle = t[:, None] * torch.exp(-math.log(10000) * i / (self.features // 2))
        c = self.t_embedder["mlp"](torch.cat([angle.cos(), angle.sin()], -1))
        c = c + self.y_embedder["embedding_table"](y)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.final_layer["adaLN_modulation"](c)[:, None].chunk(2, -1)
        x = self.final_layer["linear"](modulate(norm(x), scale, shift))
        x = x.reshape(b, h, w, self.patch, self.patch, -1)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(b, -1, h * self.patch, w * self.patch)


@torch.no_grad()
def randomise(module):
    """In fp64, every parameter that learns random, those that start at zero too."""
    module.double()
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.normal_(0, 0.7 / parameter[0].numel() ** 0.5 if parameter.dim() > 1 else 0.3)
    return module
