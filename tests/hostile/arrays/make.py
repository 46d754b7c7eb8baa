#!/usr/bin/env python3
"""Makes the hostile .npy and .npz beside this script. What error each one is, expected.tsv says, which the
test writes (tests/hostile/judge.h); the files are committed, so that no test needs Python.
"""

import struct
import zlib
from pathlib import Path

HERE = Path(__file__).parent


def npy(descr="'<f4'", fortran="False", shape="(2,)", data=bytes(8), version=1, dict_=None, length=None):
    text = (
        f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n" if dict_ is None else dict_
    )
    text = text.encode()
    length = len(text) if length is None else length
    return (
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", length) + text + data
    )


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def entry(name=b"arr_0.npy", data=None, method=0, packed=None, size=None, crc=None, flags=0, header=None):
    data = npy() if data is None else data
    raw = data if method != 8 else deflated(data)
    return {
        "name": name,
        "raw": raw,
        "method": method,
        "flags": flags,
        "packed": len(raw) if packed is None else packed,
        "size": len(data) if size is None else size,
        "crc": zlib.crc32(data) if crc is None else crc,
        "header": header,
    }


def npz(*entries, count=None, begin=None, bytes_=None, comment=b"", zip64=False):
    file, directory = b"", b""
    for e in entries:
        place = len(file) if e["header"] is None else e["header"]
        sizes = struct.pack("<III", e["crc"], e["packed"], e["size"])
        extra = b""
        if zip64:
            extra = struct.pack("<HHQQ", 1, 16, e["size"], e["packed"])
            sizes = struct.pack("<III", e["crc"], 0xFFFFFFFF, 0xFFFFFFFF)
        common = struct.pack("<HHI", e["flags"], e["method"], 0) + sizes
        common += struct.pack("<HH", len(e["name"]), len(extra))
        file += b"PK\3\4" + struct.pack("<H", 45) + common + e["name"] + extra + e["raw"]
        directory += (
            b"PK\1\2" + struct.pack("<HH", 45, 45) + common + struct.pack("<HHHII", 0, 0, 0, 0, place)
        )
        directory += e["name"] + extra
    begin = len(file) if begin is None else begin
    length = len(directory) if bytes_ is None else bytes_
    count = len(entries) if count is None else count
    end = struct.pack("<HHHHIIH", 0, 0, count & 0xFFFF, count & 0xFFFF, length, begin, len(comment))
    return file + directory + b"PK\5\6" + end + comment


GOOD = npz(entry())
ARRAYS = {
    "good": npy(),
    "good_version_2": npy(version=2),
    "good_version_3": npy(version=3),
    "good_fortran": npy("'<i8'", "True", "(2, 3)", bytes(48)),
    "good_text": npy("'<U3'", shape="()", data="a☆\0".encode("utf-32-le")),
    "good_nothing": npy(shape="(0, 5)", data=b""),
    "empty": b"",
    "magic": b"\x93NUMPX" + npy()[6:],
    "magic_alone": b"\x93NUMPY",
    "version_0": b"\x93NUMPY\0\0" + npy()[8:],
    "version_9": npy(version=9),
    "version_minor": b"\x93NUMPY\1\1" + npy()[8:],
    "header_cut": npy()[:40],
    "header_length_lies": npy(length=60000),
    "header_length_huge": npy(version=2, length=0xFFFFFFFF),
    "header_no_dict": npy(dict_="[1, 2, 3]"),
    "header_not_closed": npy(dict_="{'descr': '<f4', 'fortran_order': False, 'shape': (2,)"),
    "header_quote_not_closed": npy(dict_="{'descr': '<f4"),
    "header_unknown_key": npy(dict_="{'colour': 'red', }"),
    "header_key_twice": npy(dict_="{'descr': '<f4', 'descr': '<f4', }"),
    "header_no_shape": npy(dict_="{'descr': '<f4', 'fortran_order': False, }"),
    "header_code": npy("__import__('os').system('true')"),
    "header_more": npy(dict_="{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } + 1"),
    "descr_object": npy("'|O'"),
    "descr_object_8": npy("'O8'"),
    "descr_big_endian": npy("'>f4'"),
    "descr_structured": npy("[('a', '<f4')]"),
    "descr_complex": npy("'<c8'", shape="(1,)"),
    "descr_time": npy("'<M8[ns]'", shape="(1,)"),
    "descr_text_huge": npy("'<U99999999999999'"),
    "descr_text_no_length": npy("'<U'"),
    "descr_escape": npy("'\x1b[2J'"),
    "fortran_number": npy(fortran="1"),
    "shape_number": npy(shape="2"),
    "shape_list": npy(shape="[2]"),
    "shape_negative": npy(shape="(-2,)"),
    "shape_float": npy(shape="(2.0,)"),
    "shape_overflow": npy(shape="(4294967296, 4294967296)"),
    "shape_beyond_64_bits": npy(shape="(99999999999999999999999,)"),
    "shape_many": npy(shape="(" + "1, " * 33 + ")"),
    "data_cut": npy()[:-1],
    "data_more": npy() + b"x",
    "data_of_a_petabyte": npy(shape="(1000000000000000,)"),
}
ARCHIVES = {
    "good": GOOD,
    "good_deflated": npz(entry(method=8)),
    "good_zip64": npz(entry(), zip64=True),
    "good_comment": npz(entry(), comment=b"hello"),
    "empty": b"",
    "no_zip": b"\x93NUMPY" * 20,
    "cut": GOOD[:-3],
    "no_members": npz(),
    "count_lies": npz(entry(), count=60000),
    "count_more": npz(entry(), entry(b"arr_1.npy"), count=1, bytes_=40),
    "directory_outside": npz(entry(), begin=0xFFFFFFF0),
    "directory_longer": npz(entry(), bytes_=0xFFFFFF),
    "directory_elsewhere": npz(entry(), begin=3),
    "header_outside": npz(entry(header=0xFFFFFFF)),
    "header_elsewhere": npz(entry(header=5)),
    "encrypted": npz(entry(flags=1)),
    "method": npz(entry(method=14)),
    "crc": npz(entry(crc=1)),
    "crc_deflated": npz(entry(method=8, crc=1)),
    "stored_sizes_differ": npz(entry(size=7)),
    "size_lies": npz(entry(size=70000, packed=70000)),
    "size_zip64_missing": npz(entry(size=0xFFFFFFFF, packed=0xFFFFFFFF)),
    "size_of_deflated_small": npz(entry(method=8, size=10)),
    "size_of_deflated_large": npz(entry(method=8, size=1000)),
    "bomb": npz(entry(method=8, data=bytes(2_000_000))),
    "bomb_that_lies": npz(entry(method=8, size=900_000)),
    "deflate_garbage": npz(entry(method=8, packed=20)),
    "twice": npz(entry(), entry()),
    "other_name": npz(entry(b"latents.npy")),
    "no_npy": npz(entry(data=b"hello")),
    "pickle": npz(entry(data=npy("'|O'"))),
    "name_escape": npz(entry(b"\x1b[2J.npy", crc=1)),
}

for ending, cases in (("npy", ARRAYS), ("npz", ARCHIVES)):
    for path in HERE.glob(f"*.{ending}"):
        path.unlink()
    for name, data in cases.items():
        (HERE / f"{name}.{ending}").write_bytes(data)
