"""A graph of layers with variants, the plans that Piper allows for it, and what one costs.

Tarnawski et al. 2021, "Piper: Multidimensional planner for DNN parallelization", section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from schedopt.bench.published.tables import Line, Tables
from schedopt.errors import InputError
from schedopt.validation import as_whole, show

VARIANTS: Final = "piper/variants"
EDGES: Final = "piper/edges"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run a node on a tensor group. Times are ns of a micro-batch, sizes bytes a GPU.

    Of each micro-batch in flight it keeps `saved_bytes`, and `fixed_bytes` once. Where the edge
    from (to) another node leaves the stage, `gathered` (`scattered`) bytes come on top of it.
    """

    name: str
    time_ns: int
    parameter_bytes: int
    saved_bytes: int
    fixed_bytes: int
    gathered: Mapping[int, int]
    scattered: Mapping[int, int]


@dataclass(frozen=True)
class Model:
    """Nodes by number, each with its variants by tensor degree, and edges with their bytes."""

    nodes: tuple[Mapping[int, tuple[Variant, ...]], ...]
    edges: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Cluster:
    """GPUs alike, and the micro-batches of a batch, of which the replicas of a stage divide."""

    gpus: int
    memory_bytes: int
    bytes_per_s: int
    microbatches: int


@dataclass(frozen=True)
class PiperStage:
    """Nodes with the position of the variant of each, on `replicas` groups of `tensor` GPUs."""

    nodes: Mapping[int, int]
    replicas: int
    tensor: int


def time_of(model: Model, cluster: Cluster, plan: Sequence[PiperStage]) -> Fraction:
    """Return the time of a micro-batch by the rule of Piper, ns: the largest load of a stage.

    A stage takes the times of its nodes and twice what crosses its border, divided by its replicas
    d, and 4 (d - 1) / d of its parameters for a batch. A GPU keeps as many micro-batches as there
    are replicas from its stage on, divided by d, rounded up.

    Raises
    ------
    InputError
        If it is no plan for this cluster.
    """
    placed = {node: number for number, stage in enumerate(plan) for node in stage.nodes}
    if len(placed) != len(model.nodes) or sum(len(stage.nodes) for stage in plan) != len(placed):
        _refuse("nodes are missing, or lie in two stages")
    if any(placed[a] > placed[b] for a, b, _ in model.edges):
        _refuse("an edge leads backwards")
    if sum(stage.replicas * stage.tensor for stage in plan) > cluster.gpus:
        _refuse("it takes more GPUs than there are")
    largest, behind = Fraction(0), 0
    for stage in reversed(plan):
        d = stage.replicas
        if cluster.microbatches % d:
            _refuse(f"{d} replicas do not divide the micro-batches")
        behind += d
        chosen = {node: model.nodes[node][stage.tensor][at] for node, at in stage.nodes.items()}
        kept = -(-behind // d)
        if sum(v.saved_bytes * kept + v.fixed_bytes for v in chosen.values()) > (
            cluster.memory_bytes
        ):
            _refuse("a stage does not fit its memory")
        moved = Fraction(0)
        for a, b, size in model.edges:
            if (a in chosen) != (b in chosen):
                extra = chosen[a].scattered[b] if a in chosen else chosen[b].gathered[a]
                moved += 2 * (size + extra)
        parameters = sum(v.parameter_bytes for v in chosen.values())
        moved += Fraction(4 * (d - 1) * parameters, cluster.microbatches)
        time = sum(v.time_ns for v in chosen.values())
        largest = max(largest, (time + moved * 10**9 / cluster.bytes_per_s) / d)
    if behind > cluster.microbatches:
        _refuse("it keeps more micro-batches than a batch has")
    return largest


def _refuse(rule: str) -> None:
    raise InputError(f"this is no plan: {rule}", field="plan", way_out="Give another plan")


def read_model(tables: Tables) -> Model:
    """Return the model of the tables of Piper.

    Raises
    ------
    InputError
        Naming the table and the line, where it is not one.
    """
    lines = tables.lines(
        VARIANTS,
        "node tp variant time_ns parameter_bytes memory_a_bytes memory_b_bytes "
        "sync_forward_bytes sync_backward_bytes",
    )
    order = {node: number for number, node in enumerate(dict.fromkeys(x["node"] for x in lines))}
    nodes: list[dict[int, tuple[Variant, ...]]] = [{} for _ in order]
    edges = []
    for place, line in _placed(tables.lines(EDGES, "source target bytes")):
        ends = [line["source"], line["target"]]
        if unknown := [end for end in ends if end not in order]:
            raise InputError(
                f"names node {show(unknown[0])}, of which there is no variant",
                field=place,
                way_out=f"Give its variants in {VARIANTS}.json, or leave the edge out",
                source=f"{EDGES}.json",
            )
        edges.append((order[ends[0]], order[ends[1]], _whole(line, "bytes", place, EDGES)))
    if not nodes:
        raise InputError(
            "there are no nodes", field="rows", way_out="Give variants", source=f"{VARIANTS}.json"
        )
    for place, line in _placed(lines):
        node = order[line["node"]]
        degree = _whole(line, "tp", place, VARIANTS, low=1)
        sources = [a for a, b, _ in edges if b == node]
        targets = [b for a, b, _ in edges if a == node]
        variant = Variant(
            name=str(line["variant"]),
            time_ns=_whole(line, "time_ns", place, VARIANTS),
            parameter_bytes=_whole(line, "parameter_bytes", place, VARIANTS),
            saved_bytes=_whole(line, "memory_a_bytes", place, VARIANTS),
            fixed_bytes=_whole(line, "memory_b_bytes", place, VARIANTS),
            gathered=_sync(line, "sync_forward_bytes", place, order, sources),
            scattered=_sync(line, "sync_backward_bytes", place, order, targets),
        )
        nodes[node][degree] = (*nodes[node].get(degree, ()), variant)
    return Model(tuple(nodes), tuple(edges))


def read_cluster(line: Line, place: str, table: str) -> tuple[Cluster, int | None]:
    """Return the cluster of a line of a table, and the time of the planner's plan, ns, if known."""
    cluster = Cluster(
        _whole(line, "gpus", place, table, low=1, high=10_000),
        _whole(line, "memory_bytes", place, table, low=1),
        _whole(line, "bandwidth_bytes_per_s", place, table, low=1),
        _whole(line, "microbatches", place, table, low=1),
    )
    planner = line["planner_ns"]
    return cluster, None if planner is None else _whole(line, "planner_ns", place, table)


def _placed(lines: Sequence[Line]) -> list[tuple[str, Line]]:
    return [(f"rows[{number}]", line) for number, line in enumerate(lines)]


def _whole(
    line: Line, column: str, place: str, table: str, low: int = 0, high: int = 1 << 50
) -> int:
    try:
        return as_whole(line[column], f"{place}.{column}", low=low, high=high)
    except InputError as error:
        raise InputError(
            error.rule, field=error.field, way_out=error.way_out, source=f"{table}.json"
        ) from None


def _sync(
    line: Line, column: str, place: str, order: Mapping[Any, int], ends: Sequence[int]
) -> dict[int, int]:
    given, found = line[column], {}
    names = {number: str(node) for node, number in order.items()}
    for end in ends:
        if not isinstance(given, dict) or names[end] not in given:
            raise InputError(
                f"does not say the bytes of the edge with node {names[end]}",
                field=f"{place}.{column}",
                way_out="Give each edge of the node its bytes, 0 where there are none",
                source=f"{VARIANTS}.json",
            )
        value = {names[end]: given[names[end]]}
        found[end] = _whole(value, names[end], f"{place}.{column}", VARIANTS)
    return found
