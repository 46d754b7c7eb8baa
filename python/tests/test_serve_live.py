"""Tests of live streams: frames that are those of `pom sample`, prompts that change, slow viewers, forks
and ends.
"""

import concurrent.futures
import io
import json
import socket
import subprocess
import threading
import time
import urllib.request

import numpy as np
import pytest
from PIL import Image

from serving import Serving
from test_cli import model, pom  # noqa: F401
from test_cli_video import ffmpeg  # noqa: F401
from test_serve import _built_with_a_server, clip_model  # noqa: F401


@pytest.fixture(scope="module")
def server(model, clip_model):  # noqa: F811
    with Serving(model, clip_model) as serving:
        yield serving


@pytest.fixture
def stream(server):
    made = opened(server, "a star", seed=5)
    yield made
    server.ask("DELETE", f"/pom/v1/streams/{made['id']}")


def opened(server, prompt, **more):
    answer = server.post("/pom/v1/streams", {"prompt": prompt, "fps": 100, **more})
    assert answer.status == 201, answer.body
    return answer.json


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def own_frames(folder, clip_model, frames, *words):  # noqa: F811
    result = pom(
        *["sample", "--model", clip_model, "--prompt", "a star", "--seed", 5, "--frames", frames],
        *["--stream", *words, "-o", "frames"],
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    return [pixels((folder / "frames" / f"{i:06d}.png").read_bytes()) for i in range(frames)]


def state_of(server, stream):
    return server.get(f"/pom/v1/streams/{stream['id']}").json


def test_frames_and_a_new_prompt(server, stream, clip_model, tmp_path):  # noqa: F811
    seen, told = {}, None
    for index, _, prompt, png in server.frames(stream):
        seen[index] = (prompt, pixels(png))
        if told is None and len(seen) == 6:
            told = server.post(f"/pom/v1/streams/{stream['id']}/prompt", {"prompt": "blue"}).json
        if told and index >= told["frame"] + 5:
            break
    assert told["number"] == 1 and told["frame"] == told["block"] * 2
    last = max(seen) + 1
    expected = own_frames(tmp_path, clip_model, last, "--prompt-at", f"{told['frame']}:blue")
    for index, (prompt, frame) in seen.items():
        assert prompt == (index >= told["frame"])
        assert np.array_equal(frame, expected[index]), index
    prompts = state_of(server, stream)["prompts"]
    assert [p["text"] for p in prompts] == ["a star", "blue"] and prompts[1]["frame"] == told["frame"]


def test_the_rate_is_told_as_soon_as_it_is_known(server):
    """To listeners who ask for nothing: a page has no other way to know it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/pom/v1/events", timeout=20) as events:
        made = opened(server, "a star")
        frames = server.frames(made)
        for _ in range(4):
            next(frames)
        rates, end = [], time.monotonic() + 20
        while not any(rates) and time.monotonic() < end:
            if events.readline().strip() == b"event: stream":
                told = json.loads(events.readline().removeprefix(b"data: "))
                if told["id"] == made["id"]:
                    rates.append(told["rate"])
        frames.close()
        server.ask("DELETE", f"/pom/v1/streams/{made['id']}")
    assert rates[0] == 0 and rates[-1] > 0


def test_it_rests_when_nobody_looks(server, stream):
    frames = server.frames(stream)
    for _ in range(4):
        next(frames)
    assert state_of(server, stream)["viewers"] == 1
    frames.close()
    end = time.monotonic() + 20
    while state_of(server, stream)["state"] != "resting" and time.monotonic() < end:
        time.sleep(0.02)
    first = state_of(server, stream)
    time.sleep(0.3)
    assert first["state"] == "resting" and state_of(server, stream)["frame"] == first["frame"]
    again = server.frames(stream)
    index = [next(again)[0] for _ in range(3)]
    assert index[0] >= first["frame"] - 1 and index[-1] > first["frame"] - 1


def test_who_asks_for_the_head_is_no_viewer(server, stream):
    assert server.ask("HEAD", f"/pom/v1/streams/{stream['id']}/frames").status == 200
    assert state_of(server, stream)["viewers"] == 0


def test_pause(server, stream):
    frames = server.frames(stream)
    next(frames)
    paused = server.post(f"/pom/v1/streams/{stream['id']}/pause", {"paused": True}).json
    assert paused["state"] == "paused"
    before = stands_at(server, stream)
    time.sleep(0.2)
    assert state_of(server, stream)["frame"] == before
    server.post(f"/pom/v1/streams/{stream['id']}/pause", {"paused": False})
    last = 0
    while last <= before:
        last = next(frames)[0]


def stands_at(server, stream):
    """The frame at which a stream stops that was paused: the block under way is made."""
    frame, end = -1, time.monotonic() + 20
    while frame != (frame := state_of(server, stream)["frame"]):
        assert time.monotonic() < end
        time.sleep(0.2)
    return frame


def test_a_fork_goes_on_from_there(server, stream, clip_model, tmp_path):  # noqa: F811
    frames = server.frames(stream)
    for _ in range(4):
        next(frames)
    server.post(f"/pom/v1/streams/{stream['id']}/pause", {"paused": True})
    made = stands_at(server, stream)
    fork = server.post(f"/pom/v1/streams/{stream['id']}/fork", {})
    assert fork.status == 201 and fork.json["forked_from"] == stream["id"]
    shown = {index: pixels(png) for index, _, _, png in first_of(server.frames(fork.json), 4)}
    expected = own_frames(tmp_path, clip_model, made + 20)
    offsets = [k for k in range(0, made + 12, 2) if np.array_equal(shown[0], expected[k])]
    assert offsets, "the fork shows frames of the stream"
    for index, frame in shown.items():
        assert np.array_equal(frame, expected[offsets[0] + index])
    server.ask("DELETE", f"/pom/v1/streams/{fork.json['id']}")


def first_of(frames, count):
    for _, frame in zip(range(count), frames, strict=False):
        yield frame


def test_a_viewer_that_does_not_read_holds_nobody_up(server, stream):
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(
            f"GET /pom/v1/streams/{stream['id']}/frames HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        indices = [index for index, *_ in first_of(server.frames(stream), 60)]
        assert indices == list(range(indices[0], indices[0] + 60))


def test_frames_come_when_they_are_made(server, stream):
    frames = server.frames(stream)
    for _ in range(5):  # where the machine is busy, in some second
        lags = [time.time() - micros / 1e6 for _, micros, _, _ in first_of(frames, 40)]
        if sorted(lags)[20] < 0.05:
            break
    assert sorted(lags)[20] < 0.05


def test_mjpeg(server, stream):
    url = f"http://127.0.0.1:{server.port}/pom/v1/streams/{stream['id']}/mjpeg"
    with urllib.request.urlopen(url, timeout=30) as body:
        assert body.headers["Content-Type"] == "multipart/x-mixed-replace; boundary=frame"
        data = b""
        while data.count(b"--frame") < 4:
            data += body.read(200)
    part = data.split(b"--frame\r\n")[2]
    assert Image.open(io.BytesIO(part.split(b"\r\n\r\n", 1)[1])).format == "JPEG"


def video(server, stream, path, fragments, query="", end=True):
    """The .mp4 of a stream in a file: so many fragments, then what comes until the stream has ended."""
    url = f"http://127.0.0.1:{server.port}/pom/v1/streams/{stream['id']}/video.mp4{query}"
    with urllib.request.urlopen(url, timeout=30) as body:
        assert body.headers["Content-Type"] == "video/mp4"
        data = b""
        while data.count(b"moof") < fragments:
            data += body.read1(4096)
        if end:
            server.ask("DELETE", f"/pom/v1/streams/{stream['id']}")
            data += body.read()  # an end, and no break
    path.write_bytes(data)
    return data


def probed(path):
    words = ["ffprobe", "-v", "error", "-count_frames", "-show_streams", "-show_packets", "-of", "json"]
    result = subprocess.run([*words, str(path)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and not result.stderr, result.stderr
    found = json.loads(result.stdout)
    return found["streams"][0], found["packets"]


def test_video(server, stream, ffmpeg, tmp_path):  # noqa: F811
    late = threading.Thread(target=video, args=(server, stream, tmp_path / "late.mp4", 70, "", False))
    viewer = server.frames(stream)
    next(viewer)
    late.start()
    data = video(server, stream, tmp_path / "whole.mp4", 150, "?scale=2")
    late.join(timeout=30)
    first, packets = probed(tmp_path / "whole.mp4")
    size = state_of(server, stream)["width"], state_of(server, stream)["height"]
    assert (first["codec_name"], first["width"], first["height"]) == ("h264", 2 * size[0], 2 * size[1])
    assert float(first["start_time"]) == 0 and first["avg_frame_rate"] == "100/1"
    assert int(first["nb_read_frames"]) == len(packets) == 2 * data.count(b"moof")  # two of each block
    assert {p["duration_time"] for p in packets} == {"0.010000"}
    assert packets[0]["flags"].startswith("K") and sum(p["flags"].startswith("K") for p in packets) >= 2
    whole = (tmp_path / "late.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: whole.rindex(b"moof") - 4])  # who leaves has whole fragments
    cut, packets = probed(tmp_path / "cut.mp4")
    assert float(cut["start_time"]) == 0 and packets[0]["flags"].startswith("K") and len(packets) >= 138


def test_video_is_for_all_who_come(server, stream, ffmpeg, tmp_path):  # noqa: F811
    url = f"/pom/v1/streams/{stream['id']}/video.mp4"
    assert server.ask("HEAD", url).status == 200
    for wrong in ("?scale=0", "?scale=x", "?scale=65", "?scale=64"):
        refused = server.get(url + wrong)
        assert (refused.status, refused.error["param"]) == (400, "scale"), wrong
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        paths = [tmp_path / f"{i}.mp4" for i in range(3)]
        list(pool.map(lambda path: video(server, stream, path, 30, "", False), paths))
    heads = {path.read_bytes()[: path.read_bytes().index(b"moof") - 4] for path in paths}
    assert len(heads) == 1
    end = time.monotonic() + 20
    while state_of(server, stream)["viewers"] and time.monotonic() < end:
        time.sleep(0.02)
    assert state_of(server, stream)["viewers"] == 0


def test_video_nobody_reads(server, stream, ffmpeg):  # noqa: F811
    before = server.memory()
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        path = f"/pom/v1/streams/{stream['id']}/video.mp4?scale=16"
        slow.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        indices = [index for index, *_ in first_of(server.frames(stream), 150)]
        assert indices == list(range(indices[0], indices[0] + 150))  # it holds nobody up
    assert server.memory() - before < 40 << 20


def test_the_end(server, stream):
    frames = server.frames(stream)
    next(frames)
    ended = server.ask("DELETE", f"/pom/v1/streams/{stream['id']}").json
    assert ended["state"] == "ended"
    assert max((index for index, *_ in frames), default=0) < ended["frame"] + 20
    again = server.post(f"/pom/v1/streams/{stream['id']}/prompt", {"prompt": "blue"})
    assert (again.status, again.error["code"]) == (409, "ended")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_value"),
        ({"prompt": "a star", "frames": 5}, 400, "unknown_parameter"),
        ({"prompt": "a star", "model": "tiny"}, 400, "not_supported"),
        ({"prompt": "a star", "steps": 251}, 400, "too_expensive"),
        ({"prompt": "a star", "width": 1024, "height": 512}, 400, "too_expensive"),
        ({"prompt": "a star", "model": "none"}, 404, "model_not_found"),
    ],
)
def test_mistakes(server, body, status, code):
    if body.get("model") == "tiny":
        code, status = "unknown_parameter", 400  # it has classes, and no prompt
    answer = server.post("/pom/v1/streams", body)
    assert (answer.status, answer.error["code"]) == (status, code), answer.body


def test_pictures_are_made_beside_streams(server, stream):
    frames = server.frames(stream)
    next(frames)
    job = server.job({"model": "tiny", "class": "star", "steps": 200, "seed": 3})
    while server.get(f"/pom/v1/jobs/{job['id']}").json["state"] != "completed":
        next(frames)


def test_as_many_streams_as_are_allowed(clip_model):  # noqa: F811
    with Serving(clip_model, flags=["--most-streams", 1]) as server:
        first = opened(server, "a star")
        refused = server.post("/pom/v1/streams", {"prompt": "a star"})
        assert (refused.status, refused.error["code"]) == (503, "queue_full")
        server.ask("DELETE", f"/pom/v1/streams/{first['id']}")
        assert opened(server, "a star")


def test_a_killed_server_leaves_nothing_for_good(model, clip_model, tmp_path):  # noqa: F811
    env = {"TMPDIR": tmp_path}
    (tmp_path / "pom-live-of-somebody").mkdir()
    with Serving(model, clip_model, env=env) as server:
        next(server.frames(opened(server, "a star")))
        own = set(tmp_path.iterdir())
        assert len(own) == 2
    assert set(tmp_path.iterdir()) == own  # it was killed
    with Serving(model, env=env) as first, Serving(model, env=env):
        assert len(set(tmp_path.iterdir()) - own) == 2 and len(list(tmp_path.iterdir())) == 3
        assert first.stop() == 0
        assert len(list(tmp_path.iterdir())) == 2
