"""From pydantic's errors to ours: the field as a path, a plain rule, a way out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from schedopt.errors import InputError
from schedopt.formats.values import step

T = TypeVar("T")


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return the schema of a data class, built once."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def build(kind: type[T], document: Mapping[str, Any], others: Sequence[str] = ()) -> T:
    """Make an object of a data class from a JSON document, strictly.

    `others` are names that the same object of the file may hold too, to suggest for a misspelt one.

    Raises
    ------
    InputError
        With the path of the first field that breaks a rule.
    """
    try:
        return adapter(kind).validate_json(json.dumps(document))
    except ValidationError as error:
        raise explain(error, kind, others) from None


def dump_plain(value: T, kind: type[T], **options: Any) -> dict[str, Any]:
    """Return an object of a data class as a JSON document, absent fields left out.

    Raises
    ------
    InputError
        If a field holds something of another type than its own.
    """
    try:
        document: dict[str, Any] = adapter(kind).dump_python(
            value, mode="json", exclude_none=True, warnings="error", **options
        )
    except (ValueError, RecursionError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise InputError(
            f"cannot be written as JSON: {reason:.160}",
            way_out="Give each field a value of its own type",
        ) from None
    return document


def explain(error: ValidationError, kind: type, others: Sequence[str] = ()) -> InputError:
    """Turn the first of pydantic's errors into ours."""
    # A misspelt field is also a missing one: name the spelling, not the gap.
    problems = sorted(_of_one_member(error), key=lambda problem: problem["type"] == "missing")
    first = problems[0]
    place = first["loc"]
    path = _path(place)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        found = cause.within(path)
    elif first["type"] == "unexpected_keyword_argument":
        names = [*_names_at(kind, place[:-1]), *(others if len(place) == 1 else ())]
        near = get_close_matches(str(place[-1]), names, n=1)
        way_out = f"Did you mean {near[0]}?" if near else "Leave it out"
        found = InputError("is not known", field=path, way_out=way_out)
    else:
        rule, way_out = _words(first["type"], first.get("ctx", {}), first["input"])
        found = InputError(rule, field=path, way_out=way_out)
    if len(problems) > 1:
        more = f"and {len(problems) - 1} more after this one"
        found.way_out = f"{found.way_out} ({more})" if found.way_out else more
    return found


def _of_one_member(error: ValidationError) -> list[dict[str, Any]]:
    """Return pydantic's errors, of a field that may be words or data those of what was given.

    There pydantic reports both, with the name of the class behind that of the field.
    """
    problems: list[dict[str, Any]] = [{**problem} for problem in error.errors(include_url=False)]
    either = {
        problem["loc"][:-1]: problem["input"]
        for problem in problems
        if problem["loc"][-1:] == ("str",)
    }
    found = []
    for problem in problems:
        place, kept = problem["loc"], True
        for field in sorted(either, key=len, reverse=True):
            if place[: len(field)] == field and len(place) > len(field):
                kept &= (place[len(field)] == "str") != isinstance(either[field], dict | list)
                place = (*field, *place[len(field) + 1 :])
        if kept:
            found.append({**problem, "loc": place})
    return found


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        path = step(path, part, inside_list=isinstance(part, int))
    return path


def _names_at(kind: Any, location: Sequence[int | str]) -> list[str]:
    """Return the fields of the class that lies at a place of a document of a class."""
    for part in location:
        kind = get_args(kind)[0] if isinstance(part, int) else get_type_hints(kind)[part]
        if get_origin(kind) is UnionType:
            kind = next(option for option in get_args(kind) if option is not NoneType)
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def _words(kind: str, context: Mapping[str, Any], value: object) -> tuple[str, str]:
    shown = f"{json.dumps(value, default=str):.60}"
    if kind == "missing":
        return "is missing", "Add it"
    if kind.startswith("int"):
        return f"{shown} is not a whole number", "Give an integer, without quotes or decimals"
    if kind in ("literal_error", "enum"):
        return f"{shown} is not known", f"Choose {context['expected']}"
    plain = {
        "string_type": ("is not text", "Put it in quotes"),
        "tuple_type": ("is not a list", "Give a list in [ ]"),
        **dict.fromkeys(
            ("dataclass_type", "mapping_type", "dict_type"),
            ("is not an object", "Give an object in { }"),
        ),
        "bool_type": ("is neither true nor false", "Give true or false"),
        "too_long": ("is too long", "Give a pair"),
    }
    if kind in plain:
        rule, way_out = plain[kind]
        return f"{shown} {rule}", way_out
    if kind.startswith(("float", "decimal", "finite")):
        return f"{shown} is not a number", "Give a plain decimal"
    return f"{shown} is not allowed here", "Compare it with the format in the README"
