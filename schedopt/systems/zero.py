"""ZeRO: data parallelism that keeps each part of the weights on one GPU (Rajbhandari et al. 2020).

Stage 1 shards the optimizer state, stage 2 the gradients too, stage 3 the parameters too. All run
as overlapped data parallelism, a stage for each layer that has gradients, in as many chunks as
there are GPUs. Each GPU adds the gradients of its m / P micro-batches up, and they are reduced to
their homes once a step, behind the last backward of the stage. So a gradient away from home lies
there from the first backward of the step on, and sharding gradients saves most where m = P.
"""

from __future__ import annotations

from collections.abc import Sequence

from schedopt.plan import Plan, Transfer
from schedopt.stage import Stage
from schedopt.systems.collectives import (
    AT_ONCE,
    apply_gradients,
    hop,
    last_backwards,
    refuse_copies,
)
from schedopt.systems.config import SystemConfig, require_time
from schedopt.systems.data_parallel import course, list_buckets, on_all_gpus, replicated_step
from schedopt.systems.flush_step import with_recompute
from schedopt.systems.list_scheduler import ListScheduler
from schedopt.systems.steady_state import Name

Done = list[Name | Transfer]


def optimizer(config: SystemConfig) -> Plan:
    """Return a step of ZeRO-1 (Rajbhandari et al. 2020, section 5.1): sharded optimizer state.

    Gradients go to their homes, updated weights come from there. Refused as data parallelism.
    """
    return replicated_step(config, list_buckets(config.chain, 1), "optimizer")


def gradient(config: SystemConfig) -> Plan:
    """Return a step of ZeRO-2 (Rajbhandari et al. 2020, section 5.2): sharded gradients too.

    As ZeRO-1, but away from home gradients are freed when they are sent.
    """
    return replicated_step(config, list_buckets(config.chain, 1), "gradient")


def parameter(config: SystemConfig) -> Plan:
    """Return a step of ZeRO-3 (Rajbhandari et al. 2020, section 5.3): sharded parameters too.

    Weights are gathered for each operation, and gradients go home. The GPUs gather the weights of
    a stage together, in a ring, for F and again for B. When a GPU begins an operation it begins to
    gather for the next one, and not further ahead. An operation waits for all that its GPU
    receives and sends on in the gathering, as in a collective. Refused as data parallelism.
    """
    return gathered_step(config, on_all_gpus(config, list_buckets(config.chain, 1), "parameter"))


def gathered_step(config: SystemConfig, stages: Sequence[Stage]) -> Plan:
    """Return a step of ZeRO-3 on stages that all have the same replicas, and may recompute.

    As `parameter`; weights are gathered for a recompute too.
    """
    refuse_copies(config.chain)
    scheduler = config.scheduler(config.flush_rule(replicated=True), [*stages])
    replicas = len(stages[0].gpus)
    operations = [
        *with_recompute(
            stages,
            (
                (kind, stage, first)
                for first in range(0, config.microbatches, replicas)
                for kind, stage in course(len(stages))
            ),
        )
    ]
    gathering: list[list[Transfer]] = []
    for number, operation in enumerate(operations):
        gathering = _gather(scheduler, operation, operations[:number][-2:], gathering)
        kind, stage, first = operation
        for replica in range(replicas):
            scheduler.run(kind, stage, first + replica, after=_ready(gathering, replica))
    for stage in reversed(range(len(scheduler.stages))):
        last = last_backwards(stage, replicas, config.microbatches)
        apply_gradients(scheduler, stage, last)
    return config.flushed(scheduler)


def _gather(
    scheduler: ListScheduler,
    operation: Name,
    before: Sequence[Name],
    previous: list[list[Transfer]],
) -> list[list[Transfer]]:
    """Gather the weights that an operation reads, around the ring of the replicas.

    In step n each replica receives the chunk of the one that lies n + 1 behind it. The operation
    has the micro-batch of replica 0; the other replicas run those behind it. `before` are the two
    operations before it, as far as there are, and `previous` is the gathering for the last of
    these, by step and receiving replica, as is what is returned.
    """
    kind, stage, first = operation
    replicas = len(scheduler.stages[stage].gpus)
    again = bool(scheduler.stages[stage].recompute)
    reading = {"F": 0, "R": 1, "B": 1 + again}[kind]
    steps: list[list[Transfer]] = []
    for step in range(replicas - 1):
        hops = []
        for replica in range(replicas):
            part = (replica - 1 - step - stage) % replicas, replicas
            item = hop("weights", stage, first + replica, (-1, 0), part, reading=reading)
            if reading and not scheduler.length_ns(item):
                layers = scheduler.stages[stage].layer_range
                require_time(scheduler, layers, "forward_ns", AT_ONCE)
            if steps:
                after: Done = [steps[-1][replica - 1], steps[-1][replica]]
            else:
                after = _ready(previous, replica)
                after += [_on(name, replica) for name in before[:-1]]
                if before and before[-1][1] == stage and not scheduler.length_ns(item):
                    # What comes in no time when F begins would be taken for its weights.
                    after.append(_on(before[-1], replica))
            hops.append(scheduler.send(item, after=after))
        steps.append(hops)
    return steps


def _ready(gathering: list[list[Transfer]], replica: int) -> Done:
    """Return the last that a replica receives and the last that it sends on."""
    return [hops[place % len(hops)] for hops in gathering[-1:] for place in (replica, replica + 1)]


def _on(operation: Name, replica: int) -> Name:
    kind, stage, first = operation
    return kind, stage, first + replica
