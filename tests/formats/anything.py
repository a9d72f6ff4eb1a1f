"""Anything that the data classes allow, valid as a plan or not: every field takes part."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, get_args

from hypothesis import strategies as st

from schedopt import (
    Bound,
    Chain,
    Collective,
    Gpu,
    Infeasibility,
    Layer,
    Link,
    Operation,
    Pattern,
    Plan,
    Platform,
    Recipe,
    Result,
    Rule,
    Rung,
    Scope,
    Stage,
    Transfer,
)
from schedopt.plan import KINDS
from schedopt.proofs import Note, Outcome, Proof, ProofKind, Suggestion
from schedopt.rule import ForwardReads
from schedopt.stage import Shard
from schedopt.transfer import TENSORS
from tests.strategies import networks

MOST = 2**20
times = st.integers(0, 2**34)
sizes = st.integers(0, 2**40)
shifts = st.integers(-(2**40), 2**40)
counts = st.integers(1, 9)
texts = st.text(max_size=8)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(texts, plain, max_size=3)


@st.composite
def layers(draw: st.DrawFn, *, experts: bool = False) -> Layer:
    parts = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    found: dict[str, int | None] = {name: draw(st.none() | sizes) for name in parts}
    if experts:
        found |= {f"expert_{name}": draw(sizes) for name in parts}
    weights = sum(part or 0 for part in found.values())
    for name in ("saved_bytes", "saved_input_bytes", "workspace_bytes"):
        found[name] = draw(st.none() | sizes)
    if draw(st.booleans()):
        found |= {f"tied_{name}": draw(sizes) for name in parts}
    if draw(st.booleans()):
        found |= {"backward_input_ns": draw(times), "backward_weight_ns": draw(times)}
        found["saved_weight_bytes"] = draw(st.none() | sizes)
    return Layer(
        forward_ns=draw(times),
        backward_ns=draw(times),
        weight_bytes=weights + draw(sizes),
        activation_bytes=draw(sizes),
        name=draw(texts),
        update_ns=draw(st.none() | times),
        **found,
    )


recipes = st.builds(
    Recipe,
    factory=texts,
    arguments=mappings,
    torch=texts,
    cuts=st.lists(texts, max_size=3).map(tuple),
)


@st.composite
def chains(draw: st.DrawFn, *, complete: bool = False) -> Chain:
    expert = draw(st.integers(1, 3))
    one = layers(experts=expert > 1 and draw(st.booleans()))
    one = one.map(_complete) if complete else one
    found = draw(st.lists(one, min_size=1, max_size=4))
    order = draw(st.permutations(range(len(found))))
    cut = draw(st.integers(0, len(found)))
    groups = (tuple(sorted(order[:cut])), tuple(sorted(order[cut:])))
    return Chain(
        layers=tuple(found),
        name=draw(texts),
        input_bytes=draw(sizes),
        expert=expert,
        same_gpu=tuple(group for group in groups if len(group) > 1 and draw(st.booleans())),
        recipe=draw(st.none() | recipes),
        provenance=draw(mappings),
    )


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    memory = draw(sizes)
    return Gpu(
        memory_bytes=memory,
        reserved_bytes=draw(st.integers(0, memory)),
        speed=Decimal(draw(st.integers(1000, 10**8))) / 10**6,
    )


links = st.builds(
    Link,
    bandwidth_bytes_per_s=st.integers(10**9, 10**12),
    latency_ns=st.integers(0, 10**6),
    duplex=st.sampled_from(["half", "full"]),
)


@st.composite
def platforms(draw: st.DrawFn) -> Platform:
    platform = Platform(draw(st.lists(gpus(), min_size=1, max_size=3)))
    if draw(st.booleans()):
        return Platform(platform.gpus, network=draw(networks(len(platform.gpus))))
    object.__setattr__(platform, "link", draw(st.none() | links))
    return platform


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    if draw(st.booleans()):
        return Rule()
    choices: tuple[ForwardReads, ...] = ("live", "entry", "delay", "table")
    reads = draw(st.sampled_from(choices))
    width = draw(counts)
    row = st.lists(st.integers(0, MOST), min_size=width, max_size=width).map(tuple)
    return Rule(
        update_every=draw(st.integers(1, MOST)),
        forward_reads=reads,
        delay=draw(st.integers(0, MOST)) if reads == "delay" else 0,
        table=tuple(draw(st.lists(row, min_size=1, max_size=3))) if reads == "table" else (),
        backward_reads=draw(st.sampled_from(["forward", "live", "recomputed"])),
    )


scopes = st.builds(
    Scope,
    allocation=st.sampled_from(["contiguous", "general", "fixed"]),
    max_k=st.none() | st.integers(1, MOST),
    grain=st.sampled_from(["stage", "layer"]),
    memory=st.sampled_from(["sum", "peak"]),
    split_backward=st.booleans(),
    recompute=st.booleans(),
    microbatches=st.none() | st.integers(1, MOST),
    gpu_order=st.sampled_from(["given", "any"]),
    period_ns=st.none() | st.integers(1, 2**50),
)

pairs = st.tuples(st.integers(0, 9), st.integers(0, 9))
stages = st.builds(
    Stage,
    layers=pairs,
    gpus=st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
    recompute=st.lists(pairs, max_size=2).map(tuple),
    shard=st.sampled_from(get_args(Shard)),
)


@st.composite
def transfers(draw: st.DrawFn, period: int) -> Transfer:
    tensor = draw(st.sampled_from(TENSORS))
    common: dict[str, Any] = {
        "tensor": tensor,
        "stage": draw(counts),
        "shift": draw(shifts),
        "start_ns": draw(st.integers(0, period - 1)),
    }
    if tensor in ("activation", "gradient"):
        return Transfer(**common, covers=draw(counts))
    chunks = 1 if tensor == "weight_half" else draw(counts)
    modes = ["copy", "reduce"] if tensor == "weight_gradient" else ["copy"]
    return Transfer(
        **common,
        source=draw(st.integers(-9, 9)),
        target=draw(st.integers(-9, 9)),
        chunk=draw(st.integers(0, chunks - 1)),
        chunks=chunks,
        mode=draw(st.sampled_from(modes)),
    )


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    period = draw(st.integers(1, 2**50))
    starts = st.integers(0, period - 1)
    made = partial(st.builds, Operation, stage=counts, shift=shifts, start_ns=starts)
    operation = made(kind=st.sampled_from(KINDS), covers=counts)
    elsewhere = made(kind=st.just("W"), replica=st.integers(-9, 9))
    pauses = st.dictionaries(st.integers(1, 9), st.integers(1, 9), max_size=2).map(
        lambda found: tuple(sorted(found.items()))
    )
    ring = partial(
        st.builds,
        Collective,
        stage=counts,
        shift=shifts,
        start_ns=starts,
        across=st.booleans(),
        pauses=pauses,
    )
    rings = ring(tensor=st.sampled_from(["weights", "weight_gradient"]), mode=st.just("copy"))
    rings |= ring(tensor=st.just("weight_gradient"), mode=st.just("reduce"))
    collectives = tuple(draw(st.lists(rings, max_size=3)))
    if draw(st.booleans()):
        return Pattern(
            k=draw(counts),
            period_total_ns=period,
            operations=tuple(draw(st.lists(operation | elsewhere, max_size=4))),
            transfers=tuple(draw(st.lists(transfers(period), max_size=4))),
            collectives=collectives,
        )
    fold = draw(counts)
    one = made(kind=st.sampled_from(KINDS))
    sent = st.builds(
        Transfer,
        tensor=st.sampled_from(["activation", "gradient"]),
        stage=counts,
        shift=shifts,
        start_ns=starts,
    )
    return Pattern(
        k=fold * draw(counts),
        period_total_ns=period,
        fold=fold,
        operations=tuple(draw(st.lists(one, max_size=4))),
        transfers=tuple(draw(st.lists(sent, max_size=4))),
        collectives=collectives,
    )


ratios = st.tuples(st.integers(0, 2**70), st.integers(1, 2**70))
whys = st.recursive(
    texts | st.sampled_from(ProofKind).filter(lambda kind: "{" not in kind.words).map(Proof),
    lambda basis: st.builds(
        Proof,
        st.sampled_from([ProofKind.GPU_NEEDS, ProofKind.BOUND_ABOVE, ProofKind.NO_MEMORY_HELPS]),
        gpu=counts,
        layers=st.tuples(counts, counts),
        memory_bytes=sizes,
        period_exact=ratios,
        basis=basis,
    ),
    max_leaves=2,
)
notes = texts | st.builds(
    Note,
    st.sampled_from(Outcome),
    stopped=st.booleans(),
    detail=texts,
    proof=st.none() | whys,
    least_memory_bytes=st.none() | sizes,
    suggestion=st.none() | st.sampled_from(Suggestion),
)
bounds = st.builds(Bound, exact=ratios, scope=scopes, proof=whys)
proofs = st.builds(
    Infeasibility,
    scope=scopes,
    proof=whys,
    least_memory_bytes=st.none() | sizes,
    proven_memory_bytes=st.none() | sizes,
    gpu=st.none() | counts,
    wider=texts | st.lists(st.sampled_from(Suggestion), max_size=3).map(tuple),
)
seconds = st.floats(0, 1e9)
phases = st.builds(
    Rung,
    solver=texts,
    period_exact=st.none() | ratios,
    bound_exact=st.none() | ratios,
    seconds=seconds,
    note=notes,
)


@st.composite
def results(draw: st.DrawFn) -> Result:
    """Draw a result with a plan that a problem allows, whatever a check would say of it."""
    rule, scope = draw(rules()), draw(scopes)
    plan = Plan(
        chain=draw(chains(complete=True)),
        platform=draw(platforms()),
        rule=rule,
        scope=scope,
        stages=tuple(
            replace(stage, shard="none") if rule.is_given else stage
            for stage in draw(st.lists(stages, min_size=1, max_size=3))
        ),
        pattern=draw(patterns()),
    )
    return Result(
        problem=plan.problem,
        plan=plan,
        status=draw(st.sampled_from(["optimal", "feasible", "infeasible", "unknown"])),
        bounds=tuple(draw(st.lists(bounds, max_size=2))),
        infeasibility=draw(st.none() | proofs),
        ladder=tuple(draw(st.lists(phases, max_size=2))),
        solver=draw(texts),
        seconds=draw(seconds),
        seed=draw(st.integers(0, 2**64)),
        version=draw(texts),
    )


def _complete(layer: Layer) -> Layer:
    """Return a layer that every rule and every scope can work with."""
    parts = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    names = (*parts, "backward_input_ns", "backward_weight_ns")
    known: dict[str, Any] = {name: getattr(layer, name) or 0 for name in names}
    return replace(layer, **known)
