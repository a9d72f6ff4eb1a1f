"""Cyclic data parallelism (Fournier and Oyallon): N micro-batches of an update, one after another.

Micro-batch n of an update runs the N stages as every other does, but starts n / N of a period
late. So the gradient of a stage is passed on from one worker to the next, each adding its own,
and the last one updates; the weights are passed on in the order in which they are needed.

CDP-v1 reads everywhere the weights of one update ago. CDP-v2 reads the newest that there are: with
n and j counted from 1, those of the last update iff j >= N - n + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Final, Protocol

from schedopt.cuts import balanced_cuts
from schedopt.plan import Plan, Transfer
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.collectives import hop
from schedopt.systems.config import SystemConfig, require_time
from schedopt.systems.list_scheduler import ListScheduler
from schedopt.systems.pipedream import one_f_one_b
from schedopt.systems.steady_state import Name

RuleOf = Callable[[int], Rule]
"""Returns the rule for N micro-batches."""

_MOST_PERIODS: Final = 4
_IN_TURN: Final = "a sum of gradients must come before the backward that adds to it ends"


def one_ago(count: int) -> Rule:
    """Return the rule of CDP-v1 for N micro-batches."""
    return Rule(update_every=count, forward_reads="delay", delay=1)


def freshest(count: int) -> Rule:
    """Return the rule u_(n,j) of CDP-v2 for N stages and micro-batches."""
    each = range(1, count + 1)
    table = tuple(tuple(int(j < count - n + 1) for j in each) for n in each)
    return Rule(update_every=count, forward_reads="table", table=table)


def _on_many(rule_of: RuleOf, config: SystemConfig) -> Plan:
    """Return the plan on P GPUs: P stages on each, a micro-batch of the P on each."""
    count = len(config.platform.gpus)
    gpus, cuts = tuple(range(count)), balanced_cuts(config.chain, count)
    stages = [Stage(layers=cut, gpus=gpus) for cut in cuts]
    return plan_at_steady_period(config, partial(_Workers, config, rule_of(count), stages), count)


def _model_parallel(rule_of: RuleOf, config: SystemConfig) -> Plan:
    """Return the plan with N - j + 1 GPUs for stage j, counted from 1, for the largest N."""
    count = 1
    while (count + 1) * (count + 2) // 2 <= len(config.platform.gpus):
        count += 1
    stages: list[Stage] = []
    first = 0
    for replicas, cut in zip(range(count, 0, -1), balanced_cuts(config.chain, count), strict=True):
        stages.append(Stage(layers=cut, gpus=tuple(range(first, first + replicas))))
        first += replicas
    return plan_at_steady_period(config, partial(_Workers, config, rule_of(count), stages), count)


def _pipeline(rule_of: RuleOf, config: SystemConfig) -> Plan:
    """Return 1F1B with a GPU for each stage and an update every P micro-batches.

    For CDP-v1 that is PipeDream-2BW; CDP-v2 reads the newest weights that it can.
    """
    return one_f_one_b(config, rule_of(len(config.platform.gpus)))


class Crew(Protocol):
    """Workers on several GPUs."""

    scheduler: ListScheduler

    def micro_batch(self, i: int, earliest_ns: int) -> None:
        """Add a micro-batch that begins then or later, and what is passed on behind it."""
        ...


def plan_at_steady_period(config: SystemConfig, assemble: Callable[[], Crew], count: int) -> Plan:
    """Return the plan of a crew at the least steady period that its run keeps up with.

    It is a whole chain on the slowest GPU, unless waiting for transfers makes it longer. Workers
    that have done nothing are made by `assemble`; the N = `count` micro-batches of an update begin
    1 / N of the period apart.
    """
    chain = config.chain.layers
    period = max(
        sum(gpu.duration_ns(t) for layer in chain for t in (layer.forward_ns, layer.backward_ns))
        for gpu in config.platform.gpus
    )

    def follow(period: int, microbatches: int) -> ListScheduler:
        crew = assemble()
        for i in range(microbatches):
            crew.micro_batch(i, i // count * period + i % count * period // count)
        return crew.scheduler

    for _ in range(_MOST_PERIODS):
        plan = config.steady(partial(follow, period), count)
        kept = ceil(Fraction(plan.pattern.period_total_ns * count, plan.pattern.k))
        if kept <= period:
            break
        period = kept
    return plan


class _Workers:
    """Workers that run a micro-batch each, and what they pass on."""

    def __init__(self, config: SystemConfig, rule: Rule, stages: list[Stage]) -> None:
        self.scheduler = config.scheduler(rule, stages)
        self.rule = rule
        self.count = len(stages)
        self.passed: dict[tuple[int, int], Transfer] = {}
        self.arrived: dict[tuple[int, int, int], list[Name | Transfer]] = {}

    def micro_batch(self, i: int, earliest_ns: int) -> None:
        """Add a micro-batch: forward, backward, and what is passed on behind it."""
        for stage in range(self.count):
            self.scheduler.run(
                "F",
                stage,
                i,
                after=self.weights(stage, i),
                earliest_ns=0 if stage else earliest_ns,
            )
        for stage in reversed(range(self.count)):
            self.backward(stage, i)

    def weights(self, stage: int, i: int) -> list[Name | Transfer]:
        """Return what brings the version that a forward reads."""
        delay = self.rule.forward_delay(i, stage)
        assert delay is not None
        last = (i // self.count - delay) * self.count - 1
        return self.arrived[stage, last, self.replica(stage, i - last)] if last >= 0 else []

    def replica(self, stage: int, offset: int) -> int:
        return offset % len(self.scheduler.stages[stage].gpus)

    def backward(self, stage: int, i: int) -> None:
        """Add a backward; the gradient goes on to the next worker, the sum to the weights.

        Where a GPU runs several micro-batches of an update, it adds to the sum that came to it
        (algorithm 1, line 30); else the sums meet where they come.
        """
        replicas = len(self.scheduler.stages[stage].gpus)
        before = self.passed.get((stage, i - 1))
        came = [before] if before else []
        adding = replicas >= self.count
        if came and not adding:
            layers = self.scheduler.stages[stage].layer_range
            require_time(self.scheduler, layers, "backward_ns", _IN_TURN)
        self.scheduler.run("B", stage, i, after=[] if adding else came)
        whole: list[Name | Transfer] = [("B", stage, i), *came]
        if (i + 1) % self.count:
            if replicas > 1:
                sum_up = hop(
                    "weight_gradient", stage, i, (0, 1), mode="reduce" if adding else "copy"
                )
                self.passed[stage, i] = self.scheduler.send(sum_up, after=whole)
            return
        self.arrived[stage, i, 0] = [*self.scheduler.update(stage, i, after=whole)] or whole
        for source, target in self.hops(stage, i):
            item = hop("weights", stage, i, (source, target))
            self.scheduler.send(item, after=self.arrived[stage, i, source])
            self.arrived[stage, i, target] = [item]

    def hops(self, stage: int, i: int) -> Iterator[tuple[int, int]]:
        """Yield from which replica to which weights go on, in the order of their readers."""
        first = i + 1
        while self.rule.forward_delay(first, stage) != (first - i - 1) // self.count:
            first += 1
        source = 0
        for reader in range(first, first + len(self.scheduler.stages[stage].gpus)):
            target = self.replica(stage, reader - i)
            if target:
                yield source, target
            source = target


def _on_one(rule_of: RuleOf, config: SystemConfig) -> Plan:
    """Return the plan on the first GPU, of as many stages as micro-batches.

    These are those of a step, or the layers where they are fewer. In a time step each micro-batch
    on its way does one operation.
    """
    count = min(config.microbatches, len(config.chain.layers))
    rule = rule_of(count)
    stages = [Stage(layers=cut, gpus=(0,)) for cut in balanced_cuts(config.chain, count)]

    def follow(microbatches: int) -> ListScheduler:
        scheduler = config.scheduler(rule, stages)
        for step in range(2 * (microbatches + count)):
            # The micro-batches that began first are in their backwards, which free memory.
            for i in range(max(0, step // 2 - count + 1), min(microbatches, step // 2 + 1)):
                stage = step - 2 * i
                if stage < count:
                    scheduler.run("F", stage, i)
                    continue
                stage = 2 * count - 1 - stage
                scheduler.run("B", stage, i)
                if (i + 1) % count == 0:
                    scheduler.update(stage, i)
        return scheduler

    return config.steady(follow, count)


cdp_v1, cdp_v2 = partial(_on_many, one_ago), partial(_on_many, freshest)
cdp_v1_one_gpu, cdp_v2_one_gpu = partial(_on_one, one_ago), partial(_on_one, freshest)
cdp_v1_mp, cdp_v2_mp = partial(_model_parallel, one_ago), partial(_model_parallel, freshest)
cdp_v1_pp, cdp_v2_pp = partial(_pipeline, one_ago), partial(_pipeline, freshest)
