"""Memory, descriptors and threads after thousands of requests, a third of them cut and a third wrong; and
bodies in a million chunks."""

import concurrent.futures
import contextlib
import json
import random

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
    request_bytes,
    settled,
)

# Files of some 25 KB, so that jobs which are kept are seen.
SETTINGS = {"steps": 1, "width": 96, "height": 96}
WRONG = (
    {"class": "star", "steps": 0},
    {"class": "star", "stepz": 1},
    {"class": "otter"},
    {"prompt": 7},
    {},
)


def right(client: Client, seed: int) -> None:
    status, _, answer = client.ask(
        "POST",
        "/v1/images/generations",
        {"prompt": "star", "seed": seed, "response_format": "url", **SETTINGS},
    )
    assert status == 200, answer
    client.ask("DELETE", json.loads(answer)["data"][0]["url"].removesuffix(".png"))


def wrong(client: Client, number: int) -> None:
    path = ("/pom/v1/jobs", "/v1/images/generations", "/sdapi/v1/txt2img")[number % 3]
    assert client.ask("POST", path, WRONG[number % len(WRONG)])[0] == 400


def cut(server, seed: int) -> None:
    body = json.dumps({"prompt": "star", "seed": seed, **SETTINGS}).encode()
    data = request_bytes("/v1/images/generations", body)
    with connected(server) as line:
        line.sendall(data[: random.Random(seed).randrange(1, len(data) + 1)])


def requests(server, first: int, count: int) -> None:
    """By four clients, each on a connection of its own."""

    def some(worker: int) -> None:
        client = Client(server)
        for number in range(first + worker, first + count, 4):
            if number % 3 == 0:
                right(client, number)
            elif number % 3 == 1:
                wrong(client, number)
            else:
                cut(server, number)
        client.close()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))
    settled(lambda: at_work(server) == 0, 20)


def leak(world: World) -> list[Measure]:
    with world.serve(flags=["--most-waiting-a-client", 64]) as server:
        requests(server, 0, world.number(200, 60))
        before = server.memory(), server.descriptors(), server.threads()
        requests(server, 10_000, world.number(5000, 1500))
        settled(lambda: server.descriptors() <= before[1], 5)
        return [
            at_most("memory", world.number(20, 6), (server.memory() - before[0]) / MIB, " MiB"),
            at_most("descriptors", 0, server.descriptors() - before[1]),
            at_most("threads", 0, server.threads() - before[2]),
        ]


def chunks(world: World) -> list[Measure]:
    bodies, each = world.number(100, 15), 1_000_000
    data = f"POST /pom/v1/jobs HTTP/1.1\r\n{HOST}".encode() + b"1\r\nx\r\n" * each + b"0\r\n\r\n"
    statuses = []

    def send() -> None:
        with connected(server) as line:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                line.sendall(data)
            statuses.append(int(line.recv(4096).split()[1]))

    with world.serve() as server:
        for _ in range(3):
            send()
        before = server.memory()
        statuses.clear()
        for _ in range(bodies):
            send()
        grown = (server.memory() - before) / MIB
    refused = sum(400 <= status < 500 for status in statuses)
    return [exactly("answers 4xx", bodies, refused), at_most("memory", world.number(1, 4), grown, " MiB")]


HOST = "Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
ROWS = [
    Row("leak", "5,000 requests (⅓ cut, ⅓ wrong) after 200", leak, "serve.forget:1", ("memory",)),
    Row("chunks", "100 bodies of 1,000,000 chunks of one byte", chunks),
]
