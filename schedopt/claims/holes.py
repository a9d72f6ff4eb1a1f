"""Exact answers where a period leaves no freedom but who shares a GPU, or which hole is filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from schedopt.plan import Kind, Operation, Pattern, Plan, place_in_period
from schedopt.problem import Problem
from schedopt.solving.cp_sat import solve_model
from schedopt.solving.run import Run

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Hole = tuple[int, int]
"""Start and length, ns."""
NEVER: Final = -(2**60)


class Undecided(Exception):
    """The time was up."""


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

    model: cp_model.CpModel = cp.CpModel()
    lies = [[model.new_bool_var("") for _ in rooms] for _ in sizes]
    most = [_most(sizes, room) for room in rooms]
    for row in lies:
        model.add_exactly_one(row)
    for place, room in enumerate(rooms):
        column = [row[place] for row in lies]
        filled = sum(size * one for size, one in zip(sizes, column, strict=True))
        model.add_linear_constraint(filled, sum(sizes) - (sum(rooms) - room), room)
        others = sum(most) - most[place]
        model.add_linear_constraint(sum(column), len(sizes) - others, most[place])
    _break_ties(model, lies, sizes, rooms)
    status, solver = solve_model(model, run, simplify=True)
    if status == cp.INFEASIBLE:
        return None
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        raise Undecided
    return [next(p for p, one in enumerate(row) if solver.boolean_value(one)) for row in lies]


def _most(sizes: Sequence[int], room: int) -> int:
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
    order = sorted(range(len(sizes)), key=lambda one: -sizes[one])
    for number, one in enumerate(order[: len(rooms)]):
        for literal in lies[one][number + 1 :]:
            model.add(literal == 0)


def forced_starts(problem: Problem, period: int) -> dict[tuple[Kind, int], int] | None:
    """Return when operations start, from the first of them on, where memory leaves no choice.

    Those of the last stages that keep something, if no GPU has room for more than one activation
    of each: then the backward of each of them ends at most a period after the start of its
    forward. None if that leaves a choice.

    Parameters
    ----------
    problem : Problem
        With a stage for each layer.
    period : int
        T for one micro-batch, ns.
    """
    layers, stages = problem.chain.layers, problem.stages
    keeping = [s for s, stage in enumerate(stages) if layers[stage.first].saved]
    if not keeping or keeping != list(range(keeping[0], len(stages))) or _has_room(problem):
        return None
    way: list[tuple[Kind, int]] = [("F", s) for s in keeping]
    way += [("B", s) for s in reversed(keeping)]
    lengths = [_length(problem, *one) for one in way]
    # The longest paths between starts: one after the other, and F at most T before the end of B.
    far = [[0 if i == j else NEVER for j in range(len(way))] for i in range(len(way))]
    for i, length in enumerate(lengths[:-1]):
        far[i][i + 1] = length
    for i in range(len(keeping)):
        back = len(way) - 1 - i
        far[back][i] = lengths[back] - period
    for via in range(len(way)):
        for i in range(len(way)):
            for j in range(len(way)):
                far[i][j] = max(far[i][j], far[i][via] + far[via][j])
    if any(far[i][0] != -far[0][i] for i in range(len(way))):
        return None
    return {one: far[0][i] for i, one in enumerate(way)}


def _has_room(problem: Problem) -> bool:
    """Whether some GPU could keep two activations of a layer."""
    layers = problem.chain.layers
    for gpu, device in enumerate(problem.platform.gpus):
        own = [layers[stage.first] for stage in problem.stages if stage.gpus == (gpu,)]
        kept = [one.saved for one in own if one.saved]
        spare = device.usable_bytes - sum(one.weight_bytes + one.saved for one in own)
        if kept and spare >= min(kept):
            return True
    return False


def holes(
    problem: Problem, forced: Mapping[tuple[Kind, int], int], period: int
) -> list[list[Hole]]:
    """Return for each GPU what forced operations leave free of a period."""
    found = []
    for gpu in range(len(problem.platform.gpus)):
        taken = sorted(
            (start % period, _length(problem, kind, stage))
            for (kind, stage), start in forced.items()
            if problem.stages[stage].gpus == (gpu,) and _length(problem, kind, stage)
        )
        now, free = 0, []
        for start, length in taken:
            free += [(now, start - now)] if start > now else []
            now = start + length
        found.append([*free, (now, period - now)] if now < period else free)
    return found


def place(problem: Problem, phases: Mapping[tuple[Kind, int], int], period: int) -> Plan:
    """Return the 1-periodic plan in which operations start at given times of the period.

    Each runs the micro-batch that is ready then; what has no phase takes no time and runs at once.
    """
    count = len(problem.stages)
    way: list[tuple[Kind, int]] = [("F", s) for s in range(count)]
    way += [("B", s) for s in reversed(range(count))]
    now, operations = 0, []
    for kind, stage in way:
        if (kind, stage) in phases:
            now += (phases[kind, stage] - now) % period
        start, shift = place_in_period(now, 0, 1, period)
        operations.append(Operation(kind=kind, stage=stage, shift=shift, start_ns=start))
        now += _length(problem, kind, stage)
    return Plan(
        chain=problem.chain,
        platform=problem.platform,
        scope=problem.scope,
        stages=problem.stages,
        pattern=Pattern(k=1, period_total_ns=period, operations=tuple(operations)),
    )


def _length(problem: Problem, kind: Kind, stage: int) -> int:
    layer = problem.chain.layers[problem.stages[stage].first]
    return layer.forward_ns if kind == "F" else layer.backward_ns
