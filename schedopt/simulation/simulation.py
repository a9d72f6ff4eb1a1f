"""`simulate`: a finite step of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from math import lcm
from typing import Literal

from schedopt.account.memory import GpuMemory, memory_of, memory_profile
from schedopt.account.profile import Level
from schedopt.account.residencies import Residency, residencies_of
from schedopt.account.timeline import Interval, Timeline, replica_of
from schedopt.errors import InputError
from schedopt.folding import whole
from schedopt.plan import Kind, Operation, Plan, Transfer, require_plan
from schedopt.simulation.events import Event, unroll
from schedopt.simulation.shifting import shift_left
from schedopt.validation import as_whole, check_choice

Timing = Literal["asap", "pattern"]


@dataclass(frozen=True)
class Phases:
    """Where the steady state of a step begins and ends, ns.

    From when every GPU that has a stage has begun to when the first of them is through. Memory may
    go on rising behind the start, until as many micro-batches are under way as the plan keeps.
    """

    steady_from_ns: int
    steady_to_ns: int


@dataclass(frozen=True)
class Simulation:
    """A step of a plan: what happens when, how long it takes and what lies in memory.

    Parameters
    ----------
    plan : Plan
    microbatches : int
        They all enter an empty pipeline, which is empty again at the end (a flush).
    timing : {"asap", "pattern"}
        Whether everything starts as soon as the order of the pattern allows, as an engine runs
        it, or at the times of the pattern.
    events : tuple of Event
        Operations and transfers in order of start.
    """

    plan: Plan
    microbatches: int
    timing: Timing
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        check_choice(self, "timing", ("asap", "pattern"))

    @property
    def length(self) -> int:
        """Micro-batches."""
        return self.microbatches

    @property
    def length_ns(self) -> int:
        """A period that is longer than the step, so that nothing repeats in it."""
        return self.makespan_ns + 1

    @property
    def end_ns(self) -> int:
        """The end of the step."""
        return self.makespan_ns

    @cached_property
    def makespan_ns(self) -> int:
        """From the first start to the last end."""
        return max(event.end_ns for event in self.events)

    @property
    def time_per_micro_batch(self) -> Fraction:
        """The makespan over the micro-batches, ns."""
        return Fraction(self.makespan_ns, self.microbatches)

    @cached_property
    def busy_ns(self) -> tuple[int, ...]:
        """How long each GPU of the platform works."""
        busy = [0] * len(self.plan.platform.gpus)
        for event in self.events:
            if isinstance(event.item, Operation):
                busy[event.gpu] += event.length_ns
        return tuple(busy)

    @property
    def bubble(self) -> Fraction:
        """The share of the makespan in which the GPUs that have a stage are idle."""
        used = {gpu for stage in self.plan.stages for gpu in stage.gpus}
        whole = self.makespan_ns * len(used)
        return 1 - Fraction(sum(self.busy_ns), whole) if whole else Fraction(0)

    @cached_property
    def phases(self) -> Phases | None:
        """The steady state; None if some GPU is through before another one begins."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for operation, _, run in self.operations():
            if operation.kind != "U":
                first.setdefault(run.gpu, run.start_ns)
                last[run.gpu] = max(last.get(run.gpu, 0), run.end_ns)
        begin, end = max(first.values()), min(last.values())
        return Phases(begin, end) if begin < end else None

    @cached_property
    def steady_period(self) -> Fraction | None:
        """The time between micro-batches in the middle third, ns; None for too short a step.

        Measured over two windows of as many hyperperiods each, between the instants by which all
        micro-batches up to one are through their backwards. It is taken as settled where every
        stage takes the same time in both, and both together are a micro-batch for each GPU that
        has a stage, or more: what holds up one of them may show in the others that much later.
        """
        stages = self.plan.stages
        begin, every = -(-self.microbatches // 3), Timeline(self.plan).length
        window = (2 * self.microbatches // 3 - begin) // (2 * every) * every
        if not window or 2 * window < len({gpu for stage in stages for gpu in stage.gpus}):
            return None
        found: set[int] = set()
        for stage in range(len(stages)):
            kind: Kind = "I" if self.has("I", stage) else "B"
            ends = (self.at(kind, stage, i).end_ns for i in range(begin + 2 * window + 1))
            through = list(accumulate(ends, max))[begin::window]
            found.update(later - earlier for earlier, later in pairwise(through))
        return Fraction(found.pop(), window) if len(found) == 1 else None

    @cached_property
    def memory(self) -> tuple[GpuMemory, ...]:
        """What each GPU of the platform needs during the step."""
        return memory_of(self.plan, self.residencies, self.length_ns)

    @cached_property
    def memory_profile(self) -> tuple[tuple[Level, ...], ...]:
        """The bytes on each GPU over time."""
        return memory_profile(self.plan, self.residencies, self.length_ns)

    @cached_property
    def residencies(self) -> tuple[Residency, ...]:
        """Everything that lies in memory during the step."""
        return tuple(residencies_of(self))

    def has(self, kind: Kind, stage: int, micro_batch: int = 0, replica: int = 0) -> bool:
        """Whether a stage has an operation of a kind for a micro-batch, on a replica of it."""
        return (kind, stage, micro_batch, replica) in self._runs

    def at(self, kind: Kind, stage: int, micro_batch: int, replica: int = 0) -> Interval:
        """Return when an operation runs for a micro-batch, W perhaps on another replica."""
        return self._runs[kind, stage, micro_batch, replica]

    def operations(self) -> Iterator[tuple[Operation, int, Interval]]:
        """Yield each operation with its first micro-batch."""
        for event in self.events:
            if isinstance(event.item, Operation):
                yield event.item, event.first, _interval(event)

    def transfers(self) -> Iterator[tuple[Transfer, int, int, int, Interval]]:
        """Yield each transfer with micro-batch, source GPU, bytes and interval at its target."""
        for event in self.events:
            if isinstance(event.item, Transfer) and event.source is not None:
                yield event.item, event.first, event.source, event.sent_bytes, _interval(event)

    @cached_property
    def _runs(self) -> dict[tuple[Kind, int, int, int], Interval]:
        found = {}
        for event in self.events:
            item = event.item
            if isinstance(item, Operation):
                replica = replica_of(self.plan, item)
                for micro_batch in range(event.first, event.first + event.count):
                    found[item.kind, item.stage, micro_batch, replica] = _interval(event)
        return found


def _interval(event: Event) -> Interval:
    return Interval(event.start_ns, event.end_ns, event.gpu)


def simulate(plan: Plan, microbatches: int, *, timing: Timing = "asap") -> Simulation:
    """Run a valid plan for a finite number of micro-batches, from an empty pipeline to a flush.

    Parameters
    ----------
    plan : Plan
        Valid: `schedopt.check` finds nothing.
    microbatches : int
        At least 1; with a rule that updates every m micro-batches, a multiple of m.
    timing : {"asap", "pattern"}
        Everything as soon as possible in the order of the pattern, as an engine runs it, or at
        the times of the pattern.

    Returns
    -------
    Simulation

    Raises
    ------
    InputError
        For what is no plan, or a number of micro-batches that does not fit or makes too many
        events.
    """
    require_plan(plan)
    microbatches = as_whole(microbatches, "microbatches", low=1, high=2**20)
    every = plan.rule.update_every or 1
    if microbatches % every:
        raise InputError(
            f"{microbatches} is no multiple of {every}, the micro-batches of one update",
            field="microbatches",
            way_out=f"Give {max(1, microbatches // every) * every}",
        )
    plan = whole(plan)
    events = unroll(Timeline(plan), microbatches)
    if timing == "asap":
        events = shift_left(plan, events)
    ordered = sorted(events, key=lambda event: (event.start_ns, event.end_ns))
    return Simulation(plan, microbatches, timing, tuple(ordered))


def usual_micro_batches(plan: Plan) -> int:
    """Return how many micro-batches a step has by default: 4 for each GPU with a stage.

    Rounded up to whole periods and updates. A training step has those that it was planned for.
    """
    if plan.is_training_step:
        return plan.pattern.k
    used = {gpu for stage in plan.stages for gpu in stage.gpus}
    every = lcm(plan.pattern.k, plan.rule.update_every or 1)
    return -(-4 * len(used) // every) * every
