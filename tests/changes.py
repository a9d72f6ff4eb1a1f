"""Ways to change one thing of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from schedopt.plan import Operation, Plan, Transfer
from schedopt.platform import Gpu, Platform
from schedopt.stage import Shard


def with_pattern(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, pattern=replace(plan.pattern, **changes))


def change_operation(plan: Plan, number: int, **changes: Any) -> Plan:
    operations = list(plan.pattern.operations)
    operations[number] = replace(operations[number], **changes)
    return with_pattern(plan, operations=tuple(operations))


def change_transfer(plan: Plan, number: int, **changes: Any) -> Plan:
    transfers = list(plan.pattern.transfers)
    transfers[number] = replace(transfers[number], **changes)
    return with_pattern(plan, transfers=tuple(transfers))


def drop_operation(plan: Plan, number: int) -> Plan:
    operations = plan.pattern.operations
    return with_pattern(plan, operations=operations[:number] + operations[number + 1 :])


def drop_transfer(plan: Plan, number: int) -> Plan:
    transfers = plan.pattern.transfers
    return with_pattern(plan, transfers=transfers[:number] + transfers[number + 1 :])


def add_operation(plan: Plan, operation: Operation) -> Plan:
    return with_pattern(plan, operations=(*plan.pattern.operations, operation))


def add_transfer(plan: Plan, transfer: Transfer) -> Plan:
    return with_pattern(plan, transfers=(*plan.pattern.transfers, transfer))


def change_stage(plan: Plan, number: int, **changes: Any) -> Plan:
    changed = list(plan.stages)
    changed[number] = replace(changed[number], **changes)
    return replace(plan, stages=tuple(changed))


def change_shard(plan: Plan, shard: Shard) -> Plan:
    """Return a plan whose stages all shard so much."""
    return replace(plan, stages=tuple(replace(stage, shard=shard) for stage in plan.stages))


def change_layer(plan: Plan, number: int, **changes: Any) -> Plan:
    layers = list(plan.chain.layers)
    layers[number] = replace(layers[number], **changes)
    return replace(plan, chain=replace(plan.chain, layers=tuple(layers)))


def change_scope(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, scope=replace(plan.scope, **changes))


def change_rule(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, rule=replace(plan.rule, **changes))


def with_platform(
    plan: Plan, gpus: Sequence[Gpu] | None = None, *, duplex: Any = None, links: bool = True
) -> Plan:
    link = plan.platform.link if links else None
    more: dict[str, Any] = {}
    if link is not None:
        more = {
            "bandwidth": link.bandwidth_bytes_per_s,
            "latency": link.latency_ns,
            "duplex": duplex or link.duplex,
        }
    return replace(plan, platform=Platform(gpus or plan.platform.gpus, **more))


def change_gpu(plan: Plan, number: int, **changes: Any) -> Plan:
    gpus = list(plan.platform.gpus)
    gpus[number] = replace(gpus[number], **changes)
    return with_platform(plan, gpus)
