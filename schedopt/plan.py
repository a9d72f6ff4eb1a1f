"""What is answered: stages on GPUs, and a periodic pattern of operations and transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.stage import Stage
from schedopt.stored import find_function
from schedopt.validation import LARGEST, STRICT, as_tuple, check_choice, check_whole

PLAN_FORMAT: Final = "schedopt.plan/1"

Kind = Literal["F", "B", "I", "W", "R", "U"]
KINDS: Final[tuple[Kind, ...]] = ("F", "B", "I", "W", "R", "U")
Tensor = Literal["activation", "gradient", "weight_gradient", "weights", "weight_half"]
TENSORS: Final[tuple[Tensor, ...]] = (
    "activation",
    "gradient",
    "weight_gradient",
    "weights",
    "weight_half",
)
Mode = Literal["copy", "reduce"]

_MOST: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of the pattern.

    In period q it starts at q T + `start_ns` and runs micro-batch q k + `shift`, on the GPU of
    that micro-batch's replica.

    Parameters
    ----------
    kind : {"F", "B", "I", "W", "R", "U"}
        Forward, backward, its input half, its weight half, recompute, weight update.
    stage : int
    shift : int
        Index shift h (Beaumont et al. 2021, section 3.1).
    start_ns : int
        In [0, T).
    covers : int
        The operation runs this many micro-batches in a row, the first being q k + `shift`. It
        lasts the sum, and frees what they held at its end. Not for U, which always applies the
        whole mini-batch of its micro-batch.
    replica : int
        Which replica runs it, counted from that of micro-batch i, so that the GPU is
        ``gpus[(i + replica) % R]``. Other than 0 for W only: what it needs is sent there (a
        transfer of *weight_half*), so that each replica makes the whole gradient itself.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    kind: Kind
    stage: int
    shift: int
    start_ns: int
    covers: int = 1
    replica: int = 0

    def __post_init__(self) -> None:
        check_choice(self, "kind", KINDS)
        check_whole(self, "stage", high=_MOST)
        check_whole(self, "shift", low=-LARGEST)
        check_whole(self, "start_ns")
        check_whole(self, "covers", low=1, high=_MOST)
        check_whole(self, "replica", low=-_MOST, high=_MOST)
        if self.replica and self.kind != "W":
            raise InputError(
                f"{self.kind} runs on the replica of its micro-batch",
                field="replica",
                way_out="Leave it out; only W may run on another one",
            )

    def __str__(self) -> str:
        where = f", replica {self.replica:+}" if self.replica else ""
        return f"{self.kind} of stage {self.stage}, shift {self.shift}{where}"


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
        Which of how many equal parts of the stage's weights.
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
        check_whole(self, "stage", high=_MOST)
        check_whole(self, "shift", low=-LARGEST)
        check_whole(self, "start_ns")
        check_whole(self, "chunks", low=1, high=_MOST)
        check_whole(self, "chunk", high=self.chunks - 1)
        check_whole(self, "covers", low=1, high=_MOST)
        for name in ("source", "target"):
            check_whole(self, name, low=-_MOST, high=_MOST, optional=True)
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
        check_whole(self, "source_stage", high=_MOST)
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
    """Transfers between all R replicas of a stage, by rule: a ring in rounds of one length.

    The replicas stand in a ring, in the order of the numbers of their GPUs. The weights of the
    stage, or their gradient, are cut into R chunks, and chunk c of stage s is at home on replica
    (s + c) mod R. In each of R - 1 rounds every replica sends one chunk to the next one (Patarasuk
    and Yuan 2009): all at the start of the round, but where neighbours share a link, one after the
    other on it, in the order of the ring, each for as long as the largest chunk takes. The next
    round starts when so much time is over for all.

    Parameters
    ----------
    tensor : {"weight_gradient", "weights"}
    mode : {"reduce", "copy"}
        *reduce*: each chunk goes from the replica behind its home to its home, and is added to on
        the way (a reduce-scatter). *copy*: from its home to all others (an all-gather).
    stage : int
    shift : int
        A micro-batch of the mini-batch, as of a `Transfer`.
    start_ns : int
        In [0, T).
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    tensor: Literal["weight_gradient", "weights"]
    mode: Mode
    stage: int
    shift: int
    start_ns: int

    def __post_init__(self) -> None:
        check_choice(self, "tensor", ("weight_gradient", "weights"))
        check_choice(self, "mode", ("reduce", "copy"))
        check_whole(self, "stage", high=_MOST)
        check_whole(self, "shift", low=-LARGEST)
        check_whole(self, "start_ns")
        if self.tensor == "weights" and self.mode == "reduce":
            raise InputError("weights are copied, never added", field="mode", way_out="Use copy")


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A k-periodic pattern (Beaumont et al. 2021, section 3.1).

    Parameters
    ----------
    k : int
        Micro-batches of one period.
    period_total_ns : int
        T, at least 1. The normalized period is T / k.
    fold : int
        g, which divides k. The pattern is that of one of g equal parts of the job, which run side
        by side: an operation or a transfer with shift h stands for g of them at the same time,
        for the micro-batches g h to g h + g - 1. See `schedopt.folding.whole`.
    operations : sequence of Operation
    transfers : sequence of Transfer
    collectives : sequence of Collective
        Each once in a period, between the replicas of all parts.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    k: int
    period_total_ns: int
    fold: int = 1
    operations: tuple[Operation, ...]
    transfers: tuple[Transfer, ...] = field(default=())
    collectives: tuple[Collective, ...] = field(default=())

    def __post_init__(self) -> None:
        check_whole(self, "k", low=1, high=_MOST)
        check_whole(self, "period_total_ns", low=1)
        check_whole(self, "fold", low=1, high=_MOST)
        for name, kind in _ITEMS.items():
            as_tuple(self, name, kind)
            for position, item in enumerate(getattr(self, name)):
                if item.start_ns >= self.period_total_ns:
                    raise InputError(
                        f"{item.start_ns} lies outside the period of {self.period_total_ns} ns",
                        field=f"{name}[{position}].start_ns",
                        way_out="Give a start in [0, T) and move whole periods into the shift",
                    )
        if self.fold > 1:
            self._check_fold()

    def _check_fold(self) -> None:
        if self.k % self.fold:
            raise InputError(
                f"{self.fold} does not divide k = {self.k}",
                field="fold",
                way_out="Each part runs as many micro-batches as the others",
            )
        for name in ("operations", "transfers"):
            for position, item in enumerate(getattr(self, name)):
                if item.covers > 1:
                    rule, way_out = "covers several micro-batches", "Give one item for each"
                elif isinstance(item, Operation) and item.replica:
                    rule, way_out = "runs on another replica", "Leave replica out"
                elif isinstance(item, Transfer) and not (
                    item.is_boundary or item.source_stage is not None
                ):
                    rule, way_out = "goes between replicas", "Give a collective"
                else:
                    continue
                raise InputError(
                    f"{rule}, which a part of a fold does not say for all parts",
                    field=f"{name}[{position}]",
                    way_out=f"{way_out}, or spell all parts out (fold 1)",
                )

    @property
    def period(self) -> Fraction:
        """The normalized period T / k in ns, exact."""
        return Fraction(self.period_total_ns, self.k)

    @property
    def is_short(self) -> bool:
        """Whether a fold or collectives stand for more than they are: see `folding.whole`."""
        return self.fold > 1 or bool(self.collectives)

    @property
    def items(self) -> tuple[Operation | Transfer, ...]:
        """Operations, then transfers."""
        return (*self.operations, *self.transfers)


_ITEMS: Final = {"operations": Operation, "transfers": Transfer, "collectives": Collective}


@dataclass(frozen=True, kw_only=True)
class Plan(Problem):
    """A problem with its answer: stages on GPUs and a pattern.

    Whether it is valid is for `schedopt.check` to say; what it costs, for `schedopt.account`.

    Parameters
    ----------
    chain, platform, rule, scope
        What was asked.
    stages : sequence of Stage
        In the order of the chain.
    pattern : Pattern
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    pattern: Pattern

    @classmethod
    def answering(cls, problem: Problem, stages: Sequence[Stage], pattern: Pattern) -> Plan:
        """Return the plan of a problem with stages and a pattern."""
        return cls(
            chain=problem.chain,
            platform=problem.platform,
            rule=problem.rule,
            scope=problem.scope,
            variants=problem.variants,
            stages=tuple(stages),
            pattern=pattern,
        )

    def _check_stages(self) -> None:
        if not self.stages:
            raise InputError("a plan has at least one stage", field="stages", way_out="Add one")

    @property
    def problem(self) -> Problem:
        """What was asked."""
        return Problem(
            chain=self.chain,
            platform=self.platform,
            rule=self.rule,
            scope=self.scope,
            variants=self.variants,
            stages=self.stages if self.scope.allocation == "fixed" else (),
        )

    @cached_property
    def costs(self) -> Chain:
        """The chain with the figures of each layer in a tensor group of its stage."""
        if not self.variants:
            return self.chain
        layers = list(self.chain.layers)
        for stage in self.stages:
            of_group = self.in_group(stage.tensor).layers
            layers[stage.first : stage.last + 1] = of_group[stage.first : stage.last + 1]
        received = self.in_group(self.stages[0].tensor).input_bytes
        return replace(self.chain, layers=tuple(layers), input_bytes=received)

    @cached_property
    def first_of_group(self) -> dict[int, int]:
        """The first GPU of the tensor group of each GPU that has a stage."""
        return {
            gpu: first
            for stage in self.stages
            for first in stage.gpus
            for gpu in stage.group(first)
        }

    def lanes(self, item: Transfer | Collective) -> int:
        """Return how many GPUs of a group send next to each other.

        Those of the smaller group, where something goes from one to another, each a part; else
        all, each what it has of the weights.
        """
        own = self.stages[item.stage].tensor
        if isinstance(item, Transfer) and item.is_boundary:
            return min(own, self.stages[item.stage + 1].tensor)
        if isinstance(item, Transfer) and item.source_stage is not None:
            return min(own, self.stages[item.source_stage].tensor)
        return own

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        text: str = find_function("schedopt.reporting.notebook:show_plan")(self)
        return text


def place_in_period(start_ns: int, micro_batch: int, k: int, period_ns: int) -> tuple[int, int]:
    """Return the start in [0, T) and the index shift of something that starts at `start_ns`.

    Micro-batch j < k starting at x has t = x mod T and h = j - k floor(x / T).
    """
    return start_ns % period_ns, micro_batch - k * (start_ns // period_ns)


def count_from_first_backward(
    operations: Sequence[Operation], transfers: Sequence[Transfer], k: int, period_ns: int
) -> Pattern:
    """Make a pattern whose first backward of stage 0 has shift 0.

    Beaumont et al. 2021, section 3.1, normalise so. It renames micro-batches, and is only for
    patterns without updates and tables, and with replicas only where k = 1.
    """
    backwards = [o for o in operations if o.stage == 0 and o.kind in ("B", "I")]
    offset = min(backwards, key=lambda o: o.start_ns).shift
    return Pattern(
        k=k,
        period_total_ns=period_ns,
        operations=tuple(replace(o, shift=o.shift - offset) for o in operations),
        transfers=tuple(replace(t, shift=t.shift - offset) for t in transfers),
    )
