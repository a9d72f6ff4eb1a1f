"""Random valid plans: any allocation, replicas, k, links, split backward, recompute, updates.

With updates stages have no replicas, or replicas that send each other what W needs. The plans are
of random chains with few bytes, or of a chain that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from itertools import pairwise
from math import lcm
from typing import Any, get_args

from hypothesis import assume
from hypothesis import strategies as st

from schedopt import (
    Chain,
    Gpu,
    Layer,
    Link,
    Operation,
    Pattern,
    Plan,
    Platform,
    Rule,
    Scope,
    Stage,
    Transfer,
    check,
)
from schedopt.plan import Kind, place_in_period
from schedopt.rule import BackwardReads
from schedopt.transfer import Tensor
from tests.strategies import networks

small = st.integers(0, 4)
AMPLE = 10**9
Run = tuple[tuple[object, ...], int]
"""What an item occupies in a cycle, and for how long."""


@dataclass
class Timetable:
    """Places operations one by one at free times, in every period of the hyperperiod."""

    platform: Platform
    k: int
    period: int
    length: int
    taken: dict[object, list[tuple[int, int]]] = field(default_factory=dict)

    def place(self, ready: int, runs: Sequence[Run]) -> int | None:
        """Return the first start from `ready` on, for the run of each cycle."""
        whole = self.period * (self.length // self.k)
        for start in range(ready, ready + whole + 1):
            wanted = [
                (resource, (start + cycle * self.period) % whole, length)
                for cycle, (resources, length) in enumerate(runs)
                for resource in resources
            ]
            if self._is_free(wanted, whole):
                for resource, begin, length in wanted:
                    self.taken.setdefault(resource, []).append((begin, length))
                return start
        return None

    def _is_free(self, wanted: Sequence[tuple[object, int, int]], whole: int) -> bool:
        for number, (resource, begin, length) in enumerate(wanted):
            others = self.taken.get(resource, [])
            others = others + [(b, n) for r, b, n in wanted[:number] if r == resource]
            if length > whole or not all(_apart(begin, length, *one, whole) for one in others):
                return False
        return True


def _apart(first: int, first_ns: int, second: int, second_ns: int, whole: int) -> bool:
    gap = (second - first) % whole
    if gap == 0:
        return first_ns == 0 or second_ns == 0
    return gap >= first_ns and gap + second_ns <= whole


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    parameters, gradients = draw(small), draw(small)
    return Layer(
        forward_ns=draw(small),
        backward_ns=draw(small),
        weight_bytes=parameters + gradients + draw(small),
        activation_bytes=draw(small),
        saved_bytes=draw(st.none() | small),
        saved_input_bytes=draw(st.none() | small),
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        backward_input_ns=draw(small),
        backward_weight_ns=draw(small),
        saved_weight_bytes=draw(st.none() | small),
        workspace_bytes=draw(st.none() | small),
    )


@st.composite
def stages(
    draw: st.DrawFn,
    count: int,
    gpus: int,
    replicas: bool,
    same_gpu: Sequence[Sequence[int]] = (),
    least_cuts: int = 0,
) -> tuple[Stage, ...]:
    places = st.integers(1, max(1, count - 1))
    cuts = sorted(draw(st.sets(places, min_size=least_cuts, max_size=3))) if count > 1 else []
    bounds = [0, *cuts, count]
    found: list[Stage] = []
    for first, end in pairwise(bounds):
        many = draw(st.integers(1, 3)) if replicas else 1
        chosen = draw(st.lists(st.integers(0, gpus - 1), min_size=many, max_size=many))
        for group in same_gpu:
            others = [one for one in found if any(one.first <= a <= one.last for a in group)]
            if others and any(first <= a < end for a in group):
                chosen = list(others[0].gpus)
        runs = draw(recomputed_runs(first, end)) if draw(st.booleans()) else ()
        found.append(Stage(layers=(first, end - 1), gpus=tuple(chosen), recompute=runs))
    return tuple(found)


@st.composite
def recomputed_runs(draw: st.DrawFn, first: int, end: int) -> tuple[tuple[int, int], ...]:
    """Draw one or two runs of the layers from `first` on, before `end`."""
    found: list[tuple[int, int]] = []
    while first < end and len(found) < 2:
        begin = draw(st.integers(first, end - 1))
        found.append((begin, draw(st.integers(begin, end - 1))))
        first = found[-1][1] + 1
        if draw(st.booleans()):
            break
    return tuple(found)


@st.composite
def with_sizes_of_halves(draw: st.DrawFn, chain: Chain, found: Sequence[Stage]) -> Chain:
    """Draw what W needs for all layers of the stages that have replicas."""
    layers = list(chain.layers)
    for stage in found:
        for number in range(stage.first, stage.last + 1) if len(stage.gpus) > 1 else ():
            layers[number] = replace(layers[number], saved_weight_bytes=draw(small))
    return replace(chain, layers=tuple(layers))


@st.composite
def quickened(draw: st.DrawFn, chain: Chain) -> Chain:
    """Draw times of a few ns for a chain; its bytes stay as they are."""
    times = ("forward_ns", "backward_ns", "backward_input_ns", "backward_weight_ns")
    found = []
    for layer in chain.layers:
        drawn: dict[str, Any] = {name: draw(small) for name in times}
        found.append(replace(layer, **drawn))
    return replace(chain, layers=tuple(found))


@st.composite
def valid_plans(
    draw: st.DrawFn,
    *,
    updates: bool = False,
    exchange: bool = False,
    given: Chain | None = None,
) -> Plan:
    """Draw a plan that every rule of a plan allows, on GPUs with ample memory.

    With an exchange each replica of a stage runs W of all micro-batches, and is sent what it needs.
    For a chain that is given, with other times, without replicas, and with links that carry
    everything in a nanosecond or two.
    """
    chain = (
        draw(quickened(given))
        if given is not None
        else Chain(
            layers=tuple(draw(st.lists(layers(), min_size=1, max_size=5))), input_bytes=draw(small)
        )
    )
    platform = Platform(
        [
            Gpu(
                memory_bytes=AMPLE if given is None else 10**12,
                speed=Decimal(draw(st.sampled_from(["1", "1", "2"]))),
            )
            for _ in range(draw(st.integers(1, 3) if given is None else st.integers(2, 4)))
        ]
    )
    if given is None and draw(st.integers(0, 2)) == 0:
        platform = Platform(platform.gpus, network=draw(networks(len(platform.gpus))))
    elif draw(st.booleans()):
        link = Link(
            bandwidth_bytes_per_s=10**9 if given is None else 10**15,
            latency_ns=draw(st.integers(0, 1)),
            duplex=draw(st.sampled_from(["half", "full"])),
        )
        object.__setattr__(platform, "link", link)
    replicas = given is None and (exchange or not updates)
    # Many stages, where not a rule of a plan is tried but what it runs.
    least = 0 if given is None else min(2, len(chain.layers) - 1)
    found = draw(stages(len(chain.layers), len(platform.gpus), replicas, chain.same_gpu, least))
    if exchange:
        every_order = st.permutations(range(len(platform.gpus)))
        found = tuple(
            replace(one, gpus=tuple(draw(every_order)[: draw(st.integers(1, 3))])) for one in found
        )
        chain = draw(with_sizes_of_halves(chain, found))
    rule = Rule()
    if updates or exchange:
        backward: list[BackwardReads] = ["forward", "live"]
        if all(stage.recompute for stage in found):
            backward.append("recomputed")
        rule = Rule(
            update_every=draw(st.integers(1, 3)),
            forward_reads="live" if exchange else draw(st.sampled_from(["live", "entry"])),
            backward_reads=draw(st.sampled_from(backward)),
        )
    k = draw(st.integers(1, 3))
    order = draw(st.permutations(range(k)))
    split = [(exchange and len(one.gpus) > 1) or draw(st.booleans()) for one in found]
    length = lcm(k, *(len(stage.gpus) for stage in found))
    work = 2 + sum(
        a.forward_ns * 2
        + a.backward_ns
        + (a.backward_input_ns or 0)
        + (a.backward_weight_ns or 0)
        + 4 * (4 + (a.activation_bytes if given is None else 1))
        for a in chain.layers
    )
    if exchange:
        work *= max(len(one.gpus) for one in found)
    if given is None:
        period = draw(st.integers(work * k // 2 + 1, 2 * work * k))
    else:
        period = work * k // draw(st.integers(6, 24)) + 1
    placed = partial(fill, draw, chain, platform, found, split, order)
    pattern = placed(period, length, exchange)
    while pattern is None:
        period = 6 * work * k if given is None else period + period // 2 + 1
        pattern = placed(period, length, exchange)
    return Plan(
        chain=chain,
        platform=platform,
        rule=rule,
        scope=Scope(
            allocation="general",
            max_k=None,
            memory=draw(st.sampled_from(["sum", "peak"])),
            split_backward=True,
            recompute=True,
        ),
        stages=found,
        pattern=pattern,
    )


@st.composite
def runnable(draw: st.DrawFn, given: Chain | None = None) -> tuple[Plan, int]:
    """Draw a valid plan of any rule without replicas, and how many micro-batches it runs."""
    plan = draw(valid_plans(updates=True, given=given))
    kind = draw(st.sampled_from(["given", "newest", "newest", "delay", "table"]))
    backward = draw(st.sampled_from(get_args(BackwardReads)))
    every, delays = plan.rule.update_every, st.integers(0, 3)
    more: dict[str, Any] = {"forward_reads": kind}
    if kind == "given":
        plan = replace(plan, rule=Rule())
    elif kind == "newest":
        plan = replace(plan, rule=replace(plan.rule, backward_reads=backward))
    else:
        if kind == "delay":
            more["delay"] = draw(delays)
        else:
            row = st.lists(delays, min_size=len(plan.stages), max_size=len(plan.stages))
            more["table"] = draw(st.lists(row, min_size=1, max_size=2))
        plan = replace(plan, rule=Rule(update_every=every, backward_reads=backward, **more))
        assume(not check(plan))
    return plan, draw(st.integers(1, 7)) * (plan.rule.update_every or 1)


def fill(
    draw: st.DrawFn,
    chain: Chain,
    platform: Platform,
    found: tuple[Stage, ...],
    split: list[bool],
    order: Sequence[int],
    period: int,
    length: int,
    exchange: bool = False,
) -> Pattern | None:
    """Place the micro-batches of a period in an order, and draw how long each thing waits.

    What comes later in the order finds less room, and is often through later. Some wait between
    forward and backward for a whole period.
    """
    k = len(order)
    table = Timetable(platform, k, period, length)
    items: list[Operation | Transfer] = []
    last = len(found) - 1

    def put(
        make: Callable[..., Operation | Transfer], j: int, ready: int, runs: Sequence[Run]
    ) -> int | None:
        start = table.place(ready, runs)
        if start is None:
            return None
        begin, shift = place_in_period(start, j, k, period)
        items.append(make(shift=shift, start_ns=begin))
        return start + max(length for _, length in runs)

    def run(kind: Kind, stage: int, j: int, ready: int, replica: int = 0) -> int | None:
        runs: list[Run] = []
        for i in range(j, length, k):
            gpu = found[stage].gpu(i + replica)
            runs.append(((("gpu", gpu),), _duration(chain, platform, found[stage], kind, gpu)))
        make = partial(Operation, kind=kind, stage=stage, replica=replica)
        return put(make, j, ready + draw(st.integers(0, 3)), runs)

    def send(
        tensor: Tensor,
        stage: int,
        j: int,
        ready: int,
        source: int | None = None,
        target: int | None = None,
    ) -> int | None:
        layers = chain.layers[found[stage].first : found[stage].last + 1]
        runs: list[Run] = []
        for i in range(j, length, k):
            if source is None or target is None:
                count = layers[-1].activation_bytes
                ends = found[stage].gpu(i), found[stage + 1].gpu(i)
                ends = ends[::-1] if tensor == "gradient" else ends
            else:
                count = sum(layer.saved_weight_bytes or 0 for layer in layers)
                ends = found[stage].gpu(i + source), found[stage].gpu(i + target)
            runs.append((platform.route(*ends), platform.transfer_ns(count, *ends)))
        if source is None and not any(resources for resources, _ in runs):
            return ready
        make = partial(Transfer, tensor=tensor, stage=stage, source=source, target=target)
        return put(make, j, ready + draw(st.integers(0, 2)), runs)

    def exchange_halves(stage: int, j: int, ready: int) -> bool:
        lies = {0: ready}
        for target in draw(st.permutations(range(1, len(found[stage].gpus)))):
            source = draw(st.sampled_from(sorted(lies)))
            arrival = send("weight_half", stage, j, lies[source], source, target)
            if arrival is None or run("W", stage, j, arrival, target) is None:
                return False
            lies[target] = arrival
        return True

    for j in order:
        clock: int | None = draw(st.integers(0, 5))
        forward_ends: list[int] = []
        for stage in range(last + 1):
            clock = run("F", stage, j, clock) if clock is not None else None
            if clock is None:
                return None
            forward_ends.append(clock)
            if stage < last:
                clock = send("activation", stage, j, clock)
        if clock is not None:
            clock += draw(st.sampled_from([0, 0, 0, period]))
        for stage in reversed(range(last + 1)):
            if clock is not None and stage < last:
                clock = send("gradient", stage, j, clock)
            if clock is not None and found[stage].recompute:
                recompute_end = run("R", stage, j, forward_ends[stage])
                clock = None if recompute_end is None else max(clock, recompute_end)
            if clock is None:
                return None
            clock = run("I" if split[stage] else "B", stage, j, clock)
            if clock is None or (split[stage] and run("W", stage, j, clock) is None):
                return None
            if exchange and not exchange_halves(stage, j, clock):
                return None
    return Pattern(
        k=k,
        period_total_ns=period,
        operations=tuple(item for item in items if isinstance(item, Operation)),
        transfers=tuple(item for item in items if isinstance(item, Transfer)),
    )


def _duration(chain: Chain, platform: Platform, stage: Stage, kind: Kind, gpu: int) -> int:
    field_of = {"F": "forward_ns", "R": "forward_ns", "B": "backward_ns"}
    field_of |= {"I": "backward_input_ns", "W": "backward_weight_ns"}
    again = [layer for first, end in stage.recompute for layer in range(first, end + 1)]
    chosen = again if kind == "R" else range(stage.first, stage.last + 1)
    return sum(
        platform.gpus[gpu].duration_ns(getattr(chain.layers[layer], field_of[kind]))
        for layer in chosen
    )
