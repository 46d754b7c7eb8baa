"""Training under masks: forward and backward of one layer under causal masks, windows and of packed
sequences, by libpom's kernels, against the same tokens without a mask; and, with --composed, by torch's
operations.

    LIBPOM_LIBRARY=build/cuda/libpom.so PYTHONPATH=python python bench/masks_cuda.py [--tokens 4096]

Everything is called in turn in this process. Times are µs of a call, gradients of the tokens and of all
weights included.
"""

import argparse
from collections.abc import Callable

import torch
from timing import DTYPES
from timing_cuda import race

import libpom


def cumulative(lengths: list[int]) -> torch.Tensor:
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    return torch.tensor(starts, dtype=torch.int32, device="cuda")


def lengths_of(rows: int) -> list[int]:
    """Odd ones, from short to long and over again, `rows` tokens in all."""
    lengths = []
    while (left := rows - sum(lengths)) > 0:
        lengths.append(min(left, 37 + 211 * (len(lengths) % 9)))
    return lengths


def calls(args: argparse.Namespace) -> dict[str, Callable[[], object]]:
    made = {"device": "cuda", "dtype": DTYPES[args.dtype]}
    layer = libpom.PoM(args.dim, args.order, args.expand, **made)
    x = torch.randn(args.batch, args.tokens, args.dim, requires_grad=True, **made)
    rows = args.batch * args.tokens
    flat = x.detach().reshape(rows, args.dim).requires_grad_()
    cu = cumulative(lengths_of(rows))

    def training(tokens: torch.Tensor, path: str, **how: object) -> Callable[[], object]:
        inputs = [tokens, *layer.parameters()]
        grad = torch.randn_like(tokens)

        def step() -> object:
            with libpom.force(path):
                return torch.autograd.grad(layer(tokens, **how), inputs, grad)

        return step

    def masks(path: str) -> dict[str, Callable[[], object]]:
        packed = {"cu_seqlens": cu}
        return {
            "causal": training(x, path, mask=libpom.causal),
            "causal, window 256": training(x, path, mask=libpom.block_causal(1, 256)),
            "causal, window 1024": training(x, path, mask=libpom.block_causal(1, 1024)),
            "blocks of 5": training(x, path, mask=libpom.block_causal(5)),
            "blocks of 60": training(x, path, mask=libpom.block_causal(60)),
            "blocks of 60, window 3": training(x, path, mask=libpom.block_causal(60, 3)),
            "packed": training(flat, path, **packed),
            "packed, causal": training(flat, path, mask=libpom.causal, **packed),
            "packed, causal, window 256": training(flat, path, mask=libpom.block_causal(1, 256), **packed),
        }

    found = {"no mask": training(x, "fused")} | masks("fused")
    if args.composed:
        found |= {name + ", composed": step for name, step in masks("composed").items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dim", type=int, default=1152)
    parser.add_argument("--order", type=int, default=2)
    parser.add_argument("--expand", type=int, default=2)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--composed", action="store_true", help="torch's operations under each mask too")
    parser.add_argument("--seconds", type=float, default=20, help="for all of it, about")
    args = parser.parse_args()
    args.device = "cuda"
    if not torch.cuda.is_available():
        raise SystemExit("masks_cuda: skipped: needs a GPU")
    card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"{args.batch} x {args.tokens} tokens, width {args.dim}, {args.dtype}, {card}")
    times = {name: 1e6 * sample.median for name, sample in race(calls(args), args).items()}
    for name, time in times.items():
        print(f"{name:38s} {time:10.1f} µs {time / times['no mask']:7.3f}")


if __name__ == "__main__":
    main()
