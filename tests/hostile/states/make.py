#!/usr/bin/env python3
"""Makes the hostile files of streams beside this script: what they say of their request is wrong. Those
whose tensors are, the test makes from a state of its own. What error each one is, expected.tsv says,
which the test writes (tests/hostile/judge.h); the files are committed, so that no test needs Python.
"""

import json
import struct
from pathlib import Path

HERE = Path(__file__).parent
REQUEST = {"class": "none", "seed": 7, "count": 1, "width": 8, "height": 8, "steps": 2, "sampler": "heun"}


def state(request=REQUEST, **metadata):
    """A state without tensors, which are looked at later."""
    text = request if isinstance(request, str) else json.dumps(request)
    notes = {"format": "pom stream 1", "seeds": "7", "beside.prompt": "a star", "beside.fps": "8"}
    notes |= {"beside.request": text} | {key.replace("_", "."): value for key, value in metadata.items()}
    header = json.dumps({"__metadata__": {k: v for k, v in notes.items() if v is not None}}).encode()
    return struct.pack("<Q", len(header)) + header


def request(**fields):
    return state({key: value for key, value in (REQUEST | fields).items() if value is not ...})


CASES = {
    "empty": b"",
    "cut": state()[:-9],
    "cut_in_length": state()[:5],
    "zip": b"PK\x03\x04" + bytes(26),
    "text": b"the state of a stream\n",
    "bytes_behind": state() + b"x",
    "request_empty": state(""),
    "request_array": state("[]"),
    "request_cut": state('{"class": "none", "seed"'),
    "request_nested": state('{"class": ' + "[" * 40 + "]" * 40 + "}"),
    "request_key_twice": state('{"seed": 7, "seed": 8}'),
    "request_unknown_field": request(sed=7),
    "request_field_long": request(**{"x" * 300: 7}),
    "request_seed_text": request(seed="7"),
    "request_seed_two_to_63": request(seed=1 << 63),
    "request_seed_fraction": request(seed=7.5),
    "request_width_zero": request(width=0),
    "request_width_odd": request(width=7),
    "request_width_huge": request(width=1 << 40),
    "request_size_huge": request(width=65536, height=65536),
    "request_steps_zero": request(steps=0),
    "request_steps_billion": request(steps=1_000_000_000),
    "request_sampler_unknown": request(sampler="heum"),
    "request_sampler_escape": request(sampler="\x1b[31mheun"),
    "request_shift_zero": request(shift=0),
    "request_eta": request(eta=0.5),
    "request_cfg_reversed": request(cfg_from=0.9, cfg_to=0.1),
    "request_dtype_unknown": request(dtype="fp4"),
    "request_dtype_fp8": request(dtype="fp8"),
    "request_null": request(seed=None),
    "fps_text": state(beside_fps="fast"),
    "fps_prefix": state(beside_fps="8junk"),
    "fps_zero": state(beside_fps="0"),
    "fps_negative": state(beside_fps="-8"),
    "fps_infinite": state(beside_fps="inf"),
    "fps_nan": state(beside_fps="nan"),
    "fps_huge": state(beside_fps="1e300"),
    "fps_empty": state(beside_fps=""),
}


def main():
    for old in HERE.glob("*.safetensors"):
        old.unlink()
    for name, content in (
        CASES | {"good": state(), "good_without_notes": state("{}", beside_fps=None)}
    ).items():
        (HERE / f"{name}.safetensors").write_bytes(content)


if __name__ == "__main__":
    main()
