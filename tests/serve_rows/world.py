"""What the rows of tests/serve.py share: tiny models, servers, pictures of `pom sample`, and how a result is
written down."""

import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "python", ROOT / "python/tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
os.environ.setdefault("LIBPOM_LIBRARY", str(ROOT / "build/release/libpom.so"))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # the Makefile says why

from serving import Serving  # noqa: E402
from test_cli import pom, write_model  # noqa: E402
from test_cli_video import write_clip_model  # noqa: E402

MIB = 1 << 20
HOST = "Host: localhost\r\n"


@dataclass
class Measure:
    what: str
    asked: str
    got: str
    ok: bool


def at_most(what: str, limit: float, got: float, unit: str = "") -> Measure:
    return Measure(what, f"≤ {limit:.4g}{unit}", f"{got:.4g}{unit}", got <= limit)


def exactly(what: str, wanted, got) -> Measure:
    return Measure(what, f"{wanted}", f"{got}", wanted == got)


@dataclass
class Row:
    name: str
    about: str
    run: Callable[["World"], list[Measure]]
    # What switches the protection off (POM_FAILPOINT), and how measures begin of which one must fail then.
    control: str = ""
    fails: tuple[str, ...] = ()
    small: bool = True  # it has a size that `make test` can afford


@dataclass
class World:
    """Where rows run: full numbers or a few of each, and what is switched off."""

    folder: Path
    full: bool = True
    failpoint: str = ""
    soak: float = 60
    made: dict = field(default_factory=dict)
    say: Callable[[str], None] = print

    def number(self, full: int, small: int) -> int:
        return full if self.full else small

    @property
    def tiny(self) -> Path:
        path = self.folder / "models" / "tiny"
        return path if path.exists() else write_model(path)

    @property
    def clips(self) -> Path:
        path = self.folder / "models" / "causal"
        return path if path.exists() else write_clip_model(path)

    def serve(self, *models: Path, flags=(), failpoint: str = "", keys: int = 0) -> Serving:
        points = ",".join(each for each in (self.failpoint, failpoint) if each)
        flags = ["--quiet", *map(str, flags)]
        if keys:
            path = self.folder / "keys.txt"
            path.write_text("".join(f"{key_of(i)}\n" for i in range(keys)))
            flags += ["--api-key-file", str(path)]
        return Serving(
            *(models or [self.tiny]), flags=flags, env={"POM_FAILPOINT": points} if points else None
        )

    def sampled(self, count: int, **settings) -> list[bytes]:
        """The files of `pom sample` for so many seeds from 0 on."""
        words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        name = "sampled-" + re.sub(r"[^a-z0-9]+", "-", " ".join([str(count), *words]))
        folder = self.folder / name
        if not folder.exists():
            result = pom(
                *["sample", "--model", self.tiny, "--seed", 0, "--count", count, *words],
                *["-o", f"{folder}/"],
                cwd=self.folder,
                timeout=600,
            )
            assert result.returncode == 0, result.stderr
        in_order = sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))
        return [path.read_bytes() for path in in_order]


def key_of(client: int) -> str:
    return f"client-{client:03d}-of-the-serve-test"


class Client:
    """A connection that stays open, of a client with a key or without."""

    def __init__(self, server: Serving, key: int | None = None, timeout: float = 120) -> None:
        self.line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
        self.headers = {} if key is None else {"Authorization": f"Bearer {key_of(key)}"}

    def ask(self, method: str, path: str, body=None, **headers: str):
        """Status, headers and the body's bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = self.headers | {"Content-Type": "application/json"} | headers
        self.line.request(method, path, body=data, headers=sent)
        answer = self.line.getresponse()
        return answer.status, answer.headers, answer.read()

    def json(self, method: str, path: str, body=None):
        return json.loads(self.ask(method, path, body)[2])

    def close(self) -> None:
        self.line.close()


def request_bytes(path: str, body: bytes, more: str = "", method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\n{HOST}Content-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def connected(server: Serving, **options) -> socket.socket:
    line = socket.socket()
    for name, value in options.items():
        line.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    line.settimeout(60)
    line.connect(("127.0.0.1", server.port))
    return line


def metric(server: Serving, name: str) -> float:
    """A number of /metrics; 0 where it has not been counted yet."""
    text = server.get("/metrics").body.decode()
    found = re.search(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def median_time(call: Callable[[], object], times: int) -> float:
    return statistics.median(timed(call) for _ in range(times))


def settled(until: Callable[[], bool], patience: float) -> float:
    """Seconds until it holds; infinity where it never does."""
    began = time.monotonic()
    while time.monotonic() - began < patience:
        if until():
            return time.monotonic() - began
        time.sleep(0.05)
    return time.monotonic() - began if until() else float("inf")


def at_work(server: Serving) -> int:
    health = server.get("/health").json
    return health["queued"] + health["running"]


def resident_mib(server: Serving) -> float:
    return server.memory() / MIB


def busy() -> str:
    """How much else ran on this machine, for the report."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def commit() -> str:
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip() or "unknown"
