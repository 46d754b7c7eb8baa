"""Tests of /v1/videos with OpenAI's own client: clips as videos, over the one queue."""

import io
import json
import time

import pytest
from PIL import Image

from test_cli import model, pom  # noqa: F401
from test_serve import _built_with_a_server, clip_model  # noqa: F401
from test_serve_clients import client, server  # noqa: F401
from tools import referee

# The client calls its own interface deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

KEYS = {
    *["id", "object", "model", "status", "progress", "created_at", "completed_at", "expires_at", "prompt"],
    *["size", "seconds", "remixed_from_video_id", "error"],
}


def test_create_and_poll_and_download(client, clip_model, tmp_path):  # noqa: F811
    extra = {"seed": 3, "num_inference_steps": 4}
    made = client.videos.create_and_poll(prompt="a star", model="sora-2", seconds="1", extra_body=extra)
    assert (made.status, made.progress, made.error) == ("completed", 100, None)
    assert made.model == "causal" and made.prompt == "a star" and made.seconds == "1"
    assert made.completed_at >= made.created_at and made.expires_at > time.time()
    frames, fps = made.model_extra["frames"], made.model_extra["fps"]
    assert made.model_extra["seed"] == 3 and frames == fps
    words = ["--prompt", "a star", "--seed", 3, "--steps", 4, "--frames", frames]
    content = client.videos.download_content(made.id)
    content.write_to_file(tmp_path / "served")
    kind = content.response.headers["content-type"]
    name = "own.mp4" if kind == "video/mp4" else "own.gif"
    own = pom("sample", "--model", clip_model, *words, "-o", name, cwd=tmp_path)
    assert own.returncode == 0, own.stderr
    assert (tmp_path / "served").read_bytes() == (tmp_path / name).read_bytes()
    if kind != "video/mp4":
        return
    still = client.videos.download_content(made.id, variant="thumbnail").read()
    width, height = map(int, made.size.split("x"))
    assert Image.open(io.BytesIO(still)).size == (width, height)
    sheet = Image.open(io.BytesIO(client.videos.download_content(made.id, variant="spritesheet").read()))
    assert sheet.width * sheet.height > frames * width * height


def test_all_keys_are_there(server):  # noqa: F811
    made = server.post("/v1/videos", {"prompt": "a star", "seconds": 0.5, "size": "16x8", "steps": 2})
    assert made.status == 200 and set(made.json) >= KEYS, made.body
    assert made.json["size"] == "16x8" and made.json["id"].startswith("video_")
    assert 100 <= int(made.headers["openai-poll-after-ms"]) <= 1000
    job = server.get("/pom/v1/jobs/" + made.headers["X-Pom-Job"]).json  # one queue with everything else
    assert job["items"][0]["subject"] == "a star"


def test_list_and_delete(client):  # noqa: F811
    made = [client.videos.create(prompt="blue", extra_body={"frames": 4, "seed": i}).id for i in range(3)]
    page = client.videos.list(limit=2)
    assert [v.id for v in page.data] == made[:0:-1] and page.has_more
    assert [v.id for v in client.videos.list(limit=2)][:3] == made[::-1]  # over the pages
    assert [v.id for v in client.videos.list(limit=1, order="desc", after=made[1]).data] == made[:1]
    assert made == [v.id for v in client.videos.list(order="asc") if v.id in made]
    gone = client.videos.delete(made[0])
    assert gone.deleted and gone.object == "video.deleted" and gone.id == made[0]
    assert made[0] not in [v.id for v in client.videos.list()]
    openai = referee("openai")
    for ask in (client.videos.retrieve, client.videos.download_content, client.videos.delete):
        with pytest.raises(openai.NotFoundError):
            ask(made[0])


def test_delete_cancels(client, server):  # noqa: F811
    slow = {"frames": 400, "steps": 250}
    video = client.videos.create(prompt="a star", extra_body=slow)
    openai = referee("openai")
    with pytest.raises(openai.BadRequestError) as refused:
        client.videos.download_content(video.id)
    assert refused.value.code == "not_ready"
    assert client.videos.retrieve(video.id).status in ("queued", "in_progress")
    client.videos.delete(video.id)
    end = time.monotonic() + 20
    while server.get("/health").json["running"] and time.monotonic() < end:
        time.sleep(0.02)
    assert server.get("/health").json["running"] == 0


@pytest.mark.parametrize(
    ("words", "status", "code", "param"),
    [
        ({"seconds": "soon"}, 400, "invalid_value", "seconds"),
        ({"seconds": "-1"}, 400, "invalid_value", "seconds"),
        ({"seconds": "1", "extra_body": {"frames": 3}}, 400, "invalid_value", "seconds"),
        ({"seconds": "1e5"}, 400, "too_expensive", "frames"),
        ({"size": "big"}, 400, "invalid_value", "size"),
        ({"model": "none"}, 404, "model_not_found", "model"),
        ({"model": "tiny"}, 400, "not_supported", "model"),
        ({"extra_body": {"frames": 1}}, 400, "out_of_range", "seconds"),
        ({"extra_body": {"stepz": 3}}, 400, "unknown_parameter", "stepz"),
        ({"extra_body": {"steps": "many"}}, 400, "invalid_value", "steps"),
        ({"extra_body": {"steps": 251}}, 400, "too_expensive", "steps"),
        ({"extra_body": {"save_state": "x"}}, 400, "unknown_parameter", "save_state"),
        ({"input_reference": ("a.png", b"png", "image/png")}, 400, "not_supported", "input_reference"),
    ],
    ids=range(13),
)
def test_mistakes(client, words, status, code, param):  # noqa: F811
    openai = referee("openai")
    with pytest.raises(openai.APIStatusError) as refused:
        client.videos.create(prompt="a star", **words)
    error = refused.value
    assert (error.status_code, error.code, error.param) == (status, code, param), error
    if param == "stepz":
        assert "steps" in error.message


def test_what_no_model_here_can_do(client, server):  # noqa: F811
    openai = referee("openai")
    with pytest.raises(openai.NotFoundError) as refused:
        client.videos.remix("video_" + "0" * 32, prompt="blue")
    assert refused.value.code == "not_supported"
    assert server.get("/v1/videos?limit=0").error["param"] == "limit"
    assert server.get("/v1/videos?order=up").error["param"] == "order"
    assert server.get("/v1/videos?after=video_1").error["param"] == "after"
    assert server.post("/v1/videos", b"x", headers={"Content-Type": "multipart/form-data"}).status == 400
    assert server.post("/v1/videos", b"x", headers={"Content-Type": "text/plain"}).status == 415


def test_pages_of_others_start_no_video(server):  # noqa: F811
    form = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na star\r\n--x--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    foreign = server.post("/v1/videos", form, headers=headers | {"Origin": "https://example.org"})
    assert (foreign.status, foreign.error["code"]) == (403, "cross_origin")
    assert server.post("/v1/videos", form, headers=headers).status == 200


def test_the_document_has_them(server):  # noqa: F811
    paths = server.get("/openapi.json").json["paths"]
    assert set(paths["/v1/videos"]) == {"get", "post"}
    body = paths["/v1/videos"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "multipart/form-data"}
    schema = body["multipart/form-data"]["schema"]
    assert schema["required"] == ["prompt"] and "seconds" in schema["properties"]
    assert "steps" in schema["properties"] and "save_state" not in json.dumps(schema)
