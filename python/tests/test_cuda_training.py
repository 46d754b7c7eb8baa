"""The operator on a GPU: forward and every gradient against fp64, equal bits from run to run, and what the
kernels leave to the composed operations. Skipped without a GPU or without CUDA kernels in the library."""

import pytest
import torch

import libpom
import oracle
from libpom import _library

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.usefixtures("extension"),
]
SIZES = [(2, 1, 4), (3, 7, 24), (2, 257, 24), (1, 257, 192), (4, 64, 192), (2, 7, 5)]  # B, n, d


@pytest.fixture(autouse=True)
def _exact_products():
    """fp32 products in fp32, and bf16 ones summed in fp32, for plain torch and for us."""
    names = ("allow_tf32", "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    before = {name: getattr(torch.backends.cuda.matmul, name) for name in names}
    for name in names:
        setattr(torch.backends.cuda.matmul, name, False)
    yield
    for name, value in before.items():
        setattr(torch.backends.cuda.matmul, name, value)


def has_kernels():
    return torch._C._dispatch_has_kernel_for_dispatch_key("pom::mixer_layer_train", "CUDA")


def on_gpu(value):
    if isinstance(value, dict):
        return {name: on_gpu(tensor) for name, tensor in value.items()}
    return None if value is None else value.cuda()


def fused_layer(k):
    def run(x, w):
        with libpom.force("fused"):
            return libpom.mixer_layer(x, x, *(w[name] for name in oracle.WEIGHTS), k)

    return run


def compare(ours, plain, tensors, dtype, note):
    """ours and plain over `tensors`, judged by plain in fp64."""
    with torch.no_grad():
        grad = torch.randn_like(plain(**tensors))
    truth = oracle.results(plain, oracle.upcast(tensors), grad)
    got = oracle.results(ours, tensors, grad)
    oracle.assert_close(got, oracle.results(plain, tensors, grad), truth, dtype, note)
    again = oracle.results(ours, tensors, grad)
    for name, value in got.items():
        assert torch.equal(value, again[name]), f"{note} {name}: differs from run to run"


def test_the_library_serves_cuda():
    assert _library.serves(torch.device("cuda")), "the library has no operators for CUDA"
    assert has_kernels(), "the library was built without CUDA kernels"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6, 7, 16])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_self_mixing(size, k, dtype):
    b, n, d = size
    tensors = on_gpu({"x": oracle.draw_tokens(b, n, d, dtype), "w": oracle.draw_weights(d, k, 1, dtype)})
    compare(fused_layer(k), lambda x, w: oracle.layer(x, x, w, k), tensors, dtype, f"{size} k={k}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strided", [False, True])
def test_cross_mixing(dtype, bias, strided):
    """Queries and context of their own lengths, no biases, and strided tokens."""
    tensors = {
        "xq": oracle.draw_tokens(3, 5, 24, dtype, strided),
        "xc": oracle.draw_tokens(3, 70, 24, dtype, strided),
        "w": oracle.draw_weights(24, 2, 2, dtype, bias),
    }

    def run(xq, xc, w):
        with libpom.force("fused"):
            return libpom.mixer_layer(xq, xc, *(w[name] for name in oracle.WEIGHTS), 2)

    compare(run, lambda xq, xc, w: oracle.layer(xq, xc, w, 2), on_gpu(tensors), dtype, "cross")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_between_projections(k, dtype):
    """libpom.mixer itself, features not a multiple of anything."""
    tensors = on_gpu({"ho": torch.randn(2, 33, k * 7).to(dtype), "se": torch.randn(2, 9, k * 7).to(dtype)})

    def run(ho, se):
        with libpom.force("fused"):
            return libpom.mixer(ho, se, k)

    compare(run, lambda ho, se: oracle.mixer(ho, se, k), tensors, dtype, f"mixer k={k}")


MASKED = [(3, 96, 24), (2, 192, 96), (1, 2048, 64)]  # B, n, d


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("window", [None, 1, 2, 3, 64])
@pytest.mark.parametrize("size", MASKED, ids=str)
def test_blocks(size, window, k, dtype):
    """Blocks that the tokens fill, all of the past or a window of it: fused, forward and backward."""
    b, n, d = size
    tensors = on_gpu({"x": oracle.draw_tokens(b, n, d, dtype), "w": oracle.draw_weights(d, k, 2, dtype)})
    mask = on_gpu(oracle.block_causal(n, 32, window)).expand(b, -1, -1)

    def run(x, w):
        with libpom.force("fused"):
            names = (w[name] for name in oracle.WEIGHTS)
            return libpom.mixer_layer(x, x, *names, k, libpom.block_causal(32, window))

    compare(run, lambda x, w: oracle.layer(x, x, w, k, mask), tensors, dtype, f"{size} {window} k={k}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(3, 5, 70, 24), (2, 200, 40, 96)], ids=str)
def test_keys(sizes, bias, dtype):
    """A mask of keys between two kinds of tokens, one sequence with nothing to see."""
    b, m, n, d = sizes
    keys = on_gpu(oracle.draw_mask("keys", b, m, n))
    tensors = {
        "xq": oracle.draw_tokens(b, m, d, dtype),
        "xc": oracle.draw_tokens(b, n, d, dtype),
        "w": oracle.draw_weights(d, 2, 2, dtype, bias),
    }

    def run(xq, xc, w):
        with libpom.force("fused"):
            return libpom.mixer_layer(xq, xc, *(w[name] for name in oracle.WEIGHTS), 2, keys)

    compare(run, lambda xq, xc, w: oracle.layer(xq, xc, w, 2, keys), on_gpu(tensors), dtype, str(sizes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ["keys", "blocks", "window"])
def test_masks_between_projections(case, dtype):
    tensors = on_gpu({"ho": torch.randn(2, 128, 14).to(dtype), "se": torch.randn(2, 128, 14).to(dtype)})
    window = 2 if case == "window" else None
    keys = on_gpu(oracle.draw_mask("keys", 2, 128, 128))
    ours = keys if case == "keys" else libpom.block_causal(32, window)
    plain = keys if case == "keys" else on_gpu(oracle.block_causal(128, 32, window)).expand(2, -1, -1)

    def run(ho, se):
        with libpom.force("fused"):
            return libpom.mixer(ho, se, 2, ours)

    compare(run, lambda ho, se: oracle.mixer(ho, se, 2, plain), tensors, dtype, case)


# ---- masks by slots: causal ones of any blocks and windows, packed sequences ----

SLOTS = {  # block, window
    "causal": (1, None),
    "causal, window 1": (1, 1),
    "causal, window 5": (1, 5),
    "causal, window 40": (1, 40),
    "causal, long window": (1, 300),
    "blocks of 3": (3, None),
    "blocks of 3, window 2": (3, 2),
    "blocks of 50": (50, None),
    "blocks of 50, window 2": (50, 2),
    "a block beyond the end": (999, None),
}
PACKED = {"none": (0, None)} | SLOTS
LENGTHS = [5, 1, 0, 74, 331, 2]


def mask_of(block, window):
    return libpom.block_causal(block, window) if block else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [(2, 1, 24), (3, 7, 24), (2, 203, 24), (1, 700, 64), (2, 50, 5)], ids=str)
@pytest.mark.parametrize("case", SLOTS)
def test_causal_masks(case, size, dtype):
    b, n, d = size
    for k in (2, 3) if n > 200 else (1, 2, 4, 7):
        tensors = on_gpu({"x": oracle.draw_tokens(b, n, d, dtype), "w": oracle.draw_weights(d, k, 2, dtype)})
        plain = on_gpu(oracle.block_causal(n, *SLOTS[case])).expand(b, -1, -1)

        def run(x, w, k=k):
            with libpom.force("fused"):
                names = (w[name] for name in oracle.WEIGHTS)
                return libpom.mixer_layer(x, x, *names, k, mask_of(*SLOTS[case]))

        compare(run, lambda x, w, k=k, m=plain: oracle.layer(x, x, w, k, m), tensors, dtype, f"{case} k={k}")


def cumulative(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", PACKED)
def test_packed(case, dtype):
    k, d, cu = 2, 24, cumulative(LENGTHS)
    tensors = {"x": torch.randn(sum(LENGTHS), d).to(dtype), "w": oracle.draw_weights(d, k, 2, dtype)}

    def run(x, w):
        with libpom.force("fused"):
            return libpom.mixer_layer(
                x, x, *(w[name] for name in oracle.WEIGHTS), k, mask_of(*PACKED[case]), cu
            )

    def reference(x, w):
        block, window = PACKED[case]
        visible = lambda n: on_gpu(oracle.block_causal(n, block, window)) if block else None  # noqa: E731
        return oracle.packed_layer(x, x, w, k, cu.tolist(), cu.tolist(), visible)

    compare(run, reference, on_gpu(tensors), dtype, case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_packed_cross(k, dtype):
    """Queries and context of their own lengths, a sequence without queries, no biases."""
    queries, keys = cumulative([3, 0, 1, 50, 7]), cumulative([9, 2, 300, 1, 64])
    tensors = {"xq": torch.randn(61, 24).to(dtype), "xc": torch.randn(376, 24).to(dtype)}
    tensors["w"] = oracle.draw_weights(24, k, 1, dtype, bias=False)

    def run(xq, xc, w):
        with libpom.force("fused"):
            names = (w[name] for name in oracle.WEIGHTS)
            return libpom.mixer_layer(xq, xc, *names, k, None, queries, keys)

    def reference(xq, xc, w):
        return oracle.packed_layer(xq, xc, w, k, queries.tolist(), keys.tolist())

    compare(run, reference, on_gpu(tensors), dtype, f"k={k}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", SLOTS)
def test_slots_between_projections(case, dtype):
    tensors = on_gpu({"ho": torch.randn(2, 203, 21).to(dtype), "se": torch.randn(2, 203, 21).to(dtype)})
    plain = on_gpu(oracle.block_causal(203, *SLOTS[case])).expand(2, -1, -1)

    def run(ho, se):
        with libpom.force("fused"):
            return libpom.mixer(ho, se, 3, mask_of(*SLOTS[case]))

    compare(run, lambda ho, se: oracle.mixer(ho, se, 3, plain), tensors, dtype, case)


def test_causal_module_under_autocast():
    """libpom.PoM: fp32 weights, a causal mask, bf16 kernels, gradients in fp32."""
    pom = libpom.PoM(24, 2, 2).cuda()
    x = torch.randn(3, 70, 24, device="cuda", requires_grad=True)
    found = {}
    for path in ("fused", "composed"):
        with torch.autocast("cuda", dtype=torch.bfloat16), libpom.force(path):
            out = pom(x, mask=libpom.causal)
        found[path] = torch.autograd.grad(out.float().square().sum(), [x, *pom.parameters()])
    for a, b in zip(found["fused"], found["composed"], strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 0.03 * b.norm()


@pytest.mark.parametrize("frozen", ["x", "w"])
def test_some_inputs_need_no_gradient(frozen):
    x, w = (
        on_gpu(oracle.draw_tokens(2, 9, 24, torch.float32)),
        on_gpu(oracle.draw_weights(24, 2, 1, torch.float32)),
    )
    tensors = [x, *w.values()]
    for t in tensors:
        t.requires_grad_()
    want = torch.autograd.grad(fused_layer(2)(x, w).square().sum(), tensors)
    for t in [x] if frozen == "x" else w.values():
        t.requires_grad_(False)
    wanted = [(t, g) for t, g in zip(tensors, want, strict=True) if t.requires_grad]
    got = torch.autograd.grad(fused_layer(2)(x, w).square().sum(), [t for t, _ in wanted])
    assert all(torch.equal(g, h) for g, (_, h) in zip(got, wanted, strict=True))


@pytest.mark.parametrize("shape", [(0, 5, 24), (2, 0, 24)], ids=str)
def test_nothing_to_do(shape):
    """No sequences; no queries: zero gradients of the right shapes."""
    w = {
        name: t.requires_grad_() for name, t in on_gpu(oracle.draw_weights(24, 2, 1, torch.bfloat16)).items()
    }
    xq = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    xc = torch.randn(shape[0], 5, 24, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with libpom.force("fused"):
        out = libpom.mixer_layer(xq, xc, *w.values(), 2)
    assert out.shape == shape
    for t, g in zip(
        (xq, xc, *w.values()), torch.autograd.grad(out.sum(), (xq, xc, *w.values())), strict=True
    ):
        assert g.shape == t.shape and not g.any()


def test_autocast():
    """fp32 weights under autocast: the layer runs in bf16, gradients come back in fp32."""
    pom = libpom.PoM(24, 2, 2).cuda()
    x = torch.randn(3, 33, 24, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16), libpom.force("fused"):
        out = pom(x)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    got = [x.grad, *(p.grad for p in pom.parameters())]
    exact = libpom.PoM(24, 2, 2).double()
    exact.load_state_dict(pom.state_dict())
    y = x.detach().cpu().double().requires_grad_()
    exact(y).square().sum().backward()
    for a, b in zip(got, [y.grad, *(p.grad for p in exact.parameters())], strict=True):
        assert a.dtype == torch.float32
        assert (a.cpu() - b).norm() <= 0.03 * b.norm()


@pytest.mark.parametrize("case", ["full", "float64", "causal float64", "order", "packed order"])
def test_composed_where_no_kernel_is(case):
    """Right results and gradients where CUDA has no kernel, and an error where one is asked for."""
    high, exact = "order" in case, "float64" in case
    k, dtype = 17 if high else 2, torch.float64 if high or exact else torch.float32
    tensors = {"x": oracle.draw_tokens(2, 8, 24, dtype), "w": oracle.draw_weights(24, k, 1, dtype)}
    packed, causal = "packed" in case, "causal" in case
    cu = torch.tensor([0, 3, 16], device="cuda") if packed else None
    mask = oracle.draw_mask("full", 2, 8, 8) if case == "full" else None
    plain = oracle.block_causal(8, 1).expand(2, -1, -1) if causal else mask
    ours = libpom.causal if causal else on_gpu(mask)
    if packed:
        tensors["x"] = tensors["x"].reshape(16, 24)

    def run(x, w):
        return libpom.mixer_layer(x, x, *(w[name] for name in oracle.WEIGHTS), k, ours, cu)

    def reference(x, w):
        if packed:
            return oracle.packed_layer(x, x, w, k, cu.tolist(), cu.tolist())
        return oracle.layer(x, x, w, k, on_gpu(plain))

    compare(run, reference, on_gpu(tensors), dtype, case)
    with libpom.force("fused"), pytest.raises(libpom.Error, match="fused was asked for"):
        run(**on_gpu(tensors))


def test_second_derivatives():
    """Through the composed operations, as on the CPU."""
    w = on_gpu(oracle.draw_weights(6, 2, 1, torch.float32))
    x = torch.randn(2, 5, 6, device="cuda", requires_grad=True)
    (g,) = torch.autograd.grad(fused_layer(2)(x, w).sum(), x, create_graph=True)
    (gg,) = torch.autograd.grad(g.square().sum(), x)
    y = x.detach().double().requires_grad_()
    (h,) = torch.autograd.grad(oracle.layer(y, y, oracle.upcast(w), 2).sum(), y, create_graph=True)
    (hh,) = torch.autograd.grad(h.square().sum(), y)
    torch.testing.assert_close(gg.double(), hh, rtol=1e-4, atol=1e-5)


# ---- products with their neighbours in one kernel: compute capability 9.0, 16 bits, D a multiple of 32 ----

hopper_only = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="no GPU of compute capability 9.0 here",
)
PRODUCTS = [(2, 257, 64), (1, 203, 32), (4, 256, 96), (40, 5, 64), (3, 1000, 192)]  # B, n, d: B n >= 2 d
HALVES = [torch.bfloat16, torch.float16]
FORWARD, BACKWARD = {"ContextEpilogueOf", "GateEpilogueOf"}, {"GateBackwardEpilogueOf"}


def kernels_of(run):
    """What ran of our products, by the names of their tails."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert names, "the profiler saw no kernel"
    return {tail for tail in FORWARD | BACKWARD for name in names if tail in name}


@hopper_only
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("size", PRODUCTS, ids=str)
def test_products(size, k, dtype):
    b, n, d = size
    tensors = on_gpu({"x": oracle.draw_tokens(b, n, d, dtype), "w": oracle.draw_weights(d, k, 1, dtype)})
    compare(fused_layer(k), lambda x, w: oracle.layer(x, x, w, k), tensors, dtype, f"{size} k={k}")


@hopper_only
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_products_ran(k):
    w = {
        name: t.requires_grad_() for name, t in on_gpu(oracle.draw_weights(64, k, 1, torch.bfloat16)).items()
    }
    x = torch.randn(2, 257, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = fused_layer(k)(x, w)
    assert kernels_of(lambda: fused_layer(k)(x, w)) == FORWARD
    assert kernels_of(lambda: out.sum().backward()) == BACKWARD


@hopper_only
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_of_a_whole_layer(dtype):
    """The sizes of DiPoM-XL."""
    tensors = on_gpu(
        {"x": oracle.draw_tokens(1, 4096, 1152, dtype), "w": oracle.draw_weights(1152, 2, 2, dtype)}
    )
    compare(fused_layer(2), lambda x, w: oracle.layer(x, x, w, 2), tensors, dtype, "XL")


@hopper_only
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strided", [False, True])
def test_products_cross(dtype, bias, strided):
    tensors = {
        "xq": oracle.draw_tokens(3, 150, 64, dtype, strided),
        "xc": oracle.draw_tokens(3, 77, 64, dtype, strided),
        "w": oracle.draw_weights(64, 2, 2, dtype, bias),
    }

    def run(xq, xc, w):
        with libpom.force("fused"):
            return libpom.mixer_layer(xq, xc, *(w[name] for name in oracle.WEIGHTS), 2)

    compare(run, lambda xq, xc, w: oracle.layer(xq, xc, w, 2), on_gpu(tensors), dtype, "cross")


@hopper_only
@pytest.mark.parametrize("frozen", ["x", "w"])
def test_products_of_some_gradients(frozen):
    """Where only some are wanted, they have the same bits."""
    x = on_gpu(oracle.draw_tokens(2, 200, 64, torch.bfloat16))
    w = on_gpu(oracle.draw_weights(64, 2, 1, torch.bfloat16))
    tensors = [x, *w.values()]
    for t in tensors:
        t.requires_grad_()
    want = torch.autograd.grad(fused_layer(2)(x, w).square().sum(), tensors)
    for t in [x] if frozen == "x" else w.values():
        t.requires_grad_(False)
    wanted = [(t, g) for t, g in zip(tensors, want, strict=True) if t.requires_grad]
    got = torch.autograd.grad(fused_layer(2)(x, w).square().sum(), [t for t, _ in wanted])
    assert all(torch.equal(g, h) for g, (_, h) in zip(got, wanted, strict=True))


@hopper_only
@pytest.mark.parametrize("offset", [0, 1])
def test_products_off_alignment(offset):
    """Tokens that start anywhere in memory: a copy, or another way, and the same results."""
    x = torch.randn(2 * 200 * 64 + offset, device="cuda", dtype=torch.bfloat16)[offset:].view(2, 200, 64)
    tensors = {"x": x, "w": on_gpu(oracle.draw_weights(64, 2, 1, torch.bfloat16))}
    compare(fused_layer(2), lambda x, w: oracle.layer(x, x, w, 2), tensors, torch.bfloat16, "offset")


@hopper_only
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_under_autocast(dtype):
    """fp32 weights: the products are of 16 bits, gradients come back in fp32, and are those of the composed
    operations within what the dtype rounds."""
    torch.manual_seed(0)
    pom = libpom.PoM(64, 2, 2).cuda()
    x = torch.randn(3, 130, 64, device="cuda", requires_grad=True)
    found = {}
    for path in ("fused", "composed"):
        with torch.autocast("cuda", dtype=dtype), libpom.force(path):
            out = pom(x)
        assert out.dtype == dtype
        # A sum: the gradients of a mean would be below what fp16 can hold.
        found[path] = torch.autograd.grad(out.float().square().sum(), [x, *pom.parameters()])
    for a, b in zip(found["fused"], found["composed"], strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 0.03 * b.norm()


@pytest.mark.parametrize(
    "mask",
    [None, libpom.causal, libpom.block_causal(5), libpom.block_causal(40), libpom.block_causal(40, window=2)],
    ids=["none", "causal", "short blocks", "blocks", "window"],
)
def test_between_parts_and_the_whole_layer(mask):
    """What torch.compile takes, called as it is: the same values and gradients as of the one operator."""
    torch.manual_seed(4)
    x = torch.randn(2, 203, 24, device="cuda").to(torch.bfloat16)
    weights = [torch.randn(s, device="cuda").to(torch.bfloat16) / 5 for s in ((96, 24), (96,)) * 2]
    weights += [torch.randn(s, device="cuda").to(torch.bfloat16) / 10 for s in ((24, 96), (24,))]

    def results(layer):
        leaves = [t.clone().requires_grad_() for t in (x, *weights)]
        out = layer(leaves[0], leaves[0], *leaves[1:])
        return [out, *torch.autograd.grad(out.float().square().sum(), leaves)]

    tensor, block, window = libpom.masks.resolve("mixer_layer", mask, x, x)
    parts = results(lambda *a: torch.ops.pom.mixer_layer_in_parts.default(*a, 2, tensor, block, window))
    whole = results(lambda *a: libpom.mixer_layer(*a, 2, mask=mask))
    for got, expected in zip(parts, whole, strict=True):
        scale = expected.float().abs().max()
        assert (got.float() - expected.float()).abs().max() <= 2**-5 * scale
