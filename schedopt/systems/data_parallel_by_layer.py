"""Data parallelism that chooses for each layer what to send (Boehm 2022).

Either the gradient is reduced in a ring, or what W needs goes round in a ring and each GPU runs W
of every micro-batch. The second sends less where a gradient is large and few samples made it, and
costs each GPU the W of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Final

from schedopt.plan import Kind, Plan, Transfer
from schedopt.systems.collectives import apply_gradients, hop, last_backwards, refuse_copies
from schedopt.systems.config import SystemConfig
from schedopt.systems.data_parallel import list_buckets, on_all_gpus
from schedopt.systems.gradient_exchange import Exchange, choose_exchange
from schedopt.systems.list_scheduler import ListScheduler

_WHOLE: Final[tuple[Kind, ...]] = ("B",)
_HALVES: Final[tuple[Kind, ...]] = ("I", "W")


def plan(config: SystemConfig) -> Plan:
    """Return a step in which each layer sends what takes less time, W on other GPUs included.

    As overlapped data parallelism, but layers that send what W needs have their backward split.
    The W of other GPUs' micro-batches run one layer later, while the next halves are on their way.

    Raises
    ------
    InputError
        As overlapped data parallelism. A layer that does not say what its W needs reduces, and so
        do all where one does not say how long the halves of its backward take.
    """
    refuse_copies(config.chain)
    buckets = list_buckets(config.chain, 1)
    exchanges = choose_exchange(config.chain, len(config.platform.gpus), config.microbatches)
    halves = config.chain.has_halves
    gathering = frozenset(
        stage
        for stage, (first, last) in enumerate(buckets)
        if halves and _gathers(config, exchanges[first : last + 1])
    )
    stages = on_all_gpus(config, buckets)
    scheduler = config.scheduler(config.flush_rule(replicated=True), stages)
    replicas, m = len(config.platform.gpus), config.microbatches
    for first in range(0, m, replicas):
        _run_round(scheduler, gathering, range(first, first + replicas))
    for stage in reversed(range(len(buckets))):
        if stage not in gathering:
            apply_gradients(scheduler, stage, last_backwards(stage, replicas, m))
            continue
        for i in range(m - replicas, m):
            scheduler.update(stage, i)
    return config.flushed(scheduler, split=bool(gathering))


def _gathers(config: SystemConfig, exchanges: Sequence[Exchange]) -> bool:
    """Return whether the bytes that a stage saves take longer than the W that it adds."""
    if any(exchange.gathered_bytes is None for exchange in exchanges):
        return False
    saved = sum(exchange.reduced_bytes - (exchange.gathered_bytes or 0) for exchange in exchanges)
    extra = sum(exchange.extra_ns or 0 for exchange in exchanges)
    return saved > 0 and config.platform.longest_transfer_ns(floor(saved)) > extra


def _run_round(scheduler: ListScheduler, gathering: frozenset[int], micro_batches: range) -> None:
    """Run a micro-batch on each GPU, and send on what the W of some stages need."""
    replicas = len(micro_batches)
    stages = range(len(scheduler.stages))
    for i in micro_batches:
        for stage in stages:
            scheduler.run("F", stage, i)
    arrived: list[list[Transfer]] = []
    for stage in reversed(stages):
        for i in micro_batches:
            for kind in _HALVES if stage in gathering else _WHOLE:
                scheduler.run(kind, stage, i)
        _run_others(scheduler, arrived)
        arrived = []
        if stage in gathering:
            arrived = [_send_round(scheduler, stage, i, replicas) for i in micro_batches]
    _run_others(scheduler, arrived)


def _run_others(scheduler: ListScheduler, arrived: list[list[Transfer]]) -> None:
    """Run W of each micro-batch where what it needs arrives."""
    for sent in arrived:
        for item in sent:
            scheduler.run("W", item.stage, item.shift, replica=item.target or 0, after=[item])


def _send_round(scheduler: ListScheduler, stage: int, i: int, replicas: int) -> list[Transfer]:
    """Send what W of a micro-batch needs from replica to replica; return what arrives at each."""
    sent: list[Transfer] = []
    for replica in range(replicas - 1):
        item = hop("weight_half", stage, i, (replica, replica + 1))
        sent.append(scheduler.send(item, after=sent[-1:] or [("I", stage, i)]))
    return sent
