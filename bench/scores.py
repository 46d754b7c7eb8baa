"""Features of pictures for scores: Inception-v3 as `pom eval fid` runs it, against the same network in plain
PyTorch (convolution, batch norm and ReLU, as published implementations have them), the same drawn weights on
the same device in fp32 without TF32.

    python bench/scores.py --report
    python bench/scores.py --device cuda --build build/cuda --report

"network" is a block of 32 inputs of 299x299; "pictures" is the whole way from bytes, resized with torch's
bilinear rule.
"""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from timing import Report, add_report_option, interleave
from torch import Tensor
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
BLOCK, SIDE, GOAL = 32, 256, 0.9


class Plain:
    """The network, layer by layer. Weights are drawn as it is first called."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        torch.manual_seed(1)

    def conv(
        self,
        x: Tensor,
        name: str,
        out: int,
        kernel: tuple[int, int] = (1, 1),
        stride: int = 1,
        pad: bool = True,
    ) -> Tensor:
        inner = x.shape[1]
        if f"{name}.conv.weight" not in self.tensors:
            self.draw(name, out, inner, kernel)
        t, padding = self.tensors, (kernel[0] // 2, kernel[1] // 2) if pad else (0, 0)
        y = functional.conv2d(x, t[f"{name}.conv.weight"], None, stride, padding)
        norm = [t[f"{name}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return functional.relu(functional.batch_norm(y, *norm, training=False, eps=1e-3), inplace=True)

    def draw(self, name: str, out: int, inner: int, kernel: tuple[int, int]) -> None:
        scale = (6 / (inner * kernel[0] * kernel[1])) ** 0.5
        self.tensors[f"{name}.conv.weight"] = (torch.rand(out, inner, *kernel) * 2 - 1) * scale
        for part, middle, width in (
            ("weight", 1, 0.1),
            ("bias", 0, 0.1),
            ("running_mean", 0, 0.1),
            ("running_var", 1, 0.5),
        ):
            self.tensors[f"{name}.bn.{part}"] = middle + (torch.rand(out) * 2 - 1) * width

    def chain(self, x: Tensor, block: str, *layers: tuple) -> Tensor:
        for name, *shape in layers:
            x = self.conv(x, f"{block}.branch{name}", *shape)
        return x

    def average(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)

    def double(self, x: Tensor, block: str, *last: object) -> Tensor:
        return self.chain(
            x, block, ("3x3dbl_1", 64), ("3x3dbl_2", 96, (3, 3)), ("3x3dbl_3", 96, (3, 3), *last)
        )

    def a(self, x: Tensor, block: str, pool: int) -> Tensor:
        five = self.chain(x, block, ("5x5_1", 48), ("5x5_2", 64, (5, 5)))
        parts = [self.chain(x, block, ("1x1", 64)), five, self.double(x, block)]
        return torch.cat([*parts, self.chain(self.average(x), block, ("_pool", pool))], 1)

    def b(self, x: Tensor, block: str) -> Tensor:
        parts = [self.chain(x, block, ("3x3", 384, (3, 3), 2, False)), self.double(x, block, 2, False)]
        return torch.cat([*parts, functional.max_pool2d(x, 3, 2)], 1)

    def c(self, x: Tensor, block: str, c: int) -> Tensor:
        seven = self.chain(x, block, ("7x7_1", c), ("7x7_2", c, (1, 7)), ("7x7_3", 192, (7, 1)))
        deep = [("7x7dbl_1", c), ("7x7dbl_2", c, (7, 1)), ("7x7dbl_3", c, (1, 7)), ("7x7dbl_4", c, (7, 1))]
        parts = [
            self.chain(x, block, ("1x1", 192)),
            seven,
            self.chain(x, block, *deep, ("7x7dbl_5", 192, (1, 7))),
        ]
        return torch.cat([*parts, self.chain(self.average(x), block, ("_pool", 192))], 1)

    def d(self, x: Tensor, block: str) -> Tensor:
        three = self.chain(x, block, ("3x3_1", 192), ("3x3_2", 320, (3, 3), 2, False))
        seven = [("7x7x3_1", 192), ("7x7x3_2", 192, (1, 7)), ("7x7x3_3", 192, (7, 1))]
        last = self.chain(x, block, *seven, ("7x7x3_4", 192, (3, 3), 2, False))
        return torch.cat([three, last, functional.max_pool2d(x, 3, 2)], 1)

    def e(self, x: Tensor, block: str, pooled: Tensor) -> Tensor:
        three = self.chain(x, block, ("3x3_1", 384))
        deep = self.chain(x, block, ("3x3dbl_1", 448), ("3x3dbl_2", 384, (3, 3)))
        parts = [self.chain(x, block, ("1x1", 320))]
        for y, name in ((three, "3x3_2"), (deep, "3x3dbl_3")):
            parts += [
                self.chain(y, block, (f"{name}a", 384, (1, 3))),
                self.chain(y, block, (f"{name}b", 384, (3, 1))),
            ]
        return torch.cat([*parts, self.chain(pooled, block, ("_pool", 192))], 1)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv(x, "Conv2d_1a_3x3", 32, (3, 3), 2, False)
        x = self.conv(self.conv(x, "Conv2d_2a_3x3", 32, (3, 3), 1, False), "Conv2d_2b_3x3", 64, (3, 3))
        x = self.conv(functional.max_pool2d(x, 3, 2), "Conv2d_3b_1x1", 80)
        x = functional.max_pool2d(self.conv(x, "Conv2d_4a_3x3", 192, (3, 3), 1, False), 3, 2)
        for name, pool in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
            x = self.a(x, name, pool)
        x = self.b(x, "Mixed_6a")
        for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
            x = self.c(x, name, width)
        x = self.d(x, "Mixed_7a")
        x = self.e(x, "Mixed_7b", self.average(x))
        return self.e(x, "Mixed_7c", functional.max_pool2d(x, 3, 1, 1)).mean((2, 3))

    def to(self, device: torch.device, layout: torch.memory_format) -> "Plain":
        other = Plain()
        for name, t in self.tensors.items():
            other.tensors[name] = t.to(device, memory_format=layout) if t.dim() == 4 else t.to(device)
        return other


def drawn_pictures() -> Tensor:
    """As in scores.cpp."""
    place = torch.arange(BLOCK * 3 * SIDE * SIDE)
    return ((place * 2654435761) % (1 << 20) // 4096).to(torch.uint8).view(BLOCK, 3, SIDE, SIDE)


def input_of(pictures: Tensor) -> Tensor:
    x = functional.interpolate(pictures.float(), (299, 299), mode="bilinear", align_corners=False)
    return x / 255 * 2 - 1


class Ours:
    """The program, which runs a block for each line that it is sent."""

    def __init__(self, program: Path, weights: Path, device: str) -> None:
        passive = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin slow the other process
        words = [str(program), str(weights), device, str(SIDE)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=passive
        )
        assert self.answer() == "ready"

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self, what: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self.answer())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def variants_of(ours: Ours, plain: Plain, what: str, device: torch.device) -> dict[str, Callable[[], float]]:
    pictures = drawn_pictures()
    inputs = input_of(pictures.to(device))
    layouts = {"plain": torch.contiguous_format, "plain, channels last": torch.channels_last}
    calls: dict[str, Callable[[], float]] = {"libpom": lambda: ours.run(what)}
    for name, layout in layouts.items():
        network = plain.to(device, layout)

        def call(network: Plain = network, layout: torch.memory_format = layout) -> float:
            x = inputs if what == "network" else input_of(pictures.to(device))
            return network(x.contiguous(memory_format=layout)).sum().item()

        calls[name] = call
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", type=float, default=60, help="seconds for each row (default: 60)")
    add_report_option(parser, "scores")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device(args.device)
    report = Report("Features of pictures for scores")
    plain = Plain()
    plain(torch.zeros(1, 3, 299, 299))
    table = report.table(
        "of 32", "libpom/s", "plain/s", "channels last/s", "libpom / plain", "libpom / channels last"
    )
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "inception.safetensors"
        head = {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008)}
        save_file(plain.tensors | head, weights)
        ours = Ours(args.build / "bench/scores_bench", weights, args.device)
        for what in ("network", "pictures"):
            calls = variants_of(ours, plain, what, device)
            sums = [call() for call in calls.values()]
            assert all(abs(s - sums[1]) < 1e-4 * abs(sums[1]) for s in sums), sums
            times = interleave(calls, args.budget)
            rates = [f"{BLOCK / sample.median:.1f}" for sample in times.values()]
            ratios = [times[name].over(times["libpom"]) for name in list(calls)[1:]]
            table.row(what, *rates, *(report.judge(ratio, at_least=GOAL) for ratio in ratios))
        ours.close()
    report.close(args.report)


if __name__ == "__main__":
    main()
