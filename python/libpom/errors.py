"""The one error the package raises for a caller's mistake."""


class Error(RuntimeError):
    """Reads "operation: argument: expected ..., got ..."."""


def fail(where: str, expected: str, got: object) -> None:
    """Raises Error; `where` is "operation: argument"."""
    raise Error(f"{where}: expected {expected}, got {got}")
