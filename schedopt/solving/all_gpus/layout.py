"""Plans of orders that agree: exact starts, at the least period that these orders allow.

Orders are found at times that are rounded, and each transfer has its link alone. Here GPUs keep
their orders, and each link takes what it sends in the order in which that is ready. With all these
turns given, starts are bound by differences alone, and the slowest cycle of these is the least
period.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
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
    """Where stages lie, and about when their operations start, in any unit.

    Parameters
    ----------
    stages : list of (int, int)
        The first and the last layer of each one.
    owner : list of int
        The GPU of each stage.
    starts, lengths : list of int
        Of the forwards of all stages, then of their backwards.
    period : int
    """

    stages: list[tuple[int, int]]
    owner: list[int]
    starts: list[int]
    lengths: list[int]
    period: int


def read_order(data: JointData, scratch: JointScratch) -> JointOrder:
    """Return the order that `find_joint_order` has found; each layer is a stage.

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
    stages = [(layer, layer) for layer in range(layers)]
    return JointOrder(stages, owner, every, lengths, each.period)


def join_stages(order: JointOrder) -> JointOrder:
    """Return the order with those stages as one that always run directly one after the other."""
    count, after = len(order.owner), dict[int, int]()
    place = partial(
        _place, stages=count, ready=order.starts, lengths=order.lengths, period=order.period
    )
    for gpu in set(order.owner):
        own = [number for number in range(2 * count) if order.owner[number % count] == gpu]
        own.sort(key=place)
        after |= zip(own, [*own[1:], own[0]], strict=True)

    def is_next(one: int, other: int) -> bool:
        return after[one] == other and order.starts[other] - order.starts[one] < order.period

    firsts = [0]
    for stage in range(1, count):
        ahead, back = (stage - 1, stage), (count + stage, count + stage - 1)
        alike = order.owner[stage] == order.owner[stage - 1]
        if not (alike and is_next(*ahead) and is_next(*back)):
            firsts.append(stage)
    lasts = [*(first - 1 for first in firsts[1:]), count - 1]
    begin = [*firsts, *(count + last for last in lasts)]
    end = [*lasts, *(count + first for first in firsts)]
    starts = [order.starts[number] for number in begin]
    ends = [order.starts[number] + order.lengths[number] for number in end]
    return JointOrder(
        stages=[
            (order.stages[first][0], order.stages[last][1])
            for first, last in zip(firsts, lasts, strict=True)
        ],
        owner=[order.owner[first] for first in firsts],
        starts=starts,
        lengths=[until - start for start, until in zip(starts, ends, strict=True)],
        period=order.period,
    )


def _place(
    number: int, stages: int, ready: Sequence[int], lengths: Sequence[int], period: int
) -> tuple[int, int, int]:
    """Return where an item lies in a period; what has no length comes before what it meets."""
    path = number if number < stages else 3 * stages - number
    return ready[number] % period, lengths[number], path


def lay_out(problem: Problem, order: JointOrder) -> Plan | None:
    """Return the shortest plan with the orders of all GPUs; None if these contradict each other.

    With a layer a stage it fits the memory if the orders do: but for rounding, what a GPU holds
    depends on its own order alone.
    """
    chart = _Chart(problem, order)
    found = slowest_cycle(len(chart.lengths), chart.arcs(), least=1)
    return None if found is None else compress_shifts(chart.plan(*found[:2]))


class _Chart:
    """Operations and transfers by number, with what each one uses, and about when.

    The forwards of all stages come first, then their backwards, then all transfers.
    """

    def __init__(self, problem: Problem, order: JointOrder) -> None:
        self.problem, self.order = problem, order
        stages, layers = len(order.owner), problem.chain.layers
        ahead, back = list[int](), list[int]()
        for (first, last), number in zip(order.stages, order.owner, strict=True):
            gpu, own = problem.platform.gpus[number], layers[first : last + 1]
            ahead.append(sum(gpu.duration_ns(layer.forward_ns) for layer in own))
            back.append(sum(gpu.duration_ns(layer.backward_ns) for layer in own))
        self.lengths, self.ready = [*ahead, *back], [*order.starts]
        self.transfers: list[tuple[Tensor, int]] = []
        self.needs = [(stages - 1, 2 * stages - 1)]
        self.users: dict[Resource, list[int]] = defaultdict(list)
        for number in range(2 * stages):
            gpu_number = order.owner[number % stages]
            self.users["gpu", gpu_number, gpu_number].append(number)
        for stage in range(stages - 1):
            self._cross("activation", stage, stage, stage + 1)
            self._cross("gradient", stage, stages + stage + 1, stages + stage)

    def _cross(self, tensor: Tensor, cut: int, maker: int, reader: int) -> None:
        """Let an operation need what one of a stage beside it makes, and perhaps sends."""
        platform, owner = self.problem.platform, self.order.owner
        source, target = (owner[number % len(owner)] for number in (maker, reader))
        route = platform.route(source, target)
        if not route:
            self.needs.append((maker, reader))
            return
        sent = self.problem.chain.layers[self.order.stages[cut][1]].activation_bytes
        number = len(self.lengths)
        self.transfers.append((tensor, cut))
        self.lengths.append(platform.transfer_ns(sent, source, target))
        self.ready.append(self.ready[maker] + self.order.lengths[maker])
        self.needs += [(maker, number), (number, reader)]
        for link in route:
            self.users[link].append(number)

    def arcs(self) -> list[Difference]:
        """Return by how much one item starts behind another one, at least."""
        found = [(maker, reader, 0, self.lengths[maker]) for maker, reader in self.needs]
        place = partial(
            _place,
            stages=len(self.order.owner),
            ready=self.ready,
            lengths=self.lengths,
            period=self.order.period,
        )
        for numbers in self.users.values():
            numbers.sort(key=place)
            turns = [self.ready[number] // self.order.period for number in numbers]
            numbers, turns = [*numbers, numbers[0]], [*turns, turns[0] - 1]
            for (one, turn), (other, later) in pairwise(zip(numbers, turns, strict=True)):
                found.append((one, other, turn - later, self.lengths[one]))
        return found

    def plan(self, period: int, starts: Sequence[int]) -> Plan:
        """Return the plan with these starts."""
        own = zip(self.order.stages, self.order.owner, strict=True)
        stages = [Stage(layers=layers, gpus=(gpu,)) for layers, gpu in own]
        count, placed = len(stages), [place_in_period(start, 0, 1, period) for start in starts]
        operations = [
            Operation(
                kind="F" if number < count else "B",
                stage=number % count,
                shift=shift,
                start_ns=start,
            )
            for number, (start, shift) in enumerate(placed[: 2 * count])
        ]
        transfers = [
            Transfer(tensor=tensor, stage=cut, shift=shift, start_ns=start)
            for (tensor, cut), (start, shift) in zip(
                self.transfers, placed[2 * count :], strict=True
            )
        ]
        pattern = Pattern(
            k=1, period_total_ns=period, operations=tuple(operations), transfers=tuple(transfers)
        )
        return Plan.answering(self.problem, stages, pattern)
