"""How long ranks wait for gradients after the backward pass, sent while it runs and sent after it.

    python bench/overlap.py --ranks 2 4

Trains one network both ways in turns, each rank a process of this machine with one thread, over Gloo, and
prints the median of the waiting of a step for both, and their ratio. The first steps of a run do not count.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    parser.add_argument(
        "--steps", type=int, default=12, help="of a run, the first four of which are left out"
    )
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--shard", default="none", help="parallel.shard")
    return parser.parse_args()


def run(options: argparse.Namespace, ranks: int, overlap: bool, folder: Path) -> list[dict]:
    """The log's lines of one run: one for every two steps."""
    settings = {
        "run.steps": options.steps,
        "run.seed": 20,
        "optimizer.cooldown": 0,
        "network.dim": options.dim,
        "network.depth": options.depth,
        "batch.size": options.batch,
        "parallel.shard": options.shard,
        "parallel.overlap": str(overlap).lower(),
        "log.every": 2,
        "log.checkpoint_every": 10**6,
        "log.sample_every": 0,
        "log.validate_every": 0,
    }
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words += ["-m", "libpom", "train", str(ROOT / "recipes/shapes-tiny.toml"), "-o", str(folder), "--quiet"]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    path = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    env.setdefault("LIBPOM_LIBRARY", str(ROOT / "build/release/libpom.so"))
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "waiting" in line and line["step"] > 4]


def main() -> None:
    options = parsed()
    print(
        f"{'ranks':>5}  {'waiting ms, sent after':>22}  {'while it runs':>13}  {'ratio':>5}  {'of a step':>9}"
    )
    for ranks in options.ranks:
        waiting: dict[bool, list[float]] = {False: [], True: []}
        steps: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            for i in range(2 * options.rounds):
                overlap = i % 2 == 1
                for line in run(options, ranks, overlap, Path(folder) / str(i)):
                    seconds = options.batch / line["pictures_per_second"]
                    waiting[overlap].append(line["waiting"] * seconds)
                    steps.append(seconds)
        after, during = (statistics.median(waiting[kind]) for kind in (False, True))
        share = during / statistics.median(steps)
        print(
            f"{ranks:5}  {after * 1e3:22.1f}  {during * 1e3:13.1f}  {during / after:5.2f}  {share:9.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
