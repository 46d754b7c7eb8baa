"""A mock of `pom serve` for the tests of its page: the native API with made-up pictures, jobs of a second and
a half, streams of 8 frames a second, a key if one is set, and errors when a test asks for them.

python serve_page_mock.py [PORT] [KEY] serves the page for a person to look at."""

import base64
import json
import queue
import random
import re
import struct
import sys
import threading
import time
import uuid
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from serve_page_pictures import CLASSES, MP4, Scene, gif, png

PAGE = Path(__file__).resolve().parents[2] / "pom" / "serve" / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
EXAMPLES = [
    "a red circle drifts to the right over blue",
    "a pink heart drifts to the left over black",
    "a yellow star drifts up over purple",
    "a green moon drifts down over white",
]
MODELS = [
    {
        "id": "shapes64",
        "makes": "images",
        "reads": "classes",
        "size": [64, 64],
        "classes": CLASSES,
        "frames": 0,
        "fps": 0,
        "block_frames": 1,
        "streams": False,
        "sha256": "0" * 64,
        "examples": [],
    },
    {
        "id": "sprites32",
        "makes": "clips",
        "reads": "text",
        "size": [32, 32],
        "classes": [],
        "frames": 48,
        "fps": 8,
        "block_frames": 2,
        "streams": True,
        "sha256": "1" * 64,
        "examples": EXAMPLES,
    },
]


def schema(model):
    what, how, clips = "What to make", "How to sample", "Clips"
    side = model["size"][0]
    if model["reads"] == "classes":
        subject = "class"
        first = {
            "type": ["string", "integer"],
            "description": "a name, a number, or all",
            "examples": CLASSES,
        }
    else:
        subject, first = "prompt", {"type": "string", "description": "what it shows", "examples": EXAMPLES}
    fields = {subject: first | {"x-group": what}}

    def number(name, group, least, most, default=None, kind="number", help=""):
        fields[name] = {
            "type": kind,
            "minimum": least,
            "maximum": most,
            "description": help,
            "x-group": group,
        }
        if default is not None:
            fields[name]["default"] = default

    number(
        "seed", what, -1, 2**53 - 1, -1, "integer", "the same seed makes the same picture; -1: a random one"
    )
    number("count", what, 1, 10, 1, "integer", "images or clips of each class or prompt")
    number("width", what, 8, 256, side, "integer", "in pixels")
    number("height", what, 8, 256, side, "integer", "in pixels")
    number("steps", how, 1, 250, 20, "integer", "steps of the sampler")
    fields["sampler"] = {
        "type": "string",
        "examples": ["heun", "euler", "ddim"],
        "default": "heun",
        "x-group": how,
    }
    number("shift", how, 0.001, 1000, help="above 1: more steps at high noise, where the layout is decided")
    number("cfg_scale", how, 0, 1000, 2.0, help="guidance towards the class or prompt; 1 is off")
    number("cfg_from", how, 0, 1, help="guidance only where the time is at least this")
    fields["dtype"] = {"type": "string", "enum": ["fp32", "bf16"], "default": "fp32", "x-group": how}
    if model["makes"] == "clips":
        fields["frames"] = {
            "type": ["integer", "string"],
            "description": "frames of the clip",
            "x-group": clips,
        }
        fields["stream"] = {"type": "boolean", "default": False, "x-group": clips}
        number("window", clips, 0, 1000, kind="integer", help="blocks that a block sees; 0: all before it")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "required": [subject],
        "properties": fields,
    }


class RefusalError(Exception):
    def __init__(self, status, message, param=None, code=None):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class Mock:
    """The state of the server. Tests read and change it directly."""

    def __init__(self, key=None, pace=1.5):
        self.key, self.pace = key, pace
        self.clip_type = "video/mp4"
        self.lock = threading.RLock()
        self.jobs, self.pictures, self.files, self.streams = {}, {}, {}, {}
        self.waiting, self.listeners, self.number = queue.Queue(), [], 0
        self.refusals = []  # (method, pattern, RefusalError), each used once
        self.seen = []  # (method, path, headers, body)
        self.open = {"events": 0, "frames": 0}  # connections
        self.cut = threading.Event()  # ends all events and frames while it is set
        self.agrees = True
        threading.Thread(target=self.work, daemon=True).start()

    # Events.

    def tell(self, name, data):
        with self.lock:
            self.number += 1
            for listener in self.listeners:
                listener.put((self.number, name, json.dumps(data)))

    def changed(self, job):
        self.tell("job", self.told(job))

    def state(self):
        jobs = sorted(self.jobs.values(), key=lambda job: -job["created"])
        return {
            "jobs": [self.told(job) for job in jobs],
            "streams": [s.told() for s in self.streams.values()],
        }

    @staticmethod
    def told(job):
        return {name: value for name, value in job.items() if not name.startswith("_")}

    # Jobs.

    def model(self, name):
        found = next((model for model in MODELS if model["id"] == (name or MODELS[0]["id"])), None)
        if found is None:
            raise RefusalError(404, f"there is no model {name}", "model", "model_not_found")
        return found

    def check(self, body, model, more=()):
        fields = schema(model)["properties"]
        for name, value in body.items():
            if name not in fields and name not in {"model", "previews", *more}:
                raise RefusalError(400, f"{name}: unknown field", name, "unknown_parameter")
            field = fields.get(name, {})
            if isinstance(value, int | float) and not field.get("minimum", value) <= value <= field.get(
                "maximum", value
            ):
                bounds = f"{field['minimum']} to {field['maximum']}"
                raise RefusalError(400, f"{name}: {value} is not within {bounds}", name, "out_of_range")
        subject = schema(model)["required"][0]
        if not body.get(subject):
            raise RefusalError(400, f"{subject}: there must be one", subject, "invalid_value")
        return body[subject]

    def submit(self, body, reproduces=None):
        model = self.model(body.get("model"))
        subject = self.check(body, model)
        seed = body.get("seed", -1)
        seed = random.randrange(1_000_000) if seed < 0 else seed
        subjects = CLASSES if subject == "all" else [subject]
        side = body.get("width", model["size"][0])
        frames = int(body.get("frames", model["frames"])) or 1
        subjects = [word for word in subjects for _ in range(body.get("count", 1))]
        items = [
            {
                "seed": seed + i,
                "subject": word,
                "width": side,
                "height": side,
                "frames": frames,
                "picture": None,
            }
            for i, word in enumerate(subjects)
        ]
        job = {
            "id": uuid.uuid4().hex,
            "state": "queued",
            "model": model["id"],
            "position": self.waiting.qsize() + 1,
            "eta": self.pace * (self.waiting.qsize() + 1),
            "created": time.time(),
            "started": None,
            "finished": None,
            "evaluations": {"done": 0, "total": 2 * body.get("steps", 20) - 1},
            "items": items,
            "remarks": [],
            "reproduces": reproduces,
            "error": None,
            "_body": body,
            "_model": model,
        }
        with self.lock:
            self.jobs[job["id"]] = job
            self.changed(job)
        self.waiting.put(job)
        return job

    def work(self):
        while True:
            job = self.waiting.get()
            if job["state"] == "cancelled":
                continue
            job |= {"state": "running", "position": None, "started": time.time()}
            with self.lock:
                line = [j for j in self.jobs.values() if j["state"] == "queued"]
                for position, other in enumerate(line, 1):
                    other |= {"position": position, "eta": self.pace * (position + 1)}
                    self.changed(other)
            scenes = [Scene(item["subject"], item["seed"], item["width"]) for item in job["items"]]
            parts = 10
            for part in range(parts):
                time.sleep(self.pace / parts)
                if job["state"] == "cancelled":
                    break
                total = job["evaluations"]["total"]
                job["evaluations"]["done"] = total * (part + 1) // parts
                job["eta"] = self.pace * (1 - (part + 1) / parts)
                self.changed(job)
                if job["_body"].get("previews") and part % 3 == 2 and part < parts - 1:
                    self.preview(job, scenes, part, parts)
            else:
                self.finish(job, scenes)

    def preview(self, job, scenes, part, parts):
        for item, scene in enumerate(scenes):
            image = base64.b64encode(png(scene.pixels(noise=0.9 - 0.9 * part / parts))).decode()
            record = {"job": job["id"], "item": item, "step": part * 2, "steps": 20, "image": image}
            self.tell("preview", record)

    def finish(self, job, scenes):
        clip = job["_model"]["makes"] == "clips"
        for item, scene in zip(job["items"], scenes, strict=True):
            if not job["reproduces"]:
                item["picture"] = self.keep(job, item, scene, self.clip_type if clip else "image/png")
        if job["reproduces"]:
            different = 0 if self.agrees else 17
            job["reproduces"] = job["reproduces"] | {"agrees": self.agrees, "different_pixels": different}
        job |= {"state": "completed", "finished": time.time(), "eta": 0}
        self.changed(job)

    def keep(self, job, item, scene, kind):
        name = uuid.uuid4().hex
        if kind == "image/png":
            data = png(scene.pixels())
        else:
            data = MP4 if kind == "video/mp4" else gif([scene.pixels(frame) for frame in range(16)], 8)
        subject = {"class" if job["_model"]["reads"] == "classes" else "prompt": item["subject"]}
        sampling = {"steps": (job["evaluations"]["total"] + 1) // 2, "sampler": "heun", "cfg_scale": 2.0}
        request = (
            subject | {"seed": item["seed"], "width": item["width"], "height": item["height"]} | sampling
        )
        url = f"/pom/v1/pictures/{name}.{kind.split('/')[1]}"
        with self.lock:
            self.files[url] = (kind, data)
            self.pictures[name] = {
                "id": name,
                "url": url,
                "type": kind,
                "created": time.time(),
                "model": job["model"],
                "subject": item["subject"],
                "seed": item["seed"],
                "width": item["width"],
                "height": item["height"],
                "frames": item["frames"],
                "request": request | {"dtype": "fp32"},
            }
        return {"id": name, "url": url, "type": kind}

    def fill(self, count):
        """A gallery to begin with."""
        for i in range(count):
            clip = i % 9 == 4
            model = MODELS[1 if clip else 0]
            subject = EXAMPLES[i // 9 % len(EXAMPLES)] if clip else CLASSES[(i * 7 + 3) % 10]
            item = {"subject": subject, "seed": i, "width": model["size"][0], "height": model["size"][0]}
            item["frames"] = 48 if clip else 1
            job = {"model": model["id"], "_model": model, "evaluations": {"total": 39}}
            self.keep(job, item, Scene(subject, i, item["width"]), "image/gif" if clip else "image/png")

    def cancel(self, job):
        if job["state"] in ("queued", "running"):
            job |= {"state": "cancelled", "position": None, "eta": None, "finished": time.time()}
            self.changed(job)


class Stream:
    """An endless clip: a thread that makes a block of two frames each quarter of a second."""

    FPS, BLOCK = 8, 2

    def __init__(self, mock, body, parent=None):
        self.mock, self.id, self.condition = mock, uuid.uuid4().hex, threading.Condition()
        self.seed = parent.seed if parent else max(body.get("seed", -1), -1)
        self.seed = random.randrange(1_000_000) if self.seed < 0 else self.seed
        self.frame = self.first = parent.frame if parent else 0
        self.state, self.viewers, self.forked_from = "running", 0, parent.id if parent else None
        self.prompts = [dict(prompt) for prompt in parent.prompts] if parent else []
        self.frames = deque(maxlen=8)  # (index, prompt, PNG)
        if body.get("prompt") and not parent:
            self.prompts.append({"number": 0, "text": body["prompt"], "frame": 0})
        elif body.get("prompt"):
            self.prompt(body["prompt"])
        mock.streams[self.id] = self
        mock.tell("stream", self.told())
        threading.Thread(target=self.work, daemon=True).start()

    def told(self):
        return {
            "id": self.id,
            "model": "sprites32",
            "state": self.state,
            "width": 32,
            "height": 32,
            "fps": self.FPS,
            "rate": 7.9,
            "block_frames": self.BLOCK,
            "frame": self.frame,
            "viewers": self.viewers,
            "seed": self.seed,
            "prompts": self.prompts,
            "forked_from": self.forked_from,
            "error": None,
        }

    def change(self, **values):
        for name, value in values.items():
            setattr(self, name, value)
        self.mock.tell("stream", self.told())
        with self.condition:
            self.condition.notify_all()

    def prompt(self, text):
        with self.condition:
            frame = (self.frame // self.BLOCK + 1) * self.BLOCK
            self.prompts.append({"number": len(self.prompts), "text": text, "frame": frame})
        self.mock.tell("stream", self.told())
        return {"number": len(self.prompts) - 1, "block": frame // self.BLOCK, "frame": frame}

    def work(self):
        begin = time.monotonic() - self.frame / self.FPS
        while self.state != "ended":
            if self.state == "paused":
                time.sleep(0.02)
                begin = time.monotonic() - self.frame / self.FPS
                continue
            for _ in range(self.BLOCK):
                shown = [prompt for prompt in self.prompts if prompt["frame"] <= self.frame][-1]
                image = png(Scene(shown["text"], self.seed, 32).pixels(self.frame))
                with self.condition:
                    self.frames.append((self.frame, shown["number"], image))
                    self.frame += 1
                    self.condition.notify_all()
            time.sleep(max(0, begin + self.frame / self.FPS - time.monotonic()))

    def watch(self):
        """The records from now on; a viewer that is behind loses what the deque has dropped."""
        after = -1
        while self.state != "ended" and not self.mock.cut.is_set():
            with self.condition:
                if not self.frames or self.frames[-1][0] <= after:
                    self.condition.wait(timeout=0.1)
                fresh = [frame for frame in self.frames if frame[0] > after]
            for index, number, image in fresh[-self.BLOCK :] if after < 0 else fresh:
                after = index
                yield struct.pack("<IIQI", len(image), index, index * 1_000_000 // self.FPS, number) + image


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    mock: Mock

    def log_message(self, *words):
        pass

    def do(self):
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        path = urlsplit(self.path).path
        self.query = parse_qs(urlsplit(self.path).query)
        try:
            self.body = json.loads(raw) if raw else {}
            self.mock.seen.append((self.command, path, dict(self.headers), self.body))
            self.route(path)
        except RefusalError as refusal:
            self.refuse(refusal)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_DELETE = do  # noqa: N815

    def refuse(self, refusal):
        kind = "authentication_error" if refusal.status == 401 else "invalid_request_error"
        error = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}
        self.answer({"error": error}, refusal.status)

    def answer(self, data, status=200):
        self.send(json.dumps(data).encode(), "application/json", status)

    def send(self, data, kind, status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", CSP)
        if status in (429, 503):
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(data)

    def begin(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()

    def route(self, path):
        mock = self.mock
        for refusal in mock.refusals:
            if self.command == refusal[0] and re.search(refusal[1], path):
                mock.refusals.remove(refusal)
                raise refusal[2]
        if path == "/" or path.startswith("/assets/"):
            return self.file(path)
        if path == "/health":
            counts = [
                sum(job["state"] == word for job in mock.jobs.values()) for word in ("queued", "running")
            ]
            health = {
                "status": "ok",
                "version": "0.1.0",
                "device": "cpu",
                "queued": counts[0],
                "running": counts[1],
            }
            return self.answer(health | {"streams": len(mock.streams)})
        if mock.key and self.headers.get("Authorization") != f"Bearer {mock.key}":
            raise RefusalError(401, "the key is missing or wrong", code="invalid_api_key")
        words = path.removeprefix("/pom/v1/").split("/")
        handler = getattr(self, f"{self.command}_{words[0]}", None)
        if not path.startswith("/pom/v1/") or handler is None:
            raise RefusalError(404, "there is nothing here", code="not_found")
        handler(*words[1:])

    def file(self, path):
        file = PAGE / ("index.html" if path == "/" else Path(path).name)
        if not file.is_file():
            raise RefusalError(404, "there is no such file", code="not_found")
        self.send(file.read_bytes(), TYPES[file.suffix])

    def GET_models(self):  # noqa: N802
        self.answer({"models": MODELS})

    def GET_schema(self):  # noqa: N802
        self.answer(schema(self.mock.model(self.query.get("model", [None])[0])))

    def find(self, table, name):
        if name not in table:
            raise RefusalError(404, f"there is no {name}", code="not_found")
        return table[name]

    def GET_jobs(self, name=None):  # noqa: N802
        jobs = self.mock.jobs
        self.answer(Mock.told(self.find(jobs, name)) if name else {"jobs": self.mock.state()["jobs"]})

    def POST_jobs(self):  # noqa: N802
        self.answer(Mock.told(self.mock.submit(self.body)), 202)

    def DELETE_jobs(self, name):  # noqa: N802
        job = self.find(self.mock.jobs, name)
        self.mock.cancel(job)
        self.answer(Mock.told(job))

    def POST_forecast(self):  # noqa: N802
        self.mock.check(self.body, self.mock.model(self.body.get("model")))
        steps = self.body.get("steps", 20)
        self.answer({"seconds": 0.055 * steps, "evaluations": 2 * steps - 1, "macs": 1e10, "items": 1})

    def POST_reproduce(self):  # noqa: N802
        picture = self.find(self.mock.pictures, self.body["picture"])
        body = {
            name: picture["request"][name]
            for name in ("class", "prompt", "seed")
            if name in picture["request"]
        }
        verdict = {"picture": picture["id"], "agrees": None, "different_pixels": 0}
        self.answer(Mock.told(self.mock.submit(body | {"model": picture["model"]}, verdict)), 202)

    def GET_pictures(self, name=None):  # noqa: N802
        if name:
            kind, data = self.find(self.mock.files, f"/pom/v1/pictures/{name}")
            return self.send(data, kind)
        pictures = list(self.mock.pictures.values())[::-1]
        start, limit = int(self.query.get("before", ["0"])[0]), int(self.query.get("limit", ["50"])[0])
        more = str(start + limit) if start + limit < len(pictures) else None
        self.answer({"pictures": pictures[start : start + limit], "next": more})

    def DELETE_pictures(self, name):  # noqa: N802
        picture = self.find(self.mock.pictures, name)
        del self.mock.pictures[name], self.mock.files[picture["url"]]
        self.send_response(204)
        self.end_headers()

    def counted(self, kind, change):
        with self.mock.lock:
            self.mock.open[kind] += change

    def GET_events(self):  # noqa: N802
        mock, listener = self.mock, queue.Queue()
        if mock.cut.is_set():
            raise RefusalError(503, "draining", code="draining")
        with mock.lock:
            mock.listeners.append(listener)
            listener.put((mock.number, "hello", json.dumps(mock.state())))
        self.begin("text/event-stream")
        self.counted("events", 1)
        try:
            while not mock.cut.is_set():
                try:
                    number, name, data = listener.get(timeout=0.1)
                except queue.Empty:
                    self.wfile.write(b": still here\n\n")
                    continue
                record = f"id: {number}\nevent: {name}\ndata: {data}\n\n".encode()
                middle = random.randrange(len(record))  # records come in pieces
                self.wfile.write(record[:middle])
                self.wfile.flush()
                self.wfile.write(record[middle:])
        finally:
            mock.listeners.remove(listener)
            self.counted("events", -1)
            self.close_connection = True

    def GET_streams(self, name=None, what=None):  # noqa: N802
        streams = self.mock.streams
        if name is None:
            return self.answer({"streams": [stream.told() for stream in streams.values()]})
        stream = self.find(streams, name)
        if what is None:
            return self.answer(stream.told())
        if what == "video.mp4":
            return self.video(stream)
        self.begin("application/octet-stream")
        self.counted("frames", 1)
        stream.change(viewers=stream.viewers + 1)
        try:
            for record in stream.watch():
                middle = random.randrange(len(record))  # heads are cut in two now and then
                self.wfile.write(record[:middle])
                self.wfile.flush()
                self.wfile.write(record[middle:])
        finally:
            stream.change(viewers=stream.viewers - 1)
            self.counted("frames", -1)
            self.close_connection = True

    def video(self, stream):
        """Boxes as those of an .mp4 in fragments, cut anywhere."""

        def box(kind, size):
            return struct.pack(">I4s", 8 + size, kind) + bytes(size)

        self.begin("video/mp4")
        self.wfile.write(box(b"ftyp", 16) + box(b"moov", 400))
        while stream.state not in ("ended", "failed"):
            fragment = box(b"moof", 80) + box(b"mdat", 300)
            middle = random.randrange(len(fragment))
            self.wfile.write(fragment[:middle])
            self.wfile.flush()
            time.sleep(0.05)
            self.wfile.write(fragment[middle:])
        self.close_connection = True

    def POST_streams(self, name=None, what=None):  # noqa: N802
        if name is None:
            self.mock.check(self.body, MODELS[1])
            return self.answer(Stream(self.mock, self.body).told(), 201)
        stream = self.find(self.mock.streams, name)
        if what == "prompt":
            return self.answer(stream.prompt(self.mock.check(self.body, MODELS[1])))
        if what == "pause":
            stream.change(state="paused" if self.body["paused"] else "running")
            return self.answer(stream.told())
        self.answer(Stream(self.mock, self.body, stream).told(), 201)

    def DELETE_streams(self, name):  # noqa: N802
        stream = self.find(self.mock.streams, name)
        stream.change(state="ended")
        self.answer(stream.told())


def serve(mock, port=0):
    """A server in threads of its own; its address is `server_address`."""
    handler = type("BoundHandler", (Handler,), {"mock": mock})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


if __name__ == "__main__":
    looked_at = Mock(key=sys.argv[2] if len(sys.argv) > 2 else None)
    looked_at.fill(30)
    port = serve(looked_at, int(sys.argv[1]) if len(sys.argv) > 1 else 8080).server_address[1]
    print(f"http://127.0.0.1:{port}/")
    threading.Event().wait()
