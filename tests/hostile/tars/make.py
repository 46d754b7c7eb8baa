#!/usr/bin/env python3
"""Makes the hostile tars beside this script. What error each one is, expected.tsv says, which the test writes
(tests/hostile/judge.h); the files are committed, so that no test needs Python.
"""

from pathlib import Path

HERE = Path(__file__).parent
END = bytes(1024)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def member(name=b"k.txt", data=b"text", kind=b"0", size=None, magic=b"ustar\x0000", prefix=b"", total=None):
    """A member of which everything can be said; sizes are text, or bytes of a number."""
    size = b"%011o\0" % len(data) if size is None else size
    head = name[:100].ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size.ljust(12, b"\0")
    head += b"00000000000\0" + b" " * 8 + kind + bytes(100) + magic.ljust(8, b"\0") + bytes(64)
    head += b"0000000\0" * 2 + prefix.ljust(155, b"\0") + bytes(12)
    assert len(head) == 512
    total = b"%06o\0 " % sum(head) if total is None else total
    return head[:148] + total + head[156:] + padded(data)


def pax(*records: bytes, kind=b"x"):
    return member(b"pax", b"".join(records), kind=kind)


GOOD = member() + member(b"k.cls", b"7")
ODD = member(b"\xe9.txt")[:512]
SUM = (
    sum(ODD[:148]) + 8 * ord(" ") + sum(ODD[156:])
)  # of which the signed one takes the name's first byte as negative
LARGE = b"\x80" + bytes(7) + b"\x7f\xff\xff\xff"
CASES = {
    "good": GOOD + END,
    "good_gnu": member(b"././@LongLink", b"n" * 150 + b".txt\0", kind=b"L") + GOOD + END,
    "good_pax": pax(b"20 mtime=1700000.25\n", b"16 path=ab/c.xx\n") + GOOD + END,
    "good_sum_of_signed": member(b"\xe9.txt", total=b"%06o\0 " % (SUM - 256)) + END,
    "good_one_zero_block": GOOD + bytes(512),
    "good_v7": member(magic=b"") + END,
    "good_folder": member(b"folder/", b"", kind=b"\0") + GOOD + END,
    "empty": b"",
    "text": b"this is no tar\n" * 100,
    "zip": b"PK\x03\x04" + bytes(1020),
    "gzip": b"\x1f\x8b\x08\0" + bytes(1020),
    "no_end": GOOD,
    "cut_header": GOOD[:700],
    "cut_data": member(data=b"x" * 2000)[:1500] + b"",
    "cut_in_zeros": GOOD[:1500],
    "hole": member() + bytes(512) + member(b"k.cls", b"7") + END,
    "sum_wrong": GOOD[:512] + b"x" + GOOD[513:1024] + b"y" + GOOD[1025:] + END,
    "sum_no_number": member(total=b"zzzzzz\0 ") + END,
    "size_lies": member(size=b"77777777777\0") + END,
    "size_binary_lies": member(size=LARGE) + END,
    "size_negative": member(size=b"\xff" * 12) + END,
    "size_beyond_64_bits": member(size=b"\x80" + b"\x01" + bytes(10)) + END,
    "size_no_number": member(size=b"12x") + END,
    "size_of_pax_lies": pax(b"29 size=18446744073709551615\n") + member() + END,
    "size_of_pax_negative": pax(b"11 size=-6\n") + member() + END,
    "size_of_pax_too_long": pax(b"31 size=999999999999999999999\n"[:30] + b"\n") + member() + END,
    "name_empty": member(b"") + END,
    "name_long": member(b"l", b"n" * 70000, kind=b"L") + GOOD + END,
    "name_long_lies": member(b"l", b"", kind=b"L", size=b"00000177777\0") + END,
    "name_long_no_member": member(b"l", b"name\0", kind=b"L") + END,
    "name_of_pax_long": pax(b"70012 path=" + b"n" * 70000 + b"\n") + member() + END,
    "pax_of_nothing": pax(b"10 path=a\n") + END,
    "pax_length_zero": pax(b"0 path=a\n") + member() + END,
    "pax_length_large": pax(b"999 path=a\n") + member() + END,
    "pax_length_none": pax(b"path=a\n") + member() + END,
    "pax_length_overflow": pax(b"99999999999999999999999 path=a\n") + member() + END,
    "pax_without_equals": pax(b"8 pathx\n") + member() + END,
    "pax_without_newline": pax(b"10 path=ab") + member() + END,
    "pax_size_lies": member(b"p", b"", kind=b"x", size=b"00000002000\0") + END,
    "pax_huge": member(b"p", b"", kind=b"x", size=b"77777777777\0") + END,
    "pax_global_path": pax(b"10 path=a\n", kind=b"g") + member() + END,
    "pax_sparse": pax(b"22 GNU.sparse.major=1\n") + member() + END,
    "sparse": member(kind=b"S") + END,
    "twice": member() + member() + END,
    "escape_in_name": member(b"\x1b[2J.txt", size=b"77777777777\0") + END,
}

for path in HERE.glob("*.tar"):
    path.unlink()
for name, data in CASES.items():
    (HERE / f"{name}.tar").write_bytes(data)
