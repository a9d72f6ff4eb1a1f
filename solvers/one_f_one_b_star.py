"""1F1B*: the 1-periodic pattern of least memory for a contiguous allocation.

Beaumont et al. 2021, Algorithm 1 and Theorem 3: for a given period no 1-periodic pattern keeps
fewer activations of any stage. Read from its end, the chain is stage, transfer, stage, ...; the
*span* of an item is the time from the start of its forward to the end of its backward. An item of
length x behind a span S starts its own group if S mod T + x > T; its number of concurrent
activations is the number of its group, ceil(S / T).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from schedopt.errors import InputError
from schedopt.plan import Operation, Plan, Transfer, count_from_first_backward, place_in_period
from schedopt.problem import Problem, Scope
from schedopt.result import Infeasibility
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
    stages = problem.stages
    _require_contiguous(stages)
    scope = proven_scope(problem)
    items = chain_items(problem, stages)
    longest = sum(item.forward_ns + item.backward_ns for item in items)
    limit = problem.scope.period_ns
    low = max(1, least_period(items))
    high = max(low, longest) if limit is None else limit
    if not fits(problem, stages, high):
        run.report_infeasible(_explain(problem, scope, stages, items, high))
        return
    while limit is None and low < high and not run.stopped():
        middle = (low + high) // 2
        if fits(problem, stages, middle):
            high = middle
        else:
            low = middle + 1
            run.report_bound(low, scope, PROOF)
    run.report(make_plan(problem, stages, tighten(items, high)))
    if limit is None:
        run.report_bound(low, scope, PROOF)


def refuse_unsupported(problem: Problem, solver: str) -> None:
    """Raise `InputError` for what a solver of whole 1-periodic operations does not do."""
    asked = [
        (not problem.rule.is_given, "a rule with updates"),
        (problem.scope.split_backward, "a split backward"),
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


def stage_cost(problem: Problem, stage: Stage) -> StageCost:
    """Return what a stage costs on its first GPU."""
    gpu = problem.platform.gpus[stage.gpus[0]]
    layers = problem.chain.layers[stage.first : stage.last + 1]
    forward = sum(gpu.duration_ns(layer.forward_ns) for layer in layers)
    backward = sum(gpu.duration_ns(layer.backward_ns) for layer in layers)
    workspace = max(layer.workspace_bytes or 0 for layer in layers) if forward + backward else 0
    return StageCost(
        forward,
        backward,
        sum(layer.weight_bytes for layer in layers) + workspace,
        sum(layer.saved for layer in layers) + (layers[0].saved_input_bytes or 0),
    )


def chain_items(problem: Problem, stages: Sequence[Stage]) -> list[Item]:
    """Return stage, link, stage, ..., stage."""
    link = problem.platform.link
    items: list[Item] = []
    for stage in stages:
        cost = stage_cost(problem, stage)
        items.append(Item(cost.forward_ns, cost.backward_ns))
        if link is not None and stage is not stages[-1]:
            sent = link.transfer_ns(problem.chain.layers[stage.last].activation_bytes)
            items.append(Item(sent, sent, shared=link.duplex == "half"))
    return items


def least_period(items: Sequence[Item]) -> int:
    """Return the longest time that one resource works in a period, ns."""
    return max(
        item.forward_ns + item.backward_ns
        if item.shared
        else max(item.forward_ns, item.backward_ns)
        for item in items
    )


def spans(items: Sequence[Item], period: int) -> list[int]:
    """Return the least span of each item at a period of at least `least_period`, ns."""
    span = 0
    found = []
    for item in reversed(items):
        length = item.forward_ns + item.backward_ns
        if item.shared and span % period + length > period:
            span = -(-span // period) * period
        span += length
        found.append(span)
    return found[::-1]


def activations(span: int, period: int) -> int:
    """Return the number of concurrent activations of an item."""
    return max(1, -(-span // period))


def fits(problem: Problem, stages: Sequence[Stage], period: int) -> bool:
    """Whether 1F1B* runs the stages with this period within the memory."""
    items = chain_items(problem, stages)
    if period < least_period(items):
        return False
    return all(
        need <= problem.platform.gpus[stage.gpus[0]].usable_bytes
        for stage, need in zip(stages, needs(problem, stages, period), strict=True)
    )


def needs(problem: Problem, stages: Sequence[Stage], period: int) -> list[int]:
    """Return the memory of each stage under 1F1B*, bytes."""
    items = chain_items(problem, stages)
    of_stages = spans(items, period)[:: 2 if problem.platform.link is not None else 1]
    return [
        stage_cost(problem, stage).memory_bytes(activations(span, period))
        for stage, span in zip(stages, of_stages, strict=True)
    ]


def tighten(items: Sequence[Item], period: int) -> int:
    """Return the largest load of a group: the same groups form at that shorter period.

    Only where every item excludes itself; on full-duplex links the period stays.
    """
    if not all(item.shared for item in items):
        return period
    largest = load = 0
    for item in reversed(items):
        length = item.forward_ns + item.backward_ns
        load = load + length if load + length <= period else length
        largest = max(largest, load)
    return max(1, largest)


def make_plan(problem: Problem, stages: Sequence[Stage], period: int) -> Plan:
    """Return the 1F1B* pattern (Beaumont et al. 2021, Algorithm 1, phases 2 and 3).

    Forwards follow one another without idle time; each backward ends one span after the start of
    its forward.
    """
    items = chain_items(problem, stages)
    linked = problem.platform.link is not None
    operations: list[Operation] = []
    transfers: list[Transfer] = []
    clock = 0
    for position, (item, span) in enumerate(zip(items, spans(items, period), strict=True)):
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
        chain=problem.chain,
        platform=problem.platform,
        rule=problem.rule,
        scope=problem.scope,
        stages=tuple(stages),
        pattern=count_from_first_backward(operations, transfers, 1, period),
    )


def _require_contiguous(stages: Sequence[Stage]) -> None:
    used = [gpu for stage in stages for gpu in stage.gpus]
    if len(set(used)) < len(used) or len(used) > len(stages):
        raise InputError(
            "one_f_one_b_star needs one GPU for each stage, and one stage for each GPU",
            field="stages",
            way_out="Give a contiguous allocation",
        )


def _explain(
    problem: Problem, scope: Scope, stages: Sequence[Stage], items: Sequence[Item], period: int
) -> Infeasibility:
    limit = problem.scope.period_ns
    scope = replace(scope, period_ns=limit)
    if period < least_period(items):
        return Infeasibility(
            scope=scope,
            proof=f"a GPU or link works {least_period(items)} ns in each period",
            wider="a longer period, or another allocation",
        )
    gpus = [problem.platform.gpus[stage.gpus[0]] for stage in stages]
    demands = needs(problem, stages, period)
    lacking = [need - gpu.usable_bytes for need, gpu in zip(demands, gpus, strict=True)]
    worst = max(range(len(stages)), key=lambda stage: lacking[stage])
    return Infeasibility(
        scope=scope,
        proof=f"stage {worst} needs {demands[worst]} bytes with the fewest activations; " + PROOF,
        least_memory_bytes=gpus[worst].memory_bytes + lacking[worst],
        proven_memory_bytes=gpus[worst].memory_bytes + lacking[worst],
        gpu=stages[worst].gpus[0],
        wider="another allocation (--allocation contiguous)",
    )
