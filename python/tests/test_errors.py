"""Mistakes are refused with the operation, the argument, what was expected and what came; limits are no
mistakes."""

import pytest
import torch

import libpom
import oracle


def layer(x=None, xc=None, w=None, order=2, **options):
    x = torch.randn(2, 5, 8) if x is None else x
    w = oracle.draw_weights(8, 2, 1, torch.float32) if w is None else w
    return libpom.mixer_layer(
        x, x if xc is None else xc, *(w[name] for name in oracle.WEIGHTS), order, **options
    )


def weights(**changes):
    return oracle.draw_weights(8, 2, 1, torch.float32) | changes


def cu(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


draw_weights = oracle.draw_weights


def drawn_with_gradients(*arguments):
    return {name: weight.requires_grad_() for name, weight in draw_weights(*arguments).items()}


T = torch.randn
FLAT = T(10, 8)
# (what is wrong, the argument the message names, the call)
MISTAKES = {
    "rank of queries": ("xq", lambda: layer(T(5, 8), T(2, 5, 8))),
    "rank of context": ("xc", lambda: layer(xc=T(2, 3, 5, 8))),
    "width of queries": ("xq|xc", lambda: layer(T(2, 5, 7), T(2, 5, 8))),
    "width of both": ("x[qc]|ho_weight|se_weight", lambda: layer(T(2, 5, 7))),
    "batch": ("x[qc]", lambda: layer(xc=T(3, 5, 8))),
    "empty context": ("xc", lambda: layer(xc=T(2, 0, 8))),
    "empty sequence": ("x[qc]", lambda: layer(T(2, 0, 8))),
    "dtype mix": ("xc", lambda: layer(xc=T(2, 5, 8).double())),
    "dtype of a weight": ("ag_weight", lambda: layer(w=weights(ag_weight=T(8, 16).bfloat16()))),
    "dtype": ("xq|xc|x", lambda: layer(torch.ones(2, 5, 8, dtype=torch.int64))),
    "order zero": ("order", lambda: layer(order=0)),
    "order that does not divide": ("order", lambda: layer(order=3)),
    "ho_weight": ("ho_weight|ho_bias|se_weight", lambda: layer(w=weights(ho_weight=T(18, 8)))),
    "se_weight": ("se_weight", lambda: layer(w=weights(se_weight=T(16, 9)))),
    "ag_weight": ("ag_weight", lambda: layer(w=weights(ag_weight=T(8, 15)))),
    "ho_bias": ("ho_bias", lambda: layer(w=weights(ho_bias=T(15)))),
    "se_bias": ("se_bias", lambda: layer(w=weights(se_bias=T(16, 1)))),
    "ag_bias": ("ag_bias", lambda: layer(w=weights(ag_bias=T(9)))),
    "keys mask": ("mask", lambda: layer(mask=torch.ones(2, 4))),
    "full mask": ("mask", lambda: layer(mask=torch.ones(2, 5, 6))),
    "mask without batch": ("mask", lambda: layer(mask=torch.ones(5))),
    "mask of four dimensions": ("mask", lambda: layer(mask=torch.ones(2, 1, 5, 5))),
    "complex mask": ("mask", lambda: layer(mask=torch.ones(2, 5, dtype=torch.complex64))),
    "mask of weights": ("mask", lambda: layer(mask=torch.full((2, 5), 0.5))),
    "mask word": ("mask", lambda: layer(mask="causal")),
    "mask function": ("mask", lambda: layer(mask=libpom.block_causal)),
    "causal cross": ("mask", lambda: layer(xc=T(2, 6, 8), mask=libpom.causal)),
    "packed rank": ("xq", lambda: layer(cu_seqlens=cu(0, 5))),
    "packed mask": ("mask", lambda: layer(FLAT, mask=torch.ones(1, 10), cu_seqlens=cu(0, 10))),
    "cu_seqlens start": ("cu_q", lambda: layer(FLAT, cu_seqlens=cu(1, 10))),
    "cu_seqlens end": ("cu_q", lambda: layer(FLAT, cu_seqlens=cu(0, 4, 9))),
    "cu_seqlens falling": ("cu_q", lambda: layer(FLAT, cu_seqlens=cu(0, 6, 4, 10))),
    "cu_seqlens dtype": ("cu_q", lambda: layer(FLAT, cu_seqlens=torch.tensor([0.0, 10.0]))),
    "cu_seqlens rank": ("cu_q", lambda: layer(FLAT, cu_seqlens=cu(0, 10)[None])),
    "cu_seqlens empty": ("cu_q", lambda: layer(FLAT, cu_seqlens=cu())),
    "cu_seqlens number": ("cu_[qk]", lambda: layer(FLAT, cu_seqlens=cu(0, 10), cu_seqlens_k=cu(0, 5, 10))),
    "only cu_seqlens_k": ("cu_[qk]", lambda: layer(FLAT, cu_seqlens_k=cu(0, 10))),
    "packed causal lengths": (
        "cu_[qk]|mask",
        lambda: layer(FLAT, mask=libpom.causal, cu_seqlens=cu(0, 4, 10), cu_seqlens_k=cu(0, 5, 10)),
    ),
    "packed without context": (
        "cu_k|xc",
        lambda: layer(FLAT, cu_seqlens=cu(0, 4, 10), cu_seqlens_k=cu(0, 10, 10)),
    ),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_of_the_layer(backend, name, training, monkeypatch):
    argument, call = MISTAKES[name]
    monkeypatch.setattr(oracle, "draw_weights", drawn_with_gradients if training else oracle.draw_weights)
    with pytest.raises(libpom.Error, match=rf"^mixer_layer: ({argument}): expected .+, got .+") as caught:
        call()
    assert "\n" not in str(caught.value)


MIXER = {
    "rank": ("ho|se", lambda: libpom.mixer(T(5, 8), T(2, 5, 8), 2)),
    "width": ("ho|se", lambda: libpom.mixer(T(2, 5, 8), T(2, 5, 6), 2)),
    "batch": ("ho|se", lambda: libpom.mixer(T(2, 5, 8), T(3, 5, 8), 2)),
    "dtype": ("ho|se", lambda: libpom.mixer(T(2, 5, 8), T(2, 5, 8).half(), 2)),
    "order": ("order", lambda: libpom.mixer(T(2, 5, 8), T(2, 5, 8), 3)),
    "negative order": ("order", lambda: libpom.mixer(T(2, 5, 8), T(2, 5, 8), -1)),
    "empty context": ("ho", lambda: libpom.mixer(T(2, 0, 8), T(2, 5, 8), 2)),
    "mask": ("mask", lambda: libpom.mixer(T(2, 4, 8), T(2, 5, 8), 2, torch.ones(2, 4, 5))),
    "causal cross": ("mask", lambda: libpom.mixer(T(2, 4, 8), T(2, 5, 8), 2, libpom.causal)),
}


@pytest.mark.parametrize("name", MIXER)
def test_mistakes_of_the_mixer(backend, name):
    argument, call = MIXER[name]
    with pytest.raises(libpom.Error, match=rf"^mixer: ({argument}): expected .+, got .+"):
        call()


def test_devices_are_not_mixed():
    with (
        libpom.force("python"),
        pytest.raises(libpom.Error, match=r"^mixer_layer: xc: expected device cpu as xq, got meta"),
    ):
        layer(xc=torch.empty(2, 5, 8, device="meta"))


def test_mistakes_of_steps(backend):
    pom = libpom.PoM(8, 2, 1)
    for op, argument, call in (
        ("summarize", "xc", lambda: pom.step(T(2, 8))),
        ("mixer_summary", "xc", lambda: pom.step(T(2, 0, 8))),
        ("mixer_summary", "mask", lambda: pom.summarize(T(2, 4, 8), mask=torch.ones(2, 5))),
        ("summarize", "state", lambda: pom.step(T(2, 4, 8), pom.init_state(3))),
        ("select", "state", lambda: pom.select(T(2, 4, 8), pom.init_state(3))),
        ("step_causal", "state", lambda: pom.step_causal(T(2, 4, 8), pom.init_state(3))),
        ("mixer_scan", "x", lambda: pom.step_causal(T(2, 0, 8))),
    ):
        with pytest.raises(libpom.Error, match=rf"^{op}: {argument}: expected .+, got .+"):
            call()


def test_another_width_is_said_in_the_words_of_the_layer(backend):
    pom, x, flat = libpom.PoM(64), T(2, 10, 32), T(10, 32)
    for where, want, got, call in (
        ("PoM: x", "(batch, tokens, 64)", "(2, 10, 32)", lambda: pom(x)),
        ("PoM: x", "(batch, tokens, 64)", "(10, 64)", lambda: pom(T(10, 64))),
        ("PoM: xc", "(batch, tokens, 64)", "(2, 10, 32)", lambda: pom(T(2, 3, 64), x)),
        ("PoM: xq", "(batch, tokens, 64)", "(2, 10, 32)", lambda: pom(x, T(2, 3, 64))),
        ("PoM: x", "(total tokens, 64) with cu_seqlens", "(10, 32)", lambda: pom(flat, cu_seqlens=cu(0, 10))),
        ("PoM: x", "a tensor (batch, tokens, width)", "list", lambda: pom([1.0])),
        ("summarize: xc", "(batch, tokens, 64)", "(2, 10, 32)", lambda: pom.step(x)),
        ("select: xq", "(batch, tokens, 64)", "(2, 10, 32)", lambda: pom.select(x, pom.init_state(2))),
        ("step_causal: x", "(batch, tokens, 64)", "(2, 10, 32)", lambda: pom.step_causal(x)),
    ):
        with pytest.raises(libpom.Error) as caught:
            call()
        assert str(caught.value) == f"{where}: expected {want}, got {got}"


def test_an_adapter_may_take_another_width(backend):
    """What stands in a projection's place says itself what it takes."""
    pom = libpom.PoM(8, 2, 1)
    pom.ho_proj = torch.nn.Sequential(torch.nn.Linear(6, 16))
    assert pom(T(2, 5, 8), T(2, 7, 6)).shape == (2, 5, 8)


def test_masks_as_attention_has_them_are_told_of_ours(backend):
    pom, square = libpom.PoM(8, 2, 1), torch.ones(5, 5).tril().bool()
    want = (
        "mask: expected (2, 5) for keys or (2, 5, 5) for queries and keys, got (5, 5): if every token sees "
        "those before it, use mask=libpom.causal; else mask.expand(2, 5, 5)"
    )
    for op, call in (
        ("mixer_layer", lambda: pom(T(2, 5, 8), mask=square)),
        ("mixer", lambda: libpom.mixer(T(2, 5, 8), T(2, 5, 8), 2, square)),
    ):
        with pytest.raises(libpom.Error) as caught:
            call()
        assert str(caught.value) == f"{op}: {want}"
    x = T(2, 5, 8)
    torch.testing.assert_close(pom(x, mask=square.expand(2, 5, 5)), pom(x, mask=libpom.causal))


def broken(state, **parts):
    return libpom.MixerState(**(vars(state) | parts))


@pytest.mark.parametrize("op", ["select", "step", "step_causal"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda pom: pom.init_state(2).state_dict(), ["a MixerState", "a dict", "from_state_dict"]),
        (lambda pom: pom.step(T(2, 4, 8)), ["a MixerState", "a tuple"]),
        (lambda pom: pom.init_state(2).sum, ["a MixerState", "a Tensor"]),
        (lambda pom: pom.init_state(3), ["(2, 16), batch and features", "(3, 16)"]),
        (lambda pom: libpom.PoM(8, 3, 1).init_state(2), ["(2, 16), batch and features", "(2, 24)"]),
        (lambda pom: libpom.PoM(8, 2, 1).double().init_state(2), ["torch.float32 on cpu", "torch.float64"]),
        (lambda pom: libpom.PoM(8, 2, 1, device="meta").init_state(2), ["float32 on cpu", "on meta"]),
        (lambda pom: broken(pom.init_state(2), count=torch.zeros(3)), ["state.count", "(2)", "(3)"]),
        (
            lambda pom: broken(pom.init_state(2, window=3), ring_count=torch.zeros(2, 4)),
            ["state.ring_count", "(2, 3)", "(2, 4)"],
        ),
    ],
)
def test_wrong_states(backend, op, make, words):
    pom = libpom.PoM(8, 2, 1)
    with pytest.raises(libpom.Error, match=r"^\w+: state[\w.]*: expected .+, got .+") as caught:
        getattr(pom, op)(T(2, 4, 8), make(pom))
    assert all(word in str(caught.value) for word in words), caught.value


def test_no_state():
    """Where one must be: `step` begins without."""
    pom = libpom.PoM(8, 2, 1)
    with pytest.raises(libpom.Error, match=r"^select: state: expected a MixerState, .*, got None$"):
        pom.select(T(2, 4, 8), None)
    with pytest.raises(libpom.Error, match=r"^merge: other: expected a MixerState, got NoneType$"):
        pom.init_state(2).merge(None)
    with pytest.raises(libpom.Error, match=r"^from_state_dict: tensors: expected a dict .*, got list$"):
        libpom.MixerState.from_state_dict([])
    with pytest.raises(
        libpom.Error, match=r"^Decoder.load: states: expected a MixerState of each block, got dict$"
    ):
        libpom.Decoder([libpom.Polymorpher(8)], batch=1).load([{}])


def test_mistakes_of_the_dispatcher(extension):
    """The operators themselves refuse what the functions cannot pass on."""
    ho, mask = T(2, 5, 8), torch.ones(2, 5)
    for args in (
        (ho, ho, 2, None, -1),
        (ho, ho, 2, None, 0, 3),
        (ho, ho, 2, None, 1, -1),
        (ho, ho, 2, mask, 1),
    ):
        with pytest.raises(RuntimeError, match=r"mixer: (block|window|mask): expected .+, got"):
            torch.ops.pom.mixer(*args)


@pytest.mark.parametrize("arguments", [(0,), (2.0,), (True,), (3, 0), (3, -1), (3, 1.5), ("3",)])
def test_mistakes_of_masks(arguments):
    with pytest.raises(
        libpom.Error, match=r"^block_causal: (block|window): expected an integer of at least 1"
    ):
        layer(mask=libpom.CausalMask(*arguments))
    with pytest.raises(
        libpom.Error, match=r"^block_causal: (block|window): expected an integer of at least 1"
    ):
        libpom.block_causal(*arguments)


def test_mistakes_of_states():
    pom = libpom.PoM(8, 2, 1)
    with pytest.raises(libpom.Error, match="init_state: window"):
        pom.init_state(2, window=0)
    with pytest.raises(libpom.Error, match=r"merge: other: expected .* window 3, got .* window None"):
        pom.init_state(2, window=3).merge(pom.init_state(2))
    good = pom.summarize(T(2, 4, 8), pom.init_state(2, window=3)).state_dict()
    assert libpom.MixerState.from_state_dict(good).window == 3
    for argument, change in (
        ("tensors", {"sum": T(2, 16)}),
        ("sums", {"sums": T(2, 16)}),
        ("sums", {"sums": T(2, 4, 16)}),
        ("sums", {"window": torch.tensor(-1)}),
        ("counts", {"counts": torch.ones(2, 2, dtype=torch.int64)}),
        ("counts", {"counts": torch.ones(2, 1)}),
    ):
        with pytest.raises(libpom.Error, match=rf"^from_state_dict: {argument}: expected .+, got .+"):
            libpom.MixerState.from_state_dict(good | change)


@pytest.mark.parametrize(
    "call",
    [
        lambda: libpom.PoM(dim=64, degree=2, expand=2, n_groups=1, n_sel_heads=1),
        lambda: libpom.PoM(64, 2, 2, 4, 8),
        lambda: libpom.PoM(64, 2, 2, 4),
        lambda: libpom.PoM(64, degree=3),
        lambda: libpom.PoM(64, n_sel_heads=4),
        lambda: libpom.PoM(8).load_state_dict({"po_coeff": T(16, 2), "ag_proj.weight": T(8, 16)}),
    ],
)
def test_the_other_operator_is_refused(call):
    """The authors' 2026 package has a class of the same name."""
    with pytest.raises(libpom.Error, match=r"the authors' 2026 package .* is another operator"):
        call()


def test_unknown_arguments():
    with pytest.raises(libpom.Error, match=r"PoM: oder: .*did you mean order\?"):
        libpom.PoM(8, oder=2)
    with pytest.raises(libpom.Error, match="PoM: order: expected an integer of at least 1, got 0"):
        libpom.PoM(8, 0)
    with pytest.raises(TypeError):
        libpom.PoM(8)(T(1, 2, 8), attn_mask=None)
    with pytest.raises(libpom.Error, match="force: path: expected one of"), libpom.force("fast"):
        pass


def test_cross_packing_needs_both_lengths(backend):
    with pytest.raises(libpom.Error, match="cu_seqlens_k: expected"):
        libpom.PoM(8)(FLAT, T(4, 8), cu_seqlens=cu(0, 10))


# --- limits that are no mistakes ---


@pytest.mark.parametrize("dtype", oracle.DTYPES, ids=lambda t: str(t)[6:])
def test_nothing_visible_gives_the_output_bias(backend, dtype):
    pom = libpom.PoM(8, 3, 2).to(dtype)
    x = torch.randn(2, 5, 8).to(dtype).requires_grad_()
    keys, full = torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 5, 5, dtype=torch.bool)
    keys[0] = False
    full[1, 3] = False
    y, z = pom(x, mask=keys), pom(x, mask=full)
    assert torch.equal(y[0], pom.ag_proj.bias.expand(5, 8)) and torch.equal(z[1, 3], pom.ag_proj.bias)
    assert not torch.equal(y[1, 0], pom.ag_proj.bias)
    grads = torch.autograd.grad((y + z).float().sum(), [x, *pom.parameters()])
    assert all(tensor.isfinite().all() for tensor in (y, z, *grads))


def test_an_empty_state_gives_the_output_bias(backend):
    pom = libpom.PoM(8, 2, 1)
    assert torch.equal(pom.select(T(2, 5, 8), pom.init_state(2)), pom.ag_proj.bias.expand(2, 5, 8))


MASKS = [None, libpom.causal, libpom.block_causal(3), libpom.block_causal(3, window=2)]


@pytest.mark.parametrize("mask", [*MASKS, torch.ones(0, 5), torch.ones(0, 5, 5)], ids=lambda m: repr(m)[:24])
def test_empty_batch(backend, mask):
    pom = libpom.PoM(8, 2, 1)
    x = torch.randn(0, 5, 8, requires_grad=True)
    y = pom(x, mask=mask)
    assert y.shape == (0, 5, 8)
    grads = torch.autograd.grad(y.sum(), [x, *pom.parameters()])
    assert grads[0].shape == (0, 5, 8) and all(grad.eq(0).all() for grad in grads[1:])


def test_empty_batch_of_steps_and_packs(backend):
    pom = libpom.PoM(8, 2, 1)
    y, state = pom.step(T(0, 5, 8), pom.init_state(0))
    z, state = pom.step_causal(T(0, 5, 8), state)
    assert y.shape == z.shape == (0, 5, 8) and state.sum.shape == (0, 16)
    assert pom(T(0, 8), cu_seqlens=cu(0)).shape == (0, 8)
    assert pom(T(0, 8), cu_seqlens=cu(0, 0, 0), mask=libpom.causal).shape == (0, 8)


def test_no_queries(backend):
    assert libpom.PoM(8, 2, 1)(T(2, 0, 8), T(2, 5, 8)).shape == (2, 0, 8)


def test_large_blocks_and_windows_cost_nothing(backend):
    pom, x = libpom.PoM(8, 2, 1), T(2, 9, 8)
    torch.testing.assert_close(pom(x, mask=libpom.block_causal(10**12)), pom(x))
    torch.testing.assert_close(
        pom(x, mask=libpom.block_causal(2, window=10**12)), pom(x, mask=libpom.block_causal(2))
    )
    flat, lengths = FLAT, cu(0, 4, 10)
    far = libpom.block_causal(2, window=10**12)
    torch.testing.assert_close(
        pom(flat, mask=far, cu_seqlens=lengths), pom(flat, mask=libpom.block_causal(2), cu_seqlens=lengths)
    )
