"""Tied weights of which several stages have a copy, whose gradients are added up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from schedopt.actions import Grid
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.profiling.pieces import Piece
from schedopt.torch.weights import Weight, local_part


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies that a process has.

    Parameters
    ----------
    groups : sequence of (ProcessGroup, sequence of str)
        The processes of a pipeline that have a copy of each of these parameters.
    later : collection of str
        The parameters of which a stage before has a copy, too.
    """

    groups: Sequence[tuple[dist.ProcessGroup, Sequence[str]]]
    later: Collection[str]

    def sum(self, weights: Iterable[Weight]) -> None:
        """Add up the gradients of the copies."""
        known = {one.name: one.tensor for one in weights} if self.groups else {}
        for group, names in self.groups:
            for name in names:
                if known[name].grad is None:
                    known[name].grad = torch.zeros_like(known[name])
                gradient = known[name].grad
                assert gradient is not None
                dist.all_reduce(local_part(gradient), group=group)


def without_sums(plan: Plan) -> Plan:
    """Return a plan in which nothing adds up gradients of copies: `Copies.sum` does it."""
    if not plan.chain.copied:
        return plan
    kept = tuple(one for one in plan.pattern.transfers if one.source_stage is None)
    variants = [replace(one, chain=replace(one.chain, copied=())) for one in plan.variants]
    return replace(
        plan,
        chain=replace(plan.chain, copied=()),
        variants=tuple(variants),
        pattern=replace(plan.pattern, transfers=kept),
    )


def find_copies(
    plan: Plan, grid: Grid, pieces: Sequence[Piece], names: Mapping[int, str], number: int
) -> Copies:
    """Return the copies that a process has; all processes call it at the same time.

    Parameters
    ----------
    plan : Plan
    grid : Grid
    pieces : sequence of Piece
        All layers.
    names : mapping of int to str
        What the model calls a tensor, by its identity.
    number : int
        Of the process.

    Raises
    ------
    InputError
        If replicas share something else of one copy than of another, so that the parts differ.
    """
    columns = {column[0][0]: place for place, column in enumerate(grid.gpus)}
    places: dict[str, set[int]] = defaultdict(set)
    first: dict[str, int] = {}
    for stage_number, stage in enumerate(plan.stages):
        for layer in stage.layer_range:
            for parameter in pieces[layer].module.parameters():
                name = names[id(parameter)]
                places[name].add(columns[stage.gpus[0]])
                other = first.setdefault(name, stage_number)
                if grid.replicas > 1 and plan.stages[other].shard != stage.shard:
                    raise InputError(
                        f"stages {other} and {stage_number} have copies of {name}, of which "
                        f"replicas share {plan.stages[other].shard} and {stage.shard}",
                        field=f"stages[{stage_number}].shard",
                        way_out="Share the same of all copies, or nothing (--shard none)",
                    )
    holders: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in sorted(places):
        if len(places[name]) > 1:
            holders[tuple(sorted(places[name]))].append(name)
    own, replica, member = grid.places[number]
    processes = {gpu: process for process, gpu in enumerate(grid.processes)}
    groups = []
    for having in sorted(holders):
        for d in range(grid.replicas):
            for t in range(grid.tensor):
                made = dist.new_group([processes[grid.gpus[p][d][t]] for p in having])
                if own in having and (d, t) == (replica, member):
                    groups.append((made, holders[having]))
    later = {name for having, those in holders.items() if own in having[1:] for name in those}
    return Copies(groups, later)
