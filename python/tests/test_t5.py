"""The T5 encoder and its tokenizer in C++ against transformers and sentencepiece, with random weights and a
vocabulary trained here with T5's settings.

The program is tests/tools/t5_tool.cpp, built beside the library.
"""

import io
import itertools
import json
import os
import random
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from tools import built_tool, referee

transformers = referee("transformers")
sentencepiece = referee("sentencepiece")

V11 = {
    "vocab_size": 128,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 3,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
V10 = {
    "vocab_size": 128,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 3,
    "feed_forward_proj": "relu",
}
CASES = {
    "v1.1": V11,
    "v1.0": V10,
    "heads wider than the stream": V11 | {"d_kv": 40, "num_heads": 3},
    "one head": V10 | {"num_heads": 1, "d_kv": 7},
    "eight buckets to 20": V11 | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
    "64 buckets to 256": V10 | {"relative_attention_num_buckets": 64, "relative_attention_max_distance": 256},
    "nine buckets to 40": V10 | {"relative_attention_num_buckets": 9, "relative_attention_max_distance": 40},
    "another epsilon": V11 | {"layer_norm_epsilon": 1e-3},
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
        return [every[first:last] for first, last in itertools.pairwise(ends)]


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


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("case", ["v1.1", "v1.0"])
def test_low_precision(case, dtype, tool, tmp_path):
    """No further from fp64 than transformers is in the same dtype, and near to both."""
    model, ids, mask = made(CASES[case]), ids_of(3, 61), torch.ones(3, 61)
    mask[1, 30:] = 0
    model.save_pretrained(tmp_path)
    exact = expected_of(made_like(model, torch.float64), ids, mask)
    low = transformers.T5EncoderModel.from_pretrained(
        tmp_path, dtype=DTYPES[dtype], attn_implementation="eager"
    ).eval()
    theirs = expected_of(low, ids, mask)
    ours = tool.states(tmp_path, ids, mask, dtype=dtype)
    assert error(ours, theirs) < 2e-2
    assert error(ours, exact) < max(1.5 * error(theirs, exact), 1e-3)


def made_like(model, dtype):
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    return copy.eval().to(dtype)


def test_fp16_does_not_overflow(tool, tmp_path):
    """A feed-forward layer beyond fp16's range, as those of real models are."""
    model, ids = made(V11), ids_of(2, 20)
    with torch.no_grad():
        dense = model.encoder.block[1].layer[1].DenseReluDense
        dense.wi_0.weight *= 100
        dense.wi_1.weight *= 100
        dense.wo.weight *= 100
    model.save_pretrained(tmp_path)
    exact = expected_of(made_like(model, torch.float64), ids)
    assert error(tool.states(tmp_path, ids, dtype="fp16"), exact) < 1e-2


def test_a_prompt_does_not_depend_on_the_others(tool, tmp_path):
    model, ids = made(V11), ids_of(5, 33)
    model.save_pretrained(tmp_path)
    mask = torch.arange(33)[None, :] < torch.tensor([33, 1, 12, 30, 7])[:, None]
    for dtype in DTYPES:
        together = tool.states(tmp_path, ids, mask, dtype=dtype)
        for b in range(5):
            alone = tool.states(tmp_path, ids[b : b + 1], mask[b : b + 1], dtype=dtype)
            assert torch.equal(alone[0], together[b])


# What else folders look like.


@pytest.mark.parametrize("case", ["v1.1", "v1.0"])
def test_whole_models_in_shards_of_mixed_dtypes(case, tool, tmp_path):
    """As transformers writes what it has loaded in fp16: `wo` in fp32, with decoder and head."""
    made(CASES[case], whole=True).save_pretrained(tmp_path / "first")
    half = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "first", dtype=torch.float16)
    assert half.encoder.block[0].layer[1].DenseReluDense.wo.weight.dtype == torch.float32
    half.save_pretrained(tmp_path / "shards", max_shard_size="60KB")
    index = json.loads((tmp_path / "shards/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3
    ids = ids_of(2, 19)
    exact = expected_of(half.encoder.double(), ids)
    for dtype, most in {"fp64": 1e-12, "fp32": 5e-6}.items():
        assert error(tool.states(tmp_path / "shards", ids, dtype=dtype), exact) < most
    assert error(tool.states(tmp_path / "shards", ids), exact) < 2e-2  # in fp16, as stored


def rewritten(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("old", ["renamed", "both"])
def test_old_names(old, tool, tmp_path):
    model, ids = made(V10), ids_of(1, 9)
    model.save_pretrained(tmp_path)
    expected = tool.states(tmp_path, ids)

    def change(tensors):
        table = tensors["shared.weight"] if old == "both" else tensors.pop("shared.weight")
        tensors["encoder.embed_tokens.weight"] = table.clone()

    rewritten(tmp_path, change)
    assert torch.equal(tool.states(tmp_path, ids), expected)
    if old == "both":
        rewritten(tmp_path, lambda tensors: tensors["encoder.embed_tokens.weight"][5].add_(1))
        said = tool.refusal("states", tmp_path, {"ids": ids})
        assert said.endswith(
            ": expected shared.weight and encoder.embed_tokens.weight to be equal, got two that differ"
        )


def test_config_defaults(tool, tmp_path):
    """Fields that old files lack, of sizes as those of t5-small but for the vocabulary."""
    model = made({"vocab_size": 64, "num_layers": 1, "feed_forward_proj": "relu"})
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 64, "num_layers": 1, "num_heads": null, "x": [1]}')
    ids = ids_of(1, 140, 64)
    assert error(tool.states(tmp_path, ids), expected_of(model, ids)) < 5e-6


MISTAKES = {
    "gated-silu": (
        {"feed_forward_proj": "gated-silu"},
        'feed_forward_proj: unknown value "gated-silu"; did you mean "gated-gelu"?',
    ),
    "another network": ({"model_type": "clip_text_model"}, "model_type: unknown value"),
    "other width": ({"d_model": 65}, "expected the shape (96, 65) by config.json, got (96, 64)"),
    "more blocks": (
        {"num_layers": 4},
        "of them are missing: encoder.block.3.layer.0.SelfAttention.q.weight",
    ),
    "fewer blocks": ({"num_layers": 2}, "more: encoder.block.2.layer.0.SelfAttention"),
    "v1.0 for v1.1": ({"feed_forward_proj": "relu"}, "DenseReluDense.wi.weight"),
    "no distance": (
        {"relative_attention_max_distance": 8},
        "relative_attention_max_distance: expected more than a quarter of the buckets, 8, got 8",
    ),
    "a million blocks": ({"num_layers": 10**6}, "num_layers: expected 1 to 1024, got 1000000"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_folders(mistake, tool, tmp_path):
    made(V11).save_pretrained(tmp_path)
    path, (change, expected) = tmp_path / "config.json", MISTAKES[mistake]
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert expected in tool.refusal("states", tmp_path, {"ids": ids_of(1, 3)})


def test_mistakes_in_ids(tool, tmp_path):
    made(V11).save_pretrained(tmp_path)
    for ids, expected in {
        (128,): "encode_ids: ids: expected 0 to 127, got 128",
        (5, -1): "encode_ids: ids: expected 0 to 127, got -1",
        (): "encode_ids: ids: expected (B, L) int64 with L at least 1, got [1, 0] Long",
    }.items():
        assert tool.refusal("states", tmp_path, {"ids": torch.tensor([ids], dtype=torch.int64)}) == expected
    said = tool.refusal(
        "states", tmp_path, {"ids": ids_of(2, 3), "mask": torch.ones(2, 4, dtype=torch.uint8)}
    )
    assert said == "encode_ids: mask: expected [2, 3], as ids, got [2, 4]"
    said = tool.refusal("encode", tmp_path, texts_tensors(["a"]))
    assert said.startswith(
        "text: no spiece.model: looked for text_encoder/spiece.model, tokenizer/spiece.model"
    )


# The tokenizer.

WORDS = [
    "the",
    "a",
    "red",
    "star",
    "drifts",
    "over",
    "blue",
    "sea",
    "café",
    "naïve",
    "office",
    "½",
    "straße",
    "Ωmega",
    "привет",
    "мир",
    "hello",
    "world",
    "running",
    "runner",
    "jumping",
    "jumped",
    "quickly",
    "and",
    "then",
    "there",
    "were",
    "none",
    "in",
    "this",
    "long",
    "paragraph",
    "for",
    "summarization",
]
SPECIAL = ["ﬁ", "㌀", "ﷺ", "Å", "e\u0301", "\u3000", "\u00a0", "\t", "\n", "▁", " ", "a", "가", "각", "ｱ", "ﾞ"]
EMOJI = ["😊", "👩‍🚀", "生", "<", "</s>", "<pad>", "<unk>", "<extra_id_1>", " ", "a", "\u200d", "\ufeff"]


def trained(sentences=3000, **options):
    """A vocabulary with T5's settings."""
    draw = random.Random(0)
    corpus = [
        " ".join(draw.choices(WORDS, k=draw.randint(3, 12))) + draw.choice(".!?") for _ in range(sentences)
    ]
    written = io.BytesIO()
    settings = {
        "model_type": "unigram",
        "normalization_rule_name": "nmt_nfkc",
        "byte_fallback": False,
        "hard_vocab_limit": False,
        "vocab_size": 120,
        "num_threads": 1,
        "minloglevel": 2,
        "pad_id": 0,
        "eos_id": 1,
        "unk_id": 2,
        "bos_id": -1,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=written, **(settings | options)
    )
    return written.getvalue()


def random_texts(count):
    draw = random.Random(1)

    def joined(parts, between=""):
        return between.join(draw.choices(parts, k=draw.randint(0, 50)))

    def letters(first, last):
        codes = (draw.randrange(first, last) for _ in range(draw.randint(0, 50)))
        return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)

    kinds = [
        lambda: draw.randbytes(draw.randint(0, 50)),
        lambda: joined(WORDS, " ").encode() + draw.randbytes(1) + joined(WORDS).encode(),
        lambda: joined(
            [b"a", b"\0", b" ", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xe3\x81"], b""
        ),
        lambda: letters(0, 0x110000),
        lambda: letters(0, 0x300),
        lambda: letters(0x2000, 0x3400),
        lambda: letters(0xF900, 0x10000),
        lambda: joined(SPECIAL),
        lambda: joined(EMOJI),
        lambda: joined(WORDS, " "),
        lambda: joined(WORDS),
        lambda: joined("aerdtsn ovlu"),
        lambda: joined("   \t\n\u3000"),
    ]
    fixed = [
        "",
        " ",
        "▁",
        "the",
        "The red star." * 5000,
        "x" * 20000,
        "😊" * 5000,
        "the\u0301",
        b"\xff" * 300,
    ]
    return fixed + [kinds[i % len(kinds)]() for i in range(count)]


@pytest.fixture(scope="module")
def vocabulary():
    return trained()


VOCABULARIES = {
    "T5's": {},
    "without rules": {"normalization_rule_name": "identity"},
    "with case folding": {"normalization_rule_name": "nmt_nfkc_cf"},
    "no dummy prefix": {"add_dummy_prefix": False},
    "all spaces": {"remove_extra_whitespaces": False},
    "spaces in pieces": {"split_by_whitespace": False},
    "byte fallback": {"byte_fallback": True, "vocab_size": 380},
    "own pieces": {"user_defined_symbols": ["<star>", "red star", "ｱ", "<"], "control_symbols": ["<go>"]},
}


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_pieces_are_those_of_sentencepiece(kind, vocabulary, tool, tmp_path):
    model = trained(**VOCABULARIES[kind]) if VOCABULARIES[kind] else vocabulary
    (tmp_path / "spiece.model").write_bytes(model)
    judge = sentencepiece.SentencePieceProcessor(model_proto=model)
    texts = random_texts(4000 if kind == "T5's" else 1300)
    if kind == "own pieces":
        texts += ["a<star>red starｱred  star<go>", " <star> red star", "<<star>", "<star"]
    found = tool.ids(tmp_path / "spiece.model", texts)
    wrong = [
        (text, judge.encode(text), ids)
        for text, ids in zip(texts, found, strict=False)
        if judge.encode(text) != ids
    ]
    assert len(found) == len(texts) and not wrong[:3]


def proto(field, value):
    """A field of a protobuf message: bytes, a float or a number."""

    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, bytes):
        return varint(field << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(field << 3 | 5) + torch.tensor(value).numpy().tobytes()
    return varint(field << 3) + varint(value)


def test_ties_are_broken_as_sentencepiece_does(tool, tmp_path):
    """Few letters and scores that add up to the same, so that single precision decides."""
    draw, path = random.Random(2), tmp_path / "spiece.model"
    for _ in range(30):
        step, seen = draw.choice([0.1, 0.3, 1 / 3, 0.25, 1e-3]), set()
        model = b""
        for name, kind in ((b"<pad>", 3), (b"</s>", 3), (b"<unk>", 2)):
            model += proto(1, proto(1, name) + proto(2, 0.0) + proto(3, kind))
        while len(seen) < 25:
            text = "".join(draw.choices("abé▁", k=draw.randint(1, 4)))
            if text not in seen:
                score, kind = -step * draw.randint(1, 20), draw.choice([1] * 9 + [5])
                model += proto(1, proto(1, text.encode()) + proto(2, score) + proto(3, kind))
                seen.add(text)
        path.write_bytes(model)
        texts = ["".join(draw.choices("abcé ▁", k=draw.randint(0, 40))) for _ in range(100)]
        judge = sentencepiece.SentencePieceProcessor(model_proto=model)
        assert tool.ids(path, texts) == judge.encode(texts)


# Prompts to states.


def written_folder(folder, vocabulary, layout):
    """A folder as diffusers, transformers or a download have it; the encoder, and what to open."""
    model = made(V11 | {"vocab_size": 160})
    places = {
        "model folder": ("text_encoder", "tokenizer"),
        "one folder": ("", ""),
        "tokenizer beside the weights": ("text_encoder", "text_encoder"),
        "tokenizer in the model folder": ("text_encoder", ""),
    }
    weights, tokenizer = places[layout]
    model.save_pretrained(folder / weights)
    (folder / tokenizer).mkdir(exist_ok=True)
    (folder / tokenizer / "spiece.model").write_bytes(vocabulary)
    return model


PROMPTS = ["a red star drifts over the sea", "", "hello world, 😊 " * 9, "naïve café"]


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    "layout", ["model folder", "one folder", "tokenizer beside the weights", "tokenizer in the model folder"]
)
def test_prompts(layout, masked, vocabulary, tool, tmp_path):
    model, limit = written_folder(tmp_path, vocabulary, layout), 24
    judge = sentencepiece.SentencePieceProcessor(model_proto=vocabulary)
    rows = [[*judge.encode(prompt)[: limit - 1], 1] for prompt in PROMPTS]
    ids = torch.tensor([row + [0] * (limit - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (limit - len(row)) for row in rows])
    found, said = tool.call("encode", tmp_path, texts_tensors(PROMPTS), limit=limit, mask=int(masked))
    expected = expected_of(model, ids, mask if masked else None)
    assert error(found["states"], expected) < 5e-6
    assert torch.equal(found["mask"], mask.bool() if masked else torch.ones_like(mask, dtype=torch.bool))
    count = len(judge.encode(PROMPTS[2])) + 1
    assert said.startswith(
        f"prompt: expected at most {limit} pieces of text, got {count}: truncated to {limit}; "
    )
    assert said.endswith('; ",", "😊" are not in the text encoder\'s vocabulary and mean nothing to it')


def test_transformers_tokenizer_agrees(vocabulary, tool, tmp_path):
    """The ids of its own tokenizer, which reads the same file."""
    (tmp_path / "spiece.model").write_bytes(vocabulary)
    judge = transformers.T5Tokenizer.from_pretrained(tmp_path, extra_ids=0)
    texts = [" ".join(WORDS), "hello world! 😊😊 生", "a  b\tc", "Ωmega ½ straße."]
    found = tool.ids(tmp_path / "spiece.model", texts)
    assert [[*ids, 1] for ids in found] == judge(texts).input_ids


def test_cached_prompts(vocabulary, tool, tmp_path):
    """The second time from the folder, whatever has become of the weights' values; damage is repaired."""
    folder, cache = tmp_path / "model", tmp_path / "cache"
    folder.mkdir()
    written_folder(folder, vocabulary, "one folder")
    options = {"limit": 16, "cache": cache, "dtype": "bf16"}
    first, _ = tool.call("encode", folder, texts_tensors(PROMPTS), **options)
    assert len(list(cache.glob("*.safetensors"))) == len(PROMPTS)
    again, said = tool.call("encode", folder, texts_tensors(PROMPTS[::-1]), **options)
    assert torch.equal(again["states"].flip(0), first["states"])
    assert torch.equal(again["mask"].flip(0), first["mask"])
    assert "truncated" in said and "damaged" not in said
    for damaged in cache.glob("*.safetensors"):
        data = bytearray(damaged.read_bytes())
        data[-40] ^= 1
        damaged.write_bytes(data)
    repaired, said = tool.call("encode", folder, texts_tensors(PROMPTS), **options)
    assert torch.equal(repaired["states"], first["states"])
    assert said.count("text cache: a damaged entry is made again") == len(PROMPTS)
    _, said = tool.call("encode", folder, texts_tensors(PROMPTS), **options)
    assert "damaged" not in said
    tool.call("encode", folder, texts_tensors(PROMPTS), **(options | {"mask": 0}))
    tool.call("encode", folder, texts_tensors(PROMPTS), **(options | {"dtype": "fp32"}))
    tool.call("encode", folder, texts_tensors(PROMPTS), **(options | {"limit": 17}))
    assert len(list(cache.glob("*.safetensors"))) == 4 * len(PROMPTS)
