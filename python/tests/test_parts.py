"""A build that lacks a part says so: the program with another table of parts, and the table of a tree that is
configured without toml++ and with clips switched off, of which nothing else is compiled."""

import re
import subprocess
from pathlib import Path

import pytest

from test_cli import _program_is_there, environment, pom  # noqa: F401
from tools import built_tool, everything_is_demanded

ROOT = Path(__file__).resolve().parents[2]


def parts(tool):
    said = subprocess.run([tool], capture_output=True, text=True, check=True).stdout
    return {name: (state, why) for name, state, why in (line.split("\t") for line in said.splitlines())}


@pytest.fixture
def bare(tmp_path):
    """The program of a build without toml++, FFmpeg and nvcc."""
    return lambda *words: subprocess.run(
        [built_tool("bare_pom"), *words], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )


@pytest.mark.parametrize("words", [["train"], ["train", "--help"], ["bench", "figure1", "--tokens", "4"]])
def test_a_command_that_was_left_out(bare, words):
    result = bare(*words)
    assert (result.returncode, result.stdout) == (2, "")
    why = "toml++ was not found when it was built; install libtomlplusplus-dev and build again"
    assert result.stderr == f"pom {words[0]}: this build has no training: {why}\n"


def test_a_bare_build_tells(bare):
    assert 'did you mean "train"' in bare("trian").stderr
    shown = bare("--help").stdout
    assert re.search(r"^  train +left out of this build: pom --version says why$", shown, re.M)
    said = bare("--version").stdout
    for name, library in (("clips", "FFmpeg"), ("training", "toml++"), ("CUDA kernels", "nvcc")):
        assert re.search(rf"^{name} +left out: {re.escape(library)}", said, re.M), said
    doctor = bare("doctor")
    assert doctor.returncode == 0, doctor.stdout
    assert re.search(
        r"^note +training: left out of this build: pom train, plan, export, bench and", doctor.stdout, re.M
    )
    assert re.search(r"^ +-> FFmpeg's libraries were not found", doctor.stdout, re.M)
    for command in ("sample", "eval"):
        assert bare(command, "--help").returncode == 0


def test_a_tree_without_its_libraries(tmp_path):
    kept = built_tool("parts_tool").parent.parent / "CMakeCache.txt"
    generator = re.search(r"CMAKE_GENERATOR:\w+=(.*)", kept.read_text())[1]
    options = ["-DPOM_TOML_INCLUDE=", "-DPOM_CLIPS=OFF", "-DPOM_KERNELS=off", "-DPOM_BENCH=OFF"]
    for words in (
        ["cmake", "-S", ROOT, "-B", tmp_path, "-G", generator, *options],
        ["cmake", "--build", tmp_path, "--target", "parts_tool"],
    ):
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    found = parts(tmp_path / "tests" / "parts_tool")
    assert found["training"] == (
        "missing",
        "toml++ was not found when it was built; install libtomlplusplus-dev and build again",
    )
    assert found["clips"] == ("off", "it was switched off (POM_CLIPS=OFF) when it was built")
    assert found["data sets"] == ("found", "") and found["CUDA kernels"][0] != "found"


def test_version_and_doctor_have_every_part(tmp_path):
    """The program's own table is the one of its tree; where everything is demanded nothing is left out."""
    said = pom("--version", cwd=tmp_path).stdout.splitlines()
    assert re.fullmatch(r"libpom \d+\.\d+\.\d+ \(.*\)", said[0])
    lines = {line[:14].rstrip(): line[14:] for line in said[1:]}
    table = parts(built_tool("parts_tool"))
    assert list(lines) == ["LibTorch", "CPU kernels", *table]
    assert re.match(r"2\.\d+", lines["LibTorch"]) and lines["CPU kernels"].startswith("base")
    doctor = pom("doctor", cwd=tmp_path).stdout
    for name, (state, why) in table.items():
        assert re.search(rf"^(ok|note) +{name}: ", doctor, re.M), name
        if state != "found":
            assert lines[name] == f"left out: {why}"
            assert name == "CUDA kernels" or not everything_is_demanded(), lines[name]
        else:
            assert lines[name] and not lines[name].startswith("left out")
