"""`pom reproduce` of every kind of file: images, clips, folders of frames, sheets and mosaics; of what began
with other files; and with settings that somebody made up."""

import json
import shutil
import signal
import subprocess

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from test_cli import (  # noqa: F401
    _program_is_there,
    change_settings,
    environment,
    is_failure,
    is_usage_error,
    model,
    pom,
    program,
)
from test_cli_items import gif_frames, names_in
from test_cli_video import clips, ffmpeg, frames_of, made, sample, wait_for  # noqa: F401
from tools import referee

Image = referee("PIL.Image")
KINDS = ["a.mp4", "a.webm", "a.gif", "a.y4m", "a"]
AGREE = "the pixels of all {} frames agree\n"


@pytest.fixture
def again(clips, tmp_path):  # noqa: F811
    """`pom reproduce ... --model causal`."""
    return lambda *words, which="causal", **options: pom(
        "reproduce", *words, "--model", clips[which], **({"cwd": tmp_path} | options)
    )


def output(name):
    return name if "." in name else f"{name}/"


def replace(path, before, after):
    """Other settings of the same length, as somebody who means harm would write them."""
    data = path.read_bytes()
    assert len(before) == len(after) and before in data, before
    path.write_bytes(data.replace(before, after))


class TestAgrees:
    @pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
    @pytest.mark.parametrize("name", KINDS)
    def test_clip(self, sample, again, ffmpeg, name, stream):  # noqa: F811
        """With a prompt that changes, and an end within a block."""
        flags = ["--prompt", "a blue star", "--prompt-at", "4:a circle left", "--frames", 7, "--seed", 5]
        made(sample(*flags, *stream, "-o", output(name)))
        result = again(name)
        assert result.returncode == 0 and result.stdout == AGREE.format(7), result.stdout + result.stderr

    @pytest.mark.parametrize("name", ["a.png", "a.jpg"])
    def test_image_from_text(self, sample, again, name):  # noqa: F811
        made(sample("--prompt", "a blue star", "--seed", 5, "--shift", 2, "-o", name))
        result = again(name)
        assert result.returncode == 0 and result.stdout == "the pixels agree\n", result.stderr

    def test_image_of_a_class(self, model, tmp_path):  # noqa: F811
        words = ["sample", "--model", model, "--class", "star", "--negative-class", "circle", "-o", "a.jpg"]
        made(pom(*words, cwd=tmp_path))
        result = pom("reproduce", "a.jpg", "--model", model, "-o", "b.jpg", cwd=tmp_path)
        assert result.returncode == 0 and result.stdout == "the pixels agree\n", result.stderr
        assert (tmp_path / "a.jpg").read_bytes() == (tmp_path / "b.jpg").read_bytes()

    @pytest.mark.parametrize("name", ["a.png", "a.jpg"])
    def test_sheet(self, sample, again, name):  # noqa: F811
        made(sample("--prompt", "a star", "--prompt", "a circle", "--seed", "4,9", "--grid", "-o", name))
        result = again(name)
        assert result.returncode == 0 and result.stdout == "the pixels agree\n", result.stderr

    @pytest.mark.parametrize("name", KINDS[:4])
    @pytest.mark.parametrize("count", [1, 3])
    def test_mosaic(self, sample, again, ffmpeg, name, count):  # noqa: F811
        flags = ["--prompt", "a star", "--prompt", "a circle", "--count", count, "--frames", 3, "--steps", 1]
        made(sample(*flags, "--grid", "-o", name))
        result = again(name)
        assert result.returncode == 0 and result.stdout == AGREE.format(3), result.stdout + result.stderr

    def test_odd_sides(self, tmp_path, ffmpeg):  # noqa: F811
        """An .mp4 has one more row and column: the settings are right all the same."""
        from test_cli_video import write_clip_model

        folder = write_clip_model(tmp_path / "odd", sample={"size": [15, 9]}, patch=3)
        words = ["--prompt", "a star", "--frames", 4, "--model", folder]
        for name in ("a.mp4", "a.webm"):
            made(pom("sample", *words, "-o", name, cwd=tmp_path))
            result = pom("reproduce", name, "--model", folder, cwd=tmp_path)
            assert result.stdout == AGREE.format(4), result.stderr

    @pytest.mark.parametrize("name", ["b.gif", "b.y4m", "b"])
    def test_writes_what_it_makes(self, sample, again, tmp_path, name):  # noqa: F811
        first = name.replace("b", "a", 1)
        made(sample("--prompt", "a star", "--stream", "-o", output(first)))
        made(again(first, "-o", output(name)))
        if "." not in name:
            assert (frames_of(tmp_path / "a") == frames_of(tmp_path / "b")).all()
            first, name = "a/000000.png", "b/000000.png"
        assert (tmp_path / first).read_bytes() == (tmp_path / name).read_bytes()
        result = again(first.split("/")[0], "-o", output(name.split("/")[0]))
        is_usage_error(result, "already", "-y")

    def test_another_kind_of_output(self, sample, again):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 2, "-o", "a.gif"))
        is_usage_error(again("a.gif", "-o", "b.y4m"), '".gif"', '".y4m"')
        is_usage_error(again("a.gif", "-o", "b.png"), "b.png")

    def test_json(self, sample, again):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a.gif"))
        said = json.loads(made(again("a.gif", "--json")).stdout)
        assert said["agree"] and said["same_weights"] and said["same_size"]
        assert said["frames"] == 4 and said["different_frames"] == said["different_pixels"] == 0
        assert said["pixels"] == 4 * 32 * 16 and said["request"]["prompt"] == "a star"

    def test_finds_the_model(self, sample, clips, tmp_path):  # noqa: F811
        """Beside the file too, also of a folder that is named with a slash."""
        shutil.copytree(clips["causal"], tmp_path / "work" / "causal")
        made(sample("--prompt", "a star", "--frames", 2, "-o", "work/frames/"))
        made(sample("--prompt", "a star", "--frames", 2, "-o", "work/a.gif"))
        for name in ("work/a.gif", "work/frames", "work/frames/"):
            result = pom("reproduce", name, cwd=tmp_path)
            assert result.stdout == AGREE.format(2), result.stderr

    def test_many_clips_each(self, sample, again):  # noqa: F811
        """A file of a run is one clip's, and says so."""
        made(sample("--prompt", "a star", "--prompt", "a", "--count", 2, "--frames", 2, "-o", "%d.gif"))
        for i in range(4):
            assert again(f"{i}.gif").stdout == AGREE.format(2)

    @pytest.mark.parametrize(
        "flags",
        [
            ["--negative-prompt", "a circle", "--cfg-scale", 3],
            ["--window", 1, "--stream"],
            ["--sampler", "heun", "--cfg-to", 0.5, "--shift", 2],
            ["--dtype", "bf16"],
        ],
        ids=lambda flags: flags[0],
    )
    def test_with(self, sample, again, flags):  # noqa: F811
        made(sample("--prompt", "a star", *flags, "--frames", 6, "-o", "a.y4m"))
        result = again("a.y4m")
        assert result.stdout == AGREE.format(6), result.stderr

    def test_nothing_is_left_behind(self, sample, again, tmp_path):  # noqa: F811
        made(sample("--prompt", "a", "--frames", 2, "-o", "a.gif"))
        (tmp_path / "tmp").mkdir()
        made(again("a.gif", env=environment(TMPDIR=tmp_path / "tmp")))
        assert names_in(tmp_path) == ["a.gif"]


class TestStopped:
    def stop_one(self, clips, tmp_path, *flags):  # noqa: F811
        words = ["sample", "--model", clips["window"], "--prompt", "a star", "--frames", "inf", *flags]
        run = subprocess.Popen(
            [str(program()), *map(str, words)],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for(lambda: len(list((tmp_path / "a").glob("*.png"))) > 6, run)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
        assert run.returncode == 130, err

    def test_by_ctrl_c(self, clips, again, tmp_path):  # noqa: F811
        """It is as long as it is."""
        self.stop_one(clips, tmp_path, "-o", "a/", "--prompt-at", "2:a circle")
        result = again("a", which="window")
        assert result.stdout == AGREE.format(len(frames_of(tmp_path / "a"))), result.stderr

    def test_before_a_prompt_changed(self, clips, again, tmp_path):  # noqa: F811
        self.stop_one(clips, tmp_path, "-o", "a/", "--prompt-at", "1000000:a circle")
        result = again("a", which="window")
        assert result.stdout == AGREE.format(len(frames_of(tmp_path / "a"))), result.stderr

    def test_ctrl_c_while_it_is_made_again(self, sample, clips, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 2, "--steps", 1000, "-o", "a.gif"))
        replace(tmp_path / "a.gif", b'"steps":1000', b'"steps":9000')
        words = [program(), "reproduce", "a.gif", "--model", clips["causal"], "-o", "b.gif"]
        run = subprocess.Popen(
            list(map(str, words)), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
        )
        assert run.stderr.readline().startswith("1 clip, 9000 steps, 9000 evaluations: about ")
        assert "sampling" in run.stderr.readline()
        run.send_signal(signal.SIGINT)
        assert "stopped" in run.communicate(timeout=60)[1] and run.returncode == 130
        assert names_in(tmp_path) == ["a.gif"]


class TestContinued:
    @pytest.fixture
    def work(self, sample, tmp_path):  # noqa: F811
        """more.gif and more/, which continue the state s beside them, with a prompt that changes."""
        flags = ["--prompt", "a blue star", "--seed", 9, "--frames", 4, "--fps", 5]
        made(sample(*flags, "--save-state", "s", "-o", "first/"))
        go_on = ["--continue", "s", "--frames", 6, "--prompt-at", "2:a circle"]
        for name in ("more.gif", "more/"):
            made(sample(*go_on, "-o", name))
        return tmp_path

    def test_finds_the_state_beside_it(self, work, again):
        for name in ("more.gif", "more", "more/"):
            result = again(name)
            assert result.stdout == AGREE.format(6), (name, result.stderr)
        result = again(work / "more.gif", cwd="/")
        assert result.stdout == AGREE.format(6), result.stderr

    def test_without_it(self, work, again):
        (work / "s").rename(work / "elsewhere")
        is_failure(again("more.gif"), 'it began with "s", which is not in .', "--continue FILE")
        assert again("more.gif", "--continue", "elsewhere").stdout == AGREE.format(6)
        is_failure(again("more.gif", "--continue", "nowhere"), 'began with "s"')

    def test_another_one(self, work, again, sample):  # noqa: F811
        made(sample("--prompt", "a", "--frames", 2, "--save-state", "s", "-y", "-o", "other.gif"))
        is_failure(again("more.gif"), "s: expected the file that it began with, got another", "SHA-256")

    def test_a_name_is_no_path(self, work, again):
        change_settings(work / "more" / "000000.png", lambda p: p["request"].update({"continue": "../s"}))
        is_failure(again("more"), 'it began with "../s"')

    def test_a_state_that_went_on(self, sample, again, tmp_path):  # noqa: F811
        """One state replaced by the next: the clip that continued the first one says so."""
        made(sample("--prompt", "a", "--frames", 2, "--save-state", "s", "-o", "a.gif"))
        made(sample("--continue", "s", "--frames", 2, "--save-state", "s", "-y", "-o", "b.gif"))
        is_failure(again("b.gif"), "got another (the SHA-256 differs)")

    def test_mid_block(self, sample, again, tmp_path):  # noqa: F811
        """The state stands after the block that was made, whatever part of it the clip shows."""
        made(sample("--prompt", "a", "--frames", 3, "--save-state", "s", "-o", "a.gif"))
        made(sample("--continue", "s", "--frames", 3, "-o", "b.gif"))
        assert again("a.gif").stdout == again("b.gif").stdout == AGREE.format(3)


class TestInit:
    @pytest.fixture
    def work(self, sample, tmp_path):  # noqa: F811
        """In b: b.png and b.y4m, which began with a.png and a.y4m beside them."""
        (tmp_path / "b").mkdir()
        for name in ("a.png", "a.y4m"):
            made(sample("--prompt", "a star", "--frames", 1 if "png" in name else 4, "-o", f"b/{name}"))
            flags = ["--prompt", "a circle", "--seed", 3, "--init", f"b/{name}", "--strength", 0.7]
            made(sample(*flags, "-o", f"b/{name.replace('a', 'b', 1)}"))
        return tmp_path

    def test_finds_it_beside_it(self, work, again):
        assert again("b/b.png").stdout == "the pixels agree\n"
        result = again("b/b.y4m")
        assert result.stdout == AGREE.format(4), result.stderr

    def test_elsewhere(self, work, again):
        (work / "b" / "a.png").rename(work / "moved.png")
        is_failure(again("b/b.png"), 'it began with "a.png", which is not in b', "--init FILE")
        assert again("b/b.png", "--init", "moved.png").stdout == "the pixels agree\n"

    def test_another_file(self, work, again):
        shutil.copy(work / "b" / "b.png", work / "other.png")
        result = again("b/b.png", "--init", "other.png")
        is_failure(result, "other.png: expected the file that it began with, got another", "SHA-256")

    def test_a_folder_of_frames(self, sample, again):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a/"))
        made(sample("--prompt", "a circle", "--init", "a/", "--strength", 0.5, "-o", "b/"))
        result = again("b")
        assert result.stdout == AGREE.format(4), result.stderr


class TestOthers:
    def test_weights(self, sample, clips, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a.y4m"))
        other = shutil.copytree(clips["causal"], tmp_path / "other")
        with safe_open(other / "model.safetensors", framework="pt") as weights:
            tensors = {name: weights.get_tensor(name) * 1.5 for name in weights.keys()}  # noqa: SIM118
        save_file(tensors, other / "model.safetensors")
        result = pom("reproduce", "a.y4m", "--model", other, cwd=tmp_path)
        assert result.returncode == 1 and "the weights differ: the file was made with " in result.stderr
        assert "4 of 4 frames differ: " in result.stdout and "grey levels" in result.stdout
        said = json.loads(pom("reproduce", "a.y4m", "--model", other, "--json", cwd=tmp_path).stdout)
        assert not said["agree"] and not said["same_weights"] and said["different_frames"] == 4

    def test_text_encoder(self, sample, clips, tmp_path):  # noqa: F811
        """Its words decide what is made as much as the network's weights."""
        made(sample("--prompt", "a star", "--frames", 2, "-o", "a.y4m"))
        other = shutil.copytree(clips["causal"], tmp_path / "other")
        with safe_open(other / "text_encoder" / "model.safetensors", framework="pt") as encoder:
            tensors = {name: 3 * encoder.get_tensor(name) for name in encoder.keys()}  # noqa: SIM118
            save_file(tensors, other / "text_encoder" / "model.safetensors", encoder.metadata())
        result = pom("reproduce", "a.y4m", "--model", other, cwd=tmp_path)
        assert result.returncode == 1 and "the text encoder differs" in result.stderr

    def test_pixels(self, sample, again, tmp_path):  # noqa: F811
        """One frame that somebody painted over."""
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a/"))
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        painted = np.array(Image.open(tmp_path / "b" / "000002.png"))
        painted[3:5, 7] ^= 1
        Image.fromarray(painted).save(tmp_path / "b" / "000002.png")
        result = again("b")
        assert result.returncode == 1
        assert result.stdout == "1 of 4 frames differ: 2 of 2048 pixels differ, by at most 1 grey level\n"

    def test_one_frame_of_a_folder(self, sample, again):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a/"))
        result = again("a/000001.png")
        is_failure(result, "a/000001.png: is a frame of a clip: pom reproduce with its folder")

    def test_files_that_do_not_tell(self, sample, again, tmp_path, ffmpeg):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a.mp4"))
        words = ["ffmpeg", "-v", "error", "-i", "a.mp4", "-map_metadata", "-1", "-c", "copy", "b.mp4"]
        subprocess.run(words, cwd=tmp_path, check=True)
        is_failure(again("b.mp4"), 'b.mp4: expected the text "pom"', "another program")
        is_failure(again("gone.mp4"), "gone.mp4")
        (tmp_path / "empty").mkdir()
        is_failure(again("empty"), "empty")


class TestHostile:
    """Settings are somebody else's text: what they make must be what there is to compare with."""

    LIMIT = {"timeout": 40}

    @pytest.fixture
    def frames(self, sample, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a/"))
        return tmp_path / "a" / "000000.png"

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"width": 4096, "height": 4096}, ["expected the file's size, 32x16, got 4096x4096"]),
            ({"frames": 100_000}, ["expected the file's 4 frames, got 100000"]),
            ({"frames": "inf"}, ["expected the file's 4 frames, got inf"]),
            ({"frames": 1}, ["expected the file's 4 frames, got 1"]),
            ({"prompt": ["a", "b"]}, ["expected those of one image or clip"]),
            ({"count": 1000}, ["expected those of one image or clip"]),
            ({"seed": [1, 2]}, ["expected those of one image or clip"]),
            ({"init": "/etc/passwd"}, ['it began with "/etc/passwd"']),
            ({"init": "..", "strength": 0.5}, ['it began with ".."']),
            ({"continue": "000001.png"}, ["which is not in"]),
            ({"class": "star"}, ["class, prompt: expected one of them, got both"]),
            ({"save_state": "mine"}, ["save_state: expected nothing, as a file does not say where to write"]),
            ({"steps": 0}, ["steps: expected 1 to 10000, got 0"]),
            ({"frames": "many"}, ["expected the file's 4 frames, got many"]),
        ],
        ids=str,
    )
    def test_settings_of_a_clip(self, frames, again, change, words):
        change_settings(frames, lambda settings: settings["request"].update(change))
        before = names_in(frames.parents[1])
        is_failure(again("a", **self.LIMIT), *words)
        assert names_in(frames.parents[1]) == before

    def test_a_stream_is_as_long_as_its_file(self, sample, again, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--stream", "--frames", 4, "-o", "a/"))
        for frames in (100_000, "inf"):
            file = tmp_path / "a" / "000000.png"
            change_settings(file, lambda p, frames=frames: p["request"].update(frames=frames))
            assert again("a", **self.LIMIT).stdout == AGREE.format(4)

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [
            (b'"width":32', b'"width":36', ["expected the file's size, 32x16, got 36x16"]),
            (b'"frames":4', b'"frames":9', ["expected the file's 4 frames, got 9"]),
        ],
    )
    @pytest.mark.parametrize("name", ["a.y4m", "a.mp4"])
    def test_settings_of_files(self, sample, again, tmp_path, ffmpeg, name, before, after, words):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", name))
        replace(tmp_path / name, before, after)
        is_failure(again(name, **self.LIMIT), *words)

    @pytest.mark.parametrize(
        "after", [b'"frames":9', b'"height":8', b'"count":8', b'"width":16'], ids=lambda after: after.decode()
    )
    def test_settings_of_a_mosaic(self, sample, again, tmp_path, after):  # noqa: F811
        """Before anything is made: else a clip without end would never be compared."""
        flags = ["--prompt", "a star", "--count", 2, "--frames", 4, "--steps", 2, "--size", "32x16"]
        made(sample(*flags, "--grid", "-o", "a.y4m"))
        name = after.split(b":")[0]
        data = (tmp_path / "a.y4m").read_bytes()
        at = data.index(b"pom sheet")
        begin = data.index(name, at)
        end = min(data.index(mark, begin) for mark in (b",", b"}"))
        value = after.ljust(end - begin)  # JSON takes the spaces
        (tmp_path / "a.y4m").write_bytes(data[:begin] + value + data[end:])
        is_failure(again("a.y4m", **self.LIMIT), "the settings of the sheet: expected")

    def test_a_mosaic_without_end(self, sample, again, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--count", 2, "--frames", 4, "--steps", 1, "--grid", "-o", "a.y4m"))
        data = (tmp_path / "a.y4m").read_bytes()
        at = data.index(b"pom sheet")
        before = b'"frames":4,"fps":12.0}'
        assert before in data[at:], data[at:]
        endless = b'"frames":"inf"}'.rjust(len(before))
        (tmp_path / "a.y4m").write_bytes(data[:at] + data[at:].replace(before, endless))
        is_failure(again("a.y4m", **self.LIMIT), "the settings of the sheet: expected")

    def test_an_image_that_says_it_is_a_clip(self, sample, again, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "-o", "a.png"))
        change_settings(tmp_path / "a.png", lambda settings: settings["request"].update(frames=100_000))
        is_failure(again("a.png", **self.LIMIT), "a.png: is a frame of a clip")

    def test_a_gif_of_other_frames(self, sample, again, tmp_path):  # noqa: F811
        """A clip that somebody cut is not what its settings make."""
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a/"))
        shutil.copytree(tmp_path / "a", tmp_path / "cut")
        record = json.loads((tmp_path / "cut" / "clip.json").read_text())
        (tmp_path / "cut" / "clip.json").write_text(json.dumps(record | {"frames": 3}))
        (tmp_path / "cut" / "000003.png").unlink()
        is_failure(again("cut"), "expected the file's 3 frames, got 4")

    def test_a_model_of_another_kind(self, sample, model, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a.gif"))
        assert len(gif_frames(tmp_path / "a.gif")) == 4
        result = pom("reproduce", "a.gif", "--model", model, cwd=tmp_path)
        is_failure(result, "expected a model that reads text")


class TestFoundByReaders:
    def test_never_onto_itself(self, sample, again, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a.gif"))
        before = (tmp_path / "a.gif").read_bytes()
        is_usage_error(
            again("a.gif", "-o", "a.gif", "-y"), "--output: expected another file than the clip itself"
        )
        assert (tmp_path / "a.gif").read_bytes() == before

    def test_a_prompt_from_frame_0_on(self, sample, again):  # noqa: F811
        made(sample("--prompt-at", "0:a star", "--prompt-at", "2:a circle", "--frames", 4, "-o", "a.gif"))
        assert again("a.gif").stdout == AGREE.format(4)

    def test_a_folder_with_a_dot_in_its_name(self, sample, again, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "-o", "a/"))
        (tmp_path / "a").rename(tmp_path / "a.v2")
        assert again("a.v2").stdout == AGREE.format(4)

    def test_a_continued_clip_with_another_negative_prompt(self, sample, again, tmp_path):  # noqa: F811
        made(sample("--prompt", "a star", "--frames", 4, "--save-state", "s", "-o", "start/"))
        flags = ["--continue", "s", "--frames", 4]
        made(sample(*flags, "-o", "plain/"))
        made(sample(*flags, "--negative-prompt", "a circle left", "-o", "away/"))
        assert (frames_of(tmp_path / "plain") != frames_of(tmp_path / "away")).any()
        for name in ("plain", "away"):
            assert again(name).stdout == AGREE.format(4)

    def test_no_state_of_what_begins_with_an_image(self, sample):  # noqa: F811
        made(sample("--prompt", "a star", "-o", "a.png"))
        flags = ["--prompt", "a star", "--init", "a.png", "--frames", 4, "--save-state", "s", "-o", "b/"]
        is_usage_error(sample(*flags), "save_state: expected a clip that begins with noise")
