"""Tests of `pom serve` from outside: its own interface, jobs and their ends, pictures, limits, access."""

import base64
import concurrent.futures
import json
import signal
import socket
import time

import pytest

from serving import Serving
from test_cli import model, pom  # noqa: F401
from test_cli_video import write_clip_model
from tools import built_program, lacking, referee

SLOW = {"class": "star", "steps": 250, "width": 128, "height": 128, "sampler": "heun"}  # some seconds
SECOND = SLOW | {"width": 64, "height": 64}  # one or more
ANEW = {"Cache-Control": "no-cache"}  # and not what was made before


@pytest.fixture(scope="session", autouse=True)
def _built_with_a_server(tmp_path_factory):
    built_program()
    result = pom("serve", "--port", "0", "--model", "nowhere", cwd=tmp_path_factory.mktemp("none"))
    if "this build has no server" in result.stderr or "libboost" in result.stderr:
        lacking("this build has no HTTP server")


@pytest.fixture(scope="session")
def clip_model(tmp_path_factory):
    return write_clip_model(tmp_path_factory.mktemp("clip_models") / "causal")


@pytest.fixture(scope="module")
def server(model, clip_model):  # noqa: F811
    with Serving(model, clip_model) as serving:
        yield serving


def sampled(folder, model, *words):  # noqa: F811
    result = pom("sample", "--model", model, *words, "-o", "made.png", cwd=folder)
    assert result.returncode == 0, result.stderr
    return (folder / "made.png").read_bytes()


def test_health_and_models(server):
    health = server.get("/health").json
    assert health["status"] == "ok" and health["device"] == "cpu"
    models = server.get("/pom/v1/models").json["models"]
    assert [m["id"] for m in models] == ["tiny", "causal"]
    assert models[0]["classes"] == ["circle", "square", "star"] and not models[0]["streams"]
    assert models[1]["makes"] == "clips" and models[1]["streams"] and models[1]["reads"] == "text"


def test_a_picture_is_that_of_pom_sample(server, model, tmp_path):  # noqa: F811
    made = server.made({"class": "star", "seed": 7, "steps": 4})
    assert made == sampled(tmp_path, model, "--class", "star", "--seed", 7, "--steps", 4)


def test_a_clip_is_that_of_pom_sample(server, clip_model, tmp_path):
    job = server.finished(server.job({"model": "causal", "prompt": "a star", "seed": 3, "frames": 4}))
    picture = job["items"][0]["picture"]
    assert picture["type"] in ("video/mp4", "image/gif")
    (tmp_path / "served").write_bytes(server.get(picture["url"]).body)
    name = "own." + picture["url"].rsplit(".")[-1]
    own = pom(
        *["sample", "--model", clip_model, "--prompt", "a star", "--seed", 3, "--frames", 4, "-o", name],
        cwd=tmp_path,
    )
    assert own.returncode == 0, own.stderr
    assert (tmp_path / "served").read_bytes() == (tmp_path / name).read_bytes()


def test_several_items_and_their_seeds(server):
    job = server.finished(server.job({"class": "star", "seed": 40, "count": 3}))
    assert [item["seed"] for item in job["items"]] == [40, 41, 42]
    assert len({item["picture"]["id"] for item in job["items"]}) == 3
    drawn = server.job({"class": "star"})["items"][0]["seed"]
    assert 0 <= drawn < 2**53 and drawn != server.job({"class": "star"})["items"][0]["seed"]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"class": "star", "stepz": 3}, "unknown_parameter", "stepz"),
        ({"class": "star", "steps": 0}, "out_of_range", "steps"),
        ({"class": "star", "steps": 251}, "too_expensive", "steps"),
        ({"class": "star", "steps": "many"}, "invalid_value", "steps"),
        ({"class": "star", "count": 11}, "too_expensive", "count"),
        ({"class": "star", "width": 2048, "height": 1024}, "too_expensive", "width"),
        ({"class": "otter"}, "invalid_value", "class"),
        ({"steps": 3}, "invalid_value", "class"),
        ({"class": "star", "seed": 2**53}, "out_of_range", "seed"),
        ({"class": "star", "init": "/etc/passwd"}, "unknown_parameter", "init"),
        ({"class": "star", "prompt": "a star"}, "unknown_parameter", "prompt"),
        ({"model": "causal", "prompt": "a" * 2001}, "too_expensive", "prompt"),
        ({"model": "causal", "prompt": "a", "frames": "inf"}, "too_expensive", "frames"),
        (
            {"model": "causal", "prompt": "a", "continue": "state.safetensors"},
            "unknown_parameter",
            "continue",
        ),
        ({"model": "causal", "prompt": "a", "save_state": "x"}, "unknown_parameter", "save_state"),
        ({"class": "star", "dtype": "fp64"}, "invalid_value", "dtype"),
    ],
)
def test_mistakes(server, body, code, param):
    answer = server.post("/pom/v1/jobs", body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param), answer.body
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({f"key{i}": i for i in range(50_000)}, "bad_json"),
        ({"class": "star", "seed": list(range(100_000))}, "too_expensive"),
        ({"class": "star", "count": 1_000_000}, "too_expensive"),
        ({"model": "causal", "prompt": ["a star"] * 100_000}, "too_expensive"),
        ({"class": "star," * 100_000}, "too_expensive"),
        ({"model": "causal", "prompt": "a", "negative_prompt": "b" * 50_000}, "too_expensive"),
        ({"model": "causal", "prompt": "a", "prompt_at": ["2:a"] * 50_000}, "too_expensive"),
        ({"model": "causal", "prompt": "a\0b"}, "invalid_value"),
        ({"model": "causal", "prompt": "a", "window": 7}, "unknown_parameter"),
    ],
    ids=range(9),
)
def test_what_would_take_long_is_refused_at_once(server, body, code):
    began = time.monotonic()
    answer = server.post("/pom/v1/jobs", body)
    assert (answer.status, answer.error["code"]) == (400, code), answer.body[:300]
    assert time.monotonic() - began < 3


def test_limits_are_reached(server):
    for body in (
        {"class": "star", "steps": 250},
        {"class": "star", "count": 10},
        {"class": "star", "seed": 2**53 - 1},
    ):
        assert server.finished(server.job(body))["state"] == "completed"
    assert server.job({"class": "star", "steps": 3.0, "seed": 5.0})["items"][0]["seed"] == 5
    assert server.job({"class": 2, "seed": None})["items"][0]["subject"] in ("star", "2")


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"class": 1', b'{"class":"a","class":"b"}', b"nul", b'"x"', b"{" * 100, b"\xff\xfe"],
)
@pytest.mark.parametrize(
    "path", ["/pom/v1/jobs", "/v1/images/generations", "/sdapi/v1/txt2img", "/pom/v1/streams"]
)
def test_what_is_no_json(server, path, body):
    answer = server.post(path, body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.error["code"]) == (400, "bad_json")


def test_other_types_methods_and_paths(server):
    assert server.post("/pom/v1/jobs", b"{}", headers={"Content-Type": "text/plain"}).status == 415
    answer = server.ask("PUT", "/pom/v1/jobs", {})
    assert answer.status == 405 and "POST" in answer.headers["Allow"]
    assert server.get("/pom/v2/jobs").error["code"] == "not_found"
    assert server.get("/pom/v1/jobs/" + "0" * 32).status == 404
    assert server.get("/pom/v1/pictures/" + "0" * 32 + ".png").status == 404
    for path in ("/pom/v1/pictures/..%2f..%2fetc", "/assets/..%2f..%2fsetup", "/assets/queue.h"):
        assert server.get(path).status in (400, 404), path
    assert server.get("/pom/v1/schema?model=none").error["code"] == "model_not_found"


def test_cancel(server):
    job = server.job(SLOW)
    while server.get(f"/pom/v1/jobs/{job['id']}").json["evaluations"]["done"] < 2:
        time.sleep(0.01)
    began = time.monotonic()
    assert server.ask("DELETE", f"/pom/v1/jobs/{job['id']}").json["state"] == "cancelled"
    assert server.made({"class": "star", "seed": 99}).startswith(b"\x89PNG")
    assert time.monotonic() - began < 5
    assert server.get(f"/pom/v1/jobs/{job['id']}").json["state"] == "cancelled"


def test_one_of_a_batch_is_cancelled(server, model, tmp_path):  # noqa: F811
    settings = {"class": "star", "steps": 250, "width": 32, "height": 32, "sampler": "heun"}
    for _ in range(5):
        slow = server.job(SLOW)
        # They wait, and go together.
        jobs = [server.job(settings | {"seed": seed}, headers=ANEW) for seed in range(60, 64)]
        server.ask("DELETE", f"/pom/v1/jobs/{slow['id']}")
        while server.get(f"/pom/v1/jobs/{jobs[1]['id']}").json["evaluations"]["done"] < 2:
            time.sleep(0.005)
        state = server.ask("DELETE", f"/pom/v1/jobs/{jobs[1]['id']}").json["state"]
        if state != "completed":  # else it was over before the request came, as on a busy machine
            break
    assert state == "cancelled"
    words = ["--class", "star", "--steps", 250, "--size", "32x32", "--sampler", "heun"]
    for seed, job in enumerate(jobs, 60):
        if seed == 61:
            continue
        picture = server.finished(job)["items"][0]["picture"]
        assert server.get(picture["url"]).body == sampled(tmp_path, model, *words, "--seed", seed, "-y")


def test_who_goes_away_is_worked_for_no_more(server):
    body = json.dumps({"prompt": "star", **{k: v for k, v in SLOW.items() if k != "class"}}).encode()
    head = (
        "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(head.encode() + body)
        began = time.monotonic()
        while server.get("/health").json["running"] == 0:
            assert time.monotonic() < began + 20
            time.sleep(0.01)
    left = time.monotonic()
    while server.get("/health").json["running"] > 0:
        assert time.monotonic() < left + 20
        time.sleep(0.01)
    newest = server.get("/pom/v1/jobs").json["jobs"][0]
    assert newest["state"] == "cancelled" and newest["error"]["code"] == "client_left"


def test_a_full_queue(model):  # noqa: F811
    with Serving(model, flags=["--most-waiting-a-client", 2]) as server:
        jobs = [server.job(SLOW | {"seed": i, "cfg_scale": 1 + i}) for i in range(3)]
        refused = server.post("/pom/v1/jobs", SLOW | {"seed": 9})
        assert (refused.status, refused.error["code"]) == (429, "client_queue_full")
        assert int(refused.headers["Retry-After"]) >= 1
        positions = [server.get(f"/pom/v1/jobs/{job['id']}").json["position"] for job in jobs]
        assert positions == [None, 1, 2]
        for job in jobs:
            server.ask("DELETE", f"/pom/v1/jobs/{job['id']}")
        assert server.made({"class": "star", "seed": 1})


def test_many_clients_get_what_pom_sample_makes(server, model, tmp_path):  # noqa: F811
    kinds = [("circle", 1), ("square", 2), ("star", 3), ("star", 4)]
    own = {}
    for kind, seed in kinds:
        (tmp_path / f"{seed}").mkdir()
        own[kind, seed] = sampled(tmp_path / f"{seed}", model, "--class", kind, "--seed", seed)

    def ask(number):
        kind, seed = kinds[number % 4]
        if number % 3 == 0:
            body = {"prompt": kind, "seed": seed}
            answer = server.post("/v1/images/generations", body, headers=ANEW)
            return own[kind, seed] == base64.b64decode(answer.json["data"][0]["b64_json"])
        if number % 3 == 1:
            answer = server.post("/sdapi/v1/txt2img", {"prompt": kind, "seed": seed})
            return own[kind, seed] == base64.b64decode(answer.json["images"][0])
        job = server.post("/pom/v1/jobs", {"class": kind, "seed": seed}, headers=ANEW)
        return own[kind, seed] == server.get(server.finished(job.json)["items"][0]["picture"]["url"]).body

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(48)))


def test_events_of_a_job(server):
    job = server.job({"class": "star", "steps": 200, "width": 32, "height": 32, "previews": True})
    records = server.get(f"/pom/v1/jobs/{job['id']}/events").body.decode()
    kinds = [line[7:] for line in records.splitlines() if line.startswith("event: ")]
    data = [json.loads(line[6:]) for line in records.splitlines() if line.startswith("data: ")]
    assert kinds[0] == "job" and kinds[-1] == "job" and data[-1]["state"] == "completed"
    done = [d["evaluations"]["done"] for k, d in zip(kinds, data, strict=True) if k == "job"]
    assert done == sorted(done) and len(done) >= 2
    for kind, record in zip(kinds, data, strict=True):
        if kind == "preview":
            assert base64.b64decode(record["image"]).startswith(b"\x89PNG")


def test_all_events_begin_with_the_whole_state(server):
    server.made({"class": "star", "seed": 5})
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as line:
        line.sendall(b"GET /pom/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        got = b""
        while b"event: hello" not in got or b"\n\n" not in got.split(b"event: hello")[1]:
            got += line.recv(65536)
        job = server.job({"class": "star", "seed": 77})
        while job["id"].encode() not in got.split(b"event: hello")[1].split(b"\n\n", 1)[1]:
            got += line.recv(65536)
    assert b"text/event-stream" in got and b"X-Accel-Buffering: no" in got


def test_the_same_request_twice(server):
    key = {"Idempotency-Key": "a key"}
    first = server.job({"class": "star", "seed": 8}, headers=key)
    assert server.job({"class": "star", "seed": 8}, headers=key)["id"] == first["id"]
    other = server.post("/pom/v1/jobs", {"class": "star", "seed": 9}, headers=key)
    assert (other.status, other.error["code"]) == (409, "idempotency_conflict")
    made = server.finished(server.job({"class": "star", "seed": 123}))["items"][0]["picture"]["id"]
    again = server.job({"class": "star", "seed": 123})
    assert again["state"] == "completed" and again["items"][0]["picture"]["id"] == made
    anew = server.job({"class": "star", "seed": 123}, headers=ANEW)
    assert server.finished(anew)["items"][0]["picture"]["id"] != made


def test_pictures(server):
    made = [
        server.finished(server.job({"class": "star", "seed": 500 + i}))["items"][0]["picture"]
        for i in range(5)
    ]
    page = server.get("/pom/v1/pictures?limit=3").json
    assert [p["id"] for p in page["pictures"]] == [m["id"] for m in made[:1:-1]]
    rest = server.get(f"/pom/v1/pictures?limit=2&before={page['next']}").json
    assert [p["id"] for p in rest["pictures"]] == [m["id"] for m in made[1::-1]]
    assert page["pictures"][0]["request"]["steps"] == 3 and page["pictures"][0]["seed"] == 504
    assert server.get(made[0]["url"]).headers["Content-Type"] == "image/png"
    assert server.ask("DELETE", f"/pom/v1/pictures/{made[0]['id']}").status == 204
    assert server.get(made[0]["url"]).status == 404
    assert server.get("/pom/v1/pictures?limit=0").status == 400


def test_reproduce(server):
    picture = server.finished(server.job({"class": "star", "seed": 31}))["items"][0]["picture"]
    job = server.finished(server.post("/pom/v1/reproduce", {"picture": picture["id"]}).json)
    assert job["reproduces"] == {"picture": picture["id"], "agrees": True, "different_pixels": 0}
    png = server.get(picture["url"]).body
    job = server.finished(server.post("/pom/v1/reproduce", png, headers={"Content-Type": "image/png"}).json)
    assert job["reproduces"]["agrees"] is True
    other = server.made({"class": "circle", "seed": 32})
    # The settings of one with the pixels of another: chunks up to IDAT say what made it.
    mixed = png[: png.index(b"IDAT") - 4] + other[other.index(b"IDAT") - 4 :]
    job = server.finished(server.post("/pom/v1/reproduce", mixed, headers={"Content-Type": "image/png"}).json)
    assert job["reproduces"]["agrees"] is False and job["reproduces"]["different_pixels"] > 0
    for wrong in (b"", b"\x89PNG", png[:100]):
        refused = server.post("/pom/v1/reproduce", wrong, headers={"Content-Type": "image/png"})
        assert refused.status == 400, wrong


def test_a_gallery_outlives_the_server(model, tmp_path):  # noqa: F811
    flags = ["--gallery", tmp_path / "gallery"]
    with Serving(model, flags=flags) as server:
        made = server.made({"class": "star", "seed": 3})
        picture = server.get("/pom/v1/pictures").json["pictures"][0]
    (tmp_path / "gallery" / ("0" * 32 + ".png")).write_bytes(b"no picture")
    (tmp_path / "gallery" / "notes.txt").write_text("mine")
    with Serving(model, flags=flags) as server:
        found = server.get("/pom/v1/pictures").json["pictures"]
        assert [p["id"] for p in found] == [picture["id"]] and found[0]["request"] == picture["request"]
        assert server.get(picture["url"]).body == made
        job = server.finished(server.post("/pom/v1/reproduce", {"picture": picture["id"]}).json)
        assert job["reproduces"]["agrees"] is True
    assert (tmp_path / "gallery" / "notes.txt").read_text() == "mine"


def test_keys(model, tmp_path):  # noqa: F811
    (tmp_path / "keys").write_text("# ours\nfirst-key-1\nsecond-key-2\n")
    with Serving(model, flags=["--api-key-file", tmp_path / "keys"]) as server:
        assert server.get("/health").status == 200 and server.get("/").status == 200
        assert server.get("/pom/v1/models").error["code"] == "invalid_api_key"
        assert server.get("/pom/v1/models", headers={"Authorization": "Bearer wrong-key"}).status == 401
        first, second = {"Authorization": "Bearer first-key-1"}, {"X-API-Key": "second-key-2"}
        basic = {"Authorization": "Basic " + base64.b64encode(b"me:first-key-1").decode()}
        assert server.get("/sdapi/v1/options", headers=basic).status == 200
        job = server.job({"class": "star", "seed": 1}, headers=first)
        assert server.get(f"/pom/v1/jobs/{job['id']}", headers=second).status == 404
        assert server.get(f"/pom/v1/jobs/{job['id']}", headers=first).status == 200
        server.finished(server.job({"class": "star", "seed": 1}, headers=first), headers=first)
        assert server.get("/pom/v1/pictures", headers=second).json["pictures"] == []
        same = server.finished(server.job({"class": "star", "seed": 1}, headers=second), headers=second)
        url = same["items"][0]["picture"]["url"]  # its own, and not that of the other
        assert server.get(url, headers=second).status == 200 and server.get(url, headers=first).status == 404
        assert not any("first-key" in line for line in server.log)


def test_others_reach_it_with_a_key_alone(model, tmp_path):  # noqa: F811
    result = pom("serve", "--host", "0.0.0.0", "--port", "0", "--model", model, cwd=tmp_path)
    assert result.returncode == 2 and "expected a key" in result.stderr


def test_pages_of_others_start_nothing(server):
    foreign = {"Origin": "https://example.org"}
    assert server.post("/pom/v1/jobs", {"class": "star"}, headers=foreign).error["code"] == "cross_origin"
    assert server.get("/health", headers={"Host": "example.org"}).error["code"] == "host_not_allowed"
    assert server.get("/health", headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    assert "Access-Control-Allow-Origin" not in server.get("/health").headers
    page = server.get("/")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"


def test_the_schema_says_what_is_taken(server):
    schema = server.get("/pom/v1/schema?model=tiny").json
    assert schema["required"] == ["class"] and schema["additionalProperties"] is False
    assert schema["properties"]["steps"]["default"] == 3 and schema["properties"]["steps"]["maximum"] == 250
    assert schema["properties"]["class"]["examples"] == ["circle", "square", "star"]
    clips = server.get("/pom/v1/schema?model=causal").json
    assert "prompt" in clips["properties"] and "class" not in clips["properties"]
    hidden = {"init", "strength", "continue", "save_state", "stream"}
    fields = set(server.get("/pom/v1/schema?model=tiny").json["properties"]) | set(clips["properties"])
    assert not fields & hidden
    names = set(pom("sample", "--help", cwd="/").stdout.split())
    for field in fields - {"clamp"}:
        assert any(word.startswith("--" + field.replace("_", "-")) for word in names) or field in (
            "width",
            "height",
        ), field
    document = server.get("/openapi.json").json
    assert document["openapi"] == "3.1.0" and "/pom/v1/jobs/{id}" in document["paths"]
    assert document["components"]["schemas"]["Job.tiny"]["properties"]["steps"]["maximum"] == 250


def test_the_metrics_are_prometheus(server):
    parser = referee("prometheus_client.parser")
    server.made({"class": "star", "seed": 71})
    families = {
        f.name: f for f in parser.text_string_to_metric_families(server.get("/metrics").body.decode())
    }
    routes = {s.labels["route"] for s in families["pom_requests"].samples}
    assert "/pom/v1/pictures/{file}" in routes and not any("0123" in r for r in routes)
    assert families["pom_pictures"].samples[0].value >= 1
    assert families["pom_batch_pictures"].type == "histogram"


def test_drain(model):  # noqa: F811
    with Serving(model, flags=["--drain", 30]) as server:
        job = server.job(SECOND)
        waiting = server.job(SECOND | {"class": "circle", "steps": 249})
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 20
        refused = None
        while time.monotonic() < end and refused is None:
            try:
                answer = server.post("/pom/v1/jobs", {"class": "star"})
            except OSError:
                break
            if answer.status == 503:
                refused = answer.error["code"]
        assert refused == "draining"
        assert server.process.wait(timeout=60) == 0
        assert job["state"] == "running" and waiting["state"] == "queued"


def test_the_end_with_listeners_and_work_that_is_too_long(model, clip_model):  # noqa: F811
    with Serving(model, clip_model, flags=["--drain", 0.2]) as server:
        stream = server.post("/pom/v1/streams", {"prompt": "a star"}).json
        frames = server.frames(stream)
        next(frames)
        listener = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        listener.sendall(b"GET /pom/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        got = b""
        while b"hello" not in got:
            got += listener.recv(65536)
        server.job(SLOW | {"count": 10})
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        assert time.monotonic() - began < 15
        assert sum(1 for _ in frames) < 100
        listener.close()


def test_it_leaks_nothing(server):
    for i in range(30):
        server.made({"class": "star", "seed": 1000 + i})
    before = server.memory(), server.threads()
    for i in range(150):
        if i % 3 == 0:
            server.post("/pom/v1/jobs", {"class": "star", "steps": 0})
        elif i % 3 == 1:
            with socket.create_connection(("127.0.0.1", server.port)) as line:
                line.sendall(b"POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        else:
            server.made({"class": "star", "seed": 2000 + i})
    end = time.monotonic() + 20
    while (server.threads() > before[1] or server.descriptors() >= 64) and time.monotonic() < end:
        time.sleep(0.05)
    assert server.memory() - before[0] < 20 << 20 and server.threads() <= before[1]
    assert server.descriptors() < 64


def test_cost_is_known_from_the_start(model, clip_model):  # noqa: F811
    with Serving(model, clip_model, flags=["--most-seconds", 0.001]) as server:
        refused = server.post("/pom/v1/jobs", SLOW)  # the first request of all
        assert (refused.status, refused.error["code"]) == (400, "too_expensive")
        assert "--most-seconds" in refused.error["message"]
    with Serving(model, clip_model) as server:
        few, many = ({"class": "star", "steps": steps} for steps in (2, 200))
        forecast = [server.post("/pom/v1/forecast", body).json for body in (few, many)]
        assert 0 < forecast[0]["seconds"] < forecast[1]["seconds"] / 50
        clip = server.post("/pom/v1/forecast", {"model": "causal", "prompt": "a star"}).json
        assert clip["seconds"] > 0 and clip["memory"] > 0
        job = server.job(SLOW | {"seed": 1})
        assert job["eta"] > 0  # with nothing made yet
        server.ask("DELETE", f"/pom/v1/jobs/{job['id']}")


def test_memory_is_counted(model, clip_model):  # noqa: F811
    body = {"class": "star", "width": 64, "height": 64}
    with Serving(model, clip_model) as server:
        needed = server.post("/pom/v1/forecast", body).json["memory"]
    with Serving(model, clip_model, flags=["--most-memory", needed]) as server:
        assert server.finished(server.job(body))["state"] == "completed"
    with Serving(model, clip_model, flags=["--most-memory", needed - 1]) as server:
        refused = server.post("/pom/v1/jobs", body)
        assert (refused.status, refused.error["code"]) == (400, "too_expensive")
        assert "--most-memory" in refused.error["message"]
        assert server.finished(server.job({"class": "star"}))["state"] == "completed"
    with Serving(model, clip_model, flags=["--most-memory", 1000]) as server:
        refused = server.post("/pom/v1/streams", {"prompt": "a star"})
        assert (refused.status, refused.error["code"]) == (503, "out_of_memory")


def test_a_gallery_has_a_bound(model, tmp_path):  # noqa: F811
    folder = tmp_path / "gallery"
    with Serving(model, flags=["--gallery", folder]) as server:
        size = len(server.made({"class": "star", "seed": 1}))
    flags = ["--gallery", folder, "--gallery-limit", 3 * size + size // 2]
    with Serving(model, flags=flags) as server:
        for seed in range(2, 7):
            server.made({"class": "star", "seed": seed})
        kept = server.get("/pom/v1/pictures").json["pictures"]
        assert kept[0]["seed"] == 6 and 2 <= len(kept) <= 4
        files = {p.stem for p in folder.glob("*.png")}
        assert files == {p["id"] for p in kept}
    with Serving(model, flags=["--gallery", folder, "--gallery-limit", size + size // 2]) as server:
        assert [p["seed"] for p in server.get("/pom/v1/pictures").json["pictures"]] == [6]
    result = pom("serve", "--gallery-limit", "1G", "--model", model, cwd=tmp_path)
    assert result.returncode == 2 and "--gallery" in result.stderr


def test_pictures_have_owners_after_a_restart(model, tmp_path):  # noqa: F811
    (tmp_path / "keys").write_text("first-key-1\nsecond-key-2\n")
    flags = ["--gallery", tmp_path / "gallery", "--api-key-file", tmp_path / "keys"]
    first, second = ({"X-API-Key": key} for key in ("first-key-1", "second-key-2"))
    with Serving(model, flags=flags) as server:
        job = server.finished(server.job({"class": "star", "seed": 1}, headers=first), headers=first)
        url = job["items"][0]["picture"]["url"]
    for file in (tmp_path / "gallery").iterdir():
        assert b"first-key" not in file.read_bytes()
    (tmp_path / "keys").write_text("third-key-3\nsecond-key-2\nfirst-key-1\n")
    with Serving(model, flags=flags) as server:
        for who, status, count in ((first, 200, 1), (second, 404, 0), ({"X-API-Key": "third-key-3"}, 404, 0)):
            assert server.get(url, headers=who).status == status
            assert len(server.get("/pom/v1/pictures", headers=who).json["pictures"]) == count
        assert server.ask("DELETE", url, headers=second).status == 404
    (tmp_path / "gallery" / "owners.txt").unlink()  # what nobody is said to own is everybody's
    with Serving(model, flags=flags) as server:
        assert server.get(url, headers=second).status == 200


def test_who_asks_behind_a_proxy(model):  # noqa: F811
    here, there = {"X-Forwarded-For": "198.51.100.7"}, {"Forwarded": 'for="[2001:db8::7]:443"'}
    with Serving(model, flags=["--trusted-proxy", "127.0.0.1"]) as server:
        job = server.job({"class": "star", "seed": 1}, headers=here)
        assert server.get(f"/pom/v1/jobs/{job['id']}", headers=here).status == 200
        for other in ({}, there, {"X-Forwarded-For": "198.51.100.7, 203.0.113.9"}):
            assert server.get(f"/pom/v1/jobs/{job['id']}", headers=other).status == 404
        server.finished(job, headers=here)
        server.stop()
        assert any(" 198.51.100.7 POST " in line for line in server.log)
    with Serving(model) as server:  # nobody is believed
        job = server.job({"class": "star", "seed": 1}, headers=here)
        assert server.get(f"/pom/v1/jobs/{job['id']}", headers=there).status == 200
    result = pom("serve", "--trusted-proxy", "proxy", "--model", model, cwd="/")
    assert result.returncode == 2 and "trusted proxy" in result.stderr
