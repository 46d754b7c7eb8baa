"""`pom serve` behind nginx and caddy, with the files of docs/serve: pictures, events and frames that come at
once, keys, names, addresses of clients, clients that leave; and several servers behind one proxy. Tests
demand no proxy: where one is not installed they are skipped."""

import http.client
import json
import re
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

import tools
from serving import Serving
from test_cli import model  # noqa: F401
from test_serve import SLOW, _built_with_a_server, clip_model  # noqa: F401

FILES = Path(__file__).resolve().parents[2] / "docs" / "serve"
NAME = "pom.example.org"
KEYS = [f"key-number-{i}" for i in range(16)]


def free_port():
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return line.getsockname()[1]


class Proxy:
    """nginx or caddy on a free port, with a shipped file whose addresses are changed and nothing else."""

    def __init__(self, kind, file, servers, folder):
        path = tools.proxy(kind)
        self.port = free_port()
        text = (FILES / file).read_text()
        for own, theirs in zip(
            servers, re.findall(r"(?:127\.0\.0\.1|10\.0\.0\.1[12]):8000", text), strict=False
        ):
            text = text.replace(theirs, f"127.0.0.1:{own.port}")
        folder.mkdir(parents=True, exist_ok=True)
        words = getattr(self, kind)(path, text, folder)
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=(folder / "said").open("wb"))
        end = time.monotonic() + 20
        while time.monotonic() < end and self.process.poll() is None:
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError((folder / "said").read_text())

    def nginx(self, path, text, folder):
        assert text.count("listen 80;") == 1
        (folder / "own.conf").write_text(text.replace("listen 80;", f"listen 127.0.0.1:{self.port};"))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
        (folder / "nginx.conf").write_text(
            f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/errors;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{places}include {folder}/own.conf;\n}}\n"
        )
        return [path, "-p", str(folder), "-e", f"{folder}/errors", "-c", str(folder / "nginx.conf")]

    def caddy(self, path, text, folder):
        assert text.count(f"\n{NAME} {{") == 1
        site = text.replace(f"\n{NAME} {{", f"\nhttp://{NAME}:{self.port} {{\n\tbind 127.0.0.1")
        options = f"{{\n\tadmin off\n\tauto_https off\n\tstorage file_system {folder}/storage\n}}\n"
        (folder / "Caddyfile").write_text(options + site)
        return [path, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)

    def line(self, source="127.0.0.1"):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30, source_address=(source, 0))

    def ask(self, method, path, body=None, key=KEYS[0], source="127.0.0.1", **headers):
        """Status and body, as a client that calls the proxy by its name."""
        line = self.line(source)
        sent = {"Host": NAME, "Content-Type": "application/json"} | headers
        if key:
            sent["Authorization"] = f"Bearer {key}"
        line.request(method, path, body=json.dumps(body) if body is not None else None, headers=sent)
        answer = line.getresponse()
        got = answer.status, answer.read()
        line.close()
        return got

    def open(self, path):
        """An answer whose body has no end."""
        line = self.line()
        line.request("GET", path, headers={"Host": NAME, "Authorization": f"Bearer {KEYS[0]}"})
        return line.getresponse()

    def finished(self, job, **options):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            job = json.loads(self.ask("GET", f"/pom/v1/jobs/{job['id']}", **options)[1])
            if job["state"] not in ("queued", "running"):
                return job
            time.sleep(0.02)
        raise AssertionError(job)


def flags(folder):
    (folder / "keys").write_text("".join(f"{key}\n" for key in KEYS))
    return ["--allow-host", NAME, "--trusted-proxy", "127.0.0.1", "--api-key-file", folder / "keys"]


@pytest.fixture(scope="module")
def server(model, clip_model, tmp_path_factory):  # noqa: F811
    with Serving(model, clip_model, flags=flags(tmp_path_factory.mktemp("keys"))) as serving:
        yield serving


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(request, server, tmp_path_factory):
    file = {"nginx": "nginx.conf", "caddy": "Caddyfile"}[request.param]
    with Proxy(request.param, file, [server], tmp_path_factory.mktemp(request.param)) as running:
        running.kind = request.param
        yield running


def test_a_picture(proxy, server):
    status, body = proxy.ask("POST", "/pom/v1/jobs", {"class": "star", "seed": 7, "steps": 4})
    assert status == 202, body
    url = proxy.finished(json.loads(body))["items"][0]["picture"]["url"]
    own = server.get(url, headers={"Authorization": f"Bearer {KEYS[0]}"}).body
    assert proxy.ask("GET", url) == (200, own) and own.startswith(b"\x89PNG")
    assert proxy.ask("GET", "/", key=None)[0] == 200


def test_events_come_at_once(proxy):
    """While the work goes on, and not when it is over or a buffer is full."""
    with proxy.open("/pom/v1/events") as events:
        assert events.status == 200
        began, got = time.monotonic(), b""
        while b"event: hello" not in got:
            got += events.read1(65536)
        assert time.monotonic() - began < 2
        job = json.loads(proxy.ask("POST", "/pom/v1/jobs", SLOW | {"seed": time.time_ns() % 2**40})[1])
        began, got = time.monotonic(), b""
        while job["id"].encode() not in got or b'"state":"running"' not in got:
            got += events.read1(65536)
        assert time.monotonic() - began < 2
        assert json.loads(proxy.ask("GET", f"/pom/v1/jobs/{job['id']}")[1])["state"] == "running"
        proxy.ask("DELETE", f"/pom/v1/jobs/{job['id']}")


def test_frames_come_at_once(proxy):
    body = {"model": "causal", "prompt": "a star", "fps": 20}
    stream = json.loads(proxy.ask("POST", "/pom/v1/streams", body)[1])
    lags = []
    with proxy.open(f"/pom/v1/streams/{stream['id']}/frames") as frames:
        for _ in range(20):
            size, _, micros, _ = struct.unpack("<IIQI", frames.read(20))
            assert frames.read(size).startswith(b"\x89PNG")
            lags.append(time.time() - micros / 1e6)
        assert json.loads(proxy.ask("GET", f"/pom/v1/streams/{stream['id']}")[1])["viewers"] == 1
    assert sorted(lags)[10] < 0.1
    proxy.ask("DELETE", f"/pom/v1/streams/{stream['id']}")


def test_keys_and_names(proxy):
    status, body = proxy.ask("GET", "/pom/v1/models", key=None)
    assert status == 401 and json.loads(body)["error"]["code"] == "invalid_api_key"
    assert proxy.ask("GET", "/pom/v1/models", Origin="https://evil.example")[0] == 403
    assert proxy.ask("GET", "/pom/v1/models", Origin=f"http://{NAME}")[0] == 200
    status, body = proxy.ask("GET", "/pom/v1/models", Host="evil.example")
    if proxy.kind == "caddy":  # which knows the names itself, and passes nothing on
        assert body == b""
    else:
        assert status == 403 and json.loads(body)["error"]["code"] == "host_not_allowed"


def test_addresses_of_clients(proxy, server):
    """Who guesses keys is locked out, and nobody else behind the same proxy; nobody chooses an address."""
    guesser = {"nginx": "127.0.0.5", "caddy": "127.0.0.6"}[proxy.kind]
    pretended = {"X-Forwarded-For": "192.0.2.1"}
    statuses = [
        proxy.ask("GET", "/pom/v1/models", key=f"guess-{i}", source=guesser, **pretended)[0]
        for i in range(11)
    ]
    assert statuses == [401] * 10 + [429]
    assert proxy.ask("GET", "/pom/v1/models", source=guesser)[0] == 429
    assert proxy.ask("GET", "/pom/v1/models")[0] == 200
    assert any(f" {guesser} GET /pom/v1/models 401 " in line for line in server.log)
    assert not any("192.0.2.1" in line for line in server.log)


def test_who_leaves_is_worked_for_no_more(proxy, server):
    line = proxy.line()
    body = {"prompt": "star", "seed": time.time_ns() % 2**40} | {
        k: v for k, v in SLOW.items() if k != "class"
    }
    headers = {"Host": NAME, "Authorization": f"Bearer {KEYS[1]}", "Content-Type": "application/json"}
    line.request("POST", "/v1/images/generations", body=json.dumps(body), headers=headers)
    while server.get("/health").json["running"] == 0:
        time.sleep(0.01)
    line.close()
    end = time.monotonic() + 20
    while server.get("/health").json["running"] > 0 and time.monotonic() < end:
        time.sleep(0.01)
    newest = json.loads(proxy.ask("GET", "/pom/v1/jobs", key=KEYS[1])[1])["jobs"][0]
    assert newest["state"] == "cancelled" and newest["error"]["code"] == "client_left"


@pytest.mark.parametrize(("kind", "file"), [("nginx", "nginx-several.conf"), ("caddy", "Caddyfile-several")])
def test_several_servers(kind, file, model, tmp_path):  # noqa: F811
    """Each client finds its jobs again, both servers work, and the clients of one that dies go on."""
    own = flags(tmp_path)
    with (
        Serving(model, flags=own) as one,
        Serving(model, flags=own) as two,
        Proxy(kind, file, [one, two], tmp_path / kind) as proxy,
    ):
        made = set()
        for key in KEYS:
            status, answer = proxy.ask("POST", "/pom/v1/jobs", {"class": "star", "seed": 1}, key=key)
            assert status == 202, answer
            job = proxy.finished(json.loads(answer), key=key)
            made.add(proxy.ask("GET", job["items"][0]["picture"]["url"], key=key)[1])
            assert len(json.loads(proxy.ask("GET", "/pom/v1/jobs", key=key)[1])["jobs"]) == 1
        assert len(made) == 1  # whoever makes it
        counts = []
        for each in (one, two):
            jobs = [each.get("/pom/v1/jobs", headers={"X-API-Key": key}).json["jobs"] for key in KEYS]
            counts.append(sum(map(len, jobs)))
        assert sum(counts) == len(KEYS) and 0 not in counts, counts
        one.stop()
        for key in KEYS:
            answers = [proxy.ask("POST", "/pom/v1/jobs", {"class": "star"}, key=key) for _ in range(2)]
            assert answers[-1][0] == 202, answers
