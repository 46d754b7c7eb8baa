#!/usr/bin/env python3
"""Makes the hostile lists of words (*.txt) and text encoders (*.safetensors) beside this script. What
error each one is, expected.tsv says, which the test writes (tests/hostile/judge.h); the files are
committed, so that no test needs Python.
"""

import json
import struct
from pathlib import Path

HERE = Path(__file__).parent
WIDTH, LIMIT, LAYERS, WORDS = 2, 3, 1, "blue\nred\nstar\n"
BYTES = {"F32": 4, "BF16": 2, "I64": 8}

LISTS = {
    "upper_case": "red\nStar\n",
    "two_in_a_line": "red star\n",
    "sign_in_word": "red,\n",
    "space_before": " red\n",
    "space_after": "red \n",
    "tab": "red\tstar\n",
    "carriage_returns": "red\r\nstar\r\n",
    "empty_line": "red\n\nstar\n",
    "empty_line_first": "\nred\n",
    "only_newline": "\n",
    "twice": "red\nstar\nred\n",
    "sign_twice": "!\n!\n",
    "nul": b"red\0\n",
    "delete": b"red\x7f\n",
    "escape": b"\x1b[31mred\n",
    "word_of_space": "\u0020\n",
    "json": '["red", "star"]',
    "word_long": "a" * 400 + "!\n",
}


def tensors(pieces=260, width=WIDTH, limit=LIMIT, layers=LAYERS):
    shapes = {"pieces.weight": [pieces, width], "places": [limit, width]}
    for i in range(layers):
        shapes |= {f"near.{i}.weight": [width, 3 * width], f"near.{i}.bias": [width]}
    return shapes


def encoder(shapes=None, words=WORDS, dtype="F32", metadata=None):
    shapes = tensors() if shapes is None else shapes
    metadata = ({} if words is None else {"words": words}) | (metadata or {})
    header, end = {"__metadata__": metadata}, 0
    for name, shape in sorted(shapes.items()):
        size = BYTES[dtype]
        for side in shape:
            size *= side
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


ENCODERS = {
    "encoder_empty": b"",
    "encoder_cut": encoder()[:-1],
    "encoder_no_tensors": encoder({}),
    "encoder_no_words": encoder(words=None),
    "encoder_words_empty": encoder(words=""),
    "encoder_words_too_few": encoder(words="red\n"),
    "encoder_words_too_many": encoder(words=WORDS + "moon\n"),
    "encoder_words_twice": encoder(words="red\nred\nstar\n"),
    "encoder_words_upper_case": encoder(words="Blue\nred\nstar\n"),
    "encoder_words_escape": encoder(words="\x1b[31m\nred\nstar\n"),
    "encoder_half": encoder(dtype="BF16"),
    "encoder_integers": encoder(dtype="I64"),
    "encoder_no_pieces": encoder({k: v for k, v in tensors().items() if k != "pieces.weight"}),
    "encoder_no_places": encoder({k: v for k, v in tensors().items() if k != "places"}),
    "encoder_no_bias": encoder({k: v for k, v in tensors().items() if k != "near.0.bias"}),
    "encoder_places_flat": encoder(tensors() | {"places": [LIMIT * WIDTH]}),
    "encoder_places_empty": encoder(tensors() | {"places": [0, WIDTH]}),
    "encoder_pieces_flat": encoder(tensors() | {"pieces.weight": [260 * WIDTH]}),
    "encoder_near_turned": encoder(tensors() | {"near.0.weight": [3 * WIDTH, WIDTH]}),
    "encoder_another_width": encoder(tensors(width=WIDTH + 1)),
    "encoder_another_limit": encoder(tensors(limit=LIMIT + 1)),
    "encoder_another_depth": encoder(tensors(layers=LAYERS + 1)),
    "encoder_more": encoder(tensors() | {"extra": [1]}),
    "encoder_layer_missing": encoder(tensors() | {"near.7.weight": [WIDTH, 3 * WIDTH]}),
    "encoder_layer_odd": encoder(tensors() | {"near.x.weight": [1]}),
}


def main():
    for old in [*HERE.glob("*.txt"), *HERE.glob("*.safetensors")]:
        old.unlink()
    for name, content in (LISTS | {"good": WORDS}).items():
        (HERE / f"{name}.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    for name, content in (ENCODERS | {"good_encoder": encoder()}).items():
        (HERE / f"{name}.safetensors").write_bytes(content)


if __name__ == "__main__":
    main()
