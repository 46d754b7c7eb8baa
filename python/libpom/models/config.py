"""What a network and a model folder are, as config.json says it, and the table of the variants that have a
name. Fields, defaults and order are those of pom/models/config.h and pom/generate/folder.h.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from ..errors import Error, fail
from .fields import check_values, declared, suggestion

Kind = Literal["dipom", "vdipom"]
Mixer = Literal["pom", "attention"]
TemporalMask = Literal["block-causal", "none"]
TimeCode = Literal["periodic", "geometric", "relative", "none"]
Position = Literal["odd", "narrow", "dit"]
TimeInput = Literal["1000t", "1000t-1", "1-t"]
Gelu = Literal["erf", "tanh"]
NoText = Literal["token", "mask"]

OF_CLIPS = (
    "patch_time", "text_width", "temporal_mask", "window", "own_every", "time_code", "time_period", "no_text",
)  # fmt: skip

OF_DIT = ("time_features", "time_input", "gelu", "learned_variance")  # of images; the official DiT and SiT


@dataclass(frozen=True)
class NetworkConfig:
    """DiPoM (mixer "pom") and its baseline DiT (mixer "attention") are one network with another mixer; so are
    V-DiPoM and V-DiT, which make clips from text.

    Attributes:
        kind: "dipom" for images, "vdipom" for clips.
        variant: a name of `VARIANTS`, or "" for a network of free size.
        dim: width of a token, a multiple of 4.
        depth: blocks.
        patch: side of the square of latent pixels that is a token.
        channels: of the latent.
        classes: of images; the embedding has one row more, for "no class".
        mixer: "pom" or "attention".
        order, order_expand: of the Polynomial Mixer.
        heads: of attention.
        ffw_expand: the feed-forward has ffw_expand * dim hidden features.
        position: code of a token's place, "odd", "narrow" or, of images, "dit": see positions.py.
        time_features: of a time, before an MLP of width dim, of images; 0: dim of them, 4 dim wide.
        time_input: what they are features of: "1000t", "1000t-1" or "1-t".
        gelu: of the feed-forward: "erf", or its approximation by "tanh".
        learned_variance: as many outputs again, which nobody reads.
        patch_time: latent frames of a block of clips, at all places of which a token is one patch.
        text_width: width of a token of text.
        temporal_mask: "block-causal" (a block sees itself and those before it) or "none".
        window: blocks seen, the own one included; 0: all.
        own_every: every so many layers one sees its own block alone; 0: none.
        time_code: how a block's number becomes a code: "periodic", "geometric", "relative" or "none".
        time_period: of that code, in blocks.
        no_text: what stands for no text: "token", a learned one, or "mask", where no token counts.
    """

    kind: Kind = declared("dipom")
    variant: str = declared("")
    dim: int = declared(384, least=4, most=65536)
    depth: int = declared(12, least=1, most=1000)
    patch: int = declared(2, least=1, most=256)
    channels: int = declared(4, least=1, most=4096)
    classes: int = declared(1000, least=1, most=1e7)
    mixer: Mixer = declared("pom")
    order: int = declared(2, least=1, most=64)
    order_expand: int = declared(2, least=1, most=64)
    heads: int = declared(6, least=1, most=1024)
    ffw_expand: int = declared(3, least=1, most=64)
    position: Position = declared("odd")
    time_features: int = declared(0, least=0, most=65536)
    time_input: TimeInput = declared("1000t")
    gelu: Gelu = declared("erf")
    learned_variance: bool = declared(False)
    patch_time: int = declared(2, least=1, most=256)
    text_width: int = declared(4096, least=1, most=65536)
    temporal_mask: TemporalMask = declared("block-causal")
    window: int = declared(0, least=0, most=1e6)
    own_every: int = declared(0, least=0, most=1000)
    time_code: TimeCode = declared("periodic")
    time_period: int = declared(32, least=2, most=1e6)
    no_text: NoText = declared("token")

    @property
    def video(self) -> bool:
        return self.kind == "vdipom"

    @property
    def attention(self) -> bool:
        return self.mixer == "attention"

    def unsaved(self) -> tuple[str, ...]:
        """Folders from before there was a choice stay as they are."""
        choices = ("position", *OF_DIT)
        plain = tuple(name for name in choices if getattr(self, name) == getattr(NetworkConfig, name))
        return plain + (("no_text",) * (self.no_text == "token") if self.video else OF_CLIPS)

    def own_alone(self, layer: int) -> bool:
        """Whether a block sees itself alone in this layer, counted from 0."""
        return self.own_every > 0 and (layer + 1) % self.own_every == 0

    def check(self, where: str = "network: ") -> None:
        """Raises libpom.Error, which begins with `where`, for what no network can be."""
        check_values(self, where)
        if self.dim % 4 != 0:
            expected = "a multiple of 4 (the position code has sine and cosine of two axes)"
            fail(f"{where}dim", expected, self.dim)
        if self.attention and self.dim % self.heads != 0:
            fail(f"{where}heads", f"a divisor of dim = {self.dim}", self.heads)
        if self.time_features % 2 != 0:
            fail(f"{where}time_features", "an even number (cosines and sines)", self.time_features)
        if self.video:
            self._check_plain(where)
            self._check_video(where)
        if self.variant:
            self._check_variant(where)

    def _check_plain(self, where: str) -> None:
        """What the networks of clips have no form of."""
        if self.position == "dit":
            fail(f"{where}position", "odd or narrow for clips", self.position)
        for name in OF_DIT:
            expected, got = getattr(NetworkConfig, name), getattr(self, name)
            if expected != got:
                fail(f"{where}{name}", f"{str(expected).lower()} for clips", str(got).lower())

    def _check_video(self, where: str) -> None:
        causal = self.temporal_mask == "block-causal"
        if self.dim < 8:
            fail(f"{where}dim", "at least 8 (the position code has three axes)", self.dim)
        if self.position == "narrow" and self.dim % 8 != 0:
            expected = "a multiple of 8 with the position code narrow (half of the channels are the time)"
            fail(f"{where}dim", expected, self.dim)
        if self.no_text == "mask" and self.attention:
            expected = "token with attention, which has no answer where nothing can be seen"
            fail(f"{where}no_text", expected, self.no_text)
        if self.window != 0 and not causal:
            fail(f"{where}window", "0 without a block-causal mask", self.window)
        if self.own_every == 1 or (self.own_every > 0 and not causal):
            expected = "0, or at least 2 with a block-causal mask (one layer has to see other blocks)"
            fail(f"{where}own_every", expected, self.own_every)

    def _check_variant(self, where: str) -> None:
        named = variant(self.variant, where)
        names = ["kind", "dim", "depth", "patch", "mixer"]
        names += ["patch_time"] * self.video + ["heads"] * self.attention
        for name in names:
            expected, got = getattr(named, name), getattr(self, name)
            if expected != got:
                raise Error(
                    f"{where}{name}: expected {expected}, as the variant {named.variant} has, got {got}; "
                    'leave "variant" out for a network of another size'
                )


# --- the variants ---

# Depth, width, ffw_expand of DiPoM, heads: the paper's sizes. The published DiPoM configurations narrow the
# feed-forward; DiT has 4 throughout.
_SIZES = {"S": (12, 384, 3, 6), "B": (12, 768, 3, 12), "L": (24, 1024, 2, 16), "XL": (28, 1152, 2, 16)}
_CLIP_SIZES = {"S": (12, 384, 4, 6), "B": (12, 768, 4, 12), "L": (16, 1024, 4, 16), "XL": (20, 1152, 4, 16)}


def _table() -> dict[str, NetworkConfig]:
    table = {}
    for mixer, family in (("pom", "DiPoM"), ("attention", "DiT")):
        for sizes, prefix, patches in ((_SIZES, "", (2, 4, 8)), (_CLIP_SIZES, "V-", (2,))):
            for size, (depth, dim, ffw, heads) in sizes.items():
                for patch in patches:
                    config = NetworkConfig(
                        variant=f"{prefix}{family}-{size}/{patch}",
                        dim=dim,
                        depth=depth,
                        patch=patch,
                        mixer=mixer,  # type: ignore[arg-type]
                        heads=heads,
                        ffw_expand=ffw if mixer == "pom" else 4,
                    )
                    if prefix:
                        config = replace(config, kind="vdipom", channels=16)
                    table[config.variant] = config
    return table


VARIANTS: Mapping[str, NetworkConfig] = MappingProxyType(_table())
"""The networks that have a name, "DiPoM-S/2" to "V-DiT-XL/2", for 1000 classes."""


def variant(name: str, where: str = "network: ") -> NetworkConfig:
    """By its name, in any letter case."""
    for own, config in VARIANTS.items():
        if own.lower() == name.lower():
            return config
    raise Error(f'{where}variant: unknown name "{name[:60]}"{suggestion(name, VARIANTS)}')


# --- the rest of config.json ---


@dataclass(frozen=True)
class DiffusionConfig:
    """What the network was trained to predict: of `path` "flow" ε - x0 where x_t = (1 - t) x0 + t ε, of
    "flow-x0" x0 of the same mixture, of "epsilon" ε where x_t = √(1 - v) x0 + √v ε and v(t) is the
    `variance`; "ddpm-linear" is that of DDPM's thousand steps, of which t = n / 1000 is number n - 1."""

    path: Literal["flow", "epsilon", "flow-x0"] = declared("flow")
    variance: Literal["linear", "sine", "cosine", "sigmoid", "ddpm-linear"] = declared("linear")


@dataclass(frozen=True)
class CodecConfig:
    """What turns images in [-1, 1] into latents: latent = (image - shift) * scale."""

    kind: Literal["pixels", "autoencoder-kl", "cogvideox"] = declared("pixels")
    scale: float = declared(1.0, least=1e-6, most=1e6)
    shift: float = declared(0.0, least=-1e6, most=1e6)


@dataclass(frozen=True)
class TextConfig:
    """The text encoder of a network for clips: `Words` has them all; a T5's files are in text_encoder/."""

    kind: Literal["words", "t5"] = declared("words")
    width: int = declared(128, least=1, most=65536)
    limit: int = declared(64, least=1, most=65536)
    layers: int = declared(2, least=0, most=64)
    mixers: int = declared(0, least=0, most=64)
    mask: bool = declared(True)

    def unsaved(self) -> tuple[str, ...]:
        if self.kind == "t5":
            return ("layers", "mixers")
        return ("mask",) if self.mixers else ("mask", "mixers")


@dataclass(frozen=True)
class SampleDefaults:
    """The settings a model likes best, which a request may change. `size` is width and height in pixels; 0
    frames and fps are those of a model for images."""

    size: tuple[int, int] = declared((256, 256), least=1, most=65536, element=int)
    omega_base: float = declared(0.0, least=0, most=65536)
    sampler: str = declared("heun")
    steps: int = declared(25, least=1, most=10000)
    shift: float = declared(1.0, least=0.001, most=1000)
    shift_base: float = declared(0.0, least=0, most=65536)
    cfg_scale: float = declared(1.0, least=0, most=1000)
    cfg_from: float = declared(0.0, least=0, most=1)
    cfg_to: float = declared(1.0, least=0, most=1)
    guidance_channels: int = declared(0, least=0, most=4096)
    clamp: float = declared(0.0, least=0, most=1000, formerly="clip")
    eta: float = declared(0.0, least=0, most=1)
    frames: int = declared(0, least=0, most=1e9)
    fps: float = declared(0.0, least=0, most=1000)

    def unsaved(self) -> tuple[str, ...]:
        zero_is_none = ("shift_base", "guidance_channels", "frames", "fps")
        return tuple(name for name in zero_is_none if getattr(self, name) == 0)


@dataclass(frozen=True)
class ModelConfig:
    """All of config.json. `name` is the model's, the folder's where it is empty; `classes` are names, one for
    each class, or none; `examples` are prompts to try it with."""

    format: int = declared(1, least=1, most=1)
    name: str = declared("")
    network: NetworkConfig = NetworkConfig()
    diffusion: DiffusionConfig = DiffusionConfig()
    codec: CodecConfig = CodecConfig()
    text: TextConfig = TextConfig()
    sample: SampleDefaults = SampleDefaults()
    classes: tuple[str, ...] = declared((), element=str)
    examples: tuple[str, ...] = declared((), element=str)

    def unsaved(self) -> tuple[str, ...]:
        empty = () if self.examples else ("examples",)
        return empty if self.network.video else ("text", *empty)

    def check(self, where: str) -> None:
        """Raises libpom.Error, which begins with `where`, for what the library would refuse to open."""
        check_values(self, where)
        self.network.check(f"{where}network.")
        self._check_names(where)
        size, patch = self.sample.size, self.network.patch
        if len(size) != 2 or any(side % patch != 0 for side in size):
            expected = f"width and height that the patch ({patch}) divides"
            fail(f"{where}sample.size", expected, list(size))
        if self.sample.cfg_from > self.sample.cfg_to:
            fail(f"{where}sample.cfg_from", f"at most cfg_to, {self.sample.cfg_to}", self.sample.cfg_from)

    def _check_names(self, where: str) -> None:
        if _has_control_character(self.name):
            fail(f"{where}name", "a name without control characters", repr(self.name))
        if self.classes and len(self.classes) != self.network.classes:
            expected = f"{self.network.classes} names, as many as network.classes"
            fail(f"{where}classes", expected, len(self.classes))
        for i, name in enumerate(self.classes):
            if not name or name != name.strip() or _has_control_character(name):
                expected = "a name without control characters or spaces at its ends"
                fail(f"{where}classes[{i}]", expected, repr(name))
            if name.isascii() and name.isdigit() and name != str(i):
                fail(f"{where}classes[{i}]", "a name, or its own index", f"the number {name}")


def _has_control_character(text: str) -> bool:
    return any(ord(c) < 0x20 or ord(c) == 0x7F for c in text)
