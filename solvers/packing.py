"""Exact where a period leaves no freedom but who shares a GPU, or which hole is filled.

With any allocation, of a chain that keeps nothing and sends for free: each GPU runs its layers in
any order without a break, so a plan of period T is a packing of the layers into GPUs with room for
T each (Beaumont et al. 2021, proof of Theorem 1).

Of stages that are given, where the first stage that keeps something, and all behind it, must fill
T: one micro-batch after the other, if its GPU has no room for a second. All of that is forced. What
comes before keeps nothing and is free to wait, so a plan is a packing into the holes that are left
(proof of Theorem 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from schedopt.errors import InputError
from schedopt.plan import Kind, Operation, Pattern, Plan, place_in_period
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.solving.cp_sat import LARGEST_SUM, solve_model
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.requirements import keeps_nothing, refuse_unsupported, require_stages
from schedopt.solving.run import Run
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

ONTO_GPUS: Final = Proof(ProofKind.PACKINGS_ONTO_GPUS)
INTO_HOLES: Final = Proof(ProofKind.PACKINGS_INTO_HOLES)
GENERAL_WAY: Final = "Use general_cpsat, or leave the choice of solvers to schedopt"
FIXED_WAY: Final = "Use periodic, or leave the choice of solvers to schedopt"

Key = tuple[Kind, int]
"""An operation: its kind and its stage."""


class Hole(NamedTuple):
    """A part of the period, ns; it may run over its end."""

    start: int
    length: int


def solve(problem: Problem, run: Run) -> None:
    """Report a plan of at most the period that is asked, or that there is none.

    Raises
    ------
    InputError
        If no period is asked, or it leaves more to choose than a packing.
    """
    refuse_unsupported(problem, "packing")
    period = problem.scope.period_ns
    if period is None:
        raise InputError(
            "packing decides whether a plan of a given period exists",
            field="solver",
            way_out="Ask for a period (Scope.period_ns)",
        )
    try:
        match problem.scope.allocation:
            case "general":
                _onto_gpus(problem, period, run)
            case "fixed":
                _into_holes(problem, period, run)
            case "contiguous":
                raise InputError(
                    "packing looks for any allocation, or fills the holes of stages that are given",
                    field="solver",
                    way_out='Ask for any (Scope(allocation="general")), or use contiguous',
                )
    except Undecided:
        return


def _onto_gpus(problem: Problem, period: int, run: Run) -> None:
    """Pack layers onto GPUs."""
    gpus, layers = problem.platform.gpus, problem.chain.layers
    taken = sum(layer.weight_bytes for layer in layers)
    taken += max(layer.workspace_bytes or 0 for layer in layers)
    _refuse(
        GENERAL_WAY,
        (not keeps_nothing(problem), "layers that keep something for a micro-batch, or recompute"),
        (problem.scope.split_backward, "a backward that may be split"),
        (_has_links(problem), "transfers that take time"),
        (len({gpu.speed for gpu in gpus}) > 1, "GPUs of different speeds"),
        (bool(problem.chain.same_gpu), "tied layers"),
        (taken > min(gpu.usable_bytes for gpu in gpus), "memory that may not hold all layers"),
    )
    lengths: dict[Key, int] = {}
    for n, layer in enumerate(layers):
        lengths["F", n] = gpus[0].duration_ns(layer.forward_ns)
        lengths["B", n] = gpus[0].duration_ns(layer.backward_ns)
    sizes = [lengths["F", n] + lengths["B", n] for n in range(len(layers))]
    placed = pack(sizes, [period] * len(gpus), run)
    if placed is None:
        # The work of a micro-batch on its GPUs is the same in every order and for every k.
        scope = Scope(
            allocation="general",
            max_k=None,
            grain="layer",
            memory="peak",
            gpu_order="any",
            period_ns=period,
        )
        run.report_infeasible(Infeasibility(scope=scope, proof=ONTO_GPUS))
        return
    begins = [0] * len(gpus)
    phases: dict[Key, int] = {}
    for n, gpu in enumerate(placed):
        phases["F", n], phases["B", n] = begins[gpu], begins[gpu] + lengths["F", n]
        begins[gpu] += sizes[n]
    stages = [Stage(layers=(n, n), gpus=(gpu,)) for n, gpu in enumerate(placed)]
    run.report(_plan(problem, stages, phases, lengths, max(1, *begins)))


def _into_holes(problem: Problem, period: int, run: Run) -> None:
    """Pack the operations before the first stage that keeps something into holes."""
    scope, stages = problem.scope, problem.stages
    require_stages(problem, "packing")
    _refuse(
        FIXED_WAY,
        (scope.split_backward, "a backward that may be split"),
        (scope.recompute, "layers that may be computed again"),
        (_has_links(problem), "transfers that take time"),
        (scope.memory == "peak", "memory read as its peak"),
        (scope.max_k != 1, "patterns of more than one micro-batch"),
        (
            scope.grain == "layer" and any(stage.first < stage.last for stage in stages),
            "layers of a stage that run apart",
        ),
    )

    def report_impossible(proof: Proof, gpu: int) -> None:
        proven = Scope(allocation="fixed", grain=scope.grain, gpu_order="any", period_ns=period)
        run.report_infeasible(Infeasibility(scope=proven, proof=proof, gpu=gpu))

    pipeline = AllocatedPipeline(problem)
    gpu, short = pipeline.lacking()
    if short > 0:
        proof = Proof(ProofKind.GPU_LACKS_MEMORY, gpu=gpu, memory_bytes=short)
        report_impossible(proof, gpu)
        return
    lengths: dict[Key, int] = {
        (task.kind, task.stage): task.length_ns
        for task in pipeline.path
        if task.kind == "F" or task.kind == "B"
    }
    first = _first_that_fills(pipeline)
    forced, span = {}, 0
    for key in lengths:
        if key[1] >= first:
            forced[key] = span
            span += lengths[key]
    if span > period:
        proof = Proof(ProofKind.FILLED_STAGE, stage=first, time_ns=span)
        report_impossible(proof, stages[first].gpus[0])
        return
    _refuse(
        FIXED_WAY,
        (
            span < period,
            f"a period of {period} ns, of which what keeps something fills {span} ns only",
        ),
    )
    phases = dict(forced)
    for gpu in range(len(problem.platform.gpus)):
        own = {key: length for key, length in lengths.items() if stages[key[1]].gpus == (gpu,)}
        filled = _fill_holes(own, forced, period, run)
        if filled is None:
            report_impossible(INTO_HOLES, gpu)
            return
        phases |= filled
    run.report(_plan(problem, stages, phases, lengths, period))


def _fill_holes(
    lengths: Mapping[Key, int], forced: Mapping[Key, int], period: int, run: Run
) -> dict[Key, int] | None:
    """Return when the free operations of one GPU start in the period; None: they do not fit.

    Of its operations with their lengths those that are not free start when they are forced to.
    """
    fixed = {key: forced[key] for key in lengths if key in forced}
    gaps = holes(fixed, lengths, period)
    free = [key for key in lengths if key not in fixed and lengths[key]]
    rooms = pack([lengths[key] for key in free], [gap.length for gap in gaps], run)
    if rooms is None:
        return None
    phases: dict[Key, int] = {}
    begins = [gap.start for gap in gaps]
    for key, room in zip(free, rooms, strict=True):
        phases[key] = begins[room] % period
        begins[room] += lengths[key]
    # What takes no time lies between two that do, never inside one.
    edge = next((at + lengths[key] for key, at in fixed.items()), 0)
    idle = (key for key in lengths if key not in fixed and not lengths[key])
    return phases | dict.fromkeys(idle, edge % period)


def _refuse(way_out: str, *cases: tuple[bool, str]) -> None:
    """Raise `InputError` for the first case that is so."""
    for present, case in cases:
        if present:
            raise InputError(f"packing does not do {case}", field="solver", way_out=way_out)


def _has_links(problem: Problem) -> bool:
    return problem.platform.link is not None or problem.platform.network is not None


def _first_that_fills(pipeline: AllocatedPipeline) -> int:
    """Return the first stage that keeps something, of which only one micro-batch fits."""
    keeping = [stash for stash in pipeline.stashes if stash.each_bytes]
    _refuse(FIXED_WAY, (not keeping, "stages that keep nothing for a micro-batch"))
    first = keeping[0]
    room = pipeline.spare[first.gpu]
    room -= sum(stash.each_bytes for stash in keeping if stash.gpu == first.gpu)
    _refuse(
        FIXED_WAY,
        (room >= first.each_bytes, f"memory that holds two micro-batches of stage {first.stage}"),
    )
    return first.stage


def holes(forced: Mapping[Key, int], lengths: Mapping[Key, int], period: int) -> list[Hole]:
    """Return what the forced operations of one GPU leave free of a period.

    One that takes no time parts two holes: nothing runs across it.
    """
    if not forced:
        return [Hole(0, period)]
    starts = sorted((at, lengths[key]) for key, at in forced.items())
    following = [at for at, _ in starts[1:]] + [starts[0][0] + period]
    gaps = [
        Hole(at + length, then - at - length)
        for (at, length), then in zip(starts, following, strict=True)
    ]
    return [hole for hole in gaps if hole.length]


def _plan(
    problem: Problem,
    stages: Sequence[Stage],
    phases: Mapping[Key, int],
    lengths: Mapping[Key, int],
    period: int,
) -> Plan:
    """Return the 1-periodic plan in which each operation starts at its time of the period.

    It runs the micro-batch that is ready then.
    """
    count = len(stages)
    way: list[Key] = [("F", s) for s in range(count)]
    way += [("B", s) for s in reversed(range(count))]
    now, operations = 0, []
    for kind, stage in way:
        now += (phases[kind, stage] - now) % period
        start, shift = place_in_period(now, 0, 1, period)
        operations.append(Operation(kind=kind, stage=stage, shift=shift, start_ns=start))
        now += lengths[kind, stage]
    pattern = Pattern(k=1, period_total_ns=period, operations=tuple(operations))
    return Plan.answering(problem, stages, pattern)


class Undecided(Exception):
    """The time ran out, or a stop was requested."""


def pack(sizes: Sequence[int], rooms: Sequence[int], run: Run) -> list[int] | None:
    """Return for each size a room, so that no room is too full, or None if that is impossible.

    By CP-SAT. What all other rooms cannot hold must lie in a room, and no room holds more sizes
    than the smallest of them would.

    Raises
    ------
    Undecided
        If the run ends before.
    """
    from ortools.sat.python import cp_model as cp

    if not sizes:
        return []
    model: cp_model.CpModel = cp.CpModel()
    lies = [[model.new_bool_var("") for _ in rooms] for _ in sizes]
    most = [_most_sizes(sizes, room) for room in rooms]
    for row in lies:
        model.add_exactly_one(row)
    for place, room in enumerate(rooms):
        column = [row[place] for row in lies]
        filled = cp.LinearExpr.weighted_sum(column, sizes)
        model.add_linear_constraint(filled, sum(sizes) - (sum(rooms) - room), room)
        others = sum(most) - most[place]
        count = cp.LinearExpr.sum(column)
        model.add_linear_constraint(count, len(sizes) - others, most[place])
    _break_ties(model, lies, sizes, rooms)
    status, solver = solve_model(model, run, simplify=sum(sizes) + sum(rooms) < LARGEST_SUM)
    if status == cp.INFEASIBLE:
        return None
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        raise Undecided
    return [next(p for p, here in enumerate(row) if solver.boolean_value(here)) for row in lies]


def _most_sizes(sizes: Sequence[int], room: int) -> int:
    """Return how many sizes fit into a room at most."""
    filled = 0
    for count, size in enumerate(sorted(sizes)):
        filled += size
        if filled > room:
            return count
    return len(sizes)


def _break_ties(
    model: cp_model.CpModel,
    lies: Sequence[Sequence[cp_model.IntVar]],
    sizes: Sequence[int],
    rooms: Sequence[int],
) -> None:
    """Let the largest sizes fill equal rooms in order: the n-th lies in one of the first n."""
    if len(set(rooms)) > 1:
        return
    largest = sorted(range(len(sizes)), key=lambda item: -sizes[item])
    for number, item in enumerate(largest[: len(rooms)]):
        for literal in lies[item][number + 1 :]:
            model.add(literal == 0)
