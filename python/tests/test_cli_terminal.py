"""The program on a terminal, and what signals do to it."""

# ruff: noqa: F811 (fixtures)
import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest

from test_cli import (  # noqa: F401
    _program_is_there,
    environment,
    model,
    program,
    sample,
)


class TestTerminal:
    def on_terminal(self, words, cwd, env):
        """What a person sees: stdout and stderr on a terminal of their own."""
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            list(map(str, words)), cwd=cwd, env=env, stdin=follower, stdout=follower, stderr=follower
        )
        os.close(follower)
        seen = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the last writer has gone
                break
            if not part:
                break
            seen += part
        os.close(leader)
        return process.wait(), seen.decode()

    def test_bar_and_colour(self, model, tmp_path):
        words = [program(), "sample", "--model", model, "--class", "circle", "-o", "a.png"]
        code, seen = self.on_terminal(words, tmp_path, environment(TERM="xterm"))
        assert code == 0 and "\r" in seen and "a.png" in seen
        _, help_text = self.on_terminal([program(), "--help"], tmp_path, environment(TERM="xterm"))
        assert "\x1b[1m" in help_text
        _, plain = self.on_terminal([program(), "--help"], tmp_path, environment(TERM="xterm", NO_COLOR=1))
        assert "\x1b[1m" not in plain

    def test_plain_lines_elsewhere(self, sample):
        result = sample("--class", "circle", "-o", "a.png")
        assert "\r" not in result.stderr and "\x1b" not in result.stderr and "sampling" in result.stderr


class TestSignals:
    def start(self, model, folder, *flags):
        words = [
            program(),
            "sample",
            "--model",
            model,
            "--class",
            "circle",
            "--steps",
            10000,
            "--count",
            2,
            *flags,
        ]
        process = subprocess.Popen(
            list(map(str, words)),
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        preview = folder / "a_0_preview_001.png"
        deadline = time.monotonic() + 60
        while not preview.exists():  # the first step is done: it is in the middle of its work
            assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
            time.sleep(0.01)
        return process

    @pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
    def test_stops(self, model, tmp_path, sent):
        process = self.start(model, tmp_path, "-o", "a_%d.png", "--preview", 1)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + sent
        assert "stopped; no image was written" in err and out == ""
        names = {path.name for path in tmp_path.iterdir()}
        assert all(re.fullmatch(r"a_0_preview_\d+\.png|a_1_preview_\d+\.png", name) for name in names)
        for path in tmp_path.iterdir():
            assert path.read_bytes().endswith(b"IEND\xaeB`\x82")

    def test_says_what_was_written(self, model, tmp_path):
        words = ["--batch", 1, "--steps", 300, "--count", 500, "-o", "a_%d.png", "--preview", 1, "--json"]
        process = self.start(model, tmp_path, *words)
        deadline = time.monotonic() + 60
        while not (tmp_path / "a_0.png").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        answer = json.loads(out)
        assert answer["stopped"] and answer["files"][0] == "a_0.png"
        assert len(answer["files"]) == len(answer["seeds"]) == len(list(tmp_path.glob("a_?.png")))
        assert f"stopped; {len(answer['files'])} of 500 images were written" in err
