"""tests/run.py: what its parts count."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
import run


@pytest.mark.parametrize(
    ("files", "rest", "failed", "status", "expected"),
    [
        (10, 0, 0, 0, run.Count(passed=10)),
        (10, 3, 1, 124, run.Count(passed=7, failed=1, skipped=2)),  # one was tried and did not compile
        (10, 3, 0, 124, run.Count(passed=7, skipped=3)),
        (10, 2, 2, 1, run.Count(passed=8, failed=2)),
        (10, 0, 0, 1, run.Count(passed=10, failed=1)),  # ninja itself
    ],
)
def test_kernels_that_do_not_compile_are_failures(files, rest, failed, status, expected):
    assert run.kernel_count(files, rest, failed, status) == expected


def test_failures_are_counted_as_they_are_printed(capsys):
    suite = run.Suite("release")
    said = "echo '[1/2] Building a'; echo 'FAILED: b.cu.o'; echo 'ninja: build stopped'; exit 1"
    assert suite.compile_files("sh", "-c", said) == (1, 1)
    assert "FAILED: b.cu.o" in capsys.readouterr().out
