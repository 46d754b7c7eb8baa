"""Slow clients, in a process of their own so that whoever measures does not wait for them:

    python dribble.py PORT heads|bodies|readers|viewers COUNT [stream ...]

heads and bodies get something more every two seconds; readers ask for a stream and read nothing; viewers read
all. Says "ready" once all have come, and ends when its input does. Plain Python.
"""

import contextlib
import selectors
import socket
import sys
import threading

HOST = "Host: localhost\r\n"


def begin(kind: str, stream: str) -> str:
    if kind == "bodies":
        fields = "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        return f"POST /pom/v1/jobs HTTP/1.1\r\n{HOST}{fields}"
    if kind == "heads":
        return f"GET / HTTP/1.1\r\n{HOST}"
    return f"GET /pom/v1/streams/{stream}/frames HTTP/1.1\r\n{HOST}\r\n"


def read_all(lines: list[socket.socket], stop: threading.Event) -> None:
    chooser = selectors.DefaultSelector()
    for line in lines:
        chooser.register(line, selectors.EVENT_READ)
    while not stop.is_set():
        for key, _ in chooser.select(0.2):
            if not key.fileobj.recv(1 << 20):
                chooser.unregister(key.fileobj)


def send_more(lines: list[socket.socket], more: bytes, stop: threading.Event) -> None:
    while not stop.wait(2):
        for line in lines:
            with contextlib.suppress(OSError):
                line.sendall(more)


def main() -> None:
    port, kind, count, streams = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:] or [""]
    lines = []
    for number in range(count):
        line = socket.socket()
        if kind == "readers":
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", port))
        line.sendall(begin(kind, streams[number % len(streams)]).encode())
        lines.append(line)
    print("ready", flush=True)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    if kind == "viewers":
        read_all(lines, stop)
    elif kind == "readers":
        stop.wait()
    else:
        send_more(lines, b"X-More: y\r\n" if kind == "heads" else b" ", stop)


if __name__ == "__main__":
    main()
