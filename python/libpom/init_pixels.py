"""What an image or clip begins with, as pixels: tensors, arrays and PIL images. uint8 (H, W, C); of clips
(T, H, W, C); with one axis more before that, one for each item."""

import os
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from .errors import fail


class Picture(Protocol):
    """A PIL image, as far as it is asked."""

    @property
    def mode(self) -> str: ...
    @property
    def size(self) -> tuple[int, int]: ...
    def tobytes(self) -> bytes: ...


def _of_picture(op: str, image: Any) -> torch.Tensor:
    if image.mode not in ("L", "RGB"):
        fail(f"{op}: init", "a PIL image of mode L or RGB", f'{image.mode}: use .convert("RGB")')
    width, height = image.size
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, -1)


def tensor_of(array: Any) -> torch.Tensor | None:
    """A tensor, or an array copied into one, whatever its strides are and though it may not be written to.
    None of anything else."""
    if isinstance(array, torch.Tensor):
        return array
    if not hasattr(array, "__array_interface__"):
        return None
    try:
        return torch.from_numpy(array.copy())
    except TypeError:  # an array of what no tensor has
        return None


def _of_list(op: str, images: Sequence[object], clips: bool) -> torch.Tensor:
    """Frames, or one for each item."""
    parts = [read_pixels(op, image, clips) for image in images]
    pixels = [part for part in parts if part is not None]
    if not pixels or len(pixels) < len(parts) or any(part.shape != pixels[0].shape for part in pixels):
        kinds = sorted({type(image).__name__ for image in images})
        of_what = (
            "images of several sizes" if len(pixels) == len(parts) > 0 else ", ".join(kinds) or "nothing"
        )
        fail(f"{op}: init", "one file, or a list of images of one size", f"a list of {of_what}")
    return torch.stack(pixels)


def read_pixels(op: str, init: object, clips: bool) -> torch.Tensor | None:
    """None of a file, and where there is nothing."""
    if init is None or isinstance(init, (str, os.PathLike)):
        return None
    if isinstance(init, (list, tuple)):
        pixels: torch.Tensor | None = _of_list(op, init, clips)
    elif isinstance(getattr(init, "mode", None), str) and hasattr(init, "tobytes"):
        pixels = _of_picture(op, init)
    else:
        pixels = tensor_of(init)
    most = 5 if clips else 4
    if (
        pixels is None
        or pixels.dtype != torch.uint8
        or not 3 <= pixels.dim() <= most
        or pixels.shape[-1] not in (1, 3)
    ):
        more = "of clips (T, H, W, C)" if clips else "or (B, H, W, C), one for each image"
        got = type(init).__name__ if pixels is None else f"{pixels.dtype} of shape {tuple(pixels.shape)}"
        fail(f"{op}: init", f"a file, a PIL image, or uint8 of shape (H, W, C), {more}", got)
    return pixels


def of_item(pixels: torch.Tensor, item: int, clips: bool) -> torch.Tensor:
    """What one of the items begins with, where it is one for each."""
    if pixels.dim() < (5 if clips else 4):
        return pixels
    return pixels[item if len(pixels) > 1 else 0]


def for_library(pixels: torch.Tensor, clips: bool, channels: int) -> torch.Tensor:
    """(B, C, H, W), of clips (B, C, T, H, W), in [-1, 1]; grey is the same in all colours."""
    while pixels.dim() < (5 if clips else 4):
        pixels = pixels[None]
    values = ((pixels.float() - 127.5) / 127.5).movedim(-1, 1)
    if values.shape[1] == 1:
        values = values.expand(-1, channels, *[-1] * (values.dim() - 2))
    return values.contiguous()
