"""One thing that a rank does, with the field's short text for it.

=============  ===================================================================
``2F0``        forward of micro-batch 0 in stage 2
``2B0``        backward; ``2I0`` its input half, ``2W0`` its weight half
``2R0``        recompute
``2U0``        update with the gradients of mini-batch 0
``2SEND_F0``   send the output of stage 2 to stage 3, which does ``3RECV_F0``
``2SEND_B0``   send the gradient of the input to stage 1, which does ``1RECV_B0``
``2F0v1``      the forward reads version 1 of the weights
``2B0-3``      one backward of micro-batches 0 to 3
=============  ===================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from schedopt.errors import InputError

ActionKind = Literal["F", "B", "I", "W", "R", "U", "SEND_F", "RECV_F", "SEND_B", "RECV_B"]
ACTION_KINDS: Final[tuple[ActionKind, ...]] = get_args(ActionKind)
MOST_MICRO_BATCHES: Final = 2**20

_TEXT: Final = re.compile(
    rf"(\d{{1,7}})({'|'.join(ACTION_KINDS)})(\d{{1,7}})(?:-(\d{{1,7}}))?(?:v(\d{{1,7}}))?",
    re.ASCII,
)


@dataclass(frozen=True, order=True)
class Action:
    """One thing that a rank does.

    Parameters
    ----------
    stage : int
    kind : str
        An operation of a plan, or the sending or receiving end of a transfer.
    first : int
        The first micro-batch; for U the mini-batch.
    count : int
        So many micro-batches in a row.
    version : int or None
        The version of the weights that it reads, under a rule with updates.
    """

    stage: int
    kind: ActionKind
    first: int
    count: int = 1
    version: int | None = None

    @property
    def micro_batches(self) -> range:
        """The micro-batches that it covers."""
        return range(self.first, self.first + self.count)

    @property
    def singles(self) -> list[Action]:
        """The same for each micro-batch alone."""
        return [
            Action(self.stage, self.kind, micro_batch, 1, self.version)
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
    def other_end(self) -> Action:
        """What the other rank of a transfer does."""
        step = 1 if self.kind.endswith("F") == self.is_send else -1
        kind: ActionKind
        match self.kind:
            case "SEND_F":
                kind = "RECV_F"
            case "RECV_F":
                kind = "SEND_F"
            case "SEND_B":
                kind = "RECV_B"
            case "RECV_B":
                kind = "SEND_B"
            case _:
                raise ValueError(f"{self} is no transfer")
        return Action(self.stage + step, kind, self.first, self.count)

    def __str__(self) -> str:
        last = f"-{self.first + self.count - 1}" if self.count > 1 else ""
        version = "" if self.version is None else f"v{self.version}"
        return f"{self.stage}{self.kind}{self.first}{last}{version}"


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
    stage, kind, first, last, version = found.groups()
    count = 1 if last is None else int(last) - int(first) + 1
    if count < 1 or (last is not None and kind == "U"):
        raise InputError(
            f"{text.strip()!r:.60} covers no micro-batches",
            way_out="Write the first before the last, and of an update only the mini-batch",
        )
    if int(last or first) >= MOST_MICRO_BATCHES:
        raise InputError(
            f"{text.strip()!r:.60} is of micro-batch {last or first}",
            way_out=f"Run at most {MOST_MICRO_BATCHES} micro-batches",
        )
    if version is not None and (kind == "U" or len(kind) > 1):
        raise InputError(f"{text.strip()!r:.60} reads no weights", way_out=f"Leave v{version} out")
    read = None if version is None else int(version)
    return Action(int(stage), cast(ActionKind, kind), int(first), count, read)
