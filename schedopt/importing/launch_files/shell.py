"""Flags of a command line, as people keep them: a script for bash, a list of flags, or YAML."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from schedopt.errors import InputError, naming_file
from schedopt.importing.launch_files.here_documents import unfold
from schedopt.importing.launch_files.settings import MOST, Contradiction
from schedopt.importing.launch_files.yaml_flags import FLAG, read_yaml
from schedopt.importing.reading import read_file

_ARITHMETIC: Final = re.compile(r"\(\([^()]{0,200}\)\)")
_COUNTED: Final = re.compile(r"([A-Za-z_]\w*)(?:[-+*/%]?=(?!=)|\+\+|--)")
"""A variable that arithmetic sets."""
_SETTERS: Final = ("for", "read", "select", "unset")
"""Words before the name of a variable that becomes another one."""
_SUM: Final = re.compile(r"\$\(\(([^()]{0,200})\)\)")
_OPERATIONS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_SET: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)
_USED: Final = re.compile(r"\$\{(\w+)(?::?[-=]([^{}]*))?\}|\$([A-Za-z_]\w*)")
_NESTED: Final = 4
"""How deep defaults that are variables with defaults may be nested."""
_LONGEST: Final = 4096
"""Characters of a value: one that doubles again and again is not known."""
_PRINTED: Final = re.compile(r"""^[ \t]*echo[ \t]+("[^"\n]*"|'[^'\n]*')[ \t]*$""", re.MULTILINE)
"""What a script says to its user."""
_DEPTHS: Final = {"if": 1, "case": 1, "fi": -1, "esac": -1}
_DEFAULT: Final = re.compile(r"\$\{\w+:?[-=][\"']?--[A-Za-z].*\}", re.DOTALL)
"""A variable whose default is a flag."""
_UNREAD: Final = re.compile(
    r"\$(?:[@*]|\{[@*][^}]*\}|\{?(\w*(?:ARG|OPT|FLAG|EXTRA|MORE|PARAM)\w*)(?:\[[@*]\])?\}?"
    r"|\{\w+:?[-+=][\"']?--[A-Za-z].*)",
    re.IGNORECASE | re.DOTALL,
)
"""What may be flags when a script runs, by the names that people give them."""
_SNAKE: Final = re.compile(r"[a-z]+(?:_[a-z]+)+[;)]?")
_PLAIN: Final = re.compile(r"[\w$][\w.,:/${}-]*[;)]?")
"""What may be one of several values, and is no operator of bash."""
_END: Final = "\n"
"""The word at the end of a line, outside quotes."""


@dataclass(frozen=True)
class Flags:
    """The flags of a text.

    Parameters
    ----------
    values : mapping
        By name, without the dashes. True: no value. `Contradiction`: it stands there twice.
    decided : collection of str
        Those that lie between ``if`` and ``fi``, or ``case`` and ``esac``, or behind ``&&``, and
        those whose value does.
    missing : sequence of str
        Files that the text sources, and that do not lie beside it.
    unread : sequence of str
        Words that may be flags once the text runs, such as ``$@`` or ``$EXTRA_ARGS``.
    """

    values: Mapping[str, Any]
    decided: Collection[str] = ()
    missing: Sequence[str] = ()
    unread: Sequence[str] = ()


def read_flags(
    text: str,
    switches: Collection[str] = (),
    folder: Path | None = None,
    *,
    lists: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Flags:
    r"""Return the flags of a text with their values.

    Read are words as bash parts them, in arrays, quoted variables and quoted commands
    (``bash -c "..."``) and here-documents too, with comments, ``\`` at the end of a line, variables
    that the text itself sets, ``${NAME:-8}``, ``${1:-8}`` and sums of numbers, ``$((8 * N))``. All
    branches of a condition are read; a variable to which they give other values is not known. Of a
    flag with several values the first one is taken. Or the text is YAML, a ``name: value`` a line;
    if there are lines of ``--name: value``, only these count, as in the model configurations of
    Megatron-LM's tests.

    Parameters
    ----------
    text : str
    switches : collection of str
        Flags that have no value.
    folder : path, optional
        Where the text lies: files that it sources by a relative path are read too.
    lists : mapping of str to collection of str
        Flags that may have several of some values: all are taken, with spaces between them.

    Raises
    ------
    InputError
        For quotes that do not end.
    """
    script = _Script(switches, folder, lists)
    pairs = [*read_yaml(text)] or [*script.flags(text)]
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        values = found.setdefault(name, [])
        if value not in values:
            values.append(value)
    if not found:
        raise InputError(
            "there are no flags in it",
            way_out="Give a script, a command line, or a flag a line: --tensor-model-parallel-size "
            "2",
        )
    once = {
        name: values[0] if len(values) == 1 else Contradiction(values)
        for name, values in found.items()
    }
    unread = [word for word, name in script.unread.items() if name not in script.assigned]
    return Flags(once, script.decided, script.missing, unread)


@dataclass
class _Script:
    """What is known of a script up to a place in it.

    Parameters
    ----------
    switches : collection of str
        Flags that have no value.
    folder : path or None
        Where it lies.
    lists : mapping of str to collection of str
        Flags with several values, and which these are.
    variables : dict of str to str
        Those that the text sets.
    depth : int
        Of conditions around the place.
    decided : set of str
        Flags that a condition decides, or their values.
    conditional : set of str
        Variables that a condition sets, or not.
    assigned : set of str
        All variables that the text sets.
    unread : dict of str to str
        Words that may be flags, and the variable that each is.
    sourced : set of path
        Files that were read.
    missing : list of str
        Those that were not found.
    """

    switches: Collection[str]
    folder: Path | None
    lists: Mapping[str, Collection[str]]
    variables: dict[str, str] = field(default_factory=dict)
    depth: int = 0
    decided: set[str] = field(default_factory=set)
    conditional: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    sourced: set[Path] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)

    def flags(self, text: str) -> Iterator[tuple[str, Any]]:
        """Yield flags with their values."""
        for name, value in self._pairs(self._joined(_split(text))):
            if self.depth:
                self.decided.add(name)
            yield name, value

    def _joined(self, words: Sequence[str]) -> Iterator[str]:
        """Yield words, the values of a flag with several of them as one."""
        known: Collection[str] = ()
        values: list[str] = []
        in_line = False
        for word in words:
            if word == _END:
                in_line = False
                continue
            # Others are refused by name: those of the same line, and behind it those that look
            # alike, where a command may stand.
            other = _PLAIN if in_line else _SNAKE
            alike = other.fullmatch(word) and not self._holds_flags(word)
            if known and (word.rstrip(";)") in known or alike):
                values.append(word)
                known = () if word[-1] in ";)" else known
                continue
            if values:
                yield " ".join(values)
                values = []
            # An array may begin in the word.
            flag = word.rpartition("(")[2].removeprefix("--")
            known = self.lists.get(flag.replace("_", "-"), ())
            in_line = True
            yield word
        if values:
            yield " ".join(values)

    def _holds_flags(self, word: str) -> bool:
        """Whether a word is a variable with flags, or, by its name, may be one."""
        if not word.startswith("$"):
            return False
        name = word.strip("${};)")
        if name in self.variables:
            return "--" in self.variables[name]
        return name in self.assigned or bool(_UNREAD.fullmatch(word.rstrip(";)")))

    def _pairs(self, words: Iterable[str]) -> Iterator[tuple[str, Any]]:
        flag: str | None = None
        before = ""
        guarded = 0
        for word in (word.rstrip(";") for word in words):
            behind, before = before, word
            if flag is None:
                self.depth = max(0, self.depth + _DEPTHS.get(word, 0))
            if flag is None and behind in ("source", "."):
                yield from self._source(word)
                continue
            if flag is None:
                self._forget(word, behind)
            if flag is None and (match := _SET.fullmatch(word)) and not word.startswith("-"):
                value = match[2]
                self.assigned.add(match[1])
                guarded = int(behind in ("&&", "||"))
                self.depth += guarded
                if re.search(r"(?:^|\s)--?[a-z]", value) and not value.startswith("("):
                    yield from self.flags(value)
                    self.depth -= guarded
                    continue
                self._set(match[1], value, adds=word[match.end(1)] == "+")
                if not value.startswith("("):
                    self.depth -= guarded
                word = value.removeprefix("(") if value.startswith("(") else ""
            closed = word.count(")") > word.count("(")
            if closed:
                word = word.removesuffix(")")
            if _DEFAULT.fullmatch(word):
                word = self._expand(word)
            elif unread := _UNREAD.fullmatch(word):
                self.unread[word] = unread[1] or ""
            if FLAG.search(word) and re.search(r"\s", word):
                # A command in quotes, or a flag and its value that bash parts where they are used.
                if flag is not None:
                    yield flag, True
                    flag = None
                yield from self.flags(word)
            elif word.startswith("--") and len(word) > 2:
                if flag is not None:
                    yield flag, True
                name, is_set, value = word[2:].partition("=")
                flag = name.replace("_", "-")
                if is_set or flag in self.switches:
                    yield flag, self._value(flag, value) if is_set else True
                    flag = None
            elif flag is not None and word and word not in ("&&", "||", "|"):
                yield flag, self._value(flag, word)
                flag = None
            if closed and flag is not None:
                yield flag, True
                flag = None
            if closed:
                self.depth -= guarded
                guarded = 0
        if flag is not None:
            yield flag, True

    def _source(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the flags of a file beside the text."""
        written = self._expand(name)
        path = None if self.folder is None else self.folder / written
        if path is None or Path(written).is_absolute() or not path.is_file():
            if written not in self.missing:
                self.missing.append(written)
        elif path not in self.sourced:
            self.sourced.add(path)
            with naming_file(path):
                yield from self.flags(read_file(path)[0])

    def _forget(self, word: str, behind: str) -> None:
        """Make those variables unknown that a loop, `read`, `unset` or arithmetic sets."""
        names = [word] if behind in _SETTERS else []
        if word.startswith("(("):
            names += _COUNTED.findall(word)
        self.variables |= {name: f"${name}" for name in names}

    def _set(self, name: str, text: str, *, adds: bool) -> None:
        """Keep the value of a variable; of one that a condition changes, that it is not known."""
        before, value = self.variables.get(name), self._expand(text)
        if adds:
            value = (before or "") + value
        if len(value) > _LONGEST or (self.depth and before not in (None, value)):
            value = f"${name}"
        elif before != value:
            unsure = self.depth or self._is_conditional(text)
            (self.conditional.add if unsure else self.conditional.discard)(name)
        self.variables[name] = value

    def _value(self, flag: str, word: str) -> str:
        """Return the value of a flag; note where a condition decides it."""
        if self._is_conditional(word):
            self.decided.add(flag)
        return self._expand(word)

    def _is_conditional(self, word: str) -> bool:
        return "$" in word and not self.conditional.isdisjoint(re.findall(r"[A-Za-z_]\w*", word))

    def _expand(self, word: str) -> str:
        """Return a word with the variables that are known, and with its sums added up."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[3]
            default = match[0] if match[2] is None else match[2]
            known = self.variables.get(name, default)
            return known or (default if f"{name}:" in match[0] else "")

        for _ in range(_NESTED if len(word) <= _LONGEST else 0):
            word = _USED.sub(value, word)
            if len(word) > _LONGEST:
                break
        return _SUM.sub(lambda match: _add_up(match, self.variables), word)


def _split(text: str) -> list[str]:
    """Return the words of a text, among them the ends of lines."""
    text = _PRINTED.sub("", _one_line_each(unfold(text)))
    text = _ARITHMETIC.sub(lambda match: match[0].replace(" ", ""), text)
    reader = shlex.shlex(text, posix=True)
    reader.whitespace_split, reader.commenters = True, ""
    reader.whitespace = " \t\r"
    try:
        return [*reader]
    except ValueError:
        raise InputError(
            f"a quote that begins before the end of line {reader.lineno} never ends",
            field=f"line {reader.lineno}",
            way_out="Close it",
        ) from None


def _one_line_each(text: str) -> str:
    """Return a text without comments and backslashes at the end of a line, whose ends are words."""
    found, quote, before = [], "", "\n"
    signs = iter(text.replace("\r\n", "\n"))
    for sign in signs:
        if sign == "\\" and quote != "'":
            behind = next(signs, "")
            found.append(" " if behind == "\n" else sign + behind)
            before = " " if behind == "\n" else behind
            continue
        if sign == "#" and not quote and before in " \t\n;&|()":
            sign = next((other for other in signs if other == "\n"), "")
        elif sign in ("'", '"') and quote in ("", sign):
            quote = "" if quote else sign
        found.append(f" {_END} " if sign == _END and not quote else sign)
        before = sign
    return "".join(found)


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
