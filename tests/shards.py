"""Plans with sharded weights, gradients or optimizer states, worked out by hand.

Links are full duplex and carry 1 byte a ns. The memory of each GPU is exactly what the plan needs
there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from schedopt.chain import Chain
from schedopt.plan import Operation, Pattern, Plan, Transfer
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.rule import Rule
from schedopt.stage import Shard, Stage
from tests.examples import BYTE_A_NS, EXAMPLES, layer, op, send
from tests.exchanges import EXCHANGES


def sharded(
    shard: Shard,
    memory: Sequence[int],
    chain: Chain,
    period: int,
    operations: Sequence[Operation],
    transfers: Sequence[Transfer],
) -> Plan:
    """Return replicas of every stage on every GPU, a micro-batch and an update each."""
    count = len(memory)
    return Plan(
        chain=chain,
        platform=Platform(gpus=count, memory=memory, bandwidth=BYTE_A_NS, duplex="full"),
        rule=Rule(update_every=count, forward_reads="delay"),
        scope=Scope(allocation="general", max_k=count),
        stages=tuple(
            Stage(layers=(number, number), gpus=tuple(range(count)), shard=shard)
            for number in range(len(chain.layers))
        ),
        pattern=Pattern(
            k=count,
            period_total_ns=period,
            operations=tuple(operations),
            transfers=tuple(transfers),
        ),
    )


def move(tensor: Any, stage: int, chunk: int, source: int, target: int, start: int) -> Transfer:
    """Return a transfer named by micro-batch 0, whose replicas are the GPUs, in 3 chunks."""
    mode = "reduce" if tensor == "weight_gradient" else "copy"
    ends = {"source": source, "target": target, "chunk": chunk, "chunks": 3}
    return send(tensor, stage, 0, start, mode=mode, **ends)


def pair(shard: Shard, memory: Sequence[int]) -> Plan:
    """Two GPUs, a stage in 2 chunks, updates that take 5 ns for the whole stage, T = 16.

    Of 30 bytes 5 are parameters (2 and 3 in chunks 0 and 1), 7 gradients (3 and 4), 9 optimizer
    states (4 and 5), so 9 are of none of these. Chunk 0 is at home on GPU 0, chunk 1 on GPU 1.

    F 0-2, B 2-6. Gradients: chunk 0 to GPU 0 6-9, chunk 1 to GPU 1 6-10. U lasts ceil(5 * 2/5) = 2
    on GPU 0, 9-11, and 3 on GPU 1, 10-13. Weights: chunk 0 to GPU 1 11-13, chunk 1 to GPU 0 13-16.
    A version is on GPU 0 from 16 on and on GPU 1 from 13 on: one at a time.
    """
    sizes = {"parameter_bytes": 5, "gradient_bytes": 7, "optimizer_bytes": 9}
    forth = {"source": 0, "target": 1, "chunks": 2}
    back = {"source": 1, "target": 0, "chunks": 2}
    return sharded(
        shard,
        memory,
        Chain(layers=(layer(2, 4, 30, saved_bytes=100, update_ns=5, **sizes),)),
        16,
        (
            *(op(kind, 0, i, start) for i in (0, 1) for kind, start in (("F", 0), ("B", 2))),
            op("U", 0, 0, 9),
            op("U", 0, 1, 10),
        ),
        (
            send("weight_gradient", 0, 0, 6, chunk=0, mode="reduce", **back),
            send("weight_gradient", 0, 0, 6, chunk=1, mode="reduce", **forth),
            send("weights", 0, 0, 11, chunk=0, **forth),
            send("weights", 0, 0, 13, chunk=1, **back),
        ),
    )


def optimizer_on_two() -> Plan:
    """`pair`, optimizer states sharded: 9 + 5 + 7 + 4 or 5, and 100 saved."""
    return pair("optimizer", [125, 126])


def gradient_on_two() -> Plan:
    """`pair`, gradients sharded too.

    GPU 0 keeps 9 + 5 + 4 + 3, and chunk 1 of the gradient (4) from 2 to 10; GPU 1 keeps 9 + 5 +
    5 + 4, and chunk 0 (3) from 2 to 9. With 100 saved from 0 to 6 this is as much as before.
    """
    return pair("gradient", [125, 126])


def ring(shard: Shard, memory: Sequence[int]) -> Plan:
    """Three GPUs, a stage in 3 chunks that go round, T = 13.

    Of 40 bytes 6 are parameters (2 a chunk), 7 gradients (2, 2 and 3), 10 optimizer states (3, 3
    and 4), so 17 are of none of these. Chunk c is at home on GPU c. F 0-1, B 1-3.

    Gradients: from 3 on chunk c goes from GPU c + 1 to c + 2, until 5, 5 and 6; from 6 on from
    there to GPU c, until 8, 8 and 9. Weights: from 9 to 11 chunk c goes from GPU c to c + 1, from
    11 to 13 from there to c + 2. A version is there from 13 on: one at a time.
    """
    sizes = {"parameter_bytes": 6, "gradient_bytes": 7, "optimizer_bytes": 10}
    return sharded(
        shard,
        memory,
        Chain(layers=(layer(1, 2, 40, saved_bytes=100, **sizes),)),
        13,
        [op(kind, 0, i, start) for i in range(3) for kind, start in (("F", 0), ("B", 1))],
        [
            move(tensor, 0, chunk, (chunk + hop) % 3, (chunk + hop + 1) % 3, start)
            for tensor, hop, start in (
                ("weight_gradient", 1, 3),
                ("weight_gradient", 2, 6),
                ("weights", 0, 9),
                ("weights", 1, 11),
            )
            for chunk in range(3)
        ],
    )


def optimizer_on_three() -> Plan:
    """`ring`, optimizer states sharded: 17 + 6 + 7 + 3, 3 or 4, and 100 saved."""
    return ring("optimizer", [133, 133, 134])


def gradient_on_three() -> Plan:
    """`ring`, gradients sharded too.

    GPU 0 keeps 17 + 6 + 3 + 2, chunk 1 of the gradient (2) from 1 to 8 and chunk 2 (3) from 1 to
    6. GPU 1 keeps as much, chunk 0 (2) from 1 to 5 and chunk 2 (3) from 1 to 9. GPU 2 keeps 17 +
    6 + 4 + 3, chunk 0 (2) from 1 to 8 and chunk 1 (2) from 1 to 5. 100 are saved from 0 to 3.
    """
    return ring("gradient", [133, 133, 134])


def gradient_behind_each() -> Plan:
    """`pair` with two micro-batches on each GPU, gradients taken home behind each, T = 26.

    F 0-2 and 8-10, B 2-6 and 10-14. The first gradient: chunk 0 to GPU 0 6-9, chunk 1 to GPU 1
    6-10; the second 14-17 and 14-18. U 17-19 on GPU 0 and 18-21 on GPU 1, weights 19-21 and 21-24.

    GPU 0 keeps 9 + 5 + 4 + 3, and chunk 1 of the gradient (4) over 2-10 and 10-18; GPU 1 keeps 9 +
    5 + 5 + 4, and chunk 0 (3) over 2-9 and 10-17. 100 are saved over 0-6 and 8-14.
    """
    plan = pair("gradient", [125, 126])
    micro_batches = {0: 0, 1: 0, 2: 8, 3: 8}
    forth = {"source": 0, "target": 1, "chunks": 2}
    back = {"source": 1, "target": 0, "chunks": 2}
    gradients = [
        # Of micro-batch 2 the replicas are counted from its own, GPU 0.
        send("weight_gradient", 0, i, 6 + later, chunk=chunk, mode="reduce", **ends)
        for i, later in ((0, 0), (2, 8))
        for chunk, ends in ((0, back), (1, forth))
    ]
    return replace(
        plan,
        rule=Rule(update_every=4, forward_reads="delay"),
        scope=replace(plan.scope, max_k=4),
        pattern=Pattern(
            k=4,
            period_total_ns=26,
            operations=(
                *(
                    op(kind, 0, i, start + later)
                    for i, later in micro_batches.items()
                    for kind, start in (("F", 0), ("B", 2))
                ),
                op("U", 0, 0, 17),
                op("U", 0, 1, 18),
            ),
            transfers=(
                *gradients,
                send("weights", 0, 0, 19, chunk=0, **forth),
                send("weights", 0, 0, 21, chunk=1, **back),
            ),
        ),
    )


def parameter_on_two() -> Plan:
    """Two GPUs, two stages in 2 chunks, parameters sharded too, T = 18.

    Stage 0: of 24 bytes 5 are parameters (2 and 3), 5 gradients (2 and 3), 10 optimizer states (5
    and 5), so 4 of none; chunk 0 is at home on GPU 0, chunk 1 on GPU 1. Stage 1: of 20 bytes 4 are
    parameters (2 and 2), 6 gradients (3 and 3), 8 optimizer states (4 and 4), so 2 of none; chunk
    0 is at home on GPU 1, chunk 1 on GPU 0.

    Both GPUs: F0 3-5, F1 5-7, B1 7-11, B0 11-15. Weights come for F0 over 0-3 (to GPU 1 0-2), for
    F1 3-5, for B1 5-7, for B0 7-10 (to GPU 1 7-9). Gradients of stage 1 go home 11-14, those of
    stage 0 15-17 (to GPU 0) and 15-18. One version at a time.

    Away from home GPU 0 holds 3 bytes of stage 0 over 0-5 and 7-15, GPU 1 2 bytes; each holds 2
    bytes of stage 1 over 3-7 and 5-11. So 3 + 2 over 3-5 and 7-11, and on GPU 1 2 + 2 over 3-11.
    Of gradients GPU 0 holds 3 bytes of stage 0 over 11-18, GPU 1 2 bytes over 11-17, and each 3
    bytes of stage 1 over 7-14: all over 11-14.

    GPU 0: 4 + 2 + 2 + 5 + 3 + 100 and 2 + 2 + 3 + 4 + 3 + 50, and 5 of copies.
    GPU 1: 4 + 3 + 3 + 5 + 2 + 100 and as much of stage 1, and 4 of copies.
    """
    first = {"parameter_bytes": 5, "gradient_bytes": 5, "optimizer_bytes": 10}
    second = {"parameter_bytes": 4, "gradient_bytes": 6, "optimizer_bytes": 8}
    starts = (("F", 0, 3), ("F", 1, 5), ("B", 1, 7), ("B", 0, 11))
    # What is at home on GPU 0 and comes to GPU 1 is chunk 0 of stage 0 and chunk 1 of stage 1.
    gathers = [
        send("weights", stage, i, start, source=1, target=0, chunk=(stage + 1 - i) % 2, chunks=2)
        for stage, start in ((0, 0), (1, 3), (1, 5), (0, 7))
        for i in (0, 1)
    ]
    gradients = [
        send("weight_gradient", stage, i, start, source=0, target=1, mode="reduce", **part)
        for stage, start in ((1, 11), (0, 15))
        for i in (0, 1)
        for part in ({"chunk": (stage + 1 - i) % 2, "chunks": 2},)
    ]
    return sharded(
        "parameter",
        [116 + 64 + 5, 117 + 64 + 4],
        Chain(
            layers=(
                layer(2, 4, 24, saved_bytes=100, **first),
                layer(2, 4, 20, saved_bytes=50, **second),
            )
        ),
        18,
        [op(kind, stage, i, start) for i in (0, 1) for kind, stage, start in starts],
        [*gathers, *gradients],
    )


def parameter_on_three() -> Plan:
    """Three GPUs, a stage in 3 chunks, parameters sharded too, two copies sent on, T = 25.

    Of 30 bytes 9 are parameters (3 a chunk), 6 gradients (2), 12 optimizer states (4), so 3 of
    none. Chunk c is at home on GPU c. GPU 0: F 3-7, B 9-13; GPU 1: F 6-10, B 13-17; GPU 2: F
    12-16, B 19-23.

    Weights for F come to GPU 0 over 0-3, to GPU 1 over 3-6, to GPU 2 chunk 1 over 6-9 and chunk 0
    over 9-12, from the copy on GPU 1. For B to GPU 0 chunk 1 over 6-9 and chunk 2 over 4-7, to GPU
    1 over 10-13, to GPU 2 chunk 1 over 12-15 and chunk 0 over 16-19, from the copy on GPU 1.
    Gradients go home from GPU 0 over 13-15, from GPU 1 chunk 0 over 17-19 and chunk 2 over 19-21,
    from GPU 2 over 23-25. So chunks 0 and 1 are made at 25 and chunk 2 at 23.

    Copies: GPU 0 0-7 twice, 6-13, 4-13: 4 over 6-7. GPU 1 3-12, 3-10, 10-19, 10-17: 3 over 10-12.
    GPU 2 6-16, 9-16, 12-23, 16-23: 3 over 12-16. Gradients: 2 chunks at a time.

    3 + 3 + 2 + 4, 100 saved, 2 * 2 of gradients and 3 for each copy.
    """
    sizes = {"parameter_bytes": 9, "gradient_bytes": 6, "optimizer_bytes": 12}
    gathers = [
        # Micro-batch and target, chunk, source, start
        *((0, 1, 1, 0), (0, 2, 2, 0), (1, 0, 0, 3), (1, 2, 2, 3), (2, 1, 1, 6), (2, 0, 1, 9)),
        *((0, 1, 1, 6), (0, 2, 2, 4), (1, 0, 0, 10), (1, 2, 2, 10), (2, 1, 1, 12), (2, 0, 1, 16)),
    ]
    gradients = ((1, 0, 13), (2, 0, 13), (0, 1, 17), (2, 1, 19), (0, 2, 23), (1, 2, 23))
    starts = ((3, 9), (6, 13), (12, 19))
    return sharded(
        "parameter",
        [12 + 100 + 4 + 12, 12 + 100 + 4 + 9, 12 + 100 + 4 + 9],
        Chain(layers=(layer(4, 4, 30, saved_bytes=100, **sizes),)),
        25,
        [
            op(kind, 0, i, start)
            for i in range(3)
            for kind, start in zip("FB", starts[i], strict=True)
        ],
        [
            *(
                send("weights", 0, i, start, source=source - i, target=0, chunk=chunk, chunks=3)
                for i, chunk, source, start in gathers
            ),
            *(
                move("weight_gradient", 0, home, source, home, start)
                for home, source, start in gradients
            ),
        ],
    )


def mixed_on_six() -> Plan:
    """Three stages with levels and replicas of their own, micro-batches one by one, T = 94.

    Stage 0 on GPUs 0 and 1 shards optimizer states, stage 1 on GPU 2 nothing, stage 2 on GPUs 3 to
    5 parameters. Micro-batch i begins at 15i, each offset from there: F0 0-1, link 1-2, F1 2-3,
    link 3-4, F2 4-5, B2 7-9, link 9-10, B1 10-12, link 12-13, B0 13-15. The two chunks of stage 2
    that its GPU lacks come over 2-4 for F2 and over 5-7 for B2. One micro-batch is in flight.

    Stage 0: of 30 bytes 4 are parameters, 4 gradients, 6 optimizer states, in 2 chunks; chunk c is
    at home on GPU c. The last B of GPU 0 ends at 75, of GPU 1 at 90. Chunk 1 of the gradient goes
    to GPU 1 over 75-77, chunk 0 to GPU 0 over 90-92; then the weights, chunk 1 made at 90 and chunk
    0 at 92, go the other way over 92-94. Each GPU keeps 30 - 3, and 100 of a micro-batch.

    Stage 1: 20 bytes, and 50 of a micro-batch.

    Stage 2: of 40 bytes 6 are parameters, 9 gradients, 12 optimizer states, in 3 chunks, so 13 of
    none; chunk c is at home on GPU 3 + (2 + c) mod 3. The last B of GPU 3 ends at 54, of GPU 4 at
    69, of GPU 5 at 84, and what is not at home leaves each for 3 ns. Each GPU keeps 13 + 2 + 3 + 4,
    two copies of 2, two chunks of 3 of the gradient, and 200 of a micro-batch.
    """
    operations = [
        op(kind, stage, i, 15 * i + start)
        for i in range(6)
        for kind, stage, start in (
            *(("F", 0, 0), ("F", 1, 2), ("F", 2, 4)),
            *(("B", 2, 7), ("B", 1, 10), ("B", 0, 13)),
        )
    ]
    gathers = [
        send("weights", 2, i, 15 * i + start, source=away, target=0, chunk=chunk, chunks=3)
        for i in range(6)
        for start in (2, 5)
        for away in (1, 2)
        # What is at home on replica r is chunk (r - 2) mod 3.
        for chunk in ((i + away - 2) % 3,)
    ]
    boundaries = [
        send(tensor, stage, i, 15 * i + start)
        for i in range(6)
        for tensor, stage, start in (
            *(("activation", 0, 1), ("activation", 1, 3)),
            *(("gradient", 1, 9), ("gradient", 0, 12)),
        )
    ]
    exchanges = [
        *(send("weight_gradient", 0, 0, start, mode="reduce", chunk=chunk, chunks=2,
               source=1 - chunk, target=chunk) for chunk, start in ((1, 75), (0, 90))),
        *(send("weights", 0, 0, start, chunk=chunk, chunks=2, source=chunk, target=1 - chunk)
          for chunk, start in ((1, 92), (0, 92))),
        *(send("weight_gradient", 2, 0, 54 + 15 * source, mode="reduce", chunk=chunk, chunks=3,
               source=source, target=(2 + chunk) % 3)
          for source in range(3) for chunk in range(3) if (2 + chunk) % 3 != source),
    ]  # fmt: skip
    rows: tuple[tuple[tuple[int, ...], Shard], ...] = (
        ((0, 1), "optimizer"),
        ((2,), "none"),
        ((3, 4, 5), "parameter"),
    )
    sizes = ((4, 4, 6), (5, 5, None), (6, 9, 12))
    return Plan(
        chain=Chain(
            layers=tuple(
                layer(
                    1,
                    2,
                    weight,
                    saved_bytes=saved,
                    parameter_bytes=parameters,
                    gradient_bytes=gradients,
                    optimizer_bytes=states,
                )
                for (weight, saved), (parameters, gradients, states) in zip(
                    ((30, 100), (20, 50), (40, 200)), sizes, strict=True
                )
            )
        ),
        platform=Platform(
            gpus=6, memory=[127, 127, 70, *[232] * 3], bandwidth=BYTE_A_NS, duplex="full"
        ),
        rule=Rule(update_every=6, forward_reads="delay"),
        scope=Scope(allocation="general", max_k=6),
        stages=tuple(
            Stage(layers=(number, number), gpus=gpus, shard=shard)
            for number, (gpus, shard) in enumerate(rows)
        ),
        pattern=Pattern(
            k=6,
            period_total_ns=94,
            operations=tuple(operations),
            transfers=(*gathers, *exchanges, *boundaries),
        ),
    )


SHARDED: Final[Mapping[str, Callable[[], Plan]]] = {
    plan.__name__: plan
    for plan in (
        optimizer_on_two,
        optimizer_on_three,
        gradient_on_two,
        gradient_on_three,
        gradient_behind_each,
        parameter_on_two,
        parameter_on_three,
        mixed_on_six,
    )
}

EVERY_PLAN: Final[Mapping[str, Callable[[], Plan]]] = {**EXAMPLES, **SHARDED, **EXCHANGES}
