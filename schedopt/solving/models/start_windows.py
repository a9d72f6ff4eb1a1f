"""Where the layers of a contiguous allocation can lie at a period, and how many fit in flight.

What has n micro-batches in flight has at least n in flight in all layers before it, and every layer
at least as many as its way to the end of the chain and back takes periods. So all that comes before
must fit with n, and all that comes behind with as many as its way takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schedopt.bounds.load import least_backward, way_back
from schedopt.bounds.recomputation import input_bytes
from schedopt.platform import Gpu
from schedopt.problem import Problem


class StartWindows:
    """What load and memory alone allow for k micro-batches in a period.

    Parameters
    ----------
    problem : Problem
    slots : int
        The first GPUs, so many, hold the layers in their order. Of equal GPUs the last may be
        empty, else any.
    k, period_ns : int

    Attributes
    ----------
    slots_of : list of list of int
        Where each layer may lie. Empty if there is no allocation at all.
    most : list of int
        Micro-batches that each slot may have in flight; one that is empty as many as the next one
        that is not. Where layers run apart: that each layer may have in flight.
    beyond : list of int
        So many more than `most`, which are not told apart: what keeps more than `most` takes the
        bytes of one more, and its order beyond that is left out.
    holds_all : bool
        Whether there is no pattern at all if there is none in these windows.
    may_cut : list of bool
        Whether a stage may begin at a layer, or behind the last.
    """

    def __init__(self, problem: Problem, slots: int, k: int, period_ns: int) -> None:
        self.problem, self.slots, self.k, self.period_ns = problem, slots, k, period_ns
        self.layers = problem.chain.layers
        self.count = len(self.layers)
        self.may_cut = list(self._cuts())
        self.least = list(self._least_in_flight())
        self.slots_of = self._slots_of()
        self.most: list[int] = []
        self.holds_all = True
        if all(self.slots_of):
            self.most = self._most_of_layers() if self.apart else self._most_of_slots()
        self.beyond = [0] * len(self.most)

    @property
    def apart(self) -> bool:
        """Whether layers run apart."""
        return self.problem.scope.grain == "layer"

    def narrow_first(self) -> Iterator[StartWindows]:
        """Yield windows in which a pattern is looked for; there is none if the last has none."""
        yield self

    def _cuts(self) -> Iterator[bool]:
        yield True
        yield from (self._may_cut_at(cut) for cut in range(1, self.count))
        yield True

    def _may_cut_at(self, cut: int) -> bool:
        groups = self.problem.chain.same_gpu
        tied = any(group[0] < cut <= group[-1] for group in groups)
        return not tied and self._may_send_at(cut)

    def _may_send_at(self, cut: int) -> bool:
        """Return whether a link has the time for what is sent there."""
        link = self.problem.platform.link
        if link is None:
            return True
        one_way = link.transfer_ns(self.layers[cut - 1].activation_bytes)
        return self.k * one_way * (2 if link.duplex == "half" else 1) <= self.period_ns

    def _least_in_flight(self) -> Iterator[int]:
        """Yield how many each layer has in flight at least, as it has on average."""
        fastest = max(self.problem.platform.gpus, key=lambda gpu: gpu.speed)
        split = self.problem.scope.split_backward
        ways = [
            fastest.duration_ns(layer.forward_ns) + fastest.duration_ns(way_back(layer, split))
            for layer in self.layers
        ]
        for first in range(self.count):
            yield max(1, -(-self.k * sum(ways[first:]) // self.period_ns))

    def _ends(self, counts: Sequence[int]) -> list[list[int]]:
        """Return, by slot and first layer, the furthest end with so many of each in flight.

        A stage has as many in flight as its first layer.
        """
        gpus = self.problem.platform.gpus[: self.slots]
        of_kind = {
            gpu: [self._end(gpu, first, counts) for first in range(self.count)]
            for gpu in dict.fromkeys(gpus)
        }
        return [of_kind[gpu] for gpu in gpus]

    def _end(self, gpu: Gpu, first: int, counts: Sequence[int]) -> int:
        split = self.problem.scope.split_backward
        work = weights = held = workspace = 0
        for number in range(first, self.count):
            layer = self.layers[number]
            backward = least_backward(layer, split)
            own = gpu.duration_ns(layer.forward_ns) + gpu.duration_ns(backward)
            work += own
            weights += layer.weight_bytes
            held += self._least_held(number, counts[number if self.apart else first], first)
            if own or not self.apart:
                workspace = max(workspace, layer.workspace_bytes or 0)
            need = weights + held + (workspace if work else 0)
            if self.k * work > self.period_ns or need > gpu.usable_bytes:
                return number
        return self.count

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
        """Return whether a layer begins a stage if the first one does and those between follow."""
        return self.apart or number == first

    def _suffixes(self, counts: Sequence[int]) -> list[list[bool]]:
        """Return whether the slots from one on can hold the layers from one on."""
        ends = self._ends(counts)
        found = [[False] * self.count + [True]]
        for slot in reversed(range(self.slots)):
            behind = found[0]
            here = list(behind)
            for first in range(self.count):
                here[first] |= self.may_cut[first] and any(
                    behind[first + 1 : ends[slot][first] + 1]
                )
            found.insert(0, here)
        return found

    def _stages(self, counts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield slot, first layer and end of the stages that fit, as does all before them."""
        ends = self._ends(counts)
        before = [True] + [False] * self.count
        for slot in range(self.slots):
            here = [False] * (self.count + 1) if self.problem.platform.uniform else list(before)
            for first in range(self.count):
                if not before[first]:
                    continue
                for end in range(first + 1, ends[slot][first] + 1):
                    if self.may_cut[end]:
                        here[end] = True
                        if self._behind[slot + 1][end]:
                            yield slot, first, end
            before = here

    def _slots_of(self) -> list[list[int]]:
        self._behind = self._suffixes(self.least)
        found: list[set[int]] = [set() for _ in range(self.count)]
        for slot, first, end in self._stages(self.least):
            for layer in range(first, end):
                found[layer].add(slot)
        return [sorted(slots) for slots in found]

    def _fit(self, counts: Sequence[int]) -> bool:
        """Return whether the GPUs may hold so many of each layer."""
        return self._suffixes(counts)[0][0]

    def _useful(self) -> int:
        """Return more than are of use in flight, in all steps of the way together."""
        return 4 * max(self.slots, self.count if self.apart else 1) * (self.k + 1)

    def _most_of_slots(self) -> list[int]:
        most = [1] * self.slots
        for n in range(1, self._useful()):
            holding = {slot for slot, _, _ in self._stages([max(n, one) for one in self.least])}
            if not holding:
                break
            for slot in range(max(holding) + 1):
                most[slot] = n
        return most

    def _most_of_layers(self) -> list[int]:
        most: list[int] = []
        for last in range(self.count):
            low, high = 1, most[-1] if most else self._useful()
            while low < high:
                middle = (low + high + 1) // 2
                counts = [
                    max(one, middle) if layer <= last else one
                    for layer, one in enumerate(self.least)
                ]
                if self._fit(counts):
                    low = middle
                else:
                    high = middle - 1
            most.append(low)
        return most
