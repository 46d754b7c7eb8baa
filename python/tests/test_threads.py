"""The same bits on every run, every number of threads and in every batch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import libpom
from test_cli import program

MASKS = [None, "keys", "full", libpom.causal, libpom.block_causal(7), libpom.block_causal(7, window=3)]


def run(mask, dtype, pom, x):
    """Output and gradients."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(mask, str):
        mask = (
            torch.rand(x.shape[:2] if mask == "keys" else (*x.shape[:2], x.shape[1]), generator=generator)
            < 0.5
        )
    x = x.detach().requires_grad_()
    y = pom(x, mask=mask)
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), [x, *pom.parameters()])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_layer_bits(extension, threads, mask, dtype):
    pom, x = libpom.PoM(48, 2, 2).to(dtype), torch.randn(3, 333, 48).to(dtype)
    threads(1)
    want = run(mask, dtype, pom, x)
    for count in (2, 2, 1):
        threads(count)
        for a, b in zip(run(mask, dtype, pom, x), want, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_mixer_bits(backend, threads, mask):
    ho, se = torch.randn(2, 333, 96), torch.randn(2, 333, 96)
    if isinstance(mask, str):
        mask = torch.rand((2, 333) if mask == "keys" else (2, 333, 333)) < 0.5
    results = []
    for count in (1, 2, 2, 1):
        threads(count)
        results.append(libpom.mixer(ho, se, 2, mask))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, libpom.causal, libpom.block_causal(7, window=3)], ids=repr)
def test_sequence_does_not_depend_on_its_batch(extension, mask, dtype):
    pom, x = libpom.PoM(48, 2, 2).to(dtype), torch.randn(5, 101, 48).to(dtype)
    together = pom(x, mask=mask)
    for i in range(5):
        assert torch.equal(pom(x[i : i + 1], mask=mask)[0], together[i])


@pytest.mark.parametrize("mask", [None, libpom.causal, libpom.block_causal(7, window=3)], ids=repr)
def test_sequence_does_not_depend_on_its_pack(backend, mask):
    lengths = [3, 50, 1, 101, 20]
    ho, se = torch.randn(175, 96), torch.randn(175, 96)
    cu = torch.tensor([0, *lengths]).cumsum(0)
    together = libpom.mixer(ho, se, 2, mask, cu)
    for i, n in enumerate(lengths):
        rows = slice(cu[i], cu[i + 1])
        alone = libpom.mixer(ho[rows], se[rows], 2, mask, torch.tensor([0, n]))
        assert torch.equal(alone, together[rows])
        unpacked = libpom.mixer(ho[None, rows], se[None, rows], 2, mask)[0]
        torch.testing.assert_close(unpacked, together[rows], rtol=1e-5, atol=1e-6)


def test_steps_repeat(backend, threads):
    pom, x = libpom.PoM(48, 2, 2), torch.randn(1, 64, 48)
    results = []
    for count in (1, 2, 2):
        threads(count)
        state, out = pom.init_state(1, window=2), []
        for piece in x.split(8, dim=1):
            y, state = pom.step(piece, state)
            out.append(y)
        results.append(torch.cat(out, 1).detach())
    if libpom.has_extension():
        assert all(torch.equal(result, results[0]) for result in results)
    assert torch.equal(results[1], results[2])


SPRITES = Path(__file__).resolve().parents[2] / "assets" / "sprites32"
PRODUCT = "import torch, libpom; torch.randn(9, 9) @ torch.randn(9, 9)"


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
@pytest.mark.parametrize("of_the_user", ["", "COMPATIBLE"])
@pytest.mark.parametrize("who", ["pom", "libpom"])
def test_sums_keep_their_order(extension, who, of_the_user):
    """MKL itself says, product by product, whether its sums keep one order for any number of threads."""
    words = [program(), "doctor", SPRITES] if who == "pom" else [sys.executable, "-c", PRODUCT]
    env = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    env |= {"MKL_VERBOSE": "1", "PYTHONPATH": os.path.dirname(os.path.dirname(libpom.__file__))}
    if of_the_user:
        env["MKL_CBWR"] = of_the_user
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    said = set(re.findall(r"^MKL_VERBOSE \w+\(.* CNR:(\S+)", done.stdout, re.M))
    assert said == {of_the_user or "AUTO,STRICT"}
    if who == "pom" and of_the_user:
        assert re.search(r"^note +sums: as MKL_CBWR=COMPATIBLE has them$", done.stdout, re.M)
    elif who == "pom":
        assert re.search(r"^ok +sums: the same bits for any number of threads$", done.stdout, re.M)
