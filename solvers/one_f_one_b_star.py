"""1F1B*: the 1-periodic pattern of least memory for a contiguous allocation.

Beaumont et al. 2021, Algorithm 1 and Theorem 3: for a given period no 1-periodic pattern keeps
fewer activations of any stage. Read from its end, the chain is stage, transfer, stage, ...; the
*span* of an item is the time from the start of its forward to the end of its backward. An item of
length x behind a span S starts its own group if S mod T + x > T; its number of concurrent
activations is the number of its group, ceil(S / T).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from schedopt.errors import InputError
from schedopt.plan import Operation, Plan, Transfer, count_from_first_backward, place_in_period
from schedopt.problem import Problem, Scope
from schedopt.result import Infeasibility
from schedopt.solving.course import require_stages
from schedopt.solving.run import Run
from schedopt.stage import Stage

PROOF = "1F1B* keeps the fewest activations (Beaumont et al. 2021, Theorem 3)"


@dataclass(frozen=True)
class Item:
    """A stage or the link behind it, in the order of the chain.

    Parameters
    ----------
    forward_ns, backward_ns : int
    shared : bool
        Whether forward and backward exclude each other; not on a full-duplex link.
    """

    forward_ns: int
    backward_ns: int
    shared: bool = True

    @property
    def work_ns(self) -> int:
        """How long it occupies its resource in a period."""
        if self.shared:
            return self.forward_ns + self.backward_ns
        return max(self.forward_ns, self.backward_ns)


@dataclass(frozen=True)
class StageCost:
    """What a stage costs on its GPU: times in ns, bytes once, bytes for each activation."""

    forward_ns: int
    backward_ns: int
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
    _require_contiguous(problem)
    stages = StageChain(problem, problem.stages)
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
        (problem.scope.recompute, "recompute"),
        (problem.scope.microbatches is not None, "a finite step"),
        (any(stage.recompute for stage in problem.stages), "stages that recompute"),
    ]
    for present, what in asked:
        if present:
            raise InputError(
                f"{solver} does not do {what}", field="solver", way_out="Leave that out"
            )


def proven_scope(problem: Problem) -> Scope:
    """Return the scope in which 1F1B* on the best contiguous stages is exact.

    With one stage a GPU both readings of memory agree: the most activations lie there while a
    forward runs.
    """
    return Scope(
        allocation="fixed" if problem.stages else "contiguous",
        max_k=1,
        memory="peak",
        gpu_order="any" if problem.platform.uniform else "given",
    )


def activations(span: int, period: int) -> int:
    """Return the number of concurrent activations of an item."""
    return max(1, -(-span // period))


class StageChain:
    """Stages, each on a GPU of its own, as 1F1B* sees them: stage, link, stage, ..., stage.

    Parameters
    ----------
    problem : Problem
    stages : sequence of Stage
        In the order of the chain.
    """

    def __init__(self, problem: Problem, stages: Sequence[Stage]) -> None:
        self.problem = problem
        self.stages = tuple(stages)
        self.costs = [self._cost(stage) for stage in stages]
        self.rooms = [problem.platform.gpus[stage.gpus[0]].usable_bytes for stage in stages]
        self.items = self._items()

    def _cost(self, stage: Stage) -> StageCost:
        """Return what a stage costs on its first GPU."""
        gpu = self.problem.platform.gpus[stage.gpus[0]]
        layers = self.problem.chain.layers[stage.first : stage.last + 1]
        forward = sum(gpu.duration_ns(layer.forward_ns) for layer in layers)
        backward = sum(gpu.duration_ns(layer.backward_ns) for layer in layers)
        works = forward + backward > 0
        workspace = max(layer.workspace_bytes or 0 for layer in layers) if works else 0
        return StageCost(
            forward,
            backward,
            sum(layer.weight_bytes for layer in layers) + workspace,
            sum(layer.saved for layer in layers) + (layers[0].saved_input_bytes or 0),
        )

    def _items(self) -> list[Item]:
        link = self.problem.platform.link
        items: list[Item] = []
        for stage, cost in zip(self.stages, self.costs, strict=True):
            items.append(Item(cost.forward_ns, cost.backward_ns))
            if link is not None and stage is not self.stages[-1]:
                sent = link.transfer_ns(self.problem.chain.layers[stage.last].activation_bytes)
                items.append(Item(sent, sent, shared=link.duplex == "half"))
        return items

    def least_period(self) -> int:
        """Return the longest time that one resource works in a period, at least 1 ns."""
        return max(1, *(item.work_ns for item in self.items))

    def longest_period(self) -> int:
        """Return a period at which everything is one group: longer ones save no memory."""
        whole = sum(item.forward_ns + item.backward_ns for item in self.items)
        return max(self.least_period(), whole)

    def spans(self, period: int) -> list[int]:
        """Return the least span of each item at a period of at least `least_period`, ns."""
        span = 0
        found = []
        for item in reversed(self.items):
            length = item.forward_ns + item.backward_ns
            if item.shared and span % period + length > period:
                span = -(-span // period) * period
            span += length
            found.append(span)
        return found[::-1]

    def needs(self, period: int) -> list[int]:
        """Return the memory of each stage under 1F1B*, bytes."""
        of_stages = self.spans(period)[:: 2 if self.problem.platform.link is not None else 1]
        return [
            cost.memory_bytes(activations(span, period))
            for cost, span in zip(self.costs, of_stages, strict=True)
        ]

    def excesses(self, period: int) -> list[int]:
        """Return how much more memory each stage needs than its GPU has, bytes."""
        return [need - room for need, room in zip(self.needs(period), self.rooms, strict=True)]

    def fits(self, period: int) -> bool:
        """Whether 1F1B* runs the stages with this period within the memory."""
        return period >= self.least_period() and max(self.excesses(period)) <= 0

    def tighten(self, period: int) -> int:
        """Return the largest load of a group: the same groups form at that shorter period.

        Only where every item excludes itself; on full-duplex links the period stays.
        """
        if not all(item.shared for item in self.items):
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
        linked = self.problem.platform.link is not None
        operations: list[Operation] = []
        transfers: list[Transfer] = []
        clock = 0
        for position, (item, span) in enumerate(zip(self.items, self.spans(period), strict=True)):
            backward = clock + span - item.backward_ns
            stage, on_link = divmod(position, 2) if linked else (position, 0)
            for forwards, begin in ((True, clock), (False, backward)):
                start, shift = place_in_period(begin, 0, 1, period)
                if on_link:
                    transfers.append(
                        Transfer(
                            tensor="activation" if forwards else "gradient",
                            stage=stage,
                            shift=shift,
                            start_ns=start,
                        )
                    )
                else:
                    operations.append(
                        Operation(
                            kind="F" if forwards else "B", stage=stage, shift=shift, start_ns=start
                        )
                    )
            clock += item.forward_ns
        return Plan(
            chain=self.problem.chain,
            platform=self.problem.platform,
            rule=self.problem.rule,
            scope=self.problem.scope,
            stages=self.stages,
            pattern=count_from_first_backward(operations, transfers, 1, period),
        )


def report_stages(problem: Problem, stages: Sequence[Stage], run: Run) -> None:
    """Report the 1F1B* plan of stages at the least period that memory allows, if there is one.

    With a period asked, none where the stages cannot reach it.
    """
    chain = StageChain(problem, stages)
    limit = problem.scope.period_ns
    longest = chain.longest_period() if limit is None else min(limit, chain.longest_period())
    if chain.fits(longest):
        run.report(chain.plan(chain.shorten(longest, run)))


def _require_contiguous(problem: Problem) -> None:
    used = [stage.gpus[0] for stage in problem.stages]
    if len(set(used)) < len(used):
        raise InputError(
            "one_f_one_b_star needs one stage for each GPU",
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
    lacking = stages.excesses(period)
    worst = max(range(len(lacking)), key=lambda stage: lacking[stage])
    gpu = stages.stages[worst].gpus[0]
    enough = stages.problem.platform.gpus[gpu].memory_bytes + lacking[worst]
    return Infeasibility(
        scope=scope,
        proof=f"stage {worst} needs {stages.needs(period)[worst]} bytes with the fewest "
        f"activations; {PROOF}",
        least_memory_bytes=enough,
        proven_memory_bytes=enough,
        gpu=gpu,
        wider="another allocation (--allocation contiguous)",
    )
