"""Tokens split over 2 and 4 processes against the same on one: layers, networks, and what they exchange."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ranks
from tools import built_tool

pytestmark = pytest.mark.usefixtures("extension")
ASSETS = Path(__file__).resolve().parents[2] / "assets"


@pytest.fixture(scope="module", params=[2, 4])
def layers(request):
    return ranks.run("split_layer_program.py", request.param)


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


@pytest.fixture(scope="module", params=[2, 4])
def networks(request):
    return ranks.run("split_network_program.py", request.param, str(built_tool("libsplit_network.so")))


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


def sampled(folder, count, *flags, ranks=1):
    """What `pom sample` says; its files are in the folder."""
    command = [sys.executable, "-m"]
    if ranks > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    command += ["libpom", "sample", "--seed", "3", "--steps", "2", "-q", "--count", str(count), *flags]
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(Path(__file__).resolve().parents[1]))
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_ranks_share_the_items(tmp_path):
    flags = ["--model", str(ASSETS / "shapes64"), "--class", "star"]
    for folder, several in (("one", 1), ("two", 2)):
        code, said = sampled(tmp_path, 3, *flags, "-o", f"{folder}/s_%02d.png", ranks=several)
        assert code == 0, said
    assert len(list((tmp_path / "one").iterdir())) == 3
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_ranks_share_a_clip(tmp_path):
    flags = ["--model", str(ASSETS / "sprites32"), "--prompt", "a red square moving right", "--frames", "16"]
    for name, several in (("one", 1), ("two", 2)):
        split = ["--split", "--save-latents", f"{name}.safetensors", "-o", f"{name}.gif"]
        code, said = sampled(tmp_path, 1, *flags, *split, ranks=several)
        assert code == 0, said
        assert (tmp_path / f"{name}.gif").is_file()
    one, two = (load_file(tmp_path / f"{name}.safetensors")["latents"] for name in ("one", "two"))
    assert one.shape == two.shape and one.shape[2] > 1
    assert (one - two).abs().max() < 1e-3
    assert one.std() > 0.1


def test_a_stream_is_not_split(tmp_path):
    flags = ["--model", str(ASSETS / "sprites32"), "--prompt", "a red square moving right", "--stream"]
    code, said = sampled(tmp_path, 1, *flags, "--frames", "16", "--split", "-o", "a.gif", ranks=2)
    assert code != 0
    assert "--stream: expected images or clips made whole with --split, got 2 ranks" in said
