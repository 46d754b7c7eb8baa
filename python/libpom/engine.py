"""The engine from Python: opens a model folder, draws pictures. The work is done by libpom.so.

engine = libpom.Engine("assets/shapes64")
pictures, requests = engine.sample(class_="star", seed=7, count=2, steps=10)
"""

import json
import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

import torch
from typing_extensions import Unpack

from . import _library
from .errors import Error, fail

if TYPE_CHECKING:
    import numpy as np

_Result = TypeVar("_Result")
_Classes = str | int | Sequence[str | int] | None  # names and numbers, or one of the program's lists: "0-9"
_DType = Literal["fp32", "bf16", "fp16", "fp64", "fp8"]

# The fields of a request, those of pom/generate/request.h (a test compares them), and `class_` and `size` for
# Python: `class` itself is a word of the language. A request that an engine gives back has `class`.
RequestFields = TypedDict(
    "RequestFields",
    {
        "class": _Classes,
        "class_": _Classes,
        "seed": int | None,
        "count": int | None,
        "size": int | str | tuple[int, int] | None,  # 64, "64x48" or (64, 48): width, then height
        "width": int | None,
        "height": int | None,
        "steps": int | None,
        "sampler": str | None,
        "shift": float | None,
        "cfg_scale": float | None,
        "omega": float | str | None,
        "cfg_from": float | None,
        "cfg_to": float | None,
        "eta": float | None,
        "clamp": float | None,
        "dtype": _DType | torch.dtype | None,
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
# What diffusers calls things.
_THEIR_NAMES = {
    "guidance_scale": "use cfg_scale",
    "num_inference_steps": "use steps",
    "num_images_per_prompt": "use count",
    "generator": "use seed, an integer",
    "class_labels": "use class_",
    "output_type": 'use output="numpy" or "torch"',
    "negative_prompt": "there are no negative prompts yet",
}
_FORMER_NAMES = {"clip": "clamp"}


def _ours(error: RuntimeError) -> Error:
    """What C++ said, without what torch adds to it."""
    return Error(str(error).split("\nException raised from")[0].rstrip())


def _sides(op: str, size: object) -> dict[str, object]:
    """64, "64x48" or (64, 48) as width and height."""
    pair: object = size
    if isinstance(size, str) and (match := re.fullmatch(r"(\d+)(?:[xX](\d+))?", size)):
        pair = int(match[1]), int(match[2] or match[1])
    elif isinstance(size, int) and not isinstance(size, bool):
        pair = size, size
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        return {"width": pair[0], "height": pair[1]}
    fail(f"{op}: size", '64, "64x48" or (64, 48), width and height', repr(size))


def _value(op: str, field: str, value: object) -> object:
    """As the library reads it."""
    if field == "class" and isinstance(value, (list, tuple, range)):
        value = ",".join(str(item) for item in value)
    if field in ("class", "omega") and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, torch.dtype):
        if field != "dtype":
            fail(f"{op}: {field}", "a number or a text", value)
        if value not in _DTYPES:
            fail(f"{op}: dtype", f"one of {', '.join(map(str, _DTYPES))}", value)
        value = _DTYPES[value]
    if isinstance(value, float) and not math.isfinite(value):
        fail(f"{op}: {field}", "a finite number", value)
    return value


def _json(op: str, fields: RequestFields) -> str:
    """Those that are given (not None)."""
    given: dict[str, object] = dict(fields)
    for name in given:
        if name in _THEIR_NAMES:
            raise TypeError(f"{op}() has no keyword {name!r}: {_THEIR_NAMES[name]}")
        if name in _FORMER_NAMES:
            fail(f"{op}: {name}", f"its new name, {_FORMER_NAMES[name]}", "the old one")
    if "class" in given and "class_" in given:
        fail(f"{op}: class", "it once", "it as class and as class_")
    if "class_" in given:
        given["class"] = given.pop("class_")
    if (size := given.pop("size", None)) is not None:
        if given.get("width") is not None or given.get("height") is not None:
            fail(f"{op}: size", "either size, or width and height", "both")
        given |= _sides(op, size)
    request = {name: _value(op, name, value) for name, value in given.items() if value is not None}
    try:
        return json.dumps(request)
    except (TypeError, ValueError) as error:
        raise Error(f"{op}: expected numbers and texts, got {error}") from None


class Engine:
    """A model folder (config.json, model.safetensors), ready to draw. Pictures are those of `pom sample`.

    `device` is where the network runs: "cpu", "cuda", "cuda:N" or "auto". Pictures are on the CPU always.
    """

    def __init__(self, folder: str | os.PathLike[str], device: str | torch.device = "cpu") -> None:
        if _library.path is None:
            fail(
                "Engine: libpom.so", "the compiled library", f"none: {_library.reason or 'it is not loaded'}"
            )
        try:
            self._engine = torch.classes.pom.Engine(os.fspath(folder), str(device))
        except RuntimeError as error:
            raise _ours(error) from None

    @property
    def name(self) -> str:
        return self._engine.name()

    @property
    def device(self) -> torch.device:
        return torch.device(self._engine.device())

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says, with the defaults filled in."""
        return json.loads(self._engine.config())

    @property
    def weights_hash(self) -> str:
        """SHA-256 of model.safetensors."""
        try:
            return self._engine.weights_hash()
        except RuntimeError as error:
            raise _ours(error) from None

    def resolve(self, **request: Unpack[RequestFields]) -> list[dict[str, Any]]:
        """The single pictures that a request stands for, each with every field filled in."""
        text = _json("resolve", request)
        try:
            return json.loads(self._engine.resolve(text))
        except RuntimeError as error:
            raise _ours(error) from None

    @overload
    def sample(
        self, *, batch: int = 0, output: Literal["torch"] = "torch", **request: Unpack[RequestFields]
    ) -> tuple[torch.Tensor, list[dict[str, Any]]]: ...

    @overload
    def sample(
        self, *, batch: int = 0, output: Literal["numpy"], **request: Unpack[RequestFields]
    ) -> "tuple[np.ndarray[Any, np.dtype[np.uint8]], list[dict[str, Any]]]": ...

    def sample(
        self, *, batch: int = 0, output: str = "torch", **request: Unpack[RequestFields]
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Draws what the request's fields say: `class_` (or `class`), `seed`, `count`, `size` (or `width` and
        `height`), `steps`, `sampler`, `cfg_scale` or `omega`, `dtype` and the others of `RequestFields` and
        of `pom sample --help`. What is left out is the model's to choose.

        Gives uint8 pictures (B, H, W, C), a torch tensor or with output="numpy" an array, and the request of
        each one, complete: it draws the same picture again. `batch` bounds how many are drawn at a time and
        changes none of them. An engine draws for one thread at a time: others that call it wait.
        """
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
            fail("sample: batch", "an integer of at least 0", repr(batch))
        if output not in ("torch", "numpy"):
            fail("sample: output", '"torch" or "numpy"', repr(output))
        text = _json("sample", request)
        pictures, requests = self._interruptible(lambda: self._engine.sample(text, batch))
        return pictures.numpy() if output == "numpy" else pictures, json.loads(requests)

    def _interruptible(self, work: Callable[[], _Result]) -> _Result:
        """Runs work in a thread of its own: Ctrl-C reaches this one only between two lines of Python."""
        result: list[_Result] = []
        failure: list[BaseException] = []
        done, given_up = threading.Event(), threading.Event()

        def run() -> None:
            try:
                if not given_up.is_set():
                    result.append(work())
            except BaseException as error:
                failure.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=run, name="libpom-sample", daemon=True)
        try:
            thread.start()
            done.wait()  # not join(): interrupted, that takes the thread for one that has ended
        except BaseException:
            given_up.set()
            while thread.ident is not None and not done.wait(0.05):
                self._engine.stop()  # again and again: a run that has not begun yet forgets the first
            raise
        if failure and isinstance(failure[0], RuntimeError):
            raise _ours(failure[0]) from None
        if failure:
            raise failure[0]
        return result[0]
