"""Times things side by side: variants called in turn in one process, so that what the machine does meanwhile
happens to all of them; tables that are read on a terminal and as Markdown; what was run, on what."""

import argparse
import gc
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

import libpom

MISS = "✗"  # follows a figure that misses its goal
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}


@dataclass(frozen=True)
class Sample:
    """The times of one variant in seconds, one for each round."""

    times: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def spread(self) -> float:
        """Half of what lies between the 10th and the 90th percentile, relative to the median."""
        ordered = sorted(self.times)
        cut = len(ordered) // 10
        return (ordered[-1 - cut] - ordered[cut]) / 2 / self.median

    def over(self, other: "Sample") -> float:
        """The median of the rounds' ratios: a slow moment of the machine is in both of its terms."""
        return statistics.median(a / b for a, b in zip(self.times, other.times, strict=True))


def interleave(
    variants: dict[str, Callable[[], object]], budget: float, least: int = 5, most: int = 500, warm: int = 2
) -> dict[str, Sample]:
    """Calls the variants in turn, each round starting with another one, for about `budget` seconds: at least
    `least` rounds and at most `most`. The first `warm` rounds are not counted."""
    calls = list(variants.items())
    times: dict[str, list[float]] = {name: [] for name in variants}
    gc.collect()
    gc.disable()
    try:
        rounds, done = least, 0
        while done < rounds + warm:
            start = time.perf_counter()
            for name, call in calls:
                begin = time.perf_counter()
                result = call()
                times[name].append(time.perf_counter() - begin)
                del result
            calls.append(calls.pop(0))
            done += 1
            if done == warm:
                rounds = min(most, max(least, int(budget / (time.perf_counter() - start))))
    finally:
        gc.enable()
    return {name: Sample(values[warm:]) for name, values in times.items()}


class Table:
    """A Markdown table that prints each row as soon as it is there."""

    def __init__(self, *columns: str) -> None:
        self.columns, self.rows = columns, []
        print(self._line(columns), self._line(["-" * len(name) for name in columns]), sep="\n", flush=True)

    def _line(self, cells: tuple[str, ...] | list[str]) -> str:
        return "| " + " | ".join(c.rjust(len(n)) for c, n in zip(cells, self.columns, strict=True)) + " |"

    def row(self, *cells: object) -> None:
        self.rows.append([str(cell) for cell in cells])
        print(self._line(self.rows[-1]), flush=True)

    def markdown(self) -> str:
        rule = "|" + " ---: |" * len(self.columns)
        return "\n".join([self._line(self.columns), rule, *map(self._line, self.rows)])


class Report:
    """Paragraphs and tables, printed as they come and kept for a file."""

    def __init__(self, title: str) -> None:
        self.title, self.parts, self.cells, self.missed = title, [], 0, 0

    def say(self, text: str) -> None:
        self.parts.append(text)
        print(f"\n{text}\n", flush=True)

    def table(self, *columns: str) -> Table:
        self.parts.append(Table(*columns))
        return self.parts[-1]

    def judge(self, value: float, *, at_most: float = math.inf, at_least: float = 0, digits: int = 2) -> str:
        """The figure, marked when it misses its goal; counted either way."""
        value = round(value, digits)
        missed = not round(at_least, digits) <= value <= at_most
        self.cells, self.missed = self.cells + 1, self.missed + missed
        return f"{value:.{digits}f} {MISS if missed else ' '}"

    def close(self, path: Path | None) -> None:
        kept = f"{self.cells - self.missed} of {self.cells} figures reach their goals"
        self.say(kept + (f"; {MISS} marks the others." if self.missed else "."))
        if path is None:
            return
        texts = [part if isinstance(part, str) else part.markdown() for part in self.parts]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join([f"# {self.title}", f"```\n{command()}\n```", machine(), *texts]) + "\n")
        print(path)


def add_report_option(parser: argparse.ArgumentParser, name: str) -> None:
    file = Path(__file__).parent / "reports" / f"{datetime.now(timezone.utc):%Y-%m-%d}-{name}.md"
    told = f"write a report (bench/reports/{file.name})"
    parser.add_argument("--report", nargs="?", type=Path, const=file, metavar="FILE", help=told)


def command() -> str:
    """The command line, with what of the environment matters to speed; no folder of this machine."""
    names = sorted(n for n in os.environ if n.startswith(("POM_", "OMP_", "MKL_", "ONEDNN_", "KMP_")))
    settings = [f"{name}={os.environ[name]}" for name in names]
    return shlex.join([*settings, "python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def kernels() -> str:
    """The instruction set that libpom's kernels take on this processor (pom/ops/cpu/dispatch.cpp)."""
    flags = _cpuinfo("flags").split()
    wide = {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= set(flags)
    names = ["base", "avx2", "avx512", "avx512bf16"]
    level = (3 if "avx512_bf16" in flags else 2) if wide else int({"avx2", "fma"} <= set(flags))
    wanted = os.environ.get("POM_CPU_ISA", "")
    return names[min(level, names.index(wanted)) if wanted in names else level]


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def _commit() -> str:
    here = Path(__file__).parent
    git = ["git", "describe", "--always", "--dirty=+changes", "--abbrev=10"]
    try:
        said = subprocess.run(git, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" ({said})"


def machine() -> str:
    """One line on the machine, one on what ran."""
    processor = f"{_cpuinfo('model name') or platform.machine()}, family {_cpuinfo('cpu family') or '?'}"
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC · {processor} model {_cpuinfo('model') or '?'}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads  \n"
        f"libpom {libpom.__version__}{_commit()}, kernels {kernels()} · torch {torch.__version__} "
        f"({torch.backends.cpu.get_cpu_capability()}) · Python {platform.python_version()}"
    )
