"""The observed order of convergence of each sampler on each path: a table, for docs/samplers.md.

    python docs/convergence.py [build/release/tests/sampler_tool]

The model is the exact one of a mixture of three Gaussians in the plane, from t = 0.95 to t = 0.05. The order
is log2(error with 256 steps / error with 512), the error against Heun with 2048 and 4096 steps, extrapolated.
"""

import subprocess
import sys
import tempfile
from math import log2
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
PATHS = [("flow", ""), *(("epsilon", variance) for variance in ("linear", "sine", "cosine", "sigmoid"))]
MIXTURE = {
    "weights": torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
    "stds": torch.tensor([0.30, 0.45, 0.25], dtype=torch.float64),
    "means": torch.tensor([[-1.0, 0.4], [0.8, 0.9], [0.5, -1.1]], dtype=torch.float64),
}


def solve(tool, sampler, path, variance, steps):
    """Where the same eight points end."""
    start = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    words = {"path": path, "variance": variance, "sampler": sampler, "steps": str(steps)}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in", "out")]
        save_file({"x": start, **MIXTURE}, files[0], metadata=words | {"t_start": "0.95", "t_end": "0.05"})
        subprocess.run([tool, *files], check=True)
        return load_file(files[1])["x"]


def main():
    tool = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/tests/sampler_tool"
    print("| sampler | " + " | ".join(f"{path} {variance}".strip() for path, variance in PATHS) + " |")
    print("|---|" + "---:|" * len(PATHS))
    exact = {}
    for road in PATHS:
        fine, coarse = (solve(tool, "heun", *road, steps) for steps in (4096, 2048))
        exact[road] = (4 * fine - coarse) / 3
    for sampler in ("euler", "ddim", "heun", "dpm++2m"):
        orders = []
        for road in PATHS:
            coarse, fine = (float((solve(tool, sampler, *road, n) - exact[road]).norm()) for n in (256, 512))
            orders.append(f"{log2(coarse / fine):.3f}")
        print(f"| `{sampler}` | " + " | ".join(orders) + " |")


if __name__ == "__main__":
    main()
