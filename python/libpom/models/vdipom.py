"""The network that makes clips from text: V-DiPoM, or its attention baseline V-DiT.

B clips of T latent frames, C channels, blocks = T / patch_time, h x w tokens of a block, N = blocks h w,
L tokens of text, d width.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from .. import masks
from ..errors import fail
from .blocks import PatchEmbedding, VideoBlock, reset_linears, silu_linear, unpatchify
from .config import Mixer, NetworkConfig, NoText, Position, TemporalMask, TimeCode, variant
from .network import Network, check_range, time_mlp
from .positions import clip_place_code, clip_time_code


class VDiPoM(Network):
    """Predicts, for noisy clips x at times t told by text, what the path of the diffusion says (ε, or the
    velocity ε - x0).

        net = libpom.models.VDiPoM(dim=160, depth=6, patch=4, channels=3, text_width=128, window=6)
        velocity = net(x, t, text, mask)

    A block is `patch_time` latent frames at all places; the temporal mask says which blocks a block sees. The
    arguments are the fields of `NetworkConfig`, with its defaults.

    Args:
        dim: width d of a token, a multiple of 4.
        depth: blocks of the network.
        patch: side of the square of latent pixels that is a token.
        channels: C of the latent.
        mixer: "pom" for V-DiPoM, "attention" for V-DiT.
        order, order_expand: of the Polynomial Mixer.
        heads: of attention, a divisor of dim.
        ffw_expand: the feed-forward has ffw_expand * dim hidden features.
        position: code of a token's place, "odd" or "narrow".
        patch_time: latent frames of a token, and so of a block.
        text_width: width of a token of text.
        temporal_mask: "block-causal", in which a block sees itself and those before it, or "none".
        window: how many blocks one sees, the own one included; 0: all.
        own_every: every so many layers one sees its own block alone; 0: none.
        time_code: how a block's number becomes a code: "periodic", "geometric", "relative" (to the
            clip: the network knows the lengths it has learned) or "none".
        time_period: of that code, in blocks.
        no_text: what stands for no text: "token", a learned one, or "mask", where no token counts.
        checkpointing: computes blocks again in the backward pass instead of keeping their activations.
        device, dtype: of the weights.
    """

    kind = "vdipom"
    text_proj: nn.Linear
    no_text: nn.Parameter | None

    def __init__(
        self,
        *,
        dim: int = 384,
        depth: int = 12,
        patch: int = 2,
        channels: int = 4,
        mixer: Mixer = "pom",
        order: int = 2,
        order_expand: int = 2,
        heads: int = 6,
        ffw_expand: int = 3,
        position: Position = "odd",
        patch_time: int = 2,
        text_width: int = 4096,
        temporal_mask: TemporalMask = "block-causal",
        window: int = 0,
        own_every: int = 0,
        time_code: TimeCode = "periodic",
        time_period: int = 32,
        no_text: NoText = "token",
        checkpointing: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        config = NetworkConfig(
            kind="vdipom", dim=dim, depth=depth, patch=patch, channels=channels, mixer=mixer, order=order,
            order_expand=order_expand, heads=heads, ffw_expand=ffw_expand, position=position,
            patch_time=patch_time, text_width=text_width, temporal_mask=temporal_mask, window=window,
            own_every=own_every, time_code=time_code, time_period=time_period, no_text=no_text,
        )  # fmt: skip
        super().__init__(config, checkpointing, device, dtype)

    @classmethod
    def variant(
        cls,
        name: str,
        *,
        channels: int = 16,
        position: Position = "odd",
        text_width: int = 4096,
        temporal_mask: TemporalMask = "block-causal",
        window: int = 0,
        own_every: int = 0,
        time_code: TimeCode = "periodic",
        time_period: int = 32,
        no_text: NoText = "token",
        checkpointing: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> "VDiPoM":
        """A network of the table: "V-DiPoM-S/2" … "V-DiPoM-XL/2", "V-DiT-S/2" … "V-DiT-XL/2", in any letter
        case."""
        config = replace(
            variant(name, f"{cls.__name__}: "), channels=channels, position=position,
            text_width=text_width, temporal_mask=temporal_mask, window=window, own_every=own_every,
            time_code=time_code, time_period=time_period, no_text=no_text,
        )  # fmt: skip
        return cls.from_config(config, checkpointing=checkpointing, device=device, dtype=dtype)

    def _make(self, config: NetworkConfig) -> None:
        c = config
        patch = (c.patch_time, c.patch, c.patch)
        self.text_proj = nn.Linear(c.text_width, c.dim)
        self.no_text = nn.Parameter(torch.empty(c.dim)) if c.no_text == "token" else None
        self.time_emb = time_mlp(c)
        self.in_conv = PatchEmbedding(c.channels, c.dim, patch)
        self.layers = nn.ModuleList(
            VideoBlock(
                c.dim, mixer=c.mixer, order=c.order, order_expand=c.order_expand, heads=c.heads,
                ffw_expand=c.ffw_expand,
            )
            for _ in range(c.depth)
        )  # fmt: skip
        self.out_mod = silu_linear(c.dim, 2 * c.dim)
        self.out_proj = nn.Linear(c.dim, c.patch_time * c.patch * c.patch * c.channels)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The values before training."""
        super().reset_parameters()
        reset_linears(self.text_proj)
        if self.no_text is not None:
            nn.init.normal_(self.no_text, std=0.02)

    def forward(
        self,
        x: Tensor,
        t: Tensor | float,
        text: Tensor | None = None,
        mask: Tensor | None = None,
        first_block: Tensor | int = 0,
    ) -> Tensor:
        """The prediction, like x.

        Args:
            x: latents (B, C, T, H, W) of whole blocks, with sides that the patch divides, any that do.
            t: times in [0, 1], 0 clean and 1 noise: (B), or one for all. Under torch.compile a tensor: each
                new number would be a new graph.
            text: (B, L, text_width), or one text for each of P equal parts of whole blocks, (B, P, L,
                text_width); None is no text.
            mask: bool, (B, L) or (B, P, L), true where a token of text counts; all of them without it. A text
                of which nothing counts is no text.
            first_block: the number of each clip's first block in its sequence, (B) int64 or one for all. A
                relative time code is that of a whole clip, whatever it says.
        """
        self._check_clips(x)
        told, keys = self._read(x, text, mask)  # (R, L, d), (R, L)
        time = self._time(self._times(t, x))  # (B, d)
        tokens = self.in_conv(x) + self._position(x, first_block)  # (B, N, d)
        seen = self._temporal_mask(x, self.config.window)
        own = self._temporal_mask(x, 1) if self.config.own_every > 0 else seen
        for i, layer in enumerate(self.layers):
            tokens = self._run(layer, tokens, time, told, keys, own if self.config.own_alone(i) else seen)
        return unpatchify(self._out(tokens, time), x.shape, self.in_conv.patch)

    def _position(self, x: Tensor, first_block: Tensor | int) -> Tensor:
        """(B, N, d), or (1, N, d) where all clips begin at one block; of the weights' dtype."""
        c, blocks = self.config, x.shape[2] // self.config.patch_time
        first = self._first_block(first_block, x)
        if c.time_code == "relative":
            first = torch.zeros_like(first)
        numbers = first.unsqueeze(1) + torch.arange(blocks, device=x.device)
        time = clip_time_code(numbers, c.dim, c.time_code, c.time_period, blocks, c.position)
        place = clip_place_code(x.shape[3] // c.patch, x.shape[4] // c.patch, c.dim, x.device, c.position)
        return (time.unsqueeze(2) + place).to(self._dtype).flatten(1, 2)

    def _temporal_mask(self, x: Tensor, window: int) -> masks.Mask:
        c = self.config
        if c.temporal_mask == "none":
            return None
        block = (x.shape[3] // c.patch) * (x.shape[4] // c.patch)
        mask = masks.CausalMask(block, window or None)
        # Attention needs it written out: once, not in every layer.
        return mask.dense(x.shape[2] // c.patch_time * block, x.device) if c.attention else mask

    def _read(self, x: Tensor, text: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Text behind its linear map, where a text of which nothing counts becomes one token `no_text` if
        there is one; and which tokens count."""
        self._check_text(x, text, mask)
        if text is None:
            return self._nothing_told(x)
        tokens = self.text_proj(text.flatten(0, -3))
        if mask is None:
            return tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=x.device)
        keys = mask.flatten(0, -2)
        if self.no_text is None:
            return tokens, keys
        silent = ~keys.any(1, keepdim=True)  # (R, 1)
        first = torch.where(silent.unsqueeze(2), self.no_text.to(tokens.dtype), tokens[:, :1])
        return torch.cat([first, tokens[:, 1:]], 1), torch.cat([keys[:, :1] | silent, keys[:, 1:]], 1)

    def _nothing_told(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """No text: the learned token, or one that does not count."""
        shape = (x.shape[0], 1)
        if self.no_text is None:
            told = torch.zeros(*shape, self.config.dim, dtype=self._dtype, device=x.device)
            return told, torch.zeros(shape, dtype=torch.bool, device=x.device)
        return self.no_text.expand(*shape, -1), torch.ones(shape, dtype=torch.bool, device=x.device)

    # --- checks ---

    def _check_clips(self, x: Tensor) -> None:
        c = self.config
        if x.dim() != 5 or x.shape[1] != c.channels:
            fail(f"{self._name}: x", f"shape (B, {c.channels}, T, H, W)", tuple(x.shape))
        if x.shape[2] < 1 or x.shape[2] % c.patch_time != 0:
            fail(f"{self._name}: x", f"whole blocks of {c.patch_time} frames", f"{x.shape[2]} frames")
        self._check_sides(x.shape[3], x.shape[4])
        self._check_like_weights("x", x)

    def _check_text(self, x: Tensor, text: Tensor | None, mask: Tensor | None) -> None:
        batch, blocks, width = x.shape[0], x.shape[2] // self.config.patch_time, self.config.text_width
        if text is None:
            if mask is not None:
                fail(f"{self._name}: mask", "none without a text", tuple(mask.shape))
            return
        one, each = text.dim() == 3, text.dim() == 4 and text.shape[1] >= 1 and blocks % text.shape[1] == 0
        if not (one or each) or text.shape[0] != batch or text.shape[-2] < 1 or text.shape[-1] != width:
            parts = f"({batch}, P, L, {width}) with P parts of whole blocks, of which there are {blocks}"
            expected = f"shape ({batch}, L, {width}) or {parts}"
            fail(f"{self._name}: text", expected, tuple(text.shape))
        self._check_like_weights("text", text)
        if mask is not None and (mask.dtype != torch.bool or mask.shape != text.shape[:-1]):
            expected = f"bool of shape {tuple(text.shape[:-1])} like text"
            fail(f"{self._name}: mask", expected, f"{mask.dtype} of shape {tuple(mask.shape)}")
        if mask is not None and mask.device != x.device:
            fail(f"{self._name}: mask", f"device {x.device} as x", mask.device)

    def _first_block(self, first: Tensor | int, x: Tensor) -> Tensor:
        where, batch = f"{self._name}: first_block", x.shape[0]
        if not isinstance(first, Tensor):
            if isinstance(first, bool) or not isinstance(first, int) or first < 0:
                fail(where, "a number of at least 0, or a tensor of them", repr(first))
            return torch.full((1,), first, dtype=torch.int64, device=x.device)
        if tuple(first.shape) not in ((), (batch,)) or first.dtype != torch.int64:
            fail(where, f"int64 of shape () or ({batch})", f"{first.dtype} of shape {tuple(first.shape)}")
        check_range(where, first, 0, 2**62)
        return first.to(x.device).reshape(-1)
