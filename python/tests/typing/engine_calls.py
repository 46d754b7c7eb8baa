"""Calls of the engine for type checkers, read and never run: `# wrong` is on each line that has to be
refused, and no other line may be."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

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

clips, _ = engine.sample(prompt=["a star", "a circle"], seed=[3, 7], frames=8, fps=12, prompt_at="4:a heart")
clips, _ = engine.sample(prompt="a star", seed=range(4), frames=math.inf, window=2, negative_prompt="grey")
latents: torch.Tensor = engine.sample(prompt="a star", output="latents", noise=torch.zeros(1))[0]
clips, _ = engine.sample(init="in.png", strength=0.5, class_="star", negative_class=3)
clips, _ = engine.sample(init=Path("in.mp4"), on_step=lambda step, item, image: print(step, image.shape))
clips, _ = engine.sample(init=torch.zeros(1), prompt_at=["2:a", "4:b"], stream=True)
clips, _ = engine.sample(init=np.zeros((16, 16, 3), np.uint8), save_state=Path("s"), continue_from="s")
clips, _ = engine.sample(init=Image.open("in.png"), noise=np.zeros(3), dtype="bfloat16", output="pt")
clips, _ = engine.sample(init=[Image.open("1.png"), Image.open("2.png")], output="latent")
array = engine.sample(init=[torch.zeros(1)], output="np")[0]
blocks: int = engine.block_frames
names: list[str] = engine.classes + libpom.samplers()
hashes: list[str] = [engine.weights_hash, engine.text_hash]

frame: torch.Tensor
picture: np.ndarray
for frame in engine.stream(prompt="a star", frames=48):
    print(frame.shape)
for picture in engine.stream(prompt="a star", frames="inf", output="numpy", prompt_at="24:a heart"):
    print(picture.dtype)
with engine.stream(prompt="a star", frames=math.inf, save_state="s", continue_from=Path("s")) as stream:
    frame = next(stream)
    rate: float = stream.fps
    seeds: int = stream.request["seed"]
    remarks: list[str] = stream.remarks
stream.close()
on_step: Callable[[int, int, torch.Tensor], object] = lambda step, item, image: None  # noqa: E731
engine.sample(prompt="a", on_step=on_step)

engine.stream("a star")  # wrong
engine.stream(promt="a star")  # wrong
engine.stream(num_frames=8)  # wrong
engine.stream(prompt=3)  # wrong
engine.stream(prompt="a", output="latents")  # wrong
engine.stream(prompt="a", output="pil")  # wrong
engine.stream(prompt="a", batch=2)  # wrong
engine.stream(prompt="a", on_step=on_step)  # wrong
engine.stream(prompt="a", noise=torch.zeros(1))  # wrong
engine.stream(prompt="a", fps="fast")  # wrong
engine.stream(prompt="a", save_state=3)  # wrong
engine.stream(prompt="a", stream="yes")  # wrong
engine.sample(frames=[8])  # wrong
engine.sample(prompt=[3])  # wrong
engine.sample(prompt_at={24: "a heart"})  # wrong
engine.sample(seed=["a"])  # wrong
engine.sample(seed=1.5)  # wrong
engine.sample(init=3)  # wrong
engine.sample(init=["a.png", "b.png"])  # wrong
engine.sample(strength="much")  # wrong
engine.sample(negative_prompt=["a"])  # wrong
engine.sample(window="all")  # wrong
engine.sample(noise=[0.0])  # wrong
engine.sample(on_step=print, output="numpy", noise=3)  # wrong
engine.sample(on_step=lambda step: None)  # wrong
engine.sample(on_step=lambda step, image: None)  # wrong
engine.resolve(on_step=on_step)  # wrong
first: np.ndarray = next(engine.stream(prompt="a"))  # wrong
second: torch.Tensor = next(engine.stream(prompt="a", output="numpy"))  # wrong
engine.sample(stpes=3)  # wrong
engine.sample(guidance_scale=2.0)  # wrong
engine.sample(steps="many")  # wrong
engine.sample(steps=3.0)  # wrong
engine.sample(seed=torch.zeros(1))  # wrong
engine.sample(size=(64, 64, 3))  # wrong
engine.sample(size=64.0)  # wrong
engine.sample(dtype="bfloat")  # wrong
engine.sample(dtype=torch.zeros)  # wrong
engine.sample(output="pil")  # wrong
engine.sample("star")  # wrong
engine.sample(batch=None)  # wrong
engine.resolve(stpes=3)  # wrong
engine.resolve(batch=1)  # wrong
tensor: torch.Tensor = engine.sample(output="numpy")[0]  # wrong
libpom.Engine(3)  # wrong
