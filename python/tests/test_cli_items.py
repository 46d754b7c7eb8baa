"""`pom sample` with several clips in one run: each is what it is alone, whatever the batch; names, mosaics,
previews, forecasts; and images from text."""

import json
from pathlib import Path

import numpy as np
import pytest

from test_cli import (  # noqa: F401
    _program_is_there,
    is_failure,
    is_usage_error,
    leaves_nothing,
    model,
    png_size,
    png_text,
    pom,
)
from test_cli_video import clips, ffmpeg, frames_of, made, near, probe, sample  # noqa: F401
from tools import referee

Image = referee("PIL.Image")
BLOCK = 2  # frames of one, of the models of test_cli_video.py


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def gif_frames(path):
    with Image.open(path) as clip:
        frames = []
        for i in range(clip.n_frames):
            clip.seek(i)
            frames.append(np.asarray(clip.convert("RGB")))
        return np.stack(frames)


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


class TestManyClips:
    @pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
    def test_each_is_what_it_is_alone(self, sample, tmp_path, stream):  # noqa: F811
        """In one batch, in batches of one, of two, and alone; item i has seed + i."""
        flags = ["--prompt", "a blue star", "--frames", 6, *stream]
        three = ["--count", 3, "--seed", 40]
        said = json.loads(made(sample(*flags, *three, "-o", "all/%d.y4m", "--json")).stdout)
        assert said["files"] == [f"all/{i}.y4m" for i in range(3)]
        assert said["seeds"] == [40, 41, 42] and said["prompts"] == ["a blue star"] * 3
        made(sample(*flags, *three, "-o", "one/%d.y4m", "--batch", 1, "--threads", 1))
        made(sample(*flags, *three, "-o", "two/%d.y4m", "--batch", 2))
        made(sample(*flags, "--seed", 41, "-o", "alone.y4m"))
        read = lambda name: (tmp_path / name).read_bytes()  # noqa: E731
        for i in range(3):
            assert read(f"all/{i}.y4m") == read(f"one/{i}.y4m") == read(f"two/{i}.y4m")
        assert read("alone.y4m") == read("all/1.y4m")
        assert len({read(f"all/{i}.y4m") for i in range(3)}) == 3

    def test_prompts_and_seeds(self, sample, tmp_path):  # noqa: F811
        """An item for each prompt; a list or a range of seeds is for each of them."""
        flags = ["--frames", 2, "--steps", 1, "--prompt", "a star", "--prompt", "a circle"]
        said = json.loads(made(sample(*flags, "--seed", 5, "-o", "a/%d.gif", "--json")).stdout)
        assert said["prompts"] == ["a star", "a circle"] and said["seeds"] == [5, 6]
        assert said["request"]["prompt"] == ["a star", "a circle"]
        said = json.loads(made(sample(*flags, "--seed", "3,7-8", "-o", "b/%d.gif", "--json")).stdout)
        assert said["seeds"] == [3, 7, 8] * 2 and said["prompts"] == ["a star"] * 3 + ["a circle"] * 3
        assert said["request"]["seed"] == [3, 7, 8]
        said = json.loads(made(sample(*flags, "--count", 2, "-o", "c/%d.gif", "--json")).stdout)
        assert said["seeds"] == [0, 1, 2, 3]
        assert len({(tmp_path / "b" / f"{i}.gif").read_bytes() for i in range(6)}) == 6

    def test_seeds_of_images(self, model, tmp_path):  # noqa: F811
        words = ["sample", "--model", model, "--steps", 1, "-o"]
        many = ["{class}_{seed}.png", "--class", "circle,star", "--seed", "9,2-3", "--json"]
        said = json.loads(made(pom(*words, *many, cwd=tmp_path)).stdout)
        assert said["files"] == [f"{name}_{seed}.png" for name in ("circle", "star") for seed in (9, 2, 3)]
        made(pom(*words, "alone.png", "--seed", 2, "--class", "star", cwd=tmp_path))
        assert (tmp_path / "alone.png").read_bytes() == (tmp_path / "star_2.png").read_bytes()

    def test_a_drawn_seed_is_that_of_the_first(self, sample, tmp_path):  # noqa: F811
        flags = ["--prompt", "a", "--count", 2, "--frames", 2, "--steps", 1, "-o", "%d.gif"]
        result = made(sample(*flags, "--seed", -1, "--json"))
        first, second = json.loads(result.stdout)["seeds"]
        assert second == first + 1 and f"using random seed {first}" in result.stderr

    def test_prompts_that_change_do_so_in_all(self, sample, tmp_path):  # noqa: F811
        """A change is every clip's, and is that of the clip alone."""
        flags = ["--frames", 6, "--prompt-at", "4:a left"]
        two = ["--prompt", "a star", "--prompt", "a circle"]
        said = json.loads(made(sample(*flags, *two, "-o", "both/%d.y4m", "--json")).stdout)
        assert said["prompts"] == ["a star", "a circle"]
        assert said["changes"] == [{"frame": 4, "prompt": "a left"}]
        made(sample(*flags, "--prompt", "a circle", "--seed", 1, "-o", "alone.y4m"))
        assert (tmp_path / "both" / "1.y4m").read_bytes() == (tmp_path / "alone.y4m").read_bytes()

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--count", 2, "--seed", "1,2"], ["count: expected a list of seeds or a count, got both"]),
            (["--seed", "1,-2"], ["seed", "at least 0"]),
            (["--seed", "9-3"], ["--seed: expected a range such as 0-9", '"9-3"']),
            (["--seed", "1,x"], ["--seed: expected a whole number", '"x"']),
            (["--seed", ""], ["--seed: expected a whole number"]),
            (["--seed", "0-99999999"], ["--seed: expected a range"]),
            (["--count", 2, "--frames", "inf"], ["frames: expected one clip at a time, got 2"]),
            (["--count", 2, "--save-state", "s"], ["save_state: expected one clip at a time, got 2"]),
            (["--count", 2, "-o", "-"], ["--output: expected one clip for -, got 2"]),
            (["--count", 2, "-o", "a.mp4"], ["a_%03d.mp4", "clips/", "--grid"]),
            (["--count", 2, "-o", "a.avi"], ["a.avi", ".mp4, .webm, .gif or .y4m"]),
            (["--count", 1_000_000, "--prompt", "b"], ["count: expected at most 1000000"]),
            (["--prompt", "a \udcff star"], ["prompt", "UTF-8"]),
            (["--prompt-at", "2:a \udcff star"], ["prompt_at", "UTF-8"]),
            (["--negative-prompt", "\udcc3"], ["negative_prompt", "UTF-8"]),
        ],
        ids=str,
    )
    def test_mistakes(self, sample, tmp_path, flags, words):  # noqa: F811
        is_usage_error(sample("--prompt", "a", *flags), *words)
        leaves_nothing(tmp_path)


class TestNames:
    def test_unless_told(self, sample, tmp_path, ffmpeg):  # noqa: F811
        flags = ["--frames", 2, "--steps", 1]
        result = made(sample(*flags, "--prompt", "a Blue star!", "--prompt", "a circle", "--seed", 3))
        assert result.stdout.split() == ["out/a-Blue-star_3.mp4", "out/a-circle_4.mp4"]
        assert int(probe(tmp_path / "out" / "a-circle_4.mp4")["nb_read_frames"]) == 2

    @pytest.mark.parametrize(
        ("output", "names"),
        [
            ("new/", ["new/causal_000.mp4", "new/causal_001.mp4"]),
            ("deep/{prompt}/{seed}.gif", ["deep/a-star/7.gif", "deep/a-circle-left/8.gif"]),
            ("{prompt}_%02d.y4m", ["a-star_00.y4m", "a-circle-left_01.y4m"]),
        ],
    )
    def test_patterns(self, sample, tmp_path, ffmpeg, output, names):  # noqa: F811
        flags = ["--frames", 2, "--steps", 1, "--prompt", "a star", "--prompt", "a circle left"]
        result = made(sample(*flags, "--seed", 7, "-o", output))
        assert result.stdout.split() == names == sorted(names_in(tmp_path), key=names.index)

    def test_prompts_lead_nowhere(self, sample, tmp_path):  # noqa: F811
        """The text of a prompt is a name, not a path."""
        flags = ["--frames", 2, "--steps", 1, "-o", "in/{prompt}.gif"]
        (name,) = made(sample(*flags, "--prompt", "../../a/b\nc")).stdout.split()
        assert [f"in/{path.name}" for path in (tmp_path / "in").iterdir()] == [name]
        assert names_in(tmp_path) == [name]

    def test_folders_of_frames(self, sample, tmp_path):  # noqa: F811
        """One clip into a folder is its frames, as it always was."""
        flags = ["--prompt", "a star", "--frames", 2, "--steps", 1]
        assert made(sample(*flags, "-o", "one/")).stdout == "one\n"
        assert len(frames_of(tmp_path / "one")) == 2

    def test_one_that_exists_stops_all(self, sample, tmp_path):  # noqa: F811
        (tmp_path / "1.gif").write_text("mine")
        result = sample("--prompt", "a", "--count", 3, "-o", "%d.gif")
        is_usage_error(result, "1.gif already exists", "-y")
        assert names_in(tmp_path) == ["1.gif"] and (tmp_path / "1.gif").read_text() == "mine"


class TestMosaic:
    FLAGS = ["--prompt", "a star", "--prompt", "a circle", "--frames", 4, "--steps", 2]

    def test_gif(self, sample, tmp_path):  # noqa: F811
        """Every frame is a sheet of all clips' frames."""
        flags = [*self.FLAGS, "--seed", 3]
        result = made(sample(*flags, "--grid", "-o", "all.gif", "--json"))
        said = json.loads(result.stdout)
        assert said["files"] == ["all.gif"] and said["seeds"] == [3, 4] and said["frames"] == 4
        assert names_in(tmp_path) == ["all.gif"]
        with Image.open(tmp_path / "all.gif") as clip:
            assert clip.n_frames == 4 and clip.width >= 2 * 32 and clip.height >= 16

    def test_has_every_clip_in_its_place(self, sample, tmp_path):  # noqa: F811
        flags = [*self.FLAGS, "--seed", 3]
        made(
            sample(*flags, "--grid", "-o", "all/"),
        )
        (name,) = names_in(tmp_path)
        assert name.startswith("all/causal_sheet_3.")
        made(sample(*flags, "--grid", "-o", "all.y4m"))
        for i, prompt in enumerate(("a star", "a circle")):
            made(sample("--prompt", prompt, "--seed", 3 + i, *self.FLAGS[4:], "-o", f"{i}/"))
        sheet = y4m_frames(tmp_path / "all.y4m")
        assert len(sheet) == 4
        places = []
        for i in range(2):
            clip = frames_of(tmp_path / str(i))
            places.append(place_of(clip, sheet))
            assert places[-1] is not None
        assert places[0] < places[1]  # in order, row by row

    def test_mp4(self, sample, tmp_path, ffmpeg):  # noqa: F811
        made(sample("--prompt", "a", "--count", 3, "--frames", 3, "--steps", 1, "--grid", "-o", "all.mp4"))
        said = probe(tmp_path / "all.mp4")
        assert int(said["nb_read_frames"]) == 3 and said["width"] >= 32 * 3

    def test_unless_told(self, sample, tmp_path, ffmpeg):  # noqa: F811
        result = made(sample(*self.FLAGS, "--grid", "--seed", 5))
        assert result.stdout == "out/causal_sheet_5.mp4\n"

    def test_of_images(self, sample, tmp_path):  # noqa: F811
        """Images from text, on a sheet."""
        flags = ["--prompt", "a star", "--prompt", "a circle", "--grid"]
        assert made(sample(*flags, "-o", "all.png")).stdout == "all.png\n"
        width, height = png_size(tmp_path / "all.png")
        assert width >= 2 * 32 and height >= 16
        first = png_text(tmp_path / "all.png")["parameters"].splitlines()[0]
        assert first == "sheet of 2 images: a star, a circle; seeds 0 to 1"

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--frames", "inf"], ["clips with an end"]),
            (["--frames", 1_000_000_000], ["at most 4 GB of frames"]),
            (["--preview", 1], ["--preview: expected a file for each clip, got --grid"]),
        ],
        ids=str,
    )
    def test_mistakes(self, sample, tmp_path, flags, words):  # noqa: F811
        is_usage_error(sample("--prompt", "a", "--grid", *flags, "-o", "a.gif"), *words)
        leaves_nothing(tmp_path)


def y4m_frames(path):
    """(T, 3, H, W): planes of Y, Cb, Cr."""
    head, rest = Path(path).read_bytes().split(b"\n", 1)
    words = {word[:1]: word[1:] for word in head.split()[1:]}
    assert b"444" in words[b"C"]
    width, height = int(words[b"W"]), int(words[b"H"])
    size = len(b"FRAME\n") + 3 * width * height
    rest = rest[: rest.index(b"FRAME XPOM-TEXT")]  # what the file says of itself comes last
    assert len(rest) % size == 0
    return np.stack(
        [
            np.frombuffer(rest[at + 6 : at + size], np.uint8).reshape(3, height, width)
            for at in range(0, len(rest), size)
        ]
    )


def luma(rgb):
    """Of BT.601 in its short range, as y4m has it."""
    r, g, b = (rgb[..., i].astype(float) for i in range(3))
    return 16 + (65.481 * r + 128.553 * g + 24.966 * b) / 255


def place_of(clip, sheet):
    """(y, x) where all frames of the clip stand on the frames of the sheet, enlarged by a whole number."""
    y = sheet[:, 0].astype(float)
    for scale in range(1, 9):
        large = luma(clip).repeat(scale, axis=1).repeat(scale, axis=2)
        h, w = large.shape[1:]
        for top in range(y.shape[1] - h + 1):
            for left in range(y.shape[2] - w + 1):
                if abs(y[0, top, left] - large[0, 0, 0]) > 1.5:
                    continue
                if np.abs(y[:, top : top + h, left : left + w] - large).max() <= 1.5:
                    return top, left
    return None


class TestPreviews:
    def test_strips_beside_the_clips(self, sample, tmp_path):  # noqa: F811
        flags = ["--prompt", "a star", "--count", 2, "--batch", 2, "--steps", 4, "--preview", 2]
        result = made(sample(*flags, "-o", "%d.gif", "--json"))
        strips = [f"{i}_preview_{step:03d}.png" for step in (2, 4) for i in (0, 1)]
        assert json.loads(result.stdout)["previews"] == strips
        assert names_in(tmp_path) == sorted([*strips, "0.gif", "1.gif"])
        width, height = png_size(tmp_path / strips[0])
        assert width >= 8 * 32 and height >= 16  # eight frames beside each other
        assert "pom" not in png_text(tmp_path / strips[0])

    def test_change_nothing(self, sample, tmp_path):  # noqa: F811
        flags = ["--prompt", "a star", "--steps", 2]
        for stream in ([], ["--stream"]):
            made(sample(*flags, *stream, "-o", "a.y4m", "-y"))
            result = made(sample(*flags, *stream, "--preview", 1, "-o", "b.y4m", "-y", "--json"))
            assert (tmp_path / "a.y4m").read_bytes() == (tmp_path / "b.y4m").read_bytes()
            steps = 8 // BLOCK * 2 if stream else 2  # counted over the blocks
            assert len(json.loads(result.stdout)["previews"]) == steps

    def test_of_images_from_text(self, sample, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--steps", 2, "--preview", 1, "-o", "a.png"))
        assert names_in(tmp_path) == ["a.png", "a_preview_001.png", "a_preview_002.png"]
        assert png_size(tmp_path / "a_preview_001.png") == (32, 16)

    def test_existing_ones_are_kept(self, sample, tmp_path):  # noqa: F811
        (tmp_path / "a_preview_001.png").write_text("mine")
        is_usage_error(sample("--prompt", "a", "--preview", 1, "-o", "a.gif"), "a_preview_001.png already")
        assert names_in(tmp_path) == ["a_preview_001.png"]


class TestForecast:
    def test_json(self, sample, tmp_path):  # noqa: F811
        flags = ["--prompt", "a star", "--prompt", "a", "--count", 2, "--frames", 5, "--dry-run", "--json"]
        said = json.loads(made(sample(*flags, "--batch", 2)).stdout)
        assert (said["items"], said["frames"], said["blocks"], said["batch"]) == (4, 5, 3, 2)
        assert said["evaluations"] == 2 * 3 and said["fits"] and said["seconds"] > 0 and said["macs"] > 0
        assert 0 < said["peak_bytes"] <= said["free_bytes"]
        said = json.loads(made(sample(*flags, "--batch", 1, "--stream")).stdout)
        assert said["batch"] == 1 and said["evaluations"] == 4 * 3 * 3
        leaves_nothing(tmp_path)

    def test_text(self, sample, tmp_path):  # noqa: F811
        flags = ["--prompt", "a star", "--count", 3, "--frames", 4, "--dry-run"]
        text = made(sample(*flags, "--batch", 2)).stdout
        assert "3, each 4 frames of 32x16, whole, 2 at a time; euler, 3 steps" in text and "it fits" in text
        assert "images    3 of 32x16" in made(sample(*flags, "--frames", 1)).stdout
        leaves_nothing(tmp_path)

    def test_memory_makes_batches_smaller(self, sample, tmp_path):  # noqa: F811
        """What fits one at a time is made one at a time, and is the same."""
        flags = ["--prompt", "a", "--count", 4, "--frames", 64, "--size", 128, "--steps", 1]
        large = json.loads(made(sample(*flags, "--batch", 4, "--dry-run", "--json")).stdout)
        small = json.loads(made(sample(*flags, "--batch", 1, "--dry-run", "--json")).stdout)
        assert large["batch"] == 4 and large["peak_bytes"] > small["peak_bytes"]
        limit = (large["peak_bytes"] + small["peak_bytes"]) // 2
        told = sample(*flags, "--batch", 4, "--memory-limit", limit, "--dry-run", "--json")
        assert json.loads(told.stdout)["batch"] < 4
        result = sample(*flags, "--memory-limit", "1M", "-o", "%d.gif")
        is_failure(result, "memory: one clip at a time takes about", "there are 1 MiB")
        leaves_nothing(tmp_path)


class TestImagesFromText:
    def test_is_the_first_frame_of_the_clip(self, sample, tmp_path):  # noqa: F811
        flags = ["--prompt", "a blue star", "--seed", 5]
        result = made(sample(*flags, "-o", "star.png", "--json"))
        said = json.loads(result.stdout)
        assert said["files"] == ["star.png"] and said["prompts"] == ["a blue star"]
        assert said["request"]["frames"] == 1 and "trimmed" not in result.stderr
        made(sample(*flags, "--stream", "-o", "clip/"))
        made(sample(*flags, "-o", "whole/"))
        image = pixels(tmp_path / "star.png")
        assert (image == frames_of(tmp_path / "clip")[0]).all()
        near(image, frames_of(tmp_path / "whole")[0])

    def test_metadata(self, sample, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--seed", 5, "-o", "star.png"))
        text = png_text(tmp_path / "star.png")
        assert text["parameters"].startswith("a star\nSteps: 3, Sampler: Euler, CFG scale: 2, Seed: 5")
        assert "Frames" not in text["parameters"]
        own = json.loads(text["pom"])
        assert own["request"]["prompt"] == "a star" and own["request"]["frames"] == 1
        assert len(own["model"]["text_encoder_sha256"]) == 64

    def test_many(self, sample, tmp_path):  # noqa: F811
        """Of any model for clips, also one whose blocks all see each other."""
        flags = ["--prompt", "a star", "--prompt", "a circle", "--count", 2, "--frames", 1]
        result = made(sample(*flags, which="whole"))
        assert result.stdout.split() == [
            "out/a-star_0.png",
            "out/a-star_1.png",
            "out/a-circle_2.png",
            "out/a-circle_3.png",
        ]
        made(sample("--prompt", "a circle", "--seed", 2, "-o", "alone.png", which="whole"))
        assert (tmp_path / "alone.png").read_bytes() == (tmp_path / "out" / "a-circle_2.png").read_bytes()
        made(sample(*flags, "--batch", 1, "-o", "more/", which="whole"))
        assert names_in(tmp_path / "more") == [f"whole_{i:03d}.png" for i in range(4)]

    def test_jpeg(self, sample, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "-o", "star.jpg"))
        assert pixels(tmp_path / "star.jpg").shape == (16, 32, 3)

    def test_one_frame_may_be_a_clip(self, sample, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 1, "-o", "one.gif"))
        assert len(gif_frames(tmp_path / "one.gif")) == 1

    def test_more_frames_than_an_image_has(self, sample, tmp_path):  # noqa: F811
        result = sample("--prompt", "a star", "--frames", 4, "-o", "star.png")
        is_usage_error(result, "star.png", ".mp4, .webm, .gif or .y4m")
        leaves_nothing(tmp_path)
