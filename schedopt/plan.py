"""What is answered: stages on GPUs, and a periodic pattern of operations and transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.stage import Stage
from schedopt.stored import find_function
from schedopt.transfer import Collective, Transfer, moved_to
from schedopt.validation import (
    LARGEST,
    LARGEST_COUNT,
    STRICT,
    as_tuple,
    check_choice,
    check_whole,
    require_kind,
)

__all__ = [
    "KINDS",
    "PLAN_FORMAT",
    "Collective",
    "Kind",
    "Operation",
    "Pattern",
    "Plan",
    "Transfer",
    "count_from_first_backward",
    "place_in_period",
]

PLAN_FORMAT: Final = "schedopt.plan/1"

Kind = Literal["F", "B", "I", "W", "R", "U"]
KINDS: Final[tuple[Kind, ...]] = ("F", "B", "I", "W", "R", "U")


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
        check_whole(self, "stage", high=LARGEST_COUNT)
        check_whole(self, "shift", low=-LARGEST)
        check_whole(self, "start_ns")
        check_whole(self, "covers", low=1, high=LARGEST_COUNT)
        check_whole(self, "replica", low=-LARGEST_COUNT, high=LARGEST_COUNT)
        if self.replica and self.kind != "W":
            raise InputError(
                f"{self.kind} runs on the replica of its micro-batch",
                field="replica",
                way_out="Leave it out; only W may run on another one",
            )

    def at(self, shift: int, start_ns: int) -> Self:
        """Return the same for other micro-batches, at another time."""
        return moved_to(self, shift, start_ns)

    def __str__(self) -> str:
        where = f", replica {self.replica:+}" if self.replica else ""
        return f"{self.kind} of stage {self.stage}, shift {self.shift}{where}"


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
        check_whole(self, "k", low=1, high=LARGEST_COUNT)
        check_whole(self, "period_total_ns", low=1)
        check_whole(self, "fold", low=1, high=LARGEST_COUNT)
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

    @cached_property
    def has_groups(self) -> bool:
        """Whether some stage runs on tensor groups of several GPUs."""
        return any(stage.tensor > 1 for stage in self.stages)

    def lanes(self, item: Transfer | Collective) -> int:
        """Return how many GPUs of a group send next to each other.

        Those of the smaller group, where something goes from one to another, each a part; else
        all, each what it has of the weights.
        """
        if not self.has_groups:
            return 1
        own = self.stages[item.stage].tensor
        if isinstance(item, Transfer) and item.is_boundary:
            return min(own, self.stages[item.stage + 1].tensor)
        if isinstance(item, Transfer) and item.source_stage is not None:
            return min(own, self.stages[item.source_stage].tensor)
        return own

    def expert_chunks(self, stage: int) -> int:
        """Return into how many chunks the experts of a stage are cut: R, or 0.

        0 where no two of its replicas have the same. See `Transfer`.
        """
        one = self.stages[stage]
        if not 1 < self.chain.expert < len(one.gpus):
            return 0
        layers = self.costs.layers[one.first : one.last + 1]
        return len(one.gpus) if any(layer.has_experts for layer in layers) else 0

    def require_one_copy(self, *, needed_by: str) -> None:
        """Refuse to go on where groups of replicas have copies of shards, and nothing does that."""
        for number, stage in enumerate(self.stages):
            if stage.shard_copies > 1:
                raise InputError(
                    f"{stage.shard_copies}, and {needed_by} does not do that",
                    field=f"stages[{number}].shard_copies",
                    way_out="Share the state among all replicas, or export the plan for megatron "
                    "or torchtitan",
                )

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        text: str = find_function("schedopt.reporting.notebook:show_plan")(self)
        return text


def require_plan(value: object) -> None:
    """Raise `InputError` for what is no plan, such as the result that has one."""
    way_out = "Give a schedopt.Plan, such as the `plan` of a result that has one"
    require_kind(value, Plan, "plan", way_out)


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
