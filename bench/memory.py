"""Peak memory of an inference call beyond its inputs, weights and output, for every mask and dtype.

Each figure is the resident memory of a process of its own: the high-water mark that the system kept during
the call, less what was resident before and less the output. A tiny call goes first, so that libraries are
loaded.
n context tokens, m queries, d width, k = e = 2, batch 1.
"""

import argparse
import contextlib
import ctypes
import math
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from baselines import listing, weights
from timing import DTYPES, Report, add_report_option, machine
from torch import Tensor

import libpom

GOAL = 48  # MB
MB = 1e6
Builder = Callable[..., Callable[[], Tensor]]  # (tokens, width, ...) -> the call to measure, its inputs made


def _status(key: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def _child(pipe: Connection, build: Builder, n: int, d: int, rest: tuple) -> None:
    with torch.no_grad():
        build(16, 48, *rest)()
        call = build(n, d, *rest)
        ctypes.CDLL(None).malloc_trim(0)  # nothing freed but still resident is there for the call to use
        with contextlib.suppress(OSError):  # without it a peak before the call counts too, never less
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
        before = _status("VmRSS")
        output = call()
        pipe.send(_status("VmHWM") - before - output.nbytes)


def peak(build: Builder, n: int, d: int, *rest: object) -> float:
    """Bytes that the call build(n, d, *rest) needs for itself; not a number where it did not survive."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "libpom"])
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(its, build, n, d, rest))
    process.start()
    its.close()
    try:
        return mine.recv()
    except EOFError:
        return math.nan
    finally:
        process.join()


def packing(n: int) -> Tensor:
    """Cumulative lengths of sequences of 65 tokens, the last one shorter."""
    return torch.tensor([*range(0, n, 65), n], dtype=torch.int32)


MASKS = {  # n -> mask
    "none": lambda n: None,
    "keys": lambda n: torch.rand(1, n) < 0.5,
    "causal": lambda n: libpom.causal,
    "causal, window 512": lambda n: libpom.block_causal(1, window=512),
    "blocks of 16": lambda n: libpom.block_causal(16),
    "blocks of 64": lambda n: libpom.block_causal(64),
    "blocks of 256": lambda n: libpom.block_causal(256),
    "blocks of 16, window 8": lambda n: libpom.block_causal(16, window=8),
    "blocks of 360, window 4": lambda n: libpom.block_causal(360, window=4),
    "full, 64 queries": lambda n: torch.rand(1, 64, n) < 0.5,
    "full, 1024 queries": lambda n: torch.rand(1, 1024, n) < 0.5,
    "packed, 65 each": None,
}


def layer(n: int, d: int, dtype: str, mask: str) -> Callable[[], Tensor]:
    w, x = weights(d, DTYPES[dtype]), torch.randn(1, n, d, dtype=DTYPES[dtype])
    if mask.startswith("packed"):
        cu = packing(n)
        return lambda: libpom.mixer_layer(x[0], x[0], *w, 2, None, cu)
    given = MASKS[mask](n)
    q = x
    if isinstance(given, Tensor) and given.dim() == 3:
        q = torch.randn(1, given.shape[1], d, dtype=x.dtype)
    return lambda: libpom.mixer_layer(q, x, *w, 2, given)


def paper(n: int, d: int, dtype: str) -> Callable[[], Tensor]:
    w, x = weights(d, DTYPES[dtype]), torch.randn(1, n, d, dtype=DTYPES[dtype])
    return lambda: listing(x, *w, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--dtype", default="f32,bf16,f16,f64")
    parser.add_argument("--quick", action="store_true", help="f32, four masks")
    add_report_option(parser, "memory")
    args = parser.parse_args()
    dtypes = ["f32"] if args.quick else args.dtype.split(",")
    masks = ["none", "keys", "causal", "blocks of 360, window 4"] if args.quick else MASKS
    for name in set(dtypes) - set(DTYPES):
        parser.error(f"--dtype: expected {', '.join(DTYPES)}, got {name}")

    report = Report("The layer's memory")
    print(machine())
    report.say(
        f"Peak memory in MB of one inference call at n = {args.tokens}, d = {args.dim}, beyond inputs,\n"
        f"weights and output. Goal: under {GOAL} MB."
    )
    table = report.table(f"{'mask':>23}", *(f"{name:>8}" for name in dtypes))
    for mask in masks:
        found = [peak(layer, args.tokens, args.dim, dtype, mask) / MB for dtype in dtypes]
        table.row(mask, *(report.judge(size, at_most=GOAL, digits=1) for size in found))
    found = [peak(paper, args.tokens, args.dim, dtype) / MB for dtype in dtypes]
    table.row("none, paper's listing", *(f"{size:.1f}  " for size in found))
    report.close(args.report)


if __name__ == "__main__":
    main()
