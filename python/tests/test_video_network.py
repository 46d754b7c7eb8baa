"""The network for clips in C++ against the plain module of reference_vdipom.py, with the same random weights.

The program is tests/tools/video_tool.cpp, built beside the library.
"""

import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from reference_vdipom import ReferenceVDiPoM
from tools import built_tool

AUTHORS = {"position": "narrow", "time_code": "relative", "dim": 40}
CASES = {
    "no mask": {"temporal_mask": "none"},
    "block-causal": {},
    "window 1": {"window": 1},
    "window 2": {"window": 2},
    "own block in every second layer": {"own_every": 2},
    "own block in every third layer": {"own_every": 3, "window": 2, "depth": 4},
    "order 1": {"order": 1},
    "order 3": {"order": 3, "window": 2},
    "attention": {"mixer": "attention", "heads": 4},
    "attention without a mask": {"mixer": "attention", "heads": 2, "temporal_mask": "none"},
    "attention with a window": {"mixer": "attention", "heads": 4, "window": 2},
    "attention with own blocks": {"mixer": "attention", "heads": 4, "window": 2, "own_every": 2},
    "patches 1x4x4": {"patch_time": 1, "patch": 4, "size": (5, 8, 4)},
    "patches 3x1x1": {"patch_time": 3, "patch": 1, "size": (9, 3, 2)},
    "geometric time": {"time_code": "geometric", "time_period": 1000},
    "no time": {"time_code": "none"},
    "odd period": {"time_period": 5},
    "one block": {"size": (2, 4, 6)},
    "width not of six": {"dim": 40},
    "text for each block": {"each": True, "window": 2},
    "attention, text for each block": {"each": True, "mixer": "attention", "heads": 4},
    "narrow position": {"position": "narrow", "dim": 40},
    "relative time": {"time_code": "relative"},
    "relative time of one block": {"time_code": "relative", "size": (2, 4, 6), "dim": 8},
    "relative time without a mask": {"time_code": "relative", "temporal_mask": "none"},
    "attention, narrow and relative": AUTHORS | {"mixer": "attention", "heads": 4},
    "no text by a mask": {"no_text": "mask"},
    "no text by a mask, text for each block": {"no_text": "mask", "each": True, "order": 3},
    "the authors'": AUTHORS | {"no_text": "mask"},
    "the authors' with windows": AUTHORS | {"no_text": "mask", "window": 2, "own_every": 2},
}
SHAPE = {"dim": 36, "depth": 2, "patch": 2, "patch_time": 2, "channels": 3, "text_width": 10, "ffw_expand": 2}
TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def tool():
    return built_tool("video_tool")


@pytest.fixture(scope="module")
def served(tool):
    """What the tool is asked, by words; one process for all of them, which starts once."""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([tool, "lines"], env=environment, **pipes) as process:

        def ask(*words):
            process.stdin.write("\t".join(map(str, words)) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "\n"

        yield ask
        process.stdin.close()


def randomise(module):
    """Every parameter random, those that start at zero too."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.7 / max(1, parameter.shape[-1]) ** 0.5 if parameter.dim() > 1 else 0.3)


def run(served, folder, module, settings, inputs):
    save_file(
        {name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / "w.safetensors"
    )
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, folder / "in.safetensors")
    words = [f"{key}={value}" for key, value in settings.items()]
    files = [folder / name for name in ("w.safetensors", "in.safetensors", "out.safetensors")]
    served("run", *files, *words)
    return load_file(files[2])


def draw(settings, size, each, same_time=False):
    """Clips with texts of different length, the last one of them without any, at blocks of their own."""
    B, L, frames = 3, 5, size[0]
    blocks = frames // settings["patch_time"]
    shape = (B, blocks, L) if each else (B, L)
    mask = torch.arange(L).expand(shape) < torch.randint(1, L + 1, (*shape[:-1], 1))
    mask[-1] = False
    x = torch.randn(B, settings["channels"], *size, dtype=torch.float64)
    return {
        "x": x,
        "t": torch.full((B,), 0.37, dtype=torch.float64) if same_time else torch.rand(B, dtype=torch.float64),
        "text": torch.randn(*shape, settings["text_width"], dtype=torch.float64),
        "mask": mask.to(torch.uint8),
        "first": torch.zeros(B, dtype=torch.int64) if same_time else torch.tensor([0, 3, 1_000_003]),
        "dy": torch.randn_like(x),
    }


def close(got, expected):
    return (got - expected).abs().max() <= TOLERANCE * max(1, expected.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients(served, tmp_path, name):
    torch.manual_seed(1)
    settings = SHAPE | CASES[name]
    size, each = settings.pop("size", (6, 4, 6)), settings.pop("each", False)
    module = ReferenceVDiPoM(**settings).double()
    randomise(module)
    inputs = draw(settings, size, each)
    out = run(served, tmp_path, module, settings, inputs)

    x, text = inputs["x"].requires_grad_(True), inputs["text"].requires_grad_(True)
    expected = module(x, inputs["t"], text, inputs["mask"].bool(), inputs["first"])
    (expected * inputs["dy"]).sum().backward()
    assert close(out["output"], expected)
    assert close(out["materialised"], expected)
    gradients = {"grad.x": x.grad, "grad.text": text.grad}
    gradients |= {f"grad.{key}": value.grad for key, value in module.named_parameters()}
    assert gradients.keys() == {key for key in out if key.startswith("grad.")}
    for key, gradient in gradients.items():
        assert close(out[key], gradient), key


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].get("temporal_mask") != "none"])
def test_block_by_block(served, tmp_path, name):
    torch.manual_seed(2)
    settings = SHAPE | CASES[name]
    size, each = settings.pop("size", (10, 4, 6)), settings.pop("each", False)
    module = ReferenceVDiPoM(**settings).double()
    randomise(module)
    inputs = draw(settings, size, each, same_time=True)
    out = run(served, tmp_path, module, settings, inputs)
    with torch.no_grad():
        arguments = inputs["x"], inputs["t"], inputs["text"]
        expected = module(*arguments, inputs["mask"].bool(), inputs["first"])
        without = module(*arguments, torch.zeros_like(inputs["mask"]).bool(), inputs["first"])
    assert close(out["streamed"], expected)
    assert close(out["streamed_without"], without)
