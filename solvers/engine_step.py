"""The shortest step that an engine with an order of its own can run.

What is left to choose is where to cut, on how many of the GPUs, and how many stages each has. Of
each such cut a bound is known without laying out the step: the way to a GPU, all its work, and the
way back. Cuts that cannot beat the best step so far, or whose memory cannot suffice, are left out;
the others are laid out, the most promising first. Transfers are in the order in which they could
go. Where the two directions of a link are in each other's way, or a step does not fit for what
comes before it is read, another order might be better: then the bound is what the step would take
if no transfer were in the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import Final

from schedopt.account import fits
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.simulation.delaying import delay_transfers
from schedopt.solving.engine_cuts import EngineCuts, FirstLayers
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.run import Run
from schedopt.solving.suggestions import suggest
from schedopt.systems.steps import engine_step

MOST_CUTS: Final = 20_000
"""Cuts of one shape that are compared by their bounds; of longer chains only neighbours are."""


def solve(problem: Problem, run: Run) -> None:
    """Report the shortest step found, and its proof where no cut is left.

    Raises
    ------
    InputError
        If no engine is asked for, or there is a rule with updates.
    """
    scope = problem.scope
    if scope.engine is None:
        raise InputError(
            "engine_step needs an engine",
            field="solver",
            way_out="Name one (Scope.engine), or use another solver",
        )
    if scope.allocation == "fixed":
        raise InputError(
            "engine_step chooses the stages itself",
            field="scope.allocation",
            way_out="Leave the stages out",
        )
    if not problem.rule.is_given:
        raise InputError(
            "engine_step takes weight_bytes as all that a flush needs",
            field="rule",
            way_out="Leave the rule out",
        )
    _Search(problem, run).run_all()


class _Search:
    """The best step so far, and what may still beat it."""

    def __init__(self, problem: Problem, run: Run) -> None:
        assert problem.scope.microbatches is not None
        assert problem.scope.engine is not None
        self.problem, self.run = problem, run
        self.count = problem.scope.microbatches
        self.seen: set[tuple[int, FirstLayers]] = set()
        # A step of this length or more is of no use.
        asked = problem.scope.period_ns
        self.limit = None if asked is None else asked * self.count + 1
        if (known := run.best()) is not None:
            self.limit = known.pattern.period_total_ns
        # The least that another order of transfers might give of a cut that was laid out.
        self.open: int | None = None

    def run_all(self) -> None:
        """Look at every shape: first near a balanced cut, then everywhere."""
        shapes = list(self._shapes())
        for cuts in shapes:
            # Even what is known of a long step takes time, and without a plan there is no answer.
            if self.run.stopped() and self.limit is not None:
                break
            self._descend(cuts)
        whole = True
        for cuts in shapes:
            if self.run.stopped():
                whole = False
                break
            whole = self._compare_all(cuts) and whole
        if not whole:
            self.run.leave_out("not every cut was looked at")
            return
        if not self.problem.platform.uniform:
            self.run.leave_out("only the first GPUs were looked at, in the given order")
            return
        scope, best = self.problem.scope, self.run.best()
        if best is not None:
            length = best.pattern.period_total_ns
            least = length if self.open is None else min(length, self.open)
            self.run.report_bound(
                Fraction(least, self.count),
                scope,
                Proof(ProofKind.ENGINE_CUTS, engine=scope.engine),
            )
        elif self.open is not None:
            self.run.leave_out("another order of transfers might be as short as asked")
        else:
            none_fits, short = ProofKind.NO_ENGINE_CUT, ProofKind.NO_SHORT_ENGINE_CUT
            proof = Proof(none_fits if scope.period_ns is None else short, engine=scope.engine)
            self.run.report_infeasible(
                Infeasibility(scope=scope, proof=proof, wider=suggest(self.problem))
            )

    def _shapes(self) -> Iterator[EngineCuts]:
        """Yield the numbers of GPUs and of stages a GPU, those with all GPUs first."""
        most = len(self.problem.platform.gpus)
        several = (
            self.problem.scope.engine == "megatron" and self.problem.scope.allocation == "general"
        )
        for ranks in range(most, 0, -1):
            chunks = 1
            while (cuts := EngineCuts(self.problem, ranks, chunks)).exist:
                yield cuts
                chunks += 1
                if not several or ranks == 1 or self.count % ranks:
                    break

    def _descend(self, cuts: EngineCuts) -> None:
        """Go from a balanced cut to better neighbours, as long as there are any."""
        here = cuts.balanced()
        length = cuts.schedule_bound(here) if cuts.may_fit(here) else None
        better = True
        while better and not self.run.stopped():
            better = False
            for other in sorted(cuts.neighbours(here), key=cuts.bound):
                if (length is None or cuts.bound(other) < length) and cuts.may_fit(other):
                    other_length = cuts.schedule_bound(other)
                    if length is None or other_length < length:
                        here, length, better = other, other_length, True
                        break
        self._try(cuts, here)

    def _compare_all(self, cuts: EngineCuts) -> bool:
        """Lay out all cuts that may be better; return whether none is left."""
        candidates = list(islice(cuts.promising(self.limit, self.run.stopped), MOST_CUTS + 1))
        whole = len(candidates) <= MOST_CUTS and not self.run.stopped()
        for begins in sorted(candidates, key=cuts.bound):
            if self.run.stopped():
                return False
            self._try(cuts, begins)
        return whole

    def _try(self, cuts: EngineCuts, begins: FirstLayers) -> None:
        """Lay out a step, once, and report it if it is better and fits."""
        if (cuts.ranks, begins) in self.seen or (self.run.stopped() and self.limit is not None):
            return
        if self._is_late(cuts.bound(begins)) or not cuts.may_fit(begins):
            return
        least = cuts.schedule_bound(begins)
        if self._is_late(least):
            return
        self.seen.add((cuts.ranks, begins))
        plan = delay_transfers(engine_step(self.problem, cuts.stages(begins)))
        length = plan.pattern.period_total_ns
        if not fits(plan, buffers=False):
            return
        has_room = fits(plan) or not check_sent_late(plan)[1]
        if least < length or not has_room:
            self.open = least if self.open is None else min(self.open, least)
        if has_room and not self._is_late(length):
            self.run.report(plan)
            self.limit = length

    def _is_late(self, length: int) -> bool:
        """Whether a step of a length is of no use."""
        return self.limit is not None and length >= self.limit
