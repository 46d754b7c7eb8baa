"""libpom.PoM under torch.compile on a GPU, in every mode: values and gradients of the layer in parts beside
the whole operator and fp64, graphs of torch's own over steps whose weights move, and what the library keeps
of weights beside them. Skipped without a GPU or without CUDA kernels in the library."""

import pytest
import torch

import libpom
from test_compile_parts import MASKS, MODES, Block, gradients

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.usefixtures("extension"),
]


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def made(dim, order=2, dtype=torch.bfloat16, batch=2, tokens=160):
    torch.manual_seed(0)
    block = Block(dim, order).to("cuda", dtype)
    x = torch.randn(batch, tokens, dim, device="cuda", dtype=dtype, requires_grad=True)
    return block, x, torch.randn(batch, dim, device="cuda", dtype=dtype)


def in_fp64(block, x, c):
    exact = Block(block.norm.normalized_shape[0], block.pom.order).to("cuda", torch.float64)
    exact.load_state_dict(block.state_dict())
    return exact, x.detach().double().requires_grad_(), c.double()


def assert_as_exact_as(got, plain, exact):
    """Errors within twice those of plain operations in the same dtype, and a few units of it."""
    for a, b, want in zip(got, plain, exact, strict=True):
        mine, theirs = ((t.double() - want).abs().max().item() for t in (a, b))
        assert mine <= 2 * theirs + 4 * torch.finfo(a.dtype).eps * want.abs().max().item()


def steps(function, times=4):
    """Results of calls in steps, copied: torch's graphs write over theirs."""
    found = []
    for _ in range(times):
        torch.compiler.cudagraph_mark_step_begin()
        found.append([part.detach().clone() for part in function()])
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask", ["none", "keys", "causal"])
def test_modes(mode, mask):
    block, x, c = made(128)
    seen = MASKS[mask](2, x.shape[1])
    seen = seen.cuda() if isinstance(seen, torch.Tensor) else seen
    exact = gradients(*[in_fp64(block, x, c)[0]] * 2, *in_fp64(block, x, c)[1:], mask=seen)
    with libpom.force("composed"):
        plain = gradients(block, block, x, c, mask=seen)
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    first, *later = steps(lambda: gradients(compiled, block, x, c, mask=seen))
    assert_as_exact_as(first, plain, exact)
    for again in later:  # the same bits, recorded or replayed
        assert all(torch.equal(a, b) for a, b in zip(later[-1], again, strict=True))
    with torch.no_grad():
        outs = steps(lambda: [compiled(x, c, mask=seen)])
    for (out,) in outs:
        assert_as_exact_as([out], plain[:1], exact[:1])
    assert torch.equal(outs[-1][0], outs[-2][0])


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_weights_that_move_are_followed(mode, order):
    """Graphs read the weights, not copies of what they were."""
    block, x, c = made(64, order)
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    with torch.no_grad():
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            got = compiled(x, c).clone()
            torch.testing.assert_close(got, block(x, c), rtol=0.03, atol=0.03)
            for part in block.parameters():
                part.mul_(1.05)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_recurrent_steps(mode):
    """States go from graph to graph; biases in 16 bits, which the kernels read in 32, are no hindrance."""
    pom = libpom.PoM(64, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(2, 8, 64, device="cuda", dtype=torch.bfloat16)
    step = torch.compile(pom.step_causal, fullgraph=True, mode=mode)
    with torch.no_grad():
        ours = theirs = pom.init_state(2)
        for i in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            y, after = step(x[:, i : i + 1], ours)
            ours = libpom.MixerState(after.sum.clone(), after.count.clone())
            want, theirs = pom.step_causal(x[:, i : i + 1], theirs)
            torch.testing.assert_close(y.clone(), want, rtol=0.02, atol=0.02)
        torch.testing.assert_close(ours.sum, theirs.sum, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("mode", MODES)
def test_autocast(mode):
    """fp32 weights under autocast: gradients in fp32, tokens and weights in bf16 inside."""
    block, x, c = made(128, dtype=torch.float32)
    exact = gradients(*[in_fp64(block, x, c)[0]] * 2, *in_fp64(block, x, c)[1:])
    compiled = torch.compile(block, fullgraph=True, mode=mode)

    def run(function):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return gradients(function, block, x, c)

    with libpom.force("composed"):
        plain = run(block)
    for got in steps(lambda: run(compiled)):
        assert all(part.dtype == torch.float32 for part in got)
        for a, b, want in zip(got, plain, exact, strict=True):
            mine, theirs = ((t.double() - want).abs().max().item() for t in (a, b))
            assert mine <= 2 * theirs + 4 * torch.finfo(torch.bfloat16).eps * want.abs().max().item()


def test_dynamic_lengths():
    pom = libpom.PoM(64, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(pom, fullgraph=True, dynamic=True)
    for n in (40, 77, 256, 301):
        x = torch.randn(2, n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for a, b in zip(gradients(compiled, pom, x), gradients(pom, pom, x), strict=True):
            assert (a - b).abs().max() <= 0.03 * max(1.0, b.abs().max().item())
