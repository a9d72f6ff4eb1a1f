"""What a picture shows, before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from schedopt.account import Level
from schedopt.plan import Kind
from schedopt.transfer import Tensor

LETTERS: Final[dict[str, str]] = {
    "activation": "a",
    "gradient": "g",
    "weight_gradient": "w",
    "weights": "p",
    "weight_half": "h",
}
"""What a transfer is called in a box; an operation is called by its kind."""


@dataclass(frozen=True)
class Box:
    """An operation or a transfer, clipped to the time that is shown.

    Parameters
    ----------
    start_ns, end_ns : int
    what : Kind or Tensor
    stage : int
    number : int
        The first micro-batch: in a step its number; in a pattern its index shift, counted from
        the first period that is shown.
    """

    start_ns: int
    end_ns: int
    what: Kind | Tensor
    stage: int
    number: int

    @property
    def letter(self) -> str:
        """F, B, I, W, R or U for an operation; a, g, w, p or h for a transfer."""
        return LETTERS.get(self.what, self.what)


@dataclass(frozen=True)
class Row:
    """What one GPU or one link does.

    Parameters
    ----------
    name : str
        GPU 3, or 2-3 for a link.
    boxes : tuple of Box
        By start; none overlaps the next.
    busy : Fraction
        The share of the time in which it works.
    """

    name: str
    boxes: tuple[Box, ...]
    busy: Fraction

    def busy_in(self, parts: int, length_ns: int) -> list[float]:
        """Return the share of each of `parts` equal parts of the time in which it works."""
        shares = [0.0] * parts
        for box in self.boxes:
            begin, end = box.start_ns * parts / length_ns, box.end_ns * parts / length_ns
            for part in range(int(begin), min(parts, -int(-end // 1))):
                shares[part] += min(end, part + 1) - max(begin, part)
        return shares


@dataclass(frozen=True)
class MemoryRow:
    """The memory of one GPU.

    Parameters
    ----------
    levels : tuple of Level
        Over the time that is shown.
    need_bytes : int
        What decides whether it fits: the most, in the reading of the scope.
    limit_bytes : int
    lacks : bool
        Whether there is no room for one more micro-batch between forward and backward.
    """

    levels: tuple[Level, ...]
    need_bytes: int
    limit_bytes: int
    lacks: bool

    def most_in(self, parts: int, length_ns: int) -> list[int]:
        """Return the most bytes in each of `parts` equal parts of the time."""
        most = [0] * parts
        ends = [level.start_ns for level in self.levels[1:]] + [length_ns]
        for level, end in zip(self.levels, ends, strict=True):
            begin = min(parts - 1, level.start_ns * parts // length_ns)
            after = max(begin + 1, -(-end * parts // length_ns))
            for part in range(begin, min(parts, after)):
                most[part] = max(most[part], level.most)
        return most

    @property
    def room(self) -> str:
        """What stands behind the share where memory decides, in words."""
        if self.need_bytes > self.limit_bytes:
            return ", too much"
        return ", no room" if self.lacks else ""

    @property
    def share(self) -> float:
        """The need over the limit; 0 if the limit is 0."""
        return self.need_bytes / self.limit_bytes if self.limit_bytes else 0.0


@dataclass(frozen=True)
class Span:
    """A named part of the time that is shown."""

    start_ns: int
    end_ns: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What a picture shows.

    Parameters
    ----------
    title : str
    facts : tuple of str
        What a reader wants to know first.
    numbering : {"shift", "micro-batch"}
        What the numbers of the boxes are.
    length_ns : int
        The time that is shown.
    repeats_from_ns : int
        From here on all has been shown before; `length_ns` if nothing has.
    gpus : tuple of Row
        Those that have a stage.
    memory : tuple of MemoryRow
        One for each GPU, or none.
    links : tuple of Row
        Those that carry something.
    spans : tuple of Span
        Periods, steps, or the phases of a step.
    stages : int
    busiest : int
        The position in `gpus` of the one that works the most.
    """

    title: str
    facts: tuple[str, ...]
    numbering: Literal["shift", "micro-batch"]
    length_ns: int
    repeats_from_ns: int
    gpus: tuple[Row, ...]
    memory: tuple[MemoryRow, ...]
    links: tuple[Row, ...]
    spans: tuple[Span, ...]
    stages: int
    busiest: int

    @property
    def legend(self) -> str:
        """What the text in a box says."""
        if self.numbering == "shift":
            return (
                "F2+1 is the forward of stage 2 for micro-batch i+1, and so is F+1 where space "
                "lacks; B0+0 ends micro-batch i; i grows by k a period"
            )
        return (
            "F2:17 is the forward of stage 2 for micro-batch 17, and so is F:17 where space lacks"
        )

    def labels(self, box: Box) -> tuple[str, str, str]:
        """Return what may stand in a box, the longest first."""
        number = f"{box.number:+}" if self.numbering == "shift" else f":{box.number}"
        return f"{box.letter}{box.stage}{number}", f"{box.letter}{number}", box.letter
