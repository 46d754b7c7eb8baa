"""kill -9 at many points, twenty and more of them inside the write of a gallery's file; and a full disk."""

import io
import random
import signal
import time

from PIL import Image

from .world import Measure, Row, World, at_most, exactly

# The steps of an atomic write, before each of which the server can be made to kill itself.
STEPS = ("create", "write", "sync", "close", "rename", "sync_folder")
SETTINGS = {"class": "star", "steps": 2, "width": 32, "height": 32}


def points(full: bool) -> list[str | float]:
    """Names of failpoints, and seconds after which a signal comes."""
    inside = [f"atomic_file.{step}:{count}" for count in ((1, 2, 3, 5) if full else (2,)) for step in STEPS]
    chance = random.Random(3)
    timed = [chance.uniform(0.02, 0.6) for _ in range(26 if full else 2)]
    mixed = [*inside, *timed]
    chance.shuffle(mixed)
    return mixed


def work_until_dead(server, point: str | float, seed: int) -> list[str]:
    """The ids of pictures that a client was told of before the server died."""
    told, end = [], time.monotonic() + (point if isinstance(point, float) else 30)
    try:
        while time.monotonic() < end:
            job = server.job(SETTINGS | {"seed": seed + len(told)})
            while job["state"] in ("queued", "running"):
                job = server.get(f"/pom/v1/jobs/{job['id']}").json
            if job["items"][0]["picture"]:
                told.append(job["items"][0]["picture"]["id"])
    except OSError:
        pass
    server.stop(signal.SIGKILL)
    return told


def whole_files(folder) -> tuple[int, int]:
    """How many PNG files are whole, and how many are there, with whatever else is left but who owns them."""
    paths, whole = [path for path in folder.iterdir() if not path.name.startswith("owners.")], 0
    for path in paths:
        try:
            Image.open(io.BytesIO(path.read_bytes())).load()
            whole += 1
        except (OSError, SyntaxError):
            pass
    return whole, len(paths)


def reproduced(server) -> bool | None:
    pictures = server.get("/pom/v1/pictures").json["pictures"]
    if not pictures:
        return None
    job = server.finished(server.post("/pom/v1/reproduce", {"picture": pictures[0]["id"]}).json)
    return job["reproduces"]["agrees"] is True


def kills(world: World) -> list[Measure]:
    gallery, plan = world.folder / "killed-gallery", points(world.full)
    slowest = died = torn = lost = again = wrong = 0
    told: set[str] = set()
    for number, point in enumerate([*plan, None]):  # the last start looks at what the last kill left
        began = time.monotonic()
        server = world.serve(flags=["--gallery", gallery], failpoint=point if isinstance(point, str) else "")
        assert server.get("/health").json["status"] == "ok"
        slowest = max(slowest, time.monotonic() - began)
        if number > 0:
            whole, files = whole_files(gallery)
            torn += files - whole
            known = {p["id"] for p in server.get("/pom/v1/pictures?limit=200").json["pictures"]}
            lost += len(told - known) if len(known) < 200 else 0
            verdict = reproduced(server)
            again += verdict is not None
            wrong += verdict is False
        if point is None:
            server.stop(signal.SIGKILL)
            break
        told |= set(work_until_dead(server, point, 1000 * number))
        died += server.process.returncode == -signal.SIGKILL
        for old in sorted(gallery.glob("*.png"), key=lambda path: path.stat().st_mtime)[:-100]:
            told.discard(old.stem)
            old.unlink()
    inside = sum(isinstance(point, str) for point in plan)
    return [
        exactly(f"killed, {inside} of them inside a gallery write", len(plan), died),
        at_most("slowest start", world.number(2, 10), slowest, " s"),
        exactly("files that are not whole", 0, torn),
        exactly("pictures that were told of and are gone", 0, lost),
        Measure("reproduce agrees", f"{again} of {again}", f"{again - wrong} of {again}", wrong == 0),
        full_disk(world),
    ]


def full_disk(world: World) -> Measure:
    """The first file cannot be written: its answer comes all the same."""
    gallery = world.folder / "full-gallery"
    with world.serve(flags=["--gallery", gallery], failpoint="atomic_file.write:1:ENOSPC") as server:
        made = [server.made(SETTINGS | {"seed": seed}).startswith(b"\x89PNG") for seed in range(3)]
        written = len(list(gallery.glob("*.png")))
    return exactly("disk full at the first of three: answers, files", "3, 2", f"{sum(made)}, {written}")


ROWS = [
    Row("kill", "kill -9 at 50 points, 24 of them inside a gallery write", kills),
]
