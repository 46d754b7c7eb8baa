"""libpom.PoM in a researcher's model, against the paper's listing in the same model: blocks of norm,
modulation, mixer, gate and MLP, compiled whole in the modes of torch.compile, forward and training.

    LIBPOM_LIBRARY=build/cuda/libpom.so PYTHONPATH=python python bench/layer_cuda.py [--quick] [--autocast]

Both sides have the same weights, modes and graphs: `default` launches kernel by kernel, `default, graph`
replays that as one CUDA graph, `reduce-overhead` and `max-autotune` make torch's own graphs. Times are
medians of CUDA events, the two sides called in turn, in µs of a block for the whole batch; host: what a call
keeps the processor busy, in µs of a call of all blocks. B pictures, n tokens, d width.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from timing import Report, add_report_option, machine
from torch import Tensor, nn

import libpom

GOAL = 1.05  # the listing's time over libpom's
MODES = ("default", "default, graph", "reduce-overhead", "max-autotune")
Call = Callable[[], object]


# --- the two models ---


class Listing(nn.Module):
    """PoM as the paper prints it, of any order."""

    def __init__(self, dim: int, order: int, order_expand: int) -> None:
        super().__init__()
        self.order = order
        self.ho_proj = nn.Linear(dim, order * order_expand * dim)
        self.se_proj = nn.Linear(dim, order * order_expand * dim)
        self.ag_proj = nn.Linear(order * order_expand * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        s = self.se_proj(x)
        h = list(F.gelu(self.ho_proj(x)).chunk(self.order, dim=-1))
        for i in range(1, self.order):
            h[i] = h[i] * h[i - 1]
        mean = torch.cat(h, dim=-1).mean(dim=1, keepdim=True)
        return self.ag_proj(F.sigmoid(s) * mean)


class Block(nn.Module):
    """The paper's block of images around any mixer."""

    def __init__(self, mixer: nn.Module, dim: int, ffw: int) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.ffw = nn.Sequential(nn.Linear(dim, ffw * dim), nn.GELU(), nn.Linear(ffw * dim, dim))
        self.cond = nn.Sequential(nn.SiLU(), nn.Linear(dim, 4 * dim))
        self.gate = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        s1, b1, s2, b2 = self.cond(c).unsqueeze(1).chunk(4, -1)
        g1, g2 = self.gate(c).unsqueeze(1).chunk(2, -1)
        x = x + self.mixer(self.norm1(x) * (1 + s1) + b1) * (1 + g1)
        return x + self.ffw(self.norm2(x) * (1 + s2) + b2) * (1 + g2)


class Model(nn.Module):
    def __init__(self, mixer: Callable[[], nn.Module], args: argparse.Namespace) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(mixer(), args.dim, args.ffw) for _ in range(args.depth))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, c)
        return x


def models(args: argparse.Namespace) -> dict[str, Model]:
    """Both sides, of the same weights."""
    torch.manual_seed(0)
    shape = (args.dim, args.order, args.expand)
    both = {
        "listing": Model(lambda: Listing(*shape), args),
        "libpom": Model(lambda: libpom.PoM(*shape), args),
    }
    both["libpom"].load_state_dict(both["listing"].state_dict())
    dtype = torch.float32 if args.autocast else args.type
    return {name: model.to(args.device, dtype) for name, model in both.items()}


# --- a call, in a mode ---


@dataclass
class Side:
    """A model compiled in a mode, and the inputs of one size."""

    model: Model
    run: Callable[[Tensor, Tensor], Tensor]
    x: Tensor
    c: Tensor
    grad: Tensor
    args: argparse.Namespace

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self._called()

    def training(self) -> list[Tensor]:
        """Gradients of the input and of all weights."""
        wanted = [self.x, *self.model.parameters()]
        return list(torch.autograd.grad(self._called(), wanted, self.grad))

    def _called(self) -> Tensor:
        a = self.args
        with torch.autocast(a.device, dtype=a.type, enabled=a.autocast):
            return self.run(self.x, self.c)


def inputs(tokens: int, batch: int, args: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(tokens)
    dtype = torch.float32 if args.autocast else args.type
    x, c, grad = (
        torch.randn(batch, tokens, args.dim),
        torch.randn(batch, args.dim),
        torch.randn(batch, tokens, args.dim),
    )
    x, c, grad = (part.to(args.device, dtype) for part in (x, c, grad))
    return x.requires_grad_(), c, grad


def in_graph(call: Call) -> Call:
    """The call as one CUDA graph. Warmed up on a stream of its own, as torch asks."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> object:
        graph.replay()
        return result

    return replay


def in_step(call: Call) -> Call:
    """What torch's graphs gave the step before may be written over."""

    def step() -> object:
        torch.compiler.cudagraph_mark_step_begin()
        return call()

    return step


def prepared(side: Side, mode: str, backward: bool) -> Call:
    """The call that is timed, compiled, warm and captured."""
    call = side.training if backward else side.forward
    cuda = side.args.device == "cuda"
    if mode == "default, graph":
        return in_graph(call) if cuda else call
    call = in_step(call) if cuda and mode != "default" else call
    for _ in range(4):  # compiles, warms torch's graphs up, records them
        call()
    return call


def compiled(model: Model, mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    return torch.compile(model, fullgraph=True, dynamic=False, mode=mode.split(",")[0])


# --- nothing wrong is timed ---


def check(sides: dict[str, Side], exact: Model, mode: str, backward: bool) -> None:
    """What is going to be timed against the listing in fp64, the output or the gradient of the input:
    libpom's error within twice the listing's in this dtype."""
    listing = sides["listing"]
    x = listing.x.detach().double().requires_grad_()
    want = exact(x, listing.c.double())
    if backward:
        (want,) = torch.autograd.grad(want, x, listing.grad.double())

    def error(side: Side) -> float:
        torch.compiler.cudagraph_mark_step_begin()
        got = side.training()[0] if backward else side.forward()
        return (got.double() - want).abs().max().item()

    theirs, ours = error(listing), error(sides["libpom"])
    if not ours <= 2 * theirs + 4 * torch.finfo(listing.args.type).eps * want.abs().max().item():
        what = "gradient" if backward else "output"
        told = f"libpom's {what} is off by {ours:.2g}, the listing's by {theirs:.2g}"
        raise SystemExit(f"layer_cuda.py: {mode}: {told}")


# --- times ---


@dataclass
class Times:
    device: list[float] = field(default_factory=list)  # seconds of a call
    host: list[float] = field(default_factory=list)


class Clock:
    """Seconds of `calls` calls, on the device and until the processor is free again."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        if self.cuda:
            self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def device_time(self, call: Call, calls: int) -> float:
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - start) / calls
        torch.cuda.synchronize()
        self.begin.record()
        for _ in range(calls):
            call()
        self.end.record()
        torch.cuda.synchronize()
        return self.begin.elapsed_time(self.end) / 1e3 / calls

    def host_time(self, call: Call) -> float:
        """One call on an idle device, so that no queue is ever full."""
        if self.cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start


def race(calls: dict[str, Call], args: argparse.Namespace) -> dict[str, Times]:
    """The sides in turn, every other round the other way round."""
    clock, times = Clock(args.device), {name: Times() for name in calls}
    once = max(min(clock.device_time(call, 1) for _ in range(2)) for call in calls.values())
    count = max(1, int(0.02 / once)) if args.device == "cuda" else 1  # calls queue up as in a training
    rounds = max(args.least, min(200, int(args.seconds / (len(calls) * count * once))))
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            for name in sorted(calls, reverse=i % 2 == 1):
                times[name].device.append(clock.device_time(calls[name], count))
                times[name].host.append(clock.host_time(calls[name]))
    finally:
        gc.enable()
    return times


def measure(tokens: int, mode: str, backward: bool, args: argparse.Namespace) -> dict[str, Times]:
    batch = args.batch or max(1, min(4, 16384 // tokens))
    torch._dynamo.reset()
    both = models(args)
    x, c, grad = inputs(tokens, batch, args)
    sides = {name: Side(model, compiled(model, mode), x, c, grad, args) for name, model in both.items()}
    exact = models(args)["listing"].double()
    check(sides, exact, mode, backward)
    del exact
    calls = {name: prepared(side, mode, backward) for name, side in sides.items()}
    counters = torch._dynamo.utils.counters["stats"]
    graphs = counters["unique_graphs"]
    times = race(calls, args)
    if counters["unique_graphs"] != graphs:
        raise SystemExit(f"layer_cuda.py: {mode}: compiled again while it was timed")
    del calls, sides, both
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return times


def section(report: Report, backward: bool, args: argparse.Namespace) -> None:
    report.say("## " + ("Forward + backward" if backward else "Forward"))
    columns = (
        "tokens",
        "mode".rjust(15),
        "listing",
        " libpom",
        "listing / libpom",
        "host: listing",
        "libpom",
    )
    table = report.table(*columns)
    for tokens in args.tokens:
        for mode in args.modes:
            times = measure(tokens, mode, backward, args)
            each = {name: 1e6 * statistics.median(t.device) / args.depth for name, t in times.items()}
            host = {name: 1e6 * statistics.median(t.host) for name, t in times.items()}
            pairs = zip(times["listing"].device, times["libpom"].device, strict=True)
            ratio = statistics.median(theirs / ours for theirs, ours in pairs)
            cell = report.judge(ratio, at_least=GOAL) if args.device == "cuda" else f"{ratio:.2f}"
            row = [f"{value:.1f}" for value in (each["listing"], each["libpom"])]
            table.row(tokens, mode, *row, cell, *(f"{host[name]:.0f}" for name in ("listing", "libpom")))


def about(args: argparse.Namespace) -> str:
    where = (
        torch.cuda.get_device_name(0)
        if args.device == "cuda"
        else "a processor: a check of this program, no result"
    )
    dtype = {torch.bfloat16: "bf16", torch.float16: "fp16"}[args.type]
    weights = f"fp32 under autocast to {dtype}" if args.autocast else dtype
    return (
        f"{where}. {args.depth} blocks of {args.dim}, k = {args.order}, e = {args.expand}, feed-forward "
        f"{args.ffw}, weights {weights}, compiled whole. µs of a block for the whole batch; host: µs in "
        "which a call of all blocks keeps the processor busy. Goal: the listing takes at least "
        f"{GOAL:.2f} times as long."
    )


# --- the command ---


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(";")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tokens", type=numbers, default=[256, 1024, 4096, 16384])
    parser.add_argument(
        "--modes", type=listed, default=list(MODES), help="; between them: " + "; ".join(MODES)
    )
    parser.add_argument("--passes", choices=["forward", "training", "both"], default="both")
    parser.add_argument("--batch", type=int, help="4, and fewer where 16384 tokens of all are reached")
    parser.add_argument("--dim", type=int, default=1152)
    parser.add_argument("--depth", type=int, help="4 blocks; 2 with --quick")
    parser.add_argument("--order", type=int, default=2)
    parser.add_argument("--expand", type=int, default=2)
    parser.add_argument("--ffw", type=int, default=4)
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="bf16")
    parser.add_argument("--autocast", action="store_true", help="weights in fp32, under autocast to --dtype")
    parser.add_argument(
        "--seconds", type=float, help="for the two sides of a row, about; 2, with --quick 0.5"
    )
    parser.add_argument(
        "--quick", action="store_true", help="2 blocks, and no max-autotune, which compiles for long"
    )
    add_report_option(parser, "layer-cuda")
    args = parser.parse_args()
    for mode in args.modes:
        if mode not in MODES:
            parser.error(f"--modes: expected {'; '.join(MODES)}, got {mode}")
    if args.quick:
        args.modes = [mode for mode in args.modes if mode != "max-autotune"]
    args.type = {"bf16": torch.bfloat16, "f16": torch.float16}[args.dtype]
    args.depth = args.depth or (2 if args.quick else 4)
    args.seconds = args.seconds if args.seconds is not None else (0.5 if args.quick else 2)
    args.least = 3 if args.quick else 7
    return args


def main() -> None:
    args = arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("layer_cuda.py: no GPU here (--device cpu checks the program with tiny sizes)", file=sys.stderr)
        raise SystemExit(77)
    if not libpom.has_extension():
        raise SystemExit("layer_cuda.py: libpom.so is not loaded: `python -m libpom` says why")
    report = Report("libpom.PoM in a compiled model")
    print(machine())
    report.say(about(args))
    for backward, name in ((False, "forward"), (True, "training")):
        if args.passes in (name, "both"):
            section(report, backward, args)
    report.close(args.report)


if __name__ == "__main__":
    main()
