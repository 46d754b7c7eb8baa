"""Runs the parts of the test suite one after the other, all of them even where one fails, and ends with the
totals.

    .venv/bin/python tests/run.py [--preset release] [--all] [part ...]

The parts are those of PARTS below; without a name all run. A case of GoogleTest or pytest counts as one, and
so does each check of another kind. Each fuzz target runs for 5 seconds ($FUZZ_SECONDS).
`make test-all` runs more: --all compiles every file alone and the kernels as they ship, `pip install .` is
tried ($LIBPOM_TEST_PIP), and so is the container. What needs a GPU is counted as skipped, as are the CUDA
kernels where nvcc is not installed; tests/gpu.py runs it, and a part of it runs on an emulated GPU
(tests/emulated_gpu.py). Plain Python, no packages.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [ROOT / folder for folder in ("pom", "cli", "tests", "bench", "python")]
CXX_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
# Of pom/kernels/CMakeLists.txt: the first are translated without ptxas's optimizer, in half the time.
KERNEL_TARGETS = ["pom_kernels_portable", "pom_kernel_programs", "pom_kernels_hopper"]
ALL_KERNEL_TARGETS = ["pom_kernels_compiled", "pom_kernel_programs"]
KERNEL_SECONDS = 480  # what is not compiled by then is counted as skipped


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


class Suite:
    def __init__(self, preset: str, everything: bool = False) -> None:
        self.preset = preset
        self.everything = everything
        self.build = ROOT / "build" / preset
        self.reports = self.build / "reports"
        self.environment = os.environ | {"PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"}
        self.environment.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # the Makefile says why
        self.jobs = os.environ.get("JOBS") or str(len(os.sched_getaffinity(0)))

    def run(self, *command: str | Path, **environment: str) -> int:
        words = [str(word) for word in command]
        line = shlex.join(words)
        print(f"$ {line if len(line) < 200 else line[:200] + ' ...'}", flush=True)
        return subprocess.run(words, cwd=ROOT, env=self.environment | environment).returncode

    def check(self, *command: str | Path) -> Count:
        return Count(passed=1) if self.run(*command) == 0 else Count(failed=1)

    def fresh_folder(self, name: str) -> Path:
        folder = self.reports / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def compile(self) -> Count:
        failed = self.run("cmake", "--preset", self.preset, "--log-level=NOTICE") or self.run(
            "cmake", "--build", self.build, "--parallel", self.jobs
        )
        return Count(failed=1) if failed else Count()

    def kernels(self) -> Count:
        """The CUDA kernels for Hopper and their programs, and the portable kernels for Ampere, compiled; each
        file counts as one."""
        nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        if nvcc is None:
            print("nvcc is not installed: the CUDA kernels are not compiled", flush=True)
            return Count(skipped=len(list((ROOT / "pom" / "kernels").rglob("*.cu"))))
        tree = ROOT / "build" / "kernels"
        if self.run("cmake", "--preset", "kernels", "--log-level=NOTICE", CUDACXX=nvcc) != 0:
            return Count(failed=1)
        targets = ALL_KERNEL_TARGETS if self.everything else KERNEL_TARGETS
        ninja = ("ninja", "-C", tree, *targets)
        every = subprocess.run(["ninja", "-C", tree, "-t", "commands", *targets], capture_output=True)
        files = every.stdout.decode().count(" -c ")
        failed, status = self.compile_files(*ninja, "-k", "0", "-j", self.jobs)
        plan = subprocess.run([*ninja, "-n"], capture_output=True)
        return kernel_count(files, plan.stdout.decode().count("Building CUDA object"), failed, status)

    def compile_files(self, *command: str | Path) -> tuple[int, int]:
        """Runs ninja for KERNEL_SECONDS at most: how many files did not compile, and its exit status, 124
        where time ran out."""
        words = ["timeout", "--signal=INT", str(KERNEL_SECONDS), *map(str, command)]
        print(f"$ {shlex.join(words)}", flush=True)
        process = subprocess.Popen(
            words, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        failed = 0
        for line in process.stdout:
            print(line, end="", flush=True)
            failed += line.startswith("FAILED: ")
        return failed, process.wait()

    def cxx(self) -> Count:
        """ctest runs the programs; each leaves a report of its cases, and one that dies leaves none."""
        folder = self.fresh_folder("c++")
        status = self.run(
            *("ctest", "--test-dir", self.build, "--output-on-failure", "--timeout", "900"),
            *("--parallel", self.jobs),
            *("--output-junit", folder / "programs.xml"),
            GTEST_OUTPUT=f"json:{folder}/",
        )
        counts = [count_googletest(report) for report in folder.glob("*.json")]
        count = sum(counts, Count())
        died = count_junit(folder / "programs.xml").failed - sum(each.failed > 0 for each in counts)
        count.failed += max(died, 1 if status != 0 and count.failed == 0 else 0)
        return count

    def python(self) -> Count:
        report = self.fresh_folder("python") / "cases.xml"
        workers = int(self.jobs) + 1  # many tests wait for processes, and leave a core to another
        status = self.run(
            *(sys.executable, "-m", "pytest", "python/tests", "-q", f"--junitxml={report}"),
            *("-n", str(workers), "--dist", "loadfile"),  # a file's tests share what they set up
            "--no-loadscope-reorder",  # the longest files first, as conftest.py has them
            LIBPOM_LIBRARY=str(self.build / "libpom.so"),
            LIBPOM_REQUIRE_EXTENSION="1",
            PYTHONPATH="python",
            OMP_WAIT_POLICY="PASSIVE",  # threads that wait leave the cores to the other workers
        )
        count = count_junit(report)
        if status != 0 and count.failed == 0:  # it ended before it could report
            count.failed = 1
        return count

    def fuzz(self) -> Count:
        report = self.fresh_folder("fuzz") / "targets.json"
        seconds = os.environ.get("FUZZ_SECONDS") or "5"
        # What a change has broken shows from one run to the next; what nobody has found yet is looked for by
        # the long tests, with other mutations each time.
        seed = "0" if self.everything else "1"
        self.run(
            *(sys.executable, "tests/fuzz/run.py", "--seconds", seconds, "--seed", seed, "--report", report)
        )
        if not report.is_file():  # it did not build
            return Count(failed=1)
        passed = [result["passed"] for result in json.loads(report.read_text())]
        return Count(passed=sum(passed), failed=len(passed) - sum(passed))

    def emulated(self) -> Count:
        """What needs a GPU, on one that is emulated: a part of it, or with --all everything."""
        words = [sys.executable, "tests/emulated_gpu.py", "--jobs", self.jobs]
        words += ["--all"] if self.everything else []
        print(f"$ {shlex.join(words)}", flush=True)
        done = subprocess.run(words, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="", flush=True)
        last = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped\s*$", done.stdout)
        count = Count(*map(int, last.groups())) if last else Count(failed=1)
        return count if done.returncode == 0 or count.failed else count + Count(failed=1)

    def outside(self) -> Count:
        return self.check("tests/outside/run.sh", self.build)

    def container(self) -> Count:
        """Each check of it counts as one."""
        words = (str(ROOT / ".venv/bin/python"), "tests/container.py")
        print(f"$ {shlex.join(words)}", flush=True)
        process = subprocess.Popen(
            words, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        count = Count()
        for line in process.stdout:
            print(line, end="", flush=True)
            count += Count(passed=line.startswith("ok "), failed=line.startswith("NOT "))
        status = process.wait()
        if status == 77:
            return Count(skipped=1)
        return count if status == 0 or count.failed else count + Count(failed=1)

    def architecture(self) -> Count:
        return self.check(sys.executable, "tests/architecture.py")

    def headers(self) -> Count:
        """What only a build with CUDA compiles, here for its syntax; `make check-headers` takes all files."""
        return self.check(sys.executable, "tests/headers.py", *([] if self.everything else ["--cuda"]))

    def format(self) -> Count:
        files = [path.relative_to(ROOT) for folder in SOURCES for path in sorted(folder.rglob("*"))]
        files = [path for path in files if path.suffix in CXX_SUFFIXES]
        return self.check("clang-format", "--dry-run", "-Werror", *files)

    def ruff(self) -> Count:
        count = self.check("ruff", "check", "--quiet", ".")
        return count + self.check("ruff", "format", "--check", "--quiet", ".")


PARTS: dict[str, Callable[[Suite], Count]] = {
    "build": Suite.compile,
    "architecture": Suite.architecture,
    "format": Suite.format,
    "ruff": Suite.ruff,
    "headers": Suite.headers,
    "kernels": Suite.kernels,
    "c++": Suite.cxx,
    "emulated": Suite.emulated,
    "python": Suite.python,
    "outside": Suite.outside,
    "fuzz": Suite.fuzz,
    "container": Suite.container,
}
ONLY_ALL = {"container"}  # without a name run by --all alone
NEED_BUILD = {"c++", "python", "outside"}


def kernel_count(files: int, rest: int, failed: int, status: int) -> Count:
    """Of so many files, where `rest` are not compiled and `failed` of these were tried. Time that ran out
    excuses those that nobody tried, and no others."""
    if status != 124:
        return Count(passed=files - rest, failed=max(rest, failed, int(status != 0)))
    print(f"{rest} of {files} files were not compiled in {KERNEL_SECONDS} s", flush=True)
    return Count(passed=files - rest, failed=failed, skipped=rest - failed)


def count_googletest(report: Path) -> Count:
    count = Count()
    for suite in json.loads(report.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                count.failed += 1
            elif case["result"] == "COMPLETED":
                count.passed += 1
            elif case["result"] == "SKIPPED":
                count.skipped += 1
    return count


def count_junit(report: Path) -> Count:
    count = Count()
    if not report.is_file():
        return count
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed += 1
        elif case.find("skipped") is not None:
            count.skipped += 1
        else:
            count.passed += 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the tests of libpom.")
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)} (default: all but the last)"
    )
    parser.add_argument("--preset", default="release", help="the build to test (CMakePresets.json)")
    parser.add_argument("--all", action="store_true", help="also what takes long: see `make test-all`")
    arguments = parser.parse_args()
    for name in arguments.parts:
        if name not in PARTS:
            parser.error(f"part: expected one of {', '.join(PARTS)}, got {name}")

    suite, table, total, broken = Suite(arguments.preset, arguments.all), [], Count(), False
    parts = [name for name in PARTS if arguments.all or name not in ONLY_ALL]
    for name in arguments.parts or parts:
        if broken and name in NEED_BUILD:
            table.append((name, "not run: the build failed", 0.0))
            continue
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        count = PARTS[name](suite)
        broken = broken or (name == "build" and count.failed > 0)
        table.append((name, str(count), time.monotonic() - start))
        total += count

    print("\n== totals")
    for name, text, seconds in table:
        print(f"{name:14}{seconds:7.1f} s   {text}")
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
