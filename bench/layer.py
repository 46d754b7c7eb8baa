"""`make bench`: the layer's time as ratios, measured side by side in one process.

Against its own matrix products (the floor), the paper's listing in PyTorch and under torch.compile; then each
mask against none, and packed short sequences against one long one. n tokens, d width, k = e = 2, batch 1.
"""

import argparse
from collections.abc import Callable, Iterable

import torch
from baselines import listing, nine_products, three_products, weights
from timing import DTYPES, Report, add_report_option, interleave, machine
from torch import Tensor

import libpom

K = 2
FORWARD, BACKWARD, MASKED, PACKED = 1.05, 1.20, 1.10, 1.30  # the goals
MASKS = {
    "causal": lambda n: libpom.causal,
    "causal, window 64": lambda n: libpom.block_causal(1, window=64),
    "blocks of 16": lambda n: libpom.block_causal(16),
    "blocks of 64": lambda n: libpom.block_causal(64),
    "blocks of 256": lambda n: libpom.block_causal(256),
    "blocks of 64, window 4": lambda n: libpom.block_causal(64, window=4),
    "keys": lambda n: torch.rand(1, n) < 0.9,
}
Call = Callable[[], object]
Layer = Callable[..., Tensor]  # tokens and the six weights -> tokens


def ours(mask: object = None, cu: Tensor | None = None) -> Layer:
    return lambda x, *w: libpom.mixer_layer(x, x, *w, K, mask, cu)


def forward(layer: Layer, x: Tensor, w: list[Tensor]) -> Call:
    return torch.no_grad()(lambda: layer(x, *w))


def training(layer: Layer, x: Tensor, w: list[Tensor]) -> Call:
    """Forward and backward, with the gradients of the tokens and of all weights."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, *w)]
    grad = torch.randn_like(x)
    return lambda: torch.autograd.grad(layer(*leaves), leaves, grad)


def both(backward: bool) -> tuple[str, Callable[[Layer, Tensor, list[Tensor]], Call]]:
    return ("fwd+bwd", training) if backward else ("forward", forward)


def tokens(n: int, d: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(n)
    return torch.randn(1, n, d, dtype=dtype)


def check(x: Tensor, w: list[Tensor], dtype: str) -> None:
    """Nothing wrong is timed: both layers against the listing in fp64, on the first tokens."""
    x = x[:, :256]
    exact = listing(x.double(), *(tensor.double() for tensor in w), K)
    theirs, mine = ((layer(x, *w, K).double() - exact).abs().max().item() for layer in (listing, _plain))
    if not mine <= 2 * theirs + 4 * torch.finfo(DTYPES[dtype]).eps * exact.abs().max().item():
        raise SystemExit(f"layer.py: {dtype}: the layer is off by {mine:.2g}, the listing by {theirs:.2g}")


def _plain(x: Tensor, *rest: object) -> Tensor:
    return libpom.mixer_layer(x, x, *rest)


def cases(args: argparse.Namespace) -> Iterable[tuple[str, int, list[Tensor]]]:
    for dtype in args.dtype:
        for d in args.dims:
            yield dtype, d, weights(d, DTYPES[dtype], K)


def against_products(report: Report, args: argparse.Namespace) -> None:
    report.say(
        "## Against the layer's products\n\n"
        "(a) is the three matrix products alone (nine for forward+backward), (b) the paper's listing, (c)\n"
        "the same under torch.compile; ours, (b) and (c) are multiples of (a). Goals: ours at most "
        f"{FORWARD:.2f}\nforward and {BACKWARD:.2f} forward+backward, and ahead of (b) and (c). Spread: half "
        "of the 10th to the\n90th percentile of the times, for the least steady of the four."
    )
    table = report.table(
        "dtype", "    d", "     n", "   pass", "  (a) ms", "GFLOP/s", "spread", "  ours", "   (b)", "   (c)",
    )  # fmt: skip
    for dtype, d, w in cases(args):
        for n in args.sizes:
            x = tokens(n, d, DTYPES[dtype])
            check(x, w, dtype)
            for backward in (False, True):
                name, make = both(backward)
                torch.compiler.reset()
                compiled = torch.compile(listing, fullgraph=True, dynamic=False)
                products = nine_products if backward else three_products
                s = torch.randn(n, w[0].shape[0], dtype=x.dtype)
                variants = {
                    "a": torch.no_grad()(products(x[0], s, w)),
                    "ours": make(ours(), x, w),
                    "b": make(lambda *t: listing(*t, K), x, w),
                    "c": make(lambda *t, run=compiled: run(*t, K), x, w),
                }
                for call in variants.values():  # compile, and touch what is touched once
                    call()
                got = interleave(variants, args.seconds, args.least)
                a, mine = got["a"], got["ours"].over(got["a"])
                speed = 6 * n * d * w[0].shape[0] * (3 if backward else 1) / a.median / 1e9
                table.row(
                    dtype, d, n, name, f"{a.median * 1e3:.2f}", f"{speed:.0f}",
                    f"±{max(sample.spread for sample in got.values()):.0%}",
                    report.judge(mine, at_most=BACKWARD if backward else FORWARD),
                    *(report.judge(got[v].over(a), at_least=mine) for v in "bc"),
                )  # fmt: skip


def masked(report: Report, args: argparse.Namespace) -> None:
    report.say(
        "## Masks\n\n"
        f"Multiples of the time without a mask. Goal: at most {MASKED:.2f} at any n. The keys mask leaves\n"
        "out a tenth of the tokens."
    )
    one = max((n for n in args.sizes if n <= 4096), default=args.sizes[0])
    table = report.table("dtype", "    d", "     n", "   pass", " none ms", *(f"{m:>6}" for m in MASKS))
    for dtype, d, w in cases(args):
        for n, backward in [(n, False) for n in args.sizes] + [(one, True)]:
            x = tokens(n, d, DTYPES[dtype])
            name, make = both(backward)
            variants = {"none": make(ours(), x, w)}
            variants |= {mask: make(ours(of(n)), x, w) for mask, of in MASKS.items()}
            got = interleave(variants, args.seconds, args.least)
            none = got.pop("none")
            ratios = [report.judge(sample.over(none), at_most=MASKED) for sample in got.values()]
            table.row(dtype, d, n, name, f"{none.median * 1e3:.2f}", *ratios)


def packed(report: Report, args: argparse.Namespace) -> None:
    report.say(
        "## Packed sequences\n\n"
        "1,000 sequences by cu_seqlens, as multiples of one sequence of as many tokens. Goal: at most "
        f"{PACKED:.2f}."
    )
    table = report.table("dtype", "    d", "tokens", "lengths", "   pass", "  one ms", "packed")
    torch.manual_seed(0)
    lengths = {"32": torch.full((1000,), 32), "1 to 64": torch.randint(1, 65, (1000,))}
    for dtype, d, w in cases(args):
        for what, each in lengths.items():
            cu = torch.cat([torch.zeros(1, dtype=torch.int64), each.cumsum(0)]).int()
            x = tokens(int(cu[-1]), d, DTYPES[dtype])
            for backward in (False, True):
                name, make = both(backward)
                variants = {"one": make(ours(), x, w), "packed": make(ours(cu=cu), x[0], w)}
                got = interleave(variants, args.seconds, args.least)
                ratio = report.judge(got["packed"].over(got["one"]), at_most=PACKED)
                table.row(dtype, d, x.shape[1], what, name, f"{got['one'].median * 1e3:.1f}", ratio)


TABLES = {"products": against_products, "masks": masked, "packed": packed}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="d = 384, n = 256 and 1024, few repetitions")
    parser.add_argument("--dtype", help="f32,bf16")
    parser.add_argument("--sizes", type=numbers, help="tokens: 256,1024,4096,16384")
    parser.add_argument("--dims", type=numbers, help="widths: 384,1152")
    parser.add_argument("--tables", default=",".join(TABLES), help="products,masks,packed")
    parser.add_argument("--seconds", type=float, help="time for the variants of one row, about (default 6)")
    parser.add_argument("--threads", type=int, help="all of them")
    add_report_option(parser, "layer")
    args = parser.parse_args()
    args.dtype = (args.dtype or "f32,bf16").split(",")
    args.tables = args.tables.split(",")
    for given, known in ((args.dtype, DTYPES), (args.tables, TABLES)):
        for name in set(given) - set(known):
            parser.error(f"expected {', '.join(known)}, got {name}")
    args.sizes = args.sizes or ([256, 1024] if args.quick else [256, 1024, 4096, 16384])
    args.dims = args.dims or ([384] if args.quick else [384, 1152])
    args.seconds = args.seconds or (1 if args.quick else 6)
    args.least = 3 if args.quick else 5
    return args


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    if not libpom.has_extension():
        raise SystemExit("layer.py: libpom.so is not loaded: `python -m libpom` says why")
    report = Report("The layer's speed")
    print(machine())
    for name in args.tables:
        TABLES[name](report, args)
    report.close(args.report)


if __name__ == "__main__":
    main()
