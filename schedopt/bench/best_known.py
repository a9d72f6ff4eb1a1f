"""The best that is known of an instance, whoever found it: a plan, a bound, and who and when."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Final

from schedopt.bench.general import GENERAL
from schedopt.bench.records import InstanceKey
from schedopt.chain import Chain
from schedopt.errors import InputError, InvalidPlanError
from schedopt.platform import MOST_GPUS, Platform
from schedopt.problem import training_step
from schedopt.proofs import Proof
from schedopt.result import Status
from schedopt.scope import Scope
from schedopt.units import format_bandwidth, format_bytes
from schedopt.validation import STRICT, Ratio, check_ratio, check_whole

PLANS: Final = "plans"
"""The folder of the plans, next to the list."""
CERTIFICATE: Final = re.compile(rf"{PLANS}/[A-Za-z0-9._-]+\.plan\.json")
WAY_OUT: Final = "Take the instance out, to have it solved again"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a plan, bound or proof comes from: the method that was asked, and when and where."""

    __pydantic_config__: ClassVar[Any] = STRICT

    solver: str
    date: str
    machine: str
    schedopt: str


@dataclass(frozen=True, kw_only=True)
class BestPlan:
    """The best plan that is known, with its normalized period, ns."""

    __pydantic_config__: ClassVar[Any] = STRICT

    period_exact: Ratio
    certificate: str
    """The file that holds it, as seen from the folder of the list."""
    by: Origin

    def __post_init__(self) -> None:
        check_ratio(self, "period_exact")
        if not CERTIFICATE.fullmatch(self.certificate):
            raise InputError(
                f"{self.certificate!r:.60} is not a file of {PLANS}/",
                field="certificate",
                way_out=f"Name one: {PLANS}/NAME.plan.json",
            )

    @property
    def period(self) -> Fraction:
        """The normalized period, ns."""
        return Fraction(*self.period_exact)


@dataclass(frozen=True, kw_only=True)
class BestBound:
    """The largest normalized period that is known not to be beaten, ns."""

    __pydantic_config__: ClassVar[Any] = STRICT

    exact: Ratio
    proof: Proof | str
    by: Origin

    def __post_init__(self) -> None:
        check_ratio(self, "exact")

    @property
    def period(self) -> Fraction:
        """The bound, ns."""
        return Fraction(*self.exact)


@dataclass(frozen=True, kw_only=True)
class NoPlan:
    """A proof that there is no plan."""

    __pydantic_config__: ClassVar[Any] = STRICT

    proof: Proof | str
    by: Origin


@dataclass(frozen=True, kw_only=True)
class BestKnown:
    """The best that is known of one instance.

    With a batch it is a training step of `batch` samples in `microbatches` micro-batches: period
    and bound are those of a micro-batch, the step over their number.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    chain: str
    chain_sha256: str
    layers: int
    gpus: int
    memory_bytes: int
    bandwidth_bytes_per_s: int | None = None
    batch: int | None = None
    microbatches: int | None = None
    status: Status = "unknown"
    """*optimal* where plan and bound are equal."""
    plan: BestPlan | None = None
    bound: BestBound | None = None
    no_plan: NoPlan | None = None

    def __post_init__(self) -> None:
        check_whole(self, "layers", low=1)
        check_whole(self, "gpus", low=1, high=MOST_GPUS)
        check_whole(self, "memory_bytes")
        for name in ("bandwidth_bytes_per_s", "batch", "microbatches"):
            check_whole(self, name, low=1, optional=True)
        if (self.batch is None) != (self.microbatches is None):
            raise InputError(
                "belongs to a batch, and the other way round", field="microbatches", way_out=WAY_OUT
            )
        if _is_refuted(self.plan, self.bound, self.no_plan):
            raise InputError(
                "is refuted by what else is said to be proven",
                field="plan",
                way_out=WAY_OUT,
            )
        true = _status(self.plan, self.bound, self.no_plan)
        if self.status != true:
            raise InputError(
                f"is {self.status}, but plan and bound say {true}", field="status", way_out=WAY_OUT
            )

    @property
    def instance(self) -> InstanceKey:
        """What identifies it."""
        machine = self.gpus, self.memory_bytes, self.bandwidth_bytes_per_s
        return self.chain_sha256, *machine, self.batch

    def scope(self, chain: Chain) -> Scope:
        """Return the plans of the chain that it speaks of.

        Raises
        ------
        InputError
            If micro-batches of the chain do not make the batch.
        """
        return scope_of(chain, self.platform, self.batch)

    @property
    def platform(self) -> Platform:
        """The machine."""
        return Platform(self.gpus, self.memory_bytes, bandwidth=self.bandwidth_bytes_per_s)

    def __str__(self) -> str:
        rate = self.bandwidth_bytes_per_s
        links = "free transfers" if rate is None else format_bandwidth(rate)
        step = "" if self.batch is None else f", a step of {self.batch} samples"
        where = f"{self.gpus} GPUs of {format_bytes(self.memory_bytes)}, {links}"
        return f"{self.chain} on {where}{step}"

    def learn(
        self,
        plan: BestPlan | None = None,
        bound: BestBound | None = None,
        no_plan: NoPlan | None = None,
    ) -> BestKnown:
        """Return what is known with something new.

        A plan gives way only to one with a strictly shorter period, a bound only to a strictly
        larger one, and a first proof that there is no plan to none.
        """
        if plan is None or (self.plan is not None and plan.period >= self.plan.period):
            plan = self.plan
        if bound is None or (self.bound is not None and bound.period <= self.bound.period):
            bound = self.bound
        no_plan = self.no_plan or no_plan
        if _is_refuted(plan, bound, no_plan):
            sources = [part.by.solver for part in (plan, bound, no_plan) if part is not None]
            raise InvalidPlanError(
                f"{self}: what was found contradicts what was proven ({', '.join(sources)})"
            )
        status = _status(plan, bound, no_plan)
        return replace(self, status=status, plan=plan, bound=bound, no_plan=no_plan)


def scope_of(chain: Chain, platform: Platform, batch: int | None) -> Scope:
    """Return the plans of which the best is looked for: `GENERAL`, or the widest of a batch."""
    return GENERAL if batch is None else training_step(chain, platform, batch).scope


def _is_refuted(plan: BestPlan | None, bound: BestBound | None, no_plan: NoPlan | None) -> bool:
    if plan is None:
        return False
    return no_plan is not None or (bound is not None and bound.period > plan.period)


def _status(plan: BestPlan | None, bound: BestBound | None, no_plan: NoPlan | None) -> Status:
    if plan is None:
        return "unknown" if no_plan is None else "infeasible"
    return "optimal" if bound is not None and bound.period == plan.period else "feasible"
