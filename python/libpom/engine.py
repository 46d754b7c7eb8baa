"""The engine from Python: opens a model folder, makes images and clips. The work is done by libpom.so.

engine = libpom.Engine("assets/shapes64")
images, requests = engine.sample(class_="star", seed=7, count=2, steps=10)

engine = libpom.Engine("assets/sprites32")
for frame in engine.stream(prompt="a red star drifts up over black", frames=48):
    show(frame)
"""

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import torch
from typing_extensions import Unpack

from . import _library
from .errors import Error, fail
from .init_pixels import for_library, of_item, read_pixels, tensor_of
from .request import RequestFields, check_names, to_json

if TYPE_CHECKING:
    import numpy as np

_Frame = TypeVar("_Frame")
_Path = str | os.PathLike[str]
_OTHER_OUTPUTS = {"pt": "torch", "np": "numpy", "latent": "latents"}  # what diffusers calls them


def _ours(error: RuntimeError, op: str) -> Error:
    """What C++ said, without what torch adds to it; there every operation is called sample."""
    text = str(error).split("\nException raised from")[0].rstrip()
    return Error(f"{op}: {text.removeprefix('sample: ')}" if text.startswith("sample: ") else text)


def _need_library(op: str) -> None:
    if _library.path is None:
        fail(f"{op}: libpom.so", "the compiled library", f"none: {_library.reason or 'it is not loaded'}")


def samplers() -> list[str]:
    """The names that `sampler` takes."""
    _need_library("samplers")
    return list(torch.ops.pom.sampler_names())


def _output(op: str, output: str, choices: tuple[str, ...]) -> str:
    output = _OTHER_OUTPUTS.get(output, output)
    if output not in choices:
        words = " or ".join([", ".join(f'"{choice}"' for choice in choices[:-1]), f'"{choices[-1]}"'])
        pil = ', from which PIL.Image.fromarray makes images: output="numpy"' if output == "pil" else ""
        fail(f"{op}: output", words, f"{output!r}{pil}")
    return output


def _warn(remarks: list[str]) -> None:
    """What the program says on stderr, in the line that called the engine."""
    for remark in remarks:
        warnings.warn(remark, stacklevel=3)


class Stream(Generic[_Frame]):
    """The frames of a clip, as they are made. Leaving a `with` or a loop, or `close()`, ends the clip; with
    `save_state` its state is written then.
    """

    def __init__(self, run: Any, job: dict[str, Any], numpy: bool) -> None:
        self._run = run
        self._numpy = numpy
        self._waiting: list[Any] = []
        self._ended = False
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
                kind, _, _, frames = _next_event(self._run, "stream")
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
            ended = _next_event(self._run, "stream")[0] == "end"

    def __enter__(self) -> "Stream[_Frame]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _next_event(run: Any, op: str) -> tuple[str, int, int, torch.Tensor]:
    """Waits in short pieces: Ctrl-C is heard between two lines of Python only."""
    try:
        while True:
            event = run.next(0.05)
            if event[0]:
                return event
    except RuntimeError as error:
        raise _ours(error, op) from None
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
    """A model, ready to make what `pom sample` makes. It is a folder (config.json, model.safetensors, …), or
    the name of one in $POM_MODELS, assets/ or models/.

    `device` is where the network runs: "cpu", "cuda", "cuda:N" or "auto". Results are on the CPU always.
    """

    def __init__(self, folder: _Path, device: str | torch.device = "cpu") -> None:
        _need_library("Engine")
        try:
            self._engine = torch.classes.pom.Engine(os.fspath(folder), str(device))
        except RuntimeError as error:
            raise _ours(error, "Engine") from None
        config = self.config
        self._clips: bool = config["network"]["kind"] == "vdipom"
        of_pixels = config["codec"]["kind"] == "pixels"
        self._channels: int = config["network"]["channels"] if of_pixels else 3  # of images, not of latents

    def __repr__(self) -> str:
        width, height = self.config["sample"]["size"]
        what = f"clips of {width}x{height} from text"
        if not self._clips:
            what = f"images of {width}x{height}, {len(self.classes)} classes"
        return f"<libpom.Engine {self.name!r}: {what}, on {self.device}>"

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
    def classes(self) -> list[str]:
        """The names that `class_` takes, in the order of their numbers; none of a model that reads text."""
        config = self.config
        if self._clips:
            return []
        return config["classes"] or [str(number) for number in range(config["network"]["classes"])]

    @property
    def weights_hash(self) -> str:
        """SHA-256 of model.safetensors."""
        try:
            return self._engine.weights_hash()
        except RuntimeError as error:
            raise _ours(error, "weights_hash") from None

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
        text, pixels = self._read("resolve", request)
        try:
            items: list[dict[str, Any]] = json.loads(self._engine.resolve(text, self._values(pixels)))[
                "items"
            ]
        except RuntimeError as error:
            raise _ours(error, "resolve") from None
        return self._complete(items, pixels, None)

    def _read(self, op: str, request: Mapping[str, object]) -> tuple[str, torch.Tensor | None]:
        """The request as the library reads it, and the pixels of its init."""
        check_names(op, request)
        pixels = read_pixels(op, request.get("init"), self._clips)
        if pixels is not None:
            request = {name: value for name, value in request.items() if name != "init"}
        return to_json(op, request), pixels

    def _values(self, pixels: torch.Tensor | None) -> torch.Tensor | None:
        return None if pixels is None else for_library(pixels, self._clips, self._channels)

    def _complete(
        self, items: list[dict[str, Any]], pixels: torch.Tensor | None, noise: torch.Tensor | None
    ) -> list[dict[str, Any]]:
        """Each with what it was made from that JSON does not hold."""
        for number, item in enumerate(items):
            if pixels is not None:
                item["init"] = of_item(pixels, number, self._clips)
            if noise is not None:
                item["noise"] = noise[number : number + 1]
        return items

    def _start(
        self,
        op: str,
        request: Mapping[str, object],
        *,
        batch: int = 0,
        preview_every: int = 0,
        latents: bool = False,
        left_open: bool = False,
        noise: object = None,
    ) -> tuple[Any, dict[str, Any]]:
        """The run, and what it will make."""
        text, pixels = self._read(op, request)
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
            fail(f"{op}: batch", "an integer of at least 0", repr(batch))
        given = tensor_of(noise)
        if noise is not None and given is None:
            fail(f"{op}: noise", "a tensor", type(noise).__name__)
        try:
            run = self._engine.start(
                text, batch, preview_every, latents, left_open, given, self._values(pixels)
            )
        except RuntimeError as error:
            raise _ours(error, op) from None
        job = json.loads(run.job())
        self._complete(job["items"], pixels, given)
        return run, job

    @overload
    def sample(
        self,
        *,
        batch: int = 0,
        output: Literal["torch", "pt", "latents", "latent"] = "torch",
        noise: "torch.Tensor | np.ndarray[Any, Any] | None" = None,
        on_step: Callable[[int, int, torch.Tensor], object] | None = None,
        **request: Unpack[RequestFields],
    ) -> tuple[torch.Tensor, list[dict[str, Any]]]: ...

    @overload
    def sample(
        self,
        *,
        batch: int = 0,
        output: Literal["numpy", "np"],
        noise: "torch.Tensor | np.ndarray[Any, Any] | None" = None,
        on_step: Callable[[int, int, torch.Tensor], object] | None = None,
        **request: Unpack[RequestFields],
    ) -> "tuple[np.ndarray[Any, np.dtype[np.uint8]], list[dict[str, Any]]]": ...

    def sample(
        self,
        *,
        batch: int = 0,
        output: str = "torch",
        noise: "torch.Tensor | np.ndarray[Any, Any] | None" = None,
        on_step: Callable[[int, int, torch.Tensor], object] | None = None,
        **request: Unpack[RequestFields],
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Makes what the request's fields say: `class_` (or `class`) or `prompt`, `seed`, `count`, `size` (or
        `width` and `height`), `steps`, `sampler`, `cfg_scale` or `omega`, `dtype`, of clips `frames`, and the
        others of `RequestFields` and of `pom sample --help`. What is left out is the model's to choose; the
        seed is 0 then, and the classes are all.

        Gives uint8 images (B, H, W, C), or clips (B, T, H, W, C), a torch tensor or with output="numpy" an
        array, and the request of each one, complete: `sample(**request)` makes the same again. (Pixels that
        were given as `init`, and `noise`, are in it too.) output="latents" gives what would be decoded,
        (B, C, H, W) or (B, C, T, H, W) in fp32. `noise`, of that shape, takes the place of the seeds' noise.
        `on_step(step, item, image)` is called after every step (from 1 on) for each item (from 0 on) with
        what the network expects it to become: (H, W, C), of clips (T, H, W, C). `batch` bounds how many are
        made at a time and changes none of them. What the program would remark on (a word that the text
        encoder does not know, a size that the model was not trained at) comes as a warning. An engine works
        for one thread at a time: others that call it wait.
        """
        output = _output("sample", output, ("torch", "numpy", "latents"))
        run, job = self._start(
            "sample",
            request,
            batch=batch,
            preview_every=1 if on_step is not None else 0,
            latents=output == "latents",
            noise=noise,
        )
        if job["frames"] == 0:
            _end(run)
            fail("sample: frames", "a number, as a clip without end is for stream()", "inf")
        _warn(job["remarks"])
        made: dict[int, list[torch.Tensor]] = {}
        while (event := _next_event(run, "sample"))[0] != "end":
            kind, which, item, tensor = event
            if kind != "preview":
                made.setdefault(which, []).append(tensor)
            elif on_step is not None:
                try:
                    on_step(which, item, tensor if job["clip"] else tensor[0])
                except BaseException:
                    _end(run)
                    raise
        return _together(made, output, job["clip"]), job["items"]

    @overload
    def stream(
        self, *, output: Literal["torch", "pt"] = "torch", **request: Unpack[RequestFields]
    ) -> Stream[torch.Tensor]: ...

    @overload
    def stream(
        self, *, output: Literal["numpy", "np"], **request: Unpack[RequestFields]
    ) -> "Stream[np.ndarray[Any, np.dtype[np.uint8]]]": ...

    def stream(self, *, output: str = "torch", **request: Unpack[RequestFields]) -> Stream[Any]:
        """The frames of one clip, uint8 (H, W, C), while they are made, block by block in constant memory.
        The sampler waits where nobody asks. `frames=math.inf` goes on until the loop is left. `save_state`
        writes where the stream stands when it ends (after the last block of which a frame was given), and
        `continue_from` goes on from there.
        """
        output = _output("stream", output, ("torch", "numpy"))
        given: dict[str, object] = {"stream": True, **request}
        run, job = self._start("stream", given, left_open=True)
        if len(job["items"]) != 1:
            _end(run)
            fail("stream: count", "one clip", f"{len(job['items'])} of them")
        _warn(job["remarks"])
        return Stream(run, job, output == "numpy")


def _together(made: dict[int, list[torch.Tensor]], output: str, clip: bool) -> Any:
    """All items, in order, of the parts that came of each."""
    parts = [made[item] for item in sorted(made)]
    if output == "latents":
        return torch.cat([torch.cat(part, 2) if part[0].dim() == 5 else part[0] for part in parts])
    result = torch.stack([torch.cat(part) for part in parts])
    if not clip:
        result = result[:, 0]
    return result.numpy() if output == "numpy" else result
