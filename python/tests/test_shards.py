"""Shards of latents: ours as webdataset and numpy read them, other people's layouts as numpy and tarfile
write them, and a writer that is killed.

tests/tools/shard_tool stands beside libpom.so ($LIBPOM_LIBRARY).
"""

import io
import json
import os
import random
import signal
import subprocess
import tarfile
import time
import zlib

import numpy as np
import pytest

from tools import built_tool, referee

webdataset = referee("webdataset")


def run(*arguments, code=0, **more):
    words = [str(built_tool("shard_tool")), *map(str, arguments)]
    result = subprocess.run(words, capture_output=True, timeout=120, **more)
    assert result.returncode == code, result.stderr.decode()
    return result.stderr.decode() if code else result.stdout


def read(kind, folder, *fields, seed=3, visit=0, part="training", code=0):
    """Examples as training sees them: (line, array); or the error."""
    data = run("read", kind, folder, seed, visit, part, *fields, code=code)
    if code:
        return data
    found = []
    while data:
        line, data = data.split(b"\n", 1)
        line = json.loads(line)
        count = 4 * int(np.prod(line["shape"]))
        found.append((line, np.frombuffer(data[:count], "<f4").reshape(line["shape"])))
        data = data[count:]
    return found


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- ours ---


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours") / "shards"
    run("write", folder, 50, 16)
    return folder


def test_webdataset_reads_ours(ours):
    info = json.loads((ours / "dataset.json").read_text())
    assert info["shard_counts"] == [16, 16, 16, 2] and info["samples"] == 50
    assert [os.path.getsize(ours / name) for name in info["shard_names"]] == info["shard_bytes"]
    loader = webdataset.WebDataset(str(ours / "train-{000000..000003}.tar"), shardshuffle=False)
    samples = list(loader.decode())
    assert len(samples) == 50
    moments = []
    for i, sample in enumerate(samples):
        assert sample["__key__"] == str(1000000 + i)
        fields = {name for name in sample if not name.startswith("__")}
        assert fields == {"moments.npy", "cls", "json"}
        assert sample["moments.npy"].dtype == np.float16 and sample["moments.npy"].shape == (8, 32, 32)
        assert sample["cls"] == i % 10
        assert sample["json"]["mirrored"] == (i % 2 == 1)
        moments.append(sample["moments.npy"])
    raw = list(webdataset.WebDataset(str(ours / "train-000001.tar"), shardshuffle=False))
    for sample in raw:
        sums = json.loads(sample["json"])["crc32"]
        assert sums == {name: f"{zlib.crc32(sample[name]):08x}" for name in ("moments.npy", "cls")}
    # And what training sees of them: the mean in validation, a draw of the right spread in training.
    means = read("shards", ours, "validation=5", part="validation")
    assert len(means) == 5
    for line, latent in means:
        i = int(line["name"].rsplit(" ", 1)[1]) + 16 * int(line["name"].split("train-")[1][:6])
        assert np.allclose(latent, moments[i][:4].astype("f4") * np.float32(0.18215), atol=1e-7)
    draws = np.stack([[latent for _, latent in read("shards", ours, visit=v)] for v in range(2)])
    mean, log_variance = np.split(np.stack(moments).astype("f8"), 2, axis=1)
    z = (draws / 0.18215 - mean) / np.exp(log_variance / 2)
    assert abs(z.mean()) < 0.01 and abs(z.std() - 1) < 0.01
    assert abs((z[0] * z[1]).mean()) < 0.01, "each visit has noise of its own"
    assert abs((z[0, 0] * z[0, 1]).mean()) < 0.05, "and each example"


def test_written_by_webdataset(ours, tmp_path):
    """Tars of its own writer, with pax headers and without our index, under our dataset.json."""
    info = json.loads((ours / "dataset.json").read_text())
    for name in info["shard_names"]:
        with webdataset.TarWriter(str(tmp_path / name), encoder=False) as writer:
            for sample in webdataset.WebDataset(str(ours / name), shardshuffle=False):
                del sample["__url__"]
                sample.pop("__local_path__", None)
                writer.write(sample)
    info["shard_bytes"] = [os.path.getsize(tmp_path / name) for name in info["shard_names"]]
    (tmp_path / "dataset.json").write_text(json.dumps(info))
    expected, found = read("shards", ours), read("shards", tmp_path)
    assert len(found) == 50
    for (_, a), (_, b) in zip(expected, found, strict=True):
        assert (a == b).all()


def test_order_goes_on(ours):
    whole = run("order", ours, 5, 7, 0, 20).splitlines()
    assert len(set(whole)) > 15
    for start in (1, 8, 15):
        assert run("order", ours, 5, 7, 7 * start, 20 - start).splitlines() == whole[start:]
    assert run("order", ours, 6, 7, 0, 20).splitlines() != whole


@pytest.mark.parametrize("seed", range(2))
def test_killed_writers(ours, tmp_path, seed):
    """kill -9 at any moment: whole shards only, and in the end the bytes of who was never stopped."""
    expected, chance = files_of(ours), random.Random(seed)
    folder, last = tmp_path / "shards", 0
    for _ in range(8):
        process = subprocess.Popen(
            [built_tool("shard_tool"), "write", folder, "50", "16"], stdout=subprocess.PIPE
        )
        already = process.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        code = process.wait()
        process.stdout.close()
        if already:
            assert int(already) >= last
            last = int(already)
        if code == 0:
            break
        for path in folder.glob("train-*.tar"):
            assert path.read_bytes() == expected[path.name]
    run("write", folder, 50, 16)
    assert {name: data for name, data in files_of(folder).items() if not name.startswith(".")} == expected


@pytest.mark.parametrize(
    "step", ["write:30", "sync:2", "rename:1", "rename:2", "rename:4", "sync_folder:3", "rename:6"]
)
def test_killed_at_every_step(ours, tmp_path, step):
    folder = tmp_path / "shards"
    killed = {**os.environ, "POM_FAILPOINT": f"atomic_file.{step}"}
    result = subprocess.run(
        [built_tool("shard_tool"), "write", folder, "50", "16"], env=killed, capture_output=True
    )
    assert result.returncode == -signal.SIGKILL
    expected = files_of(ours)
    for path in folder.glob("train-*.tar"):
        assert path.read_bytes() == expected[path.name]
    run("write", folder, 50, 16)
    assert files_of(folder) == expected


def test_disk_full(ours, tmp_path):
    folder = tmp_path / "shards"
    full = {**os.environ, "POM_FAILPOINT": "atomic_file.write:30:ENOSPC"}
    result = subprocess.run(
        [built_tool("shard_tool"), "write", folder, "50", "16"], env=full, capture_output=True
    )
    assert result.returncode == 1 and b"No space left" in result.stderr
    run("write", folder, 50, 16)
    assert files_of(folder) == files_of(ours)


# --- the authors' pictures ---


def homm_tar(path, samples, save=np.savez):
    with tarfile.open(path, "w") as tar:
        for i, arrays in enumerate(samples):
            buffer = io.BytesIO()
            save(buffer, *arrays)
            info = tarfile.TarInfo(f"sample_{i}.npz")
            info.size = buffer.tell()
            buffer.seek(0)
            tar.addfile(info, buffer)


@pytest.fixture
def latents():
    generator = np.random.default_rng(4)
    means = generator.normal(size=(12, 4, 8, 8)).astype("f4")
    spreads = generator.uniform(0.004, 0.015, size=means.shape).astype("f4")
    return means, spreads, generator.integers(0, 1000, 12)


def write_homm(folder, latents, q_said, q_applied, dtype, name="index.json", prefix="chunk", save=np.savez):
    means, spreads, labels = latents
    index = []
    for chunk in range(3):
        samples = []
        for i in range(4 * chunk, 4 * chunk + 4):
            mean, spread = means[i] * q_applied, spreads[i] * 1000 * q_applied
            if dtype == "i1":
                mean, spread = (np.clip(x, -127, 127) for x in (mean, spread))
            samples.append((mean.astype(dtype), spread.astype(dtype), np.array(labels[i])))
        homm_tar(folder / f"{prefix}_{chunk}.tar", samples, save)
        index.append(
            {"filename": f"/scratch/somebody/{prefix}_{chunk}.tar", "count": 4, "quantization_scale": q_said}
        )
    (folder / name).write_text(json.dumps(index))


@pytest.mark.parametrize(("dtype", "q"), [("i1", 8), ("f2", 1), ("f2", 1.0)])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_homm_pictures(tmp_path, latents, dtype, q, save):
    write_homm(tmp_path, latents, q, q, dtype, save=save)
    write_homm(tmp_path, latents, q, q, dtype, name="val_index.json", prefix="val_chunk", save=save)
    means, spreads, labels = latents
    validation = read("shards", tmp_path, "validation=12", part="validation")
    training = read("shards", tmp_path, "validation=12")
    assert len(training) == len(validation) == 12
    step = 1 / q if dtype == "i1" else 2e-3
    for i in range(12):
        assert validation[i][0]["label"] == training[i][0]["label"] == labels[i]
        assert np.abs(validation[i][1] - means[i]).max() <= step + 1e-6
        z = (training[i][1] - validation[i][1]) / spreads[i]
        assert abs(z.mean()) < 0.3 and 0.7 < z.std() < 1.3  # int8 drops some of the spread
    again = read("shards", tmp_path, visit=1)
    assert all((a != b).any() for (_, a), (_, b) in zip(training, again, strict=True))


def test_the_trap(tmp_path, latents):
    """fp16 shards whose list says 8, by which nothing was multiplied."""
    write_homm(tmp_path, latents, 8, 1, "f2")
    error = read("shards", tmp_path, code=1)
    assert "index.json: quantization_scale: expected latents whose deviation is near 1, got 0.12" in error
    assert "set data.quantization_scale = 1" in error
    right = read("shards", tmp_path, "quantization_scale=1")
    assert abs(np.std([array for _, array in right]) - 1) < 0.1
    theirs = read("shards", tmp_path, "quantization_scale=8")
    assert abs(np.std([array for _, array in theirs]) - 0.125) < 0.02


def test_homm_that_is_wrong(tmp_path, latents):
    write_homm(tmp_path, latents, 1, 1, "f2")
    index = json.loads((tmp_path / "index.json").read_text())

    def refused(change, part, *fields):
        changed = [dict(entry) for entry in index]
        if callable(change):
            change(changed)
        else:
            changed = change
        (tmp_path / "index.json").write_text(json.dumps(changed))
        assert part in read("shards", tmp_path, *fields, code=1)

    refused(lambda x: x[1].update(count=5), "chunk_1.tar: expected 5 samples, as the index says, got 4")
    refused(lambda x: x[1].pop("count"), "[1]: count: expected it, got none")
    refused(lambda x: x[1].update(filename="/a/.."), '[1]: filename: expected a file, got ".."')
    refused(lambda x: x[1].update(filename="nowhere.tar"), "nowhere.tar: cannot open")
    refused(lambda x: x[0].pop("quantization_scale"), "data.quantization_scale can say it")
    refused({"a": 1}, "expected a list of objects, got an object")
    refused([1], "[0]: expected an object")
    refused([], "expected shards, got none")
    (tmp_path / "index.json").write_text(json.dumps(index))
    whole = (tmp_path / "chunk_2.tar").read_bytes()
    (tmp_path / "chunk_2.tar").write_bytes(whole[: len(whole) // 2])
    assert "chunk_2.tar: cut off" in read("shards", tmp_path, code=1)
    means, spreads, _ = latents
    for arrays, part in [
        ((means[0], spreads[0], np.array(1000)), "arr_2: expected a class below 1000, got 1000"),
        ((means[0], spreads[0], np.array(1.0)), "arr_2: expected <i8"),
        (
            (means[0], spreads[0][:1], np.array(1)),
            "arr_1: expected the shape of the mean, (4, 8, 8), got (1, 8, 8)",
        ),
        ((means[0], -spreads[0], np.array(1)), "arr_1: expected deviations of 0 or more"),
        ((means[0].astype("i4"), spreads[0], np.array(1)), "arr_0: expected <f2, <f4, <f8 or |i1, got <i4"),
        ((means[0], spreads[0]), "expected the array arr_2, got arr_0, arr_1"),
        ((np.array(["x", {}], object), spreads[0], np.array(1)), "pickles"),
    ]:
        homm_tar(tmp_path / "chunk_2.tar", [arrays] * 4)
        assert part in read("shards", tmp_path, code=1)


# --- the authors' clips ---


@pytest.mark.parametrize("captions", [True, False])
def test_homm_clips(tmp_path, captions):
    generator = np.random.default_rng(5)
    clips = []
    for i in range(5):
        latent = generator.normal(size=(16, 2, 3, 4)).astype("f2")
        text = generator.normal(size=(6, 8)).astype("f2")
        mask = (np.arange(6) < i + 1).astype("f2")
        clips.append((latent, text, mask, *([f"clip {i} of a ☆ 🙂"] if captions else [])))
    homm_tar(tmp_path / "chunk_0.tar", clips[:3])
    homm_tar(tmp_path / "chunk_1.tar", clips[3:])
    index = [{"filename": f"x/chunk_{i}.tar", "count": n} for i, n in enumerate((3, 2))]
    (tmp_path / "index.json").write_text(json.dumps(index))
    for fields, scale, shift in (((), 1, 0), (("scale=0.5", "shift=1"), 0.5, 1)):
        found = read("clip_shards", tmp_path, *fields)
        for (line, array), clip in zip(found, clips, strict=True):
            assert np.array_equal(array, (clip[0].astype("f4") - shift) * np.float32(scale))
            assert np.array_equal(np.array(line["text"], "u2").view("f2").reshape(6, 8), clip[1])
            assert line["mask"] == clip[2].tolist() and line["text_shape"] == [6, 8]
            assert line["caption"] == (clip[3] if captions else "")
    assert "expected a mean (channels, height, width)" in read(
        "shards", tmp_path, "quantization_scale=1", code=1
    )


# --- EDM2's folders ---


def test_edm2(tmp_path, latents):
    means, spreads, labels = latents
    entries = []
    for i in range(12):
        name = f"{i // 5:05d}/img-mean-std-{i:08d}.npy"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, np.concatenate([means[i], spreads[i]]))
        entries.append([name, int(labels[i])])
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": entries, "more": [{"a": [1, "x", None]}]}))
    training, again = read("shards", tmp_path), read("shards", tmp_path, visit=1)
    for i, ((line, array), (_, other)) in enumerate(zip(training, again, strict=True)):
        assert line["label"] == labels[i] and line["shape"] == [4, 8, 8]
        z = (array / 0.18215 - means[i]) / spreads[i]
        assert abs(z.mean()) < 0.3 and 0.7 < z.std() < 1.3 and (array != other).any()
    for (_, a), (_, b) in zip(training, read("shards", tmp_path, "scale=1"), strict=True):
        assert np.allclose(a, b * 0.18215, rtol=1e-5, atol=1e-7)

    def refused(text, part):
        (tmp_path / "dataset.json").write_text(text)
        assert part in read("shards", tmp_path, "layout=edm2", code=1)

    refused('{"labels": null}', "labels: expected a list of [name, class], got none")
    refused('{"labels": {}}', "labels: expected pairs [name, class], got an object")
    refused('{"labels": [["a.npy"]]}', "expected pairs [name, class], got a shorter list")
    refused('{"labels": [["a.npy", -1]]}', "a.npy: expected a class of 0 or more, got -1")
    refused('{"labels": [["a.npy", 1.5]]}', "expected pairs [name, class], got a fraction")
    refused('{"labels": [["../a.npy", 1]]}', 'expected names of files in the folder, got "../a.npy"')
    refused('{"labels": [["/a.npy", 1]]}', "expected names of files in the folder")
    refused('{"labels": [["a.png", 1]]}', "expected .npy files of latents, got none")
    refused("[1]", "expected an object {…}, got a list")
    refused('{"labels": [', "expected JSON, got something else")
    refused('{"labels": ' + "[" * 100, "got a list")
    refused('{"more": ' + "[" * 100, "expected at most 32 levels")
    log_variances = np.concatenate([means[0], np.log(spreads[0])]).astype("f4")
    np.save(tmp_path / "a.npy", log_variances)
    refused(
        '{"labels": [["a.npy", 1]]}', "expected deviations of 0 or more in the second half of the channels"
    )
    np.save(tmp_path / "a.npy", means[0][:3])
    refused('{"labels": [["a.npy", 1]]}', "expected two halves of channels")
