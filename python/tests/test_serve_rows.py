"""The rows of tests/serve.py with few requests each, and their controls: a row that passes with its
protection switched off would hold the server to nothing. `make serve-test` has them with all their numbers.
"""

import sys
from pathlib import Path

import pytest

from test_serve import _built_with_a_server  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import serve as rows
from serve_rows.world import World

SMALL = [row for row in rows.ROWS.values() if row.small]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


def failed(measures):
    return [f"{one.what}: asked {one.asked}, got {one.got}" for one in measures if not one.ok]


@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.name)
def test_a_row(row, folder):
    assert failed(row.run(World(folder, full=False))) == []


@pytest.mark.parametrize("row", [row for row in SMALL if row.control], ids=lambda row: row.name)
def test_a_control(row, folder):
    wrong = failed(row.run(World(folder, full=False, failpoint=row.control)))
    assert any(one.startswith(row.fails) for one in wrong)


def test_the_report(tmp_path):
    result = rows.Result(SMALL[0])
    result.measures = [rows.Measure("answers | 5xx", "0", "1", False)]
    assert not result.passed
    assert "answers \\| 5xx 0 | 1 | **no** | none" in "\n".join(rows.table([result]))
    result.measures[0].ok = True
    result.control = [rows.Measure(result.row.fails[0], "0", "0", True)]
    assert not result.passed and "does not fail" in result.control_text()
    result.control.append(rows.Measure("something else, of a busy machine", "0", "1", False))
    assert not result.passed
    result.control[0].ok = False
    assert result.passed
