#!/usr/bin/env python3
"""The C++ tests of the server under sanitizers, without torch: rooms net and serve on a scripted backend.

    tests/sanitize.py [address,undefined] [thread]

Builds each test of tests/net and tests/serve with the sanitizer, and everything it is made of, so that
threads and memory of no prebuilt library are in the way; headers that mention tensors are given
tests/fuzz/no_torch. Then runs them. Exits with 1 where a test fails or a sanitizer says something.
`make asan` has the whole library under the address sanitizer. Needs a C++ compiler ($CXX), Boost,
GoogleTest and the libraries of the formats. Plain Python, no packages.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/fuzz"))

import run as fuzz  # noqa: E402

WORK = Path(os.environ.get("POM_SANITIZE_DIR") or ROOT / "out" / "sanitize")
COMPILER = os.environ.get("CXX") or "c++"
FLAGS = ["-std=c++20", "-O0", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
DEFINES = ["-DPOM_HAS_ZLIB=1", f'-DPOM_TESTS_FOLDER="{ROOT / "tests"}"']
LIBRARIES = [*fuzz.LIBRARIES, "gtest_main", "gtest", "pthread"]
SERVER = {"http_server", "openapi", "page", "server"}  # of fuzz.WRITERS: needed here
# Torch, what is there without Boost, and formats that the server has nothing to do with.
WITHOUT = (
    set(fuzz.WRITERS.split()) - SERVER
    | {"engine_backend", "http_server_absent", "brace_expansion", "json_labels"}
    | {
        "mapped_file",
        "npy",
        "npz",
        "npz_stream",
        "sentence_pieces",
        "sentence_pieces_file",
        "tar",
        "tar_walk",
    }
    | {"toml_fields", "webdataset", "clips_absent", "pictures_absent"}
)
PARSERS = [name for name in fuzz.PARSERS.split() if name.startswith(("generate/", "models/", "diffusion/"))]
OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def sources() -> list[Path]:
    files = [ROOT / f"pom/{name}.cpp" for name in PARSERS]
    for room in fuzz.ROOMS:
        files += [path for path in sorted((ROOT / "pom" / room).glob("*.cpp")) if path.stem not in WITHOUT]
    return [*files, *(ROOT / f"tests/fuzz/{name}.cpp" for name in ("no_clips", "samplers"))]


def tests() -> list[Path]:
    """Those that need neither torch nor the writers of clips."""
    found = [path for room in ("net", "serve") for path in sorted((ROOT / "tests" / room).glob("*.cpp"))]
    return [
        path
        for path in found
        if path.stem not in WITHOUT | {"live_video"}
        and "#include <ATen" not in path.read_text()
        and "<torch/" not in path.read_text()
    ]


def page_files() -> Path:
    """The page as bytes, as the build makes it."""
    path = WORK / "page_files.cpp"
    files = sorted(
        path for kind in ("html", "css", "js", "svg") for path in (ROOT / "pom/serve/page").glob(f"*.{kind}")
    )
    joined = ";".join(map(str, files))
    script = ROOT / "pom/serve/embed.cmake"
    subprocess.run(["cmake", f"-DOUTPUT={path}", f"-DFILES={joined}", "-P", script], check=True)
    return path


class Build:
    def __init__(self, kind: str) -> None:
        self.kind, self.folder = kind, WORK / kind.replace(",", "-")
        self.flag = f"-fsanitize={kind}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def object_of(self, source: Path) -> Path:
        name = str(source.relative_to(ROOT)) if source.is_relative_to(ROOT) else source.name
        return self.folder / (name.replace("/", "-") + ".o")

    def compile(self, source: Path) -> bool:
        cache = ["ccache"] if shutil.which("ccache") else []
        includes = [f"-I{folder}" for folder in fuzz.FOLDERS if (ROOT / folder).is_dir()]
        command = [*cache, COMPILER, *FLAGS, *DEFINES, self.flag, *includes]
        command += ["-c", source, "-o", self.object_of(source)]
        return subprocess.run(command, cwd=ROOT).returncode == 0

    def link(self, test: Path, archive: Path) -> bool:
        libraries = ["-Wl,--as-needed", *(f"-l{library}" for library in LIBRARIES)]
        # Samplers are known by being linked: nobody asks for them by name.
        own = [self.object_of(test), self.object_of(ROOT / "tests/fuzz/samplers.cpp")]
        command = [COMPILER, self.flag, *own, archive, *libraries, "-o", self.program(test)]
        return subprocess.run(command).returncode == 0

    def program(self, test: Path) -> Path:
        return self.folder / f"{test.parent.name}_{test.stem}"

    def make(self, pool: ThreadPoolExecutor) -> bool:
        library, own = [*sources(), page_files()], tests()
        largest_first = sorted([*library, *own], key=lambda path: -path.stat().st_size)
        if not all(list(pool.map(self.compile, largest_first))):
            return False
        archive = self.folder / "server.a"
        archive.unlink(missing_ok=True)
        subprocess.run(["ar", "qc", archive, *map(self.object_of, library)], check=True)
        return all(list(pool.map(lambda test: self.link(test, archive), own)))

    def run(self, test: Path) -> tuple[bool, str]:
        result = subprocess.run(
            [self.program(test), "--gtest_brief=1"],
            env=os.environ | OPTIONS,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=900,
        )
        said = result.stdout + result.stderr
        good = result.returncode == 0 and "Sanitizer" not in said
        cases = [line for line in said.splitlines() if "tests ran" in line or "PASSED" in line]
        return good, f"{self.kind}: {test.parent.name}/{test.stem}: " + (
            (cases[-1].strip() if cases else "passed")
            if good
            else f"exit {result.returncode}\n{said[-6000:]}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["address,undefined", "thread"])
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    results = []
    for kind in arguments.kinds:
        build, began = Build(kind), time.monotonic()
        with ThreadPoolExecutor(fuzz.JOBS) as pool:
            if not build.make(pool):
                return 1
        print(f"{kind}: built in {time.monotonic() - began:.0f} s", flush=True)
        for test in tests():  # one after the other: some measure times
            results.append(build.run(test))
            print(results[-1][1], flush=True)
    failed = sum(not good for good, _ in results)
    print(f"{len(results) - failed} programs passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
