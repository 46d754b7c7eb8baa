#!/usr/bin/env python3
"""Makes the files beside this script with the reference implementation: our writer has to make them again.

The committed ones are from safetensors 0.8.0 with torch 2.13.0; needs both. Metadata of several keys comes in
the random order of a Rust HashMap, so that file changes with each run and the others do not.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64),
    *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    ),
    torch.float4_e2m1fn_x2,
]


def filled(dtype, *shape):
    """A tensor whose bytes count up; booleans alternate, for other bytes in them are no booleans."""
    count = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    step = torch.arange(count, dtype=torch.int64)
    return (step % 2 if dtype == torch.bool else step % 251).to(torch.uint8).view(dtype).reshape(shape)


NAMES = ["", "a b", "ß", "日本", "🙂", 'quo"te', "back\\slash", "\b\t\n\v\f\r\x00\x1f\x7f", "/"]


def short(dtype):
    return str(dtype).removeprefix("torch.")


FILES = {
    "nothing": ({}, None),
    "metadata_empty": ({"t": filled(torch.float32, 1)}, {}),
    "metadata_one": ({"t": filled(torch.float32, 2, 3)}, {"format": "pt"}),
    "metadata_many": (
        {"t": filled(torch.uint8, 3)},
        {"format": "pt", "": "", "ключ": 'a "b"\\\n\x01\x7f/', "z": "é"},
    ),
    "dtypes": ({short(d): filled(d, 3, 2) for d in DTYPES}, None),
    "shapes": (
        {
            "scalar": filled(torch.float32),
            "one": filled(torch.float16, 1),
            "empty": filled(torch.float32, 0),
            "zero_rows": filled(torch.int64, 0, 5),
            "zero_columns": filled(torch.bfloat16, 5, 0, 2),
            "deep": filled(torch.int8, 1, 2, 1, 3, 1, 1, 2),
        },
        None,
    ),
    "names": ({name: filled(torch.uint8, 2) for name in NAMES}, None),
    "order": (
        {f"{n}.{short(d)}": filled(d, 1) for n in ["b", "B", "a", "é", "a.b"] for d in DTYPES[:16]},
        None,
    ),
}

if __name__ == "__main__":
    for name, (tensors, metadata) in FILES.items():
        path = HERE / f"{name}.safetensors"
        save_file(tensors, path, metadata=metadata)
        path.chmod(0o644)  # the reference leaves its temporary file's 0600
