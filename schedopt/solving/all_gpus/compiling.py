"""Compiling what looks at all GPUs together."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from schedopt.bounds.amounts import Amounts
from schedopt.bounds.propagation import propagate
from schedopt.chain import Chain
from schedopt.layer import Layer
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.solving.all_gpus.allocations import Allocations, as_stages
from schedopt.solving.all_gpus.nearby import Nearby
from schedopt.solving.one_gpu.columns import GpuOrders


def compile_all_gpus() -> None:
    """Look for an allocation of next to nothing, and for one near it."""
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    scope = Scope(allocation="general", memory="peak", max_k=1)
    problem = Problem(chain=Chain(layers=(layer,) * 3), platform=Platform(3, 1), scope=scope)
    forced = propagate(Amounts(problem), Fraction(2))
    assert forced is not None
    apart = np.zeros((3, 3), dtype=bool)
    orders = GpuOrders(forced, np.ones((1, 3), dtype=np.int64), 3, apart)
    holds = Allocations(forced, orders).find(1.0)
    assert holds is not None
    Nearby(forced, forced, as_stages(holds), seed=0).find(1.0)
