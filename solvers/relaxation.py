"""A bound on any allocation, and allocations to start from: CP-SAT decides a relaxation.

Counts, spans and sums are kept, orders are left out (`schedopt.solving.relaxation`). A period that
is impossible there, or even if GPUs may hold parts of what fits them
(`schedopt.solving.packing_columns`), is a bound for every allocation, and for every k where nothing
is counted at instants (`schedopt.bounds.instants`). It is bisected between the bound and the best
plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from time import monotonic
from typing import TYPE_CHECKING, Final

from schedopt.bounds.amounts import Amounts
from schedopt.bounds.load import load_bound
from schedopt.bounds.propagation import is_propagated, proof_of, propagate
from schedopt.bounds.scopes import period_below, period_between, refuted_bound
from schedopt.interrupts import Stopped
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind, Suggestion
from schedopt.result import Infeasibility
from schedopt.solving.cp_sat import solve_model
from schedopt.solving.run import Run
from schedopt.stage import Stage

if TYPE_CHECKING:
    from schedopt.solving.fitting_instants import FittingInstants
    from schedopt.solving.packing_columns import Flags
    from schedopt.solving.relaxation import RelaxationModel

PROOF: Final = Proof(ProofKind.RELAXATION)
MOST_PLACES: Final = 3000
"""Layers times GPUs: no more are looked at."""
FIRST_LIMIT_S: Final = 0.4
LAST_LIMIT_S: Final = 6.0
"""Time limits of a query: at first, and when all that was quick is answered."""
PACK_S: Final = 2.0
"""Time limit at first of a period that is packed."""
FIRST_STEP: Final = Fraction(1, 100)
"""By how much longer a period is than the bound that is packed first."""
CLOSE: Final = Fraction(201, 200)
"""How much longer a period is at most that may be packed than one that may not, at the end."""
TIME_GROWTH: Final = 4
"""Growth factor of the time limit per retry."""
LARGEST: Final = 1 << 22
"""What periods and memories become about at most, so that models may be simplified."""
COARSE: Final = 3
"""Where a period has no answer, and less than this part (1 / COARSE) of the gap to the best plan is
left below it, there is more time for each at once: most is gained where most is open."""
MOST_HARD: Final = 2
"""Periods that are packed each time although there is no answer."""
MOST_LOST: Final = 3
"""Give up on an allocation after this many inconclusive queries."""


def solve(problem: Problem, run: Run) -> None:
    """Report bounds for any allocation; no plans.

    Nothing is reported with updates, or for more than `MOST_PLACES` layers times GPUs.
    """
    for _ in relaxed_allocations(problem, run):
        pass


def relaxed_allocations(problem: Problem, run: Run) -> Iterator[tuple[Stage, ...]]:
    """Yield an allocation for each period that the relaxation allows, and report those it refutes.

    For the latter, and where nothing was found in time, an empty one is yielded. Periods are
    bisected between the bound of the run and its best plan. What is yielded need not have a plan of
    that period; it names what it recomputes.
    """
    places = len(problem.chain.layers) * len(problem.platform.gpus)
    if places > MOST_PLACES or not is_propagated(problem):
        return
    search = _Search(problem, run)
    with suppress(Stopped):
        is_more = True
        while is_more:
            for _ in search.pack():
                yield ()
            while (period := search.next_period()) is not None and not run.stopped():
                yield search.ask(period)
            is_more = not run.stopped() and search.take_more_time()


def one_after_the_other_ns(problem: Problem) -> Fraction:
    """Return a period that is possible on any allocation on which there is a plan at all, ns.

    One micro-batch after the other, and its operations in the order that they have in the plan,
    hold no more than the plan does.
    """
    platform, layers = problem.platform, problem.chain.layers
    slowest = min(platform.gpus, key=lambda gpu: gpu.speed)
    total = 0
    for layer in layers:
        halves = (layer.backward_input_ns, layer.backward_weight_ns)
        backs = [layer.backward_ns, *(half or 0 for half in halves)]
        total += 2 * slowest.duration_ns(layer.forward_ns) + sum(map(slowest.duration_ns, backs))
        total += 2 * platform.longest_transfer_ns(layer.activation_bytes)
    return Fraction(max(1, total))


def decide(model: RelaxationModel, run: Run, most_s: float) -> tuple[int, tuple[Stage, ...]]:
    """Return what CP-SAT says within `most_s` seconds, and the last allocation that it found.

    Instants at which an allocation does not fit are added until one does.
    """
    from ortools.sat.python import cp_model

    found: tuple[Stage, ...] = ()
    while True:
        begin = monotonic()
        status, solver = solve_model(model.model, run, most_s=most_s, simplify=True)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return status, found
        found = model.chosen.stages(solver)
        if not model.add_violated(solver):
            return status, found
        model.chosen.hint(found)
        most_s = max(0.0, most_s - (monotonic() - begin))


def one_by_one(problem: Problem) -> Problem:
    """Return the problem for one micro-batch after the other: see `one_after_the_other_ns`."""
    return replace(problem, scope=replace(problem.scope, max_k=1, microbatches=None))


class _Search:
    """The bisection, with little time for each period at first, and then again with more.

    After a first question without an answer a longer period is asked for, if there is no allocation
    to start from, until `MOST_LOST` of these have none either. Then shorter ones, until there is
    more time for all that were not answered: see `COARSE`.

    Attributes
    ----------
    low, high, fits : Fraction
        Refuted; not refuted, or not known; and not refuted, ns.
    packed : Fraction
        Not refuted by columns, or not looked at, ns.
    columns : list of array of bool, shape (layers,)
        Those of the last period that was packed.
    patience_s : float
        Seconds for each period, by now.
    is_open : bool
        Whether some period was not answered in that time.
    instants : FittingInstants or None
        Those of the last model, which often matter for the next one, too.
    """

    def __init__(self, problem: Problem, run: Run) -> None:
        self.problem, self.run = problem, run
        self.amounts = Amounts(problem, LARGEST)
        self.low = period_below(max(load_bound(problem).period, Fraction(1)), problem.scope)
        self.longest = one_after_the_other_ns(problem)
        best = run.best()
        self.start = () if best is None else best.stages
        self.high = self.fits = self.packed = run.period() or self.longest
        self.columns: list[Flags] = []
        self.asked: set[Fraction] = set()
        self.seeking, self.lost = False, 0
        self.impossible = False
        self.instants: FittingInstants | None = None
        self.patience_s, self.is_open = FIRST_LIMIT_S, False

    def pack(self) -> Iterator[Fraction]:
        """Refute periods at which GPUs cannot even hold all layers in parts; yield each period.

        That takes little time, also where CP-SAT says nothing of whole layers. Steps from the bound
        on are doubled, until one is not refuted; then what is left is bisected. What has no answer
        now is asked again when there is more time. Nothing is said with recompute: where it was
        tried it took seconds and refuted little.
        """
        scope = self.problem.scope
        if scope.recompute:
            return
        high, step, lost = min(self.packed, self.fits), FIRST_STEP, 0
        while not self.run.stopped() and lost < MOST_HARD:
            known = self.run.bound(scope)
            if known is not None:
                self._raise_low(period_below(known, scope))
            period = period_between(self.low, min(high, self.low * (1 + 2 * step)), scope)
            if period is None or high <= CLOSE * self.low:
                return
            may_pack = self._may_pack(period)
            if may_pack is False:
                step *= 2
            else:
                high = min(period, self.packed)
                lost += may_pack is None
            yield period

    def _may_pack(self, period: Fraction) -> bool | None:
        """Whether GPUs may hold all layers in parts; None if that is not known in time."""
        from schedopt.solving.packing_columns import GpuLimits, PackingColumns

        forced = propagate(self.amounts, period, stopped=self.run.stopped)
        if forced is None:
            self._refute(period, proof_of(self.problem.scope))
            return False
        gpus = len(self.problem.platform.gpus)
        limits = GpuLimits.of(forced)
        if not limits.are_few():
            self.packed = self.low
            return None
        columns = PackingColumns(limits, gpus, self.run, self.columns)
        may_pack = columns.may_hold_all(max(PACK_S, self.patience_s))
        self.columns = columns.columns
        if may_pack is False:
            self._refute(period, PROOF)
        elif may_pack:
            self.packed = period
        return may_pack

    def take_more_time(self) -> bool:
        """Have more time for each period, if some were not answered; False: there is no more."""
        if not self.is_open or self.patience_s >= LAST_LIMIT_S:
            return False
        self.patience_s = min(LAST_LIMIT_S, TIME_GROWTH * self.patience_s)
        self.is_open, self.seeking, self.lost = False, False, 0
        self.high = self.fits
        self.asked.clear()
        return True

    def next_period(self) -> Fraction | None:
        """Return the period to look at next within the time limit by now; None at the end.

        Without a plan that of one micro-batch after the other comes first, and at last whether
        the best plan can be beaten.
        """
        best, scope = self.run.period(), self.problem.scope
        if self.impossible:
            return None
        known = self.run.bound(scope)
        if known is not None:
            self._raise_low(period_below(known, scope))
        if best is not None:
            self.high, self.fits = min(self.high, best), min(self.fits, best)
        elif not self.asked:
            return self.high
        if self.seeking and self.lost < MOST_LOST:
            self.seeking = False
            longer = period_between(self.high, self.fits, scope)
            if longer is not None and longer not in self.asked:
                return longer
        waits = self.is_open and self.patience_s < LAST_LIMIT_S
        if waits and COARSE * (self.high - self.low) < self.fits - self.low:
            return None
        period = period_between(self.low, self.high, scope)
        if period is None and self.high == best:
            last = period_below(best, scope)
            period = last if self.low < last < best else None
        return None if period in self.asked else period

    def ask(self, period: Fraction) -> tuple[Stage, ...]:
        """Return an allocation that the relaxation allows, or may allow; none if it is refuted."""
        from ortools.sat.python import cp_model

        from schedopt.solving.relaxation import RelaxationModel

        self.asked.add(period)
        amounts = self.amounts
        if self._asks_for_any(period):
            amounts = Amounts(one_by_one(self.problem), LARGEST)
        forced = propagate(amounts, period, stopped=self.run.stopped)
        if forced is None:
            self._refute(period, proof_of(amounts.problem.scope))
            return ()
        model = RelaxationModel(forced)
        model.chosen.hint(self.start)
        if model.instants is not None:
            if self.instants is not None:
                model.instants.recall(self.instants)
            self.instants = model.instants
        status, found = decide(model, self.run, self.patience_s)
        if status == cp_model.INFEASIBLE:
            self._refute(period, PROOF)
            return ()
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.is_open = True
            self.lost += period > self.high
            self.seeking = not found and self.patience_s == FIRST_LIMIT_S
            self.high = min(self.high, period)
            return found
        self.fits = min(self.fits, period)
        self.high = min(self.high, period)
        self.start = found
        return found

    def _raise_low(self, refuted: Fraction) -> None:
        self.low = max(self.low, refuted)
        if self.low >= self.high:
            self.high = self.fits

    def _asks_for_any(self, period: Fraction) -> bool:
        """Whether the answer to a period is whether there is any plan at all."""
        return self.run.best() is None and period == self.longest

    def _refute(self, period: Fraction, proof: Proof) -> None:
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
        self._raise_low(period)
        self.run.report_bound(bound.period, bound.scope, bound.proof)
