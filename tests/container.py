#!/usr/bin/env python3
"""The container: builds the image of Containerfile and tries what docs/serve.md says of it.

    make container-test
    .venv/bin/python tests/container.py [--work FOLDER [--built]]

Needs root, and podman, runc and mmdebstrap of Debian; says so and exits with 77 where they are not there.
All that is made is in a folder, which is removed at the end unless --work names one: there the base image is
kept. What was compiled before comes from ccache.
"""

import argparse
import base64
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from container_podman import ROOT, Podman, missing_tools

FILE = ROOT / "Containerfile"
IMAGE = "pom-test"
KEY = "a-key-of-the-container-test"
SKIPPED = 77
MOST_BYTES = 1.2e9  # with a torch for CPUs; one with CUDA is several times that
PICTURE = {"model": "shapes64", "prompt": "star", "seed": 7, "steps": 4, "sampler": "euler"}
SAMPLE = ["sample", "--model", "shapes64", "--class", "star", "--seed", 7, "--steps", 4, "--sampler", "euler"]


class Running:
    """A container of the image: the server behind a port of this machine, as docs/serve.md starts it."""

    def __init__(self, podman: Podman, name: str) -> None:
        self.podman, self.name = podman, name
        with socket.socket() as line:
            line.bind(("127.0.0.1", 0))
            self.port = line.getsockname()[1]
        podman(
            *("run", "--detach", "--name", name, "--publish", f"127.0.0.1:{self.port}:8000"),
            *("--env", f"POM_API_KEY={KEY}", "--volume", "pom-gallery:/gallery"),
            *("--read-only", *podman.limits(), IMAGE),
        )

    def __enter__(self) -> "Running":
        self.wait_until_healthy()
        return self

    def __exit__(self, *_) -> None:
        self.podman("rm", "--force", "--time", 0, self.name, check=False)

    def inside(self, *words: str | int) -> subprocess.CompletedProcess:
        return self.podman("exec", self.name, *words, check=False)

    def ask(self, path: str, body: dict | None = None, key: str = KEY) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def made(self, body: dict) -> bytes:
        status, answer = self.ask("/v1/images/generations", body)
        assert status == 200, answer
        return base64.b64decode(json.loads(answer)["data"][0]["b64_json"])

    def wait_until_healthy(self) -> None:
        end = time.monotonic() + 120
        while True:
            try:
                if self.ask("/health", key="")[0] == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > end:
                raise RuntimeError(f"no /health after 120 s: {self.podman('logs', self.name).stderr}")
            time.sleep(0.2)

    def exit_code(self, seconds: float = 60) -> int:
        return int(self.podman("wait", self.name, timeout=seconds).stdout)


class Checks:
    def __init__(self) -> None:
        self.failed = self.passed = 0

    def __call__(self, what: str, right: bool, got: object = "") -> None:
        self.passed, self.failed = self.passed + bool(right), self.failed + (not right)
        print(f"{'ok ' if right else 'NOT'} {what}{f': {got}' if str(got) else ''}", flush=True)


def check_image(podman: Podman, check: Checks) -> None:
    about = json.loads(podman("image", "inspect", IMAGE).stdout)[0]
    check("size of the image", about["Size"] < MOST_BYTES, f"{about['Size'] / 1e6:.0f} MB")
    words = ["run", "--rm", *podman.limits(), "--entrypoint", "sh", IMAGE, "-c"]
    # What the build was lent leaves its places, empty.
    look = (
        "find /src /root/.cache /run /etc/pip.conf /opt -type f -size +0 -not -path '/opt/pom/*' 2>/dev/null"
    )
    left = [
        line for line in podman(*words, look, check=False).stdout.split() if not line.startswith("/run/.")
    ]
    check("nothing is left of the build and of this machine", left == [], " ".join(left))
    told = podman("run", "--rm", *podman.limits(), IMAGE, check=False)
    refuses = told.returncode == 2 and "POM_API_KEY" in told.stderr
    check("without a key it does not listen on 0.0.0.0", refuses, "exit status 2")


def check_running(server: Running, check: Checks) -> bytes:
    podman = server.podman
    check("/health without a key", server.ask("/health", key="")[0] == 200)
    asked = podman("healthcheck", "run", server.name, check=False)
    check("its own check of health", asked.returncode == 0, asked.stdout.strip())
    codes = [server.ask("/v1/models", key=key)[0] for key in ("", "wrong", KEY)]
    check("a key is demanded", codes == [401, 401, 200], codes)
    models = {model["id"] for model in json.loads(server.ask("/v1/models")[1])["data"]}
    check("the models in it", models == {"shapes64", "sprites32"}, sorted(models))

    status = dict(line.split(":\t", 1) for line in server.inside("cat", "/proc/1/status").stdout.splitlines())
    check("it does not run as root", status["Uid"].split() == ["10000"] * 4, status["Uid"].split()[0])
    check("it has no rights of root's", int(status["CapEff"], 16) == 0, status["CapEff"])
    for path in ("/x", "/opt/pom/x"):
        tried = server.inside("touch", path)
        check(f"{path} cannot be written", tried.returncode != 0, tried.stderr.strip())

    made = server.made(PICTURE)
    own = server.inside("/opt/pom/bin/pom", *SAMPLE, "-q", "-y", "-o", "/gallery/own.png")
    own = server.inside("base64", "/gallery/own.png").stdout if own.returncode == 0 else own.stderr
    check(
        "the picture of pom sample in it, byte for byte", base64.b64decode(own) == made, f"{len(made)} bytes"
    )
    server.inside("rm", "/gallery/own.png")
    return made


def check_outside(made: bytes, check: Checks) -> None:
    """The program of this tree, built by this machine's compiler for the same processor."""
    program = ROOT / "build/release/pom"
    if not program.is_file():
        print(f"{program} is not built: pictures are not compared with it")
        return
    with tempfile.TemporaryDirectory() as folder:
        words = [program, *SAMPLE, "-q", "-o", "own.png"]
        environment = {"POM_MODELS": str(ROOT / "assets"), "PATH": "/usr/bin:/bin"}
        subprocess.run(
            [str(word) for word in words], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE
        )
        check("the picture of build/release/pom sample", (Path(folder) / "own.png").read_bytes() == made)


def check_drain(server: Running, check: Checks) -> None:
    """SIGTERM while an image is made and another waits."""
    body = {"model": "shapes64", "class": "heart", "steps": 60, "sampler": "heun"}
    status, answer = server.ask("/pom/v1/jobs", body)
    job = json.loads(answer)
    end = time.monotonic() + 60
    while job["state"] == "queued" and time.monotonic() < end:
        job = json.loads(server.ask(f"/pom/v1/jobs/{job['id']}")[1])
    check("an image is being made", (status, job["state"]) == (202, "running"), job["state"])
    server.podman("kill", "--signal", "TERM", server.name)
    while server.ask("/health", key="")[0] == 200 and time.monotonic() < end:  # it has not heard of it yet
        time.sleep(0.01)
    status, answer = server.ask("/pom/v1/jobs", body)
    check("new work is refused", status == 503 and b"draining" in answer, status)
    code = server.exit_code()
    check("SIGTERM: it ends with 0", code == 0, code)


def check_gallery(podman: Podman, made: bytes, check: Checks) -> None:
    """Another container with the same volume."""
    with Running(podman, "second") as server:
        pictures = json.loads(server.ask("/pom/v1/pictures")[1])["pictures"]
        kept = [server.ask(picture["url"])[1] for picture in pictures]
        check("the gallery is there again, with the picture", made in kept, f"{len(kept)} files")
        check("and the image that was being made at SIGTERM", len(kept) == 2 and kept[0] != made)
        server.podman("stop", "--time", 30, server.name)
        code = server.exit_code()
        check("podman stop: it ends with 0", code == 0, code)


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the image of Containerfile and tries it.")
    parser.add_argument("--work", type=Path, help="folder that is kept (default: one that is removed)")
    parser.add_argument("--built", action="store_true", help="do not build: try the image that is in --work")
    arguments = parser.parse_args()
    work = arguments.work
    if missing := missing_tools():
        print(f"tests/container.py: skipped: {missing}")
        return SKIPPED
    folder = work or Path(tempfile.mkdtemp(prefix="pom-container-"))
    folder.mkdir(parents=True, exist_ok=True)
    podman, check = Podman(folder.resolve()), Checks()
    try:
        if not arguments.built:
            podman.make_base(FILE)
            began = time.monotonic()
            podman.build(FILE, IMAGE)
            check("the image is built", True, f"{time.monotonic() - began:.0f} s")
        podman("volume", "rm", "--force", "pom-gallery", check=False)
        check_image(podman, check)
        with Running(podman, "first") as server:
            made = check_running(server, check)
            check_outside(made, check)
            check_drain(server, check)
        check_gallery(podman, made, check)
    finally:
        podman("rm", "--force", "--all", "--time", 0, check=False)
        podman("volume", "rm", "--force", "pom-gallery", check=False)
        if not work:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"tests/container.py: {check.passed} passed, {check.failed} failed")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
