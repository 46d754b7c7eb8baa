"""Where a token is and when it is, as vectors: functions without parameters, computed in fp64.

B batch, h rows and w columns of tokens, d width. In C++: pom/nn/embeddings.h, pom/nn/video_position.h.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from .config import TimeCode


def _axis(side: int, frequencies: int, device: torch.device) -> Tensor:
    """(side, 2 * frequencies): sines, then cosines of pi f u, f = 1, 3, 5, ... and u from 0 to 1."""
    f = 2 * torch.arange(frequencies, dtype=torch.float64, device=device) + 1
    u = torch.arange(side, dtype=torch.float64, device=device) / max(side - 1, 1)
    angle = math.pi * u.unsqueeze(1) * f
    return torch.cat([angle.sin(), angle.cos()], 1)


def position_code(rows: int, columns: int, dim: int, device: torch.device) -> Tensor:
    """(h * w, d), row by row: [sin(pi f x), cos(pi f x), sin(pi f y), cos(pi f y)] for d / 4 odd frequencies
    f. Being relative to the sides, it serves any resolution."""
    x = _axis(columns, dim // 4, device).unsqueeze(0).expand(rows, columns, dim // 2)
    y = _axis(rows, dim // 4, device).unsqueeze(1).expand(rows, columns, dim // 2)
    return torch.cat([x, y], 2).reshape(rows * columns, dim)


def time_features(t: Tensor, dim: int) -> Tensor:
    """t (B) in [0, 1] -> (B, d): [cos, sin] of 1000 t exp(-2 ln(1000) i / d), i < d / 2."""
    i = torch.arange(dim // 2, dtype=torch.float64, device=t.device)
    angle = (1000 * t.double()).unsqueeze(1) * torch.exp(-2 * math.log(1000.0) * i / dim)
    return torch.cat([angle.cos(), angle.sin()], 1)


def time_code(blocks: Tensor, width: int, form: TimeCode, period: int) -> Tensor:
    """Numbers of blocks (..., int64) -> (..., width), sines, then cosines.

    "periodic" is of 2 pi f n / period, f = 1, 2, 3, ..., and comes round after `period` blocks; its phase is
    reduced as an integer, so that it is exact for any number. "geometric" is of n period^(-i / F), i < F, and
    never comes round. "none" is zeros.
    """
    frequencies = width // 2
    i = torch.arange(frequencies, device=blocks.device)
    n = blocks.unsqueeze(-1)
    if form == "none":
        return torch.zeros(*blocks.shape, width, dtype=torch.float64, device=blocks.device)
    if form == "geometric":
        angle = n.double() * torch.pow(float(period), -i.double() / frequencies)
    else:
        angle = (n % period * ((i + 1) % period) % period).double() * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], -1)


# The position of a token of a clip is the sum of two codes, each zero in the channels of the other: the first
# 4 (d / 6) are the place, the rest is the time.


def clip_place_code(rows: int, columns: int, dim: int, device: torch.device) -> Tensor:
    """(h * w, d)"""
    early = 4 * (dim // 6)
    return pad(position_code(rows, columns, early, device), (0, dim - early))


def clip_time_code(blocks: Tensor, dim: int, form: TimeCode, period: int) -> Tensor:
    """(...) int64 -> (..., d)"""
    early = 4 * (dim // 6)
    return pad(time_code(blocks, dim - early, form, period), (early, 0))
