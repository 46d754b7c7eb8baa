"""Every limit at its last value and one beyond it: the exact status and code of both."""

import contextlib
import http.client
import json
import socket

from .cancels import running
from .world import HOST, MIB, Client, Measure, Row, World, connected, exactly, settled

OK = {200, 201, 202}


class Limits:
    """Collects what came at L and at L + 1."""

    def __init__(self) -> None:
        self.found: list[Measure] = []

    def __call__(self, what: str, asked: str, at_limit, beyond) -> None:
        self.found.append(exactly(what, f"taken; {asked}", f"{said(at_limit)}; {said(beyond)}"))


def said(answer) -> str:
    """ "taken", or status and code."""
    status, _, body = answer
    if status in OK:
        return "taken"
    try:
        return f"{status} {json.loads(body)['error']['code']}"
    except (ValueError, KeyError, TypeError):
        return f"{status}"


def of_requests(limits: Limits, client: Client) -> None:
    """What one request may ask for. Whatever is taken is cancelled at once."""

    def job(**fields):
        body = fields if "prompt" in fields else {"class": "star", **fields}
        answer = client.ask("POST", "/pom/v1/jobs", body)
        if answer[0] == 202:
            client.ask("DELETE", f"/pom/v1/jobs/{json.loads(answer[2])['id']}")
        return answer

    def clip(**fields):
        return job(**{"model": "causal", "prompt": "a", **fields})

    much, range_ = "400 too_expensive", "400 out_of_range"
    limits("pixels 1024²", much, job(width=1024, height=1024), job(width=1024, height=1026))
    limits("steps 250", much, job(steps=250), job(steps=251))
    limits("pictures 10", much, job(count=10), job(count=11))
    limits("seed 2⁵³ - 1", range_, job(seed=2**53 - 1), job(seed=2**53))
    limits("frames 10,000", much, clip(frames=10_000), clip(frames=10_002))
    limits("prompt of 2,000 bytes", much, clip(prompt="a" * 2000), clip(prompt="a" * 2001))
    changes = [f"{2 * i}:a" for i in range(1, 102)]
    few, many = (clip(frames=300, prompt_at=changes[:n]) for n in (100, 101))
    limits("changes of the prompt 100", much, few, many)
    openai = "/v1/images/generations"
    small = {"prompt": "star", "steps": 1}
    images = [client.ask("POST", openai, small | {"n": n}) for n in (10, 11)]
    limits("OpenAI: n 10", range_, *images)
    partial = [client.ask("POST", openai, small | {"partial_images": n}) for n in (3, 4)]
    limits("OpenAI: partial_images 3", range_, *partial)
    batches = [client.ask("POST", "/sdapi/v1/txt2img", small | {"batch_size": n}) for n in (10, 11)]
    limits("A1111: batch_size 10", range_, *batches)
    lists = [client.ask("GET", f"/pom/v1/pictures?limit={n}") for n in (200, 201)]
    limits("pictures in a list 200", range_, *lists)
    keys = [
        client.ask("POST", "/pom/v1/jobs", {"class": "star", "steps": 1}, **{"Idempotency-Key": "k" * n})
        for n in (255, 256)
    ]
    limits("Idempotency-Key of 255 bytes", "400 invalid_value", *keys)
    deep = [b'{"class": "star", "x": ' + b"[" * n + b"]" * n + b"}" for n in (16, 17)]
    answers = [client.ask("POST", "/pom/v1/jobs", body) for body in deep]
    found = [said(answer) for answer in answers]
    limits.found.append(
        exactly("JSON lists 16 deep", "400 unknown_parameter; 400 bad_json", "; ".join(found))
    )
    many = [{f"key{i}": i for i in range(n)} for n in (512, 513)]
    found = [said(client.ask("POST", "/pom/v1/jobs", body)) for body in many]
    limits.found.append(exactly("JSON of 512 keys", "400 invalid_value; 400 bad_json", "; ".join(found)))


def raw_status(server, data: bytes) -> tuple[int, None, bytes]:
    with connected(server) as line:
        line.settimeout(10)
        with contextlib.suppress(OSError):
            line.sendall(data)
        answer = http.client.HTTPResponse(line)
        answer.begin()
        return answer.status, None, answer.read()


def of_bytes(limits: Limits, server) -> None:
    def head(size: int) -> bytes:
        start = f"GET /health HTTP/1.1\r\n{HOST}X: "
        return f"{start}{'y' * (size - len(start) - 4)}\r\n\r\n".encode()

    def body(path: str, size: int, chunked: bool = False, kind: str = "application/json") -> bytes:
        start = f"POST {path} HTTP/1.1\r\n{HOST}Content-Type: {kind}\r\n"
        data = b" " * size
        if chunked:
            return f"{start}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + data + b"\r\n0\r\n\r\n"
        return f"{start}Content-Length: {size}\r\n\r\n".encode() + data

    large = "413 body_too_large"
    limits("head of 8 KiB", "431 headers_too_large", *(raw_status(server, head(8192 + n)) for n in (0, 1)))
    for what, path, size, kind, first in (
        ("body of 1 MiB", "/pom/v1/jobs", MIB, "application/json", "400 bad_json"),
        ("picture to reproduce, 8 MiB", "/pom/v1/reproduce", 8 * MIB, "image/png", "400 invalid_value"),
        ("png-info, 12 MiB", "/sdapi/v1/png-info", 12 * MIB, "application/json", "400 bad_json"),
    ):
        for chunked in (False, True):
            found = [said(raw_status(server, body(path, size + n, chunked, kind))) for n in (0, 1)]
            way = "in chunks" if chunked else "by length"
            limits.found.append(exactly(f"{what}, {way}", f"{first}; {large}", "; ".join(found)))


def of_the_queue(limits: Limits, world: World) -> None:
    long = {"class": "star", "steps": 250, "width": 128, "height": 128, "sampler": "heun"}

    def asked(server, jobs: int, keys: int) -> list[str]:
        """One that runs, then so many of each client in turn."""
        answers = []
        for number in range(jobs + 1):
            key = number % keys if keys else None
            client = Client(server, key=key)
            # No two go together.
            answers.append(client.ask("POST", "/pom/v1/jobs", long | {"cfg_scale": 1 + number / 100}))
            if number == 0:
                running(client, json.loads(answers[0][2]))
            client.close()
        return [said(answer) for answer in answers]

    with world.serve() as server:
        found = asked(server, 9, 0)
        limits.found.append(
            exactly("waiting of one client 8", "9 taken; 429 client_queue_full", summary(found))
        )
    with world.serve(keys=16) as server:
        found = asked(server, 65, 16)
        limits.found.append(exactly("waiting of all 64", "65 taken; 503 queue_full", summary(found)))
    with world.serve(flags=["--most-seconds", 5]) as server:
        client = Client(server)
        body = {"class": "star", "sampler": "euler"}
        for seed in range(2):  # what it takes is known once something was made
            server.finished(server.job(body | {"steps": 250, "width": 64, "height": 64, "seed": seed}))
        body |= {"width": 512, "height": 512}
        most = int(5 / client.json("POST", "/pom/v1/forecast", body | {"steps": 1})["seconds"])
        found = [client.ask("POST", "/pom/v1/forecast", body | {"steps": most + n}) for n in (-1, 2)]
        limits(f"forecast of 5 s: {most} steps", "400 too_expensive", *found)


def summary(found: list[str]) -> str:
    return f"{found.count('taken')} taken; {' '.join(sorted(set(found) - {'taken'}))}"


def of_streams(limits: Limits, server) -> None:
    client = Client(server)
    live = {"model": "causal", "prompt": "a star", "fps": 1}
    large = [client.ask("POST", "/pom/v1/streams", live | {"width": w, "height": 512}) for w in (512, 528)]
    limits("pixels of a stream 512²", "400 too_expensive", *large)
    client.ask("DELETE", f"/pom/v1/streams/{json.loads(large[0][2])['id']}")
    answers = [client.ask("POST", "/pom/v1/streams", live) for _ in range(5)]
    limits("streams 4", "503 queue_full", answers[3], answers[4])
    stream = json.loads(answers[0][2])["id"]
    head = f"GET /pom/v1/streams/{stream}/frames HTTP/1.1\r\n{HOST}\r\n".encode()
    lines = []
    for _ in range(65):
        lines.append(connected(server))
        lines[-1].sendall(head)
    heads = [line.recv(12)[9:] for line in lines]
    limits.found.append(
        exactly(
            "viewers of a stream 64", "64 x 200; 503", f"{heads.count(b'200')} x 200; {heads[-1].decode()}"
        )
    )
    for line in lines:
        line.close()


def is_gone(line: socket.socket) -> bool:
    line.setblocking(False)
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def of_connections(limits: Limits, server) -> None:
    """1,024 that wait, and one more: the one that has waited longest goes."""
    lines = []
    for _ in range(1024):
        lines.append(connected(server))
        lines[-1].sendall(b"GET /health HT")
    settled(lambda: server.descriptors() > 1024, 10)  # all are taken
    with connected(server) as line:
        line.sendall(f"GET /health HTTP/1.1\r\n{HOST}\r\n".encode())
        answered = line.recv(15)
    settled(lambda: any(map(is_gone, lines)), 10)
    gone = sum(map(is_gone, lines))
    for line in lines:
        line.close()
    limits.found.append(
        exactly("connections 1,024", "HTTP/1.1 200 OK; 1 shed", f"{answered.decode()}; {gone} shed")
    )


def of_keys(limits: Limits, world: World) -> None:
    with world.serve(keys=1) as server:
        client = Client(server)
        answers = [client.ask("GET", "/pom/v1/models", Authorization=f"Bearer wrong-{n}") for n in range(11)]
        asked = "401 invalid_api_key; 429 too_many_attempts"
        limits.found.append(
            exactly("wrong keys 10 a minute", asked, f"{said(answers[9])}; {said(answers[10])}")
        )


def all_limits(world: World) -> list[Measure]:
    limits = Limits()
    with world.serve(world.tiny, world.clips) as server:
        client = Client(server)
        of_requests(limits, client)
        of_bytes(limits, server)
        of_streams(limits, server)
        of_connections(limits, server)
    of_the_queue(limits, world)
    of_keys(limits, world)
    return limits.found


ROWS = [Row("limits", "each limit at L and L + 1", all_limits)]
