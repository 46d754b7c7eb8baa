"""The recipes of recipes/: each is read, says what its head says, and has the network of its name."""

import functools
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reference_dipom import ReferenceDiPoM
from training import environment, pom_train, program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which came with pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
PAPER = [path for path in RECIPES if re.match(r"dipom-.*-(flow|epsilon)$", path.stem)]
DEGREES = [path for path in RECIPES if path.stem.startswith("degrees-")]
ENCODED = [path for path in RECIPES if path.stem.startswith(("imagenet-", "webvid-"))]
WITH_PATH = [path for path in RECIPES if not path.stem.startswith(("shapes", "sprites", "scenes"))]


def read(path):
    return tomllib.loads(path.read_text())


def stem(path):
    return path.stem


@functools.cache
def variant(name):
    """What the program counts for a variant."""
    words = [program(), "info", name, "--json"]
    return json.loads(subprocess.run(words, env=environment(), capture_output=True, check=True).stdout)


def test_all_are_here():
    names = {path.stem for path in RECIPES}
    assert names >= {"shapes", "shapes-attention", "shapes-tiny", "dipom-s8-pictures"}
    assert {
        f"dipom-{size}2-{path}" for size in ("s", "b", "l", "xl") for path in ("flow", "epsilon")
    } <= names
    assert {f"degrees-{k}x{12 // k}" for k in (1, 2, 3, 4, 6)} <= names
    assert names >= {"sprites", "scenes", "video-xl2"}
    assert {f"imagenet-{size}2" for size in ("s", "b", "l", "xl")} <= names
    assert names >= {"webvid-xl2", "webvid-xl2-paper"}


@pytest.mark.parametrize("path", RECIPES, ids=stem)
def test_head_has_the_command(path):
    head = path.read_text().split("\n\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert re.search(rf"^#   pom train recipes/{re.escape(path.name)}( |$)", head, re.MULTILINE)


@pytest.mark.parametrize("path", WITH_PATH, ids=stem)
def test_needs_only_its_data(path, tmp_path):
    """All else is right: what is said is that the folder is not there."""
    result = pom_train(path, "--set", f"data.path={tmp_path}/none", cwd=tmp_path)
    assert result.returncode == 1
    kind = read(path)["data"]["kind"]
    if kind == "clips":
        assert "expected a folder of clips, got no such folder" in result.stderr
    elif kind in ("shards", "clip_shards"):
        assert f"{tmp_path}/none: expected a folder of shards, got no such folder" in result.stderr
    else:
        kind = "latents" if kind == "latents" else "images"
        expected = f"expected a folder with one subfolder of {kind} per class, got no such folder"
        assert expected in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["dipom-s2-flow", "dipom-s8-pictures", "video-xl2"])
def test_asks_for_its_data(name, tmp_path):
    result = pom_train(ROOT / "recipes" / f"{name}.toml", cwd=tmp_path)
    assert result.returncode == 2 and "data.path: expected the folder of the" in result.stderr


@pytest.mark.parametrize("name", ["shapes-tiny"])
def test_forecast(name, tmp_path):
    words = ["--dry-run", "--json", "--set", "batch.size=2"]  # small steps are measured sooner
    result = pom_train(ROOT / "recipes" / f"{name}.toml", *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    network = read(ROOT / "recipes" / f"{name}.toml")["network"]
    expected = ReferenceDiPoM(**{"channels": 3, "classes": 10, **network})
    assert json.loads(result.stdout)["parameters"] == sum(p.numel() for p in expected.parameters())


@pytest.mark.parametrize("path", PAPER, ids=stem)
def test_paper(path):
    """The variant and the loss that the name says, with the paper's settings."""
    size, loss = re.match(r"dipom-(\w+)2-(\w+)", path.stem).groups()
    recipe = read(path)
    assert recipe["network"] == {"variant": f"DiPoM-{size.upper()}/2"}
    assert recipe["diffusion"]["path"] == loss
    assert recipe["data"]["kind"] == "latents" and recipe["codec"]["scale"] == 0.18215
    assert recipe["batch"]["size"] == 256 and recipe["batch"]["label_drop"] == 0.1
    settings = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "clip": 1.0}
    assert recipe["optimizer"].items() >= settings.items()
    assert 0 < recipe["optimizer"]["cooldown"] <= recipe["run"]["steps"] / 5
    assert recipe["ema"] == {"decay": 0.999, "every": 10} and recipe["run"]["precision"] == "bf16"


@pytest.mark.parametrize("size", ["s", "b", "l", "xl"])
def test_losses_differ_in_nothing_else(size):
    flow, epsilon = (read(ROOT / f"recipes/dipom-{size}2-{path}.toml") for path in ("flow", "epsilon"))
    for recipe in (flow, epsilon):
        recipe["run"].pop("about")
        recipe.pop("diffusion")
        recipe.pop("sample")
    assert flow == epsilon


@pytest.mark.parametrize("size", ["s", "b", "l", "xl"])
def test_imagenet(size):
    """The paper's recipe with shards in place of files, and an autoencoder to decode them."""
    recipe, paper = (
        read(ROOT / f"recipes/{name}.toml") for name in (f"imagenet-{size}2", f"dipom-{size}2-flow")
    )
    assert recipe["data"].pop("kind") == "shards" and recipe["data"].pop("path")
    assert recipe["codec"] == {"kind": "autoencoder-kl", "scale": 0.18215}
    assert recipe.pop("encoders").keys() == {"vae"}
    for other in (recipe, paper):
        other["run"].pop("about")
        other.pop("codec")
    assert paper["data"].pop("kind") == "latents"
    assert recipe == paper


@pytest.mark.parametrize(
    ("name", "expand", "width"), [("webvid-xl2", 2, 1024), ("webvid-xl2-paper", 4, 4096)]
)
def test_webvid(name, expand, width):
    """Both sizes of the paper's network for clips: that of the authors' code and that of the text."""
    recipe = read(ROOT / f"recipes/{name}.toml")
    network, data, text = recipe["network"], recipe["data"], recipe["text"]
    assert (network["variant"], network["ffw_expand"]) == ("V-DiPoM-XL/2", expand)
    assert (data["size"], data["frames"], data["fps"]) == ([384, 240], 80, 16)
    assert (text["kind"], text["width"], text["limit"], text["mask"]) == ("t5", width, 64, True)
    assert recipe["codec"] == {"kind": "cogvideox", "scale": 1.0}
    assert recipe["encoders"].keys() == {"vae", "text"}
    relative = network["time_code"] == "relative"  # which knows no block after the clip's
    assert recipe["batch"].get("latest_block", 0) == (0 if relative else network["time_period"] - 1)


@pytest.mark.parametrize("path", ENCODED, ids=stem)
def test_head_has_the_pipeline(path):
    """Encode, train and sample, with the folders that the recipe has."""
    recipe, head = read(path), path.read_text().split("\n\n")[0]
    command = re.search(r"^#   (pom encode (?:.*\\\n#)*.*)$", head, re.MULTILINE).group(1)
    words = command.replace("\\\n#", "").split()
    value = dict(itertools.pairwise(words))
    assert words[2] == ("clips" if recipe["data"]["kind"] == "clip_shards" else "pictures")
    assert value["-o"] == recipe["data"]["path"] and value["--vae"] == recipe["encoders"]["vae"]
    assert value.get("--text") == recipe["encoders"].get("text")
    # What dataset.json will say unless told, by the configs of these autoencoders (docs/latents.md).
    usual = {"models/sd-vae-ft-ema": 0.18215, "models/cogvideox-2b/vae": 1.15258426}[value["--vae"]]
    scale = float(value.get("--scale", 1 if value.get("--chunks") == "alone" else usual))
    assert scale == recipe["codec"]["scale"]
    if words[2] == "clips":
        assert value["--size"] == "{}x{}".format(*recipe["data"]["size"])
        assert float(value["--frames"]) == recipe["data"]["frames"]
        assert float(value["--fps"]) == recipe["data"]["fps"]
        assert int(value["--text-limit"]) == recipe["text"]["limit"]
    assert f"#   pom sample --model out/runs/{path.stem}/model " in head


@pytest.mark.parametrize("path", DEGREES, ids=stem)
def test_degrees(path):
    """DiPoM-S/2 but for the degree, with as many features in each."""
    order, expand = map(int, re.match(r"degrees-(\d+)x(\d+)$", path.stem).groups())
    network = read(path)["network"]
    assert (network["order"], network["order_expand"]) == (order, expand) and order * expand == 12
    plain = {"order": 2, "order_expand": 2, "channels": 4, "classes": 1000}
    with torch.device("meta"):  # which has shapes alone
        module = ReferenceDiPoM(**(network | plain))
    assert sum(p.numel() for p in module.parameters()) == variant("DiPoM-S/2")["parameters"]


def test_pictures():
    recipe = read(ROOT / "recipes/dipom-s8-pictures.toml")
    assert recipe["network"] == {"variant": "DiPoM-S/8", "channels": 3}
    assert recipe["data"] == {"kind": "folder", "size": [256, 256], "flip": True, "validation": 2048}


def test_sprites():
    """Blocks of two frames with a window that clips outgrow, at any time of the code's period, some of them
    cut into shorter ones."""
    first, second = (read(ROOT / f"recipes/{name}.toml") for name in ("sprites", "sprites-window"))
    for recipe in (first, second):
        network, data = recipe["network"], recipe["data"]
        assert (data["size"], data["frames"]) == ([32, 32], 48)
        assert (network["patch_time"], network["patch"], network["temporal_mask"]) == (2, 4, "block-causal")
        assert 0 < network["window"] < data["frames"] / network["patch_time"]
        assert recipe["batch"]["latest_block"] == network["time_period"] - 1
        assert 0 < recipe["batch"]["cut"] < 1 and data["frames"] % recipe["batch"]["cut_frames"] == 0
        assert recipe["diffusion"]["path"] == "flow" and recipe["batch"]["label_drop"] > 0
    # What --init-from takes over must fit: all but the window is the same network.
    assert {**first["network"], "window": second["network"]["window"]} == second["network"]
    assert first["text"] == second["text"]


def test_scenes():
    """Images are clips of one frame, which nothing of time is known of; a word learns of a whole relation."""
    recipe = read(ROOT / "recipes/scenes.toml")
    network = recipe["network"]
    assert (recipe["data"]["size"], recipe["data"]["frames"]) == ([64, 64], 1)
    assert (network["patch_time"], network["temporal_mask"], network["time_code"]) == (1, "none", "none")
    caption = ["a", "red", "star", "to", "the", "left", "of", "a", "blue", "ring"]
    assert recipe["text"]["layers"] >= caption.index("blue") - caption.index("star")


def test_sprites_changes():
    """The same network and text as the second part, so that --init-from takes its model; places of change
    that fit blocks and cuts; and the model that ships has this network and way of sampling."""
    before, recipe = (read(ROOT / f"recipes/{name}.toml") for name in ("sprites-window", "sprites-changes"))
    assert (recipe["network"], recipe["text"]) == (before["network"], before["text"])
    data, batch = recipe["data"], recipe["batch"]
    assert 0 < data["changes"] < 1 and 0 < data["unnamed"] < 1
    assert data["frames"] % data["change_every"] == 0 == batch["cut_frames"] % data["change_every"]
    assert data["change_every"] % recipe["network"]["patch_time"] == 0
    shipped = json.loads((ROOT / "assets/sprites32/config.json").read_text())
    assert recipe["network"].items() <= shipped["network"].items()
    assert recipe["sample"].items() <= shipped["sample"].items()
    assert shipped["sample"]["frames"] == data["frames"]
    words = [program(), "train", "recipes/sprites-changes.toml", "--init-from", "assets/sprites32"]
    words += ["--dry-run", "--json", "--set", "batch.size=2"]
    result = subprocess.run(words, env=environment(), capture_output=True, check=True, cwd=ROOT)
    assert json.loads(result.stdout)["memory_bytes"] > 0


def test_video_xl2():
    """As wide and as deep as the paper's network, with as many tokens."""
    recipe = read(ROOT / "recipes/video-xl2.toml")
    network, data = recipe["network"], recipe["data"]
    assert (network["dim"], network["depth"], network["ffw_expand"]) == (1152, 20, 4)
    assert (network["order"], network["order_expand"]) == (2, 2)
    assert (data["size"], data["frames"], data["fps"]) == ([384, 240], 80, 16)
    places = (384 // network["patch"]) * (240 // network["patch"])
    tokens = places * data["frames"] // network["patch_time"]
    assert tokens == (384 // 8 // 2) * (240 // 8 // 2) * (80 // 4 // 2)


def test_attention_differs_in_the_mixer_alone():
    pom, attention = (read(ROOT / f"recipes/{name}.toml") for name in ("shapes", "shapes-attention"))
    assert attention["network"].pop("mixer") == "attention"
    for recipe in (pom, attention):
        recipe["run"].pop("about")
        for field in ("order", "order_expand", "heads", "ffw_expand"):
            recipe["network"].pop(field, None)
    assert pom == attention


def test_the_reference_has_every_field(tmp_path):
    """docs/training.md against the resolved recipe of a run that says almost nothing."""
    said = {"run.steps": 1, "data.size": [8, 8], "data.validation": 4, "network.dim": 16, "network.depth": 1}
    said |= {"batch.size": 2, "sample.size": [8, 8]}
    recipe = tmp_path / "almost.toml"
    recipe.write_text("")
    sets = [word for name, value in said.items() for word in ("--set", f"{name}={value}")]
    result = pom_train(recipe, "-o", tmp_path / "run", *sets)
    assert result.returncode == 0, result.stderr
    resolved = read(tmp_path / "run" / "recipe.toml")
    said |= {"run.name": 0, "network.classes": 0, "network.channels": 0}  # which the run fills in
    rows = re.findall(
        r"^\| `(\w+\.\w+)` \| (.+?) \| (.+) \|$", (ROOT / "docs/training.md").read_text(), re.MULTILINE
    )
    fields = [f"{section}.{name}" for section, inner in resolved.items() for name in inner]
    assert [name for name, _, _ in rows] == fields
    text = (tmp_path / "run" / "recipe.toml").read_text()
    for name, default, meaning in rows:
        assert f"# {meaning}\n" in text, name
        if name not in said:
            section, field = name.split(".")
            value = tomllib.loads(f"x = {default.strip('`')}")["x"] if default != "none" else ""
            assert resolved[section][field] == value, name
