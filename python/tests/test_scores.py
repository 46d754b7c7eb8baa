"""`pom eval fid`, `reference` and `compare` with weights that anyone can make: the numbers are those that the
published implementations gave for them, and numpy reads and writes the files."""

import json
import subprocess
import tarfile
from io import BytesIO

import numpy
import pytest
from PIL import Image
from safetensors.numpy import save_file

from golden_numbers import inception_weights, pictures
from tools import built_program

FID, SFID = (
    578.979984,
    363.494166,
)  # of set.a and set.b, by torch-fidelity's network and ADM's spatial features


def run(*words, code=0):
    done = subprocess.run(
        [built_program(), "eval", *map(str, words)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    file = tmp_path_factory.mktemp("inception") / "inception.safetensors"
    save_file(inception_weights(), file)
    return file


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    numpy.savez(folder / "a.npz", arr_0=pictures("set.a"))
    numpy.savez(folder / "b.npz", pictures("set.b") // 2 + 64)
    return folder


@pytest.fixture(scope="module")
def score(sets, weights):
    words = ["--samples", sets / "a.npz", "--reference", sets / "b.npz", "--inception", weights]
    run("fid", *words, "-q", "-o", sets / "a.json")
    return json.loads((sets / "a.json").read_text())


def test_is_that_of_the_published_implementations(score):
    assert abs(score["fid"] - FID) < 1e-5 * FID
    assert abs(score["sfid"] - SFID) < 1e-5 * SFID
    assert 0 < score["fid_deviation"] < FID and score["fid_unbiased"] != score["fid"] != score["fid_infinity"]
    recipe = score["recipe"]
    assert (recipe["count"], recipe["size"], recipe["samples"], recipe["like"]) == (
        24, "32x32", "npz", "torch-fidelity",
    )  # fmt: skip
    assert len(recipe["network_sha256"]) == 64 and recipe["reference_count"] == 24


def test_statistics_are_those_of_numpy(sets, weights, score, tmp_path):
    run("reference", sets / "b.npz", "--inception", weights, "-q", "-o", tmp_path / "b.npz")
    stored = numpy.load(tmp_path / "b.npz")
    assert stored["mu"].shape == (2048,) and stored["sigma"].shape == (2048, 2048)
    assert stored["mu_s"].shape == (2023,)
    assert json.loads(stored["recipe"].tobytes())["recipe"]["resize"] == "tensorflow"
    # As others keep them, deflated and with a mean in fp32.
    numpy.savez_compressed(
        tmp_path / "other.npz", mu=stored["mu"].astype(numpy.float32), sigma=stored["sigma"]
    )
    words = ["--samples", sets / "a.npz", "--inception", weights, "--json", "--reference"]
    # As ADM keeps them, with pictures for precision and recall.
    numpy.savez(tmp_path / "adm.npz", arr_0=pictures("set.b") // 2 + 64, **dict(stored))
    adm = json.loads(run("fid", "--like", "adm", *words, tmp_path / "adm.npz").stdout)
    assert abs(adm["fid"] - score["fid"]) < 1e-5 * score["fid"] and 0 <= adm["recall"] <= 1
    assert adm["recipe"]["reference"] == "statistics, and pictures"
    found = json.loads(run("fid", *words, tmp_path / "b.npz").stdout)
    for key in ("fid", "sfid"):
        assert abs(found[key] - score[key]) < 1e-5 * score[key]
    assert "kid" not in found and found["recipe"]["reference"] == "statistics"
    both = json.loads(run("fid", "--samples", tmp_path / "b.npz", *words[2:], tmp_path / "other.npz").stdout)
    assert abs(both["fid"]) < 1e-6


def test_folders_and_tars_are_the_same_pictures(sets, weights, score, tmp_path):
    (tmp_path / "a").mkdir()
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i, pixels in enumerate(pictures("set.a")):
            png = BytesIO()
            Image.fromarray(pixels).save(png, "png")
            (tmp_path / "a" / f"{i:03}.png").write_bytes(png.getvalue())
            member = tarfile.TarInfo(f"{i:03}.png")
            member.size = len(png.getvalue())
            tar.addfile(member, BytesIO(png.getvalue()))
    for name, kind, threads in (("a", "folder", 1), ("a.tar", "tars", 4)):
        words = ["--samples", tmp_path / name, "--reference", sets / "b.npz", "--inception", weights]
        found = json.loads(run("fid", *words, "--threads", threads, "--json").stdout)
        for key, value in score.items():
            if isinstance(value, float):
                assert found[key] == value, key  # bit for bit
        assert found["recipe"]["samples"] == kind


def test_compare(sets, score, tmp_path):
    same = run("compare", sets / "a.json", sets / "a.json")
    assert same.stdout.startswith("not distinguishable: fid 578.98, then 578.98")
    worse = tmp_path / "worse.json"
    worse.write_text(json.dumps(score | {"fid": score["fid"] + 5 * score["fid_deviation"]}))
    assert run("compare", sets / "a.json", worse).stdout.startswith("worse: ")
    assert run("compare", worse, sets / "a.json").stdout.startswith("better: ")
    assert len(score["recipe"]) == 16
    for field, value in score["recipe"].items():
        other = value + 1 if isinstance(value, int) else value + "x"
        changed = tmp_path / "changed.json"
        changed.write_text(json.dumps(score | {"recipe": score["recipe"] | {field: other}}))
        said = run("compare", sets / "a.json", changed, code=1).stdout
        assert said == f"not comparable:\n  {field}: {value}, {other}\n"


def test_what_is_wrong_is_named(sets, weights, tmp_path):
    words = ["--reference", sets / "b.npz", "--inception", weights]
    assert "--gpus: is only for" in run("compare", "a", "b", "--gpus", 2, code=2).stderr
    assert "--like: is only for" in run("shapes", "m", "--like", "adm", code=2).stderr
    assert "expected a model or --samples, got neither" in run("fid", *words, code=2).stderr
    said = run("fid", "--samples", sets / "a.npz", "--reference", sets / "b.npz", code=2).stderr
    assert "tools/unpickle.py" in said
    numpy.savez(tmp_path / "grey.npz", numpy.zeros((2, 8, 8), numpy.uint8))
    said = run("fid", "--samples", tmp_path / "grey.npz", *words, code=1).stderr
    assert "arr_0: expected uint8 of shape (N, H, W, 3), got shape (2, 8, 8)" in said
    (tmp_path / "empty").mkdir()
    assert "expected pictures" in run("fid", "--samples", tmp_path / "empty", *words, code=1).stderr
    (tmp_path / "a.json").write_text("{}")
    assert "-y to overwrite" in run(
        "fid", "--samples", sets / "a.npz", *words, "-o", tmp_path / "a.json", code=2
    ).stderr  # fmt: skip
    assert "with its recipe" in run("compare", tmp_path / "a.json", tmp_path / "a.json", code=1).stderr
