"""What a run must never do: end well with a model that is not a number, start over without being told to, or
forget what it was asked for."""

import signal
import subprocess
import time

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from training import (
    RECIPE,
    checkpoints,
    environment,
    pom_train,
    program,
    read_checkpoint,
    state_of,
    write_recipe,
)


@pytest.fixture
def short(tmp_path):
    """A run of 20 steps, and its recipe."""
    recipe = write_recipe(tmp_path)
    result = pom_train(recipe, "-o", tmp_path / "run", "--set", "run.steps=20")
    assert result.returncode == 0, result.stderr
    return recipe, tmp_path / "run"


@pytest.mark.parametrize("every", [1, 3, 5])
def test_a_run_that_stays_not_finite_fails_however_often_it_saves(tmp_path, every):
    """Steps that were skipped are no progress: a checkpoint among them must not forgive the returns."""
    text = RECIPE.replace("lr = 2e-3\nwarmup = 10", "lr = 100.0\nclip = 0.0\neps = 0.0")
    result = pom_train(
        *(write_recipe(tmp_path, text), "-o", tmp_path / "run", "--set", "run.steps=60"),
        *("--set", f"log.checkpoint_every={every}", "--set", "log.validate_every=0"),
    )
    assert result.returncode == 1, result.stderr[-500:]
    model = load_file(tmp_path / "run/model/model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in model.values()), "the model is not a number"


def test_a_cooldown_survives_a_kill_before_the_first_save(short):
    recipe, run = short
    words = [program(), "train", recipe, "-o", run, "--resume", "--quiet", "--cooldown", 10**6]
    words += ["--set", "log.checkpoint_every=1000000", "--set", "log.validate_every=0"]
    process = subprocess.Popen(list(map(str, words)), env=environment())
    deadline = time.monotonic() + 60
    while '"step": 40' not in (run / "log.jsonl").read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    state = state_of(read_checkpoint(checkpoints(run)[-1])[1])
    assert (state["cooldown_from"], state["cooldown_steps"]) == (20, 10**6)


@pytest.mark.parametrize("words", [["--cooldown", "30"], ["--init-from", "no/such/folder"]])
def test_what_a_resumed_run_cannot_take_is_said(short, words):
    """A second cooldown, or first weights for a run that has some, are not passed over in silence."""
    recipe, run = short
    assert pom_train(recipe, "-o", run, "--resume", "--cooldown", "10").returncode == 0
    result = pom_train(recipe, "-o", run, "--resume", *words)
    assert words[0] in result.stderr, result.stderr


def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_over(short):
    """The model of the run is worth more than a new beginning that nobody asked for."""
    recipe, run = short
    before = (run / "model/model.safetensors").read_bytes()
    for path in checkpoints(run):
        path.write_bytes(path.read_bytes()[:-1])
    result = pom_train(recipe, "-o", run, "--resume", "--set", "run.steps=10")
    assert result.returncode == 1, result.stderr
    assert (run / "model/model.safetensors").read_bytes() == before


def test_broken_pictures_are_named_wherever_they_are(tmp_path):
    """Also those that were held back for validation, which the loader never reads."""
    files = []
    for name in ("blue", "red"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(20):
            files.append(tmp_path / "data" / name / f"{i:02d}.jpg")
            Image.new("RGB", (12, 12), (10 * i, 30, 200)).save(files[-1])
    broken = files[::2]
    for path in broken:
        path.write_bytes(path.read_bytes()[:50])
    result = pom_train(
        *(write_recipe(tmp_path), "-o", tmp_path / "run", "--set", "data.kind=folder"),
        *("--set", f"data.path={tmp_path / 'data'}", "--set", "data.validation=4", "--set", "run.steps=80"),
    )
    assert result.returncode == 0, result.stderr
    assert [str(path) for path in broken if str(path) not in result.stderr] == []
