"""The networks in C++ against the plain module of reference_dipom.py, with the same random weights.

The program is tests/tools/network_tool.cpp, built beside the library.
"""

import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from reference_dipom import ReferenceDiPoM, variants
from reference_vdipom import ReferenceVDiPoM, video_variants
from tools import built_tool

CASES = {
    **{f"order {k}": {"order": k, "order_expand": 2} for k in (1, 2, 3, 4)},
    "order 6": {"order": 6, "order_expand": 1},
    "attention": {"mixer": "attention", "heads": 4},
    "patch 4": {"patch": 4, "size": (8, 16)},
    "patch 8": {"patch": 8, "size": (16, 8)},
    "attention patch 4": {"mixer": "attention", "heads": 2, "patch": 4, "size": (12, 8)},
    "patch 1": {"patch": 1, "size": (3, 5)},
    "square": {"size": (8, 8)},
    "wide": {"dim": 64, "ffw_expand": 4, "size": (4, 20)},
    "three channels": {"channels": 3, "classes": 1},
    "narrow position": {"position": "narrow"},
    "narrow position of one token": {"position": "narrow", "dim": 4, "size": (2, 2)},
    "attention, narrow position": {"position": "narrow", "mixer": "attention", "heads": 4, "size": (6, 10)},
}


@pytest.fixture(scope="module")
def tool():
    return built_tool("network_tool")


def randomise(module):
    """Every parameter random, those that start at zero too."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.7 / max(1, parameter.shape[-1]) ** 0.5 if parameter.dim() > 1 else 0.3)


def run(tool, folder, module, settings, inputs):
    save_file(
        {name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / "w.safetensors"
    )
    save_file(inputs, folder / "in.safetensors")
    words = [f"{key}={value}" for key, value in settings.items()]
    files = [folder / name for name in ("w.safetensors", "in.safetensors", "out.safetensors")]
    subprocess.run([tool, "run", *files, *words], check=True, env=os.environ | {"OMP_NUM_THREADS": "2"})
    return load_file(files[2])


@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients(tool, tmp_path, name):
    settings = {"dim": 32, "depth": 3, "patch": 2, "channels": 4, "classes": 7, "ffw_expand": 3} | CASES[name]
    height, width = settings.pop("size", (8, 12))
    module = ReferenceDiPoM(**settings).double()
    randomise(module)
    x = torch.randn(3, settings["channels"], height, width, dtype=torch.float64)
    t = torch.full((3,), 0.37, dtype=torch.float64)
    y = torch.tensor([0, settings["classes"], 0])
    dy = torch.randn_like(x)
    out = run(tool, tmp_path, module, settings, {"x": x, "t": t, "y": y, "dy": dy})

    x.requires_grad_(True)
    expected = module(x, t, y)
    (expected * dy).sum().backward()
    assert (out["output"] - expected).abs().max() < 1e-10 * max(1, expected.abs().max())
    assert (out["denoised"] - expected).abs().max() < 1e-10 * max(1, expected.abs().max())
    without = module(x, t, torch.full_like(y, settings["classes"]))
    both = torch.cat([expected, without])
    assert (out["denoised_both"] - both).abs().max() < 1e-10 * max(1, both.abs().max())
    gradients = {"grad.x": x.grad} | {f"grad.{key}": value.grad for key, value in module.named_parameters()}
    assert gradients.keys() == {key for key in out if key.startswith("grad.")}
    for key, gradient in gradients.items():
        assert (out[key] - gradient).abs().max() < 1e-10 * max(1, gradient.abs().max()), key


def test_times_of_their_own(tool, tmp_path):
    settings = {"dim": 32, "depth": 2, "patch": 2, "channels": 3, "classes": 4, "ffw_expand": 2}
    module = ReferenceDiPoM(**settings).double()
    randomise(module)
    x, t = torch.randn(4, 3, 6, 4, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    y = torch.tensor([0, 1, 4, 3])
    out = run(tool, tmp_path, module, settings, {"x": x, "t": t, "y": y, "dy": torch.ones_like(x)})
    assert (out["output"] - module(x, t, y)).abs().max() < 1e-10


def test_parameters_of_every_variant(tool):
    lines = subprocess.run([tool, "variants"], check=True, capture_output=True, text=True).stdout.splitlines()
    counted = {name: int(count) for name, count in (line.split() for line in lines)}
    pictures, clips = variants(), video_variants()
    assert counted.keys() == pictures.keys() | clips.keys()
    for name, settings in (pictures | clips).items():
        with torch.device("meta"):
            module = (ReferenceVDiPoM if name in clips else ReferenceDiPoM)(**settings)
        assert counted[name] == sum(parameter.numel() for parameter in module.parameters()), name
