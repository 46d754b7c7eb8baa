"""The ten shapes in plain torch, written apart from pom/data/shapes.cpp: its referee.

Signed distances of shapes of radius 1, y upwards, negative inside; and the named hues.
"""

import math

import torch

CLASSES = ["circle", "square", "triangle", "star", "heart", "ring", "cross", "moon", "diamond", "hexagon"]
HUES = {
    "red": (0.90, 0.10, 0.12),
    "orange": (1.00, 0.52, 0.05),
    "yellow": (1.00, 0.90, 0.10),
    "green": (0.10, 0.70, 0.20),
    "cyan": (0.05, 0.80, 0.90),
    "blue": (0.10, 0.25, 0.90),
    "purple": (0.55, 0.15, 0.80),
    "pink": (1.00, 0.40, 0.70),
}


def box(x, y, half_w, half_h):
    return torch.maximum(x.abs() - half_w, y.abs() - half_h)


def disc(x, y, radius):
    return torch.sqrt(x * x + y * y + 1e-12) - radius


def polygon(x, y, corners, radius):
    """Regular, one corner up: the distance to the nearest side's line."""
    sector = 2 * math.pi / corners
    from_side = torch.remainder(torch.atan2(x, y), sector) - sector / 2
    return torch.sqrt(x * x + y * y + 1e-12) * from_side.cos() - radius * math.cos(sector / 2)


def star(x, y, inner=0.42):
    """Five tips at radius 1; folded into the half sector between a tip and the next inner corner."""
    half = math.pi / 5
    fold = (torch.remainder(torch.atan2(x, y) + half, 2 * half) - half).abs()
    r = torch.sqrt(x * x + y * y + 1e-12)
    edge_x, edge_y = inner * math.cos(half) - 1, inner * math.sin(half)
    length = math.hypot(edge_x, edge_y)
    return ((r * fold.cos() - 1) * edge_y - r * fold.sin() * edge_x) / length


def heart(x, y, half=0.56):
    """A square on its corner and a disc on each of its two upper sides."""
    y = y + 0.14
    corner = math.sqrt(0.5)
    square = box((x + y) * corner, (x - y) * corner, half, half)
    discs = disc(x.abs() - half * corner, y - half * corner, half)
    return torch.minimum(square, discs)


def diamond(x, y, half_w=0.62, half_h=1.0):
    return (x.abs() / half_w + y.abs() / half_h - 1) * (half_w * half_h / math.hypot(half_w, half_h))


def distances(x, y):
    """(classes, H, W), in the order of CLASSES."""
    return torch.stack(
        [
            disc(x, y, 0.92),
            box(x, y, 0.72, 0.72),
            polygon(x, y + 0.15, 3, 1.0),
            star(x, y),
            heart(x, y),
            disc(disc(x, y, 0.72), torch.zeros_like(x), 0.22),
            torch.minimum(box(x, y, 0.92, 0.29), box(x, y, 0.29, 0.92)),
            torch.maximum(disc(x, y, 0.95), -disc(x - 0.5, y - 0.12, 0.72)),
            diamond(x, y),
            polygon(x, y, 6, 0.98),
        ]
    )


def coverage(name, x, y, radius, angle, size, fine=4):
    """(size, size) fp64 in [0, 1]: the share of each pixel that the shape covers, by `fine` samples a side.

    Place (x, y) and radius in sides of the picture, from its middle, y upwards.
    """
    u = (torch.arange(size * fine, dtype=torch.float64) + 0.5) / (size * fine) - 0.5
    px, py = (u[None, :] - x) / radius, (-u[:, None] - y) / radius
    c, s = math.cos(angle), math.sin(angle)
    inside = distances(px * c + py * s, py * c - px * s)[CLASSES.index(name)] < 0
    return inside.double().view(size, fine, size, fine).mean((1, 3))
