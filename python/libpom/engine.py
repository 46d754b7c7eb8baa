"""The engine from Python: opens a model folder, makes images and clips. The work is done by libpom.so.

engine = libpom.Engine("assets/shapes64")
images, requests = engine.sample(class_="star", seed=7, count=2, steps=10)

engine = libpom.Engine("assets/sprites32")
for frame in engine.stream(prompt="a red star drifts up over black", frames=48):
    show(frame)
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, overload

import torch
from typing_extensions import Unpack

from . import _library
from .errors import Error, fail

if TYPE_CHECKING:
    import numpy as np

_Frame = TypeVar("_Frame")
_Path = str | os.PathLike[str]
_Classes = str | int | Sequence[str | int] | None  # names and numbers, or one of the program's lists: "0-9"
_DType = Literal["fp32", "bf16", "fp16", "fp64", "fp8"]

# The fields of a request, those of pom/generate/request.h (a test compares them), and for Python `class_`,
# `continue_from` and `size`: `class` and `continue` are words of the language. A request that an engine gives
# back has `class`. `init` may be pixels too: uint8 (H, W, C), of a clip (T, H, W, C).
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
        "init": "_Path | torch.Tensor | np.ndarray[Any, np.dtype[np.uint8]] | None",
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
        "dtype": _DType | torch.dtype | None,
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
# What diffusers calls things.
_THEIR_NAMES = {
    "guidance_scale": "use cfg_scale",
    "num_inference_steps": "use steps",
    "num_images_per_prompt": "use count",
    "num_videos_per_prompt": "use count",
    "num_frames": "use frames",
    "image": "use init",
    "video": "use init",
    "latents": "use noise",
    "callback_on_step_end": "use on_step",
    "generator": "use seed, an integer",
    "class_labels": "use class_",
    "output_type": 'use output="numpy", "torch" or "latents"',
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
    if field in ("class", "negative_class", "omega") and isinstance(value, (int, float)):
        value = value if isinstance(value, bool) else str(value)
    if isinstance(value, (tuple, range)):
        value = list(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if field == "frames" and value == math.inf:
        value = "inf"
    if isinstance(value, torch.dtype):
        if field != "dtype":
            fail(f"{op}: {field}", "a number or a string", value)
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
    if "continue" in given and "continue_from" in given:
        fail(f"{op}: continue", "it once", "it as continue and as continue_from")
    for ours, theirs in (("class_", "class"), ("continue_from", "continue")):
        if ours in given:
            given[theirs] = given.pop(ours)
    if (size := given.pop("size", None)) is not None:
        if given.get("width") is not None or given.get("height") is not None:
            fail(f"{op}: size", "either size, or width and height", "both")
        given |= _sides(op, size)
    request = {name: _value(op, name, value) for name, value in given.items() if value is not None}
    try:
        return json.dumps(request)
    except (TypeError, ValueError) as error:
        raise Error(f"{op}: expected numbers and strings, got {error}") from None


def _pixels(op: str, init: object) -> torch.Tensor | None:
    """uint8 (H, W, C) or (T, H, W, C) as the library takes it, (1, C, T, H, W) in [-1, 1]. None of a file."""
    if init is None or isinstance(init, (str, os.PathLike)):
        return None
    pixels = torch.as_tensor(init)
    if pixels.dtype != torch.uint8 or pixels.dim() not in (3, 4) or pixels.shape[-1] not in (1, 3):
        fail(
            f"{op}: init",
            "a file, or uint8 of shape (H, W, C) or (T, H, W, C)",
            f"{pixels.dtype} of shape {tuple(pixels.shape)}",
        )
    clip = pixels if pixels.dim() == 4 else pixels[None]
    return ((clip.float() - 127.5) / 127.5).permute(3, 0, 1, 2)[None].contiguous()


class Stream(Generic[_Frame]):
    """The frames of a clip, as they are made. Leaving a `with` or a loop, or `close()`, ends the clip; with
    `save_state` its state is written then.
    """

    def __init__(self, run: Any, numpy: bool) -> None:
        self._run = run
        self._numpy = numpy
        self._waiting: list[Any] = []
        self._ended = False
        job = json.loads(run.job())
        self.request: dict[str, Any] = job["items"][0]
        self.fps: float = job["fps"]
        self.remarks: list[str] = job["remarks"]

    def __iter__(self) -> Iterator[_Frame]:
        return self

    def __next__(self) -> _Frame:
        while not self._waiting:
            if self._ended:
                raise StopIteration
            try:
                kind, _, _, frames = _next_event(self._run)
            except BaseException:
                self._ended = True
                raise
            if kind == "end":
                self._ended = True
            else:
                self._waiting = list(frames.numpy() if self._numpy else frames)
        return self._waiting.pop(0)

    def close(self) -> None:
        """Ends the clip: frames that were not asked for are lost."""
        self._run.stop()
        self._waiting = []
        ended, self._ended = self._ended, True
        while not ended:
            ended = _next_event(self._run)[0] == "end"

    def __enter__(self) -> "Stream[_Frame]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _next_event(run: Any) -> tuple[str, int, int, torch.Tensor]:
    """Waits in short pieces: Ctrl-C is heard between two lines of Python only."""
    try:
        while True:
            event = run.next(0.05)
            if event[0]:
                return event
    except RuntimeError as error:
        raise _ours(error) from None
    except BaseException:
        _end(run)
        raise


def _end(run: Any) -> None:
    """Stops a run, and waits until it has: then the engine is free. What it ended with is not told."""
    run.stop()
    with contextlib.suppress(RuntimeError):
        while run.next(0.05)[0] != "end":
            pass


class Engine:
    """A model folder (config.json, model.safetensors, …), ready to make what `pom sample` makes.

    `device` is where the network runs: "cpu", "cuda", "cuda:N" or "auto". Results are on the CPU always.
    """

    def __init__(self, folder: _Path, device: str | torch.device = "cpu") -> None:
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

    @property
    def text_hash(self) -> str:
        """SHA-256 of the text encoder; empty where the model has none."""
        return self._engine.text_hash()

    @property
    def block_frames(self) -> int:
        """Frames of a clip that are made together; 1 of a model for images."""
        return self._engine.block_frames()

    def resolve(self, **request: Unpack[RequestFields]) -> list[dict[str, Any]]:
        """The single images or clips that a request stands for, each with every field filled in."""
        text = _json("resolve", request)
        try:
            return json.loads(self._engine.resolve(text))["items"]
        except RuntimeError as error:
            raise _ours(error) from None

    def _start(
        self,
        op: str,
        request: RequestFields,
        *,
        batch: int = 0,
        preview_every: int = 0,
        latents: bool = False,
        left_open: bool = False,
        noise: torch.Tensor | None = None,
    ) -> Any:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
            fail(f"{op}: batch", "an integer of at least 0", repr(batch))
        given = dict(request)
        pixels = _pixels(op, given.get("init"))
        if pixels is not None:
            del given["init"]
            network = self.config["network"]
            if pixels.shape[1] == 1:  # grey, in all colours
                pixels = pixels.expand(-1, network["channels"], -1, -1, -1).contiguous()
            if network["kind"] != "vdipom":
                pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        text = _json(op, given)  # type: ignore[arg-type]
        try:
            return self._engine.start(text, batch, preview_every, latents, left_open, noise, pixels)
        except RuntimeError as error:
            raise _ours(error) from None

    @overload
    def sample(
        self,
        *,
        batch: int = 0,
        output: Literal["torch", "latents"] = "torch",
        noise: torch.Tensor | None = None,
        on_step: Callable[[int, torch.Tensor], object] | None = None,
        **request: Unpack[RequestFields],
    ) -> tuple[torch.Tensor, list[dict[str, Any]]]: ...

    @overload
    def sample(
        self,
        *,
        batch: int = 0,
        output: Literal["numpy"],
        noise: torch.Tensor | None = None,
        on_step: Callable[[int, torch.Tensor], object] | None = None,
        **request: Unpack[RequestFields],
    ) -> "tuple[np.ndarray[Any, np.dtype[np.uint8]], list[dict[str, Any]]]": ...

    def sample(
        self,
        *,
        batch: int = 0,
        output: str = "torch",
        noise: torch.Tensor | None = None,
        on_step: Callable[[int, torch.Tensor], object] | None = None,
        **request: Unpack[RequestFields],
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Makes what the request's fields say: `class_` (or `class`) or `prompt`, `seed`, `count`, `size` (or
        `width` and `height`), `steps`, `sampler`, `cfg_scale` or `omega`, `dtype`, of clips `frames`, and the
        others of `RequestFields` and of `pom sample --help`. What is left out is the model's to choose.

        Gives uint8 images (B, H, W, C), or clips (B, T, H, W, C), a torch tensor or with output="numpy" an
        array, and the request of each one, complete: it makes the same again. output="latents" gives what
        would be decoded, (B, C, H, W) or (B, C, T, H, W) in fp32. `noise`, of that shape, takes the place of
        the seeds' noise. `on_step(step, images)` is called after every step with what the network expects
        the item of the batch to become, (T, H, W, C). `batch` bounds how many are made at a time and changes
        none of them. An engine works for one thread at a time: others that call it wait.
        """
        if output not in ("torch", "numpy", "latents"):
            fail("sample: output", '"torch", "numpy" or "latents"', repr(output))
        run = self._start(
            "sample",
            request,
            batch=batch,
            preview_every=1 if on_step is not None else 0,
            latents=output == "latents",
            noise=noise,
        )
        job = json.loads(run.job())
        if job["frames"] == 0:
            _end(run)
            fail("sample: frames", "a number, as a clip without end is for stream()", "inf")
        made: dict[int, list[torch.Tensor]] = {}
        while (event := _next_event(run))[0] != "end":
            kind, which, _, tensor = event
            if kind != "preview":
                made.setdefault(which, []).append(tensor)
            elif on_step is not None:
                try:
                    on_step(which, tensor)
                except BaseException:
                    _end(run)
                    raise
        parts = [made[item] for item in sorted(made)]
        if output == "latents":
            return torch.cat([torch.cat(part, 2) if part[0].dim() == 5 else part[0] for part in parts]), job[
                "items"
            ]
        result = torch.stack([torch.cat(part) for part in parts])
        if not job["clip"]:
            result = result[:, 0]
        return result.numpy() if output == "numpy" else result, job["items"]

    @overload
    def stream(
        self, *, output: Literal["torch"] = "torch", **request: Unpack[RequestFields]
    ) -> Stream[torch.Tensor]: ...

    @overload
    def stream(
        self, *, output: Literal["numpy"], **request: Unpack[RequestFields]
    ) -> "Stream[np.ndarray[Any, np.dtype[np.uint8]]]": ...

    def stream(self, *, output: str = "torch", **request: Unpack[RequestFields]) -> Stream[Any]:
        """The frames of one clip, uint8 (H, W, C), while they are made, block by block in constant memory.
        The sampler waits where nobody asks. `frames=math.inf` goes on until the loop is left. `save_state`
        writes where the stream stands when it ends (after the last block of which a frame was given), and
        `continue_from` goes on from there.
        """
        if output not in ("torch", "numpy"):
            fail("stream: output", '"torch" or "numpy"', repr(output))
        given: Any = {"stream": True} | dict(request)
        run = self._start("stream", given, left_open=True)
        job = json.loads(run.job())
        if len(job["items"]) != 1:
            _end(run)
            fail("stream: count", "one clip", f"{len(job['items'])} of them")
        return Stream(run, output == "numpy")
