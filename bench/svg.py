"""Line plots with logarithmic axes, written as SVG by hand: panels side by side on one card, readable on
light and on dark pages."""

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

# Pixels: a plot's width and height, between two, and around them; a series' name is written right of its end.
PANEL, PLOT, GAP, MARGIN, TOP, BOTTOM = 400, 240, 134, 76, 112, 72
STYLE = """
  .card { fill: #ffffff; stroke: #d9dde3 } .grid { stroke: #e8ebef } .axis { stroke: #aab2bd }
  text { font: 13px system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; fill: #5b6572 }
  .title { font-size: 19px; font-weight: 600; fill: #1d2430 }
  .head { font-size: 14px; font-weight: 600; fill: #1d2430 }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round }
  .s0 { stroke: #0d7d74 } .d0, .t0 { fill: #0d7d74 } .s1 { stroke: #c8541b } .d1, .t1 { fill: #c8541b }
  .t0, .t1 { font-weight: 600 } .dot { stroke: #ffffff; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #14181f; stroke: #2b323c } .grid { stroke: #242a33 } .axis { stroke: #4c5663 }
    text { fill: #9aa5b1 } .title, .head { fill: #e8ecf1 } .dot { stroke: #14181f }
    .s0 { stroke: #3cc9b8 } .d0, .t0 { fill: #3cc9b8 } .s1 { stroke: #f08a4b } .d1, .t1 { fill: #f08a4b }
  }
"""


@dataclass
class Panel:
    """Series by short name, each a list of (x, y), all positive; there are colours for two."""

    title: str
    series: dict[str, list[tuple[float, float]]]
    unit: tuple[tuple[float, str], ...] = ((1, ""),)  # (size, suffix) from the largest, for the ticks of y


def _count(x: float) -> str:
    return f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"


def _value(y: float, unit: tuple[tuple[float, str], ...]) -> str:
    size, suffix = next((u for u in unit if y >= u[0] * 0.999), unit[-1])
    return f"{y / size:g}{suffix}"


class _Scale:
    """Logarithmic, from the values' range to a range of pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = math.log(low), math.log(high), start, end

    def __call__(self, value: float) -> float:
        share = (math.log(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{kind} text-anchor="{anchor}">{escape(words)}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _axes(panel: Panel, x: _Scale, y: _Scale, xs: list[float], decades: range, x_label: str) -> list[str]:
    left, right, bottom = x.start, x.end, y.start
    parts = [_text(left, y.end - 18, panel.title, "head")]
    for decade in decades:
        at = y(10.0**decade)
        parts.append(_line("grid" if at < bottom else "axis", left, at, right, at))
        parts.append(_text(left - 10, at + 4.5, _value(10.0**decade, panel.unit), anchor="end"))
    for tick in xs:
        parts.append(_line("axis", x(tick), bottom, x(tick), bottom + 5))
        parts.append(_text(x(tick), bottom + 22, _count(tick), anchor="middle"))
    parts.append(_text((left + right) / 2, bottom + 46, x_label, anchor="middle"))
    return parts


def _series(panel: Panel, x: _Scale, y: _Scale) -> list[str]:
    parts = []
    for i, (name, points) in enumerate(panel.series.items()):
        places = [(x(a), y(b)) for a, b in points]
        parts.append(f'<polyline class="line s{i}" points="{" ".join(f"{a:g},{b:g}" for a, b in places)}"/>')
        parts += [f'<circle class="dot d{i}" cx="{a:g}" cy="{b:g}" r="4"/>' for a, b in places]
        parts.append(_text(places[-1][0] + 11, places[-1][1] + 4.5, name, f"t{i}"))
    return parts


def write(path: Path, title: str, subtitle: str, panels: list[Panel], x_label: str) -> None:
    """The panels beside each other, with one range of x."""
    xs = sorted({a for panel in panels for points in panel.series.values() for a, _ in points})
    ticks = [a for i, a in enumerate(xs) if i % 2 == 0] if len(xs) > 6 else xs
    names = max(len(name) for name in panels[-1].series)  # right of the last panel
    width = MARGIN + len(panels) * PANEL + (len(panels) - 1) * GAP + max(60, 24 + 8 * names)
    height = TOP + PLOT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="12"/>',
        _text(28, 38, title, "title"),
        _text(28, 60, subtitle),
    ]
    for i, panel in enumerate(panels):
        ys = [b for points in panel.series.values() for _, b in points]
        decades = range(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys))) + 1)
        left = MARGIN + i * (PANEL + GAP)
        x = _Scale(xs[0] / 1.15, xs[-1] * 1.15, left, left + PANEL)
        y = _Scale(10.0 ** decades[0], 10.0 ** decades[-1], TOP + PLOT, TOP)
        parts += _axes(panel, x, y, ticks, decades, x_label) + _series(panel, x, y)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
