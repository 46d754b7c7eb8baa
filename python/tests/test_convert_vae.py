"""`pom convert --from vae-single`: autoencoders in single files against diffusers, whose own converter of
LDM's names is the referee."""

import json
import re
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from tools import built_program, referee

SMALL = {"block_out_channels": (8, 16, 16, 24), "layers_per_block": 1, "norm_num_groups": 4}


def convert(*words, code=0):
    command = [built_program(), "convert", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stderr


def randomise(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.3)
    return module


def old_name(name, levels):
    """Today's name -> that of LDM and of CogVideoX's SAT."""
    name = re.sub(r"decoder\.up_blocks\.(\d+)", lambda m: f"decoder.up.{levels - 1 - int(m[1])}", name)
    name = re.sub(r"encoder\.down_blocks\.(\d+)", r"encoder.down.\1", name)
    name = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}", name)
    for new, old in (
        ("mid_block.attentions.0", "mid.attn_1"), ("resnets.", "block."), ("downsamplers.0", "downsample"),
        ("upsamplers.0", "upsample"), ("conv_shortcut", "nin_shortcut"), ("conv_norm_out", "norm_out"),
        ("group_norm", "norm"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out"),
    ):  # fmt: skip
        name = name.replace(new, old)
    return name


def old_file(path, module, prefix="", **more):
    levels = len(module.config.block_out_channels)
    tensors = {}
    for name, tensor in module.state_dict().items():
        old = old_name(name, levels)
        flat = ".mid.attn_1." in old and tensor.dim() == 2
        tensors[prefix + old] = (tensor[:, :, None, None] if flat else tensor).contiguous()
    save_file(tensors | more, path)
    return path


@pytest.fixture(scope="module")
def diffusers():
    return referee("diffusers")


def pictures(diffusers, **settings):
    blocks = len(SMALL["block_out_channels"])
    types = {
        "down_block_types": ("DownEncoderBlock2D",) * blocks,
        "up_block_types": ("UpDecoderBlock2D",) * blocks,
    }
    return randomise(diffusers.AutoencoderKL(**types | SMALL | settings)).double()


@pytest.mark.parametrize("prefix", ["", "first_stage_model.", "vae."])
def test_ldm(prefix, diffusers, tmp_path):
    vae = pictures(diffusers)
    unet = {"model.diffusion_model.out.weight": torch.zeros(3)} if prefix else {}
    loss = {f"{prefix}loss.logvar": torch.zeros(1)}
    source = old_file(tmp_path / "s.safetensors", vae, prefix, **unet, **loss)
    notes = convert(source, "--from", "vae-single", "-o", tmp_path / "out", "--set", "norm_num_groups=4")
    assert "scaling_factor = 0.18215" in notes
    ours = load_file(tmp_path / "out" / "diffusion_pytorch_model.safetensors")
    assert ours.keys() == vae.state_dict().keys()
    for name, tensor in vae.state_dict().items():
        assert torch.equal(ours[name], tensor), name
    opened = diffusers.AutoencoderKL.from_pretrained(tmp_path / "out", torch_dtype=torch.float64)
    assert {**opened.config, "_name_or_path": ""}.items() >= {
        "norm_num_groups": 4, "latent_channels": 4, "layers_per_block": 1, "use_quant_conv": True,
        "block_out_channels": [8, 16, 16, 24], "scaling_factor": 0.18215,
    }.items()  # fmt: skip
    z = torch.randn(1, 4, 3, 2, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(opened.decode(z).sample, vae.decode(z).sample, rtol=0, atol=1e-5)


def test_diffusers_reads_the_same_file_so(diffusers, tmp_path):
    single = referee("diffusers.loaders.single_file_utils")
    vae = pictures(diffusers)
    source = old_file(tmp_path / "s.safetensors", vae, "first_stage_model.")
    convert(source, "--from", "vae-single", "-o", tmp_path / "out", "--set", "norm_num_groups=4")
    ours = load_file(tmp_path / "out" / "diffusion_pytorch_model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = single.convert_ldm_vae_checkpoint(load_file(source), config)
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert torch.equal(tensor.reshape(ours[name].shape), ours[name]), name


def test_flux(diffusers, tmp_path):
    """No convolutions around the latents, 16 channels of them."""
    vae = pictures(diffusers, latent_channels=16, use_quant_conv=False, use_post_quant_conv=False)
    source = old_file(tmp_path / "s.safetensors", vae)
    words = [source, "--from", "vae-single", "-o", tmp_path / "out", "--set", "norm_num_groups=4"]
    assert "the weights do not tell their scale; --set scaling_factor=0.3611" in convert(*words, code=1)
    convert(*words, "--set", "scaling_factor=0.3611", "--set", "shift_factor=0.1159")
    opened = diffusers.AutoencoderKL.from_pretrained(tmp_path / "out", torch_dtype=torch.float64)
    assert (opened.config.scaling_factor, opened.config.shift_factor) == (0.3611, 0.1159)
    assert not opened.config.use_quant_conv and opened.config.latent_channels == 16
    for name, tensor in vae.state_dict().items():
        assert torch.equal(opened.state_dict()[name], tensor), name


def test_cogvideox(diffusers, tmp_path):
    blocks = len(SMALL["block_out_channels"])
    vae = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * blocks, up_block_types=("CogVideoXUpBlock3D",) * blocks,
        latent_channels=4, **SMALL,
    )  # fmt: skip
    randomise(vae)
    source = old_file(tmp_path / "s.safetensors", vae, **{"loss.discriminator.weight": torch.zeros(2)})
    notes = convert(source, "--from", "vae-single", "-o", tmp_path / "out", "--set", "norm_num_groups=4")
    assert "scaling_factor = 1.15258426, of CogVideoX-2B" in notes
    opened = diffusers.AutoencoderKLCogVideoX.from_pretrained(tmp_path / "out")
    assert opened.state_dict().keys() == vae.state_dict().keys()
    for name, tensor in vae.state_dict().items():
        assert torch.equal(opened.state_dict()[name], tensor), name
    z = torch.randn(1, 4, 2, 2, 3)
    with torch.no_grad():
        torch.testing.assert_close(opened.decode(z).sample, vae.decode(z).sample, rtol=0, atol=1e-5)


def test_what_is_missing_or_too_much(diffusers, tmp_path):
    vae = pictures(diffusers)
    source = old_file(tmp_path / "s.safetensors", vae)
    words = [source, "--from", "vae-single", "-o", tmp_path / "out", "--set", "norm_num_groups=4"]
    tensors = load_file(source)
    dropped = tensors.pop("decoder.up.0.block.1.conv2.bias")
    save_file(tensors, source)
    assert f'{source}: tensor "decoder.up.0.block.1.conv2.bias" of shape (8) is missing' in convert(
        *words, code=1
    )
    save_file(tensors | {"decoder.up.0.block.1.conv2.bias": dropped, "decoder.more": dropped.clone()}, source)
    assert f'{source}: tensor "decoder.more" is not part of the network' in convert(*words, code=1)
    save_file(vae.state_dict(), source)
    assert "these are the names of diffusers already" in convert(*words, code=1)
    assert not (tmp_path / "out").exists()
