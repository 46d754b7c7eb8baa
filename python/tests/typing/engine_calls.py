"""Calls of the engine for type checkers, read and never run: `# wrong` is on each line that has to be
refused, and no other line may be."""

from pathlib import Path

import numpy as np
import torch

import libpom

engine = libpom.Engine(Path("model"), device=torch.device("cpu"))
pictures, requests = engine.sample(class_="star", seed=7, count=2, steps=10, cfg_scale=2, sampler="heun")
pictures, _ = engine.sample(class_=["star", 3], size=(64, 48), dtype=torch.bfloat16, output="torch")
pictures, _ = engine.sample(class_=range(3), size="64x48", dtype="bf16", omega="auto", batch=4)
pictures, _ = engine.sample(size=64, omega=1.5, width=None, eta=0, clamp=1.0, cfg_from=0.5, cfg_to=1, shift=3)
again, _ = engine.sample(**requests[0])
shape: torch.Size = pictures.shape
array: np.ndarray = engine.sample(class_="star", output="numpy")[0]
seed = engine.resolve(class_="star", seed=-1)[0]["seed"]

engine.sample(stpes=3)  # wrong
engine.sample(guidance_scale=2.0)  # wrong
engine.sample(steps="many")  # wrong
engine.sample(steps=3.0)  # wrong
engine.sample(seed=torch.zeros(1))  # wrong
engine.sample(size=(64, 64, 3))  # wrong
engine.sample(size=64.0)  # wrong
engine.sample(dtype="bfloat16")  # wrong
engine.sample(dtype=torch.zeros)  # wrong
engine.sample(output="pil")  # wrong
engine.sample("star")  # wrong
engine.sample(batch=None)  # wrong
engine.resolve(stpes=3)  # wrong
engine.resolve(batch=1)  # wrong
tensor: torch.Tensor = engine.sample(output="numpy")[0]  # wrong
libpom.Engine(3)  # wrong
