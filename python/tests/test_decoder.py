"""Decoder: token by token through a stack of blocks, against the same blocks on the whole sequence."""

import copy

import pytest
import torch

import libpom


def stack(depth=3, dim=24, order=2, dtype=torch.float32, device="cpu", **options):
    blocks = torch.nn.ModuleList(
        libpom.Polymorpher(dim, order, 2, 2, dtype=dtype, device=device, **options) for _ in range(depth)
    )
    with torch.no_grad():
        for block in blocks:
            for norm in (block.norm1, block.norm2):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.uniform_(-0.5, 0.5)
    return blocks


@torch.no_grad()
def whole(blocks, x):
    for block in blocks:
        x = block(x, mask=libpom.causal)
    return x


def stepped(decoder, x):
    return torch.stack([decoder.step(x[:, i]) for i in range(x.shape[1])], 1)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"bias": False}], ids=["biases", "no biases"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_the_causal_stack(backend, order, options, dtype):
    blocks = stack(order=order, dtype=dtype, **options)
    x = torch.randn(2, 9, 24, dtype=dtype)
    decoder = libpom.Decoder(blocks, batch=2)
    bounds = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-11}
    torch.testing.assert_close(stepped(decoder, x), whole(blocks, x), **bounds)
    assert decoder.fused is False


def test_bf16(backend):
    blocks = stack(dtype=torch.bfloat16)
    x = torch.randn(2, 9, 24, dtype=torch.bfloat16)
    exact = whole(stack_as(blocks, torch.float64), x.double())
    ours = (stepped(libpom.Decoder(blocks, 2), x).double() - exact).abs().max()
    plain = (whole(blocks, x).double() - exact).abs().max()
    assert ours <= 2 * plain


def stack_as(blocks, dtype):
    first = blocks[0]
    bias, device = first.pom.ho_proj.bias is not None, first.norm1.weight.device
    copied = stack(len(blocks), first.pom.dim, first.pom.order, dtype, device, bias=bias)
    copied.load_state_dict(blocks.state_dict())
    return copied


def test_prefill_then_steps(backend):
    blocks = stack()
    x = torch.randn(3, 12, 24)
    want = whole(blocks, x)
    decoder = libpom.Decoder(blocks, batch=3)
    first = decoder.prefill(x[:, :5])
    rest = stepped(decoder, x[:, 5:])
    torch.testing.assert_close(torch.cat([first, rest], 1), want, rtol=1e-4, atol=1e-5)
    decoder.reset()
    torch.testing.assert_close(stepped(decoder, x[:, :2]), want[:, :2], rtol=1e-4, atol=1e-5)


def test_states_out_and_in(backend):
    blocks = stack()
    x = torch.randn(2, 6, 24)
    one, other = libpom.Decoder(blocks, 2), libpom.Decoder(blocks, 2)
    stepped(one, x[:, :4])
    states = one.states()
    kept = [state.sum.clone() for state in states]
    a = one.step(x[:, 4])
    assert all(torch.equal(state.sum, before) for state, before in zip(states, kept, strict=True))
    other.load(states)
    assert torch.equal(a, other.step(x[:, 4]))
    y = x[:, 4:5]
    for block, state in zip(blocks, states, strict=True):  # the same states as the blocks' own
        y, _ = block.step_causal(y, state)
    torch.testing.assert_close(a, y[:, 0], rtol=1e-4, atol=1e-5)


def test_shapes_and_dtypes_come_back(backend):
    decoder = libpom.Decoder(stack(), 2)
    x = torch.randn(2, 24)
    first = decoder.step(x)
    kept = first.clone()
    second = decoder.step(x.unsqueeze(1))
    assert first.shape == (2, 24) and second.shape == (2, 1, 24) and first.dtype == x.dtype
    assert torch.equal(first, kept)  # a result is the caller's


@torch.no_grad()
def test_updates_in_place_are_followed(backend):
    blocks = stack()
    x = torch.randn(1, 24)
    decoder = libpom.Decoder(blocks, 1)
    decoder.step(x)
    for change in (blocks[1].pom.ho_proj.weight, blocks[0].ffw[2].bias, blocks[2].norm2.weight):
        change.mul_(1.5)
        decoder.reset()
        fresh = libpom.Decoder(blocks, 1)
        assert torch.equal(decoder.step(x), fresh.step(x))


@torch.no_grad()
def test_other_tensors_in_their_place_are_followed(backend):
    blocks = stack()
    x = torch.randn(1, 24)
    decoder = libpom.Decoder(blocks, 1)

    def agree():
        decoder.reset()
        assert torch.equal(decoder.step(x), libpom.Decoder(blocks, 1).step(x))

    agree()
    blocks.load_state_dict(stack().state_dict(), assign=True)
    agree()
    blocks[1].pom.se_proj.weight = torch.nn.Parameter(torch.randn(96, 24))
    agree()
    blocks[0].norm1.bias.data = torch.randn(24)
    agree()
    blocks[2].ffw[2].bias.data.add_(1)  # which nobody counts
    blocks[1].ffw[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    decoder.refresh()
    agree()


def test_blocks_that_differ(backend):
    """In eps, and in the feed-forward: what one operator cannot have."""
    x = torch.randn(2, 4, 24)
    eps, wide = stack(), stack()
    eps[1].norm1.eps = eps[1].norm2.eps = 0.5
    wide[1].ffw = torch.nn.Sequential(torch.nn.Linear(24, 7), torch.nn.GELU(), torch.nn.Linear(7, 24))
    for blocks in (eps, wide):
        got = stepped(libpom.Decoder(blocks, 2), x)
        torch.testing.assert_close(got, whole(blocks, x), rtol=1e-4, atol=1e-5)


def test_states_with_gradients(backend):
    blocks = stack()
    y, states = torch.randn(2, 3, 24), []
    for block in blocks:
        y, state = block.step_causal(y)
        states.append(state)
    decoder = libpom.Decoder(blocks, 2)
    decoder.load(states)
    assert torch.equal(decoder.states()[1].sum, states[1].sum.detach())
    assert decoder.states()[0].count.tolist() == [3, 3]


def test_a_block_that_fails_changes_nothing(backend):
    blocks = stack()
    decoder = libpom.Decoder(blocks, 2)
    decoder.prefill(torch.randn(2, 3, 24))
    before = [state.sum for state in decoder.states()]
    handle = blocks[2].norm2.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decoder.prefill(torch.randn(2, 3, 24))
    handle.remove()
    for state, kept in zip(decoder.states(), before, strict=True):
        assert torch.equal(state.sum, kept) and state.count.tolist() == [3, 3]


def test_copies(backend):
    decoder = libpom.Decoder(stack(), 2)
    x = torch.randn(2, 24)
    decoder.step(x)
    other = copy.deepcopy(decoder)
    assert torch.equal(decoder.step(x), other.step(x))


def test_inference_mode(backend):
    x = torch.randn(2, 5, 24)
    with torch.inference_mode():
        blocks = stack()
        decoder = libpom.Decoder(blocks, 2)
        got = [stepped(decoder, x[:, :3])]
    got.append(stepped(decoder, x[:, 3:]))
    torch.testing.assert_close(torch.cat(got, 1), whole(blocks, x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_steps_within_inference_mode_and_without(backend):
    blocks, x = stack(), torch.randn(2, 24)
    decoder = libpom.Decoder(blocks, 2)
    with torch.inference_mode():
        decoder.step(x)
    blocks[0].ffw[0].bias.add_(1)
    decoder.reset()
    assert torch.equal(decoder.step(x), libpom.Decoder(blocks, 2).step(x))


def test_adapters_run_as_they_are(backend):
    class Doubled(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 2 * self.inner(x)

    blocks = stack()
    blocks[1].ffw[0] = Doubled(blocks[1].ffw[0])
    blocks[2].pom.ag_proj = Doubled(blocks[2].pom.ag_proj)
    x = torch.randn(2, 4, 24)
    torch.testing.assert_close(stepped(libpom.Decoder(blocks, 2), x), whole(blocks, x), rtol=1e-4, atol=1e-5)


def test_mistakes(backend):
    blocks = stack()
    with pytest.raises(libpom.Error, match=r"Decoder: blocks: expected Polymorpher blocks, got \['Linear'\]"):
        libpom.Decoder([torch.nn.Linear(2, 2)], 1)
    with pytest.raises(libpom.Error, match="Decoder: blocks: expected Polymorpher blocks"):
        libpom.Decoder([], 1)
    with pytest.raises(libpom.Error, match="Decoder: blocks: expected blocks of one kind"):
        libpom.Decoder([*blocks, *stack(1, order=3)], 1)
    with pytest.raises(libpom.Error, match="Decoder: batch: expected an integer of at least 1, got 0"):
        libpom.Decoder(blocks, 0)
    decoder = libpom.Decoder(blocks, 2)
    with pytest.raises(libpom.Error, match=r"Decoder\.step: x: expected \(2, 24\) or .* got \(3, 24\)"):
        decoder.step(torch.randn(3, 24))
    with pytest.raises(libpom.Error, match=r"Decoder\.step: x: expected a tensor of floating-point numbers"):
        decoder.step(torch.ones(2, 24, dtype=torch.int64))
    with pytest.raises(libpom.Error, match=r"Decoder\.prefill: x: expected \(2, n, 24\), got \(2, 24\)"):
        decoder.prefill(torch.randn(2, 24))
    with pytest.raises(libpom.Error, match=r"Decoder\.load: states: expected 3, one of each block, got 2"):
        decoder.load(decoder.states()[:2])
    with pytest.raises(libpom.Error, match=r"Decoder\.load: states: expected sums of shape"):
        decoder.load(libpom.Decoder(blocks, 3).states())


def operands(blocks=1, batch=2, dim=8):
    weights = [torch.randn(shape) for shape in [(32, 8), (32, 8), (8, 32), (16, 8), (8, 16)] * blocks]
    x, modulation = torch.randn(batch, dim), torch.randn(blocks, batch, 6 * dim)
    return (
        x,
        weights,
        [None] * len(weights),
        modulation,
        torch.zeros(blocks, batch, 32),
        torch.zeros(batch).long(),
    )


@pytest.mark.parametrize(
    ("at", "wrong", "said"),
    [
        (0, torch.randn(2, 9), "ho_weight: expected contiguous"),
        (0, torch.randn(2, 8).double(), "x: expected Float beside weights of Float, got Double"),
        (1, [torch.randn(32, 8)] * 4, "weights: expected five of each block"),
        (3, torch.randn(1, 2, 47), r"modulation: expected contiguous Float of shape \[1, 2, 48\]"),
        (4, torch.zeros(1, 2, 31), "sums: expected contiguous"),
        (5, torch.zeros(2), "count: expected contiguous Long"),
    ],
    ids=["width", "dtype", "weights", "modulation", "sums", "count"],
)
def test_the_operator_checks_its_operands(extension, at, wrong, said):
    arguments = list(operands())
    arguments[at] = wrong
    sums = arguments[4].clone()
    with pytest.raises(RuntimeError, match=said):
        torch.ops.pom.stack_step(*arguments, 2)
    assert torch.equal(arguments[4], sums)
