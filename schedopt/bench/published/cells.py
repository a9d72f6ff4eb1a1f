"""What a value of a published table may be, by the name of its column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from schedopt.errors import InputError
from schedopt.formats.values import Fault
from schedopt.validation import LARGEST, LARGEST_COUNT, show

MEASURES: Final = (
    *("_ns", "_bytes", "_bytes_per_s", "_mib", "_gib", "_gb", "_percent", "_rate", "_billion"),
)
"""How the names of columns end whose figures have units: nothing below 0, or null."""
SIZE: Final = "bytes"
COUNTS: Final = frozenset(
    [
        *("tp", "pp", "dp", "cp", "ep", "gpus", "stages", "stages_count", "chunks_per_stage"),
        *("mbs", "microbatches", "global_batch", "sequence"),
        *("layers", "hidden", "heads", "vocabulary"),
    ]
)
"""Columns of whole numbers from 1 on, or null."""
PLACES: Final = frozenset(["rank", "stage", "layer", "algo"])
"""Columns of whole numbers from 0 on, or null."""
NAMES: Final = frozenset(
    [
        *("model", "gpu", "set", "site", "kind", "link", "collective", "op"),
        *("plan", "run", "case", "name", "method", "schedule"),
    ]
)
"""Columns that say what a line is of: where they are text, none is empty."""
FIGURES: Final = (int, float)
STEP: Final = "step_ns"
"""What is predicted above all: where it was measured, it is not 0."""
KINDS: Final[Mapping[type, str]] = {
    **{int: "a number", float: "a number", bool: "true or false", str: "text"},
    **{list: "a list", dict: "an object", type(None): ""},
}
"""What a value is, in words; empty for null."""


def check_column(column: str, values: Sequence[Any]) -> None:
    """Refuse values that a column cannot have.

    Parameters
    ----------
    column : str
    values : sequence
        Of all lines, as parsed from JSON.

    Raises
    ------
    InputError
        Naming line and column: a value that is not in the unit of its column, another kind of value
        than most lines have, a list or an object that does not hold what it must, or no name.
    """
    _check_each(column, values, _check_of(column))
    kinds = [KINDS[type(value)] for value in values]
    usual = Counter(filter(None, kinds)).most_common(1)
    if usual and usual[0][1] < len(kinds) - kinds.count(""):
        _check_each(column, values, partial(_check_kind, usual[0][0]))
    if column in NAMES:
        _check_each(column, values, _check_name)
    if column in INSIDE:
        _check_each(column, values, INSIDE[column])


def _check_each(column: str, values: Sequence[Any], check: Callable[[Any], None]) -> None:
    """Call what refuses a value on each; a refusal names line and column."""
    for number, value in enumerate(values):
        try:
            check(value)
        except InputError as error:
            raise error.within(f"rows[{number}].{column}") from None


def _check_of(column: str) -> Callable[[Any], None]:
    """Return what refuses a value that is not in the unit of its column."""
    if column == STEP:
        return _check_step
    if column == SIZE or column.endswith(MEASURES):
        return _check_measure
    if column in COUNTS or column in PLACES:
        return partial(_check_count, 1 if column in COUNTS else 0)
    return _check_fault


def check_whole(value: Any, field: str, low: int) -> None:
    """Refuse what is no whole number from `low` on."""
    if type(value) is not int or not low <= value <= LARGEST_COUNT:
        raise InputError(
            f"{show(value)} is no whole number from {low} to {LARGEST_COUNT}",
            field=field,
            way_out="Give one, or null where it is not known",
        )


def _check_fault(value: Any) -> None:
    """Refuse what parsing found to be wrong."""
    if isinstance(value, Fault):
        raise InputError(value.rule, way_out=value.way_out)


def _check_count(low: int, value: Any) -> None:
    """Refuse what is no whole number from `low` on; a list may hold anything."""
    _check_fault(value)
    if value is not None and not isinstance(value, list):
        check_whole(value, "", low)


def _check_step(value: Any) -> None:
    _check_measure(value)
    if value == 0:
        raise InputError("no step takes no time", way_out="Give what it took, or null")


def _check_measure(value: Any) -> None:
    """Refuse what is no figure, nor several."""
    if value is None or (type(value) in FIGURES and 0 <= value <= LARGEST):
        return
    _check_fault(value)
    listed = list(value.values()) if isinstance(value, dict) else value
    for one in listed if isinstance(listed, list) else [listed]:
        if one is not None and not (type(one) in FIGURES and 0 <= one <= LARGEST):
            raise InputError(
                f"{show(one)} is no time, no size and no rate",
                way_out=f"Give a number from 0 to {LARGEST}, or null",
            )


def _check_kind(usual: str, value: Any) -> None:
    """Refuse a value of another kind than most of its column have."""
    kind = KINDS[type(value)]
    if kind and kind != usual:
        raise InputError(
            f"is {kind}, and most lines have {usual}", way_out="Give what they have, or null"
        )


def _check_name(value: Any) -> None:
    if value is None or value == "":
        raise InputError("is empty", way_out="Say what this line is of")


def _places(value: Sequence[Any], field: str = "") -> Iterator[tuple[Any, str]]:
    for number, one in enumerate(value):
        yield one, f"{field}[{number}]"


def _check_layers(value: Sequence[Any]) -> None:
    """Refuse what is neither how many layers stages have, nor the layers of each."""
    for one, place in _places(value or ()):
        if isinstance(one, list):
            for layer, inner in _places(_full(one, place), place):
                check_whole(layer, inner, 0)
        elif one is not None:
            check_whole(one, place, 0)


def _check_groups(value: Sequence[Any]) -> None:
    """Refuse what is no GPU and tensor degree of each stage, nor of each replica of it."""
    for one, place in _places(value or ()):
        several = isinstance(one, list) and bool(one) and isinstance(one[0], list)
        for pair, inner in _places(one, place) if several else [(one, place)]:
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise InputError(
                    f"{show(pair)} is no GPU and tensor degree",
                    field=inner,
                    way_out='Give both, as in ["A100-40", 4]',
                )
            check_whole(pair[1], f"{inner}[1]", 1)


def _check_words(value: Sequence[Any]) -> None:
    for one, place in _places(value or ()):
        if not isinstance(one, str):
            raise InputError(f"{show(one)} is no text", field=place, way_out="Say it in words")


def _check_ranks(value: Mapping[str, Any]) -> None:
    """Refuse what is not of ranks, each by its number."""
    for name in value or ():
        if not (name.isascii() and name.isdigit()):
            raise InputError(f"{show(name)} is no rank", way_out="Number the ranks from 0 on")


def _full(value: Sequence[Any], field: str) -> Sequence[Any]:
    if not value:
        raise InputError("is an empty list", field=field, way_out="Give each stage a layer")
    return value


INSIDE: Final[Mapping[str, Callable[[Any], None]]] = {
    "layers_per_stage": _check_layers,
    "gpu_tp": _check_groups,
    "flags": _check_words,
    "allocated_by_rank_bytes": _check_ranks,
}
"""What lists and objects hold."""
