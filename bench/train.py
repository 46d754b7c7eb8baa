"""A step of training, libpom against the same network in PyTorch, eager and compiled; the loader; memory.

A step is the whole of it: batch, noise, times and dropped labels, forward, loss, backward, clip, AdamW and
the average of weights. The three are called in turn, on the same threads; libpom's trainer is a program that
sleeps until its turn comes (tests/tools/train_step_tool.cpp). PyTorch draws its noise with randn, takes its
pictures from memory, and has AdamW and the average in their fused and foreach forms.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import Report, add_report_option, interleave
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests"))
import reference_dipom as reference  # noqa: E402

EAGER_GOAL, COMPILED_GOAL, LOADER_GOAL = 1.2, 1.0, 5.0
CLASSES = 10


class Ours:
    """The program, told what to do by lines."""

    def __init__(self, settings: list[str]) -> None:
        tool = Path(os.environ["LIBPOM_LIBRARY"]).parent / "tests" / "train_step_tool"
        environment = os.environ | {
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
            "GOMP_SPINCOUNT": "10000",
        }
        words = [tool, ROOT / "recipes" / "shapes.toml", *settings]
        self.process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, order: str) -> float:
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class Plain(reference.ReferenceDiPoM):
    """The referee as one would train it: the position code is kept between steps."""

    def __init__(self, side: int, **settings: object) -> None:
        super().__init__(channels=3, classes=CLASSES, **settings)
        h = side // self.patch
        self.register_buffer("kept", reference.position(h, h, self.dim).float(), persistent=False)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        B, C, H, W = x.shape
        p, h, w = self.patch, H // self.patch, W // self.patch
        c = self.condition(t, y)
        x = self.in_conv(x).flatten(2).transpose(1, 2) + self.kept
        for layer in self.layers:
            x = layer(x, c)
        scale, bias = self.out_mod(c)[:, None].chunk(2, dim=-1)
        x = self.out_proj(reference.modulation(reference.layer_norm(x), scale, bias))
        return x.view(B, h, w, p, p, C).permute(0, 5, 1, 3, 2, 4).reshape(B, C, H, W)


def attend(self: reference.ReferenceAttention, x: Tensor) -> Tensor:
    B, n, d = x.shape
    q, k, v = self.qkv(x).view(B, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
    return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, n, d))


reference.ReferenceAttention.forward = attend


class Theirs:
    def __init__(self, network: Plain, forward: Callable[..., Tensor], args, bf16: bool) -> None:
        self.network, self.forward, self.bf16 = network, forward, bf16
        decayed = [p for n, p in network.named_parameters() if p.dim() > 1 and n != "classes_emb.weight"]
        rest = [p for n, p in network.named_parameters() if p.dim() <= 1 or n == "classes_emb.weight"]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, 1e-3, betas=(0.9, 0.99), fused=True)
        self.average = [p.detach().clone() for p in network.parameters()]
        self.pictures = torch.randint(256, (args.batch, 3, args.side, args.side), dtype=torch.uint8)
        self.labels = torch.randint(CLASSES, (args.batch,))

    def __call__(self) -> None:
        B = len(self.labels)
        x0 = self.pictures.float() / 127.5 - 1
        noise, t = torch.randn_like(x0), torch.sigmoid(torch.randn(B))
        y = torch.where(torch.rand(B) < 0.1, CLASSES, self.labels)
        w = t.view(B, 1, 1, 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            out = self.forward((1 - w) * x0 + w * noise, t, y)
        loss = F.mse_loss(out.float(), noise - x0)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, list(self.network.parameters()), 1e-3)
        loss.item()


NETWORK = {"dim": 192, "depth": 8, "patch": 4, "order": 2, "order_expand": 2, "ffw_expand": 3}
ATTENTION = {"dim": 192, "depth": 8, "patch": 4, "mixer": "attention", "heads": 6, "ffw_expand": 4}


def settings_of(args, network: dict[str, object], dtype: str) -> list[str]:
    words = [f"network.{name}={value}" for name, value in network.items()]
    words += [f"data.size=[{args.side},{args.side}]", f"batch.size={args.batch}", "run.device=cpu"]
    return [*words, f"run.precision={'fp32' if dtype == 'f32' else dtype}"]


def steps(report: Report, args) -> None:
    report.say(
        f"## A step\n\nThe network of recipes/shapes.toml at {args.side}x{args.side}, batch {args.batch}: "
        f"milliseconds a step, and how much faster libpom is. Goals for the mixer: {EAGER_GOAL} times "
        "eager, not behind compiled; attention, whose products are torch's own, is there to compare."
    )
    columns = ("mixer", "dtype", "libpom ms", "eager ms", "compiled ms", "vs eager", "vs compiled", "spread")
    table = report.table(*columns)
    for name, network in (("pom", NETWORK), ("attention", ATTENTION)):
        if name not in args.mixers:
            continue
        for dtype in args.dtype:
            torch.manual_seed(0)
            torch._dynamo.reset()
            module = Plain(args.side, **network)
            other = Plain(args.side, **network)
            ours = Ours(settings_of(args, network, dtype))
            variants = {
                "ours": lambda ours=ours: ours.ask("step"),
                "eager": Theirs(module, module, args, dtype == "bf16"),
                "compiled": Theirs(other, torch.compile(other), args, dtype == "bf16"),
            }
            times = interleave(variants, args.budget, least=5, warm=2)
            ours.close()
            mine, eager, compiled = (times[key] for key in variants)
            ms = [f"{sample.median * 1000:.0f}" for sample in (mine, eager, compiled)]
            ratios = [eager.over(mine), compiled.over(mine)]
            if name == "pom":
                goals = (EAGER_GOAL, COMPILED_GOAL)
                cells = [report.judge(r, at_least=goal) for r, goal in zip(ratios, goals, strict=True)]
            else:
                cells = [f"{ratio:.2f}  " for ratio in ratios]
            table.row(name, dtype, *ms, *cells, f"{mine.spread:.0%}")


def loader(report: Report, args) -> None:
    report.say(
        "## The loader\n\nPictures a second that the loader alone delivers and that training takes, in turn. "
        f"Goal: {LOADER_GOAL:.0f} times."
    )
    table = report.table("loader pictures/s", "training pictures/s", "ratio")
    ours = Ours(settings_of(args, NETWORK, "f32"))
    batches = 64
    for _ in range(8):  # what waits ready is not what it delivers
        ours.ask("load")
    times = interleave(
        {"load": lambda: [ours.ask("load") for _ in range(batches)], "step": lambda: ours.ask("step")},
        args.budget,
        least=5,
        warm=1,
    )
    ours.close()
    rates = [args.batch * batches / times["load"].median, args.batch / times["step"].median]
    table.row(*(f"{rate:.0f}" for rate in rates), report.judge(rates[0] / rates[1], at_least=LOADER_GOAL))


def memory(report: Report, args) -> None:
    report.say(
        f"## Memory\n\nWhat the trainer holds after {args.memory_steps // 10} and after {args.memory_steps} "
        "steps of a small network, in MiB. Goal: at most 2 % more."
    )
    table = report.table("after a tenth", "at the end", "ratio")
    small = ["network.dim=32", "network.depth=2", "data.size=[16,16]", "batch.size=8", "run.device=cpu"]
    ours = Ours(small)
    held = []
    for share in (args.memory_steps // 10, args.memory_steps - args.memory_steps // 10):
        for _ in range(share):
            ours.ask("step")
        held.append(ours.ask("memory"))
    ours.close()
    table.row(
        *(f"{bytes_ / 2**20:.1f}" for bytes_ in held), report.judge(held[1] / held[0], at_most=1.02, digits=3)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", nargs="+", choices=["steps", "loader", "memory"], default=["steps", "loader", "memory"]
    )
    parser.add_argument("--mixers", nargs="+", choices=["pom", "attention"], default=["pom", "attention"])
    parser.add_argument("--dtype", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--budget", type=float, default=40, help="seconds for each row")
    parser.add_argument("--memory-steps", type=int, default=2000)
    add_report_option(parser, "train")
    args = parser.parse_args()
    report = Report("The speed of training")
    start = time.perf_counter()
    for part in args.parts:
        {"steps": steps, "loader": loader, "memory": memory}[part](report, args)
    print(f"{time.perf_counter() - start:.0f} s")
    report.close(args.report)


if __name__ == "__main__":
    main()
