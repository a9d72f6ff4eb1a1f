"""What a value of a published table may be, by the name of its column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
STEP: Final = "step_ns"
"""What is predicted above all: where it was measured, it is not 0."""
KINDS: Final = {str: "text", bool: "true or false", list: "a list", dict: "an object"}


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
    for number, value in enumerate(values):
        field = f"rows[{number}].{column}"
        if isinstance(value, Fault):
            raise InputError(value.rule, field=field, way_out=value.way_out)
        if column == SIZE or column.endswith(MEASURES):
            _check_measure(value, field)
        elif value is None or isinstance(value, list):
            pass
        elif column in COUNTS:
            check_whole(value, field, 1)
        elif column in PLACES:
            check_whole(value, field, 0)
        if column == STEP and value == 0:
            raise InputError(
                "no step takes no time", field=field, way_out="Give what it took, or null"
            )
    _check_alike(column, values)
    for number, value in enumerate(values):
        if column in INSIDE and value is not None:
            INSIDE[column](value, f"rows[{number}].{column}")


def check_whole(value: Any, field: str, low: int) -> None:
    """Refuse what is no whole number from `low` on."""
    if type(value) is not int or not low <= value <= LARGEST_COUNT:
        raise InputError(
            f"{show(value)} is no whole number from {low} to {LARGEST_COUNT}",
            field=field,
            way_out="Give one, or null where it is not known",
        )


def _check_measure(value: Any, field: str) -> None:
    """Refuse what is no figure, nor several."""
    listed = list(value.values()) if isinstance(value, dict) else value
    for one in listed if isinstance(listed, list) else [listed]:
        if one is not None and not (_is_number(one) and 0 <= one <= LARGEST):
            raise InputError(
                f"{show(one)} is no time, no size and no rate",
                field=field,
                way_out=f"Give a number from 0 to {LARGEST}, or null",
            )


def _check_alike(column: str, values: Sequence[Any]) -> None:
    """Refuse a value of another kind than most of its column have, and a name that is none."""
    kinds = [_kind(value) for value in values]
    usual = Counter(kind for kind in kinds if kind).most_common(1)
    for number, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        field = f"rows[{number}].{column}"
        if kind and kind != usual[0][0]:
            raise InputError(
                f"is {kind}, and most lines have {usual[0][0]}",
                field=field,
                way_out="Give what they have, or null",
            )
        if column in NAMES and (not kind or value == ""):
            raise InputError("is empty", field=field, way_out="Say what this line is of")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    """Return in words what a value is, empty for null."""
    if _is_number(value):
        return "a number"
    return "" if value is None else KINDS[type(value)]


def _places(value: Sequence[Any], field: str) -> Iterator[tuple[Any, str]]:
    for number, one in enumerate(value):
        yield one, f"{field}[{number}]"


def _check_layers(value: Sequence[Any], field: str) -> None:
    """Refuse what is neither how many layers stages have, nor the layers of each."""
    for one, place in _places(value, field):
        if isinstance(one, list):
            for layer, inner in _places(_full(one, place), place):
                check_whole(layer, inner, 0)
        elif one is not None:
            check_whole(one, place, 0)


def _check_groups(value: Sequence[Any], field: str) -> None:
    """Refuse what is no GPU and tensor degree of each stage, nor of each replica of it."""
    for one, place in _places(value, field):
        several = isinstance(one, list) and bool(one) and isinstance(one[0], list)
        for pair, inner in _places(one, place) if several else [(one, place)]:
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise InputError(
                    f"{show(pair)} is no GPU and tensor degree",
                    field=inner,
                    way_out='Give both, as in ["A100-40", 4]',
                )
            check_whole(pair[1], f"{inner}[1]", 1)


def _check_words(value: Sequence[Any], field: str) -> None:
    for one, place in _places(value, field):
        if not isinstance(one, str):
            raise InputError(f"{show(one)} is no text", field=place, way_out="Say it in words")


def _check_ranks(value: Mapping[str, Any], field: str) -> None:
    """Refuse what is not of ranks, each by its number."""
    for name in value:
        if not (name.isascii() and name.isdigit()):
            raise InputError(
                f"{show(name)} is no rank", field=field, way_out="Number the ranks from 0 on"
            )


def _full(value: Sequence[Any], field: str) -> Sequence[Any]:
    if not value:
        raise InputError("is an empty list", field=field, way_out="Give each stage a layer")
    return value


INSIDE: Final[Mapping[str, Callable[[Any, str], None]]] = {
    "layers_per_stage": _check_layers,
    "gpu_tp": _check_groups,
    "flags": _check_words,
    "allocated_by_rank_bytes": _check_ranks,
}
"""What lists and objects hold."""
