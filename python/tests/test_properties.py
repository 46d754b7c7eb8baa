"""The paper's propositions, and what the recurrent form promises, as tests."""

import copy
import dataclasses
import pickle

import pytest
import torch

import libpom
from tools import referee

F64 = {"rtol": 0, "atol": 1e-12}


@pytest.fixture
def pom():
    return libpom.PoM(12, 3, 2).double()


def tokens(b=2, n=23, d=12):
    return torch.randn(b, n, d, dtype=torch.float64)


# --- proposition 1: permutation equivariance ---


@pytest.mark.parametrize("seed", range(3))
def test_permutation_equivariance(backend, pom, seed):
    x = tokens()
    order = torch.randperm(23, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(pom(x[:, order]), pom(x)[:, order], **F64)
    keys = torch.rand(2, 23) < 0.5
    torch.testing.assert_close(pom(x[:, order], mask=keys[:, order]), pom(x, mask=keys)[:, order], **F64)
    full = torch.rand(2, 23, 23) < 0.5
    shuffled = full[:, order][:, :, order]
    torch.testing.assert_close(pom(x[:, order], mask=shuffled), pom(x, mask=full)[:, order], **F64)


def test_context_order_does_not_matter(backend, pom):
    xq, xc = tokens(), tokens(n=31)
    torch.testing.assert_close(pom(xq, xc.flip(1)), pom(xq, xc), **F64)


# --- lemma 3: contextual mapping ---

# Multisets of integers whose sums of powers 1 ... k agree and whose sums of powers k + 1 do not, after
# Prouhet, Tarry and Escott.
TWINS = {
    1: ([1, 4], [2, 3]),
    2: ([0, 4, 5], [1, 2, 6]),
    3: ([0, 4, 7, 11], [1, 2, 9, 10]),
    4: ([0, 4, 8, 16, 17], [1, 2, 10, 14, 18]),
    5: ([0, 5, 6, 16, 17, 22], [1, 2, 10, 12, 20, 21]),
}


def inverse_gelu(y):
    """x > 0 with gelu(x) = y, by bisection."""
    low, high = torch.zeros_like(y), torch.full_like(y, 8.0)
    for _ in range(200):
        middle = (low + high) / 2
        below = torch.nn.functional.gelu(middle) < y
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def power_mixer(k):
    """A mixer of width 1 whose state is the sums of the powers 1 ... k of gelu(x)."""
    pom = libpom.PoM(1, k, 1, bias=False).double()
    with torch.no_grad():
        pom.ho_proj.weight.fill_(1.0)
        pom.se_proj.weight.fill_(1.0)
        pom.ag_proj.weight.copy_(torch.arange(1.0, k + 1)[None])
    return pom


@pytest.mark.parametrize("k", TWINS)
def test_contextual_mapping(backend, k):
    """Two sequences that no state of degree k can tell apart are told apart, at every token, by degree k +
    1."""
    a, b = (torch.tensor(side, dtype=torch.float64) for side in TWINS[k])
    a, b = (inverse_gelu((side + 1) / 12)[None, :, None] for side in (a, b))
    low, high = power_mixer(k), power_mixer(k + 1)
    torch.testing.assert_close(low.summarize(a).sum, low.summarize(b).sum, rtol=1e-12, atol=1e-12)
    gap = (high.summarize(a).sum - high.summarize(b).sum).abs()[0]
    assert gap[:k].max() < 1e-11 and gap[k] > 1e-4
    probe = torch.linspace(-2, 2, 9, dtype=torch.float64)[None, :, None]
    torch.testing.assert_close(low(probe, a), low(probe, b), **F64)
    assert ((high(probe, a) - high(probe, b)).abs() > 1e-6).all()


def test_different_tokens_get_different_outputs(backend, pom):
    x = tokens(b=1)
    y = pom(x)[0]
    assert torch.pdist(y).min() > 1e-9


def test_count_keeps_multiplicity(backend, pom):
    """A sequence and the same one twice have one mean; their counts tell them apart, and weigh what comes
    next."""
    x, more = tokens(), tokens(n=5)
    once, twice = pom.summarize(x), pom.summarize(torch.cat([x, x], 1))
    torch.testing.assert_close(pom.select(x, once), pom.select(x, twice), rtol=0, atol=1e-7)
    assert once.count.tolist() == [23, 23] and twice.count.tolist() == [46, 46]
    torch.testing.assert_close(twice.sum, 2 * once.sum, **F64)
    y, _ = pom.step(more, once)
    z, _ = pom.step(more, twice)
    assert (y - z).abs().max() > 1e-4


# --- causality, bit for bit ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("block", "window"), [(1, None), (1, 4), (5, None), (5, 2), (64, None), (8, 3)])
def test_causality(backend, block, window, dtype):
    """A change at token j changes no output of an earlier block, and, with a window, of none it has left."""
    pom = libpom.PoM(16, 2, 2).to(dtype)
    n, mask = 70, libpom.block_causal(block, window)
    x = torch.randn(2, n, 16).to(dtype)
    y = pom(x, mask=mask)
    for j in (0, 1, 33, 64, 69):
        changed = x.clone()
        changed[:, j] += 3
        z = pom(changed, mask=mask)
        first = j // block * block
        assert torch.equal(y[:, :first], z[:, :first])
        assert not torch.equal(y[:, first : first + block], z[:, first : first + block])
        if window is not None:
            torch.testing.assert_close(
                z[:, first + window * block :], y[:, first + window * block :], rtol=0, atol=0.01
            )


def test_nan_in_the_future_stays_there(backend):
    pom, x = libpom.PoM(16, 2, 2), torch.randn(1, 70, 16)
    x[:, 40] = float("nan")
    for mask in (libpom.causal, libpom.block_causal(10), libpom.block_causal(10, window=2)):
        y = pom(x, mask=mask)
        assert y[:, :40].isfinite().all() and y[:, 40:50].isnan().all()
    y = pom(x[0], cu_seqlens=torch.tensor([0, 10, 41, 70]))
    assert y[:10].isfinite().all() and y[10:41].isnan().all() and y[41:].isfinite().all()


# --- recurrence ---


def pieces(x, sizes):
    return x.split([*sizes, x.shape[1] - sum(sizes)], dim=1)


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("block", [1, 4, 23])
def test_steps_equal_parallel(backend, pom, block, window):
    x = tokens()
    want = pom(x, mask=libpom.block_causal(block, window))
    state, got = pom.init_state(2, window), []
    for piece in x.split(block, dim=1):
        y, state = pom.step(piece, state)
        got.append(y)
    torch.testing.assert_close(torch.cat(got, 1), want, **F64)


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("sizes", [(), (1,), (5, 1, 9), (22,)])
def test_causal_steps_equal_parallel(backend, pom, sizes, window):
    x = tokens()
    want = pom(x, mask=libpom.block_causal(1, window))
    state, got = pom.init_state(2, window), []
    for piece in pieces(x, sizes):
        y, state = pom.step_causal(piece, state)
        got.append(y)
    torch.testing.assert_close(torch.cat(got, 1), want, **F64)
    assert state.count.tolist() == [min(23, window or 23)] * 2


@pytest.mark.parametrize("seed", range(4))
def test_mixed_block_sizes(backend, pom, seed):
    """Blocks of any sizes equal the parallel form with the 3-D mask of those blocks, causal pieces between
    them too."""
    generator = torch.Generator().manual_seed(seed)
    x, sizes, causal = tokens(), [], []
    while sum(sizes) < 23:
        sizes.append(min(int(torch.randint(1, 7, (), generator=generator)), 23 - sum(sizes)))
        causal.append(bool(torch.randint(2, (), generator=generator)))
    mask, start = torch.zeros(23, 23, dtype=torch.bool), 0
    state, got = None, []
    for size, in_order in zip(sizes, causal, strict=True):
        for i in range(start, start + size):
            mask[i, : i + 1 if in_order else start + size] = True
        piece = x[:, start : start + size]
        y, state = pom.step_causal(piece, state) if in_order else pom.step(piece, state)
        got.append(y)
        start += size
    torch.testing.assert_close(torch.cat(got, 1), pom(x, mask=mask.expand(2, 23, 23)), **F64)


def test_mixed_windowed_blocks(backend, pom):
    """Blocks and single tokens through one ring: each step sees the last three blocks, whatever their
    sizes."""
    x, state, got, seen = tokens(), pom.init_state(2, window=3), [], []
    mask, start = torch.zeros(23, 23, dtype=torch.bool), 0
    for size, in_order in ((4, False), (2, True), (5, False), (1, False), (6, True), (5, False)):
        for piece in [1] * size if in_order else [size]:
            seen = [*seen, start][-3:]
            mask[start : start + piece, seen[0] : start + piece] = True
            start += piece
        piece = x[:, start - size : start]
        y, state = pom.step_causal(piece, state) if in_order else pom.step(piece, state)
        got.append(y)
    torch.testing.assert_close(torch.cat(got, 1), pom(x, mask=mask.expand(2, 23, 23)), **F64)


def test_steps_in_half_types(backend):
    """A long stream of bf16 tokens: the sum is fp32 and stays that of the parallel form."""
    pom, x = libpom.PoM(16, 2, 1).bfloat16(), torch.randn(1, 1200, 16).bfloat16()
    want, state, got = pom(x, mask=libpom.block_causal(8)), None, []
    for piece in x.split(8, dim=1):
        y, state = pom.step(piece, state)
        got.append(y)
    assert state.sum.dtype == torch.float32
    torch.testing.assert_close(torch.cat(got, 1).float(), want.float(), rtol=2e-2, atol=4e-3)


def test_forked_states(backend, pom):
    """A step leaves its state as it was: two continuations of one prefix do not know of each other."""
    x, a, b = tokens(), tokens(n=4), tokens(n=4)
    for window in (None, 2):
        _, prefix = pom.step(x, pom.init_state(2, window))
        kept = prefix.clone()
        ya, state_a = pom.step(a, prefix)
        yb, _ = pom.step_causal(b, prefix)
        again, _ = pom.step(a, kept)
        assert torch.equal(ya, again)
        assert torch.equal(prefix.sum, kept.sum) and torch.equal(prefix.count, kept.count)
        assert not torch.equal(state_a.sum, prefix.sum) and not torch.equal(ya, yb)


@pytest.mark.parametrize("cut", [1, 8, 22])
def test_merged_states(backend, pom, cut):
    """Two halves summarised apart give the state of the whole: sequence parallelism."""
    x = tokens()
    whole = pom.summarize(x)
    merged = pom.summarize(x[:, :cut]).merge(pom.summarize(x[:, cut:]))
    torch.testing.assert_close(merged.sum, whole.sum, **F64)
    assert torch.equal(merged.count, whole.count)
    torch.testing.assert_close(pom.select(x, merged), pom(x), rtol=0, atol=1e-6)  # 1e-7 in the mean


@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("after", range(6))
def test_merged_rings(backend, pom, before, after):
    """Windowed states merge as one stream of blocks, full rings or not."""
    blocks = [tokens(n=1 + i % 3) for i in range(before + after)]
    whole, left, right = (pom.init_state(2, window=3) for _ in range(3))
    for i, block in enumerate(blocks):
        whole = pom.summarize(block, whole)
        left, right = (
            (pom.summarize(block, left), right) if i < before else (left, pom.summarize(block, right))
        )
    merged = left.merge(right)
    for field in dataclasses.fields(whole):
        assert torch.equal(getattr(merged, field.name), getattr(whole, field.name)), field.name


def test_context_is_summarised_once(backend, pom):
    """Cross-mixing with a kept state equals cross-mixing with the context; padding is masked out of it."""
    xq, xc = tokens(n=5), tokens(n=31)
    keys = torch.arange(31) < torch.tensor([[31], [9]])
    state = pom.summarize(xc, mask=keys)
    assert state.count.tolist() == [31, 9]
    torch.testing.assert_close(pom.select(xq, state), pom(xq, xc, keys), **F64)
    y, stepped = pom.step(xq, xc=xc, mask=keys)
    torch.testing.assert_close(y, pom(xq, xc, keys), **F64)
    assert torch.equal(stepped.sum, state.sum)


def test_gradients_flow_through_states(backend, pom):
    """Stepping trains as the parallel form does."""
    x = tokens()
    for window, run in ((None, pom.step), (None, pom.step_causal), (2, pom.step), (2, pom.step_causal)):
        block = 4 if run == pom.step else 1
        want = pom(x, mask=libpom.block_causal(block, window)).square().sum()
        state, got = pom.init_state(2, window), 0
        for piece in x.split(4, dim=1):
            y, state = run(piece, state)
            got = got + y.square().sum()
        a, b = (torch.autograd.grad(loss, list(pom.parameters())) for loss in (want, got))
        for left, right in zip(a, b, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


def test_states_index_by_sequence(backend, pom):
    """Beam search: reorder, repeat and drop sequences."""
    x, more = tokens(b=3), tokens(b=4, n=2)
    state = pom.summarize(x, pom.init_state(3, window=2))
    beams = torch.tensor([2, 0, 0, 1])
    y, _ = pom.step(more, state[beams])
    z, _ = pom.step(more, pom.summarize(x[beams], pom.init_state(4, window=2)))
    torch.testing.assert_close(y, z, **F64)
    assert state[1].sum.shape == (1, 72) and state[-1:].count.tolist() == [23]


@pytest.mark.parametrize("window", [None, 3])
def test_states_are_saved(backend, pom, window, tmp_path):
    safetensors = referee("safetensors.torch")
    x = tokens()
    _, state = pom.step_causal(x, pom.init_state(2, window))
    safetensors.save_file(state.state_dict(), tmp_path / "state.safetensors")
    torch.save(state.state_dict(), tmp_path / "state.pt")
    for tensors in (safetensors.load_file(tmp_path / "state.safetensors"), torch.load(tmp_path / "state.pt")):
        loaded = libpom.MixerState.from_state_dict(tensors)
        assert loaded.window == window
        assert torch.equal(pom.step(x, loaded)[0], pom.step(x, state)[0])


@pytest.mark.parametrize("blocks", range(5))
def test_windowed_states_survive_saving(backend, pom, blocks):
    """Full rings or not; what they merge into is the same too."""
    state, more = pom.init_state(2, window=3), pom.init_state(2, window=3)
    for _ in range(blocks):
        state = pom.summarize(tokens(n=2), state)
    loaded = libpom.MixerState.from_state_dict(state.state_dict())
    more = pom.summarize(tokens(n=2), more)
    for a, b in (
        (state, loaded),
        (more.merge(state), more.merge(loaded)),
        (state.merge(more), loaded.merge(more)),
    ):
        assert all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))


def test_modules_and_masks_copy_and_pickle():
    pom = libpom.PoM(8, 2, 1)
    x = torch.randn(1, 5, 8)
    assert torch.equal(copy.deepcopy(pom)(x), pom(x))
    assert torch.equal(pickle.loads(pickle.dumps(pom))(x), pom(x))
    for mask in (libpom.causal, libpom.block_causal(3, window=2)):
        assert pickle.loads(pickle.dumps(mask)) == mask == copy.deepcopy(mask)
        assert eval(repr(mask)) == mask
    assert libpom.block_causal(1) == libpom.causal


def test_dense_masks():
    assert libpom.block_causal(2, window=2).dense(5).int().tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
    assert torch.equal(libpom.causal.dense(6), torch.ones(6, 6, dtype=torch.bool).tril())


# --- what is not a plain projection runs as the module it is ---


class Adapter(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("name", ["ho_proj", "se_proj", "ag_proj"])
def test_adapters_and_hooks_are_kept(backend, name):
    pom, x = libpom.PoM(12, 2, 2).double(), tokens(n=8)
    plain = pom(x)
    hooked = []
    handle = getattr(pom, name).register_forward_hook(lambda *args: hooked.append(1))
    torch.testing.assert_close(pom(x), plain, **F64)
    assert hooked
    handle.remove()
    setattr(pom, name, Adapter(getattr(pom, name)).double())
    adapted = pom(x, mask=libpom.block_causal(4))
    assert (adapted - pom(x)).abs().max() > 1e-6
    state, causal_state, got, causal = None, None, [], []
    for piece in x.split(4, dim=1):
        y, state = pom.step(piece, state)
        z, causal_state = pom.step_causal(piece, causal_state)
        got.append(y)
        causal.append(z)
    torch.testing.assert_close(torch.cat(got, 1), adapted, **F64)
    torch.testing.assert_close(torch.cat(causal, 1), pom(x, mask=libpom.causal), **F64)


def test_polymorpher_steps(backend):
    block, x = libpom.Polymorpher(12, 2, 2, ffw_expand=3).double(), tokens()
    assert sorted(name.split(".")[0] for name, _ in block.named_children()) == [
        "ffw",
        "norm1",
        "norm2",
        "pom",
    ]
    state, got, causal_state, causal = block.init_state(2), [], None, []
    for piece in x.split(5, dim=1):
        y, state = block.step(piece, state)
        z, causal_state = block.step_causal(piece, causal_state)
        got.append(y)
        causal.append(z)
    torch.testing.assert_close(torch.cat(got, 1), block(x, mask=libpom.block_causal(5)), **F64)
    torch.testing.assert_close(torch.cat(causal, 1), block(x, mask=libpom.causal), **F64)
