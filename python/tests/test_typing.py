"""Type checkers know the package: mypy and pyright refuse each wrong line of typing/engine_calls.py and no
other, and find nothing in the package itself."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tools import pyright, referee

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "libpom"
CALLS = Path(__file__).parent / "typing" / "engine_calls.py"


def wrong_lines():
    lines = enumerate(CALLS.read_text().splitlines(), start=1)
    return {(str(CALLS), number) for number, line in lines if line.endswith("# wrong")}


def test_mypy():
    """Without the settings of a project: as somebody has it who installed the package."""
    referee("mypy")
    words = ["--config-file=", "--show-absolute-path", "--cache-dir", ROOT / "build/mypy", PACKAGE, CALLS]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words],
        env=os.environ | {"MYPYPATH": str(ROOT / "python")},
        cwd=ROOT / "python",
        capture_output=True,
        text=True,
    )
    found = re.findall(r"^(.+?):(\d+): error", done.stdout, re.M)
    assert {(file, int(line)) for file, line in found} == wrong_lines(), done.stdout + done.stderr


def test_pyright():
    done = subprocess.run(
        [*pyright(), str(PACKAGE), str(CALLS)],
        cwd=ROOT / "python",  # where the package is found
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    refused = {(each["file"], each["range"]["start"]["line"] + 1) for each in found}
    assert refused == wrong_lines(), [each["message"] for each in found]
