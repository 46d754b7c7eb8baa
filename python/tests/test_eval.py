"""`pom eval` as a person meets it, and numpy as the referee of its Fréchet distance.

The judge is trained once, for a moment, and kept in a file; the model is a tiny network of random weights.
"""

import json
import math
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import libpom
from test_cli import CONFIG, pom, write_model
from tools import built_program, built_tool

SHAPES = ["circle", "square", "triangle", "star", "heart", "ring", "cross", "moon", "diamond", "hexagon"]
BRIEF = ["--judge-steps", "30", "--seeds", "2"]


@pytest.fixture(scope="module", autouse=True)
def _program_is_there():
    built_program()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("eval")


@pytest.fixture(scope="module")
def model(folder):
    return write_model(folder / "tiny")


@pytest.fixture(scope="module")
def judge(folder, model):
    """A file that the first run writes and the others read."""
    file = folder / "judge.safetensors"
    result = pom("eval", "shapes", model, *BRIEF, "--count", 6, "--judge", file, cwd=folder)
    assert result.returncode == 0, result.stderr
    return file


def report(folder, *arguments):
    result = pom("eval", "shapes", *arguments, *BRIEF, "--json", "--quiet", cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_processes_find_what_one_finds(folder, model, judge):
    """Of each repetition every process makes a share, one of them one more."""
    words = (model, "--count", 7, "--judge", judge, "--seed", 5, "--threads", 1)
    assert report(folder, *words, "--gpus", 2) == report(folder, *words)


def test_report_for_programs(folder, model, judge):
    found = report(folder, model, "--count", 12, "--judge", judge, "--seed", 5)
    assert found["what"] == "shapes"
    assert found["model"]["name"] == "tiny" and len(found["model"]["sha256"]) == 64
    assert found["request"]["class"] == "all" and found["request"]["seed"] == 5
    assert (found["size"], found["count"], found["seeds"], found["device"]) == ([16, 16], 12, 2, "cpu")
    assert found["judge"]["steps"] == 30 and 0 < found["judge"]["held_out"] <= 1
    assert found["confusion"]["asked_for"] == CONFIG["classes"]
    assert found["confusion"]["seen_as"] == SHAPES
    counts = np.array(found["confusion"]["counts"])
    assert counts.shape == (3, 10) and (counts.sum(1) == 8).all()
    right = sum(counts[i, SHAPES.index(name)] for i, name in enumerate(CONFIG["classes"]))
    assert found["recognised"]["pictures"]["mean"] == pytest.approx(right / 24)
    by_seed = found["recognised"]["by_seed"]
    assert np.mean(by_seed) == pytest.approx(right / 24, abs=1e-6)
    assert np.std(by_seed, ddof=1) == pytest.approx(found["recognised"]["pictures"]["deviation"], abs=1e-6)
    assert set(found["by_class"]) == set(CONFIG["classes"])
    for side in ("pictures", "drawings"):
        assert sum(found["hues"][side].values()) == 24
        assert math.isfinite(found["frechet"][side]["mean"])
    assert set(found["diversity"]) == {"hue_entropy", "x", "y", "log2_radius"}
    assert found["frechet"]["pictures"]["mean"] > found["frechet"]["drawings"]["mean"]  # noise is no drawing


def test_same_again_and_other_settings(folder, model, judge):
    first = report(folder, model, "--count", 6, "--judge", judge)
    assert first == report(folder, model, "--count", 6, "--judge", judge)
    other = report(folder, model, "--count", 6, "--judge", judge, "--steps", 2, "--cfg-scale", 1)
    assert other["request"]["steps"] == 2 and other["request"]["cfg_scale"] == 1
    assert other["frechet"]["pictures"] != first["frechet"]["pictures"]
    assert other["frechet"]["drawings"] == first["frechet"]["drawings"]


def test_text_and_folder(folder, model, judge):
    where = folder / "out"
    words = ["eval", "shapes", model, *BRIEF, "--count", 6, "--judge", judge, "-o", where]
    result = pom(*words, cwd=folder)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "tiny at 16x16: 2 x 6 images, seeds 0 to 11"
    for start in ("recognised ", "hue, entropy", "position x", "size", "Frechet distance", "star "):
        assert any(line.startswith(start) for line in lines), start
    assert (where / "report.txt").read_text() == result.stdout
    assert json.loads((where / "report.json").read_text())["count"] == 6
    assert (where / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert "sampling 2/2" in result.stderr
    again = pom(*words, cwd=folder)
    assert again.returncode == 2 and "report.txt" in again.stderr
    assert pom(*words, "-y", cwd=folder).returncode == 0


@pytest.mark.parametrize("size", [32, 64])
def test_the_judges_that_ship(folder, size):
    judge = Path(__file__).resolve().parents[2] / f"assets/judges/shapes{size}.safetensors"
    found = report(folder, "--drawings", "--size", size, "--judge", judge, "--count", 60, "--seeds", 1)
    assert found["judge"]["held_out"] >= 0.999
    assert found["recognised"]["pictures"]["mean"] == 1


def test_drawings_alone(folder, judge):
    found = report(folder, "--drawings", "--size", 16, "--judge", judge, "--count", 100)
    assert "model" not in found
    assert found["confusion"]["asked_for"] == SHAPES
    assert found["diversity"]["x"]["ratio"]["mean"] == pytest.approx(1, abs=0.25)
    frechet = found["frechet"]
    assert frechet["pictures"]["mean"] == pytest.approx(frechet["drawings"]["mean"], rel=0.5)


def test_file_of_the_judge(folder, model, judge):
    with safe_open(judge, "numpy") as file:
        about = file.metadata()
    assert about["size"] == "16x16" and about["steps"] == "30"
    assert about["shapes"].split(",") == SHAPES
    other = pom("eval", "shapes", model, *BRIEF, "--size", 32, "--judge", judge, cwd=folder)
    assert other.returncode == 1
    assert "size: expected 32x32, got 16x16" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "expected what to judge"),
        (["shapes"], 2, "expected a model folder, or --drawings"),
        (["sprites", "MODEL"], 2, "shapes"),
        (["shapes", "MODEL", "--drawings"], 2, "--drawings: cannot be combined with a model"),
        (["shapes", "MODEL", "--count", "0"], 2, "--count: expected 1 to 1000000"),
        (["shapes", "MODEL", "--steps", "0"], 2, "steps"),
        (["shapes", "MODEL", "--size", "33"], 2, "size"),
        (["shapes", "MODEL", "--device", "gpu"], 2, "device: expected cpu, cuda, cuda:N or auto"),
        (["shapes", "MODEL", "--device", "cuda:120"], 2, 'device: no such device, "cuda:120"'),
        (["shapes", "MODEL", "--sheet", "sheet.gif"], 2, "sheet.gif"),
        (["shapes", "/nowhere"], 1, "/nowhere: no such folder"),
    ],
)
def test_what_is_refused(folder, model, arguments, code, message):
    words = [str(model) if word == "MODEL" else word for word in arguments]
    result = pom("eval", *words, cwd=folder)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr


def test_classes_that_are_no_shapes(folder, tmp_path):
    classes = ["circle", "otter", "star"]
    model = write_model(tmp_path / "otters", CONFIG | {"classes": classes})
    result = pom("eval", "shapes", model, cwd=tmp_path)
    assert result.returncode == 1
    assert 'expected names of shapes, got "otter"' in result.stderr


def test_devices_of_the_other_commands(folder, model):
    for words in (["sample", "--model", model], ["reproduce", "picture.png"]):
        result = pom(*words, "--device", "gpu", cwd=folder)
        assert result.returncode == 2
        assert 'device: expected cpu, cuda, cuda:N or auto, got "gpu"' in result.stderr
    with pytest.raises(libpom.Error, match="device: expected cpu"):
        libpom.Engine(model, device="gpu")
    engine = libpom.Engine(model, device="auto")
    assert engine.device.type in ("cpu", "cuda")


def referee(a, b):
    """The square root by the eigenvalues of the product itself, which the library does not form."""
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    values = np.linalg.eigvals(cov_a @ cov_b)
    shared = np.sqrt(np.maximum(values.real, 0)).sum()
    return ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * shared


@pytest.mark.parametrize(("rows", "features"), [(200, 5), (500, 64), (40, 1)])
def test_frechet_distance(tmp_path, rows, features):
    tool = built_tool("frechet_tool")
    random = np.random.default_rng(features)
    mix = random.normal(size=(features, features))
    a, b = random.normal(size=(rows, features)) @ mix, random.normal(size=(rows, features)) + 0.3
    save_file({"a": a, "b": b}, tmp_path / "features.safetensors")
    made = subprocess.run(
        [tool, tmp_path / "features.safetensors"], capture_output=True, text=True, check=True, env=os.environ
    )
    expected = (
        referee(a, b) if features > 1 else (a.mean() - b.mean()) ** 2 + (a.std(ddof=1) - b.std(ddof=1)) ** 2
    )
    assert re.fullmatch(r"[0-9.e+-]+\n", made.stdout)
    assert float(made.stdout) == pytest.approx(expected, rel=1e-8)
