"""Images a second of `pom serve`, over HTTP, against `pom sample --count` of the same images in the same run.

    python bench/serve.py [--model assets/shapes64] [--count 16] [--rounds 5]
    python bench/serve.py --device cuda        # 64 requests of 64 clients, joined, against one batch of 64

Both make the same images (same classes, seeds and settings), in turns; what counts of `pom sample` is the
time of its sampling alone, without its start. Then the lag of a live stream's frames, and its rate; and what
ten viewers cost it: the time of a block with one and with ten, in turns.
"""

import argparse
import concurrent.futures
import json
import re
import statistics
import struct
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def post(port, path, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Cache-Control": "no-cache"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def served(port, name, count, clients, seed):
    """Seconds of `count` images, asked for by so many clients at once."""

    def ask(number):
        return post(port, "/v1/images/generations", {"model": name, "prompt": "star", "seed": seed + number})

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        assert len(list(pool.map(ask, range(count)))) == count
    return time.perf_counter() - began


def sampled(pom, model, count, seed, device):
    """Seconds of sampling the same images in one go."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "sample",
            "--model",
            model,
            "--class",
            "star",
            "--count",
            count,
            "--seed",
            seed,
            "-o",
            folder,
            "--device",
            device,
        ]
        if device != "cpu":
            words += ["--batch", count]
        result = subprocess.run([pom, *map(str, words)], capture_output=True, text=True, check=True)
    minutes, seconds = re.search(r"in (?:(\d+):)?([\d.]+)(?: s)?, [\d.]+ eval", result.stderr).groups()
    return int(minutes or 0) * 60 + float(seconds)


def live(port, name, frames):
    """Median lag of a stream's frames in milliseconds, and frames a second."""
    prompt = "a red circle drifts to the right over blue"
    stream = post(port, "/pom/v1/streams", {"model": name, "prompt": prompt, "seed": 5})
    lags, began = [], None
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port}/pom/v1/streams/{stream['id']}/frames", timeout=60
    ) as body:
        for _ in range(frames):
            size, _, micros, _ = struct.unpack("<IIQI", body.read(20))
            body.read(size)
            lags.append(time.time() - micros / 1e6)
            began = began or time.perf_counter()
        seconds = time.perf_counter() - began
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/pom/v1/streams/{stream['id']}") as answer:
        state = json.load(answer)
    return statistics.median(lags) * 1e3, (frames - 1) / seconds, state["rate"], state["fps"]


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return json.load(answer)


def watch(port, stream, end, lags):
    """A viewer who reads all until the time is over."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port}/pom/v1/streams/{stream}/frames", timeout=60
    ) as body:
        while time.monotonic() < end:
            size, _, micros, _ = struct.unpack("<IIQI", body.read(20))
            body.read(size)
            lags.append(time.time() - micros / 1e6)


def viewers(port, name, many, rounds, seconds):
    """Milliseconds of a block with one viewer and with many, and the lags of the many."""
    prompt = "a red circle drifts to the right over blue"
    stream = post(port, "/pom/v1/streams", {"model": name, "prompt": prompt, "seed": 5})
    blocks, lags = {1: [], many: []}, {1: [], many: []}
    for _ in range(rounds):
        for count in (1, many):
            end = time.monotonic() + seconds
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                watching = [pool.submit(watch, port, stream["id"], end, lags[count]) for _ in range(count)]
                time.sleep(seconds / 2)  # the rate is that of the last dozen blocks
                while time.monotonic() < end:
                    state = get(port, f"/pom/v1/streams/{stream['id']}")
                    blocks[count].append(1e3 * state["block_frames"] / state["rate"])
                    time.sleep(0.25)
                for each in watching:
                    each.result()
    one, ten = (statistics.median(blocks[count]) for count in (1, many))
    return one, ten, sorted(lags[many])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--model", default=str(ROOT / "assets/shapes64"))
    parser.add_argument("--clips", default=str(ROOT / "assets/sprites32"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, help="images of a round (default: 16, on a GPU 64)")
    parser.add_argument("--clients", type=int, help="who ask for them at once (default: 8, on a GPU 64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=80)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=12, help="of one viewer, then of all, each round")
    options = parser.parse_args()
    gpu = options.device != "cpu"
    options.count = options.count or (64 if gpu else 16)
    options.clients = options.clients or (64 if gpu else 8)
    goal = 0.85 if gpu else 0.95
    pom = str(Path(options.build) / "pom")
    words = [pom, "serve", "--port", "0", "--quiet", "--model", options.model, "--model", options.clips]
    words += ["--device", options.device, "--most-waiting", "1000", "--most-waiting-a-client", "1000"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline().strip().rsplit(":", 1)[1])
        name = Path(options.model).name
        for number in range(3 if gpu else 1):  # what is made ready once, in batches of all sizes
            served(port, name, options.count if gpu else 2, options.clients, 100_000 * (number + 1))
        over_http, alone = [], []
        for number in range(options.rounds):
            seed = 1000 * (number + 1)
            over_http.append(served(port, name, options.count, options.clients, seed))
            alone.append(sampled(pom, options.model, options.count, seed, options.device))
        rate = options.count / statistics.median(over_http), options.count / statistics.median(alone)
        print(
            f"{options.count} images of {name}, {options.clients} clients, median of {options.rounds} rounds"
        )
        print("| pom serve, images/s | pom sample, images/s | ratio | goal |")
        print("| ---: | ---: | ---: | ---: |")
        ratio = statistics.median(a / h for a, h in zip(alone, over_http, strict=True))
        print(f"| {rate[0]:.2f} | {rate[1]:.2f} | {ratio:.2f} | {goal} |")
        lag, shown, made, fps = live(port, Path(options.clips).name, options.frames)
        print(f"\nlive: lag {lag:.1f} ms (goal 50), {shown:.2f} frames/s shown,", end=" ")
        print(f"{made:.1f} could be made, of {fps:g}")
        one, ten, lags = viewers(
            port, Path(options.clips).name, options.viewers, options.rounds, options.seconds
        )
        print("\n| viewers | a block, ms | cost | goal | lag, median ms | lag, 99 of 100, ms | goal |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        print(f"| 1 | {one:.1f} | | | | | |")
        late = lags[int(0.99 * len(lags))]
        cost = f"{100 * (ten / one - 1):.1f} %"
        median = statistics.median(lags)
        print(
            f"| {options.viewers} | {ten:.1f} | {cost} | 10 % | {1e3 * median:.1f} | {1e3 * late:.1f} | 50 |"
        )
    finally:
        server.terminate()
        server.wait(timeout=60)


if __name__ == "__main__":
    main()
