"""What was measured, next to what was predicted."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from schedopt.account.memory import memory_without_buffers
from schedopt.account.shard_owners import ShardOwners
from schedopt.account.timeline import Timeline, stage_layers
from schedopt.actions import process_gpus
from schedopt.plan import Plan
from schedopt.running.figures import (
    Figures,
    by_one_clock,
    by_stage,
    measure,
    planned_spans,
    predict,
    replay,
)
from schedopt.running.job import Job
from schedopt.running.records import Outcome, Span
from schedopt.units import format_duration

RUN_FORMAT: Final = "schedopt.run/1"
OTHER_OPTIMIZER: Final = 10
"""Of what an optimizer keeps, such a part may differ: counters of steps may lie elsewhere."""


@dataclass(frozen=True)
class Discrepancy:
    """An operation or a transfer, such as ``2F`` (forward of stage 2), predicted and measured.

    Parameters
    ----------
    name : str
    predicted_ns, measured_ns : int
        Of one micro-batch.
    """

    name: str
    predicted_ns: int
    measured_ns: int


@dataclass(frozen=True)
class Report:
    """What was measured, next to what was predicted.

    Parameters
    ----------
    job : Job
    outcome : Outcome
    load : float
        Of the machine in the minute before the run: how many processes were busy with other work.
    """

    job: Job
    outcome: Outcome
    load: float

    def __repr__(self) -> str:
        period_ns = self.measured.period_ns
        pace = "" if period_ns is None else f", {format_duration(round(period_ns))} a micro-batch"
        return f"<Report of {self.job.model or 'synthetic layers'} on {self.job.backend}{pace}>"

    @property
    def plan(self) -> Plan:
        """The plan that ran."""
        return self.job.plan

    @cached_property
    def steps(self) -> list[list[Span]]:
        """What ran in each step, in one process as if in one a rank."""
        if self.job.backend == "logical":
            return replay(self.job.simulated, self.outcome, self.job.stretch)
        return by_one_clock(self.outcome, self.job.stretch)

    @cached_property
    def planned(self) -> list[Span]:
        """What was to run."""
        return planned_spans(self.plan, self.job.simulated.events)

    @cached_property
    def predicted(self) -> Figures:
        """The figures of the plan."""
        return predict(self.job.simulated, self.planned)

    @cached_property
    def measured(self) -> Figures:
        """The figures of the run."""
        return measure(self.plan, self.outcome, self.steps)

    @property
    def discrepancies(self) -> list[Discrepancy]:
        """Operations and transfers, those first that take most time more or less than planned."""
        planned, measured = self.predicted.lengths_ns, self.measured.lengths_ns
        both = [
            Discrepancy(name, planned[name], measured[name]) for name in planned if name in measured
        ]
        return sorted(both, key=lambda both: -abs(both.measured_ns - both.predicted_ns))

    @cached_property
    def plan_memory_bytes(self) -> tuple[int, ...]:
        """The most that each rank needs at once where micro-batches go on for ever.

        A step is predicted by itself: one that is too short to fill the pipeline needs less. What
        waits to be read is left out, as in what is predicted and measured.
        """
        needs = memory_without_buffers(Timeline(self.plan))
        firsts = (self.plan.first_of_group[gpu] for gpu in self.gpus)
        return tuple(needs[gpu].peak_bytes for gpu in firsts)

    @property
    def gpus(self) -> list[int]:
        """The GPU of the plan that each rank stands for."""
        return list(process_gpus(self.plan))

    @property
    def over(self) -> list[int]:
        """The ranks that took more memory than the plan gives their GPU.

        Synthetic layers are not asked, nor torch's runtime, which keeps buffers of its own.
        """
        if self.job.model is None or self.job.backend == "pytorch":
            return []
        taken = zip(self.gpus, self.measured.memory_bytes, strict=True)
        return [
            rank
            for rank, (gpu, taken_bytes) in enumerate(taken)
            if taken_bytes > self.plan.platform.gpus[gpu].usable_bytes
        ]

    @cached_property
    def optimizer_bytes(self) -> tuple[int, ...]:
        """What the optimizer keeps of each stage, at most on one rank."""
        return by_stage(self.plan, [record.optimizer_bytes for record in self.outcome.records])

    @property
    def other_states(self) -> list[tuple[int, int, int]]:
        """The stages whose optimizer keeps more or less than in the plan: stage, planned, found.

        Synthetic layers are not asked, nor layers of which the chain does not say it, nor stages
        with several copies of tied weights, which are one parameter there.
        """
        if self.job.model is None:
            return []
        others = []
        owners = ShardOwners(self.plan)
        for stage, found in enumerate(self.optimizer_bytes):
            layers = [self.plan.costs.layers[layer] for layer in stage_layers(self.plan, stage)]
            known = [layer.optimizer_bytes for layer in layers if layer.optimizer_bytes is not None]
            total = sum(known)
            planned = max(owners.share(total, stage, gpu) for gpu in self.plan.stages[stage].gpus)
            differs = OTHER_OPTIMIZER * abs(planned - found) > max(planned, found)
            if differs and len(known) == len(layers) and not self._shares_copies(stage):
                others.append((stage, planned, found))
        return others

    def _shares_copies(self, stage: int) -> bool:
        """Whether a stage has several layers for each of which the plan counts a copy."""
        own = stage_layers(self.plan, stage)
        return any(len({*own} & {*group}) > 1 for group in self.plan.chain.copied)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON document: times in ns, memory in bytes, a list has one entry a rank.

        ``live``, ``versions`` and ``optimizer_bytes`` have one a stage. ``period_ns`` is that of
        the middle third of the step, and ``memory_bytes`` the true peak in the step, predicted and
        measured alike; ``plan_period_ns`` is that of the plan, T / k, and ``plan_memory_bytes``
        what it needs without end.
        """
        job, outcome = self.job, self.outcome
        chain, pattern = self.plan.chain, self.plan.pattern
        return {
            "format": RUN_FORMAT,
            "chain_name": chain.name,
            "chain_sha256": chain.sha256,
            "model": job.model,
            "synthetic": job.model is None,
            "stretch": job.stretch,
            "backend": job.backend,
            "microbatches": job.microbatches,
            "steps": job.steps,
            "seed": job.seed,
            "gpus": self.gpus,
            **describe_place(job, outcome),
            "load": round(self.load, 2),
            "plan_period_ns": pattern.period_total_ns / pattern.k,
            "plan_memory_bytes": self.plan_memory_bytes,
            "predicted": asdict(self.predicted),
            "measured": asdict(self.measured),
            "gradient_difference": _finite(outcome.gradient_difference),
            "weight_difference": _finite(outcome.weight_difference),
            "agrees": outcome.agrees,
            "compared_with": outcome.compared_with,
            "versions": by_stage(self.plan, [record.versions for record in outcome.records]),
            "optimizer_bytes": self.optimizer_bytes,
            "losses": _losses(outcome),
        }


def describe_place(job: Job, outcome: Outcome) -> dict[str, Any]:
    """Return where a job ran, and what else kept the machine busy."""
    import torch

    from schedopt.effort import usable_cores
    from schedopt.profiling.devices import describe, find_device
    from schedopt.version import __version__

    return {
        **describe(find_device(job.device)),
        "hosts": len({record.host for record in outcome.records}),
        "cores": usable_cores(),
        "threads": outcome.records[0].threads,
        "torch": str(torch.__version__),
        "schedopt": __version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _losses(outcome: Outcome) -> list[float | None]:
    """Return the mean loss of each step that was timed."""
    means = []
    for of_ranks in zip(*(record.losses for record in outcome.records), strict=True):
        losses = [loss for of_rank in of_ranks for loss in of_rank.values()]
        means += [_finite(sum(losses) / len(losses))] if losses else []
    return means


def _finite(figure: float | None) -> float | None:
    """Return a figure that JSON can hold: None for an infinite one and for NaN."""
    return figure if figure is not None and math.isfinite(figure) else None
