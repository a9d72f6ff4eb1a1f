"""Operations and transfers started as soon as possible, in the order that a system prescribes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from schedopt.account.timeline import Timeline
from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.plan import Collective, Kind, Operation, Pattern, Plan, Transfer, place_in_period
from schedopt.problem import Problem, Scope
from schedopt.simulation.events import MOST_EVENTS
from schedopt.stage import Stage
from schedopt.systems.dispatcher import Dispatcher
from schedopt.systems.steady_state import Item, Name, Named, Task, find_steady_state
from schedopt.transfer import Tensor

_MADE: Final[Mapping[Kind, tuple[Tensor, int]]] = {
    "F": ("activation", 0),
    "B": ("gradient", -1),
    "I": ("gradient", -1),
}
"""What is made for a neighbour, and the first of the two stages, counted from that of the maker."""


class TooManyTasks(InputError):
    """What a run has more of than are laid out."""


class ListScheduler:
    """A run from an empty pipeline, built operation by operation, and the pattern in it.

    What an operation needs from its neighbours is known: the activation, the gradient, the other
    half of a backward; so are the transfers that take them from GPU to GPU. A system adds the
    order in which each GPU works, and what follows from its rule.

    Parameters
    ----------
    problem : Problem
        Chain, platform and rule.
    stages : sequence of Stage
    ordered : bool
        Whether each GPU runs its operations in the order in which they are added. Otherwise the
        one of least priority of those that could start, and of those the one added first.
    recomputed_inside : bool
        Whether recompute is a part of the backward, and so waits for the gradient.
    """

    def __init__(
        self,
        problem: Problem,
        stages: Sequence[Stage],
        *,
        ordered: bool = True,
        recomputed_inside: bool = False,
    ) -> None:
        self.problem = problem
        self.stages = tuple(stages)
        self.ordered, self.recomputed_inside = ordered, recomputed_inside
        self._tasks: list[Task] = []
        self._named: dict[Named, int] = {}
        self._last_on: dict[int, int] = {}
        self._shared: dict[tuple[Kind, int, tuple[int, ...]], int] = {}
        self._operations: dict[tuple[Kind, int, int, int], Operation] = {}
        self._transfers: dict[tuple[Tensor, int, int], Transfer] = {}
        """One of each kind and stage, checked, from which others are made."""
        self._timeline = Timeline(self.plan(Pattern(k=1, period_total_ns=1, operations=())))

    @property
    def costs(self) -> Chain:
        """The chain with the figures of each layer in its stage."""
        return self._timeline.plan.costs

    def expert_chunks(self, stage: int) -> int:
        """Return how many chunks of a stage are those of experts: see `Plan`."""
        return self._timeline.owners.experts[stage]

    def plan(self, pattern: Pattern, scope: Scope | None = None) -> Plan:
        """Return the plan of a pattern, in the scope of the problem if no other is given."""
        problem = self.problem
        return Plan(
            chain=problem.chain,
            platform=problem.platform,
            rule=problem.rule,
            scope=scope or problem.scope,
            variants=problem.variants,
            stages=self.stages,
            pattern=pattern,
        )

    def run(
        self,
        kind: Kind,
        stage: int,
        micro_batch: int,
        *,
        covers: int = 1,
        replica: int = 0,
        after: Iterable[Named] = (),
        earliest_ns: int = 0,
        priority: int = 0,
    ) -> None:
        """Add an operation, and what takes its result to the next stage.

        Parameters
        ----------
        kind, stage, micro_batch, covers, replica
            As of an `Operation`, for this micro-batch and those that it covers behind it.
        after : iterable of names and transfers
            What it waits for in addition to what it always needs; it may be added later.
        earliest_ns : int
        priority : int
            The least goes first, where GPUs are not ordered.
        """
        like = (kind, stage, covers, replica)
        if like not in self._operations:
            self._operations[like] = Operation(
                kind=kind, stage=stage, shift=0, start_ns=0, covers=covers, replica=replica
            )
        item = self._operations[like].at(micro_batch, 0)
        together = 1 if kind == "U" else self.problem.chain.together
        mates = self.stages[stage].mates(micro_batch, together)
        names = [(kind, stage, micro_batch + i) for i in range(covers)] if not replica else []
        number = self._shared.get((kind, stage, mates)) if len(mates) > 1 else None
        if number is not None:
            self._tasks[number].mates.append(item)
            self._tasks[number].needs += after
            self._name(names, number)
        else:
            if len(mates) > 1:
                self._shared[kind, stage, mates] = len(self._tasks)
            gpus = [self.stages[stage].gpu(i + replica) for i in mates]
            once = max(self._timeline.stage_ns(kind, stage, gpu) for gpu in gpus)
            length = once if kind == "U" else once * covers
            resources = tuple(("gpu", gpu) for gpu in gpus)
            task = Task(item, gpus[0], resources, length, list(after), earliest_ns, priority)
            if self.ordered:
                task.needed = [self._last_on[gpu] for gpu in gpus if gpu in self._last_on]
                self._last_on |= dict.fromkeys(gpus, len(self._tasks))
            self._add(task, names)
        if kind in _MADE:
            tensor, step = _MADE[kind]
            self._send_on(tensor, stage + step, item, priority)

    def update(
        self, stage: int, micro_batch: int, *, after: Iterable[Name | Transfer] = ()
    ) -> list[Name]:
        """Add the update of a stage on the GPU of a micro-batch, if the rule has one with a length.

        Returns
        -------
        list of Name
            What follows the update waits for it: its name, or nothing where there is none.
        """
        layers = range(self.stages[stage].first, self.stages[stage].last + 1)
        if self.problem.rule.is_given:
            return []
        if not any(self.costs.layers[layer].update_ns for layer in layers):
            return []
        self.run("U", stage, micro_batch, after=after)
        return [("U", stage, micro_batch)]

    def _send_on(self, tensor: Tensor, first: int, maker: Operation, priority: int) -> None:
        """Send a tensor between a stage and the next one, if there are both, on two GPUs."""
        if not 0 <= first < len(self.stages) - 1:
            return
        here, there = self.stages[first : first + 2]
        if here.gpu(maker.shift) != there.gpu(maker.shift):
            like = (tensor, first, maker.covers)
            if like not in self._transfers:
                self._transfers[like] = Transfer(
                    tensor=tensor, stage=first, shift=0, start_ns=0, covers=maker.covers
                )
            item = self._transfers[like].at(maker.shift, 0)
            after: Name = (maker.kind, maker.stage, maker.shift)
            self.send(item, after=[after], priority=priority)

    def send(self, item: Transfer, *, after: Iterable[Named] = (), priority: int = 0) -> Transfer:
        """Add a transfer whose shift is its micro-batch; return it, to be waited for.

        Activations and their gradients are sent by `run`. Its `start_ns` is not a time yet: it
        distinguishes transfers that are otherwise the same, the weights gathered for F and for B.
        """
        source, target, count = self._timeline.ends(item, item.shift)
        route, lanes = self._timeline.route(item, source, target), self._timeline.plan.lanes(item)
        length = self.problem.platform.transfer_ns(count, source, target, lanes)
        task = Task(item, target, route, length, list(after), 0, priority)
        names: list[Named] = [item]
        if item.is_boundary:
            names += [(item.tensor, item.stage, item.shift + i) for i in range(item.covers)]
        self._add(task, names)
        return item

    def length_ns(self, item: Transfer) -> int:
        """Return how long a transfer takes."""
        return self._timeline.transfer_ns(item, item.shift)

    def occupy(
        self,
        item: Operation | Collective,
        resources: Iterable[Hashable],
        length_ns: int,
        *,
        after: Iterable[Named],
        priority: int = 0,
        round_ns: int = 0,
    ) -> None:
        """Add something that takes a length of time, and all of these resources at once.

        Between rounds of some length it makes room for what has a lower priority.
        """
        task = Task(item, -1, tuple(resources), length_ns, list(after), 0, priority)
        task.round_ns = round_ns
        self._add(task, [item])

    def _add(self, task: Task, names: Iterable[Named]) -> None:
        if len(self._tasks) >= MOST_EVENTS:
            raise TooManyTasks(
                f"the run would have more than {MOST_EVENTS} operations and transfers",
                field="microbatches",
                way_out="Use fewer micro-batches or GPUs",
            )
        self._name(names, len(self._tasks))
        self._tasks.append(task)

    def _name(self, names: Iterable[Named], number: int) -> None:
        for name in names:
            if name in self._named:
                raise ValueError(f"{name} is added twice")
            self._named[name] = number

    def _needs(self, task: Task) -> Iterator[int]:
        wanted = list(task.needs)
        for item in task.items:
            if isinstance(item, Operation):
                for i in range(item.shift, item.shift + item.covers):
                    wanted += self._always_needs(item, i)
        for name in wanted:
            if name not in self._named:
                raise ValueError(f"{task.item} waits for {name}, which never comes")
            yield self._named[name]

    def _always_needs(self, item: Operation, i: int) -> Iterator[Name]:
        """Yield what an operation needs for a micro-batch (Beaumont et al. 2021, figure 1)."""
        stage = item.stage
        if item.kind == "F" and stage:
            yield self._arrival(("activation", stage - 1, i), ("F", stage - 1, i))
        elif item.kind == "R":
            yield "F", stage, i
            if self.recomputed_inside:
                yield from self._gradient(stage, i)
        elif item.kind == "W" and not item.replica:
            yield "I", stage, i
        elif item.kind in ("B", "I"):
            yield "F", stage, i
            if ("R", stage, i) in self._named:
                yield "R", stage, i
            yield from self._gradient(stage, i)

    def _gradient(self, stage: int, i: int) -> Iterator[Name]:
        """Yield what brings the gradient of a micro-batch to a stage."""
        if stage + 1 < len(self.stages):
            behind = "I" if ("I", stage + 1, i) in self._named else "B"
            yield self._arrival(("gradient", stage, i), (behind, stage + 1, i))

    def _arrival(self, transfer: Name, maker: Name) -> Name:
        return transfer if transfer in self._named else maker

    def settle(self) -> None:
        """Give everything its start: list scheduling, all as soon as it can.

        What waits for the same GPU or link goes by priority, then in the order in which it became
        ready, then as added.

        Raises
        ------
        ValueError
            If things wait for each other in a circle, or for what never comes.
        """
        self._share_updates()
        waiting_for = [0] * len(self._tasks)
        for number, task in enumerate(self._tasks):
            task.needed = sorted({*task.needed, *self._needs(task)})
            waiting_for[number] = len(task.needed)
            for needed in task.needed:
                self._tasks[needed].followers.append(number)
        Dispatcher(self._tasks, waiting_for).run()

    def _share_updates(self) -> None:
        """Let updates last as long as the chunks at home take; the transfers say how many."""
        if all(stage.shard == "none" for stage in self.stages):
            return
        sent = tuple(
            task.item.at(task.item.shift, 0)
            for task in self._tasks
            if isinstance(task.item, Transfer) and task.item.moves_weights
        )
        empty = Pattern(k=1, period_total_ns=1, operations=(), transfers=sent)
        timeline = Timeline(self.plan(empty))
        for task in self._tasks:
            if isinstance(task.item, Operation) and task.item.kind == "U":
                task.length_ns = timeline.stage_ns("U", task.item.stage, task.gpu)

    def step(self, microbatches: int) -> Pattern:
        """Return the whole run as one period of m micro-batches, in which nothing crosses."""
        last = max(self._tasks, key=lambda task: (task.end_ns, task.start_ns))
        # What takes no time may start at the very end.
        period = max(1, last.end_ns + (last.length_ns == 0))
        started = ((item, task.start_ns) for task in self._tasks for item in task.items)
        return _pattern(started, microbatches, period)

    def steady(self, k: int, *, fold: bool = False) -> Pattern:
        """Return the pattern of k micro-batches, or a few times k, to which the run settles.

        Parameters
        ----------
        k : int
        fold : bool
            Where links are so contended for that the order on them never settles, take one that
            does.

        Raises
        ------
        InputError
            If the run has not settled; more micro-batches may do.
        """
        found = find_steady_state(self._tasks, k, fold=fold)
        if found is not None:
            started = ((item, item.start_ns) for item in found.items)
            return _pattern(started, found.k, found.period_ns)
        raise InputError(
            "the order of this system has not become periodic in the run that was looked at",
            field="microbatches",
            way_out="Take another number of GPUs or micro-batches",
        )


def _pattern(started: Iterable[tuple[Item, int]], k: int, period_ns: int) -> Pattern:
    """Return the pattern of items with the times at which they start, ns."""
    operations: list[Operation] = []
    transfers: list[Transfer] = []
    collectives: list[Collective] = []
    for item, begins in started:
        start, moved = place_in_period(begins, item.shift, k, period_ns)
        if isinstance(item, Operation):
            operations.append(item.at(moved, start))
        elif isinstance(item, Transfer):
            transfers.append(item.at(moved, start))
        else:
            collectives.append(replace(item, shift=moved, start_ns=start))
    return Pattern(
        k=k,
        period_total_ns=period_ns,
        operations=tuple(operations),
        transfers=tuple(transfers),
        collectives=tuple(collectives),
    )
