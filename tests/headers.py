"""`make check-headers`: every header and every source compiles alone: no unity build, no precompiled
header, nothing that another file happened to include first.

    python tests/headers.py [--torch FOLDER ...] [--cuda] [--jobs N] [file or folder ...]

--torch names a torch package, the folder that holds include/ (default: the environment's own); given several
times, all of them are tried: the oldest supported and the newest, say. --cuda takes only what a build without
CUDA never sees, with torch's headers compiled once for all of it, which is what CI runs. Only syntax is
checked, nothing is linked. What needs headers of CUDA or of a library that this machine lacks is counted as
skipped. Plain Python, no packages.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run import ROOT, Count

FOLDERS = ["pom", "cli", "tests", "bench"]
NOT_ALONE = {"tests/outside"}  # a project of its own
CUDA = re.compile(r"#include <(c10/cuda|ATen/cuda|cuda|cublas)")
# What a torch without CUDA leaves out of its own headers for CUDA.
MACROS = "c10/cuda/impl/cuda_cmake_macros.h"
COMMON = ["ATen/core/Tensor.h", "ATen/TensorOperators.h", "torch/csrc/autograd/custom_function.h"]
ABSENT = re.compile(r"fatal error: (\S+): No such file or directory")


def sources(chosen: list[Path]) -> Iterator[Path]:
    for folder in chosen:
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".h", ".cpp") and not any(name.startswith(each) for each in NOT_ALONE):
                yield path


def of_cuda(path: Path) -> bool:
    """Whether a build with CUDA sees something else in it than one without, if that sees it at all."""
    name = path.relative_to(ROOT).as_posix()
    return "_cuda." in name or name.startswith("pom/ops/cuda/") or CUDA.search(path.read_text()) is not None


def includes(torch: Path, made: Path) -> list[str]:
    folders = [torch / "include", torch / "include/torch/csrc/api/include", made]
    folders += [ROOT / "third_party/include", Path("/usr/local/cuda/include")]
    return [f"-isystem{folder}" for folder in folders if folder.is_dir()] + [f"-I{ROOT}"]


def compiler(flags: list[str]) -> list[str]:
    words = [os.environ.get("CXX", "c++"), "-std=c++20", "-fopenmp", *flags]
    words += ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-psabi", "-Werror"]
    return [*words, "-DPOM_ISA=base", f'-DPOM_TESTS_FOLDER="{ROOT}/tests"']


def common_header(folder: Path, flags: list[str]) -> list[str]:
    """Flags with which files begin with what nearly all of them include, compiled before."""
    header = folder / "common.h"
    header.write_text("".join(f"#include <{name}>\n" for name in COMMON))
    subprocess.run([*compiler(flags), "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return ["-include", str(header)]


def compile_alone(path: Path, flags: list[str]) -> tuple[Count, str]:
    name = path.relative_to(ROOT)
    words = [*compiler(flags), "-fsyntax-only"]
    if path.suffix == ".h":
        done = subprocess.run(
            [*words, "-x", "c++", "-"], input=f'#include "{name}"\n', capture_output=True, text=True
        )
    else:
        done = subprocess.run([*words, str(path)], capture_output=True, text=True)
    if done.returncode == 0:
        return Count(passed=1), ""
    absent = ABSENT.search(done.stderr)
    if absent and not (ROOT / absent[1]).is_file() and not absent[1].startswith(("torch/", "ATen/", "c10/")):
        return Count(skipped=1), f"{name}: this machine has no {absent[1]}"
    return Count(failed=1), "\n".join([f"{name} does not compile alone:", *done.stderr.splitlines()[:12]])


def torch_of_this_python() -> Path:
    import importlib.util

    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise SystemExit(
            "tests/headers.py: this Python has no torch: run ./setup, or name one with --torch FOLDER"
        )
    return Path(found.origin).parent


def check(torch: Path, files: list[Path], jobs: int, quick: bool) -> Count:
    print(f"{len(files)} files, each {'by itself' if quick else 'alone'}, with {torch}", flush=True)
    total = Count()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        if not (torch / "include" / MACROS).is_file():
            (Path(folder) / MACROS).parent.mkdir(parents=True)
            (Path(folder) / MACROS).write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
        flags = includes(torch, Path(folder))
        if quick:
            flags += common_header(Path(folder), flags)
        for count, said in pool.map(lambda path: compile_alone(path, flags), files):
            total += count
            if said:
                print(said, flush=True)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description="Compiles every header and source alone.")
    parser.add_argument(
        "paths", nargs="*", type=Path, help=f"files or folders (default: {', '.join(FOLDERS)})"
    )
    parser.add_argument("--torch", action="append", type=Path, help="a torch package, as often as you like")
    parser.add_argument("--cuda", action="store_true", help="only what a build without CUDA leaves out")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    chosen = [path.resolve() for path in arguments.paths] or [ROOT / folder for folder in FOLDERS]
    files = list(sources(chosen))
    if arguments.cuda:  # their headers are in them
        files = [path for path in files if path.suffix == ".cpp" and of_cuda(path)]
    total = Count()
    for torch in arguments.torch or [torch_of_this_python()]:
        if not (torch / "include").is_dir():
            parser.error(
                f"--torch: expected the folder of a torch package, which holds include/, got {torch}"
            )
        total += check(torch.resolve(), files, arguments.jobs, arguments.cuda)
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
