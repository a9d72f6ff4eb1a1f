"""What a plan costs, for readers of several figures: each is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from schedopt.account.load import GpuLoad, bubble_of, busy_time, load
from schedopt.account.memory import GpuMemory, concurrent_activations, memory, memory_of
from schedopt.account.parts import find_part
from schedopt.account.residencies import Residency, residencies_of
from schedopt.account.timeline import Timeline
from schedopt.plan import Plan, require_plan
from schedopt.units import format_bytes


@dataclass(frozen=True)
class Shortfall:
    """A GPU without room for one more micro-batch of a stage between forward and backward."""

    gpu: int
    short_bytes: int
    micro_batches: int


@dataclass(frozen=True)
class Binding:
    """What keeps a period from being shorter, as far as the plan shows it.

    Parameters
    ----------
    gpu : int
        The GPU that works the most.
    share : Fraction
        Of the period in which it works.
    links : tuple of (int, int)
        Links that are busy all the time.
    shortfalls : tuple of Shortfall
        The GPUs without room for one more micro-batch in flight, the largest first.
    """

    gpu: int
    share: Fraction
    links: tuple[tuple[int, int], ...]
    shortfalls: tuple[Shortfall, ...]

    def __str__(self) -> str:
        words = [f"GPU {self.gpu} works {float(self.share):.1%} of the period"]
        words += [
            f"the link of GPUs {source} and {target} is busy all the time"
            for source, target in self.links
        ]
        if self.shortfalls:
            short = ", ".join(
                f"{found.gpu} ({format_bytes(found.short_bytes)} short of {found.micro_batches})"
                for found in self.shortfalls[:3]
            )
            more = f" and {len(self.shortfalls) - 3} more" if len(self.shortfalls) > 3 else ""
            words.append(f"no room for one more micro-batch in flight on GPU {short}{more}")
        return "; ".join(words)


class PlanReport:
    """The figures of a valid plan, each computed when it is first asked for.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        require_plan(plan)
        self.plan = plan

    @cached_property
    def timeline(self) -> Timeline:
        """One hyperperiod; of a fold, where that says all, that of the first part."""
        part = find_part(self.plan)
        return Timeline(self.plan) if part is None else part.timeline

    @cached_property
    def residencies(self) -> list[Residency]:
        """Everything that lies in memory during one hyperperiod."""
        return residencies_of(self.timeline)

    @cached_property
    def memory(self) -> tuple[GpuMemory, ...]:
        """What each GPU of the platform needs."""
        if self.plan.pattern.is_short:
            return memory(self.plan)
        return memory_of(self.plan, self.residencies, self.timeline.length_ns)

    @cached_property
    def needed_bytes(self) -> tuple[int, ...]:
        """What each GPU of the platform needs, in the reading of the scope."""
        return tuple(need.reading(self.plan.scope.memory) for need in self.memory)

    @cached_property
    def concurrent_activations(self) -> dict[tuple[int, int], int]:
        """Micro-batches in flight of each (stage, GPU)."""
        return concurrent_activations(self.plan)

    @cached_property
    def loads(self) -> tuple[GpuLoad, ...]:
        """The load of each GPU of the platform."""
        return load(self.plan)

    @cached_property
    def bubble(self) -> Fraction:
        """The share of the period in which the GPUs that have a stage are idle."""
        return bubble_of(self.plan, self.loads)

    @cached_property
    def binding(self) -> Binding:
        """What keeps the period from being shorter."""
        used = sorted({gpu for stage in self.plan.stages for gpu in stage.gpus})
        busiest = max(used, key=lambda gpu: self.loads[gpu].share)
        period = self.plan.pattern.period
        full = [
            (source, target)
            for (_, source, target), time in busy_time(self.plan).items()
            if time == period
        ]
        share = self.loads[busiest].share
        return Binding(busiest, share, tuple(full), tuple(self._shortfalls()))

    def _shortfalls(self) -> list[Shortfall]:
        plan = self.plan
        worst: dict[int, Shortfall] = {}
        for (stage, gpu), count in self.concurrent_activations.items():
            layers = plan.costs.layers[plan.stages[stage].first : plan.stages[stage].last + 1]
            more = sum(layer.saved for layer in layers)
            more += sum(layer.saved_input_bytes or 0 for layer in layers[:1])
            short = self.needed_bytes[gpu] + more - plan.platform.gpus[gpu].usable_bytes
            if short > 0 and (gpu not in worst or short > worst[gpu].short_bytes):
                worst[gpu] = Shortfall(gpu, short, count + 1)
        return sorted(worst.values(), key=lambda shortfall: -shortfall.short_bytes)


def find_binding(plan: Plan) -> Binding:
    """Return what keeps the period of a valid plan from being shorter."""
    return PlanReport(plan).binding
