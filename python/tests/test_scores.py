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

from tools import built_program

FID, SFID = (
    578.979984,
    363.494166,
)  # of set.a and set.b, by torch-fidelity's network and ADM's spatial features


def splitmix(name, count):
    """z_0, z_1, … of the key that is the name's FNV-1a."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 % 2**64
    step = numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    z = step + numpy.uint64(key)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def symmetric(name, shape):
    u = (splitmix(name, int(numpy.prod(shape))) >> numpy.uint64(11)) * 2.0**-53
    return (2 * u - 1).reshape(shape)


def pictures(name):
    """(24, 32, 32, 3), as files keep them."""
    data = (splitmix(name, 24 * 3 * 32 * 32) >> numpy.uint64(56)).astype(numpy.uint8)
    return data.reshape(24, 3, 32, 32).transpose(0, 2, 3, 1)


def run(*words, code=0):
    done = subprocess.run(
        [built_program(), "eval", *map(str, words)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stderr
    return done


def convolutions():
    """(name, out, in, height, width) of all 94."""
    yield from [
        ("Conv2d_1a_3x3", 32, 3, 3, 3), ("Conv2d_2a_3x3", 32, 32, 3, 3), ("Conv2d_2b_3x3", 64, 32, 3, 3),
        ("Conv2d_3b_1x1", 80, 64, 1, 1), ("Conv2d_4a_3x3", 192, 80, 3, 3),
    ]  # fmt: skip

    def block(name, *branches):
        for branch, *shape in branches:
            yield (f"{name}.branch{branch}", *shape)

    def double(i):
        return ("3x3dbl_1", 64, i, 1, 1), ("3x3dbl_2", 96, 64, 3, 3), ("3x3dbl_3", 96, 96, 3, 3)

    for name, i, pool in (("Mixed_5b", 192, 32), ("Mixed_5c", 256, 64), ("Mixed_5d", 288, 64)):
        five = ("5x5_1", 48, i, 1, 1), ("5x5_2", 64, 48, 5, 5)
        yield from block(name, ("1x1", 64, i, 1, 1), *five, *double(i), ("_pool", pool, i, 1, 1))
    yield from block("Mixed_6a", ("3x3", 384, 288, 3, 3), *double(288))
    for name, c in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        yield from block(
            name, ("1x1", 192, 768, 1, 1), ("7x7_1", c, 768, 1, 1), ("7x7_2", c, c, 1, 7),
            ("7x7_3", 192, c, 7, 1), ("7x7dbl_1", c, 768, 1, 1), ("7x7dbl_2", c, c, 7, 1),
            ("7x7dbl_3", c, c, 1, 7), ("7x7dbl_4", c, c, 7, 1), ("7x7dbl_5", 192, c, 1, 7),
            ("_pool", 192, 768, 1, 1),
        )  # fmt: skip
    yield from block(
        "Mixed_7a", ("3x3_1", 192, 768, 1, 1), ("3x3_2", 320, 192, 3, 3), ("7x7x3_1", 192, 768, 1, 1),
        ("7x7x3_2", 192, 192, 1, 7), ("7x7x3_3", 192, 192, 7, 1), ("7x7x3_4", 192, 192, 3, 3),
    )  # fmt: skip
    for name, i in (("Mixed_7b", 1280), ("Mixed_7c", 2048)):
        yield from block(
            name, ("1x1", 320, i, 1, 1), ("3x3_1", 384, i, 1, 1), ("3x3_2a", 384, 384, 1, 3),
            ("3x3_2b", 384, 384, 3, 1), ("3x3dbl_1", 448, i, 1, 1), ("3x3dbl_2", 384, 448, 3, 3),
            ("3x3dbl_3a", 384, 384, 1, 3), ("3x3dbl_3b", 384, 384, 3, 1), ("_pool", 192, i, 1, 1),
        )  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Inception-v3, of numbers that follow from the names of its tensors."""
    file = tmp_path_factory.mktemp("inception") / "inception.safetensors"
    shapes = {"fc.weight": (1008, 2048), "fc.bias": (1008,)}
    for name, out, *rest in convolutions():
        shapes[f"{name}.conv.weight"] = (out, *rest)
        for norm in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.bn.{norm}"] = (out,)
    assert len(shapes) == 472
    tensors = {}
    for name, shape in shapes.items():
        s = symmetric(name, shape)
        if name.endswith("conv.weight"):
            value = s * numpy.sqrt(6 / numpy.prod(shape[1:]))
        elif name.endswith("bn.weight"):
            value = 1 + 0.1 * s
        elif name.endswith("running_var"):
            value = 1 + 0.5 * s
        else:
            value = s if name == "fc.bias" else 0.1 * s
        tensors[name] = value.astype(numpy.float32)
    save_file(tensors, file)
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
    assert 0 < score["fid_deviation"] < FID and score["fid_unbiased"] != score["fid"]
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
    # As others keep them, deflated and in fp32.
    numpy.savez_compressed(tmp_path / "other.npz", mu=stored["mu"], sigma=stored["sigma"])
    words = ["--samples", sets / "a.npz", "--inception", weights, "--json", "--reference"]
    # As ADM keeps them, with pictures for precision and recall.
    numpy.savez(tmp_path / "adm.npz", arr_0=pictures("set.b") // 2 + 64, **dict(stored))
    adm = json.loads(run("fid", "--like", "adm", *words, tmp_path / "adm.npz").stdout)
    assert abs(adm["fid"] - score["fid"]) < 1e-5 * score["fid"] and 0 <= adm["recall"] <= 1
    assert adm["recipe"]["reference"] == "statistics, and pictures"
    for name, keys in (("b.npz", ["fid", "sfid"]), ("other.npz", ["fid"])):
        found = json.loads(run("fid", *words, tmp_path / name).stdout)
        for key in keys:
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
    for name, kind in (("a", "folder"), ("a.tar", "tars")):
        words = ["--samples", tmp_path / name, "--reference", sets / "b.npz", "--inception", weights]
        found = json.loads(run("fid", *words, "--threads", 1, "--json").stdout)
        assert found["fid"] == score["fid"] and found["recipe"]["samples"] == kind  # bit for bit


def test_compare(sets, score, tmp_path):
    same = run("compare", sets / "a.json", sets / "a.json")
    assert same.stdout.startswith("not distinguishable: fid 578.98, then 578.98")
    worse = tmp_path / "worse.json"
    worse.write_text(json.dumps(score | {"fid": score["fid"] + 5 * score["fid_deviation"]}))
    assert run("compare", sets / "a.json", worse).stdout.startswith("worse: ")
    assert run("compare", worse, sets / "a.json").stdout.startswith("better: ")
    assert len(score["recipe"]) == 15
    for field, value in score["recipe"].items():
        other = value + 1 if isinstance(value, int) else value + "x"
        changed = tmp_path / "changed.json"
        changed.write_text(json.dumps(score | {"recipe": score["recipe"] | {field: other}}))
        said = run("compare", sets / "a.json", changed, code=1).stdout
        assert said == f"not comparable:\n  {field}: {value}, {other}\n"


def test_what_is_wrong_is_named(sets, weights, tmp_path):
    words = ["--reference", sets / "b.npz", "--inception", weights]
    refusal = "--gpus: is only for pom eval shapes, sprites and scenes"
    assert refusal in run("fid", *words, "--gpus", 2, code=2).stderr
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
