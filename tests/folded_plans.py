"""Random steps of equal parts, with collectives by rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from hypothesis import reject
from hypothesis import strategies as st

from schedopt import Chain, InputError, Link, Network, Node, NodeLink, Plan, Platform, Stage
from schedopt.account import memory
from schedopt.chain import STATE_BYTES
from schedopt.folding import count_rounds
from schedopt.network import Duplex
from schedopt.stage import Shard
from schedopt.systems.config import SystemConfig
from schedopt.systems.folded_step import folded_step
from tests.examples import BYTE_A_NS
from tests.systems.configs import AMPLE, layers
from tests.turns import orders

SHARDS: tuple[Shard, ...] = ("optimizer", "none")
READINGS: tuple[Literal["sum", "peak"], ...] = ("sum", "peak")
DUPLEX: tuple[Duplex, ...] = ("full", "half")


def with_copies(chain: Chain) -> Chain:
    """Return a chain whose last layer has a copy of what the first one has, if that is known."""
    *others, last = chain.layers
    sizes: dict[str, Any] = {name: getattr(last, name) for name in STATE_BYTES}
    if None in sizes.values():
        return chain
    tied = replace(last, **{f"tied_{name}": size for name, size in sizes.items()})
    return replace(chain, layers=(*others, tied), copied=((0, len(others)),))


@st.composite
def folded_plans(draw: st.DrawFn) -> Plan:
    """Draw a step of one to three stages, on GPUs of their own or on the same ones.

    Or of three or four, on two sets of GPUs by turns: rings are on while others still send.
    """
    places, fold = draw(st.sampled_from([3, 1, 2])), draw(st.sampled_from([2, 3, 1]))
    count = draw(st.integers(3, 4) if places == 2 else st.integers(1, 3))
    alike = draw(st.booleans())
    widths = [draw(st.sampled_from([2, 1, 3])) for _ in range(count)]
    if alike or places < 3:
        widths = widths[:1] * count
    rows, used = [], 0
    for number, width in enumerate(widths):
        # Part j has GPUs in a row, on which its micro-batches go in turn.
        first = used if places == 3 else number % places * fold * width
        gpus = tuple(first + j * width + n for n in range(width) for j in range(fold))
        used += len(gpus)
        again = draw(st.sampled_from([(), ((2 * number + 1, 2 * number + 1),)]))
        shard = draw(st.sampled_from(SHARDS))
        groups = [n for n in range(1, len(gpus) + 1) if len(gpus) % n == 0 and shard != "none"]
        rows.append(
            Stage(
                layers=(2 * number, 2 * number + 1),
                gpus=gpus,
                recompute=again,
                shard=shard,
                shard_copies=draw(st.sampled_from(groups or [1])),
            )
        )
    gpus_in_all = max(gpu for stage in rows for gpu in stage.gpus) + 1
    own = max(widths) * draw(st.integers(1, 2))
    if any(own % width for width in widths):
        own = 6
    timed = layers().map(lambda one: replace(one, forward_ns=one.forward_ns + 1))
    chain = Chain(layers=tuple(draw(timed) for _ in range(2 * count)))
    config = SystemConfig(
        chain=with_copies(chain) if count > 1 and draw(st.booleans()) else chain,
        platform=draw(platforms(gpus_in_all, widths[0])),
        microbatches=fold * own,
    )
    split = draw(st.booleans())
    turns = draw(orders(count, own, split=split))
    try:
        return folded_step(config, rows, fold, turns, split=split)
    except InputError:
        reject()


@st.composite
def platforms(draw: st.DrawFn, gpus: int, width: int) -> Platform:
    """Draw equal GPUs, linked in pairs, or in nodes of a width that are linked over a switch."""
    duplex = draw(st.sampled_from(DUPLEX))
    latency = draw(st.integers(0, 1))
    kind = draw(st.sampled_from(["switch", "pairs", "free", "nodes"]))
    if kind == "free":
        return Platform(gpus, AMPLE)
    link: dict[str, Any] = {"latency_ns": latency, "duplex": duplex}
    if kind == "pairs" or gpus <= width or gpus % width:
        return Platform(gpus, AMPLE, bandwidth=BYTE_A_NS, latency=latency, duplex=duplex)
    inside = Link(bandwidth_bytes_per_s=2 * BYTE_A_NS, **link)
    nodes = [Node(name=str(n), gpus=width, link=inside) for n in range(gpus // width)]
    pairs = [(one.name, other.name) for one in nodes for other in nodes if one.name < other.name]
    if kind == "switch":
        pairs = [(one.name, "switch") for one in nodes]
        nodes.append(Node(name="switch", gpus=0))
    between = [NodeLink(bandwidth_bytes_per_s=BYTE_A_NS, between=pair, **link) for pair in pairs]
    return Platform(gpus, AMPLE, network=Network(nodes=tuple(nodes), links=tuple(between)))


@st.composite
def changed_folded_plans(draw: st.DrawFn) -> Plan:
    """Draw a folded step with a change or two, which is mostly no longer valid."""
    plan = draw(folded_plans())
    if draw(st.integers(0, 3)) == 0:
        plan = _with_little_memory(draw, plan)
    for _ in range(draw(st.integers(0, 2))):
        try:
            plan = _change(draw, plan)
        except InputError:
            reject()
    return plan


def _change(draw: st.DrawFn, plan: Plan) -> Plan:
    pattern = plan.pattern
    name = draw(st.sampled_from(["collectives", "operations", "transfers", "period"]))
    if name == "period":
        less = pattern.period_total_ns - draw(st.integers(1, 3))
        return replace(plan, pattern=replace(pattern, period_total_ns=less))
    items = list(getattr(pattern, name))
    if not items:
        reject()
    place = draw(st.integers(0, len(items) - 1))
    item = items.pop(place)
    kinds = ["moved", "moved", "renamed", "dropped", "doubled"]
    kind = draw(st.sampled_from([*kinds, *(["paused"] if name == "collectives" else [])]))
    if kind == "moved":
        item = replace(item, start_ns=item.start_ns + draw(st.integers(-4, 4)))
    elif kind == "paused":
        rounds = count_rounds(plan.stages[item.stage], across=item.across)
        if rounds < 2:
            reject()
        pauses = dict(item.pauses) | {draw(st.integers(1, rounds - 1)): draw(st.integers(1, 3))}
        item = replace(item, pauses=tuple(sorted(pauses.items())[draw(st.integers(0, 1)) :]))
    elif kind == "renamed":
        item = replace(item, shift=item.shift + draw(st.sampled_from([-1, 1])))
    if kind != "dropped":
        items.insert(place, item)
    if kind == "doubled":
        items.insert(place, item)
    changed: dict[str, Any] = {name: tuple(items)}
    return replace(plan, pattern=replace(pattern, **changed))


def _with_little_memory(draw: st.DrawFn, plan: Plan) -> Plan:
    """Give all GPUs what the one that needs most needs, or a byte less."""
    reading = draw(st.sampled_from(READINGS))
    most = max(need.reading(reading) for need in memory(plan))
    size = max(1, most - draw(st.integers(0, 1)))
    gpus = [replace(gpu, memory_bytes=size) for gpu in plan.platform.gpus]
    scope = replace(plan.scope, memory=reading)
    return replace(plan, platform=plan.platform.with_gpus(gpus), scope=scope)
