"""1F1B*: the 1-periodic pattern of least memory for a contiguous allocation.

Beaumont et al. 2021, Algorithm 1 and Theorem 3: for a given period no 1-periodic pattern keeps
fewer activations of any stage. Read from its end, the chain is stage, transfer, stage, ...; the
*span* of an item is the time from the start of its forward to the end of its backward. An item of
length x behind a span S starts its own group if S mod T + x > T; its number of concurrent
activations is the number of its group, ceil(S / T).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, overload

from schedopt.errors import InputError
from schedopt.plan import (
    Kind,
    Operation,
    Plan,
    Tensor,
    Transfer,
    count_from_first_backward,
    place_in_period,
)
from schedopt.problem import Problem, Scope
from schedopt.result import Infeasibility
from schedopt.solving.course import require_stages
from schedopt.solving.recomputation import Again, held_bytes, least_again
from schedopt.solving.run import Run
from schedopt.stage import Stage

if TYPE_CHECKING:
    from schedopt.solving.again_table import Array

SENT: Final[tuple[Tensor, Tensor]] = ("activation", "gradient")
PROOF = "1F1B* keeps the fewest activations (Beaumont et al. 2021, Theorem 3)"


@dataclass(frozen=True)
class Item:
    """A stage or the link behind it, in the order of the chain.

    Parameters
    ----------
    forward_ns, backward_ns : int
    again_ns : int
        Of recompute.
    shared : bool
        Whether forward and backward exclude each other; not on a full-duplex link.
    """

    forward_ns: int
    backward_ns: int
    again_ns: int = 0
    shared: bool = True

    @property
    def work_ns(self) -> int:
        """How long it occupies its resource in a period."""
        if self.shared:
            return self.forward_ns + self.backward_ns + self.again_ns
        return max(self.forward_ns, self.backward_ns)

    def span(self, behind: int, period: int) -> int:
        """Return the least span in front of one of the items behind, at a period, ns."""
        work = self.forward_ns + self.backward_ns
        if not self.shared:
            return behind + work
        periods, load = divmod(behind, period)
        if load + work > period:
            periods, load = periods + 1, 0
        if self.again_ns > load and (periods == 0 or self.again_ns > period - work - load):
            load = self.again_ns
        return periods * period + load + work

    def again_before(self, gap: int, period: int) -> int:
        """Return how long before B the recompute starts, for a gap between F and B, ns."""
        load = gap % period
        if self.again_ns <= load:
            return self.again_ns
        return load + self.forward_ns + self.again_ns


@dataclass(frozen=True)
class StageCost:
    """What a stage costs on its GPU: times in ns, bytes once, bytes for each activation."""

    forward_ns: int
    backward_ns: int
    again_ns: int
    fixed_bytes: int
    activation_bytes: int

    def memory_bytes(self, count: int) -> int:
        """Return the memory with so many concurrent activations."""
        return self.fixed_bytes + count * self.activation_bytes


def solve(problem: Problem, run: Run) -> None:
    """Find the least period of 1F1B* on the stages that are given, or one up to the period asked.

    Raises
    ------
    InputError
        If the allocation is not contiguous, or asks for more than whole operations.
    """
    refuse_unsupported(problem, "one_f_one_b_star")
    require_stages(problem, "one_f_one_b_star")
    require_contiguous(problem, "one_f_one_b_star")
    stages = StageChain(problem, problem.stages, free=problem.scope.recompute)
    scope = proven_scope(problem)
    limit = problem.scope.period_ns
    longest = stages.longest_period() if limit is None else limit
    if not stages.fits(longest):
        run.report_infeasible(_explain(stages, scope, longest))
        return

    def refute(period: int) -> None:
        run.report_bound(period + 1, scope, PROOF)

    if limit is None:
        run.report_bound(stages.least_period(), scope, PROOF)
        run.report(stages.plan(stages.shorten(longest, run, refute)))
    else:
        run.report(stages.plan(stages.tighten(longest)))


def refuse_unsupported(problem: Problem, solver: str) -> None:
    """Raise `InputError` for what a solver of 1-periodic operations does not do.

    A plan whose backwards are whole is one of those that a split backward allows.
    """
    asked = [
        (not problem.rule.is_given, "a rule with updates"),
        (problem.scope.microbatches is not None, "a finite step"),
    ]
    for present, what in asked:
        if present:
            raise InputError(
                f"{solver} does not do {what}", field="solver", way_out="Leave that out"
            )
    if not problem.scope.recompute and any(stage.recompute for stage in problem.stages):
        raise InputError(
            "the stages recompute layers, which the scope does not allow",
            field="stages",
            way_out="Allow it (--recompute), or leave it out of the stages",
        )


def proven_scope(problem: Problem) -> Scope:
    """Return the scope in which 1F1B* on the best contiguous stages is exact.

    With one stage a GPU both readings of memory agree: the most activations lie there while a
    backward runs, with all that was recomputed for it, if it takes time.
    """
    freed = all(
        layer.backward_ns or not (layer.saved or layer.workspace_bytes)
        for layer in problem.chain.layers
    )
    return Scope(
        allocation="fixed" if problem.stages else "contiguous",
        max_k=1,
        memory="peak" if freed or not problem.scope.recompute else "sum",
        recompute=problem.scope.recompute,
        gpu_order="any" if problem.platform.uniform else "given",
    )


@dataclass(frozen=True)
class Thinning:
    """Which periods of a 1-periodic pattern carry a micro-batch: k of every so many.

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
        """Return how many of so many periods in a row carry a micro-batch at most."""
        return -(-periods * self.k // self.slots)

    def periods(self, count: Array) -> Array:
        """Return the most periods in a row of which no more than a count carry a micro-batch."""
        return count * self.slots // self.k

    def slot(self, micro_batch: int) -> int:
        """Return the period of a micro-batch."""
        return micro_batch * self.slots // self.k


EVERY_PERIOD: Final = Thinning()


class StageChain:
    """Stages, each on a GPU of its own, as 1F1B* sees them: stage, link, stage, ..., stage.

    Parameters
    ----------
    problem : Problem
        Scope and rule do not matter.
    stages : sequence of Stage
        In the order of the chain.
    free : bool
        Whether each stage may recompute what is best for a period, and not what it says.
    thinning : Thinning
        Which of the periods carry a micro-batch.
    """

    def __init__(
        self,
        problem: Problem,
        stages: Sequence[Stage],
        *,
        free: bool = False,
        thinning: Thinning = EVERY_PERIOD,
    ) -> None:
        self.problem, self.thinning = problem, thinning
        self.stages = tuple(replace(one, recompute=()) for one in stages) if free else tuple(stages)
        self.free = free
        self.costs = [self._cost(stage) for stage in self.stages]
        self.rooms = [problem.platform.gpus[stage.gpus[0]].usable_bytes for stage in stages]
        self.items = self._items()
        self._again: dict[tuple[int, int], Again | None] = {}

    def _cost(self, stage: Stage) -> StageCost:
        """Return what a stage costs on its first GPU."""
        gpu = self.problem.platform.gpus[stage.gpus[0]]
        layers = self.problem.chain.layers[stage.first : stage.last + 1]
        forward = sum(gpu.duration_ns(layer.forward_ns) for layer in layers)
        backward = sum(gpu.duration_ns(layer.backward_ns) for layer in layers)
        works = forward + backward > 0
        workspace = max(layer.workspace_bytes or 0 for layer in layers) if works else 0
        numbers = range(stage.first, stage.last + 1)
        held = held_bytes(self.problem.chain, numbers, stage.recompute)
        again = sum(
            gpu.duration_ns(layer.forward_ns)
            for first, last in stage.recompute
            for layer in self.problem.chain.layers[first : last + 1]
        )
        fixed = sum(layer.weight_bytes for layer in layers) + workspace + held["R", "B"]
        return StageCost(forward, backward, again, fixed, held["F", "B"])

    def _items(self) -> list[Item]:
        link = self.problem.platform.link
        items: list[Item] = []
        for stage, cost in zip(self.stages, self.costs, strict=True):
            items.append(Item(cost.forward_ns, cost.backward_ns, cost.again_ns))
            if link is not None and stage is not self.stages[-1]:
                sent = link.transfer_ns(self.problem.chain.layers[stage.last].activation_bytes)
                items.append(Item(sent, sent, shared=link.duplex == "half"))
        return items

    @property
    def _places(self) -> slice:
        """Where the stages are among the items."""
        return slice(None, None, 2 if self.problem.platform.link is not None else 1)

    def choose(self, period: int) -> StageChain | None:
        """Return the stages with what they recompute at a period, or None if they do not fit.

        A stage is given the least recompute with which it fits: less makes no span longer.
        """
        if period < self.least_period():
            return None
        span = 0
        chosen = list(self.stages)
        linked = self.problem.platform.link is not None
        for place in reversed(range(len(self.items))):
            item = self.items[place]
            number, on_link = divmod(place, 2) if linked else (place, 0)
            if not on_link:
                found = self._least_again(number, self._in_flight(item.span(span, period), period))
                if found is None or item.work_ns + found.time_ns > period:
                    return None
                chosen[number] = replace(self.stages[number], recompute=found.runs)
                item = replace(item, again_ns=found.time_ns)
            span = item.span(span, period)
        return StageChain(self.problem, chosen, thinning=self.thinning)

    def _in_flight(self, span: int, period: int) -> int:
        """Return the number of concurrent activations of an item, at least 1."""
        return self.thinning.carried(max(1, -(-span // period)))

    def _least_again(self, number: int, in_flight: int) -> Again | None:
        if (number, in_flight) not in self._again:
            stage = self.stages[number]
            layers = range(stage.first, stage.last + 1)
            room = self.rooms[number] - self.costs[number].fixed_bytes
            gpu = self.problem.platform.gpus[stage.gpus[0]]
            self._again[number, in_flight] = least_again(
                self.problem.chain, gpu, layers, in_flight, room
            )
        return self._again[number, in_flight]

    def least_period(self) -> int:
        """Return the longest time that one resource works in a period, at least 1 ns."""
        return max(1, *(item.work_ns for item in self.items))

    def longest_period(self) -> int:
        """Return a period at which everything is one group: longer ones save no memory."""
        whole = sum(item.forward_ns + item.backward_ns + item.again_ns for item in self.items)
        if self.free:
            whole += sum(cost.forward_ns for cost in self.costs)
        return max(self.least_period(), whole)

    def spans(self, period: int) -> list[int]:
        """Return the least span of each item at a period of at least `least_period`, ns."""
        span = 0
        found = []
        for item in reversed(self.items):
            span = item.span(span, period)
            found.append(span)
        return found[::-1]

    def needs(self, period: int) -> list[int]:
        """Return the memory of each stage under 1F1B*, bytes."""
        of_stages = self.spans(period)[self._places]
        return [
            cost.memory_bytes(self._in_flight(span, period))
            for cost, span in zip(self.costs, of_stages, strict=True)
        ]

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

        Only where every item excludes itself and nothing is recomputed; else the period stays.
        """
        if self.free or not all(item.shared and item.again_ns == 0 for item in self.items):
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

        Parameters
        ----------
        period : int
        run : Run
            Stops the search; the best so far is returned.
        refuted : callable, optional
            Called with each period found not to fit.
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
        of its forward.
        """
        if self.free:
            chosen = self.choose(period)
            assert chosen is not None
            return chosen.plan(period)
        linked = self.problem.platform.link is not None
        operations: list[Operation] = []
        transfers: list[Transfer] = []
        k, whole = self.thinning.k, period * self.thinning.slots

        def place(begin: int) -> Iterator[tuple[int, int]]:
            for micro_batch in range(k):
                in_its_slot = begin + self.thinning.slot(micro_batch) * period
                yield place_in_period(in_its_slot, micro_batch, k, whole)

        clock = 0
        for position, (item, span) in enumerate(zip(self.items, self.spans(period), strict=True)):
            backward = clock + span - item.backward_ns
            stage, on_link = divmod(position, 2) if linked else (position, 0)
            if on_link:
                for tensor, begin in zip(SENT, (clock, backward), strict=True):
                    transfers += [
                        Transfer(tensor=tensor, stage=stage, shift=shift, start_ns=start)
                        for start, shift in place(begin)
                    ]
            else:
                begins: dict[Kind, int] = {"F": clock, "B": backward}
                if self.stages[stage].recompute:
                    gap = backward - clock - item.forward_ns
                    begins["R"] = backward - item.again_before(gap, period)
                for kind, begin in begins.items():
                    operations += [
                        Operation(kind=kind, stage=stage, shift=shift, start_ns=start)
                        for start, shift in place(begin)
                    ]
            clock += item.forward_ns
        return Plan(
            chain=self.problem.chain,
            platform=self.problem.platform,
            rule=self.problem.rule,
            scope=self.problem.scope,
            stages=self.stages,
            pattern=count_from_first_backward(operations, transfers, k, whole),
        )


def report_stages(problem: Problem, stages: Sequence[Stage], run: Run) -> None:
    """Report the 1F1B* plan of stages at the least period that memory allows, if there is one.

    With a period asked, none where the stages cannot reach it.
    """
    chain = StageChain(problem, stages, free=problem.scope.recompute)
    limit = problem.scope.period_ns
    longest = chain.longest_period() if limit is None else min(limit, chain.longest_period())
    if chain.fits(longest):
        run.report(chain.plan(chain.shorten(longest, run)))


def require_contiguous(problem: Problem, solver: str) -> None:
    """Raise `InputError` unless each GPU has one of the stages that are given."""
    used = [stage.gpus[0] for stage in problem.stages]
    if len(set(used)) < len(used):
        raise InputError(
            f"{solver} needs one stage for each GPU",
            field="stages",
            way_out="Give a contiguous allocation, or use periodic",
        )


def _explain(stages: StageChain, scope: Scope, period: int) -> Infeasibility:
    scope = replace(scope, period_ns=stages.problem.scope.period_ns)
    if period < stages.least_period():
        return Infeasibility(
            scope=scope,
            proof=f"a GPU or link works {stages.least_period()} ns in each period",
            wider="a longer period, or another allocation",
        )
    enough = _with_enough(stages, period)
    lacking = enough.excesses(period)
    worst = max(range(len(lacking)), key=lambda stage: lacking[stage])
    gpu = stages.stages[worst].gpus[0]
    least = stages.problem.platform.gpus[gpu].memory_bytes + lacking[worst]
    return Infeasibility(
        scope=scope,
        proof=f"stage {worst} needs {enough.needs(period)[worst]} bytes with the fewest "
        f"activations; {PROOF}",
        least_memory_bytes=least,
        proven_memory_bytes=least,
        gpu=gpu,
        wider="another allocation (--allocation contiguous)",
    )


def _with_enough(stages: StageChain, period: int) -> StageChain:
    """Return the stages with what they recompute where memory is just enough for a period.

    Excesses are over the memory that there is.
    """
    if not stages.free:
        return stages
    without = StageChain(stages.problem, stages.stages)
    low, high = 1, max(without.excesses(period))
    while low < high:
        middle = (low + high) // 2
        more = StageChain(with_memory(stages.problem, middle), stages.stages, free=True)
        chosen = more.choose(period)
        if chosen is None:
            low = middle + 1
        else:
            without = StageChain(stages.problem, chosen.stages)
            high = max(without.excesses(period))
    return without


def with_memory(problem: Problem, extra: int) -> Problem:
    """Return the problem with so many bytes more on every GPU."""
    gpus = [replace(gpu, memory_bytes=gpu.memory_bytes + extra) for gpu in problem.platform.gpus]
    return replace(problem, platform=problem.platform.with_gpus(gpus))
