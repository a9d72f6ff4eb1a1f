"""Where the layers can lie at a period, and how many micro-batches fit in flight.

Whatever has n micro-batches in flight has at least n in flight in all layers before it, and every
layer at least as many as its way to the end of the chain and back takes periods. So all that comes
before must fit with n, and all that comes behind with as many as its way takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache
from itertools import accumulate
from operator import sub
from typing import Final

from schedopt.account.timeline import layer_ns
from schedopt.bounds.load import least_backward, way_back
from schedopt.bounds.recomputation import input_bytes, keeps_something
from schedopt.chain import Layer
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.plan import Kind
from schedopt.platform import Gpu, Platform
from schedopt.problem import Problem

MOST_PLACES: Final = 256
"""Layers times GPUs, up to which a model of stages says what each layer keeps at an instant."""
WIDE_IN_FLIGHT: Final = 1.5
"""If in-flight counts grow by more than this factor, solve a smaller model first."""


class AllocationDomains:
    """The domains of the allocation that load and memory alone allow at a period.

    Parameters
    ----------
    problem : Problem
    slot_count : int
        The first GPUs, this many, are slots for layers. In a contiguous allocation they hold the
        layers in their order; of equal GPUs the last may then be empty, else any.
    k, period_ns : int
        Micro-batches of a period, and T.
    anywhere : bool
        Whether any layer may lie on any GPU.
    stopped : callable, optional
        Says when to give up, by `interrupts.Stopped`.

    Attributes
    ----------
    by_layer : bool
        Whether layers run apart.
    may_cut : list of bool
        Whether a stage may begin at a layer, or behind the last.
    least : list of int
        Micro-batches that each layer has in flight at least, as it has on average.
    slots_of : list of list of int
        Where each layer may lie. Empty if there is no allocation at all.
    most : list of int
        Micro-batches that each slot may have in flight; one that is empty as many as the next one
        that is not. Where layers run apart: that each layer may have in flight.
    extra : list of int
        Extra micro-batches in flight beyond `most`, not resolved by the model: where more than
        `most` are in flight, the bytes of one more are counted, and their order is left out.
    holds_all : bool
        Whether there is no pattern at all if there is none in these domains.
    """

    def __init__(
        self,
        problem: Problem,
        slot_count: int,
        k: int,
        period_ns: int,
        *,
        anywhere: bool = False,
        stopped: Callable[[], bool] = never_stop,
    ) -> None:
        self.problem, self.slot_count, self.k, self.period_ns = problem, slot_count, k, period_ns
        self.anywhere, self.stopped = anywhere, stopped
        self.by_layer = anywhere or problem.scope.grain == "layer"
        self.at_one_instant = self.by_layer and shows_peak(problem)
        self.layers, self.count = problem.chain.layers, len(problem.chain.layers)
        self.gpus = problem.platform.gpus[:slot_count]
        self.may_cut = [True, *map(self._may_cut_at, range(1, self.count)), True]
        self.least = list(self._least_in_flight())
        self.slots_of = self._slots_of_any() if anywhere else self._slots_in_order()
        self.most: list[int] = []
        self.holds_all = True
        if all(self.slots_of):
            self.most = self._most_of_layers() if self.by_layer else self._most_of_slots()
        self.extra = [0] * len(self.most)

    def narrow_first(self) -> Iterator[AllocationDomains]:
        """Yield domains in which a pattern is looked for; there is none if the last has none.

        Of any allocation those with few in flight come first. With the fewest resolved, what is
        impossible mostly shows, and in a few more there often is a pattern.
        """
        if self.anywhere:
            few = 2 * self.k + 1
            # What is held at an instant is known only where all orders are.
            if max(map(sub, self.most, self.least)) > 0 and not self.at_one_instant:
                yield self._narrow(0, resolved=False)
            narrow = self._narrow(few, resolved=True)
            if sum(self.most) > WIDE_IN_FLIGHT * sum(narrow.most):
                yield narrow
                if not self.at_one_instant:
                    yield self._narrow(few, resolved=False)
        yield self

    def _narrow(self, above: int, *, resolved: bool) -> AllocationDomains:
        """Return domains with a few above the least, the others left out or not resolved."""
        narrow = copy(self)
        narrow.most = [
            min(most, least + above) for most, least in zip(self.most, self.least, strict=True)
        ]
        if resolved:
            narrow.holds_all = False
        else:
            narrow.extra = list(map(sub, self.most, narrow.most))
        return narrow

    def _may_cut_at(self, cut: int) -> bool:
        """Whether a stage may begin at a layer: it is not tied, and the link has the time."""
        groups = self.problem.chain.same_gpu
        if not self.anywhere and any(group[0] < cut <= group[-1] for group in groups):
            return False
        link = self.problem.platform.link
        if link is None:
            return True
        one_way = link.transfer_ns(self.layers[cut - 1].activation_bytes)
        return self.k * one_way * (2 if link.duplex == "half" else 1) <= self.period_ns

    def _least_in_flight(self) -> Iterator[int]:
        """Yield how many each layer has in flight at least: its way to the end and back over T."""
        fastest = max(self.problem.platform.gpus, key=lambda gpu: gpu.speed)
        split = self.problem.scope.split_backward
        ways = [
            fastest.duration_ns(layer.forward_ns) + fastest.duration_ns(way_back(layer, split))
            for layer in self.layers
        ]
        for first in range(self.count):
            yield max(1, -(-self.k * sum(ways[first:]) // self.period_ns))

    def _ends(self, counts: Sequence[int]) -> list[list[int]]:
        """Return, by slot and first layer, the furthest end with given counts in flight.

        A stage has as many in flight as its first layer.
        """
        of_kind = {
            gpu: [self._end(gpu, first, counts) for first in range(self.count)]
            for gpu in dict.fromkeys(self.gpus)
        }
        return [of_kind[gpu] for gpu in self.gpus]

    def _end(self, gpu: Gpu, first: int, counts: Sequence[int]) -> int:
        raise_if_stopped(self.stopped)
        split = self.problem.scope.split_backward
        work = weights = held = workspace = through = peak = 0
        for number in range(first, self.count):
            layer = self.layers[number]
            backward = least_backward(layer, split)
            own = gpu.duration_ns(layer.forward_ns) + gpu.duration_ns(backward)
            work += own
            weights += layer.weight_bytes
            in_flight = counts[number if self.by_layer else first]
            least = self._least_held(number, in_flight, first)
            if self.at_one_instant:
                # As a layer has the most in flight, those before it have as many.
                here = in_flight * through + least + self._least_workspace(layer)
                peak = max(peak, here)
                through += self._least_through(number, first)
                need = weights + peak
            else:
                held += least
                if own or not self.by_layer:
                    workspace = max(workspace, layer.workspace_bytes or 0)
                need = weights + held + (workspace if work else 0)
            if self.k * work > self.period_ns or need > gpu.usable_bytes:
                return number
        return self.count

    def _least_workspace(self, layer: Layer) -> int:
        """Return what an operation of a layer takes at least as it has the most in flight."""
        halves = (layer.backward_input_ns,) if self.problem.scope.split_backward else ()
        ahead = layer.forward_ns and not self.problem.scope.recompute
        back = all((layer.backward_ns, *halves))
        return layer.workspace_bytes or 0 if ahead or back else 0

    def _least_through(self, number: int, first: int) -> int:
        """Return the least that a layer keeps of a micro-batch all the time that it is in flight.

        In a stage from a first layer.
        """
        chain, layer = self.problem.chain, self.layers[number]
        begins = self._may_begin(number, first)
        kept = layer.saved + (layer.saved_input_bytes or 0 if begins else 0)
        if not self.problem.scope.recompute:
            return kept
        return min(kept, input_bytes(chain, number) if begins else 0)

    def _least_held(self, number: int, in_flight: int, first: int) -> int:
        """Return the least that a layer adds to a stage from a first layer, bytes."""
        chain, layer = self.problem.chain, self.layers[number]
        begins = self._may_begin(number, first)
        kept = in_flight * (layer.saved + (layer.saved_input_bytes or 0 if begins else 0))
        if not self.problem.scope.recompute:
            return kept
        checkpoint = in_flight * input_bytes(chain, number) if begins else 0
        return min(kept, layer.saved + checkpoint)

    def _may_begin(self, number: int, first: int) -> bool:
        """Whether a layer begins a stage if the first one does and those between follow."""
        if self.anywhere:
            # Any other may be joined to the one before, or keeps nothing on top.
            return number == 0
        return self.by_layer or number == first

    def _suffixes(self, counts: Sequence[int]) -> list[list[bool]]:
        """Return whether the slots from one on can hold the layers from one on."""
        ends = self._ends(counts)
        suffixes = [[False] * self.count + [True]]
        for slot in reversed(range(self.slot_count)):
            behind = suffixes[0]
            here = list(behind)
            for first in range(self.count):
                here[first] |= self.may_cut[first] and any(
                    behind[first + 1 : ends[slot][first] + 1]
                )
            suffixes.insert(0, here)
        return suffixes

    def _stages(self, counts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield slot, first layer and furthest end of the stages that fit, with all before them."""
        ends = self._ends(counts)
        before = [True] + [False] * self.count
        for slot in range(self.slot_count):
            here = [False] * (self.count + 1) if self.problem.platform.uniform else list(before)
            good = map(min, self.may_cut, self._behind[slot + 1])
            furthest = [*accumulate((end * fits for end, fits in enumerate(good)), max)]
            reach = 0
            for first in range(self.count + 1):
                here[first] |= self.may_cut[first] and 0 < first <= reach
                if before[first] and first < self.count:
                    reach = max(reach, ends[slot][first])
                    if (end := furthest[ends[slot][first]]) > first:
                        yield slot, first, end
            before = here

    def _slots_in_order(self) -> list[list[int]]:
        """Return where each layer fits with all before and all behind it."""
        self._behind = self._suffixes(self.least)
        slots_of: list[set[int]] = [set() for _ in range(self.count)]
        for slot, first, end in self._stages(self.least):
            for layer in range(first, end):
                slots_of[layer].add(slot)
        return [sorted(slots) for slots in slots_of]

    def _slots_of_any(self) -> list[list[int]]:
        """Return where each layer fits alone, of GPUs that are alike the first to be used."""
        if not self._fit_with(1, self.count - 1):
            return [[] for _ in self.layers]
        ends, rank = self._ends(self.least), [0] * self.slot_count
        for slot, twin in enumerate(twins(self.problem.platform)[: self.slot_count]):
            rank[slot] = 0 if twin is None else rank[twin] + 1
        return [
            [slot for slot in range(self.slot_count) if ends[slot][layer] > layer >= rank[slot]]
            for layer in range(self.count)
        ]

    def _fit(self, counts: Sequence[int]) -> bool:
        """Whether the GPUs may hold given counts of each layer.

        In any allocation: each layer fits a GPU, and all of them the GPUs together.
        """
        if not self.anywhere:
            return self._suffixes(counts)[0][0]
        need = sum(
            layer.weight_bytes + self._least_held(number, counts[number], 0)
            for number, layer in enumerate(self.layers)
        )
        return need <= sum(gpu.usable_bytes for gpu in self.gpus) and all(
            any(end > layer for end in of_layer)
            for layer, of_layer in enumerate(zip(*self._ends(counts), strict=True))
        )

    def _fit_with(self, n: int, last: int) -> bool:
        """Whether the GPUs may hold n in flight of a layer and those before, and the least of all.

        When a layer has n in flight, those before it do; at that instant those behind may have few.
        """
        if not (self.at_one_instant and self.anywhere):
            return self._fit(
                [max(least, n) if at <= last else least for at, least in enumerate(self.least)]
            )
        in_flight = max(n, self.least[last])
        need = sum(
            layer.weight_bytes + (in_flight * self._least_through(at, 0) if at <= last else 0)
            for at, layer in enumerate(self.layers)
        )
        alone = zip(*self._ends(self.least), strict=True)
        return need <= sum(gpu.usable_bytes for gpu in self.gpus) and all(
            any(end > layer for end in of_layer) for layer, of_layer in enumerate(alone)
        )

    def _useful(self) -> int:
        """Return more than are of use in flight, in all tasks of the path together."""
        return 4 * max(self.slot_count, self.count if self.by_layer else 1) * (self.k + 1)

    def _most_of_slots(self) -> list[int]:
        """Return the most with which a slot, or one behind it, holds a stage; bisected."""

        @cache
        def last_slot(n: int) -> int:
            stages = self._stages([max(n, least) for least in self.least])
            return max((slot for slot, *_ in stages), default=-1)

        most: list[int] = []
        for slot in range(self.slot_count):
            low, high = 1, most[-1] if most else self._useful() - 1
            while low < high:
                # Memory is often loose.
                middle = (low + high + 1) // 2 if last_slot(high) < slot else high
                if last_slot(middle) >= slot:
                    low = middle
                else:
                    high = middle - 1
            most.append(low)
        return most

    def _most_of_layers(self) -> list[int]:
        """Return the most of each layer with which all before it has no fewer; bisected."""
        most: list[int] = []
        for last in range(self.count):
            low, high = 1, most[-1] if most else self._useful()
            while low < high:
                middle = (low + high + 1) // 2
                if self._fit_with(middle, last):
                    low = middle
                else:
                    high = middle - 1
            most.append(low)
        return most


def shows_peak(problem: Problem) -> bool:
    """Whether the order of operations says what is held at the worst, exactly.

    In the reading peak, unless both what begins to keep something and what ends it take no time,
    and may come and go at one instant; or where layers run as one whose operations take no time
    each, but maybe together, and a workspace then.
    """
    scope = problem.scope
    if scope.memory != "peak":
        return False
    as_one = (scope.allocation == "contiguous" and scope.grain == "stage") or any(may_join(problem))
    comes, goes = False, False
    for number, layer in enumerate(problem.chain.layers):
        timeless = {kind for kind in _operations(problem) if not layer_ns(layer, kind)}
        if timeless and layer.workspace_bytes and as_one:
            return False
        if not keeps_something(problem.chain, number, again=scope.recompute):
            continue
        comes |= "F" in timeless or ("I" in timeless and bool(layer.saved_weight_bytes))
        goes |= bool(timeless - {"F"})
    return not (comes and goes)


def slots_show_peak(problem: Problem) -> bool:
    """Whether a model of stages says what they keep at one instant, if that is several things.

    For few layers and slots.
    """
    places = len(problem.chain.layers) * len(problem.platform.gpus)
    several = problem.scope.split_backward or problem.scope.recompute
    return several and places <= MOST_PLACES and shows_peak(problem)


def _operations(problem: Problem) -> tuple[Kind, ...]:
    """Return the operations of which each layer may have one."""
    return ("F", "B", "I", "W") if problem.scope.split_backward else ("F", "B")


def may_join(problem: Problem) -> list[bool]:
    """Return for each layer whether a stage of it and the one before can keep less than both."""
    layers, again = problem.chain.layers, problem.scope.recompute
    return [bool(n and (again or layer.saved_input_bytes)) for n, layer in enumerate(layers)]


def twins(platform: Platform) -> list[int | None]:
    """Return the last GPU before each one that is like it. Two such may change places."""
    gpus = platform.gpus
    return [
        next((other for other in reversed(range(slot)) if gpus[other] == gpu), None)
        for slot, gpu in enumerate(gpus)
    ]
