#!/usr/bin/env python3
"""Makes the small pictures beside this script: PNG of every kind from the format's text alone, without libpng
(`png` below, which the tests of Python use too), and JPEG with Pillow; the committed ones are from Pillow
13.0.0.

expected.tsv says of each PNG what a reader must find: name, width, height, channels, bits and the SHA-256 of
the samples, little-endian. seed_text.png, with text before and after the pixels, is not in it.
"""

import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
SAMPLES = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
DEPTHS = {GREY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GREY_ALPHA: (8, 16), RGBA: (8, 16)}
# The passes of Adam7: first column, first row, step across, step down.
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed_rows(samples, depth):
    """The rows of an H x W x C array of samples, each after a filter byte of 0."""
    height = samples.shape[0]
    rows = samples.reshape(height, -1)
    if depth == 16:
        rows = rows.astype(">u2").view(np.uint8)
    elif depth < 8:
        bits = (rows[:, :, None] >> np.arange(depth - 1, -1, -1)) & 1
        rows = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    return b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in rows)


def png(samples, depth, colour, interlaced=False, palette=None, transparent=None, before=b"", after=b""):
    """A file of these samples, with chunks given whole before and after the pixels."""
    height, width, _ = samples.shape
    passes = ADAM7 if interlaced else [(0, 0, 1, 1)]
    parts = [samples[y::down, x::across] for x, y, across, down in passes]
    pixels = b"".join(packed_rows(part, depth) for part in parts if part.size)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
    if palette is not None:
        file += chunk(b"PLTE", palette.astype(np.uint8).tobytes())
    if transparent is not None:
        file += chunk(b"tRNS", transparent)
    packed = zlib.compress(pixels)
    half = len(packed) // 2  # IDAT may come in pieces
    file += before + chunk(b"IDAT", packed[:half]) + chunk(b"IDAT", packed[half:]) + after
    return file + chunk(b"IEND", b"")


def random_picture(generator, depth, colour, width, height):
    return generator.integers(0, 2**depth, (height, width, SAMPLES[colour]), dtype=np.uint16)


def expanded(samples, depth, colour, palette=None, transparent=None):
    """What a reader makes of it: whole bytes, no palette, alpha where something is transparent."""
    if colour == PALETTE:
        result = palette[samples[:, :, 0]].astype(np.uint8)
        if transparent is not None:
            alpha = np.frombuffer(transparent.ljust(256, b"\xff"), np.uint8)[samples[:, :, 0]]
            result = np.concatenate([result, alpha[:, :, None]], axis=2)
        return result
    result = samples.astype(np.uint16 if depth == 16 else np.uint8)
    if depth < 8:
        result = result * (255 // (2**depth - 1))
    if transparent is not None:
        key = np.frombuffer(transparent, ">u2")
        seen = (samples != key).any(axis=2, keepdims=True)
        result = np.concatenate([result, seen * result.dtype.type(255 if depth <= 8 else 65535)], axis=2)
    return result


def all_kinds(generator, width, height):
    """(name, file, what a reader finds) of all kinds of pixels, interlaced or not, see-through or not"""
    for colour, depths in DEPTHS.items():
        for depth in depths:
            samples = random_picture(generator, depth, colour, width, height)
            palette = generator.integers(0, 256, (2**depth, 3)) if colour == PALETTE else None
            keys = [None]
            if colour == PALETTE:
                keys.append(bytes(generator.integers(0, 256, max(2**depth // 2, 1), dtype=np.uint8)))
            elif colour in (GREY, RGB):
                keys.append(samples[height // 2, width // 2].astype(">u2").tobytes())
            for key in keys:
                for interlaced in (False, True):
                    name = (
                        f"colour{colour}_depth{depth}{'_trns' if key else ''}{'_adam7' if interlaced else ''}"
                    )
                    file = png(samples, depth, colour, interlaced, palette, key)
                    yield name, file, expanded(samples, depth, colour, palette, key)


def text_chunks():
    """One of each of the four kinds of text, as (chunk, keyword, text)."""
    latin, world = "déjà vu", "多项式 🙂"
    return [
        (chunk(b"tEXt", b"Title\0" + latin.encode("latin-1")), "Title", latin),
        (chunk(b"zTXt", b"Author\0\0" + zlib.compress(latin.encode("latin-1") * 50)), "Author", latin * 50),
        (chunk(b"iTXt", b"Comment\0\0\0de\0Kommentar\0" + world.encode()), "Comment", world),
        (
            chunk(b"iTXt", b"parameters\0\1\0\0\0" + zlib.compress(world.encode() * 50)),
            "parameters",
            world * 50,
        ),
    ]


def main():
    lines = []
    for name, file, pixels in all_kinds(np.random.default_rng(4), 9, 11):
        (HERE / f"{name}.png").write_bytes(file)
        height, width, channels = pixels.shape
        little = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
        bits = pixels.dtype.itemsize * 8
        lines.append(f"{name}\t{width}\t{height}\t{channels}\t{bits}\t{hashlib.sha256(little).hexdigest()}\n")
    (HERE / "expected.tsv").write_text("".join(lines))

    texts = [text for text, _, _ in text_chunks()]
    small = np.arange(4, dtype=np.uint16).reshape(2, 2, 1) * 80
    file = png(small, 8, GREY, before=texts[0] + texts[1], after=texts[2] + texts[3])
    (HERE / "seed_text.png").write_bytes(file)
    make_jpegs()


def make_jpegs():
    from PIL import Image

    # Four quarters, red and green above blue and white, of 16 pixels: whole blocks in any sampling.
    corners = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8)
    picture = Image.fromarray(corners.repeat(16, axis=0).repeat(16, axis=1))
    for name, mode, options in [
        ("rgb", "RGB", {}),
        ("rgb_progressive", "RGB", {"progressive": True}),
        ("rgb_444", "RGB", {"subsampling": 0}),
        ("grey", "L", {}),
        ("cmyk", "CMYK", {}),
    ]:
        picture.convert(mode).save(HERE / f"{name}.jpg", quality=92, optimize=True, **options)


if __name__ == "__main__":
    main()
