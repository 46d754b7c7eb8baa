"""Raw requests to the whole server, most of them hostile, each with its exact outcome: the statuses that come
back, and whether the connection stays open."""

import re

from .world import Measure, Row, World, connected, exactly

H = "Host: localhost\r\n"
J = "Content-Type: application/json\r\n"
CHUNKED = f"POST /pom/v1/jobs HTTP/1.1\r\n{H}{J}Transfer-Encoding: chunked\r\n\r\n"
OPEN, CLOSED = True, False


def line(text: str) -> str:
    return f"{text}\r\n{H}\r\n"


def field(text: str, target: str = "/health") -> str:
    return f"GET {target} HTTP/1.1\r\n{H}{text}\r\n\r\n"


def body(fields: str, text: str = "") -> str:
    return f"POST /pom/v1/jobs HTTP/1.1\r\n{H}{J}{fields}\r\n\r\n{text}"


# Bytes, statuses, and whether the connection is open afterwards.
LINES = [
    (line("GET /health HTTP/1.1"), "200", OPEN),
    (line("HEAD /health HTTP/1.1"), "200", OPEN),
    (line("GET /health HTTP/1.0"), "200", CLOSED),
    (line("GET http://localhost/health HTTP/1.1"), "200", OPEN),
    (line("GET http://evil.example/health HTTP/1.1"), "403", OPEN),
    (line("GET /nothing HTTP/1.1"), "404", OPEN),
    (line("GET /Health HTTP/1.1"), "404", OPEN),
    (line("GET /health/ HTTP/1.1"), "404", OPEN),
    (line("GET //health HTTP/1.1"), "404", OPEN),
    (line("GET /health?x=%zz HTTP/1.1"), "400", CLOSED),
    (line("GET /health#part HTTP/1.1"), "400", CLOSED),
    (line("GET health HTTP/1.1"), "400", CLOSED),
    (line("GET  /health HTTP/1.1"), "400", CLOSED),
    (line("GET /health  HTTP/1.1"), "400", CLOSED),
    (line("GET\t/health\tHTTP/1.1"), "400", CLOSED),
    (line(" GET /health HTTP/1.1"), "400", CLOSED),
    (line("GET /health"), "400", CLOSED),
    (line("GET /health HTTP/2.0"), "505", CLOSED),
    (line("GET /health HTTP/0.9"), "505", CLOSED),
    (line("GET /health HTTP/1.2"), "505", CLOSED),
    (line("GET /health http/1.1"), "400", CLOSED),
    (line("GET /health HTTP/1.10"), "400", CLOSED),
    (line("G\x00T /health HTTP/1.1"), "400", CLOSED),
    (line("G@T /health HTTP/1.1"), "400", CLOSED),
    (line("A" * 40 + " /health HTTP/1.1"), "400", CLOSED),
    (line("PRI * HTTP/2.0"), "505", CLOSED),
    (line("CONNECT localhost:80 HTTP/1.1"), "400", CLOSED),
    (line("TRACE /health HTTP/1.1"), "405", OPEN),
    (line("PUT /health HTTP/1.1"), "405", OPEN),
    (line("PATCH /pom/v1/jobs HTTP/1.1"), "405", OPEN),
    (line("DELETE / HTTP/1.1"), "405", OPEN),
    (line("OPTIONS /pom/v1/jobs HTTP/1.1"), "204", OPEN),
    (line("GET /" + "a" * 9000 + " HTTP/1.1"), "431", CLOSED),
    ("\r\n" + line("GET /health HTTP/1.1"), "200", OPEN),
    ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "\x00" * 50 + "\r\n\r\n", "400", CLOSED),
]
PATHS = [
    (line(f"GET {path} HTTP/1.1"), status, open_)
    for path, status, open_ in (
        ("/../etc/passwd", "400", CLOSED),
        ("/assets/../../etc/passwd", "400", CLOSED),
        ("/assets/..%2f..%2fetc%2fpasswd", "400", CLOSED),
        ("/assets/%2e%2e/%2e%2e/etc/passwd", "400", CLOSED),
        ("/assets/%252e%252e/etc/passwd", "404", OPEN),
        ("/assets/..\\..\\etc", "400", CLOSED),
        ("/assets//etc/passwd", "404", OPEN),
        ("/assets/main.js%00.png", "400", CLOSED),
        ("/assets/main.js%0d%0aX:y", "400", CLOSED),
        ("/pom/v1/pictures/%2e%2e%2fkeys.png", "400", CLOSED),
        ("/pom/v1/pictures/" + "0" * 32 + ".png", "404", OPEN),
        ("/pom/v1/pictures/" + "0" * 31 + ".png", "404", OPEN),
        ("/pom/v1/pictures/" + "A" * 32 + ".png", "404", OPEN),
        ("/pom/v1/pictures/.png", "404", OPEN),
        ("/pom/v1/jobs/%00", "400", CLOSED),
        ("/pom/v1/jobs/..", "400", CLOSED),
        ("/./health", "400", CLOSED),
        ("/%68ealth", "200", OPEN),
        ("/health%", "400", CLOSED),
        ("/health%4", "400", CLOSED),
        ("/\xff", "400", CLOSED),
    )
]
FIELDS = [
    ("GET /health HTTP/1.1\r\n\r\n", "400", CLOSED),
    ("GET /health HTTP/1.0\r\n\r\n", "200", CLOSED),
    (field("Host: localhost"), "400", CLOSED),
    ("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403", OPEN),
    ("GET /health HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n", "403", OPEN),
    ("GET /health HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n", "400", CLOSED),
    ("GET /health HTTP/1.1\r\nHost:\r\n\r\n", "400", CLOSED),
    ("GET /health HTTP/1.1\r\nHost: 127.0.0.1:99999\r\n\r\n", "400", CLOSED),
    ("GET /health HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "200", OPEN),
    ("GET /health HTTP/1.1\r\nHost: LOCALHOST.\r\n\r\n", "200", OPEN),
    ("GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n", "400", CLOSED),
    (field("X: a\r\n folded"), "400", CLOSED),
    (field(" X: leading"), "400", CLOSED),
    (field("no colon"), "400", CLOSED),
    (field(": no name"), "400", CLOSED),
    (field("X Y: space"), "400", CLOSED),
    (field("X: a\x00b"), "400", CLOSED),
    (field("X: a\rb"), "400", CLOSED),
    (field("X: a\x01b"), "400", CLOSED),
    (f"GET /health HTTP/1.1\n{H}\n\n", "400", CLOSED),
    (field("\r\n".join(f"X{i}: y" for i in range(5000))), "431", CLOSED),
    (field("Origin: https://evil.example"), "403", OPEN),
    (field("Origin: null"), "403", OPEN),
    (field("Sec-Fetch-Site: cross-site"), "403", OPEN),
    (field("Range: bytes=0-0"), "200", OPEN),
    (field("Last-Event-ID: 99999999999999999999999"), "200", OPEN),
    (field("Upgrade: websocket\r\nConnection: Upgrade"), "200", OPEN),
    (field("Connection: close"), "200", CLOSED),
    (field("Expect: 100-continue"), "200", OPEN),
    (field("Expect: the-unexpected"), "417", CLOSED),
]
BODIES = [
    (body("Content-Length: 2", "{}"), "400", OPEN),
    (body("Content-Length: 0"), "400", OPEN),
    (body("X: no length"), "400", OPEN),
    (body("Content-Length: 2\r\nContent-Length: 2", "{}"), "400", CLOSED),
    (body("Content-Length: 2\r\nContent-Length: 3", "{}"), "400", CLOSED),
    (body("Content-Length: 2, 2", "{}"), "400", CLOSED),
    (body("Content-Length: +2", "{}"), "400", CLOSED),
    (body("Content-Length: -1", "{}"), "400", CLOSED),
    (body("Content-Length: 0x2", "{}"), "400", CLOSED),
    (body("Content-Length: 2 2", "{}"), "400", CLOSED),
    (body("Content-Length:", "{}"), "400", CLOSED),
    (body("Content-Length: 99999999999999999999", "{}"), "400", CLOSED),
    (body("Content-Length: 1048577", "{}"), "413", CLOSED),
    (body("Content-Length: 2\r\nTransfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n"), "400", CLOSED),
    (body("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), "400", CLOSED),
    (body("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"), "501", CLOSED),
    (body("Transfer-Encoding: xchunked", "0\r\n\r\n"), "501", CLOSED),
    (body("Transfer-Encoding: identity", ""), "501", CLOSED),
    (body("Transfer-Encoding: \x0bchunked", "0\r\n\r\n"), "400", CLOSED),
    (CHUNKED + "2\r\n{}\r\n0\r\n\r\n", "400", OPEN),
    (CHUNKED + "2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n", "400", OPEN),
    (CHUNKED + "g\r\n", "400", CLOSED),
    (CHUNKED + "-1\r\n", "400", CLOSED),
    (CHUNKED + "0x2\r\n{}\r\n0\r\n\r\n", "400", CLOSED),
    (CHUNKED + "2\r\n{}0\r\n\r\n", "400", CLOSED),
    (CHUNKED + "2\n{}\r\n0\r\n\r\n", "400", CLOSED),
    (CHUNKED + '0;a="\r\n\r\nGET / HTTP/1.1\r\n\r\n0\r\n\r\n', "400", CLOSED),
    (CHUNKED + "ffffffff\r\n", "413", CLOSED),
    (CHUNKED + "ffffffffffffffff\r\n", "400", CLOSED),
    (CHUNKED + "10000000000000000\r\n", "400", CLOSED),
    (CHUNKED + "2;" + "a" * 20_000, "400 431", CLOSED),
    (CHUNKED + "0\r\n" + "X: y\r\n" * 5000, "400 431", CLOSED),
    # Two in a row are two, and what a body holds is no request.
    (line("GET /health HTTP/1.1") * 2, "200+200", OPEN),
    (body("Content-Length: 37", "GET /metrics HTTP/1.1\r\nHost: evil\r\n\r\n"), "400", OPEN),
    (line("GET /health HTTP/1.1") + line("BAD"), "200+400", CLOSED),
]
CASES = LINES + PATHS + FIELDS + BODIES


def outcome(server, data: str, answers: int) -> tuple[str, bool]:
    """Statuses of the answers, and whether the connection is open: one more request is answered."""
    probe = f"GET /health HTTP/1.1\r\n{H}X-Probe: 1\r\nConnection: close\r\n\r\n"
    with connected(server) as line_:
        line_.settimeout(10)
        got = b""
        try:
            line_.sendall(data.encode("latin-1"))
            while b"\r\n\r\n" not in got:
                piece = line_.recv(65536)
                if not piece:
                    break
                got += piece
            line_.sendall(probe.encode())
            while piece := line_.recv(65536):
                got += piece
        except OSError:
            pass
    statuses = re.findall(rb"(?:^|(?<=\n)|(?<=\}))HTTP/1\.[01] (\d{3})", got)
    found = [status.decode() for status in statuses if status != b"100"]
    return "+".join(found[:answers]), len(found) > answers


def raw(world: World) -> list[Measure]:
    wrong = []
    cases = CASES
    with world.serve() as server:
        for data, asked, open_ in cases:
            statuses, still = outcome(server, data, asked.count("+") + 1)
            if statuses not in asked.split() or still != open_:
                wrong.append((data[:80], f"asked {asked} {open_}", f"got {statuses} {still}"))
        assert server.get("/health").json["status"] == "ok"
    for one in wrong:
        world.say(f"  {one}")
    return [exactly(f"of {len(cases)} raw requests, other than asked", 0, len(wrong))]


ROWS = [Row("raw", f"{len(CASES)} raw requests: smuggling, `..`, `%00`, no `Host`, folding", raw)]
