"""Cyclic data parallelism whose weights stay at home (Fournier and Oyallon, appendix C.4).

Stage s of P is at home on GPU s, with its gradient and optimizer state. Since one GPU at a time
computes a stage, its weights are sent from home to that GPU alone, for F and again for B, and the
gradient of each micro-batch goes home: no collective. A GPU that begins an operation begins to
fetch the weights of the next one, and not further ahead, so that it has those of two stages.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from schedopt.cuts import balanced_cuts
from schedopt.plan import Kind, Plan, Transfer
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.collectives import AT_ONCE, hop
from schedopt.systems.config import SystemConfig, require_time
from schedopt.systems.cyclic import RuleOf, freshest, one_ago, plan_at_steady_period
from schedopt.systems.steady_state import Name

Done = list[Name | Transfer]


def _sharded(rule_of: RuleOf, config: SystemConfig) -> Plan:
    """Return the plan on P GPUs with sharded parameters, gradients and optimizer state."""
    count = len(config.platform.gpus)
    gpus = tuple(range(count))
    stages = [
        Stage(layers=cut, gpus=gpus, shard="parameter")
        for cut in balanced_cuts(config.chain, count)
    ]
    return plan_at_steady_period(config, partial(_Workers, config, rule_of(count), stages), count)


class _Workers:
    """Workers that run a micro-batch each, with weights from home."""

    def __init__(self, config: SystemConfig, rule: Rule, stages: list[Stage]) -> None:
        # An update comes in between as soon as it can; all else waits for what was before it.
        self.scheduler = config.scheduler(rule, stages, ordered=False)
        self.rule = rule
        self.count = len(stages)
        self.updated = config.updated
        self.before: dict[int, list[Name]] = defaultdict(list)
        self.came_home: dict[tuple[int, int], Done] = defaultdict(list)
        self.made: dict[tuple[int, int], Done] = {}

    def micro_batch(self, i: int, earliest_ns: int) -> None:
        """Add a micro-batch that begins then or later, and what is passed on behind it."""
        for stage in range(self.count):
            self.run("F", stage, i, 0 if stage else earliest_ns)
        for stage in reversed(range(self.count)):
            self.run("B", stage, i, 0)
            self.send_home(stage, i)

    def run(self, kind: Kind, stage: int, i: int, earliest_ns: int) -> None:
        """Add an operation behind the one before it on its GPU and behind its weights."""
        before = self.before[i % self.count]
        delay = self.rule.forward_delay(i, stage)
        assert delay is not None
        ready = self.made.get((stage, i // self.count - delay - 1), [])
        if stage != i % self.count:
            ready = [self.fetch(kind, stage, i, [*ready, *before[:-1]])]
        self.scheduler.run(
            kind, stage, i, after=[*before[-1:], *ready], earliest_ns=earliest_ns, priority=1
        )
        self.before[i % self.count] = [*before[-1:], (kind, stage, i)]

    def fetch(self, kind: Kind, stage: int, i: int, after: Done) -> Transfer:
        """Add the transfer of the weights that an operation reads, from home."""
        item = hop("weights", stage, i, ((stage - i) % self.count, 0), reading=int(kind == "B"))
        at_once = not self.scheduler.length_ns(item)
        if kind == "B" and at_once:
            layers = self.scheduler.stages[stage].layer_range
            require_time(self.scheduler, layers, "forward_ns", AT_ONCE)
        held_up = self.updated or at_once
        if kind == "B" and stage == self.count - 1 and held_up:
            # What comes before F begins, which an update may hold up, would be taken for its own.
            after = [*after, ("F", stage, i)]
        return self.scheduler.send(item, after=after)

    def send_home(self, stage: int, i: int) -> None:
        """Add the transfer of a gradient, and behind the last one of an update that update."""
        away = (stage - i) % self.count
        mini_batch, position = divmod(i, self.count)
        whole = self.came_home[stage, mini_batch]
        whole.append(("B", stage, i))
        if away:
            item = hop("weight_gradient", stage, i, (0, away), mode="reduce")
            whole.append(self.scheduler.send(item, after=[("B", stage, i)]))
        if position == self.count - 1:
            at_home = mini_batch * self.count + stage
            updated = self.scheduler.update(stage, at_home, after=whole)
            self.made[stage, mini_batch] = [*updated] or whole


cdp_v1, cdp_v2 = partial(_sharded, one_ago), partial(_sharded, freshest)
