"""The class-conditional network in plain torch, written from the paper's equations: the C++ one's referee.

Nothing here comes from libpom, and nothing is fused: each line is one line of the definition.
B batch, C channels, H height, W width, p patch, h = H/p, w = W/p, n = h·w tokens (row by row), d width.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

SIZES = {"S": (12, 384), "B": (12, 768), "L": (24, 1024), "XL": (28, 1152)}  # depth, dim
PATCHES = (2, 4, 8)
POM_FFW = {"S": 3, "B": 3, "L": 2, "XL": 2}
DIT_HEADS = {"S": 6, "B": 12, "L": 16, "XL": 16}


def variants():
    """Name → arguments of ReferenceDiPoM, for 1000 classes and 4 latent channels."""
    table = {}
    for size, (depth, dim) in SIZES.items():
        for patch in PATCHES:
            shape = {"dim": dim, "depth": depth, "patch": patch}
            pom = {"mixer": "pom", "order": 2, "order_expand": 2, "ffw_expand": POM_FFW[size]}
            attention = {"mixer": "attention", "ffw_expand": 4, "heads": DIT_HEADS[size]}
            table[f"DiPoM-{size}/{patch}"] = {**shape, **pom}
            table[f"DiT-{size}/{patch}"] = {**shape, **attention}
    return table


def time_frequencies(d, device=None):
    """(d/2,) in fp64: exp(-2 ln(1000) i / d). Rounded to fp32 they would be wrong by 1e-5 once t·1000 is
    there."""
    i = torch.arange(d // 2, dtype=torch.float64, device=device)
    return torch.exp(-2.0 * math.log(1000.0) * i / d)


def narrow_code(side, channels, device=None):
    """(side, channels) in fp64: [sin, cos] of f(πu + 1), f and u from linspace."""
    f = torch.linspace(0.5, 2, channels // 2, dtype=torch.float64, device=device)
    u = torch.linspace(0, 1, side, dtype=torch.float64, device=device)
    angle = f[None, :] * (math.pi * u[:, None] + 1)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def position(h, w, d, device=None, form="odd"):
    """(h·w, d) in fp64: [sin πfx, cos πfx, sin πfy, cos πfy]; f the d/4 odd numbers, x along the width.
    Of the form narrow: x, then y, by narrow_code."""
    if form == "narrow":
        x, y = narrow_code(w, d // 2, device), narrow_code(h, d // 2, device)
        return torch.stack([torch.cat([x[j], y[i]]) for i in range(h) for j in range(w)])
    f = 2.0 * torch.arange(d // 4, dtype=torch.float64, device=device) + 1.0
    x = torch.linspace(0, 1, w, dtype=torch.float64, device=device).repeat(h)
    y = torch.linspace(0, 1, h, dtype=torch.float64, device=device).repeat_interleave(w)
    x, y = math.pi * x[:, None] * f, math.pi * y[:, None] * f
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1)


def modulation(x, scale, bias):
    return x * (1 + scale) + bias


def layer_norm(x):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


class ReferencePoM(nn.Module):
    def __init__(self, dim, order, order_expand):
        super().__init__()
        wide = order * order_expand * dim
        self.order = order
        self.ho_proj = nn.Linear(dim, wide)
        self.se_proj = nn.Linear(dim, wide)
        self.ag_proj = nn.Linear(wide, dim)

    def forward(self, x):  # (B, n, d)
        p = list(F.gelu(self.ho_proj(x)).chunk(self.order, dim=-1))
        for i in range(1, self.order):
            p[i] = p[i] * p[i - 1]
        h = torch.cat(p, dim=-1).mean(dim=1, keepdim=True)  # (B, 1, k·e·d)
        return self.ag_proj(torch.sigmoid(self.se_proj(x)) * h)


class ReferenceAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        if dim % heads != 0:
            raise ValueError(f"heads: expected a divisor of {dim}, got {heads}")
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):  # (B, n, d)
        B, n, d = x.shape
        q, k, v = self.qkv(x).view(B, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(
            q @ k.transpose(-2, -1) / math.sqrt(d // self.heads), dim=-1
        )  # (B, heads, n, n)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, n, d))


class ReferenceBlock(nn.Module):
    def __init__(self, dim, mixer, order, order_expand, ffw_expand, heads):
        super().__init__()
        if mixer == "pom":
            self.pom = ReferencePoM(dim, order, order_expand)
        else:
            self.attn = ReferenceAttention(dim, heads)
        self.ffw = nn.Sequential(
            nn.Linear(dim, ffw_expand * dim), nn.GELU(), nn.Linear(ffw_expand * dim, dim)
        )
        self.cond_mlp = nn.Sequential(nn.SiLU(), nn.Linear(dim, 4 * dim))
        self.gate_mlp = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.gate_offset = 1 if mixer == "pom" else 0  # 1+g for PoM, g for the attention baseline

    def forward(self, x, c):  # (B, n, d), (B, d)
        s1, b1, s2, b2 = self.cond_mlp(c)[:, None].chunk(4, dim=-1)
        g1, g2 = self.gate_mlp(c)[:, None].chunk(2, dim=-1)
        mix = self.pom if hasattr(self, "pom") else self.attn
        x = x + mix(modulation(layer_norm(x), s1, b1)) * (self.gate_offset + g1)
        x = x + self.ffw(modulation(layer_norm(x), s2, b2)) * (self.gate_offset + g2)
        return x


class ReferenceDiPoM(nn.Module):
    """Predicts the target of the path (ε or velocity) for pictures x at times t of classes y; y == classes is
    "no class"."""

    def __init__(
        self,
        dim,
        depth,
        patch,
        channels=4,
        classes=1000,
        mixer="pom",
        order=2,
        order_expand=2,
        ffw_expand=3,
        heads=8,
        position="odd",
    ):
        super().__init__()
        if mixer not in ("pom", "attention"):
            raise ValueError(f"mixer: expected pom or attention, got {mixer}")
        if dim % 4 != 0:
            raise ValueError(f"dim: expected a multiple of 4, got {dim}")
        self.dim, self.patch, self.channels, self.form = dim, patch, channels, position
        self.classes_emb = nn.Embedding(classes + 1, dim)
        self.time_emb = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        self.in_conv = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        self.layers = nn.ModuleList(
            ReferenceBlock(dim, mixer, order, order_expand, ffw_expand, heads) for _ in range(depth)
        )
        self.out_mod = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.out_proj = nn.Linear(dim, patch * patch * channels)
        init(self)

    @property
    def freqs(self):
        """Derived from the width alone, so no part of the state: a cast of the module must not round it."""
        return time_frequencies(self.dim, self.classes_emb.weight.device)

    def condition(self, t, y):  # (B,), (B,) → (B, d)
        angle = 1000.0 * t.double()[:, None] * self.freqs
        time = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.classes_emb.weight.dtype)
        return self.classes_emb(y) + self.time_emb(time)

    def forward(self, x, t, y):  # (B, C, H, W), (B,), (B,)
        B, C, H, W = x.shape
        p, h, w = self.patch, H // self.patch, W // self.patch
        if H % p != 0 or W % p != 0:
            raise ValueError(f"x: expected sides divisible by {p}, got {H}x{W}")
        c = self.condition(t, y)
        x = self.in_conv(x).flatten(2).transpose(1, 2)  # (B, n, d)
        x = x + position(h, w, self.dim, x.device, self.form).to(self.classes_emb.weight.dtype)
        for layer in self.layers:
            x = layer(x, c)
        scale, bias = self.out_mod(c)[:, None].chunk(2, dim=-1)
        x = self.out_proj(modulation(layer_norm(x), scale, bias))  # (B, n, p·p·C), channel fastest
        return x.view(B, h, w, p, p, C).permute(0, 5, 1, 3, 2, 4).reshape(B, C, H, W)


@torch.no_grad()
def init(model):
    """The values a network starts from: Xavier-uniform weights and zero biases, but for what follows."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    nn.init.xavier_uniform_(model.in_conv.weight.flatten(1))  # a linear map of the patch
    nn.init.zeros_(model.in_conv.bias)
    nn.init.normal_(model.classes_emb.weight, std=0.02)
    nn.init.normal_(model.time_emb[0].weight, std=0.02)
    nn.init.normal_(model.time_emb[2].weight, std=0.02)
    for layer in model.layers:  # every block starts as the identity: gate (1 + g) = 0, or g = 0
        nn.init.zeros_(layer.cond_mlp[1].weight)
        nn.init.zeros_(layer.gate_mlp[1].weight)
        nn.init.constant_(layer.gate_mlp[1].bias, -float(layer.gate_offset))
    for last in (model.out_mod[1], model.out_proj):  # the first prediction is zero
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)


@torch.no_grad()
def randomise(model, seed=0):
    """Draws every parameter, the zero ones too, at sizes that keep the activations near one."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        std = 0.5 / math.sqrt(parameter[0].numel()) if parameter.dim() > 1 else 0.1
        parameter.copy_(std * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model
