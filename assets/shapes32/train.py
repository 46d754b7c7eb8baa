"""Trains the small class-conditional model of this folder in plain torch and measures its recognition rate.

    python assets/shapes32/train.py --output out/shapes32 --minutes 8
    python assets/shapes32/train.py --output out/shapes32 --resume

B batch, S side in pixels. Pictures are (B, 3, S, S) in [-1, 1]; t is 0 at the picture, 1 at the noise.
"""

import argparse
import json
import math
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "tests"))
from reference_dipom import ReferenceDiPoM

CLASSES = ["circle", "square", "triangle", "star", "heart", "ring", "cross", "moon", "diamond", "hexagon"]
HUES = {
    "red": (0.90, 0.10, 0.12),
    "orange": (1.00, 0.52, 0.05),
    "yellow": (1.00, 0.90, 0.10),
    "green": (0.10, 0.70, 0.20),
    "cyan": (0.05, 0.80, 0.90),
    "blue": (0.10, 0.25, 0.90),
    "purple": (0.55, 0.15, 0.80),
    "pink": (1.00, 0.40, 0.70),
}
NETWORK = {"dim": 128, "depth": 8, "patch": 2, "channels": 3, "mixer": "pom"}
NETWORK |= {"order": 2, "order_expand": 2, "ffw_expand": 3, "classes": len(CLASSES)}
SIDE = 32

# --- drawings: signed distances of shapes of radius 1, y upwards, negative inside ---


def box(x, y, half_w, half_h):
    return torch.maximum(x.abs() - half_w, y.abs() - half_h)


def disc(x, y, radius):
    return torch.sqrt(x * x + y * y + 1e-12) - radius


def polygon(x, y, corners, radius):
    """Regular, one corner up: the distance to the nearest side's line."""
    sector = 2 * math.pi / corners
    from_side = torch.remainder(torch.atan2(x, y), sector) - sector / 2
    return torch.sqrt(x * x + y * y + 1e-12) * from_side.cos() - radius * math.cos(sector / 2)


def star(x, y, inner=0.42):
    """Five tips at radius 1; folded into the half sector between a tip and the next inner corner."""
    half = math.pi / 5
    fold = (torch.remainder(torch.atan2(x, y) + half, 2 * half) - half).abs()
    r = torch.sqrt(x * x + y * y + 1e-12)
    edge_x, edge_y = inner * math.cos(half) - 1, inner * math.sin(half)
    length = math.hypot(edge_x, edge_y)
    return ((r * fold.cos() - 1) * edge_y - r * fold.sin() * edge_x) / length


def heart(x, y, half=0.56):
    """A square on its corner and a disc on each of its two upper sides."""
    y = y + 0.14
    corner = math.sqrt(0.5)
    square = box((x + y) * corner, (x - y) * corner, half, half)
    discs = disc(x.abs() - half * corner, y - half * corner, half)
    return torch.minimum(square, discs)


def diamond(x, y, half_w=0.62, half_h=1.0):
    return (x.abs() / half_w + y.abs() / half_h - 1) * (half_w * half_h / math.hypot(half_w, half_h))


def distances(x, y):
    """(classes, B, S, S), in the order of CLASSES."""
    return torch.stack(
        [
            disc(x, y, 0.92),
            box(x, y, 0.72, 0.72),
            polygon(x, y + 0.15, 3, 1.0),
            star(x, y),
            heart(x, y),
            disc(disc(x, y, 0.72), torch.zeros_like(x), 0.22),
            torch.minimum(box(x, y, 0.92, 0.29), box(x, y, 0.29, 0.92)),
            torch.maximum(disc(x, y, 0.95), -disc(x - 0.5, y - 0.12, 0.72)),
            diamond(x, y),
            polygon(x, y, 6, 0.98),
        ]
    )


def uniform(shape, low, high, device):
    return low + (high - low) * torch.rand(shape, device=device)


def grid(side, device):
    """Pixel centres in [-0.5, 0.5], x to the right, y upwards."""
    u = (torch.arange(side, device=device) + 0.5) / side - 0.5
    return u[None, None, :].expand(1, side, side), -u[None, :, None].expand(1, side, side)


def coverage(y_class, side):
    """(B, S, S) in [0, 1]: the share of each pixel that the shape covers."""
    B, device = y_class.shape[0], y_class.device
    px, py = grid(side, device)
    radius = 0.23 * 2 ** uniform((B, 1, 1), 0, 1, device)
    room = 0.5 - radius * 1.03
    cx, cy = (uniform((B, 1, 1), -1, 1, device) * room for _ in range(2))
    angle = uniform((B, 1, 1), -math.pi / 6, math.pi / 6, device)
    x, y = (px - cx) / radius, (py - cy) / radius
    x, y = x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()
    chosen = distances(x, y).gather(0, y_class.view(1, B, 1, 1).expand(1, B, side, side))[0]
    return (0.5 - chosen * radius * side).clamp(0, 1)


def background(dark, side):
    """(B, 3, S, S): a plain tint, two tints graded, or one with a faint pattern of waves."""
    B, device = dark.shape[0], dark.device
    px, py = grid(side, device)
    level = torch.where(dark, uniform((B, 1), 0.06, 0.22, device), uniform((B, 1), 0.80, 0.96, device))
    tints = level[:, None] + uniform((B, 2, 3), -0.10, 0.10, device)
    tints[:, 1] += torch.where(dark, 0.14, -0.14)
    kind = torch.randint(3, (B, 1, 1, 1), device=device)
    angle = uniform((B, 1, 1), 0, 2 * math.pi, device)
    along, across = px * angle.cos() + py * angle.sin(), py * angle.cos() - px * angle.sin()
    mix = torch.where(kind == 1, (along + 0.5).clamp(0, 1)[:, None], 0.0)
    picture = torch.lerp(tints[:, 0, :, None, None], tints[:, 1, :, None, None], mix)
    cycles = 2 * math.pi * uniform((B, 1, 1), 3, 5, device)
    wave = (cycles * along).sin() * torch.where(
        uniform((B, 1, 1), 0, 1, device) < 0.5, (cycles * across).sin(), 1.0
    )
    picture = picture + torch.where(kind == 2, 0.05 * wave[:, None], 0.0)
    return picture.clamp(0, 1)


def draw(y_class, side=SIDE):
    """Pictures of the given classes; everything else about them is chance."""
    B, device = y_class.shape[0], y_class.device
    hues = torch.tensor(list(HUES.values()), device=device)
    colour = hues[torch.randint(len(HUES), (B,), device=device)] + uniform((B, 3), -0.03, 0.03, device)
    colour = colour.clamp(0, 1)
    light = (colour * colour.new_tensor([0.21, 0.72, 0.07])).sum(-1, keepdim=True)
    dark = torch.rand(B, 1, device=device) < (light - 0.35) / 0.25  # light shapes on dark, dark ones on light
    cover = coverage(y_class, side)[:, None]
    return torch.lerp(background(dark, side), colour[:, :, None, None], cover) * 2 - 1


# --- recognition: a small convolutional network that learns the classes from the drawings ---


def classifier():
    layers, wide = [], 3
    for out in (48, 96, 192):
        layers += [nn.Conv2d(wide, out, 3, padding=1), nn.BatchNorm2d(out), nn.GELU()]
        layers += [nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.GELU(), nn.MaxPool2d(2)]
        wide = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, len(CLASSES)))


def train_classifier(pictures, device, steps, batch):
    net = classifier().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - step / steps)
        y = torch.randint(len(CLASSES), (batch,), device=device)
        x = pictures(y)
        x = x + 0.05 * torch.rand(batch, 1, 1, 1, device=device) * torch.randn_like(x)
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(net(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


@torch.no_grad()
def recognised(net, x, y):
    """Share of the pictures recognised, for each class."""
    right = torch.cat([net(part).argmax(-1) for part in x.split(1024)]) == y
    return [right[y == c].float().mean().item() for c in range(len(CLASSES))]


# --- flow matching ---


def flow_loss(model, x0, y):
    """x_t = (1-t)·x0 + t·ε with target ε - x0; logit-normal t; one label in ten is dropped."""
    B = x0.shape[0]
    t = torch.sigmoid(torch.randn(B, device=x0.device))
    noise = torch.randn_like(x0)
    y = torch.where(torch.rand(B, device=x0.device) < 0.1, NETWORK["classes"], y)
    w = t.view(B, 1, 1, 1)
    with torch.autocast(x0.device.type, torch.bfloat16):
        out = model((1 - w) * x0 + w * noise, t, y)
    return F.mse_loss(out.float(), noise - x0)


@torch.no_grad()
def heun(model, noise, y, steps, cfg_scale):
    def velocity(x, t):
        both = torch.cat([y, torch.full_like(y, NETWORK["classes"])])
        c, u = model(torch.cat([x, x]), x.new_full((2 * len(x),), t), both).chunk(2)
        return u + cfg_scale * (c - u)

    x, times = noise, torch.linspace(1, 0, steps + 1).tolist()
    for t, after in pairwise(times):
        v = velocity(x, t)
        x = x + 0.5 * (after - t) * (v + velocity(x + (after - t) * v, after))
    return x.clamp(-1, 1)


# --- training ---


def learning_rate(step, total, peak, warmup=500, cooldown=0.35):
    """Rises, stays, then lr·(1 - √(step/total)) over the last part."""
    start = int(total * (1 - cooldown))
    if step < start:
        return peak * min(1.0, (step + 1) / warmup)
    return peak * (1 - math.sqrt((step - start) / max(1, total - start)))


def make_optimizer(model, lr, fused):
    decayed = [p for n, p in model.named_parameters() if p.dim() > 1 and "emb.weight" not in n]
    plain = [p for n, p in model.named_parameters() if p.dim() <= 1 or "emb.weight" in n]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr, betas=(0.9, 0.99), fused=fused)


class Run:
    """The state of a training: everything that a checkpoint holds."""

    def __init__(self, args, device):
        self.device, self.file = device, Path(args.output) / "checkpoint.pt"
        self.model = ReferenceDiPoM(**NETWORK).to(device)
        self.ema = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.optimizer = make_optimizer(self.model, args.lr, device.type == "cuda")
        self.step, self.total, self.pictures, self.seconds, self.loss = 0, args.steps, 0, 0.0, None

    def save(self):
        scalars = {k: getattr(self, k) for k in ("step", "total", "pictures", "seconds", "loss")}
        state = {"model": self.model.state_dict(), "ema": self.ema, "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"scalars": scalars}, self.file.with_suffix(".tmp"))
        self.file.with_suffix(".tmp").rename(self.file)

    def load(self):
        state = torch.load(self.file, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.ema = state["ema"]
        for name, value in state["scalars"].items():
            setattr(self, name, value)

    @torch.no_grad()
    def average(self):
        decay = min(0.9995, (self.step + 1) / (self.step + 10))  # starts at once
        torch._foreach_lerp_(list(self.ema.values()), list(self.model.parameters()), 1 - decay)


def train(run, args, pictures):
    """Until `total` steps are done, or `--stop-after` seconds have passed in this call."""
    device, log = run.device, []
    loss_of = torch.compile(flow_loss) if args.compile else flow_loss
    begun, mark, first = time.perf_counter(), None, run.step
    while run.total is None or run.step < run.total:
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(run.step, run.total or 10**9, args.lr)
        y = torch.randint(len(CLASSES), (args.batch,), device=device)
        loss = loss_of(run.model, pictures(y), y)
        run.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()
        run.average()
        run.step, run.pictures = run.step + 1, run.pictures + args.batch
        log.append(loss.detach())
        if (run.step - first) % args.log_every == 0:
            run.loss = torch.stack(log).mean().item()
            if not math.isfinite(run.loss):
                raise RuntimeError(f"train: loss is {run.loss} at step {run.step}")
            now, log = time.perf_counter(), []
            speed = args.batch * args.log_every / (now - mark) if mark else float("nan")
            print(f"step {run.step}/{run.total} loss {run.loss:.5f} {speed:.0f} pictures/s", flush=True)
            if run.total is None and mark:  # the first stretch compiled; this one shows the speed
                left = args.minutes * 60 - (now - begun)
                run.total = run.step + int(left * speed / args.batch)
            mark = now
            if args.stop_after and now - begun > args.stop_after:
                break
    run.seconds += time.perf_counter() - begun
    run.save()


# --- what is kept ---


def sheet(x, columns):
    """(rows·S', columns·S', 3) uint8, one pixel of border."""
    x = F.pad((x * 127.5 + 127.5).round().byte().cpu(), (1, 1, 1, 1))
    B, _, h, w = x.shape
    return (
        x.view(B // columns, columns, 3, h, w)
        .permute(0, 3, 1, 4, 2)
        .reshape(B // columns * h, columns * w, 3)
    )


def write_sheet(file, x, columns=20, zoom=2):
    picture = sheet(x, columns).repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)
    Image.fromarray(picture.numpy()).save(file)


def write_folder(run, folder):
    weights = {name: p.to(torch.bfloat16).cpu().contiguous() for name, p in run.ema.items()}
    save_file(weights, folder / "model.safetensors")
    config = {"format": 1, "name": "shapes32", "network": {"kind": "dipom", **NETWORK}}
    config |= {"diffusion": {"path": "flow"}, "codec": {"kind": "pixels"}}
    config["sample"] = {"size": [SIDE, SIDE], "sampler": "heun", "steps": 20, "cfg_scale": 2.0}
    config["classes"] = CLASSES
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def evaluate(run, folder, pictures, args):
    """Recognition of drawings and of generated pictures, from the weights as they were written."""
    device = run.device
    judge = train_classifier(pictures, device, args.judge_steps, args.batch)
    y = torch.arange(len(CLASSES), device=device).repeat_interleave(args.per_class)
    drawn = draw(y)
    report = {"drawings": recognised(judge, drawn, y)}
    model = ReferenceDiPoM(**NETWORK).to(device)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: p.float() for name, p in weights.items()})
    model.eval()
    for scale in (1.0, 2.0, 3.0):
        noise = torch.randn(len(y), 3, SIDE, SIDE, device=device)
        parts = zip(noise.split(1024), y.split(1024), strict=True)
        made = torch.cat([heun(model, n, c, args.sample_steps, scale) for n, c in parts])
        report[f"cfg {scale:g}"] = recognised(judge, made, y)
        first = made.view(len(CLASSES), args.per_class, 3, SIDE, SIDE)[:, :20].flatten(0, 1)
        write_sheet(folder / f"sheet_cfg{scale:g}.png", first, min(20, args.per_class))
    first = drawn.view(len(CLASSES), args.per_class, 3, SIDE, SIDE)[:, :20].flatten(0, 1)
    write_sheet(folder / "sheet_drawn.png", first, min(20, args.per_class))
    for name, rates in report.items():
        by_class = " ".join(f"{c} {r:.3f}" for c, r in zip(CLASSES, rates, strict=True))
        print(f"{name}: {sum(rates) / len(rates):.4f} | {by_class}", flush=True)
    scalars = {k: getattr(run, k) for k in ("step", "pictures", "seconds", "loss")}
    (folder / "report.json").write_text(json.dumps(scalars | {"recognised": report}, indent=2) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", default="out/shapes32")
    parser.add_argument("--minutes", type=float, default=8, help="plan as many steps as fit")
    parser.add_argument("--steps", type=int, help="plan this many steps instead")
    parser.add_argument("--stop-after", type=float, help="seconds; leaves a checkpoint for --resume")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=200)
    parser.add_argument("--sample-steps", type=int, default=20)
    parser.add_argument("--per-class", type=int, default=250, help="pictures judged for each class")
    parser.add_argument("--judge-steps", type=int, default=1500)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--no-judge", dest="judge", action="store_false")
    return parser.parse_args()


def main():
    args = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(args, device)
    if args.resume:
        run.load()
    torch.manual_seed(args.seed + run.step)
    pictures = torch.compile(draw) if args.compile else draw
    train(run, args, pictures)
    write_folder(run, folder)
    if args.judge:
        evaluate(run, folder, pictures, args)


if __name__ == "__main__":
    main()
