"""The network for clips in plain torch, written from the paper's listing: the C++ one's referee.

Nothing here comes from libpom, and every mask is written out. B clips of T latent frames, C channels,
blocks = T/pt, h = H/p, w = W/p, K = h·w tokens of a block, n = blocks·K tokens (block by block, row by row),
L tokens of text, d width.
"""

import math

import torch
from torch import nn

from reference_dipom import (
    ReferenceAttention,
    layer_norm,
    modulation,
    narrow_code,
    position,
    time_frequencies,
)

# depth, dim, heads
SIZES = {
    "S": (12, 384, 6),
    "B": (12, 768, 12),
    "L": (16, 1024, 16),
    "XL": (20, 1152, 16),
}


def video_variants():
    """Name → arguments of ReferenceVDiPoM, for text 4096 wide and 16 latent channels."""
    table = {}
    for size, (depth, dim, heads) in SIZES.items():
        shape = {"dim": dim, "depth": depth, "patch": 2, "patch_time": 2, "channels": 16, "ffw_expand": 4}
        shape["text_width"] = 4096
        table[f"V-DiPoM-{size}/2"] = {**shape, "mixer": "pom"}
        table[f"V-DiT-{size}/2"] = {**shape, "mixer": "attention", "heads": heads}
    return table


def block_mask(blocks, K, mask, window):
    """(n, n) bool: whether query i sees key j. None for no mask."""
    if mask == "none":
        return None
    block = torch.arange(blocks).repeat_interleave(K)
    behind = block[:, None] - block[None, :]
    seen = behind >= 0
    return seen & (behind < window) if window else seen


def time_code(number, width, form, period):
    """(…,) → (…, width) in fp64. A relative code is that of all the blocks of a clip, number (B, blocks)."""
    if form == "relative":
        return narrow_code(number.shape[1], width).expand(*number.shape, width)
    i = torch.arange(width // 2, dtype=torch.float64)
    if form == "periodic":
        phase = number[..., None] * (i.long() + 1) % period  # as integers: a large number has no digits left
        angle = 2 * math.pi * phase.double() / period
    elif form == "geometric":
        angle = number.double()[..., None] * period ** (-i / (width // 2))
    else:
        return torch.zeros(*number.shape, width, dtype=torch.float64)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class ReferenceMixer(nn.Module):
    def __init__(self, dim, order, order_expand):
        super().__init__()
        wide = order * order_expand * dim
        self.order = order
        self.ho_proj = nn.Linear(dim, wide)
        self.se_proj = nn.Linear(dim, wide)
        self.ag_proj = nn.Linear(wide, dim)

    def forward(self, xq, xc, seen=None):  # (B, m, d), (B, n, d), bool (B, m, n) or none
        p = list(torch.nn.functional.gelu(self.ho_proj(xc)).chunk(self.order, dim=-1))
        for i in range(1, self.order):
            p[i] = p[i] * p[i - 1]
        p = torch.cat(p, dim=-1)
        if seen is None:
            h = p.mean(dim=1, keepdim=True)
        else:
            weight = seen.to(p.dtype)
            h = weight @ p / (1e-7 + weight.sum(dim=-1, keepdim=True))
        return self.ag_proj(torch.sigmoid(self.se_proj(xq)) * h)


def attend(q, k, v, heads, seen):
    """(B, m, d), (B, n, d), (B, n, d), bool that broadcasts to (B, m, n) or none."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    score = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if seen is not None:
        score = score.masked_fill(~seen.unsqueeze(-3), -math.inf)
    return (torch.softmax(score, dim=-1) @ v).transpose(1, 2).flatten(2)


class ReferenceCrossAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, xq, xc, seen):
        k, v = self.kv(xc).chunk(2, dim=-1)
        return self.proj(attend(self.q(xq), k, v, self.heads, seen))


class ReferenceMaskedAttention(ReferenceAttention):
    def forward(self, x, xc, seen):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.proj(attend(q, k, v, self.heads, seen))


class ReferenceVideoBlock(nn.Module):
    def __init__(self, dim, mixer, order, order_expand, ffw_expand, heads):
        super().__init__()
        if mixer == "pom":
            self.c_pom = ReferenceMixer(dim, order, order_expand)
            self.pom = ReferenceMixer(dim, order, order_expand)
        else:
            self.c_attn = ReferenceCrossAttention(dim, heads)
            self.attn = ReferenceMaskedAttention(dim, heads)
        self.ffw = nn.Sequential(
            nn.Linear(dim, ffw_expand * dim), nn.GELU(), nn.Linear(ffw_expand * dim, dim)
        )
        self.cond_mlp = nn.Sequential(nn.SiLU(), nn.Linear(dim, 8 * dim))
        self.gate_mlp = nn.Sequential(nn.SiLU(), nn.Linear(dim, 3 * dim))
        self.gate_offset = 1 if mixer == "pom" else 0

    def forward(self, x, t, c, keys, temporal):  # (B, n, d), (B, d), (B, blocks, L, d), (B, blocks, L)
        sx, bx, sc, bc, s1, b1, s2, b2 = self.cond_mlp(t)[:, None].chunk(8, dim=-1)
        gc, g1, g2 = self.gate_mlp(t)[:, None].chunk(3, dim=-1)
        cross = self.c_pom if hasattr(self, "c_pom") else self.c_attn
        mix = self.pom if hasattr(self, "pom") else self.attn
        x_ln = modulation(layer_norm(x), sx, bx)
        c_ln = modulation(layer_norm(c), sc[:, None], bc[:, None])
        told = []
        for block, part in enumerate(x_ln.chunk(c.shape[1], dim=1)):
            seen = keys[:, block, None, :].expand(-1, part.shape[1], -1)
            told.append(cross(part, c_ln[:, block], seen))
        x = x + torch.cat(told, dim=1) * (self.gate_offset + gc)
        x_ln = modulation(layer_norm(x), s1, b1)
        seen = None if temporal is None else temporal.expand(x.shape[0], -1, -1)
        x = x + mix(x_ln, x_ln, seen) * (self.gate_offset + g1)
        return x + self.ffw(modulation(layer_norm(x), s2, b2)) * (self.gate_offset + g2)


class ReferenceVDiPoM(nn.Module):
    def __init__(
        self,
        dim,
        depth,
        patch=2,
        patch_time=2,
        channels=16,
        text_width=4096,
        mixer="pom",
        order=2,
        order_expand=2,
        ffw_expand=4,
        heads=8,
        temporal_mask="block-causal",
        window=0,
        own_every=0,
        time_code="periodic",
        time_period=32,
        position="odd",
        no_text="token",
    ):
        super().__init__()
        self.dim, self.patch, self.patch_time, self.channels = dim, patch, patch_time, channels
        self.temporal_mask, self.window, self.own_every = temporal_mask, window, own_every
        self.form, self.period, self.place = time_code, time_period, position
        self.text_proj = nn.Linear(text_width, dim)
        self.no_text = nn.Parameter(torch.zeros(dim)) if no_text == "token" else None
        self.time_emb = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        kernel = (patch_time, patch, patch)
        self.in_conv = nn.Conv3d(channels, dim, kernel_size=kernel, stride=kernel)
        self.layers = nn.ModuleList(
            ReferenceVideoBlock(dim, mixer, order, order_expand, ffw_expand, heads) for _ in range(depth)
        )
        self.out_mod = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.out_proj = nn.Linear(dim, patch_time * patch * patch * channels)

    def read(self, text, mask):
        """Text behind its map; a text of which nothing counts is one token `no_text`, or what a mask of zeros
        leaves of it."""
        c, mask = self.text_proj(text).clone(), mask.clone()
        if self.no_text is None:
            return c, mask
        for b in range(c.shape[0]):
            for block in range(c.shape[1]):
                if not mask[b, block].any():
                    c[b, block, 0] = self.no_text
                    mask[b, block, 0] = True
        return c, mask

    def position(self, first, blocks, h, w):  # (B,) → (B, n, d)
        wide = 4 * (self.dim // 6) if self.place == "odd" else self.dim // 2
        place = position(h, w, wide, form=self.place).expand(len(first), blocks, h * w, wide)
        number = first[:, None] + torch.arange(blocks)
        time = time_code(number, self.dim - wide, self.form, self.period)
        time = time[:, :, None].expand(-1, -1, h * w, -1)
        parts = [place, time] if self.place == "odd" else [time, place]
        return torch.cat(parts, dim=-1).flatten(1, 2)

    def forward(self, x, t, text, mask, first):  # (B, C, T, H, W), (B,), (B, L, .) or (B, blocks, L, .), …
        B, C, T, H, W = x.shape
        p, pt = self.patch, self.patch_time
        blocks, h, w = T // pt, H // p, W // p
        if text.dim() == 3:
            text, mask = text[:, None].expand(-1, blocks, -1, -1), mask[:, None].expand(-1, blocks, -1)
        angle = 1000.0 * t.double()[:, None] * time_frequencies(self.dim)
        time = self.time_emb(torch.cat([angle.cos(), angle.sin()], dim=-1).to(x.dtype))
        c, keys = self.read(text, mask)
        temporal = block_mask(blocks, h * w, self.temporal_mask, self.window)
        x = self.in_conv(x).flatten(2).transpose(1, 2) + self.position(first, blocks, h, w).to(x.dtype)
        for number, layer in enumerate(self.layers, 1):
            alone = self.own_every > 0 and number % self.own_every == 0
            own = block_mask(blocks, h * w, self.temporal_mask, 1) if alone else temporal
            x = layer(x, time, c, keys, own)
        scale, bias = self.out_mod(time)[:, None].chunk(2, dim=-1)
        x = self.out_proj(modulation(layer_norm(x), scale, bias))  # (B, n, pt·p·p·C), channel fastest
        x = x.view(B, blocks, h, w, pt, p, p, C).permute(0, 7, 1, 4, 2, 5, 3, 6)
        return x.reshape(B, C, T, H, W)
