"""Flags of a command line, as people keep them: a script for bash, a list of flags, or YAML."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from schedopt.errors import InputError
from schedopt.importing.launch_files.settings import MOST
from schedopt.validation import show

_JOINED: Final = re.compile(r"\\\r?\n")
_SUM: Final = re.compile(r"\$\(\(([^()]{0,200})\)\)")
_OPERATIONS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_SET: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)
_USED: Final = re.compile(r"\$\{([A-Za-z_]\w*)(?::?[-=]([^{}]*))?\}|\$([A-Za-z_]\w*)")
_YAML: Final = re.compile(r"\s*(?:- )?([A-Za-z][\w-]*)\s*:(?:\s+(.*?))?\s*")


def read_flags(text: str, switches: Collection[str] = ()) -> dict[str, Any]:
    r"""Return the flags of a text with their values, without the dashes; True: no value.

    Read are words as bash parts them, in arrays and quoted variables too, with comments, ``\`` at
    the end of a line, variables that the text itself sets, ``${NAME:-8}`` and sums of numbers,
    ``$((8 * N))``. Of a flag with several values the first one is taken. Or the text is YAML, a
    ``name: value`` a line.

    Parameters
    ----------
    text : str
    switches : collection of str
        Flags that have no value.

    Raises
    ------
    InputError
        For quotes that do not end, and for flags that stand there twice with other values.
    """
    pairs = [*_yaml(text)] or [*_words(text, {}, switches)]
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found and found[name] != value:
            raise InputError(
                f"it stands there twice, with {show(found[name])} and {show(value)}",
                field=f"--{name}",
                way_out="Keep one of them",
            )
        found[name] = value
    if not found:
        raise InputError(
            "there are no flags in it",
            way_out="Give a script, a command line, or a flag a line: --tensor-model-parallel-size "
            "2",
        )
    return found


def _yaml(text: str) -> Iterator[tuple[str, Any]]:
    """Yield what a file of ``name: value`` says; nothing if it is something else."""
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    matches = [_YAML.fullmatch(re.sub(r"\s#.*", "", line)) for line in lines]
    if "--" in text.replace("---", "") or not all(matches):
        return
    for match in matches:
        assert match is not None
        name, written = match[1].replace("_", "-"), (match[2] or "").strip("'\"")
        if written in ("", "null", "~", "None"):
            continue
        if written.lower() != "false":
            yield name, True if written.lower() == "true" else written


def _words(
    text: str, variables: dict[str, str], switches: Collection[str]
) -> Iterator[tuple[str, Any]]:
    """Yield flags with their values, and keep the variables that the text sets."""
    text = _SUM.sub(lambda match: match[0].replace(" ", ""), _JOINED.sub(" ", text))
    reader = shlex.shlex(text, posix=True)
    reader.whitespace_split = True
    try:
        words = [*reader]
    except ValueError:
        raise InputError(
            f"a quote that begins before the end of line {reader.lineno} never ends",
            field=f"line {reader.lineno}",
            way_out="Close it",
        ) from None
    flag: str | None = None
    for word in words:
        if flag is None and (match := _SET.fullmatch(word)) and not word.startswith("-"):
            value = match[2]
            if re.search(r"(?:^|\s)--?[a-z]", value) and not value.startswith("("):
                yield from _words(value, variables, switches)
                continue
            variables[match[1]] = _expand(value.rstrip(";"), variables)
            word = value.removeprefix("(") if value.startswith("(") else ""
        closed = word.count(")") > word.count("(")
        if closed:
            word = word.removesuffix(")")
        if word.startswith("--") and len(word) > 2:
            if flag is not None:
                yield flag, True
            name, is_set, value = word[2:].partition("=")
            flag = name.replace("_", "-")
            if is_set or flag in switches:
                yield flag, _expand(value, variables) if is_set else True
                flag = None
        elif flag is not None and word and word not in (";", "&&", "|"):
            yield flag, _expand(word, variables)
            flag = None
        if closed and flag is not None:
            yield flag, True
            flag = None
    if flag is not None:
        yield flag, True


def _expand(word: str, variables: Mapping[str, str]) -> str:
    """Return a word with the variables that are known, and with its sums added up."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        default = match[0] if match[2] is None else match[2]
        return variables.get(name, default)

    word = _SUM.sub(lambda match: _add_up(match, variables), word)
    return _USED.sub(value, word)


def _add_up(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return the value of a sum of numbers and variables; itself where it is not known."""
    text = re.sub(
        r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: variables.get(found[1], found[0]), match[1]
    )
    try:
        return str(_value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return match[0]


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < MOST:
        return node.value
    if isinstance(node, ast.BinOp) and (operation := _OPERATIONS.get(type(node.op))):
        return operation(_value(node.left), _value(node.right))
    raise ValueError("no sum of numbers")
