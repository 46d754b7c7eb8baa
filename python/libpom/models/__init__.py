"""The networks as torch modules: what a researcher changes and trains in a loop of their own.

    net = libpom.models.load("assets/shapes64")              # the weights of a model folder
    net = libpom.models.DiPoM.variant("DiPoM-S/2", classes=10)
    net = libpom.models.DiPoM(dim=192, depth=8, patch=4, channels=3, classes=10)
    velocity = net(x, t, y)                                  # x (B, C, H, W), t in [0, 1], y (B) int64

    net = libpom.models.load("assets/sprites32")             # or VDiPoM(...): clips from text
    words = libpom.models.load_text("assets/sprites32")
    velocity = net(x, t, *words(["a red star"]))             # x (B, C, T, H, W), text and its mask

    libpom.models.save(net, "out/mine", text=words)          # what `pom sample` takes

They are built on `libpom.PoM` and compute what the C++ networks compute, under the same names of tensors.
"""

from .blocks import Attention, CrossAttention, ModulatedBlock, PatchEmbedding, VideoBlock
from .config import (
    VARIANTS,
    CodecConfig,
    DiffusionConfig,
    ModelConfig,
    NetworkConfig,
    SampleDefaults,
    TextConfig,
)
from .dipom import DiPoM
from .folder import load, load_text, read_config, save
from .vdipom import VDiPoM
from .words import Words, most_frequent_words

__all__ = [
    "VARIANTS",
    "Attention",
    "CodecConfig",
    "CrossAttention",
    "DiPoM",
    "DiffusionConfig",
    "ModelConfig",
    "ModulatedBlock",
    "NetworkConfig",
    "PatchEmbedding",
    "SampleDefaults",
    "TextConfig",
    "VDiPoM",
    "VideoBlock",
    "Words",
    "load",
    "load_text",
    "most_frequent_words",
    "read_config",
    "save",
]
