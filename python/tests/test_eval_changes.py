"""`pom eval sprites --changes` as a person meets it. The models are tiny networks of random weights; that the
judge knows better is seen on drawings."""

import json

import numpy as np
import pytest

from test_cli import _program_is_there, is_usage_error, leaves_nothing, pom  # noqa: F401
from test_cli_video import clips  # noqa: F401
from tools import referee

Image = referee("PIL.Image")

MEASURES = ["shape", "colour", "direction", "shape_and_colour", "ground"]
SMALL = ["--size", "16x16", "--steps", 1]


def adds_up(rows, count):
    assert rows["named"]["count"] + rows["unnamed"]["count"] == rows["all"]["count"] == count
    assert 0 < rows["unnamed"]["count"] <= count / 2
    for measure in MEASURES:
        right = [rows[ground][measure]["right"] for ground in ("named", "unnamed", "all")]
        assert right[0] + right[1] == right[2] <= count
        assert rows["all"][measure]["low"] <= right[2] / count <= rows["all"][measure]["high"]
    assert rows["all"]["shape_and_colour"]["right"] <= rows["all"]["shape"]["right"]


def test_for_programs_and_for_people(clips, tmp_path):  # noqa: F811
    words = ["eval", "sprites", clips["window"], "--changes", 6, *SMALL, "--seed", 3]
    result = pom(*words, "-o", "out", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "sampling, with the change" in result.stderr and "sampling, without it" in result.stderr
    found = json.loads(result.stdout)
    assert (found["changes"], found["seed"], found["size"], found["fps"]) == (6, 3, [16, 16], 12)
    assert (found["change_frame"], found["judged_frames"]) == (4, [20, 35])
    assert found["model"]["name"] == "window" and found["request"]["steps"] == 1
    for kind in ("changed", "alone", "drawings"):
        adds_up(found[kind], 6)
    assert json.loads((tmp_path / "out/report.json").read_text()) == found
    text = (tmp_path / "out/report.txt").read_text()
    assert "the prompt changes at frame 4, frames 20 to 35 are judged" in text
    assert max(map(len, text.splitlines())) <= 80
    with Image.open(tmp_path / "out/clips.png") as sheet:
        assert sheet.height > 6 * 96 and sheet.width > 16 * 96
    is_usage_error(pom(*words, "-o", "out", cwd=tmp_path), "already exist; use -y")


def test_batches_do_not_matter(clips, tmp_path):  # noqa: F811
    """Each stream has its own, also where a batch begins with another stream than the first."""

    def sheet(*words):
        result = pom(
            "eval",
            "sprites",
            clips["causal"],
            "--changes",
            3,
            "--steps",
            2,
            "-y",
            "--sheet",
            "s.png",
            *words,
            cwd=tmp_path,
        )
        assert result.returncode == 0, result.stderr
        with Image.open(tmp_path / "s.png") as picture:
            return np.asarray(picture).astype(int)

    whole = sheet()
    assert (np.abs(whole - sheet("--batch", 2)) <= 1).all()
    other = sheet("--seed", 1)
    assert whole.shape != other.shape or (whole != other).any()


def test_the_judge_is_right_on_drawings(tmp_path):
    result = pom("eval", "sprites", "--drawings", "--changes", 100, "--json", "-q", cwd=tmp_path)
    found = json.loads(result.stdout)
    assert "changed" not in found and (found["change_frame"], found["judged_frames"]) == (24, [40, 55])
    adds_up(found["drawings"], 100)
    for measure in MEASURES:
        assert found["drawings"]["all"][measure]["rate"] >= 0.98, measure


@pytest.mark.parametrize(
    ("which", "words", "message"),
    [
        ("causal", ["--changes", "0"], "--changes: expected 1 to 1000000, got 0"),
        ("whole", ["--changes", "3"], "--changes: expected a block-causal model"),
        ("causal", ["--changes", "3", "--count", "4"], "--count: cannot be combined with --changes"),
        ("causal", ["--changes", "3", "--lengths", "1,2"], "--lengths: cannot be combined with --changes"),
        ("causal", ["--changes", "3", "--splits", "training"], "--splits: cannot be combined"),
        ("causal", ["--changes", "3", "--window", "2"], "--window: cannot be combined"),
        ("causal", ["--changes", "3", "--frames", "16"], "--frames: cannot be combined"),
    ],
)
def test_what_is_refused(clips, tmp_path, which, words, message):  # noqa: F811
    is_usage_error(pom("eval", "sprites", clips[which], *words, cwd=tmp_path), message)
    leaves_nothing(tmp_path)


def test_other_kinds_have_none(tmp_path):
    is_usage_error(
        pom("eval", "shapes", "--drawings", "--changes", 3, cwd=tmp_path),
        "--changes: is only for pom eval sprites",
    )
