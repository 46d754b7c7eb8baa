"""`pom eval sprites` as a person meets it. The models are tiny networks of random weights: what they make is
noise, of which the judge says so; that it knows better is seen on drawings."""

import json
import math
import signal
import subprocess
import xml.etree.ElementTree as ET

import numpy as np
import pytest

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
from test_cli_video import clips, near  # noqa: F401
from tools import referee

Image = referee("PIL.Image")

SPLITS = ["training", "new_wordings", "new_pairs", "new_both"]
MEASURES = ["shape", "colour", "direction"]
SMALL = ["--size", "16x16", "--steps", 1]
SHOWN = 4 * 96  # pixels of a row of a sheet in which there is nothing but frames, and words under them


@pytest.fixture
def sprites(clips, tmp_path):  # noqa: F811
    """`pom eval sprites causal ...` in an empty folder, as it comes."""
    return lambda *words, which="causal": pom("eval", "sprites", clips[which], *words, cwd=tmp_path)


@pytest.fixture
def report(sprites):
    def run(*words, which="causal"):
        result = sprites(*SMALL, *words, "--json", "-q", which=which)
        assert (result.returncode, result.stderr) == (0, "")
        return json.loads(result.stdout)

    return run


def wilson(right, count, z=1.959963984540054):
    """As textbooks have it: the rates no farther than z of their own deviations from the one seen."""
    rate = right / count
    a, b, c = 1 + z * z / count, -(2 * rate + z * z / count), rate * rate
    root = math.sqrt(max(0, b * b - 4 * a * c))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def adds_up(rows, count, splits=SPLITS, lengths=(1,)):
    assert [(row["split"], row["length"]) for row in rows] == [(s, n) for s in splits for n in lengths]
    for row in rows:
        assert row["count"] == count
        for measure in MEASURES:
            found = row[measure]
            assert 0 <= found["right"] <= count and found["rate"] == pytest.approx(found["right"] / count)
            assert (found["low"], found["high"]) == pytest.approx(wilson(found["right"], count), abs=1e-5)
        misfit = row["misfit"]
        assert 0 <= misfit["mean"] <= misfit["worst"] and misfit["most_allowed"] == 0.06
        assert row["shape"]["right"] <= count - misfit["of_no_shape"] - misfit["nothing_found"]


class TestReport:
    def test_for_programs(self, report):
        found = report("--count", 3, "--seed", 5)
        assert found["what"] == "sprites" and found["device"] == "cpu"
        assert found["model"]["name"] == "causal" and len(found["model"]["sha256"]) == 64
        assert found["request"]["steps"] == 1 and found["request"]["seed"] == 5
        assert (found["size"], found["frames"], found["fps"]) == ([16, 16], 8, 12)
        assert (found["count"], found["seed"], found["windows"]) == (3, 5, [0])
        assert (found["splits"], found["lengths"]) == (SPLITS, [1])
        adds_up(found["drawings"], 3)
        adds_up(found["clips"], 3)
        for row in found["clips"]:  # noise: whatever shape is nearest, it is none
            assert row["misfit"]["of_no_shape"] + row["misfit"]["nothing_found"] == 3
        assert {row["window"] for row in found["clips"]} == {0}

    @pytest.mark.parametrize("frames", [4, 5])
    def test_of_another_length(self, report, frames):
        found = report("--count", 2, "--frames", frames, "--lengths", "1,2")
        assert (found["frames"], found["lengths"]) == (frames, [1, 2])
        adds_up(found["clips"], 2, lengths=(1, 2))

    def test_for_people(self, sprites, tmp_path):
        words = [*SMALL, "--count", 2, "--lengths", "1,3", "--window", "2,none", "-o", "out"]
        result = sprites(*words)
        assert result.returncode == 0, result.stderr
        lines = result.stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[0] == "causal at 16x16, 8 frames, 12 a second"
        assert "window of 2 blocks" in lines and "no window" in lines
        assert sum(" drawings " in line for line in lines) == 2 * 6
        assert sum(line.startswith("misfit        clips     mean ") for line in lines) == 2
        for start in [*SPLITS, "all"]:
            assert sum(line.startswith(start) for line in lines) == 2
        assert "judging drawings" in result.stderr and "sampling, no window" in result.stderr
        assert (tmp_path / "out/report.txt").read_text() == result.stdout
        assert json.loads((tmp_path / "out/report.json").read_text())["lengths"] == [1, 3]
        assert ET.parse(tmp_path / "out/curve.svg").getroot().tag.endswith("svg")
        with Image.open(tmp_path / "out/clips.png") as sheet:
            rows = 4 * 2 * 2  # two clips of a split, at two lengths
            assert sheet.height > rows * 96 and sheet.width > 4 * 96
        is_usage_error(sprites(*words), "out/report.txt and 3 more files already exist; use -y")
        assert sprites(*words, "-y").returncode == 0

    def test_one_length_has_no_curve(self, sprites, tmp_path):
        assert sprites(*SMALL, "--count", 1, "-o", "out").returncode == 0
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            "clips.png",
            "report.json",
            "report.txt",
        ]

    def test_splits(self, report):
        found = report("--count", 2, "--splits", "new_both,training,new_both")
        assert found["splits"] == ["training", "new_both"]
        adds_up(found["clips"], 2, ["training", "new_both"])

    def test_model_without_mask(self, report):
        adds_up(report("--count", 2, which="whole")["clips"], 2)


class TestClips:
    """The sheet shows what was judged."""

    @staticmethod
    def sheet(sprites, tmp_path, *words, which="causal"):
        result = sprites("--steps", 2, "-y", "--sheet", "sheet.png", *words, which=which)
        assert result.returncode == 0, result.stderr
        with Image.open(tmp_path / "sheet.png") as picture:
            return np.asarray(picture)

    @pytest.mark.parametrize("which", ["causal", "window", "whole"])
    def test_batches_do_not_matter(self, sprites, tmp_path, which):
        near(*(self.sheet(sprites, tmp_path, "--count", 4, "--batch", n, which=which) for n in (3, 5)))

    def test_nor_do_other_splits(self, sprites, tmp_path):
        """new_pairs has the third quarter of the rows."""
        alone = self.sheet(sprites, tmp_path, "--count", 4, "--splits", "new_pairs")
        all_four = self.sheet(sprites, tmp_path, "--count", 4)
        row = (len(all_four) - len(alone)) // 12
        near(all_four[8 * row :, -SHOWN:][: len(alone)], alone[:, -SHOWN:])
        assert (all_four[: len(alone), -SHOWN:] != alone[:, -SHOWN:]).any()

    def test_a_window_that_sees_all_changes_nothing(self, sprites, tmp_path):
        """Twelve blocks in three lengths of eight frames."""
        words = ["--count", 2, "--lengths", "1,3", "--window"]
        none, all_blocks, few = (self.sheet(sprites, tmp_path, *words, n) for n in ("none", 12, 1))
        near(none, all_blocks)
        assert (np.abs(none.astype(int) - few) > 1).any()

    def test_the_windows_own(self, sprites, tmp_path):
        words = ["--count", 1, "--lengths", "2"]
        own = self.sheet(sprites, tmp_path, *words, which="window")
        assert (own == self.sheet(sprites, tmp_path, *words, "--window", 2, which="window")).all()
        assert (own != self.sheet(sprites, tmp_path, *words, "--window", "none", which="window")).any()

    def test_a_longer_stream_begins_like_a_shorter_one(self, sprites, tmp_path):
        """The rows of the first length come first, then those of the last one."""
        words = ["--count", 4, "--splits", "training"]
        short = self.sheet(sprites, tmp_path, *words)
        long = self.sheet(sprites, tmp_path, *words, "--lengths", "3,1,2,2")
        near(long[: len(short), -SHOWN:], short[:, -SHOWN:])
        assert (long[-len(short) :, -SHOWN:] != short[:, -SHOWN:]).any()

    def test_lengths_are_put_in_order(self, report):
        found = report("--count", 3, "--lengths", "3,1,2,2")
        assert found["lengths"] == [1, 2, 3]
        adds_up(found["clips"], 3, lengths=(1, 2, 3))

    def test_seeds_matter(self, sprites, tmp_path):
        one, other = (self.sheet(sprites, tmp_path, "--count", 1, "--seed", n) for n in (1, 2))
        assert one.shape != other.shape or (one != other).any()


def test_the_judge_is_right_on_drawings(tmp_path):
    result = pom("eval", "sprites", "--drawings", "--count", 200, "--json", "-q", cwd=tmp_path)
    found = json.loads(result.stdout)
    assert "clips" not in found and "model" not in found
    assert (found["size"], found["frames"], found["fps"]) == ([32, 32], 16, 8)
    adds_up(found["drawings"], 200)
    for row in found["drawings"]:
        for measure in MEASURES:
            assert row[measure]["rate"] >= 0.99, (row["split"], measure)
        assert row["misfit"]["worst"] < 0.02 and row["misfit"]["of_no_shape"] == 0


def test_drawings_far_into_a_stream(tmp_path):
    words = ["eval", "sprites", "--drawings", "--size", "24", "--count", 10, "--lengths", "1,10", "-o", "d"]
    result = pom(*words, cwd=tmp_path)
    assert result.returncode == 0 and result.stdout.startswith("drawings at 24x24, 16 frames, 8 a second\n")
    rows = json.loads((tmp_path / "d/report.json").read_text())["drawings"]
    assert all(row[measure]["right"] >= 9 for row in rows for measure in MEASURES)
    assert (tmp_path / "d/curve.svg").is_file() and (tmp_path / "d/clips.png").is_file()


@pytest.mark.parametrize(
    ("which", "words", "message"),
    [
        ("causal", ["--lengths", "0"], "--lengths: expected 1 to 100000, got 0"),
        ("causal", ["--lengths", "1,x"], "--lengths: expected a whole number"),
        (
            "causal",
            ["--window", "wide"],
            "--window: expected a number of blocks, 1 to 1000000, model or none",
        ),
        ("causal", ["--window", "0"], "--window: expected a number of blocks"),
        ("causal", ["--window", "1,2,3"], "--window: expected one or two, got 3"),
        ("causal", ["--splits", "traning"], 'did you mean "training"?'),
        ("causal", ["--count", "0"], "--count: expected 1 to 1000000"),
        ("causal", ["--frames", "1"], "--frames: expected 2 to 1000000, got 1"),
        ("causal", ["--size", "30"], "size"),
        ("causal", ["--dtype", "fp8"], "dtype"),
        ("causal", ["--sheet", "sheet.gif"], "sheet.gif"),
        ("causal", ["--drawings"], "--drawings: cannot be combined with a model"),
        ("causal", ["--judge", "file"], "--judge: is only for pom eval shapes"),
        ("causal", ["--seeds", "5"], "--seeds: is only for pom eval shapes"),
        ("whole", ["--lengths", "1,2"], "--lengths: expected a block-causal model"),
        ("whole", ["--window", "2"], "--window: expected a block-causal model"),
    ],
)
def test_what_is_refused(sprites, tmp_path, which, words, message):
    is_usage_error(sprites(*words, which=which), message)
    leaves_nothing(tmp_path)


def test_models_of_the_other_kind(clips, model, tmp_path):  # noqa: F811
    is_usage_error(
        pom("eval", "sprites", model, cwd=tmp_path), "expected a model for clips", "pom eval shapes"
    )
    is_usage_error(
        pom("eval", "shapes", clips["causal"], cwd=tmp_path),
        "a model for images",
        "pom eval sprites",
    )
    for flags in (["--splits", "training"], ["--frames", "8"], ["--lengths", "2"], ["--window", "none"]):
        is_usage_error(
            pom("eval", "shapes", model, *flags, cwd=tmp_path), flags[0] + ": is only for pom eval sprites"
        )
    is_usage_error(
        pom("eval", "sprites", "--drawings", "--window", "2", cwd=tmp_path), "--window: expected a model"
    )
    is_failure(pom("eval", "sprites", "/nowhere", cwd=tmp_path), "/nowhere: no such folder")


@pytest.mark.parametrize(
    "flags", [["--steps", 10000, "-o", "out"], ["--count", 2000]], ids=["clips", "drawings"]
)
def test_ctrl_c(clips, tmp_path, flags):  # noqa: F811
    """In the middle of sampling, and before it: nothing is judged, nothing written."""
    count = [] if "--count" in flags else ["--count", 2]
    words = [str(program()), "eval", "sprites", clips["causal"], *SMALL, *count, *flags]
    run = subprocess.Popen(
        [*map(str, words)],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun = "sampling" if "-o" in flags else "judging drawings"
    while begun not in (line := run.stderr.readline()):
        assert line, "the program ended"
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130 and out == "" and "stopped; nothing was judged" in err
    leaves_nothing(tmp_path)
