"""A bound on any allocation, and allocations to start from: CP-SAT decides a relaxation.

Counts, spans and sums are kept, orders are left out (`schedopt.solving.relaxation`). A period that
is impossible there, or even if GPUs may hold parts of what fits them
(`schedopt.solving.packing_columns`), is a bound for every allocation, and for every k where nothing
is counted at instants (`schedopt.bounds.instants`). So is one at which these parts must have an
order on their GPU (`schedopt.solving.one_gpu`); and, where GPUs have few layers, one at which no
allocation has orders on all of them that agree (`schedopt.solvers.joint_orders`): both for k up to
2. Periods are asked about between the bound and the best plan, each time with limited work, which
does not depend on what else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from numpy.random import default_rng

from schedopt.bounds.amounts import Amounts
from schedopt.bounds.load import load_bound, one_after_the_other_ns
from schedopt.bounds.propagation import ForcedWork, is_propagated, proof_of, propagate
from schedopt.bounds.scopes import period_below, period_between, refuted_bound
from schedopt.interrupts import Stopped, raise_if_stopped
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind, Suggestion
from schedopt.result import Infeasibility
from schedopt.solvers.joint_orders import (
    QUICK_SETS,
    are_few_sets,
    find_joint,
    is_busy,
    rooms_of_orders,
    shorten,
)
from schedopt.solvers.ordered_columns import OrderedColumns
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.run import Run
from schedopt.stage import Stage

if TYPE_CHECKING:
    from schedopt.solving.fitting_instants import FittingInstants
    from schedopt.solving.packing_columns import Flags

Refutes = Callable[[ForcedWork], bool]
Question = tuple[Fraction, Refutes]
PROOF: Final = Proof(ProofKind.RELAXATION)
BY_ORDERS: Final = Proof(ProofKind.ORDERS_OF_GPUS)
BY_ALLOCATIONS: Final = Proof(ProofKind.ORDERS_OF_ALLOCATIONS)
MOST_PLACES: Final = 3000
"""Layers times GPUs: no more are looked at."""
FIRST_WORK: Final = 0.2
"""Work on each question in the first round, in the unit of `solve_model`."""
PACK_WORK: Final = 0.6
"""That on each period that is packed, at least."""
JOIN_WORK: Final = 3.0
"""That on each period at which what all GPUs hold is looked at, in the first round."""
WHOLE_WORK: Final = 20.0
"""The same for k = 1 where whole allocations are looked at, and that is not quick."""
GROWTH: Final = 2
"""Growth factor of the work per round."""
ROUNDS: Final = 5
LATE: Final = 2
"""Rounds after which what looks at orders is worth compiling beside."""
FIRST_STEP: Final = Fraction(1, 100)
"""By how much longer a period is than the bound that is asked about first."""
LARGEST: Final = 1 << 22
"""What periods and memories become about at most, so that models may be simplified."""
COARSE: Final = 3
"""Where a period has no answer, and less than this part (1 / COARSE) of the gap to the best plan is
left below it, the rest waits for the next round: most is gained where most is open."""
MOST_OPEN: Final = 2
"""Periods without an answer after which a climb ends."""
MOST_LONGER: Final = 3
"""Periods that are asked about in a round only to find an allocation."""


def solve(problem: Problem, run: Run) -> None:
    """Report bounds for any allocation; no plans.

    Nothing is reported with updates, or for more than `MOST_PLACES` layers times GPUs.
    """
    for _ in relaxed_allocations(problem, run):
        pass


def relaxed_allocations(
    problem: Problem, run: Run, *, with_plans: bool = False
) -> Iterator[tuple[Stage, ...]]:
    """Yield an allocation for each period that the relaxation allows, and report those it refutes.

    For the latter, and where nothing was found, an empty one is yielded. Periods lie between the
    bound of the run and its best plan. What is yielded need not have a plan of that period; it
    names what it recomputes. `with_plans`: those are reported that come with orders that agree.
    """
    places = len(problem.chain.layers) * len(problem.platform.gpus)
    if places > MOST_PLACES or not is_propagated(problem):
        return
    search = _Search(problem, run, with_plans)
    with suppress(Stopped):
        for period, refutes in search.questions():
            raise_if_stopped(run.stopped)
            yield search.ask(period, refutes)
    if search.is_open and (run.stopped() or not search.is_first):
        search.compile()


class _Search:
    """Which periods are asked about: in rounds, with more work on each question in each round.

    A period T is refuted by what it forces, by columns, or by CP-SAT. What that takes differs a
    hundredfold, also with the seed, and a longer period may take less. So all are asked with as
    little work at first, and what none refutes is asked again with `GROWTH` times as much and
    another seed. In a round T climbs from the bound on, where columns say the most; what is open
    then is halved by CP-SAT, which shows the instants that matter; and with these T climbs again.

    Attributes
    ----------
    low, fits : Fraction
        Refuted; and not refuted whatever the work, or of the best plan, ns.
    packed, unpacked : Fraction
        Not refuted by columns whatever the work, or not looked at; and left open by them in this
        round, ns.
    ordered, joined : Fraction
        As `packed`, by columns that have an order, and by whole allocations, ns.
    columns : list of array of bool, shape (layers,)
        Those of the last period that was packed.
    ordered_columns : OrderedColumns
        Likewise, of columns that have an order.
    round, work : int, float
        Of this round: its number, and the work on each question.
    is_open : bool
        Whether some period was not answered in this round.
    is_first : bool
        Whether the local search is compiled meanwhile: nothing else is, until the run ends.
    draw : numpy.random.Generator
        Of walks over allocations, so that none repeats another.
    start, found : tuple of Stage
        The last allocation that the relaxation allows, or that of a plan; that of the last answer.
    instants : FittingInstants or None
        Those of the last model, which often matter for the next one, too.
    """

    def __init__(self, problem: Problem, run: Run, with_plans: bool) -> None:
        self.problem, self.run, self.with_plans = problem, run, with_plans
        self.amounts = Amounts(problem, LARGEST)
        self.low = period_below(max(load_bound(problem).period, Fraction(1)), problem.scope)
        self.longest = one_after_the_other_ns(problem)
        self.start = () if (best := run.best()) is None else best.stages
        self.found: tuple[Stage, ...] = ()
        self.fits = self.packed = self.unpacked = run.period() or self.longest
        self.ordered = self.joined = self.fits
        self.columns: list[Flags] = []
        self.ordered_columns = OrderedColumns(run)
        self.joint_columns: list[Flags] = []
        self.impossible = self.looks_at_all = False
        self.instants: FittingInstants | None = None
        self.round, self.work, self.is_open = 0, FIRST_WORK, False
        self.is_first = COMPILATIONS["local_search"].is_under_way()
        self.draw = default_rng(run.seed)

    def questions(self) -> Iterator[Question]:
        """Yield periods with what may refute them, round by round, until all is answered.

        Without a plan that of one micro-batch after the other comes first. Columns say nothing with
        recompute: where it was tried it took seconds and refuted little.
        """
        scope = self.problem.scope
        for self.round in range(ROUNDS):
            self.work, self.is_open = FIRST_WORK * GROWTH**self.round, False
            self.unpacked = self.packed
            if self.run.best() is None and not self.start:
                yield self.longest, self._relax
            if self.impossible:
                return
            if not self.round:
                yield from self.force()
            rooms = [room for room in rooms_of_orders(self.problem) if COMPILATIONS[room].is_kept()]
            looks_nearby = "all_gpus" in rooms and self.with_plans and scope.max_k == 1
            is_quick = are_few_sets(self.problem, QUICK_SETS)
            is_worth = is_quick or not is_busy(self.problem, self.run)
            self.looks_at_all = "all_gpus" in rooms and is_worth
            if looks_nearby and not is_quick:
                yield from self.look_nearby()
            if not scope.recompute:
                yield from self.climb(self._pack)
            if self.round >= LATE and not self.is_first:
                self.compile()
            if self.looks_at_all:
                most_open = MOST_OPEN if are_few_sets(self.problem) else 1
                yield from self.climb(self._join, most_open, longer=2 if is_quick else 1)
            if looks_nearby and is_quick:
                yield from self.look_nearby()
            if "one_gpu" in rooms and not (self.looks_at_all and scope.max_k == 1):
                yield from self.climb(self._order, most_open=1)
            yield from self.halve()
            yield from self.climb(self._relax)
            if not self.is_open:
                return

    def look_nearby(self) -> Iterator[Question]:
        """Yield periods below that of the best plan, with what looks for allocations near it."""
        yield from shorten(self.problem, self.amounts, self.run, GROWTH * self.work, self.draw)

    def force(self) -> Iterator[Question]:
        """Yield periods in the middle of what is open to what they force alone, which is quick."""
        self._catch_up()
        high = self.fits
        while (period := period_between(self.low, high, self.problem.scope)) is not None:
            yield period, lambda _forced: False
            if period > self.low:
                high = period

    def halve(self) -> Iterator[Question]:
        """Yield periods in the middle of what is open, and at last one below the best plan.

        After one without an allocation a longer one comes in the first round, as a start.
        """
        scope, high, longer = self.problem.scope, self.fits, set[Fraction]()
        while True:
            self._catch_up()
            high = min(high, self.fits) if high > self.low else self.fits
            far = COARSE * (high - self.low) < self.fits - self.low
            if far and self.is_open and self.round < ROUNDS - 1:
                return
            if (period := period_between(self.low, high, scope)) is None:
                break
            yield period, self._relax
            high = period
            if self.round or len(longer) == MOST_LONGER:
                continue
            if self.low < period < self.fits and not self.found:
                other = period_between(high, self.fits, scope)
                if other is not None and other not in longer:
                    longer.add(other)
                    yield other, self._relax
        best = self.run.period()
        if best is not None and high == best and self.low < (last := period_below(best, scope)):
            yield last, self._relax

    def climb(
        self, refutes: Refutes, most_open: int = MOST_OPEN, longer: int = 2
    ) -> Iterator[Question]:
        """Yield periods from the bound on; steps get `longer` after what is refuted, else halved.

        What all GPUs hold takes much longer to answer where a period is a little longer.
        """
        left, step = most_open, FIRST_STEP
        while left:
            self._catch_up()
            high = min(self._top(refutes), self.low * (1 + 2 * step))
            if (period := period_between(self.low, high, self.problem.scope)) is None:
                return
            yield period, refutes
            step = step * longer if period <= self.low else (period / self.low - 1) / 2
            left -= self.low < period < self._top(refutes)

    def ask(self, period: Fraction, refutes: Refutes) -> tuple[Stage, ...]:
        """Return an allocation that the relaxation allows, or may allow; none if it is refuted."""
        self.found, amounts = (), self.amounts
        if self._asks_for_any(period):
            alone = replace(self.problem.scope, max_k=1, microbatches=None)
            amounts = Amounts(replace(self.problem, scope=alone), LARGEST)
        forced = propagate(amounts, period, stopped=self.run.stopped)
        if forced is None:
            self._refute(period, proof_of(amounts.problem.scope))
        elif refutes(forced):
            known: dict[Refutes, Proof] = {self._order: BY_ORDERS, self._join: BY_ALLOCATIONS}
            self._refute(period, known.get(refutes, PROOF))
        return self.found

    def _pack(self, forced: ForcedWork) -> bool:
        """Whether GPUs cannot even hold all layers in parts; CP-SAT says what columns leave open.

        For longer periods it is then asked at once in this round.
        """
        from schedopt.solving.packing_columns import GpuLimits, PackingColumns

        if forced.scaled.period >= self.unpacked:
            return not self.looks_at_all and self._relax(forced)
        limits = GpuLimits.of(forced)
        if not limits.are_few():
            self.packed = self.low
            return False
        gpus = len(self.problem.platform.gpus)
        columns = PackingColumns(limits, gpus, self.run, self.columns)
        may_pack = columns.may_hold_all(max(PACK_WORK, self.work))
        self.columns = columns.columns
        if may_pack is None:
            self.unpacked = forced.scaled.period
            self.is_open = True
            return not self.looks_at_all and self._relax(forced)
        if may_pack:
            self.packed = forced.scaled.period
        return not may_pack

    def _order(self, forced: ForcedWork) -> bool:
        """Whether GPUs cannot hold all layers in parts, those of each with an order there."""
        from schedopt.solving.packing_columns import GpuLimits

        if forced.instants is None or not GpuLimits.of(forced).are_few():
            self.ordered = self.low
            return False
        most_work = max(PACK_WORK, GROWTH * self.work)
        may_pack = self.ordered_columns.may_hold_all(forced, most_work)
        if may_pack is None:
            self.is_open = True
        elif may_pack:
            self.ordered = forced.scaled.period
        return may_pack is False

    def _join(self, forced: ForcedWork) -> bool:
        """Whether no allocation has orders that agree; layers of one are columns with an order."""
        most_work, known = self._join_work() * GROWTH**self.round, self.joint_columns
        with_plan = self.with_plans
        found = find_joint(self.problem, forced, self.run, most_work, known, with_plan=with_plan)
        if found is None:
            self.is_open = True
        elif found:
            self.joined = self.ordered = self.packed = forced.scaled.period
            self.found = found
        return found == ()

    def _join_work(self) -> float:
        """Return the work of the first round on what all GPUs hold."""
        is_quick = self.problem.scope.max_k != 1 or are_few_sets(self.problem, QUICK_SETS)
        return WHOLE_WORK if are_few_sets(self.problem) and not is_quick else JOIN_WORK

    def compile(self) -> None:
        """Begin to compile what looks at orders, for later rounds or the next solve."""
        for room in rooms_of_orders(self.problem):
            COMPILATIONS[room].start()

    def _relax(self, forced: ForcedWork) -> bool:
        """Whether CP-SAT refutes a period; what it finds is a start."""
        from ortools.sat.python import cp_model

        from schedopt.solving.relaxation import RelaxationModel, decide

        model = RelaxationModel(forced)
        model.chosen.hint(self.start)
        if model.instants is not None:
            if self.instants is not None:
                model.instants.recall(self.instants)
            self.instants = model.instants
        status, self.found = decide(model, self.run, self.work, self.run.seed + self.round)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.fits = min(self.fits, forced.scaled.period)
            self.start = self.found
        elif status != cp_model.INFEASIBLE:
            self.is_open = True
        return bool(status == cp_model.INFEASIBLE)

    def _top(self, refutes: Refutes) -> Fraction:
        """Return a period from which on all is answered, or need not be."""
        tops: dict[Refutes, Fraction] = {
            self._pack: self.packed,
            self._order: self.ordered,
            self._join: self.joined,
        }
        return min(self.fits, tops.get(refutes, self.fits))

    def _catch_up(self) -> None:
        """Learn of the bounds and plans that others have found."""
        known, best = self.run.bound(self.problem.scope), self.run.period()
        if known is not None:
            self.low = max(self.low, period_below(known, self.problem.scope))
        if best is not None:
            self.fits = min(self.fits, best)

    def _asks_for_any(self, period: Fraction) -> bool:
        """Whether the answer to a period is whether there is any plan at all."""
        return self.run.best() is None and period == self.longest

    def _refute(self, period: Fraction, proof: Proof) -> None:
        self.found = ()
        bound = refuted_bound(self.problem, period, proof)
        if self._asks_for_any(period):
            scope = replace(bound.scope, max_k=None, microbatches=None)
            self.impossible = True
            self.run.report_infeasible(
                Infeasibility(
                    scope=scope,
                    proof=Proof(ProofKind.NO_MEMORY_FOR_ONE, basis=proof),
                    wider=(Suggestion.RECOMPUTE, Suggestion.MORE_MEMORY, Suggestion.MORE_GPUS),
                )
            )
            return
        self.low = max(self.low, period)
        self.run.report_bound(bound.period, bound.scope, bound.proof)
