"""Tokens split over 2 and 4 processes against the same on one: layers, networks, and what they exchange."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ranks
from tools import built_program, built_tool

pytestmark = pytest.mark.usefixtures("extension")
ASSETS = Path(__file__).resolve().parents[2] / "assets"


FLAGS = ["--seed", "3", "--steps", "2", "-q"]
ITEMS = ["--model", str(ASSETS / "shapes64"), "--class", "star", "--count", "3"]
CLIP = ["--model", str(ASSETS / "sprites32"), "--prompt", "a red square moving right", "--frames", "16"]


def items_in(folder):
    return ["sample", *FLAGS, *ITEMS, "-o", f"{folder}/s_%02d.png"]


def clip_in(folder, *more):
    return [
        "sample",
        *FLAGS,
        *CLIP,
        "--save-latents",
        f"{folder}/a.safetensors",
        "-o",
        f"{folder}/a.gif",
        *more,
    ]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """What four ranks found, and the folder that `pom sample` wrote into."""
    folder = tmp_path_factory.mktemp("sampled")
    first = {"stream": clip_in(folder, "--stream", "--split"), "items": items_in(folder / "items")}
    pairs = [json.dumps(first), json.dumps({"clip": clip_in(folder, "--split")})]
    (folder / "items").mkdir()
    found = ranks.run("split_program.py", 4, str(built_tool("libsplit_network.so")), *pairs, seconds=300)
    return found, folder


@pytest.fixture(scope="module", params=["2", "4"])
def layers(request, everything):
    return everything[0][request.param]["layers"]


def test_every_mask_equals_one_rank(layers):
    for name, found in layers["double"].items():
        assert max(found["errors"]) < 1e-12, (name, found)
    assert max(layers["second order"]) < 1e-12


def test_fused_kernels_round_no_worse_than_plain_torch(layers):
    for name, found in layers["single"].items():
        unit = torch.finfo(torch.bfloat16 if "bfloat16" in name else torch.float32).eps
        for error, plain in zip(found["errors"], found["plain"], strict=True):
            assert error <= 2 * plain + 2 * unit, (name, found)
    plain, split = layers["autocast"]
    assert split <= 2 * plain


def test_a_layer_hands_in_sums_only(layers):
    """Rows of B k D numbers in both passes together."""
    row = layers["row"]
    for name, found in layers["double"].items():
        rows = found["numbers"] / row
        if ", none," in name or ", one block," in name or ", causal," in name:
            assert rows == 2, name
        elif ", keys," in name:  # and the counts
            assert 2 < rows < 2.1, name
        elif ", blocks of 4," in name and "window" not in name:
            assert rows == (4 if "unequal" in name else 2), name  # two where a border cuts a block
    assert layers["loose"]["numbers"] == 2 * row and max(layers["loose"]["errors"]) < 1e-12


def test_a_layer_without_its_exchange_is_noticed(layers):
    whole, left_out = layers["stack"]
    assert whole < 1e-12
    assert left_out > 1e-3


def test_the_same_bits_again(layers):
    assert layers["twice"] is True


def test_refusals(layers):
    said = layers["refusals"]
    assert "xc: expected the 7 tokens of rank 0" in said["tokens"]
    assert "expected none, keys (B, n) or a causal mask" in said["full"]
    assert "at least 1" in said["counts"]
    assert "no packing" in said["packed"]


@pytest.fixture(scope="module", params=["2", "4"])
def networks(request, everything):
    return everything[0][request.param]["networks"]


def test_networks_equal_one_rank(networks):
    for name, found in networks["double"].items():
        assert max(found["errors"]) < 1e-12, (name, found)
    for name, found in networks["single"].items():
        assert max(found["errors"]) < 2e-5, (name, found)


def test_a_network_exchanges_sums_of_its_layers(networks):
    numbers = networks["numbers"]
    assert networks["double"]["pictures"]["numbers"] == numbers
    # Checkpointing computes the forward pass twice.
    assert networks["double"]["pictures, checkpointing"]["numbers"] == 1.5 * numbers


def test_denoisers_equal_one_rank(networks):
    for name, error in networks["denoised"].items():
        assert error < 1e-12, name


def test_networks_refuse_what_cannot_be_split(networks):
    assert "expected pom, whose ranks exchange sums" in networks["attention"]
    assert "expected at most 3, one for each of the blocks of frames, got 4" in networks["too many"]


def sampled_alone(words):
    result = subprocess.run([built_program(), *words], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_ranks_share_the_items(everything, tmp_path):
    found, folder = everything
    assert found["commands"]["items"][0] == 0, found["commands"]["items"]
    sampled_alone(items_in(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (folder / "items" / file.name).read_bytes()


def test_ranks_share_a_clip(everything, tmp_path):
    found, folder = everything
    assert found["commands"]["clip"][0] == 0, found["commands"]["clip"]
    assert (folder / "a.gif").is_file()
    sampled_alone(clip_in(tmp_path))
    one, two = (load_file(where / "a.safetensors")["latents"] for where in (tmp_path, folder))
    assert one.shape == two.shape and one.shape[2] > 1
    assert (one - two).abs().max() < 1e-3
    assert one.std() > 0.1


def test_a_stream_is_not_split(everything):
    code, said = everything[0]["commands"]["stream"]
    assert code != 0
    assert "--stream: expected images or clips made whole with --split, got 2 ranks" in said
