"""diffusers' schedulers as referees of libpom's samplers, on a Gaussian mixture with its perfect network.

Needs torch, safetensors and diffusers. LIBPOM_SAMPLER_TOOL names the program of tests/tools/sampler_tool.cpp;
where it is unset the one beside the library under test is taken. The schedulers get our times and levels, but
for those of the flow paths, whose own grid is ours. Every step is compared, not the last alone.

Where both define the same thing (a and s stand for alpha and sigma, x = a x0 + s noise):

    libpom      path      diffusers                            compared in
    ddim        epsilon   DDIMScheduler, eta 0 to 1            fp64
    ddim, clip  epsilon   the same, use_clipped_model_output   fp64
    ddim        flow      the same, for x / sqrt(a^2 + s^2)    fp64
    ddpm        epsilon   DDPMScheduler, fixed_small           fp64, our noise in place of theirs
    dpm++2m     epsilon   DPMSolverMultistepScheduler          fp64 its updates, fp32 its step()
    dpm++2m     flow      the same, use_flow_sigmas            likewise
    euler       epsilon   EulerDiscreteScheduler               fp32, as step() is
    euler       flow      FlowMatchEulerDiscreteScheduler      fp32, on its own grid
    heun        flow      FlowMatchHeunDiscreteScheduler       fp32, on its own grid

Where they do not:

    heun        epsilon   HeunDiscreteScheduler integrates over s/a, where the first step of a uniform grid
                          in t is hundreds of units long; ours over s/(a + s). Both are of second order.
    ddpm        flow      DDPMScheduler knows variance-preserving paths only; ddim with eta 1 is the same.
    clip        dpm++2m   DPMSolverMultistepScheduler has dynamic thresholding and no clamp.
    clip        ddim      unless told, DDIMScheduler keeps the network's noise beside a clipped x0; ours is
                          the noise that belongs to the clipped one.
    times       epsilon   theirs are indices into a table of training steps, ours real numbers.
    t = 1       flow      DDIMScheduler divides by a, which is 0 there.
    t = 1       epsilon   ours has a = 1e-3 there, from the clamp of the variance; theirs what the table says.
    few steps   dpm++2m   below 15 steps theirs ends with first order also where s > 0, unless
                          lower_order_final is off; ours does so only for s = 0.
"""

import math
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from tools import built_tool, referee

referee("diffusers")
from diffusers.schedulers import scheduling_ddpm  # noqa: E402
from diffusers.schedulers.scheduling_ddim import DDIMScheduler  # noqa: E402
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler  # noqa: E402
from diffusers.schedulers.scheduling_dpmsolver_multistep import DPMSolverMultistepScheduler  # noqa: E402
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler  # noqa: E402
from diffusers.schedulers.scheduling_flow_match_euler_discrete import (  # noqa: E402
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.schedulers.scheduling_flow_match_heun_discrete import (  # noqa: E402
    FlowMatchHeunDiscreteScheduler,
)

VARIANCES = ["linear", "sine", "cosine", "sigmoid"]
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
STDS = torch.tensor([0.3, 0.45, 0.25], dtype=torch.float64)
MEANS = torch.tensor([[-1.0, 0.4, 0.1], [0.8, 0.9, -0.3], [0.5, -1.1, 0.6]], dtype=torch.float64)


@pytest.fixture(scope="session")
def tool():
    return os.environ.get("LIBPOM_SAMPLER_TOOL") or str(built_tool("sampler_tool"))


class Road:
    """A path with its perfect network and the grid of a run, written apart from libpom's."""

    def __init__(self, path, variance="", steps=12, t_start=1.0, t_end=0.0, shift=1.0):
        self.path, self.variance = path, variance
        even = [t_start + (t_end - t_start) * (i / steps) for i in range(steps)] + [t_end]
        self.times = [t if shift == 1 else t / (t + (1 - t) / shift) for t in even]

    @property
    def steps(self):
        return len(self.times) - 1

    def level(self, t):
        if t == 0:
            return 1.0, 0.0
        if self.path == "flow":
            return 1 - t, t
        logistic = [1 / (1 + math.exp(-x)) for x in (4 * t - 2, -2, 2)]
        squared = {
            "linear": t,
            "sine": math.sin(math.pi * t / 2),
            "cosine": 1 - math.cos(math.pi * t / 2),
            "sigmoid": (logistic[0] - logistic[1]) / (logistic[2] - logistic[1]),
        }[self.variance]
        squared = min(max(squared, 1e-6), 1 - 1e-6)
        return math.sqrt(1 - squared), math.sqrt(squared)

    def levels(self, dtype=torch.float64):
        """alpha and sigma of every time, from noise to clean."""
        alpha, sigma = zip(*map(self.level, self.times), strict=True)
        return torch.tensor(alpha, dtype=dtype), torch.tensor(sigma, dtype=dtype)

    def answer(self, x, i, kind=None):
        """What the network says of x (B, D) at time i: E[x0 | x] as noise or as a velocity, in x's dtype."""
        alpha, sigma = self.level(self.times[i])
        wide = x.double()
        spread = alpha**2 * STDS**2 + sigma**2  # (K)
        gap = wide[:, None, :] - alpha * MEANS  # (B, K, D)
        logits = WEIGHTS.log() - gap.square().sum(-1) / (2 * spread) - x.shape[1] / 2 * spread.log()
        of_part = MEANS + (alpha * STDS**2 / spread)[:, None] * gap
        x0 = (logits.softmax(1)[:, :, None] * of_part).sum(1)
        noise = (wide - alpha * x0) / sigma
        kind = kind or ("velocity" if self.path == "flow" else "epsilon")
        return (noise if kind == "epsilon" else noise - x0).to(x.dtype)


def normals(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def ours(tool, folder, sampler, road, x, noise=None, **options):
    """x after every step (steps, B, D), by our sampler."""
    tensors = {"x": x, "weights": WEIGHTS, "stds": STDS, "means": MEANS}
    if noise is not None:
        tensors["noise"] = noise
    options |= {"t_start": road.times[0], "t_end": road.times[-1], "steps": road.steps}
    metadata = {"path": road.path, "variance": road.variance, "sampler": sampler}
    save_file(tensors, folder / "in", metadata=metadata | {k: repr(v) for k, v in options.items()})
    subprocess.run([tool, folder / "in", folder / "out"], check=True)
    out = load_file(folder / "out")
    assert set(out["times"].tolist()) <= set(road.times)
    assert torch.equal(out["x"], out["steps"][-1])
    return out["steps"]


def assert_close(found, expected, tolerance):
    """Relative to the size of pictures, at every step."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    worst = (found - expected).abs().amax((1, 2)) / expected.abs().amax((1, 2))
    assert worst.max() < tolerance, worst


def give_levels(scheduler, alpha, sigma):
    """The table of a variance-preserving scheduler runs from clean to noise; before it is our last time."""
    scheduler.alphas_cumprod = (alpha[:-1] ** 2 / (alpha[:-1] ** 2 + sigma[:-1] ** 2)).flip(0)
    scheduler.final_alpha_cumprod = scheduler.one = alpha[-1] ** 2 / (alpha[-1] ** 2 + sigma[-1] ** 2)
    scheduler.set_timesteps(len(alpha) - 1)
    assert scheduler.timesteps.tolist() == list(range(len(alpha) - 2, -1, -1))
    return scheduler


def run_ddim(road, x, eta=0.0, noise=None, clip=None):
    """DDIMScheduler, in its units, x / sqrt(alpha^2 + sigma^2): on an epsilon path these are x itself."""
    alpha, sigma = road.levels()
    unit = (alpha**2 + sigma**2).sqrt()
    scheduler = DDIMScheduler(road.steps, clip_sample=clip is not None, clip_sample_range=clip or 1.0)
    give_levels(scheduler, alpha, sigma)
    steps, now = [], x / unit[0]
    for i, timestep in enumerate(scheduler.timesteps):
        answer = road.answer(now * unit[i], i, "epsilon")
        fresh = noise[i] if eta > 0 else None
        now = scheduler.step(
            answer, timestep, now, eta=eta, variance_noise=fresh, use_clipped_model_output=clip is not None
        ).prev_sample
        steps.append(now * unit[i + 1])
    return torch.stack(steps)


@pytest.mark.parametrize("ends", [(1.0, 0.0), (0.95, 0.05)])
@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("variance", VARIANCES)
def test_ddim(tool, tmp_path, variance, eta, ends):
    road = Road("epsilon", variance, 12, *ends)
    x, noise = normals(9, 3), normals(12, 9, 3)
    assert_close(ours(tool, tmp_path, "ddim", road, x, noise, eta=eta), run_ddim(road, x, eta, noise), 1e-10)


@pytest.mark.parametrize("eta", [0.0, 0.7])
def test_ddim_with_clip(tool, tmp_path, eta):
    road = Road("epsilon", "linear", 10)
    x, noise = normals(9, 3), normals(10, 9, 3)
    found = ours(tool, tmp_path, "ddim", road, x, noise, eta=eta, clip=0.5)
    assert_close(found, run_ddim(road, x, eta, noise, clip=0.5), 1e-10)
    assert not torch.allclose(found, run_ddim(road, x, eta, noise), atol=1e-2)


@pytest.mark.parametrize("sampler", ["ddim", "euler"])
def test_ddim_and_euler_on_flow_in_other_units(tool, tmp_path, sampler):
    road = Road("flow", steps=15, t_start=0.98)
    x = normals(9, 3)
    assert_close(ours(tool, tmp_path, sampler, road, x), run_ddim(road, x), 1e-10)


@pytest.mark.parametrize("clip", [None, 0.8])
@pytest.mark.parametrize("variance", VARIANCES)
def test_ddpm(tool, tmp_path, monkeypatch, variance, clip):
    road = Road("epsilon", variance, 14)
    now, noise = normals(9, 3), normals(14, 9, 3)
    found = ours(tool, tmp_path, "ddpm", road, now, noise, **({"clip": clip} if clip else {}))
    scheduler = DDPMScheduler(road.steps, clip_sample=clip is not None, clip_sample_range=clip or 1.0)
    give_levels(scheduler, *road.levels())
    expected = []
    for i, timestep in enumerate(scheduler.timesteps):
        monkeypatch.setattr(scheduling_ddpm, "randn_tensor", lambda *_, i=i, **__: noise[i])
        now = scheduler.step(road.answer(now, i), timestep, now).prev_sample
        expected.append(now)
    assert_close(found, torch.stack(expected), 1e-10)


def dpm_solver(road, dtype):
    """A scheduler on our grid. Its sigmas are sigma / alpha, or sigma where use_flow_sigmas says so."""
    flow = road.path == "flow"
    scheduler = DPMSolverMultistepScheduler(
        num_train_timesteps=1000,
        algorithm_type="dpmsolver++",
        solver_order=2,
        lower_order_final=False,
        final_sigmas_type="zero" if road.times[-1] == 0 else "sigma_min",
        use_flow_sigmas=flow,
        prediction_type="flow_prediction" if flow else "epsilon",
    )
    scheduler.set_timesteps(road.steps)
    alpha, sigma = road.levels()
    scheduler.sigmas = (sigma if flow else sigma / alpha).to(dtype)
    scheduler.set_begin_index(0)
    return scheduler


def dpm_by_updates(road, now):
    """step() converts to fp32; the updates it chooses among do not."""
    scheduler, seen, steps = dpm_solver(road, torch.float64), [], []
    for i in range(road.steps):
        scheduler._step_index = i
        seen = [*seen[-1:], scheduler.convert_model_output(road.answer(now, i), sample=now)]
        if len(seen) < 2 or road.times[i + 1] == 0:
            now = scheduler.dpm_solver_first_order_update(seen[-1], sample=now)
        else:
            now = scheduler.multistep_dpm_solver_second_order_update(seen, sample=now)
        steps.append(now)
    return torch.stack(steps)


def dpm_by_step(road, now):
    scheduler, steps = dpm_solver(road, torch.float32), []
    for i, timestep in enumerate(scheduler.timesteps):
        now = scheduler.step(road.answer(now, i), timestep, now).prev_sample
        steps.append(now)
    return torch.stack(steps)


PATHS = [("flow", ""), *(("epsilon", variance) for variance in VARIANCES)]


@pytest.mark.parametrize(("steps", "ends"), [(1, (1.0, 0.0)), (12, (1.0, 0.0)), (20, (0.95, 0.05))])
@pytest.mark.parametrize(("path", "variance"), PATHS)
def test_dpm_solver_fp64(tool, tmp_path, path, variance, steps, ends):
    road = Road(path, variance, steps, *ends)
    x = normals(9, 3)
    assert_close(ours(tool, tmp_path, "dpm++2m", road, x), dpm_by_updates(road, x), 1e-10)


# In fp32 an epsilon path starts at 0.97: at t = 1 the predicted x0 is a difference divided by 1e-3, roundings
# included.
@pytest.mark.parametrize(("path", "variance"), PATHS)
def test_dpm_solver_fp32(tool, tmp_path, path, variance):
    road = Road(path, variance, 20, 1.0 if path == "flow" else 0.97, 0.0)
    x = normals(9, 3, dtype=torch.float32)
    assert_close(ours(tool, tmp_path, "dpmpp_2m", road, x), dpm_by_step(road, x), 1e-5)


@pytest.mark.parametrize("variance", VARIANCES)
def test_euler_on_epsilon(tool, tmp_path, variance):
    """EulerDiscreteScheduler moves x / alpha along sigma / alpha."""
    road = Road("epsilon", variance, 16, 0.97, 0.0)
    x = normals(9, 3, dtype=torch.float32)
    alpha, sigma = road.levels(torch.float32)
    scheduler = EulerDiscreteScheduler(1000)
    scheduler.set_timesteps(road.steps)
    scheduler.sigmas = sigma / alpha
    scheduler.set_begin_index(0)
    now, steps = x / alpha[0], []
    for i, timestep in enumerate(scheduler.timesteps):
        scaled = scheduler.scale_model_input(now, timestep)
        now = scheduler.step(road.answer(scaled, i), timestep, now).prev_sample
        steps.append(now * alpha[i + 1])
    assert_close(ours(tool, tmp_path, "euler", road, x), torch.stack(steps), 1e-5)


@pytest.mark.parametrize("steps", [1, 2, 25])
def test_euler_on_flow(tool, tmp_path, steps):
    road = Road("flow", steps=steps)
    x = normals(9, 3, dtype=torch.float32)
    scheduler = FlowMatchEulerDiscreteScheduler(steps)  # with as many training steps its grid is ours
    scheduler.set_timesteps(steps)
    torch.testing.assert_close(scheduler.sigmas, torch.tensor(road.times))
    now, expected = x, []
    for i, timestep in enumerate(scheduler.timesteps):
        now = scheduler.step(road.answer(now, i), timestep, now).prev_sample
        expected.append(now)
    assert_close(ours(tool, tmp_path, "euler", road, x), torch.stack(expected), 1e-5)


@pytest.mark.parametrize(("steps", "shift"), [(1, 3.0), (7, 0.5), (25, 3.0)])
def test_shifted_times_on_flow(tool, tmp_path, steps, shift):
    road = Road("flow", steps=steps, shift=shift)
    scheduler = FlowMatchEulerDiscreteScheduler(steps, shift=shift)
    scheduler.set_timesteps(sigmas=[1 - i / steps for i in range(steps)])  # it moves those it is given
    torch.testing.assert_close(scheduler.sigmas, torch.tensor(road.times))
    x = normals(9, 3, dtype=torch.float32)
    found = ours(tool, tmp_path, "euler", road, x, shift=shift)
    now, expected = x, []
    for i, timestep in enumerate(scheduler.timesteps):
        now = scheduler.step(road.answer(now, i), timestep, now).prev_sample
        expected.append(now)
    assert_close(found, torch.stack(expected), 1e-5)


@pytest.mark.parametrize("steps", [1, 2, 25])
def test_heun_on_flow(tool, tmp_path, steps):
    road = Road("flow", steps=steps)
    x = normals(9, 3, dtype=torch.float32)
    scheduler = FlowMatchHeunDiscreteScheduler(steps)
    scheduler.set_timesteps(steps)
    assert len(scheduler.timesteps) == 2 * steps - 1
    now, expected = x, []
    for call, timestep in enumerate(scheduler.timesteps):
        now = scheduler.step(road.answer(now, (call + 1) // 2), timestep, now).prev_sample
        if scheduler.state_in_first_order or call == 2 * steps - 2:
            expected.append(now)
    assert_close(ours(tool, tmp_path, "heun", road, x), torch.stack(expected), 1e-5)


def test_errors_of_the_tool(tool, tmp_path):
    """A referee that cannot tell a failure from a result would be no referee."""
    with pytest.raises(subprocess.CalledProcessError):
        ours(tool, tmp_path, "heum", Road("flow"), normals(2, 3))
