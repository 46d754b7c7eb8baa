"""Model folders: config.json and model.safetensors, of clips text_encoder/model.safetensors too."""

import contextlib
import os
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ..errors import Error, fail
from . import strict_json, tensor_file
from .config import (
    CodecConfig,
    DiffusionConfig,
    ModelConfig,
    SampleDefaults,
    TextConfig,
    variant,
)
from .dipom import DiPoM
from .fields import pages, tree, updated
from .tensor_file import quoted
from .vdipom import VDiPoM
from .words import Words

_CONFIG, _WEIGHTS, _TEXT = "config.json", "model.safetensors", "text_encoder/model.safetensors"
_MOST_CONFIG = 16 << 20  # bytes
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

Folder = str | os.PathLike[str]


# --- reading ---


def read_config(folder: Folder) -> ModelConfig:
    """What config.json says, with the defaults filled in. What is wrong with it is a libpom.Error that begins
    with its path and the name of the field."""
    path = _file(folder, _CONFIG)
    text = path.read_bytes()[: _MOST_CONFIG + 1]
    source = str(path)
    if len(text) > _MOST_CONFIG:
        fail(source, f"at most {_MOST_CONFIG} bytes of JSON", "more")
    try:
        said = strict_json.loads(text.decode(), source)
    except UnicodeDecodeError as error:
        raise Error(f"{source}: expected text in UTF-8, got other bytes at {error.start}") from None
    if not isinstance(said, dict):
        fail(source, "an object {…}", type(said).__name__)
    for needed in ("format", "network"):
        if needed not in said:
            raise Error(f"{source}: missing field {needed}")
    config = updated(ModelConfig(), said, source)
    if config.network.variant:  # the variant first, then what the file says
        named = variant(config.network.variant, f"{source}: network.")
        config = updated(ModelConfig(network=named), said, source)
    if "classes" not in said["network"] and config.classes:
        config = replace(config, network=replace(config.network, classes=len(config.classes)))
    config.check(f"{source}: ")
    return config


def load(
    folder: Folder,
    *,
    dtype: torch.dtype | None = torch.float32,
    device: torch.device | str = "cpu",
    checkpointing: bool = False,
) -> DiPoM | VDiPoM:
    """The network of a model folder, with its weights.

    Every tensor is accounted for: one that is missing, surplus or of another shape is a libpom.Error that
    names it.

    Args:
        folder: with config.json and model.safetensors.
        dtype: of the weights, whatever that of the file; None: as stored.
        device: where they are.
        checkpointing: see `DiPoM`.
    """
    config = read_config(folder)
    kind = VDiPoM if config.network.video else DiPoM
    network = kind.from_config(config.network, checkpointing=checkpointing, device="meta")
    network.model_config = config
    with tensor_file.TensorFile(_file(folder, _WEIGHTS)) as file:
        _fill(network, file, dtype, device)
    return network


def load_text(folder: Folder, *, device: torch.device | str = "cpu") -> Words:
    """The text encoder of a folder with a model for clips."""
    with tensor_file.TensorFile(_file(folder, _TEXT)) as file:
        lines = (file.metadata or {}).get("words")
        if lines is None:
            fail(file.path, 'the words in the metadata under "words"', "none")
        places = file.tensors.get("places")
        if places is None or len(places.shape) != 2:
            fail(file.path, "a text encoder of kind words", "another file")
        layers = sum(name.startswith("near.") and name.endswith(".weight") for name in file.tensors)
        mixers = sum(name.startswith("far.") and name.endswith(".ho_proj.weight") for name in file.tensors)
        limit, width = places.shape
        try:
            words = Words(
                lines.removesuffix("\n").split("\n") if lines else [],
                width=width, limit=limit, layers=layers, mixers=mixers, device="meta",
            )  # fmt: skip
        except Error as error:
            raise Error(f"{file.path}: {error}") from None
        _fill(words, file, torch.float32, device)
    return words


def _file(folder: Folder, name: str) -> Path:
    folder = Path(folder)
    if not folder.exists():
        raise Error(f"model folder: {folder}: no such folder")
    if not folder.is_dir():
        fail(f"model folder: {folder}", f"a folder with {_CONFIG} and {_WEIGHTS}", "a file")
    if not (folder / name).is_file():
        raise Error(f"model folder: {folder}: no {name}")
    return folder / name


def _fill(
    module: nn.Module, file: tensor_file.TensorFile, dtype: torch.dtype | None, device: torch.device | str
) -> None:
    """Gives a module that is on the meta device the tensors of a file as its parameters."""
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: info.shape for name, info in file.tensors.items() if name != "freqs"}  # which is computed
    _account(expected, found, file.path)
    state = {name: file.read(name).to(device=device, dtype=dtype) for name in expected}
    module.load_state_dict(state, assign=True)


def _account(
    expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], where: str
) -> None:
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    if missing:
        first = f'{where}: tensor "{missing[0]}" of shape {expected[missing[0]]} is missing'
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        other = (
            f"; the file has {len(extra)} that the network does not, {quoted(extra[0])} first"
            if extra
            else ""
        )
        raise Error(first + more + other + _guess(expected, extra))
    if extra:
        more = f", nor are {len(extra) - 1} more" if len(extra) > 1 else ""
        raise Error(f"{where}: tensor {quoted(extra[0])} is not part of the network{more}")
    for name, shape in expected.items():
        if found[name] != shape:
            fail(f'{where}: tensor "{name}"', f"shape {shape}", found[name])


def _guess(expected: Mapping[str, tuple[int, ...]], extra: Sequence[str]) -> str:
    """What other names may mean."""
    counts: dict[str, int] = {}
    for name in extra:
        parts = name.split(".")
        for i in range(1, min(len(parts), 16)):
            if ".".join(parts[i:]) in expected:
                prefix = ".".join(parts[:i]) + "."
                counts[prefix] = counts.get(prefix, 0) + 1
    for prefix, count in counts.items():
        if count * 2 > len(expected):
            return (
                f"; {count} of the names begin with {quoted(prefix)}: are these the weights of a training "
                "checkpoint? Take the prefix off"
            )
    if any(".hom." in name for name in extra):
        return '; names with "hom" are the authors\': here they say "pom"'
    return ""


# --- writing ---


def save(
    network: DiPoM | VDiPoM,
    folder: Folder,
    *,
    text: Words | None = None,
    name: str | None = None,
    classes: Sequence[str] | None = None,
    diffusion: DiffusionConfig | None = None,
    codec: CodecConfig | None = None,
    sample: SampleDefaults | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a model folder that `load`, `libpom.Engine` and `pom sample` take.

    What is left out is as `load` found it, or the default of config.json. Files appear whole or not at all.

    Args:
        network: the network, or a `torch.compile`d one; its weights may be an average (EMA) of others.
        folder: is made where it is missing.
        text: the encoder that a network for clips was trained with. Without one only Python can use the
            folder, with tokens from elsewhere.
        name: of the model.
        classes: names, one for each class.
        diffusion: what the network predicts.
        codec: what turns images into its latents.
        sample: settings for sampling; the size of images first of all.
        dtype: of the stored weights: float32, bfloat16, float16 or float64; None: as they are.
        overwrite: whether a model that is there may be replaced.
    """
    network = getattr(network, "_orig_mod", network)
    if not isinstance(network, (DiPoM, VDiPoM)):
        fail("save: network", "a DiPoM or VDiPoM", type(network).__name__)
    if dtype is not None and dtype not in _DTYPES:
        fail("save: dtype", "float32, bfloat16, float16 or float64", dtype)
    if isinstance(classes, str):
        fail("save: classes", "a list of names", repr(classes))
    given: dict[str, Any] = {
        "name": name, "classes": None if classes is None else tuple(classes), "diffusion": diffusion,
        "codec": codec, "sample": sample,
    }  # fmt: skip
    config = replace(
        network.model_config, **{key: value for key, value in given.items() if value is not None}
    )
    config = replace(config, text=_text_config(config, text))
    config.check("save: ")
    weights = _stored(network, dtype)
    files: dict[str, Callable[[BinaryIO], object]] = {
        _CONFIG: lambda file: file.write(f"{pages(tree(config))}\n".encode())
    }
    if text is not None:
        encoder = {key: tensor.detach().float() for key, tensor in text.state_dict().items()}
        lines = {"words": "".join(f"{word}\n" for word in text.vocabulary)}
        files[_TEXT] = lambda file: tensor_file.write(file, encoder, lines)
    elif config.network.video and not (Path(folder) / _TEXT).exists():
        _warn(f"text: none given, so that only Python can use {folder}; pass text=Words(…)")
    if config.codec.kind == "pixels" and config.network.channels not in (1, 3):
        _warn(
            f"network: {config.network.channels} channels, where the codec pixels has 1 or 3, so that only "
            f"Python can use {folder}"
        )
    files[_WEIGHTS] = lambda file: tensor_file.write(file, weights)
    _write_all(Path(folder), files, overwrite)


def _warn(message: str) -> None:
    warnings.warn(f"libpom: save: {message}", stacklevel=3)


def _text_config(config: ModelConfig, text: Words | None) -> TextConfig:
    if text is None:
        return replace(config.text, width=config.network.text_width) if config.network.video else config.text
    if not config.network.video:
        fail("save: text", "none for a network of images", "an encoder")
    if text.config.width != config.network.text_width:
        expected = f"tokens of width {config.network.text_width}, as the network's text_width says"
        fail("save: text", expected, text.config.width)
    return text.config


def _stored(network: DiPoM | VDiPoM, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The weights as they are written: those of the network that the config says, and no others."""
    plain = (VDiPoM if network.config.video else DiPoM).from_config(network.config, device="meta")
    state = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    expected, found = (
        {name: tuple(t.shape) for name, t in tensors.items()} for tensors in (plain.state_dict(), state)
    )
    _account(expected, found, "save: network")
    return {name: tensor.to(dtype) for name, tensor in state.items()}


def _write_all(folder: Path, files: Mapping[str, Callable[[BinaryIO], object]], overwrite: bool) -> None:
    """Writes all files beside their places, then moves them there, the weights last."""
    if folder.exists() and not folder.is_dir():
        fail("save: folder", "a folder, or nothing there", f"the file {folder}")
    there = [folder / name for name in (_CONFIG, _WEIGHTS, _TEXT) if (folder / name).exists()]
    if there and not overwrite:
        raise Error(f"save: folder: {there[0]} already exists; pass overwrite=True to replace it")
    with contextlib.ExitStack() as undo:
        moves = []
        for name, write in files.items():
            _make_folder((folder / name).parent, undo)
            temporary = (folder / name).parent / f".pom-tmp-{secrets.token_hex(8)}"
            undo.callback(temporary.unlink, missing_ok=True)
            with open(temporary, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            moves.append((temporary, folder / name))
        for temporary, target in moves:
            os.replace(temporary, target)
            _sync_folder(target.parent)
        undo.pop_all()


def _make_folder(folder: Path, undo: contextlib.ExitStack) -> None:
    """With those above it; on failure what was made goes again, as long as it is empty."""
    if folder.exists():
        return
    _make_folder(folder.parent, undo)
    folder.mkdir(exist_ok=True)

    def remove() -> None:
        with contextlib.suppress(OSError):
            folder.rmdir()

    undo.callback(remove)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot, and say so this way
            os.fsync(handle)
    finally:
        os.close(handle)
