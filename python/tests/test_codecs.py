"""libpom.codecs against diffusers: random values for every tensor, several configs, odd sizes, all dtypes."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import libpom
from tools import referee

diffusers = referee("diffusers")
pytestmark = pytest.mark.usefixtures("extension")

SMALL = {"block_out_channels": [32, 64, 64], "norm_num_groups": 16, "sample_size": 32}
CONFIGS = {
    "sd": SMALL,
    "two layers": {
        "block_out_channels": [16, 32],
        "layers_per_block": 2,
        "norm_num_groups": 8,
        "latent_channels": 8,
    },
    "flux": SMALL | {"latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False},
    "no attention": {"block_out_channels": [24, 40], "norm_num_groups": 8, "mid_block_add_attention": False},
    "one level": {"block_out_channels": [16], "norm_num_groups": 4, "latent_channels": 3},
    "widths differ": {"block_out_channels": [8, 24, 16, 40], "norm_num_groups": 8},
}


def config_of(fields):
    levels = len(fields["block_out_channels"])
    return {
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
    } | fields


def fill(model, seed=0):
    """The values of the golden table: one generator, names in byte order, nothing left at 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    for name in sorted(state, key=lambda n: n.encode()):
        tensor = state[name]
        r = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() > 1:
            r = r / math.sqrt(tensor[0].numel())
        elif "norm" in name and name.endswith("weight"):
            r = 1 + 0.1 * r
        else:
            r = 0.1 * r
        tensor.copy_(r)
    return model


def pictures(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def normals(*shape, seed=2):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def difference(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            model = fill(diffusers.AutoencoderKL(**config_of(CONFIGS[name]))).eval()
            folder = tmp_path_factory.mktemp("vae")
            model.save_pretrained(folder)
            made[name] = (folder, model)
        return made[name]

    return get


TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_equals_diffusers(folders, name, dtype):
    folder, model = folders(name)
    theirs = model.double()
    ours = libpom.codecs.load(folder, dtype=dtype)
    factor = 2 ** (len(CONFIGS[name]["block_out_channels"]) - 1)
    assert ours.factor == factor
    for height, width in ((32, 32), (37, 50)):
        x = pictures(2, 3, height, width).to(dtype)
        moments = theirs.encode(x.double()).latent_dist.parameters
        got = ours.encode(x)
        assert got.dtype == dtype and got.shape == moments.shape
        assert difference(got.double(), moments) < TOLERANCE[dtype]
    for height, width in ((8, 8), (5, 7)):
        z = normals(2, theirs.config.latent_channels, height, width).to(dtype)
        assert difference(ours.decode(z).double(), theirs.decode(z.double()).sample) < TOLERANCE[dtype]


@torch.no_grad()
def test_golden_numbers(folders):
    folder, model = folders("sd")
    assert model.state_dict()["decoder.conv_in.bias"][0].item() == pytest.approx(-0.11258399, abs=1e-7)
    assert sum(t.numel() for t in model.state_dict().values()) == 954_567 and len(model.state_dict()) == 152
    vae = libpom.codecs.load(folder, dtype=torch.float64)

    def check(x, shape, total, absolutes, first, last):
        assert tuple(x.shape) == shape
        got = [x.sum().item(), x.abs().sum().item(), x.flatten()[0].item(), x.flatten()[-1].item()]
        assert got == pytest.approx([total, absolutes, first, last], abs=6e-9)

    check(
        vae.encode(pictures(1, 3, 32, 32).double()),
        (1, 8, 8, 8),
        23.50721712,
        203.94898084,
        0.24742864,
        -0.15361627,
    )
    check(
        vae.decode(normals(1, 4, 8, 8).double()),
        (1, 3, 32, 32), -386.11627739, 1504.38583742, 0.00153344, 0.12923782,
    )  # fmt: skip
    check(
        vae.decode(normals(1, 4, 12, 10, seed=3).double(), tiled=True),
        (1, 3, 48, 40), -907.29199486, 2777.52470590, 0.02253242, -0.10292304,
    )  # fmt: skip


@pytest.mark.parametrize(("height", "width"), [(48, 40), (33, 100), (32, 64), (100, 31)])
@torch.no_grad()
def test_tiles_equal_diffusers(folders, height, width):
    folder, model = folders("sd")
    theirs = model.double()
    theirs.enable_tiling()
    vae = libpom.codecs.load(folder, dtype=torch.float64)
    x = pictures(1, 3, height, width).double()
    assert difference(vae.encode(x, tiled=True), theirs.encode(x).latent_dist.parameters) < 1e-12
    z = normals(1, 4, height // 4, width // 4).double()
    assert difference(vae.decode(z, tiled=True), theirs.decode(z).sample) < 1e-12
    theirs.disable_tiling()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["sd", "two layers", "widths differ"])
@pytest.mark.parametrize(("height", "width"), [(136, 24), (97, 19)])
@torch.no_grad()
def test_strips_equal_the_whole(folders, name, height, width, dtype):
    """However little memory: norms see all strips, convolutions see beyond them."""
    folder, _ = folders(name)
    vae = libpom.codecs.load(folder, dtype=dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 5e-6
    x = pictures(2, 3, height, width).to(dtype)
    z = normals(2, vae.latent_channels, height // vae.factor, width // vae.factor).to(dtype)
    moments, decoded = vae.encode(x), vae.decode(z)
    for memory in (1, 4_700 * width, 23_000 * width, 156_000 * width):
        assert difference(vae.encode(x, memory=memory), moments) < tolerance
        assert difference(vae.decode(z, memory=memory), decoded) < tolerance
    assert torch.equal(vae.decode(z[:1], memory=10**12), decoded[:1])


@torch.no_grad()
def test_an_epsilon_of_1e_5_is_seen(folders):
    """In fp64 the other epsilon of group norms is far outside the tolerance."""
    folder, model = folders("sd")
    vae = libpom.codecs.load(folder, dtype=torch.float64)
    z = normals(1, 4, 8, 8).double()
    right = model.double().decode(z).sample
    for module in model.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.eps = 1e-5
    wrong = model.decode(z).sample
    for module in model.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.eps = 1e-6
    assert difference(vae.decode(z), right) < 1e-12 < 1e-7 < difference(vae.decode(z), wrong)


def old_names(state):
    new = {}
    for now_name, tensor in state.items():
        name = now_name
        for now, old in (
            (".to_q.", ".query."),
            (".to_k.", ".key."),
            (".to_v.", ".value."),
            (".to_out.0.", ".proj_attn."),
        ):
            name = name.replace(now, old)
        new[name] = tensor
    return new


@pytest.mark.parametrize("squeezed", [True, False])
@torch.no_grad()
def test_old_names_and_four_axes(folders, tmp_path, squeezed):
    folder, _ = folders("sd")
    state = old_names(load_file(folder / "diffusion_pytorch_model.safetensors"))
    if not squeezed:
        state = {
            n: t[:, :, None, None] if ".attentions." in n and t.dim() == 2 else t for n, t in state.items()
        }
    save_file({n: t.contiguous() for n, t in state.items()}, tmp_path / "diffusion_pytorch_model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    z = normals(1, 4, 6, 9)
    assert torch.equal(libpom.codecs.load(tmp_path).decode(z), libpom.codecs.load(folder).decode(z))


@torch.no_grad()
def test_shards_with_an_index_and_mixed_dtypes(folders, tmp_path):
    folder, model = folders("sd")
    model.float().save_pretrained(tmp_path, max_shard_size="1MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    z = normals(1, 4, 6, 9)
    assert torch.equal(libpom.codecs.load(tmp_path).decode(z), libpom.codecs.load(folder).decode(z))
    first = sorted(tmp_path.glob("*.safetensors"))[0]
    save_file({n: t.half() for n, t in load_file(first).items()}, first)
    assert difference(libpom.codecs.load(tmp_path).decode(z), libpom.codecs.load(folder).decode(z)) < 1e-2


@torch.no_grad()
def test_half_files(folders, tmp_path):
    folder, model = folders("sd")
    model.float().save_pretrained(tmp_path, variant="fp16")
    z = normals(1, 4, 6, 9)
    assert torch.equal(libpom.codecs.load(tmp_path).decode(z), libpom.codecs.load(folder).decode(z))


@torch.no_grad()
def test_draws(folders):
    folder, _ = folders("sd")
    vae = libpom.codecs.load(folder, dtype=torch.float64)
    x = pictures(2, 3, 32, 32).double()
    moments = vae.encode(x)
    mean, logvar = moments.chunk(2, 1)
    drawn = vae.encode(x, seeds=[5, 6])
    noise = (drawn - mean) / (logvar.clamp(-30, 20) / 2).exp()
    assert abs(noise.mean().item()) < 0.2 and abs(noise.std().item() - 1) < 0.15
    assert torch.equal(vae.encode(x[1:], seeds=[6]), drawn[1:])  # a seed's noise, whoever is beside it
    least = vae.draw(torch.cat([torch.zeros_like(mean), torch.full_like(mean, -30.0)], 1), [5, 6])
    clamped = vae.draw(torch.cat([torch.zeros_like(mean), torch.full_like(mean, -1e9)], 1), [5, 6])
    assert torch.equal(clamped, least) and least.abs().max() > 0


def test_wrong_folders(folders, tmp_path):
    folder, _ = folders("sd")
    text = json.loads((folder / "config.json").read_text())

    def refused(match, files=None, **changes):
        (tmp_path / "config.json").write_text(json.dumps(text | changes))
        state = load_file(folder / "diffusion_pytorch_model.safetensors")
        for name, tensor in (files or {}).items():
            if tensor is None:
                del state[name]
            else:
                state[name] = tensor
        save_file(state, tmp_path / "diffusion_pytorch_model.safetensors")
        with pytest.raises(libpom.Error, match=match):
            libpom.codecs.load(tmp_path)

    refused(r"act_fn: unknown value \"relu\"; there are silu, swish", act_fn="relu")
    refused(
        r"block_out_channels: expected multiples of norm_num_groups, 16, got 40",
        block_out_channels=[32, 64, 40],
    )
    refused(r"down_block_types: expected 3 of them", down_block_types=["DownEncoderBlock2D"])
    refused(r"latents_mean: expected null or 4 numbers", latents_mean=[1.0])
    refused(r"1 of them are missing: quant_conv.bias", {"quant_conv.bias": None})
    refused(r"got 1 more: surplus", {"surplus": torch.zeros(1)})
    refused(
        r"quant_conv.bias: expected the shape \(8\) by config.json, got \(9\)",
        {"quant_conv.bias": torch.zeros(9)},
    )
    refused(
        r"expected F32, F16, BF16 or F64, got I64", {"quant_conv.bias": torch.zeros(8, dtype=torch.int64)}
    )
    (tmp_path / "diffusion_pytorch_model.safetensors").unlink()
    (tmp_path / "diffusion_pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(libpom.Error, match="a pickle, which is never opened"):
        libpom.codecs.load(tmp_path)
    (tmp_path / "diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../outside.safetensors"}})
    )
    with pytest.raises(libpom.Error, match=r"expected the name of a file beside the index, got \"../outside"):
        libpom.codecs.load(tmp_path)


def test_wrong_tensors(folders):
    folder, _ = folders("sd")
    vae = libpom.codecs.load(folder)
    with pytest.raises(
        libpom.Error, match=r"decode: latents: expected floating point \(B, 4, h, w\), got .*\[1, 3, 8, 8\]"
    ):
        vae.decode(torch.zeros(1, 3, 8, 8))
    with pytest.raises(libpom.Error, match="expected sides of at least 4, got 3 x 8"):
        vae.encode(torch.zeros(1, 3, 3, 8))
    with pytest.raises(libpom.Error, match=r"codecs\.load: dtype"):
        libpom.codecs.load(folder, dtype=torch.int8)


def test_tensors_of_the_published_sizes(tmp_path):
    """248 tensors, 83,653,863 values: SD 1.x and SDXL; 244 and 83,819,683: SD3 and FLUX."""
    fields = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2}
    for extra, tensors, values in (
        ({}, 248, 83_653_863),
        ({"latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}, 244, 83_819_683),
    ):
        with torch.device("meta"):
            state = diffusers.AutoencoderKL(**config_of(fields | extra)).state_dict()
        assert len(state) == tensors and sum(t.numel() for t in state.values()) == values
