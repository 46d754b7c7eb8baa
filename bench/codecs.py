"""Autoencoders beside diffusers and T5 beside transformers, in one process, interleaved, medians:
python bench/codecs.py --device cuda.

Random weights in the published sizes. Prints milliseconds an item, the ratio to the fastest way of diffusers
that was measured here, the peak of memory beyond weights and inputs (CUDA), and the largest difference. With
--products also what the convolutions and linear layers alone would take (bench/products.py). --large 4096
decodes one such picture in a process of its own, on a CPU, and prints the most that it took.
"""

import argparse
import copy
import importlib
import statistics
import subprocess
import sys
import tempfile
import time

import products
import torch

import libpom

diffusers = importlib.import_module("diffusers")

SD = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
    "sample_size": 512,
}
COGVIDEOX = {
    "block_out_channels": [128, 256, 256, 512],
    "down_block_types": ["CogVideoXDownBlock3D"] * 4,
    "up_block_types": ["CogVideoXUpBlock3D"] * 4,
    "latent_channels": 16,
    "layers_per_block": 3,
    "norm_num_groups": 32,
}
T5 = {  # d_model, d_ff, num_layers, num_heads of v1.1
    "small": (512, 1024, 8, 6),
    "base": (768, 2048, 12, 12),
    "large": (1024, 2816, 24, 16),
    "xl": (2048, 5120, 24, 32),
    "xxl": (4096, 10240, 24, 64),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed(device, run, x):
    wait(device)
    start = time.perf_counter()
    run(x)
    wait(device)
    return time.perf_counter() - start


def peak(device, run, x):
    """Bytes at the largest beyond what was there."""
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(x)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def runnable(ways, x):
    """All ways that run; "compiled" is left out, and that is said, where torch.compile cannot."""
    kept = {}
    for name, run in ways.items():
        try:
            run(x)
            kept[name] = run
        except Exception as error:
            if name != "compiled":
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(f"compiled: cannot run: {reason[:200]}", flush=True)
    return kept


def compare(label, ways, x, args, rounds, network=None):
    """ways: name -> function of x; the first is ours, the second the plain package, which calls `network`."""
    ways = runnable(ways, x)
    results = {name: run(x) for name, run in ways.items()}
    for run in ways.values():  # once more: algorithms are chosen, graphs are there
        run(x)
    memory = {name: peak(args.device, run, x) for name, run in ways.items()}
    times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            times[name].append(timed(args.device, run, x))
    medians = {name: statistics.median(t) * 1000 / len(x) for name, t in times.items()}
    ours, *others = ways
    best = min(others, key=medians.get)
    plain = results[others[0]].float()
    away = ((results[ours].float() - plain).abs().max() / plain.abs().max()).item()
    line = ", ".join(f"{name} {ms:.2f}" for name, ms in medians.items())
    print(f"{label}: {line} ms an item; {best} / libpom {medians[best] / medians[ours]:.2f}", end="")
    if args.device == "cuda":
        share = memory[ours] / max(1, memory[others[0]])
        sizes = ", ".join(f"{name} {b / 2**20:.0f}" for name, b in memory.items())
        print(f"; memory {sizes} MiB, {share:.2f} of {others[0]}", end="")
    print(f"; difference {away:.1e}", flush=True)
    if args.products and network is not None:
        alone = products.summed(network, ways[others[0]], x, 10 if args.device == "cuda" else 1)
        ms = alone.seconds * 1000 / len(x)
        print(
            f"{label}: products {ms:.2f} ms an item, {alone.flops / alone.seconds / 1e12:.3g} TFLOP/s; "
            f"libpom / products {medians[ours] / ms:.2f}",
            flush=True,
        )


def opened(theirs, args):
    """The same weights here and there."""
    dtype = DTYPES[args.dtype]
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = libpom.codecs.load(folder, device=args.device, dtype=dtype)
    return ours, theirs.to(args.device, dtype)


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def pictures(args):
    torch.manual_seed(0)
    ours, theirs = opened(diffusers.AutoencoderKL(**SD).eval(), args)
    theirs = theirs.to(memory_format=torch.channels_last)
    encoder, decoder = (
        torch.compile(theirs.encoder, dynamic=False),
        torch.compile(theirs.decoder, dynamic=False),
    )
    decode = {"libpom": ours.decode, "diffusers": lambda z: theirs.decode(last(z)).sample}
    encode = {"libpom": ours.encode, "diffusers": lambda x: theirs.encode(last(x)).latent_dist.parameters}
    if args.compile:
        decode["compiled"] = lambda z: decoder(theirs.post_quant_conv(last(z)))
        encode["compiled"] = lambda x: theirs.quant_conv(encoder(last(x)))
    for text in args.pictures.split(","):
        side, batch = (int(part) for part in text.split("x"))
        for what in args.what.split(","):
            shape = (batch, 4, side // 8, side // 8) if what == "decode" else (batch, 3, side, side)
            x = torch.randn(shape, device=args.device).to(DTYPES[args.dtype])
            label = f"SD {what} {side}x{side} batch {batch} {args.dtype}"
            compare(label, decode if what == "decode" else encode, x, args, args.rounds, theirs)


@torch.no_grad()
def clips(args):
    torch.manual_seed(0)
    ours, theirs = opened(diffusers.AutoencoderKLCogVideoX(**COGVIDEOX).eval(), args)
    decode = {"libpom": ours.decode, "diffusers": lambda z: theirs.decode(z).sample}
    encode = {"libpom": ours.encode, "diffusers": lambda x: theirs.encode(x).latent_dist.parameters}
    if args.compile:
        fast = copy.copy(theirs)  # the same weights; only its two networks are replaced
        fast._modules = dict(theirs._modules)
        fast.encoder, fast.decoder = (
            torch.compile(theirs.encoder, dynamic=False),
            torch.compile(theirs.decoder, dynamic=False),
        )
        decode["compiled"] = lambda z: fast.decode(z).sample
        encode["compiled"] = lambda x: fast.encode(x).latent_dist.parameters
    for text in args.clips.split(","):
        frames, height, width = (int(part) for part in text.split("x"))
        for what in args.what.split(","):
            latent = (1, 16, (frames + 3) // 4, height // 8, width // 8)
            shape = latent if what == "decode" else (1, 3, frames, height, width)
            x = torch.randn(shape, device=args.device).to(DTYPES[args.dtype])
            label = f"CogVideoX {what} {frames}x{height}x{width} {args.dtype}"
            compare(label, decode if what == "decode" else encode, x, args, max(3, args.rounds // 3), theirs)


def text_encoder(size, args):
    """transformers' T5 encoder, random weights, made on the device in its dtype: XXL has 4.8 B of them."""
    transformers = importlib.import_module("transformers")
    width, feed, layers, heads = T5[size]
    config = transformers.T5Config(
        d_model=width, d_ff=feed, num_layers=layers, num_heads=heads, d_kv=64, feed_forward_proj="gated-gelu"
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[args.dtype])
    try:
        with torch.device(args.device):
            return transformers.T5EncoderModel(config).eval()
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def texts(args):
    torch.manual_seed(0)
    theirs = text_encoder(args.text, args)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = libpom.codecs.load(folder, device=args.device, dtype=DTYPES[args.dtype])
        ours.encode_ids(torch.ones(1, 1, dtype=torch.long, device=args.device))  # reads the weights
    encode = {"libpom": ours.encode_ids, "transformers": lambda ids: theirs(input_ids=ids).last_hidden_state}
    if args.compile:
        fast = torch.compile(theirs, dynamic=False)
        encode["compiled"] = lambda ids: fast(input_ids=ids).last_hidden_state
    for batch in (int(part) for part in args.prompts.split(",")):
        ids = torch.randint(3, 32000, (batch, args.tokens), device=args.device)
        label = f"T5 {args.text} {args.tokens} tokens batch {batch} {args.dtype}"
        compare(label, encode, ids, args, args.rounds, theirs)


# Without diffusers: the peak is that of a program which decodes.
LARGE = """
import sys, time, torch, libpom

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

folder, side, dtype, within = sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3]), float(sys.argv[4])
vae = libpom.codecs.load(folder, dtype=dtype)
z = torch.randn(1, 4, side // 8, side // 8)
picture = 3 * side * side * 4
before = status("VmRSS:")
memory = int(0.85 * (within * 2**30 - before - 2 * picture))  # the allocator leaves gaps
start = time.perf_counter()
made = vae.decode(z, memory=memory)
seconds = time.perf_counter() - start
assert made.shape == (1, 3, side, side) and made.isfinite().all()
gib = 2.0**30
print(f"{seconds:.0f} s, {status('VmHWM:') / gib:.2f} GiB at the most, of which {before / gib:.2f} before it")
"""


def large(args):
    torch.manual_seed(0)
    dtype = str(DTYPES[args.dtype]).removeprefix("torch.")
    with tempfile.TemporaryDirectory() as folder:
        diffusers.AutoencoderKL(**SD).save_pretrained(folder)
        command = [sys.executable, "-c", LARGE, folder, str(args.large), dtype, str(args.within)]
        made = subprocess.run(command, check=True, capture_output=True, text=True)
    label = f"SD decode {args.large}x{args.large} {args.dtype} within {args.within} GiB"
    print(f"{label}: {made.stdout.strip()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="fp32", choices=DTYPES)
    parser.add_argument("--pictures", default="256x1", help="SIDExBATCH, several with commas; empty: none")
    parser.add_argument("--clips", default="", help="FRAMESxHEIGHTxWIDTH, several with commas; empty: none")
    parser.add_argument("--text", choices=T5, help="T5 v1.1's encoder of this size, too")
    parser.add_argument("--prompts", default="1,32", help="batches of --text, with commas")
    parser.add_argument("--tokens", type=int, default=226, help="tokens of a prompt of --text")
    parser.add_argument("--what", default="decode,encode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="the other package through torch.compile too")
    parser.add_argument("--products", action="store_true", help="what the convolutions alone would take")
    parser.add_argument(
        "--large", type=int, default=0, help="side of one picture, decoded in a process of its own"
    )
    parser.add_argument("--within", type=float, default=4, help="GiB that this process may take in all")
    args = parser.parse_args()
    if args.large:
        return large(args)
    if args.pictures:
        pictures(args)
    if args.clips:
        clips(args)
    if args.text:
        texts(args)


if __name__ == "__main__":
    main()
