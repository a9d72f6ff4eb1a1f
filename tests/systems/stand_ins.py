"""Systems that are easy to follow by hand, in place of those that there are.

Two layers of F = 1 and B = 2 ns; of each 10 bytes of weights, of which 2 are parameters, and 5 for
a micro-batch in flight; 3 bytes are sent between them, at 1 byte a ns.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Final

import pytest

from schedopt import Chain, InputError, Operation, Pattern, Plan, Platform, Rule, Scope, Stage
from schedopt.plan import Kind
from schedopt.systems import catalogue
from schedopt.systems.catalogue import System
from schedopt.systems.config import SystemConfig
from tests.examples import layer, op, send, stages

SIZES: Final = {"parameter_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 4}
CHAIN = Chain(
    name="two",
    layers=(layer(1, 2, 10, 3, saved_bytes=5, **SIZES),) * 2,
    provenance={"dtype": "bfloat16"},
)
PLATFORM = Platform(gpus=2, memory=32, bandwidth="1GB/s")

_ORDER: Final[tuple[tuple[Kind, int], ...]] = (("F", 0), ("F", 1), ("B", 1), ("B", 0))

names = ("alone", "stale", "there_and_back", "in_pairs", "halves")
SYSTEMS = tuple(
    System(name, f"title of {name}", f"tests.systems.stand_ins:{name}", f"source of {name}")
    for name in names
)


def install(monkeypatch: pytest.MonkeyPatch, *systems: System) -> None:
    monkeypatch.setattr(catalogue, "SYSTEMS", systems or SYSTEMS)


def _plan(config: SystemConfig, rule: Rule, on: tuple[Stage, ...], pattern: Pattern) -> Plan:
    return Plan(
        chain=config.chain,
        platform=config.platform,
        rule=rule,
        scope=Scope(allocation="general", max_k=None),
        stages=on,
        pattern=pattern,
    )


def _on_gpu_0(config: SystemConfig, rule: Rule) -> Plan:
    pattern = Pattern(k=1, period_total_ns=6, operations=(op("F", 0, 0, 0), op("B", 0, 0, 2)))
    return _plan(config, rule, stages((0, 1, [0])), pattern)


def _one_by_one(*starts: int) -> tuple[Operation, ...]:
    """Return F of both stages and B of both, which start at these times."""
    return tuple(
        op(kind, stage, 0, start) for (kind, stage), start in zip(_ORDER, starts, strict=True)
    )


def alone(config: SystemConfig) -> Plan:
    """6 ns a micro-batch; 20 bytes of weights and 10 in flight."""
    return _on_gpu_0(config, Rule())


def stale(config: SystemConfig) -> Plan:
    """As alone, but each micro-batch reads the version before the newest, so that two lie there."""
    return _on_gpu_0(config, Rule(update_every=1, forward_reads="delay", delay=1))


def there_and_back(config: SystemConfig) -> Plan:
    """1 + 3 + 1 + 2 + 3 + 2 = 12 ns for a micro-batch, which goes through both GPUs alone."""
    pattern = Pattern(
        k=1,
        period_total_ns=12,
        operations=_one_by_one(0, 4, 5, 10),
        transfers=(send("activation", 0, 0, 1), send("gradient", 0, 0, 7)),
    )
    return _plan(config, Rule(), stages((0, 0, [0]), (1, 1, [1])), pattern)


def layered(config: SystemConfig) -> Plan:
    """As alone, but each layer is a stage."""
    pattern = Pattern(k=1, period_total_ns=6, operations=_one_by_one(0, 1, 2, 4))
    return _plan(config, Rule(), stages((0, 0, [0]), (1, 1, [0])), pattern)


def in_pairs(config: SystemConfig) -> Plan:
    """As alone, with an update after an even number of micro-batches only."""
    if config.microbatches % 2:
        raise InputError("is odd", field="microbatches")
    return _on_gpu_0(config, Rule(update_every=config.microbatches))


asked_for: list[int] = []


def never(config: SystemConfig) -> Plan:
    """Write down for how many micro-batches there is no plan."""
    asked_for.append(config.microbatches)
    raise InputError("does not settle", field="microbatches")


def flushed(config: SystemConfig) -> Plan:
    """As alone, but written as a step."""
    m = config.microbatches
    operations = tuple(
        op(kind, 0, i, 6 * i + start) for i in range(m) for kind, start in (("F", 0), ("B", 2))
    )
    pattern = Pattern(k=m, period_total_ns=6 * m, operations=operations)
    rule = Rule(update_every=m, forward_reads="delay")
    plan = _plan(config, rule, stages((0, 1, [0])), pattern)
    return replace(plan, scope=replace(plan.scope, microbatches=m))


def halves(config: SystemConfig) -> Plan:
    """Nothing, as the chain has no halves of a backward."""
    config.chain.require("backward_input_ns", range(2), needed_by="a split")
    raise AssertionError


def wrong(config: SystemConfig) -> Plan:
    """Let both operations run at once."""
    pattern = Pattern(k=1, period_total_ns=6, operations=(op("F", 0, 0, 0), op("B", 0, 0, 0)))
    return replace(alone(config), pattern=pattern)


def endless(config: SystemConfig) -> Plan:
    """Never come to an end."""
    while True:
        pass


def interrupting(config: SystemConfig) -> Plan:
    """Press Ctrl-C in the midst of it."""
    os.kill(os.getpid(), signal.SIGINT)
    return alone(config)
