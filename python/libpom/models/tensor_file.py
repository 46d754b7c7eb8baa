"""safetensors files: named tensors, read into memory of their own and written as the reference writes them.

pom/io/safetensors.h has the format and its limits. Nothing is unpickled, and no offset is used before the
whole header has been checked: each byte of the data belongs to one tensor.
"""

import ctypes
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..errors import Error
from . import strict_json

_MOST_HEADER = 100_000_000  # bytes
_METADATA = "__metadata__"
# Bits of an element, in the order of the format: a file has its tensors from the last dtype to the first.
_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32,
    "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def quoted(name: str) -> str:
    """A name of a file as a message may show it: not all of a long one, and no control characters."""
    return json.dumps(name if len(name) <= 120 else f"{name[:120]}…", ensure_ascii=False)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the header has it; offsets count from the first byte after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile:
    """An open file whose header is in order. `tensors` by name, `metadata` where there is any."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = open(self.path, "rb")  # noqa: SIM115
        try:
            text, self._start, data = self._header()
            self.tensors, self.metadata = _parse(text, data, f"safetensors read: {self.path}")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _fail(self, expected: str, got: object) -> None:
        raise Error(f"safetensors read: {self.path}: expected {expected}, got {got}")

    def _header(self) -> tuple[bytes, int, int]:
        """Its bytes, where the data begins and how much of it there is."""
        size = os.fstat(self._file.fileno()).st_size
        first = self._file.read(8)
        if len(first) < 8:
            self._fail("at least the 8 bytes of the header's length", len(first))
        (length,) = struct.unpack("<Q", first)
        if length > _MOST_HEADER:
            self._fail(f"a header of at most {_MOST_HEADER} bytes", length)
        if length > size - 8:
            self._fail(f"a header of {length} bytes", f"a file with {size - 8} after its length")
        text = self._file.read(length)
        if len(text) < length:
            self._fail(f"a header of {length} bytes", f"{len(text)} before the end of the file")
        return text, 8 + length, size - 8 - length

    def read(self, name: str) -> Tensor:
        """A tensor of floating-point numbers, as it is stored."""
        info = self.tensors[name]
        if info.dtype not in _DTYPES:
            raise Error(
                f"{self.path}: tensor {quoted(name)}: expected F32, BF16, F16 or F64, got {info.dtype}"
            )
        tensor = torch.empty(info.shape, dtype=_DTYPES[info.dtype])
        self._file.seek(self._start + info.begin)
        if self._file.readinto(_memory(tensor)) != info.end - info.begin:
            self._fail(f"all {info.end - info.begin} bytes of tensor {quoted(name)}", "the end of the file")
        return tensor


def _memory(tensor: Tensor) -> "ctypes.Array[ctypes.c_char]":
    """The bytes of a contiguous tensor on the host, in place: good for as long as the tensor is."""
    return (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())


def _parse(text: bytes, data: int, where: str) -> tuple[dict[str, TensorInfo], dict[str, str] | None]:
    if not text.startswith(b"{"):
        raise Error(f"{where}: expected a header that begins with '{{', got {text[:16]!r}")
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise Error(f"{where}: expected a header in UTF-8, got other bytes at {error.start}") from None
    header = strict_json.loads(decoded, where, lambda digits: _natural(digits, where))
    metadata = header.pop(_METADATA, None) if _METADATA in header else {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Error(f"{where}: expected {_METADATA} to be an object of strings, got something else")
    tensors = {name: _info(entry, f"{where}: tensor {quoted(name)}") for name, entry in header.items()}
    _check_data(tensors, data, where)
    return tensors, metadata or None


def _natural(digits: str, where: str) -> int:
    if digits.startswith("-") or len(digits) > 20 or int(digits) >= 2**64:
        raise Error(f"{where}: expected integers from 0 to below 2^64, got {digits[:40]}")
    return int(digits)


def _info(entry: Any, where: str) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        got = ", ".join(entry) if isinstance(entry, dict) else entry
        raise Error(f"{where}: expected an object with dtype, shape and data_offsets, got {str(got)[:120]}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise Error(f'{where}: expected a dtype of the format such as "F32", got {str(dtype)[:40]}')
    for name, value in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise Error(f"{where}: expected {name} to be an array of integers, got {str(value)[:120]}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Error(f"{where}: expected data_offsets to be two ascending integers, got {str(offsets)[:120]}")
    return TensorInfo(dtype, tuple(shape), *offsets)


def _bit_count(info: TensorInfo) -> int | None:
    """None where a size, or the product taken from the left, is more than the format can say."""
    bits = _BITS[info.dtype]
    for size in info.shape:
        bits *= size
        if size >= 2**63 or bits >= 2**64:
            return None
    return bits


def _check_data(tensors: dict[str, TensorInfo], data: int, where: str) -> None:
    covered = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        here = f"{where}: tensor {quoted(name)}"
        bits = _bit_count(info)
        if bits is None or bits % 8 != 0:
            shape = list(info.shape[:16])
            raise Error(f"{here}: expected a size in whole bytes below 2^61, got {info.dtype} {shape}")
        if info.end > data:
            raise Error(
                f"{here}: expected data_offsets within the {data} bytes of data in the file (is it "
                f"truncated?), got [{info.begin}, {info.end}]"
            )
        if info.end - info.begin != bits // 8:
            raise Error(
                f"{here}: expected {bits // 8} bytes for {info.dtype} {list(info.shape[:16])}, got "
                f"{info.end - info.begin}"
            )
        if info.begin != covered:
            raise Error(f"{here}: expected data_offsets to begin at {covered}, got {info.begin}")
        covered = info.end
    if covered != data:
        raise Error(f"{where}: expected the file to end with the last tensor, at {covered} bytes, got {data}")


def write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """The bytes that the C++ library and the reference write for these tensors."""
    host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in host.items():
        if tensor.dtype not in _NAMES:
            raise Error(
                f"safetensors write: tensor {quoted(name)}: expected fp32, bf16, fp16 or fp64, got "
                f"{tensor.dtype}"
            )
    rank = {name: -place for place, name in enumerate(_BITS)}
    names = sorted(host, key=lambda name: (rank[_NAMES[host[name].dtype]], name.encode()))
    header: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    end = 0
    for name in names:
        begin, end = end, end + host[name].numel() * host[name].element_size()
        dtype, shape = _NAMES[host[name].dtype], list(host[name].shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned in the file
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        file.write(_memory(host[name]))
