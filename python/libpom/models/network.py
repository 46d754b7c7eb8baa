"""What the networks for images and for clips share: how they are made, their first and last layers, and the
checks of what they are given.

B batch, d width.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import fail
from .blocks import Block, PatchEmbedding, modulated_norm
from .config import OF_CLIPS, OF_DIT, Kind, ModelConfig, NetworkConfig
from .positions import time_features


def time_mlp(config: NetworkConfig) -> nn.Sequential:
    dim, features = config.dim, config.time_features
    hidden = dim if features else 4 * dim
    return nn.Sequential(nn.Linear(features or dim, hidden), nn.SiLU(), nn.Linear(hidden, dim))


Made = TypeVar("Made", bound="Network")


class Network(nn.Module):
    """The base of DiPoM and VDiPoM.

    Attributes:
        config: what the network is.
        model_config: all of config.json, as `load` found it and `save` writes it.
        checkpointing: whether a block keeps only what goes into it, and is computed again in the backward
            pass: the same gradients in less memory.
    """

    kind: Kind
    time_emb: nn.Sequential
    in_conv: PatchEmbedding
    layers: nn.ModuleList
    out_mod: nn.Sequential
    out_proj: nn.Linear

    def __init__(
        self,
        config: NetworkConfig,
        checkpointing: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        config.check(f"{self._name}: ")
        self.model_config = ModelConfig(network=config)
        self.checkpointing = checkpointing
        device = torch.empty(0).device if device is None else torch.device(device)
        with torch.device("meta"):  # so that values are drawn once, where they belong
            self._make(config)
        self.to(dtype).to_empty(device=device)
        self.reset_parameters()

    def _make(self, config: NetworkConfig) -> None:
        """Makes the modules, without values."""
        raise NotImplementedError

    @classmethod
    def from_config(
        cls: type[Made],
        config: NetworkConfig,
        *,
        checkpointing: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Made:
        """The network that a config of this kind says."""
        if config.kind != cls.kind:
            other = "VDiPoM, of clips" if config.video else "DiPoM, of images"
            fail(f"{cls.__name__}: kind", cls.kind, f"{config.kind} (which is {other})")
        config.check(f"{cls.__name__}: ")
        no_argument = {"kind", "variant", *(("classes", *OF_DIT) if config.video else OF_CLIPS)}
        names = [field.name for field in fields(config) if field.name not in no_argument]
        arguments = {name: getattr(config, name) for name in names}
        network = cls(**arguments, checkpointing=checkpointing, device=device, dtype=dtype)  # type: ignore[call-arg]
        network.model_config = ModelConfig(network=config)
        return network

    @property
    def config(self) -> NetworkConfig:
        return self.model_config.network

    def extra_repr(self) -> str:
        return self.config.variant

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The values before training."""
        self.in_conv.reset_parameters()
        for layer in cast(Iterable[Block], self.layers):
            layer.reset_parameters()
        # Times and classes start near each other, so that the network first learns what they have in common.
        for linear in (cast(nn.Linear, self.time_emb[0]), cast(nn.Linear, self.time_emb[2])):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        # The first prediction is zero, whatever the input: the loss starts at the target's own variance.
        for linear in (cast(nn.Linear, self.out_mod[1]), self.out_proj):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    # --- forward ---

    def _run(self, layer: nn.Module, *inputs: object) -> Tensor:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def _time(self, t: Tensor) -> Tensor:  # (B) -> (B, d)
        c = self.config
        count, period = (c.time_features, 10000.0) if c.time_features else (c.dim, 1000.0)
        return self.time_emb(time_features(t, count, period, c.time_input).to(self._dtype))

    def _out(self, x: Tensor, c: Tensor) -> Tensor:  # (B, N, d), (B, d) -> (B, N, values of a patch)
        scale, shift = self.out_mod(c).unsqueeze(1).chunk(2, -1)
        return self.out_proj(modulated_norm(x, scale, shift))

    @property
    def _dtype(self) -> torch.dtype:
        """That of the weights, in which the stream stays where autocast computes products in another."""
        return self.out_proj.weight.dtype

    # --- checks ---

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _check_like_weights(self, name: str, tensor: Tensor) -> None:
        weight = self.out_proj.weight
        if tensor.device != weight.device:
            fail(f"{self._name}: {name}", f"device {weight.device} as the weights", tensor.device)
        if tensor.dtype != weight.dtype and not torch.is_autocast_enabled(tensor.device.type):
            fail(f"{self._name}: {name}", f"{weight.dtype} as the weights", tensor.dtype)

    def _check_sides(self, height: int, width: int) -> None:
        patch = self.config.patch
        if height < patch or width < patch or height % patch != 0 or width % patch != 0:
            expected = f"sides that the patch ({patch}) divides"
            fail(f"{self._name}: x", expected, f"{height} x {width}")

    def _times(self, t: Tensor | float, x: Tensor) -> Tensor:
        """Times in [0, 1], one for all or one for each of the batch -> (B)."""
        where, batch = f"{self._name}: t", x.shape[0]
        if not isinstance(t, Tensor):
            if isinstance(t, bool) or not isinstance(t, (int, float)) or not 0 <= t <= 1:
                fail(where, "a time in [0, 1], or a tensor of them", repr(t))
            return torch.full((batch,), t, dtype=torch.float64, device=x.device)
        if tuple(t.shape) not in ((), (batch,)) or not t.dtype.is_floating_point:
            expected = f"floating-point times in [0, 1] of shape () or ({batch})"
            fail(where, expected, f"{t.dtype} of shape {tuple(t.shape)}")
        check_range(where, t, 0, 1)
        return t.to(x.device).expand(batch)


def check_range(where: str, values: Tensor, least: int, most: int) -> None:
    """Of values on the host only: others would have to be waited for."""
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return
    try:
        inside = bool(((values >= least) & (values <= most)).all())
    except RuntimeError:  # no values here: fake tensors, tracing, transforms
        return
    if not inside:
        fail(where, f"values from {least} to {most}", values.tolist())
