"""diffusers' AutoencoderKLCogVideoX as referee of ours, with random values in every tensor.

Needs diffusers, and tests/cogvideox_tool beside the library.
"""

import copy
import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from tools import built_tool, referee

diffusers = referee("diffusers")

FIXTURE = {
    "block_out_channels": [8, 16, 16, 24],
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "latent_channels": 4,
    "sample_height": 32,
    "sample_width": 48,
}
CONFIGS = {
    "fixture": FIXTURE,
    # Unequal widths on all levels, more resnets, another epsilon and compression.
    "layers": {
        "block_out_channels": [6, 12, 18],
        "layers_per_block": 2,
        "norm_num_groups": 3,
        "latent_channels": 5,
        "norm_eps": 1e-3,
        "temporal_compression_ratio": 4,
    },
    "half": {
        "block_out_channels": [8, 4],
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "latent_channels": 2,
        "temporal_compression_ratio": 2,
    },
    "spatial": {
        "block_out_channels": [4, 8],
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "latent_channels": 3,
        "temporal_compression_ratio": 1,
    },
}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Of the largest value.
TOLERANCE = {"fp64": 1e-12, "fp32": 5e-6, "bf16": 6e-2, "fp16": 8e-3}


def make_network(fields, seed=0):
    """Every tensor random, also those that begin at 0 or 1."""
    levels = len(fields["block_out_channels"])
    kinds = {
        "down_block_types": ["CogVideoXDownBlock3D"] * levels,
        "up_block_types": ["CogVideoXUpBlock3D"] * levels,
    }
    network = diffusers.AutoencoderKLCogVideoX(**kinds, **fields).eval()
    draw = torch.Generator().manual_seed(seed)
    state = network.state_dict()
    for name in sorted(state):
        values = torch.randn(state[name].shape, generator=draw)
        if values.dim() > 1:
            values /= values[0].numel() ** 0.5
        else:
            values = values * 0.1 + (1 if "norm" in name and name.endswith("weight") else 0)
        state[name].copy_(values)
    return network


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of each config diffusers' network and its folder."""
    made = {}

    def get(name):
        if name not in made:
            network = make_network(CONFIGS[name])
            folder = tmp_path_factory.mktemp(name)
            network.save_pretrained(folder)
            made[name] = network, folder
        return made[name]

    return get


def run_tool(folder, tensors, dtype, *tile):
    source, result = folder / "in.safetensors", folder / "out.safetensors"
    save_file({name: value.clone() for name, value in tensors.items()}, source)
    command = [built_tool("cogvideox_tool"), folder, source, result, dtype, *tile]
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return load_file(result)


def distance(ours, theirs):
    assert ours.shape == theirs.shape
    return ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()).item()


def clips(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def latents(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def in_dtype(network, dtype):
    return copy.deepcopy(network).to(DTYPES[dtype])


@torch.no_grad()
def theirs(network, name, value):
    """What diffusers makes of an operation's input."""
    value = value.to(network.dtype)
    if name.startswith("encode"):
        return network._encode(value)
    return network.decode(value).sample


SIZES = {"fixture": (16, 24), "layers": (16, 24), "half": (6, 10), "spatial": (8, 6)}


def inputs(config, frames=(1, 8, 9, 16, 17, 25), numbers=(1, 2, 3, 4, 5, 6, 7)):
    fields = CONFIGS[config]
    height, width = SIZES[config]
    factor = 2 ** (len(fields["block_out_channels"]) - 1)
    z = fields["latent_channels"]
    all = {f"encode.{t}": clips(1, 3, t, height, width) for t in frames}
    all |= {f"decode.{t}": latents(1, z, t, height // factor, width // factor) for t in numbers}
    return all


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
@pytest.mark.parametrize("config", CONFIGS)
def test_frames_and_latents(config, dtype, folders):
    network, folder = folders(config)
    if config == "fixture":  # of 13 and 12 frames not as many come back; the network takes them all the same
        given = inputs(config, frames=(1, 8, 9, 12, 13, 16, 17, 25) if dtype == "fp32" else (16, 25))
    else:
        given = inputs(config, frames=(3, 9, 16), numbers=(1, 4, 5))
    made = run_tool(folder, given, dtype)
    network = in_dtype(network, dtype)
    for name, value in given.items():
        assert distance(made[name], theirs(network, name, value)) < TOLERANCE[dtype], name


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_low_precision(dtype, folders):
    """As near to the exact result as diffusers is in this dtype, or nearly so."""
    network, folder = folders("fixture")
    given = inputs("fixture", frames=(9, 16), numbers=(4, 5))
    made = run_tool(folder, given, dtype)
    exact, low = in_dtype(network, "fp64"), in_dtype(network, dtype)
    for name, value in given.items():
        right = theirs(exact, name, value)
        of_theirs = distance(theirs(low, name, value), right)
        assert distance(made[name], right) < min(2 * of_theirs, TOLERANCE[dtype]), name


def test_batches_and_sizes(folders):
    network, folder = folders("fixture")
    given = {
        "encode.batch": clips(2, 3, 17, 24, 40),
        "decode.batch": latents(2, 4, 5, 3, 5),
        "encode.odd": clips(1, 3, 9, 19, 29),  # sides that are halved with a rest
        "decode.point": latents(1, 4, 4, 1, 1),
    }
    made = run_tool(folder, given, "fp64")
    network = in_dtype(network, "fp64")
    for name, value in given.items():
        assert distance(made[name], theirs(network, name, value)) < TOLERANCE["fp64"], name
    # A clip does not depend on the one beside it.
    alone = run_tool(folder, {"decode.second": given["decode.batch"][1:]}, "fp64")
    assert torch.equal(alone["decode.second"], made["decode.batch"][1:])


def test_streams_are_the_whole_clip(folders):
    """Two latents at a time, each piece in a decoder that knows only the state: the same bits."""
    _, folder = folders("fixture")
    for dtype in ("fp32", "bf16"):
        given = {f"{way}.{t}": latents(2, 4, t, 2, 3) for t in (6, 7) for way in ("decode", "stream")}
        made = run_tool(folder, given, dtype)
        for t in (6, 7):
            assert torch.equal(made[f"stream.{t}"], made[f"decode.{t}"]), (dtype, t)


def test_chunks_of_one(folders):
    """What is remembered comes from [cache, input], which only a chunk of one frame shows."""
    network, folder = folders("fixture")
    network = in_dtype(network, "fp64")
    value = latents(1, 4, 4, 2, 3)
    cache, frames = None, []
    with torch.no_grad():
        for t in range(4):
            piece, cache = network.decoder(value[:, :, t : t + 1].double(), conv_cache=cache)
            frames.append(piece)
    made = run_tool(folder, {"ones.4": value}, "fp64")["ones.4"]
    assert distance(made, torch.cat(frames, 2)) < TOLERANCE["fp64"]


@pytest.mark.parametrize("tile", [(), (24, 40)])
def test_tiles(tile, folders):
    network, folder = folders("fixture")
    given = {
        "encode_tiled.large": clips(1, 3, 9, 38, 48),
        "decode_tiled.large": latents(1, 4, 3, 5, 7),
        "decode_tiled.wide": latents(2, 4, 2, 2, 8),
        "encode_tiled.small": clips(1, 3, 8, 16, 24),
    }
    made = run_tool(folder, given, "fp64", *tile)
    network = in_dtype(network, "fp64")
    network.enable_tiling(*tile)
    for name, value in given.items():
        assert distance(made[name], theirs(network, name, value)) < TOLERANCE["fp64"], name


def test_means_draws_and_chunks_alone(folders):
    network, folder = folders("fixture")
    network = in_dtype(network, "fp64")
    clip = clips(2, 3, 16, 16, 24)
    made = run_tool(folder, {f"{what}.x": clip for what in ("mean", "draw", "alone")}, "fp64")
    moments = theirs(network, "encode", clip)
    mean, deviation = moments[:, :4], (moments[:, 4:].clamp(-30, 20) / 2).exp()
    assert distance(made["mean.x"], mean) < TOLERANCE["fp64"]
    noise = (made["draw.x"] - mean) / deviation
    assert abs(noise.mean()) < 0.3 and 0.7 < noise.std() < 1.3
    assert not torch.equal(noise[0], noise[1])
    alone = torch.cat([theirs(network, "encode", clip[:, :, t : t + 8]) for t in (0, 8)], 2)[:, :4]
    assert distance(made["alone.x"], alone) < TOLERANCE["fp64"]
    assert distance(mean, alone) > 0.1


def refusal(folder, config, expected):
    given = json.loads((folder / "config.json").read_text())
    other = folder.parent / f"{folder.name}-other"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_text(json.dumps(given | config))
    (other / "diffusion_pytorch_model.safetensors").write_bytes(
        (folder / "diffusion_pytorch_model.safetensors").read_bytes()
    )
    command = [built_tool("cogvideox_tool"), other, "none", "none", "fp32"]
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert said.returncode == 1
    assert expected in said.stderr, said.stderr


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"use_quant_conv": True}, "use_quant_conv: expected false, got true"),
        ({"up_block_types": ["UpDecoderBlock2D"] * 4}, 'up_block_types[0]: unknown value "UpDecoderBlock2D"'),
        ({"layers_per_block": 2}, "of them are missing"),
        ({"block_out_channels": [8, 16, 16, 32]}, "expected the shape"),
    ],
)
def test_refusals(config, expected, folders):
    _, folder = folders("fixture")
    refusal(folder, config, expected)
