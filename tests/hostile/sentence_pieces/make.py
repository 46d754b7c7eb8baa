#!/usr/bin/env python3
"""Makes the hostile vocabularies beside this script. What error each one is, expected.tsv says, which the
test writes (tests/hostile/judge.h); the files are committed, so that no test needs Python.
"""

import struct
from pathlib import Path

HERE = Path(__file__).parent
NORMAL, UNKNOWN, CONTROL, OWN, UNUSED, BYTE = range(1, 7)


def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def data(field, content, length=None):
    return varint(field << 3 | 2) + varint(len(content) if length is None else length) + content


def number(field, value):
    return varint(field << 3) + varint(value)


def score(value):
    return varint(2 << 3 | 5) + struct.pack("<f", value)


def piece(text, value=-1.0, kind=NORMAL):
    return data(1, data(1, text) + score(value) + number(3, kind))


def rules(trie=b"\0" * 1024, results=b"a\0", size=None):
    return data(3, data(2, struct.pack("<I", len(trie) if size is None else size) + trie + results))


START = piece(b"<pad>", 0.0, CONTROL) + piece(b"</s>", 0.0, CONTROL) + piece(b"<unk>", 0.0, UNKNOWN)
GOOD = START + piece("▁".encode()) + piece(b"a") + data(2, number(3, 1)) + rules()
BYTES = b"".join(piece(b"<0x%02X>" % i, 0.0, BYTE) for i in range(256))

# One rule, "a" -> "b": the root at 0, its child for "a" at 97, the leaf of that at 1.
TRIE = [0] * 256
TRIE[0], TRIE[97], TRIE[1] = 0, (96 << 10) | 1 << 8 | 97, 1 << 31


def trie(**units):
    changed = list(TRIE)
    for place, value in units.items():
        changed[int(place[1:])] = value
    return rules(struct.pack("<256I", *changed), b"b\0")


FILES = {
    "good": GOOD,
    "good_extra_fields": GOOD
    + data(4, b"x")
    + data(5, b"")
    + number(100, 1)
    + varint(101 << 3 | 1)
    + bytes(8),
    "good_without_rules": START + piece(b"a"),
    "good_rule": START + piece(b"a") + piece(b"b") + trie(),
    "good_rule_ends_early": START + piece(b"a") + trie(_0=0xFFFFFFFF),
    "good_bytes": START + BYTES + data(2, number(35, 1)),
    "empty": b"",
    "zeros": bytes(64),
    "text": b"<pad>\n</s>\n<unk>\n",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 791656\n",
    "json": b'{"model": {"type": "Unigram"}}',
    "zip": b"PK\x03\x04" + bytes(20),
    "pickle": b"\x80\x04\x95" + bytes(20),
    "ones": b"\xff" * 64,
    "cut_in_key": GOOD + b"\x8a",
    "cut_in_length": GOOD + b"\x0a\x85",
    "cut_in_piece": GOOD[:10],
    "cut_at_end": GOOD[:-1],
    "length_of_a_gigabyte": GOOD + data(1, b"x", 1 << 30),
    "length_two_to_63": GOOD + data(1, b"x", 1 << 63),
    "length_all_ones": GOOD + data(1, b"x", (1 << 64) - 1),
    "number_too_long": GOOD + b"\x20" + b"\x80" * 10 + b"\x01",
    "number_beyond_64_bits": GOOD + b"\x20" + b"\xff" * 9 + b"\x02",
    "field_zero": GOOD + b"\x02\x00",
    "field_too_large": GOOD + varint(1 << 33) + b"\0",
    "group": GOOD + varint(7 << 3 | 3),
    "wire_type_7": GOOD + varint(7 << 3 | 7),
    "pieces_as_number": GOOD + number(1, 5),
    "trainer_as_number": GOOD + number(2, 5),
    "normalizer_as_number": GOOD + number(3, 5),
    "piece_as_number": START + data(1, number(1, 5)),
    "score_as_number": START + data(1, data(1, b"a") + number(2, 5)),
    "score_as_double": START + data(1, data(1, b"a") + varint(2 << 3 | 1) + bytes(8)),
    "score_nan": START + piece(b"a", float("nan")),
    "score_infinite": START + piece(b"a", float("-inf")),
    "type_zero": START + piece(b"a", kind=0),
    "type_seven": START + piece(b"a", kind=7),
    "type_huge": START + piece(b"a", kind=(1 << 64) - 1),
    "type_as_text": START + data(1, data(1, b"a") + data(3, b"x")),
    "piece_empty": START + piece(b""),
    "piece_missing": START + data(1, score(-1.0)),
    "piece_nul": START + piece(b"a\0b"),
    "piece_escape": START + piece(b"\x1b[31m") * 2,
    "piece_twice": START + piece(b"a") + piece(b"a"),
    "piece_twice_of_two_types": START + piece(b"a") + piece(b"a", kind=OWN),
    "control_twice": START + piece(b"</s>", 0.0, CONTROL),
    "no_pieces": data(2, number(3, 1)),
    "no_unknown": piece(b"<pad>", 0.0, CONTROL) + piece(b"a"),
    "unknown_twice": START + piece(b"<other>", 0.0, UNKNOWN),
    "bpe": START + data(2, number(3, 2)),
    "word": START + data(2, number(3, 3)),
    "char": START + data(2, number(3, 4)),
    "model_type_unknown": START + data(2, number(3, 9)),
    "spaces_as_suffix": START + data(2, number(24, 1)),
    "trainer_cut": START + data(2, b"\x18"),
    "bytes_without_fallback": START + BYTES,
    "bytes_missing": START + data(2, number(35, 1)),
    "bytes_one_missing": START + BYTES[: -len(piece(b"<0xFF>", 0.0, BYTE))] + data(2, number(35, 1)),
    "byte_odd": START + piece(b"<0xfg>", 0.0, BYTE) + data(2, number(35, 1)),
    "rules_short": START + data(3, data(2, b"\0\0\0\0")),
    "rules_size_beyond": START + rules(size=1 << 31),
    "rules_size_all": START + rules(results=b""),
    "rules_size_odd": START + rules(trie=bytes(1023)),
    "rules_size_zero": START + rules(trie=b""),
    "rules_without_end": START + rules(results=b"ab"),
    "rules_as_number": START + data(3, number(2, 5)),
    "flag_as_text": START + data(3, data(3, b"1")),
    "rule_leaf_beyond": START + piece(b"a") + trie(_97=0x7FFFFC00 | 1 << 8 | 97),
    "rule_leaf_far_beyond": START + piece(b"a") + trie(_97=0x7FFFFE00 | 1 << 8 | 97),
    "rule_result_beyond": START + piece(b"a") + trie(_1=(1 << 31) | 2),
    "rule_result_all_ones": START + piece(b"a") + trie(_1=0xFFFFFFFF),
}


def main():
    for old in HERE.glob("*.model"):
        old.unlink()
    for name, content in FILES.items():
        (HERE / f"{name}.model").write_bytes(content)


if __name__ == "__main__":
    main()
