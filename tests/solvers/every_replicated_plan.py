"""The least period of stages with replicas, by trying every cut, number, recompute and span.

What runs in a pattern is laid out on a circle: whether two things meet is looked at, not derived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import lcm
from typing import Literal

from hypothesis import strategies as st

from schedopt import (
    Chain,
    Layer,
    Link,
    Operation,
    Pattern,
    Plan,
    Platform,
    Problem,
    Scope,
    Stage,
    Transfer,
)
from schedopt.plan import place_in_period
from tests.solvers.every_training_step import cuts

Arc = tuple[int, int]
"""Start and length of what lies on a circle, ns."""


@dataclass(frozen=True)
class Laid:
    """Layers on so many GPUs, some of them computed again."""

    problem: Problem
    layers: range
    replicas: int
    again: tuple[bool, ...]

    @property
    def own(self) -> list[Layer]:
        """Its layers."""
        return [self.problem.chain.layers[number] for number in self.layers]

    @property
    def times(self) -> tuple[int, int, int]:
        """Of F, R and B, ns."""
        recomputed = (a.forward_ns for a, redo in zip(self.own, self.again, strict=True) if redo)
        return (
            sum(a.forward_ns for a in self.own),
            sum(recomputed),
            sum(a.backward_ns for a in self.own),
        )

    def needs(self, in_flight: int, recomputed: int) -> int:
        """Return the bytes with so many micro-batches in flight, and computed again."""
        chain, before = self.problem.chain, False
        always = sum(a.weight_bytes for a in self.own)
        kept = twice = 0
        for number, redo in zip(self.layers, self.again, strict=True):
            here = chain.layers[number]
            saved = here.activation_bytes if here.saved_bytes is None else here.saved_bytes
            if not redo:
                kept += saved
                if number == self.layers.start or before:
                    kept += here.saved_input_bytes or 0
            else:
                twice += saved
                if not before:
                    ahead = chain.layers[number - 1] if number else None
                    kept += chain.input_bytes if ahead is None else ahead.activation_bytes
            before = redo
        if self.problem.scope.shard == "optimizer":
            state = sum(a.optimizer_bytes or 0 for a in self.own)
            always += max(part(state, n, self.replicas) for n in range(self.replicas)) - state
        if any(a.forward_ns + a.backward_ns for a in self.own):
            always += max(a.workspace_bytes or 0 for a in self.own)
        return always + in_flight * kept + recomputed * twice

    def span(self, behind: int, period: int) -> int | None:
        """Return the least span that fits in front of one behind, ns, of all at a period."""
        forward, again, backward = self.times
        room = self.problem.platform.gpus[0].usable_bytes
        circle, least = self.replicas * period, behind + forward + backward
        for span in range(least, least + 2 * circle):
            if self.needs(meet(span, circle), 1) > room:
                return None
            latest = span - backward - again
            for begin in range(forward, latest + 1) if any(self.again) else [latest]:
                arcs = [(0, forward), (begin, again), (span - backward, backward)]
                in_flight = meet(span, circle), meet(span - begin, circle)
                if lie_apart(arcs, circle) and self.needs(*in_flight) <= room:
                    return span
        return None


def part(total: int, number: int, parts: int) -> int:
    """Return what one of some equal parts has of some bytes."""
    return total * (number + 1) // parts - total * number // parts


def meet(length: int, circle: int) -> int:
    """Return how many of something so long are there at once, one each round of a circle."""
    return max(1, -(-length // circle))


def lie_apart(arcs: Sequence[Arc], circle: int) -> bool:
    """Whether half-open arcs share no part of a circle.

    One without length may lie at the end of another, but not inside.
    """
    if any(length > circle for _, length in arcs):
        return False
    for (start, length), (other, width) in combinations(arcs, 2):
        ahead = (other - start) % circle
        if ahead == 0 and length and width:
            return False
        if ahead and (length > ahead or width > circle - ahead):
            return False
    return True


def sent_span(platform: Platform, count: int, behind: int, circle: int) -> int | None:
    """Return the least span in front of the transfers of some bytes at a cut, ns."""
    trip = platform.transfer_ns(count, 0, 1)
    if platform.link is None or trip == 0:
        return behind
    for span in range(behind + 2 * trip, behind + 2 * trip + 2 * circle):
        ways = [(0, trip)], [(span - trip, trip)]
        on_links = ways if platform.link.duplex == "full" else [ways[0] + ways[1]]
        if all(lie_apart(arcs, circle) for arcs in on_links):
            return span
    return None


def every_layout(problem: Problem) -> Iterator[list[Laid]]:
    """Yield all stages with replicas, recomputed or not."""
    gpus = len(problem.platform.gpus)
    most = min(gpus, problem.scope.replicas or gpus)
    redo = (False, True) if problem.scope.recompute else (False,)
    for runs in cuts(problem.chain):
        for replicas in product(range(1, most + 1), repeat=len(runs)):
            if sum(replicas) > gpus:
                continue
            ways = (product(redo, repeat=len(run)) for run in runs)
            for again in product(*ways):
                yield [Laid(problem, *stage) for stage in zip(runs, replicas, again, strict=True)]


def reaches(stages: Sequence[Laid], period: int) -> bool:
    """Whether some pattern of one micro-batch runs stages at a period, within the memory."""
    span: int | None = 0
    behind: Laid | None = None
    for stage in reversed(stages):
        if behind is not None:
            circle = lcm(stage.replicas, behind.replicas) * period
            sent = stage.own[-1].activation_bytes
            span = sent_span(stage.problem.platform, sent, span or 0, circle)
        span = None if span is None else stage.span(span, period)
        if span is None:
            return False
        behind = stage
    return True


def least_replicated_period(problem: Problem) -> int | None:
    """Return the least period, ns; None if there is none.

    What fits at one period fits at every longer one, so stages that do not beat the best are
    dropped after one try. With all in a row nothing meets.
    """
    platform = problem.platform
    best: int | None = None
    longest = sum(
        2 * a.forward_ns + a.backward_ns + 2 * platform.longest_transfer_ns(a.activation_bytes) + 1
        for a in problem.chain.layers
    )
    for stages in every_layout(problem):
        top = longest if best is None else best - 1
        if top >= 1 and reaches(stages, top):
            best = next(period for period in range(1, top + 1) if reaches(stages, period))
    return best


@st.composite
def replicated_problems(
    draw: st.DrawFn, *, layers: int = 4, gpus: int = 4, longest: int = 5
) -> Problem:
    """Draw a small problem whose stages may have replicas."""
    times, small = st.integers(1, longest) | st.integers(0, 1), st.integers(0, 4)
    count = draw(st.integers(1, layers) | st.just(layers - 1))
    chain = Chain(
        layers=tuple(
            Layer(
                forward_ns=draw(times),
                backward_ns=draw(times),
                weight_bytes=draw(st.integers(0, 3)) + state,
                activation_bytes=draw(small),
                saved_bytes=draw(st.none() | small),
                saved_input_bytes=draw(st.none() | st.integers(0, 2)),
                workspace_bytes=draw(st.none() | st.integers(0, 2)),
                parameter_bytes=0,
                gradient_bytes=0,
                optimizer_bytes=state,
            )
            for state in draw(st.lists(small, min_size=count, max_size=count))
        ),
        input_bytes=draw(small),
        same_gpu=((0, 1),) if count > 1 and draw(st.integers(0, 5)) == 0 else (),
    )
    most = draw(st.integers(1, gpus) | st.just(gpus))
    # A little more than the largest layer takes, so that what is kept matters.
    least = max(a.weight_bytes + (a.saved_bytes or 0) for a in chain.layers)
    platform = Platform(most, least + draw(st.integers(0, 24)))
    if draw(st.integers(0, 3)):
        link = Link(
            bandwidth_bytes_per_s=draw(st.sampled_from([10**9, 2 * 10**9, 5 * 10**8])),
            latency_ns=draw(st.integers(0, 2)),
            duplex=draw(st.sampled_from(["half", "full"])),
        )
        object.__setattr__(platform, "link", link)
    replicas = draw(st.none() | st.integers(1, most))
    scope = Scope(
        replicas=replicas,
        shard="none" if replicas == 1 else draw(st.sampled_from(["none", "optimizer"])),
        recompute=draw(st.booleans()) and count <= 3,
    )
    return Problem(chain=chain, platform=platform, scope=scope)


def every_pattern(problem: Problem, period: int) -> Iterator[Plan]:
    """Yield all patterns of one micro-batch with a period, but for what waits a whole round.

    Without recompute. What follows waits for less than the circle of its GPU or its links, since
    with so much less waiting everything meets the same.
    """
    for stages in every_layout(problem):
        way = [*_way(len(stages), problem.platform.link is not None)]
        circles = [_circle(stages, name, stage) * period for name, stage in way]
        for waits in product(*map(range, circles[1:])):
            clock = 0
            operations: list[Operation] = []
            transfers: list[Transfer] = []
            for (name, number), wait in zip(way, (0, *waits), strict=True):
                clock += wait
                start, shift = place_in_period(clock, 0, 1, period)
                if name == "F" or name == "B":
                    forward, _, backward = stages[number].times
                    clock += forward if name == "F" else backward
                    operations.append(
                        Operation(kind=name, stage=number, shift=shift, start_ns=start)
                    )
                else:
                    sent = stages[number].own[-1].activation_bytes
                    clock += problem.platform.transfer_ns(sent, 0, 1)
                    transfers.append(
                        Transfer(tensor=name, stage=number, shift=shift, start_ns=start)
                    )
            pattern = Pattern(
                k=1,
                period_total_ns=period,
                operations=tuple(operations),
                transfers=tuple(transfers),
            )
            yield Plan.answering(problem, _placed(stages), pattern)


Name = Literal["F", "B", "activation", "gradient"]


def _way(stages: int, linked: bool) -> Iterator[tuple[Name, int]]:
    """Yield what a micro-batch goes through, in its order, with the stage of each."""
    for stage in range(stages):
        yield "F", stage
        if linked and stage + 1 < stages:
            yield "activation", stage
    for stage in reversed(range(stages)):
        if linked and stage + 1 < stages:
            yield "gradient", stage
        yield "B", stage


def _circle(stages: Sequence[Laid], kind: Name, stage: int) -> int:
    """Return after how many periods an operation or transfer is on the same GPU or link again."""
    here = stages[stage].replicas
    return here if kind in ("F", "B") else lcm(here, stages[stage + 1].replicas)


def _placed(stages: Sequence[Laid]) -> list[Stage]:
    """Return the stages on GPUs in order."""
    found: list[Stage] = []
    for stage in stages:
        first = sum(len(before.gpus) for before in found)
        found.append(
            Stage(
                layers=(stage.layers.start, stage.layers.stop - 1),
                gpus=tuple(range(first, first + stage.replicas)),
                shard=stage.problem.scope.shard if stage.replicas > 1 else "none",
            )
        )
    return found
