"""`make compare`: the layer in place of attention, on growing sequences and an endless one; about a minute.

Both at the same width, in fp32, with all of their projections; attention is torch's fused kernel, which does
not store its n by n scores either. n tokens, d width; PoM has k = e = 2, three times attention's weights.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import svg
import torch
from baselines import Attention
from memory import MB, peak
from timing import interleave
from torch import Tensor

import libpom

D, HEADS, BLOCK = 384, 6, 16
SIZES = [256 * 2**i for i in range(9)]  # to 65536
PATIENCE = 8.0  # seconds: the next size would take attention longer than this, so it stops
SEEN = [100, 1_000, 10_000, 100_000]
HEAD = "{:>9}  " + f"{'PoM':>12}{'attention':>12}{'ratio':>8}  {'PoM':>12}{'attention':>12}"
ROW = "{:>9,}  {:>12}{:>12}{:>8}  {:>12}{:>12}"
MAKERS = {"PoM": lambda d: libpom.PoM(d), "attention": lambda d: Attention(d, HEADS)}


def build(n: int, d: int, kind: str) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    layer, x = MAKERS[kind](d), torch.randn(1, n, d)
    return lambda: layer(x)


def growing() -> dict[str, dict[int, tuple[float, float]]]:
    """Seconds and bytes of a forward pass by kind and n, printed as they come."""
    print(
        f"One layer over a whole sequence, d = {D}: time of a forward pass, and memory beyond input, weights"
    )
    print("and output. PoM has three times the weights of attention, and nothing quadratic.\n")
    print(HEAD.format("tokens"))
    found: dict[str, dict[int, tuple[float, float]]] = {kind: {} for kind in MAKERS}
    for n in SIZES:
        last = found["attention"].get(n // 2, (0.0, 0))[0]
        kinds = list(MAKERS) if n == SIZES[0] or 0 < 4 * last < PATIENCE else ["PoM"]
        times = interleave({kind: build(n, D, kind) for kind in kinds}, budget=0.5, least=2, warm=1)
        for kind in kinds:
            found[kind][n] = times[kind].median, max(peak(build, n, D, kind), 1e5)
        cells = {kind: found[kind].get(n) for kind in MAKERS}
        faster = f"{cells['attention'][0] / cells['PoM'][0]:.1f}x" if cells["attention"] else ""
        clock = [f"{cell[0] * 1e3:,.1f} ms" if cell else "-" for cell in cells.values()]
        room = [f"{cell[1] / MB:,.1f} MB" if cell else "-" for cell in cells.values()]
        print(ROW.format(n, *clock, faster, *room), flush=True)
    return found


def streaming() -> None:
    """A block of tokens after ever more of them: a state of one size against a cache that grows."""
    print(f"\nAn endless sequence, {BLOCK} tokens at a time: time of the next step, and what is kept of the")
    print("tokens seen. PoM keeps a sum and a count; attention the keys and values of every token.\n")
    print(HEAD.format("seen"))
    pom, attention = libpom.PoM(D), Attention(D, HEADS)
    x = torch.randn(1, BLOCK, D)
    cache = torch.randn(2, 1, HEADS, SEEN[-1] + BLOCK, D // HEADS)
    for seen in SEEN:
        state = pom.summarize(torch.randn(1, seen, D))
        variants = {
            "PoM": lambda state=state: pom.step(x, state),
            "attention": lambda seen=seen: attention.step(x, cache, seen),
        }
        times = interleave(variants, budget=1.0)
        a, b = (times[kind].median * 1e3 for kind in variants)
        kept = state.sum.nbytes + state.count.nbytes, 2 * seen * D * x.element_size()
        room = [f"{size / 1e3:,.1f} kB" if size < MB else f"{size / MB:,.1f} MB" for size in kept]
        print(ROW.format(seen, f"{a:.2f} ms", f"{b:.2f} ms", f"{b / a:.1f}x", *room), flush=True)


def plot(path: Path, found: dict[str, dict[int, tuple[float, float]]]) -> None:
    panels = [
        svg.Panel(
            title, {kind: [(n, cell[i]) for n, cell in sizes.items()] for kind, sizes in found.items()}, unit
        )
        for i, (title, unit) in enumerate(
            [
                ("Time of a forward pass", ((1, " s"), (1e-3, " ms"))),
                ("Memory beyond input, weights, output", ((1e9, " GB"), (1e6, " MB"), (1e3, " kB"))),
            ]
        )
    ]
    subtitle = f"One layer, width {D}, fp32, {torch.get_num_threads()} CPU threads; lower is better"
    svg.write(path, "The Polynomial Mixer in place of attention", subtitle, panels, "tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--svg", type=Path, default=Path("out/compare.svg"), help="where the plot goes (out/compare.svg)"
    )
    args = parser.parse_args()
    with torch.no_grad():
        found = growing()
        streaming()
    plot(args.svg, found)
    print(f"\nPlot: {args.svg}")


if __name__ == "__main__":
    main()
