"""A `pom serve` for tests, and what they ask it with."""

import concurrent.futures
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request

from test_cli import environment, program


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        found = self.json["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found


class Serving:
    """The program on a free port, for models in these folders."""

    def __init__(self, *models, flags=(), env=None):
        words = [str(program()), "serve", "--port", "0", "--threads", "1"]
        for model in models:
            words += ["--model", str(model)]
        self.process = subprocess.Popen(
            [*words, *map(str, flags)],
            env=environment(**(env or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = []
        line = self.process.stdout.readline()
        assert line.startswith("http"), line + self.process.stderr.read()
        self.port = int(re.search(r":(\d+)$", line.strip()).group(1))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop(signal.SIGKILL)

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self.reader.join(timeout=10)
        return code

    def ask(self, method, path, body=None, headers=None, timeout=60):
        data = body
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as got:
                return Answer(got.status, got.headers, got.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers, error.read())

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def post(self, path, body, **options):
        return self.ask("POST", path, body, **options)

    def job(self, body, **options):
        answer = self.post("/pom/v1/jobs", body, **options)
        assert answer.status == 202, answer.body
        return answer.json

    def finished(self, job, seconds=60, **options):
        """The job once it is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job = self.get(f"/pom/v1/jobs/{job['id']}", **options).json
            if job["state"] not in ("queued", "running"):
                return job
            time.sleep(0.02)
        raise AssertionError(f"still {job['state']}")

    def running(self, job, seconds=60, **options):
        """The job once it runs."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job = self.get(f"/pom/v1/jobs/{job['id']}", **options).json
            if job["state"] != "queued":
                assert job["state"] == "running", job
                return job
            time.sleep(0.005)
        raise AssertionError("still queued")

    def joined(self, long, requests):
        """PNG of each request, asked for by clients of their own while `long` is made: so they wait, and are
        made together. The long job runs before they are sent: a device that waits for bursts (--gather) would
        else have it wait behind them, as its client has had the most.
        """
        long = self.running(self.job(long))
        own = [
            {"Cache-Control": "no-cache", "X-Forwarded-For": f"198.51.100.{i + 1}"}
            for i in range(len(requests))
        ]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            jobs = list(pool.map(lambda body, headers: self.job(body, headers=headers), requests, own))
            assert self.ask("DELETE", f"/pom/v1/jobs/{long['id']}").json["state"] == "cancelled"
            over = list(pool.map(lambda job, headers: self.finished(job, headers=headers), jobs, own))
        urls = [job["items"][0]["picture"]["url"] for job in over]
        return [self.get(url, headers=headers).body for url, headers in zip(urls, own, strict=True)]

    def made(self, body):
        """The file of the one picture or clip of a request."""
        job = self.finished(self.job(body))
        assert job["state"] == "completed", job
        return self.get(job["items"][0]["picture"]["url"]).body

    def raw(self, data, wait=5):
        """What comes back for these bytes, until the server closes or is silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as line:
            line.sendall(data)
            got = b""
            try:
                while piece := line.recv(65536):
                    got += piece
            except (TimeoutError, ConnectionResetError):
                pass
            return got

    def frames(self, stream):
        """Frames of a live stream as (index, microseconds, prompt, png), without end."""
        url = f"http://127.0.0.1:{self.port}/pom/v1/streams/{stream['id']}/frames"
        with urllib.request.urlopen(url, timeout=60) as body:
            while head := body.read(20):
                size, index, micros, prompt = struct.unpack("<IIQI", head)
                yield index, micros, prompt, body.read(size)

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) * 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))
