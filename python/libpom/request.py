"""The fields of a request as Python's keywords, and their way to the library: names are judged first, then
values, and what is left is JSON."""

import difflib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch

from .errors import Error, fail
from .init_pixels import Picture

if TYPE_CHECKING:
    import numpy as np

    _Pixels = torch.Tensor | np.ndarray[Any, np.dtype[np.uint8]] | Picture
else:  # numpy is not asked for
    _Pixels = torch.Tensor | Picture

_Path = str | os.PathLike[str]
_Classes = str | int | Sequence[str | int] | None  # names and numbers, or one of the program's lists: "0-9"
_DType = Literal["fp32", "bf16", "fp16", "fp64", "fp8"]
_TorchDType = Literal["float32", "bfloat16", "float16", "float64", "float8_e4m3fn"]  # torch's words for them

# The fields of a request, those of pom/generate/request.h (a test compares them), and for Python `class_`,
# `continue_from` and `size`: `class` and `continue` are words of the language. A request that an engine gives
# back has `class`. `init` may be pixels too, or a PIL image: see init_pixels.py.
RequestFields = TypedDict(
    "RequestFields",
    {
        "class": _Classes,
        "class_": _Classes,
        "prompt": str | Sequence[str] | None,
        "seed": int | Sequence[int] | None,
        "count": int | None,
        "size": int | str | tuple[int, int] | None,  # 64, "64x48" or (64, 48): width, then height
        "width": int | None,
        "height": int | None,
        "init": _Path | _Pixels | Sequence[_Pixels] | None,
        "strength": float | None,
        "steps": int | None,
        "sampler": str | None,
        "shift": float | None,
        "cfg_scale": float | None,
        "omega": float | str | None,
        "cfg_from": float | None,
        "cfg_to": float | None,
        "negative_class": str | int | None,
        "negative_prompt": str | None,
        "eta": float | None,
        "clamp": float | None,
        "dtype": _DType | _TorchDType | torch.dtype | None,
        "frames": int | Literal["inf"] | str | float | None,  # math.inf is "inf"
        "fps": float | None,
        "prompt_at": str | Sequence[str] | None,  # "24:a pink heart", by frame
        "stream": bool | None,
        "window": int | None,
        "continue": _Path | None,
        "continue_from": _Path | None,
        "save_state": _Path | None,
    },
    total=False,
)

_DTYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8",
}
_DTYPE_WORDS = {str(dtype): ours for dtype, ours in _DTYPES.items()}  # "torch.bfloat16"

# What diffusers calls things, and what things were called here.
_OTHER_NAMES = {
    "guidance_scale": "use cfg_scale",
    "guidance_rescale": "there is none; cfg_from and cfg_to say where guidance acts",
    "num_inference_steps": "use steps",
    "timesteps": "use steps, and shift for where they lie",
    "sigmas": "use steps, and shift for where they lie",
    "scheduler": "use sampler",
    "num_images_per_prompt": "use count",
    "num_videos_per_prompt": "use count",
    "batch_size": "use count for how many are made, batch for how many at a time",
    "num_frames": "use frames",
    "image": "use init",
    "video": "use init",
    "latents": "use noise",
    "callback": "use on_step",
    "callback_steps": "use on_step",
    "callback_on_step_end": "use on_step",
    "generator": "use seed, an integer",
    "class_label": "use class_",
    "class_labels": "use class_",
    "prompt_embeds": "use prompt, a text",
    "negative_prompt_embeds": "use negative_prompt, a text",
    "torch_dtype": "use dtype",
    "output_type": 'use output="numpy", "torch" or "latents"',
    "return_dict": "what comes back are the images and their requests",
    "clip": "use clamp",
}
_OF_SAMPLE = ("batch", "output", "noise", "on_step")


def check_names(op: str, given: Iterable[str]) -> None:
    """A keyword that is none raises TypeError, as Python's own functions do."""
    for name in given:
        if name in RequestFields.__annotations__:
            continue
        hint = ""
        if name in _OTHER_NAMES:
            hint = f": {_OTHER_NAMES[name]}"
        elif name in _OF_SAMPLE:
            hint = ": it is one of sample()"
        elif near := difflib.get_close_matches(name, [*RequestFields.__annotations__, *_OF_SAMPLE], 1):
            hint = f"; did you mean {near[0]!r}?"
        raise TypeError(f"{op}() has no keyword {name!r}{hint}")


def _plain(op: str, field: str, value: object) -> object:
    """Numbers, texts and lists of them, as Python has them: numpy and torch have their own."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if getattr(value, "ndim", 2) <= 1 and (to_list := getattr(value, "tolist", None)) is not None:
        value = to_list()
    if isinstance(value, (list, tuple, range)):
        return [_plain(op, field, each) for each in value]
    if isinstance(value, float) and not math.isfinite(value) and (field, value) != ("frames", math.inf):
        fail(f"{op}: {field}", "a finite number", value)
    if not isinstance(value, (str, int, float)):  # a bool is an int
        shape = getattr(value, "shape", None)
        of_shape = "" if shape is None else f" of shape {tuple(shape)}"
        fail(f"{op}: {field}", "a number, a string or a list of them", f"{type(value).__name__}{of_shape}")
    return value


def _sides(op: str, size: object) -> dict[str, object]:
    """64, "64x48" or (64, 48) as width and height."""
    pair: object = _plain(op, "size", size)
    if isinstance(pair, str) and (match := re.fullmatch(r"(\d+)(?:[xX](\d+))?", pair)):
        pair = [int(match[1]), int(match[2] or match[1])]
    elif isinstance(pair, int) and not isinstance(pair, bool):
        pair = [pair, pair]
    if isinstance(pair, list) and len(pair) == 2:
        return {"width": pair[0], "height": pair[1]}
    fail(f"{op}: size", '64, "64x48" or (64, 48), width and height', repr(size))


def _dtype(op: str, value: object) -> object:
    """torch.bfloat16 and "bfloat16" are "bf16"."""
    if not isinstance(value, torch.dtype):
        return _DTYPE_WORDS.get(f"torch.{value}", value) if isinstance(value, str) else value
    if value not in _DTYPES:
        fail(f"{op}: dtype", f"one of {', '.join(map(str, _DTYPES))}", value)
    return _DTYPES[value]


def _value(op: str, field: str, value: object) -> object:
    """As the library reads it."""
    value = _plain(op, field, _dtype(op, value) if field == "dtype" else value)
    if field == "class" and isinstance(value, list):
        value = ",".join(str(item) for item in value)
    if field in ("class", "negative_class", "omega") and isinstance(value, (int, float)):
        value = value if isinstance(value, bool) else str(value)
    return "inf" if field == "frames" and value == math.inf else value


def to_json(op: str, fields: Mapping[str, object]) -> str:
    """Those that are given (not None), whose names are known."""
    given = dict(fields)
    for ours, theirs in (("class_", "class"), ("continue_from", "continue")):
        if ours in given and theirs in given:
            fail(f"{op}: {theirs}", "it once", f"it as {theirs} and as {ours}")
        if ours in given:
            given[theirs] = given.pop(ours)
    if (size := given.pop("size", None)) is not None:
        if given.get("width") is not None or given.get("height") is not None:
            fail(f"{op}: size", "either size, or width and height", "both")
        given |= _sides(op, size)
    request = {name: _value(op, name, value) for name, value in given.items() if value is not None}
    try:
        return json.dumps(request)
    except ValueError as error:  # a text that is no Unicode, a number that is too long
        raise Error(f"{op}: expected numbers and strings, got {error}") from None
