"""For split_program.py, on every rank: networks over their part of a picture or clip against the whole on one
rank."""

import torch
import torch.distributed as dist

import libpom  # noqa: F401 (loads the operators)

GROUP, RANK, RANKS = None, 0, 1  # of the group that results() is called for
OPS = torch.ops.pom_tests
B = 2
PICTURE = {"kind": "dipom", "dim": "16", "depth": "2", "patch": "2", "channels": "3", "classes": "4",
           "order": "2", "order_expand": "2"}  # fmt: skip
CLIP = {"kind": "vdipom", "dim": "16", "depth": "3", "patch": "2", "patch_time": "2", "channels": "3",
        "text_width": "6", "order": "2", "order_expand": "2"}  # fmt: skip


def error(a, b):
    return float((a - b).abs().max() / b.abs().max())


def compared(fields, whole, call, x, dy):
    """The errors of this rank's output and gradient, and of the summed gradients of parameters."""
    first, count = OPS.share(fields, whole, RANKS, RANK)
    one = call(x, dy, "", slice(None))
    before = torch.ops.pom.traffic(GROUP.group_name)[1]
    part = slice(first, first + count)
    mine = call(x[:, :, part].contiguous(), dy[:, :, part].contiguous(), GROUP.group_name, part)
    numbers = torch.ops.pom.traffic(GROUP.group_name)[1] - before
    gradients = mine[2]
    dist.all_reduce(gradients, group=GROUP)
    gathered = OPS.whole_of(fields, mine[0], GROUP.group_name, whole)
    errors = [
        error(mine[0], one[0][:, :, part]),
        error(mine[1], one[1][:, :, part]),
        error(gradients, one[2]),
        error(gathered, one[0]),
    ]
    t = torch.tensor(errors, dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX, group=GROUP)
    return {"errors": t.tolist(), "numbers": numbers}


def pictures(rows, checkpointing=False, dtype=torch.float64, **fields):
    torch.manual_seed(1)
    fields = {**PICTURE, **fields}
    x, dy = torch.randn(B, 3, 2 * rows, 6).to(dtype), torch.randn(B, 3, 2 * rows, 6).to(dtype)
    t, y = torch.rand(B).to(dtype), torch.tensor([1, 4])

    def call(x, dy, group, _):
        return OPS.pictures(fields, x, t, y, dy, group, 2 * rows, checkpointing)

    return compared(fields, 2 * rows, call, x, dy)


def clips(blocks, texts=1, dtype=torch.float64, **fields):
    torch.manual_seed(1)
    fields = {**CLIP, **fields}
    x, dy = (torch.randn(B, 3, 2 * blocks, 4, 6).to(dtype) for _ in range(2))
    t, first = torch.rand(B).to(dtype), torch.tensor([0, 5])
    shape = (B,) if texts == 1 else (B, blocks)
    text, mask = torch.randn(*shape, 5, 6).to(dtype), torch.rand(*shape, 5) < 0.7
    mask[0] = False  # no text

    def call(x, dy, group, part):
        cut = slice(part.start // 2, part.stop // 2) if texts > 1 and part.start is not None else slice(None)
        told = (text, mask) if texts == 1 else (text[:, cut].contiguous(), mask[:, cut].contiguous())
        return OPS.clips(fields, x, t, *told, first, dy, group, 2 * blocks)

    return compared(fields, 2 * blocks, call, x, dy)


def denoised(fields, shape, texts=1):
    """What every rank gets of an evaluation that all share, against one of its own."""
    torch.manual_seed(2)
    x = torch.randn(B, 3, *shape).double()
    rows = (B,) if texts == 1 else (B, shape[0] // 2)
    text, mask = torch.randn(*rows, 5, 6).double(), torch.rand(*rows, 5) < 0.7
    one = OPS.denoised(fields, x, text, mask, "")
    t = torch.tensor(error(OPS.denoised(fields, x, text, mask, GROUP.group_name), one), dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX, group=GROUP)
    return float(t)


def refused(call):
    try:
        call()
    except RuntimeError as wrong:
        return str(wrong).splitlines()[0]
    return ""


def results(group, library):
    """With the library split_network."""
    global GROUP, RANK, RANKS
    GROUP, RANK, RANKS = group, dist.get_rank(group), dist.get_world_size(group)
    torch.ops.load_library(library)
    uneven = RANKS + 1
    return {
        "double": {
            "pictures": pictures(uneven),
            "pictures, checkpointing": pictures(2 * RANKS, checkpointing=True),
            "pictures, codes of DiT": pictures(uneven, position="dit"),
            "clips, block-causal": clips(uneven, temporal_mask="block-causal"),
            "clips, window of 2, own blocks": clips(
                2 * RANKS, temporal_mask="block-causal", window="2", own_every="2"
            ),
            "clips, relative times": clips(uneven, temporal_mask="none", time_code="relative"),
            "clips, a text for each block": clips(uneven, texts=2, temporal_mask="block-causal"),
        },
        "single": {
            "pictures": pictures(uneven, dtype=torch.float32),
            "clips": clips(uneven, temporal_mask="block-causal", dtype=torch.float32),
        },
        "denoised": {
            "picture": denoised(PICTURE, (2 * uneven, 6)),
            "clip": denoised({**CLIP, "temporal_mask": "block-causal", "window": "2"}, (2 * uneven, 4, 6)),
            "clip, a text for each block": denoised(
                {**CLIP, "temporal_mask": "block-causal", "own_every": "2"}, (2 * uneven, 4, 6), texts=2
            ),
            "clip, all see all": denoised(
                {**CLIP, "temporal_mask": "none", "time_code": "relative"}, (2 * uneven, 4, 6)
            ),
        },
        "numbers": 2 * 2 * B * 2 * 2 * 16,  # passes, layers, sequences, kD
        "attention": refused(lambda: OPS.share({**PICTURE, "mixer": "attention", "heads": "2"}, 8, 2, 0)),
        "too many": refused(lambda: OPS.share(CLIP, 6, 4, 0)),
    }
