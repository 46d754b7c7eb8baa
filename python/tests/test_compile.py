"""torch.compile without graph breaks, dynamic shapes, torch.export and autocast."""

import io

import pytest
import torch

import libpom


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


class Masked(torch.nn.Module):
    """A model whose mask is its own, as models have it."""

    def __init__(self, mask=None, dim=16):
        super().__init__()
        self.block = libpom.Polymorpher(dim, 2, 1, ffw_expand=2)
        self.mask = mask

    def forward(self, x):
        return self.block(x, mask=self.mask)


MASKS = [None, libpom.causal, libpom.block_causal(4), libpom.block_causal(4, window=2)]


def with_gradients(function, x, parameters):
    x = x.detach().requires_grad_()
    out = function(x)
    return [out, *torch.autograd.grad(out.square().sum(), [x, *parameters])]


def assert_same(got, want, atol=2e-5):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=atol)


def test_inductor_trains(backend):
    """The default backend, forward and backward, in one graph."""
    model, x = Masked(libpom.causal), torch.randn(2, 11, 16)
    want = with_gradients(model, x, model.parameters())
    compiled = torch.compile(model, fullgraph=True)
    assert_same(with_gradients(compiled, x, model.parameters()), want)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_fullgraph(backend, mask):
    model, x = Masked(mask), torch.randn(2, 11, 16)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled, x, model.parameters()), with_gradients(model, x, model.parameters()))


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_mask_as_argument(backend, mask):
    """Masks may be given to the compiled module itself; another mask is another graph."""
    pom, x = libpom.PoM(16, 2, 1), torch.randn(2, 11, 16)
    compiled = torch.compile(pom, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, mask=libpom.causal), pom(x, mask=libpom.causal))
    torch.testing.assert_close(compiled(x, mask=mask), pom(x, mask=mask))


def test_tensor_masks_cross_and_packing(backend):
    pom, x, xc = libpom.PoM(16, 2, 1), torch.randn(2, 11, 16), torch.randn(2, 7, 16)
    compiled = torch.compile(pom, fullgraph=True, backend="aot_eager")
    keys, full, cu = torch.rand(2, 7) < 0.5, torch.rand(2, 11, 7) < 0.5, torch.tensor([0, 3, 11])
    for args in (
        (x, xc),
        (x, xc, keys),
        (x, xc, full),
        (x[0], None, None, cu),
        (x[0], None, libpom.causal, cu),
    ):
        torch.testing.assert_close(compiled(*args), pom(*args))


def test_dynamic_shapes(backend):
    """Lengths and batches after the first few need no new graph."""
    model = Masked(libpom.block_causal(4))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    counter = torch._dynamo.utils.counters
    for i, (b, n) in enumerate([(2, 8), (3, 19), (5, 30), (7, 64), (4, 129)]):
        x = torch.randn(b, n, 16)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        if i == 1:
            graphs = counter["stats"]["unique_graphs"]
    assert counter["stats"]["unique_graphs"] == graphs


def test_steps_compile(backend):
    pom, x = libpom.PoM(16, 2, 1), torch.randn(2, 12, 16)
    step = torch.compile(pom.step, fullgraph=True, backend="aot_eager")
    step_causal = torch.compile(pom.step_causal, fullgraph=True, backend="aot_eager")
    for window in (None, 3):
        ours = theirs = pom.init_state(2, window)
        for piece in x.split(4, dim=1):
            got, ours = step(piece, ours)
            want, theirs = pom.step(piece, theirs)
            torch.testing.assert_close(got, want)
            got, ours = step_causal(piece, ours)
            want, theirs = pom.step_causal(piece, theirs)
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours.sum, theirs.sum)
        assert torch.equal(ours.count, theirs.count)


def exported(module, *args, **options):
    """Exported, saved and loaded again."""
    program = torch.export.export(module, args, **options)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return program, torch.export.load(file).module()


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_export(backend, mask):
    model, x = Masked(mask).eval(), torch.randn(2, 11, 16)
    program, loaded = exported(model, x)
    torch.testing.assert_close(loaded(x), model(x))
    if backend == "extension":  # the graph holds the operator itself, with integers for its mask
        assert any("pom.mixer_layer" in str(node.target) for node in program.graph.nodes)


def test_export_with_mask_argument(backend):
    pom, x = libpom.PoM(16, 2, 1), torch.randn(2, 11, 16)
    program = torch.export.export(pom, (x,), {"mask": libpom.causal})
    torch.testing.assert_close(program.module()(x, mask=libpom.causal), pom(x, mask=libpom.causal))


def test_export_dynamic(backend):
    model = Masked(libpom.causal).eval()
    dims = {"x": {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("tokens", min=2, max=4096)}}
    _, loaded = exported(model, torch.randn(2, 11, 16), dynamic_shapes=dims)
    for b, n in ((3, 40), (1, 5)):
        x = torch.randn(b, n, 16)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)


class Stepper(torch.nn.Module):
    def __init__(self, pom, causal):
        super().__init__()
        self.pom, self.causal = pom, causal

    def forward(self, x, state):
        return self.pom.step_causal(x, state) if self.causal else self.pom.step(x, state)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_export_step(backend, causal, window):
    """A step with its state in and out: what a server deploys."""
    pom, x = libpom.PoM(16, 2, 1), torch.randn(2, 4, 16)
    stepper, state = Stepper(pom, causal), pom.init_state(2, window)
    _, loaded = exported(stepper, x, state)
    _, state = stepper(x, state)
    got, after = loaded(x, state)
    want, expected = stepper(x, state)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(after.sum, expected.sum)
    assert torch.equal(after.count, expected.count)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [None, libpom.causal], ids=repr)
def test_autocast(backend, mask, dtype):
    """Under autocast the layer computes in the lower dtype, sums in fp32, and gives fp32 gradients to fp32
    weights."""
    pom, x = libpom.PoM(32, 2, 2), torch.randn(2, 40, 32)
    want = with_gradients(lambda x: pom(x, mask=mask), x, pom.parameters())
    x = x.requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        out = pom(x, mask=mask)
    grads = torch.autograd.grad(out.float().square().sum(), [x, *pom.parameters()])
    assert out.dtype == dtype
    assert all(grad.dtype == torch.float32 for grad in grads)
    for got, exact in zip([out, *grads], want, strict=True):
        assert (got.float() - exact).abs().max() <= 0.03 * exact.abs().max()


def test_autocast_steps_keep_fp32_sums(backend):
    pom, x = libpom.PoM(32, 2, 2), torch.randn(2, 40, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        y, state = pom.step(x, pom.init_state(2))
        z, state = pom.step_causal(x, state)
        w, ring = pom.step_causal(x, pom.init_state(2, window=3))
    assert y.dtype == z.dtype == w.dtype == torch.bfloat16
    assert state.sum.dtype == ring.sum.dtype == torch.float32
    assert state.count.tolist() == [80, 80]


def test_autocast_compiled(backend):
    pom, x = libpom.PoM(16, 2, 1), torch.randn(2, 11, 16)
    compiled = torch.compile(pom, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        got, want = compiled(x), pom(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
