"""What a plan is compared with: what people do without a search, and plans that they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schedopt.cuts import balanced_cuts
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.solvers.even_split import even_split
from schedopt.solvers.one_f_one_b_star import solve
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.systems.figures import Figures, measure_plan


@dataclass(frozen=True, kw_only=True)
class Rival:
    """What a plan is compared with.

    Parameters
    ----------
    name : str
    figures : Figures, optional
        None if there is no such plan.
    note : str
        Why there is none, or what is particular about it.
    """

    name: str
    figures: Figures | None = None
    note: str = ""


def usual_rivals(plan: Plan, microbatches: int) -> Iterator[Rival]:
    """Yield what people do without a search: two ways to cut the chain, each run by 1F1B*.

    1F1B* keeps the fewest activations for a period (Beaumont et al. 2021, Theorem 3), so that no
    1F1B of the same stages that fits the memory has a shorter one.

    Parameters
    ----------
    plan : Plan
        Valid.
    microbatches : int
        Of a step.
    """
    count, gpus = len(plan.chain.layers), len(plan.platform.gpus)
    yield _rival(
        "Equal numbers of layers, 1F1B*",
        plan,
        [stage.layers for stage in even_split(count, gpus)],
        microbatches,
    )
    title = "Equal times of stages, 1F1B*"
    try:
        cuts = balanced_cuts(plan.chain, min(count, gpus))
    except InputError as error:
        yield Rival(name=title, note=error.rule)
    else:
        yield _rival(title, plan, cuts, microbatches)


def named_rival(name: str, other: Plan, plan: Plan, microbatches: int) -> Rival:
    """Return a plan of a file as a rival.

    Parameters
    ----------
    name : str
        Of the file.
    other : Plan
        Valid.
    plan : Plan
        What it is put beside.
    microbatches : int
        Of a step.

    Raises
    ------
    InputError
        If they are for different chains.
    """
    if other.chain.sha256 != plan.chain.sha256:
        raise InputError(
            "the plan to compare with is for another chain",
            field="chain_sha256",
            way_out="Compare with a plan for the same chain",
            source=name,
        )
    note = "" if other.platform == plan.platform else f"on {other.platform}"
    return Rival(name=name, figures=measure_plan(other, microbatches, name), note=note)


def _rival(name: str, plan: Plan, cuts: list[tuple[int, int]], microbatches: int) -> Rival:
    for group in plan.chain.same_gpu:
        if not any(first <= group[0] and group[-1] <= last for first, last in cuts):
            return Rival(name=name, note=f"would part the tied layers {group[0]} and {group[-1]}")
    problem = Problem(
        chain=plan.chain,
        platform=plan.platform,
        scope=Scope(allocation="fixed", memory=plan.scope.memory),
        stages=tuple(Stage(layers=cut, gpus=(gpu,)) for gpu, cut in enumerate(cuts)),
    )
    run = Run(problem)
    solve(problem, run)
    best = run.best()
    if best is not None:
        return Rival(name=name, figures=measure_plan(best, microbatches, name))
    impossible = run.infeasibility()
    if impossible is None or impossible.least_memory_bytes is None:
        return Rival(name=name, note="no plan that fits")
    needed = impossible.say(impossible.least_memory_bytes, plan.platform)
    return Rival(name=name, note=f"does not fit at any period; it would with {needed}")
