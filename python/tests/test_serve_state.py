"""Tests of live streams that outlive the server (--state): the frames after a restart are those that would
have come, however it ended; files that are no stream's are refused and harm nobody.
"""

import signal
import stat
import time

import numpy as np
import pytest

from serving import Serving
from test_cli import model, pom  # noqa: F401
from test_serve import _built_with_a_server, clip_model  # noqa: F401
from test_serve_live import first_of, opened, own_frames, pixels, state_of


def watched(server, stream, seen, count):
    """The next frames of a stream, beside those that were seen: the same where they come twice."""
    for index, _, prompt, png in first_of(server.frames(stream), count):
        frame = pixels(png)
        if index in seen:
            assert np.array_equal(frame, seen[index][1]) and prompt == seen[index][0], index
        seen[index] = (prompt, frame)


def remark(server, words):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if any(words in line for line in server.log):
            return True
        time.sleep(0.02)
    raise AssertionError(server.log)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["ends", "is killed"])
def test_the_same_frames_after_a_restart(clip_model, tmp_path, how):  # noqa: F811
    flags, seen = ["--state", tmp_path / "state"], {}
    with Serving(clip_model, flags=flags) as server:
        stream = opened(server, "a star", seed=5)
        watched(server, stream, seen, 6)
        told = server.post(f"/pom/v1/streams/{stream['id']}/prompt", {"prompt": "blue"}).json
        watched(server, stream, seen, told["frame"] - max(seen) + 12)
        server.stop(how)
    for _ in range(2):
        before = max(seen)
        with Serving(clip_model, flags=flags) as server:
            again = state_of(server, stream)
            assert again["id"] == stream["id"] and again["seed"] == 5
            assert [p["text"] for p in again["prompts"]] == ["a star", "blue"]
            watched(server, stream, seen, 12)
            while max(seen) < before + 12:
                watched(server, stream, seen, 12)
            server.stop(how)
    last = max(seen) + 1
    if how == signal.SIGTERM:
        assert sorted(seen) == list(range(min(seen), last))  # none is left out
    expected = own_frames(tmp_path, clip_model, last, "--prompt-at", f"{told['frame']}:blue")
    for index, (prompt, frame) in seen.items():
        assert prompt == (index >= told["frame"])
        assert np.array_equal(frame, expected[index]), index
    (file,) = (tmp_path / "state").glob("*.safetensors")
    assert file.stem == stream["id"]


def test_a_paused_stream_and_one_that_was_ended(clip_model, tmp_path):  # noqa: F811
    flags = ["--state", tmp_path / "state"]
    with Serving(clip_model, flags=flags) as server:
        paused, ended = opened(server, "a star", seed=1), opened(server, "blue", seed=2)
        for stream in (paused, ended):
            watched(server, stream, {}, 6)
        server.post(f"/pom/v1/streams/{paused['id']}/pause", {"paused": True})
        server.ask("DELETE", f"/pom/v1/streams/{ended['id']}")
        assert server.stop() == 0
    with Serving(clip_model, flags=flags) as server:
        assert [s["id"] for s in server.get("/pom/v1/streams").json["streams"]] == [paused["id"]]
        end = time.monotonic() + 20
        while state_of(server, paused)["state"] == "starting" and time.monotonic() < end:
            time.sleep(0.02)
        assert state_of(server, paused)["state"] == "paused"
        server.post(f"/pom/v1/streams/{paused['id']}/pause", {"paused": False})
        watched(server, paused, {}, 6)


def test_files_that_are_no_streams(clip_model, tmp_path):  # noqa: F811
    state = tmp_path / "state"
    with Serving(clip_model, flags=["--state", state]) as server:
        good = opened(server, "a star", seed=5)
        watched(server, good, {}, 6)
        assert server.stop() == 0
    whole = (state / f"{good['id']}.safetensors").read_bytes()
    size = int.from_bytes(whole[:8], "little")
    wrong = {
        "1" * 32: whole[: len(whole) // 2],
        "2" * 32: b"no state",
        "3" * 32: whole,  # of another name
        "4" * 32: whole.replace(good["id"].encode(), b"4" * 32).replace(b"pom stream 1", b"pom stream 9"),
        "5" * 32: whole.replace(good["id"].encode(), b"5" * 32).replace(b"blocks", b"rocks!"),
        "6" * 32: (1 << 40).to_bytes(8, "little") + whole[8:],
        "stranger": whole,
    }
    # One whose head is right, and whose sums are not numbers of this network's.
    ours = whole.replace(good["id"].encode(), b"7" * 32)
    wrong["7" * 32] = ours.replace(b'"sums.0"', b'"sums.x"')
    assert len(ours) == len(whole) and size < len(whole)
    for name, data in wrong.items():
        (state / f"{name}.safetensors").write_bytes(data)
    (state / ("8" * 32 + ".safetensors")).symlink_to(state / f"{good['id']}.safetensors")
    with Serving(clip_model, flags=["--state", state, "--most-streams", 20]) as server:
        assert server.get("/health").json["status"] == "ok"
        for name in [*wrong, "8" * 32]:
            assert remark(server, name), name
        watched(server, good, {}, 6)
        running = [s for s in server.get("/pom/v1/streams").json["streams"] if s["state"] != "failed"]
        assert [s["id"] for s in running] == [good["id"]]
        assert server.stop() == 0
    for name, data in wrong.items():
        assert (state / f"{name}.safetensors").read_bytes() == data


def test_whose_it_is(clip_model, tmp_path):  # noqa: F811
    (tmp_path / "keys").write_text("first-key-1\nsecond-key-2\n")
    flags = ["--state", tmp_path / "state", "--api-key-file", tmp_path / "keys"]
    first, second = ({"X-API-Key": key} for key in ("first-key-1", "second-key-2"))
    with Serving(clip_model, flags=flags) as server:
        stream = server.post("/pom/v1/streams", {"prompt": "a star", "fps": 100}, headers=first).json
        path = f"/pom/v1/streams/{stream['id']}"
        end = time.monotonic() + 20
        while server.get(path, headers=first).json["state"] != "resting" and time.monotonic() < end:
            time.sleep(0.02)
        assert server.stop() == 0
    salt = tmp_path / "state" / "owners.salt"
    assert stat.S_IMODE(salt.stat().st_mode) == 0o600
    (file,) = (tmp_path / "state").glob("*.safetensors")
    assert b"first-key" not in file.read_bytes()
    (tmp_path / "keys").write_text("second-key-2\nfirst-key-1\n")  # in another order
    with Serving(clip_model, flags=flags) as server:
        assert server.get(path, headers=second).status == 404
        assert server.get("/pom/v1/streams", headers=second).json["streams"] == []
        assert server.get(path, headers=first).json["id"] == stream["id"]
