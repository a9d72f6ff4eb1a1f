"""Chains of equal layers, and chains drawn at random."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Final

from schedopt.chain import MOST_LAYERS, Layer
from schedopt.errors import InputError
from schedopt.families.instance import Fact, Instance, make_instance, stages_on
from schedopt.platform import MOST_GPUS, Platform
from schedopt.problem import Scope
from schedopt.units import parse_bytes
from schedopt.validation import LARGEST, as_whole

GPUS: Final = 4
"""How many GPUs an instance is for by default."""


def uniform_chain(
    layers: int,
    *,
    forward_ns: int = 1_000_000,
    backward_ns: int = 2_000_000,
    weight_bytes: int = 10_000_000,
    activation_bytes: int = 1_000_000,
    saved_bytes: int | None = None,
    gpus: int = GPUS,
    memory: str | int | None = None,
) -> Instance:
    """Return equal layers.

    Some GPU runs at least m = ceil(layers / gpus) of them, for any allocation and k. Stages
    of m layers reach that period if the memory holds m layers with an activation for each stage;
    with less, nothing is said to be known.

    Parameters
    ----------
    layers : int
        1 to 4096.
    forward_ns, backward_ns, weight_bytes, activation_bytes, saved_bytes : int
        Of each layer.
    gpus : int
        How many GPUs the chain is for.
    memory : str or int, optional
        Of each GPU. Default: just enough for the least period.
    """
    layers = as_whole(layers, "layers", low=1, high=MOST_LAYERS)
    layer = Layer(
        forward_ns=forward_ns,
        backward_ns=backward_ns,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        saved_bytes=saved_bytes,
    )
    if not layer.longest_ns:
        raise InputError(
            "the layers take no time at all",
            field="forward_ns",
            way_out="Give the forward or the backward at least 1 ns",
        )
    gpus = as_whole(gpus, "gpus", low=1, high=MOST_GPUS)
    share = -(-layers // gpus)
    stages = stages_on(number // share for number in range(layers))
    ample = share * (layer.weight_bytes + len(stages) * layer.saved)
    platform = _equal_gpus(gpus, memory, ample)
    known = [
        Fact(
            scope=Scope(allocation=allocation, max_k=None),
            period=Fraction(share * layer.longest_ns),
            source="one GPU has ceil(layers / GPUs) layers or more",
            stages=stages,
        )
        for allocation in ("contiguous", "general")
        if platform.gpus[0].usable_bytes >= ample
    ]
    return make_instance(
        name=f"uniform-layers-{layers}",
        family="uniform",
        parameters={
            "layers": layers,
            "forward_ns": layer.forward_ns,
            "backward_ns": layer.backward_ns,
            "weight_bytes": layer.weight_bytes,
            "activation_bytes": layer.activation_bytes,
            "saved_bytes": layer.saved,
        },
        layers=[layer] * layers,
        platform=platform,
        source="equal layers",
        known=tuple(known),
    )


def random_chain(
    layers: int, seed: int, *, gpus: int = GPUS, memory: str | int | None = None
) -> Instance:
    """Return layers whose times and sizes differ by up to a factor of nine.

    Drawn with nothing but ``random.Random(seed).randint``, layer by layer: the same numbers for
    ever. Nothing is known about them.

    Parameters
    ----------
    layers : int
        1 to 4096.
    seed : int
        0 or more.
    gpus : int
        How many GPUs the chain is for.
    memory : str or int, optional
        Of each GPU. Default: what one GPU needs to run all layers, so that a plan exists.
    """
    layers = as_whole(layers, "layers", low=1, high=MOST_LAYERS)
    seed = as_whole(seed, "seed", high=LARGEST)
    gpus = as_whole(gpus, "gpus", low=1, high=MOST_GPUS)
    draw = random.Random(seed)

    def around(middle: int) -> int:
        return draw.randint(middle // 3, middle * 3)

    drawn = [
        Layer(
            forward_ns=around(500_000),
            backward_ns=around(1_000_000),
            weight_bytes=around(50_000_000),
            activation_bytes=around(4_000_000),
            saved_bytes=around(30_000_000),
            saved_input_bytes=draw.randint(0, 1_000_000),
        )
        for _ in range(layers)
    ]
    enough = sum(layer.weight_bytes + layer.saved for layer in drawn)
    enough += drawn[0].saved_input_bytes or 0
    return make_instance(
        name=f"random-layers-{layers}-seed-{seed}",
        family="random",
        parameters={"layers": layers, "seed": seed},
        layers=drawn,
        platform=_equal_gpus(gpus, memory, enough),
        source="random.Random(seed).randint, layer by layer",
    )


def _equal_gpus(count: int, memory: str | int | None, default: int) -> Platform:
    """Return GPUs with one memory for all: a list, which `Platform` takes, is refused."""
    return Platform(count, default if memory is None else parse_bytes(memory, field="memory"))
