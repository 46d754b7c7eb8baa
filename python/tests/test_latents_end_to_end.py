"""From pictures and clips to samples, by the program's own commands and with random weights: encode, train on
the shards, sample, decode. diffusers decodes the same latents."""

import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import libpom
import small_encoders
from tools import built_program, referee
from training import environment, pom_train, write_recipe

Image = referee("PIL.Image")

pytestmark = pytest.mark.usefixtures("extension")

SCALE, SHIFT = 0.6, 0.1
PICTURES = """
[run]
steps = 12
seed = 5
threads = 1
[data]
kind = "shards"
path = "{shards}"
size = [16, 16]
validation = 4
workers = 1
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
size = 4
[log]
every = 4
validate_every = 12
[sample]
sampler = "euler"
steps = 2
"""
CLIPS = """
[run]
steps = 6
seed = 3
threads = 1
[data]
kind = "clip_shards"
path = "{shards}"
size = [24, 16]
frames = 16
fps = 16
validation = 1
workers = 1
[network]
kind = "vdipom"
dim = 16
depth = 1
patch = 2
patch_time = 2
[codec]
kind = "cogvideox"
scale = 0.7
[text]
kind = "t5"
width = 16
limit = 24
[encoders]
vae = "{vae}"
text = "{text}"
[batch]
size = 2
latest_block = 31
[log]
every = 3
validate_every = 6
[sample]
sampler = "euler"
steps = 1
cfg_scale = 1.0
"""


def pom(*words):
    done = subprocess.run(
        [str(built_program()), *map(str, words)],
        env=environment(OMP_NUM_THREADS=1),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def eight_bits(x):
    return ((x.clamp(-1, 1) + 1) * 127.5).numpy()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The folder of a model that was trained on encoded pictures, and diffusers' autoencoder."""
    root = tmp_path_factory.mktemp("images")
    vae = small_encoders.small_vae(root / "vae", SCALE, SHIFT)
    source, shards = small_encoders.pictures(root / "source"), root / "shards"
    pom("encode", "pictures", source, "--vae", root / "vae", "-o", shards, "--size", 16, "--mirror",
        "--device", "cpu", "--per-shard", 10, "-q")  # fmt: skip
    recipe = write_recipe(root, PICTURES.format(shards=shards, vae=root / "vae"))
    pom("train", recipe, "-o", root / "run", "-q")
    return root / "run" / "model", vae


def test_pictures(images, tmp_path):
    model, vae = images
    config = json.loads((model / "config.json").read_text())
    assert config["codec"] == {"kind": "autoencoder-kl", "scale": SCALE, "shift": SHIFT}
    assert config["classes"] == ["cat", "dog"]
    picture, latents = tmp_path / "dog.png", tmp_path / "dog.safetensors"
    pom("sample", "--model", model, "--class", "dog", "--seed", 1, "-o", picture, "--save-latents", latents)
    made = load_file(latents)["latents"]
    assert made.shape == (1, 4, 8, 8)
    with torch.no_grad():
        expected = vae.decode(made / SCALE + SHIFT).sample[0].permute(1, 2, 0)
    assert np.abs(np.array(Image.open(picture)).astype(float) - eight_bits(expected)).max() <= 0.51
    again = libpom.codecs.load(model / "vae").decode(made / SCALE + SHIFT)[0].permute(1, 2, 0)
    assert (again - expected).abs().max() < 5e-6 * expected.abs().max()


def test_it_learned_something(images):
    """The log of the run: losses of every kind are there and finite, and validation is on means."""
    lines = [json.loads(line) for line in (images[0].parent / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 3 and np.isfinite(losses).all()
    assert any("validation_loss" in line for line in lines)


@pytest.fixture(scope="module")
def streamer(tmp_path_factory):
    """Likewise of clips with captions."""
    root = tmp_path_factory.mktemp("clips")
    vae = small_encoders.small_video_vae(root / "vae", 0.7)
    small_encoders.small_t5(root / "text")
    source, shards = small_encoders.clips(root / "source"), root / "shards"
    pom("encode", "clips", source, "--vae", root / "vae", "--text", root / "text", "--text-limit", 24,
        "--frames", 16, "--size", "24x16", "--device", "cpu", "-o", shards, "-q")  # fmt: skip
    recipe = write_recipe(root, CLIPS.format(shards=shards, vae=root / "vae", text=root / "text"))
    pom("train", recipe, "-o", root / "run", "-q")
    return root / "run" / "model", vae


WISH = {"prompt": small_encoders.SENTENCES[0], "seed": 4}


def test_a_stream_is_the_whole_clip_and_diffusers_decode(streamer):
    model, vae = streamer
    engine = libpom.Engine(model)
    assert engine.block_frames == 8
    clip, _ = engine.sample(**WISH, frames=40)
    latents, _ = engine.sample(**WISH, frames=40, output="latents")
    assert clip.shape == (1, 40, 16, 24, 3) and latents.shape == (1, 4, 10, 4, 6)
    with torch.no_grad():
        expected = vae.decode(latents / 0.7).sample[0].permute(1, 2, 3, 0)
    assert np.abs(clip[0].numpy().astype(float) - eight_bits(expected)).max() <= 0.51
    streamed = torch.stack(list(engine.stream(**WISH, frames=40)))
    assert (streamed.int() - clip[0].int()).abs().max() <= 1


def resident():
    """Bytes of this process in memory."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def test_a_stream_of_200_blocks_has_flat_memory(streamer):
    """What is kept of a block for good would be at least its latents, or its frames: 1.7 MB in 180 blocks.
    An allocator's own noise is below that after 20 blocks."""
    engine = libpom.Engine(streamer[0])
    at = {}
    for frame, picture in enumerate(engine.stream(**WISH, frames=1600), 1):
        assert picture.shape == (16, 24, 3)
        if frame in (160, 1600):
            at[frame] = resident()
    assert frame == 1600
    assert at[1600] - at[160] < 1 << 20, f"{at[160]} bytes after 20 blocks, {at[1600]} after 200"


# ---- recipes that do not go with their shards, and models that cannot be


def refusal(recipe, run, *sets):
    words = [word for each in sets for word in ("--set", each)]
    done = pom_train(recipe, "-o", run, *words)
    assert done.returncode == 2 and not run.exists(), done.stderr
    return done.stderr


def test_clips_of_another_length_are_refused(streamer, tmp_path):
    root = streamer[0].parents[1]
    recipe, shards = root / "tiny.toml", root / "shards"
    assert f"train: data.frames, data.fps: expected 16 and 16, as {shards} says, got 8 and 16" in refusal(
        recipe, tmp_path / "run", "data.frames=8"
    )
    assert "expected 16 and 16, as" in refusal(recipe, tmp_path / "run", "data.fps=8")
    assert "codec.scale, codec.shift: expected 0.7 and 0, as" in refusal(
        recipe, tmp_path / "run", "codec.scale=1"
    )
    assert "data.path: expected latents of whole blocks of network.patch_time (8) frames, got 4" in refusal(
        recipe, tmp_path / "run", "network.patch_time=8"
    )
    cuts = ("batch.cut=0.5", "batch.cut_frames=4")
    assert "batch.cut_frames: expected clips that are whole blocks" in refusal(
        recipe, tmp_path / "run", *cuts
    )


def test_the_authors_clips_of_another_length_are_refused(streamer, tmp_path):
    """Their files do not say how long clips were: the autoencoder does."""
    root, theirs = streamer[0].parents[1], tmp_path / "theirs"
    theirs.mkdir()
    buffer = io.BytesIO()
    latents, text = np.zeros((4, 4, 4, 6), np.float16), np.zeros((24, 16), np.float16)
    np.savez(buffer, latents, text, np.ones(24, np.float16), "a caption")
    with tarfile.open(theirs / "chunk_0.tar", "w") as tar:
        for i in range(3):
            member = tarfile.TarInfo(f"sample_{i}.npz")
            member.size = len(buffer.getvalue())
            tar.addfile(member, io.BytesIO(buffer.getvalue()))
    (theirs / "index.json").write_text(json.dumps([{"filename": "chunk_0.tar", "count": 3}]))
    sets = (f"data.path={theirs}", "data.frames=32", "codec.scale=1")
    expected = f"data.frames: expected a number of which encoders.vae makes 4 latent frames, as {theirs} has"
    assert f"{expected}, got 32, which make 8" in refusal(root / "tiny.toml", tmp_path / "run", *sets)
    done = pom_train(root / "tiny.toml", "-o", tmp_path / "run", "--set", sets[0], "--set", "run.steps=1")
    assert done.returncode == 0, done.stderr


def test_blocks_that_the_autoencoder_cannot_decode_are_refused(streamer, tmp_path):
    expected = (
        "patch_time: expected an even number, as codec cogvideox decodes latent frames two by two, got 1"
    )
    root = streamer[0].parents[1]
    assert expected in refusal(root / "tiny.toml", tmp_path / "run", "network.patch_time=1")
    model = tmp_path / "model"
    shutil.copytree(streamer[0], model)
    config = json.loads((model / "config.json").read_text())
    config["network"]["patch_time"] = 1
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(libpom.Error, match=expected):
        libpom.Engine(model)
