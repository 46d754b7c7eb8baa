"""Decoding: one token of each sequence through a stack of blocks on a GPU, by libpom.Decoder and by the
blocks one by one, as they come and as a CUDA graph, beside the time in which torch reads the weights once
(amax; bench/step_cuda.cu reads faster).

    LIBPOM_LIBRARY=build/cuda/libpom.so PYTHONPATH=python python bench/decode_cuda.py [--batch 1,4,8]

Everything is called in turn in this process. Times are µs of a step, of steps that queue up for 20 ms and
more; reading and "blocks as a graph" are replays of graphs, the others calls from Python.
"""

import argparse
from functools import partial

import torch
from timing import DTYPES
from timing_cuda import graphed, race

import libpom


def reading(blocks: torch.nn.ModuleList) -> torch.Tensor:
    """All weights in one piece: its greatest value takes every byte once."""
    return torch.cat([part.detach().reshape(-1) for part in blocks.parameters()])


def by_blocks(blocks: torch.nn.ModuleList, x: torch.Tensor, states: list[libpom.MixerState]) -> torch.Tensor:
    for block, state in zip(blocks, states, strict=True):
        x, _ = block.step_causal(x, state)
    return x


@torch.inference_mode()
def row(batch: int, args: argparse.Namespace) -> None:
    dtype = DTYPES[args.dtype]
    made = {"device": "cuda", "dtype": dtype}
    blocks = torch.nn.ModuleList(libpom.Polymorpher(args.dim, **made) for _ in range(args.depth))
    decoder = libpom.Decoder(blocks, batch)
    x = torch.randn(batch, args.dim, **made)
    states = [block.init_state(batch) for block in blocks]
    one_by_one = partial(by_blocks, blocks, x.unsqueeze(1), states)
    weights = reading(blocks)
    variants = {
        "reading": graphed(weights.view(torch.int32).amax),
        "Decoder": partial(decoder.step, x),
        "blocks as a graph": graphed(one_by_one),
        "blocks": one_by_one,
    }
    times = {name: 1e6 * sample.median for name, sample in race(variants, args).items()}
    gigabytes = weights.numel() * weights.element_size() / 1e9
    assert decoder.fused, "the step was not one kernel"
    for name, time in times.items():
        ratio = time / times["reading"]
        print(f"{batch:9d}  {name:18s} {time:9.1f} µs {1e3 * gigabytes / time:6.2f} TB/s  {ratio:6.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--batch", type=numbers, default=[1, 4, 8])
    parser.add_argument("--dim", type=int, default=1152)
    parser.add_argument("--depth", type=int, default=28)
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="bf16")
    parser.add_argument("--seconds", type=float, default=2, help="for the variants of one row, about")
    args = parser.parse_args()
    args.device = "cuda"
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise SystemExit("decode_cuda: skipped: needs a GPU of compute capability 9.0")
    card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"{args.depth} blocks of {args.dim}, {args.dtype}, {card}")
    print("sequences  step                                     / reading")
    for batch in args.batch:
        row(batch, args)


if __name__ == "__main__":
    main()
