"""Decoder on a GPU of compute capability 9.0: one kernel for a step of the whole stack, in a CUDA graph.
Skipped without such a GPU or without CUDA kernels in the library."""

import pytest
import torch

import libpom
from test_decoder import stack, stack_as, stepped, whole
from tools import smaller

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="no GPU of compute capability 9.0 here",
    ),
    pytest.mark.usefixtures("extension"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("depth", "dim", "order", "batch"),
    [
        (3, 64, 2, 1),
        (smaller(28, 3), smaller(1152, 192), 2, 1),
        (5, smaller(384, 128), 3, 8),
        (smaller(70, 9), 64, 1, 4),
    ],
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


def assert_like_new(decoder, x):
    decoder.reset()
    assert torch.equal(decoder.step(x), libpom.Decoder(decoder.blocks, decoder.batch).step(x))
    assert decoder.fused


@torch.no_grad()
def test_updates_are_followed_by_the_graph():
    blocks = stack(3, 64, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(1, 64, device="cuda", dtype=torch.bfloat16)
    decoder = libpom.Decoder(blocks, 1)
    decoder.step(x), decoder.step(x)
    for change in (blocks[1].pom.ho_proj.weight, blocks[0].ffw[2].bias, blocks[2].norm2.weight):
        change.mul_(1.5)
        assert_like_new(decoder, x)


def test_more_sequences_go_block_by_block():
    blocks = stack(3, 64, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(9, 3, 64, device="cuda", dtype=torch.bfloat16)
    decoder = libpom.Decoder(blocks, 9)
    torch.testing.assert_close(stepped(decoder, x), whole(blocks, x), rtol=0.05, atol=0.05)
    assert decoder.fused is False


@torch.no_grad()
def test_a_graph_goes_where_the_weights_are():
    blocks = stack(3, 64, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(2, 64, device="cuda", dtype=torch.bfloat16)
    decoder = libpom.Decoder(blocks, 2)
    decoder.step(x), decoder.step(x)
    blocks.load_state_dict(stack(3, 64, dtype=torch.bfloat16, device="cuda").state_dict(), assign=True)
    assert_like_new(decoder, x)
    blocks[1].pom.ho_proj.weight.data = torch.randn_like(blocks[1].pom.ho_proj.weight)
    assert_like_new(decoder, x)


def test_prefill_and_states():
    blocks = stack(4, 128, order=4, dtype=torch.bfloat16, device="cuda", bias=False)
    x = torch.randn(3, 9, 128, device="cuda", dtype=torch.bfloat16)
    exact = whole(stack_as(blocks, torch.float64), x.double())
    plain = (whole(blocks, x).double() - exact).abs().max()
    decoder, fork = libpom.Decoder(blocks, 3), libpom.Decoder(blocks, 3)
    first = decoder.prefill(x[:, :5])
    fork.load(decoder.states())
    rest = stepped(decoder, x[:, 5:])
    assert decoder.fused and torch.equal(stepped(fork, x[:, 5:]), rest)
    assert (torch.cat([first, rest], 1).double() - exact).abs().max() <= 2 * plain


def test_paths_of_a_decoder_that_has_a_graph():
    blocks = stack(3, 64, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(1, 64, device="cuda", dtype=torch.bfloat16)
    decoder = libpom.Decoder(blocks, 1)
    decoder.step(x)
    for path, fused in (("composed", False), ("auto", True), ("python", False), ("fused", True)):
        with libpom.force(path):
            decoder.step(x)
        assert decoder.fused is fused, path
    many = libpom.Decoder(blocks, 9)
    with libpom.force("fused"), pytest.raises(libpom.Error, match="fused was asked for"):
        many.step(x.expand(9, 64))


def test_a_graph_of_the_callers_own():
    blocks = stack(3, 64, dtype=torch.bfloat16, device="cuda")
    tokens = torch.randn(4, 1, 64, device="cuda", dtype=torch.bfloat16)
    want = stepped(libpom.Decoder(blocks, 1), tokens.transpose(0, 1))
    decoder, x = libpom.Decoder(blocks, 1), tokens[0].clone()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(libpom.Error, match="run one step before capturing a graph"), torch.cuda.graph(graph):
        decoder.step(x)
    decoder.step(x)
    decoder.reset()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = decoder.step(x)
    for i, token in enumerate(tokens):
        x.copy_(token)
        graph.replay()
        assert torch.equal(y, want[:, i])


@pytest.mark.parametrize("batch", [1, 5])
def test_the_operator_with_modulations_of_each_row(batch):
    """As diffusion's blocks have them; against fp64 on the CPU."""
    depth, dim, features, hidden, order = 3, 64, 256, 128, 2
    shapes = [(features, dim), (features, dim), (dim, features), (hidden, dim), (dim, hidden)] * depth
    weights = [torch.randn(shape).mul_(0.1).bfloat16() for shape in shapes]
    biases = [torch.randn(shape[0]) * 0.1 for shape in shapes]
    modulation, sums = torch.randn(depth, batch, 6 * dim) * 0.5, torch.randn(depth, batch, features)
    x, count = torch.randn(batch, dim), torch.arange(batch)
    exact = [x.double(), sums.double(), count.clone()]
    torch.ops.pom.stack_step(
        exact[0],
        [w.double() for w in weights],
        [b.double() for b in biases],
        modulation.double(),
        *exact[1:],
        order,
    )
    ours = [t.cuda() for t in (x, sums, count)]
    on_gpu = [[t.cuda() for t in part] for part in (weights, biases)]
    assert torch.ops.pom.stack_step(ours[0], *on_gpu, modulation.cuda(), *ours[1:], order)
    plain = [x.clone(), sums.clone(), count.clone()]
    torch.ops.pom.stack_step(plain[0], weights, biases, modulation, *plain[1:], order)
    for a, b, want in zip(ours, plain, exact, strict=True):
        assert (a.cpu() - want).abs().max() <= 2 * (b - want).abs().max() + 1e-5
