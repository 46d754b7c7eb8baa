"""A streamed clip: time and memory of a block against how many came before, with the Polynomial Mixer (alone
and with a window) and with attention, whose keys and values grow.

    python bench/stream.py --report

Blocks are of 64 tokens: 32x32, patches 2x4x4, 6 layers of 192, four guided evaluations, fp32 on the CPU.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path

import svg
from timing import Report, add_report_option

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = [2, 10, 50, 100, 200]
KINDS = {"PoM": ("pom", 0), "PoM, window of 8": ("pom", 8), "attention": ("attention", 0)}
GOAL = 1.05  # the last block over the first


def measure(program: Path, mixer: str, window: int) -> list[dict]:
    words = [str(program), mixer, str(window), ",".join(map(str, BLOCKS))]
    passive = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin are slow on a busy machine
    answer = subprocess.run(words, check=True, capture_output=True, text=True, env=passive)
    return json.loads(answer.stdout)["blocks"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--svg", type=Path, help="where the plot goes")
    add_report_option(parser, "stream")
    args = parser.parse_args()
    report = Report("A streamed clip, block by block")
    measured = {name: measure(args.build / "bench/stream_bench", *kind) for name, kind in KINDS.items()}
    times = report.table("block", *(f"{name}, ms" for name in measured))
    for i, block in enumerate(BLOCKS):
        times.row(block, *(f"{rows[i]['milliseconds']:.2f}" for rows in measured.values()))
    report.say(f"Block {BLOCKS[-1]} against block {BLOCKS[0]}:")
    ends = report.table(
        "", f"block {BLOCKS[-1]} / {BLOCKS[0]}", f"resident MiB at {BLOCKS[0]}", f"at {BLOCKS[-1]}"
    )
    for name, rows in measured.items():
        ratio = rows[-1]["milliseconds"] / rows[0]["milliseconds"]
        shown = f"{ratio:.2f}" if name == "attention" else report.judge(ratio, at_most=GOAL)
        ends.row(name, shown, *(f"{row['resident_mib']:.1f}" for row in (rows[0], rows[-1])))
    if args.svg:
        series = {
            name: [(row["block"], row["milliseconds"]) for row in measured[name]]
            for name in ("PoM", "attention")
        }
        panel = svg.Panel("time of a block", series, unit=((1000, " s"), (1, " ms")))
        svg.write(args.svg, "A stream, block by block", "6 layers of 192, CPU", [panel], "blocks before")
    report.close(args.report)


if __name__ == "__main__":
    main()
