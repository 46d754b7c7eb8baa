"""Decoder on a GPU of compute capability 9.0: one kernel for a step of the whole stack, in a CUDA graph.
Skipped without such a GPU or without CUDA kernels in the library."""

import pytest
import torch

import libpom
from test_decoder import stack, stack_as, stepped, whole

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="no GPU of compute capability 9.0 here",
    ),
    pytest.mark.usefixtures("extension"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("depth", "dim", "order", "batch"), [(3, 64, 2, 1), (28, 1152, 2, 1), (5, 384, 3, 8), (70, 64, 1, 4)]
)
def test_one_kernel(depth, dim, order, batch, dtype):
    blocks = stack(depth, dim, order, dtype, "cuda")
    x = torch.randn(batch, 6, dim, device="cuda", dtype=dtype)
    decoder = libpom.Decoder(blocks, batch)
    first = stepped(decoder, x)
    assert decoder.fused
    decoder.reset()
    assert torch.equal(stepped(decoder, x), first)  # graph or not, run or run
    exact = whole(stack_as(blocks, torch.float64), x.double())
    plain = (whole(blocks, x).double() - exact).abs().max()
    assert (first.double() - exact).abs().max() <= 2 * plain
    with libpom.force("composed"):
        apart = stepped(libpom.Decoder(blocks, batch), x)
    assert (apart.double() - exact).abs().max() <= 2 * plain


@torch.no_grad()
def test_updates_are_followed_by_the_graph():
    blocks = stack(3, 64, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(1, 64, device="cuda", dtype=torch.bfloat16)
    decoder = libpom.Decoder(blocks, 1)
    decoder.step(x), decoder.step(x)
    for change in (blocks[1].pom.ho_proj.weight, blocks[0].ffw[2].bias, blocks[2].norm2.weight):
        change.mul_(1.5)
        decoder.reset()
        assert torch.equal(decoder.step(x), libpom.Decoder(blocks, 1).step(x))


def test_more_sequences_go_block_by_block():
    blocks = stack(3, 64, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(9, 3, 64, device="cuda", dtype=torch.bfloat16)
    decoder = libpom.Decoder(blocks, 9)
    torch.testing.assert_close(stepped(decoder, x), whole(blocks, x), rtol=0.05, atol=0.05)
    assert decoder.fused is False
