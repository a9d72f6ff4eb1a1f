"""What the run of a benchmark may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schedopt.chain import Chain
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.solving import solve
from schedopt.stage import Stage


@dataclass(frozen=True)
class Effort:
    """What a run may take.

    Parameters
    ----------
    workers : int
        Threads of the solver.
    time_limit : float
        Seconds.
    seed : int
        For solvers that draw.
    """

    workers: int
    time_limit: float
    seed: int = 0

    def solve(
        self,
        chain: Chain,
        platform: Platform,
        *,
        scope: Scope,
        solver: str | None = None,
        stages: Sequence[Stage] = (),
        initial: Plan | None = None,
    ) -> Result:
        """Solve with this effort; without a solver, by what the scope calls for."""
        return solve(
            chain,
            platform,
            stages=stages,
            scope=scope,
            solver=solver,
            workers=self.workers,
            time_limit=self.time_limit,
            seed=self.seed,
            initial=initial,
        )
