"""Autoencoders and text encoders from folders as diffusers and transformers write them, by libpom.so.

vae = libpom.codecs.load("stable-diffusion/vae")
moments = vae.encode(pictures)          # (B, 2 z, h, w): mean and log-variance, unscaled
latents = vae.draw(moments, seeds=[7])  # or vae.encode(pictures, seeds=[7])
pictures = vae.decode(latents)          # (B, 3, H, W) in [-1, 1]
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from . import _library
from .engine import _ours
from .errors import fail

_Path = str | os.PathLike[str]
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _checked_dtype(op: str, dtype: torch.dtype) -> torch.dtype:
    if dtype not in _FLOATS:
        fail(f"{op}: dtype", f"one of {', '.join(map(str, _FLOATS))}", dtype)
    return dtype


class _Autoencoder:
    """What both autoencoders have: a folder's network in one dtype on one device. Without gradients."""

    def __init__(self, handle: Any, config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> None:
        self._handle = handle
        self.config = config
        self.device = device
        self.dtype = dtype

    @property
    def scaling_factor(self) -> float:
        """Latents of networks are (encoded - shift_factor) * scaling_factor, by config.json."""
        return self._handle.scaling_factor()

    @property
    def shift_factor(self) -> float:
        return self._handle.shift_factor()

    @property
    def factor(self) -> int:
        """Pixels of a picture along one side of a latent's pixel."""
        return self._handle.factor()

    @property
    def latent_channels(self) -> int:
        return self._handle.latent_channels()

    @property
    def hash(self) -> str:
        """SHA-256 of config.json and the weights."""
        return self._handle.hash()

    def encode(
        self,
        x: torch.Tensor,
        *,
        seeds: Sequence[int] | None = None,
        tiled: bool = False,
        memory: int | None = None,
    ) -> torch.Tensor:
        """Moments, mean and log-variance along the channels; or with `seeds`, one for each item, a draw of
        them. Unscaled. With `memory`, about so many bytes are enough, whatever the size: strip by strip, with
        norms over the whole. `tiled`: in overlapping tiles that are blended, as diffusers' enable_tiling()
        does it."""
        moments = self._run("encode", x, tiled, memory)
        return moments if seeds is None else self.draw(moments, seeds)

    def _run(self, what: str, x: torch.Tensor, tiled: bool, memory: int | None) -> torch.Tensor:
        if tiled and memory is not None:
            fail(f"{what}: memory", "either tiled or memory", "both")
        try:
            if memory is not None:
                if not hasattr(self._handle, f"{what}_within"):
                    fail(f"{what}: memory", "none: clips go through in chunks", memory)
                return getattr(self._handle, f"{what}_within")(x, memory)
            return getattr(self._handle, what)(x, tiled)
        except RuntimeError as error:
            raise _ours(error, "codecs") from None

    def draw(self, moments: torch.Tensor, seeds: Sequence[int]) -> torch.Tensor:
        """mean + exp(log-variance / 2) * noise, with noise that is a function of each item's seed alone."""
        try:
            return torch.ops.pom.draw_latents(moments, list(seeds))
        except RuntimeError as error:
            raise _ours(error, "codecs") from None

    def decode(self, z: torch.Tensor, *, tiled: bool = False, memory: int | None = None) -> torch.Tensor:
        """Unscaled latents -> pictures or clips in [-1, 1], not clamped; `tiled` and `memory` as above."""
        return self._run("decode", z, tiled, memory)

    def __repr__(self) -> str:
        return (
            f"<libpom.codecs.{type(self).__name__}: {self.latent_channels} latent channels, "
            f"factor {self.factor}, {self.dtype} on {self.device}>"
        )


class AutoencoderKL(_Autoencoder):
    """Pictures (B, 3, H, W) <-> latents (B, z, H / factor, W / factor): SD 1.x, SDXL, SD3, FLUX."""


class AutoencoderKLCogVideoX(_Autoencoder):
    """Clips (B, 3, T, H, W) <-> latents (B, z, t, H / 8, W / 8) in chunks of 8 frames or 2 latents, causally:
    memory does not grow with the clip. 8 j frames are 2 j latents, 8 j + 1 frames 2 j + 1.
    """

    @property
    def time_factor(self) -> int:
        return self._handle.time_factor()


class T5Encoder:
    """Prompts -> states (B, limit, width) of a T5 encoder, v1.0 or v1.1, with the tokenizer of its folder."""

    def __init__(self, handle: Any, config: dict[str, Any], limit: int) -> None:
        self._handle = handle
        self.config = config
        self.limit = limit

    @property
    def width(self) -> int:
        return self._handle.width()

    @property
    def hash(self) -> str:
        """SHA-256 of config, weights and vocabulary."""
        return self._handle.hash()

    def tokenize(self, prompts: Sequence[str] | str) -> tuple[torch.Tensor, torch.Tensor]:
        """ids (B, limit), which end in 1 and are padded with 0, and the mask of what is no padding."""
        return self._run("ids", [prompts] if isinstance(prompts, str) else list(prompts))

    def encode(self, prompts: Sequence[str] | str) -> tuple[torch.Tensor, torch.Tensor]:
        """States (B, limit, width) and their mask (B, limit): that of the padding, or all ones where the
        encoder was loaded with mask=False, as CogVideoX's pipelines use it."""
        return self._run("encode", [prompts] if isinstance(prompts, str) else list(prompts))

    def encode_ids(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """ids (B, L) of any length; `mask` (B, L) is 0 where a token is hidden from the others."""
        return self._run("encode_ids", ids, mask)

    def _run(self, what: str, *args: Any) -> Any:
        try:
            return getattr(self._handle, what)(*args)
        except RuntimeError as error:
            raise _ours(error, f"codecs.{what}") from None


def load(
    folder: _Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    limit: int = 226,
    mask: bool = True,
) -> AutoencoderKL | AutoencoderKLCogVideoX | T5Encoder:
    """Opens a folder that diffusers or transformers wrote (config.json and safetensors): an autoencoder, or a
    T5 encoder, of which a prompt has `limit` tokens, whose padding is hidden unless `mask` is False."""
    _checked_dtype("codecs.load", dtype)
    if _library.path is None:
        fail(
            "codecs.load: libpom.so", "the compiled library", f"none: {_library.reason or 'it is not loaded'}"
        )
    path = Path(folder)
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError) as error:
        fail(f"codecs.load: {path}", "a folder with config.json", str(error))
    kind = config.get("_class_name") if isinstance(config, dict) else None
    try:
        if kind == "AutoencoderKL":
            handle = torch.classes.pom.Autoencoder(os.fspath(path), str(device), dtype)
            return AutoencoderKL(handle, config, torch.device(device), dtype)
        if isinstance(config, dict) and config.get("model_type") == "t5":
            text = torch.classes.pom.TextEncoder(os.fspath(path), str(device), dtype, limit, mask)
            return T5Encoder(text, config, limit)
        if kind == "AutoencoderKLCogVideoX":
            handle = torch.classes.pom.VideoAutoencoder(os.fspath(path), str(device), dtype)
            return AutoencoderKLCogVideoX(handle, config, torch.device(device), dtype)
    except RuntimeError as error:
        raise _ours(error, "codecs") from None
    expected = "AutoencoderKL or AutoencoderKLCogVideoX (or model_type t5)"
    fail(f"codecs.load: {path / 'config.json'}: _class_name", expected, repr(kind))
