"""Contiguous stages as 1F1B* sees them: what they need at a period, and the pattern.

Read from its end, a chain of stages is stage, transfer, stage, ...; the *span* of an item is the
time from the start of its forward to the end of its backward. An item of length x behind a span S
starts its own group if S mod T + x > T; its number of concurrent activations is the number of its
group, ceil(S / T) (Beaumont et al. 2021, Algorithm 1).

Recompute does not wait for the gradient, so it need not lengthen the span: it runs in the gap
between F and B, at the latest time modulo T at which the GPU is free, and never meets the next one.
Only where neither the gap nor the rest of the period beside F and B is long enough, the gap grows.

A stage of R replicas deals its micro-batches to them in turn, so that each GPU sees one every R
periods; a link between two of them sees one every least common multiple of both numbers. All
replicas run the same pattern, each some periods behind the one before: for each of these items the
period is its own, and all else is as above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import lcm
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from schedopt.bounds.recomputation import RecomputeChoice, cheapest_recompute, held_bytes
from schedopt.network import Resource
from schedopt.plan import (
    Kind,
    Operation,
    Plan,
    Transfer,
    count_from_first_backward,
    place_in_period,
)
from schedopt.problem import Problem
from schedopt.solving.replicas.spans import span_in_front
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.transfer import Tensor

if TYPE_CHECKING:
    from schedopt.bounds.recompute_table import Array

SENT: Final[tuple[Tensor, Tensor]] = ("activation", "gradient")


@dataclass(frozen=True)
class ChainItem:
    """A stage or the link behind it, in the order of the chain.

    It is shared if forward and backward exclude each other; not on a full-duplex link. There are
    `turns` of its resource, which micro-batches take in turn.
    """

    forward_ns: int
    backward_ns: int
    recompute_ns: int = 0
    shared: bool = True
    turns: int = 1

    @property
    def work_ns(self) -> int:
        """How long a micro-batch occupies its resource."""
        if self.shared:
            return self.forward_ns + self.backward_ns + self.recompute_ns
        return max(self.forward_ns, self.backward_ns)

    def span(self, behind: int, period: int) -> int:
        """Return the least span in front of one of the items behind, at a period, ns."""
        work = self.forward_ns + self.backward_ns
        if not self.shared:
            return behind + work
        return span_in_front(behind, work, self.recompute_ns, self.turns * period)

    def recompute_before(self, gap: int, period: int) -> int:
        """Return how long before B the recompute starts, for a gap between F and B, ns."""
        load = gap % (self.turns * period)
        if self.recompute_ns <= load:
            return self.recompute_ns
        return load + self.forward_ns + self.recompute_ns


class ItemStarts(NamedTuple):
    """When forward, backward and recompute of an item begin, ns."""

    forward_ns: int
    backward_ns: int
    recompute_ns: int


@dataclass(frozen=True)
class StageCost:
    """What a stage costs on its GPU: times in ns, bytes once, bytes for each activation."""

    forward_ns: int
    backward_ns: int
    recompute_ns: int
    fixed_bytes: int
    activation_bytes: int

    def memory_bytes(self, count: int) -> int:
        """Return the memory with a number of concurrent activations."""
        return self.fixed_bytes + count * self.activation_bytes


@dataclass(frozen=True)
class SparsePattern:
    """Which periods of a 1-periodic pattern carry a micro-batch: k of every `slots`.

    Micro-batch j takes period floor(j slots / k), so that of any n periods in a row at most
    ceil(n k / slots) carry one.

    Parameters
    ----------
    k, slots : int
        k <= slots. 1 and 1: every period carries one.
    """

    k: int = 1
    slots: int = 1

    @overload
    def carried(self, periods: int) -> int: ...
    @overload
    def carried(self, periods: Array) -> Array: ...
    def carried(self, periods: int | Array) -> int | Array:
        """Return how many of some periods in a row carry a micro-batch at most."""
        return -(-periods * self.k // self.slots)

    def periods(self, count: Array) -> Array:
        """Return the most periods in a row of which no more than a count carry a micro-batch."""
        return count * self.slots // self.k

    def slot(self, micro_batch: int) -> int:
        """Return the period of a micro-batch."""
        return micro_batch * self.slots // self.k


EVERY_PERIOD: Final = SparsePattern()


class StageChain:
    """Stages, each on GPUs of its own, as 1F1B* sees them: stage, link, stage, ..., stage.

    The GPUs of a stage are alike, and so are the links between those of two stages. Scope and rule
    of the problem do not matter. Stages that are free recompute what is best for a period, and not
    what they say.
    """

    def __init__(
        self,
        problem: Problem,
        stages: Sequence[Stage],
        *,
        free: bool = False,
        sparse: SparsePattern = EVERY_PERIOD,
    ) -> None:
        self.problem, self.sparse = problem, sparse
        self.stages = tuple(replace(s, recompute=()) if free else s for s in stages)
        self.free = free
        self.costs = [self._cost(stage) for stage in self.stages]
        self.rooms = [problem.platform.gpus[stage.gpus[0]].usable_bytes for stage in stages]
        self.items = self._items()
        self._choices: dict[tuple[int, int], RecomputeChoice | None] = {}

    def _cost(self, stage: Stage) -> StageCost:
        """Return what a stage costs on its first GPU."""
        gpu = self.problem.platform.gpus[stage.gpus[0]]
        layers = self.problem.chain.layers[stage.first : stage.last + 1]
        forward = sum(gpu.duration_ns(layer.forward_ns) for layer in layers)
        backward = sum(gpu.duration_ns(layer.backward_ns) for layer in layers)
        works = forward + backward > 0
        workspace = max(layer.workspace_bytes or 0 for layer in layers) if works else 0
        held = held_bytes(self.problem.chain, stage.layer_range, stage.recompute)
        recompute = sum(
            gpu.duration_ns(self.problem.chain.layers[layer].forward_ns)
            for layer in stage.recomputed_layers
        )
        fixed = sum(layer.weight_bytes for layer in layers) + workspace + held["R", "B"]
        if stage.shard == "optimizer":
            state = sum(layer.optimizer_bytes or 0 for layer in layers)
            fixed -= state - -(-state // len(stage.gpus))
            experts = sum(layer.expert_optimizer_bytes or 0 for layer in layers)
            fixed -= experts - -(-experts // max(1, len(stage.gpus) // self.problem.chain.expert))
        return StageCost(forward, backward, recompute, fixed, held["F", "B"])

    def _items(self) -> list[ChainItem]:
        """Return stage, link, ..., stage. Where transfers are free the link takes no time."""
        platform, layers = self.problem.platform, self.problem.chain.layers
        items: list[ChainItem] = []
        for stage, cost, after in zip(
            self.stages, self.costs, (*self.stages[1:], None), strict=True
        ):
            replicas = len(stage.gpus)
            items.append(
                ChainItem(cost.forward_ns, cost.backward_ns, cost.recompute_ns, turns=replicas)
            )
            if after is not None:
                link = platform.link_between(stage.gpus[0], after.gpus[0])
                sent = 0 if link is None else link.transfer_ns(layers[stage.last].activation_bytes)
                shared, links = (
                    link is None or link.duplex == "half",
                    lcm(replicas, len(after.gpus)),
                )
                items.append(ChainItem(sent, sent, shared=shared, turns=links))
        return items

    def occupied(self, place: int) -> tuple[tuple[Resource, ...], tuple[Resource, ...]]:
        """Return what forward and backward of an item occupy."""
        number, on_link = divmod(place, 2)
        gpu = self.stages[number].gpus[0]
        if not on_link:
            return (("gpu", gpu, gpu),), (("gpu", gpu, gpu),)
        after, route = self.stages[number + 1].gpus[0], self.problem.platform.route
        return route(gpu, after), route(after, gpu)

    @property
    def shares_links(self) -> bool:
        """Whether transfers at two cuts may meet on a link: then 1F1B* is a bound, no pattern."""
        seen: set[Resource] = set()
        for place in range(1, len(self.items), 2):
            here = set().union(*self.occupied(place))
            if seen & here:
                return True
            seen |= here
        return False

    def choose(self, period: int) -> StageChain | None:
        """Return the stages with what they recompute at a period, or None if they do not fit.

        A stage is given the least recompute with which it fits: less makes no span longer.
        """
        if period < self.least_period():
            return None
        span = 0
        chosen = list(self.stages)
        for place in reversed(range(len(self.items))):
            item = self.items[place]
            number, on_link = divmod(place, 2)
            if not on_link:
                choice = self.cheapest_recompute(
                    number, self.in_flight(item, item.span(span, period), period)
                )
                if choice is None or item.work_ns + choice.time_ns > item.turns * period:
                    return None
                chosen[number] = replace(self.stages[number], recompute=choice.runs)
                item = replace(item, recompute_ns=choice.time_ns)
            span = item.span(span, period)
        return StageChain(self.problem, chosen, sparse=self.sparse)

    def in_flight(self, item: ChainItem, span: int, period: int) -> int:
        """Return the number of concurrent activations of an item, at least 1."""
        return self.sparse.carried(max(1, -(-span // (item.turns * period))))

    def cheapest_recompute(self, number: int, in_flight: int) -> RecomputeChoice | None:
        """Return what a stage recomputes in the least time with some micro-batches in flight.

        None if it does not fit.
        """
        if (number, in_flight) not in self._choices:
            stage = self.stages[number]
            room = self.rooms[number] - self.costs[number].fixed_bytes
            gpu = self.problem.platform.gpus[stage.gpus[0]]
            self._choices[number, in_flight] = cheapest_recompute(
                self.problem.chain, gpu, stage.layer_range, in_flight, room
            )
        return self._choices[number, in_flight]

    def least_period(self) -> int:
        """Return the longest time that one resource works in a period, at least 1 ns."""
        return max(1, *(-(-item.work_ns // item.turns) for item in self.items))

    def longest_period(self) -> int:
        """Return a period at which everything is one group: longer ones save no memory."""
        whole = sum(item.forward_ns + item.backward_ns + item.recompute_ns for item in self.items)
        if self.free:
            whole += sum(cost.forward_ns for cost in self.costs)
        return max(self.least_period(), whole)

    def spans(self, period: int) -> list[int]:
        """Return the least span of each item at a period of at least `least_period`, ns."""
        spans = accumulate(
            reversed(self.items), lambda span, item: item.span(span, period), initial=0
        )
        return [*spans][:0:-1]

    def needs(self, period: int) -> list[int]:
        """Return the memory of each stage under 1F1B*, bytes."""
        counts = zip(self.costs, self.counts(period), strict=True)
        return [cost.memory_bytes(count) for cost, count in counts]

    def counts(self, period: int) -> list[int]:
        """Return the number of concurrent activations of each stage under 1F1B*."""
        of_stages = zip(self.items[::2], self.spans(period)[::2], strict=True)
        return [self.in_flight(item, span, period) for item, span in of_stages]

    def excesses(self, period: int) -> list[int]:
        """Return how much more memory each stage needs than its GPU has, bytes."""
        return [need - room for need, room in zip(self.needs(period), self.rooms, strict=True)]

    def fits(self, period: int) -> bool:
        """Whether 1F1B* runs the stages with this period within the memory."""
        if self.free:
            return self.choose(period) is not None
        return period >= self.least_period() and max(self.excesses(period)) <= 0

    def tighten(self, period: int) -> int:
        """Return the largest load of a group: the same groups form at that shorter period.

        Only where every item excludes itself each period, and nothing is recomputed; else the
        period stays.
        """
        plain = all(
            item.shared and item.turns == 1 and not item.recompute_ns for item in self.items
        )
        if self.free or not plain:
            return period
        largest = load = 0
        for item in reversed(self.items):
            length = item.forward_ns + item.backward_ns
            load = load + length if load + length <= period else length
            largest = max(largest, load)
        return max(1, largest)

    def shorten(
        self, period: int, run: Run, refuted: Callable[[int], None] = lambda period: None
    ) -> int:
        """Return the least period that fits, by bisection below one that does.

        The best so far if the run stops. `refuted` hears of each period that does not fit.
        """
        low, high = self.least_period(), period
        while low < high and not run.stopped():
            middle = (low + high) // 2
            if self.fits(middle):
                high = self.tighten(middle)
            else:
                refuted(middle)
                low = middle + 1
        return self.tighten(high)

    def plan(self, period: int) -> Plan:
        """Return the 1F1B* pattern (Beaumont et al. 2021, Algorithm 1, phases 2 and 3).

        Forwards follow one another without idle time; each backward ends one span after the start
        of its forward. Where links are shared, transfers may meet there.
        """
        if self.free:
            chosen = self.choose(period)
            assert chosen is not None
            return chosen.plan(period)
        return self.plan_from(self.starts(period), period)

    def starts(self, period: int) -> list[ItemStarts]:
        """Return when each item begins under 1F1B*, with the recompute that the stages say."""
        clock = 0
        starts: list[ItemStarts] = []
        for item, span in zip(self.items, self.spans(period), strict=True):
            backward = clock + span - item.backward_ns
            gap = backward - clock - item.forward_ns
            recompute = backward - item.recompute_before(gap, period)
            starts.append(ItemStarts(clock, backward, recompute))
            clock += item.forward_ns
        return starts

    def plan_from(self, starts: Sequence[ItemStarts], period: int) -> Plan:
        """Return the pattern in which each item begins at given times."""
        operations: list[Operation] = []
        transfers: list[Transfer] = []
        k, whole = self.sparse.k, period * self.sparse.slots

        def place(begin: int) -> Iterator[tuple[int, int]]:
            for micro_batch in range(k):
                in_its_slot = begin + self.sparse.slot(micro_batch) * period
                yield place_in_period(in_its_slot, micro_batch, k, whole)

        for position, item in enumerate(starts):
            stage, on_link = divmod(position, 2)
            if on_link:
                sent = SENT if all(self.occupied(position)) else ()
                for tensor, begin in zip(sent, (item.forward_ns, item.backward_ns), strict=False):
                    transfers += [
                        Transfer(tensor=tensor, stage=stage, shift=shift, start_ns=start)
                        for start, shift in place(begin)
                    ]
            else:
                kinds: dict[Kind, int] = {"F": item.forward_ns, "B": item.backward_ns}
                if self.stages[stage].recompute:
                    kinds["R"] = item.recompute_ns
                for kind, begin in kinds.items():
                    operations += [
                        Operation(kind=kind, stage=stage, shift=shift, start_ns=start)
                        for start, shift in place(begin)
                    ]
        pattern = count_from_first_backward(operations, transfers, k, whole)
        return Plan.answering(self.problem, self.stages, pattern)
