"""The class-conditional network: DiPoM, or its attention baseline DiT.

B images, C channels, h = H / patch rows and w = W / patch columns of tokens, N = h w, d width.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..errors import fail
from .blocks import ModulatedBlock, PatchEmbedding, silu_linear, unpatchify
from .config import Gelu, Mixer, NetworkConfig, Position, TimeInput, variant
from .network import Network, check_range, time_mlp
from .positions import position_code


class DiPoM(Network):
    """Predicts, for noisy latents x at times t of classes y, what the path of the diffusion says (ε, or the
    velocity ε - x0).

        net = libpom.models.DiPoM(dim=192, depth=8, patch=4, channels=3, classes=10)
        velocity = net(x, t, y)

    The arguments are the fields of `NetworkConfig`, with its defaults: those of DiPoM-S/2.

    Args:
        dim: width d of a token, a multiple of 4.
        depth: blocks.
        patch: side of the square of latent pixels that is a token.
        channels: C of the latent.
        classes: without "no class", which is the number `classes`.
        mixer: "pom" for DiPoM, "attention" for DiT.
        order, order_expand: of the Polynomial Mixer.
        heads: of attention, a divisor of dim.
        ffw_expand: the feed-forward has ffw_expand * dim hidden features.
        position: code of a token's place, "odd", "narrow" or "dit".
        time_features: of a time, before an MLP of width dim; 0: dim of them, 4 dim wide.
        time_input: what they are features of: "1000t", "1000t-1" or "1-t".
        gelu: of the feed-forward: "erf", or its approximation by "tanh".
        learned_variance: as many outputs again, which are not part of the prediction.
        checkpointing: computes blocks again in the backward pass instead of keeping their activations.
        device, dtype: of the weights.
    """

    kind = "dipom"
    classes_emb: nn.Embedding

    def __init__(
        self,
        *,
        dim: int = 384,
        depth: int = 12,
        patch: int = 2,
        channels: int = 4,
        classes: int = 1000,
        mixer: Mixer = "pom",
        order: int = 2,
        order_expand: int = 2,
        heads: int = 6,
        ffw_expand: int = 3,
        position: Position = "odd",
        time_features: int = 0,
        time_input: TimeInput = "1000t",
        gelu: Gelu = "erf",
        learned_variance: bool = False,
        checkpointing: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        config = NetworkConfig(
            dim=dim, depth=depth, patch=patch, channels=channels, classes=classes, mixer=mixer, order=order,
            order_expand=order_expand, heads=heads, ffw_expand=ffw_expand, position=position,
            time_features=time_features, time_input=time_input, gelu=gelu, learned_variance=learned_variance,
        )  # fmt: skip
        super().__init__(config, checkpointing, device, dtype)

    @classmethod
    def variant(
        cls,
        name: str,
        *,
        channels: int = 4,
        classes: int = 1000,
        position: Position = "odd",
        checkpointing: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> "DiPoM":
        """A network of the table: "DiPoM-S/2" … "DiPoM-XL/8", "DiT-S/2" … "DiT-XL/8", in any letter case."""
        config = replace(
            variant(name, f"{cls.__name__}: "), channels=channels, classes=classes, position=position
        )
        return cls.from_config(config, checkpointing=checkpointing, device=device, dtype=dtype)

    def _make(self, config: NetworkConfig) -> None:
        c = config
        self.classes_emb = nn.Embedding(c.classes + 1, c.dim)
        self.time_emb = time_mlp(c)
        self.in_conv = PatchEmbedding(c.channels, c.dim, (c.patch, c.patch))
        self.layers = nn.ModuleList(
            ModulatedBlock(
                c.dim, mixer=c.mixer, order=c.order, order_expand=c.order_expand, heads=c.heads,
                ffw_expand=c.ffw_expand, gelu=c.gelu,
            )
            for _ in range(c.depth)
        )  # fmt: skip
        self.out_mod = silu_linear(c.dim, 2 * c.dim)
        self.out_proj = nn.Linear(c.dim, c.patch * c.patch * c.channels * (2 if c.learned_variance else 1))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The values before training."""
        super().reset_parameters()
        nn.init.normal_(self.classes_emb.weight, std=0.02)

    def forward(self, x: Tensor, t: Tensor | float, y: Tensor | int | None = None) -> Tensor:
        """The prediction, like x.

        Args:
            x: latents (B, C, H, W) with sides that the patch divides, any that do.
            t: times in [0, 1], 0 clean and 1 noise: (B), or one for all. Under torch.compile a tensor: each
                new number would be a new graph.
            y: classes (B) int64, or one for all; `config.classes`, or None for all, is "no class".
        """
        self._check_latents(x)
        classes = self._classes(y, x)
        c = self.classes_emb(classes) + self._time(self._times(t, x))  # (B, d)
        patch = self.config.patch
        place = position_code(
            x.shape[2] // patch, x.shape[3] // patch, self.config.dim, x.device, self.config.position
        )
        tokens = self.in_conv(x) + place.to(self._dtype)  # (B, N, d)
        for layer in self.layers:
            tokens = self._run(layer, tokens, c)
        out = self._out(tokens, c)
        if self.config.learned_variance:  # whose channels come last of each pixel
            out = out.unflatten(-1, (-1, 2 * x.shape[1]))[..., : x.shape[1]].flatten(-2)
        return unpatchify(out, x.shape, self.in_conv.patch)

    def _check_latents(self, x: Tensor) -> None:
        if x.dim() != 4 or x.shape[1] != self.config.channels:
            fail(f"{self._name}: x", f"shape (B, {self.config.channels}, H, W)", tuple(x.shape))
        self._check_sides(x.shape[2], x.shape[3])
        self._check_like_weights("x", x)

    def _classes(self, y: Tensor | int | None, x: Tensor) -> Tensor:
        where, none, batch = f"{self._name}: y", self.config.classes, x.shape[0]
        if not isinstance(y, Tensor):
            y = none if y is None else y
            if isinstance(y, bool) or not isinstance(y, int) or not 0 <= y <= none:
                fail(where, f'a class from 0 to {none - 1}, or {none} for "no class"', repr(y))
            return torch.full((batch,), y, dtype=torch.int64, device=x.device)
        if tuple(y.shape) not in ((), (batch,)) or y.dtype != torch.int64:
            fail(where, f"int64 of shape () or ({batch})", f"{y.dtype} of shape {tuple(y.shape)}")
        check_range(where, y, 0, none)
        return y.to(x.device).expand(batch)
