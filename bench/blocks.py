"""Stacks of the paper's modulated blocks, with the listing, libpom's layer or attention as the mixer, for
bench/paper_cuda.py. B pictures, n tokens, d width; the feed-forward is counted in widths."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from baselines import listing
from timing import DTYPES
from torch import Tensor

import libpom

K, EXPAND = 2, 2
Block = Callable[[Tensor, Tensor, tuple[Tensor, ...]], Tensor]  # (B, n, d), (B, d), weights -> (B, n, d)


def modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


def block_of(mix: Callable[..., Tensor], offset: int) -> Block:
    """A block as the paper's network has it. Weights: those of scales and shifts, of gates, of the
    feed-forward, then the mixer's; a gate counts as `offset` + g."""

    def block(x: Tensor, c: Tensor, w: tuple[Tensor, ...]) -> Tensor:
        c = F.silu(c)
        s1, b1, s2, b2 = F.linear(c, w[0], w[1])[:, None].chunk(4, dim=-1)
        g1, g2 = F.linear(c, w[2], w[3])[:, None].chunk(2, dim=-1)
        x = x + mix(modulated(x, s1, b1), *w[8:]) * (offset + g1)
        hidden = F.gelu(F.linear(modulated(x, s2, b2), w[4], w[5]))
        return x + F.linear(hidden, w[6], w[7]) * (offset + g2)

    return block


def paper_mix(x: Tensor, *w: Tensor) -> Tensor:
    return listing(x, *w, K)


paper_block = block_of(paper_mix, 1)


def our_mix(x: Tensor, *w: Tensor) -> Tensor:
    return libpom.mixer_layer(x, x, *w, K)


def attention_mix(heads: int) -> Callable[..., Tensor]:
    def mix(x: Tensor, qkv_w: Tensor, qkv_b: Tensor, out_w: Tensor, out_b: Tensor) -> Tensor:
        q, k, v = F.linear(x, qkv_w, qkv_b).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        return F.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), out_w, out_b)

    return mix


@dataclass(frozen=True)
class Network:
    """A stack of blocks of one kind; `shapes` are the mixer's matrices, as (out, in)."""

    block: Block
    shapes: tuple[tuple[int, int], ...]

    def weights(self, args: argparse.Namespace, ffw: int) -> list[tuple[Tensor, ...]]:
        d = args.dim
        shapes = [(4 * d, d), (2 * d, d), (ffw * d, d), (d, ffw * d), *self.shapes]
        generator = torch.Generator(args.device).manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            std = 0.5 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.1
            values = torch.randn(shape, generator=generator, device=args.device)
            return (std * values).to(DTYPES[args.dtype])

        return [
            tuple(part for shape in shapes for part in (drawn(*shape), drawn(shape[0])))
            for _ in range(args.timed_depth)
        ]


def networks(args: argparse.Namespace) -> dict[str, Network]:
    d, wide = args.dim, K * EXPAND * args.dim
    pom = ((wide, d), (wide, d), (d, wide))

    def attention(head: int) -> Network:
        inner = args.heads * head
        return Network(block_of(attention_mix(args.heads), 0), ((3 * inner, d), (d, inner)))

    return {
        "paper": Network(paper_block, pom),
        "ours": Network(block_of(our_mix, 1), pom),
        "head": attention(d // args.heads),
        "narrow": attention(args.narrow),
    }


def stack(block: Block, x: Tensor, c: Tensor, weights: list[tuple[Tensor, ...]]) -> Tensor:
    for w in weights:
        x = block(x, c, w)
    return x


def compiled(block: Block, whole: bool) -> Callable[..., Tensor]:
    """(x, c, weights of all blocks) -> x. One block is compiled and called for each set of weights, or with
    `whole` all of them at once, which takes minutes and lets torch join the end of a block with the next."""
    if whole:
        return torch.compile(lambda x, c, w: stack(block, x, c, w), fullgraph=True, dynamic=False)
    one = torch.compile(block, fullgraph=True, dynamic=False)
    return lambda x, c, w: stack(one, x, c, w)
