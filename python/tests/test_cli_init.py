"""`pom sample` from something other than noise: images and clips to begin with (--init, --strength), what
guidance leads away from, noise from a file and latents into one."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from test_cli import (  # noqa: F401
    _program_is_there,
    change_settings,
    is_failure,
    is_usage_error,
    model,
    plain_png,
    png_text,
    pom,
)
from test_cli_items import names_in, pixels
from test_cli_video import clips, ffmpeg, frames_of, made, near, sample  # noqa: F401
from tools import referee

Image = referee("PIL.Image")


@pytest.fixture
def draw(model, tmp_path):  # noqa: F811
    """`pom sample --model tiny ...` of images."""
    return lambda *arguments: pom("sample", "--model", model, "-y", *arguments, cwd=tmp_path)


@pytest.fixture
def again(model, tmp_path):  # noqa: F811
    return lambda *arguments: pom("reproduce", *arguments, "--model", model, cwd=tmp_path)


def random_image(path, width, height, mode="RGB", seed=0):
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(array).save(path)
    return array


def random_clip(folder, sample, frames):  # noqa: F811
    """A folder of frames, of this program: only such are clips."""
    made(sample("--prompt", "a blue", "--seed", 77, "--frames", frames, "-o", f"{folder}/"))


class TestImages:
    def test_nothing_is_made_anew(self, draw, tmp_path):
        """Strength 0 gives the pixels back, bit for bit, and says what it is."""
        array = random_image(tmp_path / "in.png", 16, 16)
        made(draw("--class", "star", "--init", "in.png", "--strength", 0, "-o", "out.png"))
        assert (pixels(tmp_path / "out.png") == array).all()
        own = json.loads(png_text(tmp_path / "out.png")["pom"])
        assert own["request"]["init"] == "in.png" and own["request"]["strength"] == 0
        assert len(own["init_sha256"]) == 64
        assert "Denoising strength: 0" in png_text(tmp_path / "out.png")["parameters"]

    @pytest.mark.parametrize("sampler", ["euler", "heun", "dpm++2m", "ddim", "ddpm"])
    def test_everything_is_made_anew(self, draw, tmp_path, sampler):
        """Strength 1 is no init, bit for bit."""
        random_image(tmp_path / "in.png", 16, 16)
        flags = ["--class", "star", "--sampler", sampler, "--seed", 4]
        made(draw(*flags, "-o", "plain.png"))
        made(draw(*flags, "--init", "in.png", "--strength", 1, "-o", "init.png"))
        assert (pixels(tmp_path / "plain.png") == pixels(tmp_path / "init.png")).all()

    def test_strengths_between(self, draw, tmp_path):
        """The more is made anew the less is left of what it began with."""
        array = random_image(tmp_path / "in.png", 16, 16).astype(int)
        flags = ["--class", "star", "--init", "in.png", "--steps", 20]
        far = []
        for strength in (0.05, 0.3, 0.6, 1):
            made(draw(*flags, "--strength", strength, "-o", f"{strength}.png"))
            far.append(np.abs(pixels(tmp_path / f"{strength}.png").astype(int) - array).mean())
        assert 0 < far[0] < far[1] < far[2] < far[3]
        said = json.loads(made(draw(*flags, "-o", "usual.png", "--json")).stdout)
        assert said["request"]["strength"] == 0.6
        assert (pixels(tmp_path / "usual.png") == pixels(tmp_path / "0.6.png")).all()

    def test_each_item_begins_with_it(self, draw, tmp_path):
        random_image(tmp_path / "in.png", 16, 16)
        flags = ["--init", "in.png", "--strength", 0.5]
        made(draw(*flags, "--class", "all", "--seed", 3, "-o", "%d.png"))
        made(draw(*flags, "--class", "square", "--seed", 4, "-o", "alone.png"))
        assert (pixels(tmp_path / "1.png") == pixels(tmp_path / "alone.png")).all()
        assert (pixels(tmp_path / "0.png") != pixels(tmp_path / "1.png")).any()

    def test_its_size_is_the_images(self, draw, tmp_path):
        random_image(tmp_path / "in.png", 12, 8)
        made(draw("--class", "star", "--init", "in.png", "-o", "out.png"))
        assert pixels(tmp_path / "out.png").shape == (8, 12, 3)

    def test_grey_and_jpeg(self, draw, tmp_path):
        grey = random_image(tmp_path / "grey.png", 16, 16, "L")
        flags = ["--class", "star", "--strength", 0]
        made(draw(*flags, "--init", "grey.png", "-o", "a.png"))
        assert (pixels(tmp_path / "a.png") == grey[..., None]).all()
        random_image(tmp_path / "in.png", 16, 16)
        Image.open(tmp_path / "in.png").save(tmp_path / "in.jpg", quality=90)
        made(draw(*flags, "--init", "in.jpg", "-o", "b.png"))
        assert np.abs(pixels(tmp_path / "b.png").astype(int) - pixels(tmp_path / "in.jpg")).max() <= 1

    def test_mistakes(self, draw, tmp_path):
        random_image(tmp_path / "in.png", 16, 16)
        random_image(tmp_path / "odd.png", 17, 16)
        random_image(tmp_path / "clear.png", 16, 16, "RGBA")
        (tmp_path / "text.png").write_text("no image")
        before = names_in(tmp_path)
        star = ["--class", "star", "-o", "out.png"]
        size = draw(*star, "--init", "in.png", "--size", "16x8")
        is_usage_error(size, "init: expected the size asked for, 16x8, got 16x16")
        is_usage_error(draw(*star, "--init", "odd.png"), "divisible by 2", "17x16")
        is_usage_error(draw(*star, "--strength", 0.5), "strength: expected an init to begin with, got none")
        is_usage_error(draw(*star, "--init", "in.png", "--strength", 1.5), "--strength: expected 0 to 1")
        is_failure(draw(*star, "--init", "clear.png"), "clear.png: expected an image of 8 bits, grey or RGB")
        is_failure(draw(*star, "--init", "text.png"), "text.png")
        is_failure(draw(*star, "--init", "gone.png"), "pom sample: init: no such file: gone.png")
        assert names_in(tmp_path) == before

    def test_a_clip_where_an_image_belongs(self, draw, sample, tmp_path):  # noqa: F811
        made(sample("--prompt", "a", "--frames", 4, "--size", 16, "-o", "clip/"))
        result = draw("--class", "star", "--init", "clip/", "-o", "out.png")
        is_usage_error(result, "init: expected an image", "got a clip of 4 frames")

    def test_forecast(self, draw, tmp_path):
        random_image(tmp_path / "in.png", 16, 16)
        flags = ["--class", "star", "--init", "in.png", "--steps", 10, "--dry-run", "--json"]
        for strength, evaluations in ((1, 10), (0.5, 5), (0, 0)):
            said = json.loads(made(draw(*flags, "--strength", strength)).stdout)
            assert said["evaluations"] == evaluations and said["fits"]


class TestClips:
    @pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
    def test_ends(self, sample, tmp_path, stream):  # noqa: F811
        """Strength 0 gives every frame back, 1 is no init: bit for bit."""
        random_clip("in", sample, 6)
        flags = ["--prompt", "a star", "--seed", 4, *stream]
        made(sample(*flags, "--init", "in/", "--strength", 0, "-o", "none/"))
        assert (frames_of(tmp_path / "none") == frames_of(tmp_path / "in")).all()
        made(sample(*flags, "--init", "in/", "--strength", 1, "-o", "all/"))
        made(sample(*flags, "--frames", 6, "-o", "plain/"))
        assert (frames_of(tmp_path / "all") == frames_of(tmp_path / "plain")).all()

    def test_between(self, sample, tmp_path):  # noqa: F811
        """A stream is the whole clip here too; the first frames of a longer clip are taken."""
        random_clip("in", sample, 6)
        flags = ["--prompt", "a star", "--init", "in", "--strength", 0.5, "--steps", 4]
        made(sample(*flags, "-o", "whole/"))
        made(sample(*flags, "--stream", "-o", "stream/"))
        near(frames_of(tmp_path / "whole"), frames_of(tmp_path / "stream"))
        made(sample(*flags, "--stream", "--frames", 3, "-o", "short/"))
        assert (frames_of(tmp_path / "short") == frames_of(tmp_path / "stream")[:3]).all()
        assert (frames_of(tmp_path / "stream") != frames_of(tmp_path / "in")).any()

    def test_an_image_stands_for_all_frames(self, sample, tmp_path):  # noqa: F811
        array = random_image(tmp_path / "in.png", 32, 16)
        flags = ["--prompt", "a star", "--init", "in.png", "--strength", 0]
        made(sample(*flags, "--frames", 5, "-o", "still/"))
        assert (frames_of(tmp_path / "still") == array).all()
        made(sample(*flags, "-o", "one.png"))
        assert (pixels(tmp_path / "one.png") == array).all()

    @pytest.mark.parametrize("name", ["in.mp4", "in.webm", "in.gif", "in.y4m"])
    def test_files(self, sample, tmp_path, ffmpeg, name):  # noqa: F811
        made(sample("--prompt", "a blue", "--frames", 4, "-o", name))
        said = json.loads(
            made(sample("--prompt", "a", "--init", name, "--strength", 0, "-o", "out/", "--json")).stdout
        )
        assert said["frames"] == 4 and said["request"]["init"] == name
        assert len(frames_of(tmp_path / "out")) == 4

    def test_mistakes(self, sample, tmp_path):  # noqa: F811
        random_clip("in", sample, 4)
        flags = ["--prompt", "a", "--init", "in", "-o", "out.gif"]
        is_usage_error(sample(*flags, "--frames", 6), "expected as many frames as the clip has, 6, got 4")
        is_usage_error(sample(*flags, "--frames", "inf"), "expected a clip with an end")
        is_usage_error(sample(*flags, "--size", "16x16"), "expected the size asked for, 16x16, got 32x16")
        made(sample("--prompt", "a", "--frames", 2, "--save-state", "s", "-o", "first.gif"))
        is_usage_error(sample(*flags, "--continue", "s"), "init: expected a clip that begins here")
        (tmp_path / "empty").mkdir()
        is_failure(sample("--prompt", "a", "--init", "empty", "-o", "out.gif"), "empty")
        assert not (tmp_path / "out.gif").exists()


class TestAway:
    def test_classes(self, draw, tmp_path):
        flags = ["--class", "star", "--cfg-scale", 3]
        made(draw(*flags, "-o", "plain.png"))
        for name in ("none", "circle", "1"):
            made(draw(*flags, "--negative-class", name, "-o", f"{name}.png"))
        plain = pixels(tmp_path / "plain.png")
        assert (pixels(tmp_path / "none.png") == plain).all()
        assert (pixels(tmp_path / "circle.png") != plain).any()
        assert (pixels(tmp_path / "circle.png") != pixels(tmp_path / "1.png")).any()
        assert "\nNegative prompt: circle\n" in png_text(tmp_path / "circle.png")["parameters"]
        request = json.loads(png_text(tmp_path / "1.png")["pom"])["request"]
        assert request["negative_class"] == "square"
        is_usage_error(draw(*flags, "--negative-class", "0-1"), "negative_class: expected one class, got 2")
        is_usage_error(draw(*flags, "--negative-class", "stra"), '"stra"', '"star"')
        is_usage_error(draw(*flags, "--negative-prompt", "a"), "expected a model that reads text")

    def test_without_guidance(self, draw, sample, tmp_path):  # noqa: F811
        """A remark, as it would do nothing in silence."""
        flags = ["--class", "star", "--cfg-scale", 1]
        result = made(draw(*flags, "--negative-class", "circle", "-o", "a.png"))
        assert "cfg scale 1 is no guidance: the negative class has no effect\n" in result.stderr
        assert "no effect" not in made(draw(*flags, "--negative-class", "none", "-o", "b.png")).stderr
        result = made(sample("--prompt", "a", "--cfg-scale", 1, "--negative-prompt", "b", "-o", "a.gif"))
        assert "the negative prompt has no effect\n" in result.stderr

    def test_of_its_own_class_is_no_guidance(self, draw, tmp_path):
        """Away from what it leads to, at any scale."""
        made(draw("--class", "star", "--cfg-scale", 1, "-o", "plain.png"))
        made(draw("--class", "star", "--cfg-scale", 5, "--negative-class", "star", "-o", "same.png"))
        near(pixels(tmp_path / "plain.png"), pixels(tmp_path / "same.png"))

    @pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
    def test_prompts(self, sample, tmp_path, stream):  # noqa: F811
        flags = ["--prompt", "a star", "--cfg-scale", 3, "--frames", 4, *stream]
        made(sample(*flags, "-o", "plain/"))
        made(sample(*flags, "--negative-prompt", "", "-o", "none/"))
        made(sample(*flags, "--negative-prompt", "a circle", "-o", "circle/"))
        plain, none, circle = (frames_of(tmp_path / name) for name in ("plain", "none", "circle"))
        assert (plain == none).all() and (plain != circle).any()
        text = png_text(tmp_path / "circle" / "000000.png")["parameters"]
        assert text.startswith("a star\nNegative prompt: a circle\nSteps: ")
        is_usage_error(sample(*flags, "--negative-class", "1"), "expected a model with classes")

    def test_prompts_of_streams_that_go_on(self, sample, tmp_path):  # noqa: F811
        """The state knows what the clip leads away from, with prompts that change and without."""
        flags = ["--prompt", "a star", "--cfg-scale", 3, "--negative-prompt", "a circle"]
        made(sample(*flags, "--stream", "--frames", 8, "--prompt-at", "6:a left", "-o", "all/"))
        made(sample(*flags, "--frames", 4, "--save-state", "s", "-o", "one/"))
        made(sample("--continue", "s", "--frames", 4, "--prompt-at", "2:a left", "-o", "two/"))
        parts = [frames_of(tmp_path / name) for name in ("one", "two")]
        assert (np.concatenate(parts) == frames_of(tmp_path / "all")).all()


class TestLatents:
    """Of a codec that is the pixels themselves, latents are what is seen."""

    def test_of_images(self, draw, tmp_path):
        flags = ["--class", "all", "--count", 2, "--batch", 4]
        made(draw(*flags, "--save-latents", "l", "-o", "%d.png"))
        latents = load_file(tmp_path / "l")["latents"]
        assert latents.shape == (6, 3, 16, 16) and latents.dtype == torch.float32
        for i in range(6):
            seen = (latents[i] * 127.5 + 127.5).round().clamp(0, 255).permute(1, 2, 0).numpy()
            assert (pixels(tmp_path / f"{i}.png") == seen).all()

    @pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
    def test_of_clips(self, sample, tmp_path, stream):  # noqa: F811
        """Of whole blocks, whatever part of the last one the clip shows."""
        flags = ["--prompt", "a star", "--count", 2, "--frames", 5, *stream]
        made(sample(*flags, "--batch", 1, "--save-latents", "l", "-o", "%d.gif"))
        latents = load_file(tmp_path / "l")["latents"]
        assert latents.shape == (2, 3, 6, 16, 32)
        made(sample("--prompt", "a star", "--seed", 1, "--frames", 5, *stream, "-o", "one/"))
        seen = (latents[1, :, :5] * 127.5 + 127.5).round().clamp(0, 255).permute(1, 2, 3, 0).numpy()
        assert (frames_of(tmp_path / "one") == seen).all()

    def test_of_one_frame(self, sample, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--save-latents", "l", "-o", "a.png"))
        assert load_file(tmp_path / "l")["latents"].shape == (1, 3, 2, 16, 32)

    def test_noise_takes_the_place_of_seeds(self, draw, sample, tmp_path):  # noqa: F811
        """Of numpy, of the shape that --save-latents writes: seeds mean nothing then."""
        generator = np.random.default_rng(3)
        save_arrays(
            {"latents": generator.standard_normal((2, 3, 16, 16), dtype=np.float32)}, tmp_path / "images"
        )
        flags = ["--class", "star", "--init-latents", "images", "--count", 2]
        made(draw(*flags, "-o", "a%d.png"))
        made(draw(*flags, "--seed", 50, "--batch", 1, "-o", "b%d.png"))
        for i in range(2):
            assert (pixels(tmp_path / f"a{i}.png") == pixels(tmp_path / f"b{i}.png")).all()
        assert (pixels(tmp_path / "a0.png") != pixels(tmp_path / "a1.png")).any()
        clip = generator.standard_normal((1, 3, 6, 16, 32), dtype=np.float32)
        save_arrays({"latents": clip}, tmp_path / "clips")
        flags = ["--prompt", "a star", "--frames", 6, "--init-latents", "clips"]
        made(sample(*flags, "-o", "whole/"))
        made(sample(*flags, "--seed", 5, "--stream", "-o", "stream/"))
        near(frames_of(tmp_path / "whole"), frames_of(tmp_path / "stream"))

    @pytest.fixture
    def noise(self, tmp_path):
        generator = np.random.default_rng(3)
        images = generator.standard_normal((2, 3, 16, 16), dtype=np.float32)
        clips_ = generator.standard_normal((2, 3, 6, 16, 32), dtype=np.float32)
        save_arrays({"latents": images}, tmp_path / "images")
        save_arrays({"latents": clips_}, tmp_path / "clips")
        return tmp_path

    def test_is_made_again(self, draw, again, noise):
        """Each item with its own row, and all of them on a sheet."""
        flags = ["--class", "star", "--init-latents", "images", "--count", 2]
        made(draw(*flags, "-o", "%d.png"))
        made(draw(*flags, "--grid", "-o", "sheet.png"))
        for i in range(2):
            own = json.loads(png_text(noise / f"{i}.png")["pom"])
            assert (own["noise_file"], own["noise_row"]) == ("images", i) and len(own["noise_sha256"]) == 64
        for name in ("0.png", "1.png", "sheet.png"):
            result = again(name, "-o", "again.png", "-y")
            assert result.stdout == "the pixels agree\n", result.stderr
            assert (noise / "again.png").read_bytes() == (noise / name).read_bytes()
        (noise / "images").rename(noise / "moved")
        result = again("1.png")
        is_failure(result, 'it began with "images", which is not in .', "--init-latents FILE")
        assert again("1.png", "--init-latents", "moved").stdout == "the pixels agree\n"
        is_failure(again("1.png", "--init-latents", "clips"), "expected the file that it began with")
        change_settings(noise / "1.png", lambda own: own.update(noise_row=2))
        result = again("1.png", "--init-latents", "moved")
        is_failure(result, "moved: expected latents of more than 2 items, got 2")

    def test_clips_are_made_again(self, sample, clips, noise):  # noqa: F811
        flags = ["--prompt", "a star", "--count", 2, "--frames", 6, "--init-latents", "clips"]
        made(sample(*flags, "-o", "%d.y4m"))
        made(sample(*flags, "--stream", "-o", "s%d.y4m"))
        for name in ("0.y4m", "1.y4m", "s1.y4m"):
            result = pom("reproduce", name, "--model", clips["causal"], cwd=noise)
            assert result.stdout == "the pixels of all 6 frames agree\n", result.stderr

    def test_noise_of_other_types(self, draw, tmp_path):
        """The values count, in whatever precision they are stored."""
        noise = torch.randn(1, 3, 16, 16).half().float()
        for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("fp64", torch.float64)):
            save_file({"latents": noise.to(dtype)}, tmp_path / name)
            result = draw("--class", "star", "--init-latents", name, "-o", f"{name}.png")
            assert result.returncode == 0, (name, result.stderr)
            assert (pixels(tmp_path / f"{name}.png") == pixels(tmp_path / "fp32.png")).all()

    def test_mistakes(self, draw, sample, tmp_path):  # noqa: F811
        save_file({"latents": torch.randn(1, 3, 16, 16)}, tmp_path / "one")
        save_file({"noise": torch.randn(1, 3, 16, 16)}, tmp_path / "other")
        save_file({"latents": torch.zeros(1, 3, 16, 16, dtype=torch.int64)}, tmp_path / "whole")
        star = ["--class", "star", "-o", "a.png"]
        is_failure(draw(*star, "--init-latents", "other"), 'other: expected a tensor "latents", got none')
        is_failure(draw(*star, "--init-latents", "gone"), "gone")
        is_failure(draw(*star, "--init-latents", plain_png(tmp_path / "x.png")), "x.png")
        two = draw("--class", "star", "--count", 2, "-o", "%d.png", "--init-latents", "one")
        is_failure(two, "noise: expected floating point of shape [2, 3, 16, 16]", "[1, 3, 16, 16]")
        is_failure(draw(*star, "--init-latents", "whole"), "noise: expected floating point", "Long")
        clip = sample("--prompt", "a", "--frames", 4, "--init-latents", "one", "-o", "a.gif")
        is_failure(clip, "[1, 3, 4, 16, 32]")
        endless = sample("--prompt", "a", "--frames", "inf", "--init-latents", "one", "-o", "a.gif")
        is_failure(endless, "noise: expected a clip with an end")
        (tmp_path / "mine").write_text("mine")
        words = ["--prompt", "a", "-o", "a.gif", "--save-latents"]
        is_usage_error(sample(*words, "mine"), "--save-latents: mine already exists")
        is_usage_error(sample(*words, "no/l"), "--save-latents: no such folder: no")
        assert not (tmp_path / "a.gif").exists() and not (tmp_path / "a.png").exists()


class TestWindow:
    def test_another_than_the_models(self, sample, tmp_path):  # noqa: F811
        """While sampling, as if the model had been trained with it; 0 is all blocks."""
        flags = ["--prompt", "a star", "--stream", "--frames", 8]
        made(sample(*flags, "-o", "own/", which="window"))
        made(sample(*flags, "--window", 2, "-o", "two/", which="causal"))
        made(sample(*flags, "-o", "all/", which="causal"))
        made(sample(*flags, "--window", 0, "-o", "none/", which="window"))
        own, two, everything, none = (frames_of(tmp_path / name) for name in ("own", "two", "all", "none"))
        assert (own == two).all() and (everything == none).all() and (own != everything).any()
        made(sample(*flags[:2], "--frames", 8, "--window", 2, "-o", "whole/", which="causal"))
        near(frames_of(tmp_path / "whole"), two)

    def test_of_a_model_without_blocks(self, sample):  # noqa: F811
        result = sample("--prompt", "a", "--window", 2, "-o", "a.gif", which="whole")
        is_usage_error(result, "window: expected a block-causal model")
