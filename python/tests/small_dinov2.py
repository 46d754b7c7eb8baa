"""A small DINOv2 of weights that are drawn here, by the names of the published file: features of pictures in
a fraction of the time that the field's networks take."""

import torch

DEPTH, WIDTH, GRID = 2, 128, 37


def draw(scale, *shape):
    return torch.randn(*shape, dtype=torch.float64) * scale


def drawn_weights():
    """By the names of the published file, mask_token among them."""
    torch.manual_seed(3)
    tensors = {
        "cls_token": draw(1, 1, 1, WIDTH),
        "pos_embed": draw(1, 1, GRID * GRID + 1, WIDTH),
        "mask_token": draw(1, 1, WIDTH),
        "patch_embed.proj.weight": draw(0.05, WIDTH, 3, 14, 14),
        "patch_embed.proj.bias": draw(0.1, WIDTH),
    }

    def add(name, out, inner):
        tensors[f"{name}.weight"] = draw(inner**-0.5, out, inner) if inner else 1 + draw(0.2, out)
        tensors[f"{name}.bias"] = draw(0.1, out)

    for i in range(DEPTH):
        add(f"blocks.{i}.norm1", WIDTH, 0)
        add(f"blocks.{i}.norm2", WIDTH, 0)
        add(f"blocks.{i}.attn.qkv", 3 * WIDTH, WIDTH)
        add(f"blocks.{i}.attn.proj", WIDTH, WIDTH)
        add(f"blocks.{i}.mlp.fc1", 4 * WIDTH, WIDTH)
        add(f"blocks.{i}.mlp.fc2", WIDTH, 4 * WIDTH)
        tensors[f"blocks.{i}.ls1.gamma"] = draw(1, WIDTH)
        tensors[f"blocks.{i}.ls2.gamma"] = draw(1, WIDTH)
    add("norm", WIDTH, 0)
    return tensors
