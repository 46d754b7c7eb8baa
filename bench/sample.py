"""Sampling a class-conditional picture, libpom against the same network in PyTorch, eager and compiled.

All three run in this process, in turn, on the same threads: guided Euler steps on pictures of 32x32 and 64x64
(patch 2: 256 and 1024 tokens), both halves of guidance in one batch, from noise to 8-bit pixels. The PyTorch
network is the referee of the tests with its position code kept between steps and SDPA as its attention.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from timing import DTYPES, Report, add_report_option, interleave, machine
from torch import Tensor

import libpom

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "tests"))
import reference_dipom as reference

GOAL = 1.25  # times as fast as eager
CLASSES, SCALE = 1000, 2.0


class Plain(reference.ReferenceDiPoM):
    """The referee as one would sample with it: what does not change between steps is kept."""

    def __init__(self, **settings: object) -> None:
        super().__init__(channels=3, classes=CLASSES, **settings)
        self.kept: dict[tuple[int, int], Tensor] = {}

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        B, C, H, W = x.shape
        p, h, w = self.patch, H // self.patch, W // self.patch
        c = self.condition(t, y)
        x = self.in_conv(x).flatten(2).transpose(1, 2) + self.kept[h, w]
        for layer in self.layers:
            x = layer(x, c)
        scale, bias = self.out_mod(c)[:, None].chunk(2, dim=-1)
        x = self.out_proj(reference.modulation(reference.layer_norm(x), scale, bias))
        return x.view(B, h, w, p, p, C).permute(0, 5, 1, 3, 2, 4).reshape(B, C, H, W)

    def keep(self, h: int, w: int) -> None:
        weight = self.classes_emb.weight
        self.kept[h, w] = reference.position(h, w, self.dim).to(weight.dtype)


def attend(self: reference.ReferenceAttention, x: Tensor) -> Tensor:
    B, n, d = x.shape
    q, k, v = self.qkv(x).view(B, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return self.proj(mixed.transpose(1, 2).reshape(B, n, d))


reference.ReferenceAttention.forward = attend


@torch.inference_mode()
def euler(network: Callable[..., Tensor], x: Tensor, y: Tensor, steps: int) -> Tensor:
    y = torch.cat([y, torch.full_like(y, CLASSES)])
    for i in range(steps):
        t = 1 - i / steps
        both = network(torch.cat([x, x]), torch.full((len(y),), t, dtype=torch.float64), y)
        conditional, without = both.chunk(2)
        x = x - (without + SCALE * (conditional - without)) / steps
    return (x.float() * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def write_model(folder: Path, network: Plain, settings: dict[str, object]) -> None:
    config = {
        "format": 1,
        "network": {"kind": "dipom", "channels": 3, "classes": CLASSES, **settings},
        "diffusion": {"path": "flow"},
        "codec": {"kind": "pixels"},
        "sample": {"size": [32, 32], "sampler": "euler", "steps": 4, "cfg_scale": SCALE},
        "classes": [],
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, folder / "model.safetensors")


def measure(report: Report, args: argparse.Namespace, variant: str) -> None:
    settings = reference.variants()[variant]
    report.say(
        f"## {variant}\n\nMilliseconds a step (both halves of guidance), and how much faster libpom is."
    )
    table = report.table(
        "dtype",
        "tokens",
        "batch",
        "libpom ms",
        "eager ms",
        "compiled ms",
        "vs eager",
        "vs compiled",
        "spread",
    )
    torch.manual_seed(0)
    network = reference.randomise(Plain(**settings)).eval()
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name), network, settings)
        engine = libpom.Engine(name)
        for dtype in args.dtype:
            network.to(DTYPES[dtype])
            for side in args.sides:
                network.keep(side // 2, side // 2)
                torch._dynamo.reset()
                compiled = torch.compile(network)
                for batch in args.batch:
                    row(report, table, args, engine, network, compiled, dtype, side, batch)


def row(report, table, args, engine, network, compiled, dtype, side, batch) -> None:
    x = torch.randn(batch, 3, side, side, dtype=DTYPES[dtype])
    y = torch.arange(batch)
    wanted = {"class_": f"0-{batch - 1}", "steps": args.steps, "sampler": "euler", "cfg_scale": SCALE}
    wanted |= {"width": side, "height": side, "dtype": {"f32": "fp32"}.get(dtype, dtype), "seed": 1}
    times = interleave(
        {
            "ours": lambda: engine.sample(**wanted),
            "eager": lambda: euler(network, x, y, args.steps),
            "compiled": lambda: euler(compiled, x, y, args.steps),
        },
        args.budget,
        least=3,
        warm=1,
    )
    ours, eager, other = (times[name] for name in ("ours", "eager", "compiled"))
    ms = [f"{sample.median * 1000 / args.steps:.1f}" for sample in (ours, eager, other)]
    faster = report.judge(eager.over(ours), at_least=GOAL), report.judge(other.over(ours), at_least=1.0)
    table.row(dtype, side * side // 4, batch, *ms, *faster, f"{ours.spread:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=["DiPoM-S/2"])
    parser.add_argument("--dtype", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
    parser.add_argument(
        "--sides", nargs="+", type=int, default=[32, 64], help="of the pictures; tokens are a quarter"
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--budget", type=float, default=15, help="seconds for each row")
    add_report_option(parser, "sample")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    report = Report("Sampling: a step of guided Euler")
    print(machine())
    for variant in args.variants:
        measure(report, args, variant)
    report.close(args.report)


if __name__ == "__main__":
    main()
