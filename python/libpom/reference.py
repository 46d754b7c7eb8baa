"""The operators composed of plain torch operations: the readable definition, and what runs without libpom.so.

Any device, autograd of any order, forward mode, torch.func and torch.compile. Half types are summed in fp32,
and the causal forms never make anything of size n x n.
B batch, m queries, n context tokens, d width, k order, D features of one degree, S packed sequences.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import checks
from .errors import fail

EPSILON = 1e-7  # keeps the mean of no token at 0
_CHUNK = 64  # tokens summed one after the other before their sums are


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def polynomial(ho: Tensor, order: int) -> Tensor:
    """[h1, h1 h2, h1 h2 h3, ...] of the k chunks of gelu(ho), in the accumulator's dtype."""
    factors = F.gelu(ho.to(accumulator(ho.dtype))).chunk(order, dim=-1)
    products = [factors[0]]
    for factor in factors[1:]:
        products.append(products[-1] * factor)
    return torch.cat(products, dim=-1)


def mean(total: Tensor, count: Tensor) -> Tensor:
    """Sums over counts of visible tokens (which lack the last dimension); a sum of no token gives 0."""
    return total / (EPSILON + count.to(total.dtype)).unsqueeze(-1)


def gate(se: Tensor, H: Tensor) -> Tensor:
    return (torch.sigmoid(se.to(H.dtype)) * H).to(se.dtype)


# --- what a query sees ---


def _block_sums(p: Tensor, block: int) -> Tensor:
    """(B, n, kD) -> (B, blocks, kD); the last block may be short."""
    if block == 1:
        return p
    batch, n, width = p.shape
    blocks = (n + block - 1) // block
    return F.pad(p, (0, 0, 0, blocks * block - n)).view(batch, blocks, block, width).sum(2)


def sliding_sum(x: Tensor, window: int) -> Tensor:
    """Row i of (B, rows, ...) becomes the sum of rows i-window+1 ... i.

    In two scans, whatever the window, and without subtracting: rows are cut in runs of `window`; what is seen
    is the head of one's own run and the tail of the run before."""
    batch, rows, width = x.shape
    runs = (rows + window - 1) // window
    x = F.pad(x, (0, 0, 0, runs * window - rows)).view(batch, runs, window, width)
    head = x.cumsum(2).view(batch, runs * window, width)[:, :rows]
    tail = F.pad(x[:, :, 1:].flip(2).cumsum(2).flip(2), (0, 0, 1, 0))  # never the whole run before
    tail = F.pad(tail.reshape(batch, runs * window, width), (0, 0, window - 1, 0))[:, :rows]
    return head + tail


def _causal_mean(p: Tensor, block: int, window: int) -> Tensor:
    """(B, n, kD) -> H of each token under a (block-, windowed) causal mask."""
    n = p.shape[1]
    block = min(block, n)
    sums = _block_sums(p, block)
    blocks = sums.shape[1]
    first = torch.arange(blocks, device=p.device)
    seen = ((first + 1) * block).clamp(max=n)
    if window == 0 or window >= blocks:
        total = sums.cumsum(1)
    else:
        total = sliding_sum(sums, window)
        seen = seen - ((first + 1 - window) * block).clamp(min=0)
    H = mean(total, seen)
    return H if block == 1 else H.repeat_interleave(block, dim=1)[:, :n]


def _segmented_cumsum(x: Tensor, segment: Tensor) -> Tensor:
    """Running sums along (rows, width) that begin anew where `segment` changes. Pairs at distance 1, 2, 4,
    ... are added, so that no segment's value, not even a NaN, reaches another's."""
    rows, distance = x.shape[0], 1
    while distance < rows:
        same = (segment[distance:] == segment[:-distance]).unsqueeze(-1)
        x = torch.cat([x[:distance], x[distance:] + x[:-distance].where(same, 0)])
        distance *= 2
    return x


def _packed_mean(p: Tensor, total_q: int, cu_q: Tensor, cu_k: Tensor, block: int, window: int) -> Tensor:
    """(total_k, kD) -> H of each query (total_q, kD), each sequence on its own."""
    cu_q, cu_k = cu_q.long(), cu_k.long()
    total_k, sequences = p.shape[0], cu_k.shape[0] - 1
    if sequences == 0 or total_k == 0:
        return p.new_zeros(total_q, p.shape[1])
    lengths = cu_k[1:] - cu_k[:-1]
    tokens = torch.arange(total_k, device=p.device)
    sequence = torch.bucketize(tokens, cu_k[1:], right=True)
    size = min(block or _CHUNK, total_k)

    # Blocks of all sequences, one after the other; their number depends on the lengths, its bound does not.
    base = F.pad(((lengths + size - 1) // size).cumsum(0), (1, 0))
    home = base[sequence] + (tokens - cu_k[sequence]) // size
    bound = total_k // size + sequences
    sums = p if size == 1 else p.new_zeros(bound, p.shape[1]).index_add(0, home, p)
    rows = torch.arange(sums.shape[0], device=p.device)
    owner = torch.bucketize(rows, base[1:], right=True).clamp(max=sequences - 1)

    if block == 0:
        whole = p.new_zeros(sequences, p.shape[1]).index_add(0, owner, sums)
        H = whole / lengths.clamp(min=1).to(p.dtype).unsqueeze(-1)
        query = torch.arange(total_q, device=p.device)
        return H[torch.bucketize(query, cu_q[1:], right=True)]

    nth = rows - base[owner]  # which block of its sequence
    seen = torch.minimum((nth + 1) * size, lengths[owner])
    if window == 0:
        total = _segmented_cumsum(sums, owner)
    else:  # as in sliding_sum: runs of `window` blocks within each sequence
        window = min(window, bound)
        run = owner * (bound + 1) + nth // window
        head = _segmented_cumsum(sums, run)
        tail = _segmented_cumsum(sums.flip(0), run.flip(0)).flip(0)
        tail = F.pad(tail, (0, 0, window - 1, 0))[: sums.shape[0]]
        reaches = (nth >= window - 1) & (nth % window != window - 1)  # back into the run before
        total = head + tail.where(reaches.unsqueeze(-1), 0)
        seen = seen - ((nth + 1 - window) * size).clamp(min=0)
    return mean(total, seen.clamp(min=0))[home]


def _masked_mean(p: Tensor, mask: Tensor) -> Tensor:
    mask = mask.detach().to(p.dtype)
    if mask.dim() == 2:
        return mean((p * mask.unsqueeze(-1)).sum(1), mask.sum(1)).unsqueeze(1)
    return mean(torch.bmm(mask, p), mask.sum(2))


# --- the operators ---


def mixer(
    ho: Tensor,
    se: Tensor,
    order: int,
    mask: Tensor | None = None,
    block: int = 0,
    window: int = 0,
    cu_q: Tensor | None = None,
    cu_k: Tensor | None = None,
    op: str = "mixer",
) -> Tensor:
    """sigmoid(se) * H(ho): ho (B, n, kD), se (B, m, kD) -> (B, m, kD); packed without the B and with cu_q,
    cu_k."""
    packed = checks.packing(op, se, ho, ("se", "ho"), cu_q, cu_k, block)
    checks.pair(op, se, ho, ("se", "ho"), packed)
    checks.floats(op, {"ho": ho, "se": se})
    checks.order(op, order, ho.shape[-1])
    checks.masks(op, se, ho, mask, block, window, packed)
    with torch.autocast(ho.device.type, enabled=False):
        p = polynomial(ho, order)
        if packed:
            assert cu_q is not None and cu_k is not None  # as checks.packing says
            H = _packed_mean(p, se.shape[0], cu_q, cu_k, block, window)
        elif block > 0:
            H = _causal_mean(p, block, window)
        elif mask is not None:
            H = _masked_mean(p, mask)
        else:
            H = p.mean(1, keepdim=True)
        return gate(se, H)


def _check_projections(op: str, width: int, ho: tuple | None, se: tuple | None, ag: tuple | None) -> int:
    """Weights and biases of the projections at hand; returns kD."""
    first = ho or se
    assert first is not None  # every operator has one of them
    features = first[0].shape[0]
    for name, projection in (("ho", ho), ("se", se)):
        if projection is not None:
            checks.has_shape(op, f"{name}_weight", projection[0], (features, width), "features and width")
            checks.has_shape(
                op, f"{name}_bias", projection[1], (features,), f"one for each row of {name}_weight"
            )
    if ag is not None:
        checks.has_shape(op, "ag_weight", ag[0], (width, features), "width and features")
        checks.has_shape(op, "ag_bias", ag[1], (width,), "one for each row of ag_weight")
    return features


def mixer_layer(
    xq: Tensor,
    xc: Tensor,
    ho_weight: Tensor,
    ho_bias: Tensor | None,
    se_weight: Tensor,
    se_bias: Tensor | None,
    ag_weight: Tensor,
    ag_bias: Tensor | None,
    order: int,
    mask: Tensor | None = None,
    block: int = 0,
    window: int = 0,
    cu_q: Tensor | None = None,
    cu_k: Tensor | None = None,
) -> Tensor:
    """The whole layer: xq (B, m, d), xc (B, n, d) -> (B, m, d); packed (total_q, d), (total_k, d) ->
    (total_q, d)."""
    op = "mixer_layer"
    packed = checks.packing(op, xq, xc, ("xq", "xc"), cu_q, cu_k, block)
    checks.pair(op, xq, xc, ("xq", "xc"), packed)
    weights: dict[str, Tensor | None] = {"ho_weight": ho_weight, "ho_bias": ho_bias, "se_weight": se_weight}
    weights |= {"se_bias": se_bias, "ag_weight": ag_weight, "ag_bias": ag_bias}
    checks.floats(op, {"xq": xq, "xc": xc, **weights})
    features = _check_projections(
        op, xq.shape[-1], (ho_weight, ho_bias), (se_weight, se_bias), (ag_weight, ag_bias)
    )
    checks.order(op, order, features)
    checks.masks(op, xq, xc, mask, block, window, packed)
    ho = F.linear(xc, ho_weight, ho_bias)
    se = F.linear(xq, se_weight, se_bias)
    return F.linear(mixer(ho, se, order, mask, block, window, cu_q, cu_k, op), ag_weight, ag_bias)


def summary(ho: Tensor, order: int, mask: Tensor | None = None) -> Tensor:
    """The sum over tokens of the running products of a projected context: (B, n, kD) -> (B, kD)."""
    with torch.autocast(ho.device.type, enabled=False):
        p = polynomial(ho, order)
        return p.sum(1) if mask is None else (p * mask.detach().to(p.dtype).unsqueeze(-1)).sum(1)


def mixer_summary(
    xc: Tensor, ho_weight: Tensor, ho_bias: Tensor | None, order: int, mask: Tensor | None = None
) -> Tensor:
    """The sum over tokens of the running products: xc (B, n, d) -> (B, kD), fp32 or fp64."""
    op = "mixer_summary"
    checks.pair(op, xc, xc, ("xc", "xc"), packed=False)
    checks.floats(op, {"xc": xc, "ho_weight": ho_weight, "ho_bias": ho_bias})
    checks.order(op, order, _check_projections(op, xc.shape[-1], (ho_weight, ho_bias), None, None))
    checks.keys_mask(op, mask, xc.shape[0], xc.shape[1])
    return summary(F.linear(xc, ho_weight, ho_bias), order, mask)


def mixer_select(
    xq: Tensor,
    H: Tensor,
    se_weight: Tensor,
    se_bias: Tensor | None,
    ag_weight: Tensor,
    ag_bias: Tensor | None,
) -> Tensor:
    """What queries xq (B, m, d) take from a mean H (B, kD): (B, m, d)."""
    op = "mixer_select"
    checks.tokens(op, "xq", xq)
    checks.floats(
        op, {"xq": xq, "se_weight": se_weight, "se_bias": se_bias, "ag_weight": ag_weight, "ag_bias": ag_bias}
    )
    features = _check_projections(op, xq.shape[-1], None, (se_weight, se_bias), (ag_weight, ag_bias))
    checks.has_shape(op, "H", H, (xq.shape[0], features), "batch and features")
    if H.dtype != accumulator(xq.dtype):
        fail(f"{op}: H", str(accumulator(xq.dtype)), H.dtype)
    return F.linear(gate(F.linear(xq, se_weight, se_bias), H.unsqueeze(1)), ag_weight, ag_bias)


def mixer_scan(
    x: Tensor,
    ho_weight: Tensor,
    ho_bias: Tensor | None,
    se_weight: Tensor,
    se_bias: Tensor | None,
    ag_weight: Tensor,
    ag_bias: Tensor | None,
    order: int,
    sum: Tensor,
    count: Tensor,
) -> tuple[Tensor, Tensor]:
    """The causal layer over x (B, n, d) that goes on from a running sum (B, kD) and count (B): output, new
    sum."""
    op = "mixer_scan"
    checks.pair(op, x, x, ("x", "x"), packed=False)
    weights: dict[str, Tensor | None] = {"ho_weight": ho_weight, "ho_bias": ho_bias, "se_weight": se_weight}
    weights |= {"se_bias": se_bias, "ag_weight": ag_weight, "ag_bias": ag_bias}
    checks.floats(op, {"x": x, **weights})
    features = _check_projections(
        op, x.shape[-1], (ho_weight, ho_bias), (se_weight, se_bias), (ag_weight, ag_bias)
    )
    checks.order(op, order, features)
    checks.has_shape(op, "sum", sum, (x.shape[0], features), "batch and features")
    checks.has_shape(op, "count", count, (x.shape[0],), "one for each sequence")
    o, total = scan(F.linear(x, ho_weight, ho_bias), F.linear(x, se_weight, se_bias), order, sum, count)
    return F.linear(o, ag_weight, ag_bias), total


def scan(ho: Tensor, se: Tensor, order: int, sum: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """mixer_scan between the projections: ho, se (B, n, kD) -> (B, n, kD), new sum (B, kD)."""
    with torch.autocast(ho.device.type, enabled=False):
        totals = torch.cat([sum.unsqueeze(1), polynomial(ho, order)], dim=1).cumsum(1)[:, 1:]
        seen = count.unsqueeze(1) + torch.arange(1, ho.shape[1] + 1, device=ho.device)
        return gate(se, mean(totals, seen)), totals[:, -1].clone()
