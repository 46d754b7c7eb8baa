"""Tars, .npy and .npz against the packages that everybody uses: webdataset, tarfile, numpy, braceexpand.

tests/tools/tar_tool stands beside libpom.so ($LIBPOM_LIBRARY).
"""

import io
import json
import os
import subprocess
import tarfile
import zipfile
import zlib

import numpy as np
import pytest

from tools import built_tool, referee

webdataset = referee("webdataset")
braceexpand = referee("braceexpand")


def tool(*arguments, code=0):
    """Lines of JSON, or what it said where it has to fail."""
    words = [str(built_tool("tar_tool")), *map(str, arguments)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert result.returncode == code, result.stderr
    return result.stderr if code else result.stdout


def lines(*arguments):
    return [json.loads(line) for line in tool(*arguments).splitlines()]


def samples(path):
    return [(line["key"], line["fields"]) for line in lines("samples", path)]


def theirs(path):
    """What webdataset makes of a tar: keys and the CRC of each field."""
    found = []
    for sample in webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False):
        fields = {
            name: zlib.crc32(value)
            for name, value in sample.items()
            if not (name.startswith("__") and name.endswith("__"))
        }
        found.append((sample["__key__"], fields))
    return found


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return [generator.normal(size=(8, 4, 4)).astype(np.float16) for _ in range(5)]


def test_what_webdataset_writes(tmp_path, arrays):
    """Its writer puts a pax header before every member."""
    path = tmp_path / "a.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for i, array in enumerate(arrays):
            key = f"folder/{'long' * 40 * (i == 3)}{i:06d}"
            writer.write({"__key__": key, "moments.npy": array, "cls": i, "txt": "a ☆", "json": {"i": i}})
    with tarfile.open(path) as tar:
        assert all(member.pax_headers for member in tar), "the case that is meant"
    ours = samples(path)
    assert ours == theirs(path) and len(ours) == 5
    assert set(ours[0][1]) == {"moments.npy", "cls", "txt", "json"}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_tarfile_writes(tmp_path, form):
    """All its formats, with folders, links, long and odd names, in the order of the file."""
    path = tmp_path / "a.tar"
    names = ["1.txt", "1.cls", "__meta__", "no_dot", "d/2.seg.PNG", "d/.hidden", "a.b/.hidden", "a.b/c.d.e"]
    names += ["__m__/x.txt", "__x__.txt", "3.txt", "1.txt", "p/" * 50 + "q.txt"]
    if form != tarfile.USTAR_FORMAT:
        names += ["n" * 300 + ".txt", "ö☆.txt", "ö☆.npy"]
    with tarfile.open(path, "w", format=form) as tar:
        for i, name in enumerate(names):
            info = tarfile.TarInfo(name)
            data = os.urandom(137 * i)
            info.size, info.mtime = len(data), 1.5 if form == tarfile.PAX_FORMAT else 1
            tar.addfile(info, io.BytesIO(data))
            for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
                other = tarfile.TarInfo(f"other{i}.txt")
                other.type, other.linkname = kind, "t" * (150 if form != tarfile.USTAR_FORMAT else 50)
                tar.addfile(other)
    with tarfile.open(path) as tar:
        expected = [
            (m.name, m.size, m.offset_data, zlib.crc32(tar.extractfile(m).read()) if m.isreg() else 0)
            for m in tar
        ]
    found = [(m["name"].rstrip("/"), m["size"], m["offset"], m["crc32"]) for m in lines("members", path)]
    assert found == expected
    assert samples(path) == theirs(path)


def test_what_gnu_tar_writes(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    for name in ("a.txt", "b" * 120 + ".txt"):
        (files / name).write_bytes(os.urandom(700))
    for form in ("gnu", "pax", "ustar", "v7"):
        names = ["a.txt"] if form in ("ustar", "v7") else ["a.txt", "b" * 120 + ".txt"]
        subprocess.run(
            ["tar", f"--format={form}", "-cf", tmp_path / "g.tar", "-C", files, *names], check=True
        )
        found = [(m["name"], m["crc32"]) for m in lines("members", tmp_path / "g.tar")]
        assert found == [(name, zlib.crc32((files / name).read_bytes())) for name in names]


def test_what_we_write(tmp_path, arrays):
    words, contents = [], {}
    for i, name in enumerate(["1.npy", "1.txt", "x" * 90 + "/" + "y" * 99, "z" * 250 + ".npy", "ö.txt"]):
        path = tmp_path / f"{i}"
        path.write_bytes(os.urandom(511 + i))
        contents[name] = path.read_bytes()
        words += [name, path]
    tool("write", tmp_path / "a.tar", *words)
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar} == contents
        assert all(m.mtime == 0 and m.uid == 0 and m.mode == 0o644 for m in tar)
        assert sum(bool(m.pax_headers) for m in tar) == 1
    assert samples(tmp_path / "a.tar") == theirs(tmp_path / "a.tar")
    listed = subprocess.run(["tar", "-tf", tmp_path / "a.tar"], capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == len(contents) and not listed.stderr


TYPES = ["?", "i1", "u1", "<i4", "<i8", "<f2", "<f4", "<f8"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (123456,), (2, 3), (5, 1, 2, 7)])
def test_npy_is_numpy_s(tmp_path, dtype, shape):
    array = (np.random.default_rng(1).normal(size=shape) * 50).astype(dtype)
    np.save(tmp_path / "theirs.npy", array)
    (tmp_path / "raw").write_bytes(array.tobytes())
    tool("save", array.dtype.str, ",".join(map(str, shape)), tmp_path / "raw", tmp_path / "ours.npy")
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()
    for turned in (array, array.T):
        np.save(tmp_path / "a.npy", turned)
        (found,) = lines("npy", tmp_path / "a.npy")
        assert found["descr"] == array.dtype.str and tuple(found["shape"]) == turned.shape
        assert bytes.fromhex(found["data"]) == np.ascontiguousarray(turned).tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(tmp_path, version):
    array = np.asfortranarray(np.arange(24, dtype="<i4").reshape(2, 3, 4))
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    (found,) = lines("npy", tmp_path / "a.npy")
    assert bytes.fromhex(found["data"]) == array.tobytes(order="C")


def test_npy_that_is_not_read(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    assert "pickles" in tool("npy", tmp_path / "o.npy", code=1)
    np.save(tmp_path / "b.npy", np.arange(3, dtype=">f4"))
    assert "little-endian" in tool("npy", tmp_path / "b.npy", code=1)
    np.save(tmp_path / "s.npy", np.zeros(2, [("a", "<f4")]))
    assert "one type" in tool("npy", tmp_path / "s.npy", code=1)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    """As the authors store clips: latents, states, mask and the caption as a text."""
    generator = np.random.default_rng(2)
    arrays = [generator.normal(size=(16, 2, 3, 4)).astype("<f2"), np.arange(7), np.float32(3)]
    caption = "a ☆ 🙂 “walks”"
    save(tmp_path / "a.npz", *arrays, caption)
    found = lines("npz", tmp_path / "a.npz", 1 << 20)
    assert [f["name"] for f in found] == ["arr_0", "arr_1", "arr_2", "arr_3"]
    for line, array in zip(found, arrays, strict=False):
        assert bytes.fromhex(line["data"]) == array.tobytes() and tuple(line["shape"]) == np.shape(array)
    assert found[3]["text"] == caption
    assert "expected at most 100 bytes" in tool("npz", tmp_path / "a.npz", 100, code=1)


def test_npz_zip64_and_bombs(tmp_path):
    np.savez(tmp_path / "a.npz", np.arange(3))
    raw = (tmp_path / "a.npz").read_bytes()
    assert raw[18:26] == b"\xff" * 8, "numpy writes zip64 local headers: the case that is meant"
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("arr_0.npy", bytes(50_000_000))
    assert (tmp_path / "bomb.npz").stat().st_size < 100_000
    assert "expected at most 1000000 bytes" in tool("npz", tmp_path / "bomb.npz", 1_000_000, code=1)
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as many:
        for i in range(70000):
            many.writestr(f"{i}.npy", b"")
    assert "expected at most 65536 members, got 70000" in tool("npz", tmp_path / "many.npz", 1, code=1)
    with zipfile.ZipFile(tmp_path / "bz.npz", "w", zipfile.ZIP_BZIP2) as other:
        other.writestr("arr_0.npy", bytes(100))
    assert "got method 12" in tool("npz", tmp_path / "bz.npz", 1000, code=1)


def test_npz_flipped_bits(tmp_path):
    """Wherever one bit of the data is another, the CRC says so."""
    np.savez(tmp_path / "a.npz", np.arange(64, dtype="u1"))
    good = (tmp_path / "a.npz").read_bytes()
    place = good.index(bytes(range(64)))
    for i in range(0, 64, 9):
        bad = bytearray(good)
        bad[place + i] ^= 1 << i % 8
        (tmp_path / "b.npz").write_bytes(bad)
        assert 'member "arr_0": damaged: expected the CRC' in tool("npz", tmp_path / "b.npz", 1000, code=1)


@pytest.mark.parametrize(
    "pattern",
    [
        "data-{000000..000123}.tar",
        "{a,b}/{1..3}.tar::c",
        "x{,y,{z,{1..2}}}w",
        "{9..0..4}{a..g..2}",
        "{-02..2}",
        "{Z..b}{b..Z}",
        "{one}",
        r"\{a,b\}{c,\,}",
        "{08..10}{1..01}",
        "",
        "{}{a}",
    ],
)
def test_expansion(pattern):
    expected = [name for part in pattern.split("::") for name in braceexpand.braceexpand(part)]
    assert tool("expand", pattern) == "".join(f"{name}\n" for name in expected)


def test_cut_off_shards(tmp_path, arrays):
    """tarfile takes a shard without an end for a whole one; ours does not."""
    path = tmp_path / "a.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for i, array in enumerate(arrays):
            writer.write({"__key__": f"{i}", "npy": array})
    whole = path.read_bytes()
    end = lines("members", path)[-1]
    end = (end["offset"] + end["size"] + 511) // 512 * 512
    for size in [*range(0, end, 700), end]:
        path.write_bytes(whole[:size])
        assert "cut off" in tool("samples", path, code=1)
