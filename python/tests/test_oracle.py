"""libpom against the paper's listing in fp64: every mask, self and cross, degrees, dtypes, awkward shapes;
forward and all gradients. The error stays within twice that of the listing in plain torch of the same
dtype."""

import itertools

import pytest
import torch

import libpom
import oracle

# name -> (mask for libpom, dense (1, n, n) mask for the oracle or None)
CAUSAL = {
    "causal": (1, None),
    "causal_window5": (1, 5),
    "block1": (1, None),
    "block3": (3, None),
    "block64": (64, None),
    "block100": (100, None),
    "block3_window1": (3, 1),
    "block3_window4": (3, 4),
    "block64_window2": (64, 2),
    "block100_window3": (100, 3),
    "block7_window1000": (7, 1000),
}
LENGTHS = (1, 7, 113, 203, 300)
WIDTHS = ((8, 1), (9, 1), (24, 2), (16, 3), (48, 1))  # d, e; the features of one degree are odd for (9, 1)
SELF = ["none", "keys", "full", *CAUSAL]
CASES = [("self", mask) for mask in SELF] + [("cross", mask) for mask in ("none", "keys", "full")]


def masks(name, b, m, n):
    """The mask as libpom takes it and as the oracle does."""
    if name == "none":
        return None, None
    if name in CAUSAL:
        block, window = CAUSAL[name]
        ours = libpom.causal if name == "causal" else libpom.block_causal(block, window)
        return ours, oracle.block_causal(n, block, window).expand(b, n, n)
    mask = oracle.draw_mask(name, b, m, n)
    return mask, mask


def compare(function, reference, tensors, dtype, note):
    with torch.no_grad():
        shape = function(**tensors).shape
    grad = torch.randn(shape).to(dtype)
    truth = oracle.results(reference, {name: oracle.upcast(t) for name, t in tensors.items()}, grad.double())
    plain = oracle.results(reference, tensors, grad)
    oracle.assert_close(oracle.results(function, tensors, grad), plain, truth, dtype, note)


def check_layer(kind, mask, k, dtype, n, d, e, b=2, bias=True, strided=False):
    m = n if kind == "self" else n // 2 + 3
    ours, dense = masks(mask, b, m, n)
    w = oracle.draw_weights(d, k, e, dtype, bias)
    tensors = {"x": oracle.draw_tokens(b, n, d, dtype, strided), "w": w}
    if kind == "cross":
        tensors["xq"] = oracle.draw_tokens(b, m, d, dtype, strided)

    def layer(x, w, xq=None):
        xq = x if xq is None else xq
        return libpom.mixer_layer(xq, x, *(w[name] for name in oracle.WEIGHTS), k, ours)

    def listing(x, w, xq=None):
        return oracle.layer(x if xq is None else xq, x, w, k, dense)

    compare(layer, listing, tensors, dtype, f"{kind} {mask} k={k} n={n} d={d} e={e} B={b}")


@pytest.mark.parametrize("dtype", oracle.DTYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("kind", "mask"), CASES, ids=lambda v: v)
def test_layer(backend, kind, mask, k, dtype):
    """Full product of masks, kinds, degrees, dtypes and lengths; widths, batches, biases and strides take
    turns."""
    turn = itertools.cycle(WIDTHS)
    for _ in range(k + oracle.DTYPES.index(dtype) + SELF.index(mask)):
        next(turn)
    for i, n in enumerate(LENGTHS):
        d, e = next(turn)
        check_layer(
            kind, mask, k, dtype, n, d, e, b=1 + (i + k) % 3, bias=(i + k) % 4 != 0, strided=(i + k) % 2 == 0
        )


@pytest.mark.parametrize("dtype", oracle.DTYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize(("kind", "mask"), CASES, ids=lambda v: v)
def test_mixer(backend, kind, mask, dtype):
    """The mixer between projections: ho (B, n, kD), se (B, m, kD)."""
    for i, (n, k) in enumerate(zip(LENGTHS, (6, 4, 3, 2, 1), strict=True)):
        b, width = 1 + i % 3, k * (5 + 8 * i)
        m = n if kind == "self" else n // 2 + 3
        ours, dense = masks(mask, b, m, n)
        tensors = {
            "ho": oracle.draw_tokens(b, n, width, dtype, strided=i % 2 == 0),
            "se": oracle.draw_tokens(b, m, width, dtype, strided=i % 2 == 1),
        }

        def ours_of(ho, se, k=k, mask=ours):
            return libpom.mixer(ho, se, k, mask)

        def listing(ho, se, k=k, mask=dense):
            return oracle.mixer(ho, se, k, mask)

        compare(ours_of, listing, tensors, dtype, f"{kind} {mask} k={k} n={n}")


LENGTH_LISTS = {
    "one": [5],
    "ones": [1, 1, 1],
    "mixed": [1, 7, 113, 64, 3, 203],
    "empty_between": [4, 0, 9, 0, 0, 130, 0],
    "many": [1 + (37 * i) % 11 for i in range(60)],
}


def cumulative(lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


@pytest.mark.parametrize("dtype", oracle.DTYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("mask", ["none", *CAUSAL])
@pytest.mark.parametrize("lengths", LENGTH_LISTS)
def test_packed(backend, lengths, mask, dtype):
    lengths = LENGTH_LISTS[lengths]
    k, d, e = (2, 9, 1) if len(lengths) % 2 else (3, 16, 2)
    cu = cumulative(lengths, torch.int64 if len(lengths) == 3 else torch.int32)
    tensors = {"x": torch.randn(sum(lengths), d).to(dtype), "w": oracle.draw_weights(d, k, e, dtype)}
    ours, _ = masks(mask, 1, 1, 1)

    def mask_of(n):
        return None if mask == "none" else oracle.block_causal(n, *CAUSAL[mask])

    def layer(x, w):
        return libpom.mixer_layer(x, x, *(w[name] for name in oracle.WEIGHTS), k, ours, cu)

    def listing(x, w):
        return oracle.packed_layer(x, x, w, k, cu, cu, mask_of)

    compare(layer, listing, tensors, dtype, f"{mask} {lengths}")


@pytest.mark.parametrize("dtype", oracle.DTYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_packed_cross(backend, k, dtype):
    d, e = 12, 1
    cu_q, cu_k = cumulative([3, 0, 1, 50, 7]), cumulative([9, 2, 300, 1, 64])
    tensors = {"xq": torch.randn(61, d).to(dtype), "xc": torch.randn(376, d).to(dtype)}
    tensors["w"] = oracle.draw_weights(d, k, e, dtype)

    def layer(xq, xc, w):
        return libpom.mixer_layer(xq, xc, *(w[name] for name in oracle.WEIGHTS), k, None, cu_q, cu_k)

    def listing(xq, xc, w):
        return oracle.packed_layer(xq, xc, w, k, cu_q, cu_k)

    compare(layer, listing, tensors, dtype, f"k={k}")


@pytest.mark.parametrize("numbers", [torch.uint8, torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["keys", "full"])
def test_mask_of_numbers(backend, kind, numbers):
    """0/1 numbers of any dtype, and strided masks, mean what bool does."""
    b, n = 3, 37
    ho, se = torch.randn(b, n, 24), torch.randn(b, n, 24)
    mask = oracle.draw_mask(kind, b, n, n)
    want = libpom.mixer(ho, se, 2, mask)
    strided = torch.stack([mask, ~mask], dim=-1)[..., 0]
    assert not strided.is_contiguous()
    torch.testing.assert_close(libpom.mixer(ho, se, 2, mask.to(numbers)), want, rtol=0, atol=1e-6)
    torch.testing.assert_close(libpom.mixer(ho, se, 2, strided), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("path", ["fused", "composed"])
@pytest.mark.parametrize("dtype", oracle.DTYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize(("kind", "mask"), CASES, ids=lambda v: v)
def test_forced_paths(extension, kind, mask, dtype, path):
    """Either path of the library, forced, so that a silent detour cannot pass."""
    with libpom.force(path):
        if path == "fused" and mask == "full":
            with pytest.raises(libpom.Error, match=r"mixer_layer: path: .*full mask"):
                check_layer(kind, mask, 2, dtype, 7, 8, 1)
            return
        for n, (d, e), k in zip(LENGTHS, WIDTHS, (2, 3, 1, 4, 6), strict=True):
            check_layer(kind, mask, k, dtype, n, d, e)


def test_wide_and_long(backend):
    """A shape with several tiles in every direction."""
    check_layer("self", "none", 2, torch.float32, 1100, 96, 2, b=1)
    check_layer("self", "causal", 2, torch.float32, 1100, 96, 2, b=1)
    check_layer("cross", "none", 3, torch.bfloat16, 700, 64, 2, b=2)


LONG = [("self", mask) for mask in ("none", "keys", "causal", "block3", "block64_window2")]
LONG += [("cross", mask) for mask in ("none", "keys")]  # causal masks are of one sequence


@pytest.mark.parametrize(("kind", "mask"), LONG, ids=lambda v: v)
def test_long_sums(backend, kind, mask):
    """Sums over many tokens, of the mixer and of the gradients of weights and biases, lose no digits."""
    check_layer(kind, mask, 2, torch.float32, 4001, 8, 1, b=1)


@pytest.mark.parametrize("mask", ["none", "keys", "causal", "block64_window2"])
def test_module(backend, mask):
    """The module is the listing with its own parameters."""
    pom = libpom.PoM(24, 3, 2).double()
    x = torch.randn(2, 90, 24, dtype=torch.float64)
    ours, dense = masks(mask, 2, 90, 90)
    w = {name: dict(pom.named_parameters())[name.replace("_", "_proj.")] for name in oracle.WEIGHTS}
    torch.testing.assert_close(pom(x, mask=ours), oracle.layer(x, x, w, 3, dense), rtol=0, atol=1e-11)
