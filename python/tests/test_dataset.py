"""Data sets: `pom dataset` as a person meets it, and what training sees against Pillow and torch.

The program and tests/tools/dataset_tool stand beside libpom.so ($LIBPOM_LIBRARY).
"""

import json
import math
import os
import signal
import subprocess
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from reference_shapes import CLASSES, HUES, coverage
from tools import built_program, built_tool


def program():
    return str(built_program())


def dataset(*arguments, cwd, code=0):
    """`pom dataset ...`; returns its stdout, or its stderr where it has to fail."""
    words = [program(), "dataset", *map(str, arguments)]
    result = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert result.returncode == code, result.stderr
    return result.stderr if code else result.stdout


def examples(kind, path, size, count, seed=0, visit=0, dtype=np.uint8, channels=3):
    """What training sees: a list of (label, array (C, H, W))."""
    width, height = size
    words = [built_tool("dataset_tool"), kind, path, width, height, seed, visit, count]
    data = subprocess.run(list(map(str, words)), capture_output=True, check=True, timeout=120).stdout
    result = []
    while data:
        line, data = data.split(b"\n", 1)
        label, size_bytes = map(int, line.split())
        array = np.frombuffer(data[:size_bytes], dtype).reshape(channels, height, width)
        result.append((label, array))
        data = data[size_bytes:]
    assert len(result) == count
    return result


# --- drawings ---


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawings") / "d"
    dataset("shapes", "--count", 60, "--size", "64", "--seed", 5, "-o", folder, cwd=folder.parent)
    return folder


def lines_of(folder):
    return [json.loads(line) for line in (folder / "shapes.jsonl").read_text().splitlines()]


def test_files_and_list_agree(drawings):
    lines = lines_of(drawings)
    assert len(lines) == 60
    for i, line in enumerate(lines):
        assert line["file"] == f"{line['class']}/{i:06d}.png"
        assert (drawings / line["file"]).is_file()
        assert set(line) == {"file", "class", "hue", "x", "y", "radius", "angle", "background"}
        assert 0.23 <= line["radius"] <= 0.46 and abs(line["angle"]) <= math.pi / 6 + 1e-6
    assert len(list(drawings.rglob("*.png"))) == 60


def test_drawings_are_the_referee_s(drawings):
    """Coverage by the referee's distances at 4 samples a side, and its hues."""
    plain = 0
    for line in lines_of(drawings):
        place = (line[key] for key in ("class", "x", "y", "radius", "angle"))
        cover = coverage(*place, size=64).numpy()
        picture = np.asarray(Image.open(drawings / line["file"])).astype(float) / 255
        colour = picture[cover == 1].mean(0)
        hue = np.array(HUES[line["hue"]])
        assert np.abs(colour - hue).max() < 0.03 + 2 / 255, line
        if line["background"] == "plain":
            ground = picture[cover == 0]
            tint = np.median(ground, 0)
            expected = tint + (colour - tint) * cover[..., None]
            assert np.abs(picture - expected).max() < 0.15, line
            assert np.abs(picture - expected).mean() < 0.003, line
            plain += 1
    assert plain > 10


def test_round_trip(drawings):
    """Written and read as a folder at the same size, drawings are the bytes that were drawn."""
    drawn = examples("shapes", "", (64, 64), 60, seed=5)
    names = sorted({line["class"] for line in lines_of(drawings)})
    read = examples("folder", drawings, (64, 64), 60)
    order = sorted(lines_of(drawings), key=lambda line: line["file"])
    for (label, picture), line in zip(read, order, strict=True):
        index = int(line["file"].split("/")[1][:6])
        assert names[label] == line["class"] == CLASSES[drawn[index][0]]
        assert (picture == drawn[index][1]).all()


def test_json_and_refusals(tmp_path):
    result = json.loads(
        dataset("shapes", "--count", 7, "--size", "33x17", "-o", "d", "--json", "-q", cwd=tmp_path)
    )
    assert result["pictures"] == 7 and result["size"] == [33, 17] and sum(result["classes"].values()) == 7
    assert Image.open(next((tmp_path / "d").rglob("*.png"))).size == (33, 17)
    assert "non-empty" in dataset("--help", cwd=tmp_path)
    assert "which has files" in dataset("shapes", "--count", 7, "-o", "d", cwd=tmp_path, code=2)
    dataset("shapes", "--count", 3, "-o", "d", "-y", cwd=tmp_path)
    (tmp_path / "file").write_text("x")
    assert "got the file" in dataset("shapes", "--count", 7, "-o", "file", cwd=tmp_path, code=2)
    assert "--count" in dataset("shapes", "-o", "e", cwd=tmp_path, code=2)
    assert "did you mean shapes?" in dataset("shaps", cwd=tmp_path, code=2)
    assert "--size" in dataset("shapes", "--size", "0", cwd=tmp_path, code=2)
    assert "no such folder" in dataset("nowhere/at/all", cwd=tmp_path, code=1)
    assert "got nothing" in dataset(cwd=tmp_path, code=2)


def test_sprites_are_clips_with_captions(tmp_path):
    said = dataset("sprites", "--frames", 5, "--seed", 4, cwd=tmp_path).splitlines()
    assert said[:2] == ["kind      sprites, drawn without end", "clips     32x32, 5 frames at 8 fps"]
    flags = ["--count", 2, "--size", 16, "--frames", 5, "--seed", 4, "-o", "d", "-q"]
    result = json.loads(dataset("sprites", *flags, "--json", cwd=tmp_path))
    assert (result["clips"], result["size"], result["frames"], result["fps"]) == (2, [16, 16], 5, 8)
    rows = (tmp_path / "d/captions.csv").read_text().splitlines()
    assert rows[0] == "file,caption" and len(rows) == 3
    assert rows[1].split(",", 1)[1].strip('"') == said[2].split(None, 1)[1]
    assert all((tmp_path / "d" / row.split(",")[0]).stat().st_size > 0 for row in rows[1:])
    assert "which has files" in dataset("sprites", *flags, cwd=tmp_path, code=2)
    assert "sprites, which are clips" in dataset("sprites", "--preview", "a.png", cwd=tmp_path, code=2)
    assert "--frames: is only for sprites and scenes" in dataset(
        "shapes", "--frames", 3, cwd=tmp_path, code=2
    )
    assert "did you mean sprites?" in dataset("sprite", cwd=tmp_path, code=2)


def test_scenes_are_images_with_captions_or_clips(tmp_path):
    said = dataset("scenes", "--seed", 4, cwd=tmp_path).splitlines()
    assert said[:2] == ["kind      scenes, drawn without end", "images    64x64"]
    flags = ["--count", 3, "--size", 24, "--seed", 4, "-q", "--json"]
    result = json.loads(dataset("scenes", *flags, "-o", "d", cwd=tmp_path))
    assert (result["pictures"], result["size"], result["frames"]) == (3, [24, 24], 1)
    rows = (tmp_path / "d/captions.csv").read_text().splitlines()
    assert rows[0] == "file,caption" and rows[1] == f'000000.png,"{said[2].split(None, 1)[1]}"'
    assert all(Image.open(tmp_path / "d" / row.split(",")[0]).size == (24, 24) for row in rows[1:])
    clips = json.loads(dataset("scenes", *flags, "--frames", 4, "-o", "c", cwd=tmp_path))
    assert (clips["clips"], clips["frames"]) == (3, 4)
    sheet = json.loads(dataset("scenes", *flags, "--preview", "a.png", cwd=tmp_path))
    assert sheet["pictures"] == 3 and all(" " in label for label in sheet["labels"])
    assert Image.open(tmp_path / "a.png").size[0] > 2 * 192
    assert "captions say left and right" in dataset("scenes", "--flip", cwd=tmp_path, code=2)
    assert "which are clips" in dataset("scenes", "--frames", 2, "--preview", "b.png", cwd=tmp_path, code=2)


def test_ctrl_c(tmp_path):
    words = [program(), "dataset", "shapes", "--count", "1000000", "-o", "d", "-q"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any((tmp_path / "d").rglob("*.png")):
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped" in messages
    files = {line["file"] for line in lines_of(tmp_path / "d")}
    assert files == {str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").rglob("*.png")}
    assert {path.suffix for path in (tmp_path / "d").rglob("*") if path.is_file()} == {".png", ".jsonl"}


def test_what_a_killed_process_left_goes(tmp_path):
    words = ["shapes", "--count", 20, "-o", "d", "-y"]
    killed = subprocess.run(
        [program(), "dataset", *map(str, words)],
        cwd=tmp_path,
        env=os.environ | {"POM_FAILPOINT": "atomic_file.rename:9"},
        stderr=subprocess.DEVNULL,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob(".pom-tmp-*"))) == 1
    dataset(*words, cwd=tmp_path)
    assert not list(tmp_path.rglob(".pom-tmp-*")) and len(list(tmp_path.rglob("*.png"))) == 20


# --- folders of pictures ---


def noisy(height, width, channels=3, seed=0):
    """Smooth and rough at once, so that every filter shows."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    smooth = np.stack([np.sin(x / (7 + c)) + np.cos(y / (5 + c)) for c in range(channels)], -1) * 50 + 128
    return (smooth + generator.normal(0, 20, smooth.shape)).clip(0, 255).astype(np.uint8)


def pillow(picture, width, height):
    """Shortest side resized by Pillow's bilinear filter, which antialiases; then the middle."""
    scale_by_width = width * picture.height >= height * picture.width
    if scale_by_width:
        size = (width, max(height, math.floor(picture.height * width / picture.width + 0.5)))
    else:
        size = (max(width, math.floor(picture.width * height / picture.height + 0.5)), height)
    picture = picture.resize(size, Image.Resampling.BILINEAR)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return np.asarray(picture.crop((left, top, left + width, top + height))).transpose(2, 0, 1)


@pytest.mark.parametrize("size", [(64, 64), (32, 48), (48, 32), (7, 5), (200, 200), (1, 1)], ids=str)
def test_resizing_is_pillow_s(tmp_path, size):
    shapes = [(64, 64), (100, 75), (75, 100), (480, 641), (63, 500), (33, 31), (3, 9)]
    (tmp_path / "a").mkdir()
    for i, shape in enumerate(shapes):
        Image.fromarray(noisy(*shape, seed=i)).save(tmp_path / "a" / f"{i}.png")
    for i, (_, seen) in enumerate(examples("folder", tmp_path, size, len(shapes))):
        expected = pillow(Image.open(tmp_path / "a" / f"{i}.png"), *size)
        gap = np.abs(seen.astype(int) - expected.astype(int))
        assert gap.max() <= 1, (shapes[i], gap.max())


def test_kinds_of_pictures(tmp_path):
    """Grey, palette, alpha and JPEG as Pillow reads them."""
    (tmp_path / "a").mkdir()
    colour = noisy(40, 40)
    Image.fromarray(noisy(40, 40, 1)[..., 0]).save(tmp_path / "a/0.png")
    Image.fromarray(colour).quantize(32).save(tmp_path / "a/1.PNG")
    alpha = np.dstack([colour, noisy(40, 40, 1, seed=3)])
    Image.fromarray(alpha, "RGBA").save(tmp_path / "a/2.png")
    Image.fromarray(colour).save(tmp_path / "a/3.JPEG", quality=95)
    seen = [picture for _, picture in examples("folder", tmp_path, (40, 40), 4)]
    white = Image.new("RGBA", (40, 40), "white")
    expected = [
        Image.open(tmp_path / "a/0.png").convert("RGB"),
        Image.open(tmp_path / "a/1.PNG").convert("RGB"),
        Image.alpha_composite(white, Image.open(tmp_path / "a/2.png")).convert("RGB"),
        Image.open(tmp_path / "a/3.JPEG").convert("RGB"),
    ]
    for picture, other in zip(seen, expected, strict=True):
        assert np.abs(picture.astype(int) - np.asarray(other).transpose(2, 0, 1).astype(int)).max() <= 2


def test_summary_and_check(tmp_path):
    for name, count in (("cat", 3), ("ant", 2)):
        (tmp_path / "d" / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(noisy(20, 20)).save(tmp_path / "d" / name / f"{i}.png")
    summary = json.loads(dataset("d", "--json", cwd=tmp_path))
    assert summary["kind"] == "folder" and summary["classes"] == {"ant": 2, "cat": 3}
    assert "cat" in dataset("d", "--check", cwd=tmp_path)
    whole = (tmp_path / "d/cat/1.png").read_bytes()
    (tmp_path / "d/cat/1.png").write_bytes(whole[: len(whole) // 2])
    dataset("d", cwd=tmp_path)  # without --check nothing is read
    assert "cat/1.png" in dataset("d", "--check", cwd=tmp_path, code=1)
    (tmp_path / "d/empty").mkdir()
    assert "d/empty: expected images" in dataset("d", cwd=tmp_path, code=1)


# --- sheets ---


def test_preview(tmp_path, drawings):
    assert dataset("shapes", "--preview", "s.png", cwd=tmp_path).strip() == "s.png"
    sheet = np.asarray(Image.open(tmp_path / "s.png"))
    assert sheet.ndim == 3 and sheet.shape[1] > 10 * 64
    dataset("shapes", "--preview", "t.png", cwd=tmp_path)
    assert (tmp_path / "s.png").read_bytes() == (tmp_path / "t.png").read_bytes()
    assert "s.png" in dataset("shapes", "--preview", "s.png", cwd=tmp_path, code=2)
    result = json.loads(dataset(drawings, "--preview", "u.png", "--count", 12, "--json", cwd=tmp_path))
    assert len(result["labels"]) == 12 and set(result["labels"]) <= set(CLASSES) and result["broken"] == 0
    dataset(drawings, "--preview", "v.png", "--count", 12, "--flip", cwd=tmp_path)
    assert (tmp_path / "u.png").read_bytes() != (tmp_path / "v.png").read_bytes()


def test_preview_shows_what_training_sees(tmp_path, drawings):
    """One drawing at a size that sheets leave as it is: its pixels are on the sheet."""
    dataset("shapes", "--seed", 3, "--preview", "s.png", "--count", 1, "--size", "128", cwd=tmp_path)
    sheet = np.asarray(Image.open(tmp_path / "s.png"))
    (_, drawn), *_ = examples("shapes", "", (128, 128), 1, seed=3)
    drawn = drawn.transpose(1, 2, 0)
    places = [
        (y, x)
        for y in range(sheet.shape[0] - 127)
        for x in range(sheet.shape[1] - 127)
        if (sheet[y : y + 128, x : x + 128] == drawn).all()
    ]
    assert len(places) == 1


def test_preview_passes_over_broken_pictures(tmp_path):
    (tmp_path / "d/a").mkdir(parents=True)
    for i in range(4):
        Image.fromarray(noisy(20, 20)).save(tmp_path / f"d/a/{i}.png")
    (tmp_path / "d/a/2.png").write_bytes(b"broken")
    words = [program(), "dataset", "d", "--preview", "s.png"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "skipped d/a/2.png" in result.stderr


# --- latents ---


def test_latents(tmp_path):
    (tmp_path / "a").mkdir()
    mean, spread = torch.randn(4, 8, 6), torch.rand(4, 8, 6)
    save_file({"mean": mean, "std": spread}, tmp_path / "a/0.safetensors")
    save_file({"mean": mean.half()}, tmp_path / "a/1.safetensors")
    kind = {"dtype": np.float32, "channels": 4}
    (_, first), (_, second) = examples("latents", tmp_path, (6, 8), 2, **kind)
    noise = (torch.from_numpy(first.copy()) - mean) / spread
    assert abs(noise.mean()) < 0.3 and 0.7 < noise.std() < 1.3
    assert (torch.from_numpy(second.copy()) == mean.half().float()).all()
    (_, again), _ = examples("latents", tmp_path, (6, 8), 2, visit=1, **kind)
    assert (again != first).any()
    assert json.loads(dataset(tmp_path, "--json", cwd=tmp_path))["shape"] == [4, 8, 6]
    assert "latents" in dataset(tmp_path, "--preview", "s.png", cwd=tmp_path, code=1)
