"""Random questions for training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem
from schedopt.chain import STATE_BYTES
from schedopt.problem import training_step, widest_step
from schedopt.profile import Variant
from schedopt.stage import SHARDS, Shard
from tests.solvers.every_training_step import DUPLEX


@st.composite
def training_steps(
    draw: st.DrawFn,
    *,
    longest: int = 3,
    gpus: int = 4,
    most: int = 6,
    levels: Sequence[Shard] = SHARDS,
    degrees: Sequence[int] = (),
    copied: bool = False,
    halves: bool = False,
    uneven: bool = False,
) -> Problem:
    """Draw the question for a step of up to so many micro-batches, tight in memory as a rule.

    In tensor groups of these sizes layers cost anything else, but send the same. If `copied` the
    first and the last layer have copies of tied weights. With `halves` backwards may be split. If
    `uneven` replicas need not divide the micro-batches.
    """
    number = draw(st.integers(2 if copied else 1, longest))
    layers = draw(st.tuples(*[_layers()] * number))
    tied = not copied and len(layers) > 2 and draw(st.integers(0, 4)) == 0
    chain = Chain(
        layers=layers, input_bytes=draw(st.integers(0, 3)), same_gpu=((0, 1),) if tied else ()
    )
    if copied:
        last: dict[str, Any] = {
            f"tied_{name}": draw(st.integers(0, getattr(layers[-1], name))) for name in STATE_BYTES
        }
        last_layer = replace(layers[-1], **last)
        chain = replace(chain, layers=(*layers[:-1], last_layer), copied=((0, number - 1),))
    if halves:
        chain = replace(chain, layers=tuple(draw(_halved(layer)) for layer in chain.layers))
    variants = tuple(
        Variant(
            tensor=tensor,
            chain=replace(
                chain,
                layers=tuple(
                    replace(other, activation_bytes=one.activation_bytes)
                    for one, other in zip(
                        chain.layers, draw(st.tuples(*[_layers()] * number)), strict=True
                    )
                ),
                input_bytes=draw(st.integers(0, 3)),
            ),
        )
        for tensor in degrees
    )
    platform = Platform(draw(st.integers(1, gpus)), draw(st.integers(6, 40)))
    if draw(st.integers(0, 2)):
        rate = draw(st.sampled_from([10**9, 2 * 10**9, 5 * 10**8]))
        duplex = draw(st.sampled_from(DUPLEX))
        latency = draw(st.integers(0, 2))
        platform = Platform(platform.gpus, bandwidth=rate, latency=latency, duplex=duplex)
    count = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if n <= most]))
    if uneven:
        count = draw(st.sampled_from([3, 4, 5, 7]))
    replicas = draw(st.none() | st.integers(1 + uneven, 3))
    shard = draw(st.sampled_from(levels)) if replicas != 1 else "none"
    scope = replace(
        widest_step(chain),
        allocation="contiguous",
        recompute=draw(st.booleans()),
        replicas=replicas,
        shard=shard,
        split_backward=halves,
        uneven=uneven,
        tensor=draw(st.sampled_from([None, *degrees])) if degrees else 1,
    )
    return training_step(chain, platform, count, scope, variants)


@st.composite
def _halved(draw: st.DrawFn, layer: Layer) -> Layer:
    """Draw the halves of a backward, of which the first takes time."""
    half = draw(st.integers(1, layer.backward_ns))
    return replace(layer, backward_input_ns=half, backward_weight_ns=layer.backward_ns - half)


@st.composite
def _layers(draw: st.DrawFn) -> Layer:
    size, time = st.integers(0, 3), st.integers(1, 4)
    parts = draw(size), draw(size), draw(size)
    return Layer(
        forward_ns=draw(time),
        backward_ns=draw(time),
        weight_bytes=sum(parts) + draw(st.integers(0, 1)),
        activation_bytes=draw(size),
        saved_bytes=draw(st.integers(0, 5)),
        saved_input_bytes=draw(st.none() | st.integers(0, 2)),
        workspace_bytes=draw(st.none() | st.integers(0, 2)),
        parameter_bytes=parts[0],
        gradient_bytes=parts[1],
        optimizer_bytes=parts[2],
        update_ns=draw(st.none() | size),
    )
