"""`pom eval clips` against the same in numpy, and clips for VBench: their names, seeds and restarts."""

import json
import subprocess
from pathlib import Path

import numpy
import pytest
from PIL import Image
from safetensors.torch import save_file

from golden_numbers import splitmix
from small_dinov2 import drawn_weights
from tools import built_program, ffmpeg_is_there

MODEL = Path(__file__).resolve().parents[2] / "assets" / "sprites32"
CLIPS, FRAMES, SIDE = 24, 12, 32


def pom(*words, code=0):
    done = subprocess.run([built_program(), *map(str, words)], capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stderr
    return done


def drawn_clips(name, steps):
    """Grey noise that moves to the right, (clips, frames, side, side), uint8: every value is one of GIF's."""
    noise = (splitmix(name, CLIPS * SIDE * SIDE) >> numpy.uint64(56)).astype(numpy.uint8)
    noise = noise.reshape(CLIPS, SIDE, SIDE)
    return numpy.stack([numpy.roll(noise, steps * t, 2) for t in range(FRAMES)], 1)


def write_clips(folder, clips):
    folder.mkdir()
    for i, clip in enumerate(clips):
        first, *rest = [Image.fromarray(frame) for frame in clip]
        first.save(folder / f"{i:02}.gif", save_all=True, append_images=rest, duration=100)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    ffmpeg_is_there()
    folder = tmp_path_factory.mktemp("clips")
    a, b = drawn_clips("clips.a", 1), drawn_clips("clips.b", 2) // 2 + 50
    write_clips(folder / "a", a)
    write_clips(folder / "b", b)
    return folder, a, b


def means(clips, side):
    """(clips, frames, 3 side²), 0 … 1, planes one after the other."""
    areas = clips.reshape(*clips.shape[:2], side, SIDE // side, side, SIDE // side).mean((3, 5)) / 255
    return numpy.tile(areas.reshape(*clips.shape[:2], -1), 3)


def frechet(a, b):
    xs, scale = [x - x.mean(0) for x in (a, b)], numpy.sqrt((len(a) - 1) * (len(b) - 1))
    shared = numpy.linalg.svd(xs[0] @ xs[1].T, compute_uv=False).sum() / scale
    spread = sum((x**2).sum() / (len(x) - 1) for x in xs)
    return ((a.mean(0) - b.mean(0)) ** 2).sum() + spread - 2 * shared


def test_numbers_are_those_of_numpy(asked):
    folder, a, b = asked
    words = ["eval", "clips", folder / "a", "--reference", folder / "b"]
    found = json.loads(pom(*words, "-o", folder / "a.json", "--json").stdout)
    assert json.loads((folder / "a.json").read_text()) == found
    x = a.astype(float)
    assert abs(found["flickering"] - (1 - abs(x[:, 1:] - x[:, :-1]).mean() / 255)) < 1e-9
    middle = (x[:, 2:] + x[:, :-2]) / 2
    assert abs(found["smoothness"] - (1 - abs(x[:, 1:-1] - middle).mean() / 255)) < 1e-9
    assert found["reference_flickering"] > found["flickering"] and found["flickering_error"] > 0
    frames = [means(c, 8).reshape(CLIPS * FRAMES, -1) for c in (a, b)]
    assert abs(found["fd_frames"] - frechet(*frames)) < 1e-6 * found["fd_frames"]
    stacks = [means(c, 4)[:, :8].reshape(CLIPS, -1) for c in (a, b)]
    assert abs(found["fd_stacks"] - frechet(*stacks)) < 1e-9 * found["fd_stacks"]
    assert found["fd_frames_deviation"] > 0 and found["fd_stacks_deviation"] > 0
    assert found["recipe"]["clips"] == "24 clips of 12 frames, 32x32, 10 fps"
    assert pom(*words, "--json", "--threads", 1).stdout == pom(*words, "--json", "--threads", 4).stdout
    said = pom(*words).stdout
    assert "flickering" in said and "fd, stacks" in said and "frames by pixels" in said


def test_frames_by_a_network_are_scored_as_images(asked, tmp_path):
    folder, a, b = asked
    save_file(drawn_weights(), tmp_path / "net.safetensors")
    for name, clips in (("a", a), ("b", b)):
        frames = clips[:10].reshape(-1, SIDE, SIDE, 1)
        numpy.savez(tmp_path / f"{name}.npz", numpy.repeat(frames, 3, 3))
        (tmp_path / name).mkdir()
        for i in range(10):
            (tmp_path / name / f"{i}.gif").write_bytes((folder / name / f"{i:02}.gif").read_bytes())
    words = ["--like", "edm2", "--dinov2", tmp_path / "net.safetensors", "--json"]
    clips = json.loads(pom("eval", "clips", tmp_path / "a", "--reference", tmp_path / "b", *words).stdout)
    sides = ["--samples", tmp_path / "a.npz", "--reference", tmp_path / "b.npz"]
    images = json.loads(pom("eval", "fid", *sides, *words).stdout)
    assert abs(clips["fd_frames"] - images["fd"]) < 1e-6 * images["fd"]
    assert "fd_frames_deviation" not in clips  # of 10 clips
    assert clips["recipe"]["network"] == images["recipe"]["network"]


def test_what_is_wrong_is_named(asked, tmp_path):
    folder, _, _ = asked
    assert "--reference: expected clips" in pom("eval", "clips", folder / "a", code=2).stderr
    (tmp_path / "none").mkdir()
    words = ["eval", "clips", tmp_path / "none", "--reference", folder / "b"]
    assert "expected clips (.mp4, .gif, …) in it, got none" in pom(*words, code=1).stderr
    words[2] = tmp_path / "missing"
    assert "no such file or folder" in pom(*words, code=1).stderr
    (tmp_path / "a.mp4").write_bytes(b"not a clip")
    words[2] = tmp_path / "a.mp4"
    assert "a.mp4" in pom(*words, code=1).stderr
    assert "--samples: is only for" in pom(*words, "--samples", "x", code=2).stderr


PROMPTS = ["a red star", "A red star", "a blue heart, 3 of them?", "a red star"]


def vbench(folder, *words, prompts=PROMPTS, code=0):
    (folder / "prompts.txt").write_text("\n".join(prompts) + "\n")
    given = ["--prompts", folder / "prompts.txt", "--vbench", folder / "clips", "--frames", 4, "--steps", 1]
    return pom("sample", "--model", MODEL, *given, *words, code=code)


def lines_of(folder):
    first, *clips = [json.loads(line) for line in (folder / "clips.jsonl").read_text().splitlines()]
    return first, {clip["file"]: clip for clip in clips}


def test_vbench_finds_its_clips(tmp_path):
    ffmpeg_is_there()
    done = vbench(tmp_path, "--count", 2)
    expected = [f"{prompt}-{i}.mp4" for prompt in PROMPTS[:3] for i in range(2)]
    assert sorted(path.name for path in (tmp_path / "clips").iterdir()) == sorted(expected)
    assert "1 prompts are in the list more than once" in done.stderr
    assert "differ in case alone" in done.stderr
    settings, clips = lines_of(tmp_path)
    assert settings["request"]["steps"] == 1 and len(settings["sha256"]) == 64
    assert sorted(clips) == sorted(expected)
    assert len({clip["seed"] for clip in clips.values()}) == len(expected)
    clip = clips["a red star-1.mp4"]
    assert (clip["prompt"], clip["index"]) == ("a red star", 1)
    # The same clip alone, by the seed that is listed.
    alone = ["--prompt", clip["prompt"], "--seed", clip["seed"], "--frames", 4, "--steps", 1]
    pom("sample", "--model", MODEL, *alone, "-o", tmp_path / "alone.mp4")
    assert "agree" in pom("reproduce", tmp_path / "clips" / clip["file"]).stdout
    words = ["eval", "clips", tmp_path / "alone.mp4", "--reference", tmp_path / "clips" / clip["file"]]
    assert abs(json.loads(pom(*words, "--json").stdout)["fd_frames"]) < 1e-12


def test_vbench_goes_on_where_it_was(tmp_path):
    ffmpeg_is_there()
    vbench(tmp_path, "--count", 2, "-q")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "clips").iterdir()}
    seeds = {name: clip["seed"] for name, clip in lines_of(tmp_path)[1].items()}
    assert "all 6 clips are there" in vbench(tmp_path, "--count", 2).stderr
    (tmp_path / "clips" / "a red star-0.mp4").unlink()
    # More of another list: what is there stays, and a clip's seed does not depend on the list.
    done = vbench(tmp_path, "--count", 3, prompts=["a green moon", "a red star"])
    assert "1 clips are there and stay; 5 are missing" in done.stderr
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "clips").iterdir()}
    kept = set(before) - {"a red star-0.mp4"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert set(after) - set(before) == {"a red star-2.mp4", *(f"a green moon-{i}.mp4" for i in range(3))}
    now = lines_of(tmp_path)[1]
    assert {name: now[name]["seed"] for name in seeds} == seeds and len(now) == len(after)
    said = vbench(tmp_path, "--count", 3, "--cfg-scale", 3, code=2).stderr
    assert "expected the model and settings of the clips that are there" in said


def test_vbench_has_five_clips_of_a_prompt(tmp_path):
    ffmpeg_is_there()
    vbench(tmp_path, "-q", prompts=["a red star"])
    assert [clip["index"] for clip in sorted(lines_of(tmp_path)[1].values(), key=lambda c: c["file"])] == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip


def test_vbench_says_what_cannot_be(tmp_path):
    ffmpeg_is_there()
    assert "which has a slash" in vbench(tmp_path, prompts=["a car 3/4 full"], code=2).stderr
    assert "of at most 247 bytes, got 300" in vbench(tmp_path, prompts=["x" * 300], code=2).stderr
    assert "expected a prompt in each line" in vbench(tmp_path, prompts=["", "  "], code=2).stderr
    for flag in (["-y"], ["-o", "a.mp4"], ["--grid"]):
        assert "cannot be combined with --vbench" in vbench(tmp_path, *flag, code=2).stderr
    assert "from which each clip's follows" in vbench(tmp_path, "--seed", -1, code=2).stderr
    assert "cannot be combined with --prompt" in vbench(tmp_path, "--prompt", "x", code=2).stderr
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.mp4").write_text("")
    assert "expected a new folder" in vbench(tmp_path, code=2).stderr
