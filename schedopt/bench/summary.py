"""What many runs say together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from statistics import geometric_mean, median
from typing import TypeVar

from schedopt.bench.best_known import BestKnown
from schedopt.bench.cases import OWN
from schedopt.bench.contenders import OURS, RIVALS
from schedopt.bench.records import InstanceKey, Record

Key = TypeVar("Key")
Best = dict[InstanceKey, Fraction]
"""The least period that is known of each instance, ns."""


@dataclass(frozen=True)
class Standing:
    """How one contender did.

    Parameters
    ----------
    solver : str
    runs, plans, possible, proven, refused : int
        Of so many runs: with a plan, on an instance of which a plan is known, with a proof
        (optimal or infeasible in its scope), not done at all.
    mean, worst : float or None
        Its period over the best known, where it has a plan: geometric mean, most.
    median_s, longest_s : float
    """

    solver: str
    runs: int
    plans: int
    possible: int
    proven: int
    refused: int
    mean: float | None
    worst: float | None
    median_s: float
    longest_s: float

    @property
    def feasible(self) -> float | None:
        """The share of the instances with a known plan for which it has one."""
        return self.plans / self.possible if self.possible else None


@dataclass(frozen=True)
class Duel:
    """The exact contiguous plans beside those of another partitioner.

    Parameters
    ----------
    other : str
    both, above : int
        Instances for which both have a plan, and on which that of the other is shorter.
    mean, worst : float or None
        Period of the other over ours where both have a plan: geometric mean, most.
    only_ours, only_theirs : int
        Instances for which one alone has a plan.
    """

    other: str
    both: int
    above: int
    mean: float | None
    worst: float | None
    only_ours: int
    only_theirs: int


def in_order(records: Iterable[Record]) -> list[Record]:
    """Return runs by chain and platform, on each in the order of the contenders."""
    places = {name: place for place, name in enumerate((*OURS, *RIVALS))}
    return sorted(
        records,
        key=lambda run: (
            run.level == OWN,
            run.chain,
            run.chain_sha256,
            run.gpus,
            -(run.bandwidth_bytes_per_s or 0),
            run.memory_bytes,
            places.get(run.solver, len(places)),
            run.solver,
        ),
    )


def solvers_of(records: Iterable[Record]) -> list[str]:
    """Return who took part, in the order of the contenders."""
    seen = {record.solver for record in records}
    known = [name for name in (*OURS, *RIVALS) if name in seen]
    return [*known, *sorted(seen.difference(known))]


def best_periods(records: Iterable[Record], known: Iterable[BestKnown]) -> Best:
    """Return the best period of each instance, of the runs and of what else is known, ns."""
    best = {one.instance: one.plan.period for one in known if one.plan is not None}
    for record in records:
        if record.period is not None:
            best[record.instance] = min(record.period, best.get(record.instance, record.period))
    return best


def ratios(records: Iterable[Record], best: Best) -> list[float]:
    """Return period over best period of the runs with a plan."""
    return [float(run.period / best[run.instance]) for run in records if run.period is not None]


def standings(records: Sequence[Record], best: Best) -> list[Standing]:
    """Return how each contender did."""
    runs_of = _grouped(records, lambda run: run.solver)
    return [_standing(solver, runs_of[solver], best) for solver in solvers_of(records)]


def by_level(records: Sequence[Record], best: Best) -> dict[str, dict[str, float | None]]:
    """Return for each memory level the geometric mean of each contender's period over the best."""
    groups = _grouped(records, lambda run: run.level)
    levels = sorted(groups, key=lambda level: (level == OWN, Decimal(0 if level == OWN else level)))
    rows: dict[str, dict[str, float | None]] = {}
    for level in levels:
        runs_of = _grouped(groups[level], lambda run: run.solver)
        rows[level] = {solver: _mean(ratios(runs, best)) for solver, runs in runs_of.items()}
    return rows


def duels(records: Sequence[Record]) -> list[Duel]:
    """Return the exact contiguous plans beside those of all others asked in the same scope."""
    ours = {run.instance: run for run in records if run.solver == "contiguous"}
    scopes = {run.scope for run in ours.values()}
    others = [run for run in records if run.solver != "contiguous" and run.scope in scopes]
    runs_of = _grouped([run for run in others if run.instance in ours], lambda run: run.solver)
    return [
        _duel(solver, [(ours[run.instance], run) for run in runs_of[solver]])
        for solver in solvers_of(records)
        if solver in runs_of
    ]


def missed_goals(records: Sequence[Record]) -> list[str]:
    """Return in words what should not be so."""
    missed = [
        f"the contiguous plan is not proven: {_where(run)}"
        for run in records
        if run.solver == "contiguous" and not run.proven and run.status != "refused"
    ]
    for duel in duels(records):
        if duel.above:
            missed.append(f"{duel.other} is below the exact contiguous plan on {duel.above} rows")
        if duel.only_theirs:
            missed.append(f"{duel.other} alone has a contiguous plan on {duel.only_theirs} rows")
    return missed + [
        f"{one.solver} proved what the plan of {other.solver} refutes: {_where(one)}"
        for same in _grouped(records, lambda run: run.instance).values()
        for one in same
        for other in same
        if is_refuted(one, other)
    ]


def is_refuted(one: Record, other: Record) -> bool:
    """Whether a run has a plan where another one proved that there is none, or none so short."""
    if other.period is None or not one.scope.covers(other.scope):
        return False
    return one.status == "infeasible" or (one.bound is not None and one.bound > other.period)


def _grouped(records: Iterable[Record], key: Callable[[Record], Key]) -> dict[Key, list[Record]]:
    groups: dict[Key, list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return groups


def _standing(solver: str, runs: list[Record], best: Best) -> Standing:
    found = ratios(runs, best)
    seconds = [run.seconds for run in runs]
    return Standing(
        solver=solver,
        runs=len(runs),
        plans=len(found),
        possible=sum(run.instance in best for run in runs),
        proven=sum(run.proven for run in runs),
        refused=sum(run.status == "refused" for run in runs),
        mean=_mean(found),
        worst=max(found, default=None),
        median_s=median(seconds),
        longest_s=max(seconds),
    )


def _duel(other: str, pairs: Sequence[tuple[Record, Record]]) -> Duel:
    both = [
        theirs.period / ours.period
        for ours, theirs in pairs
        if ours.period is not None and theirs.period is not None
    ]
    return Duel(
        other=other,
        both=len(both),
        above=sum(ratio < 1 for ratio in both),
        mean=_mean([float(ratio) for ratio in both]),
        worst=float(max(both)) if both else None,
        only_ours=sum(ours.period is not None and theirs.period is None for ours, theirs in pairs),
        only_theirs=sum(
            ours.period is None and theirs.period is not None for ours, theirs in pairs
        ),
    )


def _mean(found: Sequence[float]) -> float | None:
    return geometric_mean(found) if found else None


def _where(run: Record) -> str:
    return f"{run.chain}, {run.gpus} GPUs, level {run.level}"
