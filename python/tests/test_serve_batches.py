"""Batches of fixed sizes, as GPUs have them, and several devices with one queue: here on a CPU, whose bits
depend on no batch. test_cuda_serve.py has the same on GPUs.
"""

import io
import json

from PIL import Image

from serving import Serving
from test_cli import model, pom  # noqa: F401
from test_serve import SLOW, _built_with_a_server, sampled  # noqa: F401

KINDS = ("circle", "square", "star")
QUEUE = ["--most-waiting", 500, "--most-waiting-a-client", 500, "--trusted-proxy", "127.0.0.1"]


def pixels(png):
    return Image.open(io.BytesIO(png)).tobytes()


def batch(png):
    return json.loads(Image.open(io.BytesIO(png)).text["pom"])["batch"]


def neighbours_change_nothing(server, long, settings=None):
    """Batches of every size, while `long` keeps them waiting: an image has the same pixels at any place of a
    batch and whatever the others are.
    """
    settings = settings or {}
    for size, count in ((64, 64), (16, 16), (4, 3)):
        mine = [settings | {"class": KINDS[i % 3], "seed": i} for i in range(count)]
        first = server.joined(long, mine)
        assert {batch(png) for png in first} == {size}
        # The same images at other places, every other one among strangers.
        turned = mine[count // 2 :] + mine[: count // 2]
        again = server.joined(long, turned)
        assert {batch(png) for png in again} == {size}
        back = again[count - count // 2 :] + again[: count - count // 2]
        assert [pixels(png) for png in back] == [pixels(png) for png in first]
        strangers = [
            own if i % 2 else settings | {"class": "circle", "seed": 1000 + i} for i, own in enumerate(mine)
        ]
        among = server.joined(long, strangers)
        assert {batch(png) for png in among} == {size}
        assert [pixels(png) for png in among[1::2]] == [pixels(png) for png in first[1::2]]
        assert pixels(among[0]) != pixels(first[0])


def test_neighbours_change_nothing(model):  # noqa: F811
    """In images so small that a CPU makes 64 at a time."""
    with Serving(model, flags=["--batch-sizes", "1,4,16,64", *QUEUE]) as server:
        neighbours_change_nothing(server, SLOW, {"width": 4, "height": 4})


def test_batches_of_fixed_sizes(model, tmp_path):  # noqa: F811
    """As on a GPU, on a CPU: the pixels are the same, and the file says how many were made together."""
    flags = ["--batch-sizes", "1,4", "--most-waiting-a-client", 20]
    with Serving(model, flags=flags) as server:
        slow = server.job(SLOW)
        jobs = [server.job({"class": "star", "seed": seed}) for seed in range(6)]
        server.ask("DELETE", f"/pom/v1/jobs/{slow['id']}")
        made = [server.get(server.finished(job)["items"][0]["picture"]["url"]).body for job in jobs]
        sizes = []
        for seed, png in enumerate(made):
            (tmp_path / f"{seed}.png").write_bytes(png)
            text = json.loads(Image.open(tmp_path / f"{seed}.png").text["pom"])
            sizes.append(text["batch"])
            assert pom("reproduce", f"{seed}.png", "--model", model, cwd=tmp_path).returncode == 0
        assert sizes == [4] * 6
        own = sampled(tmp_path, model, "--class", "star", "--seed", 5)
        assert Image.open(tmp_path / "5.png").tobytes() == Image.open(tmp_path / "made.png").tobytes()
        assert b'"batch"' not in own
        picture = server.get("/pom/v1/pictures").json["pictures"][0]["id"]
        again = server.finished(server.post("/pom/v1/reproduce", {"picture": picture}).json)
        assert again["reproduces"]["agrees"] is True
        assert 'pom_batch_pictures_bucket{le="4"}' in server.get("/metrics").body.decode()
    result = pom("serve", "--batch-sizes", "4,1", "--model", model, cwd=tmp_path)
    assert result.returncode == 2 and "--batch-sizes" in result.stderr


def test_several_devices_with_one_queue(model, tmp_path):  # noqa: F811
    own = sampled(tmp_path, model, "--class", "star", "--seed", 3)
    with Serving(model, flags=["--device", "cpu,cpu"]) as server:
        slow = server.job(SLOW)
        made = server.made({"class": "star", "seed": 3})  # beside it
        assert made == own and server.get(f"/pom/v1/jobs/{slow['id']}").json["state"] == "running"
        server.ask("DELETE", f"/pom/v1/jobs/{slow['id']}")
    result = pom("serve", "--device", "cpu,cuda:99", "--model", model, cwd=tmp_path)
    assert result.returncode == 2 and "device" in result.stderr
