"""kill -9 in `pom encode` and in training from its shards: the shards' bytes, and weights, moments, average
and place in the data, are those of runs that nobody killed.

POM_KILLS=30 kills `pom encode` 30 times and training 10 times; CI does less.
"""

import os
import random
import shutil
import signal
import subprocess
import time

import pytest

import small_encoders
from training import (
    checkpoints,
    differences,
    environment,
    kill_at,
    kill_in_save,
    pom_train,
    program,
    write_recipe,
)

KILLS = int(os.environ.get("POM_KILLS", "9"))
CHANCE = int(os.environ.get("POM_KILL_SEED", "1"))
RECIPE = """
[run]
steps = 60
seed = 5
threads = 1
[data]
kind = "shards"
path = "{shards}"
size = [16, 16]
validation = 4
workers = 2
[network]
dim = 16
depth = 1
patch = 2
[codec]
kind = "autoencoder-kl"
scale = 0.6
shift = 0.1
[encoders]
vae = "{vae}"
[batch]
size = 8
[ema]
decay = 0.9
[log]
every = 10
validate_every = 30
checkpoint_every = 5
"""


def encode_words(root, out):
    words = ["encode", "pictures", root / "source", "--vae", root / "vae", "-o", out, "--size", 16, "-q"]
    words += ["--mirror", "--per-shard", 8, "--workers", 2, "--batch", 3, "--threads", 1, "--device", "cpu"]
    return [program(), *map(str, words)]


def run(words):
    began = time.monotonic()
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """An autoencoder, pictures of which one is broken, and their shards."""
    folder = tmp_path_factory.mktemp("kills")
    small_encoders.small_vae(folder / "vae")
    small_encoders.pictures(folder / "source", each=20)
    (folder / "source" / "cat" / "007.png").write_bytes(b"no picture")
    run(encode_words(folder, folder / "shards"))
    return folder


def files_of(folder):
    """All that a run leaves, apart from its lock."""
    return {path.name: path.read_bytes() for path in folder.glob("*") if not path.name.startswith(".")}


def test_encode(root, tmp_path):
    whole, out = files_of(root / "shards"), tmp_path / "out"
    assert len(whole) > 10
    words = encode_words(root, out)
    seconds = run(encode_words(root, tmp_path / "timed"))
    chance, kills, finished = random.Random(CHANCE), 0, 0
    for attempt in range(20 * KILLS):
        if attempt % 2:
            status = kill_in_save(words, chance)
        else:
            status = kill_at(chance.uniform(0.2, 1) * seconds, words)
        assert status in (0, -signal.SIGKILL), status
        kills += status != 0 and out.is_dir()  # and not while it still read its arguments
        whole_shards = {name: data for name, data in files_of(out).items() if name.endswith(".tar")}
        assert whole_shards.items() <= whole.items()
        if status == 0:
            assert files_of(out) == whole
            finished += 1
            if kills >= KILLS:
                break
            shutil.rmtree(out)
    print(f"{kills} kills in {finished} encodings")
    assert kills >= KILLS
    assert not [path for path in out.iterdir() if path.name.startswith(".pom-tmp-")]


def test_training_from_shards(root, tmp_path):
    recipe = write_recipe(tmp_path, RECIPE.format(shards=root / "shards", vae=root / "vae"))
    whole = tmp_path / "whole"
    began = time.monotonic()
    result = pom_train(recipe, "-o", whole)
    assert result.returncode == 0, result.stderr
    seconds = time.monotonic() - began
    chance, kills, rounds = random.Random(CHANCE), 0, 0
    while kills < max(3, KILLS // 3):
        out = tmp_path / f"round_{rounds}"
        for attempt in range(200):
            resume = ["--resume"] if checkpoints(out) else []
            words = [program(), "train", str(recipe), "-o", str(out), "-q", *resume]
            if attempt % 2:
                status = kill_in_save(words, chance)
            else:
                status = kill_at(chance.uniform(0.2, 1) * seconds, words)
            assert status in (0, -signal.SIGKILL), status
            if status == 0:
                break
            kills += 1
        else:
            pytest.fail("the run made no progress")
        rounds += 1
        assert differences(whole, out) == []
        for name in ("model.safetensors", "vae/diffusion_pytorch_model.safetensors"):
            assert (whole / "model" / name).read_bytes() == (out / "model" / name).read_bytes()
    print(f"{kills} kills in {rounds} runs")
