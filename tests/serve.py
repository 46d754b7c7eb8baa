#!/usr/bin/env python3
"""What `pom serve` is held to, with numbers: slow, cut, cancelled, malformed and hostile requests, many
clients, leaks, kills, ends, a soak. Where a protection can be switched off (POM_FAILPOINT), the same row
runs again without it, as a control, and then has to fail.

    make serve-test
    .venv/bin/python tests/serve.py [row ...] [--small] [--no-controls] [--soak SECONDS] [--report FILE]

Tiny models, loopback alone, every loop with an end. Ends with a table, which goes to
bench/reports/DATE-serve-test.md as well; exits with 1 where a row does not pass. `make test` has the same
rows with few requests (python/tests/test_serve_rows.py).
"""

import argparse
import datetime
import os
import platform
import shlex
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from serve_rows import bodies, cancels, clients, ends, kills, leaks, limits, raw, slow, soak
from serve_rows.world import ROOT, Measure, Row, World, busy, commit

ROWS = {
    row.name: row
    for part in (slow, clients, cancels, limits, leaks, kills, ends, bodies, raw, soak)
    for row in part.ROWS
}


class Result:
    """What came of a row: its measures, and those of its control."""

    def __init__(self, row: Row) -> None:
        self.row, self.measures, self.control = row, [], []
        self.seconds, self.load, self.failure = 0.0, "", ""

    @property
    def passed(self) -> bool:
        control = not self.control or any(
            not measure.ok
            for measure in self.control
            if not self.row.fails or measure.what.startswith(self.row.fails)
        )
        return not self.failure and all(measure.ok for measure in self.measures) and control

    def control_text(self) -> str:
        if not self.control:
            return "none"
        failed = [f"{one.what} {one.got}" for one in self.control if not one.ok]
        return "fails: " + ", ".join(failed) if failed else "**does not fail**"


def run(row: Row, world: World, controls: bool) -> Result:
    result, began = Result(row), time.monotonic()
    print(f"== {row.name}: {row.about}", flush=True)
    try:
        result.measures = row.run(world)
        show(result.measures)
        if row.control and controls:
            print(f"   control: POM_FAILPOINT={row.control}", flush=True)
            world.failpoint = row.control
            result.control = row.run(world)
            show(result.control)
    except Exception as error:  # the other rows run all the same
        result.failure = f"{type(error).__name__}: {error}"
        print(f"   {result.failure}", flush=True)
    world.failpoint = ""
    result.seconds, result.load = time.monotonic() - began, busy()
    return result


def show(measures: list[Measure]) -> None:
    for one in measures:
        print(f"   {'ok ' if one.ok else 'NOT'} {one.what}: {one.got} (asked: {one.asked})", flush=True)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table(results: list[Result]) -> list[str]:
    lines = ["| row | asked | measured | passed | control |", "|---|---|---|---|---|"]
    for result in results:
        name = f"**{result.row.name}**: {result.row.about}"
        verdict = "yes" if result.passed else "**no**"
        if result.failure:
            lines.append(f"| {cell(name)} | | {cell(result.failure)} | {verdict} | |")
        for number, one in enumerate(result.measures):
            first = number == 0
            cells = [name if first else "", f"{one.what} {one.asked}", one.got, "yes" if one.ok else "**no**"]
            cells.append(result.control_text() if first else "")
            lines.append("| " + " | ".join(map(cell, cells)) + " |")
    return lines


def write_report(path: Path, results: list[Result], arguments: argparse.Namespace) -> None:
    words = ["make serve-test"] if len(sys.argv) == 1 else [".venv/bin/python tests/serve.py"]
    passed = sum(result.passed for result in results)
    lines = [
        "# What the server is held to",
        "",
        f"    {' '.join([*words, shlex.join(sys.argv[1:])]).strip()}",
        "",
        f"At {commit()}, {platform.machine()}, {os.cpu_count()} cores; clients and server share them."
        f" {passed} of {len(results)} rows passed."
        + (" Few requests each (--small)." if arguments.small else ""),
        "",
        *table(results),
        "",
        "| row | seconds | the machine at its end |",
        "|---|---:|---|",
        *(f"| {result.row.name} | {result.seconds:.0f} | {result.load} |" for result in results),
    ]
    path.write_text("\n".join(lines) + "\n")
    print(f"written: {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="row", help=f"{', '.join(ROWS)} (default: all)")
    parser.add_argument("--small", action="store_true", help="few requests of each, as in `make test`")
    parser.add_argument("--no-controls", action="store_true")
    parser.add_argument("--soak", type=float, default=300, help="seconds of the soak (default: 300)")
    today = datetime.date.today().isoformat()
    parser.add_argument("--report", type=Path, default=ROOT / f"bench/reports/{today}-serve-test.md")
    arguments = parser.parse_args()
    for name in arguments.rows:
        if name not in ROWS:
            parser.error(f"row: expected one of {', '.join(ROWS)}, got {name}")
    results = []
    with tempfile.TemporaryDirectory(prefix="pom-serve-test-") as folder:
        for name in arguments.rows or ROWS:
            world = World(Path(folder), full=not arguments.small, soak=arguments.soak)
            results.append(run(ROWS[name], world, not arguments.no_controls))
    print()
    print("\n".join(table(results)))
    write_report(arguments.report, results, arguments)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
