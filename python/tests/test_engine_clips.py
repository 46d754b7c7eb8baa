"""The engine from Python with a model for clips: the program's frames bit for bit, streams that end when they
are left, states, noise and what a clip begins with."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import libpom
from test_cli import _program_is_there, model, pom  # noqa: F401
from test_cli_init import random_image
from test_cli_items import pixels
from test_cli_video import clips, frames_of, made, near  # noqa: F401
from tools import referee

Image = referee("PIL.Image")

BLOCK, STEPS = 2, 3  # of the models of test_cli_video.py
ENDLESS = {"prompt": "a star", "frames": math.inf}


@pytest.fixture
def engine(extension, clips):  # noqa: F811
    return libpom.Engine(clips["causal"])


@pytest.fixture
def images(extension, model):  # noqa: F811
    """The engine of a model for images."""
    return libpom.Engine(model)


@pytest.fixture
def program(clips, tmp_path):  # noqa: F811
    """Frames that `pom sample` makes, in as many threads as this process has."""

    def run(*flags):
        threads = ["--threads", torch.get_num_threads()]
        made(pom("sample", "--model", clips["causal"], *flags, *threads, "-o", "p/", "-y", cwd=tmp_path))
        return frames_of(tmp_path / "p")

    return run


def together(frames):
    return np.stack([np.asarray(frame) for frame in frames])


def free(engine):
    """Whether the engine takes a request."""
    return engine.sample(prompt="a", frames=2, steps=1)[0].shape == (1, 2, 16, 32, 3)


class TestSample:
    def test_shapes_and_requests(self, engine):
        made_, requests = engine.sample(prompt=["a star", "a circle"], seed=7, count=2, frames=5)
        assert made_.dtype == torch.uint8 and made_.shape == (4, 5, 16, 32, 3)
        assert [r["seed"] for r in requests] == [7, 8, 9, 10]
        assert [r["prompt"] for r in requests] == ["a star"] * 2 + ["a circle"] * 2
        assert all(r["frames"] == 5 and r["fps"] == 12 and r["count"] == 1 for r in requests)
        assert engine.block_frames == BLOCK and len(engine.text_hash) == len(engine.weights_hash) == 64
        for clip, request in zip(made_, requests, strict=True):
            again, (same,) = engine.sample(batch=1, **request)
            assert torch.equal(again[0], clip) and same == request

    def test_is_the_programs(self, engine, program):
        flags = ["--prompt", "a blue star", "--prompt-at", "4:a circle", "--seed", 3, "--frames", 7]
        request = {"prompt": "a blue star", "prompt_at": "4:a circle", "seed": 3, "frames": 7}
        assert (engine.sample(**request)[0][0].numpy() == program(*flags)).all()
        assert (engine.sample(**request, stream=True)[0][0].numpy() == program(*flags, "--stream")).all()

    def test_images(self, engine):
        """A clip of one frame is an image, and is the first frame of the clip."""
        image, (request,) = engine.sample(prompt="a star", frames=1)
        assert image.shape == (1, 16, 32, 3) and request["frames"] == 1
        clip, _ = engine.sample(prompt="a star", frames=4, stream=True)
        assert torch.equal(image, clip[:, 0])

    def test_numpy(self, engine):
        array, (request,) = engine.sample(prompt="a star", frames=4, output="numpy")
        assert isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.shape == (1, 4, 16, 32, 3)
        assert (engine.sample(**request)[0].numpy() == array).all()

    def test_seeds(self, engine):
        clips_, requests = engine.sample(prompt=["a", "a star"], seed=[4, 9], frames=2, steps=1)
        assert [r["seed"] for r in requests] == [4, 9, 4, 9]
        alone, _ = engine.sample(prompt="a star", seed=9, frames=2, steps=1)
        assert torch.equal(alone[0], clips_[3])
        assert [r["seed"] for r in engine.resolve(prompt="a", seed=range(3))] == [0, 1, 2]
        assert [r["seed"] for r in engine.resolve(prompt="a", seed=(5, 1))] == [5, 1]

    def test_batches_and_threads(self, engine, threads):
        request = {"prompt": ["a star", "a"], "count": 2, "frames": 4}
        want, _ = engine.sample(**request)
        for number, batch in ((1, 1), (2, 3)):
            threads(number)
            assert torch.equal(engine.sample(batch=batch, **request)[0], want)

    def test_without_end(self, engine):
        with pytest.raises(
            libpom.Error, match=r"^sample: frames: expected a number, .* stream\(\), got inf$"
        ):
            engine.sample(**ENDLESS)
        assert free(engine)

    @pytest.mark.parametrize("output", ["latents", "torch"])
    @pytest.mark.parametrize("stream", [False, True])
    def test_latents(self, engine, output, stream):
        """Of a codec that is the pixels themselves; of whole blocks."""
        request = {"prompt": ["a star", "a"], "frames": 5, "stream": stream, "batch": 1}
        latents, requests = engine.sample(**request, output="latents")
        assert latents.shape == (2, 3, 6, 16, 32) and latents.dtype == torch.float32 and len(requests) == 2
        seen = (latents * 127.5 + 127.5).round().clamp(0, 255).byte().permute(0, 2, 3, 4, 1)
        assert torch.equal(seen[:, :5], engine.sample(**request)[0])

    def test_latents_of_images(self, images):
        latents, _ = images.sample(class_="all", count=2, batch=4, output="latents")
        assert latents.shape == (6, 3, 16, 16)
        seen = (latents * 127.5 + 127.5).round().clamp(0, 255).byte().permute(0, 2, 3, 1)
        assert torch.equal(seen, images.sample(class_="all", count=2)[0])

    def test_noise(self, engine, images):
        noise = torch.randn(2, 3, 4, 16, 32)
        a, _ = engine.sample(prompt="a star", count=2, frames=4, noise=noise)
        b, _ = engine.sample(prompt="a star", count=2, frames=4, noise=noise, seed=9, batch=1)
        assert torch.equal(a, b) and not torch.equal(a[0], a[1])
        assert torch.equal(engine.sample(prompt="a star", frames=4, noise=noise[1:])[0][0], a[1])
        assert torch.equal(engine.sample(prompt="a star", frames=4, noise=noise[1:].double())[0][0], a[1])
        one = torch.randn(1, 3, 16, 16)
        c, _ = images.sample(class_="star", noise=one)
        d, _ = images.sample(class_="star", noise=one, seed=4)
        assert torch.equal(c, d)
        assert torch.equal(images.sample(class_="star", noise=one.numpy())[0], c)  # numpy's is as good
        for wrong in (noise, noise[:1, :, :2], noise[:1].int(), one):
            with pytest.raises(
                libpom.Error, match=r"^sample: noise: expected floating point of shape \[1, 3, 4"
            ):
                engine.sample(prompt="a", frames=4, noise=wrong)

    def test_its_request_has_the_noise(self, engine, images):
        """What was made with noise of one's own is made again from its request."""
        for made_, requests, make in (
            (*images.sample(class_="all", noise=torch.randn(3, 3, 16, 16)), images),
            (*engine.sample(prompt="a", count=2, frames=4, noise=torch.randn(2, 3, 4, 16, 32)), engine),
        ):
            for one, request in zip(made_, requests, strict=True):
                again, (same,) = make.sample(**request)
                assert torch.equal(again[0], one) and same.keys() == request.keys()

    def test_noise_of_a_stranger(self, engine):
        """That of a view, of another memory order, is the same noise; it is not written to."""
        noise = torch.randn(1, 3, 4, 32, 16).transpose(3, 4)
        before = noise.clone()
        a, _ = engine.sample(prompt="a star", frames=4, noise=noise)
        b, _ = engine.sample(prompt="a star", frames=4, noise=noise.contiguous())
        assert torch.equal(a, b) and torch.equal(noise, before)


class TestOnStep:
    def test_every_step(self, engine, images):
        seen = []
        request = {"prompt": "a star", "frames": 4}
        clip, _ = engine.sample(**request, on_step=lambda step, item, frames: seen.append((step, frames)))
        assert [step for step, _ in seen] == [1, 2, 3]
        assert all(frames.shape == (4, 16, 32, 3) and frames.dtype == torch.uint8 for _, frames in seen)
        near(seen[-1][1].numpy(), clip[0].numpy())  # the last step expects what there is
        assert torch.equal(clip, engine.sample(**request)[0])
        seen.clear()
        image, _ = images.sample(
            class_="star", steps=10, on_step=lambda step, item, image: seen.append((step, image))
        )
        assert [step for step, _ in seen] == list(range(1, 11)) and seen[0][1].shape == (16, 16, 3)
        near(seen[-1][1].numpy(), image[0].numpy())

    def test_of_every_item(self, engine):
        """Whichever batch it is made in."""
        for batch in (1, 2):
            last = {}
            seen = []

            def on_step(step, item, frames, seen=seen, last=last):
                seen.append((step, item))
                last[item] = frames

            clips_, _ = engine.sample(prompt=["a", "a star"], frames=2, batch=batch, on_step=on_step)
            assert sorted(seen) == [(step, item) for step in (1, 2, 3) for item in (0, 1)]
            for item, frames in last.items():
                near(frames.numpy(), clips_[item].numpy())

    def test_of_streams(self, engine):
        """Steps count over the blocks."""
        steps = []
        request = {"prompt": "a", "frames": 4, "stream": True}
        engine.sample(**request, on_step=lambda step, item, frames: steps.append((step, len(frames))))
        assert steps == [(step, BLOCK) for step in range(1, 2 * STEPS + 1)]

    def test_its_errors_end_the_run(self, engine):
        def fail(step, item, frames):
            raise KeyError("mine")

        start = time.monotonic()
        for stream in (False, True):
            with pytest.raises(KeyError, match="mine"):
                engine.sample(prompt="a", frames=2, steps=10000, stream=stream, on_step=fail)
            assert free(engine)
        assert time.monotonic() - start < 20


class TestInit:
    def test_pixels(self, images, tmp_path):
        """As a file, a tensor or an array: one thing."""
        array = random_image(tmp_path / "in.png", 16, 16)
        request = {"class_": "star", "strength": 0.5}
        want, (told,) = images.sample(**request, init=tmp_path / "in.png")
        assert told["init"] == str(tmp_path / "in.png") and told["strength"] == 0.5
        for init in (str(tmp_path / "in.png"), array, torch.from_numpy(array)):
            assert torch.equal(images.sample(**request, init=init)[0], want)
        same, _ = images.sample(class_="star", init=array, strength=0)
        assert (same[0].numpy() == array).all()
        anew, _ = images.sample(class_="star", init=array, strength=1)
        assert torch.equal(anew, images.sample(class_="star")[0])

    def test_pil(self, images, engine, tmp_path):
        array = random_image(tmp_path / "in.png", 16, 16)
        want, _ = images.sample(class_="star", init=tmp_path / "in.png")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of an array that may not be written to
            with Image.open(tmp_path / "in.png") as image:
                assert torch.equal(images.sample(class_="star", init=image)[0], want)
                assert torch.equal(images.sample(class_="star", init=np.asarray(image))[0], want)
                grey = np.asarray(image.convert("L"))
                same, _ = images.sample(class_="star", init=image.convert("L"), strength=0)
                assert (same[0].numpy() == grey[..., None]).all()
                for mode in ("RGBA", "P", "1", "F"):
                    message = (
                        rf'init: expected a PIL image of mode L or RGB, got {mode}: use .convert\("RGB"\)'
                    )
                    with pytest.raises(libpom.Error, match=message):
                        images.sample(class_="star", init=image.convert(mode))
        flipped, _ = images.sample(class_="star", init=array[::-1], strength=0)
        assert (flipped[0].numpy() == array[::-1]).all()
        frames = [Image.fromarray(frame) for frame in np.random.randint(0, 256, (4, 16, 32, 3), np.uint8)]
        clip, _ = engine.sample(prompt="a", init=frames, strength=0)
        assert (clip[0].numpy() == np.stack([np.asarray(frame) for frame in frames])).all()

    def test_one_for_each(self, images, engine):
        """What sample gives, sample takes; each request has its own."""
        first, _ = images.sample(class_="all")
        for init in (first, first.numpy(), list(first)):
            made_, requests = images.sample(class_="all", init=init, strength=0.5)
            for i, request in enumerate(requests):
                alone, _ = images.sample(class_=i, seed=i, init=first[i], strength=0.5)
                assert torch.equal(alone[0], made_[i])
                assert torch.equal(images.sample(**request)[0][0], made_[i])
        clips_, _ = engine.sample(prompt=["a", "a star"], frames=4)
        same, _ = engine.sample(prompt=["a", "a star"], init=clips_, strength=0)
        assert torch.equal(same, clips_)
        with pytest.raises(
            libpom.Error, match="init: expected one for all, or one for each of 3 images, got 2"
        ):
            images.sample(class_="all", init=first[:2])
        with pytest.raises(
            libpom.Error, match="init: expected one for all, or one for each of 1 images, got 3"
        ):
            images.resolve(class_="star", init=first)

    def test_its_request_has_the_pixels(self, images, engine):
        array = np.random.default_rng(2).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        image, (request,) = images.sample(class_="star", init=array, strength=0.5)
        assert torch.equal(images.sample(**request)[0], image)
        (resolved,) = images.resolve(class_="star", init=array, size=None)
        assert (resolved["width"], resolved["height"]) == (16, 16) and resolved["strength"] == 0.6
        array = np.random.default_rng(2).integers(0, 256, (4, 16, 32, 3), dtype=np.uint8)
        with engine.stream(prompt="a", init=array, strength=0.5) as stream:
            clip = torch.stack(list(stream))
        assert torch.equal(engine.sample(**stream.request)[0][0], clip)

    def test_frames(self, engine, tmp_path):
        array = np.random.default_rng(1).integers(0, 256, (6, 16, 32, 3), dtype=np.uint8)
        request = {"prompt": "a star", "init": array}
        same, (told,) = engine.sample(**request, strength=0)
        assert told["frames"] == 6 and (same[0].numpy() == array).all()
        anew, _ = engine.sample(**request, strength=1)
        assert torch.equal(anew, engine.sample(prompt="a star", frames=6)[0])
        part, _ = engine.sample(**request, strength=0, frames=3)
        assert (part[0].numpy() == array[:3]).all()
        still, _ = engine.sample(prompt="a star", init=array[0], frames=4, strength=0)
        assert (still[0].numpy() == array[0]).all()
        one, _ = engine.sample(prompt="a star", init=array[0], frames=1, strength=0)
        assert (one[0].numpy() == array[0]).all()

    def test_streams(self, engine):
        array = np.random.default_rng(1).integers(0, 256, (4, 16, 32, 3), dtype=np.uint8)
        assert (together(engine.stream(prompt="a", init=array, strength=0)) == array).all()
        want, _ = engine.sample(prompt="a", init=array, strength=0.5, stream=True)
        got = together(engine.stream(prompt="a", init=array, strength=0.5))
        assert (got == want[0].numpy()).all()

    @pytest.mark.parametrize(
        ("init", "words"),
        [
            (torch.zeros(16, 16, 3), ["init: expected a file, a PIL image, or uint8", "float32"]),
            (np.zeros((16, 16), np.uint8), ["init: expected a file, a PIL image, or uint8", "(16, 16)"]),
            (
                np.zeros((3, 16, 16), np.uint8),
                ["init: expected a file, a PIL image, or uint8", "(3, 16, 16)"],
            ),
            (np.zeros((17, 16, 3), np.uint8), ["divisible by 2"]),
            (np.zeros((4, 16, 16, 3), np.uint8), ["init: expected one for all, or one for each", "got 4"]),
            (np.zeros((0, 16, 16, 3), np.uint8), ["init", "got 0"]),
            (np.zeros((1, 4, 16, 16, 3), np.uint8), ["init: expected a file, a PIL image", "(1, 4, 16"]),
            (3, ["init: expected a file, a PIL image, or uint8 of shape (H, W, C)", "got int"]),
            (["a.png", "b.png"], ["init: expected one file, or a list of images of one size", "list of str"]),
            ([], ["init", "a list of nothing"]),
            (
                [np.zeros((16, 16, 3), np.uint8), np.zeros((8, 16, 3), np.uint8)],
                ["init", "a list of images of several sizes"],
            ),
            (np.zeros((0, 0, 3), np.uint8), ["size"]),
            ("gone.png", ["sample: init: no such file: gone.png"]),
        ],
        ids=lambda value: str(getattr(value, "shape", "")),
    )
    def test_mistakes(self, images, init, words):
        with pytest.raises(libpom.Error) as caught:
            images.sample(class_="star", init=init)
        assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words), (
            caught.value
        )

    def test_grey_pixels(self, images):
        """As a grey file is: the same in all colours."""
        grey = np.random.default_rng(1).integers(0, 256, (16, 16, 1), dtype=np.uint8)
        same, _ = images.sample(class_="star", init=grey, strength=0)
        assert (same[0].numpy() == grey).all()

    def test_strength_alone(self, images):
        with pytest.raises(libpom.Error, match="strength: expected an init to begin with, got none"):
            images.sample(class_="star", strength=0.5)


class TestAway:
    def test_from(self, engine, images):
        plain, _ = engine.sample(prompt="a star", frames=2)
        assert torch.equal(engine.sample(prompt="a star", frames=2, negative_prompt="")[0], plain)
        assert not torch.equal(engine.sample(prompt="a star", frames=2, negative_prompt="a")[0], plain)
        plain, _ = images.sample(class_="star")
        assert torch.equal(images.sample(class_="star", negative_class="none")[0], plain)
        away, (request,) = images.sample(class_="star", negative_class=0)
        assert request["negative_class"] == "circle" and not torch.equal(away, plain)

    @pytest.mark.parametrize(
        ("which", "request_", "message"),
        [
            ("engine", {"prompt": "a", "class_": "star"}, "class: expected a model with classes"),
            ("engine", {"prompt": "a", "negative_class": "star"}, "negative_class: expected a model with"),
            ("engine", {}, 'prompt: expected a prompt, got nothing ("" samples without text)'),
            ("images", {"prompt": "a"}, "prompt: expected a model that reads text"),
            ("images", {"negative_prompt": "a"}, "negative_prompt: expected a model that reads text"),
            ("images", {"frames": 4}, "frames: expected a model that makes clips"),
            ("images", {"fps": 4}, "fps: expected a model that makes clips"),
            ("images", {"stream": True}, "stream: expected a model that makes clips"),
            ("images", {"window": 2}, "window: expected a model that makes clips"),
            ("images", {"continue_from": "s"}, "continue: expected a model that makes clips"),
            ("images", {"save_state": "s"}, "save_state: expected a model that makes clips"),
        ],
        ids=str,
    )
    def test_fields_of_other_models(self, request, which, request_, message):
        engine = request.getfixturevalue(which)
        for call in (engine.sample, engine.resolve):
            with pytest.raises(libpom.Error) as caught:
                call(**request_)
            assert str(caught.value).startswith(f"{call.__name__}: {message}")


class TestStream:
    def test_is_the_programs(self, engine, program):
        flags = ["--prompt", "a blue star", "--prompt-at", "4:a circle", "--seed", 3, "--frames", 7]
        request = {"prompt": "a blue star", "prompt_at": ["4:a circle"], "seed": 3, "frames": 7}
        frames = list(engine.stream(**request))
        assert all(frame.shape == (16, 32, 3) and frame.dtype == torch.uint8 for frame in frames)
        assert (together(frames) == program(*flags, "--stream")).all()

    def test_numpy(self, engine):
        stream = engine.stream(prompt="a star", frames=4, output="numpy")
        frames = list(stream)
        assert all(isinstance(frame, np.ndarray) and frame.dtype == np.uint8 for frame in frames)
        assert (np.stack(frames) == together(engine.stream(prompt="a star", frames=4))).all()

    def test_says_what_it_makes(self, engine):
        with pytest.warns(UserWarning, match='"xy"'):
            opened = engine.stream(prompt="a xy", frames=3, seed=5, fps=4)
        with opened as stream:
            assert stream.fps == 4 and stream.request["prompt"] == "a xy" and stream.request["seed"] == 5
            assert any('"xy"' in remark for remark in stream.remarks)
            assert any("trimmed" in remark for remark in stream.remarks)
            assert len(list(stream)) == 3 and list(stream) == []

    def test_unknown_words_are_warnings(self, engine):
        with pytest.warns(UserWarning, match='"xy"'):
            engine.sample(prompt="a xy", frames=2)
        with pytest.warns(UserWarning, match="truncated to"):
            engine.sample(prompt="a star " * 200, frames=2)

    def test_without_end(self, engine):
        want = together(engine.stream(prompt="a star", frames=10))
        for ending in (math.inf, "inf", float("inf")):
            got = []
            for frame in engine.stream(prompt="a star", frames=ending):
                got.append(frame)
                if len(got) == 10:
                    break
            assert (together(got) == want).all()
        assert free(engine)

    def test_with(self, engine):
        with engine.stream(**ENDLESS) as stream:
            first = next(stream)
        assert first.shape == (16, 32, 3)
        with pytest.raises(StopIteration):
            next(stream)
        assert free(engine)

        def fails():
            with engine.stream(**ENDLESS) as stream:
                next(stream)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        assert free(engine)

    def test_close(self, engine):
        stream = engine.stream(**ENDLESS)
        next(stream)
        stream.close()
        stream.close()
        assert list(stream) == [] and free(engine)
        never = engine.stream(**ENDLESS)  # of which no frame was asked for
        never.close()
        assert free(engine)

    def test_one_that_is_dropped(self, engine):
        stream = engine.stream(**ENDLESS)
        next(stream)
        del stream
        assert free(engine)

    def test_waits_where_nobody_asks(self, engine):
        """A stream that nobody reads does not fill memory, nor keep a processor busy."""
        with engine.stream(prompt="a star", frames=math.inf, steps=1) as stream:
            next(stream)
            used = []
            while len(used) < 20 and (not used or used[-1] >= 0.1):  # until what it makes ahead is there
                before = time.process_time()
                time.sleep(0.5)
                used.append(time.process_time() - before)
            assert used[-1] < 0.1

    def test_a_second_run_is_refused(self, engine):
        """While it is open, and at once: waiting would never end where one thread has both."""
        message = "expected an engine that is free, got one with a stream that is open: close it"
        for _ in range(20):
            with engine.stream(**ENDLESS):
                with pytest.raises(libpom.Error, match=message):
                    engine.sample(prompt="a", frames=2)
                with pytest.raises(libpom.Error, match=message):
                    engine.stream(**ENDLESS)
        with engine.stream(**ENDLESS) as stream:
            next(stream)
            assert engine.resolve(prompt="a")[0]["frames"] == 8  # which computes nothing
            assert engine.name == "causal" and engine.block_frames == BLOCK
        assert free(engine)

    def test_asks_about_the_engine_while_one_is_open(self, clips):  # noqa: F811
        code = (
            "import libpom, math, sys\n"
            "engine = libpom.Engine(sys.argv[1])\n"
            "with engine.stream(prompt='a', frames=math.inf) as stream:\n"
            "    next(stream)\n"
            "    print(len(engine.weights_hash), len(engine.text_hash), engine.config['format'])\n"
        )
        environment = os.environ | {"PYTHONPATH": str(Path(libpom.__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", code, clips["causal"]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.split() == ["64", "64", "1"], done.stderr

    def test_two_engines(self, clips, engine):  # noqa: F811
        """Streams of two engines go on side by side."""
        other = libpom.Engine(clips["causal"])
        pairs = list(
            zip(
                engine.stream(prompt="a star", frames=6),
                other.stream(prompt="a star", frames=6, seed=1),
                strict=True,
            )
        )
        assert (together(a for a, _ in pairs) == together(engine.stream(prompt="a star", frames=6))).all()
        assert any((a != b).any() for a, b in pairs)

    def test_many_clips(self, engine):
        with pytest.raises(libpom.Error, match=r"^stream: count: expected one clip, got 2 of them"):
            engine.stream(prompt="a", count=2, frames=2)
        assert free(engine)

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            ({"output": "latents"}, 'stream: output: expected "torch" or "numpy", got'),
            ({"frames": 0}, "stream: frames: expected 1 to"),
            ({"frames": -math.inf}, "stream: frames: expected a finite number"),
            ({"frames": math.nan}, "stream: frames: expected a finite number"),
            ({"prompt_at": "star"}, "stream: prompt_at: expected N:TEXT"),
            ({"continue_from": "gone"}, "gone"),
            ({"continue_from": "a", "continue": "b"}, "continue: expected it once"),
        ],
        ids=str,
    )
    def test_mistakes(self, engine, request_, message):
        with pytest.raises(libpom.Error) as caught:
            engine.stream(**({"prompt": "a"} | request_))
        assert message in str(caught.value) and "\n" not in str(caught.value)
        assert free(engine)

    def test_of_models_that_cannot(self, clips, images):  # noqa: F811
        with pytest.raises(libpom.Error, match="stream: expected a block-causal model"):
            libpom.Engine(clips["whole"]).stream(prompt="a")
        with pytest.raises(libpom.Error, match="expected a model that makes clips"):
            images.stream(class_="star")

    def test_an_error_on_its_way(self, engine, tmp_path):
        """A state that cannot be written any more is told where the stream ends, once."""
        (tmp_path / "folder").mkdir()
        stream = engine.stream(prompt="a", frames=4, save_state=tmp_path / "folder" / "s")
        next(stream)
        (tmp_path / "folder").rmdir()
        with pytest.raises(libpom.Error, match="folder"):
            list(stream)
        assert free(engine)

    def test_a_state_with_no_place_to_be(self, engine, tmp_path):
        """Is told before anything is made."""
        for call in (engine.stream, engine.sample, engine.resolve):
            with pytest.raises(libpom.Error, match=rf"^{call.__name__}: save_state: no such folder: .*gone$"):
                call(prompt="a", frames=2, save_state=tmp_path / "gone" / "s")
            with pytest.raises(
                libpom.Error, match=f"^{call.__name__}: save_state: expected a file, got the f"
            ):
                call(prompt="a", frames=2, save_state=tmp_path)
        assert free(engine)

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("num_frames", "use frames"),
            ("num_videos_per_prompt", "use count"),
            ("guidance_scale", "use cfg_scale"),
        ],
    )
    def test_the_names_of_diffusers(self, engine, name, hint):
        with pytest.raises(TypeError, match=rf"^stream\(\) has no keyword '{name}': {hint}"):
            engine.stream(prompt="a", **{name: 1})


class TestStates:
    def test_go_on(self, engine, clips, tmp_path):  # noqa: F811
        """Exactly, in this engine, in a new one, and in the program."""
        request = {"prompt": "a blue star", "seed": 9, "sampler": "heun", "fps": 5}
        want = together(engine.stream(**request, frames=10))
        first = together(engine.stream(**request, frames=4, save_state=tmp_path / "s"))
        for again in (engine, libpom.Engine(clips["causal"])):
            stream = again.stream(continue_from=tmp_path / "s", frames=6)
            assert stream.fps == 5 and stream.request["seed"] == 9
            assert (np.concatenate([first, together(stream)]) == want).all()
        words = ["sample", "--model", clips["causal"], "--continue", "s", "--frames", 6, "-o", "p/"]
        made(pom(*words, "--threads", torch.get_num_threads(), cwd=tmp_path))
        assert (np.concatenate([first, frames_of(tmp_path / "p")]) == want).all()

    @pytest.mark.parametrize("leave", ["break", "with", "close"])
    @pytest.mark.parametrize("asked", [1, 2, 3, 6])
    def test_stand_after_the_last_block_asked_for(self, engine, tmp_path, leave, asked):
        """Not after blocks that were made ahead; a block of which one frame was given is the last."""
        state = tmp_path / "s"
        request = {"prompt": "a star", "frames": math.inf, "save_state": state}
        got = []
        if leave == "break":
            for frame in engine.stream(**request):
                got.append(frame)
                if len(got) == asked:
                    break
        elif leave == "with":
            with engine.stream(**request) as stream:
                got = [next(stream) for _ in range(asked)]
        else:
            stream = engine.stream(**request)
            got = [next(stream) for _ in range(asked)]
            stream.close()
        whole = (asked + BLOCK - 1) // BLOCK * BLOCK
        want = together(engine.stream(prompt="a star", frames=whole + 4))
        assert (together(got) == want[:asked]).all()
        more = together(engine.stream(continue_from=state, frames=4))
        assert (more == want[whole:]).all()

    def test_of_a_stream_that_was_never_asked(self, engine, tmp_path):
        """No frame was given: there is nothing to go on from, and what went on would lack the first block."""
        stream = engine.stream(prompt="a", frames=math.inf, save_state=tmp_path / "s")
        time.sleep(1)
        stream.close()
        assert not (tmp_path / "s").exists() and free(engine)

    def test_of_sample(self, engine, tmp_path):
        first, _ = engine.sample(prompt="a star", frames=4, save_state=tmp_path / "s")
        more, _ = engine.sample(continue_from=tmp_path / "s", frames=4)
        want = together(engine.stream(prompt="a star", frames=8))
        assert (torch.cat([first, more], 1)[0].numpy() == want).all()

    def test_other_prompts(self, engine, tmp_path):
        list(engine.stream(prompt="a star", frames=2, save_state=tmp_path / "s"))
        a, b = (
            together(engine.stream(continue_from=tmp_path / "s", prompt=prompt, frames=4))
            for prompt in ("a circle", "a left")
        )
        want = together(engine.stream(prompt="a star", prompt_at="2:a circle", frames=6))
        assert (a == want[2:]).all() and (a != b).any()


class TestInterrupt:
    def test_while_a_stream_waits(self, engine):
        """Ctrl-C while a block is made: soon, and the engine is free after it."""
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            for _ in engine.stream(prompt="a", frames=math.inf, steps=10000):
                pass
        assert time.monotonic() - start < 10
        timer.join()
        assert free(engine)

    def test_while_frames_come(self, engine, tmp_path):
        """In the middle of a loop; with a state, which stands after the last block asked for."""
        timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        got = []

        def read():
            with engine.stream(prompt="a star", frames=math.inf, save_state=tmp_path / "s") as stream:
                for frame in stream:
                    got.append(frame)

        with pytest.raises(KeyboardInterrupt):
            read()
        timer.join()
        assert got and free(engine)
        more = together(engine.stream(continue_from=tmp_path / "s", frames=2))
        whole = (len(got) + BLOCK - 1) // BLOCK * BLOCK
        want = together(engine.stream(prompt="a star", frames=whole + 2 * BLOCK))
        assert any((more == want[at : at + 2]).all() for at in (whole, whole + BLOCK))

    @pytest.mark.parametrize("stream", [False, True])
    def test_while_it_samples(self, engine, stream):
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            engine.sample(prompt="a", frames=8, steps=10000, count=20, stream=stream)
        timer.join()
        assert free(engine)


class TestThreads:
    def test_take_turns(self, engine):
        alone = {seed: engine.sample(prompt="a star", seed=seed, frames=4)[0] for seed in range(3)}
        wrong = []

        def draw(seed):
            for _ in range(5):
                if not torch.equal(engine.sample(prompt="a star", seed=seed, frames=4)[0], alone[seed]):
                    wrong.append(seed)

        threads = [threading.Thread(target=draw, args=(seed,)) for seed in alone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_one_reads_what_another_opened(self, engine):
        want = together(engine.stream(prompt="a star", frames=6))
        stream, got = engine.stream(prompt="a star", frames=6), []
        thread = threading.Thread(target=lambda: got.extend(stream))
        thread.start()
        thread.join()
        assert (together(got) == want).all()

    def test_the_program_ends_with_a_stream_open(self, clips):  # noqa: F811
        code = (
            "import libpom, math, sys\n"
            "stream = libpom.Engine(sys.argv[1]).stream(prompt='a', frames=math.inf)\n"
            "print(tuple(next(stream).shape))\n"
        )
        environment = os.environ | {"PYTHONPATH": str(Path(libpom.__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", code, clips["causal"]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 and done.stdout == "(16, 32, 3)\n" and done.stderr == "", done.stderr


def test_an_image_file_begins_a_clip(engine, tmp_path):
    random_image(tmp_path / "in.png", 32, 16)
    clip, _ = engine.sample(prompt="a", init=tmp_path / "in.png", strength=0, frames=3)
    assert (clip[0].numpy() == pixels(tmp_path / "in.png")).all()
