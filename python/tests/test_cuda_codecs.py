"""Autoencoders on a GPU against the same networks on a CPU in fp64: norms, upsampling, strips, streams."""

import pytest
import torch

import libpom
from tools import referee

diffusers = referee("diffusers")

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.usefixtures("extension"),
]


@pytest.fixture(autouse=True)
def whole_precision():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def saved(model, folder):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=generator)
            p.copy_(r / p[0].numel() ** 0.5 if p.dim() > 1 else 1 + 0.1 * r if "norm" in name else 0.1 * r)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    widths = {"kernels": [32, 64, 64], "odd widths": [20, 36]}  # 20 channels are no whole words of 16 bytes
    made = {}
    for name, channels in widths.items():
        levels = len(channels)
        model = diffusers.AutoencoderKL(
            block_out_channels=channels, norm_num_groups=4, layers_per_block=1,
            down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels,
        )  # fmt: skip
        made[name] = saved(model, tmp_path_factory.mktemp("vae"))
    return made


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    model = diffusers.AutoencoderKLCogVideoX(
        block_out_channels=[16, 32, 32, 64], norm_num_groups=8, latent_channels=8, layers_per_block=1,
        down_block_types=["CogVideoXDownBlock3D"] * 4, up_block_types=["CogVideoXUpBlock3D"] * 4,
    )  # fmt: skip
    return saved(model, tmp_path_factory.mktemp("vae"))


def away(ours, exact):
    return ((ours.double().cpu() - exact).abs().max() / exact.abs().max()).item()


TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ["kernels", "odd widths"])
def test_pictures(pictures, name, dtype):
    exact = libpom.codecs.load(pictures[name], dtype=torch.float64)
    ours = libpom.codecs.load(pictures[name], device="cuda", dtype=dtype)
    for size in ((3, 3, 40, 56), (1, 3, 37, 50)):
        x = torch.rand(size, generator=torch.Generator().manual_seed(1)) * 2 - 1
        assert away(ours.encode(x.cuda()), exact.encode(x.double())) < TOLERANCE[dtype]
    for size in ((3, 4, 10, 14), (1, 4, 5, 7)):
        z = torch.randn(size, generator=torch.Generator().manual_seed(2))
        assert away(ours.decode(z.cuda()), exact.decode(z.double())) < TOLERANCE[dtype]


def test_upsampling_in_parts(pictures):
    """A map that is large enough to be upsampled in two parts, of one picture and of several."""
    exact = libpom.codecs.load(pictures["kernels"])
    ours = libpom.codecs.load(pictures["kernels"], device="cuda")
    for size in ((1, 4, 264, 260), (2, 4, 184, 180)):
        z = torch.randn(size, generator=torch.Generator().manual_seed(3))
        assert away(ours.decode(z.cuda()), exact.decode(z).double()) < 5e-5


def test_strips(pictures):
    ours = libpom.codecs.load(pictures["kernels"], device="cuda")
    z = torch.randn(1, 4, 64, 24, generator=torch.Generator().manual_seed(4)).cuda()
    whole = ours.decode(z).double().cpu()
    for memory in (1, 3_000_000):
        assert away(ours.decode(z, memory=memory), whole) < 2e-5


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_clips(clips, dtype):
    exact = libpom.codecs.load(clips, dtype=torch.float64)
    ours = libpom.codecs.load(clips, device="cuda", dtype=dtype)
    for frames in (8, 17):
        x = torch.rand(1, 3, frames, 32, 48, generator=torch.Generator().manual_seed(5)) * 2 - 1
        assert away(ours.encode(x.cuda()), exact.encode(x.double())) < TOLERANCE[dtype]
    for latents in (4, 5):
        z = torch.randn(2, 8, latents, 4, 6, generator=torch.Generator().manual_seed(6))
        assert away(ours.decode(z.cuda()), exact.decode(z.double())) < TOLERANCE[dtype]


def test_large_pictures_in_little_memory(tmp_path):
    """4096 x 4096 of the published size in bf16 within 6 GiB, weights included."""
    fields = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2}
    kinds = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    torch.manual_seed(0)
    diffusers.AutoencoderKL(**fields, **kinds).save_pretrained(tmp_path)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    vae = libpom.codecs.load(tmp_path, device="cuda", dtype=torch.bfloat16)
    z = torch.randn(1, 4, 512, 512).cuda().bfloat16()
    picture = vae.decode(z, memory=4 << 30)
    peak = torch.cuda.max_memory_allocated() - before
    print(f"4096 x 4096: {peak / 2**30:.2f} GiB at the most")
    assert picture.shape == (1, 3, 4096, 4096) and picture.isfinite().all()
    assert peak < 6 << 30
