"""`pip install .` in a copy of the tree, by the pip of this environment: the library is built against this
torch, no other is downloaded, and the installed package runs. What builds the library takes minutes:
$LIBPOM_TEST_PIP=1 asks for it, as `make test-all` does."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import libpom

ROOT = Path(__file__).resolve().parents[2]
asked = pytest.mark.skipif(not os.environ.get("LIBPOM_TEST_PIP"), reason="LIBPOM_TEST_PIP is not set")


def test_one_version():
    """CMake's, Python's, and the range of torch that the installer checks and the wheel depends on."""
    assert (
        re.search(r"project\(pom VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        == libpom.__version__
    )
    spec = importlib.util.spec_from_file_location("found", ROOT / "python/packaging/torch_of_environment.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules["found"] = found
    spec.loader.exec_module(found)
    (a, b), (c, d) = found.OLDEST, found.NEWEST
    assert f'"torch>={a}.{b},<{c}.{d + 1}"' in (ROOT / "pyproject.toml").read_text()
    assert found.find().version == torch.__version__
    assert found.find().folder == Path(torch.__file__).parent


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of what the build reads, so that this tree stays as it is."""
    copy = tmp_path_factory.mktemp("libpom")
    for name in ("CMakeLists.txt", "README.md", "LICENSE", "pyproject.toml", "setup.py"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, copy)
    for name in ("cli", "cmake", "pom", "python"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "lib", "*.egg-info")
        )
    return copy


def pip(tree, *arguments, **environment):
    hidden = ("LIBPOM_LIBRARY", "PYTHONPATH", "LIBPOM_REQUIRE_EXTENSION")
    env = {name: value for name, value in os.environ.items() if name not in hidden} | environment
    command = [sys.executable, "-m", "pip", "-v", *arguments]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def run_command(target, *command):
    env = {name: value for name, value in os.environ.items() if name != "LIBPOM_LIBRARY"}
    return subprocess.run(
        command, cwd=target, env=env | {"PYTHONPATH": str(target)}, capture_output=True, text=True
    )


def run_installed(target, code):
    done = run_command(target, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


PROGRAM = """
import libpom, torch
pom = libpom.PoM(16, 2, 2)
x = torch.randn(2, 9, 16)
y = pom(x, mask=libpom.causal)
z, state = pom.step_causal(x, pom.init_state(2))
torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-5)
print(libpom.__file__, libpom.has_extension())
"""


@asked
@pytest.mark.slow
@pytest.mark.parametrize("isolation", [(), ("--no-build-isolation",)], ids=["isolated", "in_place"])
def test_install(tree, tmp_path, isolation):
    status, said = pip(
        tree, "install", *isolation, "--no-deps", "--target", str(tmp_path), ".", LIBPOM_REQUIRE_EXTENSION="1"
    )
    assert status == 0, said
    assert not re.search(r"(?i)(collecting|downloading) torch", said), said
    assert re.search(r"filename=libpom-[\d.]+-py3-none-\w+_\w+\.whl", said), said
    note = json.loads((tmp_path / "libpom/lib/build.json").read_text())
    assert note == {"torch": torch.__version__, "left_out": []}
    file, extension = run_installed(tmp_path, PROGRAM).split()
    assert Path(file).parent == tmp_path / "libpom" and extension == "True"
    command = [tmp_path / "bin/pom", "sample", "--model", ROOT / "assets/shapes64", "--class", "star"]
    done = run_command(tmp_path, *command, "--steps", "2", "-o", tmp_path / "star.png")
    assert done.returncode == 0 and (tmp_path / "star.png").is_file(), done.stderr
    assert run_command(tmp_path, tmp_path / "bin/pom", "train", "--help").returncode == 0


def test_install_without_the_library(tree, tmp_path):
    status, said = pip(
        tree,
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--target",
        str(tmp_path),
        ".",
        LIBPOM_DISABLE_EXTENSION="1",
    )
    assert status == 0, said
    assert "py3-none-any.whl" in said
    assert not (tmp_path / "libpom/lib/libpom.so").exists()
    assert run_installed(tmp_path, PROGRAM).split()[1] == "False"
    done = run_command(tmp_path, tmp_path / "bin/pom", "--version")
    assert done.returncode == 1
    assert (
        "pom: the package was installed without its compiled parts: LIBPOM_DISABLE_EXTENSION" in done.stderr
    )


def test_another_torch_is_refused(tree, tmp_path):
    """Rather than letting pip replace it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.10.0'\n")
    status, said = pip(
        tree, "wheel", "--no-build-isolation", "--no-deps", ".", LIBPOM_TORCH=str(tmp_path / "torch")
    )
    assert status != 0
    assert "libpom: torch: expected 2.11 to 2.13, got 2.10.0" in said
