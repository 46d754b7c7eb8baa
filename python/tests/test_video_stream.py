"""Streamed clips in C++ against samplers written out in plain torch around the module of reference_vdipom.py,
in fp64 and over all blocks at once; and states that go on in a new process.

The program is tests/tools/video_tool.cpp, built beside the library.
"""

import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from reference_vdipom import ReferenceVDiPoM
from test_video_network import SHAPE, randomise, served, tool  # noqa: F401

TOLERANCE = 1e-5  # on pictures in [0, 1]
CASES = {
    "euler": ({}, {"sampler": "euler"}),
    "heun": ({}, {"sampler": "heun"}),
    "euler, guided": ({}, {"sampler": "euler", "scale": 3.0}),
    "heun, guided, window": ({"window": 2}, {"sampler": "heun", "scale": 2.0}),
    "guided for a while": ({"window": 3}, {"sampler": "heun", "scale": 2.0, "from": 0.3, "to": 0.7}),
    "attention": ({"mixer": "attention", "heads": 4, "window": 2}, {"sampler": "heun", "scale": 2.0}),
    "own blocks": ({"window": 3, "own_every": 2}, {"sampler": "heun", "scale": 2.0}),
    "attention, own blocks": (
        {"mixer": "attention", "heads": 4, "own_every": 2},
        {"sampler": "heun", "scale": 2.0},
    ),
}


def draw(blocks):
    """Two clips; the prompts change at the third block, and one clip has none then."""
    torch.manual_seed(4)
    text = torch.randn(2, 2, 5, SHAPE["text_width"])
    mask = torch.arange(5).expand(2, 2, 5) < torch.tensor([[[3], [5]], [[4], [0]]])
    which = [0 if block < 2 else 1 for block in range(blocks)]
    return {
        "text": text[:, which].contiguous(),
        "mask": mask[:, which].to(torch.uint8).contiguous(),
        "seeds": torch.tensor([3, 900_000_000_000]),
        "size": torch.tensor([4, 6]),
    }


def stream(ask, folder, module, settings, inputs):
    save_file({key: value.float().contiguous() for key, value in module.state_dict().items()}, folder / "w")
    save_file(inputs, folder / "in")
    files = [folder / name for name in ("w", "in", "out")]
    ask("stream", *files, *(f"{key}={value}" for key, value in settings.items()))
    return load_file(files[2])


@pytest.fixture
def new_process(tool):  # noqa: F811
    def ask(*words):
        environment = os.environ | {"OMP_NUM_THREADS": "2"}
        result = subprocess.run([tool, *map(str, words)], capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stderr

    return ask


def velocity(module, x, t, inputs, settings):
    B = x.shape[0]
    times, first = torch.full((B,), t, dtype=torch.float64), torch.zeros(B, dtype=torch.int64)
    text, mask = inputs["text"].double(), inputs["mask"].bool()
    with_text = module(x, times, text, mask, first)
    scale = settings.get("scale", 1.0)
    if scale == 1 or not settings.get("from", 0) <= t <= settings.get("to", 1):
        return with_text
    without = module(x, times, text, torch.zeros_like(mask), first)
    return without + scale * (with_text - without)


@torch.no_grad()
def sample(module, x, inputs, settings):
    """From t = 1 to 0 in equal steps along dx/dt = v."""
    steps = settings["steps"]
    for i in range(steps):
        t, next_t = 1 - i / steps, 1 - (i + 1) / steps
        v = velocity(module, x, t, inputs, settings)
        euler = x + (next_t - t) * v
        if settings["sampler"] == "heun" and i + 1 < steps:
            v = (v + velocity(module, euler, next_t, inputs, settings)) / 2
        x = x + (next_t - t) * v
    return x


@pytest.fixture(scope="module")
def make_module():
    def make(network):
        torch.manual_seed(3)
        module = ReferenceVDiPoM(**(SHAPE | network))
        randomise(module)
        return module.double()  # of fp32 values, which C++ reads

    return make


@pytest.mark.parametrize("name", CASES)
def test_against_plain_torch(served, tmp_path, make_module, name):  # noqa: F811
    network, sampling = CASES[name]
    module, inputs, sampling = make_module(network), draw(5), sampling | {"steps": 5}
    out = stream(served, tmp_path, module, SHAPE | network | sampling, inputs)
    expected = sample(module, out["noise"].double(), inputs, sampling)
    assert (out["clip"] - expected).abs().max() / 2 < TOLERANCE


@pytest.mark.parametrize(
    "network",
    [{}, {"window": 2}, {"window": 2, "own_every": 2}, {"mixer": "attention", "heads": 4, "own_every": 2}],
    ids=str,
)
def test_goes_on_in_a_new_process(new_process, tmp_path, make_module, network):
    module, inputs = make_module(network), draw(5)
    settings = SHAPE | network | {"sampler": "heun", "steps": 4, "scale": 2.0}
    unbroken = stream(new_process, tmp_path, module, settings, inputs)["clip"]
    parts, frames = [], 0
    for blocks in (1, 3, 1):
        some = dict(inputs)
        for key in ("text", "mask"):
            some[key] = inputs[key][:, frames : frames + blocks].contiguous()
        files = {"save": tmp_path / f"state{frames + blocks}"}
        if frames:
            files["continue"] = tmp_path / f"state{frames}"
            some["seeds"] = torch.zeros(2, dtype=torch.int64)  # the state has the right ones
        parts.append(stream(new_process, tmp_path, module, settings | files, some)["clip"])
        frames += blocks
    assert torch.equal(torch.cat(parts, dim=2), unbroken)
