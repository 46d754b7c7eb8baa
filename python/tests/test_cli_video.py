"""`pom sample` with a model that makes clips: files that others read, streams that end cleanly, states that
go on, and messages.

The model is a tiny network of random weights with an encoder that knows five words: it makes noise in
colours, which is enough for everything but beauty.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from reference_vdipom import ReferenceVDiPoM
from test_cli import (  # noqa: F401
    _program_is_there,
    environment,
    is_failure,
    is_usage_error,
    leaves_nothing,
    model,
    pom,
    program,
)
from test_video_network import randomise
from tools import ffmpeg_is_there, referee

Image = referee("PIL.Image")

NETWORK = {
    "dim": 24,
    "depth": 2,
    "patch": 4,
    "patch_time": 2,
    "channels": 3,
    "text_width": 12,
    "ffw_expand": 2,
}
SAMPLE = {"size": [32, 16], "sampler": "euler", "steps": 3, "cfg_scale": 2.0, "fps": 12, "frames": 8}
WORDS = ["a", "blue", "circle", "left", "star"]
LIMIT = 6


def write_text_encoder(folder, width, layers=1):
    """Tensors as codecs::Words has them: a table of 257 + words pieces, places, neighbours."""
    torch.manual_seed(5)
    tensors = {"pieces.weight": torch.randn(257 + len(WORDS), width), "places": torch.randn(LIMIT, width)}
    for i in range(layers):
        tensors[f"near.{i}.weight"] = torch.randn(width, 3 * width) / (3 * width) ** 0.5
        tensors[f"near.{i}.bias"] = torch.zeros(width)
    folder.mkdir(parents=True)
    words = "".join(f"{word}\n" for word in WORDS)
    save_file(tensors, folder / "model.safetensors", metadata={"words": words})


def write_clip_model(folder, sample=None, **network):
    torch.manual_seed(2)
    module = ReferenceVDiPoM(**(NETWORK | network))
    randomise(module)
    folder.mkdir(parents=True)
    config = {
        "format": 1,
        "name": folder.name,
        "network": {"kind": "vdipom", **NETWORK, **network},
        "diffusion": {"path": "flow"},
        "codec": {"kind": "pixels"},
        "sample": SAMPLE | (sample or {}),
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: tensor.float().contiguous() for name, tensor in module.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    write_text_encoder(folder / "text_encoder", NETWORK["text_width"])
    return folder


@pytest.fixture(scope="session")
def clips(tmp_path_factory):
    """Folders of models: block-causal, with a window, and with no mask."""
    folder = tmp_path_factory.mktemp("clip_models")
    return {
        "causal": write_clip_model(folder / "causal"),
        "window": write_clip_model(folder / "window", window=2),
        "whole": write_clip_model(folder / "whole", temporal_mask="none"),
    }


@pytest.fixture
def sample(clips, tmp_path):
    """`pom sample --model causal ...` in an empty folder."""
    return lambda *arguments, which="causal", **options: pom(
        "sample", "--model", clips[which], *arguments, **({"cwd": tmp_path} | options)
    )


@pytest.fixture(scope="session")
def ffmpeg():
    ffmpeg_is_there()


def probe(path):
    words = ["ffprobe", "-v", "error", "-count_frames", "-show_streams", "-of", "json", str(path)]
    (stream,) = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)[
        "streams"
    ]
    return stream


def frames_of(folder):
    """(T, H, W, 3), of a folder of PNG that are numbered from 0."""
    *files, record = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"{i:06d}.png" for i in range(len(files))]
    assert record.name == "clip.json" and json.loads(record.read_text())["frames"] == len(files)
    return np.stack([np.asarray(Image.open(file)) for file in files])


def made(result):
    assert result.returncode == 0, result.stderr
    return result


def near(a, b):
    """Equal but for single levels where rounding met a difference far below one."""
    assert a.shape == b.shape
    difference = np.abs(a.astype(int) - b.astype(int))
    assert difference.max() <= 1 and (difference > 0).mean() < 1e-3


class TestFiles:
    @pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
    @pytest.mark.parametrize(("name", "codec"), [("clip.mp4", "h264"), ("clip.webm", "vp9")])
    def test_ffprobe_agrees(self, sample, tmp_path, ffmpeg, name, codec, stream):
        result = made(sample("--prompt", "a blue star", "--frames", 10, "--fps", 5, "-o", name, *stream))
        assert result.stdout == f"{name}\n"
        said = probe(tmp_path / name)
        assert (said["width"], said["height"], said["pix_fmt"]) == (32, 16, "yuv420p")
        assert int(said["nb_read_frames"]) == 10 and said["codec_name"] in (codec, "vp8")
        assert Fraction(said["r_frame_rate"]) == 5
        assert [path.name for path in tmp_path.iterdir()] == [name]

    @pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
    def test_pillow_reads_the_gif(self, sample, tmp_path, stream):
        made(sample("--prompt", "a star", "--frames", 6, "--fps", 10, "-o", "clip.gif", *stream))
        with Image.open(tmp_path / "clip.gif") as clip:
            assert (clip.size, clip.n_frames, clip.info["duration"]) == ((32, 16), 6, 100)

    def test_the_models_own_settings(self, sample, tmp_path):
        result = made(sample("--prompt", "a star", "-o", "frames/", "--json"))
        said = json.loads(result.stdout)
        assert said["frames"] == 8 and said["fps"] == 12 and said["files"] == ["frames"]
        assert said["request"]["steps"] == 3 and said["request"]["cfg_scale"] == 2
        assert said["prompts"] == ["a star"] and said["seeds"] == [0] and "changes" not in said
        assert said["seconds"] > 0 and said["model"]["name"] == "causal"
        assert len(said["model"]["sha256"]) == len(said["model"]["text_encoder_sha256"]) == 64
        assert frames_of(tmp_path / "frames").shape == (8, 16, 32, 3)

    def test_name_unless_told(self, sample, tmp_path, ffmpeg):
        assert made(sample("--prompt", "a Blue star!", "--seed", 3)).stdout == "out/a-Blue-star_3.mp4\n"
        assert made(sample("--prompt", "", "--seed", 3)).stdout == "out/causal_3.mp4\n"

    def test_a_folder_is_replaced_whole(self, sample, tmp_path):
        made(sample("--prompt", "a star", "--frames", 8, "-o", "frames/"))
        is_usage_error(sample("--prompt", "a", "-o", "frames/"), "already holds frames", "-y")
        made(sample("--prompt", "a star", "--frames", 4, "-o", "frames/", "-y"))
        assert len(frames_of(tmp_path / "frames")) == 4

    @pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
    def test_images_that_no_clip_wrote_stay(self, sample, tmp_path, stream):
        (tmp_path / "data").mkdir()
        for i in range(3):
            (tmp_path / "data" / f"{i:06d}.png").write_text("mine")
        result = sample("--prompt", "a star", "-o", "data/", "-y", *stream)
        is_usage_error(
            result, "data holds 000000.png and 2 more", "not listed in clip.json", "another folder"
        )
        assert [path.read_text() for path in (tmp_path / "data").iterdir()] == ["mine"] * 3

    def test_a_file_is_not_replaced_unasked(self, sample, tmp_path):
        (tmp_path / "clip.gif").write_text("mine")
        is_usage_error(sample("--prompt", "a", "-o", "clip.gif"), "clip.gif already exists")
        assert (tmp_path / "clip.gif").read_text() == "mine"

    def test_seeds_and_prompts_matter(self, sample, tmp_path):
        star = ["--prompt", "a star"]
        asked = {"a": star, "b": [*star, "--seed", 1], "c": ["--prompt", "a circle"], "d": star}
        for name, flags in asked.items():
            made(sample(*flags, "-o", f"{name}/"))
        a, b, c, d = (frames_of(tmp_path / name) for name in "abcd")
        assert (a == d).all() and (a != b).any() and (a != c).any()


class TestStream:
    @pytest.mark.parametrize("which", ["causal", "window"])
    @pytest.mark.parametrize("flags", [[], ["--sampler", "heun", "--cfg-scale", "1"]], ids=str)
    def test_is_the_whole_clip(self, sample, tmp_path, which, flags):
        flags = ["--prompt", "a blue star", "--prompt-at", "6:a circle left", "--frames", 14, *flags]
        made(sample(*flags, "-o", "whole/", which=which))
        made(sample(*flags, "--stream", "-o", "stream/", which=which))
        whole, stream = frames_of(tmp_path / "whole"), frames_of(tmp_path / "stream")
        assert len(whole) == 14
        near(whole, stream)

    def test_a_prompt_changes_from_its_block_on(self, sample, tmp_path):
        made(sample("--prompt", "a star", "--stream", "-o", "one/"))
        result = made(sample("--prompt", "a star", "--prompt-at", "5:a circle", "--stream", "-o", "two/"))
        assert "the prompt of frame 5 begins with its block, at frame 4" in result.stderr
        one, two = frames_of(tmp_path / "one"), frames_of(tmp_path / "two")
        assert (one[:4] == two[:4]).all()
        assert all((one[i] != two[i]).any() for i in range(4, 8))

    @pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
    def test_part_of_a_block(self, sample, tmp_path, stream):
        result = made(sample("--prompt", "a star", "--frames", 5, *stream, "-o", "five/"))
        assert "5 frames do not fill whole blocks of 2: sampling 6, trimmed to 5" in result.stderr
        result = made(sample("--prompt", "a star", "--frames", 6, *stream, "-o", "six/"))
        assert "trimmed" not in result.stderr
        assert (frames_of(tmp_path / "five") == frames_of(tmp_path / "six")[:5]).all()

    def test_y4m_on_stdout(self, sample, tmp_path):
        result = made(sample("--prompt", "a star", "--frames", 4, "-o", "-", text=False))
        head, rest = result.stdout.split(b"\n", 1)
        assert head.split()[:4] == [b"YUV4MPEG2", b"W32", b"H16", b"F12:1"]
        assert len(rest) == 4 * (len(b"FRAME\n") + 3 * 32 * 16)
        leaves_nothing(tmp_path)

    def test_a_stdout_that_is_closed(self, sample):
        result = sample("--prompt", "a star", "-o", "-", preexec_fn=lambda: os.close(1))
        is_failure(result, "cannot write", os.strerror(errno.EBADF))

    def test_a_reader_that_goes_away(self, clips, tmp_path):
        words = ["sample", "--model", clips["causal"], "--prompt", "a star", "--frames", "inf", "-o", "-"]
        words += ["--save-state", "state.safetensors"]
        run = subprocess.Popen(
            [str(program()), *map(str, words)],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert run.stdout.read(3000).startswith(b"YUV4MPEG2")
        run.stdout.close()
        assert run.wait(60) == 0
        assert b"nobody reads any more" in run.stderr.read()
        run.stderr.close()
        result = pom(*words[:5], "--frames", 2, "--continue", "state.safetensors", "-o", "on/", cwd=tmp_path)
        assert result.returncode == 0, result.stderr

    @pytest.mark.parametrize(("name", "number"), [("clip.mp4", signal.SIGINT), ("clip.gif", signal.SIGHUP)])
    def test_a_signal_leaves_a_clip_that_plays(self, clips, tmp_path, ffmpeg, name, number):
        words = ["sample", "--model", clips["window"], "--prompt", "a star", "--frames", "inf", "-o", name]
        words += ["--save-state", "state.safetensors"]
        run = subprocess.Popen(
            [str(program()), *map(str, words)],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also under nohup
        )
        wait_for(lambda: (tmp_path / name).is_file() and (tmp_path / name).stat().st_size > 4000, run)
        before = int(probe(tmp_path / name)["nb_read_frames"])  # it plays while it grows
        run.send_signal(number)
        out, err = run.communicate(timeout=60)
        assert run.returncode == 128 + number and out == f"{name}\n"
        assert (tmp_path / "state.safetensors").is_file()
        said = probe(tmp_path / name)
        frames = int(said["nb_read_frames"])
        assert 0 < before <= frames and frames % 2 == 0 and f"stopped; {frames} frames were written" in err

    @pytest.mark.parametrize("before", [0, 40], ids=["new", "replaced"])
    def test_ctrl_c_leaves_a_whole_folder(self, clips, sample, tmp_path, before):
        """As of a file: the blocks that were made are a clip, and of the one it replaces nothing is left."""
        if before:
            made(sample("--prompt", "a circle", "--stream", "--frames", before, "--size", "16x8", "-o", "a/"))
        words = [
            "sample",
            "--model",
            clips["window"],
            "--prompt",
            "a star",
            "--frames",
            "inf",
            "-o",
            "a/",
            "-y",
        ]
        run = subprocess.Popen(
            [str(program()), *map(str, words)],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        made_so_far = ".pom-clip-*/*.png" if before else "*.png"
        wait_for(lambda: len(list((tmp_path / "a").glob(made_so_far))) > 3, run)
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=60)
        assert run.returncode == 143
        frames = frames_of(tmp_path / "a")
        assert frames.shape[1:] == (16, 32, 3) and len(frames) % 2 == 0
        assert f"stopped; {len(frames)} frames were written" in err

    def test_ctrl_c_before_a_whole_clip(self, clips, tmp_path):
        words = ["sample", "--model", clips["whole"], "--prompt", "a star", "--steps", "10000", "-o", "a.gif"]
        run = subprocess.Popen(
            [str(program()), *map(str, words)],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for(lambda: catches(run, signal.SIGINT), run)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
        assert run.returncode == 130 and out == "" and "no clip was written" in err
        leaves_nothing(tmp_path)


def catches(run, number):
    """Whether the program has a handler of its own for the signal; progress would be seconds away."""
    status = Path(f"/proc/{run.pid}/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1


def wait_for(condition, run, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert run.poll() is None, run.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def state(clips, tmp_path_factory):
    """Of "a star" with seed 4, after one block; nobody writes to it."""
    folder = tmp_path_factory.mktemp("state")
    flags = ["--prompt", "a star", "--seed", 4, "--frames", 2, "--save-state", "s", "-o", "start/"]
    made(pom("sample", "--model", clips["causal"], *flags, cwd=folder))
    return folder / "s"


class TestStates:
    @pytest.mark.parametrize("which", ["causal", "window"])
    def test_go_on_as_if_nothing_had_been(self, sample, tmp_path, which):
        flags = ["--prompt", "a blue star", "--sampler", "heun", "--seed", 9, "--size", "16x16", "--fps", 5]
        more = ["--prompt-at", "8:a circle", "--stream"]
        made(
            sample(
                *more,
                *flags,
                "--frames",
                14,
                "--stream",
                "-o",
                "all/",
                which=which,
            )
        )
        save = ["--save-state", "s.safetensors"]
        made(sample(*flags, "--frames", 6, *save, "-o", "one/", which=which))
        go_on = ["--continue", "s.safetensors", "--frames", 8, "-o", "two/", "--json"]
        result = made(sample(*go_on, "--prompt-at", "2:a circle", which=which))
        said = json.loads(result.stdout)
        assert said["fps"] == 5 and said["request"]["seed"] == 9
        assert said["prompts"] == ["a blue star"]
        assert said["changes"] == [{"frame": 2, "prompt": "a circle"}]
        parts = [frames_of(tmp_path / name) for name in ("one", "two")]
        assert (np.concatenate(parts) == frames_of(tmp_path / "all")).all()

    def test_keep_their_shift(self, sample, tmp_path):
        flags = ["--prompt", "a blue star", "--shift", 3]
        made(sample(*flags, "--stream", "--frames", 4, "-o", "all/"))
        made(sample(*flags, "--frames", 2, "--save-state", "s", "-o", "one/"))
        result = made(sample("--continue", "s", "--frames", 2, "-o", "two/", "--json"))
        assert json.loads(result.stdout)["request"]["shift"] == 3
        parts = [frames_of(tmp_path / name) for name in ("one", "two")]
        assert (np.concatenate(parts) == frames_of(tmp_path / "all")).all()
        made(sample("--prompt", "a blue star", "--stream", "--frames", 4, "-o", "even/"))
        assert (frames_of(tmp_path / "even") != frames_of(tmp_path / "all")).any()

    def test_one_state_two_ways(self, sample, tmp_path):
        made(sample("--prompt", "a star", "--frames", 4, "--save-state", "s", "-o", "start/"))
        before = (tmp_path / "s").read_bytes()
        for name in ("star", "blue circle left", "star"):
            made(sample("--continue", "s", "--prompt", f"a {name}", "--frames", 4, "-o", f"{name}/", "-y"))
        assert (tmp_path / "s").read_bytes() == before
        assert (frames_of(tmp_path / "star") != frames_of(tmp_path / "blue circle left")).any()

    def test_holds_the_last_prompt(self, sample, tmp_path):
        flags = ["--prompt", "a star", "--prompt-at", "2:a circle", "--frames", 4, "-o", "clip/"]
        made(sample(*flags, "--save-state", "s"))
        with safe_open(tmp_path / "s", framework="pt") as state:
            assert state.metadata()["beside.prompt"] == "a circle"

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--sampler", "heun"], ["sampler", '"euler"', '"heun"']),
            (["--steps", "4"], ["steps", '"3"', '"4"']),
            (["--shift", "3"], ["times", '"1 to 0"', '"1 to 0, shift 3"']),
            (["--size", "16x16"], ["latent size"]),
            (["--cfg-scale", "1"], ["guided evaluations"]),
        ],
        ids=str,
    )
    def test_of_another_kind(self, sample, state, tmp_path, flags, words):
        result = sample("--continue", state, *flags, "-o", "more.gif")
        is_failure(result, f"{state}: ", *words, "the state was made with")
        leaves_nothing(tmp_path)

    def test_of_another_model(self, clips, state, tmp_path):
        other = tmp_path / "other"
        shutil.copytree(clips["causal"], other)
        with safe_open(other / "model.safetensors", framework="pt") as weights:
            tensors = {name: weights.get_tensor(name) + 0.1 for name in weights.keys()}  # noqa: SIM118
        save_file(tensors, other / "model.safetensors")
        result = pom("sample", "--model", other, "--continue", state, "-o", "more.gif", cwd=tmp_path)
        is_failure(result, f"{state}: model: the state was made with")

    def test_seed_is_the_states(self, sample, state):
        is_usage_error(sample("--continue", state, "--seed", 5, "-o", "a.gif"), "seed", "keeps seed 4")

    def test_of_another_text_encoder(self, clips, state, tmp_path):
        """Its weights are zeroed: the network's hash is the same, and the model is another."""
        other = tmp_path / "other"
        shutil.copytree(clips["causal"], other)
        with safe_open(other / "text_encoder" / "model.safetensors", framework="pt") as encoder:
            tensors = {name: 0 * encoder.get_tensor(name) for name in encoder.keys()}  # noqa: SIM118
            save_file(tensors, other / "text_encoder" / "model.safetensors", encoder.metadata())
        result = pom("sample", "--model", other, "--continue", state, "-o", "more.gif", cwd=tmp_path)
        is_failure(result, f"{state}: text encoder: the state was made with")

    def test_that_is_none(self, sample, tmp_path):
        """A damaged file is a failure, wherever it is damaged, as a model's or a picture's is."""
        made(sample("--prompt", "a star", "--frames", 2, "--save-state", "whole", "-o", "start/"))
        whole = (tmp_path / "whole").read_bytes()
        (tmp_path / "text").write_text("not a state")
        (tmp_path / "empty").write_bytes(b"")
        for length in (4, 40, len(whole) - 100, len(whole) - 1):
            (tmp_path / f"cut{length}").write_bytes(whole[:length])
        (tmp_path / "request").write_bytes(whole.replace(b'\\"steps\\":3', b'\\"steps\\":x'))
        (tmp_path / "seeds").write_bytes(whole.replace(b'"seeds":"0"', b'"seeds":"x"'))
        (tmp_path / "fps").write_bytes(whole.replace(b'"beside.fps":"12"', b'"beside.fps":"1x"'))
        for path in tmp_path.iterdir():
            if path.is_file() and path.name != "whole":
                assert path.read_bytes() != whole
                is_failure(sample("--continue", path.name, "-o", "a.gif"), f"{path.name}: ")
        is_failure(sample("--continue", "nowhere", "-o", "a.gif"), "nowhere: cannot open")
        save_file({"x": torch.zeros(1)}, tmp_path / "s")
        is_failure(sample("--continue", "s", "-o", "a.gif"), "expected the state of a stream")

    def test_where_it_goes(self, sample, tmp_path):
        (tmp_path / "s").write_text("mine")
        flags = ["--prompt", "a", "-o", "a.gif"]
        is_usage_error(sample(*flags, "--save-state", "s"), "--save-state: s already exists")
        is_usage_error(sample(*flags, "--save-state", "no/s"), "--save-state: no such folder: no")


class TestMessages:
    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            ([], ["prompt: expected a prompt"]),
            (["--prompt", "a", "--frames", "0"], ["frames: expected 1 to", '"0"']),
            (["--prompt", "a", "--frames", "many"], ["frames: expected 1 to", "or inf", '"many"']),
            (["--prompt", "a", "--fps", "0"], ["--fps: expected 0.01 to 1000"]),
            (["--prompt", "a", "--prompt-at", "a star"], ["prompt_at: expected N:TEXT", '"a star"']),
            (["--prompt", "a", "--prompt-at", "8:b"], ["prompt_at: expected a frame below 8, got 8"]),
            (
                ["--prompt", "a", "--prompt-at", "4:b", "--prompt-at", "5:c"],
                ["two for that of frames 4 to 5"],
            ),
            (["--prompt", "a", "--size", "30x16"], ["divisible by 4"]),
            (["--prompt", "a", "--sampler", "huen"], ["huen", '"heun"']),
            (["--prompt", "a", "--dtype", "fp8"], ["dtype"]),
            (["--prompt", "a", "-o", "clip.avi"], ["clip.avi", ".mp4, .webm, .gif or .y4m"]),
            (["--prompt", "a", "-o", "-", "--json"], ["--json"]),
            (
                ["--prompt", "a", "--class", "star"],
                ["class: expected a model with classes", "reads a prompt"],
            ),
            (["--prompt", "a", "--memory-limit", "lots"], ["--memory-limit", "4G"]),
        ],
        ids=str,
    )
    def test_usage(self, sample, tmp_path, flags, words):
        is_usage_error(sample(*flags), *words)
        leaves_nothing(tmp_path)

    @pytest.mark.parametrize(
        "flags", [["--stream"], ["--frames", "inf"], ["--save-state", "s"]], ids=lambda flags: flags[0]
    )
    def test_a_model_that_cannot_stream(self, sample, tmp_path, flags):
        result = sample("--prompt", "a", *flags, "-o", "a.gif", which="whole")
        is_usage_error(result, "expected a block-causal model")
        leaves_nothing(tmp_path)

    @pytest.mark.parametrize(
        "flags",
        [
            ["--prompt", "a"],
            ["--negative-prompt", "a"],
            ["--prompt-at", "0:a"],
            ["--frames", 4],
            ["--fps", 4],
            ["--stream"],
            ["--window", 2],
            ["--save-state", "s"],
        ],
        ids=lambda flags: flags[0],
    )
    def test_a_model_of_images(self, model, tmp_path, flags):  # noqa: F811
        result = pom("sample", "--model", model, *flags, cwd=tmp_path)
        field = flags[0].removeprefix("--").replace("-", "_")
        lacks = "reads text" if field in ("prompt", "negative_prompt") else "makes clips"
        is_usage_error(result, f"sample: {field}: expected a model that {lacks}, and this one ")
        leaves_nothing(tmp_path)

    def test_a_state_for_a_model_of_images(self, model, state, tmp_path):  # noqa: F811
        result = pom("sample", "--model", model, "--continue", state, cwd=tmp_path)
        is_usage_error(
            result, "sample: continue: expected a model that makes clips, and this one makes images"
        )
        leaves_nothing(tmp_path)

    def test_a_long_prompt_is_cut(self, sample, tmp_path):
        long = " ".join(["star"] * (LIMIT + 2))
        result = made(sample("--prompt", long, "-o", "long/"))
        assert (
            f"expected at most {LIMIT} pieces of text, got {LIMIT + 2}: truncated to {LIMIT}" in result.stderr
        )
        result = made(sample("--prompt", " ".join(["star"] * LIMIT), "-o", "short/"))
        assert "cut" not in result.stderr
        assert (frames_of(tmp_path / "long") == frames_of(tmp_path / "short")).all()

    def test_words_that_are_not_known(self, sample):
        flags = ["--frames", 2, "--steps", 1, "-y", "-o", "a.gif"]
        remark = '"xy" is not in the model\'s vocabulary'
        assert remark in made(sample("--prompt", "a xy", *flags)).stderr
        assert remark not in made(sample("--prompt", "a xy", *flags, "-q")).stderr
        assert "vocabulary" not in made(sample("--prompt", "a star", *flags)).stderr

    def test_a_folder_without_text_encoder(self, clips, tmp_path):
        shutil.copytree(clips["causal"], tmp_path / "broken")
        shutil.rmtree(tmp_path / "broken" / "text_encoder")
        result = pom("sample", "--model", "broken", "--prompt", "a", "-o", "a.gif", cwd=tmp_path)
        is_failure(result, "no text_encoder/model.safetensors")

    def test_progress_and_quiet(self, sample):
        flags = ["--prompt", "a star", "--stream", "-o", "a.gif", "-y"]
        (last,) = [line for line in made(sample(*flags)).stderr.splitlines() if "12/12" in line]
        assert last.endswith(", 8 frames"), last
        assert made(sample(*flags, "--quiet")).stderr == ""

    def test_a_drawn_seed_is_said(self, sample):
        result = made(sample("--prompt", "a", "--seed", -1, "-o", "a.gif", "--quiet"))
        assert "using random seed " in result.stderr


class TestMemory:
    """A clip that memory does not hold is refused with a way out, as pictures are."""

    def test_a_clip_too_long_to_be_made_whole(self, sample, tmp_path):
        flags = ["--prompt", "a star", "--frames", 1_000_000_000]
        is_failure(sample(*flags, "-o", "a.y4m"), "memory: the clip takes about", "TiB", "--stream would fit")
        result = sample(*flags, "-o", "a/", which="whole")
        is_failure(result, "memory: the clip takes about", "TiB", "; --frames ", " would fit")
        leaves_nothing(tmp_path)

    def test_a_folder_that_asks_for_it(self, clips, tmp_path):
        folder = tmp_path / "greedy"
        shutil.copytree(clips["causal"], folder)
        config = json.loads((folder / "config.json").read_text())
        config["sample"]["frames"] = 1_000_000_000
        (folder / "config.json").write_text(json.dumps(config))
        result = pom("sample", "--model", folder, "--prompt", "a", "-o", "a.gif", cwd=tmp_path)
        is_failure(result, "memory: the clip takes about", "--stream would fit")
        assert [path.name for path in tmp_path.iterdir()] == ["greedy"]

    def test_limits(self, sample, tmp_path):
        result = sample("--prompt", "a star", "--memory-limit", "1M", "-o", "a.gif")
        is_failure(result, "memory: the clip takes about", "there are 1 MiB")
        made(sample("--prompt", "a star", "--memory-limit", "16G", "-o", "a.gif"))

    def test_dry_run(self, sample, tmp_path):
        flags = ["--prompt", "a star", "--frames", 6, "--dry-run"]
        text = made(sample(*flags)).stdout
        assert "6 frames of 32x16, whole; euler, 3 steps, 3 evaluations" in text and "it fits" in text
        said = json.loads(made(sample(*flags, "--stream", "--json")).stdout)
        assert said["evaluations"] == 9 and said["blocks"] == 3 and said["seconds"] > 0 and said["fits"]
        endless = made(sample("--prompt", "a", "--frames", "inf", "--dry-run")).stdout
        assert "without end" in endless and "a block (" in endless
        result = sample("--prompt", "a", "--frames", 10**9, "--dry-run")
        assert result.returncode == 1 and "it does not fit: --stream would fit" in result.stdout
        leaves_nothing(tmp_path)


class TestInfo:
    def test_a_folder(self, clips, tmp_path):
        text = made(pom("info", clips["window"], cwd=tmp_path)).stdout
        assert "window" in text and "12 fps" in text and "8 frames" in text
        assert "words, 5 of them" in text and "classes" not in text
        assert "vocabulary    a blue circle left star" in text

    def test_json(self, clips, tmp_path):
        said = json.loads(made(pom("info", clips["causal"], "--json", cwd=tmp_path)).stdout)
        module = ReferenceVDiPoM(**NETWORK)
        assert said["parameters"] == sum(parameter.numel() for parameter in module.parameters())
        assert said["config"]["sample"]["fps"] == 12 and said["text"]["limit"] == LIMIT
        assert said["text"]["vocabulary"] == WORDS


class TestDoctor:
    def test_a_folder(self, clips, tmp_path):
        answer = json.loads(made(pom("doctor", clips["causal"], "--json", cwd=tmp_path)).stdout)
        states = {check["subject"]: check["state"] for check in answer["checks"]}
        assert states["model config"] == states["model weights"] == states["model runs"] == "ok"

    @pytest.fixture
    def folder(self, clips, tmp_path):
        return shutil.copytree(clips["causal"], tmp_path / "m")

    def test_a_text_encoder_that_is_not_finite(self, folder, tmp_path):
        file = folder / "text_encoder" / "model.safetensors"
        with safe_open(file, framework="pt") as encoder:
            tensors = {name: encoder.get_tensor(name) * float("nan") for name in encoder.keys()}  # noqa: SIM118
            save_file(tensors, file, encoder.metadata())
        result = pom("doctor", folder, cwd=tmp_path)
        assert result.returncode == 1
        assert "text_encoder: near.0.bias: expected finite values" in " ".join(result.stdout.split())

    @pytest.mark.parametrize(("field", "said"), [("layers", 2), ("limit", 7), ("width", 13)])
    def test_a_config_that_says_otherwise(self, folder, tmp_path, field, said):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"text": {field: said}}))
        result = pom("sample", "--model", folder, "--prompt", "a", "-o", "a.gif", cwd=tmp_path)
        is_failure(result, "text_encoder/model.safetensors", f"{field}: expected {said}, as text.{field}")
