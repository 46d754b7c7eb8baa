"""The T5 encoder and its tokenizer in C++ against transformers and sentencepiece, with random weights and a
vocabulary trained here with T5's settings.

The program is tests/tools/t5_tool.cpp, built beside the library.
"""

import io
import json
import os
import random
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from tools import built_tool, referee

transformers = referee("transformers")
sentencepiece = referee("sentencepiece")

V11 = dict(vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=3, num_heads=6, feed_forward_proj="gated-gelu")
V10 = dict(vocab_size=128, d_model=48, d_kv=16, d_ff=96, num_layers=2, num_heads=3, feed_forward_proj="relu")
CASES = {
    "v1.1": V11,
    "v1.0": V10,
    "heads wider than the stream": V11 | dict(d_kv=40, num_heads=3),
    "one head": V10 | dict(num_heads=1, d_kv=7),
    "eight buckets to 20": V11 | dict(relative_attention_num_buckets=8, relative_attention_max_distance=20),
    "64 buckets to 256": V10 | dict(relative_attention_num_buckets=64, relative_attention_max_distance=256),
    "nine buckets to 40": V10 | dict(relative_attention_num_buckets=9, relative_attention_max_distance=40),
    "another epsilon": V11 | dict(layer_norm_epsilon=1e-3),
}
DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}


class Tool:
    """What the tool is asked, by words; one process for all of them, which starts once."""

    def __init__(self, process, folder):
        self.process, self.folder = process, folder

    def ask(self, *words):
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def call(self, command, place, tensors, **options):
        """What came, and what was said with it."""
        given, out = self.folder / "in.safetensors", self.folder / "out.safetensors"
        out.unlink(missing_ok=True)
        save_file(tensors, given)
        said = self.ask(command, place, given, out, *(f"{key}={value}" for key, value in options.items()))
        assert not said.startswith("error: "), said
        return load_file(out), said

    def refusal(self, command, place, tensors, **options):
        given, out = self.folder / "in.safetensors", self.folder / "out.safetensors"
        save_file(tensors, given)
        said = self.ask(command, place, given, out, *(f"{key}={value}" for key, value in options.items()))
        assert said.startswith("error: "), said
        return said.removeprefix("error: ")

    def states(self, place, ids, mask=None, **options):
        tensors = {"ids": ids} | ({} if mask is None else {"mask": mask.to(torch.uint8)})
        return self.call("states", place, tensors, **options)[0]["states"]

    def ids(self, model, texts):
        found, _ = self.call("ids", model, texts_tensors(texts))
        ends = [0, *found["ends"].tolist()]
        every = found["ids"].tolist()
        return [every[first:last] for first, last in zip(ends, ends[1:])]


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([built_tool("t5_tool"), "lines"], env=environment, **pipes) as process:
        yield Tool(process, tmp_path_factory.mktemp("t5"))
        process.stdin.close()


def texts_tensors(texts):
    data = [text.encode() if isinstance(text, str) else text for text in texts]
    ends = torch.tensor([len(text) for text in data], dtype=torch.int64).cumsum(0)
    return {"bytes": torch.frombuffer(bytearray(b"".join(data) + b"\0"), dtype=torch.uint8), "ends": ends}


def randomise(model):
    """Every tensor random, the bias of order 1: REFERENCE numbers are made likewise."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape)
            if value.dim() == 1:
                noise = 1 + 0.1 * noise
            elif "shared" not in name and "embed_tokens" not in name and "relative" not in name:
                noise *= value.shape[1] ** -0.5 * (0.5 if ".q." in name or ".k." in name else 1)
            value.copy_(noise)
    return model.eval()


def made(config, whole=False):
    """A network of transformers, of explicit products: its other paths round otherwise."""
    kind = transformers.T5ForConditionalGeneration if whole else transformers.T5EncoderModel
    given = transformers.T5Config(**config, attn_implementation="eager", decoder_start_token_id=0)
    return randomise(kind(given))


def ids_of(B, L, vocabulary=128):
    return torch.randint(0, vocabulary, (B, L))


def error(found, expected):
    """The largest difference over the largest value."""
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def expected_of(model, ids, mask=None):
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).last_hidden_state


MASKS = {
    "no mask": None,
    "padded": [[1] * 20 + [0] * 17, [1] * 37, [1] + [0] * 36],
    "holes": [[1, 0] * 18 + [1], [0] * 30 + [1] * 7, [1] * 37],
    "nothing counts": [[0] * 37, [1] * 37, [0] * 37],
}


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("case", CASES)
def test_states_are_those_of_transformers(case, masked, tool, tmp_path):
    model, ids = made(CASES[case]), ids_of(3, 37)
    mask = None if MASKS[masked] is None else torch.tensor(MASKS[masked])
    model.save_pretrained(tmp_path)
    assert error(tool.states(tmp_path, ids, mask), expected_of(model, ids, mask)) < 5e-6
    exact = expected_of(model.double(), ids, mask)
    assert error(tool.states(tmp_path, ids, mask, dtype="fp64"), exact) < 1e-12


@pytest.mark.parametrize("length", [1, 2, 7, 64, 130, 301])
def test_states_of_any_length(length, tool, tmp_path):
    model, ids = made(V11), ids_of(2, length)
    model.save_pretrained(tmp_path)
    exact = expected_of(model.double(), ids)
    assert error(tool.states(tmp_path, ids, dtype="fp64"), exact) < 1e-12
