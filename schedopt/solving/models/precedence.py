"""What comes behind what in every pattern, whatever its order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from schedopt.solving.models.tasks import Stash, Task


def direct_followers(way: Sequence[Task]) -> Iterator[tuple[int, int]]:
    """Yield which step of a micro-batch directly follows which.

    Recompute follows its forward, the backward both it and the gradient; W follows I, and
    nothing follows W.

    Parameters
    ----------
    way : sequence of Task

    Yields
    ------
    (int, int)
        Numbers of a step and of one that follows it.
    """
    place = {(step.what, step.stage): index for index, step in enumerate(way)}
    before: list[int] = []
    tails: list[int] = []
    again: dict[int, int] = {}
    for position, step in enumerate(way):
        if step.what == "R":
            again[step.stage] = position
            yield place["F", step.stage], position
            continue
        if step.what == "W":
            yield place["I", step.stage], position
            continue
        if step.what in ("B", "I") and step.stage in again:
            yield again[step.stage], position
        if step.what == "I":
            # The other way to run the backward in front of it.
            whole = tails.pop()
            yield from ((tail, position) for tail in before)
            tails = [whole, position]
            continue
        yield from ((tail, position) for tail in tails)
        before, tails = tails, [position]


def certainly_behind(
    way: Sequence[Task],
    stashes: Sequence[Stash],
    most: Sequence[int],
    stopped: Callable[[], bool],
) -> list[list[int]]:
    """Return the least n for which step b of micro-batch j + n is behind step a of j: [a][b].

    A path of arcs that hold in every pattern; B and I of a stage are one node, whichever is
    there, and leave behind as many in flight as either allows.

    Parameters
    ----------
    way : sequence of Task
    stashes : sequence of Stash
    most : sequence of int
        Micro-batches that may be in flight of each that is kept.
    stopped : callable
        Whether to give up; rows that are then lacking are empty.
    """
    import networkx

    def node(step: Task) -> tuple[str, int]:
        return ("back" if step.what in ("B", "I") else str(step.what), step.stage)

    graph = networkx.DiGraph()

    def add(first: tuple[str, int], second: tuple[str, int], offset: int) -> None:
        known = graph.get_edge_data(first, second, {"weight": None})["weight"]
        graph.add_edge(first, second, weight=offset if known is None else max(known, offset))

    for before, behind in direct_followers(way):
        add(node(way[before]), node(way[behind]), 0)
    through: dict[tuple[int, str], dict[bool, int]] = defaultdict(dict)
    for one, count in zip(stashes, most, strict=True):
        if one.enter != "I":
            known = through[one.stage, one.enter].get(bool(one.split), count)
            through[one.stage, one.enter][bool(one.split)] = min(known, count)
        if one.leave == "W":
            enters = "back" if one.enter == "I" else one.enter
            add(("W", one.stage), (enters, one.stage), count)
    for (stage, enter), choices in through.items():
        add(("back", stage), (enter, stage), max(choices.values()))
    nodes = [node(step) for step in way]
    lengths: dict[tuple[str, int], list[int]] = {}
    for a in nodes:
        if stopped():
            break
        if a not in lengths:
            to = networkx.single_source_dijkstra_path_length(graph, a)
            lengths[a] = [int(to[b]) for b in nodes]
    return [lengths.get(a, []) for a in nodes]
