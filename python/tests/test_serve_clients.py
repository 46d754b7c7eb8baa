"""Tests of `pom serve` with programs that were not written for it: OpenAI's client, and what SillyTavern and
open-webui send.
"""

import base64
import json

import pytest

from serving import Serving
from test_cli import model, pom  # noqa: F401
from test_serve import _built_with_a_server, clip_model, sampled  # noqa: F401
from tools import referee


@pytest.fixture(scope="module")
def server(model, clip_model):  # noqa: F811
    with Serving(model, clip_model) as serving:
        yield serving


@pytest.fixture(scope="module")
def client(server):
    openai = referee("openai")
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


def test_openai_models(client):
    assert [m.id for m in client.models.list()] == ["tiny", "causal"]
    assert client.models.retrieve("tiny").owned_by == "libpom"


def test_openai_pictures(client, model, tmp_path):  # noqa: F811
    made = client.images.generate(prompt="a star, please", n=2, extra_body={"seed": 7, "steps": 4})
    assert made.data[0].revised_prompt == "star" and made.size == "16x16"
    assert [d.model_extra["seed"] for d in made.data] == [7, 8]
    own = sampled(tmp_path, model, "--class", "star", "--seed", 7, "--steps", 4)
    assert base64.b64decode(made.data[0].b64_json) == own
    aliases = {"seed": 7, "num_inference_steps": 4, "guidance_scale": 2}
    same = client.images.generate(prompt="star", model="dall-e-3", extra_body=aliases)
    assert base64.b64decode(same.data[0].b64_json) == own


def test_openai_from_text_and_sizes(client):
    made = client.images.generate(prompt="a star", model="causal", size="16x8", extra_body={"seed": 1})
    assert made.size == "16x8" and base64.b64decode(made.data[0].b64_json).startswith(b"\x89PNG")
    jpeg = client.images.generate(prompt="star", output_format="jpeg", output_compression=80)
    assert base64.b64decode(jpeg.data[0].b64_json).startswith(b"\xff\xd8")


def test_openai_urls(client, server):
    made = client.images.generate(prompt="star", response_format="url")
    assert server.get(made.data[0].url).body.startswith(b"\x89PNG")


def test_openai_events(client):
    more = {"seed": 9, "steps": 250, "width": 32, "height": 32}
    events = list(client.images.generate(prompt="star", stream=True, partial_images=2, extra_body=more))
    kinds = [e.type for e in events]
    assert kinds[-1] == "image_generation.completed" and set(kinds[:-1]) <= {"image_generation.partial_image"}
    assert [e.partial_image_index for e in events[:-1]] == list(range(len(events) - 1))
    whole = client.images.generate(prompt="star", extra_body=more)
    assert events[-1].b64_json == whole.data[0].b64_json
    # What was made before comes at once, in either way.
    again = list(client.images.generate(prompt="star", stream=True, partial_images=2, extra_body=more))
    assert [e.type for e in again] == ["image_generation.completed"]
    assert again[0].b64_json == whole.data[0].b64_json


@pytest.mark.parametrize(
    ("words", "status", "code", "param"),
    [
        ({"prompt": "an otter"}, 400, "invalid_value", "prompt"),
        ({"prompt": "a star and a circle"}, 400, "invalid_value", "prompt"),
        ({"prompt": "star", "model": "none"}, 404, "model_not_found", "model"),
        ({"prompt": "star", "n": 11}, 400, "out_of_range", "n"),
        ({"prompt": "star", "size": "big"}, 400, "invalid_value", "size"),
        ({"prompt": "star", "background": "transparent"}, 400, "invalid_value", "background"),
        ({"prompt": "star", "output_format": "webp"}, 400, "invalid_value", "output_format"),
        ({"prompt": "star", "extra_body": {"stepz": 1}}, 400, "unknown_parameter", "stepz"),
        ({"prompt": "star", "stream": True, "extra_body": {"steps": 0}}, 400, "out_of_range", "steps"),
    ],
)
def test_openai_errors(client, words, status, code, param):
    openai = referee("openai")
    with pytest.raises(openai.APIStatusError) as caught:
        client.images.generate(**words)
    error = caught.value
    assert (error.status_code, error.code, error.param) == (status, code, param)


def test_open_webui(server, model, tmp_path):  # noqa: F811
    assert "sd_model_checkpoint" in server.get("/sdapi/v1/options").json
    models = server.get("/sdapi/v1/sd-models").json
    assert server.post("/sdapi/v1/options", server.get("/sdapi/v1/options").json).status == 200
    assert models[0]["title"].startswith("tiny [")
    sent = {"prompt": "star", "batch_size": 2, "width": 16, "height": 16, "steps": 4, "seed": 7}
    made = server.post("/sdapi/v1/txt2img", sent).json
    assert base64.b64decode(made["images"][0]) == sampled(
        tmp_path, model, "--class", "star", "--seed", 7, "--steps", 4
    )
    info = json.loads(made["info"])
    assert info["all_seeds"] == [7, 8] and info["ignored"] == [] and made["parameters"] == sent


def test_silly_tavern(server):
    idle = server.get("/sdapi/v1/progress").json
    assert idle["progress"] == 0 and idle["state"]["job_count"] == 0
    for name in ("samplers", "schedulers", "upscalers", "latent-upscale-modes", "sd-vae", "loras"):
        assert isinstance(server.get(f"/sdapi/v1/{name}").json, list)
    sent = {
        "url": "http://localhost:7860",
        "auth": "",
        "prompt": "star",
        "negative_prompt": "low quality, blurry",
        "sampler_name": "Euler",
        "scheduler": "Automatic",
        "steps": 5,
        "cfg_scale": 7.5,
        "width": 16,
        "height": 16,
        "restore_faces": False,
        "enable_hr": False,
        "denoising_strength": 0.7,
        "override_settings": {"CLIP_stop_at_last_layers": 1},
        "do_not_save_grid": True,
        "seed": -1,
    }
    made = server.post("/sdapi/v1/txt2img", sent, headers={"Authorization": "Basic Og=="}).json
    info = json.loads(made["info"])
    assert len(made["images"]) == 1 and info["steps"] == 5 and info["seed"] >= 0
    assert {"restore_faces", "negative_prompt", "denoising_strength"} <= set(info["ignored"])
    assert server.post("/sdapi/v1/interrupt", {}).json == {}
    found = server.post("/sdapi/v1/png-info", {"image": "data:image/png;base64," + made["images"][0]}).json
    assert found["info"].startswith("star\nSteps: 5") and "pom" in found["items"]
    assert server.post("/sdapi/v1/png-info", {"image": "bm90aGluZw=="}).status == 400


def test_a_model_is_chosen_by_its_title(server):
    title = server.get("/sdapi/v1/sd-models").json[1]["title"]
    made = server.post(
        "/sdapi/v1/txt2img",
        {"prompt": "a star", "steps": 2, "override_settings": {"sd_model_checkpoint": title}},
    ).json
    assert json.loads(made["info"])["sd_model_name"] == "causal"
