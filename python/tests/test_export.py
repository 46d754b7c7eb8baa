"""`pom export`: the model of a checkpoint as a folder, and models by the folder of their run."""

import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from training import checkpoints, pom_train, program, write_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    result = pom_train(write_recipe(folder), "-o", folder / "run", "--set", "run.steps=40")
    assert result.returncode == 0, result.stderr
    return folder / "run"


def pom(*words):
    return subprocess.run([program(), *map(str, words)], capture_output=True, text=True, timeout=120)


def test_the_newest_is_the_runs_own_model(run, tmp_path):
    result = pom("export", checkpoints(run)[-1], "-o", tmp_path / "deep" / "model")
    assert result.returncode == 0 and result.stdout.strip() == str(tmp_path / "deep" / "model"), result.stderr
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "deep/model" / name).read_bytes() == (run / "model" / name).read_bytes()


def test_earlier_ones_and_the_weights_of_the_step(run, tmp_path):
    earlier = checkpoints(run)[-2]
    said = json.loads(pom("export", earlier, "-o", tmp_path / "ema", "--json").stdout)
    assert said == {"folder": str(tmp_path / "ema"), "step": 20}
    assert pom("export", earlier, "-o", tmp_path / "raw", "--weights", "raw").returncode == 0
    now, ema, raw = (
        load_file(folder / "model.safetensors")
        for folder in (run / "model", tmp_path / "ema", tmp_path / "raw")
    )
    assert now.keys() == ema.keys() == raw.keys()
    for one, other in ((now, ema), (ema, raw), (now, raw)):
        assert any(not torch.equal(one[name], other[name]) for name in one)
    assert "circle" in json.loads((tmp_path / "ema" / "config.json").read_text())["classes"]
    made = pom(
        "sample", "-q", "--model", tmp_path / "ema", "--class", "star", "--steps", 2, "-o", tmp_path / "a.png"
    )
    assert made.returncode == 0, made.stderr


def test_a_run_is_its_model(run, tmp_path):
    for model, name in ((run, "run.png"), (run / "model", "model.png")):
        made = pom("sample", "-q", "--model", model, "--class", "star", "--steps", 2, "-o", tmp_path / name)
        assert made.returncode == 0, made.stderr
    assert (tmp_path / "run.png").read_bytes() == (tmp_path / "model.png").read_bytes()


def test_nothing_is_replaced_and_damage_is_a_failure(run, tmp_path):
    kept = (run / "model" / "model.safetensors").read_bytes()
    result = pom("export", checkpoints(run)[-2], "-o", run / "model")
    assert result.returncode == 2 and "expected a folder that is not there yet" in result.stderr
    assert (run / "model" / "model.safetensors").read_bytes() == kept
    broken = tmp_path / "step_00000040.safetensors"
    broken.write_bytes(checkpoints(run)[-1].read_bytes()[:-9])
    result = pom("export", broken, "-o", tmp_path / "out")
    assert result.returncode == 1 and not (tmp_path / "out").exists(), result.stderr
    assert pom("export", "-o", tmp_path / "out").returncode == 2
    assert pom("export", broken).returncode == 2


def test_names_of_classes_that_nobody_knows(run, tmp_path):
    """Of another place, and of data that has been renamed: the checkpoint has a hash of the names alone."""
    lone = tmp_path / "step_00000040.safetensors"
    lone.write_bytes(checkpoints(run)[-1].read_bytes())
    result = pom("export", lone, "-o", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert (
        "circle" in json.loads((tmp_path / "out" / "config.json").read_text())["classes"]
    )  # of the drawings
