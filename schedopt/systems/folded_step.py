"""A step that ends in a flush, of equal parts that run side by side: one of them is laid out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schedopt.account.shard_owners import part_of
from schedopt.account.timeline import Timeline, stage_bytes
from schedopt.errors import InputError
from schedopt.folding import Twins, find_twins, ring
from schedopt.network import Resource
from schedopt.plan import Collective, Operation, Plan, Transfer
from schedopt.problem import Scope
from schedopt.rule import Rule
from schedopt.simulation.delaying import delay_transfers
from schedopt.stage import Stage
from schedopt.systems.collectives import hop
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, with_recompute
from schedopt.tied_weights import exchanging_stages

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
        if stage.shard not in ("none", "optimizer"):
            raise InputError(
                f"{stage.shard} is sharded, whose transfers in the step a fold does not say",
                field=f"stages[{number}].shard",
                way_out="Shard the optimizer state at most, or take no fold",
            )
    part = _part_of_step(config, stages, fold, turns)
    rule = config.flush_rule(replicated=True)
    scope = Scope(
        allocation="general",
        replicas=None,
        microbatches=config.microbatches,
        split_backward=split,
        recompute=any(stage.recompute for stage in stages),
        max_k=None,
        engine=config.engine,
    )
    plan = Plan(
        chain=config.chain,
        platform=config.platform,
        rule=rule,
        scope=scope,
        variants=config.variants,
        stages=tuple(stages),
        pattern=replace(part.pattern, k=config.microbatches, fold=fold),
    )
    return _Ending(plan, part, twins, copies).finish()


def _list_copies(config: SystemConfig, stages: Sequence[Stage], fold: int) -> Iterator[Transfer]:
    """Yield what the replicas of the first part send to copies, as `exchange_copies` does."""
    for source, target in exchanging_stages(config.chain, stages):
        others = stages[target].gpus[::fold]
        for replica, gpu in enumerate(stages[source].gpus[::fold]):
            if gpu not in others:
                ends = replica, replica % len(others)
                yield hop("weight_gradient", target, 0, ends, mode="reduce", source_stage=source)


def _part_of_step(
    config: SystemConfig, stages: Sequence[Stage], fold: int, turns: Iterable[Turn]
) -> Plan:
    """Return what the first part does before anything is added up, sent as late as it can be."""
    alone = [replace(stage, gpus=stage.gpus[::fold], shard="none") for stage in stages]
    part = replace(config, microbatches=config.microbatches // fold)
    scheduler = part.scheduler(Rule(), alone)
    for kind, stage, i in with_recompute(alone, turns):
        scheduler.run(kind, stage, i)
    scheduler.settle()
    scope = Scope(microbatches=part.microbatches, max_k=None, engine=config.engine)
    return delay_transfers(scheduler.plan(scheduler.step(part.microbatches), scope))


@dataclass
class _Ending:
    """What follows the last backwards: each collective as soon as all its links are free."""

    plan: Plan
    part: Plan
    twins: Twins
    copies: list[Transfer]
    busy: dict[Resource, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    operations: list[Operation] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    end_ns: int = 0

    def finish(self) -> Plan:
        """Add the collectives and updates of all stages, those that are ready first."""
        pattern = self.plan.pattern
        timeline = Timeline(self.part)
        self.end_ns = pattern.period_total_ns
        last = [0] * len(self.part.stages)
        made: dict[tuple[int, int], int] = defaultdict(int)
        for item, _, run in timeline.operations():
            self.busy["gpu", run.gpu, run.gpu].append((run.start_ns, run.end_ns))
            if item.kind in ("B", "W"):
                last[item.stage] = max(last[item.stage], run.end_ns)
                made[item.stage, run.gpu] = max(made[item.stage, run.gpu], run.end_ns)
        for sent, _, source, _, run in timeline.transfers():
            for resource in timeline.route(sent, source, run.gpu):
                self.busy[resource].append((run.start_ns, run.end_ns))
        sent_copies = [*self.send_copies(timeline, made, last)]
        for stage in sorted(range(len(last)), key=last.__getitem__):
            ended = self.apply(stage, last[stage])
            self.end_ns = max(self.end_ns, ended)
        finished = replace(
            pattern,
            period_total_ns=self.end_ns,
            operations=(*pattern.operations, *self.operations),
            transfers=(*pattern.transfers, *sent_copies),
            collectives=tuple(self.collectives),
        )
        return replace(self.plan, pattern=finished)

    def send_copies(
        self, timeline: Timeline, made: Mapping[tuple[int, int], int], last: list[int]
    ) -> Iterator[Transfer]:
        """Yield what goes to copies, each as soon as it is whole; collectives wait for it."""
        for item in self.copies:
            source, target, _ = timeline.ends(item, item.shift)
            length = timeline.transfer_ns(item, item.shift)
            assert item.source_stage is not None
            route = timeline.route(item, source, target)
            start = self.place(route, made[item.source_stage, source], length)
            last[item.stage] = max(last[item.stage], start + length)
            # What takes no time may start at the very end.
            self.end_ns = max(self.end_ns, start + max(1, length))
            yield replace(item, start_ns=start)
        for source, target in exchanging_stages(self.plan.chain, self.part.stages):
            shared = {*self.part.stages[source].gpus} & {*self.part.stages[target].gpus}
            last[target] = max([last[target], *(made[source, gpu] for gpu in shared)])

    def apply(self, stage: int, ready: int) -> int:
        """Add the gradients of a stage up, update, and send round; return when all is done, ns."""
        one = self.plan.stages[stage]
        if len(one.gpus) == 1:
            return self.update(stage, ready)
        added = self.collect(
            Collective(
                tensor="weight_gradient", mode="reduce", stage=stage, shift=0, start_ns=ready
            )
        )
        if one.shard == "optimizer":
            updated = self.update(stage, added)
            return self.collect(
                Collective(tensor="weights", mode="copy", stage=stage, shift=0, start_ns=updated)
            )
        return self.update(
            stage,
            self.collect(
                Collective(
                    tensor="weight_gradient", mode="copy", stage=stage, shift=0, start_ns=added
                )
            ),
        )

    def update(self, stage: int, ready: int) -> int:
        """Update on all replicas at once; return when the last is through, ns."""
        longest = self.longest_update(stage)
        if not longest:
            return ready
        own = self.part.stages[stage].gpus
        start = self.place([("gpu", gpu, gpu) for gpu in own], ready, longest)
        self.operations += (
            Operation(kind="U", stage=stage, shift=number, start_ns=start)
            for number in range(len(own))
        )
        return start + longest

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
        share = max(part_of(total, chunk, replicas) for chunk in range(replicas))
        return -(-slowest * share // total)

    def collect(self, collective: Collective) -> int:
        """Add a collective as soon as its links are free; return its end, ns."""
        around = ring(self.plan, collective)
        used = {
            self.twins.resources.get(resource, resource)
            for route in around.routes
            for resource in route
        }
        start = self.place(used, collective.start_ns, around.length_ns)
        self.collectives.append(replace(collective, start_ns=start))
        # What takes no time may start at the very end.
        self.end_ns = max(self.end_ns, start + 1)
        return start + around.length_ns

    def place(self, resources: Iterable[Resource], ready: int, length: int) -> int:
        """Take the first gap that all resources have; return its start, ns."""
        taken = sorted(span for resource in resources for span in self.busy[resource])
        start = ready
        for begin, end in taken:
            if begin < start + length and start < end:
                start = end
        for resource in resources:
            self.busy[resource].append((start, start + length))
        return start
