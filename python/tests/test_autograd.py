"""Derivatives of every kind: gradcheck, gradgradcheck, forward mode, torch.library.opcheck, torch.func."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import libpom
import oracle

K, D, E = 2, 3, 1  # tiny: numerical Jacobians are dense
MASKS = ["none", "keys", "full", "causal", "block3", "block2_window2"]


def mask_of(name, b, m, n):
    if name in ("keys", "full"):
        return oracle.draw_mask(name, b, m, n)
    table = {"none": None, "causal": libpom.causal, "block3": libpom.block_causal(3)}
    return table.get(name, libpom.block_causal(2, window=2))


def layer_inputs(b=2, n=7, k=K, d=D, e=E, dtype=torch.float64, grad=True):
    w = oracle.draw_weights(d, k, e, dtype)
    return [t.requires_grad_(grad) for t in (torch.randn(b, n, d, dtype=dtype), *w.values())]


def self_layer(mask, k=K, cu=None):
    return lambda x, *w: libpom.mixer_layer(x, x, *w, k, mask, cu)


def checks_of(name):
    """The function to differentiate and its inputs."""
    torch.manual_seed(1)
    if name.startswith("cross "):
        mask = mask_of(name[6:], 2, 4, 7)
        xq = torch.randn(2, 4, D, dtype=torch.float64, requires_grad=True)
        return (lambda xq, xc, *w: libpom.mixer_layer(xq, xc, *w, K, mask)), [xq, *layer_inputs()]
    if name.startswith("packed "):
        mask = mask_of(name[7:], 1, 1, 1)
        x, *w = layer_inputs()
        x = x.detach()[0].requires_grad_()
        return self_layer(mask, cu=torch.tensor([0, 1, 5, 5, 7])), [x, *w]
    if name.startswith("mixer "):
        mask = mask_of(name[6:], 2, 5, 5)
        ho, se = (torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
        return (lambda ho, se: libpom.mixer(ho, se, 3, mask)), [ho, se]
    if name == "summary":
        x, w, b, *_ = layer_inputs()
        mask = oracle.draw_mask("keys", 2, 1, 7)
        return (lambda x, w, b: libpom.mixer_summary(x, w, b, K, mask)), [x, w, b]
    if name == "select":
        x, _, _, *w = layer_inputs()
        H = torch.randn(2, K * D * E, dtype=torch.float64, requires_grad=True)
        return libpom.mixer_select, [x, H, *w]
    if name == "scan":
        total = torch.randn(2, K * D * E, dtype=torch.float64, requires_grad=True)
        count = torch.tensor([3, 0])
        return (lambda x, *t: libpom.mixer_scan(x, *t[:-1], K, t[-1], count)), [*layer_inputs(), total]
    return self_layer(mask_of(name, 2, 7, 7)), layer_inputs()


NAMES = [*MASKS, *(f"cross {m}" for m in MASKS[:3]), "packed none", "packed causal", "packed block2_window2"]
NAMES += [*(f"mixer {m}" for m in MASKS), "summary", "select", "scan"]


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(backend, name):
    function, inputs = checks_of(name)
    assert gradcheck(function, inputs, check_forward_ad=True)


@pytest.mark.parametrize("name", NAMES)
def test_gradgradcheck(backend, name):
    function, inputs = checks_of(name)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_some_inputs_need_no_gradient(backend, name):
    """Each input alone, the others frozen: the same gradient as all together."""
    function, inputs = checks_of(name)
    out = function(*inputs)
    out = out[0] if isinstance(out, tuple) else out
    grad = torch.randn_like(out)
    want = torch.autograd.grad(out, inputs, grad, allow_unused=True)
    for i, tensor in enumerate(inputs):
        alone = [t if j == i else t.detach() for j, t in enumerate(inputs)]
        out = function(*alone)
        out = out[0] if isinstance(out, tuple) else out
        (got,) = torch.autograd.grad(out, [tensor], grad, allow_unused=True)
        assert (got is None) == (want[i] is None)
        if got is not None:
            torch.testing.assert_close(got, want[i], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward_mode_of_the_module(backend, dtype):
    """A dual input through the module: the tangent equals the difference quotient in fp64."""
    pom = libpom.PoM(8, 2, 1).to(dtype)
    x, t = torch.randn(2, 9, 8).to(dtype), torch.randn(2, 9, 8).to(dtype)
    with forward_ad.dual_level():
        out = pom(forward_ad.make_dual(x, t), mask=libpom.causal)
        tangent = forward_ad.unpack_dual(out).tangent
    exact = pom.double()
    h = 1e-6
    quotient = exact(x.double() + h * t.double(), mask=libpom.causal) - exact(
        x.double() - h * t.double(), mask=libpom.causal
    )
    torch.testing.assert_close(tangent.double(), quotient / (2 * h), rtol=0, atol=20 * torch.finfo(dtype).eps)


def test_backward_does_not_change_saved_inputs(backend):
    x, *w = layer_inputs()
    before = [t.detach().clone() for t in (x, *w)]
    self_layer(None)(x, *w).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, (x, *w), strict=True))


def test_in_place_change_after_forward_is_caught(backend):
    x, *w = layer_inputs()
    x = (x * 1).requires_grad_()
    y = self_layer(None)(x, *w)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# --- the dispatcher's own checks, of the library's operators ---


def op_samples():
    """name -> (operator, args), with every kind of argument."""
    x, *w = layer_inputs(2, 9, 2, 8, 1, torch.float32)
    half, *half_w = layer_inputs(2, 9, 2, 8, 1, torch.bfloat16)
    double, *double_w = layer_inputs(2, 9, 2, 8, 1, torch.float64)
    ho, se = (torch.randn(2, 9, 16, requires_grad=True) for _ in range(2))
    keys, full = oracle.draw_mask("keys", 2, 9, 9), oracle.draw_mask("full", 2, 9, 9).float()
    cu = torch.tensor([0, 4, 4, 18], dtype=torch.int32)
    flat, flat_ho = torch.randn(18, 8, requires_grad=True), torch.randn(18, 16, requires_grad=True)
    strided = torch.randn(8, 9, 2, requires_grad=True).permute(2, 1, 0)
    no_bias = [t if i % 2 == 0 else None for i, t in enumerate(w)]
    total, count = torch.randn(2, 16, requires_grad=True), torch.tensor([0, 5])
    samples = {}
    for form in ((0, 0), (1, 0), (3, 0), (3, 2)):
        name = "block{}_window{}".format(*form)
        samples["mixer " + name] = ("mixer", (ho, se, 2, None, *form))
        samples["layer " + name] = ("mixer_layer", (x, x, *w, 2, None, *form))
    return samples | {
        "mixer keys": ("mixer", (ho, se, 2, keys)),
        "mixer full": ("mixer", (ho, se, 2, full)),
        "mixer packed": ("mixer", (flat_ho, torch.randn(18, 16), 2, None, 1, 0, cu, cu)),
        "layer keys": ("mixer_layer", (x, x, *no_bias, 2, keys)),
        "layer full": ("mixer_layer", (x, x, *no_bias, 2, full)),
        "layer packed": ("mixer_layer", (flat, flat, *w, 2, None, 0, 0, cu, cu)),
        "layer packed blocks": ("mixer_layer", (flat, flat, *w, 2, None, 3, 0, cu, cu)),
        "layer strided": ("mixer_layer", (strided, strided, *w, 2)),
        "layer cross": ("mixer_layer", (x[:, :4], x, *w, 2)),
        "layer inference": ("mixer_layer", (x.detach(), x.detach(), *(t.detach() for t in w), 2)),
        "layer bfloat16": ("mixer_layer", (half, half, *half_w, 2)),
        "layer float64": ("mixer_layer", (double, double, *double_w, 2)),
        "layer empty": ("mixer_layer", (x[:0], x[:0], *w, 2)),
        "summary": ("mixer_summary", (x, w[0], w[1], 2)),
        "summary keys": ("mixer_summary", (x, w[0], None, 2, keys)),
        "select": ("mixer_select", (x, total, *w[2:])),
        "scan": ("mixer_scan", (x, *w, 2, total, count)),
    }


@pytest.mark.parametrize("name", op_samples())
def test_opcheck(extension, name):
    op, args = op_samples()[name]
    torch.library.opcheck(getattr(torch.ops.pom, op).default, args)


@pytest.mark.parametrize("form", [(0, 0), (1, 0), (3, 2)], ids=str)
def test_opcheck_of_the_inner_operators(extension, form):
    """What the derivatives are made of; they have none themselves."""
    x, *w = layer_inputs(2, 9, 2, 8, 1, torch.float32, grad=False)
    ho = torch.randn(2, 9, 16)
    torch.library.opcheck(torch.ops.pom.mixer_backward.default, (ho, ho, ho, 2, None, *form))
    torch.library.opcheck(torch.ops.pom.mixer_layer_train.default, (x, x, *w, 2, None, *form))
    out, *saved = torch.ops.pom.mixer_layer_train(x, x, *w, 2, None, *form)
    for need in ((True, True), (True, False), (False, True)):
        args = (out, x, x, *w, *saved, *need, 2, None, *form)
        torch.library.opcheck(torch.ops.pom.mixer_layer_backward.default, args)


# --- torch.func ---


def func_cases():
    pom = libpom.PoM(6, 2, 1).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    w = dict(pom.named_parameters())

    def loss(x, w=w):
        return torch.func.functional_call(pom, w, (x,), {"mask": libpom.causal}).square().sum()

    batched = torch.randn(4, 3, 5, 6, dtype=torch.float64)
    return {
        "grad": (
            lambda: torch.func.grad(loss)(x),
            lambda: torch.autograd.grad(loss(y := x.requires_grad_()), y)[0],
        ),
        "vmap": (lambda: torch.func.vmap(pom)(batched), lambda: torch.stack([pom(x) for x in batched])),
        "jvp": (
            lambda: torch.func.jvp(loss, (x,), (torch.ones_like(x),))[1],
            lambda: torch.autograd.grad(loss(y := x.requires_grad_()), y)[0].sum(),
        ),
        "jacrev": (
            lambda: torch.func.jacrev(loss)(x),
            lambda: torch.autograd.grad(loss(y := x.requires_grad_()), y)[0],
        ),
    }


@pytest.mark.parametrize("name", ["grad", "vmap", "jvp", "jacrev"])
def test_torch_func(backend, name):
    """Every transform gives the right result: under one, the functions run on plain torch operations."""
    transformed, plain = func_cases()[name]
    torch.testing.assert_close(transformed(), plain(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacfwd, torch.func.vmap])
def test_torch_func_of_the_operators(extension, transform):
    """The library's own operators refuse derivatives of torch.func, and vmap runs them one by one."""
    ho, se = torch.randn(4, 3, 5, 8), torch.randn(3, 5, 8)
    if transform is torch.func.vmap:
        got = transform(lambda ho: torch.ops.pom.mixer(ho, se, 2))(ho)
        assert torch.equal(got, torch.stack([torch.ops.pom.mixer(one, se, 2) for one in ho]))
    else:
        with pytest.raises(RuntimeError, match=r"mixer: torch\.func"):
            transform(lambda ho: torch.ops.pom.mixer(ho, se, 2).sum())(ho[0])
