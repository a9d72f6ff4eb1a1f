"""A step that ends in a flush, of equal parts that run side by side: one of them is laid out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal

from schedopt.account.shard_owners import part_of
from schedopt.account.timeline import stage_bytes
from schedopt.errors import InputError
from schedopt.folding import Ring, Twins, find_twins, list_runs, ring
from schedopt.network import Resource
from schedopt.plan import Collective, Operation, Pattern, Plan, Transfer
from schedopt.problem import Scope
from schedopt.rule import Rule
from schedopt.simulation.delaying import delay_transfers
from schedopt.stage import SHARDS, Stage
from schedopt.systems.collectives import BEHIND, hop
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, with_recompute
from schedopt.systems.steady_state import Name, Named
from schedopt.tied_weights import exchanging_stages
from schedopt.transfer import Mode

_APART: Final = "the parts of a fold have GPUs and links of their own that are alike"


def folded_step(
    config: SystemConfig,
    stages: Sequence[Stage],
    fold: int,
    turns: Iterable[Turn],
    *,
    split: bool = False,
) -> Plan:
    """Return a step of equal parts, after which each stage applies the gradients of all of them.

    Replica n of a stage belongs to part n mod g, and so does micro-batch i = n (mod g). All parts
    do the same at the same times. Behind their last backwards the replicas of a stage add their
    gradients up, update, and take the weights to each other, by collectives: see `flush_step`.
    Where groups of them have copies of shards each group adds up by itself before all do.

    Parameters
    ----------
    config : SystemConfig
        Of the whole job.
    stages : sequence of Stage
        With the GPUs of all parts. They shard nothing, or the optimizer state.
    fold : int
        g.
    turns : iterable of Turn
        Of one part, as for `flush_step`: its micro-batches are 0 to m / g - 1.
    split : bool
        Whether the turns have I and W instead of B.

    Raises
    ------
    InputError
        If the parts are not alike, or share GPUs or links; if stages shard more than their
        optimizer state; or if the chain lacks what a stage with replicas needs.
    """
    copies = [*_list_copies(config, stages, fold)]
    twins = find_twins(config.platform, tuple(stages), fold, copies)
    if twins is None or config.microbatches % fold:
        raise InputError(_APART, field="fold", way_out="Take other stages, or no fold")
    for number, stage in enumerate(stages):
        own, together = len(stage.gpus) // fold, config.chain.together
        if own % together and together % own:
            raise InputError(
                f"parts have {own} replicas of stage {number}, and {config.chain.sharing}",
                field="fold",
                way_out="Take fewer parts, or no fold",
            )
        if 1 < config.chain.expert < len(stage.gpus):
            raise InputError(
                f"it has {len(stage.gpus)}, some of which have the same experts",
                field=f"stages[{number}].gpus",
                way_out=f"Take {config.chain.expert} replicas, or no fold",
            )
        if stage.shard not in ("none", "optimizer"):
            raise InputError(
                f"{stage.shard} is sharded, whose transfers in the step a fold does not say",
                field=f"stages[{number}].shard",
                way_out="Shard the optimizer state at most, or take no fold",
            )
    rule = config.flush_rule(replicated=True)
    scope = Scope(
        allocation="general",
        replicas=None,
        shard=max((stage.shard for stage in stages), key=SHARDS.index),
        hybrid=any(stage.shard_copies > 1 for stage in stages),
        microbatches=config.microbatches,
        split_backward=split,
        recompute=any(stage.recompute for stage in stages),
        max_k=None,
        engine=config.engine,
    )
    empty = Pattern(k=config.microbatches, period_total_ns=1, operations=(), fold=fold)
    plan = Plan(
        chain=config.chain,
        platform=config.platform,
        rule=rule,
        scope=scope,
        variants=config.variants,
        stages=tuple(stages),
        pattern=empty,
    )
    pattern = _PartOfStep(config, plan, twins).lay_out(turns, copies)
    return replace(plan, pattern=replace(pattern, k=config.microbatches, fold=fold))


def _list_copies(config: SystemConfig, stages: Sequence[Stage], fold: int) -> Iterator[Transfer]:
    """Yield what the replicas of the first part send to copies, as `exchange_copies` does."""
    for source, target in exchanging_stages(config.chain, stages):
        others = stages[target].gpus[::fold]
        for replica, gpu in enumerate(stages[source].gpus[::fold]):
            if gpu not in others:
                ends = replica, replica % len(others)
                yield hop("weight_gradient", target, 0, ends, mode="reduce", source_stage=source)


class _PartOfStep:
    """What the first part of a fold does, with the collectives of all parts, which it waits for."""

    def __init__(self, config: SystemConfig, plan: Plan, twins: Twins) -> None:
        self.plan, self.twins, fold = plan, twins, plan.pattern.fold
        alone = [
            replace(one, gpus=one.gpus[::fold], shard="none", shard_copies=1) for one in plan.stages
        ]
        self.config = replace(config, microbatches=config.microbatches // fold)
        self.scheduler = self.config.scheduler(Rule(), alone, ordered=False)
        self.ran: dict[int, Name] = {}
        """The last operation of a GPU."""
        self.made: dict[tuple[int, int], Name] = {}
        """The last backward of a stage on a GPU."""
        self.rings: dict[tuple[int, str, bool], Ring] = {}

    def ring(self, item: Collective) -> Ring:
        """Return the ring of a collective, whenever it starts."""
        key = item.stage, item.tensor, item.across
        if key not in self.rings:
            self.rings[key] = ring(self.plan, item)
        return self.rings[key]

    def lay_out(self, turns: Iterable[Turn], copies: Iterable[Transfer]) -> Pattern:
        """Return the pattern, in which tensors between stages are sent as late as they can be."""
        scheduler = self.scheduler
        for kind, stage, i in with_recompute(scheduler.stages, turns):
            gpu = scheduler.stages[stage].gpu(i)
            scheduler.run(kind, stage, i, after=[*self.before(gpu)], priority=1)
            self.ran[gpu] = (kind, stage, i)
            if kind in ("B", "W"):
                self.made[stage, gpu] = self.ran[gpu]
        came = self.send_copies(copies)
        for stage in reversed(range(len(scheduler.stages))):
            gpus = scheduler.stages[stage].gpus
            self.apply(stage, [[self.made[stage, gpu], *came[stage, gpu]] for gpu in gpus])
        scheduler.settle()
        whole = scheduler.step(self.config.microbatches)
        own = tuple(item for item in whole.operations if item.kind != "U")
        scope = Scope(microbatches=whole.k, max_k=None, engine=self.config.engine)
        part = scheduler.plan(replace(whole, operations=own, collectives=()), scope)
        late = delay_transfers(part, taken=self.taken(whole))
        return replace(whole, transfers=late.pattern.transfers)

    def before(self, gpu: int) -> Iterator[Name]:
        """Yield what a GPU runs before what comes next."""
        if gpu in self.ran:
            yield self.ran[gpu]

    def send_copies(self, copies: Iterable[Transfer]) -> dict[tuple[int, int], list[Named]]:
        """Send to copies what is added to their gradients; return what comes to stages on GPUs."""
        stages, came = self.scheduler.stages, defaultdict[tuple[int, int], list[Named]](list)
        for item in copies:
            assert item.source_stage is not None
            source = stages[item.source_stage].gpu(item.source or 0)
            target = stages[item.stage].gpu(item.target or 0)
            self.scheduler.send(item, after=[self.made[item.source_stage, source]], priority=1)
            came[item.stage, target].append(item)
        for one, other in exchanging_stages(self.plan.chain, stages):
            for gpu in {*stages[one].gpus} & {*stages[other].gpus}:
                came[other, gpu].append(self.made[one, gpu])
        return came

    def apply(self, stage: int, made: Sequence[Sequence[Named]]) -> None:
        """Add the gradients of a stage up, update, and send round, each as soon as it can."""
        one = self.plan.stages[stage]
        there: list[Sequence[Named]] = [*made]
        if one.shard_group > 1:
            there = self.collect(stage, "weight_gradient", "reduce", there)
        if one.shard_copies > 1:
            there = self.collect(stage, "weight_gradient", "reduce", there, across=True)
            there = self.collect(stage, "weight_gradient", "copy", there, across=True)
        if one.shard_group > 1 and one.shard == "none":
            there = self.collect(stage, "weight_gradient", "copy", there)
        there = self.update(stage, there)
        if one.shard_group > 1 and one.shard == "optimizer":
            self.collect(stage, "weights", "copy", there)

    def collect(
        self,
        stage: int,
        tensor: Literal["weight_gradient", "weights"],
        mode: Mode,
        there: Sequence[Sequence[Named]],
        *,
        across: bool = False,
    ) -> list[Sequence[Named]]:
        """Add a collective behind what each GPU must have; return what each then waits for.

        What goes from stage to stage meanwhile has its links between two rounds.
        """
        item = Collective(tensor=tensor, mode=mode, stage=stage, shift=0, start_ns=0, across=across)
        around = self.ring(item)
        resources = dict.fromkeys(self.used(around))
        after = [name for names in there for name in names]
        self.scheduler.occupy(
            item,
            resources,
            around.rounds * around.round_ns,
            after=after,
            priority=BEHIND,
            round_ns=around.round_ns,
        )
        return [[item] for _ in there]

    def used(self, around: Ring) -> Iterator[Resource]:
        """Yield the links of the first part that stand for those of a ring."""
        for route in around.routes:
            for resource in route:
                yield self.twins.resources.get(resource, resource)

    def taken(self, pattern: Pattern) -> Iterator[tuple[Resource, int, int]]:
        """Yield the links that collectives have, from when on and how long, ns."""
        for item in pattern.collectives:
            around = self.ring(item)
            runs = [*list_runs(item, around)]
            for resource in dict.fromkeys(self.used(around)):
                yield from ((resource, start, length) for start, length in runs)

    def update(self, stage: int, there: Sequence[Sequence[Named]]) -> list[Sequence[Named]]:
        """Update on each replica of the part; return what each then waits for."""
        longest, updated = self.longest_update(stage), [*there]
        if longest:
            for number, gpu in enumerate(self.scheduler.stages[stage].gpus):
                item = Operation(kind="U", stage=stage, shift=number, start_ns=0)
                self.scheduler.occupy(item, [("gpu", gpu)], longest, after=there[number])
                updated[number] = [item]
        return updated

    def longest_update(self, stage: int) -> int:
        """Return how long the update of the largest share takes on the slowest GPU, ns."""
        plan, one = self.plan, self.plan.stages[stage]
        layers = plan.costs.layers[one.first : one.last + 1]
        slowest = max(
            sum(plan.platform.gpus[gpu].duration_ns(layer.update_ns or 0) for layer in layers)
            for gpu in one.gpus
        )
        total, replicas = stage_bytes(plan, stage, "parameter_bytes"), len(one.gpus)
        if one.shard == "none" or not total:
            return slowest
        sizes = [part_of(total, chunk, replicas) for chunk in range(replicas)]
        share = max(sum(sizes[first :: one.shard_group]) for first in range(one.shard_group))
        alone = stage_bytes(plan, stage, "expert_parameter_bytes")
        return -(-slowest * (share + alone) // (total + alone))
