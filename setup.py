"""Builds libpom.so with cmake against the torch of the environment and puts it into the wheel (pyproject.toml
has the rest). Where torch, cmake or a compiler is missing the wheel is pure Python, and runs on plain torch
operations.

LIBPOM_REQUIRE_EXTENSION=1   what is missing is an error
LIBPOM_DISABLE_EXTENSION=1   pure Python in any case
LIBPOM_TORCH=folder          the torch package to build against, where it is not found by itself
CMAKE_ARGS="-D..."           further arguments for cmake
"""

import json
import os
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
    command += ["-DCMAKE_BUILD_TYPE=Release", "-DPOM_TESTS=OFF", "-DPOM_BENCH=OFF", "-DPOM_CLI=OFF"]
    command += ["-DPOM_TRAIN=OFF"]  # which has no Python face
    command += ["-DCMAKE_SKIP_RPATH=ON"]  # torch's libraries are in the process before ours
    if ninja := shutil.which("ninja"):
        command += ["-G", "Ninja"]
    command += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    stamp, made_by = BUILD / "made_by.txt", f"{torch.version} {ninja} {shlex.join(command)}\n"
    if BUILD.is_dir() and (not stamp.is_file() or stamp.read_text() != made_by):
        command.append("--fresh")
    BUILD.mkdir(parents=True, exist_ok=True)
    stamp.write_text(made_by)
    return command


def build_library() -> Path:
    build = ["cmake", "--build", str(BUILD), "--target", "pom"]
    build += ["--parallel", os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count())]
    for command in (configure(environment.check()), build):
        if subprocess.run(command).returncode != 0:
            raise SystemExit(
                f"libpom: {shlex.join(command)} failed. The lines above say why; LIBPOM_DISABLE_EXTENSION=1 "
                "installs the package without the library."
            )
    return BUILD / "libpom.so"


class BuildWithLibrary(build_py):
    """Python files as ever, then libpom/lib: the library, and build.json that says what it is for or why it
    is not."""

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
            shutil.copy(build_library(), folder / "libpom.so")
            note = {"torch": environment.find().version}
        (folder / "build.json").write_text(json.dumps(note) + "\n")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        made = [Path(self.build_lib, "libpom", "lib", name) for name in ("libpom.so", "build.json")]
        return super().get_outputs(include_bytecode) + [str(path) for path in made if path.is_file()]


class WheelTag(bdist_wheel):
    """With the library: any Python 3, this platform, for it has no Python in it."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if REASON else ("py3", "none", platform)


class SourcesOfBoth(sdist):
    """The C++ side and the build's own files go along."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        more = [path for room in ("cmake", "pom", "python/packaging") for path in Path(room).rglob("*.*")]
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
