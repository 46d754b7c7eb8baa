"""The engine from Python: images and their requests, mistakes as libpom.Error, Ctrl-C, and no engine
without the library."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

import libpom
from libpom.engine import RequestFields
from reference_dipom import ReferenceDiPoM

NETWORK = {"dim": 32, "depth": 2, "patch": 2, "channels": 3, "classes": 3, "order": 2, "order_expand": 2}
CONFIG = {
    "format": 1,
    "network": {"kind": "dipom", "mixer": "pom", "ffw_expand": 3, **NETWORK},
    "diffusion": {"path": "flow"},
    "codec": {"kind": "pixels"},
    "sample": {"size": [16, 16], "sampler": "heun", "steps": 3, "cfg_scale": 2.0},
    "classes": ["circle", "star", "otter, sea"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(random_weights(), path / "model.safetensors")
    return path


def random_weights():
    """Of a small network, none of them zero."""
    generator = torch.Generator().manual_seed(1)
    network = ReferenceDiPoM(mixer="pom", ffw_expand=3, **NETWORK)
    weights = {}
    for name, tensor in network.state_dict().items():
        if name == "freqs":
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        weights[name] = (noise * (tensor[0].numel() ** -0.5 if tensor.dim() > 1 else 0.1)).contiguous()
    return weights


@pytest.fixture
def engine(extension, folder):
    return libpom.Engine(folder)


def test_pictures_and_requests(engine):
    pictures, requests = engine.sample(class_=["star", "circle"], seed=7, count=2, steps=2)
    assert pictures.dtype == torch.uint8 and pictures.shape == (4, 16, 16, 3)
    assert [r["seed"] for r in requests] == [7, 8, 9, 10]
    assert [r["class"] for r in requests] == ["star", "star", "circle", "circle"]
    assert all(r["count"] == 1 and r["steps"] == 2 and r["sampler"] == "heun" for r in requests)
    assert len({picture.numpy().tobytes() for picture in pictures}) == 4
    assert engine.name == "tiny" and engine.config["network"]["dim"] == 32
    assert len(engine.weights_hash) == 64


def test_a_request_draws_its_picture_again(engine, folder, threads):
    pictures, requests = engine.sample(class_="all", seed=3, sampler="DPM++ 2M", omega=0.5, width=12)
    assert pictures.shape == (3, 16, 12, 3)
    for number in (1, 2):
        threads(number)
        for picture, request in zip(pictures, requests, strict=True):
            again, (same,) = libpom.Engine(folder).sample(batch=1, **request)
            assert torch.equal(again[0], picture) and same == request


def test_resolve_draws_nothing_but_the_seed(engine):
    (request,) = engine.resolve(class_="otter, sea", seed=-1, cfg_scale=None)
    assert request["seed"] >= 0 and request["class"] == "otter, sea" and request["cfg_scale"] == 2.0
    assert [r["class"] for r in engine.resolve(class_=range(2))] == ["circle", "star"]
    assert [r["class"] for r in engine.resolve(**{"class": 1})] == ["star"]


def test_keywords_are_those_of_the_library(extension):
    """A field is declared in pom/generate/request.h and in RequestFields: names and types are the same."""
    ours = typing.get_type_hints(RequestFields, localns={"np": numpy})
    of_python = {"class_", "continue_from", "size"}
    theirs = torch.ops.pom.request_fields()
    assert of_python <= set(ours) and set(ours) - of_python == set(theirs)
    lists = {"list[str]": str, "list[int]": int}
    plain = {"int": int | None, "float": float | None, "bool": bool | None}
    for field, kind in theirs.items():
        if kind in plain:
            assert ours[field] == plain[kind], field
        elif kind in lists:
            assert {lists[kind], Sequence[lists[kind]]} <= set(typing.get_args(ours[field])), field
        elif kind == "str":
            assert str in typing.get_args(ours[field]), field
        else:  # the choices
            choices = [typing.get_args(part) for part in typing.get_args(ours[field])]
            assert tuple(kind.split(" | ")) in choices, field


def test_sizes_and_dtypes(engine):
    for size, want in (
        (12, (12, 12)),
        ("12", (12, 12)),
        ("12x8", (12, 8)),
        ((12, 8), (12, 8)),
        ([8, 12], (8, 12)),
    ):
        (request,) = engine.resolve(class_="star", size=size)
        assert (request["width"], request["height"]) == want
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32"), ("fp64", "fp64")):
        assert engine.resolve(class_="star", dtype=dtype)[0]["dtype"] == name


def test_numpy(engine):
    pictures, requests = engine.sample(class_="star", seed=7, steps=2, output="numpy")
    assert type(pictures).__name__ == "ndarray" and pictures.shape == (1, 16, 16, 3)
    assert torch.equal(torch.from_numpy(pictures), engine.sample(**requests[0], output="torch")[0])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("guidance_scale", "use cfg_scale"),
        ("num_inference_steps", "use steps"),
        ("num_images_per_prompt", "use count"),
        ("num_videos_per_prompt", "use count"),
        ("num_frames", "use frames"),
        ("generator", "use seed"),
        ("image", "use init"),
        ("video", "use init"),
        ("latents", "use noise"),
        ("callback_on_step_end", "use on_step"),
        ("class_labels", "use class_"),
        ("output_type", 'use output="numpy"'),
    ],
)
def test_the_names_of_diffusers(engine, name, hint):
    for call in (engine.sample, engine.resolve):
        with pytest.raises(TypeError, match=rf"^{call.__name__}\(\) has no keyword '{name}': .*{hint}"):
            call(class_="star", **{name: 1})


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"stpes": 3}, ["stpes", "unknown field", '"steps"']),
        ({"steps": 0}, ["steps: expected 1 to 10000, got 0"]),
        ({"steps": "many"}, ["steps: expected an integer", "many"]),
        ({"steps": 3.0}, ["steps: expected an integer, got 3.0"]),
        ({"class_": "stra"}, ["class", '"stra"', '"star"']),
        ({"class_": 3}, ["class", "0 to 2", "got 3"]),
        ({"class_": "star", "class": "star"}, ["class", "once"]),
        ({"sampler": "hoin"}, ["sampler", "hoin"]),
        ({"width": 15}, ["size", "divisible by 2", "14x16 or 16x16"]),
        ({"cfg_scale": float("nan")}, ["cfg_scale", "finite"]),
        ({"cfg_scale": 2, "omega": 1}, ["either cfg_scale or omega"]),
        ({"seed": torch.zeros(1)}, ["sample", "Tensor"]),
        ({"steps": "é" * 80}, ["steps: expected an integer", "é…"]),
        ({"batch": -1}, ["batch", "-1"]),
        ({"clip": 1.0}, ["clip: expected its new name, clamp"]),
        ({"output": "pil"}, ["output", '"torch", "numpy" or "latents"', "'pil'"]),
        ({"size": "64 by 64"}, ["size", "64x48", "'64 by 64'"]),
        ({"size": (64, 64, 3)}, ["size", "(64, 48)", "(64, 64, 3)"]),
        ({"size": True}, ["size", "True"]),
        ({"size": ("a", 4)}, ["width", "an integer"]),
        ({"size": 64, "width": 64}, ["size", "either size, or width and height", "both"]),
        ({"dtype": torch.int8}, ["dtype", "torch.bfloat16", "torch.int8"]),
        ({"dtype": "bfloat16"}, ["dtype", "bf16", "bfloat16"]),
        ({"steps": torch.float32}, ["steps", "torch.float32"]),
    ],
)
def test_mistakes(engine, request_, words):
    with pytest.raises(libpom.Error) as caught:
        engine.sample(**request_)
    message = str(caught.value)
    assert message.startswith("sample: ") and "\n" not in message
    assert all(word in message for word in words), message


def test_folders_that_are_none(extension, folder, tmp_path):
    with pytest.raises(libpom.Error, match=r"^model folder: .*: no such folder$"):
        libpom.Engine(tmp_path / "none")
    with pytest.raises(libpom.Error, match=r": no config\.json$"):
        libpom.Engine(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"clases": []}))
    with pytest.raises(libpom.Error, match=r'config.json: clases: unknown field; did you mean "classes"\?$'):
        libpom.Engine(str(tmp_path))


def test_interrupt_ends_the_run(engine):
    """Ctrl-C while the library works: KeyboardInterrupt, soon, and the engine still draws."""
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.sample(class_="star", steps=10000, count=1000)
    assert time.monotonic() - start < 10
    timer.join()
    assert engine.sample(class_="star")[0].shape == (1, 16, 16, 3)


def test_threads_take_turns(engine):
    """Calls that meet in one engine wait for each other; each draws its own picture."""
    alone = {seed: engine.sample(class_="star", seed=seed, steps=8)[0] for seed in range(4)}
    wrong = []

    def draw(seed):
        for _ in range(8):
            if not torch.equal(engine.sample(class_="star", seed=seed, steps=8)[0], alone[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_needs_the_library(folder):
    code = f"import libpom\ntry: libpom.Engine({str(folder)!r})\nexcept libpom.Error as error: print(error)"
    environment = os.environ | {
        "LIBPOM_DISABLE_EXTENSION": "1",
        "PYTHONPATH": str(Path(libpom.__file__).parents[1]),
    }
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "expected the compiled library, got none: LIBPOM_DISABLE_EXTENSION is set" in out.stdout
