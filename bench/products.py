"""What the products of a network alone would take: each convolution and linear layer that a call goes
through, run alone with random inputs of the same shapes, in the faster of two memory layouts, summed.

Counted as the network computes them, upsampled maps too. CogVideoX's conv_y and conv_b are left out: they are
1x1 and give the same at latent size, where they cost nothing.
"""

import time
from collections import Counter
from dataclasses import dataclass

import torch
from torch.nn import functional

LAYERS = (torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.Linear)
LEFT_OUT = ("conv_y", "conv_b")


@dataclass(frozen=True)
class Product:
    """One layer at one size; stride and padding are empty for a linear layer."""

    weight: tuple[int, ...]
    x: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    outputs: int

    @property
    def flops(self) -> int:
        columns = 1
        for side in self.weight[1:]:
            columns *= side
        return 2 * self.outputs * columns


@dataclass(frozen=True)
class Sum:
    seconds: float
    flops: int


def recorded(network, run, x) -> Counter:
    """How often each product occurs in run(x)."""
    found: Counter = Counter()

    def note(layer, inputs, output):
        convolution = not isinstance(layer, torch.nn.Linear)
        stride = tuple(layer.stride) if convolution else ()
        padding = tuple(layer.padding) if convolution else ()
        shape = tuple(inputs[0].shape)
        found[Product(tuple(layer.weight.shape), shape, stride, padding, output.numel())] += 1

    hooks = [
        layer.register_forward_hook(note)
        for name, layer in network.named_modules()
        if isinstance(layer, LAYERS) and not any(part in LEFT_OUT for part in name.split("."))
    ]
    try:
        run(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _layouts(product):
    if len(product.x) < 4 or not product.stride:
        return [torch.contiguous_format]
    last = torch.channels_last if len(product.x) == 4 else torch.channels_last_3d
    return [torch.contiguous_format, last]


def _seconds(call, device, rounds):
    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    call()  # the library chooses its algorithm
    call()
    wait()
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    wait()
    return (time.perf_counter() - start) / rounds


def measured(product, device, dtype, rounds) -> float:
    """Seconds of one product."""
    times = []
    for layout in _layouts(product):
        x = torch.randn(product.x, device=device).to(dtype)
        weight = torch.randn(product.weight, device=device).to(dtype)
        if not product.stride:
            times.append(_seconds(lambda x=x, w=weight: functional.linear(x, w), device, rounds))
            continue
        x, weight = x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
        convolve = functional.conv2d if len(product.weight) == 4 else functional.conv3d

        def call(x=x, w=weight, convolve=convolve):
            return convolve(x, w, stride=product.stride, padding=product.padding)

        times.append(_seconds(call, device, rounds))
    return min(times)


@torch.no_grad()
def summed(network, run, x, rounds=10) -> Sum:
    """All products of run(x), a call of `network`."""
    found = recorded(network, run, x)
    device = x.device.type
    dtype = next(network.parameters()).dtype
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        seconds = sum(count * measured(p, device, dtype, rounds) for p, count in found.items())
    finally:
        torch.backends.cudnn.benchmark = before
    return Sum(seconds, sum(count * p.flops for p, count in found.items()))
