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
from typing import Final, Literal, Protocol

from schedopt.cuts import balanced_cuts
from schedopt.plan import Plan, Transfer
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig, require_time
from schedopt.systems.list_scheduler import ListScheduler
from schedopt.systems.pipedream import one_f_one_b
from schedopt.systems.steady_state import Name

_MOST_PERIODS: Final = 4
_IN_TURN: Final = "a sum of gradients must come before the backward that adds to it ends"


def cdp_v1(config: SystemConfig) -> Plan:
    """Return CDP-v1 on P GPUs: P stages on each, a micro-batch of the P on each."""
    return _on_many(config, one_ago(len(config.platform.gpus)))


def cdp_v2(config: SystemConfig) -> Plan:
    """Return CDP-v2 on P GPUs: P stages on each, a micro-batch of the P on each."""
    return _on_many(config, freshest(len(config.platform.gpus)))


def cdp_v1_one_gpu(config: SystemConfig) -> Plan:
    """Return CDP-v1 on the first GPU: as many stages as micro-batches, time step by time step."""
    return _on_one(config, one_ago(_most_on_one(config)))


def cdp_v2_one_gpu(config: SystemConfig) -> Plan:
    """Return CDP-v2 on the first GPU: as many stages as micro-batches, time step by time step."""
    return _on_one(config, freshest(_most_on_one(config)))


def _most_on_one(config: SystemConfig) -> int:
    """Return N: the micro-batches of a step, or the layers where they are fewer."""
    return min(config.microbatches, len(config.chain.layers))


def cdp_v1_mp(config: SystemConfig) -> Plan:
    """Return CDP-v1 with model parallelism: N - j + 1 GPUs for stage j, counted from 1."""
    return _model_parallel(config, one_ago(_largest_pyramid(config)))


def cdp_v2_mp(config: SystemConfig) -> Plan:
    """Return CDP-v2 with model parallelism: N - j + 1 GPUs for stage j, counted from 1."""
    return _model_parallel(config, freshest(_largest_pyramid(config)))


def cdp_v1_pp(config: SystemConfig) -> Plan:
    """Return CDP-v1 with one GPU for each stage: PipeDream-2BW with P micro-batches an update."""
    return one_f_one_b(config, one_ago(len(config.platform.gpus)))


def cdp_v2_pp(config: SystemConfig) -> Plan:
    """Return CDP-v2 with one GPU for each stage: 1F1B that reads the newest weights it can."""
    return one_f_one_b(config, freshest(len(config.platform.gpus)))


def one_ago(count: int) -> Rule:
    """Return the rule of CDP-v1 for N micro-batches."""
    return Rule(update_every=count, forward_reads="delay", delay=1)


def freshest(count: int) -> Rule:
    """Return the rule u_(n,j) of CDP-v2 for N stages and micro-batches."""
    each = range(1, count + 1)
    table = tuple(tuple(int(j < count - n + 1) for j in each) for n in each)
    return Rule(update_every=count, forward_reads="table", table=table)


def _on_many(config: SystemConfig, rule: Rule) -> Plan:
    gpus = range(len(config.platform.gpus))
    cuts = balanced_cuts(config.chain, len(gpus))
    stages = [Stage(layers=cut, gpus=tuple(gpus)) for cut in cuts]
    return plan_at_steady_period(config, partial(_Workers, config, rule, stages), len(gpus))


def _largest_pyramid(config: SystemConfig) -> int:
    count = 1
    while (count + 1) * (count + 2) // 2 <= len(config.platform.gpus):
        count += 1
    return count


def _model_parallel(config: SystemConfig, rule: Rule) -> Plan:
    stages: list[Stage] = []
    first, count = 0, rule.update_every or 1
    for replicas, cut in zip(range(count, 0, -1), balanced_cuts(config.chain, count), strict=True):
        stages.append(Stage(layers=cut, gpus=tuple(range(first, first + replicas))))
        first += replicas
    return plan_at_steady_period(config, partial(_Workers, config, rule, stages), count)


class Crew(Protocol):
    """Workers on several GPUs."""

    scheduler: ListScheduler

    def micro_batch(self, i: int, earliest_ns: int) -> None:
        """Add a micro-batch that begins then or later, and what is passed on behind it."""
        ...


def plan_at_steady_period(config: SystemConfig, assemble: Callable[[], Crew], count: int) -> Plan:
    """Return the plan of a crew at the least steady period that its run keeps up with.

    It is a whole chain on the slowest GPU, unless waiting for transfers makes it longer.

    Parameters
    ----------
    config : SystemConfig
    assemble : callable
        Returns workers that have done nothing.
    count : int
        N, the micro-batches of an update, which begin 1 / N of the period apart.
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
            require_time(self.scheduler, stage, "backward_ns", _IN_TURN)
        self.scheduler.run("B", stage, i, after=[] if adding else came)
        whole: list[Name | Transfer] = [("B", stage, i), *came]
        if (i + 1) % self.count:
            if replicas > 1:
                mode: Literal["copy", "reduce"] = "reduce" if adding else "copy"
                self.passed[stage, i] = self.send("weight_gradient", stage, i, (0, 1), whole, mode)
            return
        self.arrived[stage, i, 0] = [*self.scheduler.update(stage, i, after=whole)] or whole
        for source, target in self.hops(stage, i):
            item = self.send("weights", stage, i, (source, target), self.arrived[stage, i, source])
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

    def send(
        self,
        tensor: Literal["weight_gradient", "weights"],
        stage: int,
        i: int,
        ends: tuple[int, int],
        after: list[Name | Transfer],
        mode: Literal["copy", "reduce"] = "copy",
    ) -> Transfer:
        """Add a transfer between replicas, counted from that of a micro-batch."""
        source, target = ends
        item = Transfer(
            tensor=tensor,
            stage=stage,
            shift=i,
            start_ns=0,
            source=source,
            target=target,
            mode=mode,
        )
        return self.scheduler.send(item, after=after)


def _on_one(config: SystemConfig, rule: Rule) -> Plan:
    """Return the plan on one GPU: in a time step each micro-batch on its way does one operation."""
    count = rule.update_every or 1
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
