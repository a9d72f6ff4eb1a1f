"""A claim of a paper as a row of its table, and the result of computing it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from schedopt.errors import InputError
from schedopt.formats.values import check_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["holds", "holds-under-convention", "fails"]
VERDICTS: Final[tuple[Verdict, ...]] = ("holds", "holds-under-convention", "fails")
"""From best to worst: a claim is as good as the worst of its sections."""

Case: TypeAlias = dict[str, Any]
"""The figures of one case, as JSON can hold them."""
Step: TypeAlias = Callable[[str], None]
"""Called before each piece of work with its name; raises `schedopt.interrupts.Stopped` to end."""


@dataclass(frozen=True)
class Row:
    """One way to read a statement."""

    tried: str
    """The range. Computed words stand in braces."""
    cases: str
    """The name of the computed cases."""
    equal: Sequence[str] = ()
    """Figures of a case of which the last two, measured and expected, must be equal; those
    before tell cases apart. Without them every case is a counterexample."""
    convention: str = ""
    """What has to be agreed on for this reading. Empty: as printed."""


@dataclass(frozen=True)
class Claim:
    """What a paper says, and how it is tried."""

    id: str
    says: str
    sources: Sequence[str]
    """Authors, work and the place in it."""
    compute: str
    """The function that computes it again, from a `Step` to `Computed`: "module:function"."""
    statements: Mapping[str, Sequence[Row]]
    """Each in one reading or more: first as printed, if that can be tried."""
    notes: Sequence[str] = ()
    """What a reader should know; computed words stand in braces."""

    def __post_init__(self) -> None:
        names = ("id", "says", "sources", "compute", "statements")
        given = {name: getattr(self, name) for name in names}
        for says, rows in self.statements.items():
            given[f"statements.{says}"] = says and rows and all(row.tried for row in rows)
        for name, value in given.items():
            if not value:
                raise InputError("empty", field=name, way_out="Give it a value")


@dataclass(frozen=True)
class Table:
    """Figures in rows and columns."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Picture:
    """A picture next to the figures."""

    name: str
    """Appended to the id of the claim, it names the file."""
    title: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Computed:
    """What the function of a claim returns."""

    cases: Mapping[str, Sequence[Case]]
    """By the names that the readings of the claim have for them."""
    words: Mapping[str, object] = field(default_factory=dict)
    """What stands in braces in the texts of the claim."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Measured numbers, as JSON can hold them."""
    notes: Sequence[str] = ()
    """Computed sentences, before those of the claim."""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Reading:
    """One way to read a statement, tried on cases: the range, and the cases against it."""

    tried: str
    counterexamples: Sequence[Case] = ()
    convention: str = ""


@dataclass(frozen=True)
class Section:
    """One statement of a claim, in one reading or more."""

    says: str
    readings: Sequence[Reading]

    @property
    def holding(self) -> Reading | None:
        """The first reading without counterexamples."""
        return next((reading for reading in self.readings if not reading.counterexamples), None)

    @property
    def verdict(self) -> Verdict:
        """What follows from its readings."""
        if self.holding is None:
            return "fails"
        return "holds-under-convention" if self.holding.convention else "holds"


@dataclass(frozen=True)
class Result:
    """The verdict on a claim, with what it follows from."""

    sections: Sequence[Section]
    computed: Computed
    notes: Sequence[str] = ()
    """Computed ones, and those of the claim."""

    def __post_init__(self) -> None:
        # Here, and not after minutes, when it is written.
        check_values(dict(self.computed.figures), "figures")
        check_values(self.counterexamples, "counterexamples")

    @property
    def verdict(self) -> Verdict:
        """That of the worst section."""
        return max((section.verdict for section in self.sections), key=VERDICTS.index)

    @property
    def conventions(self) -> tuple[str, ...]:
        """What has to be agreed on for the sections that hold only then."""
        texts = (
            section.holding.convention for section in self.sections if section.holding is not None
        )
        return tuple(dict.fromkeys(part for text in texts for part in text.split("; ") if part))

    @property
    def counterexamples(self) -> list[Case]:
        """The cases against the first reading of each section."""
        return [
            {"part": section.says, **case}
            for section in self.sections
            for case in section.readings[0].counterexamples
        ]


def judge(claim: Claim, computed: Computed) -> Result:
    """Return what the computed cases say of each statement of a claim."""

    def text(words: str) -> str:
        return words.format(**computed.words)

    def reading(row: Row) -> Reading:
        cases = computed.cases[row.cases]
        wrong = differing(cases, *row.equal) if row.equal else [*cases]
        return Reading(text(row.tried), wrong, text(row.convention))

    return Result(
        [Section(text(says), [*map(reading, rows)]) for says, rows in claim.statements.items()],
        computed,
        [*computed.notes, *map(text, claim.notes)],
    )


def differing(cases: Iterable[Case], *names: str) -> list[Case]:
    """Return the cases in which the last two of some figures differ, reduced to these figures."""
    one, other = names[-2:]
    return [{name: case[name] for name in names} for case in cases if case[one] != case[other]]


def sole(values: Iterable[Any]) -> Any:
    """Return the only value, or all different ones, sorted."""
    different = sorted(set(values))
    return different[0] if len(different) == 1 else different


def table_of(
    title: str, cases: Iterable[Case], columns: Mapping[str, str | Callable[[Case], object]]
) -> Table:
    """Return a table with a row for each case, from a heading to a figure or a function of it."""
    rows = [
        [case[cell] if isinstance(cell, str) else cell(case) for cell in columns.values()]
        for case in cases
    ]
    return Table(title, [*columns], rows)


T = TypeVar("T")


def announced(step: Step, words: str, items: Iterable[T]) -> Iterator[T]:
    """Yield items, each announced before in words with the item, or its parts, in braces."""
    for item in items:
        step(words.format(*item) if isinstance(item, tuple) else words.format(item))
        yield item
