"""DINOv2's features in C++ against transformers' network with the same weights, small ones that are drawn
here; how pictures and positions come to its size; and `pom eval fid --like edm2` by them. The program is
tests/tools/features_tool.cpp."""

import json
import subprocess

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from golden_numbers import pictures
from small_dinov2 import DEPTH, GRID, WIDTH, draw, drawn_weights
from tools import built_program, built_tool, referee

transformers = referee("transformers")

MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64)
DEVIATION = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64)


def positions_of(tensors, **how):
    """Those of 16 x 16 patches, as torch resizes the 37 x 37."""
    plane = tensors["pos_embed"][:, 1:].reshape(1, GRID, GRID, WIDTH).permute(0, 3, 1, 2)
    small = torch.nn.functional.interpolate(plane, mode="bicubic", **how)
    assert small.shape[2:] == (16, 16)
    return torch.cat([tensors["pos_embed"][:, :1], small.flatten(2).transpose(1, 2)], 1)


def names_of_transformers(tensors, positions):
    renamed = {
        "embeddings.cls_token": tensors["cls_token"],
        "embeddings.mask_token": tensors["mask_token"],
        "embeddings.position_embeddings": positions,
    }
    for kind in ("weight", "bias"):
        renamed[f"embeddings.patch_embeddings.projection.{kind}"] = tensors[f"patch_embed.proj.{kind}"]
        renamed[f"layernorm.{kind}"] = tensors[f"norm.{kind}"]
        for i in range(DEPTH):
            layer, block = f"encoder.layer.{i}", f"blocks.{i}"
            for part, rows in zip("qkv", tensors[f"{block}.attn.qkv.{kind}"].chunk(3), strict=True):
                renamed[f"{layer}.attention.{part}_proj.{kind}"] = rows
            renamed[f"{layer}.attention.o_proj.{kind}"] = tensors[f"{block}.attn.proj.{kind}"]
            for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                renamed[f"{layer}.{part}.{kind}"] = tensors[f"{block}.{part}.{kind}"]
    for i in range(DEPTH):
        for n in (1, 2):
            renamed[f"encoder.layer.{i}.layer_scale{n}.lambda1"] = tensors[f"blocks.{i}.ls{n}.gamma"]
    return renamed


def features_of_transformers(tensors, positions, planes):
    config = transformers.Dinov2Config(
        hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=WIDTH // 64, image_size=224
    )
    network = transformers.Dinov2Model(config).double().eval()
    network.load_state_dict(names_of_transformers(tensors, positions), strict=True)
    with torch.no_grad():
        return network(planes).last_hidden_state[:, 0].numpy()


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dinov2")
    tensors = drawn_weights()
    save_file(tensors, folder / "dinov2.safetensors")
    numpy.savez(folder / "a.npz", pictures("set.a"))
    numpy.savez(folder / "b.npz", pictures("set.b") // 2 + 64)
    numpy.savez(folder / "few.npz", pictures("set.a")[:3])
    return folder, tensors


def tool(asked, rule, dtype, weights, name="few.npz"):
    words = [built_tool("features_tool"), "dinov2", rule, dtype, weights, asked[0] / name]
    done = subprocess.run(list(map(str, words)), capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return numpy.frombuffer(done.stdout)


def scaled(planes):
    return (planes / 255 - MEAN.view(3, 1, 1).to(planes)) / DEVIATION.view(3, 1, 1).to(planes)


def planes_of(name, count):
    return torch.from_numpy(pictures(name)[:count]).permute(0, 3, 1, 2).contiguous()


def test_features_are_those_of_transformers(asked):
    folder, tensors = asked
    ours = tool(asked, "bicubic", "fp64", folder / "dinov2.safetensors").reshape(3, WIDTH)
    x = torch.nn.functional.interpolate(
        planes_of("set.a", 3).double(), (224, 224), mode="bicubic", antialias=True
    )
    right = positions_of(tensors, scale_factor=(16.1 / 37, 16.1 / 37))
    expected = features_of_transformers(tensors, right, scaled(x))
    assert abs(ours - expected).max() < 1e-10
    # A size in place of the factor is another network.
    wrong = positions_of(tensors, size=(16, 16))
    assert abs(ours - features_of_transformers(tensors, wrong, scaled(x))).max() > 1e-2
    single = tool(asked, "bicubic", "fp32", folder / "dinov2.safetensors").reshape(3, WIDTH)
    assert 0 < abs(single - ours).max() < 1e-4 * abs(ours).max()


def test_pictures_are_resized_as_torch_and_pillow_do_it(asked):
    x = torch.nn.functional.interpolate(
        planes_of("set.a", 3).float(), (224, 224), mode="bicubic", antialias=True
    )
    ours = tool(asked, "bicubic", "fp32", "-").reshape(3, 3, 224, 224)
    assert abs(ours - scaled(x).double().numpy()).max() < 1e-6
    large = [Image.fromarray(p).resize((224, 224), Image.Resampling.BICUBIC) for p in pictures("set.a")[:3]]
    rounded = torch.from_numpy(numpy.stack(large)).permute(0, 3, 1, 2).double()
    ours = tool(asked, "pillow", "fp64", "-").reshape(3, 3, 224, 224)
    assert abs(ours - scaled(rounded).numpy()).max() < 1e-12


def evaluate(*words, code=0):
    done = subprocess.run(
        [built_program(), "eval", *map(str, words)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_distance_is_that_of_the_features(asked):
    folder, _ = asked
    sides = ["--samples", folder / "a.npz", "--reference", folder / "b.npz"]
    words = ["fid", *sides, "--dinov2", folder / "dinov2.safetensors", "--json"]
    found = {like: json.loads(evaluate(*words, "--like", like)) for like in ("edm2", "dgm-eval")}
    for like, rule in (("edm2", "bicubic"), ("dgm-eval", "pillow")):
        a, b = (
            tool(asked, rule, "fp32", folder / "dinov2.safetensors", name).reshape(24, WIDTH)
            for name in ("a.npz", "b.npz")
        )
        xs = [x - x.mean(0) for x in (a, b)]
        shared = numpy.linalg.svd(xs[0] @ xs[1].T, compute_uv=False).sum() / 23
        fd = ((a.mean(0) - b.mean(0)) ** 2).sum() + sum((x**2).sum() / 23 for x in xs) - 2 * shared
        score = found[like]
        assert abs(score["fd"] - fd) < 1e-6 * fd
        assert "fid" not in score and score["fd_infinity"] != score["fd"] and score["fd_deviation"] > 0
        recipe = score["recipe"]
        assert (recipe["network"], recipe["resize"]) == ("dinov2-2-blocks-of-128", rule)
    assert found["edm2"]["fd"] != found["dgm-eval"]["fd"]


def test_threads_change_no_bit(asked):
    folder, _ = asked
    words = ["fid", "--samples", folder / "a.npz", "--reference", folder / "b.npz", "--like", "edm2"]
    words += ["--dinov2", folder / "dinov2.safetensors", "--json"]
    one = evaluate(*words, "--threads", 1)
    assert evaluate(*words, "--threads", 2) == one and evaluate(*words, "--threads", 4) == one


def test_what_is_wrong_is_named(asked, tmp_path):
    folder, tensors = asked
    sides = ["fid", "--samples", folder / "a.npz", "--reference", folder / "b.npz"]
    assert "dinov2_vitl14_pretrain.pth" in evaluate(*sides, "--like", "edm2", code=2)
    file = ["--dinov2", folder / "dinov2.safetensors"]
    assert "--dinov2: expected rules of that network" in evaluate(*sides, *file, code=2)

    def refused(change):
        save_file(tensors | change, tmp_path / "other.safetensors")
        return evaluate(*sides, "--like", "edm2", "--dinov2", tmp_path / "other.safetensors", code=1)

    assert "register_tokens" in refused({"register_tokens": draw(1, 1, 4, WIDTH)})
    assert "blocks.1.ls2.gamma" in refused({"blocks.1.ls2.gamma": draw(1, WIDTH + 1)})
    assert "a square of patches" in refused({"pos_embed": draw(1, 1, 1371, WIDTH)})
    less = {name: t for name, t in tensors.items() if name not in ("norm.bias", "mask_token")}
    save_file(less, tmp_path / "less.safetensors")
    words = [*sides, "--like", "edm2", "--dinov2", tmp_path / "less.safetensors"]
    said = evaluate(*words, code=1)
    assert "norm.bias" in said and "mask_token" not in said
