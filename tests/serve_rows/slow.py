"""Slow clients: heads and bodies that come a little at a time, and viewers of streams that read nothing."""

import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from .world import MIB, Measure, Row, World, at_most, metric, timed

PICTURE = {"prompt": "star", "steps": 200, "width": 64, "height": 64}
# Large frames, so that what the system keeps for a reader is full in a moment.
LIVE = {"model": "causal", "prompt": "a star", "width": 128, "height": 128, "steps": 1, "fps": 20, "seed": 1}
PATIENCE = 45  # seconds for which slow ones are watched


class Others:
    """Processes of dribble.py, which end with this."""

    def __init__(self, port: int, streams: list[str]) -> None:
        self.port, self.streams, self.all = port, streams, []

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        for process in self.all:
            process.stdin.close()
        for process in self.all:
            process.wait(30)

    def start(self, kind: str, count: int) -> None:
        script = Path(__file__).with_name("dribble.py")
        words = [sys.executable, script, str(self.port), kind, str(count), *self.streams]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.all.append(process)
        assert process.stdout.readline() == "ready\n"


class Pings:
    """Asks for /health twenty times a second, and sees when descriptors are as few as before."""

    def __init__(self, server) -> None:
        self.times, self.end = [], threading.Event()
        self.server, self.before, self.most, self.few = server, server.descriptors(), 0, float("inf")
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.end.wait(0.05):
            self.times.append(timed(lambda: self.server.get("/health", timeout=10)))
            now = self.server.descriptors()
            self.most = max(self.most, now)
            if self.most > self.before + 10 and now <= self.before + 1 and self.few == float("inf"):
                self.few = time.monotonic()

    def stop(self) -> list[float]:
        self.end.set()
        self.thread.join()
        return sorted(self.times)


def slow_clients(world: World) -> list[Measure]:
    count, seed = world.number(200, 20), iter(range(1, 10_000))

    def picture() -> float:
        body = PICTURE | {"seed": next(seed)}
        return timed(lambda: server.post("/v1/images/generations", body))

    with world.serve(world.tiny, world.clips) as server:
        streams = [server.post("/pom/v1/streams", LIVE).json["id"] for _ in range(4)]
        with Others(server.port, streams) as others:
            # What streams cost is in both: somebody watches them.
            others.start("viewers", 4)
            time.sleep(2)
            alone = [picture() for _ in range(8)]
            before, own = server.memory(), metric(server, "pom_connections")
            pings = Pings(server)
            for kind in ("readers", "bodies", "heads"):
                others.start(kind, count)
            opened, meanwhile, most = time.monotonic(), [], 0
            while time.monotonic() - opened < PATIENCE and pings.few == float("inf"):
                meanwhile.append(picture())
                most = max(most, server.memory())
            left = metric(server, "pom_connections") - own
            times = pings.stop()
    world.say(f"   {len(times)} pings, {len(meanwhile)} pictures, {left:.0f} slow ones left")
    ratio = statistics.median(meanwhile) / statistics.median(alone)
    return [
        at_most("/health p99", 50, 1e3 * times[int(0.99 * len(times))], " ms"),
        at_most(f"a picture ({statistics.median(alone):.2f} s alone)", 1.2, ratio, " x"),
        at_most(f"all {3 * count} shed after", 35, pings.few - opened, " s"),
        at_most("memory", 20, (most - before) / MIB, " MiB"),
    ]


ROWS = [
    Row(
        "slow",
        "slow clients: 200 heads, 200 bodies, 200 that read no stream",
        slow_clients,
        "serve.deadlines:1",
        ("all 600 shed",),
        small=False,
    ),
]
