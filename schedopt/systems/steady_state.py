"""The pattern to which a run settles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Final

from schedopt.plan import Collective, Operation, Transfer
from schedopt.systems.cycles import Difference, follow, slowest_cycle

_LONGEST_CYCLE: Final = 4
_NEVER: Final = -(2**63)

Name = tuple[str, int, int]
"""What runs a micro-batch: ``("B", 2, 5)``, ``("activation", 0, 5)``, with stage and number."""

Item = Operation | Transfer | Collective
Named = Name | Item
"""Names what others wait for."""


@dataclass
class Task:
    """Something to do: an item whose shift is its micro-batch, counted from the start of the run.

    It waits for `needs`, then for its resources, first those of a lower priority. `turn` is its
    place in the order of starts, and `needed` the numbers of the tasks that it waits for. Its
    `mates` are operations on other GPUs that start with it: see `Stage.mates`. Between two of its
    rounds, of `round_ns`, it makes room for what has a lower priority; 0: it does not. `pauses`
    says before which of them, and how long, ns.
    """

    item: Item
    gpu: int
    resources: tuple[Hashable, ...]
    length_ns: int
    needs: list[Named]
    earliest_ns: int
    priority: int
    start_ns: int = -1
    turn: int = -1
    needed: list[int] = field(default_factory=list)
    followers: list[int] = field(default_factory=list)
    mates: list[Operation] = field(default_factory=list)
    round_ns: int = 0
    pauses: list[tuple[int, int]] = field(default_factory=list)

    @property
    def items(self) -> tuple[Item, ...]:
        """All that starts."""
        if isinstance(self.item, Collective) and self.pauses:
            return (replace(self.item, pauses=tuple(self.pauses)),)
        return self.item, *self.mates

    @property
    def end_ns(self) -> int:
        """When it is over."""
        paused = sum(pause for _, pause in self.pauses) if self.pauses else 0
        return self.start_ns + self.length_ns + paused


@dataclass(frozen=True)
class SteadyState:
    """Items with starts of one period, ns, each micro-batch counted from the first of a period."""

    k: int
    period_ns: int
    items: list[Item]


def find_steady_state(tasks: Sequence[Task], k: int, *, fold: bool) -> SteadyState | None:
    """Return the steady state of k micro-batches, or of 2, 3 or 4 times k; None if there is none.

    A run that goes as fast as its slowest cycle of waits comes to repeat itself (it is linear in
    the max-plus algebra), but after many rounds where a second cycle is nearly as slow. What the
    run would come to is known before that, from the order in which all follows each other. Where
    that never settles, `fold` takes an order that does.
    """
    behind = _list_orders(tasks)
    # All but the micro-batch.
    alike = [tuple({**vars(task.item), "shift": 0}.values()) for task in tasks]

    @cache
    def cut(cycle: int) -> _PeriodicRun:
        return _PeriodicRun(tasks, behind, alike, k * cycle)

    cycles = range(1, _LONGEST_CYCLE + 1)
    for find in (_PeriodicRun.repeated, _PeriodicRun.ordered):
        for cycle in cycles:
            if (found := find(cut(cycle))) is not None:
                return found
    folded = [found for n in cycles if fold and (found := cut(n).ordered(fold=True)) is not None]
    return min(folded, key=lambda found: Fraction(found.period_ns, found.k), default=None)


class _PeriodicRun:
    """A run cut into rounds of k micro-batches, and the round in its middle.

    The tasks that are alike but for the round are one class; classes are numbered.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        behind: dict[Hashable, dict[int, list[int]]],
        alike: Sequence[Hashable],
        k: int,
    ) -> None:
        self.tasks = tasks
        self.k = k
        numbers: dict[tuple[Hashable, int], int] = {}
        self.place: list[tuple[int, int]] = []
        self.at: dict[tuple[int, int], int] = {}
        rounds: dict[int, set[int]] = defaultdict(set)
        for number, task in enumerate(tasks):
            i = task.item.shift
            which = numbers.setdefault((alike[number], i % k), len(numbers))
            self.place.append((which, i // k))
            self.at[which, i // k] = number
            rounds[which].add(i // k)
        self.behind = behind
        self.shifts = [shift for _, shift in numbers]
        self.classes = range(len(numbers))
        self.whole = sorted(set.intersection(*rounds.values()))
        self.middle = self.whole[len(self.whole) // 2] if self.whole else 0

    def start(self, which: int) -> int:
        return self.tasks[self.at[which, self.middle]].start_ns

    def steps(self, number: int) -> set[int]:
        """Return how long after their like of the round before all of a round start."""
        return {
            self.tasks[self.at[which, number + 1]].start_ns
            - self.tasks[self.at[which, number]].start_ns
            for which in self.classes
        }

    def window(self) -> range | None:
        """Return the rounds that overlap the middle one, if the run holds them and another."""
        if len(self.whole) < 3:
            return None
        first = min(self.start(which) for which in self.classes)
        last = max(self.tasks[self.at[which, self.middle]].end_ns for which in self.classes)
        step = max(1, *self.steps(self.middle))
        crossing = -(-(last - first) // step)
        found = range(self.middle - crossing, self.middle + crossing + 1)
        return found if self.whole[0] <= found[0] and found[-1] < self.whole[-1] else None

    def repeated(self) -> SteadyState | None:
        """Return the middle round, if those that overlap it are equal to it."""
        looked = self.window()
        period = min(self.steps(self.middle)) if looked else 0
        if not looked or not period or any(self.steps(i) != {period} for i in looked):
            return None
        return self.state(period, [self.start(which) for which in self.classes])

    def ordered(self, *, fold: bool = False) -> SteadyState | None:
        """Return what the run comes to, if from round to round all follows in one order.

        `fold` puts what a GPU or link does in changing order into that of the earliest starts that
        there would be without it.
        """
        looked = self.window()
        if not looked:
            return None
        needs = self.changes(looked, {i: task.needed for i, task in enumerate(self.tasks)})
        orders = {which: self.changes(looked, behind) for which, behind in self.behind.items()}
        changing = [which for which, order in orders.items() if order is None]
        if needs is None or (changing and not fold):
            return None
        arcs = [*needs, *(arc for order in orders.values() for arc in order or ())]
        if changing:
            found = self.earliest(arcs, self.average(looked))
            if found is None:
                return None
            for resource in changing:
                arcs += self.fold(resource, *found)
        found = self.earliest(arcs, 1)
        return self.state(*found) if found else None

    def changes(
        self, looked: range, behind: Mapping[int, Sequence[int]]
    ) -> list[Difference] | None:
        """Return which class waits for which, over how many rounds; None where that changes."""
        waits: set[tuple[int, int, int]] | None = None
        for number in looked:
            here = {
                (self.place[other][0], which, number - self.place[other][1])
                for which in self.classes
                for other in behind.get(self.at[which, number], ())
            }
            if waits is not None and here != waits:
                return None
            waits = here
        return [
            (first, which, turns, self.length(first)) for first, which, turns in sorted(waits or ())
        ]

    def earliest(self, arcs: Sequence[Difference], least: int) -> tuple[int, list[int]] | None:
        """Return the period and the starts of an endless run; None if something outruns it."""
        pace, begins = self.pace()
        found = slowest_cycle(len(self.classes), arcs, max(least, pace))
        if found is None:
            return None
        period, _, cycle = found
        if cycle or not begins:
            begins = {cycle[0][0] if cycle else min(self.classes, key=self.start): 0}
        starts = [begins.get(which, _NEVER) for which in self.classes]
        follow(starts, arcs, period, begins)
        return (period, starts) if min(starts) > _NEVER else None

    def average(self, looked: range) -> int:
        """Return the period of a run whose rounds differ, rounded up, ns."""
        ends = (self.at[0, number] for number in (looked[0], looked[-1] + 1))
        first, last = (self.tasks[number].start_ns for number in ends)
        return -((first - last) // len(looked))

    def fold(self, resource: Hashable, period: int, starts: Sequence[int]) -> list[Difference]:
        """Return the order of starts modulo a period on a resource."""
        middle = [self.tasks[self.at[which, self.middle]] for which in self.classes]
        users = [which for which in self.classes if resource in middle[which].resources]
        # What takes no time is through before what starts at the same instant.
        users.sort(
            key=lambda which: (starts[which] % period, self.length(which) > 0, middle[which].turn)
        )
        rounds = {which: starts[which] // period for which in users}
        return [
            (
                first,
                second,
                rounds[first] - rounds[second] + (place == len(users) - 1),
                self.length(first),
            )
            for place, (first, second) in enumerate(zip(users, users[1:] + users[:1], strict=True))
        ]

    def length(self, which: int) -> int:
        return self.tasks[self.at[which, self.middle]].length_ns

    def pace(self) -> tuple[int, dict[int, int]]:
        """Return how often the run lets a round begin, if it does, and what begins when, ns."""
        begins, paces = {}, {0}
        for which in self.classes:
            here, behind = (self.tasks[self.at[which, self.middle + i]] for i in (0, 1))
            if here.earliest_ns:
                begins[which] = here.earliest_ns
                paces.add(behind.earliest_ns - here.earliest_ns)
        return max(paces), begins

    def state(self, period: int, starts: Sequence[int]) -> SteadyState:
        first = min(starts)
        items = [
            replace(
                self.tasks[self.at[which, self.middle]].item, shift=shift, start_ns=start - first
            )
            for which, (shift, start) in enumerate(zip(self.shifts, starts, strict=True))
        ]
        return SteadyState(self.k, period, items)


def _list_orders(tasks: Sequence[Task]) -> dict[Hashable, dict[int, list[int]]]:
    """Return which task each one came behind on each resource, if any."""
    orders: dict[Hashable, dict[int, list[int]]] = defaultdict(dict)
    last: dict[Hashable, int] = {}
    for number in sorted(range(len(tasks)), key=lambda number: tasks[number].turn):
        for resource in tasks[number].resources:
            orders[resource][number] = [last[resource]] if resource in last else []
            last[resource] = number
    return orders
