"""`pom plan` and the memory of several GPUs as a person meets them: what tables and JSON say agrees, and what
cannot be is refused with what was expected and what came."""

import json
import subprocess
from pathlib import Path

import pytest

from tools import built_program
from training import RECIPE, environment, write_recipe

ROOT = Path(__file__).resolve().parents[2]
XL = ROOT / "recipes" / "imagenet-xl2.toml"


def pom(*words):
    return subprocess.run(
        [built_program(), *map(str, words)], capture_output=True, text=True, env=environment(), timeout=120
    )


def answer(*words):
    result = pom(*words, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_paper_s_network_on_several_machines():
    plan = answer("plan", XL, "--gpus", "8,64,512", "--link", "nvlink,ib400")
    assert plan["parameters"] == answer("info", "DiPoM-XL/2")["parameters"]
    assert plan["tokens"] == 256 and plan["images"] == 950e6
    eight, many, refused = plan["rows"]
    assert refused["gpus"] == 512 and "multiple of the 512 ranks" in refused["refused"]
    for row in (eight, many):
        compute, exchanged = row["compute"], row["communication"]
        work = compute["forward"] + compute["backward"] + compute["update"]
        assert row["step_seconds"] == pytest.approx(work + exchanged["exposed"])
        assert row["days"] == pytest.approx(950e6 / 256 * row["step_seconds"] / 86400)
        assert row["gpu_hours"] == pytest.approx(row["days"] * 24 * row["gpus"])
        assert row["cost"] == pytest.approx(row["gpu_hours"] * 2.5)
        assert exchanged["share"] == pytest.approx(exchanged["exposed"] / row["step_seconds"])
        assert row["memory_bytes"] == sum(row["memory"].values()) + 2**30
    assert many["days"] < eight["days"] and many["communication"]["share"] > eight["communication"]["share"]


def test_what_is_printed(tmp_path):
    result = pom("plan", XL, "--gpus", "8,512", "--price", 3)
    assert result.returncode == 0, result.stderr
    for part in (
        "GPUs",
        "images/s",
        "days to 950 M images",
        "Assumptions",
        "810 TFLOP/s",
        "ib400",
        "at 3 an hour",
    ):
        assert part in result.stdout, part
    assert "batch.size: expected a multiple of the 512 ranks" in result.stdout
    clips = pom("plan", ROOT / "recipes" / "webvid-xl2.toml", "--gpus", "1", "--images", "1e6")
    assert clips.returncode == 0 and "clips/s" in clips.stdout, clips.stderr


def test_what_does_not_fit_says_what_would():
    sets = ("--set", "batch.checkpointing=false", "--set", "batch.size=256", "--gpu", "h100")
    result = pom("plan", XL, "--gpus", "1", *sets)
    assert " no " in result.stdout and "on 1 GPU it fits with no way of dividing" in result.stdout
    wide = ("--set", "network.variant=", "--set", "network.dim=4096", "--set", "network.depth=28")
    wide += ("--set", "network.ffw_expand=2", "--set", "network.order=2", "--set", "network.order_expand=2")
    plan = answer("plan", XL, "--gpus", "64", *wide)
    assert not plan["rows"][0]["fits"] and plan["rows"][0]["fits_with"] in (
        "optimizer",
        "gradients",
        "parameters",
    )
    divided = answer("plan", XL, "--gpus", "64", *wide, "--set", "parallel.shard=optimizer")
    assert divided["rows"][0]["memory_bytes"] < plan["rows"][0]["memory_bytes"]


def test_a_step_that_was_measured(tmp_path):
    (tmp_path / "dry.json").write_text('{"device": "cuda:0", "seconds_per_step": 0.75, "fits": true}')
    measured = answer("plan", XL, "--gpus", "1", "--measured", tmp_path / "dry.json")
    assert measured["rows"][0]["step_seconds"] == pytest.approx(0.75)
    given = answer("plan", XL, "--gpus", "1", "--step-ms", 750)
    assert given["rows"] == measured["rows"]
    (tmp_path / "wrong.json").write_text('{"steps": 1}')
    result = pom("plan", XL, "--measured", tmp_path / "wrong.json")
    assert result.returncode == 2 and "seconds_per_step: expected a number above 0" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a recipe"),
        ([XL, "--link", "nvlnk"], "expected one of nvlink, nvlink3"),
        ([XL, "--link", "a,b,c"], "--link: expected one within a machine and one between, got 3"),
        ([XL, "--link", "mine=0"], "expected GB/s"),
        ([XL, "--gpu", "h300"], "expected h200, h100, a100 or cpu"),
        ([XL, "--gpus", "0"], "--gpus"),
        ([XL, "--gpus", "512"], "--gpus 512: train: batch.size: expected a multiple of the 512 ranks"),
        ([XL, "--gpus", "12"], "expected whole machines of 8 GPUs, got 12"),
        (
            [XL, "--gpus", "8", "--set", "parallel.sequence=3"],
            "expected a divisor of the number of ranks (8)",
        ),
        ([XL, "--gpus", "32", "--set", "parallel.sequence=32"], "parallel.sequence: expected at most 16"),
        ([XL, "--gpu", "cpu", "--gpus", "2"], "--link: expected GB/s:MICROSECONDS"),
        ([XL, "--step-ms", "5", "--measured", "x"], "cannot be combined with --step-ms"),
        ([XL, "--set", "batch.sise=3"], "did you mean"),
        (["no-such.toml"], "no-such.toml"),
    ],
)
def test_wrong_usage_is_refused(words, message):
    result = pom("plan", *words)
    assert result.returncode == 2 and message in result.stderr, result.stderr


def test_on_the_processor(tmp_path):
    recipe = write_recipe(tmp_path, RECIPE)
    words = ("--gpu", "cpu", "--gpus", "1,2,4", "--link", "loop=1:100", "--step-ms", 10)
    plan = answer("plan", recipe, *words, "--threads", 1)
    one, two, four = plan["rows"]
    assert one["step_seconds"] == pytest.approx(0.010, rel=0.01)
    assert all(row["exact"] for row in plan["rows"])
    for row in (two, four):  # nothing is hidden
        assert row["communication"]["exposed"] == pytest.approx(row["communication"]["total"])
    measured = answer("plan", recipe, "--gpu", "cpu", "--gpus", 1)
    assert measured["rows"][0]["step_seconds"] > 0
    assert any("measured now on this machine" in line for line in measured["assumptions"])


def test_memory_on_several_gpus_is_the_same_wherever_it_is_asked_for():
    plan = answer("plan", XL, "--gpus", 8)["rows"][0]
    info = answer("info", XL, "--gpus", 8)["training_memory"]
    assert info["none"] == plan["memory_bytes"] - 2**30
    assert info["none"] > info["optimizer"] > info["gradients"] > info["parameters"]
    table = pom("info", "DiPoM-S/2", "--gpus", 4, "--batch", 16).stdout
    for part in ("on each of 4 GPUs, 16 images", "shard none", "shard parameters", "activations"):
        assert part in table, part
    folder = answer("info", ROOT / "assets" / "shapes64", "--gpus", 2)["training_memory"]
    assert folder["gpus"] == 2 and folder["bf16"]["none"] < folder["fp32"]["none"]


def test_the_forecast_of_a_rank(tmp_path):
    recipe = write_recipe(tmp_path, RECIPE)

    def memory(*words):
        result = answer("train", recipe, "--dry-run", *words)
        return result["memory_bytes"], result["gpus"]

    alone, _ = memory()
    divided, gpus = memory("--gpus", 2, "--set", "parallel.shard=gradients")
    assert gpus == 2 and divided < alone
    plan = answer("plan", recipe, "--gpu", "cpu", "--gpus", "2", "--link", "1:1", "--step-ms", 1)["rows"][0]
    assert memory("--gpus", 2)[0] == plan["memory_bytes"]
