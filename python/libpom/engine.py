"""The engine from Python: opens a model folder, draws pictures. The work is done by libpom.so.

engine = libpom.Engine("assets/shapes64")
pictures, requests = engine.sample(class_="star", seed=7, count=2, steps=10)
"""

import json
import math
import os
import threading

import torch

from . import _library
from .errors import Error, fail

_PYTHON_NAMES = {"class_": "class"}  # `class` itself is a word of the language
_FORMER_NAMES = {"clip": "clamp"}


def _ours(error: RuntimeError) -> Error:
    """What C++ said, without what torch adds to it."""
    return Error(str(error).split("\nException raised from")[0].rstrip())


def _json(op: str, fields: dict[str, object]) -> str:
    """Those that are given (not None), as the library reads them."""
    request: dict[str, object] = {}
    for name, value in fields.items():
        field = _PYTHON_NAMES.get(name, name)
        if name in _FORMER_NAMES:
            fail(f"{op}: {name}", f"its new name, {_FORMER_NAMES[name]}", "the old one")
        if field in request:
            fail(f"{op}: {field}", "it once", "it as class and as class_")
        if value is None:
            continue
        if field == "class" and isinstance(value, (list, tuple, range)):
            value = ",".join(str(item) for item in value)
        if field in ("class", "omega") and isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, float) and not math.isfinite(value):
            fail(f"{op}: {field}", "a finite number", value)
        request[field] = value
    try:
        return json.dumps(request)
    except (TypeError, ValueError) as error:
        raise Error(f"{op}: expected numbers and texts, got {error}") from None


class Engine:
    """A model folder (config.json, model.safetensors), ready to draw. Pictures are those of `pom sample`.

    `device` is where the network runs: "cpu", "cuda", "cuda:N" or "auto". Pictures are on the CPU always.
    """

    def __init__(self, folder: str | os.PathLike, device: str | torch.device = "cpu"):
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
    def config(self) -> dict:
        """What config.json says, with the defaults filled in."""
        return json.loads(self._engine.config())

    @property
    def weights_hash(self) -> str:
        """SHA-256 of model.safetensors."""
        try:
            return self._engine.weights_hash()
        except RuntimeError as error:
            raise _ours(error) from None

    def resolve(self, **request: object) -> list[dict]:
        """The single pictures that a request stands for, each with every field filled in."""
        text = _json("resolve", request)
        try:
            return json.loads(self._engine.resolve(text))
        except RuntimeError as error:
            raise _ours(error) from None

    def sample(self, *, batch: int = 0, **request: object) -> tuple[torch.Tensor, list[dict]]:
        """Draws what the request's fields say: `class_` (or `class`), `seed`, `count`, `steps`, `sampler`,
        `cfg_scale` or `omega`, `width`, `height`, `dtype` and the others of `pom sample --help`. What is left
        out is the model's to choose.

        Gives uint8 pictures (B, H, W, C) and the request of each one, complete: it draws the same picture
        again. `batch` bounds how many are drawn at a time and changes none of them. An engine draws for one
        thread at a time: others that call it wait.
        """
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
            fail("sample: batch", "an integer of at least 0", repr(batch))
        text = _json("sample", request)
        pictures, requests = self._interruptible(lambda: self._engine.sample(text, batch))
        return pictures, json.loads(requests)

    def _interruptible(self, work):
        """Runs work in a thread of its own: Ctrl-C reaches this one only between two lines of Python."""
        result, failure = [], []
        done, given_up = threading.Event(), threading.Event()

        def run():
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
