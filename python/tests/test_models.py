"""libpom.models: the networks as modules against those of C++, with the same random weights; what they start
from, what they refuse, and what torch does with them. test_model_folders.py has their folders."""

import copy
import inspect
import subprocess
from dataclasses import fields

import pytest
import torch

import libpom
from libpom.models import VARIANTS, DiPoM, ModulatedBlock, NetworkConfig, VDiPoM, VideoBlock
from libpom.models.config import OF_CLIPS, OF_DIT
from test_network import CASES as IMAGES
from test_network import randomise
from test_network import run as run_images
from test_video_network import CASES as CLIPS
from test_video_network import SHAPE, draw, served, tool  # noqa: F401
from test_video_network import run as run_clips
from tools import built_tool

SMALL = {"dim": 24, "depth": 2, "patch": 2, "channels": 3, "ffw_expand": 2}
IMAGE = SMALL | {"classes": 5}
CLIP = SMALL | {"text_width": 10}


def small_image(**more):
    net = DiPoM(**IMAGE | more)
    randomise(net)
    return net


def small_clip(**more):
    net = VDiPoM(**CLIP | more)
    randomise(net)
    return net


def noise(B=2):
    return torch.randn(B, 3, 4, 6), torch.rand(B), torch.randint(0, 6, (B,))


def clip_noise(B=2, L=3):
    mask = torch.arange(L) < torch.randint(1, L + 1, (B, 1))
    return torch.randn(B, 3, 6, 4, 6), torch.rand(B), torch.randn(B, L, 10), mask


# --- the same as C++ ---


def assert_like_cpp(out, net, inputs, dy, compute):
    """Output and all gradients, by the library's operators and by plain torch, within 1e-10."""
    for path in ("auto", "python"):
        leaves = {name: value.detach().requires_grad_() for name, value in inputs.items()}
        net.zero_grad()
        with libpom.force(path):
            y = compute(**leaves)
            (y * dy).sum().backward()
        found = {"output": y.detach()} | {f"grad.{name}": value.grad for name, value in leaves.items()}
        found |= {f"grad.{name}": parameter.grad for name, parameter in net.named_parameters()}
        assert {key for key in out if key.startswith("grad.")} == found.keys() - {"output"}
        for key, value in found.items():
            assert (out[key] - value).abs().max() <= 1e-10 * max(1, value.abs().max()), (path, key)


@pytest.mark.parametrize("name", IMAGES)
def test_images_as_in_cpp(extension, tmp_path, name):
    settings = {"dim": 32, "depth": 2, "patch": 2, "channels": 4, "classes": 7, "ffw_expand": 3} | IMAGES[
        name
    ]
    height, width = settings.pop("size", (8, 12))
    net = DiPoM(**settings, dtype=torch.float64)
    randomise(net)
    x = torch.randn(3, settings["channels"], height, width, dtype=torch.float64)
    t, y = torch.rand(3, dtype=torch.float64), torch.tensor([0, settings["classes"], 0])
    dy = torch.randn_like(x)
    out = run_images(built_tool("network_tool"), tmp_path, net, settings, {"x": x, "t": t, "y": y, "dy": dy})
    assert_like_cpp(out, net, {"x": x}, dy, lambda x: net(x, t, y))


@pytest.mark.parametrize("name", CLIPS)
def test_clips_as_in_cpp(extension, served, tmp_path, name):  # noqa: F811
    settings = SHAPE | CLIPS[name]
    size, each = settings.pop("size", (6, 4, 6)), settings.pop("each", False)
    net = VDiPoM(**settings, dtype=torch.float64)
    randomise(net)
    inputs = draw(settings, size, each)
    out = run_clips(served, tmp_path, net, settings, inputs)
    t, mask, first = inputs["t"], inputs["mask"].bool(), inputs["first"]
    leaves = {"x": inputs["x"], "text": inputs["text"]}
    assert_like_cpp(out, net, leaves, inputs["dy"], lambda x, text: net(x, t, text, mask, first))


def test_variants_as_in_cpp():
    lines = subprocess.run(
        [built_tool("network_tool"), "variants"], check=True, capture_output=True, text=True
    )
    counted = {name: int(count) for name, count in (line.split() for line in lines.stdout.splitlines())}
    assert counted.keys() == VARIANTS.keys()
    for name, config in VARIANTS.items():
        net = (VDiPoM if config.video else DiPoM).variant(name.lower(), device="meta")
        assert net.config == config
        assert sum(parameter.numel() for parameter in net.parameters()) == counted[name], name


def test_arguments_are_the_fields():
    """Each argument has the default of its field, and each field that a network of that kind has is one."""
    defaults = {field.name: field.default for field in fields(NetworkConfig)}
    for kind, others in ((DiPoM, OF_CLIPS), (VDiPoM, ("classes", *OF_DIT))):
        given = {p.name: p.default for p in inspect.signature(kind).parameters.values()}
        expected = {k: v for k, v in defaults.items() if k not in ("kind", "variant", *others)}
        assert given == expected | {"checkpointing": False, "device": None, "dtype": None}
    assert DiPoM(**IMAGE).config == NetworkConfig(**IMAGE)
    assert VDiPoM(**CLIP, window=2).config == NetworkConfig(kind="vdipom", **CLIP, window=2)


def test_a_network_of_ones_own_comes_from_a_config():
    class Mine(DiPoM):
        def __init__(self, *, extra=1, **fields):
            super().__init__(**fields)
            self.extra = extra

    net = Mine.from_config(NetworkConfig(**IMAGE), checkpointing=True)
    assert isinstance(net, Mine) and net.config == NetworkConfig(**IMAGE) and net.checkpointing
    assert Mine.variant("DiPoM-S/8", device="meta").config == VARIANTS["DiPoM-S/8"]


# --- first values ---


@pytest.mark.parametrize("mixer", ["pom", "attention"])
@pytest.mark.parametrize("kind", [DiPoM, VDiPoM])
def test_first_values(kind, mixer):
    net = kind(dim=48, depth=1, patch=2, channels=3, mixer=mixer, heads=4)
    gate = -1.0 if mixer == "pom" else 0.0
    for name, values in net.state_dict().items():
        if "gate_mlp" in name and name.endswith("bias"):
            assert (values == gate).all(), name
        elif name.endswith("bias") or any(part in name for part in ("gate_mlp", "cond_mlp", "out_")):
            assert (values == 0).all(), name
        elif any(part in name for part in ("classes_emb", "time_emb", "no_text")):
            assert 0.012 < values.std() < 0.028, name
        else:  # Xavier, of the product that a convolution is
            flat = values.flatten(1)
            bound = (6 / sum(flat.shape)) ** 0.5
            assert flat.abs().max() <= bound and 0.9 < flat.std() / (bound / 3**0.5) < 1.1, name


def test_a_new_network_predicts_zero_and_its_blocks_do_nothing(backend):
    x, c = torch.randn(2, 6, 24), torch.randn(2, 24)
    for mixer in ("pom", "attention"):
        torch.testing.assert_close(ModulatedBlock(24, mixer=mixer)(x, c), x, rtol=0, atol=0)
        text, keys = torch.randn(2, 3, 24), torch.ones(2, 3, dtype=torch.bool)
        torch.testing.assert_close(VideoBlock(24, mixer=mixer)(x, c, text, keys), x, rtol=0, atol=0)
    assert (DiPoM(**IMAGE)(*noise()) == 0).all()
    assert (VDiPoM(**CLIP)(*clip_noise()) == 0).all()


def test_seeds_and_devices():
    torch.manual_seed(3)
    one = DiPoM(**IMAGE)
    torch.manual_seed(3)
    two = DiPoM(**IMAGE, dtype=torch.float64)
    assert one.in_conv.weight.std() > 0 and one.in_conv.weight.dtype == torch.float32
    assert all(p.dtype == torch.float64 and p.requires_grad for p in two.parameters())
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), DiPoM(**IMAGE).parameters(), strict=True))
    with torch.device("meta"):
        assert DiPoM(**IMAGE).in_conv.weight.is_meta


# --- what is one for all, and what is left out ---


def test_times_and_classes_of_all(backend):
    net, (x, _, _) = small_image(), noise()
    want = net(x, torch.full((2,), 0.25), torch.tensor([4, 4]))
    for t in (0.25, torch.tensor(0.25), torch.tensor([0.25, 0.25], dtype=torch.float64)):
        for y in (4, torch.tensor(4)):
            torch.testing.assert_close(net(x, t, y), want)
    torch.testing.assert_close(net(x, 0.25), net(x, 0.25, torch.tensor([5, 5])))  # no class
    torch.testing.assert_close(net(x, 1, 0), net(x, 1.0, 0))


@pytest.mark.parametrize("mixer", ["pom", "attention"])
def test_text_left_out(backend, mixer):
    net, (x, t, text, _) = small_clip(mixer=mixer), clip_noise()
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    torch.testing.assert_close(net(x, t), net(x, t, text, nothing))
    torch.testing.assert_close(net(x, t, text), net(x, t, text, ~nothing))
    each = text.unsqueeze(1).expand(-1, 3, -1, -1)
    torch.testing.assert_close(net(x, t, each), net(x, t, text))
    torch.testing.assert_close(net(x, t, text, first_block=7), net(x, t, text, None, torch.tensor([7, 7])))
    assert not torch.allclose(net(x, t, text, first_block=7), net(x, t, text))


def test_no_text_by_a_mask(backend):
    """Without a text the mixer that reads it gives its last bias; there is no token to learn."""
    net, (x, t, text, mask) = small_clip(no_text="mask"), clip_noise()
    assert "no_text" not in net.state_dict()
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    torch.testing.assert_close(net(x, t), net(x, t, text, nothing))
    torch.testing.assert_close(net(x, t, text, nothing), net(x, t, 7 * text, nothing))
    mixer, tokens = net.layers[0].c_pom, torch.randn(2, 6, 24)
    told = mixer(tokens, torch.randn(2, 3, 24), nothing)
    torch.testing.assert_close(told, mixer.ag_proj.bias.expand_as(told))
    assert not torch.allclose(net(x, t), net(x, t, text, mask))


def test_a_relative_time_is_that_of_the_clip(backend):
    net, (x, t, text, mask) = small_clip(time_code="relative", position="narrow"), clip_noise()
    whole = net(x, t, text, mask)
    torch.testing.assert_close(net(x, t, text, mask, first_block=7), whole)
    assert not torch.allclose(net(x[:, :, :4], t, text, mask), whole[:, :, :4], rtol=1e-3, atol=1e-3)


def test_a_causal_clip_does_not_see_what_comes(backend):
    net, (x, t, text, mask) = small_clip(window=2), clip_noise()
    later = x.clone()
    later[:, :, 4:] += 1
    torch.testing.assert_close(net(later, t, text, mask)[:, :, :4], net(x, t, text, mask)[:, :, :4])


# --- torch ---


def gradients(net, compute, *inputs):
    net.zero_grad()
    y = compute(*inputs)
    y.square().mean().backward()
    return [y.detach(), *(parameter.grad for parameter in net.parameters())]


NETS = {
    "images": (small_image, noise),
    "DiT": (lambda: small_image(mixer="attention"), noise),
    "clips": (lambda: small_clip(window=2, own_every=2), clip_noise),
    "V-DiT": (lambda: small_clip(mixer="attention", own_every=2), clip_noise),
    "the authors' clips": (
        lambda: small_clip(position="narrow", time_code="relative", no_text="mask"),
        clip_noise,
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_compiles_whole(backend, name):
    torch.compiler.reset()
    make, inputs = NETS[name]
    net = make()
    inputs = inputs()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    want = gradients(net, net, *inputs)
    for got, expected in zip(gradients(net, compiled, *inputs), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["images", "clips"])
def test_compiles_for_any_batch(extension, name):
    """After the second batch no new graph is needed."""
    torch.compiler.reset()
    make, inputs = NETS[name]
    net, counter = make(), torch._dynamo.utils.counters
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for batch in (2, 3, 5):
            given = inputs(batch)
            torch.testing.assert_close(compiled(*given), net(*given), rtol=1e-4, atol=1e-5)
            if batch == 3:
                graphs = counter["stats"]["unique_graphs"]
    assert counter["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("name", ["images", "clips"])
def test_export(extension, name):
    make, inputs = NETS[name]
    net, given = make(), inputs()
    exported = torch.export.export(net, given).module()
    torch.testing.assert_close(exported(*given), net(*given))


@pytest.mark.parametrize("name", NETS)
def test_checkpointing_gives_the_same_gradients(extension, name):
    make, inputs = NETS[name]
    net, inputs, runs = make(), inputs(), []
    net.layers[0].register_forward_pre_hook(lambda *_: runs.append(1))
    want = gradients(net, net, *inputs)
    net.checkpointing = True
    got = gradients(net, net, *inputs)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert len(runs) == 3  # once without it, twice with it
    with torch.no_grad():
        net(*inputs)
    assert len(runs) == 4


@pytest.mark.parametrize("name", NETS)
def test_autocast(backend, name):
    net, inputs = NETS[name][0](), NETS[name][1]()
    want = net(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        got = net(*inputs)
        got.float().mean().backward()
    assert (got - want).abs().max() < 0.1 * want.abs().max()
    assert all(parameter.grad.dtype == torch.float32 for parameter in net.parameters())


def test_copies_and_adapters(extension):
    """What training loops do: an average of the weights, a layer exchanged, a network of another's state."""
    net, (x, t, y) = small_image(), noise()
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn()
    )
    average.update_parameters(net)
    torch.testing.assert_close(average(x, t, y), net(x, t, y))
    other = DiPoM(**IMAGE)
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(other(x, t, y), net(x, t, y))
    changed = copy.deepcopy(net)
    changed.layers[0].pom.se_proj = torch.nn.Sequential(changed.layers[0].pom.se_proj, torch.nn.Hardtanh())
    assert not torch.allclose(changed(x, t, y), net(x, t, y))
    torch.testing.assert_close(net(x, t, y), average(x, t, y))


def test_a_network_learns(backend):
    """A plain loop fits one batch."""
    net = DiPoM(**IMAGE)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    x0, t, e, y = torch.randn(4, 3, 4, 6), torch.rand(4), torch.randn(4, 3, 4, 6), torch.arange(4)
    at = t.view(-1, 1, 1, 1)
    losses = []
    for _ in range(30):
        loss = (net((1 - at) * x0 + at * e, t, y) - (e - x0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


# --- what is refused ---

X, T, Y = torch.zeros(2, 3, 4, 6), torch.zeros(2), torch.zeros(2, dtype=torch.int64)
C, TEXT, MASK = torch.zeros(2, 3, 6, 4, 6), torch.zeros(2, 3, 10), torch.ones(2, 3, dtype=torch.bool)
REFUSED = {
    "channels": (DiPoM, (X[:, :2], T, Y), r"DiPoM: x: expected shape \(B, 3, H, W\), got \(2, 2, 4, 6\)"),
    "dims": (DiPoM, (X[0], T, Y), r"DiPoM: x: expected shape \(B, 3, H, W\), got \(3, 4, 6\)"),
    "sides": (DiPoM, (X[:, :, :3], T, Y), r"DiPoM: x: expected sides .*\(2\) divides, got 3 x 6"),
    "dtype": (DiPoM, (X.double(), T, Y), r"DiPoM: x: expected torch.float32 .*, got torch.float64"),
    "device": (DiPoM, (X.to("meta"), T, Y), r"DiPoM: x: expected device cpu as the weights, got meta"),
    "steps": (DiPoM, (X, torch.tensor([500, 1]), Y), r"DiPoM: t: expected floating-point .*got torch.int64"),
    "late": (DiPoM, (X, torch.tensor([0.5, 500.0]), Y), r"DiPoM: t: expected values from 0 to 1, got \[0.5"),
    "step": (DiPoM, (X, 500, Y), r"DiPoM: t: expected a time in \[0, 1\], or a tensor of them, got 500"),
    "times": (DiPoM, (X, torch.zeros(3), Y), r"DiPoM: t: .*shape \(\) or \(2\), got .*\(3,\)"),
    "class": (DiPoM, (X, T, 6), r'DiPoM: y: expected a class from 0 to 4, or 5 for "no class", got 6'),
    "classes": (DiPoM, (X, T, Y + 6), r"DiPoM: y: expected values from 0 to 5, got \[6, 6\]"),
    "floats": (DiPoM, (X, T, T), r"DiPoM: y: expected int64 of shape \(\) or \(2\), got torch.float32"),
    "image": (VDiPoM, (X, T), r"VDiPoM: x: expected shape \(B, 3, T, H, W\), got \(2, 3, 4, 6\)"),
    "frames": (VDiPoM, (C[:, :, :5], T), r"VDiPoM: x: expected whole blocks of 2 frames, got 5 frames"),
    "clip sides": (VDiPoM, (C[..., :5], T), r"VDiPoM: x: expected sides .*\(2\) divides, got 4 x 5"),
    "width": (VDiPoM, (C, T, TEXT[..., :9], MASK), r"VDiPoM: text: .*\(2, P, L, 10\).* got \(2, 3, 9\)"),
    "parts": (
        VDiPoM,
        (C, T, TEXT[:, None].expand(2, 2, 3, 10), MASK[:, None].expand(2, 2, 3)),
        r"VDiPoM: text: .*got \(2, 2, 3, 10\)",
    ),
    "mask dtype": (VDiPoM, (C, T, TEXT, MASK.long()), r"VDiPoM: mask: expected bool .*got torch.int64"),
    "mask shape": (VDiPoM, (C, T, TEXT, MASK[:, :2]), r"VDiPoM: mask: .*got torch.bool of shape \(2, 2\)"),
    "mask alone": (VDiPoM, (C, T, None, MASK), r"VDiPoM: mask: expected none without a text"),
    "first": (VDiPoM, (C, T, TEXT, MASK, -1), r"VDiPoM: first_block: expected a number of at least 0.*-1"),
    "firsts": (VDiPoM, (C, T, TEXT, MASK, T), r"VDiPoM: first_block: expected int64 of shape \(\) or \(2\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_that_are_refused(name):
    kind, inputs, message = REFUSED[name]
    with pytest.raises(libpom.Error, match=message):
        kind(**(IMAGE if kind is DiPoM else CLIP))(*inputs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DiPoM(dim=30), r"DiPoM: dim: expected a multiple of 4 .*got 30"),
        (lambda: DiPoM(dim=384.0), r"DiPoM: dim: expected an integer, got 384.0"),
        (lambda: DiPoM(depth=0), r"DiPoM: depth: expected 1 to 1000, got 0"),
        (lambda: DiPoM(mixer="atention"), r'DiPoM: mixer: unknown value "atention"; did you mean '),
        (lambda: DiPoM(mixer="attention", heads=5), r"DiPoM: heads: expected a divisor of dim = 384, got 5"),
        (lambda: DiPoM.variant("DiPom-S/3"), r'DiPoM: variant: unknown name "DiPom-S/3"; did you '),
        (lambda: DiPoM.variant("V-DiPoM-S/2"), r"DiPoM: kind: expected dipom, got vdipom \(which is VDiPoM"),
        (lambda: VDiPoM.variant("DiT-S/2"), r"VDiPoM: kind: expected vdipom, got dipom \(which is DiPoM"),
        (lambda: VDiPoM(dim=4), r"VDiPoM: dim: expected at least 8"),
        (lambda: VDiPoM(temporal_mask="none", window=2), r"VDiPoM: window: expected 0 without a block"),
        (lambda: DiPoM(position="narow"), r'DiPoM: position: unknown value "narow"; did you mean "narrow"'),
        (lambda: VDiPoM(position="narrow", dim=44), r"VDiPoM: dim: expected a multiple of 8 .*got 44"),
        (lambda: VDiPoM(no_text="mask", mixer="attention"), r"VDiPoM: no_text: expected token with att"),
        (lambda: VDiPoM(own_every=1), r"VDiPoM: own_every: expected 0, or at least 2 .*got 1"),
    ],
)  # fmt: skip
def test_networks_that_are_refused(make, message):
    with pytest.raises(libpom.Error, match=message):
        make()
    with pytest.raises(TypeError):
        DiPoM(widht=3)
