"""What a launch file sets, by name, and what of it matters here."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, NoReturn

from schedopt.errors import InputError
from schedopt.validation import as_whole, show

MOST: Final = 1 << 20
"""Of GPUs, layers and micro-batches that a file may name."""
SHOWN: Final = 8
"""The most unknown settings that are named behind the first one."""


class Contradiction(tuple[Any, ...]):
    """The values of a setting that stands in a file several times."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Settings that a plan leaves out.

    Parameters
    ----------
    why : str
        In words: what they have in common.
    told : bool
        Whether the user is told that they were left out.
    names : tuple of str
        Those, and all that begin with one that ends in ``*``.
    """

    why: str
    told: bool
    names: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Whether a setting is one of these."""
        return name in self.names or any(
            own.endswith("*") and name.startswith(own[:-1]) for own in self.names
        )


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A setting that changes the step or the memory in a way that plans do not have.

    Parameters
    ----------
    why : str
    harmless : tuple of str
        Values with which it changes nothing.
    way_out : str
    """

    why: str
    harmless: tuple[str, ...] = ()
    way_out: str = ""


@dataclass(frozen=True)
class Vocabulary:
    """The settings of an engine that are not read: what may be left out, and what is refused."""

    left_out: tuple[Kind, ...]
    refused: Mapping[str, Refusal]


@lru_cache
def vocabulary(engine: str) -> Vocabulary:
    """Return the settings of an engine that are not read."""
    text = files(__package__).joinpath(f"{engine}.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return Vocabulary(
        tuple(Kind(**row | {"names": tuple(row["names"])}) for row in table["left_out"]),
        {
            name: Refusal(**row | {"harmless": tuple(row.get("harmless", ()))})
            for name, row in table["refused"].items()
        },
    )


@dataclass
class Settings:
    """What a file sets.

    Parameters
    ----------
    values : mapping
        By name, as an error names it. True: a flag without a value.
    ignored : collection of str
        Settings that somebody says to leave out, by the last part of their name or all of it.
    prefix : str
        Of a name in an error: ``--``.
    decided : collection of str
        Settings that lie in a condition of the file.
    """

    values: Mapping[str, Any]
    ignored: Collection[str] = ()
    prefix: str = ""
    decided: Collection[str] = ()
    read: set[str] = field(default_factory=set)

    def name(self, key: str) -> str:
        """Return what an error calls a setting."""
        return f"{self.prefix}{key}"

    def refuse(self, key: str, rule: str, way_out: str) -> NoReturn:
        """Refuse a setting."""
        raise InputError(rule, field=self.name(key), way_out=way_out)

    def get(self, key: str) -> Any:
        """Return a value; None where it is not set or is to be left out."""
        self.read.add(key)
        if self._is_ignored(key):
            return None
        value = self.values.get(key)
        if isinstance(value, Contradiction):
            told = " and ".join(map(show, value))
            self.refuse(key, f"it stands there twice, with {told}", "Keep one of them")
        return value

    def has(self, key: str) -> bool:
        """Whether a setting is there and counts."""
        return self.get(key) is not None

    def whole(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        """Return a whole number.

        Raises
        ------
        InputError
            For anything else, and where there is neither a value nor a default.
        """
        value = self.get(key)
        if value is None:
            if default is None:
                self.refuse(key, "is not given", "Add it to the file")
            return default
        if isinstance(value, str):
            text = value.strip()
            if not text.lstrip("-").isascii() or not text.lstrip("-").isdigit() or len(text) > 15:
                self.refuse(key, f"{show(value)} is not a whole number", self._say_number(value))
            value = int(text)
        return as_whole(value, self.name(key), low=low, high=MOST)

    def _say_number(self, value: str) -> str:
        if "$" in value:
            return "Set the variable in the file, in no condition, or write the number"
        return "Write the number" + (
            ": what is left to another program is not known here" if value == "auto" else ""
        )

    def flag(self, key: str) -> bool:
        """Return whether something is on; what is not said is off."""
        value = self.get(key)
        if value is None:
            return False
        words = {"true": True, "false": False}
        found = words.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            self.refuse(key, f"{show(value)} is neither true nor false", "Write one of them")
        return found

    def word(self, key: str, choices: Collection[str], default: str) -> str:
        """Return one of some words."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            self.refuse(
                key, f"{show(value)} is not known here", f"Known are {', '.join(sorted(choices))}"
            )
        return value

    def refuse_together(self, one: str, other: str, why: str) -> None:
        """Refuse two settings that contradict each other, where both are there."""
        if self.has(one) and self.has(other):
            self.refuse(one, f"given together with {self.name(other)}, {why}", "Keep one of them")

    def refuse_others(self, engine: str) -> tuple[str, ...]:
        """Refuse what plans do not have and what nobody knows; say in sentences what is left out.

        Raises
        ------
        InputError
            Naming the first setting that changes the step or the memory, or all that are not known.
        """
        known = vocabulary(engine)
        unknown: list[str] = []
        left: dict[str, list[str]] = {kind.why: [] for kind in known.left_out if kind.told}
        for key, value in self.values.items():
            if key in self.read or self._is_ignored(key):
                continue
            if refusal := known.refused.get(key):
                if str(value).lower() not in refusal.harmless:
                    self.refuse(
                        key,
                        f"{_shown(value)}{refusal.why}",
                        refusal.way_out or self._say_ignore(key),
                    )
                continue
            kind = next((kind for kind in known.left_out if kind.has(key)), None)
            if kind is None:
                unknown.append(key)
            elif kind.told:
                left[kind.why].append(self.name(key))
        if unknown:
            self._refuse_unknown(unknown)
        if decided := [self.name(key) for key in self.decided if self._counts(key)]:
            left["Taken as given, which a condition of the file decides"] = sorted(decided)
        return tuple(f"{why}: {', '.join(names)}" for why, names in left.items() if names)

    def _refuse_unknown(self, unknown: Sequence[str]) -> NoReturn:
        first, *others = unknown
        told = ", ".join(map(self.name, others[:SHOWN])) + (" ..." if len(others) > SHOWN else "")
        also = f"; so may {told}" if others else ""
        self.refuse(
            first,
            f"it is unknown here, and may change the step or the memory{also}",
            self._say_ignore(first, several=bool(others)),
        )

    def _counts(self, key: str) -> bool:
        """Whether a setting was read."""
        return key in self.read and not self._is_ignored(key)

    def _is_ignored(self, key: str) -> bool:
        names = {name.removeprefix(self.prefix or "--") for name in self.ignored}
        return key in names or key.rpartition(".")[2] in names

    def _say_ignore(self, key: str, *, several: bool = False) -> str:
        each = " for each of them" if several else ""
        return (
            f"Leave it out, or, if it changes neither for the chain that was "
            f"measured, say import_launch(ignored={key}){each}"
        )

    def check_ignored(self, needed: Collection[str]) -> None:
        """Refuse names to leave out that the file does not have, or without which it says nothing.

        `needed` are the latter: what says how many GPUs do what, and the batch.
        """
        for name in self.ignored:
            own = name.removeprefix(self.prefix or "--")
            if any(own in (key, key.rpartition(".")[2]) for key in needed):
                raise InputError(
                    f"{show(name)} says how many GPUs or samples there are, and is not left out",
                    field="ignore",
                    way_out="Change it in the file",
                )
            if not any(own in (key, key.rpartition(".")[2]) for key in self.values):
                raise InputError(
                    f"{show(name)} is not in the file",
                    field="ignore",
                    way_out="Name a setting as the file does, or leave it out",
                )


def _shown(value: Any) -> str:
    return "" if value is True else f"{show(value)}: "
