"""Models on latents: an autoencoder and a text encoder within the model's folder, through the engine and the
program. Random weights; diffusers decodes the same latents."""

import json
import os
import shutil
import subprocess
import sys

import numpy
import pytest
import torch

import libpom
from small_encoders import randomised
from tools import built_program, referee

diffusers = referee("diffusers")
transformers = referee("transformers")
sentencepiece = referee("sentencepiece")

pytestmark = pytest.mark.usefixtures("extension")

SCALE, SHIFT = 0.6, 0.1


def config_of(folder, **sections):
    (folder / "config.json").write_text(json.dumps({"format": 1} | sections))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A DiPoM of 3 classes on latents of a small AutoencoderKL."""
    folder = tmp_path_factory.mktemp("images")
    vae = diffusers.AutoencoderKL(
        block_out_channels=[8, 16, 16], norm_num_groups=4, latent_channels=4,
        down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
    )  # fmt: skip
    randomised(vae, 1).save_pretrained(folder / "vae")
    torch.manual_seed(2)
    network = libpom.models.DiPoM(dim=32, depth=2, patch=2, channels=4, classes=3)
    randomised(network, 3)
    libpom.models.save(
        network,
        folder,
        classes=["a", "b", "c"],
        codec=libpom.models.CodecConfig(kind="autoencoder-kl", scale=SCALE, shift=SHIFT),
        sample=libpom.models.SampleDefaults(size=(48, 32), steps=2, sampler="euler", cfg_scale=1.5),
    )
    return folder, vae


def decoded(vae, latents):
    with torch.no_grad():
        x = vae.decode(latents / SCALE + SHIFT).sample
    return (x.clamp(-1, 1) + 1) * 127.5


def test_pictures_are_what_diffusers_decodes(images):
    folder, vae = images
    engine = libpom.Engine(folder)
    latents, _ = engine.sample(class_=["a", "c"], seed=3, output="latents")
    assert latents.shape == (2, 4, 8, 12)
    pictures, requests = engine.sample(class_=["a", "c"], seed=3)
    assert pictures.shape == (2, 32, 48, 3) and requests[0]["width"] == 48
    expected = decoded(vae, latents).permute(0, 2, 3, 1)
    assert (pictures.float() - expected).abs().max() <= 0.51
    one, _ = engine.sample(class_="c", seed=requests[1]["seed"])
    assert torch.equal(one[0], pictures[1])  # whoever is beside it


def test_begins_with_a_picture(images):
    folder, vae = images
    engine = libpom.Engine(folder)
    picture = (torch.rand(32, 48, 3) * 255).to(torch.uint8)
    again, _ = engine.sample(class_="a", init=picture, strength=0.0)
    with torch.no_grad():
        x = (picture.float() / 127.5 - 1).permute(2, 0, 1)[None]
        mean = vae.encode(x).latent_dist.mode()
        expected = (vae.decode(mean).sample.clamp(-1, 1) + 1) * 127.5
    assert (again[0].float() - expected[0].permute(1, 2, 0)).abs().max() <= 0.51


PEAK_OF = """
import os, sys
quiet = os.open(os.devnull, os.O_WRONLY)
run = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, quiet, 1)])
_, status, usage = os.wait4(run, 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run_pom(*words, ok=True):
    done = subprocess.run([built_program(), *map(str, words)], capture_output=True, text=True)
    assert (done.returncode == 0) == ok, done.stderr
    return done


def test_the_program_samples_reproduces_and_forecasts(images, tmp_path):
    folder, _ = images
    run_pom("sample", "--model", folder, "--class", "b", "--seed", "5", "-o", tmp_path / "b.png")
    pictures, _ = libpom.Engine(folder).sample(class_="b", seed=5, output="numpy")
    from PIL import Image

    assert (
        pictures[0] == torch.tensor(list(Image.open(tmp_path / "b.png").getdata())).reshape(32, 48, 3).numpy()
    ).all()
    assert "vae_sha256" in Image.open(tmp_path / "b.png").text["pom"]
    run_pom("reproduce", tmp_path / "b.png", "--model", folder)
    forecast = json.loads(run_pom("sample", "--model", folder, "--dry-run", "--json").stdout)
    assert forecast["fits"] is True
    run_pom("info", folder)
    run_pom("doctor", folder)


def test_decodes_in_strips_where_memory_is_short(images, tmp_path):
    """The forecast says so, the process stays within it, and nobody sees it in the picture."""
    from PIL import Image

    folder = tmp_path / "model"
    shutil.copytree(images[0], folder)
    vae = diffusers.AutoencoderKL(
        block_out_channels=[32, 32], norm_num_groups=4, latent_channels=4, layers_per_block=1,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
        mid_block_add_attention=False,
    )  # fmt: skip
    randomised(vae, 1).save_pretrained(folder / "vae")
    sample = ("sample", "--model", folder, "--class", "b", "--seed", "5", "--size", "1024")
    whole = json.loads(run_pom(*sample, "--dry-run", "--json").stdout)
    limit = whole["peak_bytes"] - (160 << 20)  # of some 400 MiB that decoding the whole takes
    forecast = json.loads(run_pom(*sample, "--dry-run", "--json", "--memory-limit", limit).stdout)
    assert forecast["fits"] and forecast["peak_bytes"] <= limit
    peaks, pictures = [], []
    # What a process keeps beside what it uses depends on how its threads met; of one thread it does not.
    steady = dict(os.environ, OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="1")
    for name, words in {"whole": (), "strips": ("--memory-limit", limit)}.items():
        run = [built_program(), *map(str, (*sample, "-o", tmp_path / f"{name}.png", *words))]
        # A process begins with the peak of the one that started it, so that a small one starts it.
        small = [sys.executable, "-S", "-c", PEAK_OF, *run]
        peaks.append(int(subprocess.run(small, env=steady, stdout=subprocess.PIPE, check=True).stdout))
        pictures.append(numpy.asarray(Image.open(tmp_path / f"{name}.png")).astype(int))
    assert 0.7 * whole["peak_bytes"] < peaks[0] <= 1.4 * whole["peak_bytes"]
    assert peaks[1] < min(1.05 * limit, peaks[0])
    assert abs(pictures[0] - pictures[1]).max() <= 1


def test_a_folder_without_its_autoencoder_is_refused(images, tmp_path):
    folder, _ = images
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(libpom.Error, match=r"vae: no config\.json"):
        libpom.Engine(tmp_path)


# ---- clips ----


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A V-DiPoM on latents of a small CogVideoX autoencoder, told by a small T5."""
    folder = tmp_path_factory.mktemp("clips")
    network = libpom.models.VDiPoM(dim=32, depth=2, patch=2, channels=4, text_width=24)
    randomised(network, 3)
    with pytest.warns(UserWarning, match="text: none given"):
        libpom.models.save(
            network,
            folder,
            codec=libpom.models.CodecConfig(kind="cogvideox", scale=SCALE),
            sample=libpom.models.SampleDefaults(size=(48, 32), steps=2, sampler="euler", frames=24, fps=8),
        )
    vae = diffusers.AutoencoderKLCogVideoX(
        block_out_channels=[8, 8, 8, 8], norm_num_groups=4, latent_channels=4, layers_per_block=1,
        down_block_types=["CogVideoXDownBlock3D"] * 4, up_block_types=["CogVideoXUpBlock3D"] * 4,
    )  # fmt: skip
    randomised(vae, 1).save_pretrained(folder / "vae")
    text = transformers.T5Config(
        vocab_size=200, d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3, feed_forward_proj="gated-gelu"
    )
    torch.manual_seed(5)
    transformers.T5EncoderModel(text).save_pretrained(folder / "text_encoder")
    words = folder / "words.txt"
    words.write_text("a red star drifts up\na blue ball falls down\nthe moon and the sun\n" * 30)
    sentencepiece.SentencePieceTrainer.train(
        input=str(words), model_prefix=str(folder / "spiece"), vocab_size=60, model_type="unigram",
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    (folder / "tokenizer").mkdir()
    (folder / "spiece.model").rename(folder / "tokenizer" / "spiece.model")
    config = json.loads((folder / "config.json").read_text())
    config["text"] = {"kind": "t5", "width": 24, "limit": 12, "mask": True}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, vae


def test_a_stream_is_the_whole_clip_and_diffusers_decode(clips):
    folder, vae = clips
    engine = libpom.Engine(folder)
    assert engine.block_frames == 8
    wish = {"prompt": "a red star drifts up", "seed": 4}
    latents, _ = engine.sample(**wish, output="latents")
    assert latents.shape == (1, 4, 6, 4, 6)
    clip, _ = engine.sample(**wish)
    assert clip.shape == (1, 24, 32, 48, 3)
    with torch.no_grad():
        expected = (vae.decode(latents / SCALE).sample.clamp(-1, 1) + 1) * 127.5
    assert (clip[0].float() - expected[0].permute(1, 2, 3, 0)).abs().max() <= 0.51
    streamed = torch.stack(list(engine.stream(**wish)))
    assert (streamed.int() - clip[0].int()).abs().max() <= 1
    other, _ = engine.sample(prompt="a blue ball falls down", seed=4)
    assert not torch.equal(other, clip)


def test_a_stream_goes_on_from_its_state(clips, tmp_path):
    folder, _ = clips
    engine = libpom.Engine(folder)
    wish = {"prompt": "a red star drifts up", "seed": 4}
    whole = torch.stack(list(engine.stream(**wish, frames=24)))
    first = torch.stack(list(engine.stream(**wish, frames=8, save_state=tmp_path / "s")))
    rest = torch.stack(list(engine.stream(continue_from=tmp_path / "s", frames=16)))
    assert torch.equal(torch.cat([first, rest]), whole)  # the decoder's caches are in the state


def test_text_encoders_from_python(clips):
    folder, _ = clips
    text = libpom.codecs.load(folder / "text_encoder", dtype=torch.float64, limit=12)
    theirs = transformers.T5EncoderModel.from_pretrained(folder / "text_encoder").double().eval()
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask).last_hidden_state
    assert (text.encode_ids(ids, mask) - expected).abs().max() < 1e-12 * expected.abs().max()
    assert text.width == 24 and len(text.hash) == 64
