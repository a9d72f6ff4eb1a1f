"""Plans with replicas, by hand and from the constructors of systems, for a chain that is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any, Final

from schedopt import Chain, Pattern, Plan, Platform, Rule, Scope, Stage, Transfer, check
from schedopt.plan import place_in_period
from schedopt.stage import Shard
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from schedopt.systems.flushes import one_f_one_b_order
from tests.examples import op, send
from tests.running.local_run import FREE

SLOT: Final = 10
"""What F and B last in a stage, with a pause of 2 for what is sent."""


def timed(chain: Chain, forward: int, backward: int) -> Chain:
    """Return a chain whose layers take so long each, ns; its bytes stay as they are."""
    times = {"forward_ns": forward, "backward_ns": backward, "update_ns": None}
    layers = tuple(replace(layer, **times) for layer in chain.layers)  # type: ignore[arg-type]
    return replace(chain, layers=layers)


def quick(gpus: int) -> Platform:
    """Return GPUs whose links send all that is small in 2 ns."""
    return Platform(gpus=gpus, memory="1T", bandwidth=10**15, latency=1, duplex="full")


def system(name: str, chain: Chain, gpus: int, microbatches: int, **more: Any) -> Plan:
    """Return the plan of a system on GPUs without links that take time, or with `platform`.

    F of a layer takes `unit_ns`, 1 unless it is given, and B twice as long.
    """
    unit = more.pop("unit_ns", 1)
    platform = more.pop("platform", Platform(gpus=gpus, memory="1T"))
    config = SystemConfig(
        chain=timed(chain, unit, 2 * unit), platform=platform, microbatches=microbatches, **more
    )
    return find_system(name).plan(config)


def cut(chain: Chain, parts: int) -> list[tuple[int, int]]:
    """Cut a chain into parts of about as many layers."""
    count = len(chain.layers)
    ends = [count * part // parts for part in range(parts + 1)]
    return [(begin, end - 1) for begin, end in pairwise(ends)]


def staged(chain: Chain, rows: Sequence[tuple[int, int]]) -> Chain:
    """Return a chain in which each stage takes 8 ns forward and 8 ns back, in its first layer."""
    first = {begin for begin, _ in rows}
    plain = timed(chain, 0, 0)
    layers = [
        replace(layer, forward_ns=8, backward_ns=8) if number in first else layer
        for number, layer in enumerate(plain.layers)
    ]
    return replace(plain, layers=tuple(layers))


def cyclic(chain: Chain, count: int, *, fresh: bool, spread: bool, reduce: bool = False) -> Plan:
    """Return cyclic data parallelism (Fournier and Oyallon) of so many stages and micro-batches.

    In slots of 10 ns micro-batch i runs F of stage s in slot 2i + s and B in slot 2i + 2N - 1 - s.
    Gradients go from replica to replica right behind each B, and the weights back to all others
    behind that of the last micro-batch.

    Parameters
    ----------
    chain : Chain
    count : int
        N.
    fresh : bool
        CDP-v2, whose micro-batches read a new version as soon as they can, not CDP-v1.
    spread : bool
        Stage s on N - s GPUs of its own; else all stages on N GPUs.
    reduce : bool
        Whether gradients are added and not copied.
    """
    rows = cut(chain, count)
    gpus, used = [], 0
    for stage in range(count):
        gpus.append(tuple(range(used, used + count - stage)) if spread else tuple(range(count)))
        used += count - stage if spread else 0
    table = tuple(tuple(int(i + stage < count - 1) for stage in range(count)) for i in range(count))
    rule = Rule(update_every=count, forward_reads="delay", delay=1)
    if fresh:
        rule = Rule(update_every=count, forward_reads="table", table=table)
    period = 2 * SLOT * count
    operations, transfers = [], []

    def sending(tensor: Any, stage: int, i: int, start: int, **more: Any) -> None:
        at, shift = place_in_period(start, i, count, period)
        transfers.append(send(tensor, stage, shift, at, **more))

    mode = "reduce" if reduce else "copy"
    for i in range(count):
        for stage in range(count):
            replicas = len(gpus[stage])
            forward = SLOT * (2 * i + stage)
            backward = SLOT * (2 * i + 2 * count - 1 - stage)
            for kind, start in (("F", forward), ("B", backward)):
                at, shift = place_in_period(start, i, count, period)
                operations.append(op(kind, stage, shift, at))
            if spread and stage < count - 1:
                sending("activation", stage, i, forward + 8)
            if spread and stage:
                sending("gradient", stage - 1, i, backward + 8)
            if replicas > 1 and i < count - 1:
                onward = {"source": 0, "target": 1, "mode": mode}
                sending("weight_gradient", stage, i, backward + 8, **onward)
            for target in range(1, replicas if i == count - 1 else 1):
                sending("weights", stage, i, backward + 8, source=0, target=target)
    return Plan(
        chain=staged(chain, rows),
        platform=quick(max(max(row) for row in gpus) + 1),
        rule=rule,
        scope=replace(FREE, memory="sum"),
        stages=tuple(Stage(layers=a, gpus=b) for a, b in zip(rows, gpus, strict=True)),
        pattern=Pattern(
            k=count,
            period_total_ns=period,
            operations=tuple(operations),
            transfers=tuple(transfers),
        ),
    )


def data_parallel(chain: Chain, gpus: int, transfers: Sequence[Transfer]) -> Plan:
    """Return a step of one stage on all GPUs, a micro-batch each: F over 0-8, B 8-16, T = 60."""
    rows = cut(chain, 1)
    return Plan(
        chain=staged(chain, rows),
        platform=quick(gpus),
        rule=Rule(update_every=gpus, forward_reads="delay", delay=0),
        scope=Scope(allocation="general", max_k=None),
        stages=(Stage(layers=rows[0], gpus=tuple(range(gpus))),),
        pattern=Pattern(
            k=gpus,
            period_total_ns=60,
            operations=tuple(
                op(kind, 0, i, start) for i in range(gpus) for kind, start in (("F", 0), ("B", 8))
            ),
            transfers=tuple(transfers),
        ),
    )


def exchanged(chain: Chain, chunks: int = 1) -> Plan:
    """Return two replicas that add the other's gradient to theirs at one instant."""
    ends = [{"source": 0, "target": 1}, {"source": 1, "target": 0}]
    return data_parallel(
        chain,
        2,
        [
            send("weight_gradient", 0, 0, 16 + 2 * c, mode="reduce", chunk=c, chunks=chunks, **end)
            for end in ends
            for c in range(chunks)
        ],
    )


def gathered(chain: Chain, gpus: int, chunks: int = 1) -> Plan:
    """Return replicas whose gradients the first adds up, and whose weights go from one to the next.

    So each but the first and the last sends on weights that it did not make.
    """

    def found() -> Iterator[Transfer]:
        for c in range(chunks):
            more: dict[str, Any] = {"chunk": c, "chunks": chunks}
            for r in range(1, gpus):
                ends = {"source": r, "target": 0}
                yield send("weight_gradient", 0, 0, 16 + 2 * c, mode="reduce", **ends, **more)
            for r in range(1, gpus):
                begin = 18 + 2 * chunks * r + 2 * c
                yield send("weights", 0, 0, begin, source=r - 1, target=r, **more)

    return data_parallel(chain, gpus, list(found()))


def twice_round(chain: Chain) -> Plan:
    """Return 2 replicas with 2 micro-batches each, whose gradient goes round twice as a copy.

    Micro-batches 0 to 3: F and B of 8 ns, on replica i mod 2 from 10i on; the sum is sent at
    10i + 16 behind each but the last. Replica 1 has it whole at 46, and sends the weights.
    """
    one = data_parallel(chain, 2, ())
    more = {"source": 0, "target": 1}
    return replace(
        one,
        rule=Rule(update_every=4, forward_reads="delay", delay=0),
        pattern=Pattern(
            k=4,
            period_total_ns=60,
            operations=tuple(
                op(kind, 0, i, 10 * i + start)
                for i in range(4)
                for kind, start in (("F", 0), ("B", 8))
            ),
            transfers=(
                *(send("weight_gradient", 0, i, 10 * i + 16, **more) for i in range(3)),
                send("weights", 0, 3, 46, **more),
            ),
        ),
    )


def covering(chain: Chain, count: int) -> Plan:
    """Return nF1B (Dutta, Chaki and De): two stages, one B for so many F of 8 ns each."""
    rows, period = cut(chain, 2), 2 * 8 * count
    starts = [("F", s, i, 8 * i + s * period // 2) for s in (0, 1) for i in range(count)]
    return Plan(
        chain=staged(chain, rows),
        platform=Platform(gpus=2, memory="1T"),
        rule=Rule(update_every=count, backward_reads="live"),
        scope=Scope(max_k=count),
        stages=tuple(Stage(layers=row, gpus=(s,)) for s, row in enumerate(rows)),
        pattern=Pattern(
            k=count,
            period_total_ns=period,
            operations=(
                *(op(kind, s, i, start) for kind, s, i, start in starts),
                op("B", 1, -count, 0, covers=count),
                op("B", 0, -count, period // 2, covers=count),
            ),
        ),
    )


def flushed(chain: Chain, microbatches: int) -> Plan:
    """Return a step with a flush of stages on 2, 1 and 3 GPUs."""
    rows = cut(chain, 3)
    config = SystemConfig(chain=timed(chain, 1, 2), platform=quick(6), microbatches=microbatches)
    stages = [
        Stage(layers=rows[0], gpus=(0, 1)),
        Stage(layers=rows[1], gpus=(2,)),
        Stage(layers=rows[2], gpus=(3, 4, 5)),
    ]
    return flush_step(config, stages, one_f_one_b_order(3, microbatches))


def sharded(
    chain: Chain,
    levels: Sequence[Shard],
    microbatches: int,
    *,
    again: bool = False,
    ahead: Mapping[int, int] | None = None,
) -> Plan:
    """Return a step with a flush of stages on 2, 1 and 3 GPUs that are sharded, in long layers.

    Each may compute its first layer again. Of those in `ahead` gradients go home at once.
    """
    rows = cut(chain, 3)
    config = SystemConfig(chain=timed(chain, 10, 20), platform=quick(6), microbatches=microbatches)
    stages = [
        Stage(layers=row, gpus=gpus, shard=level, recompute=((row[0], row[0]),) if again else ())
        for row, gpus, level in zip(rows, ((0, 1), (2,), (3, 4, 5)), levels, strict=True)
    ]
    return flush_step(config, stages, one_f_one_b_order(3, microbatches), ahead=ahead or {})


def layered(chain: Chain, level: Shard, microbatches: int, ahead: int) -> Plan:
    """Return a step of four stages on the same 2 GPUs, whose gradients go home at once."""
    rows = cut(chain, 4)
    config = SystemConfig(chain=timed(chain, 10, 20), platform=quick(2), microbatches=microbatches)
    stages = [Stage(layers=row, gpus=(0, 1), shard=level) for row in rows]
    there = [("F", s) for s in range(4)] + [("B", s) for s in reversed(range(4))]
    turns: list[Turn] = [
        (kind, stage, first + replica)  # type: ignore[misc]
        for first in range(0, microbatches, 2)
        for kind, stage in there
        for replica in (0, 1)
    ]
    return flush_step(config, stages, turns, ahead=dict.fromkeys(range(4), ahead))


def _makers() -> dict[str, tuple[Callable[[Chain], Plan], int]]:
    """Return what makes plans, and the micro-batches of a few updates of each."""
    makers: dict[str, tuple[Callable[[Chain], Plan], int]] = {
        "exchanged": (exchanged, 6),
        "exchanged in chunks": (partial(exchanged, chunks=3), 6),
        "gathered": (partial(gathered, gpus=3), 9),
        "gathered in chunks": (partial(gathered, gpus=3, chunks=4), 9),
        "twice round": (twice_round, 12),
    }
    for n, fresh, spread in product((2, 3, 4), (False, True), (False, True)):
        name = f"CDP-v{1 + fresh}, {n} stages{', spread' if spread else ''}"
        reduce = not spread and n > 2
        makers[name] = partial(cyclic, count=n, fresh=fresh, spread=spread, reduce=reduce), 4 * n
    for gpus, m in ((2, 4), (3, 3)):
        slow = Platform(gpus=gpus, memory="1T", bandwidth=10**12, latency=1)
        for name in ("dp_blocking", "dp_overlapped", "dp_bucketed"):
            for label, platform in (("", Platform(gpus=gpus, memory="1T")), (", slow", slow)):
                more = {"platform": platform, "bucket_bytes": 300}
                plan = partial(_system, name, gpus, m, more)
                makers[f"{name}, {gpus} GPUs{label}"] = plan, 3 * m
    for m in (6, 5):
        makers[f"flushed on 6 GPUs, m = {m}"] = partial(flushed, microbatches=m), 3 * m
    for gpus, m in ((2, 2), (2, 4), (4, 4)):
        name = f"chimera, {gpus} GPUs, m = {m}"
        makers[name] = partial(_system, "chimera", gpus, m, {}), 3 * m
        more = {"platform": quick(gpus)}
        makers[f"{name}, links"] = partial(_system, "chimera", gpus, m, more), 3 * m
    for level in ("optimizer", "gradient", "parameter"):
        levels: tuple[Shard, ...] = (level, "none", level)
        makers[f"{level} sharded on 6 GPUs"] = partial(sharded, levels=levels, microbatches=6), 18
    levels = ("parameter", "optimizer", "gradient")
    mixed = partial(sharded, levels=levels, microbatches=6, again=True)
    makers["mixed shards on 6 GPUs, again"] = mixed, 18
    later: tuple[Shard, ...] = ("gradient", "parameter")
    for level, ahead in product(later, (0, 1)):
        at_once = {"microbatches": 6, "again": True, "ahead": {0: ahead, 2: 1 - ahead}}
        plan = partial(sharded, levels=(level, "none", level), **at_once)  # type: ignore[arg-type]
        makers[f"{level} sharded on 6 GPUs, home at once, {ahead} ahead"] = plan, 18
        by_layer = partial(layered, level=level, microbatches=4, ahead=ahead)
        makers[f"{level} sharded by layer, {ahead} ahead"] = by_layer, 12
    for name, gpus in product(("zero_1", "zero_2", "zero_3", "cdp_v1_zero", "cdp_v2_zero"), (2, 3)):
        more = {"platform": quick(gpus), "unit_ns": 100}
        makers[f"{name}, {gpus} GPUs"] = partial(_system, name, gpus, gpus, more), 4 * gpus
    return makers


def _system(name: str, gpus: int, m: int, more: dict[str, Any], chain: Chain) -> Plan:
    return system(name, chain, gpus, m, **more)


_MAKERS: Final = _makers()
NAMES: Final = tuple(_MAKERS)
"""Of the plans with replicas."""
_OTHER_SIZES: Final = re.compile(
    r"[24] stages|^(dp_|zero_|cdp_).*, 2 GPUs|^chimera, 2 GPUs, m = 2|m = 6$"
)
ONE_SIZE: Final = tuple(name for name in NAMES if not _OTHER_SIZES.search(name))
"""Of one plan of each kind, mostly that of three GPUs: what is tried by day."""


def replicated_plan(name: str, chain: Chain) -> tuple[Plan, int]:
    """Return a plan with the micro-batches of a few updates, for a chain of 8 layers or more."""
    make, count = _MAKERS[name]
    plan = make(chain)
    assert check(plan) == (), name
    return plan, count
