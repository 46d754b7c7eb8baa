"""tools/unpickle.py: checkpoints of others as safetensors, and no code from them."""

import argparse
import importlib.util
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

TOOL = Path(__file__).resolve().parents[2] / "tools" / "unpickle.py"


@pytest.fixture
def unpickle(capsys):
    """Runs the tool: what it says on stdout, and on stderr or as its last word."""
    spec = importlib.util.spec_from_file_location("unpickle", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)

    def run(*words, code=0):
        try:
            ended = tool.main([str(word) for word in words])
        except SystemExit as end:
            ended = end.code
        said = capsys.readouterr()
        assert (0 if ended == 0 else 1) == code, ended
        return said.out, said.err.strip() if code == 0 else ended

    return run


def lightning(path):
    """As Lightning writes it, with an optimizer that has made a step."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state = OrderedDict((f"model.{name}", tensor) for name, tensor in model.state_dict().items())
    state |= {f"ema.ema_model.{name}": tensor / 2 for name, tensor in model.state_dict().items()}
    state |= {"ema.initted": torch.tensor(True), "ema.step": torch.tensor(7)}
    callback = "ModelCheckpoint{'monitor': None, 'mode': 'min'}"
    torch.save(
        {
            "epoch": 3, "global_step": 1200, "pytorch-lightning_version": "2.6.6", "state_dict": state,
            "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 4}}}},
            "callbacks": {callback: {"best_model_score": torch.tensor(0.5), "best_model_path": "last.ckpt"}},
            "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [{"last_epoch": 1200}],
        },
        path,
    )  # fmt: skip
    return state


def test_a_lightning_checkpoint(unpickle, tmp_path):
    state = lightning(tmp_path / "last.ckpt")
    said, left_out = unpickle(tmp_path / "last.ckpt")
    assert said == f"10 tensors of state_dict, 0.0 MB: {tmp_path / 'last.safetensors'}\n"
    assert left_out == (
        "left out: epoch, global_step, pytorch-lightning_version, loops, callbacks, optimizer_states, "
        "lr_schedulers"
    )
    got = load_file(tmp_path / "last.safetensors")
    assert got.keys() == state.keys()
    for name, tensor in state.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt", "last.safetensors"]


def test_the_official_training_program_of_dit(unpickle, tmp_path):
    """Its flags lie beside the weights, in a class of the standard library."""
    state = {"x": torch.randn(2), "y": torch.randn(3)}
    average = {name: tensor / 2 for name, tensor in state.items()}
    flags = argparse.Namespace(model="DiT-XL/2", image_size=256)
    torch.save({"model": state, "ema": average, "opt": {"state": {}}, "args": flags}, tmp_path / "a.pt")
    unpickle(tmp_path / "a.pt", "-o", tmp_path / "ema.safetensors")
    assert torch.equal(load_file(tmp_path / "ema.safetensors")["x"], average["x"])
    unpickle(tmp_path / "a.pt", "-o", tmp_path / "model.safetensors", "--part", "model")
    assert torch.equal(load_file(tmp_path / "model.safetensors")["x"], state["x"])
    message = "--part opt: expected tensors under that name, got none; parts with tensors: model, ema"
    assert (
        message in unpickle(tmp_path / "a.pt", "-o", tmp_path / "b.safetensors", "--part", "opt", code=1)[1]
    )


def test_a_bare_state_dict_with_shared_memory(unpickle, tmp_path):
    whole = torch.randn(4, 3)
    torch.save({"a": whole, "b": whole[1:], "c": whole.t(), "version": 2}, tmp_path / "w.bin")
    _, left_out = unpickle(tmp_path / "w.bin")
    assert left_out == "left out: version"
    got = load_file(tmp_path / "w.safetensors")
    assert torch.equal(got["b"], whole[1:]) and torch.equal(got["c"], whole.t())


def test_files_of_before_the_zip_format(unpickle, tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    unpickle(tmp_path / "old.pt")
    assert torch.equal(load_file(tmp_path / "old.safetensors")["a"], torch.ones(2))


class Touch:
    """What runs when it is unpickled the usual way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_code_of_the_file_runs(unpickle, tmp_path):
    torch.save({"state_dict": {"a": torch.ones(2)}, "x": Touch(tmp_path / "ran")}, tmp_path / "bad.ckpt")
    _, message = unpickle(tmp_path / "bad.ckpt", code=1)
    assert message.startswith(
        f"unpickle: {tmp_path / 'bad.ckpt'}: expected tensors and plain containers, which are all that is "
        "ever made: Unsupported"
    )
    assert not (tmp_path / "ran").exists() and not (tmp_path / "bad.safetensors").exists()


def test_nothing_is_overwritten_unasked(unpickle, tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "w.pt")
    (tmp_path / "w.safetensors").write_text("mine")
    _, message = unpickle(tmp_path / "w.pt", code=1)
    assert message == f"unpickle: {tmp_path / 'w.safetensors'} already exists; -y overwrites it"
    assert (tmp_path / "w.safetensors").read_text() == "mine"
    unpickle(tmp_path / "w.pt", "-y")
    assert torch.equal(load_file(tmp_path / "w.safetensors")["a"], torch.ones(2))


def test_what_is_no_checkpoint(unpickle, tmp_path):
    assert unpickle(tmp_path / "no.pt", code=1)[1] == f"unpickle: {tmp_path / 'no.pt'}: no such file"
    (tmp_path / "text.pt").write_text("hello")
    assert f"unpickle: {tmp_path / 'text.pt'}: " in unpickle(tmp_path / "text.pt", code=1)[1]
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    assert unpickle(tmp_path / "list.pt", code=1)[1] == (
        f"unpickle: {tmp_path / 'list.pt'}: expected weights, or a dict with one of state_dict, ema, model, "
        "model_state_dict, module, got list"
    )
