"""Builds libpom.so and the program pom with cmake against the torch of the environment and puts them into the
wheel (pyproject.toml has the rest). Where torch, cmake or a compiler is missing the wheel is pure Python, and
runs on plain torch operations; where CLI11 is missing there is no program, and where toml++ is, no training.

LIBPOM_REQUIRE_EXTENSION=1   what is missing is an error
LIBPOM_DISABLE_EXTENSION=1   pure Python in any case
LIBPOM_TORCH=folder          the torch package to build against, where it is not found by itself
CMAKE_ARGS="-D..."           further arguments for cmake
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "pip"
PROGRAM = "pom"
MADE = ("libpom.so", "libpom_program.so", PROGRAM)
sys.path.insert(0, str(ROOT / "python" / "packaging"))
import torch_of_environment as environment  # noqa: E402


def flag(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def missing() -> str:
    """Why libpom.so cannot be built here; nothing when it can."""
    if flag("LIBPOM_DISABLE_EXTENSION"):
        return "LIBPOM_DISABLE_EXTENSION was set when it was installed"
    torch = environment.check()
    if torch is None:
        return "no torch was there when libpom was installed: install torch, then libpom again"
    if not (torch.cmake / "TorchConfig.cmake").is_file():
        return f"{torch.folder} has no share/cmake/Torch"
    if shutil.which("cmake") is None:
        return "no cmake was there when libpom was installed"
    if not os.environ.get("CXX") and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "no C++ compiler was there when libpom was installed"
    return ""


REASON = missing()


def configure(torch: environment.Torch) -> list[str]:
    """The cmake command; from scratch where an earlier build was of another torch or generator."""
    command = ["cmake", "-S", str(ROOT), "-B", str(BUILD), f"-DTorch_DIR={torch.cmake}"]
    command += ["-DCMAKE_BUILD_TYPE=Release", "-DPOM_TESTS=OFF", "-DPOM_BENCH=OFF"]
    # torch's libraries are in the process before ours; for the program libpom_program.py names their folders.
    command += ["-DCMAKE_SKIP_RPATH=ON"]
    command += ["-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON"]  # a wheel has no links, so one file has one name
    if ninja := shutil.which("ninja"):
        command += ["-G", "Ninja"]
    command += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    stamp, made_by = BUILD / "made_by.txt", f"{torch.version} {ninja} {shlex.join(command)}\n"
    if BUILD.is_dir() and (not stamp.is_file() or stamp.read_text() != made_by):
        command.append("--fresh")
    BUILD.mkdir(parents=True, exist_ok=True)
    stamp.write_text(made_by)
    return command


def run(command: list[str], **options: object) -> str:
    done = subprocess.run(command, text=True, **options)
    print(done.stdout or "", end="")
    if done.returncode != 0:
        raise SystemExit(
            f"libpom: {shlex.join(command)} failed. The lines above say why; LIBPOM_DISABLE_EXTENSION=1 "
            "installs the package without the library."
        )
    return done.stdout or ""


def build_library() -> list[str]:
    """Leaves the files of MADE in BUILD, as many as can be made; returns what cmake has left out, and why."""
    build = ["cmake", "--build", str(BUILD)]
    build += ["--parallel", os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count())]
    said = run(configure(environment.check()), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (BUILD / PROGRAM).unlink(missing_ok=True)  # of an earlier build, when this one may have none
    run(build)
    return re.findall(r"libpom: (.* left out: .*)", said)


class BuildWithLibrary(build_py):
    """Python files as ever, then libpom/lib: the library, the program, and build.json that says what they are
    for or why they are not."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # nothing of an earlier build may slip in
        super().run()
        package = Path("python/libpom") if self.editable_mode else Path(self.build_lib, "libpom")
        folder = package / "lib"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if REASON:
            if flag("LIBPOM_REQUIRE_EXTENSION"):
                raise SystemExit(f"libpom: LIBPOM_REQUIRE_EXTENSION is set, and {REASON}")
            print(f"libpom: without libpom.so, on plain torch operations: {REASON}", file=sys.stderr)
            note = {"reason": REASON}
        else:
            left_out = build_library()
            there = MADE if (BUILD / PROGRAM).is_file() else ("libpom.so",)
            for name in there:
                shutil.copy(BUILD / name, folder / name)
            note = {"torch": environment.find().version, "left_out": left_out}
        (folder / "build.json").write_text(json.dumps(note) + "\n")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        made = [Path(self.build_lib, "libpom", "lib", name) for name in (*MADE, "build.json")]
        return super().get_outputs(include_bytecode) + [str(path) for path in made if path.is_file()]


class WheelTag(bdist_wheel):
    """With the library: any Python 3, this platform, for it has no Python in it."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if REASON else ("py3", "none", platform)


class SourcesOfBoth(sdist):
    """The C++ side and the build's own files go along."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        more = [
            path for room in ("cli", "cmake", "pom", "python/packaging") for path in Path(room).rglob("*.*")
        ]
        more = [str(path) for path in more if path.is_file() and path.suffix != ".pyc"]
        super().make_release_tree(base_dir, sorted({*files, "CMakeLists.txt", *more}))


class MaybeBinary(Distribution):
    def has_ext_modules(self) -> bool:
        return not REASON


setup(
    distclass=MaybeBinary,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelTag, "sdist": SourcesOfBoth},
    options={"build": {"build_base": str(BUILD / "python")}},
)
