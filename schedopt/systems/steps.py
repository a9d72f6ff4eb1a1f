"""Steps of published systems as plans whose weights are given, like those that solvers look for."""

from __future__ import annotations

from dataclasses import replace

from schedopt.chain import Chain, Layer
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig


def published_step(name: str, chain: Chain, platform: Platform, microbatches: int) -> Plan:
    """Return a step of a system with a flush, without updates.

    Parameters
    ----------
    name : str
        Of a system that has a flush and no replicas.
    chain : Chain
    platform : Platform
        Whether the step fits into its memory is not asked.
    microbatches : int
        Of the step.

    Raises
    ------
    InputError
        If the system cannot do the chain, the number of GPUs or that of micro-batches.
    """
    plain = replace(chain, layers=tuple(map(_without_updates, chain.layers)))
    config = SystemConfig(chain=plain, platform=platform, microbatches=microbatches)
    return replace(find_system(name).plan(config), chain=chain)


def _without_updates(layer: Layer) -> Layer:
    """Return a layer of which no part of the weights is known, so that no update is laid out."""
    return replace(
        layer, parameter_bytes=None, gradient_bytes=None, optimizer_bytes=None, update_ns=None
    )
