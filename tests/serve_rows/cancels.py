"""What is cancelled: a job that runs, one that waits, one of a batch; and requests that are cut anywhere."""

import concurrent.futures
import contextlib
import json
import random
import socket
import statistics
import struct
import time

from .world import (
    MIB,
    Client,
    Measure,
    Row,
    World,
    at_most,
    at_work,
    connected,
    exactly,
    median_time,
    metric,
    request_bytes,
    settled,
    timed,
)

LONG = {"steps": 250, "width": 64, "height": 64, "sampler": "heun"}  # a second or more
LONGER = LONG | {"width": 128, "height": 128}  # some seconds, of work that nobody waits for
SHORT = {"steps": 20, "width": 32, "height": 32}


def running(client: Client, job: dict) -> dict:
    while True:
        job = client.json("GET", f"/pom/v1/jobs/{job['id']}")
        if job["state"] != "queued" and job["evaluations"]["done"] > 1:
            return job
        time.sleep(0.005)


def of_running(server, client: Client) -> list[Measure]:
    job = running(client, client.json("POST", "/pom/v1/jobs", {"class": "star", "seed": 1, **LONGER}))
    client.json("DELETE", f"/pom/v1/jobs/{job['id']}")
    time.sleep(0.3)  # an evaluation is shorter
    before = metric(server, "pom_evaluations")
    time.sleep(0.5)
    return [
        exactly(
            "running: evaluations after the present one", 0, int(metric(server, "pom_evaluations") - before)
        ),
        exactly("running: state", "cancelled", client.json("GET", f"/pom/v1/jobs/{job['id']}")["state"]),
    ]


def of_queued(client: Client, times: int, most: float) -> list[Measure]:
    first = running(client, client.json("POST", "/pom/v1/jobs", {"class": "star", "seed": 2, **LONGER}))
    took = []
    for seed in range(times):
        other = {"class": "star", "seed": 100 + seed, **LONG, "steps": 249}
        job = client.json("POST", "/pom/v1/jobs", other)
        took.append(timed(lambda job=job: client.json("DELETE", f"/pom/v1/jobs/{job['id']}")))
    client.json("DELETE", f"/pom/v1/jobs/{first['id']}")
    return [at_most("queued: median", most, 1e3 * statistics.median(took), " ms")]


def batch_of_four(client: Client, settings: dict) -> tuple[str, list[bytes]]:
    """The state of one that is cancelled at work, and the files of the three others."""
    first = running(client, client.json("POST", "/pom/v1/jobs", {"class": "circle", "seed": 7, **LONGER}))
    fresh = {"Cache-Control": "no-cache"}  # and not what an attempt before has made
    jobs = [
        json.loads(client.ask("POST", "/pom/v1/jobs", {"seed": seed, **settings}, **fresh)[2])
        for seed in range(4)
    ]
    client.json("DELETE", f"/pom/v1/jobs/{first['id']}")
    running(client, jobs[1])
    left = client.json("DELETE", f"/pom/v1/jobs/{jobs[1]['id']}")["state"]
    files = []
    for seed in (0, 2, 3):
        job = jobs[seed]
        while job["state"] in ("queued", "running"):
            time.sleep(0.02)
            job = client.json("GET", f"/pom/v1/jobs/{job['id']}")
        files.append(client.ask("GET", job["items"][0]["picture"]["url"])[2])
    return left, files


def of_a_batch(world: World, client: Client) -> list[Measure]:
    settings = {"class": "star", "steps": 250, "width": 32, "height": 32, "sampler": "heun"}
    own = world.sampled(4, **settings)
    for _ in range(5):
        left, files = batch_of_four(client, settings)
        if left != "completed":  # else it was over before the request came, as on a busy machine
            break
    return [
        exactly("one of four: state", "cancelled", left),
        exactly("one of four: the others bit-equal", 3, sum(map(bytes.__eq__, files, own[:1] + own[2:]))),
    ]


def cancel(world: World) -> list[Measure]:
    with world.serve() as server:
        client = Client(server)
        queued = of_queued(client, world.number(50, 5), world.number(5, 100))
        return of_running(server, client) + queued + of_a_batch(world, client)


# Where a request is cut.
PLACES = ("head", "body", "queued", "running", "answer")


def cut(server, place: str, seed: int, long: dict) -> None:
    chance = random.Random(seed)
    settings = SHORT if place == "answer" else long
    body = json.dumps({"prompt": "star", "seed": seed, **settings}).encode()
    data = request_bytes("/v1/images/generations", body)
    head = data.index(b"\r\n\r\n") + 4
    end = {"head": chance.randrange(1, head), "body": chance.randrange(head, len(data))}.get(place, len(data))
    with connected(server) as line:
        if chance.random() < 0.5:  # a reset in place of an end
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.sendall(data[:end])
        if place == "running":
            time.sleep(chance.uniform(0.05, 0.3))
        elif place == "queued":
            time.sleep(chance.uniform(0, 0.03))
        elif place == "answer":
            line.settimeout(3)
            with contextlib.suppress(TimeoutError):  # where work goes on for nobody it takes long
                line.recv(chance.randrange(1, 200))


def lasting(seconds: float, took: float) -> dict:
    """Work of so many seconds, where LONG took as long as that: few requests must leave enough behind on any
    machine."""
    side = LONG["width"] * (seconds / took) ** 0.5
    return LONG | dict.fromkeys(("width", "height"), min(320, max(LONG["width"], int(side) // 16 * 16)))


def cuts(world: World) -> list[Measure]:
    count, chance = world.number(500, 25), random.Random(1)
    with world.serve(flags=["--most-waiting-a-client", 64]) as server:

        def all_cut(some: int) -> None:
            seeds = [chance.getrandbits(40) for _ in range(some)]
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                list(pool.map(lambda i: cut(server, PLACES[i % 5], seeds[i], long), range(some)))

        def short(seed: int) -> None:
            body = {"prompt": "star", "seed": seed, **SHORT}
            assert server.post("/v1/images/generations", body).status == 200

        seeds = iter(range(10_000, 20_000))
        alone = median_time(lambda: short(next(seeds)), 7)
        job = server.finished(server.job({"class": "star", "seed": 3, **LONG}))
        took = job["finished"] - job["started"]
        evaluation = took / job["evaluations"]["total"]
        long = LONG if world.full else lasting(2, took)
        all_cut(world.number(100, 10))
        settled(lambda: at_work(server) == 0, world.number(20, 3))
        before = server.memory()
        all_cut(count)
        try:
            after = timed(lambda: short(next(seeds)))
        except TimeoutError:
            after = float("inf")
        patience = world.number(1, 5)
        left = settled(lambda: at_work(server) == 0, patience)
        grown = (server.memory() - before) / MIB
        # Alone and an evaluation; the rest is for the client's own threads, which end at the same moment.
        return [
            at_most(
                f"next answer; alone {1e3 * alone:.0f} ms, an evaluation {1e3 * evaluation:.1f} ms",
                1e3 * (alone + evaluation) + world.number(10, 1000),  # without the protection: some seconds
                1e3 * after,
                " ms",
            ),
            at_most("no job after", patience, left, " s"),
            at_most("memory", 5, grown, " MiB"),
        ]


ROWS = [
    Row(
        "cuts",
        "500 requests cut at random: head, body, queued, running, answer",
        cuts,
        "serve.watch:1",
        ("no job after", "next answer"),
    ),
    Row("cancel", "cancel: running, queued, one of four in a batch", cancel),
]
