"""Fields of config.json, each declared once in a frozen dataclass: reading, checking and writing are here.

What a file may say is what the dataclass declares, by the rules of the C++ side (pom/base/fields.h,
pom/io/json_fields.h): an unknown field, a value of another type, out of its range or not among its choices
is an error that names it.
"""

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ..errors import Error

T = TypeVar("T")
_LINE = 100  # bytes of a line in a list of many


def declared(
    default: T,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    element: type | None = None,
    formerly: str = "",
) -> T:
    """A field of a dataclass: `element` is the type of a tuple's values, `formerly` a name that files may
    still have. The choices of a name are those of its annotation, a Literal."""
    rules = {"least": least, "most": most, "element": element, "formerly": formerly}
    return dataclasses.field(default=default, metadata=rules)  # type: ignore[return-value]


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """The end of a message about an unknown name."""
    by_letters = {candidate.lower(): candidate for candidate in candidates}
    near = [by_letters[key] for key in difflib.get_close_matches(name.lower(), by_letters, 2)]
    if near:
        return "; did you mean " + " or ".join(f'"{name}"' for name in near) + "?"
    return "; there are " + ", ".join(by_letters.values()) if 0 < len(by_letters) <= 24 else ""


# --- values ---


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _check_one(rules: Mapping[str, Any], choices: tuple[str, ...], value: Any, where: str) -> None:
    least, most = rules["least"], rules["most"]
    if isinstance(value, str):
        if choices and value not in choices:
            raise Error(f"{where}: unknown value {_shown(value)}{suggestion(value, choices)}")
    elif not least <= value <= most:  # true of nan
        raise Error(f"{where}: expected {_number(least)} to {_number(most)}, got {value}")


def check_values(config: Any, where: str) -> None:
    """Types, ranges and choices of a dataclass of fields; `where` comes before the name of each."""
    types = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), where + field.name
        choices = get_args(types[field.name]) if get_origin(types[field.name]) is Literal else ()
        if dataclasses.is_dataclass(value):
            check_values(value, name + ".")
            continue
        taken = _take(field, value, name)
        for i, one in enumerate(taken if isinstance(taken, tuple) else [taken]):
            _check_one(field.metadata, choices, one, f"{name}[{i}]" if isinstance(taken, tuple) else name)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if isinstance(value, str) and len(value) > 60:
        value = value[:60] + "…"
    return json.dumps(value, ensure_ascii=False, default=repr)[:80]


def _scalar(kind: type, value: object, where: str) -> Any:
    """The value as an int, float or str, which it has to be: 384.0 is no integer, any number a float."""
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    expected = {bool: "true or false", str: "a string", int: "an integer", float: "a number"}[kind]
    raise Error(f"{where}: expected {expected}, got {_shown(value)}")


def _take(field: "dataclasses.Field[Any]", value: object, where: str) -> Any:
    element = field.metadata["element"]
    if element is None:
        return _scalar(type(field.default), value, where)
    if not isinstance(value, (list, tuple)):
        raise Error(
            f"{where}: expected a list of {'strings' if element is str else 'integers'}, got {_shown(value)}"
        )
    return tuple(_scalar(element, one, f"{where}[{i}]") for i, one in enumerate(value))


def updated(config: T, tree: Mapping[str, Any], source: str, prefix: str = "") -> T:
    """A copy of a dataclass of fields with what a JSON object says; `source` begins the messages."""
    fields = {field.name: field for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    former = {
        field.metadata["formerly"]: name for name, field in fields.items() if field.metadata.get("formerly")
    }
    values: dict[str, Any] = {}
    for given, value in tree.items():
        key = former.get(given, given)
        where = f"{source}: {prefix}{key}"
        if key not in fields:
            raise Error(f"{source}: {prefix}{_shown(key)[1:-1]}: unknown field{suggestion(key, fields)}")
        if key in values:
            raise Error(f"{where}: given twice, also as {_shown(given)[1:-1]}")
        inner = getattr(config, key)
        if not dataclasses.is_dataclass(inner):
            values[key] = _take(fields[key], value, where)
        elif isinstance(value, Mapping):
            values[key] = updated(inner, value, source, f"{prefix}{key}.")
        else:
            raise Error(f"{where}: expected an object, got {_shown(value)}")
    return dataclasses.replace(config, **values)  # type: ignore[type-var]


# --- writing ---


def tree(config: Any) -> dict[str, Any]:
    """A dataclass of fields as JSON; what its method `unsaved` names is left out."""
    left_out = config.unsaved() if hasattr(config, "unsaved") else ()
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in left_out:
            inner = dataclasses.is_dataclass(value)
            found[field.name] = tree(value) if inner else _take(field, value, field.name)
    return found


def pages(value: Any, indent: str = "") -> str:
    """JSON as a person would indent it: a field to a line, lists that fill lines."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        lines = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {pages(v, inner)}" for key, v in value.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n" + indent + "}"
    if not isinstance(value, (list, tuple)) or not value:
        return json.dumps(value, ensure_ascii=False)
    rows = [""]
    for i, element in enumerate(value):
        text = json.dumps(element, ensure_ascii=False) + ("," if i + 1 < len(value) else "")
        if rows[-1] and len(inner) + len(f"{rows[-1]} {text}".encode()) > _LINE:
            rows.append("")
        rows[-1] += " " * bool(rows[-1]) + text
    if len(rows) == 1:
        return f"[{rows[0]}]"
    return "[\n" + "\n".join(inner + row for row in rows) + "\n" + indent + "]"
