"""Pictures on their way to a score: a model's, streamed into the features; the same in a `.npz` that numpy
reads; files larger than 4 GiB; several ranks. By a small network, so that only the way takes time."""

import json
import struct
import subprocess
import zipfile
from pathlib import Path

import numpy
import pytest
from safetensors.torch import save_file

from golden_numbers import pictures
from small_dinov2 import drawn_weights
from tools import built_program
from torchrun import run_ranks

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "assets" / "shapes64"
HOW = ["--steps", 1, "--seed", 3]


def pom(*words, code=0):
    done = subprocess.run([built_program(), *map(str, words)], capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The network, a reference of its statistics, and 40 images of the model in a .npz."""
    folder = tmp_path_factory.mktemp("samples")
    save_file(drawn_weights(), folder / "net.safetensors")
    numpy.savez(folder / "b.npz", pictures("set.b"))
    pom("eval", "reference", folder / "b.npz", *network(folder), "-q", "-o", folder / "b-statistics.npz")
    pom("sample", "--model", MODEL, "--count", 4, *HOW, "-q", "-o", folder / "samples.npz")
    return folder


def network(folder):
    return ["--like", "edm2", "--dinov2", folder / "net.safetensors"]


def fid(folder, *words):
    words = ["eval", "fid", *words, "--reference", folder / "b-statistics.npz", *network(folder), "--json"]
    return json.loads(pom(*words, "-q").stdout)


def test_numpy_reads_the_samples(folder, tmp_path):
    with numpy.load(folder / "samples.npz") as file:
        assert file.files == ["arr_0", "arr_1", "settings"]
        images, labels = file["arr_0"], file["arr_1"]
        settings = json.loads(file["settings"].tobytes())
    assert images.shape == (40, 64, 64, 3) and images.dtype == numpy.uint8
    assert labels.tolist() == [i for i in range(10) for _ in range(4)] and labels.dtype == numpy.int64
    assert (settings["steps"], settings["count"]) == (1, 4)
    with zipfile.ZipFile(folder / "samples.npz") as zipped:
        assert zipped.testzip() is None  # by its CRCs
        assert all(info.extract_version == 45 for info in zipped.infolist())  # sizes of 64 bits
    # The same image alone.
    words = ["--model", MODEL, "--class", 1, "--steps", 1, "--seed", 7, "-q"]
    pom("sample", *words, "-o", tmp_path / "one.npz")
    assert (numpy.load(tmp_path / "one.npz")["arr_0"][0] == images[4]).all()
    assert "already exists" in pom("sample", *words, "-o", tmp_path / "one.npz", code=2).stderr
    for flag in (["--grid"], ["--preview", 1]):
        said = pom("sample", *words, *flag, "-o", tmp_path / "two.npz", code=2).stderr
        assert f"{flag[0]}: expected a .png or .jpg behind -o" in said
    assert [path.name for path in tmp_path.iterdir()] == ["one.npz"]


def test_a_model_and_its_file_have_one_score(folder):
    made = fid(folder, MODEL, "--count", 40, *HOW)
    kept = fid(folder, "--samples", folder / "samples.npz")
    for key in ("fd", "fd_deviation", "fd_unbiased", "fd_infinity"):
        assert made[key] == kept[key]  # bit for bit
    assert (made["recipe"]["samples"], kept["recipe"]["samples"]) == ("model", "npz")
    assert made["recipe"]["size"] == kept["recipe"]["size"] == "64x64"
    # Batches that do not fit the blocks of features, and another number of threads.
    other = fid(folder, MODEL, "--count", 40, *HOW, "--batch", 7, "--threads", 1)
    assert other == made


def test_ranks_share_the_pictures(folder):
    """Three ranks of two blocks: one of them has nothing to do."""
    words = ["--reference", folder / "b.npz", *network(folder), "--json", "-q", "--device", "cpu"]
    for what in ([MODEL, "--count", 40, *HOW], ["--samples", folder / "samples.npz"]):
        alone = pom("eval", "fid", *what, *words).stdout
        done = run_ranks(3, "eval", "fid", *what, *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout == alone  # every number of it


def test_statistics_of_another_network_are_refused(folder, tmp_path):
    words = ["--reference", folder / "b-statistics.npz", "--dinov2", folder / "net.safetensors"]
    said = pom("eval", "fid", "--samples", folder / "b.npz", *words, "--like", "dgm-eval", code=1).stderr
    assert "expected statistics of the same resize (pillow), got bicubic" in said
    save_file(drawn_weights() | {"cls_token": 2 * drawn_weights()["cls_token"]}, tmp_path / "o.safetensors")
    words[-1] = tmp_path / "o.safetensors"
    said = pom("eval", "fid", "--samples", folder / "b.npz", *words, "--like", "edm2", code=1).stderr
    assert "expected statistics of the same weights" in said


def sparse_npz(path, count, side, first):
    """A .npz of more pictures than are written: those behind the first ones are holes of the file. The .npy
    in it is of version 2, and what is behind 4 GiB stands in the records of zip64."""
    shape, name = (count, side, side, 3), b"arr_0.npy"
    text = str({"descr": "|u1", "fortran_order": False, "shape": shape})
    text += " " * (-(12 + len(text) + 1) % 64) + "\n"
    head = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text.encode()
    size = len(head) + int(numpy.prod(shape))
    large, none = struct.pack("<HHQQ", 1, 16, size, size), 2**32 - 1
    common = struct.pack("<HHHHHIIIHH", 45, 0, 0, 0, 33, 0, none, none, len(name), len(large))
    begin = 30 + len(name) + len(large) + size
    entry = struct.pack("<IH", 0x02014B50, 45) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name + large
    end = begin + len(entry)
    with open(path, "wb") as file:
        file.write(struct.pack("<I", 0x04034B50) + common + name + large + head + first.tobytes())
        file.seek(begin)
        file.write(entry)
        file.write(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 1, 1, len(entry), begin))
        file.write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        file.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 1, 1, none, none, 0))
    return size


def test_more_than_4_gib(folder, tmp_path):
    first, path = pictures("set.a"), tmp_path / "large.npz"
    size = sparse_npz(path, 2**32 // (32 * 32 * 3) + 1000, 32, first)
    assert path.stat().st_size > size > 2**32
    with zipfile.ZipFile(path) as zipped:  # what was made here is a zip to others too
        assert zipped.infolist()[0].file_size == size
    numpy.savez(tmp_path / "small.npz", first)
    large = fid(folder, "--samples", path, "--count", 24)
    assert large["fd"] == fid(folder, "--samples", tmp_path / "small.npz")["fd"]
    assert large["recipe"]["count"] == 24
