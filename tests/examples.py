"""Small plans worked out by hand.

Links carry 1 byte a ns. The memory of each GPU is exactly what the plan needs there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from schedopt.chain import Chain, Layer
from schedopt.plan import Operation, Pattern, Plan, Transfer, place_in_period
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.rule import Rule
from schedopt.stage import Stage

BYTE_A_NS: Final = 10**9


def op(kind: Any, stage: int, shift: int, start: int, covers: int = 1) -> Operation:
    return Operation(kind=kind, stage=stage, shift=shift, start_ns=start, covers=covers)


def send(tensor: Any, stage: int, shift: int, start: int, **more: Any) -> Transfer:
    return Transfer(tensor=tensor, stage=stage, shift=shift, start_ns=start, **more)


def layer(forward: int, backward: int, weight: int, activation: int = 1, **more: Any) -> Layer:
    return Layer(
        forward_ns=forward,
        backward_ns=backward,
        weight_bytes=weight,
        activation_bytes=activation,
        **more,
    )


def weighty(forward: int, backward: int, saved: int, **more: Any) -> Layer:
    """Return a layer of which each version takes 20 bytes, and all else 30."""
    given = {"parameter_bytes": 20, "gradient_bytes": 20} | more
    return layer(forward, backward, 50, saved_bytes=saved, **given)


def stages(*rows: tuple[int, int, Sequence[int]]) -> tuple[Stage, ...]:
    return tuple(Stage(layers=(first, last), gpus=tuple(gpus)) for first, last, gpus in rows)


def timed(
    period: int, *micro_batches: Mapping[str, int], also: Sequence[Operation | Transfer] = ()
) -> Pattern:
    """Return a pattern from the starts of each of its k micro-batches: ``{"F0": 0, "a0": 2}``.

    The letters a and g are the activation of a stage and its gradient.
    """
    k = len(micro_batches)
    operations, transfers = [], []
    for i, starts in enumerate(micro_batches):
        for name, time in starts.items():
            start, shift = place_in_period(time, i, k, period)
            tensor = {"a": "activation", "g": "gradient"}.get(name[0])
            if tensor is None:
                operations.append(op(name[0], int(name[1:]), shift, start))
            else:
                transfers.append(send(tensor, int(name[1:]), shift, start))
    return Pattern(
        k=k,
        period_total_ns=period,
        operations=(*operations, *(item for item in also if isinstance(item, Operation))),
        transfers=(*transfers, *(item for item in also if isinstance(item, Transfer))),
    )


def planned(layers: Sequence[Layer], platform: Platform, pattern: Pattern, **more: Any) -> Plan:
    """Return a plan in which stage s is layer s and lies on GPU s, if it does not say otherwise."""
    own = stages(*((number, number, [number]) for number in range(len(layers))))
    fields: dict[str, Any] = {"chain": Chain(layers=tuple(layers)), "stages": own} | more
    return Plan(platform=platform, pattern=pattern, **fields)


def on_one_gpu(
    rule: Rule, period: int, *operations: Operation, again: bool = False, backward_ns: int = 1
) -> Plan:
    """Return a stage of one layer that keeps nothing but 30 bytes and 20 for each version."""
    k = sum(1 for operation in operations if operation.kind == "F")
    only = weighty(1, backward_ns, 0, update_ns=int(operations[-1].kind == "U"))
    return planned(
        [only],
        Platform(gpus=1, memory=1000),
        Pattern(k=k, period_total_ns=period, operations=operations),
        rule=rule,
        scope=Scope(max_k=k, recompute=again),
        stages=(Stage(layers=(0, 0), gpus=(0,), recompute=((0, 0),) if again else ()),),
    )


def contiguous() -> Plan:
    """1F1B on 3 GPUs with half-duplex links: F and B last 2, transfers 1, T = 4.

    Micro-batch 0: F0 0-2, link 2-3, F1 3-5, link 5-6, F2 6-8, B2 8-10, link 10-11, B1 13-15,
    link 15-16, B0 18-20. So NCA = 20/4, 12/4 and ceil(4/4): 5, 3 and 1. Both gradients wait for
    2 ns.
    """
    computed = {"F0": 0, "F1": 3, "F2": 6, "B2": 8, "B1": 13, "B0": 18}
    return planned(
        [
            layer(2, 2, 10, saved_bytes=100),
            layer(2, 2, 20, saved_bytes=200, saved_input_bytes=7),
            layer(2, 2, 30, saved_bytes=300),
        ],
        # 10 + 5 * 100 + 1, 20 + 3 * (200 + 7) + 1, 30 + 300
        Platform(gpus=3, memory=[511, 642, 330], bandwidth=BYTE_A_NS),
        timed(4, computed | {"a0": 2, "a1": 5, "g1": 10, "g0": 15}),
    )


def two_periodic() -> Plan:
    """Beaumont et al. 2021, figure 3b: 3 layers, F and B last 1, k = 2, T = 6.

    Of 1F1B without idle time every third micro-batch is left out. Micro-batch 0 runs its six
    operations from 0 on without a pause, micro-batch 1 from 2 on. NCA = 2, 2, 1.
    """
    return planned(
        [layer(1, 1, 0)] * 3,
        Platform(gpus=3, memory=[2, 2, 1]),
        timed(
            6,
            {"F0": 0, "F1": 1, "F2": 2, "B2": 3, "B1": 4, "B0": 5},
            {"F0": 2, "F1": 3, "F2": 4, "B2": 5, "B1": 6, "B0": 7},
        ),
        scope=Scope(max_k=2),
    )


def split_backward() -> Plan:
    """Two GPUs, a full-duplex link, F, I and W last 1, T = 3.

    Micro-batch 0: F0 0-1, link 1-2, F1 2-3, I1 3-4, W1 4-5, link 4-5, I0 5-6, W0 7-8.
    Stage 0 keeps saved over [0, 6): 2 at once, and its weight half over [5, 8): 1 at once.
    Layer 2 takes no time and keeps all to the end of W: [2, 5), 1 at once.
    """
    halves = {"backward_input_ns": 1, "backward_weight_ns": 1}
    none = {"backward_input_ns": 0, "backward_weight_ns": 0}
    return planned(
        [
            layer(1, 2, 5, saved_bytes=100, saved_weight_bytes=10, workspace_bytes=3, **halves),
            layer(1, 2, 4, saved_bytes=200, saved_weight_bytes=20, **halves),
            layer(0, 0, 2, saved_bytes=300, **none),
        ],
        # 5 + 2 * 100 + 10 + 3, 6 + 200 + 20 + 300
        Platform(gpus=2, memory=[218, 526], bandwidth=BYTE_A_NS, duplex="full"),
        timed(3, {"F0": 0, "F1": 2, "I1": 3, "W1": 4, "I0": 5, "W0": 7, "a0": 1, "g0": 4}),
        scope=Scope(split_backward=True),
        stages=stages((0, 0, [0]), (1, 2, [1])),
    )


def recomputed() -> Plan:
    """Two GPUs; of stage 0 layers 0 and 1 are computed again and layer 2 is kept; T = 8.

    Micro-batch 0: F0 0-3, F1 3-7, B1 7-11, R0 11-13, B0 13-16. Stage 0 keeps its input and layer
    2 over [0, 16): 2 at once; layers 0 and 1 over [11, 16): 1 at once.
    """
    layers = (
        layer(1, 1, 1, saved_bytes=100),
        layer(1, 1, 2, saved_bytes=200),
        layer(1, 1, 3, saved_bytes=50, saved_input_bytes=9),
        layer(4, 4, 4, saved_bytes=60),
    )
    return planned(
        layers,
        # 6 + 2 * 7 + 2 * (50 + 9) + 300, 4 + 60
        Platform(gpus=2, memory=[438, 64]),
        timed(8, {"F0": 0, "F1": 3, "B1": 7, "R0": 11, "B0": 13}),
        chain=Chain(layers=layers, input_bytes=7),
        scope=Scope(recompute=True),
        stages=(
            Stage(layers=(0, 2), gpus=(0,), recompute=((0, 1),)),
            Stage(layers=(3, 3), gpus=(1,)),
        ),
    )


def double_buffered() -> Plan:
    """PipeDream-2BW on 3 GPUs: F and B last 1, T = 2, an update every 2 micro-batches.

    Micro-batch i: F_s 2i + s, B2 2i + 3, B1 2i + 4, B0 2i + 5. NCA = 3, 2, 1. Version v of stage
    0 is made at 4v + 4, just when F of its first reader starts, and read to 4v + 12: 8 ns of a
    mini-batch of 4 ns, so 2 at once; so too on the other stages.
    """
    return planned(
        [weighty(1, 1, 100)] * 3,
        # 30 + 2 * 20 + NCA * 100
        Platform(gpus=3, memory=[370, 270, 170]),
        timed(2, {"F0": 0, "F1": 1, "F2": 2, "B2": 3, "B1": 4, "B0": 5}),
        rule=Rule(update_every=2, forward_reads="delay", delay=1),
    )


def covering() -> Plan:
    """Forwards one by one, one B for 2 micro-batches (TiMePReSt), k = 2, T = 4.

    Micro-batches 0 and 1: F0 0-1 and 1-2, link 1-2 and 2-3, F1 2-3 and 3-4, B1 4-6, link 7-9,
    B0 10-12. Stage 0 holds [0, 12) and [1, 12): 6 at once; stage 1 [2, 6) and [3, 6): 2 at once.
    All read the newest version: 1 at once. Both gradients, a byte each, wait for 1 ns.
    """
    both = (
        op("B", 1, -2, 0, covers=2),
        op("B", 0, -4, 2, covers=2),
        send("gradient", 0, -2, 3, covers=2),
    )
    return planned(
        [weighty(1, 1, 100)] * 2,
        # 30 + 20 + NCA * 100, and 2 for the gradients
        Platform(gpus=2, memory=[652, 250], bandwidth=BYTE_A_NS),
        timed(4, {"F0": 0, "a0": 1, "F1": 2}, {"F0": 1, "a0": 2, "F1": 3}, also=both),
        rule=Rule(update_every=2, backward_reads="live"),
        scope=Scope(max_k=2),
    )


def data_parallel() -> Plan:
    """Two replicas of both stages, an all-reduce in 2 chunks beside the backward, T = 16.

    Both GPUs: F0 0-2, F1 2-4, B1 4-8, B0 8-12. The gradient of stage 1 goes round over 8-12,
    while B0 runs, that of stage 0 over 12-16. Each version lives for exactly one period.
    """

    def all_reduce(stage: int, start: int) -> tuple[Transfer, ...]:
        back = {"source": 1, "target": 0, "chunks": 2}
        forth = {"source": 0, "target": 1, "chunks": 2}
        return (
            send("weight_gradient", stage, 0, start, chunk=0, mode="reduce", **back),
            send("weight_gradient", stage, 0, start, chunk=1, mode="reduce", **forth),
            send("weight_gradient", stage, 0, start + 2, chunk=0, **forth),
            send("weight_gradient", stage, 0, start + 2, chunk=1, **back),
        )

    sizes = {"parameter_bytes": 4, "gradient_bytes": 4}
    computed = {"F0": 0, "F1": 2, "B1": 4, "B0": 8}
    return planned(
        [layer(2, 4, 10, saved_bytes=100, **sizes), layer(2, 4, 10, saved_bytes=50, **sizes)],
        # 2 * 10 + 100 + 50
        Platform(gpus=2, memory=170, bandwidth=BYTE_A_NS, duplex="full"),
        timed(16, computed, computed, also=(*all_reduce(1, 8), *all_reduce(0, 12))),
        rule=Rule(update_every=2, forward_reads="delay", delay=0),
        scope=Scope(allocation="general", max_k=2),
        stages=stages((0, 0, [0, 1]), (1, 1, [0, 1])),
    )


def cyclic() -> Plan:
    """Cyclic data parallelism, CDP-v2, with 3 stages on 3, 2 and 1 GPUs (Fournier and Oyallon).

    Micro-batch i: F_s 20i + 10s, B_s 20i + 10(5 - s), each for 8 ns, boundary transfers for 1 ns
    behind them; m = k = 3, T = 60. Gradients are copied (6 ns) from replica to replica right
    behind each B, weights (5 ns) right behind the update: at 98 of stage 0, 88 of 1 and 78 of 2.

    NCA is 1 everywhere. Stage 0 holds version v from 60v + 43 to 60v + 118 on its first replica
    and to 60v + 138 on its second: 2 at once; on its third from 60v + 38 to 60v + 98: 1. Stage 1:
    2 at once where the next version comes at 60v + 93 and the old one is read to 60v + 108.
    Stage 2: 1, from 60v + 18 to 60v + 78. Of what comes from other stages each byte waits for 1 ns.
    """
    sizes = {"saved_bytes": 100, "parameter_bytes": 5, "gradient_bytes": 6}
    onward = {"source": 0, "target": 1}
    path = {"F0": 0, "F1": 10, "F2": 20, "B2": 30, "B1": 40, "B0": 50}
    path |= {"a0": 8, "a1": 18, "g1": 38, "g0": 48}
    return planned(
        [layer(8, 8, 20, **sizes)] * 3,
        # 15 + 100 + 5 or 10, and 1 that waits
        Platform(gpus=6, memory=[126, 126, 121, 126, 126, 121], bandwidth=BYTE_A_NS),
        timed(
            60,
            *({name: 20 * i + start for name, start in path.items()} for i in range(3)),
            also=(
                send("weight_gradient", 0, 0, 58, **onward),
                send("weight_gradient", 0, -2, 18, **onward),
                send("weights", 0, -1, 38, source=0, target=1),
                send("weights", 0, -1, 38, source=0, target=2),
                send("weight_gradient", 1, 0, 48, **onward),
                send("weight_gradient", 1, -2, 8, **onward),
                send("weights", 1, -1, 28, **onward),
            ),
        ),
        rule=Rule(update_every=3, forward_reads="table", table=((1, 1, 0), (1, 0, 0), (0, 0, 0))),
        scope=Scope(max_k=3),
        stages=stages((0, 0, [0, 1, 2]), (1, 1, [3, 4]), (2, 2, [5])),
    )


def flushed() -> Plan:
    """A step of 2 micro-batches with a flush and updates that take 2 ns, T = 10.

    F0 0-1 and 1-2, link 1-2 and 2-3, F1 2-3, B1 3-4, F1 4-5, B1 5-6, U1 6-8, link 4-5 and 6-7,
    B0 5-6 and 7-8, U0 8-10. NCA = 2, 1; 1 version. The second activation waits for 1 ns.
    """
    return planned(
        [weighty(1, 1, 100, update_ns=2)] * 2,
        # 30 + 20 + NCA * 100, and 1 that waits
        Platform(gpus=2, memory=[250, 151], bandwidth=BYTE_A_NS),
        timed(
            10,
            {"F0": 0, "a0": 1, "F1": 2, "B1": 3, "g0": 4, "B0": 5},
            {"F0": 1, "a0": 2, "F1": 4, "B1": 5, "g0": 6, "B0": 7, "U1": 6, "U0": 8},
        ),
        rule=Rule(update_every=2, forward_reads="delay", delay=0),
        scope=Scope(microbatches=2),
    )


def general() -> Plan:
    """Layers 0 and 2 on GPU 0 (F and B last 1), layer 1 on GPU 1 (2 each), T = 6.

    Micro-batch 0: F0 0-1, F1 1-3, F2 3-4, B2 4-5, B1 5-7, B0 7-8. Stage 0 holds [0, 8): 2 over
    the first 2 ns of the period, else 1; stage 2 holds [3, 5): 1 there, else none. So GPU 0 needs
    4 + 2 * 100 + 70 = 274 in the reading sum, and 4 + 200 = 204 at its peak.
    """
    return planned(
        [
            layer(1, 1, 1, saved_bytes=100),
            layer(2, 2, 2, saved_bytes=80),
            layer(1, 1, 3, saved_bytes=70),
        ],
        Platform(gpus=2, memory=[274, 82]),
        timed(6, {"F0": 0, "F1": 1, "F2": 3, "B2": 4, "B1": 5, "B0": 7}),
        scope=Scope(allocation="general"),
        stages=stages((0, 0, [0]), (1, 1, [1]), (2, 2, [0])),
    )


def unequal() -> Plan:
    """GPU 1 is 1.5 times as fast: its two layers take ceil(2/1.5) = 2 and 3/1.5 = 2 each; T = 8.

    Micro-batch 0: F0 0-4, F1 4-8, B1 8-12, B0 12-16. NCA = 2, 1.
    """
    return planned(
        [layer(4, 4, 1, saved_bytes=100), *[layer(2, 3, 1, saved_bytes=100)] * 2],
        Platform(gpus=2, memory=[201, 202], speed=["1", "1.5"]),
        timed(8, {"F0": 0, "F1": 4, "B1": 8, "B0": 12}),
        stages=stages((0, 0, [0]), (1, 2, [1])),
    )


def zero_length(period_ns: int) -> Plan:
    """F, B = (2,2), (2,0), (2,0), (2,0) on 4 GPUs; the first has room for 2 activations.

    Micro-batch 0: F0 0-2, F1 2-4, F2 4-6, F3 6-8, B3, B2 and B1 at 8, B0 8-10.
    """
    starts = {"F0": 0, "F1": 2, "F2": 4, "F3": 6, "B3": 8, "B2": 8, "B1": 8, "B0": 8}
    return planned(
        [layer(2, 2, 0), *[layer(2, 0, 0, activation=0)] * 3],
        Platform(gpus=4, memory=2),
        timed(period_ns, starts),
    )


EXAMPLES: Final[Mapping[str, Callable[[], Plan]]] = {
    plan.__name__: plan
    for plan in (
        contiguous,
        two_periodic,
        split_backward,
        recomputed,
        double_buffered,
        covering,
        data_parallel,
        cyclic,
        flushed,
        general,
        unequal,
    )
}
