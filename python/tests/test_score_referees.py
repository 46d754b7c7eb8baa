"""The field's scores against those who publish them: torch-fidelity, pytorch-fid, clean-fid, prdc and SciPy,
on weights and features that are drawn here. The programs are tests/tools/features_tool.cpp and
scores_tool.cpp.

torchvision is not needed: what these packages take of it is not asked for (fidelity_referee.py). The network
of pytorch-fid is made of torchvision's and is no referee without it: its weights and names are those of
torch-fidelity's, and its resize is torch's."""

import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.numpy import save_file

from golden_numbers import inception_weights, splitmix, symmetric
from tools import built_tool, referee, referee_is_there

scipy_linalg = referee("scipy.linalg")
prdc = referee("prdc")
for _package in ("torch_fidelity", "pytorch_fid", "cleanfid"):
    referee_is_there(_package)

SIZES = (3, 40, 56, 3)


def drawn_pictures():
    return (
        (splitmix("referees", int(numpy.prod(SIZES))) >> numpy.uint64(56)).astype(numpy.uint8).reshape(SIZES)
    )


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What everyone is asked, and where it lies."""
    folder = tmp_path_factory.mktemp("referees")
    random = numpy.random.RandomState(5)
    mix = random.randn(24, 24) / 5
    content = {
        "pictures": drawn_pictures(),
        "a": random.randn(120, 24) @ mix,
        "b": 1.2 * random.randn(90, 24) @ mix + 0.1,
        "logits": 4 * symmetric("referees.logits", (500, 12)),
    }
    numpy.savez(folder / "asked.npz", **content)
    numpy.savez(folder / "pictures.npz", arr_0=content["pictures"])
    save_file({"a": content["a"], "b": content["b"]}, folder / "vectors.safetensors")
    save_file({"a": content["b"], "b": content["a"]}, folder / "exchanged.safetensors")
    save_file({"a": content["logits"]}, folder / "logits.safetensors")
    tensors = inception_weights()
    save_file(tensors, folder / "inception.safetensors")
    torch.save({name: torch.from_numpy(t) for name, t in tensors.items()}, folder / "inception.pth")
    return folder, content


@pytest.fixture(scope="module")
def said(asked):
    folder, _ = asked
    script = Path(__file__).with_name("fidelity_referee.py")
    words = [folder / "asked.npz", folder / "inception.pth", folder / "said.npz"]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(numpy.load(folder / "said.npz"))


def features(asked, network, rule, dtype, weights="-"):
    words = [built_tool("features_tool"), network, rule, dtype, weights, asked[0] / "pictures.npz"]
    done = subprocess.run(list(map(str, words)), capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return numpy.frombuffer(done.stdout).reshape(SIZES[0], -1)


def score(asked, name, *words):
    command = [built_tool("scores_tool"), asked[0] / f"{name}.safetensors", *words]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_network_is_torch_fidelitys(asked, said):
    ours = features(asked, "inception", "tensorflow", "fp32", asked[0] / "inception.safetensors")
    pool3, logits = ours[:, :2048], ours[:, 2048 + 2023 :]
    assert abs(pool3 - said["pool3"]).max() < 1e-5 * said["pool3"].max()
    assert abs(logits - said["unbiased_logits"]).max() < 1e-5 * abs(said["unbiased_logits"]).max()


def test_resize_is_clean_fids(asked, said):
    ours = features(asked, "inception", "clean", "fp32").reshape(SIZES[0], 3, 299, 299) * 128 + 128
    assert abs(ours.transpose(0, 2, 3, 1) - said["clean"]).max() < 0.005  # of 255 levels
    other = features(asked, "inception", "tensorflow", "fp32").reshape(SIZES[0], 3, 299, 299) * 128 + 128
    assert abs(other.transpose(0, 2, 3, 1) - said["clean"]).max() > 10


def test_frechet_distance_is_everyones(asked, said):
    (ours,) = score(asked, "vectors", "frechet")
    a, b = asked[1]["a"], asked[1]["b"]
    covariances = numpy.cov(a, rowvar=False), numpy.cov(b, rowvar=False)
    root = scipy_linalg.sqrtm(covariances[0] @ covariances[1]).real
    plain = ((a.mean(0) - b.mean(0)) ** 2).sum() + numpy.trace(covariances[0] + covariances[1] - 2 * root)
    for other in (plain, said["fidelity_frechet"][0], said["pytorch_fid"]):
        assert abs(ours - other) < 1e-9 * ours


def test_kernel_distance_is_torch_fidelitys(asked, said):
    ours = score(asked, "vectors", "kernel", 20, 50, 2020)
    assert numpy.allclose(ours, said["fidelity_kernel"], rtol=1e-9)
    assert not numpy.allclose(score(asked, "vectors", "kernel", 20, 50, 2021), ours, rtol=1e-3)


def test_inception_score_is_torch_fidelitys(asked, said):
    assert numpy.allclose(
        score(asked, "logits", "inception", 10, 2020), said["fidelity_inception"], rtol=1e-9
    )


def test_neighbours_are_those_of_torch_fidelity_and_prdc(asked, said):
    assert numpy.allclose(score(asked, "exchanged", "neighbours", 3, 0)[:2], said["fidelity_neighbours"])
    for k in (1, 3, 5):
        ours = score(asked, "vectors", "neighbours", k, 1)
        theirs = prdc.compute_prdc(asked[1]["a"], asked[1]["b"], nearest_k=k)
        expected = [theirs[name] for name in ("precision", "recall", "density", "coverage")]
        assert numpy.allclose(ours, expected, rtol=1e-12)
