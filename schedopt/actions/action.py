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
``2G0r1-3c0/4+``    add what came, chunk 0 of 4, to it; ``-+`` where rank 1 keeps nothing of it
``0SEND_C0s2r1-3``  send what the backwards of rank 1 in stage 0 made of the gradient of weights of
                    which stage 2 has a copy, to rank 3, which does ``2RECV_C0s0r1-3``
``2C0s0r1-3``       add what came to the gradient of stage 2; from the rank itself it is not sent
``2SEND_V0r1-3``    send the weights that the update of that mini-batch made
``2V0``             go on with the weights that came instead of an update with mini-batch 0
``2U0c1+3/4``       update chunks 1 and 3 of 4, which are at home here; ``2V0`` then goes on with
                    them, and with those that came
``2SEND_P0v1r1-3F`` send weights of version 1 to rank 3, which does ``2RECV_P0v1r1-3F``, for the
                    forward of micro-batch 0 alone
``2F0v1``           the forward reads version 1 of the weights
``2B0-3``           one backward of micro-batches 0 to 3
==================  ==============================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal, cast, get_args

from schedopt.errors import InputError

_Computing = Literal["F", "B", "I", "W", "R", "U", "REDUCE_GRAD", "ADD_COPY", "BROADCAST_PARAM"]
_Sending = Literal["SEND_F", "SEND_B", "SEND_G", "SEND_C", "SEND_V", "SEND_P"]
_Receiving = Literal["RECV_F", "RECV_B", "RECV_G", "RECV_C", "RECV_V", "RECV_P"]
ActionKind = Literal[_Computing, _Sending, _Receiving]
ACTION_KINDS: Final[tuple[ActionKind, ...]] = get_args(ActionKind)
MOST_MICRO_BATCHES: Final = 2**20

_PRINTED: Final[dict[str, str]] = {"REDUCE_GRAD": "G", "ADD_COPY": "C", "BROADCAST_PARAM": "V"}
"""Kinds that a text shows as a letter."""
_KINDS: Final[dict[str, ActionKind]] = {_PRINTED.get(kind, kind): kind for kind in ACTION_KINDS}
_TEXT: Final = re.compile(
    rf"(\d{{1,7}})({'|'.join(_KINDS)})(\d{{1,7}})(?:-(\d{{1,7}}))?(?:v(\d{{1,7}}))?"
    r"(?:s(\d{1,7}))?(?:r(\d{1,7})-(\d{1,7}))?(?:c(\d{1,7}(?:\+\d{1,7})*)/(\d{1,7}))?(-)?(\+)?([FRBIW])?",
    re.ASCII,
)
_READERS: Final = ("F", "R", "B", "I", "W")
_GATHERS: Final = ("SEND_P", "RECV_P")
_OF_COPIES: Final = ("ADD_COPY", "SEND_C", "RECV_C")
_REDUCTIONS: Final = ("REDUCE_GRAD", "SEND_G", "RECV_G")
_BETWEEN_REPLICAS: Final = (*_REDUCTIONS, *_OF_COPIES, "SEND_V", "RECV_V", *_GATHERS)


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
    is_taken : bool
        Whether the source keeps nothing of it.
    reader : str
        The kind of the operation that alone reads it, where weights are gathered for one.
    other_stage : int or None
        The stage at the other end, of the gradient of a copy of tied weights.
    """

    source: int
    target: int
    chunk: int = 0
    chunks: int = 1
    is_added: bool = False
    is_taken: bool = False
    reader: str = ""
    other_stage: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether both ends are one rank, so that nothing is sent."""
        return self.source == self.target

    def __str__(self) -> str:
        other = "" if self.other_stage is None else f"s{self.other_stage}"
        chunk = f"c{self.chunk}/{self.chunks}" if self.chunks > 1 else ""
        end = f"{'-' if self.is_taken else ''}{'+' if self.is_added else ''}{self.reader}"
        return f"{other}r{self.source}-{self.target}{chunk}{end}"


@dataclass(frozen=True, order=True)
class Share:
    """Which of how many equal chunks of a stage's weights a rank updates, others the rest."""

    chunks: tuple[int, ...]
    of: int

    def __str__(self) -> str:
        return f"c{'+'.join(map(str, self.chunks))}/{self.of}"


@dataclass(frozen=True, order=True)
class Action:
    """One thing that a rank does.

    Parameters
    ----------
    stage : int
    kind : str
        An operation of a plan, or the sending or receiving end of a transfer.
    first : int
        The first micro-batch; of an update or a broadcast the mini-batch. What goes between
        replicas belongs to the mini-batch of that micro-batch.
    count : int
        Consecutive micro-batches that it covers.
    version : int or None
        The version of the weights that it reads, under a rule with updates, or that is gathered.
    part : Part or None
        Of what goes between replicas.
    share : Share or None
        Of an update where weights are sharded; None if it is of all that the stage has.
    """

    stage: int
    kind: ActionKind
    first: int
    count: int = 1
    version: int | None = None
    part: Part | None = None
    share: Share | None = None

    @property
    def micro_batches(self) -> range:
        """The micro-batches that it covers."""
        return range(self.first, self.first + self.count)

    @property
    def singles(self) -> list[Action]:
        """The same for each micro-batch alone."""
        return [replace(self, first=micro_batch, count=1) for micro_batch in self.micro_batches]

    @property
    def is_transfer(self) -> bool:
        """Whether it is one end of a transfer."""
        return self.kind.startswith(("SEND_", "RECV_"))

    @property
    def is_send(self) -> bool:
        """Whether it is the sending end of a transfer."""
        return self.kind.startswith("SEND_")

    @property
    def is_boundary(self) -> bool:
        """Whether it is one end of a transfer of an activation or its gradient."""
        return self.is_transfer and self.part is None

    @property
    def is_gather(self) -> bool:
        """Whether it is one end of a transfer of weights for a single operation."""
        return self.kind in _GATHERS

    @property
    def is_of_mini_batch(self) -> bool:
        """Whether `first` is a mini-batch, not a micro-batch."""
        return self.kind in ("U", "BROADCAST_PARAM")

    @property
    def makes_version(self) -> bool:
        """Whether its rank has a new version of the weights afterwards."""
        return self.is_of_mini_batch and self.share is None

    @property
    def reads_weights(self) -> bool:
        """Whether it computes with the weights."""
        return self.kind in _READERS

    @property
    def other_end(self) -> Action:
        """What the other rank of a transfer does."""
        if not self.is_transfer:
            raise ValueError(f"{self} is not an end of a transfer")
        content = self.kind[-1]
        kind = cast(ActionKind, f"{'RECV' if self.is_send else 'SEND'}_{content}")
        if self.part is not None and self.part.other_stage is not None:
            part = replace(self.part, other_stage=self.stage)
            return replace(self, stage=self.part.other_stage, kind=kind, part=part)
        step = 0 if self.part else 1 if (content == "F") == self.is_send else -1
        return replace(self, stage=self.stage + step, kind=kind)

    @property
    def received(self) -> Action:
        """The receive whose result a REDUCE_GRAD or an ADD_COPY takes in."""
        kind: ActionKind = "RECV_C" if self.kind == "ADD_COPY" else "RECV_G"
        return Action(self.stage, kind, self.first, 1, None, self.part)

    def __str__(self) -> str:
        last = f"-{self.first + self.count - 1}" if self.count > 1 else ""
        version = "" if self.version is None else f"v{self.version}"
        kind = _PRINTED.get(self.kind, self.kind)
        return f"{self.stage}{kind}{self.first}{last}{version}{self.part or self.share or ''}"


def parse_action(text: str) -> Action:
    """Read the short text of an action.

    Raises
    ------
    InputError
        If it is not one.

    Examples
    --------
    >>> parse_action("2SEND_F0")
    Action(stage=2, kind='SEND_F', first=0, count=1, version=None, part=None)
    """
    word = text.strip()
    match = _TEXT.fullmatch(word)
    if match is None:
        raise InputError(
            f"{word!r:.60} is not an action",
            way_out="Write the stage, what it does and the micro-batch, such as 2F0 or 2SEND_F0",
        )
    stage, letters, first, last, version, other, source, target, *chosen = match.groups()
    numbers, chunks, taken, added, reader = chosen
    kind = _KINDS[letters]
    count = 1 if last is None else int(last) - int(first) + 1
    between = kind in _BETWEEN_REPLICAS
    single = between or kind in ("U", "BROADCAST_PARAM")
    if count < 1 or (last is not None and single):
        raise InputError(
            f"{word!r:.60} covers no micro-batches",
            way_out="Write the first before the last, and of an update only the mini-batch",
        )
    if int(last or first) >= MOST_MICRO_BATCHES:
        raise InputError(
            f"{word!r:.60} is of micro-batch {last or first}",
            way_out=f"Run at most {MOST_MICRO_BATCHES} micro-batches",
        )
    if version is not None and kind not in (*_READERS, *_GATHERS):
        raise InputError(f"{word!r:.60} reads no weights", way_out=f"Leave v{version} out")
    if (kind in _GATHERS) != (reader is not None) or (reader and version is None):
        raise InputError(
            f"{word!r:.60} is for one operation, or is not",
            way_out="Write the version and the operation of weights that are gathered, such as "
            "2SEND_P0v1r0-1F",
        )
    if (kind in _OF_COPIES) != (other is not None) or (other and int(other) == int(stage)):
        raise InputError(
            f"{word!r:.60} is of a copy in another stage, or is not",
            way_out="Write the stage at the other end of what copies of tied weights add up, such "
            "as 2RECV_C0s0r0-1",
        )
    if between != (source is not None) or ((added or taken) and kind not in _REDUCTIONS):
        raise InputError(
            f"{word!r:.60} goes between replicas, or does not",
            way_out="Write the ranks of what goes between replicas, such as 2SEND_G0r0-1, and a + "
            "of gradients only",
        )
    part = share = None
    named = tuple(map(int, (numbers or "0").split("+")))
    most = 0 if kind in _OF_COPIES else 1 if between else len(named) if kind == "U" else 0
    if numbers and (
        len(named) > most
        or max(named) >= int(chunks)
        or int(chunks) == len(named)
        or [*named] != sorted({*named})
    ):
        raise InputError(
            f"{word!r:.60} is not a chunk",
            way_out="Count chunks from 0, in order, and leave out c0/1 and what is all of them",
        )
    if between:
        part = Part(
            source=int(source),
            target=int(target),
            chunk=named[0],
            chunks=int(chunks or 1),
            is_added=added is not None,
            is_taken=taken is not None,
            reader=reader or "",
            other_stage=None if other is None else int(other),
        )
    elif numbers:
        share = Share(named, int(chunks))
    return Action(
        int(stage),
        kind,
        int(first),
        count,
        None if version is None else int(version),
        part,
        share,
    )
