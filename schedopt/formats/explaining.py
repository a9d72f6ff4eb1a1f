"""From pydantic's errors to ours: the field as a path, a plain rule, a way out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from schedopt.errors import InputError

T = TypeVar("T")


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return the schema of a data class, built once."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def build(kind: type[T], document: Mapping[str, Any]) -> T:
    """Make an object of a data class from a JSON document, strictly.

    Raises
    ------
    InputError
        With the path of the first field that breaks a rule.
    """
    try:
        return adapter(kind).validate_json(json.dumps(document))
    except ValidationError as error:
        raise explain(error) from None
    except (UnicodeEncodeError, RecursionError):
        raise InputError("holds text or nesting that is not allowed") from None


def explain(error: ValidationError) -> InputError:
    """Turn the first of pydantic's errors into ours."""
    problems = error.errors(include_url=False)
    first = problems[0]
    path = _path(first["loc"])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        found = cause.within(path)
    else:
        rule, way_out = _words(first["type"], first.get("ctx", {}), first["input"], path)
        found = InputError(rule, field=path, way_out=way_out)
    if len(problems) > 1:
        others = f"{len(problems) - 1} more after this one"
        found.way_out = f"{found.way_out} ({others})" if found.way_out else others
    return found


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _words(kind: str, context: Mapping[str, Any], given: object, path: str) -> tuple[str, str]:
    shown = f"{json.dumps(given, default=str):.60}"
    if kind == "missing":
        return "is missing", "Add it"
    if kind == "unexpected_keyword_argument":
        near = get_close_matches(path.rpartition(".")[2], _known_fields(), n=1)
        return "is not known", f"Did you mean {near[0]}?" if near else "Leave it out"
    if kind.startswith("int"):
        return f"{shown} is not a whole number", "Give an integer, without quotes or decimals"
    if kind == "literal_error":
        return f"{shown} is not known", f"Choose {context['expected']}"
    plain = {
        "string_type": ("is not text", "Put it in quotes"),
        "tuple_type": ("is not a list", "Give a list in [ ]"),
        "dataclass_type": ("is not an object", "Give an object in { }"),
        "mapping_type": ("is not an object", "Give an object in { }"),
        "dict_type": ("is not an object", "Give an object in { }"),
        "bool_type": ("is neither true nor false", "Give true or false"),
        "too_long": ("is too long", "Give a pair"),
    }
    if kind in plain:
        rule, way_out = plain[kind]
        return f"{shown} {rule}", way_out
    if kind.startswith(("float", "decimal", "finite")):
        return f"{shown} is not a number", "Give a plain decimal"
    return f"{shown} is not allowed here", "Compare it with the format in the README"


def _known_fields() -> list[str]:
    import schedopt

    classes = [getattr(schedopt, name) for name in schedopt.__all__]
    return sorted({one.name for kind in classes if is_dataclass(kind) for one in fields(kind)})
