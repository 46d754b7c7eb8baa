"""The loader of shards against training's appetite: examples a second that it delivers, beside what a network
takes on this machine (`pom train --dry-run`) and what training takes on a GPU, which has to be told.

Shards are written here: moments in fp16 as of ImageNet at 256x256, and latents with text states as of WebVid
at 80 frames of 240x384. They are in the page cache when they are read: a disk or a network may be slower.
"""

import argparse
import io
import json
import os
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from timing import Report, add_report_option

ROOT = Path(__file__).resolve().parents[1]
BUILT = Path(os.environ["LIBPOM_LIBRARY"]).parent
TEXT = {"webvid-xl2": (64, 1024), "webvid-xl2-paper": (64, 4096)}


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def write_clips(folder: Path, count: int, per_shard: int, text: tuple[int, int]) -> None:
    """What `pom encode clips --store latent --text` leaves: tars, and dataset.json."""
    noise = np.random.default_rng(1)
    folder.mkdir()
    names, counts = [], []
    for first in range(0, count, per_shard):
        names.append(f"latents-{len(names):06d}.tar")
        counts.append(min(per_shard, count - first))
        with tarfile.open(folder / names[-1], "w") as tar:
            for i in range(first, first + counts[-1]):
                fields = {
                    "latent.npy": npy(noise.standard_normal((16, 20, 30, 48), np.float32).astype("f2")),
                    "txt": f"clip {i}".encode(),
                    "text.npy": npy(noise.standard_normal(text, np.float32).astype("f2")),
                    "mask.npy": npy(np.ones(text[0], bool)),
                }
                sums = {name: f"{zlib.crc32(data):08x}" for name, data in fields.items()}
                said = {"source": f"{i}.mp4", "mirrored": False, "crc32": sums}
                for name, data in (fields | {"json": json.dumps(said).encode()}).items():
                    member = tarfile.TarInfo(f"{i:09d}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    about = {
        "format": 1, "kind": "clips", "stored": "latent", "codec": "cogvideox", "codec_hash": "0" * 64,
        "scale": 1, "shift": 0, "channels": 16, "size": [384, 240], "frames": 80, "fps": 16, "crop": "cover",
        "mirror": False, "text_hash": "0" * 64, "text_tokens": text[0], "text_width": text[1], "classes": [],
        "samples": count, "shard_names": names, "shard_counts": counts,
        "shard_bytes": [(folder / name).stat().st_size for name in names],
    }  # fmt: skip
    (folder / "dataset.json").write_text(json.dumps(about))


def forecast(recipe: str, folder: Path, batch: int) -> dict:
    sets = [f"data.path={folder}", f"batch.size={batch}", "batch.accumulate=1", "data.validation=0"]
    sets += ["encoders.vae=", "encoders.text=", "run.precision=fp32", "run.device=cpu"]
    words = [word for each in sets for word in ("--set", each)]
    return json.loads(run(BUILT / "pom", "train", f"recipes/{recipe}.toml", "--dry-run", "--json", *words))


def on_this_machine(report: Report, args: argparse.Namespace, pictures: Path) -> None:
    report.say(
        f"What the loader delivers and what a step of {args.batch} in fp32 takes on the CPU, "
        f"{torch.get_num_threads()} threads, both by `pom train RECIPE --dry-run`. Goal: 5 times."
    )
    table = report.table("recipe        ", "loader, pictures/s", "training, pictures/s", "ratio   ")
    for recipe in filter(None, args.recipes.split(",")):
        said = forecast(recipe, pictures, args.batch)
        loader, step = said["loader_pictures_per_second"], said["pictures_per_second"]
        table.row(recipe, f"{loader:.0f}", f"{step:.3g}", report.judge(loader / step, at_least=5))


def against_gpus(report: Report, args: argparse.Namespace, folders: dict[str, Path]) -> None:
    report.say(
        "Examples a second that the loader alone delivers, by its number of threads, beside rates of "
        "training on a GPU, which were given. Goal: above the rate."
    )
    table = report.table("shards    ", "threads", "loader, examples/s", "MB/s", "GPU, examples/s", "ratio   ")
    for name, folder in folders.items():
        clips = name != "pictures"
        kind, batch, batches = ("clip_shards", 8, 24) if clips else ("shards", 256, 100)
        said = json.loads((folder / "dataset.json").read_text())
        each = sum(said["shard_bytes"]) / said["samples"]
        for workers in (int(part) for part in args.workers.split(",")):
            rate = float(run(BUILT / "tests/shard_tool", "speed", kind, folder, batch, batches, workers))
            for gpu in map(float, filter(None, (args.gpu_clips if clips else args.gpu_pictures).split(","))):
                judged = report.judge(rate / gpu, at_least=1)
                table.row(name, workers, f"{rate:.0f}", f"{rate * each / 1e6:.0f}", f"{gpu:g}", judged)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--recipes", default="imagenet-s2,imagenet-b2", help="of pictures, for the CPU")
    parser.add_argument("--batch", type=int, default=8, help="pictures of a step, for the CPU")
    parser.add_argument("--gpu-pictures", default="1000", help="pictures a second of training, with commas")
    parser.add_argument("--gpu-clips", default="", help="clips a second likewise; none: clips are left out")
    parser.add_argument("--workers", default="1,2", help="threads of the loader, with commas")
    parser.add_argument("--samples", type=int, default=8192, help="pictures in the shards")
    parser.add_argument("--clips", type=int, default=96, help="clips in the shards")
    add_report_option(parser, "loader")
    args = parser.parse_args()
    report = Report("The loader of shards")
    with tempfile.TemporaryDirectory() as place:
        folders = {"pictures": Path(place) / "pictures"}
        run(BUILT / "tests/shard_tool", "write", folders["pictures"], args.samples, 1024)
        for recipe in TEXT if args.gpu_clips else ():
            folders[recipe] = Path(place) / recipe
            write_clips(folders[recipe], args.clips, 32, TEXT[recipe])
        on_this_machine(report, args, folders["pictures"])
        against_gpus(report, args, folders)
    report.close(args.report)


if __name__ == "__main__":
    main()
