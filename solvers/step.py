"""The shortest step of m micro-batches with a flush.

Several allocations are tried: as few GPUs as fit, an even split, Next Fit, and those that the exact
contiguous dynamic programme finds at several steady periods, for the best steady plan need not be
the best for few micro-batches. Each is run by 1F1B* at its least period (stages that share a GPU by
the best pattern for k = 1), started as soon as possible, and scored by its makespan. Published
steps come before them, or behind if they take long. Where stages may lie anywhere, a compiled
annealing moves layers from GPU to GPU in a share of the time. Every plan that the solvers for the
steady state find is scored, too, with all that is allowed, in a share of the time. Then the order
of the best is searched and proven by the order model, with a last constraint: that all m end before
the next step begins. Where there are few allocations, so is that of every other one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from operator import itemgetter
from typing import Final

from schedopt.account import fits
from schedopt.errors import InputError
from schedopt.plan import Operation, Pattern, Plan, Transfer
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.simulation import Simulation, simulate
from schedopt.simulation.events import is_too_long
from schedopt.solvers.contiguous import prove_impossible as prove_no_stages
from schedopt.solvers.periodic import prove_impossible
from schedopt.solvers.placed_folds import PlacedFolds
from schedopt.solvers.step_allocations import list_allocations, steady_plan
from schedopt.solving.enumeration import every_allocation
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.models.bisection import bisect_period, query_model
from schedopt.solving.models.given_allocation import GivenAllocation
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.models.tasks import PatternSolution
from schedopt.solving.phases import search_phases
from schedopt.solving.replicas.layout import ITEM_S, LayoutTime, count_items
from schedopt.solving.requirements import refuse_unsupported, refuse_updates, require_stages
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.systems.steps import published_step, without_updates

MOST_TRIED: Final = 4
"""Allocations whose whole step is made, the most promising first."""
MOST_GUESSED: Final = 8000
"""Operations and transfers that tell about how long a step is."""
QUICK_S: Final = 0.2
"""A step that takes less is laid out at once, however many are."""
FIRST_S: Final = 5.0
"""One that takes less is laid out where somebody asks to stop and none is known."""
LONGEST_STEADY: Final = 2
"""The k up to which steady plans are looked for."""
SHARE_OF_PLACED: Final = 0.5
"""Of the time that is left, for layers that move from GPU to GPU."""
SHARE: Final = 0.5
"""Of the time that is left then, for steady plans."""
PUBLISHED: Final = ("one_f_one_b_flush", "interleaved", "zero_bubble")
"""Systems whose step has one GPU for each stage."""
SHARE_OF_PUBLISHED: Final = 0.1
"""Of the time, for each of them to come first; else they come behind steps of our own."""
MOST_PUBLISHED: Final = 4096
"""Micro-batches times GPUs up to which they are laid out."""
MOST_CHOICES: Final = 20_000
"""Pairs of operations that the search of the order takes on."""
MOST_ALLOCATIONS: Final = 1000
"""Allocations of which the order of each is searched."""
PROOF: Final = Proof(ProofKind.ORDERS_OF_STEP)
WAY: Final = Proof(ProofKind.STEP_OF_RESOURCE)


def solve(problem: Problem, run: Run) -> None:
    """Report the shortest step found: see `search`; layers move where stages may lie anywhere."""
    search(problem, run, moves=problem.scope.allocation == "general")


def search(problem: Problem, run: Run, *, moves: bool) -> None:
    """Report the shortest step found; layers move from GPU to GPU only if it is said.

    Raises
    ------
    InputError
        If no step is asked for, or a rule with updates is.
    """
    count = problem.scope.microbatches
    if count is None:
        raise InputError(
            "step needs a number of micro-batches",
            field="scope.microbatches",
            way_out="Give one (Scope.microbatches), or use another solver",
        )
    refuse_updates(problem, "step")
    steady = replace(problem, scope=replace(problem.scope, microbatches=None, period_ns=None))
    refuse_unsupported(steady, "step")
    if problem.scope.allocation == "fixed":
        require_stages(problem, "step")
        impossible = prove_impossible(problem, run)
        if impossible is not None:
            run.report_infeasible(impossible)
            return
    if moves:
        COMPILATIONS["flush_search"].start()
    published = _report_published(PUBLISHED, problem, count, run, SHARE_OF_PUBLISHED)
    plans: list[Plan] = []
    layout = LayoutTime()
    for stages in list_allocations(steady, run):
        plan = steady_plan(steady, stages, run)
        if plan is not None:
            plans.append(plan)
            if len(plans) == 1:
                _report_best(plans, problem, run, layout, QUICK_S)
        if run.stopped() and run.best() is not None and problem.scope.allocation != "fixed":
            return
    if not plans and problem.scope.allocation == "contiguous":
        for proof in prove_no_stages(steady, run):
            run.report_infeasible(proof)
        return
    _report_best(plans, problem, run, layout)
    _report_published(published, problem, count, run, 1.0)
    if moves and not run.settled():
        report_placed(problem, run)
    if not run.settled():
        _report_best(_found_steady(steady, count, run), problem, run, layout)
    best = run.best() or (plans[0] if plans else None)
    stages = problem.stages or (() if best is None else best.stages)
    if stages:
        _OrderSearch(problem, stages, count).run(run)
    if problem.scope.allocation != "fixed" and not (run.settled() or run.stopped()):
        _search_every_allocation(problem, count, run)


def _search_every_allocation(problem: Problem, count: int, run: Run) -> None:
    """Search the order of every allocation, if they are few, and report what that proves."""
    searches: list[_OrderSearch] = []
    for stages in every_allocation(problem, MOST_ALLOCATIONS) or ():
        if run.stopped():
            return
        searches.append(_OrderSearch(problem, stages, count))
    searches.sort(key=_OrderSearch.least)
    proven = [search.run(run) for search in searches if not run.stopped()]
    if not searches or run.stopped() or run.best() is None or problem.scope.recompute:
        return
    scope = replace(
        searches[0].proven,
        allocation=problem.scope.allocation,
        gpu_order="any" if problem.platform.uniform else problem.scope.gpu_order,
        memory="peak" if all(search.proven.memory == "peak" for search in searches) else "sum",
    )
    anywhere = problem.scope.allocation == "general"
    kind = ProofKind.ALLOCATIONS if anywhere else ProofKind.CONTIGUOUS_ALLOCATIONS
    run.report_bound(Fraction(min(proven), count), scope, Proof(kind))


def _report_published(
    names: Sequence[str], problem: Problem, count: int, run: Run, share: float
) -> Sequence[str]:
    """Report published steps, until one takes more than a share of the time; return the others."""
    gpus = problem.platform.gpus
    if problem.scope.allocation == "fixed" or count * len(gpus) > MOST_PUBLISHED:
        return ()
    needed_s = ITEM_S * count_items(len(gpus), count)
    for number, name in enumerate(names):
        left = run.remaining()
        if run.stopped() or (left is not None and needed_s > share * left):
            return names[number:]
        with suppress(InputError):
            step = published_step(name, problem.chain, problem.platform, count)
            run.report_if_valid(replace(step, scope=problem.scope))
    return ()


def report_placed(problem: Problem, run: Run) -> None:
    """Report the steps of layers that move from GPU to GPU, if what searches them is there."""
    compilation = COMPILATIONS["flush_search"]
    if compilation.is_under_way() or not compilation.wait(run, late=False):
        return
    chain = problem.chain
    plain = replace(chain, layers=tuple(map(without_updates, chain.layers)), copied=())
    placed = PlacedFolds(replace(problem, chain=plain), run)
    for plan in placed.propose(run, SHARE_OF_PLACED):
        if problem.scope.period_ns is None or plan.pattern.period <= problem.scope.period_ns:
            run.report_if_valid(replace(plan, chain=chain))


def _report_best(
    plans: Sequence[Plan], problem: Problem, run: Run, layout: LayoutTime, most_s: float = math.inf
) -> None:
    """Report the steps of the most promising steady plans, of those laid out within `most_s`.

    As far as there is time for that. Where nothing is known there is for one: that which takes
    least. A step that takes long is only laid out if it is likely to be the best.
    """
    count, asked = problem.scope.microbatches or 1, problem.scope.period_ns
    every = [
        (layout.needed_s(_count_items(plan, count)), length, plan)
        for length, plan in _by_length(plans, count, run)
    ]
    every = [one for one in every if one[0] <= most_s]
    # A step with too many events is refused, unless there are others.
    every = [one for one in every if not is_too_long(one[2].pattern, count)] or (
        every[:1] if run.best() is None else []
    )
    left_s = QUICK_S if run.clock.stop_requested() else run.remaining()
    chosen = [one for one in every if left_s is None or one[0] < left_s][:MOST_TRIED]
    if not chosen and run.best() is None:
        chosen = sorted(every, key=itemgetter(0))[:1]
    for needed_s, length, plan in chosen:
        best, left_s = run.best(), run.remaining()
        is_known, is_long = best is not None or asked is not None, needed_s > QUICK_S
        at_end_s = FIRST_S if run.needs_plan() else QUICK_S
        if (run.stopped() and is_known) or (run.clock.stop_requested() and needed_s > at_end_s):
            return
        if is_long and best is not None:
            has_time = left_s is None or needed_s < left_s
            if not has_time or length >= best.pattern.period_total_ns:
                continue
        with layout.measure(_count_items(plan, count)):
            _report(make_step(simulate(plan, count), problem), run)


def _by_length(plans: Sequence[Plan], count: int, run: Run) -> list[tuple[Fraction, Plan]]:
    """Return steady plans with about how long their steps are, ns, the shortest first."""
    if len(plans) == 1 and run.best() is None:
        return [(Fraction(0), plans[0])]
    found: list[tuple[Fraction, Plan]] = []
    for plan in plans:
        if found and run.stopped():
            break
        found.append((_guess(plan, count), plan))
    return sorted(found, key=itemgetter(0))


def _count_items(plan: Plan, count: int) -> int:
    """Return how many operations and transfers the step of a steady plan has."""
    return len(plan.pattern.items) * count // plan.pattern.k


def _found_steady(problem: Problem, count: int, run: Run) -> list[Plan]:
    """Return what the solvers for the steady state find, the first plan and each better one.

    Layers run apart there if they may in the end: no phase of a step is about that.
    """
    scope = replace(problem.scope, max_k=min(count, LONGEST_STEADY), grain=run.scope.grain)
    asked = replace(problem, scope=scope)
    return search_phases(asked, run.subrun(asked, SHARE))


def _guess(plan: Plan, count: int) -> Fraction:
    """Return about how long a step takes: a short one, and the period for each micro-batch more."""
    events = len(plan.pattern.items) // plan.pattern.k
    few = min(count, 8 * len(plan.stages), max(1, MOST_GUESSED // events))
    return simulate(plan, few).makespan_ns + (count - few) * plan.pattern.period


def _report(plan: Plan, run: Run) -> None:
    """Report a step that is as short as was asked for, and fits.

    A step of operations that take no time may hold more at one instant than the steady state.
    """
    asked = plan.scope.period_ns
    if asked is not None and plan.pattern.period_total_ns > asked * plan.pattern.k:
        return
    timeless = any(a.forward_ns == 0 and a.backward_ns == 0 for a in plan.chain.layers)
    if not (timeless or plan.scope.split_backward) or fits(plan, buffers=False):
        run.report(plan)


def make_step(simulation: Simulation, problem: Problem) -> Plan:
    """Return a simulated step as a plan: a pattern of all its micro-batches, without crossings."""
    count = simulation.microbatches
    # What takes no time may stand at the very end, which belongs to the next period.
    latest = max(event.start_ns for event in simulation.events)
    period = max(simulation.makespan_ns, latest + 1)
    placed = [
        replace(event.item, shift=event.first, start_ns=event.start_ns)
        for event in simulation.events
    ]
    pattern = Pattern(
        k=count,
        period_total_ns=period,
        operations=tuple(item for item in placed if isinstance(item, Operation)),
        transfers=tuple(item for item in placed if isinstance(item, Transfer)),
    )
    return Plan.answering(problem, simulation.plan.stages, pattern)


class _OrderSearch:
    """The shortest step of one allocation."""

    def __init__(self, problem: Problem, stages: Sequence[Stage], count: int) -> None:
        scope = replace(problem.scope, allocation="fixed")
        self.asked = problem
        self.problem = replace(problem, scope=scope, stages=tuple(stages))
        self.count = count
        free = problem.scope.allocation == "fixed" and scope.recompute
        self.pipeline = AllocatedPipeline(self.problem, free=free)
        self.proven = Scope(
            allocation="fixed",
            microbatches=count,
            max_k=None,
            gpu_order="any",
            memory=self.pipeline.proven_reading(),
            split_backward=problem.scope.split_backward,
            recompute=problem.scope.recompute,
        )

    def run(self, run: Run) -> int:
        """Look for shorter and shorter steps than the best, until there is none.

        Returns
        -------
        int
            What no step of this allocation is below, or the best of all if that is shorter, ns.
        """
        given = self.asked.scope.allocation == "fixed"
        low = self.least()
        if given:
            run.report_bound(Fraction(low, self.count), self.proven, WAY)
        best = run.best()
        caps = sum(stash.most_in_flight(self.count, flush=True) for stash in self.pipeline.stashes)
        if self.count * caps**2 > MOST_CHOICES:
            return low
        if best is not None:
            high = best.pattern.period_total_ns
        else:
            # One micro-batch after the other, each at an instant of its own.
            high = self.count * (self.pipeline.whole_ns + 1)
        if self.asked.scope.period_ns is not None:
            high = min(high, self.count * self.asked.scope.period_ns)
        ask = partial(self._ask, run)
        for least, answer in bisect_period(low, high, ask, run, known=best is not None):
            if answer is not None:
                _report(self.plan(answer), run)
            elif given:
                run.report_bound(Fraction(least, self.count), self.proven, PROOF)
            low = least
        return low

    def _ask(self, run: Run, period: int) -> PatternSolution | None:
        model = OrderModel(GivenAllocation(self.pipeline), self.count, period, flush=True)
        return query_model(model, None, run)

    def least(self) -> int:
        """Return a makespan that no order beats: to a resource, all work on it, and back."""
        best = max(1, self.count * self.pipeline.load_ns)
        if self.problem.scope.split_backward or self.pipeline.has_recompute:
            return best
        known: dict[tuple[object, ...], tuple[int, int, int]] = {}
        behind = 0
        for task in self.pipeline.path:
            for resource in set(task.resources):
                ahead, work, _ = known.get(resource, (behind, 0, 0))
                known[resource] = ahead, work + task.length_ns, behind + task.length_ns
            behind += task.length_ns
        for ahead, work, until in known.values():
            best = max(best, ahead + self.count * work + behind - until)
        return max(best, self.pipeline.whole_ns)

    def plan(self, answer: PatternSolution) -> Plan:
        """Return the plan of an answer."""
        stages = answer.stages or self.problem.stages
        return Plan.answering(self.asked, stages, self.pipeline.pattern(answer))
