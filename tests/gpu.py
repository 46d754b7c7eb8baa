"""`make gpu-test`: every test and benchmark that needs a CUDA GPU; ends with the totals and writes a report.

    python tests/gpu.py [--only part[/name],...] [--out DIR] [--full]

The parts are build, kernels, c++, pytest, sanitizer and bench; a name chooses within one, as in
`--only bench/figure1`. The build tree (build/cuda) and what each item came to are kept, so that parts may run
in separate calls: the report in bench/reports/ is made anew from all of them after each call. FULL=1 or
--full runs all cases of the kernels' tests and all sizes of the benchmarks.

Exit status: 0 where nothing failed, and where there is no GPU, with everything counted as skipped; 1 where
something failed; 2 wrong usage. Plain Python, which must be the one that has torch and pytest.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from run import ROOT, Count, count_googletest, count_junit

BUILD = ROOT / "build" / "cuda"
KEPT = BUILD / "gpu"  # what the items came to, and what they wrote
HERE = KEPT.relative_to(ROOT)  # the same for commands that reports repeat: they run in the root
# Groups of the kernels' tests that go under compute-sanitizer; "": all of a program that is short.
SANITIZED = {
    "gemm_cuda": ["sums bf16", "gate e4m3", "runs of a gate bf16", "splits bf16"],
    "gemm_backward_cuda": [""],
    "few_rows_gemm_cuda": [""],
    "scan_cuda": ["mix bf16"],
    "masks_cuda": ["window bf16"],
    "stack_step_cuda": ["graph"],
}
SLOW = 200  # seconds for a run of compute-sanitizer
COMPILERS = ["c++", "g++-13", "g++-12", "g++-14"]  # in this order, for nvcc takes not every version
BARE = 77  # the exit status of a test program that finds no GPU it is for
PARTS = ["build", "kernels", "c++", "pytest", "sanitizer", "bench"]


@dataclass
class Result:
    name: str  # part/item
    count: Count
    why: str = ""  # of a failure, or of having been skipped
    command: str = ""
    seconds: float = 0
    said: str = ""  # what belongs into the report
    date: str = ""

    @property
    def outcome(self) -> str:
        if self.count.failed:
            return "failed"
        return "passed" if self.count.passed else "skipped"


@dataclass
class Gpu:
    name: str
    capability: str  # "9.0"
    driver: str

    @property
    def architecture(self) -> str:
        """As nvcc writes it. The kernels for Hopper use what only its own variant 90a has."""
        return {"9.0": "90a"}.get(self.capability, self.capability.replace(".", ""))

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower().replace("nvidia", "")).strip("-")


@dataclass
class Machine:
    """Where the items run."""

    gpu: Gpu
    full: bool
    log: Path
    compiler: str = ""
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    programs: dict[Path, "Path | Result"] = field(default_factory=dict)  # those built in this call

    def run(self, words: list[object], limit: float, **environment: str) -> tuple[int, str, float]:
        """Exit status, output and seconds; 124 past `limit`. Shown and logged as it ends."""
        line = shown(words)
        print(f"$ {line}", flush=True)
        start = time.monotonic()
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=ROOT,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
            status = process.returncode
        except subprocess.TimeoutExpired:
            output, status = stop(process), 124
        except KeyboardInterrupt:
            stop(process)
            raise
        seconds = time.monotonic() - start
        with self.log.open("a") as log:
            log.write(f"$ {line}\n{output}\n[exit {status}, {seconds:.1f} s]\n\n")
        return status, output, seconds


def stop(process: subprocess.Popen) -> str:
    """Ends what was started here, with everything that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def shown(words: list[object]) -> str:
    """A command line as one types it in the root of the repository."""
    names = ["python3" if word == sys.executable else str(word) for word in words]
    return shlex.join(names).replace(f"{ROOT}/", "")


def tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])


def find_gpu() -> Gpu | None:
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    lines = said.strip().splitlines()
    return Gpu(*(part.strip() for part in lines[0].split(","))) if lines else None


def find_nvcc() -> str | None:
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def fitting_compiler(nvcc: str) -> str | None:
    """The first C++ compiler that nvcc takes and that knows C++20; CXX alone where it is set."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cu"
        source.write_text("#include <concepts>\n#include <span>\n__global__ void kernel() {}\n")
        for name in [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS:
            if shutil.which(name) is None:
                continue
            words = [nvcc, "-std=c++20", f"-ccbin={name}", "-c", str(source), "-o", f"{folder}/probe.o"]
            if subprocess.run(words, capture_output=True).returncode == 0:
                return name
    return None


def has_header(compiler: str, name: str) -> bool:
    words = [compiler, "-x", "c++", "-E", "-"]
    return subprocess.run(words, input=f"#include <{name}>\n", capture_output=True, text=True).returncode == 0


# --- the items of each part: (name, how it is run) ---

Item = Callable[[Machine], Result]


def passed(machine: Machine, words: list[object], limit: float, **environment: str) -> Result:
    """One program that says by its exit status how it went; its last line is told."""
    status, output, seconds = machine.run(words, limit, **environment)
    last = tail(output, 1).replace(f"{ROOT}/", "")
    result = Result("", Count(passed=1), command=shown(words), seconds=seconds)
    if status == BARE:
        result.count, result.why = Count(skipped=1), last
    elif status != 0:
        result.count = Count(failed=1)
        result.why = f"not done after {limit:.0f} s" if status == 124 else f"exit {status}: {last}"
        print(tail(output, 40))
    else:
        result.said = last
    return result


def missing(why: str) -> Result:
    return Result("", Count(skipped=1), why)


def gpu_sources() -> list[Path]:
    """The C++ tests that have cases for a GPU."""
    every = sorted((ROOT / "tests").rglob("*.cpp"))
    emulated = ROOT / "tests" / "emulated"
    return [path for path in every if emulated not in path.parents and "at::hasCUDA()" in path.read_text()]


def target_of(source: Path) -> str:
    return "test_" + source.relative_to(ROOT / "tests").with_suffix("").as_posix().replace("/", "_")


def configure(machine: Machine) -> Result:
    tests = "ON" if has_header(machine.compiler, "gtest/gtest.h") else "OFF"
    words = ["cmake", "--preset", "cuda", f"-DPOM_PYTHON={sys.executable}", f"-DPOM_TESTS={tests}"]
    words += ["-DPOM_BENCH=OFF", f"-DPOM_CUDA_ARCHITECTURES={machine.gpu.architecture}-real"]
    words += [f"-DCMAKE_CXX_COMPILER={shutil.which(machine.compiler)}"]
    words += [f"-DCMAKE_CUDA_HOST_COMPILER={shutil.which(machine.compiler)}"]
    return passed(machine, words, 300, CUDACXX=find_nvcc() or "")


def targets(machine: Machine) -> list[str]:
    """Those of the ones we need that this build has."""
    _, listing, _ = machine.run(["ninja", "-C", BUILD, "-t", "targets", "all"], 60)
    known = {line.split(":")[0] for line in listing.splitlines()}
    wanted = ["pom", "pom_cli", *(target_of(source) for source in gpu_sources())]
    return [name for name in wanted if name in known]


def compile_all(machine: Machine) -> Result:
    jobs = os.environ.get("JOBS") or str(len(os.sched_getaffinity(0)))
    words = ["cmake", "--build", BUILD, "--parallel", jobs, "--target", *targets(machine)]
    return passed(machine, words, 3600)


def kernel_library(machine: Machine) -> Path | None:
    """libpom's kernels and what they share with the processor as an archive; neither of them knows torch."""
    folders = [("kernels", "pom_kernels"), ("base", "pom_base")]
    objects = [
        path
        for room, target in folders
        for path in sorted((BUILD / "rooms" / room / "CMakeFiles" / f"{target}.dir").rglob("*.o"))
    ]
    library = HERE / "libkernels.a"
    if not objects:
        return None
    if not is_newer(ROOT / library, objects):
        (ROOT / library).unlink(missing_ok=True)
        machine.run(["ar", "rcs", library, *objects], 60)
    return library


def is_newer(path: Path, parts: list[Path]) -> bool:
    return path.is_file() and path.stat().st_mtime > max(part.stat().st_mtime for part in parts)


def program_of(source: Path, machine: Machine) -> Path | Result:
    """A test or benchmark of the kernels alone, built by nvcc where what it is made of is newer."""
    if source not in machine.programs:
        machine.programs[source] = build_program(source, machine)
    return machine.programs[source]


def build_program(source: Path, machine: Machine) -> Path | Result:
    library = kernel_library(machine)
    if library is None:
        return Result("", Count(failed=1), "build/cuda has no kernels: run the part build first")
    program = KEPT / f"{source.parent.name}_{source.stem}"
    if is_newer(program, [source, *source.parent.glob("*.cuh"), ROOT / library]):
        return program
    architecture = machine.gpu.architecture
    words = [find_nvcc(), "-std=c++20", "-O3", f"-ccbin={machine.compiler}", "-I."]
    words += [f"-gencode=arch=compute_{architecture},code=sm_{architecture}", source, library]
    if has_header(machine.compiler, "cublasLt.h") or Path("/usr/local/cuda/include/cublasLt.h").is_file():
        words += ["-lcublasLt"]
    built = passed(machine, [*words, "-o", program], 600)
    return built if built.count.failed else program


def kernel_test(source: Path) -> Item:
    def item(machine: Machine) -> Result:
        program = program_of(source, machine)
        if isinstance(program, Result):
            return program
        return passed(
            machine, [program, *([] if machine.full else ["--quick"])], 1800 if machine.full else 300
        )

    return item


def cxx_test(source: Path) -> Item:
    def item(machine: Machine) -> Result:
        program = BUILD / "tests" / target_of(source)
        if not program.is_file():
            return missing("not built: GoogleTest is not installed, or its room is left out")
        report = KEPT / f"{target_of(source)}.json"
        report.unlink(missing_ok=True)
        result = passed(machine, [program], 600, GTEST_OUTPUT=f"json:{report}")
        if report.is_file():
            result.count = with_death(count_googletest(report), result)
        return result

    return item


def with_death(count: Count, result: Result) -> Count:
    """What the cases came to, and one failure more where the program failed and none of them did."""
    return count + Count(failed=1) if result.count.failed and not count.failed else count


def pytest_file(source: Path) -> Item:
    def item(machine: Machine) -> Result:
        report = KEPT / f"{source.stem}.xml"
        report.unlink(missing_ok=True)
        words = [sys.executable, "-m", "pytest", "-q", source, f"--junitxml={report}"]
        result = passed(machine, words, 3600 if machine.full else 590, **python_environment())
        result.count = with_death(count_junit(report), result) if report.is_file() else result.count
        return result

    return item


def python_environment() -> dict[str, str]:
    return {
        "LIBPOM_LIBRARY": str(BUILD / "libpom.so"),
        "LIBPOM_REQUIRE_EXTENSION": "1",
        "PYTHONPATH": str(ROOT / "python"),
    }


def sanitizer(tool: str, source: Path, group: str) -> Item:
    """compute-sanitizer over some groups of a kernels' test: it slows a kernel down a hundredfold."""

    def item(machine: Machine) -> Result:
        checker = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        if checker is None:
            return missing("compute-sanitizer is not installed")
        program = program_of(source, machine)
        if isinstance(program, Result):
            return program
        words = [checker, "--tool", tool, "--error-exitcode", "9", program, "--quick", *filter(None, [group])]
        status, output, seconds = machine.run(words, SLOW)
        summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", output)
        result = Result("", Count(passed=1), "", shown(words), seconds, "; ".join(summary))
        if "Device not supported" in output:
            result.count, result.why = Count(skipped=1), "compute-sanitizer does not support this device"
        elif status == 124 and not re.search(r"^=+ (Error|Warning|Invalid)", output, re.M):
            result.count, result.why = (
                Count(skipped=1),
                f"not done after {SLOW} s; nothing was found until then",
            )
        elif status != 0:
            result.count, result.why = (
                Count(failed=1),
                f"exit {status}: {'; '.join(summary) or tail(output, 1)}",
            )
        return result

    return item


def bench(words: Callable[[Machine], list[object] | Result], limit: float) -> Item:
    """A benchmark; its whole output goes into the report."""

    def item(machine: Machine) -> Result:
        line = words(machine)
        if isinstance(line, Result):
            return line
        if not Path(str(line[0])).is_file():
            return missing(f"{shown(line[:1])} was not built")
        status, output, seconds = machine.run(
            line, limit * (6 if machine.full else 1), **python_environment()
        )
        result = Result("", Count(passed=1), "", shown(line), seconds, output.strip())
        if status == BARE:
            result.count, result.why, result.said = Count(skipped=1), tail(output, 1), ""
        elif status != 0:
            result.count, result.why = Count(failed=1), f"exit {status}: {tail(output, 1)}"
        return result

    return item


def kernel_bench(source: Path, *flags: str) -> Callable[[Machine], list[object] | Result]:
    def words(machine: Machine) -> list[object] | Result:
        program = program_of(source, machine)
        return program if isinstance(program, Result) else [program, *flags]

    return words


def pom_bench(*words: str, folder: str) -> Callable[[Machine], list[object]]:
    return lambda machine: [BUILD / "pom", "bench", *words, "--device", "cuda", "-o", HERE / folder, "-y"]


def paper_bench(machine: Machine) -> list[object]:
    quick = ["--quick", "--ffw", "4", "--tokens", "256,1024,4096,16384", "--backward-tokens", "1024,4096"]
    page = ["--report", HERE / "paper.md"]
    return [sys.executable, ROOT / "bench" / "paper_cuda.py", *page, *([] if machine.full else quick)]


def layer_bench(*words: str) -> Callable[[Machine], list[object]]:
    page = HERE / ("-".join(["layer", *(word.strip("-") for word in words)]) + ".md")
    line = [sys.executable, ROOT / "bench" / "layer_cuda.py", *words, "--report", page]
    return lambda machine: [*line, *([] if machine.full else ["--quick"])]


def decode_bench(machine: Machine) -> list[object]:
    return [sys.executable, ROOT / "bench" / "decode_cuda.py"]


def masks_bench(machine: Machine) -> list[object]:
    return [sys.executable, ROOT / "bench" / "masks_cuda.py", *(["--composed"] if machine.full else [])]


def items() -> dict[str, Item]:
    """Everything, in the order in which it runs."""
    found: dict[str, Item] = {"build/configure": configure, "build/compile": compile_all}
    for source in sorted((ROOT / "tests" / "kernels").glob("*_cuda.cu")):
        found[f"kernels/{source.stem}"] = kernel_test(source)
    for source in gpu_sources():
        found[f"c++/{source.relative_to(ROOT / 'tests').with_suffix('')}"] = cxx_test(source)
    for source in sorted((ROOT / "python" / "tests").glob("test_cuda_*.py")):
        found[f"pytest/{source.stem}"] = pytest_file(source)
    for tool in ("memcheck", "racecheck"):
        for source in sorted((ROOT / "tests" / "kernels").glob("*_cuda.cu")):
            for group in SANITIZED.get(source.stem, []):
                name = "-".join([tool, source.stem, *group.split()])
                found[f"sanitizer/{name}"] = sanitizer(tool, source, group)
    for source in sorted((ROOT / "bench").glob("*_cuda.cu")):
        found[f"bench/{source.stem}"] = bench(kernel_bench(source), 300)
    found["bench/gemm_cuda-clips"] = bench(kernel_bench(ROOT / "bench" / "gemm_cuda.cu", "--clips"), 300)
    found["bench/figure1"] = bench(pom_bench("figure1", folder="figure1"), 590)
    found["bench/figure1-fp8"] = bench(
        pom_bench("figure1", "--dtype", "fp8", "--tokens", "1024,4096,16384", folder="figure1-fp8"), 300
    )
    found["bench/video"] = bench(pom_bench("video", folder="video"), 300)
    found["bench/operator"] = bench(pom_bench("operator", folder="operator"), 300)
    found["bench/operator-causal"] = bench(
        pom_bench("operator", "--mask", "causal", folder="operator-causal"), 300
    )
    found["bench/decode"] = bench(decode_bench, 120)
    found["bench/masks"] = bench(masks_bench, 120)
    found["bench/layer"] = bench(layer_bench(), 590)
    found["bench/layer-autocast"] = bench(layer_bench("--autocast"), 590)
    found["bench/paper"] = bench(paper_bench, 590)
    return found


# --- running them, and what is kept ---


def file_of(name: str) -> Path:
    return KEPT / "results" / (re.sub(r"[^a-z0-9+]+", "-", name.lower()) + ".json")


def keep(result: Result) -> None:
    path = file_of(result.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(result)))


def kept(names: list[str]) -> Iterator[Result]:
    for name in names:
        if file_of(name).is_file():
            fields = json.loads(file_of(name).read_text())
            yield Result(**fields | {"count": Count(**fields["count"])})


def run_all(chosen: dict[str, Item], machine: Machine) -> list[Result]:
    results, broken = [], False
    for name, item in chosen.items():
        print(f"\n== {name}", flush=True)
        result = Result("", Count(failed=1), "the build failed") if broken else item(machine)
        result.name, result.date = name, f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
        broken = broken or (name.startswith("build/") and result.outcome == "failed")
        print(f"{result.outcome}: {result.count} {result.why or result.said}"[:2000], flush=True)
        keep(result)
        results.append(result)
    return results


def prepare_programs(chosen: dict[str, Item], machine: Machine) -> None:
    """Compiles the kernels' own programs side by side; one that fails is told by its item."""
    folders = {"kernels": ROOT / "tests" / "kernels", "bench": ROOT / "bench"}
    parts = [name.split("/", 1) for name in chosen]
    sources = [folders[part] / f"{stem}.cu" for part, stem in parts if part in folders]
    sources = [source for source in sources if source.is_file()]
    if kernel_library(machine):
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda source: program_of(source, machine), sources))


def versions(machine: Machine) -> str:
    def first(*words: object, pattern: str = r"(.*)") -> str:
        try:
            said = subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=ROOT).stdout
        except OSError:
            return "?"
        found = re.search(pattern, said)
        return found[1].strip() if found else "?"

    torch = first(sys.executable, "-c", "import torch; print(torch.__version__, 'CUDA', torch.version.cuda)")
    commit = first("git", "describe", "--always", "--dirty=+changes", "--abbrev=10")
    program = first(BUILD / "pom", "--version") if (BUILD / "pom").is_file() else "?"
    return (
        f"{machine.gpu.name}, compute capability {machine.gpu.capability}, driver {machine.gpu.driver}  \n"
        f"nvcc {first(find_nvcc(), '--version', pattern=r'release ([0-9.]+)')}, "
        f"{machine.compiler} {first(machine.compiler, '-dumpfullversion')}, torch {torch}  \n"
        f"{program} · commit {commit}"
    )


def report_text(results: list[Result], machine: Machine) -> str:
    total = sum((result.count for result in results), Count())
    lines = ["# Tests and benchmarks on a GPU", versions(machine), f"**{total}**"]
    rows = ["| item | passed | failed | skipped | seconds | |", "|---|---:|---:|---:|---:|---|"]
    for r in results:
        note = (r.why or ("" if r.name.startswith("bench/") else r.said)).replace("|", "\\|")
        counts = f"{r.count.passed} | {r.count.failed} | {r.count.skipped}"
        rows.append(f"| {r.name} | {counts} | {r.seconds:.0f} | {note} |")
    lines += ["\n".join(rows), "## Commands"]
    lines.append("\n".join(["```", *(f"{r.command}   # {r.date}" for r in results if r.command), "```"]))
    for r in results:
        if r.name.startswith("bench/") and r.said:
            lines += [f"## {r.name.removeprefix('bench/')}", f"```\n{r.said}\n```"]
    return "\n\n".join(lines) + "\n"


def write_report(machine: Machine, out: Path | None) -> None:
    text = report_text(list(kept(list(items()))), machine)
    path = ROOT / "bench" / "reports" / f"{datetime.now(timezone.utc):%Y-%m-%d}-gpu-{machine.gpu.slug}.md"
    path.write_text(text)
    print(f"\n{path.relative_to(ROOT)}")
    if out is None:
        return
    shutil.copy(path, out)
    for file in sorted(KEPT.glob("*/*.svg")) + sorted(KEPT.glob("*.md")):
        name = file.name if file.parent == KEPT else f"{file.parent.name}{file.suffix}"
        shutil.copy(file, out / name)


def chosen_items(only: str, parser: argparse.ArgumentParser) -> dict[str, Item]:
    every = items()
    if not only:
        return every
    wanted = only.split(",")
    for name in wanted:
        if not any(item == name or item.startswith(f"{name}/") for item in every):
            parser.error(f"--only: expected {', '.join(PARTS)}, or a part/name of these, got {name}")
    return {
        item: run
        for item, run in every.items()
        if any(item == name or item.startswith(f"{name}/") for name in wanted)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the tests and benchmarks of libpom that need a GPU.")
    parser.add_argument("--only", default="", help=f"of {', '.join(PARTS)}; or part/name")
    parser.add_argument("--out", type=Path, help="a folder for the log, the report and the plots")
    parser.add_argument("--full", action="store_true", default=os.environ.get("FULL", "") not in ("", "0"))
    arguments = parser.parse_args()
    chosen = chosen_items(arguments.only, parser)
    gpu = find_gpu()
    if gpu is None:
        print(f"no GPU here: {Count(skipped=len(chosen))}")
        return 0
    nvcc = find_nvcc()
    compiler = fitting_compiler(nvcc) if nvcc else None
    if compiler is None:
        wanted = "a C++20 compiler that nvcc takes (CXX says which)" if nvcc else "nvcc (CUDACXX says where)"
        print(f"there is a GPU ({gpu.name}), but not {wanted}: {Count(failed=1)}")
        return 1
    KEPT.mkdir(parents=True, exist_ok=True)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    machine = Machine(gpu, arguments.full, (arguments.out or KEPT) / "gpu.log", compiler)
    builds = {name: item for name, item in chosen.items() if name.startswith("build/")}
    results = run_all(builds, machine)
    rest = {name: item for name, item in chosen.items() if name not in builds}
    if not any(result.outcome == "failed" for result in results):
        prepare_programs(rest, machine)
        results += run_all(rest, machine)
    write_report(machine, arguments.out)
    total = sum((result.count for result in results), Count())
    print("\n== totals")
    for result in results:
        print(f"{result.name:36}{result.seconds:7.1f} s   {result.outcome:8}{result.count}  {result.why}")
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
