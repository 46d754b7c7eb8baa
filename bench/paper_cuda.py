"""The blocks of DiPoM-XL/2 on a GPU: the paper's listing eager, compiled and in a CUDA graph, attention
compiled and in a CUDA graph, the products alone, and libpom.

    LIBPOM_LIBRARY=build/cuda/libpom.so PYTHONPATH=python python bench/paper_cuda.py --report

Everything of a row but the program is called in turn in this process; `pom bench figure1` (the whole network
as sampling and training do it) runs before each row, with the GPU to itself. B pictures, n tokens, d width, f
hidden features of the feed-forward in widths; k = e = 2. Times are ms per image.
"""

import argparse
import gc
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from blocks import EXPAND, K, compiled, networks, paper_block, stack
from timing import DTYPES, Report, Sample, add_report_option, machine
from timing_cuda import Call, fastest_attention, graphed, kib_per_token, only, race
from torch import Tensor

import libpom

# The goals: libpom over the products, forward and (from 4096 tokens on) with the backward pass; the compiled
# listing over libpom with the backward pass.
FORWARD, BOTH_PASSES, COMPILED = 1.10, 1.25, 1.10
NAMES = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}  # of the program
Measured = tuple[dict[str, Sample], dict[str, float], dict[str, str]]  # times, memory, kernels of attention
Weights = list[tuple[Tensor, ...]]  # of each block


# --- a row ---


def products(weights: Weights, tokens: int, batch: int, args: argparse.Namespace, backward: bool) -> Call:
    """The matrix products over tokens alone; with `backward` also the gradients of rows and weights."""
    rows: dict[int, Tensor] = {}

    def of(width: int) -> Tensor:
        if width not in rows:
            shape = (batch * tokens, width)
            rows[width] = torch.randn(shape, device=args.device).to(DTYPES[args.dtype])
        return rows[width]

    matrices = [pair for w in weights for pair in zip(w[4::2], w[5::2], strict=True)]
    for matrix, _ in matrices:
        of(matrix.shape[0]), of(matrix.shape[1])

    @torch.no_grad()
    def run() -> None:
        for matrix, bias in matrices:
            F.linear(of(matrix.shape[1]), matrix, bias)
            if backward:
                torch.mm(of(matrix.shape[0]), matrix)
                torch.mm(of(matrix.shape[0]).t(), of(matrix.shape[1]))

    return run


@dataclass
class Row:
    """Milliseconds per picture, and KiB per token where a backward pass was measured."""

    tokens: int
    batch: int
    ms: dict[str, float]
    memory: dict[str, float]
    ratios: dict[str, float]
    backends: dict[str, str]  # of attention


def inputs(tokens: int, batch: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    torch.manual_seed(tokens)
    x, c = torch.randn(batch, tokens, args.dim), torch.randn(batch, args.dim)
    return x.to(args.device, DTYPES[args.dtype]), c.to(args.device, DTYPES[args.dtype])


@torch.no_grad()
def check(name: str, run: Callable[..., Tensor], x: Tensor, c: Tensor, weights: Weights) -> None:
    """Nothing wrong is timed: the first block against the listing's in fp64, within twice the listing's error
    in this dtype."""
    exact = paper_block(x.double(), c.double(), tuple(part.double() for part in weights[0]))
    plain = paper_block(x, c, weights[0])
    theirs, mine = ((got.double() - exact).abs().max().item() for got in (plain, run(x, c, weights[:1])))
    if not mine <= 2 * theirs + 4 * torch.finfo(x.dtype).eps * exact.abs().max().item():
        raise SystemExit(f"paper_cuda.py: {name}: a block is off by {mine:.2g}, the listing by {theirs:.2g}")


def head_widths(args: argparse.Namespace) -> dict[str, int]:
    return {"head": args.dim // args.heads, "narrow": args.narrow}


def contenders(args: argparse.Namespace, ffw: int, backward: bool) -> list[str]:
    """Attention is published with a feed-forward of 4 alone. Heads of 64 are for information, forward."""
    ours = ["paper"] + (["ours"] if args.kernels else [])
    if ffw != args.ffw[0]:
        return ours
    return [*ours, "head"] + ([] if backward else ["narrow"])


@torch.no_grad()
def forward_row(tokens: int, batch: int, ffw: int, args: argparse.Namespace) -> Measured:
    x, c = inputs(tokens, batch, args)
    widths, backends = head_widths(args), {}
    variants: dict[str, Call] = {}
    graph = graphed if args.device == "cuda" else (lambda call: call)
    for name in contenders(args, ffw, False):
        network = networks(args)[name]
        weights = network.weights(args, ffw)
        run = compiled(network.block, args.whole)
        if name in widths:
            backends[name] = fastest_attention(widths[name], tokens, batch, args, False)
        if name in ("paper", "ours") and not args.whole:  # a whole stack has its number of blocks
            check(name, run, x, c, weights)
        call = forward_call(run, x, c, weights)
        if name == "paper":
            variants["products"] = graph(products(weights, tokens, batch, args, False))
            variants["paper eager"] = forward_call(partial(stack, network.block), x, c, weights)
            variants["paper compiled"] = call
        if args.device == "cuda" or name != "paper":
            with only(backends.get(name, "")):
                variants[f"{name} graph"] = graph(call)
    return race(variants, args), {}, backends


def forward_call(run: Callable[..., Tensor], x: Tensor, c: Tensor, weights: Weights) -> Call:
    return torch.no_grad()(lambda: run(x, c, weights))


def training_call(run: Callable[..., Tensor], x: Tensor, c: Tensor, weights: Weights) -> Call:
    leaves = [tuple(part.detach().requires_grad_() for part in w) for w in weights]
    every = [part for w in leaves for part in w]
    tokens, condition = x.detach().requires_grad_(), c.detach().requires_grad_()
    grad = torch.randn_like(x)
    return lambda: torch.autograd.grad(run(tokens, condition, leaves), [tokens, condition, *every], grad)


def training_row(tokens: int, batch: int, ffw: int, args: argparse.Namespace) -> Measured:
    x, c = inputs(tokens, batch, args)
    widths, backends = head_widths(args), {}
    variants: dict[str, Call] = {}
    memory: dict[str, float] = {}
    for name in contenders(args, ffw, True):
        network = networks(args)[name]
        weights = network.weights(args, ffw)
        runs = {f"{name} compiled": compiled(network.block, args.whole)}
        if name == "paper":
            call = products(weights, tokens, batch, args, True)
            variants["products"] = graphed(call) if args.device == "cuda" else call
            runs["paper eager"] = partial(stack, network.block)
        if name in widths:
            backends[name] = fastest_attention(widths[name], tokens, batch, args, True)
        for variant, run in runs.items():
            variants[variant] = training_call(run, x, c, weights)
            with only(backends.get(name, "")):
                variants[variant]()  # compiles
                if args.device == "cuda":
                    memory[variant] = kib_per_token(variants[variant], weights, batch * tokens)
                    if "compiled" in variant:
                        variants[f"{name} graph"] = graphed(variants[variant])
    return race(variants, args), memory, backends


def program(tokens: int, batch: int, ffw: int, backward: bool, args: argparse.Namespace) -> dict | None:
    """What `pom bench figure1` says of the whole network, or None where there is no program."""
    if args.program is None:
        return None
    words = [args.program, "bench", "figure1", "--json", "--quiet", "--device", args.device]
    words += ["--tokens", tokens, "--batch", batch, "--dim", args.dim, "--depth", args.depth]
    words += ["--heads", args.heads, "--ffw-expand", ffw, "--dtype", NAMES[args.dtype]]
    words += ["--budget", args.seconds, "--longest", 60] + ([] if backward else ["--no-backward"])
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"paper_cuda.py: pom bench failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def add_program(row: Row, said: dict | None, key: str) -> None:
    if said is None:
        return
    figures = said[key][0]
    if "ms" not in figures["pom"]:
        return
    row.ms["libpom"] = figures["pom"]["ms"]
    if figures["pom_over_products"] is not None:
        row.ratios["libpom / products"] = figures["pom_over_products"]
    if "bytes" in figures["pom"]:
        row.memory["libpom"] = figures["pom"]["bytes"] / (row.tokens * row.batch) / 1024


def measure(tokens: int, ffw: int, backward: bool, args: argparse.Namespace) -> Row:
    batch = args.batch or (1 if tokens >= 65536 else 4)
    said = program(tokens, batch, ffw, backward, args)
    torch.compiler.reset()
    samples, memory, backends = (training_row if backward else forward_row)(tokens, batch, ffw, args)
    scale = 1000 / batch * args.depth / args.timed_depth
    memory = {name: kib * args.depth / args.timed_depth for name, kib in memory.items()}
    times = {name: sample.median * scale for name, sample in samples.items()}
    row = Row(tokens, batch, times, memory, {}, backends)
    add_program(row, said, "forward_backward" if backward else "forward")
    del samples
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return row


# --- the report ---


def columns(args: argparse.Namespace, ffw: int, backward: bool) -> dict[str, str]:
    """Key of a Row's times -> name of the column."""
    graph = " + graph" if args.device == "cuda" else ""
    names = {"products": "products", "paper eager": "paper eager", "paper compiled": "paper compiled"}
    if args.device == "cuda":
        names["paper graph"] = "paper compiled + graph"
    for name in contenders(args, ffw, backward)[1:]:
        shown = {"ours": "libpom's layer", "head": f"attention {args.dim // args.heads}"}
        shown |= {"narrow": f"attention {args.narrow}"}
        if backward:
            names[f"{name} compiled"] = shown[name]
        if not backward or args.device == "cuda":
            names[f"{name} graph"] = shown[name] + graph
    if args.program is not None:
        names["libpom"] = "libpom"
    return names


def best(args: argparse.Namespace) -> str:
    return "paper graph" if args.device == "cuda" else "paper compiled"


def ratios(report: Report, row: Row, args: argparse.Namespace, backward: bool) -> list[str]:
    """libpom over the products (the program's own, in its run), then the others over libpom; on a GPU judged
    by the goals."""
    on_cuda = args.device == "cuda"
    last = "graph" if on_cuda or not backward else "compiled"  # every side in its fastest form
    ours = row.ms.get("libpom") or row.ms.get(f"ours {last}")
    if not ours:
        return ["-"] * 3
    floor = row.ratios.get("libpom / products") or ours / row.ms["products"]
    attention = row.ms.get(f"head {last}", 0) / ours
    paper = row.ms[best(args)] / ours
    if not on_cuda:
        return [f"{value:.2f}" if value else "-" for value in (floor, paper, attention)]
    if backward:
        at_most = BOTH_PASSES if row.tokens >= 4096 else math.inf
        cells = [report.judge(floor, at_most=at_most), report.judge(paper, at_least=COMPILED)]
        return [*cells, f"{attention:.2f}  " if attention else "-"]
    cells = [report.judge(floor, at_most=FORWARD), f"{paper:.2f}  "]
    return [*cells, report.judge(attention, at_least=1) if attention else "-"]


def section(report: Report, ffw: int, backward: bool, args: argparse.Namespace) -> None:
    what = "Forward + backward" if backward else "Forward"
    report.say(f"## {what}, feed-forward {ffw}")
    names = columns(args, ffw, backward)
    shown = ["libpom / products", "paper / libpom", "attention / libpom"]
    table = report.table("tokens", "batch", *names.values(), *shown)
    kept = []
    for tokens in args.backward_tokens if backward else args.tokens:
        row = measure(tokens, ffw, backward, args)
        cells = [f"{row.ms[key]:.4g}" if key in row.ms else "-" for key in names]
        table.row(row.tokens, row.batch, *cells, *ratios(report, row, args, backward))
        kept.append(row)
    used = [f"{row.tokens}: {', '.join(row.backends.values())}" for row in kept if any(row.backends.values())]
    if used:
        report.say("Attention's fastest kernels, by tokens: " + "; ".join(used).lower() + ".")
    if any(row.memory for row in kept):
        report.say("Memory at the peak beside weights and gradients, KiB per token:")
        keys = [key for key in names if any(key in row.memory for row in kept)]
        table = report.table("tokens", *(names[key] for key in keys))
        for row in kept:
            table.row(row.tokens, *(f"{row.memory[key]:.1f}" if key in row.memory else "-" for key in keys))


def gpu(args: argparse.Namespace) -> str:
    if args.device != "cuda":
        return "On the processor, without graphs: a check of this program, no result."
    card = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        driver = "?"
    return f"{card.name}, {card.total_memory / 2**30:.0f} GiB, driver {driver}, CUDA {torch.version.cuda}"


def about(args: argparse.Namespace) -> str:
    how = "all blocks at once" if args.whole else "one block, called with the weights of each"
    text = (
        f"{gpu(args)}\n\n"
        f"{args.depth} blocks of {args.dim}, k = {K}, e = {EXPAND}, {args.dtype}; attention has {args.heads} "
        f"heads (of {args.dim // args.heads}: the network of the paper; of {args.narrow}: narrower, for "
        "information). Times are ms per image, medians of rounds in which all columns but libpom are "
        f"called in turn. paper: the listing of the paper; compiled: torch.compile, {how}. products: "
        "the matrix products over tokens alone (on a GPU as a graph). The ratios compare graphs with graphs. "
        "libpom's layer: the listing replaced "
        "by libpom.mixer_layer, the rest as before, compiled. libpom: the whole network by `pom bench "
        "figure1`, run before each row; its ratio to the products is that of its own run, and it trains fp32 "
        "weights under autocast where the others have weights in the dtype of the products."
    )
    if args.timed_depth != args.depth:
        text += f" {args.timed_depth} blocks were timed, and their times multiplied (but for libpom)."
    if args.program is None:
        text += " The program pom is left out: no column libpom."
    if not args.kernels:
        text += " libpom.so has no kernels for this device: its layer is left out."
    return text


# --- the command ---


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tokens", type=numbers, default=[256, 1024, 2304, 4096, 16384, 65536])
    parser.add_argument(
        "--backward-tokens", type=numbers, help="those of --tokens up to 16384; 0: no backward"
    )
    parser.add_argument("--ffw", type=numbers, default=[4, 2], help="attention takes part in the first")
    parser.add_argument("--dim", type=int, default=1152)
    parser.add_argument("--depth", type=int, default=28)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--narrow", type=int, default=64, help="width of a head, for information")
    parser.add_argument("--batch", type=int, help="4, and 1 from 65536 tokens on")
    parser.add_argument("--dtype", choices=list(NAMES), default="bf16")
    parser.add_argument("--seconds", type=float, default=3, help="for the variants of one row, about")
    parser.add_argument("--quick", action="store_true", help="time 4 blocks and multiply; a second for a row")
    parser.add_argument("--whole", action="store_true", help="compile all blocks at once: takes minutes")
    parser.add_argument("--no-forward", action="store_true", help="the backward tables alone")
    parser.add_argument("--no-program", action="store_true", help="leave `pom bench figure1` out")
    add_report_option(parser, "paper-cuda")
    args = parser.parse_args()
    if args.dim % args.heads:
        parser.error(f"--heads: expected a divisor of dim = {args.dim}, got {args.heads}")
    if args.backward_tokens is None:
        args.backward_tokens = [n for n in args.tokens if n <= 16384]
    args.backward_tokens = [n for n in args.backward_tokens if n > 0]
    args.timed_depth = min(4, args.depth) if args.quick else args.depth
    args.seconds = min(args.seconds, 1) if args.quick else args.seconds
    return args


def find_program(args: argparse.Namespace) -> Path | None:
    library = os.environ.get("LIBPOM_LIBRARY", "")
    path = Path(library).parent / "pom"
    return path.resolve() if library and path.is_file() and not args.no_program else None


def has_kernels(args: argparse.Namespace) -> bool:
    key = "CUDA" if args.device == "cuda" else "CPU"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return libpom.has_extension() and has("pom::mixer_layer_train", key)


def main() -> None:
    args = arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("paper_cuda.py: no GPU here (--device cpu checks the program with tiny sizes)", file=sys.stderr)
        raise SystemExit(77)
    args.program, args.kernels = find_program(args), has_kernels(args)
    report = Report("The paper's listing on a GPU")
    print(machine())
    report.say(about(args))
    for ffw in args.ffw:
        if not args.no_forward:
            section(report, ffw, False, args)
        if args.backward_tokens:
            section(report, ffw, True, args)
    report.close(args.report)


if __name__ == "__main__":
    main()
