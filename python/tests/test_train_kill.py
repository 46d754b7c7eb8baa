"""A run that is killed again and again ends as one that was never touched: weights, moments, average and
place in the data, bit for bit.

POM_KILLS=200 kills more often than CI does.
"""

import json
import os
import random
import shutil
import signal
import time

import pytest
from PIL import Image

from training import (
    checkpoints,
    differences,
    kill_at,
    kill_in_save,
    pom_train,
    program,
    read_checkpoint,
    write_checkpoint,
    write_recipe,
)

KILLS = int(os.environ.get("POM_KILLS", "12"))


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """The recipe, the run that nobody killed, and how long it took."""
    folder = tmp_path_factory.mktemp("untouched")
    recipe = write_recipe(folder)
    start = time.monotonic()
    result = pom_train(recipe, "-o", folder / "run")
    assert result.returncode == 0, result.stderr
    return recipe, folder / "run", time.monotonic() - start


def command(recipe, run, *more):
    """Goes on where there is a checkpoint; before the first one nothing may be in the way of a new start."""
    resume = ["--resume"] if checkpoints(run) else []
    return [program(), "train", str(recipe), "-o", str(run), "--quiet", *resume, *more]


def test_killed_runs_end_like_the_untouched(untouched, tmp_path):
    recipe, whole, seconds = untouched
    chance = random.Random(int(os.environ.get("POM_KILL_SEED", "1")))
    kills = in_saves = rounds = 0
    while kills < KILLS:
        run = tmp_path / f"round_{rounds}"
        for attempt in range(200):
            words = command(recipe, run)
            save = attempt % 2 == 0
            status = kill_in_save(words, chance) if save else kill_at(chance.uniform(0, seconds), words)
            assert status in (0, -signal.SIGKILL), status
            if status == 0:
                break
            kills += 1
            in_saves += save
        else:
            pytest.fail("the run made no progress")
        rounds += 1
        assert differences(whole, run) == []
        assert (whole / "model/model.safetensors").read_bytes() == (
            run / "model/model.safetensors"
        ).read_bytes()
        assert losses(whole) == losses(run)
        assert not list(run.rglob(".pom-tmp-*")), "temporaries of killed processes were left"
    print(f"{kills} kills in {rounds} runs, {in_saves} of them within a write")
    assert in_saves * 3 >= kills


def test_with_everything_that_can_differ(tmp_path):
    """Several threads and workers, pictures of a folder over some epochs, mirrored, bf16, parts, sheets."""
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(9):
            Image.new("RGB", (9 + i, 12), (20 * i, 90, 255 - 20 * i)).save(tmp_path / f"data/{name}/{i}.png")
    recipe = write_recipe(tmp_path)
    settings = ["data.kind=folder", f"data.path={tmp_path / 'data'}", "data.flip=true", "data.validation=2"]
    settings += [
        "data.workers=2",
        "run.threads=2",
        "run.precision=bf16",
        "run.steps=60",
        "batch.accumulate=2",
    ]
    settings += ["batch.checkpointing=true", "log.checkpoint_every=7", "log.every=5", "log.sample_every=25"]
    settings += ["sample.steps=2", "optimizer.cooldown=20", "network.mixer=attention", "network.heads=2"]
    words = [word for setting in settings for word in ("--set", setting)]
    whole, run = tmp_path / "whole", tmp_path / "run"
    result = pom_train(recipe, "-o", whole, *words)
    assert result.returncode == 0, result.stderr
    chance, kills = random.Random(2), 0
    while kill_in_save(command(recipe, run, *words), chance) != 0:
        kills += 1
        assert kills < 100
    assert kills >= 3
    assert differences(whole, run) == []


def losses(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def half(untouched, tmp_path_factory):
    """A run that stopped halfway."""
    run = tmp_path_factory.mktemp("half") / "run"
    result = pom_train(untouched[0], "-o", run, "--set", "run.steps=120")
    assert result.returncode == 0, result.stderr
    return run


def forget_ema(tensors, state):
    for name in list(tensors):
        if name.startswith("ema/"):
            tensors[name] = tensors["weights/" + name.removeprefix("ema/")].clone()


def forget_moments(tensors, state):
    for name in tensors:
        if name.startswith("moment"):
            tensors[name].zero_()


def forget_random(tensors, state):
    state["draws"] = 0


def forget_place(tensors, state):
    state["place"] = 0


def forget_nothing(tensors, state):
    pass


@pytest.mark.parametrize("forget", [forget_nothing, forget_ema, forget_moments, forget_random, forget_place])
def test_everything_in_a_checkpoint_is_needed(untouched, half, tmp_path, forget):
    """What a checkpoint leaves out shows in the result; what it keeps makes the result the same."""
    recipe, whole, _ = untouched
    shutil.copytree(half, tmp_path / "run")
    path = checkpoints(tmp_path / "run")[-1]
    tensors, metadata = read_checkpoint(path)
    state = json.loads(metadata["state"])
    forget(tensors, state)
    write_checkpoint(path, tensors, metadata | {"state": json.dumps(state)})
    result = pom_train(recipe, "-o", tmp_path / "run", "--resume")
    assert result.returncode == 0, result.stderr
    found = differences(whole, tmp_path / "run")
    if forget is forget_nothing:
        assert found == []
    else:
        assert [name for name in found if name.startswith(("weights/", "ema/"))]
