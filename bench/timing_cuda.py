"""Timing on a GPU for bench/paper_cuda.py: calls as CUDA graphs, rounds long enough to hide their launches,
memory at the peak, the fastest of torch's kernels for attention. On a processor the same without graphs."""

import argparse
import gc
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from timing import DTYPES, Sample, interleave
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = ["FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"]
ROUND = 0.02  # seconds that a round of a variant lasts at least, on a GPU: calls queue up as in a network
Call = Callable[[], object]


def wait(args: argparse.Namespace) -> None:
    if args.device == "cuda":
        torch.cuda.synchronize()


def graphed(call: Call) -> Call:
    """The call as one CUDA graph. Warmed up on a stream of its own, as torch asks."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Tensor:
        graph.replay()
        return result

    replay.of = call  # whose tensors the graph reads: they must stay
    return replay


def race(variants: dict[str, Call], args: argparse.Namespace) -> dict[str, Sample]:
    """Seconds of a call. On a GPU a round is as many calls as last ROUND, and a wait."""
    counts, rounds = {}, {}
    for name, call in variants.items():
        call()
        wait(args)
        once = interleave({name: lambda call=call: (call(), wait(args))}, 0, least=1, warm=0)[name].median
        counts[name] = max(1, math.ceil(ROUND / once)) if args.device == "cuda" else 1

        def several(call: Call = call, count: int = counts[name]) -> None:
            for _ in range(count):
                call()
            wait(args)

        rounds[name] = several
    got = interleave(rounds, args.seconds, least=3, warm=1)
    return {name: Sample([t / counts[name] for t in sample.times]) for name, sample in got.items()}


def fastest_attention(head: int, tokens: int, batch: int, args: argparse.Namespace, backward: bool) -> str:
    """The name of torch's fastest kernel for attention at this size, measured. Empty on a processor."""
    if args.device != "cuda":
        return ""
    shape = (batch, tokens, 3, args.heads, head)
    qkv = torch.randn(shape, device="cuda").to(DTYPES[args.dtype]).requires_grad_(backward)

    def attend() -> None:
        out = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        if backward:
            torch.autograd.grad(out, qkv, out.detach())

    times = {}
    for name in BACKENDS:
        try:
            with torch.set_grad_enabled(backward), warnings.catch_warnings(), only(name):
                warnings.simplefilter("ignore")  # torch says at length why it has no such kernel
                attend()
                wait(args)
                times[name] = interleave({name: lambda: (attend(), wait(args))}, 0, least=3)[name].median
        except RuntimeError:
            continue
    return min(times, key=times.get, default="")


def only(backend: str) -> AbstractContextManager[None]:
    """What is compiled or captured within uses this kernel for attention."""
    return sdpa_kernel(getattr(SDPBackend, backend)) if backend else nullcontext()


def kib_per_token(call: Call, weights: list[tuple[Tensor, ...]], rows: int) -> float:
    """What a pass takes at its peak, beside the gradients that it leaves."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    gradients = sum(part.numel() * part.element_size() for w in weights for part in w)
    return (torch.cuda.max_memory_allocated() - before - gradients) / rows / 1024
