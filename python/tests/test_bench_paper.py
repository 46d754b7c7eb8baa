"""bench/paper_cuda.py, tiny and on the processor: its tables have their rows, and a wrong layer is not timed.

How long anything takes is nothing a test can judge, and none of these does.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--device", "cpu", "--dim", 64, "--heads", 4, "--narrow", 8, "--depth", 2, "--dtype", "f32"]
pytestmark = pytest.mark.usefixtures("extension")


def bench(*arguments, script=ROOT / "bench" / "paper_cuda.py"):
    words = [sys.executable, str(script), *map(str, arguments)]
    paths = [str(ROOT / "python"), str(ROOT / "bench")]
    environment = os.environ | {"PYTHONPATH": ":".join(paths)}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)


def sections(text):
    """Title of each table -> its rows of cells, the names of the columns first."""
    found, title = {}, None
    for line in text.splitlines():
        if line.startswith("## "):
            title = line[3:]
        elif line.startswith("|") and "---" not in line:
            found.setdefault(title, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_tables(tmp_path):
    page = tmp_path / "report.md"
    done = bench(*SMALL, "--tokens", 16, "--seconds", 0, "--report", page)
    assert done.returncode == 0, done.stderr
    tables = sections(page.read_text())
    assert tables == sections(done.stdout)
    assert list(tables) == [
        f"{what}, feed-forward {ffw}" for ffw in (4, 2) for what in ("Forward", "Forward + backward")
    ]
    program = ["libpom"] if (Path(os.environ["LIBPOM_LIBRARY"]).parent / "pom").is_file() else []
    ratios = ["libpom / products", "paper / libpom", "attention / libpom"]
    first = ["tokens", "batch", "products", "paper eager", "paper compiled", "libpom's layer"]
    attention = {
        "Forward, feed-forward 4": ["attention 16", "attention 8"],
        "Forward + backward, feed-forward 4": ["attention 16"],
    }
    for title, (names, *rows) in tables.items():
        assert names == [*first, *attention.get(title, []), *program, *ratios]
        assert [row[:2] for row in rows] == [["16", "4"]]
        for row in rows:
            assert all(float(cell) > 0 for cell in row[2:-1])
            assert (row[-1] == "-") == (title not in attention)


def test_a_wrong_layer_is_not_timed(tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text(
        "import blocks, paper_cuda\n"
        "right = blocks.our_mix\n"
        "block = blocks.block_of(lambda x, *w: 1.01 * right(x, *w), 1)\n"
        "wrong = blocks.Network(block, ((256, 64), (256, 64), (64, 256)))\n"
        "known = paper_cuda.networks\n"
        "paper_cuda.networks = lambda args: known(args) | {'ours': wrong}\n"
        "paper_cuda.main()\n"
    )
    done = bench(*SMALL, "--tokens", 16, "--seconds", 0, "--no-program", script=script)
    assert done.returncode == 1 and "paper_cuda.py: ours: a block is off by" in done.stderr


def test_quick_times_fewer_blocks():
    words = [
        *SMALL,
        "--depth",
        9,
        "--tokens",
        4,
        "--backward-tokens",
        0,
        "--ffw",
        2,
        "--quick",
        "--no-program",
    ]
    done = bench(*words)
    assert done.returncode == 0, done.stderr
    assert "4 blocks were timed" in done.stdout and "The program pom is left out" in done.stdout
    assert list(sections(done.stdout)) == ["Forward, feed-forward 2"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu():
    done = bench("--tokens", 16)
    assert done.returncode == 77 and "no GPU here" in done.stderr
