"""Whether the order of a plan can be run at all, with any times."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise, product
from typing import Any, Final

from schedopt.checking.order import needs
from schedopt.checking.resources import list_uses, name_resource
from schedopt.checking.timeline import Timeline, name_item, name_of, name_place
from schedopt.checking.violations import Violation

MOST_OCCURRENCES: Final = 200_000
"""Wider windows are not searched: the broken order itself is reported anyway."""
_MOST_EDGES: Final = 50

Node = tuple[int, int]
"""An item, by its number in the timeline, and the first micro-batch that it covers."""


def find_deadlock(timeline: Timeline) -> Iterator[Violation]:
    """Yield a circle of operations that wait for each other, if there is one.

    The occurrences of a few periods are joined by dependencies and by the order of their starts on
    each GPU and link. Only a dependency that the start times break can close a circle.
    """
    import networkx as nx

    periods = _count_periods(timeline)
    if periods * len(timeline.items) > MOST_OCCURRENCES:
        return
    graph = nx.DiGraph()
    nodes = {
        (number, item.shift + q * timeline.plan.pattern.k)
        for number, (_, item) in enumerate(timeline.items)
        for q in range(periods)
    }
    _add_resource_edges(graph, timeline, periods)
    broken = _add_dependencies(graph, timeline, nodes)
    part = {
        node: number
        for number, component in enumerate(nx.strongly_connected_components(graph))
        for node in component
    }
    closing = [(before, after) for before, after in broken if part[before] == part[after]]
    circles = [nx.shortest_path(graph, after, before) for before, after in closing[:_MOST_EDGES]]
    if circles:
        yield _report(timeline, graph, min(circles, key=len))


def _count_periods(timeline: Timeline) -> int:
    shifts = [item.shift for _, item in timeline.items]
    together = timeline.repeat(*range(len(timeline.plan.stages)))
    return (max(shifts) - min(shifts) + together) // timeline.plan.pattern.k + 3


def _add_resource_edges(graph: Any, timeline: Timeline, periods: int) -> None:
    numbers = {place: number for number, (place, _) in enumerate(timeline.items)}
    k = timeline.plan.pattern.k
    for resource, uses in list_uses(timeline).items():
        place = name_resource(timeline, resource)
        moments = sorted(
            (use.start + timeline.duration_of(later), numbers[use.place], use.first + later)
            for use in uses
            for later in range(0, periods * k, use.every)
        )
        together = [
            [(number, first) for _, number, first in group]
            for _, group in groupby(moments, key=lambda moment: moment[0])
        ]
        for group, following in pairwise(together):
            graph.add_edges_from(product(group, following), on=place)


def _add_dependencies(graph: Any, timeline: Timeline, nodes: set[Node]) -> list[tuple[Node, Node]]:
    number_of = {id(item): number for number, (_, item) in enumerate(timeline.items)}
    broken: list[tuple[Node, Node]] = []
    for number, first in sorted(nodes):
        item = timeline.items[number][1]
        name = name_of(timeline.plan, item)
        if name not in timeline.slots:
            continue
        start = timeline.start(item, first)
        for i in range(first, first + item.covers):
            for needed in needs(timeline, name, i):
                slot = timeline.slot(needed, i)
                assert slot is not None
                before = (number_of[id(slot.item)], i - slot.behind)
                if before not in nodes:
                    continue
                graph.add_edge(before, (number, first), on="")
                if timeline.span(needed, i)[1] > start:
                    broken.append((before, (number, first)))
    return broken


def _report(timeline: Timeline, graph: Any, circle: list[Node]) -> Violation:
    names = [name_item(timeline.items[number][1], first) for number, first in circle]
    clauses: list[str] = []
    row_start = row_on = ""
    for (here, there), name, following in zip(
        pairwise((*circle, circle[0])), names, (*names[1:], names[0]), strict=True
    ):
        on = graph.edges[here, there]["on"]
        if not on:
            clauses.append(f"{following} needs {name}")
        elif on == row_on:
            # Of a row on one GPU or link only the first and the last matter.
            clauses[-1] = f"{row_start} comes before {following} on {on}"
        else:
            row_start = name
            clauses.append(f"{name} comes before {following} on {on}")
        row_on = on
    number, first = circle[0]
    return Violation(
        "deadlock",
        name_place(name_of(timeline.plan, timeline.items[number][1]), first),
        f"no times can run this: {'; '.join(clauses)}",
    )
