"""Pillow, numpy and hashlib as referees of libpom's pictures: what one writes the other has to read, in every
mode.

LIBPOM_PICTURE_TOOL names the program of tests/tools/picture_tool.cpp. Where it is unset the one built beside
the library is taken, or the program is compiled for the session, which takes half a minute and no LibTorch.
"""

import hashlib
import importlib.util
import io
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tools import referee

Image = referee("PIL.Image")
from PIL import ImageOps, PngImagePlugin  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "pictures"
_spec = importlib.util.spec_from_file_location("golden_pictures", GOLDEN / "make.py")
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)

SOURCES = "../base/failpoint ../base/shown atomic_file exif font image jpeg json_header picture "
SOURCES += "picture_libraries png png_text read_file safetensors_error sha256 sheet text_comment"
SIZES = [(1, 1), (1, 7), (9, 1), (8, 8), (17, 13), (130, 67)]


@pytest.fixture(scope="session")
def tool(tmp_path_factory):
    given = os.environ.get("LIBPOM_PICTURE_TOOL")
    if given:
        return given
    built = Path(os.environ.get("LIBPOM_LIBRARY", "nowhere")).parent / "tests" / "picture_tool"
    if built.is_file():
        return str(built)
    program = tmp_path_factory.mktemp("tool") / "picture_tool"
    sources = [
        ROOT / "tests/tools/picture_tool.cpp",
        *(ROOT / f"pom/io/{name}.cpp" for name in SOURCES.split()),
    ]
    compiler = os.environ.get("CXX", "c++")
    libraries = ["-lpng", "-ljpeg", "-lz"]
    subprocess.run(
        [compiler, "-std=c++20", "-O1", f"-I{ROOT}", *sources, *libraries, "-o", program], check=True
    )
    return str(program)


@pytest.fixture
def generator():
    return np.random.default_rng(7)


def run(tool, *words):
    done = subprocess.run([tool, *map(str, words)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def refused(tool, *words):
    done = subprocess.run([tool, *map(str, words)], capture_output=True)
    assert done.returncode == 1, (done.returncode, done.stderr)
    return done.stderr.decode()


def decode(tool, path, command="decode"):
    """What our reader makes of a file: an H x W x C array of 8 or 16 bits."""
    raw = path.with_suffix(".raw")
    width, height, channels, bits = map(int, run(tool, command, path, raw).split())
    return np.fromfile(raw, np.uint8 if bits == 8 else np.uint16).reshape(height, width, channels)


def encode(tool, pixels, path, quality=95, text=()):
    raw = path.with_suffix(".raw")
    pixels.tofile(raw)
    height, width, channels = pixels.shape
    words = [word for entry in text for word in entry]
    run(tool, "encode", raw, width, height, channels, pixels.dtype.itemsize * 8, path, quality, *words)


def random_pixels(generator, width, height, channels, dtype=np.uint8):
    return generator.integers(0, np.iinfo(dtype).max, (height, width, channels), dtype, endpoint=True)


def smooth_pixels(width, height, channels):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    return (128 + 90 * np.sin(0.05 * x + 0.07 * y + 2 * c)).astype(np.uint8)


def pillow(pixels):
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def as_array(picture):
    array = np.asarray(picture)
    return array[:, :, None] if array.ndim == 2 else array


# --- PNG


@pytest.mark.parametrize("size", SIZES)
def test_png_of_ours_by_pillow(tool, tmp_path, generator, size):
    for channels, mode in [(1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA")]:
        pixels = random_pixels(generator, *size, channels)
        encode(tool, pixels, tmp_path / "a.png")
        with Image.open(tmp_path / "a.png") as picture:
            picture.load()
            assert picture.mode == mode
            np.testing.assert_array_equal(as_array(picture), pixels)


@pytest.mark.parametrize("size", SIZES)
def test_16_bit_png_of_ours_by_pillow(tool, tmp_path, generator, size):
    """Pillow keeps 16 bits of grey and the upper 8 of the others, of which grey with alpha becomes RGBA."""
    pixels = random_pixels(generator, *size, 1, np.uint16)
    encode(tool, pixels, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.mode == "I;16"
        np.testing.assert_array_equal(as_array(picture), pixels)
    for channels in (2, 3, 4):
        pixels = random_pixels(generator, *size, channels, np.uint16)
        encode(tool, pixels, tmp_path / "a.png")
        with Image.open(tmp_path / "a.png") as picture:
            seen = as_array(picture)
        places = [0, 0, 0, 1] if channels == 2 else list(range(channels))
        np.testing.assert_array_equal(seen, (pixels >> 8)[:, :, places])
        np.testing.assert_array_equal(decode(tool, tmp_path / "a.png"), pixels)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_png_of_pillow_by_ours(tool, tmp_path, generator, size, mode):
    path = tmp_path / "a.png"
    source = pillow(random_pixels(generator, *size, 4))
    if mode == "I;16":
        source = pillow(random_pixels(generator, *size, 1, np.uint16))
    elif mode == "P":
        source = source.convert("RGB").quantize(200)
    else:
        source = source.convert(mode)
    source.save(path)
    expected = source.convert({"1": "L", "P": "RGB"}.get(mode, mode)) if mode != "I;16" else source
    np.testing.assert_array_equal(decode(tool, path), as_array(expected))


@pytest.mark.parametrize("size", SIZES)
def test_png_of_every_kind(tool, tmp_path, generator, size):
    """Files made without libpng: what they hold is known; Pillow is asked too where it keeps all of it."""
    asked = 0
    for name, file, expected in golden.all_kinds(generator, *size):
        path = tmp_path / f"{name}.png"
        path.write_bytes(file)
        np.testing.assert_array_equal(decode(tool, path), expected, err_msg=name)
        if expected.dtype == np.uint8 and "colour0" not in name:
            with Image.open(path) as picture:
                mode = "LA" if expected.shape[2] == 2 else "RGBA" if expected.shape[2] == 4 else "RGB"
                np.testing.assert_array_equal(as_array(picture.convert(mode)), expected, err_msg=name)
                asked += 1
    assert asked == 24


def test_golden_pictures_are_as_made(generator):
    """The committed files are those of make.py."""
    for name, file, _ in golden.all_kinds(np.random.default_rng(4), 9, 11):
        with (
            Image.open(GOLDEN / f"{name}.png") as committed,
            Image.open(io.BytesIO(file)) as made,
        ):
            np.testing.assert_array_equal(np.asarray(committed), np.asarray(made), err_msg=name)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_rgb8(tool, tmp_path, generator, channels, dtype):
    pixels = random_pixels(generator, 31, 23, channels, dtype)
    encode(tool, pixels, tmp_path / "a.png")
    values = pixels.astype(np.float64) / np.iinfo(dtype).max
    alpha = values[:, :, -1:] if channels in (2, 4) else 1.0
    colours = values[:, :, : 3 if channels >= 3 else 1].repeat(3 if channels < 3 else 1, axis=2)
    exact = 255 * (colours * alpha + (1 - alpha))
    ours = decode(tool, tmp_path / "a.png", "rgb8")
    assert np.abs(ours - exact).max() <= 0.5 + 1e-9


# --- text

TEXTS = [
    ("parameters", "a cat\nSteps: 20, Sampler: heun, CFG scale: 4"),
    ("pom", '{"seed": 1, "prompt": "ü"}'),
    ("Latin", "déjà vu ÿ"),
    ("World", "多项式 🙂"),
    ("Empty", ""),
]


def test_text_of_ours_by_pillow(tool, tmp_path):
    encode(tool, smooth_pixels(4, 4, 3), tmp_path / "a.png", text=TEXTS)
    with Image.open(tmp_path / "a.png") as picture:
        picture.load()
        assert dict(TEXTS) == dict(picture.text)
        assert isinstance(picture.text["World"], PngImagePlugin.iTXt)
        assert not isinstance(picture.text["Latin"], PngImagePlugin.iTXt)


@pytest.mark.parametrize("compressed", [False, True])
def test_text_of_pillow_by_ours(tool, tmp_path, compressed):
    info = PngImagePlugin.PngInfo()
    for keyword, text in TEXTS:
        info.add_text(keyword, text, zip=compressed)
    info.add_itxt("Forced", "plain", lang="en", tkey="Forced", zip=compressed)
    pillow(smooth_pixels(4, 4, 3)).save(tmp_path / "a.png", pnginfo=info)
    found = [tuple(json.loads(line)) for line in run(tool, "text", tmp_path / "a.png").splitlines()]
    assert found == [*TEXTS, ("Forced", "plain")]


def test_text_on_both_sides_of_the_pixels(tool):
    found = [tuple(json.loads(line)) for line in run(tool, "text", GOLDEN / "seed_text.png").splitlines()]
    assert found == [(keyword, text) for _, keyword, text in golden.text_chunks()]


# --- JPEG


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("quality", [60, 85, 90, 95])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_of_ours_by_pillow(tool, tmp_path, size, quality, channels):
    pixels = smooth_pixels(*size, channels)
    encode(tool, pixels, tmp_path / "a.jpg", quality, text=[("parameters", "seed 1, π")])
    with Image.open(tmp_path / "a.jpg") as picture:
        assert picture.mode == ("L" if channels == 1 else "RGB")
        assert picture.info["comment"].decode() == "parameters: seed 1, π"
        if channels == 3:
            factors = [layer[1:3] for layer in picture.layer]
            assert factors[0] == ((1, 1) if quality >= 90 else (2, 2)) and factors[1:] == [(1, 1), (1, 1)]
        seen = as_array(picture)
    assert np.abs(seen.astype(int) - pixels).max() <= (24 if quality < 90 else 8)
    # Both decode with libjpeg-turbo, ours and the one in Pillow: the same pixels but for rounding.
    assert np.abs(decode(tool, tmp_path / "a.jpg").astype(int) - seen).max() <= 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_of_pillow_by_ours(tool, tmp_path, size, progressive, subsampling, mode):
    source = pillow(smooth_pixels(*size, 3)).convert(mode)
    path = tmp_path / "a.jpg"
    source.save(path, quality=90, progressive=progressive, subsampling=subsampling)
    with Image.open(path) as picture:
        assert np.abs(decode(tool, path).astype(int) - as_array(picture)).max() <= 1


@pytest.mark.parametrize("size", SIZES)
def test_cmyk_jpeg(tool, tmp_path, generator, size):
    path = tmp_path / "a.jpg"
    Image.fromarray(smooth_pixels(*size, 4), "CMYK").save(path, quality=95)
    with Image.open(path) as picture:
        assert picture.mode == "CMYK"
        expected = as_array(picture.convert("RGB"))
    assert np.abs(decode(tool, path).astype(int) - expected).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(tool, tmp_path, orientation):
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[0x010F] = "libpom"
    exif[0x0112] = orientation
    pillow(smooth_pixels(40, 24, 3)).save(path, quality=95, exif=exif)
    with Image.open(path) as picture:
        expected = as_array(ImageOps.exif_transpose(picture))
    assert expected.shape[:2] == ((40, 24) if orientation >= 5 else (24, 40))
    assert np.abs(decode(tool, path).astype(int) - expected).max() <= 1


# --- the rest


def test_other_formats_are_refused_by_name(tool, tmp_path):
    for kind in ("GIF", "BMP", "TIFF", "WEBP"):
        path = tmp_path / "a.png"
        pillow(smooth_pixels(8, 8, 3)).save(path, kind)
        message = refused(tool, "decode", path, tmp_path / "a.raw")
        assert "expected PNG or JPEG" in message and kind.lower() in message.lower()


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 1 << 20, (1 << 22) + 17])
def test_sha256_by_hashlib(tool, tmp_path, generator, size):
    data = generator.bytes(size)
    (tmp_path / "a").write_bytes(data)
    assert run(tool, "sha256", tmp_path / "a").strip() == hashlib.sha256(data).hexdigest()


def test_sheet(tool, tmp_path):
    words = []
    for i in range(5):
        path = tmp_path / f"{i}.png"
        encode(tool, np.full((32, 32, 3), 40 * i, np.uint8), path)
        words += [path, f"seed {i}"]
    run(tool, "sheet", tmp_path / "sheet.png", 3, *words)
    with Image.open(tmp_path / "sheet.png") as picture:
        sheet = as_array(picture)
    for i in range(5):
        assert (sheet == 40 * i).all(axis=2).sum() >= 96 * 96  # magnified to be seen
