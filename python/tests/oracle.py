"""The paper's listings in plain torch: in fp64 the truth, in a test's own dtype the error to stay within.

Nothing here comes from libpom. Every mask is made from its definition and materialised. Also the draws of
inputs that the tests share. B batch, m queries, n context tokens, d width, k order, e expansion.
"""

import torch
import torch.nn.functional as F

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WEIGHTS = ("ho_weight", "ho_bias", "se_weight", "se_bias", "ag_weight", "ag_bias")


def aggregation(x, k, mask=None):
    h = list(F.gelu(x).chunk(k, dim=-1))
    for i in range(1, k):
        h[i] = h[i] * h[i - 1]
    h = torch.cat(h, dim=-1)
    if mask is None:
        return h.mean(dim=1, keepdim=True)
    mask = mask.to(h.dtype)
    if mask.dim() == 2:
        h = torch.einsum("bnd,bn->bd", h, mask) / (1e-7 + mask.sum(dim=1, keepdim=True))
        return h.unsqueeze(1)
    return torch.einsum("bnd,bmn->bmd", h, mask) / (1e-7 + mask.sum(dim=2, keepdim=True))


def mixer(ho, se, k, mask=None):
    return torch.sigmoid(se) * aggregation(ho, k, mask)


def layer(xq, xc, w, k, mask=None):
    s = F.linear(xq, w["se_weight"], w["se_bias"])
    h = F.linear(xc, w["ho_weight"], w["ho_bias"])
    return F.linear(mixer(h, s, k, mask), w["ag_weight"], w["ag_bias"])


def packed_layer(xq, xc, w, k, cu_q, cu_k, mask_of=lambda n: None):
    """Each sequence on its own, laid end to end again."""
    rows = []
    for s in range(len(cu_q) - 1):
        q, c = xq[None, cu_q[s] : cu_q[s + 1]], xc[None, cu_k[s] : cu_k[s + 1]]
        if q.shape[1] > 0:
            rows.append(layer(q, c, w, k, mask_of(q.shape[1]))[0])
    return torch.cat(rows)


def block_causal(n, block, window=None):
    """Query i sees key j when j < (floor(i/K) + 1) K and, with a window, when j's block is among the last
    W."""
    mask = torch.zeros(1, n, n, dtype=torch.bool)
    for i in range(n):
        first = 0 if window is None else max(0, (i // block - window + 1) * block)
        mask[0, i, first : (i // block + 1) * block] = True
    return mask


# --- draws ---


def draw_weights(d, k, e, dtype, bias=True):
    f = k * e * d
    shapes = {"ho_weight": (f, d), "ho_bias": (f,), "se_weight": (f, d), "se_bias": (f,)}
    shapes |= {"ag_weight": (d, f), "ag_bias": (d,)}
    w = {}
    for name, shape in shapes.items():
        fan_in = shape[-1] if len(shape) == 2 else 4
        w[name] = (torch.randn(shape) / fan_in**0.5).to(dtype) if bias or len(shape) == 2 else None
    return w


def draw_tokens(b, n, d, dtype, strided=False):
    """Tokens of unit scale; strided: every other token and channel of a larger, transposed tensor."""
    if strided:
        return torch.randn(2 * d, b, 2 * n).to(dtype).permute(1, 2, 0)[:, ::2, ::2]
    return torch.randn(b, n, d).to(dtype)


def draw_mask(kind, b, m, n):
    """keys and full masks: about half the keys, a first row that sees nothing where there are several."""
    mask = torch.rand((b, n) if kind == "keys" else (b, m, n)) < 0.5
    if mask.numel() > n:
        mask.view(-1, n)[0] = False
    return mask


# --- comparison ---


def upcast(value):
    if isinstance(value, dict):
        return {name: upcast(tensor) for name, tensor in value.items()}
    return value.detach().double() if torch.is_tensor(value) and value.is_floating_point() else value


def leaf(value):
    """Fresh leaves with gradients, in the layout of the given ones."""
    if isinstance(value, dict):
        return {name: leaf(tensor) for name, tensor in value.items()}
    return None if value is None else value.detach().requires_grad_()


def results(function, tensors, grad):
    """The output of function(**tensors) and the gradients of every tensor, by name."""
    tensors = {name: leaf(tensor) for name, tensor in tensors.items()}
    flat = {}
    for name, value in tensors.items():
        flat |= value if isinstance(value, dict) else {name: value}
    flat = {name: tensor for name, tensor in flat.items() if tensor is not None}
    out = function(**tensors)
    grads = torch.autograd.grad(out, list(flat.values()), grad.to(out.dtype), allow_unused=True)
    found = {"output": out.detach()}
    for (name, tensor), g in zip(flat.items(), grads, strict=True):
        found["grad " + name] = torch.zeros_like(tensor) if g is None else g
    return found


def assert_close(ours, plain, truth, dtype, note=""):
    """The rule: fp64 within 1e-11; else within twice plain torch's error in the same dtype plus four units in
    the last place of the largest value; plus six of a bias's gradient, which is a sum over all tokens, where
    torch may be lucky."""
    assert ours.keys() == truth.keys()
    for name, want in truth.items():
        got = ours[name]
        assert got.dtype == dtype, f"{note} {name}: {got.dtype}"
        assert got.shape == want.shape, f"{note} {name}: {got.shape}"
        if want.numel() == 0:
            continue
        scale = want.abs().max().item()
        error = (got.double() - want).abs().max().item()
        if dtype == torch.float64:
            bound = 1e-11 * max(1.0, scale)
        else:
            theirs = (plain[name].double() - want).abs()
            theirs = theirs[
                theirs.isfinite()
            ]  # the listing in fp16 overflows on rows that see nothing; we may not
            bound = 2 * theirs.amax(dim=0).item() if theirs.numel() else 0.0
            bound += (6 if name.endswith("bias") else 4) * torch.finfo(dtype).eps * scale
        assert error <= bound, f"{note} {name}: error {error:.3g} over {bound:.3g}, scale {scale:.3g}"
