"""Training in C++ against plain PyTorch: the same weights and batches through ReferenceDiPoM, autograd,
torch.optim.AdamW and Muon, clip_grad_norm_, an average of weights and a schedule written from their
definitions.

The program is tests/tools/trainer_tool.cpp, built beside the library: it writes down every batch and draw.
"""

import math
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from reference_dipom import ReferenceDiPoM
from tools import built_tool

STEPS, WARMUP, COOLDOWN = 80, 10, 30
RECIPE = f"""
[run]
steps = {STEPS}
precision = "fp64"
seed = 3
[data]
size = [8, 8]
[network]
dim = 16
depth = 2
patch = 2
[batch]
size = 8
label_drop = 0.2
[optimizer]
lr = 3e-3
weight_decay = 0.05
warmup = {WARMUP}
cooldown = {COOLDOWN}
clip = 0.5
[ema]
decay = 0.98
"""

CASES = {
    "flow": {},
    "x0": {"diffusion.path": "flow-x0"},
    "epsilon": {"diffusion.path": "epsilon"},
    "cosine, min-snr": {"diffusion.path": "epsilon", "diffusion.variance": "cosine", "loss.kind": "min-snr"},
    "attention": {"network.mixer": "attention", "network.heads": 2, "network.ffw_expand": 4},
    "order 3, accumulated": {"network.order": 3, "batch.accumulate": 4},
    "checkpointing, logit-normal": {"batch.checkpointing": "true", "batch.time": "logit-normal"},
    "average every 10 steps": {"ema.every": 10, "optimizer.clip": 0.0},
    "muon, times near noise": {"optimizer.kind": "muon", "batch.time_shift": 3.0},
}


@pytest.fixture(scope="module")
def tool():
    return built_tool("trainer_tool")


def run(tool, folder, settings):
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    words = [f"{name}={value}" for name, value in settings.items()]
    out = folder / "out.safetensors"
    subprocess.run([tool, recipe, out, *words], check=True, env=os.environ | {"OMP_NUM_THREADS": "2"})
    return load_file(out)


def group(tensors, name):
    return {key.removeprefix(name + "/"): t for key, t in tensors.items() if key.startswith(name + "/")}


def reference_network(settings, start):
    network = {"dim": 16, "depth": 2, "patch": 2, "channels": 3, "classes": 10, "order": 2, "order_expand": 2}
    network |= {"ffw_expand": 3, "mixer": "pom"}
    network |= {k.removeprefix("network."): v for k, v in settings.items() if k.startswith("network.")}
    if network["mixer"] == "attention":
        network.pop("order"), network.pop("order_expand")
    module = ReferenceDiPoM(**network).double()
    module.load_state_dict(start)
    return module


def alpha_sigma(settings, t):
    if settings.get("diffusion.path", "flow") != "epsilon":
        return 1 - t, t
    variance = 1 - torch.cos(math.pi * t / 2) if settings.get("diffusion.variance") == "cosine" else t
    variance = variance.clamp(1e-6, 1 - 1e-6)
    return (1 - variance).sqrt(), variance.sqrt()


def reference_losses(module, settings, x0, noise, t, labels):
    alpha, sigma = (value.view(-1, 1, 1, 1) for value in alpha_sigma(settings, t))
    path = settings.get("diffusion.path", "flow")
    target = {"flow": noise - x0, "flow-x0": x0, "epsilon": noise}[path]
    output = module(alpha * x0 + sigma * noise, t, labels)
    each = (output - target).square().flatten(1).mean(1)
    if path == "flow-x0":  # as an error of the velocity
        each = each / sigma.flatten().clamp(min=0.05).square()
    if settings.get("loss.kind") == "min-snr":  # error of ε is that of x0 times the SNR
        snr = (alpha / sigma).square().flatten()
        each = each * snr.clamp(max=5) / snr
    return each


def rate_of(step, peak=3e-3):
    if step < WARMUP:
        return peak * (step + 1) / WARMUP
    since = step - (STEPS - COOLDOWN)
    return peak if since < 0 else peak * (1 - math.sqrt(since / COOLDOWN))


class Trainer:
    """What the C++ trainer does, in torch's own parts."""

    def __init__(self, settings, start):
        self.settings, self.module = settings, reference_network(settings, start)
        named = dict(self.module.named_parameters())
        decayed = [n for n, p in named.items() if p.dim() > 1 and n != "classes_emb.weight"]
        muon = settings.get("optimizer.kind") == "muon"
        self.matrices = [n for n in decayed if muon and named[n].dim() == 2 and not n.startswith("out_proj")]
        groups = [
            {"params": [named[n] for n in decayed if n not in self.matrices], "weight_decay": 0.05},
            {"params": [p for n, p in named.items() if n not in decayed], "weight_decay": 0.0},
        ]
        self.optimizers = [torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-8)]
        if muon:
            self.optimizers.append(
                torch.optim.Muon(
                    [named[n] for n in self.matrices], weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
                )
            )
        self.average = {n: p.detach().clone() for n, p in named.items()}
        self.every = settings.get("ema.every", 1)
        self.clip = settings.get("optimizer.clip", 0.5)

    def step(self, step, x0, noise, t, labels):
        self.module.zero_grad()
        loss = reference_losses(self.module, self.settings, x0, noise, t, labels).mean()
        loss.backward()
        self.gradient = {n: p.grad.clone() for n, p in self.module.named_parameters()}
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip or math.inf)
        for optimizer in self.optimizers:
            for part in optimizer.param_groups:
                part["lr"] = rate_of(step)
            optimizer.step()
        if (step + 1) % self.every == 0:
            n = (step + 1) // self.every
            decay = min(0.98, (1 + n) / (10 + n))
            for name, p in self.module.named_parameters():
                self.average[name].lerp_(p.detach(), 1 - decay)
        return loss.item(), norm.item()


@pytest.mark.parametrize("name", CASES)
def test_every_step(tool, tmp_path, name, monkeypatch):
    # torch's Muon makes matrices orthogonal in bf16; here it stays in fp64, as the trainer does on a CPU.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    settings = CASES[name]
    ours = run(tool, tmp_path, settings)
    trainer = Trainer(settings, group(ours, "start"))
    x0 = (ours["pictures"].float() / 127.5 - 1).double()  # pictures become fp32 first
    for step in range(STEPS):
        drawn = [ours[key][step] for key in ("noise", "times", "labels")]
        loss, norm = trainer.step(step, x0[step], *drawn)
        assert ours["loss"][step].item() == pytest.approx(loss, rel=1e-6), step
        assert ours["norm"][step].item() == pytest.approx(norm, rel=1e-6), step
        assert ours["rate"][step].item() == pytest.approx(rate_of(step), rel=1e-12, abs=1e-18)
        if step == 0:
            for key, theirs in trainer.gradient.items():
                torch.testing.assert_close(ours[f"gradient/{key}"], theirs, rtol=1e-8, atol=1e-11)
    state = {p: s for optimizer in trainer.optimizers for p, s in optimizer.state.items()}
    for key, p in trainer.module.named_parameters():
        torch.testing.assert_close(ours[f"weights/{key}"], p.detach(), rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(ours[f"ema/{key}"], trainer.average[key], rtol=1e-6, atol=1e-8)
        first, second = ours[f"moment1/{key}"], ours[f"moment2/{key}"]
        if key in trainer.matrices:
            torch.testing.assert_close(first, state[p]["momentum_buffer"], rtol=1e-5, atol=1e-10)
            assert not second.any()
        else:
            torch.testing.assert_close(first, state[p]["exp_avg"], rtol=1e-5, atol=1e-10)
            torch.testing.assert_close(second, state[p]["exp_avg_sq"], rtol=1e-5, atol=1e-12)
    assert ours["loss"][-20:].mean() < 0.8 * ours["loss"][:20].mean()  # it did learn


def test_draws_are_what_they_should_be(tool, tmp_path):
    ours = run(tool, tmp_path, {"batch.size": 64, "run.steps": 60})
    noise, times, labels = ours["noise"], ours["times"], ours["labels"]
    assert abs(noise.mean()) < 0.005 and abs(noise.std() - 1) < 0.005
    assert abs(times.mean() - 0.5) < 0.02 and abs(times.std() - 12**-0.5) < 0.01
    assert abs((labels == 10).double().mean() - 0.2) < 0.02
    assert len(noise.flatten(1)[:, 0].unique()) == 60  # every step has its own


def test_times_that_are_moved_towards_noise(tool, tmp_path):
    settings = {"batch.size": 64, "run.steps": 60, "batch.time": "logit-normal"}
    times = [
        run(tool, tmp_path, settings | {"batch.time_shift": shift})["times"].flatten() for shift in (1.0, 2.5)
    ]
    logits = [torch.logit(t.double()) for t in times]
    assert abs(logits[0].mean()) < 0.05 and abs(logits[0].std() - 1) < 0.05
    torch.testing.assert_close(logits[1], logits[0] + math.log(2.5), rtol=1e-9, atol=1e-9)
