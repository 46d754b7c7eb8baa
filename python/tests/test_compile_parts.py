"""The layer in parts, as a compiler gets it on CUDA, here on the processor: the same values and gradients as
the whole operator, in every mode of torch.compile, one graph for all steps, and plain products that a
compiler sees.
"""

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

import libpom
from libpom import functional

OPS = torch.ops.pom
MODES = ["default", "reduce-overhead", "max-autotune"]
MASKS = {
    "none": lambda b, n: None,
    "keys": lambda b, n: torch.arange(n)[None] < torch.tensor([n, max(n - 3, 1)])[:b, None],
    "blocks": lambda b, n: libpom.block_causal(4),
    "window": lambda b, n: libpom.block_causal(4, window=2),
    "causal": lambda b, n: libpom.causal,
    "full": lambda b, n: torch.arange(n)[None, :, None] >= torch.arange(n)[None, None].expand(b, n, n),
}
pytestmark = pytest.mark.usefixtures("extension")


@pytest.fixture(autouse=True)
def _parts(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(functional, "_parts_on", {"cpu", "cuda"})


class Block(torch.nn.Module):
    """A researcher's: norm, modulation, mixer, gate, residual."""

    def __init__(self, dim=32, order=2):
        super().__init__()
        self.norm = torch.nn.LayerNorm(dim, elementwise_affine=False)
        self.condition = torch.nn.Linear(dim, 3 * dim)
        self.pom = libpom.PoM(dim, order, 1)

    def forward(self, x, c, mask=None):
        scale, shift, gate = self.condition(c).unsqueeze(1).chunk(3, -1)
        return x + self.pom(self.norm(x) * (1 + scale) + shift, mask=mask) * (1 + gate)


def seen_by(module, *args, backward=True, **named):
    """Names of the operations that a compiler gets, forward and backward."""
    graphs = []

    def compiler(graph, _):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    out = torch.compile(module, fullgraph=True, backend=backend)(*args, **named)
    if backward:
        out.float().square().sum().backward()
    return graphs


def gradients(function, module, *args, **named):
    out = function(*args, **named)
    inputs = [arg for arg in args if arg.requires_grad]
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), [*inputs, *module.parameters()])]


def assert_within(got, want, bound):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert (a - b).abs().max() <= bound * max(1.0, b.abs().max().item())


def test_a_compiler_sees_products_casts_and_bias_gradients():
    block, x, c = Block(), torch.randn(2, 20, 32, requires_grad=True), torch.randn(2, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        forward, backward = seen_by(block, x, c)
    assert forward.count("pom.mixer_gated_train.default") == 1
    assert backward.count("pom.mixer_gated_backward.default") == 1
    assert not [name for name in forward + backward if "mixer_layer" in name]
    assert forward.count("aten.addmm.default") == 2  # the condition's and the last
    assert backward.count("aten.mm.default") == 6  # two for tokens, three for weights, the condition's
    # Tokens once, three matrices and the last bias; and the condition's three.
    assert forward.count("aten._to_copy.default") == 8


def test_no_gradients_and_few_rows():
    block, c = Block(), torch.randn(2, 32)
    with torch.no_grad():
        (many,) = seen_by(block, torch.randn(2, 20, 32), c, backward=False)
        torch.compiler.reset()
        (few,) = seen_by(block, torch.randn(2, 8, 32), c, backward=False)
    assert "pom.mixer_gated.default" in many and "pom.mixer_layer.default" not in many
    assert "pom.mixer_layer.default" in few and "pom.mixer_gated.default" not in few


def test_exported_programs_hold_the_whole_operator():
    program = torch.export.export(libpom.PoM(16).eval(), (torch.randn(2, 20, 16),))
    names = [str(node.target) for node in program.graph.nodes]
    assert any("mixer_layer" in name for name in names) and not any("gated" in name for name in names)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_values_and_gradients(mask, order):
    block = Block(order=order)
    x, c = torch.randn(2, 20, 32, requires_grad=True), torch.randn(2, 32, requires_grad=True)
    seen = MASKS[mask](2, 20)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert_within(gradients(compiled, block, x, c, mask=seen), gradients(block, block, x, c, mask=seen), 3e-5)
    with torch.no_grad():
        assert_within([compiled(x, c, mask=seen)], [block(x, c, mask=seen)], 1e-5)


@pytest.mark.parametrize("mask", ["none", "keys", "blocks", "window"])
def test_gradients_in_fp64(mask):
    """Of the parts themselves, against differences."""
    torch.manual_seed(0)
    xq, xc = (torch.randn(2, 8, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weights = [p.detach().requires_grad_() for p in libpom.PoM(4, 3, 1, dtype=torch.float64).parameters()]
    seen, block, window = libpom.masks.resolve("mixer", MASKS[mask](2, 8), xq, xc)
    layer = OPS.mixer_layer_in_parts.default

    def run(*tensors):
        return layer(*tensors, 3, seen, block, window)

    assert torch.autograd.gradcheck(run, (xq, xc, *weights))
    assert torch.autograd.gradgradcheck(run, (xq, xc, *weights))


def test_cross_without_biases_and_frozen_parts():
    pom = libpom.PoM(16, 2, 2, bias=False)
    pom.ho_proj.weight.requires_grad_(False)
    xq, xc = torch.randn(2, 9, 16, requires_grad=True), torch.randn(2, 11, 16)
    compiled = torch.compile(pom, fullgraph=True, backend="aot_eager")

    def run(function):
        out = function(xq, xc)
        wanted = [xq, pom.se_proj.weight, pom.ag_proj.weight]
        return [out.detach(), *torch.autograd.grad(out.square().sum(), wanted)]

    assert_within(run(compiled), run(pom), 3e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    block, x, c = Block(), torch.randn(2, 20, 32, requires_grad=True), torch.randn(2, 32)
    exact = gradients(block, block, x, c)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=dtype):
        got = gradients(compiled, block, x, c)
    assert all(part.dtype == torch.float32 for part in got)
    assert_within(got, exact, 0.03)


def test_fp64_and_weights_in_16_bits():
    for dtype, bound in ((torch.float64, 1e-12), (torch.bfloat16, 0.05)):
        block = Block().to(dtype)
        x, c = torch.randn(2, 20, 32, dtype=dtype, requires_grad=True), torch.randn(2, 32, dtype=dtype)
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        assert_within(gradients(compiled, block, x, c), gradients(block, block, x, c), bound)


@pytest.mark.parametrize("mode", MODES)
def test_modes_over_steps(mode):
    """Forward and backward in every mode, one graph for all steps, weights that move in between."""
    block, c = Block(), torch.randn(2, 32)
    twin = Block()
    twin.load_state_dict(block.state_dict())
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    optimizers = [torch.optim.SGD(module.parameters(), lr=1e-3) for module in (block, twin)]
    for step in range(4):
        x = torch.randn(2, 20, 32)
        outs = []
        for function, optimizer in zip((compiled, twin), optimizers, strict=True):
            optimizer.zero_grad()
            out = function(x, c)
            out.square().mean().backward()
            optimizer.step()
            outs.append(out.detach())
        assert_within(outs[:1], outs[1:], 1e-4)
        if step == 0:
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert not torch._dynamo.utils.counters["graph_break"]


def test_dynamic_shapes():
    """Lengths and batches after the first need no new graph, with gradients too."""
    pom = libpom.PoM(16)
    compiled = torch.compile(pom, fullgraph=True, backend="aot_eager", dynamic=True)
    counter = torch._dynamo.utils.counters
    for i, (b, n) in enumerate([(2, 18), (3, 19), (5, 30), (4, 129)]):
        x = torch.randn(b, n, 16, requires_grad=True)
        assert_within(gradients(compiled, pom, x), gradients(pom, pom, x), 3e-5)
        if i == 1:
            graphs = counter["stats"]["unique_graphs"]
    assert counter["stats"]["unique_graphs"] == graphs


def arguments(mask, requires_grad):
    torch.manual_seed(0)
    xq, xc = torch.randn(2, 8, 4), torch.randn(2, 8, 4)
    weights = [p.detach() for p in libpom.PoM(4, 2, 1).parameters()]
    tensors = [t.requires_grad_(requires_grad) for t in (xq, xc, *weights)]
    return tensors, libpom.masks.resolve("mixer", MASKS[mask](2, 8), xq, xc)


@pytest.mark.parametrize("mask", ["none", "keys", "blocks", "window"])
def test_opcheck(mask):
    tensors, seen = arguments(mask, True)
    torch.library.opcheck(OPS.mixer_layer_in_parts.default, (*tensors, 2, *seen))
    plain = [t.detach() for t in tensors]
    torch.library.opcheck(OPS.mixer_gated.default, (*plain[:6], 2, *seen))
    torch.library.opcheck(OPS.mixer_gated_train.default, (*plain[:6], 2, *seen))
    _, ho, se, H = OPS.mixer_gated_train(*plain[:6], 2, *seen)
    for need_w in (True, False):
        given = (plain[0], plain[6], ho, se, H, need_w, 2, *seen)
        torch.library.opcheck(OPS.mixer_gated_backward.default, given)


def test_mistakes_are_told():
    tensors, seen = arguments("none", False)
    with pytest.raises(RuntimeError, match="mixer_gated: xc: expected a batch of 2"):
        OPS.mixer_gated(tensors[0], tensors[1][:1], *tensors[2:6], 2, *seen)
    with pytest.raises(RuntimeError, match="mixer_gated: bias: expected 8 values"):
        OPS.mixer_gated(*tensors[:3], tensors[3][:2], *tensors[4:6], 2, *seen)
    _, ho, se, H = OPS.mixer_gated_train(*tensors[:6], 2, *seen)
    with pytest.raises(RuntimeError, match="mixer_gated_backward: H: expected"):
        OPS.mixer_gated_backward(tensors[0], tensors[6], ho, se, H[:1], True, 2, *seen)
    with pytest.raises(RuntimeError, match="mixer_gated_backward: dout: expected"):
        OPS.mixer_gated_backward(tensors[0][:, :3], tensors[6], ho, se, H, True, 2, *seen)
