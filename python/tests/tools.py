"""Programs of tests/tools, which lie beside the library that is tested."""

import os
from pathlib import Path

import pytest


def built_tool(name: str) -> Path:
    """Its path; a skip, or a failure where CI demands everything, where it was not built."""
    program = Path(os.environ.get("LIBPOM_LIBRARY", "")).parent / "tests" / name
    if not program.is_file():
        if os.environ.get("LIBPOM_REQUIRE_EXTENSION", "0") not in ("", "0"):
            pytest.fail(f"{program} was not built")
        pytest.skip(f"{name} was not built")
    return program
