"""libpom.models: model folders in and out, against what the program and the engine make of them; the reader
of safetensors against hostile files; the text encoder of words against the one in C++."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import libpom
from libpom import models
from libpom.models import ModelConfig, SampleDefaults, Words
from libpom.models.fields import pages, tree
from libpom.models.tensor_file import TensorFile, write
from test_models import clip_noise, noise, small_clip, small_image
from test_safetensors import mutations, reference_verdict
from tools import built_program, built_tool, referee

ROOT = Path(__file__).resolve().parents[2]
SHAPES, SPRITES = ROOT / "assets" / "shapes64", ROOT / "assets" / "sprites32"
FILES = ("config.json", "model.safetensors", "text_encoder/model.safetensors")
SIZE = SampleDefaults(size=(8, 6), steps=2)


def pom(*words):
    result = subprocess.run([built_program(), *map(str, words)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def info(folder):
    """What the program reads in a folder."""
    return json.loads(pom("info", folder, "--json"))


def words():
    return Words(["a", "red", "star"], width=10, limit=9, layers=1, mixers=1)


# --- there and back ---


@pytest.mark.parametrize("model", [SHAPES, SPRITES], ids=lambda path: path.name)
def test_a_model_that_ships_comes_back_byte_for_byte(tmp_path, model):
    text = models.load_text(model) if model is SPRITES else None
    for i, dtype in enumerate((torch.float32, None)):
        net = models.load(model, dtype=dtype)
        assert net.in_conv.weight.dtype == (dtype or torch.bfloat16) and net.in_conv.weight.requires_grad
        models.save(net, tmp_path / str(i), text=text, dtype=torch.bfloat16)
        for file in FILES[1 : 3 if text else 2]:
            assert (tmp_path / str(i) / file).read_bytes() == (model / file).read_bytes()
    assert models.read_config(tmp_path / "0") == models.read_config(model)
    if model is SPRITES:
        assert (tmp_path / "0/config.json").read_bytes() == (model / "config.json").read_bytes()


def test_the_engine_draws_with_what_was_saved(extension, tmp_path):
    net = small_image()
    models.save(net, tmp_path / "m", name="mine", classes=list("vwxyz"), sample=SIZE)
    engine = libpom.Engine(tmp_path / "m")
    images, _ = engine.sample(class_="z", count=2)
    assert images.shape == (2, 6, 8, 3)
    assert engine.name == "mine" and engine.config == info(tmp_path / "m")["config"]
    back = models.load(tmp_path / "m")
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), net.parameters(), strict=True))
    torch.testing.assert_close(back(*(given := noise())), net(*given), rtol=0, atol=0)


def in_order(value):
    """With the order of keys, which dictionaries ignore."""
    return [(k, in_order(v)) for k, v in value.items()] if isinstance(value, dict) else value


def test_config_as_cpp_writes_it(tmp_path):
    """Fields, their order and their defaults, of images and of clips: C++ reads both files, and fills in what
    the second leaves out."""
    authors = small_clip(position="narrow", time_code="relative", no_text="mask")
    nets = ((small_image(), None), (small_image(position="narrow"), None), (small_clip(), words()))
    for network, text in (*nets, (authors, words())):
        for sample in (SIZE, replace(SIZE, frames=8, fps=4, cfg_scale=2)):
            models.save(network, tmp_path / "m", text=text, sample=sample, overwrite=True)
            written = json.loads((tmp_path / "m/config.json").read_text())
            theirs = info(tmp_path / "m")["config"]
            assert in_order(written) == in_order(theirs)
            assert written == json.loads(json.dumps(tree(models.read_config(tmp_path / "m"))))
        kind = {"kind": "vdipom"} if text else {}
        small = {"format": 1, "network": kind | {"dim": 8, "depth": 1, "channels": 3}}
        (tmp_path / "m/config.json").write_text(json.dumps(small))
        filled = info(tmp_path / "m")["config"]
        assert in_order(filled) == in_order(json.loads(json.dumps(tree(models.read_config(tmp_path / "m")))))


def test_long_lists_are_written_as_cpp_writes_them(tmp_path):
    """Many names fill lines of some 100 bytes, as in the config that training wrote."""
    config = ModelConfig(classes=tuple(f"классы {i}" for i in range(30)))
    lines = pages(tree(config)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('  "classes"'))
    assert lines[start] == '  "classes": [' and lines[-2:] == ["  ]", "}"]
    assert all(80 < len(line.encode()) <= 100 for line in lines[start + 1 : -3])
    assert json.loads(pages(tree(config)))["classes"] == list(config.classes)


def test_variants_in_a_config(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"format": 1, "network": {"variant": "dit-b/4", "channels": 3}, "classes": ["a", "b"]})
    )
    network = models.read_config(tmp_path).network
    assert (network.depth, network.dim, network.heads, network.mixer) == (12, 768, 12, "attention")
    assert (network.channels, network.classes) == (3, 2)


def test_compiled_networks_and_averages_are_saved(tmp_path):
    net = small_image()
    models.save(torch.compile(net), tmp_path / "m", sample=SIZE, dtype=torch.float16)
    assert models.load(tmp_path / "m", dtype=None).out_proj.weight.dtype == torch.float16
    assert info(tmp_path / "m")["weights_dtype"] == "F16"


# --- nothing is lost ---


def test_no_model_is_replaced_unless_asked(tmp_path):
    net = small_image()
    for file in FILES[:2]:
        folder = tmp_path / file
        folder.mkdir()
        (folder / file).write_text("precious")
        with pytest.raises(
            libpom.Error, match=rf"save: folder: .*{file} already exists; pass overwrite=True"
        ):
            models.save(net, folder, sample=SIZE)
        assert (folder / file).read_text() == "precious" and len(list(folder.iterdir())) == 1
        models.save(net, folder, sample=SIZE, overwrite=True)
        models.load(folder)
        assert {path.name for path in folder.iterdir()} == set(FILES[:2])
    (tmp_path / "file").write_text("")
    with pytest.raises(libpom.Error, match="save: folder: expected a folder, or nothing there, got the file"):
        models.save(net, tmp_path / "file", sample=SIZE)


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def full(file, *_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    old = small_image()
    models.save(old, tmp_path / "old", sample=SIZE)
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    monkeypatch.setattr("libpom.models.tensor_file.write", full)
    for folder in (tmp_path / "new/model", tmp_path / "old"):
        with pytest.raises(OSError, match="No space"):
            models.save(small_image(), folder, sample=SIZE, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before


def test_latents_that_the_program_cannot_decode(tmp_path):
    with pytest.warns(UserWarning, match="save: network: 4 channels, where the codec pixels has 1 or 3"):
        models.save(small_image(channels=4), tmp_path / "m", sample=SIZE)
    assert models.load(tmp_path / "m").config.channels == 4


def test_clips_without_a_text_encoder(tmp_path):
    net = small_clip()
    with pytest.warns(UserWarning, match="save: text: none given, so that only Python can use"):
        models.save(net, tmp_path / "m", sample=SIZE)
    given = clip_noise()
    torch.testing.assert_close(models.load(tmp_path / "m")(*given), net(*given), rtol=0, atol=0)
    with pytest.raises(libpom.Error, match=r"no text_encoder/model.safetensors"):
        models.load_text(tmp_path / "m")
    models.save(net, tmp_path / "m", text=words(), overwrite=True)
    text = info(tmp_path / "m")["text"]
    assert text.pop("vocabulary") == ["a", "red", "star"] and len(text.pop("sha256")) == 64
    assert text == {"kind": "words", "words": 3, "limit": 9, "width": 10}
    models.save(net, tmp_path / "m", overwrite=True)  # the encoder that is there stays
    assert models.load_text(tmp_path / "m").vocabulary == ["a", "red", "star"]


@pytest.mark.parametrize(
    ("make", "more", "message"),
    [
        (small_image, {"classes": ["a", "b"]}, r"save: classes: expected 5 names, .*got 2"),
        (small_image, {"classes": "abcde"}, r"save: classes: expected a list of names, got 'abcde'"),
        (small_image, {"classes": ["a", "b", "c", "d", "0"]}, r"save: classes\[4\]: .*or its own index"),
        (small_image, {"classes": ["a", "b", "c", "d", " e"]}, r"save: classes\[4\]: .*without control"),
        (small_image, {"name": "a\nb"}, r"save: name: expected a name without control characters"),
        (small_image, {"sample": SampleDefaults(size=(7, 8))}, r"save: sample.size: .*\(2\) divides, got"),
        (small_image, {"sample": SampleDefaults(steps=0)}, r"save: sample.steps: expected 1 to 10000, got 0"),
        (small_image, {"dtype": torch.int8}, r"save: dtype: expected float32, .*got torch.int8"),
        (small_image, {"text": words()}, r"save: text: expected none for a network of images"),
        (small_clip, {"text": Words([], width=11)}, r"save: text: expected tokens of width 10, .*got 11"),
        (lambda: torch.nn.Linear(2, 2), {}, r"save: network: expected a DiPoM or VDiPoM, got Linear"),
    ],
)  # fmt: skip
def test_models_that_are_refused(tmp_path, make, more, message):
    with pytest.raises(libpom.Error, match=message):
        models.save(make(), tmp_path / "m", **more)
    assert not (tmp_path / "m").exists()


def test_a_changed_network_is_no_longer_what_its_config_says(tmp_path):
    net = small_image()
    net.layers[1].extra = torch.nn.Linear(2, 2)
    with pytest.raises(
        libpom.Error, match=r'save: network: tensor "layers.1.extra.bias" is not part of .*, nor'
    ):
        models.save(net, tmp_path / "m")
    net = small_image()
    net.out_proj = torch.nn.Linear(24, 4)
    with pytest.raises(
        libpom.Error, match=r'tensor "out_proj.weight": expected shape \(12, 24\), got \(4, 24\)'
    ):
        models.save(net, tmp_path / "m")


# --- every tensor is accounted for ---


@pytest.fixture
def folder(tmp_path):
    models.save(small_image(), tmp_path / "m", sample=SIZE)
    return tmp_path / "m"


def change(folder, function):
    tensors = load_file(folder / "model.safetensors")
    save_file(function(tensors), folder / "model.safetensors")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "in_conv.bias"}, r'"in_conv.bias" .*is missing'),
        (lambda t: t | {"more": torch.zeros(2)}, r'tensor "more" is not part of the network$'),
        (lambda t: t | {"out_proj.bias": torch.zeros(9)}, r'"out_proj.bias": .*\(12,\), got \(9,\)'),
        (lambda t: t | {"out_proj.bias": torch.zeros(12, dtype=torch.int64)}, r'"out_proj.bias": .*got I64'),
        (lambda t: {f"model.{k}": v for k, v in t.items()}, r'names begin with "model.": .*the prefix'),
        (lambda t: {k.replace(".pom.", ".hom."): v for k, v in t.items()}, r'"hom" are the authors'),
    ],
)  # fmt: skip
def test_tensors_that_are_wrong(folder, function, message):
    change(folder, function)
    with pytest.raises(libpom.Error, match=rf"model.safetensors: .*{message}"):
        models.load(folder)


def test_computed_frequencies_may_be_there(folder):
    change(folder, lambda tensors: tensors | {"freqs": torch.zeros(12)})
    models.load(folder)


BROKEN = {
    '{"format": 1': "expected JSON",
    "[]": "expected an object",
    '{"network": {}}': "missing field format",
    '{"format": 1}': "missing field network",
    '{"format": 2, "network": {}}': "format: expected 1 to 1, got 2",
    '{"format": 1, "network": {"dmi": 8}}': 'network.dmi: unknown field; did you mean "dim"',
    '{"format": 1, "network": {"dim": 8.0}}': "network.dim: expected an integer, got 8.0",
    '{"format": 1, "network": {"dim": "8"}}': 'network.dim: expected an integer, got "8"',
    '{"format": 1, "network": {"dim": true}}': "network.dim: expected an integer, got true",
    '{"format": 1, "network": {"dim": null}}': "network.dim: expected an integer, got null",
    '{"format": 1, "network": {"dim": 10}}': "network.dim: expected a multiple of 4",
    '{"format": 1, "network": {"dim": 9999999}}': "network.dim: expected 4 to 65536, got 9999999",
    '{"format": 1, "network": {"dim": 8, "dim": 8}}': '"dim": duplicate key',
    '{"format": 1, "network": 3}': "network: expected an object, got 3",
    '{"format": 1, "network": {"kind": "gan"}}': 'network.kind: unknown value "gan"',
    '{"format": 1, "network": {"mixer": "attention", "heads": 7}}': "network.heads: expected a divisor",
    '{"format": 1, "network": {"variant": "DiPoM-S/2", "dim": 8}}': "network.dim: expected 384, as",
    '{"format": 1, "network": {"variant": "DiPoM-M/2"}}': 'variant: unknown name "DiPoM-M/2"; did you',
    '{"format": 1, "network": {}, "sample": {"size": [8]}}': "sample.size: expected width and height",
    '{"format": 1, "network": {}, "sample": {"size": [8, 9]}}': "sample.size: .*divides",
    '{"format": 1, "network": {}, "sample": {"size": 8}}': "sample.size: expected a list of integers, got 8",
    '{"format": 1, "network": {}, "sample": {"shift": NaN}}': "expected a number, got NaN",
    '{"format": 1, "network": {}, "sample": {"cfg_from": 0.5, "cfg_to": 0.2}}': "sample.cfg_from: expected",
    '{"format": 1, "network": {}, "classes": [3]}': "classes.0.: expected a string, got 3",
    '{"format": 1, "network": {"classes": 2}, "classes": ["a"]}': "classes: expected 2 names",
    '{"format": 1, "network": {}, "codec": {"kind": "vae"}}': 'codec.kind: unknown value "vae"',
    "[" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:80])
def test_configs_that_both_refuse(extension, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(libpom.Error, match=BROKEN[text]) as ours:
        models.read_config(tmp_path)
    assert str(ours.value).startswith(str(tmp_path / "config.json"))
    with pytest.raises(libpom.Error) as theirs:
        libpom.Engine(tmp_path)
    assert "model.safetensors" not in str(theirs.value)  # refused for its config, not for its weights


def test_folders_that_are_not_there(tmp_path):
    with pytest.raises(libpom.Error, match="no such folder"):
        models.load(tmp_path / "none")
    with pytest.raises(libpom.Error, match=r"no config.json"):
        models.load(tmp_path)
    (tmp_path / "config.json").write_text('{"format": 1, "network": {}}')
    with pytest.raises(libpom.Error, match=r"no model.safetensors"):
        models.load(tmp_path)
    with pytest.raises(libpom.Error, match=r"expected a folder with config.json .*got a file"):
        models.load(tmp_path / "config.json")


# --- safetensors ---


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests/hostile/safetensors").glob("*.s*")), ids=lambda p: p.stem
)
def test_hostile_files_are_refused(path):
    with pytest.raises(libpom.Error, match=re.escape(str(path))):
        TensorFile(path)


def test_random_files_that_the_reference_refuses_are_refused(tmp_path):
    """What only we refuse is stricter reading of the format: test_safetensors.py has the list, for C++."""
    read = refused = 0
    for content in mutations(1000, seed=3):
        (tmp_path / "file").write_bytes(content)
        try:
            with TensorFile(tmp_path / "file"):
                read += 1
                assert reference_verdict(tmp_path / "file") is None, content
        except libpom.Error:
            refused += 1
    assert read > 50 and refused > 50


def test_every_golden_file_is_read():
    for path in sorted((ROOT / "tests/golden/safetensors").glob("*.safetensors")):
        with TensorFile(path) as file:
            theirs = load_file(path)
            assert file.tensors.keys() == theirs.keys()
            for name, info in file.tensors.items():
                if info.dtype in ("F32", "BF16", "F16", "F64"):
                    assert (
                        torch.equal(file.read(name), theirs[name])
                        and file.read(name).dtype == theirs[name].dtype
                    )


def test_bytes_are_the_references(tmp_path):
    tensors = {
        "b": torch.randn(3, 5), "a": torch.randn(2, 2), "ä": torch.randn(4).bfloat16(),
        "scalar": torch.tensor(2.0), "half": torch.randn(7).half(), "double": torch.randn(1, 2, 3).double(),
        "none": torch.zeros(0, 3),
        "turned": torch.randn(3, 4).t(), 'quo"te\n': torch.zeros(1),
    }  # fmt: skip
    for metadata in (None, {"words": 'a\n"b"\\\té'}):
        save_file({name: t.contiguous() for name, t in tensors.items()}, tmp_path / "theirs", metadata)
        with open(tmp_path / "ours", "wb") as file:
            write(file, tensors, metadata)
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
        with TensorFile(tmp_path / "ours") as file:
            assert file.metadata == metadata
            assert all(torch.equal(file.read(name), tensor) for name, tensor in tensors.items())
    with pytest.raises(libpom.Error, match=r'tensor "n": expected fp32, .*, got torch.int64'):
        write(open(os.devnull, "wb"), {"n": torch.zeros(2, dtype=torch.int64)})  # noqa: SIM115


# --- words ---


def test_pieces_as_in_cpp():
    """The cases of tests/codecs/words.cpp."""
    encoder = words()
    assert encoder.numbers("a Red star") == [257, 258, 259]
    assert encoder.numbers("a tan star") == [257, 256, *b"tan", 259]
    assert encoder.numbers("é") == [256, 0xC3, 0xA9]
    assert encoder.numbers(" \n\x7f") == []
    encoder = Words(["a", "red", "star's", "left", ",", "now", "!", "café", "2x"])
    assert encoder.numbers("A red  Star's\tleft, now! café 2x") == [*range(257, 266)]
    captions = ["a red star drifts to the left", "a blue star over red", "A RED circle!"]
    assert models.most_frequent_words(captions, 3) == ["a", "red", "star"]
    assert models.most_frequent_words(captions, 4) == ["!", "a", "red", "star"]
    assert len(models.most_frequent_words(captions)) == 11


def test_a_prompt_is_its_own_whatever_the_others():
    encoder = words()
    tokens, mask = encoder(["a red star", "a", ""])
    assert tokens.shape == (3, 3, 10) and mask.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    torch.testing.assert_close(encoder("a")[0][0], tokens[1, :1])
    assert (tokens[~mask] == 0).all()
    padded, longer = encoder("a", length=4)
    torch.testing.assert_close(padded[:, :1], encoder("a")[0])
    assert longer.tolist() == [[True, False, False, False]]
    assert encoder([])[0].shape == (0, 1, 10)
    with pytest.warns(UserWarning, match="expected at most 9 pieces, got 12: truncated to 9"):
        assert encoder("a " * 12)[1].sum() == 9
    tokens.square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in encoder.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Words(["a", "a"]), "word 2: expected each word once"),
        (lambda: Words(["Red"]), "word 1: expected one word in lower case, got 'Red'"),
        (lambda: Words(["a b"]), "word 1: expected one word in lower case"),
        (lambda: Words([""]), "word 1: expected one word in lower case"),
        (lambda: Words([], width=0), "Words: width: expected 1 to 65536, got 0"),
        (lambda: words()("\ud800"), "Words: prompts: expected text, got half a surrogate pair"),
        (lambda: words()("a", length=10), "Words: length: expected 1 to 9, got 10"),
    ],
)
def test_words_that_are_refused(make, message):
    with pytest.raises(libpom.Error, match=message):
        make()


def test_sprites_from_a_prompt_to_frames_as_the_program_makes_them(extension, tmp_path):
    """Words, network and sampler in Python against `pom sample`, from the same noise."""
    numpy, Image = referee("numpy"), referee("PIL.Image")
    prompt, seed, steps, scale, blocks = "a RED zebra drifts to the left, slowly!", 5, 3, 3.5, 2
    net, encoder = models.load(SPRITES), models.load_text(SPRITES)
    with torch.no_grad():
        text, mask = encoder(prompt)
    pom(
        "sample", "--model", SPRITES, "--prompt", prompt, "--seed", seed, "--steps", steps,
        "--sampler", "euler", "--shift", 1, "--cfg-scale", scale,
        "--frames", 2 * blocks, "-o", f"{tmp_path}/frames/",
    )  # fmt: skip
    frames = [numpy.asarray(Image.open(path)) for path in sorted((tmp_path / "frames").glob("*.png"))]

    inputs = {"seeds": torch.tensor([seed]), "size": torch.tensor([32, 32])}
    inputs |= {
        "text": text[:, None].repeat(1, blocks, 1, 1),
        "mask": mask[:, None].repeat(1, blocks, 1).byte(),
    }
    save_file(inputs, tmp_path / "in")
    settings = tree(net.config) | {"sampler": "euler", "steps": steps, "scale": scale}
    weights = {name: value.detach() for name, value in net.state_dict().items()}
    save_file(weights, tmp_path / "w")
    tool = [built_tool("video_tool"), "stream", *(tmp_path / name for name in ("w", "in", "out"))]
    subprocess.run([*tool, *(f"{key}={value}" for key, value in settings.items() if value != "")], check=True)
    out = load_file(tmp_path / "out")

    x, times = out["noise"], torch.linspace(1, 0, steps + 1)
    with torch.no_grad():
        for t, until in pairwise(times):
            with_text, without = net(x, t, text, mask), net(x, t)
            x = x + (until - t) * (without + scale * (with_text - without))
    torch.testing.assert_close(x, out["clip"], rtol=0, atol=1e-4)
    image = ((x[0].clamp(-1, 1) + 1) * 127.5).round().permute(1, 2, 3, 0).numpy()
    assert len(frames) == 2 * blocks
    assert max(abs(frame.astype(int) - ours).max() for frame, ours in zip(frames, image, strict=True)) <= 1


def test_every_package_is_installed():
    listed = re.search(r"^packages = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    source = ROOT / "python"
    found = {".".join(path.parent.relative_to(source).parts) for path in source.glob("libpom/**/__init__.py")}
    assert set(re.findall(r'"([\w.]+)"', listed)) == found


def test_only_torch_is_needed():
    """Neither numpy nor safetensors is imported by loading and saving."""
    code = f"""
import sys
sys.modules["numpy"] = sys.modules["safetensors"] = None
import tempfile, torch, libpom
net, text = libpom.models.load({str(SPRITES)!r}), libpom.models.load_text({str(SPRITES)!r})
tokens, mask = text("a red star")
net(torch.randn(1, 3, 2, 8, 8), 0.5, tokens, mask)
libpom.models.save(net, tempfile.mkdtemp() + "/m", text=text)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
