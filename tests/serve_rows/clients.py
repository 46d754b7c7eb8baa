"""Many clients at once, each with a key of its own, over three interfaces: every answer has the bytes of
`pom sample`, and nobody waits much longer than the others."""

import base64
import concurrent.futures
import json
import statistics
import time

from .world import Client, Measure, Row, World, at_most, exactly

CLASSES = ("circle", "square", "star")
SETTINGS = {"steps": 12, "width": 32, "height": 32}
# Statuses that mean the server is at fault.
SERVER = range(500, 600)


def native(client: Client, name: str, seed: int, previews: bool) -> tuple[int, bytes]:
    body = {"class": name, "seed": seed, "previews": previews, **SETTINGS}
    status, _, answer = client.ask("POST", "/pom/v1/jobs", body)
    if status != 202:
        return status, answer
    job = json.loads(answer)
    status, _, events = client.ask("GET", f"/pom/v1/jobs/{job['id']}/events")
    last = json.loads(events.decode().strip().rsplit("data: ", 1)[1])
    if last["state"] != "completed":
        return 500, events[-500:]
    return client.ask("GET", last["items"][0]["picture"]["url"])[::2]


def openai(client: Client, name: str, seed: int, previews: bool) -> tuple[int, bytes]:
    body = {"prompt": name, "seed": seed, "stream": previews, "partial_images": 2 * previews, **SETTINGS}
    status, _, answer = client.ask("POST", "/v1/images/generations", body)
    if status != 200:
        return status, answer
    if previews:
        records = [json.loads(line[6:]) for line in answer.decode().splitlines() if line[:6] == "data: "]
        return status, base64.b64decode(records[-1]["b64_json"])
    return status, base64.b64decode(json.loads(answer)["data"][0]["b64_json"])


def a1111(client: Client, name: str, seed: int, previews: bool) -> tuple[int, bytes]:
    body = {"prompt": name, "seed": seed, "negative_prompt": "", **SETTINGS}
    status, _, answer = client.ask("POST", "/sdapi/v1/txt2img", body)
    return status, base64.b64decode(json.loads(answer)["images"][0]) if status == 200 else answer


FACES = (native, openai, a1111)


def many_clients(world: World) -> list[Measure]:
    """Few requests on a busy machine: the waits alone are looked at up to three times."""
    for _ in range(world.number(1, 3)):
        measures = once(world)
        if not all(one.ok for one in measures[:-1]) or measures[-1].ok:
            break
    return measures


def once(world: World) -> list[Measure]:
    clients, each, previewing = world.number(64, 12), world.number(20, 4), world.number(8, 2)
    own = {name: world.sampled(clients * each, **{"class": name}, **SETTINGS) for name in CLASSES}

    def one(number: int) -> list[tuple[int, bool, float]]:
        client, results = Client(server, key=number), []
        for turn in range(each):
            name, seed = CLASSES[number % 3], number * each + turn
            # Those with previews are of the two interfaces that have them.
            face = FACES[number % 2] if number < previewing else FACES[(number + turn) % 3]
            began = time.perf_counter()
            status, picture = face(client, name, seed, number < previewing)
            results.append((status, picture == own[name][seed], time.perf_counter() - began))
        client.close()
        return results

    with world.serve(keys=clients) as server, concurrent.futures.ThreadPoolExecutor(clients) as pool:
        Client(server, key=0).ask("GET", "/pom/v1/models")
        answers = [result for results in pool.map(one, range(clients)) for result in results]
    waits = [wait for _, _, wait in answers]
    return [
        exactly("answers", clients * each, sum(status == 200 for status, _, _ in answers)),
        exactly("bit-equal to pom sample", clients * each, sum(equal for _, equal, _ in answers)),
        exactly("answers 5xx", 0, sum(status in SERVER for status, _, _ in answers)),
        at_most("longest wait / mean", 3, max(waits) / statistics.mean(waits), " x"),
    ]


ROWS = [
    Row(
        "clients",
        "64 clients x 20 over three interfaces, 8 with previews",
        many_clients,
        "serve.turns:1",
        ("longest wait",),
    ),
]
