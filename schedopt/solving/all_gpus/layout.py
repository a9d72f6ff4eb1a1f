"""Plans of orders that agree: exact starts, at the least period that these orders allow.

Orders are found at times that are rounded, and each transfer has its link alone. Here GPUs keep
their orders, and each link takes what it sends in the order in which that is ready. With all these
turns given, starts are bound by differences alone, and the slowest cycle of these is the least
period.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedopt.plan import Operation, Pattern, Plan, Transfer, place_in_period
from schedopt.solving.retiming import compress_shifts
from schedopt.stage import Stage
from schedopt.systems.cycles import Difference, slowest_cycle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedopt.network import Resource
    from schedopt.problem import Problem
    from schedopt.solving.all_gpus.orders import JointData, JointScratch
    from schedopt.transfer import Tensor


class JointOrder(NamedTuple):
    """Where layers lie, and about when their operations start, in any unit.

    Parameters
    ----------
    owner : list of int
        The GPU of each layer.
    starts, lengths : list of int
        Of the forwards of all layers, then of their backwards.
    period : int
    """

    owner: list[int]
    starts: list[int]
    lengths: list[int]
    period: int


def read_order(data: JointData, scratch: JointScratch) -> JointOrder:
    """Return the order that `find_joint_order` has found, of an allocation of all layers.

    Operations of layers without one, whose forward or backward takes no time, come as soon as what
    they need is there.
    """
    each, own, owner = data.each, scratch.each, scratch.owner.tolist()
    layers = len(owner)
    lengths = [*each.ahead.tolist(), *each.back.tolist()]
    known, sent = int(each.timed.sum()), data.sent.tolist()
    places = own.layers[:known].tolist()
    starts = dict(zip(places, own.start[:known].tolist(), strict=True))
    behind = zip(places, own.start[known : 2 * known].tolist(), strict=True)
    starts |= {layers + layer: start for layer, start in behind}
    path = [*range(layers), *reversed(range(layers, 2 * layers))]
    for one, other in pairwise(path):
        cut = min(one % layers, other % layers)
        is_sent = one % layers != other % layers and owner[cut] != owner[cut + 1]
        ready = starts.setdefault(one, 0) + lengths[one] + (sent[cut] if is_sent else 0)
        starts.setdefault(other, ready)
    every = [starts[number] for number in range(2 * layers)]
    return JointOrder(owner, every, lengths, each.period)


def lay_out(problem: Problem, order: JointOrder) -> Plan | None:
    """Return the shortest plan with the orders of all GPUs; None if these contradict each other.

    Each layer is a stage. The plan fits the memory if the orders do: but for rounding, what a GPU
    holds depends on its own order alone.
    """
    chart = _Chart(problem, order)
    found = slowest_cycle(len(chart.lengths), chart.arcs(), least=1)
    return None if found is None else compress_shifts(chart.plan(*found[:2]))


class _Chart:
    """Operations and transfers by number, with what each one uses, and about when.

    The forwards of all layers come first, then their backwards, then all transfers.
    """

    def __init__(self, problem: Problem, order: JointOrder) -> None:
        self.problem, self.owner, self.period = problem, order.owner, order.period
        platform, chain = problem.platform, problem.chain.layers
        self.layers = layers = len(chain)
        gpus = [platform.gpus[gpu] for gpu in order.owner]
        on = [*zip(gpus, chain, strict=True)]
        self.lengths = [gpu.duration_ns(layer.forward_ns) for gpu, layer in on]
        self.lengths += [gpu.duration_ns(layer.backward_ns) for gpu, layer in on]
        self.ready = [*order.starts]
        self.transfers: list[tuple[Tensor, int]] = []
        self.needs = [(layers - 1, 2 * layers - 1)]
        self.users: dict[Resource, list[int]] = defaultdict(list)
        for number in range(2 * layers):
            gpu = order.owner[number % layers]
            self.users["gpu", gpu, gpu].append(number)
        for layer in range(layers - 1):
            self._cross("activation", layer, layer, layer + 1, order)
            self._cross("gradient", layer, layers + layer + 1, layers + layer, order)

    def _cross(self, tensor: Tensor, cut: int, maker: int, reader: int, order: JointOrder) -> None:
        """Let an operation need what one of a layer beside it makes, and perhaps sends."""
        platform = self.problem.platform
        source, target = (self.owner[number % self.layers] for number in (maker, reader))
        route = platform.route(source, target)
        if not route:
            self.needs.append((maker, reader))
            return
        number, sent = len(self.lengths), self.problem.chain.layers[cut].activation_bytes
        self.transfers.append((tensor, cut))
        self.lengths.append(platform.transfer_ns(sent, source, target))
        self.ready.append(self.ready[maker] + order.lengths[maker])
        self.needs += [(maker, number), (number, reader)]
        for link in route:
            self.users[link].append(number)

    def arcs(self) -> list[Difference]:
        """Return by how much one item starts behind another one, at least."""
        found = [(maker, reader, 0, self.lengths[maker]) for maker, reader in self.needs]
        for numbers in self.users.values():
            numbers.sort(key=self._place)
            turns = [self.ready[number] // self.period for number in numbers]
            numbers, turns = [*numbers, numbers[0]], [*turns, turns[0] - 1]
            for (one, turn), (other, later) in pairwise(zip(numbers, turns, strict=True)):
                found.append((one, other, turn - later, self.lengths[one]))
        return found

    def _place(self, number: int) -> tuple[int, int, int]:
        """Return where an item lies in a period; what has no length comes before what it meets."""
        path = number if number < self.layers else 3 * self.layers - number
        return self.ready[number] % self.period, self.lengths[number], path

    def plan(self, period: int, starts: Sequence[int]) -> Plan:
        """Return the plan with these starts."""
        layers, placed = self.layers, [place_in_period(start, 0, 1, period) for start in starts]
        stages = [Stage(layers=(layer, layer), gpus=(gpu,)) for layer, gpu in enumerate(self.owner)]
        operations = [
            Operation(
                kind="F" if number < layers else "B",
                stage=number % layers,
                shift=shift,
                start_ns=start,
            )
            for number, (start, shift) in enumerate(placed[: 2 * layers])
        ]
        transfers = [
            Transfer(tensor=tensor, stage=cut, shift=shift, start_ns=start)
            for (tensor, cut), (start, shift) in zip(
                self.transfers, placed[2 * layers :], strict=True
            )
        ]
        pattern = Pattern(
            k=1, period_total_ns=period, operations=tuple(operations), transfers=tuple(transfers)
        )
        return Plan.answering(self.problem, stages, pattern)
