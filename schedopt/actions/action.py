"""One thing that a rank does, with the field's short text for it.

==================  ==============================================================
``2F0``             forward of micro-batch 0 in stage 2
``2B0``             backward; ``2I0`` its input half, ``2W0`` its weight half
``2R0``             recompute
``2U0``             update with the gradients of mini-batch 0
``2SEND_F0``        send the output of stage 2 to stage 3, which does ``3RECV_F0``
``2SEND_B0``        send the gradient of the input to stage 1, which does ``1RECV_B0``
``2SEND_G0r1-3``    send what rank 1 has of the gradient of the weights, for the
                    mini-batch of micro-batch 0, to rank 3, which does ``2RECV_G0r1-3``
``2G0r1-3``         let what came take the place of what rank 3 has of it
``2G0r1-3c0/4+``    add what came, chunk 0 of 4, to it
``2SEND_V0r1-3``    send the weights that the update of that mini-batch made
``2V0``             go on with the weights that came instead of an update with mini-batch 0
``2F0v1``           the forward reads version 1 of the weights
``2B0-3``           one backward of micro-batches 0 to 3
==================  ==============================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from schedopt.errors import InputError

_Computing = Literal["F", "B", "I", "W", "R", "U", "G", "V"]
_Sending = Literal["SEND_F", "SEND_B", "SEND_G", "SEND_V"]
_Receiving = Literal["RECV_F", "RECV_B", "RECV_G", "RECV_V"]
ActionKind = Literal[_Computing, _Sending, _Receiving]
ACTION_KINDS: Final[tuple[ActionKind, ...]] = get_args(ActionKind)
MOST_MICRO_BATCHES: Final = 2**20

_TEXT: Final = re.compile(
    rf"(\d{{1,7}})({'|'.join(ACTION_KINDS)})(\d{{1,7}})(?:-(\d{{1,7}}))?(?:v(\d{{1,7}}))?"
    r"(?:r(\d{1,7})-(\d{1,7})(?:c(\d{1,7})/(\d{1,7}))?(\+)?)?",
    re.ASCII,
)
_PARTED: Final = ("G", "SEND_G", "RECV_G", "SEND_V", "RECV_V")


@dataclass(frozen=True, order=True)
class Part:
    """Which part of a stage's weights, or of their gradient, goes from which rank to which.

    Parameters
    ----------
    source, target : int
        Ranks.
    chunk, chunks : int
        Which of how many equal parts.
    is_added : bool
        Whether it is added to what the target has, and does not take its place.
    """

    source: int
    target: int
    chunk: int = 0
    chunks: int = 1
    is_added: bool = False

    def __str__(self) -> str:
        chunk = f"c{self.chunk}/{self.chunks}" if self.chunks > 1 else ""
        return f"r{self.source}-{self.target}{chunk}{'+' if self.is_added else ''}"


@dataclass(frozen=True, order=True)
class Action:
    """One thing that a rank does.

    Parameters
    ----------
    stage : int
    kind : str
        An operation of a plan, or the sending or receiving end of a transfer.
    first : int
        The first micro-batch; for U and V the mini-batch. What goes between replicas belongs to the
        mini-batch of that micro-batch.
    count : int
        So many micro-batches in a row.
    version : int or None
        The version of the weights that it reads, under a rule with updates.
    part : Part or None
        Of what goes between replicas.
    """

    stage: int
    kind: ActionKind
    first: int
    count: int = 1
    version: int | None = None
    part: Part | None = None

    @property
    def micro_batches(self) -> range:
        """The micro-batches that it covers."""
        return range(self.first, self.first + self.count)

    @property
    def singles(self) -> list[Action]:
        """The same for each micro-batch alone."""
        return [
            Action(self.stage, self.kind, micro_batch, 1, self.version, self.part)
            for micro_batch in self.micro_batches
        ]

    @property
    def is_transfer(self) -> bool:
        """Whether it is one end of a transfer."""
        return len(self.kind) > 1

    @property
    def is_send(self) -> bool:
        """Whether it is the sending end of a transfer."""
        return self.kind.startswith("SEND")

    @property
    def is_boundary(self) -> bool:
        """Whether it is one end of a transfer of an activation or its gradient."""
        return self.is_transfer and self.part is None

    @property
    def makes_version(self) -> bool:
        """Whether there is a new version of the weights on its rank behind it."""
        return self.kind in ("U", "V")

    @property
    def is_read(self) -> bool:
        """Whether it computes with the weights."""
        return self.kind in ("F", "B", "I", "W", "R")

    @property
    def other_end(self) -> Action:
        """What the other rank of a transfer does."""
        if not self.is_transfer:
            raise ValueError(f"{self} is no transfer")
        way, what = self.kind.split("_")
        kind = cast(ActionKind, f"{'RECV' if way == 'SEND' else 'SEND'}_{what}")
        step = 0 if self.part else 1 if (what == "F") == self.is_send else -1
        return Action(self.stage + step, kind, self.first, self.count, None, self.part)

    @property
    def received(self) -> Action:
        """The receive whose result G takes in."""
        return Action(self.stage, "RECV_G", self.first, 1, None, self.part)

    def __str__(self) -> str:
        last = f"-{self.first + self.count - 1}" if self.count > 1 else ""
        version = "" if self.version is None else f"v{self.version}"
        return f"{self.stage}{self.kind}{self.first}{last}{version}{self.part or ''}"


def parse_action(text: str) -> Action:
    """Read the short text of an action.

    Raises
    ------
    InputError
        If it is none.

    Examples
    --------
    >>> parse_action("2SEND_F0")
    Action(stage=2, kind='SEND_F', first=0, count=1, version=None)
    """
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise InputError(
            f"{text.strip()!r:.60} is no action",
            way_out="Write the stage, what it does and the micro-batch, such as 2F0 or 2SEND_F0",
        )
    stage, kind, first, last, version, *ends, chunk, chunks, added = found.groups()
    count = 1 if last is None else int(last) - int(first) + 1
    alone = kind in ("U", "V", *_PARTED)
    if count < 1 or (last is not None and alone):
        raise InputError(
            f"{text.strip()!r:.60} covers no micro-batches",
            way_out="Write the first before the last, and of an update only the mini-batch",
        )
    if int(last or first) >= MOST_MICRO_BATCHES:
        raise InputError(
            f"{text.strip()!r:.60} is of micro-batch {last or first}",
            way_out=f"Run at most {MOST_MICRO_BATCHES} micro-batches",
        )
    if version is not None and (alone or len(kind) > 1):
        raise InputError(f"{text.strip()!r:.60} reads no weights", way_out=f"Leave v{version} out")
    if (kind in _PARTED) != (ends[0] is not None) or (added and not kind.endswith("G")):
        raise InputError(
            f"{text.strip()!r:.60} goes between replicas, or does not",
            way_out="Write the ranks of what goes between replicas, such as 2SEND_G0r0-1, and a + "
            "of gradients only",
        )
    part = None
    if kind in _PARTED:
        whole = int(chunks or 1)
        part = Part(int(ends[0]), int(ends[1]), int(chunk or 0), whole, added is not None)
        if part.chunk >= whole or (chunks is not None and whole == 1):
            raise InputError(
                f"{text.strip()!r:.60} is no chunk",
                way_out="Count chunks from 0, and leave out c0/1",
            )
    read = None if version is None else int(version)
    return Action(int(stage), cast(ActionKind, kind), int(first), count, read, part)
