"""`pom serve` on a GPU: batches of fixed sizes, in which the bits of an image do not depend on the others;
several GPUs with one queue. Skipped without one. Throughput is bench/serve.py's, with --device cuda.
"""

import time

import pytest
import torch

from serving import Serving
from test_cli import model, pom  # noqa: F401
from test_serve import SLOW, _built_with_a_server  # noqa: F401
from test_serve_batches import QUEUE, batch, neighbours_change_nothing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
LONG = SLOW | {"width": 512, "height": 512}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_bits_do_not_depend_on_the_neighbours(model, dtype):  # noqa: F811
    with Serving(model, flags=["--device", "cuda", "--dtype", dtype, *QUEUE]) as server:
        neighbours_change_nothing(server, LONG)


def test_one_alone_is_a_batch_of_one(model):  # noqa: F811
    with Serving(model, flags=["--device", "cuda", *QUEUE]) as server:
        first, again = (server.made({"class": "star", "seed": 7, "steps": steps}) for steps in (5, 5))
        assert batch(first) == 1 and first == again


@pytest.mark.parametrize("count", [1, 3, 16])
def test_they_can_be_made_again(model, tmp_path, count):  # noqa: F811
    with Serving(model, flags=["--device", "cuda", *QUEUE]) as server:
        made = server.joined(LONG, [{"class": "star", "seed": i} for i in range(count)])
        (tmp_path / "made.png").write_bytes(made[-1])
        result = pom("reproduce", "made.png", "--model", model, "--device", "cuda", cwd=tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
        picture = server.get("/pom/v1/pictures", headers={"X-Forwarded-For": f"198.51.100.{count}"})
        body = {"picture": picture.json["pictures"][0]["id"]}
        own = {"X-Forwarded-For": f"198.51.100.{count}"}
        job = server.post("/pom/v1/reproduce", body, headers=own).json
        assert server.finished(job, headers=own)["reproduces"]["agrees"] is True


@pytest.mark.skipif(CAPABILITY < (9, 0), reason="this GPU has no fp8")
def test_fp8_is_made_alone():
    with Serving("shapes64", flags=["--device", "cuda", "--dtype", "fp8", *QUEUE]) as server:
        slow = server.running(server.job({"class": "star", "steps": 250, "sampler": "heun"}))
        jobs = [server.job({"class": "star", "seed": i, "steps": 4}) for i in range(3)]
        server.ask("DELETE", f"/pom/v1/jobs/{slow['id']}")
        made = [server.get(server.finished(job)["items"][0]["picture"]["url"]).body for job in jobs]
        assert [batch(png) for png in made] == [1, 1, 1]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_several_gpus_with_one_queue(model):  # noqa: F811
    with Serving(model, flags=["--gpus", 2, *QUEUE]) as server:
        jobs = [server.job(SLOW | {"seed": i, "cfg_scale": 1 + i}) for i in range(3)]
        end = time.monotonic() + 10
        states = []
        while states.count("running") < 2 and time.monotonic() < end:
            states = [server.get(f"/pom/v1/jobs/{job['id']}").json["state"] for job in jobs]
        assert sorted(states) == ["queued", "running", "running"]
        for job in jobs:
            server.ask("DELETE", f"/pom/v1/jobs/{job['id']}")
