"""Where a token is and when it is, as vectors: functions without parameters, computed in fp64.

B batch, h rows and w columns of tokens, d width. In C++: pom/nn/embeddings.h, pom/nn/video_position.h.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from .config import Position, TimeCode, TimeInput


def _angles(u: Tensor, frequencies: int, form: Position) -> Tensor:
    """(...) from 0 to 1 -> (..., frequencies).

    "odd" is pi f u, f = 1, 3, 5, ...; "narrow" is f (pi u + 1), f running evenly from 0.5 to 2.
    """
    i = torch.arange(frequencies, dtype=torch.float64, device=u.device)
    if form == "odd":
        return math.pi * u.unsqueeze(-1) * (2 * i + 1)
    return (math.pi * u.unsqueeze(-1) + 1) * (0.5 + 1.5 / max(frequencies - 1, 1) * i)


def _axis(side: int, frequencies: int, form: Position, device: torch.device) -> Tensor:
    """(side, 2 * frequencies): sines, then cosines of the places from 0 to 1; of the form "dit" of n
    10000^(-i / F), n the number of the place."""
    n = torch.arange(side, dtype=torch.float64, device=device)
    if form == "dit":
        i = torch.arange(frequencies, dtype=torch.float64, device=device)
        angle = n.unsqueeze(-1) * (1 / torch.pow(10000.0, i / frequencies))
    else:
        angle = _angles(n / max(side - 1, 1), frequencies, form)
    return torch.cat([angle.sin(), angle.cos()], 1)


def position_code(rows: int, columns: int, dim: int, device: torch.device, form: Position = "odd") -> Tensor:
    """(h * w, d), row by row: [sin x, cos x, sin y, cos y] of d / 4 frequencies. Being relative to the sides,
    it serves any resolution; that of the form "dit" is not."""
    x = _axis(columns, dim // 4, form, device).unsqueeze(0).expand(rows, columns, dim // 2)
    y = _axis(rows, dim // 4, form, device).unsqueeze(1).expand(rows, columns, dim // 2)
    return torch.cat([x, y], 2).reshape(rows * columns, dim)


def time_features(t: Tensor, count: int, period: float = 1000.0, said: TimeInput = "1000t") -> Tensor:
    """t (B) in [0, 1] -> (B, count): [cos, sin] of `said` exp(-2 ln(period) i / count), i < count / 2."""
    i = torch.arange(count // 2, dtype=torch.float64, device=t.device)
    t = 1 - t.double() if said == "1-t" else 1000 * t.double()
    if said == "1000t-1":
        t = t - 1
    angle = t.unsqueeze(1) * torch.exp(-2 * math.log(period) * i / count)
    return torch.cat([angle.cos(), angle.sin()], 1)


def time_code(blocks: Tensor, width: int, form: TimeCode, period: int, length: int = 0) -> Tensor:
    """Numbers of blocks (..., int64) -> (..., width), sines, then cosines.

    "periodic" is of 2 pi f n / period, f = 1, 2, 3, ..., and comes round after `period` blocks; its phase is
    reduced as an integer, so that it is exact for any number. "geometric" is of n period^(-i / F), i < F, and
    never comes round. "relative" is the narrow code of n / (length - 1), `length` the blocks of the clip.
    "none" is zeros.
    """
    frequencies = width // 2
    i = torch.arange(frequencies, device=blocks.device)
    n = blocks.unsqueeze(-1)
    if form == "none":
        return torch.zeros(*blocks.shape, width, dtype=torch.float64, device=blocks.device)
    if form == "relative":
        angle = _angles(blocks.double() / max(length - 1, 1), frequencies, "narrow")
    elif form == "geometric":
        angle = n.double() * torch.pow(float(period), -i.double() / frequencies)
    else:
        angle = (n % period * ((i + 1) % period) % period).double() * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], -1)


# The position of a token of a clip is the sum of two codes, each zero in the channels of the other: with the
# form "odd" the first 4 (d / 6) are the place and the rest is the time, with "narrow" the first d / 2 are the
# time and the rest is the place.


def _place_channels(dim: int, form: Position) -> tuple[int, int]:
    """How many come before the place, and after it."""
    return (0, dim - 4 * (dim // 6)) if form == "odd" else (dim // 2, 0)


def clip_place_code(
    rows: int, columns: int, dim: int, device: torch.device, form: Position = "odd"
) -> Tensor:
    """(h * w, d)"""
    before, after = _place_channels(dim, form)
    return pad(position_code(rows, columns, dim - before - after, device, form), (before, after))


def clip_time_code(
    blocks: Tensor, dim: int, form: TimeCode, period: int, length: int = 0, place: Position = "odd"
) -> Tensor:
    """(...) int64 -> (..., d)"""
    before, after = _place_channels(dim, place)
    time, width = before + after, dim - before - after
    return pad(time_code(blocks, time, form, period, length), (0, width) if before else (width, 0))
