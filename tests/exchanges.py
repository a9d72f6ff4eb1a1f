"""Plans by hand in which replicas send each other what W needs, instead of their gradients.

Links carry 1 byte a ns each way. The memory of each GPU is exactly what the plan needs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from schedopt.chain import Chain, Layer
from schedopt.plan import Operation, Pattern, Plan, Transfer
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.rule import Rule
from schedopt.stage import Stage
from tests.examples import BYTE_A_NS, data_parallel, layer, op, send, stages


def foreign(stage: int, shift: int, start: int, replica: int) -> Operation:
    """Return a W on another replica than that of its micro-batch."""
    return replace(op("W", stage, shift, start), replica=replica)


def pass_on(stage: int, shift: int, start: int, source: int, target: int) -> Transfer:
    return send("weight_half", stage, shift, start, source=source, target=target)


def halved(forward: int, inner: int, outer: int, weight: int, **more: Any) -> Layer:
    return layer(
        forward,
        inner + outer,
        weight,
        backward_input_ns=inner,
        backward_weight_ns=outer,
        **more,
    )


def step(
    layers: tuple[Layer, ...],
    found: tuple[Stage, ...],
    memory: int,
    period: int,
    rows: Sequence[tuple[str, int, int, int]],
    transfers: Iterable[Transfer],
) -> Plan:
    """Return a plan with a micro-batch for each replica, updates behind it, and a flush.

    A row has kind, stage, start and replica, and holds for each micro-batch.
    """
    replicas = len(found[0].gpus)
    operations = (
        replace(op(kind, stage, i, start), replica=replica)
        for i in range(replicas)
        for kind, stage, start, replica in rows
    )
    return Plan(
        chain=Chain(layers=layers),
        platform=Platform(gpus=replicas, memory=memory, bandwidth=BYTE_A_NS, duplex="full"),
        rule=Rule(update_every=replicas, forward_reads="delay", delay=0),
        scope=Scope(allocation="general", max_k=replicas, split_backward=True),
        stages=found,
        pattern=Pattern(
            k=replicas,
            period_total_ns=period,
            operations=tuple(operations),
            transfers=tuple(transfers),
        ),
    )


def all_gather(period: int = 14) -> Plan:
    """Two replicas, each runs W of both micro-batches, T = 14 (or longer, with a pause behind).

    Both GPUs: F 0-2, I 2-5, W of the own micro-batch 5-9, that of the other one 10-14. What W
    needs, 5 bytes, is sent both ways over 5-10: it lies where it was made over [2, 10), and where
    it comes over [5, 14). So 10 bytes over [5, 10). The version made at 14 lies to 28.
    """
    only = halved(
        2, 3, 4, 20, saved_bytes=100, saved_weight_bytes=5, parameter_bytes=6, gradient_bytes=6
    )
    return step(
        (only,),
        stages((0, 0, [0, 1])),
        # 20 + 100 + 2 * 5
        memory=130,
        period=period,
        rows=[("F", 0, 0, 0), ("I", 0, 2, 0), ("W", 0, 5, 0), ("W", 0, 10, 1)],
        transfers=(pass_on(0, 0, 5, 0, 1), pass_on(0, 1, 5, 0, 1)),
    )


def ring() -> Plan:
    """Three replicas in a ring: each sends on what came to it, T = 11.

    All GPUs: F 0-1, I 1-3, W of the own micro-batch 3-5, of the one before 6-8, of the one before
    that 9-11. What W needs, 3 bytes, is sent over 3-6 and sent on over 6-9. It lies where it was
    made over [1, 6), on the next GPU over [3, 9) and on the one behind over [6, 11): 2 at once
    over [3, 9).
    """
    only = halved(
        1, 2, 2, 10, saved_bytes=50, saved_weight_bytes=3, parameter_bytes=2, gradient_bytes=2
    )
    return step(
        (only,),
        stages((0, 0, [0, 1, 2])),
        # 10 + 50 + 2 * 3
        memory=66,
        period=11,
        rows=[("F", 0, 0, 0), ("I", 0, 1, 0), ("W", 0, 3, 0), ("W", 0, 6, 1), ("W", 0, 9, -1)],
        transfers=[pass_on(0, i, *hop) for i in range(3) for hop in ((3, 0, 1), (6, 1, 2))],
    )


def mixed_exchange() -> Plan:
    """Stage 0 gathers what W needs, stage 1 reduces its gradient, on the same two GPUs, T = 17.

    Both GPUs: F0 0-2, F1 2-4, B1 4-8, I0 8-10, W0 of the own micro-batch 10-12, of the other one
    15-17. The gradient of stage 1 goes round over 8-12, what W0 needs is sent over 12-15: these 3
    bytes lie where they were made over [8, 15), and where they come over [12, 17).
    """
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4}
    first = halved(2, 2, 2, 10, saved_bytes=100, saved_weight_bytes=3, **sizes)
    second = halved(2, 2, 2, 10, saved_bytes=50, **sizes)
    around = data_parallel().pattern.transfers[:4]
    return step(
        (first, second),
        stages((0, 0, [0, 1]), (1, 1, [0, 1])),
        # 20 + 100 + 50 + 2 * 3
        memory=176,
        period=17,
        rows=[
            *(("F", 0, 0, 0), ("F", 1, 2, 0), ("B", 1, 4, 0)),
            *(("I", 0, 8, 0), ("W", 0, 10, 0), ("W", 0, 15, 1)),
        ],
        transfers=(*around, pass_on(0, 0, 12, 0, 1), pass_on(0, 1, 12, 0, 1)),
    )


EXCHANGES: Final[Mapping[str, Callable[[], Plan]]] = {
    plan.__name__: plan for plan in (all_gather, ring, mixed_exchange)
}
