"""The command `pom` of an installed package, with a program that says how it was started."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = Path(__file__).resolve().parents[1] / "libpom_program.py"
PROGRAM = """#!/bin/sh
printf '%s\\n' "$LD_LIBRARY_PATH" "$@"
grep SigIgn /proc/$$/status
exit 7
"""


@pytest.fixture
def site(tmp_path):
    """An environment of packages that fail where they are imported."""
    for package in ("libpom", "torch"):
        (tmp_path / package / "lib").mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("raise ImportError('was imported')")
    (tmp_path / "nvidia/cuda_runtime/lib").mkdir(parents=True)
    (tmp_path / "torch/version.py").write_text("__version__ = '2.13.0+cpu'\n")
    shutil.copy(MODULE, tmp_path)
    install(tmp_path, {"torch": "2.13.0+cu130", "left_out": []}, PROGRAM)
    return tmp_path


def install(site, note, program=None):
    lib = site / "libpom/lib"
    (lib / "build.json").write_text(json.dumps(note))
    (lib / "pom").unlink(missing_ok=True)
    if program is not None:
        (lib / "pom").write_text(program)
        (lib / "pom").chmod(0o755)


def pom(site, *arguments):
    return subprocess.run(
        [sys.executable, "-c", "import libpom_program; libpom_program.main()", *arguments],
        env=os.environ | {"PYTHONPATH": str(site), "LD_LIBRARY_PATH": "/theirs"},
        capture_output=True,
        text=True,
    )


def test_it_becomes_the_program(site):
    done = pom(site, "sample", "--class", "a b", "")
    assert done.returncode == 7 and done.stderr == ""
    paths, *arguments, ignored = done.stdout.splitlines()
    folders = ("libpom/lib", "torch/lib", "nvidia/cuda_runtime/lib")
    assert paths.split(":") == [*(str(site / folder) for folder in folders), "/theirs"]
    assert arguments == ["sample", "--class", "a b", ""]
    pipe, size = 1 << 12, 1 << 24  # SIGPIPE and SIGXFSZ, which Python ignores
    assert int(ignored.split()[1], 16) & (pipe | size) == 0


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (
            {
                "torch": "2.13.0",
                "left_out": [
                    "training is left out: toml++ was not found (libtomlplusplus-dev)",
                    "the program pom is left out: CLI11 was not found (libcli11-dev)",
                ],
            },
            "the program pom is left out: CLI11 was not found (libcli11-dev): install that, then libpom "
            "again",
        ),
        (
            {"reason": "no cmake was there when libpom was installed"},
            "the package was installed without its compiled parts: no cmake was there when libpom was "
            "installed",
        ),
    ],
)
def test_a_program_that_was_left_out(site, note, words):
    install(site, note)
    done = pom(site)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"pom: {words}\n")


def test_another_torch(site):
    (site / "torch/version.py").write_text("__version__ = '2.12.1'\n")
    done = pom(site)
    words = "it was built for torch 2.13.0+cu130 and this is torch 2.12.1: install libpom again"
    assert (done.returncode, done.stderr) == (1, f"pom: {words}\n")


def test_a_program_that_does_not_start(site):
    (site / "libpom/lib/pom").chmod(0o644)
    done = pom(site)
    assert done.returncode == 1 and done.stderr.endswith("lib/pom cannot be started: Permission denied\n")


def test_no_torch(site):
    """Where nothing else is installed either."""
    shutil.rmtree(site / "torch")
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import libpom_program; libpom_program.main()"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "torch is not installed" in done.stderr
