"""`pom eval scenes` as a person meets it. The model is a tiny network of random weights: what it makes is
noise, of which the judge says so; that it knows better is seen on drawings."""

import json
from pathlib import Path

import pytest

from test_cli import (  # noqa: F401
    _program_is_there,
    is_usage_error,
    leaves_nothing,
    model,
    pom,
)
from test_cli_video import clips  # noqa: F401
from tools import referee

Image = referee("PIL.Image")

SPLITS = ["training", "new_wordings", "new_pairs", "new_relations", "new_all"]
MEASURES = ["objects", "colours", "pairs", "relations", "counted", "everything", "fits"]
SMALL = ["--size", "32x32", "--steps", 1]


@pytest.fixture
def scenes(clips, tmp_path):  # noqa: F811
    """`pom eval scenes causal ...` in an empty folder, as it comes."""
    return lambda *words: pom("eval", "scenes", clips["causal"], *words, cwd=tmp_path)


def adds_up(rows, count, splits=SPLITS):
    assert [row["split"] for row in rows] == splits
    for row in rows:
        assert row["count"] == count
        for measure in MEASURES:
            found = row[measure]
            of = found.get("of", count)
            assert 0 <= found["right"] <= of <= count
            assert found["rate"] == pytest.approx(found["right"] / of if of else 0)
            assert found["low"] <= found["rate"] <= found["high"]
        assert row["everything"]["right"] <= min(row[m]["right"] for m in MEASURES if m != "relations")
        assert row["ground"]["right"] <= row["ground"]["asked"] <= count
        misfit = row["misfit"]
        assert 0 <= misfit["mean"] <= misfit["worst"] if misfit["objects"] else misfit["mean"] is None


def test_for_programs(scenes):
    result = scenes(*SMALL, "--count", 2, "--seed", 5, "--json", "-q")
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["what"] == "scenes" and found["model"]["name"] == "causal"
    assert found["request"]["steps"] == 1 and found["request"]["frames"] == 1
    assert (found["size"], found["count"], found["seed"]) == ([32, 32], 2, 5)
    adds_up(found["drawings"], 2)
    adds_up(found["pictures"], 2)
    assert sum(row["everything"]["right"] for row in found["pictures"]) == 0
    assert "network" not in found


def test_for_people(scenes, tmp_path):
    words = [*SMALL, "--count", 2, "--splits", "new_all,training", "-o", "out"]
    result = scenes(*words)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "causal at 32x32, 2 x 2 pictures, seed 0"
    assert [line.split()[0] for line in lines if line.startswith(("training", "new_", "all"))] == [
        "training",
        "new_all",
        "all",
    ]
    assert "pictures with something that fits no shape" in lines
    assert (tmp_path / "out/report.txt").read_text() == result.stdout
    assert json.loads((tmp_path / "out/report.json").read_text())["splits"] == ["training", "new_all"]
    with Image.open(tmp_path / "out/pictures.png") as sheet:
        assert sheet.width > 4 * 192
    is_usage_error(scenes(*words), "out/report.txt and 2 more files already exist; use -y")


def test_drawings_and_the_network(tmp_path):
    words = ["eval", "scenes", "--drawings", "--size", 32, "--count", 8, "--json"]
    trained = pom(*words, "--judge", "judge.safetensors", "--judge-steps", 2, cwd=tmp_path)
    assert trained.returncode == 0 and "training the judge" in trained.stderr
    again = pom(*words, "--judge", "judge.safetensors", cwd=tmp_path)
    assert again.stdout == trained.stdout and "training the judge" not in again.stderr
    found = json.loads(again.stdout)
    assert "pictures" not in found and "model" not in found
    adds_up(found["drawings"], 8)
    assert sum(row["everything"]["right"] for row in found["drawings"]) >= 38
    assert {row["read_alike"]["right"] for row in found["drawings"]} <= set(range(9))
    assert found["network"]["everything"] < 0.5 and found["network"]["frechet"]["drawings"] >= 0
    refused = pom(*words[:3], "--size", 64, "--judge", "judge.safetensors", cwd=tmp_path)
    assert refused.returncode == 1 and "size: expected 64x64, got 32x32" in refused.stderr


@pytest.mark.parametrize(("size", "right"), [(64, 0.99), (32, 0.98)])
def test_the_networks_that_ship_read_drawings(tmp_path, size, right):
    judge = Path(__file__).resolve().parents[2] / f"assets/judges/scenes{size}.safetensors"
    words = ["eval", "scenes", "--drawings", "--size", size, "--count", 8, "--judge", judge, "--json"]
    result = pom(*words, cwd=tmp_path)
    found = json.loads(result.stdout)
    assert found["network"]["everything"] >= right
    assert sum(row["read_alike"]["right"] for row in found["drawings"]) >= 38


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--splits", "new_both"], "--splits: scenes have training"),
        (["--splits", "new_pair"], 'did you mean "new_pairs"?'),
        (["--lengths", "2"], "--lengths: is only for pom eval sprites"),
        (["--seeds", "2"], "--seeds: is only for pom eval shapes"),
        (["--sheet", "sheet.gif"], "sheet.gif"),
        (["--size", "8"], "at least 16x16"),
        (["--judge-steps", "5"], "expected a file for the judge (--judge), got none"),
        (["--drawings"], "--drawings: cannot be combined with a model"),
    ],
)
def test_what_is_refused(scenes, tmp_path, words, message):
    is_usage_error(scenes(*words), message)
    leaves_nothing(tmp_path)


def test_models_of_the_other_kind(model, clips, tmp_path):  # noqa: F811
    is_usage_error(pom("eval", "scenes", model, cwd=tmp_path), "images of text", "pom eval shapes")
    is_usage_error(
        pom("eval", "sprites", clips["causal"], "--splits", "new_all", cwd=tmp_path),
        "--splits: sprites have training",
    )
