"""What needs a GPU, on the emulated one: the programs of tests/kernels, the GoogleTest cases and the pytest
files of tests/gpu.py, built with the preset `emulated`. Needs CUDA's headers, but neither nvcc nor a GPU.

    .venv/bin/python tests/emulated_gpu.py [--all] [--only c++/ops/block/inference_cuda] [--jobs N]

By default a part of the cases, of every kind some, for a few minutes on two cores; --all takes all of them.
Ends with the totals; exit status 1 if something failed. Plain Python, no packages.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu import gpu_sources
from run import ROOT, Count, count_googletest, count_junit

BUILD = ROOT / "build" / "emulated"
KEPT = BUILD / "reports"
# Which cases of a program need a GPU, and which of these are enough where time is short.
CASES = {
    "emulated_torch": ("*", "*"),
    "generate/block_sampler": ("*Gpu*", "*Gpu*"),
    "generate/device": ("*Gpu*", "*Gpu*"),
    "models/clip_denoiser_cuda": (
        "*",
        "*AStreamIs*/0:*AStreamIs*/7:*GoesOn*/4:*GpuClipsInFp8*/0:*GpuClipsInFp8*/3",
    ),
    "models/network": ("*Gpu*", "*Gpu*"),
    "nn/decoder": ("*OnAGpu*", "*OnAGpu*"),
    "ops/block/block_stack_cuda": ("*", "*Shapes*/0:*Shapes*/1:GpuStacks*"),
    "ops/block/conditions_cuda": ("*", "*"),
    "ops/block/inference_cuda": ("*", "*/0:*/2:*/5"),
    "ops/cuda/masks_cuda": ("*", "*"),
    "ops/weight_copies": ("*", "*"),
    "ops/block/training_cuda": ("*", "*/0:*/3:*/8:*/12"),
    "train/optimizer": ("*RepeatedSteps*/1", "*RepeatedSteps*/1"),
}
# The programs of tests/kernels, and what of them is enough where time is short: a word behind --quick, or
# nothing of those that take minutes.
KERNELS: dict[str, str | None] = {
    "few_rows_gemm": None,
    "fold_sums": "",
    "gemm": "runs of a gate bf16",
    "gemm_backward": "",
    "masks": "causal",
    "noise": "",
    "scan": "mix bf16",
    "stack_step": None,
    "training": "",
}
# Where time is short: `pytest -k` of these files.
QUICK_FILES = {
    "test_cuda_decoder": "callers_own or updates or operator",
    "test_cuda_inference": "test_steps or updates or of_two or inference_tensors or test_composed",
    "test_cuda_training": "cross or between",
}
NOT_EMULATED_FILES = ["test_cuda_compile"]  # what torch.compile makes for a GPU needs Triton
# What asks for more than is emulated: names of kernels in a profile, 4096 x 4096 pixels, several GPUs.
NOT_EMULATED = ["test_few_tokens_are_one_kernel", "test_large_pictures_in_little_memory", "several_gpus"]


def has_cuda_headers() -> bool:
    folders = [os.environ.get(name) for name in ("CUDA_HOME", "CUDAToolkit_ROOT")]
    places = [Path(folder) for folder in folders if folder] + [Path("/usr/local/cuda")]
    return any((place / "include" / "cuda_runtime_api.h").is_file() for place in places)


def call(words: list, limit: float, **environment: str) -> tuple[int, str]:
    words = [str(word) for word in words]
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "POM_TILES": "off"} | environment
    try:
        done = subprocess.run(
            words, cwd=ROOT, env=surroundings, capture_output=True, text=True, errors="replace", timeout=limit
        )
    except subprocess.TimeoutExpired:
        return 124, f"not done after {limit:.0f} s"
    return done.returncode, done.stdout + done.stderr


def with_death(count: Count, status: int) -> Count:
    """A program that ended otherwise than by its cases is a failure of its own."""
    return count + Count(failed=1) if status != 0 and count.failed == 0 else count


def googletest(name: str, cases: str, limit: float) -> tuple[Count, str]:
    program = BUILD / "tests" / f"test_{name.replace('/', '_')}"
    report = KEPT / f"{program.name}.json"
    report.unlink(missing_ok=True)
    status, output = call([program, f"--gtest_filter={cases}"], limit, GTEST_OUTPUT=f"json:{report}")
    count = count_googletest(report) if report.is_file() else Count()
    # Each of these cases asks for a GPU and skips itself without one: here that is a failure.
    count = Count(count.passed, count.failed + count.skipped)
    if count.passed + count.failed == 0:
        count.failed = 1
    return with_death(count, status), output


def kernels(name: str, word: str | None, limit: float) -> tuple[Count, str]:
    """Some thousand checks of a program count as one case."""
    program = BUILD / "rooms" / "kernels" / f"emulated_{name}_cuda"
    status, output = call([program, "--quick", *([word] if word else [])], limit)
    return Count(passed=1) if status == 0 else Count(failed=1), output


def pytest(name: str, chosen: list[str], limit: float) -> tuple[Count, str]:
    report = KEPT / f"{name}.xml"
    report.unlink(missing_ok=True)
    words = [sys.executable, "-m", "pytest", "-q", f"python/tests/{name}.py", f"--junitxml={report}"]
    words += ["-k", " and ".join([*chosen, *(f"not {case}" for case in NOT_EMULATED)])]
    status, output = call(
        words,
        limit,
        LIBPOM_LIBRARY=str(BUILD / "libpom.so"),
        LIBPOM_REQUIRE_EXTENSION="1",
        PYTHONPATH=f"{ROOT / 'python'}:{ROOT / 'tests/emulated/python'}",
        POM_EMULATED_GPU=str(BUILD / "libpom_emulated_torch.so"),
    )
    count = count_junit(report)
    if count.passed + count.failed == 0:  # the library was not loaded, and every case skipped itself
        count.failed = 1
    return with_death(count, status), output


def unnamed() -> list[str]:
    """Tests that need a GPU and are not named here."""
    sources = [path.relative_to(ROOT / "tests").with_suffix("").as_posix() for path in gpu_sources()]
    programs = [path.stem.removesuffix("_cuda") for path in (ROOT / "tests" / "kernels").glob("*.cu")]
    return sorted({*sources, *programs} - {*CASES, *KERNELS})


def build(jobs: str) -> bool:
    targets = [
        "libpom.so",
        "pom_cli",
        "emulated_programs",
        *(f"test_{name.replace('/', '_')}" for name in CASES),
    ]
    for words in (
        ["cmake", "--preset", "emulated", "--log-level=NOTICE"],
        ["cmake", "--build", BUILD, "--parallel", jobs, "--target", *targets],
    ):
        if subprocess.run([str(word) for word in words], cwd=ROOT).returncode != 0:
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the tests that need a GPU on an emulated one.")
    parser.add_argument("--all", action="store_true", help="all cases")
    parser.add_argument("--only", default="", help="kernels, c++, pytest, or one of them: c++/nn/decoder")
    parser.add_argument(
        "--limit", type=float, default=0, help="seconds for each program (default: 240, or 7200)"
    )
    parser.add_argument("--jobs", default=str(len(os.sched_getaffinity(0))))
    arguments = parser.parse_args()
    limit = arguments.limit or (7200 if arguments.all else 240)
    if missing := unnamed():
        print(f"tests/emulated_gpu.py does not name {', '.join(missing)}, which need a GPU")
        print(Count(failed=1))
        return 1
    if not has_cuda_headers():
        print("CUDA's headers are not installed (CUDA_HOME says where): nothing is emulated")
        print(Count(skipped=len(CASES) + len(list((ROOT / "python/tests").glob("test_cuda_*.py")))))
        return 0
    if shutil.which("cmake") is None or not build(arguments.jobs):
        print("the build failed")
        print(Count(failed=1))
        return 1
    KEPT.mkdir(parents=True, exist_ok=True)
    items = {
        f"kernels/{name}": lambda name=name, word=word: kernels(name, None if arguments.all else word, limit)
        for name, word in KERNELS.items()
        if arguments.all or word is not None or arguments.only == f"kernels/{name}"
    }
    items |= {
        f"c++/{name}": lambda name=name, cases=cases: googletest(name, cases[not arguments.all], limit)
        for name, cases in CASES.items()
    }

    def quick(name: str) -> list[str]:
        return [f"({QUICK_FILES[name]})"] if name in QUICK_FILES and not arguments.all else []

    for path in sorted((ROOT / "python" / "tests").glob("test_cuda_*.py")):
        if path.stem in NOT_EMULATED_FILES:
            continue
        if arguments.all or path.stem in QUICK_FILES or arguments.only == f"pytest/{path.stem}":
            items[f"pytest/{path.stem}"] = lambda name=path.stem: pytest(name, quick(name), limit)
    chosen = {name: item for name, item in items.items() if name.startswith(arguments.only)}
    if not chosen:
        parser.error(
            f"--only: expected kernels, c++, pytest or one of {', '.join(items)}, got {arguments.only}"
        )

    def run(name: str) -> Count:
        start = time.monotonic()
        count, output = chosen[name]()
        seconds = time.monotonic() - start
        print(f"{name:36}{seconds:7.1f} s   {count}", flush=True)
        if count.failed:
            print(output[-6000:], flush=True)
        return count

    with ThreadPoolExecutor(int(arguments.jobs)) as pool:
        total = sum(pool.map(run, chosen), Count())
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
