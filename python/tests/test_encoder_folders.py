"""`pom info` and `pom doctor` of folders that diffusers and transformers write, and of shards: what they say
is what the packages count, and what is wrong with a folder is named."""

import json
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

import libpom
import small_encoders
from tools import built_program
from training import environment

pytestmark = pytest.mark.usefixtures("extension")


def pom(*words, code=0):
    words = [str(built_program()), *map(str, words)]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def info(folder):
    return json.loads(pom("info", folder, "--json").stdout)


def doctor(folder, code=0):
    """What it says of the folder, by subject."""
    found = json.loads(pom("doctor", folder, "--json", code=code).stdout)
    return {check["subject"]: (check["state"], check["text"]) for check in found["checks"]}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """vae/, text_encoder/ and tokenizer/, as pipelines have them, and the modules."""
    root = tmp_path_factory.mktemp("pipeline")
    vae = small_encoders.small_vae(root / "vae")
    text = small_encoders.small_t5(root / "text_encoder")
    (root / "tokenizer").mkdir()
    (root / "text_encoder" / "spiece.model").rename(root / "tokenizer" / "spiece.model")
    return root, vae, text


def values_of(module):
    return sum(p.numel() for p in module.parameters())


def test_an_autoencoder(pipeline):
    root, vae, _ = pipeline
    (said,) = info(root / "vae")["encoders"]
    assert (said["kind"], said["channels"], said["factor"]) == ("autoencoder-kl", 4, 2)
    assert (said["scale"], said["shift"], said["dtypes"]) == (0.6, 0.1, ["F32"])
    assert said["parameters"] == values_of(vae) and said["tensors"] == len(vae.state_dict())
    assert said["bytes"] == 4 * values_of(vae)
    assert said["files"] == ["diffusion_pytorch_model.safetensors"]
    assert said["sha256"] == libpom.codecs.load(root / "vae").hash
    assert said["memory"]["size"] == [512, 512] and said["memory"]["decode"] > said["memory"]["encode"] > 0
    text = pom("info", root / "vae").stdout
    assert "512x512 become 4 channels of 256x256 (factor 2)" in text and "0.6, 0.1: networks see" in text
    assert "2 levels of 8, 8 channels, 1 layer each, attention in the middle" in text
    state, words = doctor(root / "vae")["encoder"]
    assert state == "ok" and f"{len(vae.state_dict())} tensors, all there, F32" in words


def test_an_autoencoder_of_clips(tmp_path):
    vae = small_encoders.small_video_vae(tmp_path / "v")
    (said,) = info(tmp_path / "v")["encoders"]
    assert (said["kind"], said["factor"], said["time_factor"]) == ("cogvideox", 4, 4)
    assert said["parameters"] == values_of(vae) and said["memory"]["frames"] == 8
    assert "8 frames of 720x480 become 2 latent frames" in pom("info", tmp_path / "v").stdout
    assert doctor(tmp_path / "v")["encoder"][0] == "ok"


def test_a_text_encoder(pipeline):
    root, _, text = pipeline
    (said,) = info(root / "text_encoder")["encoders"]
    assert (said["kind"], said["width"], said["vocabulary"]) == ("t5", 16, 200)
    assert said["parameters"] == values_of(text) and "pieces" not in said
    found = doctor(root / "text_encoder")
    assert found["encoder"][0] == "ok" and "of ../tokenizer, 200 rows" in found["tokenizer"][1]
    assert "SentencePiece vocabulary" in pom("info", root / "tokenizer").stdout
    assert doctor(root / "tokenizer")["tokenizer"][0] == "ok"


def test_all_of_a_pipeline(pipeline):
    root, _, _ = pipeline
    assert [each["kind"] for each in info(root)["encoders"]] == ["autoencoder-kl", "t5"]
    found = doctor(root)
    assert {name: found[name][0] for name in ("vae", "text_encoder", "tokenizer")} == {
        "vae": "ok",
        "text_encoder": "ok",
        "tokenizer": "ok",
    }


def changed(root, tmp_path, part, change):
    """A copy of a part whose tensors a function has changed."""
    folder = tmp_path / part
    shutil.copytree(root / part, folder)
    file = next(folder.glob("*.safetensors"))
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


def test_what_is_wrong_is_named(pipeline, tmp_path):
    root, _, _ = pipeline
    name = "decoder.conv_in.weight"

    def problem(change, expected):
        folder = changed(root, tmp_path, "vae", change)
        state, words = doctor(folder, code=1)["encoder"]
        assert state == "problem" and expected in words
        shutil.rmtree(folder)

    problem(lambda t: t[name].view(-1)[3].fill_(torch.inf), f"{name}: expected finite values")
    problem(lambda t: t.pop(name), f"are missing: {name}")
    problem(lambda t: t.update({name: t[name][:3].clone()}), f"{name}: expected the shape (8, 4, 3, 3)")
    problem(lambda t: t.update(more=torch.zeros(1)), "1 more: more")
    problem(lambda t: t.update({name: t[name].to(torch.int8)}), f"{name}: expected F32, F16, BF16 or F64")


def test_tokenizers_that_do_not_fit(pipeline, tmp_path):
    root, _, _ = pipeline
    lone = tmp_path / "lone" / "text_encoder"
    shutil.copytree(root / "text_encoder", lone)
    assert "no spiece.model" in doctor(lone, code=1)["tokenizer"][1]
    small = changed(root, tmp_path, "text_encoder", lambda t: cut_table(t, 20))
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    shutil.copytree(root / "tokenizer", tmp_path / "tokenizer")
    assert "expected at most 20 pieces, as vocab_size" in doctor(small, code=1)["tokenizer"][1]
    (tmp_path / "tokenizer" / "spiece.model").write_bytes(b"no vocabulary")
    assert doctor(tmp_path / "tokenizer", code=1)["tokenizer"][0] == "problem"


def cut_table(tensors, rows):
    for name in ("shared.weight", "encoder.embed_tokens.weight"):
        if name in tensors:
            tensors[name] = tensors[name][:rows].clone()


def test_other_networks_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DConditionModel"}))
    said = pom("info", tmp_path, code=1).stderr
    assert "expected _class_name AutoencoderKL or AutoencoderKLCogVideoX, or model_type t5" in said
    assert 'got "UNet2DConditionModel"' in said
    assert doctor(tmp_path, code=1)["encoder"][0] == "problem"


def test_models_tell_of_their_encoders(pipeline, tmp_path):
    """Also a network for clips with a T5, whose folder is no encoder of words."""
    root, _, _ = pipeline
    network = libpom.models.VDiPoM(dim=32, depth=1, patch=2, channels=4, text_width=16)
    small_encoders.randomised(network, 3)
    with pytest.warns(UserWarning, match="text: none given"):
        libpom.models.save(
            network,
            tmp_path,
            codec=libpom.models.CodecConfig(kind="cogvideox", scale=0.7),
            sample=libpom.models.SampleDefaults(size=(24, 16), steps=1, sampler="euler", frames=8, fps=8),
        )
    small_encoders.small_video_vae(tmp_path / "vae", 0.7)
    for part in ("text_encoder", "tokenizer"):
        shutil.copytree(root / part, tmp_path / part)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text"] = {"kind": "t5", "width": 16, "limit": 24, "mask": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = pom("info", tmp_path).stdout
    assert "t5, at most 24 pieces, 16 wide, padding hidden" in said
    assert "AutoencoderKLCogVideoX" in said and "T5 encoder" in said
    assert [each["kind"] for each in info(tmp_path)["encoders"]] == ["cogvideox", "t5"]
    found = doctor(tmp_path)
    assert {found[name][0] for name in ("vae", "text_encoder", "text encoder", "model runs")} == {"ok"}


# ---- shards


@pytest.fixture(scope="module")
def shards(pipeline, tmp_path_factory):
    root, folder = pipeline[0], tmp_path_factory.mktemp("shards")
    small_encoders.pictures(folder / "source")
    pom("encode", "pictures", folder / "source", "--vae", root / "vae", "-o", folder / "out", "--size", 16,
        "--per-shard", 10, "--device", "cpu", "-q")  # fmt: skip
    return folder / "out"


def test_shards(pipeline, shards):
    for command in ("info", "dataset"):
        said = json.loads(pom(command, shards, "--json").stdout)
        assert (said["kind"], said["samples"], said["shards"]) == ("shards", 24, 3)
        assert said["bytes"] == sum(path.stat().st_size for path in shards.glob("*.tar"))
        assert said["dataset"] == json.loads((shards / "dataset.json").read_text())
        text = pom(command, shards).stdout
        assert "24 in 3 shards" in text and "0.6, 0.1: training sees" in text
        assert libpom.codecs.load(pipeline[0] / "vae").hash in "".join(text.split())
    assert "mean and log-variance, 4 channels, of 16x16 pixels" in text


def test_shards_with_flipped_bits(shards, tmp_path):
    assert json.loads(pom("dataset", shards, "--check", "--json").stdout)["broken"] == []
    out = tmp_path / "out"
    shutil.copytree(shards, out)
    tar = out / json.loads((out / "dataset.json").read_text())["shard_names"][1]
    data = bytearray(tar.read_bytes())
    at = data.index(b"NUMPY") + 200
    data[at] ^= 1
    tar.write_bytes(data)
    done = pom("dataset", out, "--check", "--json", code=1)
    assert len(json.loads(done.stdout)["broken"]) == 1 and "CRC" in done.stderr
    tar.write_bytes(data[:-512])
    assert tar.name in pom("dataset", out, "--check", code=1).stderr
    assert "--preview" in pom("dataset", shards, "--preview", tmp_path / "x.png", code=2).stderr
