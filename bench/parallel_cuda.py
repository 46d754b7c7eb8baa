"""Training on ranks, on one GPU: what NCCL at world 1 costs, whether two ranks that share the GPU over Gloo
train like one in every mode with the real kernels, what each of them keeps in memory, and what `pom plan`
says of steps that fit.

    python bench/parallel_cuda.py --report [--only nccl,exact,sequence,memory,plan]

Runs in turns, each in processes of its own; rates are medians over the lines of the log, of which the first
are left out. Memory is the most that torch's allocator gave out on rank 1, which writes no checkpoint.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import Report, add_report_option

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("LIBPOM_LIBRARY", ROOT / "build/cuda/libpom.so")).parent
MODES = ["none", "optimizer", "gradients", "parameters"]
SMALL = """
[run]
seed = 3
steps = 24
precision = "bf16"
device = "cuda"
[data]
size = [64, 64]
validation = 0
workers = 6
[network]
dim = 192
depth = 8
patch = 4
ffw_expand = 3
[batch]
size = 256
[optimizer]
lr = 1e-3
warmup = 10
[log]
every = 4
validate_every = 0
checkpoint_every = 1000000
"""
WIDE = """
[run]
seed = 3
steps = 4
precision = "bf16"
device = "cuda"
[data]
size = [{size}, {size}]
validation = 0
workers = 6
[network]
dim = 1152
depth = {depth}
patch = 2
ffw_expand = 4
[batch]
size = {batch}
[log]
every = 1
validate_every = 0
checkpoint_every = 1000000
"""
# One GPU: blocks of width 1152, side of the picture (patches of 2), batch.
STEPS = {
    "28 blocks, 256 tokens, batch 64": {"depth": 28, "size": 32, "batch": 64},
    "28 blocks, 1024 tokens, batch 16": {"depth": 28, "size": 64, "batch": 16},
    "28 blocks, 256 tokens, batch 256": {"depth": 28, "size": 32, "batch": 256},
    "12 blocks, 1024 tokens, batch 64": {"depth": 12, "size": 64, "batch": 64},
}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="nccl,exact,sequence,memory,plan", help="parts, with commas")
    parser.add_argument("--rounds", type=int, default=3, help="of nccl")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    add_report_option(parser, "parallel-cuda")
    return parser.parse_args()


def work(folder: Path, words: list[str]) -> int:
    """One rank: the program in this process, and then what its allocator gave out at most."""
    import torch

    from libpom.__main__ import program

    if torch.cuda.is_available():
        torch.cuda.init()  # else it counts nothing
    code = program(words)
    rank = os.environ.get("RANK", "0")
    told = {"code": code, "peak": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0}
    (folder / f"rank{rank}.json").write_text(json.dumps(told))
    sys.stdout.flush()
    os._exit(code)


class Runs:
    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0

    def train(self, recipe: str, ranks: int, backend: str = "", **fields: object) -> dict:
        """A training: `ranks` 0 is the process alone, without torchrun."""
        self.number += 1
        out = self.folder / f"run{self.number}"
        out.mkdir()
        path = out / "recipe.toml"
        path.write_text(recipe)
        words = ["train", str(path), "-o", str(out / "run"), "--quiet"]
        for name, value in fields.items():
            words += ["--set", f"{name.replace('__', '.')}={value}"]
        start = [sys.executable]
        if ranks > 0:
            start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        path_of = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = os.environ | {"PYTHONPATH": path_of, "OMP_NUM_THREADS": "4"}
        env["LIBPOM_LIBRARY"] = str(BUILD / "libpom.so")
        if backend:
            env["LIBPOM_BACKEND"] = backend
        command = [*start, __file__, "--worker", str(out), "--", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stderr[-3000:], file=sys.stderr, flush=True)
            return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1]}
        lines = [json.loads(line) for line in (out / "run/log.jsonl").read_text().splitlines()]
        peaks = [json.loads((out / f"rank{r}.json").read_text())["peak"] for r in range(max(1, ranks))]
        return {"run": out / "run", "lines": lines, "peaks": peaks}


def losses(result: dict) -> list[float]:
    return [line["loss"] for line in result["lines"] if "loss" in line]


def state_of(result: dict) -> dict:
    from safetensors.torch import load_file

    newest = sorted((result["run"] / "checkpoints").glob("step_*.safetensors"))[-1]
    return load_file(newest)


def different(a: dict, b: dict) -> str:
    import torch

    ours, theirs = state_of(a), state_of(b)
    if ours.keys() != theirs.keys():
        return "other tensors"
    wrong = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    return f"{len(wrong)} of {len(ours)}"


def rate(result: dict) -> float:
    lines = [line["pictures_per_second"] for line in result["lines"] if "pictures_per_second" in line]
    return statistics.median(lines[len(lines) // 4 :])


def measure_nccl(report: Report, runs: Runs, rounds: int) -> None:
    report.say(
        "## One rank in a group, NCCL within the CUDA graph of a step\n\n"
        "Images a second, in turns; the time beside that of the process alone is the median of the rounds' "
        "ratios."
    )
    kinds: dict[str, tuple[int, dict]] = {"alone": (0, {})}
    kinds |= {f"NCCL, {mode}": (1, {"parallel__shard": mode}) for mode in MODES}
    settings = {"run__steps": 400, "log__every": 20, "batch__size": 512}
    seen: dict[str, list[float]] = {name: [] for name in kinds}
    last: dict[str, dict] = {}
    for _ in range(rounds):
        for name, (ranks, fields) in kinds.items():
            result = runs.train(SMALL, ranks, **settings, **fields)
            if "failed" in result:
                report.say(f"{name}: {result['failed']}")
                continue
            seen[name].append(rate(result))
            last[name] = result
    table = report.table("", "images/s", "time / alone", "tensors of the checkpoint that differ from alone")
    for name, rates in seen.items():
        if rates:
            ratio = statistics.median(a / b for a, b in zip(seen["alone"], rates, strict=False))
            apart = different(last["alone"], last[name])
            judged = report.judge(ratio, at_most=1.02, digits=3) if name == "NCCL, none" else f"{ratio:.3f}"
            table.row(name, f"{statistics.median(rates):,.0f}", judged, apart)


def measure_exact(report: Report, runs: Runs) -> None:
    report.say(
        "## Two ranks that share the GPU over Gloo\n\n"
        "24 steps in bf16. With `parallel.exact` the checkpoint's tensors that differ from one rank's; "
        "without it, the largest relative difference of the losses."
    )
    table = report.table("", "exact: tensors that differ", "else: losses apart")
    for kind in ("adamw", "muon"):
        one = {
            flag: runs.train(SMALL, 0, optimizer__kind=kind, parallel__exact=flag)
            for flag in ("true", "false")
        }
        for mode in MODES:
            row = [f"{kind}, {mode}"]
            for flag in ("true", "false"):
                two = runs.train(
                    SMALL, 2, "gloo", optimizer__kind=kind, parallel__exact=flag, parallel__shard=mode
                )
                if "failed" in two or "failed" in one[flag]:
                    row.append(two.get("failed", one[flag].get("failed", "")))
                elif flag == "true":
                    row.append(different(one[flag], two))
                else:
                    pairs = zip(losses(one[flag]), losses(two), strict=True)
                    row.append(f"{max(abs(a - b) / a for a, b in pairs):.1e}")
            table.row(*row)


def measure_sequence(report: Report, runs: Runs) -> None:
    report.say(
        "## Tokens of each image shared by two ranks\n\n"
        "24 steps; the largest relative difference of the losses from those of one rank."
    )
    table = report.table("precision", "losses apart", "memory of rank 1 / of one rank")
    for precision in ("bf16", "fp32", "fp64"):
        small = {"batch__size": 64, "run__precision": precision}
        one = runs.train(SMALL, 0, **small)
        two = runs.train(SMALL, 2, "gloo", parallel__sequence=2, **small)
        if "failed" in one or "failed" in two:
            table.row(precision, one.get("failed", "") + two.get("failed", ""), "")
            continue
        apart = max(abs(a - b) / a for a, b in zip(losses(one), losses(two), strict=True))
        table.row(precision, f"{apart:.1e}", f"{two['peaks'][1] / one['peaks'][0]:.3f}")


def said_by(*words: str) -> dict:
    """What the program prints as JSON; of a plan of one number of GPUs its row."""
    done = subprocess.run([str(BUILD / "pom"), *words], capture_output=True, text=True)
    if not done.stdout.strip():
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def measure_memory(report: Report, runs: Runs) -> None:
    report.say(
        "## Memory of one of two ranks\n\n"
        "2 blocks of 1152, 256 tokens, a batch of 64 over both; `pom info RECIPE --gpus 2`. Goal: within 5 %."
    )
    text = WIDE.format(depth=2, size=32, batch=64)
    recipe = runs.folder / "memory.toml"
    recipe.write_text(text)
    forecast = said_by("info", str(recipe), "--gpus", "2", "--json")["training_memory"]
    table = report.table("shard", "measured MiB", "forecast MiB", "forecast / measured")
    for mode in MODES:
        result = runs.train(text, 2, "gloo", parallel__shard=mode)
        if "failed" in result:
            table.row(mode, result["failed"], "", "")
            continue
        peak = result["peaks"][1]
        judged = report.judge(forecast[mode] / peak, at_least=0.95, at_most=1.05, digits=3)
        table.row(mode, f"{peak / 2**20:,.0f}", f"{forecast[mode] / 2**20:,.0f}", judged)


def measure_plan(report: Report, runs: Runs) -> None:
    report.say(
        "## `pom plan` beside a measured step\n\n"
        "Blocks of 1152 with a feed-forward of 4, AdamW and EMA inside, bf16; measured by "
        "`pom train --dry-run`. Goal: within 10 %."
    )
    table = report.table(
        "network", "measured ms", "plan ms", "plan / measured", "measured GiB", "plan GiB", "plan / measured"
    )
    for name, sizes in STEPS.items():
        recipe = runs.folder / "plan.toml"
        recipe.write_text(WIDE.format(**sizes))
        plan = said_by("plan", str(recipe), "--gpus", "1", "--json")["rows"][0]
        out = runs.folder / f"plan{sizes['depth']}-{sizes['size']}-{sizes['batch']}"
        out.mkdir()
        env = os.environ | {"PYTHONPATH": str(ROOT / "python"), "LIBPOM_LIBRARY": str(BUILD / "libpom.so")}
        words = [
            sys.executable,
            __file__,
            "--worker",
            str(out),
            "--",
            "train",
            str(recipe),
            "--dry-run",
            "--json",
        ]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        if done.returncode != 0:
            table.row(name, done.stderr.strip().splitlines()[-1], "", "", "", "", "")
            continue
        said = json.loads(done.stdout)
        peak = json.loads((out / "rank0.json").read_text())["peak"]
        step, memory = said["seconds_per_step"] * 1e3, sum(plan["memory"].values())
        planned = plan["step_seconds"] * 1e3
        table.row(
            name,
            f"{step:.1f}",
            f"{planned:.1f}",
            report.judge(planned / step, at_least=0.9, at_most=1.1, digits=3),
            f"{peak / 2**30:.2f}",
            f"{memory / 2**30:.2f}",
            report.judge(memory / peak, at_least=0.9, at_most=1.1, digits=3),
        )


def main() -> None:
    options = parsed()
    if options.worker:
        sys.exit(work(options.worker, options.words))
    import torch

    report = Report("Training on ranks, on one GPU")
    report.say(torch.cuda.get_device_name())
    parts = options.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        if "plan" in parts:
            measure_plan(report, runs)
        if "memory" in parts:
            measure_memory(report, runs)
        if "exact" in parts:
            measure_exact(report, runs)
        if "sequence" in parts:
            measure_sequence(report, runs)
        if "nccl" in parts:
            measure_nccl(report, runs, options.rounds)
    report.close(options.report)


if __name__ == "__main__":
    main()
