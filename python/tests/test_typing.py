"""Type checkers know the keywords of the engine: mypy refuses each wrong line of typing/engine_calls.py, and
no other. (So does pyright; but its package downloads Node.js when it runs, so it is no referee here.)"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tools import referee

ROOT = Path(__file__).resolve().parents[2]
CALLS = Path(__file__).parent / "typing" / "engine_calls.py"


def test_mypy():
    referee("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir", ROOT / "build/mypy", CALLS],
        env=os.environ | {"MYPYPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    refused = {int(line) for line in re.findall(r"engine_calls\.py:(\d+): error", done.stdout)}
    lines = enumerate(CALLS.read_text().splitlines(), start=1)
    assert refused == {number for number, line in lines if line.endswith("# wrong")}, done.stdout
    assert "libpom/engine.py" not in done.stdout, done.stdout  # the engine's own lines are in order
