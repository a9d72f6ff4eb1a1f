"""What the plan of a system costs, in numbers that can stand side by side."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from schedopt import account
from schedopt.account.timeline import Timeline
from schedopt.checking import check
from schedopt.errors import InputError, InvalidPlanError
from schedopt.plan import Plan
from schedopt.scope import MemoryReading
from schedopt.simulation import simulate
from schedopt.validation import STRICT, Ratio, as_ratio, check_ratio, check_whole, show


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a plan costs.

    Parameters
    ----------
    period_exact : (int, int)
        T / k, ns: the time of a micro-batch in the endless run of the pattern.
    microbatches : int
        Of the step.
    update_every : int
        Micro-batches of one update; of a plan whose weights are given all of the step.
    step_ns : int
        From an empty pipeline to an empty one, everything as soon as possible. In a plan whose
        weights are given each GPU updates behind all else.
    memory_sum_bytes, memory_peak_bytes : tuple of int
        Each GPU of the platform in both readings.
    over_bytes : int
        What the GPU that is most over its memory, in the reading of the scope, has too little.
    over_gpu : int, optional
        That GPU; None if all fits.
    gpus_used : int
        GPUs that have a stage.
    sent_exact : tuple of (int, int)
        Bytes that each GPU of the platform sends for each micro-batch.
    messages : tuple of int, optional
        The most transfers under way at once that come from or go to each GPU of the platform; None
        where transfers take no time.
    simultaneous : int, optional
        The most of them at once on all GPUs.
    versions : int, optional
        The most versions of a stage's weights on a GPU at once; None for a plan whose weights are
        given.
    forward_staleness, backward_staleness : int, optional
        The most updates between the version that F or B reads and the one updated.
    samples, context : int
        Of a micro-batch, and how many GPUs share each: see `schedopt.Chain`.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    period_exact: Ratio
    microbatches: int
    update_every: int
    step_ns: int
    memory_sum_bytes: tuple[int, ...]
    memory_peak_bytes: tuple[int, ...]
    over_bytes: int
    over_gpu: int | None
    gpus_used: int
    sent_exact: tuple[Ratio, ...]
    messages: tuple[int, ...] | None
    simultaneous: int | None
    versions: int | None
    forward_staleness: int | None
    backward_staleness: int | None
    samples: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        check_ratio(self, "period_exact")
        for number, exact in enumerate(self.sent_exact):
            if len(exact) != 2 or not exact[1]:
                raise InputError(
                    f"{show(exact)} is not a fraction",
                    field=f"sent_exact[{number}]",
                    way_out="Give numerator and denominator",
                )
        check_whole(self, "microbatches", low=1)
        check_whole(self, "step_ns")

    @property
    def period(self) -> Fraction:
        """T / k in ns."""
        return Fraction(*self.period_exact)

    @property
    def step_of_one(self) -> Fraction:
        """The time of a step for each of its micro-batches, ns."""
        return Fraction(self.step_ns, self.microbatches)

    @property
    def step_of_sample(self) -> Fraction:
        """The time of a step for each of its samples, ns."""
        return self.step_of_one * self.context / self.samples

    @property
    def throughput(self) -> Fraction | None:
        """Micro-batches a second in a step; None if it takes no time."""
        return Fraction(self.microbatches * 10**9, self.step_ns) if self.step_ns else None

    @property
    def sent(self) -> tuple[Fraction, ...]:
        """Bytes that each GPU sends for each micro-batch."""
        return tuple(Fraction(*ratio) for ratio in self.sent_exact)

    def most_bytes(self, reading: MemoryReading) -> int:
        """Return the memory of the GPU that needs most."""
        return max(self.memory_sum_bytes if reading == "sum" else self.memory_peak_bytes)


def measure_plan(plan: Plan, microbatches: int, name: str) -> Figures:
    """Check the plan of a system, and return what it costs.

    If its updates need another multiple of micro-batches in a step, the next one above is taken.

    Raises
    ------
    InvalidPlanError
        If the check refuses it for another reason than memory.
    """
    needs = account.memory(plan)
    over, number = max(
        (need.reading(plan.scope.memory) - gpu.usable_bytes, -number)
        for number, (need, gpu) in enumerate(zip(needs, plan.platform.gpus, strict=True))
    )
    _check(plan, name, too_large=over > 0)
    every = plan.rule.update_every or 1
    count = -(-microbatches // every) * every
    sent = [Fraction(0)] * len(plan.platform.gpus)
    for (source, _), amount in account.traffic(plan).items():
        sent[source] += amount
    free = plan.platform.link is None and plan.platform.network is None
    versions, forward, backward = _versions(plan)
    return Figures(
        period_exact=as_ratio(plan.pattern.period),
        microbatches=count,
        update_every=plan.rule.update_every or count,
        step_ns=_step_ns(plan, count),
        memory_sum_bytes=tuple(need.sum_bytes for need in needs),
        memory_peak_bytes=tuple(need.peak_bytes for need in needs),
        over_bytes=max(0, over),
        over_gpu=-number if over > 0 else None,
        gpus_used=len({gpu for stage in plan.stages for gpu in stage.every_gpu}),
        sent_exact=tuple(map(as_ratio, sent)),
        messages=None if free else tuple(account.messages(plan).values()),
        simultaneous=None if free else account.simultaneous(plan),
        versions=versions,
        forward_staleness=forward,
        backward_staleness=backward,
        samples=plan.chain.samples,
        context=plan.chain.context,
    )


def _step_ns(plan: Plan, microbatches: int) -> int:
    """Return how long a step takes, with the updates that a plan with given weights leaves out."""
    step = simulate(plan, microbatches)
    if not plan.rule.is_given:
        return step.makespan_ns
    ends = [0] * len(plan.platform.gpus)
    for _, _, run in step.operations():
        ends[run.gpu] = max(ends[run.gpu], run.end_ns)
    timeline = Timeline(plan)
    for number, stage in enumerate(plan.stages):
        for gpu in dict.fromkeys(stage.gpus):
            ends[gpu] += timeline.stage_ns("U", number, gpu)
    return max(step.makespan_ns, *ends)


def _check(plan: Plan, name: str, *, too_large: bool) -> None:
    found = check(plan)
    for violation in found:
        if violation.kind != "memory":
            raise InvalidPlanError(f"the plan of {name} is not valid: {violation}")
    if bool(found) != too_large:
        raise InvalidPlanError(f"check and account disagree on the memory of the plan of {name}")


def _versions(plan: Plan) -> tuple[int | None, int | None, int | None]:
    if plan.rule.is_given:
        return None, None, None
    found = account.versions(plan)
    return (
        max(found.held.values()),
        max(found.forward_staleness.values()),
        max(found.backward_staleness.values()),
    )
