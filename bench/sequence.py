"""A sequence of 100,000 tokens trained for a step on one process and on several, each with a part of it.

    python bench/sequence.py --ranks 4

Prints for each number of ranks the memory that the step took at its most on any of them, the time, the
numbers that a rank handed in for each layer, and how far loss and gradients are from those of one process.
Processes are on this machine, with one thread each, and meet over Gloo: times say what the exchange costs,
not what more machines gain.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument(
        "--block", type=int, default=250, help="tokens of a block of the causal mask; 0: no mask"
    )
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at its most since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def work(options: argparse.Namespace) -> None:
    """What one rank does."""
    import torch
    import torch.distributed as dist

    import libpom

    torch.set_num_threads(1)
    rank, ranks = options.rank, options.of
    dist.init_process_group(
        "gloo", init_method=f"file://{options.folder}/store{ranks}", rank=rank, world_size=ranks
    )
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(libpom.Polymorpher(options.dim, 2, 2) for _ in range(options.depth))
    mask = libpom.block_causal(options.block) if options.block else None

    def part(seed: int, first: int, count: int) -> torch.Tensor:
        """Tokens of noise that does not depend on the ranks: a seed for every 1000 tokens."""
        noise, begin = torch.empty(1, count, options.dim), first // 1000 * 1000
        for at in range(begin, first + count, 1000):
            piece = torch.randn(
                1, 1000, options.dim, generator=torch.Generator().manual_seed(seed * 10**6 + at)
            )
            low, high = max(at, first), min(at + 1000, first + count)
            noise[:, low - first : high - first] = piece[:, low - at : high - at]
        return noise

    def step(tokens: int) -> torch.Tensor:
        split = libpom.SplitTokens(tokens, unit=max(options.block, 1)) if ranks > 1 else None
        mine = (split.first, split.count) if split else (0, tokens)
        x, target = part(1, *mine), part(2, *mine)
        for block in blocks:
            x = block(x, mask=mask, split=split)
        loss = (x - target).square().sum() / (tokens * options.dim)
        loss.backward()
        return loss.detach()

    def handed_in() -> int:
        return torch.ops.pom.traffic(dist.group.WORLD.group_name)[1]

    step(2 * ranks * max(options.block, 1))  # what is loaded and allocated once is not the step's
    for p in blocks.parameters():
        p.grad.zero_()
    dist.barrier()
    before, handed = memory("VmRSS"), handed_in()
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    loss = step(options.tokens)
    seconds, peak = time.perf_counter() - start, memory("VmHWM") - before
    numbers = (handed_in() - handed) / options.depth
    gradients = torch.cat([p.grad.flatten() for p in blocks.parameters()])
    dist.all_reduce(gradients)
    dist.all_reduce(loss)
    worst = torch.tensor([float(peak), seconds], dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if rank == 0:
        torch.save({"loss": loss, "gradients": gradients}, options.folder / f"result{ranks}")
        print(
            json.dumps({"peak": worst[0].item(), "seconds": worst[1].item(), "numbers": numbers}), flush=True
        )
    dist.barrier()
    dist.destroy_process_group()


def measured(options: argparse.Namespace, ranks: int, folder: str) -> dict:
    names = ("tokens", "block", "dim", "depth")
    given = [word for name in names for word in (f"--{name}", str(getattr(options, name)))]
    command = [sys.executable, __file__, *given, "--of", str(ranks), "--folder", folder]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    started = [
        subprocess.Popen([*command, "--rank", str(r)], stdout=subprocess.PIPE, text=True, env=environment)
        for r in range(ranks)
    ]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a rank failed")
    return json.loads(said[0].splitlines()[-1])


def main() -> None:
    options = parsed()
    if options.rank is not None:
        return work(options)
    import torch

    shape = f"{options.tokens} tokens, width {options.dim}, {options.depth} residual blocks"
    print(f"{shape}, causal in blocks of {options.block} tokens" if options.block else shape)
    with tempfile.TemporaryDirectory() as folder:
        one = None
        for ranks in [1, *options.ranks]:
            found = measured(options, ranks, folder)
            result = torch.load(Path(folder) / f"result{ranks}")
            one = one or (found, result)
            there, here = one[1]["gradients"], result["gradients"]
            apart = (here - there).abs().max() / there.abs().max()
            share = found["peak"] / one[0]["peak"]
            print(f"{ranks} ranks  {found['peak'] / 2**20:7.0f} MiB ({share:.3f} of one)", end="  ")
            print(f"{found['seconds']:6.2f} s  {found['numbers']:.0f} numbers a layer", end="  ")
            print(f"loss {result['loss']:.7f}  gradients {apart:.1e} apart")


if __name__ == "__main__":
    main()
