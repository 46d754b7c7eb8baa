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
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

import libpom
from libpom.request import RequestFields
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
    for dtype, name in (
        (torch.bfloat16, "bf16"),
        (torch.float32, "fp32"),
        ("fp64", "fp64"),
        ("bfloat16", "bf16"),
        ("float32", "fp32"),
        ("float16", "fp16"),
        ("float64", "fp64"),
    ):
        assert engine.resolve(class_="star", dtype=dtype)[0]["dtype"] == name


def test_numbers_of_others(engine):
    """numpy's and torch's scalars and lists are numbers."""
    (request,) = engine.resolve(
        class_=numpy.int64(1),
        seed=torch.tensor(7),
        steps=numpy.int32(4),
        cfg_scale=numpy.float32(1.5),
        size=(numpy.int64(12), 8),
        strength=None,
    )
    assert request["class"] == "star" and request["seed"] == 7 and request["steps"] == 4
    assert request["cfg_scale"] == 1.5 and (request["width"], request["height"]) == (12, 8)
    for seeds in (numpy.arange(3), torch.arange(3), [numpy.int64(0), torch.tensor(1), 2], range(3)):
        assert [r["seed"] for r in engine.resolve(class_="star", seed=seeds)] == [0, 1, 2]
    assert [r["class"] for r in engine.resolve(class_=numpy.array([1, 0]))] == ["star", "circle"]


def test_what_an_engine_is(engine):
    assert repr(engine) == "<libpom.Engine 'tiny': images of 16x16, 3 classes, on cpu>"
    assert engine.classes == ["circle", "star", "otter, sea"]
    assert libpom.samplers() == ["ddim", "ddpm", "dpm++2m", "euler", "heun"]
    for sampler in libpom.samplers():
        assert engine.resolve(class_="star", sampler=sampler)[0]["sampler"] == sampler


def test_models_by_name(engine, folder, monkeypatch, tmp_path):
    """As --model of the program has them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POM_MODELS", str(folder.parent))
    assert libpom.Engine("tiny").name == "tiny"
    with pytest.raises(
        libpom.Error, match=r'^Engine: expected a model folder .*"tinny"; .*\(tiny\).* did you mean tiny\?$'
    ):
        libpom.Engine("tinny")


def test_remarks_are_warnings(engine):
    with pytest.warns(
        UserWarning, match="the model's own size is 16x16: at 12x12 it may make noise"
    ) as caught:
        engine.sample(class_="star", size=12, steps=1)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="cfg scale 1 is no guidance: the negative class has no effect"):
        engine.sample(class_="star", negative_class="circle", cfg_scale=1, steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.sample(class_="star", steps=1)


def test_numpy(engine):
    pictures, requests = engine.sample(class_="star", seed=7, steps=2, output="numpy")
    assert type(pictures).__name__ == "ndarray" and pictures.shape == (1, 16, 16, 3)
    assert torch.equal(torch.from_numpy(pictures), engine.sample(**requests[0], output="torch")[0])
    for theirs, ours in (("np", "numpy"), ("pt", "torch"), ("latent", "latents")):  # diffusers' words
        a, b = (engine.sample(**requests[0], output=output)[0] for output in (theirs, ours))
        assert type(a) is type(b) and (a == b).all()


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
        ("class_label", "use class_"),
        ("output_type", 'use output="numpy"'),
        ("scheduler", "use sampler"),
        ("callback", "use on_step"),
        ("torch_dtype", "use dtype"),
        ("batch_size", "use count"),
        ("timesteps", "use steps, and shift"),
        ("sigmas", "use steps, and shift"),
        ("prompt_embeds", "use prompt"),
        ("guidance_rescale", "cfg_from and cfg_to"),
        ("return_dict", "the images and their requests"),
        ("clip", "use clamp"),
    ],
)
def test_the_names_of_diffusers(engine, name, hint):
    """Whatever is given with them: the name is wrong first."""
    for value in (1, torch.float16, print, torch.zeros(3)):
        for call in (engine.sample, engine.resolve, engine.stream):
            with pytest.raises(TypeError, match=rf"^{call.__name__}\(\) has no keyword '{name}': .*{hint}"):
                call(class_="star", **{name: value})


def test_names_that_are_none(engine):
    with pytest.raises(TypeError, match=r"^sample\(\) has no keyword 'stpes'; did you mean 'steps'\?$"):
        engine.sample(stpes=3)
    with pytest.raises(TypeError, match=r"^sample\(\) has no keyword 'on_stop'; did you mean 'on_step'\?$"):
        engine.sample(on_stop=print)
    with pytest.raises(TypeError, match=r"^resolve\(\) has no keyword 'wrong'$"):
        engine.resolve(wrong=object())
    with pytest.raises(TypeError, match=r"^resolve\(\) has no keyword 'batch': it is one of sample\(\)$"):
        engine.resolve(batch=2)


def test_errors_name_what_was_called(engine, folder):
    for call in (engine.sample, engine.resolve, engine.stream):
        with pytest.raises(libpom.Error, match=rf"^{call.__name__}: steps: expected 1 to 10000, got 0"):
            call(steps=0)
    with pytest.raises(libpom.Error, match=r"^Engine: device: expected cpu, cuda"):
        libpom.Engine(folder, device="gpu")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
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
        ({"seed": torch.zeros(1)}, ["seed", "expected an integer", "0.0"]),
        ({"seed": torch.zeros(1, 1)}, ["seed", "Tensor of shape (1, 1)"]),
        ({"steps": print}, ["steps: expected a number", "builtin_function"]),
        ({"class_": {"star"}}, ["class: expected a number, a string or a list of them, got set"]),
        ({"steps": "é" * 80}, ["steps: expected an integer", "é…"]),
        ({"batch": -1}, ["batch", "-1"]),
        ({"output": "pil"}, ["output", '"torch", "numpy" or "latents"', "'pil'", "PIL.Image.fromarray"]),
        ({"output": "pili"}, ["output", "'pili'"]),
        ({"noise": [0.0]}, ["noise: expected a tensor, got list"]),
        ({"noise": "seed"}, ["noise: expected a tensor, got str"]),
        ({"size": "64 by 64"}, ["size", "64x48", "'64 by 64'"]),
        ({"size": (64, 64, 3)}, ["size", "(64, 48)", "(64, 64, 3)"]),
        ({"size": True}, ["size", "True"]),
        ({"size": ("a", 4)}, ["width", "an integer"]),
        ({"size": 64, "width": 64}, ["size", "either size, or width and height", "both"]),
        ({"dtype": torch.int8}, ["dtype", "torch.bfloat16", "torch.int8"]),
        ({"dtype": "bfloat"}, ["dtype", "bf16", "bfloat"]),
        ({"steps": torch.float32}, ["steps: expected a number", "dtype"]),
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
