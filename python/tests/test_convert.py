"""`pom convert`: the authors' networks, the official DiT and SiT through it, then libpom.models and the C++
networks against the plain modules of others.py, in fp64; and what it refuses."""

import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

import libpom
from others import DiT, HommClips, HommPictures, narrow, numbered, odd, places, randomise
from tools import built_program, built_tool

TOLERANCE = 1e-10


def convert(*words, code=0):
    """(stdout, stderr)"""
    command = [built_program(), "convert", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout.strip(), done.stderr


def refusal(*words, code=1):
    """The message, without the program's name."""
    return convert(*words, code=code)[1].splitlines()[0].removeprefix("pom convert: ")


def saved(path, module, prefix="", **more):
    tensors = {prefix + name: tensor.detach().contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors | more, path)
    return path


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def close(got, expected):
    return (got - expected).abs().max() <= TOLERANCE * max(1, expected.abs().max())


def run_tool(name, folder, inputs, scratch):
    """What a C++ network answers, as a module and as it samples."""
    save_file({name: t.clone() for name, t in inputs.items()}, scratch / "in.safetensors")
    fields = {key: value for key, value in config_of(folder)["network"].items() if key != "variant"}
    words = [f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in fields.items()]
    files = [folder / "model.safetensors", scratch / "in.safetensors", scratch / "out.safetensors"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([built_tool(name), "run", *files, *words], check=True, env=environment)
    return load_file(files[2])


def back_again(folder, origin, source, prefix=""):
    """The folder under the names of the other's code is the source, bit for bit; position codes, which are
    computed, to the last bit."""
    file = folder.with_suffix(".back.safetensors")
    convert(folder, "--to", origin, "-o", file)
    theirs, ours = load_file(source), load_file(file)
    theirs = {name.removeprefix(prefix): t for name, t in theirs.items() if name.startswith(prefix)}
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        computed = name == "pos_embed"
        same = torch.allclose(tensor, ours[name], rtol=0, atol=1e-12 if computed else 0)
        assert tensor.dtype == ours[name].dtype and same, name


# --- the authors' pictures ---

PICTURES = {
    "homm": ("homm", {}, []),
    "order 3": ("homm", {"order": 3, "order_expand": 1}, ["--set", "network.order=3"]),
    "patch 4": ("homm", {"patch": 4, "channels": 3, "ffw_expand": 2, "depth": 3}, []),
    "attention": ("homm", {"heads": 4, "ffw_expand": 4}, ["--set", "network.heads=4"]),
    "upscale": ("homm-upscale", {"axis": narrow}, []),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_the_authors(name, tmp_path, extension):
    origin, settings, words = PICTURES[name]
    module = randomise(HommPictures(**settings))
    source, folder = saved(tmp_path / "theirs.safetensors", module), tmp_path / "ours"
    said, notes = convert(source, "--from", origin, "-o", folder, "--check", *words)
    assert said == str(folder) and "there and back bit for bit" in notes
    channels, patch = settings.get("channels", 4), settings.get("patch", 2)
    x = torch.randn(3, channels, 2 * patch, 3 * patch, dtype=torch.float64)
    y, t = torch.tensor([0, 7, 3]), torch.full((3,), 0.437, dtype=torch.float64)
    with torch.no_grad():
        expected = module(x, 1000 * t, y)
        without = module(x, 1000 * t, torch.full_like(y, 7))
        net = libpom.models.load(folder, dtype=None)
        assert close(net(x, t, y), expected)
    out = run_tool("network_tool", folder, {"x": x, "t": t, "y": y, "dy": x}, tmp_path)
    assert close(out["output"], expected) and close(out["denoised"], expected)
    assert close(out["denoised_both"], torch.cat([expected, without]))
    back_again(folder, origin, source)


def test_sizes_and_settings_that_the_folder_gets(tmp_path):
    source = saved(tmp_path / "s.safetensors", randomise(HommPictures(dim=48, depth=3, classes=11)))
    convert(source, "--from", "homm", "-o", tmp_path / "a")
    config = config_of(tmp_path / "a")
    assert config["network"] == {
        "kind": "dipom", "variant": "", "dim": 48, "depth": 3, "patch": 2, "channels": 4, "classes": 11,
        "mixer": "pom", "order": 2, "order_expand": 2, "heads": 6, "ffw_expand": 3,
    }  # fmt: skip
    assert config["codec"] == {"kind": "autoencoder-kl", "scale": 0.18215, "shift": 0.0}
    assert config["diffusion"] == {"path": "epsilon", "variance": "linear"}
    sample = config["sample"]
    assert (sample["sampler"], sample["steps"], sample["cfg_scale"]) == ("ddim", 250, 1.7)
    words = ["--set", "diffusion.path=flow", "--set", "sample.steps=10", "--set", "name=mine"]
    convert(source, "--from", "homm-upscale", "-o", tmp_path / "b", *words)
    config = config_of(tmp_path / "b")
    assert config["network"]["position"] == "narrow" and config["name"] == "mine"
    assert config["diffusion"]["path"] == "flow" and config["sample"]["sampler"] == "heun"
    assert config["sample"]["steps"] == 10 and config["sample"]["shift_base"] == 256


# --- the authors' clips ---


@pytest.mark.parametrize("causal", [True, False], ids=["block-causal", "no mask"])
def test_clips_of_the_authors(causal, tmp_path, extension):
    module = randomise(HommClips(channels=5, patch_time=2, causal=causal))
    source, folder = saved(tmp_path / "theirs.safetensors", module), tmp_path / "ours"
    words = [] if causal else ["--set", "network.temporal_mask=none"]
    convert(source, "--from", "homm-text2video", "-o", folder, "--check", *words)
    config = config_of(folder)
    network = config["network"]
    assert (network["position"], network["time_code"], network["no_text"]) == ("narrow", "relative", "mask")
    assert config["codec"]["kind"] == "cogvideox" and config["codec"]["scale"] == 1
    assert (config["sample"]["frames"], config["sample"]["size"]) == (80, [384, 240])
    x = torch.randn(3, 5, 6, 4, 6, dtype=torch.float64)
    text, t = torch.randn(3, 4, 10, dtype=torch.float64), torch.full((3,), 0.3, dtype=torch.float64)
    keys = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)  # the last has no text
    with torch.no_grad():
        expected = module(x, 1000 * t, text, keys)
        without = module(x, 1000 * t, text, torch.zeros_like(keys))
        net = libpom.models.load(folder, dtype=None)
        assert close(net(x, t, text, keys), expected)
        assert close(net(x, t), without)
    inputs = {"x": x, "t": t, "text": text, "mask": keys.to(torch.uint8), "first": torch.zeros(3).long()}
    out = run_tool("video_tool", folder, inputs | {"dy": x}, tmp_path)
    assert close(out["output"], expected)
    if causal:
        assert close(out["streamed"], expected) and close(out["streamed_without"], without)
    back_again(folder, "homm-text2video", source)


# --- which of a checkpoint's weights ---


def checkpoint(path, begun, model, ema, compiled=""):
    tensors = {f"model.{compiled}{name}": t.detach() for name, t in model.state_dict().items()}
    tensors |= {f"ema.ema_model.{compiled}{name}": t.detach() for name, t in ema.state_dict().items()}
    save_file(tensors | {"ema.initted": torch.tensor(begun), "ema.step": torch.tensor(20)}, path)
    return path


@pytest.mark.parametrize("compiled", ["", "_orig_mod."])
def test_the_average_where_it_has_begun(compiled, tmp_path):
    model, ema = randomise(HommPictures(depth=1)), randomise(HommPictures(depth=1))

    def taken(begun, *words):
        source = checkpoint(tmp_path / "c.safetensors", begun, model, ema, compiled)
        said, _ = convert(source, "--from", "homm", "-o", tmp_path / "out", "-y", "--json", *words)
        kept = load_file(tmp_path / "out" / "model.safetensors")["out_proj.weight"]
        same = [torch.equal(kept, one.out_proj.weight) for one in (model, ema)]
        assert json.loads(said)["weights"] == ("model" if same[0] else "ema")
        return same

    assert taken(True) == [False, True]
    assert taken(False) == [True, False]
    assert taken(True, "--weights", "model") == [True, False]
    assert taken(False, "--weights", "ema", "--check") == [False, True]


def test_bf16_stays_bf16(tmp_path):
    module = randomise(HommPictures(depth=1)).bfloat16()
    source = saved(tmp_path / "s.safetensors", module, "model.")
    convert(source, "--from", "homm", "-o", tmp_path / "ours", "--check")
    assert load_file(tmp_path / "ours" / "model.safetensors")["in_conv.weight"].dtype == torch.bfloat16
    back_again(tmp_path / "ours", "homm", source, "model.")


# --- the official DiT and SiT ---


@pytest.mark.parametrize("origin", ["dit", "sit"])
@pytest.mark.parametrize("learned", [True, False], ids=["variance", "no variance"])
def test_the_official_networks(origin, learned, tmp_path, extension):
    module = randomise(DiT(learned=learned))
    source, folder = saved(tmp_path / "theirs.safetensors", module), tmp_path / "ours"
    convert(source, "--from", origin, "-o", folder, "--check", "--set", "network.heads=4")
    config = config_of(folder)
    assert config["network"].get("learned_variance", False) == learned
    assert config["sample"]["size"] == [64, 64] and config["sample"]["guidance_channels"] == 3
    x, y = torch.randn(3, 4, 8, 8, dtype=torch.float64), torch.tensor([0, 7, 3])
    t = torch.full((3,), 437 / 1000, dtype=torch.float64)

    def theirs(y):  # DiT's step 436 is at our 0.437; SiT's time and velocity run the other way
        answer = module(x, 1000 * t - 1, y) if origin == "dit" else -module(x, 1 - t, y)
        return answer[:, :4]

    with torch.no_grad():
        expected, without = theirs(y), theirs(torch.full_like(y, 7))
        net = libpom.models.load(folder, dtype=None)
        assert close(net(x, t, y), expected)
    out = run_tool("network_tool", folder, {"x": x, "t": t, "y": y, "dy": x}, tmp_path)
    assert close(out["output"], expected) and close(out["denoised"], expected)
    assert close(out["denoised_both"], torch.cat([expected, without]))
    x.requires_grad_(True)
    (theirs(y) * x.detach()).sum().backward()
    assert close(out["grad.x"], x.grad)
    back_again(folder, origin, source)


def test_a_network_of_pixels_samples(tmp_path, extension):
    """With three channels no autoencoder is needed: the folder is whole. DiT's steps are those of DDPM."""
    source = saved(tmp_path / "s.safetensors", randomise(DiT(channels=3, depth=1)).float())
    convert(source, "--from", "dit", "-o", tmp_path / "ours", "--set", "network.heads=4")
    made = [built_program(), "sample", "-q", "--model", tmp_path / "ours", "--class", "3", "--steps", "3"]
    done = subprocess.run([*made, "-o", tmp_path / "a.png"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").stat().st_size > 0


# --- old position codes ---


def test_position_codes_of_old_files(tmp_path):
    module = randomise(HommPictures(depth=1))
    for code, expected in (("numbered", "dit"), ("odd", None), ("random", None)):
        axis = {"numbered": numbered, "odd": odd}.get(code)
        kept = places(4, 4, 32, axis)[None] if axis else torch.randn(1, 16, 32, dtype=torch.float64)
        source = saved(tmp_path / "s.safetensors", module, pos_emb=kept)
        _, notes = convert(source, "--from", "homm", "-o", tmp_path / code)
        assert config_of(tmp_path / code)["network"].get("position") == expected
        assert config_of(tmp_path / code)["sample"]["size"] == [64, 64]
        assert ("pos_emb of the file was dropped" in notes) == (code == "random")


# --- what is refused ---


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A file of the authors' names, and a function that changes it."""
    folder = tmp_path_factory.mktemp("small")
    state = randomise(HommPictures(depth=1)).state_dict()

    def changed(drop=(), **more):
        tensors = {name: t for name, t in state.items() if name not in drop} | more
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, folder / "s.safetensors")
        return folder / "s.safetensors"

    return changed


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (
            {"drop": ("layers.0.hom.se_proj.bias", "out_proj.bias")},
            [],
            'tensor "layers.0.hom.se_proj.bias" of shape (128) is missing, and 1 more',
        ),
        (
            {"other.weight": torch.zeros(2, 3)},
            [],
            'tensor "other.weight" is not part of the network',
        ),
        (
            {"out_mod.1.bias": torch.zeros(63)},
            [],
            'tensor "out_mod.1.bias": expected shape (64), got (63)',
        ),
        (
            {"out_mod.1.bias": torch.zeros(64).long()},
            [],
            'tensor "out_mod.1.bias": expected F32, BF16, F16 or F64, got I64',
        ),
        (
            {"registers": torch.zeros(1, 16, 32)},
            [],
            'tensor "registers": a network with registers (DiHpp) is another one, which libpom does not have',
        ),
        (
            {"text_emb.weight": torch.zeros(32, 10)},
            [],
            'tensor "text_emb.weight": this is a network with text: --from homm-text2video',
        ),
        (
            {},
            ["--set", "network.order=3"],
            "network.order: expected a divisor of 4, the features of the mixer as a multiple of its width, "
            "got 3",
        ),
        (
            {},
            ["--set", "network.classes=9"],
            'tensor "classes_emb.weight": expected shape (10, 32), got (8, 32)',
        ),
        (
            {},
            ["--weights", "ema"],
            'weights: expected names that begin with "ema.ema_model." for --weights ema, got none',
        ),
    ],
    ids=lambda value: "" if isinstance(value, (dict, list)) else None,
)
def test_files_that_are_refused(small, tmp_path, change, words, message):
    source = small(**change)
    told = refusal(source, "--from", "homm", "-o", tmp_path / "out", *words)
    assert told == f"{source}: {message}"
    assert not (tmp_path / "out").exists()


def test_other_numbers_of_time_steps_are_refused(tmp_path):
    source = saved(tmp_path / "s.safetensors", randomise(HommPictures(depth=1, steps=250)), "model.")
    assert refusal(source, "--from", "homm", "-o", tmp_path / "out") == (
        f'{source}: tensor "model.freqs": expected exp(-2 ln(1000) i / 32), of 1000 time steps, got those of '
        "about 250: libpom has no network for them"
    )


def test_heads_must_be_told(tmp_path):
    source = saved(tmp_path / "s.safetensors", randomise(HommPictures(depth=1, heads=4, ffw_expand=4)))
    assert refusal(source, "--from", "homm", "-o", tmp_path / "out") == (
        f"{source}: attention of width 32: the weights do not tell the number of heads; --set "
        "network.heads=N does"
    )


def test_a_learned_position_of_dit_is_refused(tmp_path):
    module = randomise(DiT(depth=1))
    module.pos_embed.data.normal_()
    source = saved(tmp_path / "s.safetensors", module)
    words = ["--from", "dit", "-o", tmp_path / "out", "--set", "network.heads=4"]
    assert refusal(source, *words) == (
        f'{source}: tensor "pos_embed": expected the sines and cosines of a grid of 4x4, got other values: a '
        "code that was learned is not supported"
    )


def test_what_one_asks_wrongly(small, tmp_path):
    source, out = small(), tmp_path / "out"
    asked = lambda *words: refusal(*words, code=2)  # noqa: E731
    assert asked(source, "-o", out) == "expected --from NAME, or --to NAME of a model folder, got neither"
    assert asked(source, "--from", "homm", "--to", "homm", "-o", out) == "expected --from or --to, got both"
    assert asked("--from", "homm", "-o", out) == "expected a .safetensors file or a model folder, got nothing"
    assert asked(source, "--from", "homm") == "--output: expected a path to write, got nothing"
    assert asked(source, "--from", "hom", "-o", out).startswith('--from: unknown value "hom"; did you mean')
    assert asked(source, "--from", "homm", "-o", out, "--set", "network.ordr=3") == (
        '--set: network.ordr: unknown field; did you mean "order"?'
    )
    assert asked(source, "--from", "homm", "-o", out, "--set", "network.order=two") == (
        '--set: network.order: expected an integer, got "two"'
    )
    assert not out.exists()
    convert(source, "--from", "homm", "-o", out)
    before = (out / "model.safetensors").read_bytes()
    assert asked(source, "--from", "homm", "-o", out) == (
        f"--output: {out} already exists; -y overwrites the model in it"
    )
    (out / "notes.txt").write_text("mine")
    convert(source, "--from", "homm", "-o", out, "-y")
    assert (out / "model.safetensors").read_bytes() == before and (out / "notes.txt").read_text() == "mine"
    assert asked(out, "--to", "homm", "-o", tmp_path / "back.bin") == (
        f"--output: expected a name that ends in .safetensors, got {tmp_path / 'back.bin'}"
    )
    assert refusal(out, "--to", "homm-upscale", "-o", tmp_path / "back.safetensors") == (
        "network.position: expected narrow for homm-upscale, got odd"
    )
    assert refusal(out, "--to", "sit", "-o", tmp_path / "back.safetensors") == (
        "network.mixer: expected attention for sit, got pom"
    )
