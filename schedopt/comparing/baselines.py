"""What a plan is compared with: what people do without a search, and plans that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from schedopt.comparing.measures import Figures, measure_plan
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.profile import check_alike
from schedopt.solvers.one_f_one_b_star import solve
from schedopt.solving.incumbent import find_infeasibility
from schedopt.solving.registry import load_partitioner
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.units import format_bytes

USUAL: Final = {
    "even_split": "Equal numbers of layers, 1F1B*",
    "time_balanced": "Equal times of stages, 1F1B*",
}
"""Partitioners, and what a page calls their stages as 1F1B* runs them."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a plan is compared with; without figures, the note says why there is no such plan."""

    name: str
    figures: Figures | None = None
    note: str = ""


def usual_baselines(plan: Plan, microbatches: int) -> Iterator[Baseline]:
    """Yield what people do without a search: two ways to cut the chain, each run by 1F1B*.

    1F1B* keeps the fewest activations for a period (Beaumont et al. 2021, Theorem 3), so that no
    1F1B of the same stages that fits the memory has a shorter one.
    """
    for partitioner, name in USUAL.items():
        if plan.chain.together > 1:
            yield Baseline(name=name, note=f"{plan.chain.sharing}, and these have one each")
            continue
        try:
            stages = load_partitioner(partitioner)(
                Problem(chain=plan.chain, platform=plan.platform)
            )
        except InputError as error:
            yield Baseline(name=name, note=error.rule)
        else:
            yield _baseline(name, plan, stages, microbatches)


def named_baseline(name: str, other: Plan, plan: Plan, microbatches: int) -> Baseline:
    """Return the other plan, that of a file, as a baseline, for as many samples.

    It is for the same chain, or for the same layers with micro-batches of another size, with other
    modules that are computed again, or with sequences or experts that other numbers of GPUs share.
    One that does not fit into the memory is a baseline too, and the note says what it lacks.

    Raises
    ------
    InputError
        For a plan of another chain.
    """
    if other.chain.sha256 != plan.chain.sha256:
        _require_other_size(name, other, plan)
    ours, theirs = plan.chain, other.chain
    count = -(-microbatches * ours.samples * theirs.context // (ours.context * theirs.samples))
    figures = measure_plan(other, count, name)
    notes = [] if other.platform == plan.platform else [f"on {other.platform}"]
    if figures.over_bytes:
        notes.append(f"GPU {figures.over_gpu} lacks {format_bytes(figures.over_bytes)}")
    return Baseline(name=name, figures=figures, note="; ".join(notes))


def _require_other_size(name: str, other: Plan, plan: Plan) -> None:
    """Require the same layers with micro-batches of another size, or with other parts of them."""
    try:
        check_alike(plan.chain, other.chain, "chain")
        chains = plan.chain, other.chain
        alike = len({(one.measured, one.context, one.expert) for one in chains}) > 1
    except InputError:
        alike = False
    if not alike:
        raise InputError(
            "the plan to compare with is for another chain",
            field="chain_sha256",
            way_out="Compare with a plan for the same chain",
            source=name,
        )


def _baseline(name: str, plan: Plan, stages: Sequence[Stage], microbatches: int) -> Baseline:
    problem = Problem(
        chain=plan.chain,
        platform=plan.platform,
        scope=Scope(allocation="fixed", memory=plan.scope.memory),
        stages=tuple(stages),
    )
    run = Run(problem)
    solve(problem, run)
    best = run.best()
    if best is not None:
        return Baseline(name=name, figures=measure_plan(best, microbatches, name))
    impossible = find_infeasibility(problem, run.incumbent)
    if impossible is None or impossible.least_memory_bytes is None:
        return Baseline(name=name, note="no plan that fits")
    needed = impossible.say(impossible.least_memory_bytes, plan.platform)
    return Baseline(name=name, note=f"does not fit at any period; it would with {needed}")
