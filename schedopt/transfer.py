"""What a pattern sends: transfers, and collectives that stand for many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

from schedopt.errors import InputError
from schedopt.validation import LARGEST, LARGEST_COUNT, STRICT, as_rows, check_choice, check_whole

Tensor = Literal["activation", "gradient", "weight_gradient", "weights", "weight_half"]
TENSORS: Final[tuple[Tensor, ...]] = (
    "activation",
    "gradient",
    "weight_gradient",
    "weights",
    "weight_half",
)
Mode = Literal["copy", "reduce"]
Item = TypeVar("Item")
"""An operation or a transfer."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One transfer of the pattern, from one GPU to another. Its bytes and its links are derived.

    In period q it starts at q T + `start_ns`, for micro-batch i = q k + `shift`. Many of them may
    be given by rule, as a `Collective`.

    Parameters
    ----------
    tensor : {"activation", "gradient", "weight_gradient", "weights", "weight_half"}
        The output of the stage, sent to the next one; the gradient of that output, sent back; the
        gradient of the stage's weights for the mini-batch of i; the weights after its update, but
        where a rule shards parameters those that an operation of i reads; or what W of i needs
        (`saved_weight_bytes` of all layers), for a W on another replica: the all-gather of Boehm
        2022, instead of a reduction.
    stage : int
        The stage whose output or weights they are.
    shift : int
    start_ns : int
        In [0, T).
    source, target : int, optional
        For all but activations and their gradients, whose ends follow from the stages: which
        replicas, counted from that of micro-batch i, so that the GPUs are
        ``gpus[(i + source) % R]`` and ``gpus[(i + target) % R]``.
    source_stage : int, optional
        For a weight gradient that is added to that of a copy (`Chain.copied`): the stage whose
        replica sends what its own backwards have added to the gradient of the layers that both
        stages have, whole. Without it source and target are replicas of the same stage.
    chunk, chunks : int
        Which of how many equal parts of the stage's weights. Where some of its R replicas have the
        same experts (`Chain.expert`), there are 2 R: the first R of what all replicas have; and of
        experts R + r, that of the replica at place r in the row. With e GPUs to share them, those
        at places r mod e have the same experts, in R / e equal parts.
    mode : {"copy", "reduce"}
        Whether the target's buffer is replaced or added to.
    covers : int
        An activation or its gradient for this many micro-batches in a row.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    tensor: Tensor
    stage: int
    shift: int
    start_ns: int
    source: int | None = None
    target: int | None = None
    source_stage: int | None = None
    chunk: int = 0
    chunks: int = 1
    mode: Mode = "copy"
    covers: int = 1

    def __post_init__(self) -> None:
        check_choice(self, "tensor", TENSORS)
        check_choice(self, "mode", ("copy", "reduce"))
        check_whole(self, "stage", high=LARGEST_COUNT)
        check_whole(self, "shift", low=-LARGEST)
        check_whole(self, "start_ns")
        check_whole(self, "chunks", low=1, high=LARGEST_COUNT)
        check_whole(self, "chunk", high=self.chunks - 1)
        check_whole(self, "covers", low=1, high=LARGEST_COUNT)
        for name in ("source", "target"):
            check_whole(self, name, low=-LARGEST_COUNT, high=LARGEST_COUNT, optional=True)
            if (getattr(self, name) is None) != self.is_boundary:
                raise InputError(
                    f"{'missing' if not self.is_boundary else 'given'} for {self.tensor}",
                    field=name,
                    way_out="Tensors of weights and what W needs name two replicas; activations "
                    "and their gradients follow the stages",
                )
        if not self.moves_weights and (self.chunks != 1 or self.mode != "copy"):
            raise InputError(
                f"{self.tensor} is copied whole", field="mode", way_out="Leave mode and chunks out"
            )
        if not self.is_boundary and self.covers != 1:
            owner = "mini-batch" if self.moves_weights else "micro-batch"
            raise InputError(
                f"{self.tensor} belongs to a {owner}", field="covers", way_out="Leave it out"
            )
        if self.tensor == "weights" and self.mode == "reduce":
            raise InputError("weights are copied, never added", field="mode", way_out="Use copy")
        if self.source_stage is not None:
            self._check_source_stage()

    def _check_source_stage(self) -> None:
        check_whole(self, "source_stage", high=LARGEST_COUNT)
        if (
            self.tensor != "weight_gradient"
            or self.mode != "reduce"
            or self.chunks != 1
            or self.source_stage == self.stage
        ):
            raise InputError(
                "only the gradient of a copy comes from another stage, whole, to be added",
                field="source_stage",
                way_out="Leave it out, or give a weight_gradient that is reduced in one chunk",
            )

    def at(self, shift: int, start_ns: int) -> Self:
        """Return the same for other micro-batches, at another time."""
        return moved_to(self, shift, start_ns)

    @property
    def is_boundary(self) -> bool:
        """Whether it carries an activation or its gradient between neighbouring stages."""
        return self.tensor in ("activation", "gradient")

    @property
    def moves_weights(self) -> bool:
        """Whether it carries the weights of a stage, or their gradient, for a mini-batch."""
        return self.tensor in ("weight_gradient", "weights")

    def __str__(self) -> str:
        part = f", chunk {self.chunk} of {self.chunks}" if self.chunks > 1 else ""
        ends = f", replica {self.source:+} to {self.target:+}" if not self.is_boundary else ""
        name = self.tensor.replace("_", " ")
        if self.source_stage is not None:
            name += f" of stage {self.source_stage} to that"
        return f"{name} of stage {self.stage}, shift {self.shift}{part}{ends}"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Transfers between all R replicas of a stage, by rule: rings in rounds of one length.

    The replicas stand in a ring, in the order of the numbers of their GPUs. The weights of the
    stage, or their gradient, are cut into R chunks, and chunk c of stage s is at home on replica
    (s + c) mod R. In each of R - 1 rounds every replica sends one chunk to the next one (Patarasuk
    and Yuan 2009): all at the start of the round, but where neighbours share a link, one after the
    other on it, in the order of the ring, each for as long as the largest chunk takes. The next
    round starts when that time is over for all.

    Where the replicas share in groups of h = R / g (`Stage.shard_copies`), each group is a ring.
    Round it go h chunks after the other h, g times, in h - 1 rounds each. Across groups the
    replicas at which the same chunks are at home are a ring, which all of its chunks go round
    together, in g - 1 rounds.

    Parameters
    ----------
    tensor : {"weight_gradient", "weights"}
    mode : {"reduce", "copy"}
        *reduce*: each chunk goes from the replica behind its home to its home, and is added to on
        the way (a reduce-scatter). *copy*: from its home to all others (an all-gather).
    stage : int
    across : bool
        Across the groups of replicas that have copies of shards, in which chunk c is added up in,
        and copied from, group c div h. Else inside each of them.
    shift : int
        A micro-batch of the mini-batch, as of a `Transfer`.
    start_ns : int
        In [0, T).
    pauses : sequence of (int, int)
        A round, counted from 0, and for how long nothing is sent before it, ns: what goes from
        stage to stage has the links meanwhile.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    tensor: Literal["weight_gradient", "weights"]
    mode: Mode
    stage: int
    shift: int
    start_ns: int
    across: bool = False
    pauses: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        check_choice(self, "tensor", ("weight_gradient", "weights"))
        check_choice(self, "mode", ("reduce", "copy"))
        check_whole(self, "stage", high=LARGEST_COUNT)
        check_whole(self, "shift", low=-LARGEST)
        check_whole(self, "start_ns")
        if not isinstance(self.across, bool):
            raise InputError("neither True nor False", field="across")
        as_rows(self, "pauses", low=1)
        rounds = [row[0] for row in self.pauses if len(row) == 2]
        if len(rounds) < len(self.pauses) or rounds != sorted(set(rounds)):
            raise InputError(
                "takes rounds, each more than the one before, with nanoseconds",
                field="pauses",
                way_out="Give each as [round, ns], once, in their order",
            )
        if self.tensor == "weights" and self.mode == "reduce":
            raise InputError("weights are copied, never added", field="mode", way_out="Use copy")


def moved_to(item: Item, shift: int, start_ns: int) -> Item:
    """Return the same for other micro-batches, at another time, ns."""
    moved = object.__new__(type(item))
    # What was checked before is not checked again, and there are many of these.
    vars(moved).update(vars(item), shift=shift, start_ns=start_ns)
    small = -LARGEST <= shift <= LARGEST and 0 <= start_ns <= LARGEST
    if not (small and type(shift) is type(start_ns) is int):
        check_whole(moved, "shift", low=-LARGEST)
        check_whole(moved, "start_ns")
    return moved
