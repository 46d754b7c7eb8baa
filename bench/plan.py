"""What `pom plan` says beside what this machine takes: steps of one process, collectives of several over
Gloo, steps of several, and the memory of each.

    python bench/plan.py --report

Link speeds are fitted to some sizes of messages and tried on others; steps of one process are predicted by
`pom plan --gpu cpu`, which trains networks of a third and two thirds of the blocks; steps of several by that
of one and by the fitted link. Processes share the machine's cores, with one thread each. Where other programs
are at work the fastest rounds say most: of messages the fastest of 28, of steps the fastest fifth.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import Report, add_report_option

FITTED = [1 << 14, 1 << 17, 1 << 20]  # numbers of a message
TRIED = [1 << 16, 1 << 18, 1 << 19, 1 << 21]
RECIPE = """
[run]
threads = 1
seed = 3
[data]
size = [{size}, {size}]
validation = 0
workers = 1
[network]
dim = {dim}
depth = {depth}
patch = 2
[batch]
size = {batch}
[log]
every = 1
validate_every = 0
checkpoint_every = 1000000
"""
ALONE = {
    "dim 64, depth 4, 64 tokens": {"dim": 64, "depth": 4, "size": 16, "batch": 32},
    "dim 128, depth 8, 64 tokens": {"dim": 128, "depth": 8, "size": 16, "batch": 16},
    "dim 192, depth 6, 256 tokens": {"dim": 192, "depth": 6, "size": 32, "batch": 8},
    "dim 384, depth 5, 16 tokens": {"dim": 384, "depth": 5, "size": 8, "batch": 16},
}
TOGETHER = {"dim": 256, "depth": 6, "size": 8, "batch": 16}  # 11 M parameters


def fastest(times: list[float]) -> float:
    """What a fifth of them stays below."""
    return sorted(times)[len(times) // 5]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each measurement, of which the fastest counts"
    )
    parser.add_argument("--only", choices=["alone", "collectives", "together", "memory"])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    add_report_option(parser, "plan")
    return parser.parse_args()


# ---- collectives ----


def exchange_in_rounds(options: argparse.Namespace) -> None:
    """What one rank does: the seconds of each collective and size go into a file."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    ranks = options.of
    dist.init_process_group(
        "gloo", init_method=f"file://{options.folder}/store", rank=options.rank, world_size=ranks
    )
    times = {}
    for numbers in sorted(FITTED + TRIED):
        whole, other = torch.ones(numbers), torch.ones(numbers)
        mine = torch.ones(numbers // ranks)
        calls = {
            "sum": lambda whole=whole: dist.all_reduce(whole),
            "gather": lambda whole=whole, mine=mine: dist.all_gather_single(whole, mine),
            "exchange": lambda whole=whole, other=other: dist.all_to_all_single(whole, other),
        }
        for name, call in calls.items():
            rounds = []
            for _ in range(30):
                dist.barrier()
                begin = time.perf_counter()
                call()
                rounds.append(time.perf_counter() - begin)
            times[f"{name} {numbers}"] = rounds[2:]
    every = [None] * ranks
    dist.all_gather_object(every, times)
    if options.rank == 0:  # who is last says how long it took
        slowest = {
            key: min(max(each) for each in zip(*(t[key] for t in every), strict=True)) for key in times
        }
        (options.folder / "times.json").write_text(json.dumps(slowest))
    dist.destroy_process_group()


def collective_times(ranks: int) -> dict[tuple[str, int], float]:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--of", str(ranks), "--folder", folder, "--rank"]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen([*words, str(rank)], env=env) for rank in range(ranks)]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise RuntimeError("a rank failed")
        times = json.loads((Path(folder) / "times.json").read_text())
    return {(name, int(size)): t for (name, size), t in ((key.split(), t) for key, t in times.items())}


def model_terms(name: str, numbers: int, ranks: int) -> tuple[float, float]:
    """(bytes, latencies) of pom/train/links.cpp on one machine."""
    share = 4 * numbers * (ranks - 1) / ranks
    rounds = math.ceil(math.log2(ranks))
    return {"sum": (2 * share, 2 * rounds), "gather": (share, rounds), "exchange": (share, ranks - 1)}[name]


def fitted_link(times: dict[tuple[str, int], float], names: list[str], ranks: int) -> tuple[float, float]:
    """Seconds a byte and seconds of latency, by least squares of relative errors over the sizes FITTED."""
    rows = [(*model_terms(name, size, ranks), times[name, size]) for name in names for size in FITTED]
    a, b, t = ([row[i] / row[2] for row in rows] for i in (0, 1, 2))
    aa, ab, bb = (sum(x * y for x, y in zip(p, q, strict=True)) for p, q in ((a, a), (a, b), (b, b)))
    at, bt = (sum(x * y for x, y in zip(p, t, strict=True)) for p in (a, b))
    determinant = aa * bb - ab * ab
    return (at * bb - bt * ab) / determinant, max(0.0, (bt * aa - at * ab) / determinant)


def measure_collectives(report: Report) -> dict[int, tuple[float, float]]:
    report.say(
        "## Collectives over Gloo\n\n"
        "Milliseconds, and the model's over the measured ones. For each number of ranks one link, "
        "GB/s and latency, is fitted to messages of 16 Ki, 128 Ki and 1 Mi numbers, exchanges and "
        "gathers together (sums apart, by the same sizes); the sizes below are others."
    )
    table = report.table("ranks", "collective", "numbers", "measured ms", "model ms", "model/measured")
    links = {}
    for ranks in (2, 4):
        times = collective_times(ranks)
        fits = {"sum": fitted_link(times, ["sum"], ranks)}
        links[ranks] = fits["gather"] = fits["exchange"] = fitted_link(times, ["gather", "exchange"], ranks)
        for name in ("sum", "gather", "exchange"):
            for size in TRIED:
                volume, latencies = model_terms(name, size, ranks)
                predicted = volume * fits[name][0] + latencies * fits[name][1]
                real = times[name, size]
                table.row(
                    ranks,
                    name,
                    size,
                    f"{real * 1e3:.3f}",
                    f"{predicted * 1e3:.3f}",
                    f"{predicted / real:.2f}",
                )
    for ranks, (per_byte, latency) in links.items():
        report.say(f"{ranks} ranks: {1e-9 / per_byte:.3f} GB/s, {latency * 1e6:.0f} µs (exchange and gather)")
    return links


# ---- steps ----


def program() -> str:
    return str(Path(os.environ["LIBPOM_LIBRARY"]).with_name("pom"))


def pom(*words: object) -> dict:
    result = subprocess.run(
        [program(), *map(str, words), "--json"], capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


def write_recipe(folder: Path, **sizes: int) -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(**sizes))
    return path


def measure_alone(report: Report, rounds: int) -> None:
    report.say(
        "## A step of one process\n\n"
        "`pom plan RECIPE --gpu cpu --gpus 1` and `pom train RECIPE --dry-run`, in turns, one thread; "
        f"the fastest of {rounds} rounds of each. Goal: within 10 %."
    )
    table = report.table("network", "measured ms", "plan ms", "plan/measured", "spread of measured")
    for name, sizes in ALONE.items():
        with tempfile.TemporaryDirectory() as folder:
            recipe = write_recipe(Path(folder), **sizes)
            plans, steps = [], []
            for _ in range(rounds):
                plans.append(pom("plan", recipe, "--gpu", "cpu", "--gpus", 1)["rows"][0]["step_seconds"])
                steps.append(pom("train", recipe, "--dry-run")["seconds_per_step"])
        real, planned = min(steps), min(plans)
        judged = report.judge(planned / real, at_least=0.9, at_most=1.1)
        spread = (max(steps) - min(steps)) / 2 / real
        table.row(name, f"{real * 1e3:.1f}", f"{planned * 1e3:.1f}", judged, f"{spread:.0%}")


def torchrun(ranks: int, *words: object) -> list[str]:
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*agent, "-m", "libpom", *map(str, words)]


def step_of_ranks(ranks: int, recipe: Path, folder: Path, shard: str, steps: int = 16) -> float:
    """The fastest fifth of the last steps."""
    run = folder / f"run-{time.monotonic_ns()}"
    sets = ["--set", f"run.steps={steps}", "--set", f"parallel.shard={shard}"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    words = torchrun(ranks, "train", recipe, *sets, "-o", run, "--quiet")
    subprocess.run(words, check=True, capture_output=True, env=env)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    rates = [line["pictures_per_second"] for line in lines if "pictures_per_second" in line]
    return fastest([TOGETHER["batch"] / rate for rate in rates[steps // 4 :]])


def measure_together(report: Report, rounds: int, links: dict[int, tuple[float, float]]) -> None:
    report.say(
        "## Steps of several processes\n\n"
        "The step of one rank, measured, and the link of the table above go into `pom plan --gpu cpu "
        "--step-ms X --link L`; `pom train` under torchrun is measured, one thread for each rank, "
        f"everything in turns; the fastest of {rounds} rounds of each. dim {TOGETHER['dim']}, depth "
        f"{TOGETHER['depth']}, batch {TOGETHER['batch']}."
    )
    table = report.table(
        "ranks", "shard", "one rank ms", "measured ms", "plan ms", "plan/measured", "exchange by the plan ms"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, **TOGETHER)
        for ranks, (per_byte, latency) in links.items():
            for shard in ("none", "optimizer", "gradients"):
                found = []
                for _ in range(rounds):  # the step of one rank each time anew: the machine changes
                    one = step_of_ranks(1, recipe, folder, "none")
                    real = step_of_ranks(ranks, recipe, folder, shard)
                    link = f"gloo={1e-9 / per_byte}:{latency * 1e6}"
                    words = ["--gpu", "cpu", "--gpus", ranks, "--step-ms", one * 1e3, "--link", link]
                    row = pom("plan", recipe, *words, "--set", f"parallel.shard={shard}")["rows"][0]
                    found.append((one, real, row["step_seconds"], row["communication"]["exposed"]))
                one, real, planned, exchanged = (min(each) for each in zip(*found, strict=True))
                times = (f"{t * 1e3:.1f}" for t in (one, real, planned))
                table.row(ranks, shard, *times, f"{planned / real:.2f}", f"{exchanged * 1e3:.1f}")


# ---- memory ----


def resident(process: int) -> int:
    """Bytes of the process, without files that are mapped."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def children(process: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def memory_of_ranks(ranks: int, recipe: Path, folder: Path, shard: str) -> int:
    """What a rank that writes no checkpoints holds while it trains; the run is stopped then."""
    run = folder / f"run-{time.monotonic_ns()}"
    words = torchrun(ranks, "train", recipe, "--set", f"parallel.shard={shard}", "-o", run, "--quiet")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    most, log = {}, run / "log.jsonl"
    while not (log.exists() and log.read_text().count("\n") >= 8):
        if process.poll() is not None:
            raise RuntimeError("training ended too soon")
        if log.exists() and log.read_text().count("\n") >= 2:
            for child in children(process.pid):
                most[child] = max(most.get(child, 0), resident(child))
        time.sleep(0.02)
    process.terminate()
    process.wait()
    return min(most.values())


def measure_memory(report: Report) -> None:
    report.say(
        "## Memory\n\n"
        "MiB of anonymous memory that a rank holds which writes no checkpoints, beyond what it holds "
        "with a network of 16 numbers' width, and what `pom plan` counts. dim 512, depth 6, 16 "
        "tokens, batch 4. Goal: within 10 %."
    )
    table = report.table("ranks", "shard", "measured MiB", "plan MiB", "plan/measured")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny = write_recipe(folder, dim=16, depth=1, size=8, batch=4).rename(folder / "tiny.toml")
        recipe = write_recipe(folder, dim=512, depth=6, size=8, batch=4)
        for ranks in (2, 4):
            nothing = memory_of_ranks(ranks, tiny, folder, "none")
            for shard in ("none", "optimizer", "gradients"):
                real = memory_of_ranks(ranks, recipe, folder, shard) - nothing
                words = ["--gpu", "cpu", "--gpus", ranks, "--step-ms", 1, "--link", "1:1"]
                planned = pom("plan", recipe, *words, "--set", f"parallel.shard={shard}")["rows"][0][
                    "memory_bytes"
                ]
                judged = report.judge(planned / real, at_least=0.9, at_most=1.1)
                table.row(ranks, shard, f"{real / 2**20:.0f}", f"{planned / 2**20:.0f}", judged)


def main() -> None:
    options = parsed()
    if options.rank is not None:
        exchange_in_rounds(options)
        return
    report = Report("pom plan beside what was measured")
    if options.only in (None, "alone"):
        measure_alone(report, options.rounds)
    if options.only in (None, "collectives", "together"):
        links = measure_collectives(report)
        if options.only != "collectives":
            measure_together(report, options.rounds, links)
    if options.only in (None, "memory"):
        measure_memory(report)
    report.close(options.report)


if __name__ == "__main__":
    main()
