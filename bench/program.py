"""The program `pom` as a person meets it: how long until it draws, and whether --dry-run told the truth.

Start-up is a whole process: one step of one small picture, from exec to the written PNG. A forecast is
compared with a run of the same flags: the seconds it reports, and its largest resident size.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from timing import Report, add_report_option, machine

ROOT = Path(__file__).resolve().parents[1]
STARTUP, FORECAST = 0.7, 0.15  # the goals: seconds, and the largest relative error
RUNS = {
    "10 of 64x64": ["--class", "all"],
    "10 of 64x64, bf16": ["--class", "all", "--dtype", "bf16"],
    "8 of 64x64, one at a time": ["--class", "star", "--count", "8", "--batch", "1"],
    "1 of 128x128": ["--class", "star", "--size", "128x128", "--steps", "10"],
    "2 of 256x256": ["--class", "star,moon", "--size", "256x256", "--steps", "5"],
    "2 of 256x256, no guidance": [
        "--class",
        "star,moon",
        "--size",
        "256x256",
        "--steps",
        "5",
        "--cfg-scale",
        "1",
    ],
}


def peak_of(pid: int) -> int:
    """The largest resident size so far; the record at the end would count the parent before exec."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def run(program: Path, *flags: str) -> tuple[dict, float, int]:
    """What it says as JSON, its wall seconds and its peak in bytes."""
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen([program, "sample", *flags, "--json", "-q"], stdout=subprocess.PIPE)
    while process.poll() is None:
        peak = max(peak, peak_of(process.pid))
        time.sleep(0.002)
    seconds = time.perf_counter() - start
    if process.returncode != 0:
        raise SystemExit(f"program.py: {' '.join(flags)}: status {process.returncode}")
    return json.loads(process.stdout.read()), seconds, peak


def startup(report: Report, program: Path, model: Path, folder: Path, times: int) -> None:
    report.say("## Start-up\n\nSeconds of the whole process, for one Euler step of one picture.")
    flags = ["--model", str(model), "--class", "star", "--steps", "1", "--sampler", "euler", "-y"]
    seconds = sorted(run(program, *flags, "-o", str(folder / "one.png"))[1] for _ in range(times))
    table = report.table("median", "10 %", "90 %")
    cut = times // 10
    median = report.judge(seconds[times // 2], at_most=STARTUP)
    table.row(median, f"{seconds[cut]:.2f}", f"{seconds[-1 - cut]:.2f}")


def forecasts(report: Report, program: Path, model: Path, folder: Path) -> None:
    report.say("## Forecasts\n\n--dry-run against the run itself; ratios of forecast to measured.")
    table = report.table("run".ljust(26), "seconds", "measured", "ratio", "MiB", "measured ", "ratio ")
    for name, flags in RUNS.items():
        common = ["--model", str(model), *flags]
        told, _, _ = run(program, *common, "--dry-run")
        made, _, peak = run(program, *common, "-o", f"{folder}/{name.replace(' ', '_')}_%03d.png", "-y")
        time_ratio, memory_ratio = told["seconds"] / made["seconds"], told["peak_bytes"] / peak
        near = {"at_least": 1 - FORECAST, "at_most": 1 + FORECAST}
        cells = [f"{told['seconds']:.2f}", f"{made['seconds']:.2f}", report.judge(time_ratio, **near)]
        mib = [f"{size / 2**20:.0f}" for size in (told["peak_bytes"], peak)]
        table.row(name, *cells, *mib, report.judge(memory_ratio, **near))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/pom")
    parser.add_argument("--model", type=Path, default=ROOT / "assets/shapes64")
    parser.add_argument("--times", type=int, default=15, help="processes of the start-up")
    add_report_option(parser, "program")
    args = parser.parse_args()
    report = Report("The program: start-up and forecasts")
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        startup(report, args.program, args.model, Path(folder), args.times)
        forecasts(report, args.program, args.model, Path(folder))
    report.close(args.report)


if __name__ == "__main__":
    main()
