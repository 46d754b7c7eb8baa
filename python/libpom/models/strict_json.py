"""JSON by the letter: a key that comes twice, NaN and Infinity are errors, and so is nesting without end."""

import json
from collections.abc import Callable
from typing import Any

from ..errors import Error


def loads(text: str, where: str, parse_int: Callable[[str], Any] = int) -> Any:
    """What the text says; `where` begins the messages."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise Error(f"{where}: {json.dumps(key[:60])}: duplicate key")
            found[key] = value
        return found

    def constant(name: str) -> Any:
        raise Error(f"{where}: expected a number, got {name}")

    try:
        value = json.loads(text, object_pairs_hook=members, parse_constant=constant, parse_int=parse_int)
        json.dumps(value, ensure_ascii=False).encode()  # an escape may stand for half a surrogate pair
    except UnicodeEncodeError:
        raise Error(f"{where}: expected surrogates in pairs, got half a pair") from None
    except ValueError as error:
        raise Error(f"{where}: expected JSON, got {error}") from None
    except RecursionError:
        raise Error(f"{where}: nested too deeply") from None
    return value
