"""Turns the tensors of a PyTorch checkpoint (.ckpt, .pt, .pth, .bin) into a .safetensors file.

    python tools/unpickle.py last.ckpt -o last.safetensors
    pom convert last.safetensors --from homm -o out/dipom

The file is opened with `torch.load(weights_only=True)`, which makes tensors and plain containers and runs no
code from it. Of a training checkpoint the weights are taken, not the rest (optimizer, loops, callbacks).
Needs torch and safetensors.
"""

import argparse
import os
import pickle
import secrets
import sys
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import save_file
from torch import Tensor

# Where training programs put their weights, the first that is there: Lightning, then DiT and SiT, whose
# averaged weights are the ones to sample with, then others.
PARTS = ("state_dict", "ema", "model", "model_state_dict", "module")


def refuse(message: str) -> NoReturn:
    raise SystemExit(f"unpickle: {message}")


def opened(path: Path) -> Any:
    """What the file holds, on the host."""
    if not path.is_file():
        refuse(f"{path}: no such file")
    if path.suffix == ".safetensors":
        refuse(f"{path}: this is a safetensors file already")
    try:
        # DiT and SiT keep their flags beside the weights: a class that only holds values.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        text = str(error)
        what = text[text.index("Unsupported") :] if "Unsupported" in text else text
        first = what.strip().splitlines()[0]
        refuse(f"{path}: expected tensors and plain containers, which are all that is ever made: {first}")
    except (RuntimeError, EOFError, ValueError, KeyError, UnicodeDecodeError) as error:
        refuse(f"{path}: expected a checkpoint of torch.save: {str(error).strip().splitlines()[0]}")


def is_weights(value: object) -> bool:
    """A dict of names to tensors, among which a few other things may be."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return False
    return any(isinstance(tensor, Tensor) for tensor in value.values())


def chosen(content: Any, part: str | None, path: Path) -> tuple[str, dict[str, Any]]:
    """The name of the part that holds the weights ("" for the whole), and its content."""
    keys = [key for key in content if isinstance(key, str)] if isinstance(content, dict) else []
    if part is not None:
        if part not in keys or not is_weights(content[part]):
            there = ", ".join(key for key in keys if is_weights(content[key])) or "none"
            refuse(
                f"{path}: --part {part}: expected tensors under that name, got none; parts with tensors: "
                f"{there}"
            )
        return part, content[part]
    for name in PARTS:
        if name in keys and is_weights(content[name]):
            return name, content[name]
    if is_weights(content):
        return "", content
    shown = ", ".join(keys[:12]) or type(content).__name__
    refuse(f"{path}: expected weights, or a dict with one of {', '.join(PARTS)}, got {shown}")


def tensors_of(weights: dict[str, Any], path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors, each with memory of its own, and the names of what is none."""
    tensors, others = {}, []
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            others.append(name)
            continue
        if value.is_sparse or value.is_quantized or value.is_complex():
            refuse(
                f"{path}: tensor {name}: expected a dense one of real numbers, got {value.dtype} "
                f"({value.layout})"
            )
        tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
    return tensors, others


def write(tensors: dict[str, Tensor], output: Path) -> None:
    """Whole or not at all."""
    temporary = output.parent / f".pom-tmp-{secrets.token_hex(8)}"
    try:
        save_file(tensors, temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help=".ckpt, .pt, .pth or .bin")
    parser.add_argument("-o", "--output", type=Path, help="default: beside the source, with .safetensors")
    parser.add_argument("--part", help=f"where the weights are (default: the first of {', '.join(PARTS)})")
    parser.add_argument("-y", "--yes", action="store_true", help="overwrite a file that exists")
    flags = parser.parse_args(arguments)
    output = flags.output or flags.source.with_suffix(".safetensors")
    if output.suffix != ".safetensors":
        refuse(f"--output: expected a name that ends in .safetensors, got {output}")
    if output.exists() and not flags.yes:
        refuse(f"{output} already exists; -y overwrites it")
    if not output.parent.is_dir():
        refuse(f"--output: expected a folder that is there, got {output.parent}")
    content = opened(flags.source)
    part, weights = chosen(content, flags.part, flags.source)
    tensors, others = tensors_of(weights, flags.source)
    write(tensors, output)
    left_out = [str(key) for key in content if key != part] if part else others
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    print(f"{len(tensors)} tensors{f' of {part}' if part else ''}, {size / 1e6:.1f} MB: {output}")
    if left_out:
        print(f"left out: {', '.join(left_out)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
