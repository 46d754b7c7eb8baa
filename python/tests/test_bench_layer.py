"""bench/layer_cuda.py, tiny and on the processor: its tables have their rows, and a wrong layer is not timed.

How long anything takes is nothing a test can judge, and none of these does.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from test_bench_paper import sections

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--device", "cpu", "--dim", 32, "--depth", 1, "--tokens", 24, "--seconds", 0]
pytestmark = pytest.mark.usefixtures("extension")


def bench(*arguments, script=ROOT / "bench" / "layer_cuda.py"):
    words = [sys.executable, str(script), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'bench'}"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("modes", "words"), [(["default, graph", "reduce-overhead"], []), (["default"], ["--autocast"])]
)
def test_tables(tmp_path, modes, words):
    page = tmp_path / "report.md"
    done = bench(*SMALL, "--quick", "--modes", ";".join(modes), "--report", page, *words)
    assert done.returncode == 0, done.stderr
    tables = sections(page.read_text())
    assert tables == sections(done.stdout)
    assert list(tables) == ["Forward", "Forward + backward"]
    for names, *rows in tables.values():
        assert names == ["tokens", "mode", "listing", "libpom", "listing / libpom", "host: listing", "libpom"]
        assert [row[:2] for row in rows] == [["24", mode] for mode in modes]
        assert all(float(cell) > 0 for row in rows for cell in row[2:4] + row[5:])


@pytest.mark.parametrize("wanted", ["forward", "training"])
def test_a_wrong_layer_is_not_timed(tmp_path, wanted):
    script = tmp_path / "wrong.py"
    script.write_text(
        "import layer_cuda, libpom\n"
        "right = libpom.PoM.forward\n"
        "libpom.PoM.forward = lambda self, x: x + right(self, x)\n"
        "layer_cuda.main()\n"
    )
    done = bench(*SMALL, "--modes", "default", "--passes", wanted, script=script)
    what = {"forward": "output", "training": "gradient"}[wanted]
    assert done.returncode == 1 and f"default: libpom's {what} is off by" in done.stderr, done.stderr


def test_unknown_modes_are_told():
    done = bench(*SMALL, "--modes", "fast")
    assert (
        done.returncode == 2
        and "expected default; default, graph; reduce-overhead; max-autotune" in done.stderr
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu():
    done = bench("--tokens", 16)
    assert done.returncode == 77 and "no GPU here" in done.stderr
