#!/usr/bin/env python3
"""Fuzzes the readers of files and of requests that come from strangers.

    tests/fuzz/run.py [--seconds 10] [--report FILE] [target ...]

Each target runs for so long, as many at a time as there are cores ($JOBS). Exits with 1 on a finding, which
is left in $POM_FUZZ_DIR (out/fuzz) with the target's log and the growing corpus, and where a target covered
less than TARGETS says: then it does not reach its parser. Needs clang++ ($CLANGXX) with libFuzzer, and the
libraries of the formats. No torch: headers that mention tensors are given no_torch/, and sources with
tensors in them are not here. Plain Python, no packages.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = Path(os.environ.get("POM_FUZZ_DIR") or ROOT / "out" / "fuzz")
COMPILER = os.environ.get("CLANGXX") or "clang++"
JOBS = int(os.environ.get("JOBS") or len(os.sched_getaffinity(0)))
SANITIZERS = "address,undefined"
FLAGS = ["-std=c++20", "-O1", "-gline-tables-only", "-fno-sanitize-recover=undefined", "-DPOM_HAS_ZLIB=1"]
FOLDERS = [
    Path(folder) for folder in (".", "tests/fuzz/no_torch", "third_party/include", "/usr/include/ffmpeg")
]
# Sources are named from the repository's folder, and ccache is told to leave its name out: so another clone
# takes what this one has compiled.
CACHED = os.environ | {"CCACHE_NOHASHDIR": "1"}
LARGEST_SEED = 1 << 16
ARCHIVE = WORK / "parsers.a"

# What the targets are linked from, each with what it needs of it: the rooms without torch, and of others the
# sources without.
ROOMS = ["base", "io", "net", "serve"]
WRITERS = """
clip clip_encode clip_folder clip_gif clip_sink clip_y4m events http_server palette yuv
clip_file engine_backend openapi page server
"""
PARSERS = """
codecs/word_pieces data/clip_captions data/latent_sample data/limits data/shard_format data/shard_sample
diffusion/settings models/config train/recipe
generate/classes generate/folder generate/job generate/metadata generate/request generate/resolve
"""
LIBRARIES = ["png", "jpeg", "z", "avformat", "avcodec", "swscale", "avutil"]


@dataclass
class Target:
    least: int  # edges that are covered where the parser is reached; a run of a second covers more
    seeds: list[str]  # patterns of files
    # What is allocated for an input and not freed with it is a leak; not of a target that keeps a server,
    # where looking for leaks would take most of the time.
    keeps: bool = False


TARGETS = {
    "auth": Target(600, ["tests/hostile/auth/*.txt"]),
    "captions": Target(300, ["tests/hostile/captions/*.csv"]),
    "clip": Target(300, [f"tests/hostile/clips/*.{kind}" for kind in ("avi", "gif", "mp4", "webm", "y4m")]),
    "config": Target(2000, ["tests/hostile/config/*.json", "assets/*/config.json"]),
    "form": Target(300, ["tests/hostile/forms/*.txt"]),
    "http": Target(600, ["tests/hostile/http/*.txt"]),
    "images": Target(1500, ["tests/hostile/serve/images*.json"], keeps=True),
    "jobs": Target(1500, ["tests/hostile/serve/jobs*.json"], keeps=True),
    "npy": Target(400, ["tests/hostile/arrays/*.npy"]),
    "npz": Target(450, ["tests/hostile/arrays/*.npz"]),
    "picture": Target(650, ["tests/golden/pictures/*.png", "tests/golden/pictures/*.jpg"]),
    "reproduce": Target(600, ["tests/hostile/serve/reproduce*", "tests/golden/pictures/*.png"], keeps=True),
    "resume": Target(400, ["tests/hostile/serve/resume*.txt"], keeps=True),
    "recipe": Target(2200, ["tests/hostile/recipes/*.toml", "recipes/*.toml"]),
    "safetensors": Target(
        1200, ["tests/hostile/safetensors/*.safetensors", "tests/golden/safetensors/*.safetensors"]
    ),
    "shard": Target(1500, ["tests/hostile/shards/*.json", "tests/hostile/arrays/*.npy"]),
    "state": Target(2000, ["tests/hostile/states/*.safetensors"]),
    "sentence_pieces": Target(700, ["tests/hostile/sentence_pieces/*.model"]),
    "streams": Target(1500, ["tests/hostile/serve/streams*.json"], keeps=True),
    "tar": Target(600, ["tests/hostile/tars/*.tar"]),
    "txt2img": Target(1500, ["tests/hostile/serve/txt2img*.json"], keeps=True),
    "words": Target(400, ["tests/hostile/words/*.txt"]),
}


def object_of(source: Path) -> Path:
    return WORK / "objects" / (str(source.relative_to(ROOT)).replace("/", "-") + ".o")


def compile_source(source: Path) -> bool:
    cache = ["ccache"] if shutil.which("ccache") else []
    includes = [f"-I{folder}" for folder in FOLDERS if (ROOT / folder).is_dir()]
    command = [*cache, COMPILER, *FLAGS, f"-fsanitize=fuzzer-no-link,{SANITIZERS}", *includes]
    command += ["-c", source.relative_to(ROOT), "-o", object_of(source)]
    return subprocess.run(command, cwd=ROOT, env=CACHED).returncode == 0


def link(name: str) -> bool:
    own = [object_of(ROOT / f"tests/fuzz/{source}.cpp") for source in (f"{name}_fuzz", "samplers")]
    libraries = ["-Wl,--as-needed", *(f"-l{library}" for library in LIBRARIES)]
    command = [COMPILER, f"-fsanitize=fuzzer,{SANITIZERS}", *own, ARCHIVE, *libraries]
    return subprocess.run([*command, "-o", WORK / f"{name}_fuzz"]).returncode == 0


def build(names: list[str], pool: ThreadPoolExecutor) -> bool:
    (WORK / "objects").mkdir(parents=True, exist_ok=True)
    parsers = [ROOT / f"pom/{name}.cpp" for name in PARSERS.split()]
    for room in ROOMS:
        files = sorted((ROOT / "pom" / room).glob("*.cpp"))
        parsers += [
            path for path in files if path.stem not in WRITERS.split() and not path.stem.endswith("_absent")
        ]
    parsers.append(ROOT / "tests/fuzz/no_clips.cpp")
    own = [ROOT / f"tests/fuzz/{name}.cpp" for name in ("samplers", *(f"{name}_fuzz" for name in names))]
    largest_first = sorted([*parsers, *own], key=lambda path: -path.stat().st_size)
    if not all(list(pool.map(compile_source, largest_first))):
        return False
    ARCHIVE.unlink(missing_ok=True)
    subprocess.run(["ar", "qc", ARCHIVE, *map(object_of, parsers)], check=True)
    return all(list(pool.map(link, names)))


def gathered_seeds(name: str) -> Path:
    folder = WORK / "seeds" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for pattern in TARGETS[name].seeds:
        for path in ROOT.glob(pattern):
            if path.stat().st_size <= LARGEST_SEED:
                shutil.copyfile(path, folder / str(path.relative_to(ROOT)).replace("/", "-"))
    return folder


def fuzz(name: str, seconds: int, seed: int) -> dict:
    """Runs a target; what came of it."""
    corpus, findings, log = WORK / "corpus" / name, WORK / "findings", WORK / f"{name}.log"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    words = ROOT / "tests/fuzz" / f"{name}.dict"
    command = [WORK / f"{name}_fuzz", f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048"]
    command += [
        "-max_len=8192",
        f"-seed={seed}",
        f"-artifact_prefix={findings}/{name}-",
        *([f"-dict={words}"] if words.exists() else []),
        *(["-detect_leaks=0"] if TARGETS[name].keeps else []),
    ]
    with log.open("wb") as output:
        status = subprocess.run(
            [*command, corpus, gathered_seeds(name)], stdout=output, stderr=output
        ).returncode
    text = log.read_text(errors="replace")
    last = re.findall(r"^#(\d+)\s.*?cov: (\d+)", text, re.MULTILINE)
    runs, covered = (int(last[-1][0]), int(last[-1][1])) if last else (0, 0)
    if status != 0:
        said = "\n".join(text.splitlines()[-60:])
        return {
            "target": name,
            "passed": False,
            "said": f"{said}\n{name}: exit code {status}; the log is {log}",
        }
    enough = covered >= TARGETS[name].least
    said = f"{name}: {runs} runs, {covered} edges"
    if not enough:
        said += f": expected at least {TARGETS[name].least}; the target does not reach its parser"
    return {"target": name, "passed": enough, "said": said}


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzzes the readers of files.")
    parser.add_argument("targets", nargs="*", metavar="target", help=f"{', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0: another one each time")
    parser.add_argument("--report", type=Path, help="what came of each target, as JSON")
    arguments = parser.parse_args()
    for name in arguments.targets:
        if name not in TARGETS:
            parser.error(f"target: expected one of {', '.join(TARGETS)}, got {name}")
    names, start = arguments.targets or list(TARGETS), time.monotonic()
    with ThreadPoolExecutor(JOBS) as pool:
        if not build(names, pool):
            return 1
        print(f"built in {time.monotonic() - start:.0f} s", flush=True)
        results = []
        for result in pool.map(lambda name: fuzz(name, arguments.seconds, arguments.seed), names):
            print(result["said"], flush=True)
            results.append(result)
    if arguments.report:
        arguments.report.write_text(json.dumps(results))
    return 0 if all(result["passed"] for result in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
