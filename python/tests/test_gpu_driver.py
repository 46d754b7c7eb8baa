"""tests/gpu.py where there is no GPU: everything is counted as skipped, and nothing else happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def driver(tmp_path):
    """Runs it with a PATH on which there is nothing, and so no GPU."""

    def run(*arguments):
        words = [sys.executable, str(ROOT / "tests" / "gpu.py"), *arguments]
        environment = os.environ | {"PATH": str(tmp_path)}
        return subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    return run


def skipped(result):
    assert result.returncode == 0, result.stderr
    return int(re.fullmatch(r"no GPU here: 0 passed, 0 failed, (\d+) skipped\n", result.stdout)[1])


def test_everything_is_skipped(driver, tmp_path):
    parts = ["build", "kernels", "c++", "pytest", "sanitizer", "bench"]
    counts = {part: skipped(driver("--only", part)) for part in parts}
    assert counts["kernels"] == len(list((ROOT / "tests" / "kernels").glob("*_cuda.cu")))
    assert counts["pytest"] == len(list((ROOT / "python" / "tests").glob("test_cuda_*.py")))
    assert min(counts.values()) >= 2
    assert skipped(driver()) == sum(counts.values())
    assert skipped(driver("--only", "build,bench/paper")) == counts["build"] + 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("only", ["kernel", "bench/figure2", "bench,nothing"])
def test_unknown_parts(driver, only):
    result = driver("--only", only)
    assert result.returncode == 2 and f"got {only.split(',')[-1]}" in result.stderr
