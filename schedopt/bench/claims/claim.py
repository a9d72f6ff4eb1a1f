"""A claim of a source, and what was found when it was computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from schedopt.errors import InputError
from schedopt.formats.values import check_values
from schedopt.validation import as_tuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["holds", "holds-under-convention", "fails"]
ORDER: Final[tuple[Verdict, ...]] = ("holds", "holds-under-convention", "fails")
"""From best to worst: a claim is as good as the worst of its parts."""

Step: TypeAlias = Callable[[str], None]
"""Called before each piece of work with its name; raises `schedopt.interrupts.Stopped` to end."""

CDP: Final = "Fournier and Oyallon, Cyclic Data Parallelism"
TIMEPREST: Final = "Dutta, Chaki and De, TiMePReSt"
COMPLEXITY: Final = "Beaumont, Eyraud-Dubois and Shilova 2021, Pipelined Model Parallelism"
DATA_PARALLEL: Final = "Boehm 2022, Data-Parallel Distributed Training"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a source says.

    Parameters
    ----------
    id : str
        Its row, such as P3.
    says : str
        In one sentence.
    sources : sequence of str
        Authors, work and the place in it: "Fournier and Oyallon, Cyclic Data Parallelism, Table 1".
    """

    id: str
    says: str
    sources: Sequence[str]

    def __post_init__(self) -> None:
        as_tuple(self, "sources")
        for name in ("id", "says", "sources"):
            if not getattr(self, name):
                raise InputError("empty", field=name, way_out="Say it")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read a part of a claim, tried on cases.

    Parameters
    ----------
    tried : str
        The range.
    counterexamples : sequence of mapping
        The cases in which it is not so, as JSON can hold them.
    convention : str
        What has to be agreed on for this reading. Empty: as printed.
    """

    tried: str
    counterexamples: Sequence[Mapping[str, Any]] = ()
    convention: str = ""

    def __post_init__(self) -> None:
        as_tuple(self, "counterexamples")
        if not self.tried:
            raise InputError("empty", field="tried", way_out="Say on what it was tried")

    @property
    def holds(self) -> bool:
        """Whether no case speaks against it."""
        return not self.counterexamples


@dataclass(frozen=True, kw_only=True)
class Part:
    """One statement of a claim, in one reading or more.

    Parameters
    ----------
    says : str
    readings : sequence of Reading
        The first as printed, if that can be tried; then those under a convention.
    """

    says: str
    readings: Sequence[Reading]

    def __post_init__(self) -> None:
        as_tuple(self, "readings")
        if not self.readings:
            raise InputError("no reading", field="readings", way_out="Give one at least")

    @property
    def holding(self) -> Reading | None:
        """The first reading in which it holds."""
        return next((reading for reading in self.readings if reading.holds), None)

    @property
    def verdict(self) -> Verdict:
        """What follows from its readings."""
        if self.holding is None:
            return "fails"
        return "holds-under-convention" if self.holding.convention else "holds"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Figures in rows and columns."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __post_init__(self) -> None:
        as_tuple(self, "header")
        as_tuple(self, "rows")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture that goes beside the figures.

    Parameters
    ----------
    name : str
        Of the file, without its end; put behind the id of the claim.
    title : str
    draw : callable
        Returns a figure of matplotlib.
    """

    name: str
    title: str
    draw: Callable[[], Figure]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found when a claim was computed again.

    Parameters
    ----------
    claim : Claim
    parts : sequence of Part
        The verdict follows from them.
    figures : mapping
        Numbers that were measured, as JSON can hold them.
    notes : sequence of str
        What a reader should know, in sentences.
    tables : sequence of Table
    pictures : sequence of Picture
    """

    claim: Claim
    parts: Sequence[Part]
    figures: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()

    def __post_init__(self) -> None:
        for name in ("parts", "notes", "tables", "pictures"):
            as_tuple(self, name)
        if not self.parts:
            raise InputError("no part", field="parts", way_out="Give one at least")
        # Here, and not after minutes, when it is written.
        check_values(dict(self.figures), "figures")
        check_values([dict(case) for case in self.counterexamples], "counterexamples")

    @property
    def verdict(self) -> Verdict:
        """That of the worst part."""
        return max((part.verdict for part in self.parts), key=ORDER.index)

    @property
    def conventions(self) -> tuple[str, ...]:
        """What has to be agreed on for the parts that hold so only."""
        found = (part.holding.convention for part in self.parts if part.holding is not None)
        single = (one for several in found for one in several.split("; "))
        return tuple(dict.fromkeys(one for one in single if one))

    @property
    def counterexamples(self) -> tuple[Mapping[str, Any], ...]:
        """What speaks against a part as it is printed, or in its first reading."""
        return tuple(
            {"part": part.says, **case}
            for part in self.parts
            for case in part.readings[0].counterexamples
        )


def against(cases: Sequence[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Return the cases in which two named figures differ, only with what tells them and these."""
    one, other = names[-2:]
    return [{name: case[name] for name in names} for case in cases if case[one] != case[other]]
