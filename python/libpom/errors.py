"""The one error the package raises for a caller's mistake."""

from typing import NoReturn


class Error(RuntimeError):
    """Reads "operation: argument: expected ..., got ..."."""


def fail(where: str, expected: str, got: object) -> NoReturn:
    """Raises Error; `where` is "operation: argument"."""
    raise Error(f"{where}: expected {expected}, got {got}")
