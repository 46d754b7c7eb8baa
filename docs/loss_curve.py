"""Draws the loss curve of a run from its log: docs/results/NAME.svg of docs/results/NAME.jsonl.

    python docs/loss_curve.py docs/results/shapes64.jsonl

Left: loss by step, of training and of validation. Right: the last validation loss by noise level.

    python docs/loss_curve.py docs/results/paths-fused.jsonl docs/results/paths-composed.jsonl

Two runs: left the loss of training of both, right their validation; docs/results/paths-fused.svg.
"""

import json
import math
import sys
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from svg import STYLE  # the same card, letters and colours as the benchmarks'

WIDE, NARROW, HEIGHT, LEFT, TOP, GAP, BOTTOM = 470, 250, 250, 70, 104, 110, 66
TICKS = [a * 10.0**b for b in range(-4, 3) for a in (1, 2, 5)]


def text(x, y, words, kind="", anchor="start"):
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(kind, x1, y1, x2, y2):
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


class Plot:
    """A panel with a linear x and a logarithmic y."""

    def __init__(self, left, width, x_range, y_range, title, x_label):
        self.left, self.width, self.x_range = left, width, x_range
        self.low, self.high = (math.log(y) for y in y_range)
        self.parts = [
            text(left, TOP - 16, title, "head"),
            text(left + width / 2, TOP + HEIGHT + 46, x_label, anchor="middle"),
        ]
        for tick in TICKS:
            if y_range[0] * 0.999 <= tick <= y_range[1] * 1.001:
                at = self.y(tick)
                self.parts.append(line("grid", left, at, left + width, at))
                self.parts.append(text(left - 9, at + 4.5, f"{tick:g}", anchor="end"))
        self.parts.append(line("axis", left, TOP + HEIGHT, left + width, TOP + HEIGHT))

    def x(self, value):
        return round(
            self.left + self.width * (value - self.x_range[0]) / (self.x_range[1] - self.x_range[0]), 1
        )

    def y(self, value):
        return round(TOP + HEIGHT * (self.high - math.log(value)) / (self.high - self.low), 1)

    def ticks(self, values, words):
        for value in values:
            self.parts.append(line("axis", self.x(value), TOP + HEIGHT, self.x(value), TOP + HEIGHT + 5))
            self.parts.append(text(self.x(value), TOP + HEIGHT + 22, words(value), anchor="middle"))

    def curve(self, kind, points, dots=False):
        places = [(self.x(a), self.y(b)) for a, b in points]
        path = " ".join(f"{a:g},{b:g}" for a, b in places)
        self.parts.append(f'<polyline class="line s{kind}" points="{path}"/>')
        if dots:
            self.parts += [f'<circle class="dot d{kind}" cx="{a:g}" cy="{b:g}" r="4"/>' for a, b in places]
        return places[-1]


def range_of(values):
    """From a tick below all of them to a tick above."""
    return max(t for t in TICKS if t <= min(values)), min(t for t in TICKS if t >= max(values))


def by_step(records):
    training = [(r["step"], r["loss"]) for r in records if "loss" in r]
    validation = [(r["step"], r["validation_loss"]) for r in records if "validation_loss" in r]
    steps = training[-1][0]
    y_range = range_of([y for _, y in training + validation])
    plot = Plot(LEFT, WIDE, (0, steps), y_range, "loss by step", "step")
    each = 10 ** math.floor(math.log10(steps)) // 2
    plot.ticks(range(0, steps + 1, each), lambda value: f"{value:,}")
    for kind, (name, points) in enumerate((("training", training), ("validation", validation))):
        x, y = plot.curve(kind, points, dots=kind == 1)
        plot.parts.append(text(x, y - 12, name, f"t{kind}", "end"))
    return plot.parts


def by_time(records):
    losses = [r for r in records if "validation_loss" in r][-1]["validation_loss_by_time"]
    points = [((i + 0.5) / len(losses), loss) for i, loss in enumerate(losses)]
    plot = Plot(
        LEFT + WIDE + GAP, NARROW, (0, 1), range_of(losses), "validation loss by noise level", "time t"
    )
    plot.ticks((0, 0.5, 1), lambda value: {0: "0, the picture", 1: "1, noise"}.get(value, f"{value:g}"))
    plot.curve(1, points, dots=True)
    return plot.parts


def step_plot(left, width, points, title):
    """A panel for points (step, loss) of several curves."""
    steps = max(x for x, _ in points)
    plot = Plot(left, width, (0, steps), range_of([y for _, y in points]), title, "step")
    each = 10 ** math.floor(math.log10(steps)) // 2
    each *= max(1, round(steps / each * 80 / width))
    plot.ticks(range(0, steps + 1, each), lambda value: f"{value:,}")
    return plot


def compared(runs):
    """`runs`: name -> records."""
    parts = []
    for left, width, key, title in (
        (LEFT, WIDE, "loss", "training loss by step"),
        (LEFT + WIDE + GAP, NARROW, "validation_loss", "validation loss by step"),
    ):
        curves = [[(r["step"], r[key]) for r in records if key in r] for records in runs.values()]
        plot = step_plot(left, width, [point for points in curves for point in points], title)
        for kind, (name, points) in enumerate(zip(runs, curves, strict=True)):
            plot.curve(kind, points, dots=kind == 1 and key != "loss")
            last = f"{name}: {points[-1][1]:.4f} at the end"
            plot.parts.append(text(left + width, TOP + 18 + 18 * kind, last, f"t{kind}", "end"))
        parts += plot.parts
    return parts


def card(title, about, parts):
    width, height = LEFT + WIDE + GAP + NARROW + 60, TOP + HEIGHT + BOTTOM
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="12"/>',
        text(28, 38, title, "title"),
        text(28, 60, about),
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def main():
    logs = [Path(name) for name in sys.argv[1:]]
    runs = {log.stem: [json.loads(row) for row in log.read_text().splitlines()] for log in logs}
    records = runs[logs[0].stem]
    last = [r for r in records if "validation_loss" in r][-1]
    if len(logs) == 1:
        about = f"{last['step']:,} steps; validation loss at the end {last['validation_loss']:.4f}"
        picture = card(f"Training {logs[0].stem}", about, [*by_step(records), *by_time(records)])
    else:
        short = {name.rpartition("-")[2]: found for name, found in runs.items()}
        picture = card(" and ".join(short), f"{last['step']:,} steps of the same recipe", compared(short))
    logs[0].with_suffix(".svg").write_text(picture)
    print(logs[0].with_suffix(".svg"))


if __name__ == "__main__":
    main()
