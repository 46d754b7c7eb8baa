"""For split_program.py, on every rank: layers over split tokens against the same on one rank."""

import torch
import torch.distributed as dist

import libpom

GROUP, RANK, RANKS, PARTS = None, 0, 1, []  # of the group that results() is called for
B, D, ORDER = 2, 12, 3
DEVICE = "cpu"


def counts_of(name):
    if name == "equal":
        return [8] * RANKS
    if name == "wide":  # enough tokens for the kernels of a GPU, whole blocks of 32
        return [64, 96, 32, 128][:RANKS]
    return [12, 4, 8, 12][:RANKS] if name == "aligned" else PARTS


def split_tokens(counts, exact=True):
    return libpom.SplitTokens(sum(counts), group=GROUP, counts=counts, exact=exact)


MASKS = {
    "none": None,
    "keys": "keys",
    "causal": libpom.causal,
    "causal window 3": libpom.block_causal(1, window=3),
    "causal window 10": libpom.block_causal(1, window=10),  # longer than a share
    "blocks of 4": libpom.block_causal(4),
    "blocks of 4, window 1": libpom.block_causal(4, window=1),
    "blocks of 4, window 2": libpom.block_causal(4, window=2),
    "blocks of 4, window 4": libpom.block_causal(4, window=4),
    "blocks of 13": libpom.block_causal(13),  # one is cut twice
    "blocks of 13, window 2": libpom.block_causal(13, window=2),
    "one block": libpom.block_causal(1000),
}
WIDE_MASKS = {
    "blocks of 32": libpom.block_causal(32),
    "blocks of 32, window 2": libpom.block_causal(32, window=2),
}


def clone(module):
    copy = libpom.PoM(D, ORDER, 2).to(next(module.parameters()))
    copy.load_state_dict(module.state_dict())
    return copy


def error(a, b):
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))


def worst(value):
    t = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX, group=GROUP)
    return t.tolist()


def gradients(module, out, cotangent, tokens):
    out.backward(cotangent)
    return [t.grad for t in tokens], [p.grad for p in module.parameters()]


def case(mask_name, shares, kind, path, dtype, exact=True):
    """The largest error of outputs, of gradients of tokens, and of those of weights; numbers handed in."""
    torch.manual_seed(7)
    counts = counts_of(shares)
    n = sum(counts)
    split = split_tokens(counts, exact=exact)
    m = n if kind == "self" else 10
    module = libpom.PoM(D, ORDER, 2).double().to(DEVICE)
    xq, dout = torch.randn(B, m, D).double().to(DEVICE), torch.randn(B, m, D).double().to(DEVICE)
    xc = xq if kind == "self" else torch.randn(B, n, D).double().to(DEVICE)
    visible = (torch.rand(B, n) < 0.6).to(DEVICE)
    visible[0, : counts[0]] = False  # rank 0 sees none of its own
    mask = own = (MASKS | WIDE_MASKS)[mask_name]
    if mask == "keys":
        mask, own = visible, split.of(visible)

    def whole(dtype, path):
        local = clone(module).to(dtype)
        q = xq.to(dtype).clone().requires_grad_()
        c = q if kind == "self" else xc.to(dtype).clone().requires_grad_()
        with libpom.force(path):
            out = local(q, None if kind == "self" else c, mask=mask)
            return out, *gradients(local, out, dout.to(dtype), [q] if kind == "self" else [q, c])

    def parted():
        local = clone(module).to(dtype)
        queries = (split.first, split.count) if kind == "self" else libpom_share(m)
        q = xq.to(dtype).narrow(1, *queries).clone().requires_grad_()
        c = q if kind == "self" else split.of(xc.to(dtype)).clone().requires_grad_()
        before = split.traffic()[1]
        with libpom.force(path):
            out = local(q, None if kind == "self" else c, mask=own, split=split)
            tokens, weights = gradients(
                local, out, dout.to(dtype).narrow(1, *queries), [q] if kind == "self" else [q, c]
            )
        numbers = split.traffic()[1] - before
        flat = torch.cat([w.flatten() for w in weights])
        dist.all_reduce(flat, group=GROUP)
        weights = [
            f.view_as(w) for f, w in zip(flat.split([w.numel() for w in weights]), weights, strict=True)
        ]
        return out, tokens, weights, queries, numbers

    exact_out, exact_tokens, exact_weights = whole(torch.float64, "composed")
    out, tokens, weights, queries, numbers = parted()
    places = [queries] + [(split.first, split.count)] * (len(tokens) - 1)

    def errors(out, tokens, weights, mine):
        def cut(t, place):
            return t.narrow(1, *place) if mine else t

        return [
            error(out, cut(exact_out, queries)),
            max(error(t, cut(e, p)) for t, e, p in zip(tokens, exact_tokens, places, strict=True)),
            max(error(t, e) for t, e in zip(weights, exact_weights, strict=True)),
        ]

    *found, numbers = worst([*errors(out, tokens, weights, True), numbers])
    result = {"errors": found, "numbers": numbers}
    if dtype != torch.float64:
        result["plain"] = errors(*whole(dtype, "composed"), False)
    return result


def libpom_share(total):
    counts = torch.ops.pom.share_counts(total, RANKS, 1)
    return sum(counts[:RANK]), counts[RANK]


def second_order(path):
    """Gradients through gradients."""
    torch.manual_seed(7)
    module = libpom.PoM(D, ORDER, 2).double()
    split = split_tokens(PARTS)
    x = torch.randn(B, sum(PARTS), D).double()
    found = []
    for mine in (False, True):
        local = clone(module)
        t = (split.of(x).clone() if mine else x.clone()).requires_grad_()
        with libpom.force(path):
            out = local(t, mask=MASKS["blocks of 4, window 2"], split=split if mine else None)
            (g,) = torch.autograd.grad(out.square().sum(), t, create_graph=True)
            g.square().sum().backward()
        found.append(t.grad)
    return worst(error(found[1], split.of(found[0])))


def stack(left_out=None):
    """The error of three residual blocks; one of them may mix its own tokens only."""
    torch.manual_seed(5)
    blocks = [libpom.Polymorpher(D, ORDER, 2).double() for _ in range(3)]
    split = split_tokens(PARTS)
    x = torch.randn(B, sum(PARTS), D).double()
    y, mine = x, split.of(x)
    with torch.no_grad():
        for i, block in enumerate(blocks):
            y = block(y)
            mine = block(mine, split=None if i == left_out else split)
        whole = split.gather(mine)
    return worst(error(whole, y))


def autocast():
    """The error under autocast, split and not, against fp32."""
    torch.manual_seed(5)
    module, split = libpom.PoM(D, ORDER, 2), split_tokens(PARTS)
    x = torch.randn(B, sum(PARTS), D)
    with torch.no_grad():
        exact = module(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            plain, mine = module(x), module(split.of(x), split=split)
    assert mine.dtype == torch.bfloat16
    return [error(plain, exact), worst(error(mine, split.of(exact)))]


def twice():
    """Whether the bits are the same again, on every rank."""
    torch.manual_seed(3)
    module = libpom.PoM(D, ORDER, 2)
    split = split_tokens(PARTS)
    x = split.of(torch.randn(B, sum(PARTS), D)).clone()
    with torch.no_grad():
        a, b = module(x, split=split), module(x, split=split)
    return worst(float(not torch.equal(a, b))) == 0


def refusals():
    split = split_tokens(PARTS)
    module, x = libpom.PoM(D, ORDER, 2), torch.randn(1, PARTS[RANK], D)
    calls = {
        "tokens": lambda: module(torch.randn(1, 3, D), split=split),
        "full": lambda: module(x, mask=torch.ones(1, PARTS[RANK], PARTS[RANK]), split=split),
        "counts": lambda: split_tokens([5] + [0] * (RANKS - 1)),
        "packed": lambda: module(
            x[0], cu_seqlens=torch.tensor([0, PARTS[RANK]], dtype=torch.int32), split=split
        ),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = ""
        except libpom.Error as e:
            said[name] = str(e)
    return said


def doubles():
    for name in MASKS:
        for shares in ("equal", "aligned", "unequal"):
            for path in ("composed", "fused"):
                if (
                    path == "fused"
                    or (shares == "unequal" and RANKS == 2)
                    or (shares == "equal" and RANKS == 4)
                ):
                    yield "self", name, shares, path
    for name in ("none", "keys"):
        for path in ("composed", "fused"):
            yield "cross", name, "unequal", path


def cuda_results():
    """On one GPU that all ranks share."""
    global DEVICE, D, RANK, RANKS
    DEVICE, D, RANK, RANKS = "cuda", 64, dist.get_rank(), dist.get_world_size()
    cases = [("self", name) for name in ("none", "keys", *WIDE_MASKS)] + [
        ("cross", "none"),
        ("cross", "keys"),
    ]
    found = {
        f"{kind}, {name}, {str(dtype)[6:]}": case(name, "wide", kind, "fused", dtype)
        for kind, name in cases
        for dtype in (torch.float32, torch.bfloat16)
    }
    composed = {name: case(name, "wide", "self", "composed", torch.float64) for name in ("none", "keys")}
    return {"fused": found, "composed": composed, "row": B * ORDER * 2 * D}


def results(group):
    global GROUP, RANK, RANKS, PARTS
    GROUP, RANK, RANKS = group, dist.get_rank(group), dist.get_world_size(group)
    PARTS = [7, 9, 5, 11][:RANKS]  # unequal, and no border of blocks
    return {
        "double": {
            ", ".join((kind, name, shares, path)): case(name, shares, kind, path, torch.float64)
            for kind, name, shares, path in doubles()
        },
        "single": {
            f"{name}, {str(dtype)[6:]}": case(name, "unequal", "self", "fused", dtype)
            for name in MASKS
            for dtype in (torch.float32, torch.bfloat16)[: 4 // RANKS]
        },
        "loose": case("none", "unequal", "self", "fused", torch.float64, exact=False),
        "second order": [second_order("composed"), second_order("auto")],
        "stack": [stack(), stack(left_out=1)],
        "autocast": autocast(),
        "twice": twice(),
        "refusals": refusals(),
        "row": B * ORDER * 2 * D,
    }
