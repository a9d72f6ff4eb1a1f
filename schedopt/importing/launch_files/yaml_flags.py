"""Flags that are kept as YAML: a ``name: value`` a line, or a list of values below a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

FLAG: Final = re.compile(r"(?:^|\s)--[A-Za-z]")
_PAIR: Final = re.compile(r"\s*(?:- )?([A-Za-z][\w-]*)\s*:(?:\s+(.*?))?\s*")
_DASHED: Final = re.compile(r"\s*--([A-Za-z][\w-]*):(?:\s+(.*?))?\s*")
_ITEM: Final = re.compile(r"\s*- +([^\s:]+)\s*")


def read_yaml(text: str) -> Iterator[tuple[str, Any]]:
    """Yield what a file of ``name: value`` says; nothing if it is something else.

    Values of a list have spaces between them. If there are lines of ``--name: value``, only these
    and their lists count.
    """
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    lines = [re.sub(r"\s#.*", "", line) for line in lines]
    dashed = any(_DASHED.fullmatch(line) for line in lines)
    pairs: list[tuple[str, list[str]]] = []
    is_open = False
    for line in lines:
        if match := (_DASHED if dashed else _PAIR).fullmatch(line):
            value = (match[2] or "").strip("'\"")
            pairs.append((match[1].replace("_", "-"), [value] if value else []))
            is_open = not value
        elif is_open and (item := _ITEM.fullmatch(line)):
            pairs[-1][1].append(item[1].strip("'\""))
        elif dashed:
            is_open = False
        else:
            return
    told = [(name, " ".join(values)) for name, values in pairs]
    if any(FLAG.search(value) for _, value in told):
        return
    for name, value in told:
        if value not in ("", "null", "~", "None") and value.lower() != "false":
            yield name, True if value.lower() == "true" else value
