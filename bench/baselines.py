"""What the layer is measured against: its own matrix products, the paper's listing, and attention.

n tokens, d width, k degree, e expansion, kD = k·e·d features; batch 1 throughout.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import libpom


def weights(d: int, dtype: torch.dtype, k: int = 2, e: int = 2) -> list[Tensor]:
    """ho, se and ag, weight and bias of each, as nn.Linear makes them."""
    torch.manual_seed(0)
    return [p.detach() for p in libpom.PoM(d, k, e, dtype=dtype).parameters()]


def polynomial(x: Tensor, k: int) -> Tensor:
    h = list(F.gelu(x).chunk(k, dim=-1))
    for i in range(1, k):
        h[i] = h[i] * h[i - 1]
    return torch.cat(h, dim=-1)


def listing(x: Tensor, ho_w: Tensor, ho_b: Tensor, se_w: Tensor, se_b: Tensor, ag_w: Tensor, ag_b: Tensor,
            k: int) -> Tensor:  # fmt: skip
    """The paper's PyTorch code, without a mask: (1, n, d) -> (1, n, d)."""
    s = F.linear(x, se_w, se_b)
    h = polynomial(F.linear(x, ho_w, ho_b), k).mean(dim=1, keepdim=True)
    return F.linear(F.sigmoid(s) * h, ag_w, ag_b)


def three_products(x: Tensor, s: Tensor, w: list[Tensor]) -> Callable[[], None]:
    """The matrix products of a forward pass on tokens x (n, d) and features s (n, kD), and nothing else."""

    def run() -> None:
        F.linear(x, w[0], w[1])
        F.linear(x, w[2], w[3])
        F.linear(s, w[4], w[5])

    return run


def nine_products(x: Tensor, s: Tensor, w: list[Tensor]) -> Callable[[], None]:
    """Those of forward and backward: for each projection forward, the tokens' gradient and the weight's."""
    forward = three_products(x, s, w)
    wide, narrow = torch.randn_like(s), torch.randn_like(x)  # gradients of the projections' results

    def run() -> None:
        forward()
        for grad, tokens, weight in ((wide, x, w[0]), (wide, x, w[2]), (narrow, s, w[4])):
            torch.mm(grad, weight)
            torch.mm(grad.t(), tokens)

    return run


class Attention(nn.Module):
    """Multi-head self-attention by torch's fused kernel, with its four projections."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def _split(self, x: Tensor) -> Tensor:
        """Queries, keys and values: (3, 1, heads, n, d / heads)."""
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._split(x)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def step(self, x: Tensor, cache: Tensor, seen: int) -> Tensor:
        """A block (1, m, d) that sees itself and the `seen` tokens whose keys and values are in the cache
        (2, 1, heads, room, d/heads); writes its own there."""
        q, k, v = self._split(x)
        end = seen + x.shape[1]
        cache[0, :, :, seen:end], cache[1, :, :, seen:end] = k, v
        o = F.scaled_dot_product_attention(q, cache[0, :, :, :end], cache[1, :, :, :end])
        return self.proj(o.transpose(1, 2).flatten(2))
