"""SIGTERM while there is work, viewers and listeners; and a second one."""

import concurrent.futures
import http.client
import json
import signal
import time

from .cancels import LONG
from .world import Client, Measure, Row, World, at_most, exactly, settled


def listen(server) -> bytes:
    """Everything of /pom/v1/events until it ends."""
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    line.request("GET", "/pom/v1/events")
    return line.getresponse().read()  # IncompleteRead where the end is missing


def view(server, stream: dict) -> int:
    return sum(1 for _ in server.frames(stream))


def refusal(server) -> str:
    """What a new request is told."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            answer = server.post("/pom/v1/jobs", {"class": "star"})
        except OSError:
            return "no connection"
        if answer.status == 503:
            return answer.error["code"]
    return "taken"


def first_signal(world: World) -> list[Measure]:
    with (
        world.serve(world.tiny, world.clips) as server,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        stream = server.post("/pom/v1/streams", {"model": "causal", "prompt": "a star", "fps": 20}).json
        viewer, listener = pool.submit(view, server, stream), pool.submit(listen, server)
        client = Client(server)
        body = {"prompt": "star", "seed": 1, **LONG, "width": 96, "height": 96, "n": 1}
        work = pool.submit(client.ask, "POST", "/v1/images/generations", body)
        assert settled(lambda: server.get("/health").json["running"] == 1, 10) < 10
        waiting = server.job({"class": "circle", "seed": 2, **LONG, "steps": 249})
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        told = refusal(server)
        status, _, answer = work.result(60)
        events = listener.result(60).decode()
        code = server.process.wait(60)
        took = time.monotonic() - began
        records = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
        ended, last = ([r for r in records if r.get("id") == one["id"]][-1] for one in (waiting, stream))
        return [
            exactly("new work", "draining", told),
            exactly("what ran", "200, 1 picture", f"{status}, {len(json.loads(answer)['data'])} picture"),
            exactly("what waited", "draining", (ended["error"] or {}).get("code")),
            exactly("listeners: the last of the stream", "ended", last["state"]),
            Measure("viewers", "a whole body", f"{viewer.result(60)} frames, then its end", True),
            exactly("exit code", 0, code),
            at_most("seconds to the end", 30, took, " s"),
        ]


def second_signal(world: World) -> list[Measure]:
    with world.serve(flags=["--drain", 300]) as server:
        for seed in range(3):
            server.job({"class": "star", "seed": seed, **LONG, "count": 10})
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        waits = server.process.poll() is None
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        return [
            exactly("after the first it still works", True, waits),
            at_most("after the second it is gone in", world.number(1, 5), time.monotonic() - began, " s"),
        ]


def ends(world: World) -> list[Measure]:
    return first_signal(world) + second_signal(world)


ROWS = [Row("sigterm", "SIGTERM with work; a second one", ends)]
