"""What the tests of `pom train` share: a tiny run, and how its state is read and compared."""

import hashlib
import json
import os
import signal
import subprocess

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from tools import built_program

RECIPE = """
[run]
steps = 240
seed = 5
threads = 1
[data]
size = [8, 8]
validation = 16
workers = 1
[network]
dim = 16
depth = 1
patch = 2
[batch]
size = 4
[optimizer]
lr = 2e-3
warmup = 10
[ema]
decay = 0.99
[log]
every = 20
validate_every = 80
checkpoint_every = 20
keep = 3
"""


def program():
    return str(built_program())


def environment(**more):
    keep = {k: v for k, v in os.environ.items() if k not in ("POM_FAILPOINT", "NO_COLOR")}
    return keep | {"OMP_WAIT_POLICY": "PASSIVE"} | {k: str(v) for k, v in more.items()}


def pom_train(*arguments, env=None, **options):
    words = [program(), "train", *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": 300} | options
    return subprocess.run(words, env=env or environment(), **options)


def full_disk_at(file, *arguments):
    """Trains on a disk that is full when this file is written: one attempt for each file before it."""
    for number in range(1, 40):
        result = pom_train(*arguments, env=environment(POM_FAILPOINT=f"atomic_file.sync:{number}:ENOSPC"))
        assert result.returncode == 1 and "No space left on device" in result.stderr, result.stderr
        if file in result.stderr:
            return
    pytest.fail(f"{file} was never written")


def write_recipe(folder, text=RECIPE):
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def checkpoints(run):
    """The newest last."""
    return sorted((run / "checkpoints").glob("step_*.safetensors"))


def read_checkpoint(path):
    """Its tensors, and its metadata as texts."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


IN_SAVES = ["write", "sync", "close", "rename", "sync_folder"]


def kill_at(moment, words):
    """Starts the program and kills it after so many seconds; its exit status."""
    process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return process.wait(timeout=moment)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return process.wait()


def kill_in_save(words, chance):
    """The program kills itself within some write of a file, at a step of it that chance chooses."""
    failpoint = f"atomic_file.{chance.choice(IN_SAVES)}:{chance.randint(1, 25)}"
    return subprocess.run(
        words,
        env=environment(POM_FAILPOINT=failpoint),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ).returncode


DTYPES = {"torch.float32": "F32", "torch.float64": "F64"}


def digest(tensors, metadata):
    """As pom/train/checkpoint.h describes it."""
    sha = hashlib.sha256()

    def part(data):
        sha.update(f"{len(data)}:".encode() + data)

    part(metadata["state"].encode())
    part(metadata["recipe"].encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        shape = "(" + ", ".join(map(str, tensor.shape)) + ")"
        for text in (name, DTYPES[str(tensor.dtype)], shape):
            part(text.encode())
        part(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()


def write_checkpoint(path, tensors, metadata):
    save_file(tensors, path, metadata | {"sha256": digest(tensors, metadata)})


def files(folder):
    """Every file below a folder, with what is in it; the lock has the number of whoever looked last."""
    names = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def state_of(metadata):
    """All of it but the time that was spent."""
    state = json.loads(metadata["state"])
    state.pop("seconds")
    return state


def differences(one, other):
    """Names of what is not equal, bit for bit, between the last checkpoints of two runs."""
    (a, about_a), (b, about_b) = (read_checkpoint(checkpoints(run)[-1]) for run in (one, other))
    assert a.keys() == b.keys()
    found = [name for name in a if a[name].numpy().tobytes() != b[name].numpy().tobytes()]
    return found + [k for k, v in state_of(about_a).items() if v != state_of(about_b)[k]]
