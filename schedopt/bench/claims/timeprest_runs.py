"""Runs of TiMePReSt on equal stages: who works when, and which updates are through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schedopt.account.timeline import Timeline
from schedopt.chain import Chain, Layer
from schedopt.plan import Kind, Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.rule import Rule
from schedopt.systems.config import SystemConfig
from schedopt.systems.list_scheduler import ListScheduler
from schedopt.systems.timeprest import timeprest_run

ROOM: Final = 10**9
LENGTHS: Final = {"1": (1, 0), "2": (2, 0), "N": (0, 1), "2N": (0, 2)}
"""How long a backward of a mini-batch takes, in forwards of a micro-batch: a + b N."""
SOURCE_LENGTH: Final = "1"
"""As in the figures of the source."""


def length_of(name: str, count: int) -> int:
    """Return the length of a backward for N micro-batches, in forwards."""
    fixed, each = LENGTHS[name]
    return fixed + each * count


def config_of(stages: int, count: int, backward: int) -> SystemConfig:
    """Return W equal stages; F lasts N ns, so that B can be any whole number of forwards."""
    layer = Layer(
        forward_ns=count,
        backward_ns=backward,
        weight_bytes=6,
        activation_bytes=1,
        parameter_bytes=2,
        gradient_bytes=2,
        optimizer_bytes=2,
    )
    return SystemConfig(
        chain=Chain(layers=(layer,) * stages, name=f"{stages} equal stages"),
        platform=Platform(stages, ROOM),
        microbatches=count,
    )


@dataclass(frozen=True)
class Run:
    """A run from an empty pipeline.

    Parameters
    ----------
    stages, count, backward : int
        W, N, and the length of a backward in forwards.
    mini_batches : int
    plan : Plan
        The whole run as one step.
    timeline : Timeline
    """

    stages: int
    count: int
    backward: int
    mini_batches: int
    plan: Plan
    timeline: Timeline

    def start(self, kind: Kind, stage: int, micro_batch: int) -> int:
        """Return a start, ns."""
        return self.timeline.at(kind, stage, micro_batch).start_ns

    def end(self, kind: Kind, stage: int, micro_batch: int) -> int:
        """Return an end, ns."""
        return self.timeline.at(kind, stage, micro_batch).end_ns

    @property
    def steady(self) -> range:
        """Mini-batches, from 0, behind those that fill the pipeline and before it runs out."""
        fill = _filling(self.stages, self.count, self.backward)
        return range(fill, fill + _LOOKED_AT)

    def points(self, time_ns: int) -> int:
        """Return a time in time points, which are whole."""
        points, rest = divmod(time_ns, self.count)
        assert not rest
        return points

    def through(self, instant_ns: int) -> int:
        """Return how many mini-batches are through their backward in all stages."""
        return sum(self.backward_ns(i, 0)[1] <= instant_ns for i in range(self.mini_batches))

    def backward_ns(self, mini_batch: int, stage: int) -> tuple[int, int]:
        """Return start and end of the backward of a mini-batch, from 0, in a stage."""
        found = self.timeline.at("B", stage, mini_batch * self.count)
        return found.start_ns, found.end_ns

    def version_difference(self, mini_batch: int) -> int:
        """Return i, from 1, less the mini-batches that are through when its backward starts."""
        start, _ = self.backward_ns(mini_batch - 1, self.stages - 1)
        return mini_batch - self.through(start)

    def order(self, stage: int) -> str:
        """Return what a GPU runs, a letter each."""
        mine = [
            (run.start_ns, operation.kind)
            for operation, _, run in self.timeline.operations()
            if operation.stage == stage
        ]
        return "".join(kind for _, kind in sorted(mine))


_LOOKED_AT: Final = 4


def _filling(stages: int, count: int, backward: int) -> int:
    """Return at least how many mini-batches the first GPU begins before a backward comes to it."""
    return (stages * (backward + 1) + count) // count + 1


def run_timeprest(stages: int, count: int, backward: int, mini_batches: int | None = None) -> Run:
    """Run mini-batches through W stages, backwards first; nothing bounds what runs ahead.

    Parameters
    ----------
    stages, count : int
        W GPUs and N micro-batches of a mini-batch.
    backward : int
        Length of the backward of a mini-batch in forwards of a micro-batch.
    mini_batches : int, optional
        Default: enough to see the steady state.
    """
    config = config_of(stages, count, backward)
    enough = 2 * _filling(stages, count, backward) + _LOOKED_AT
    total = enough if mini_batches is None else mini_batches
    rule = Rule(update_every=count, backward_reads="live")
    scheduler: ListScheduler = timeprest_run(
        config, rule, config.pipeline(), total * count, bounded=False
    )
    scheduler.settle()
    scope = Scope(allocation="general", max_k=None, microbatches=total * count)
    plan = scheduler.plan(scheduler.step(total * count), scope)
    return Run(stages, count, backward, total, plan, Timeline(plan))
