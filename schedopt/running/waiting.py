"""Whether lists of actions can be run to their end, whatever the times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from schedopt.errors import InputError
from schedopt.running.action import Action

Placed = tuple[int, int]
"""An action by its rank and its place in the rank's list."""


def order_lists(lists: Sequence[Sequence[Action]]) -> list[tuple[int, Action]]:
    """Return rank and action in a total order in which everything can be done one by one.

    A transfer is one event, at which both of its ends meet: neither goes on alone.

    Raises
    ------
    InputError
        If an action lacks what it needs on its rank or its other end, or if actions wait for
        each other in a circle, with their names.
    """
    import networkx as nx

    _check_needs(lists)
    meeting = dict(_pair_ends(lists))
    graph = nx.DiGraph()
    for rank, actions in enumerate(lists):
        places = [meeting.get((rank, place), (rank, place)) for place in range(len(actions))]
        graph.add_nodes_from(places)
        graph.add_edges_from(pairwise(places), rank=rank)
    try:
        circle = nx.find_cycle(graph)
    except nx.NetworkXNoCycle:
        receivers = {sender: other for other, sender in meeting.items() if other != sender}
        found: list[tuple[int, Action]] = []
        for placed in nx.topological_sort(graph):
            ends = [placed, receivers[placed]] if placed in receivers else [placed]
            found += [(rank, lists[rank][place]) for rank, place in ends]
        return found
    told = []
    for before, after in circle:
        rank = graph.edges[before, after]["rank"]
        told.append(f"{_name(lists, after)} waits for {_name(lists, before)} on rank {rank}")
    raise InputError(
        f"actions wait for each other for ever: {'; '.join(told)}",
        way_out="Put both ends of each transfer in the same order on both ranks",
    )


def _name(lists: Sequence[Sequence[Action]], placed: Placed) -> Action:
    rank, place = placed
    return lists[rank][place]


def _pair_ends(lists: Sequence[Sequence[Action]]) -> Iterator[tuple[Placed, Placed]]:
    """Yield each end of a transfer with the place of its sending end."""
    ends: dict[Action, Placed] = {}
    for rank, actions in enumerate(lists):
        for place, action in enumerate(actions):
            if not action.is_transfer:
                continue
            if action in ends:
                raise _broken(rank, action, "is there twice")
            ends[action] = rank, place
    for action, placed in ends.items():
        other = ends.get(action.other_end)
        if other is None:
            raise _broken(placed[0], action, f"has no other end {action.other_end} on any rank")
        if other[0] == placed[0]:
            raise _broken(placed[0], action, "is sent to its own rank")
        yield placed, placed if action.is_send else other


def _check_needs(lists: Sequence[Sequence[Action]]) -> None:
    """Refuse an action that comes before what it needs on its rank."""
    stages = [action.stage for actions in lists for action in actions]
    if not stages:
        raise InputError("there are no actions", way_out="Give one line for each rank")
    last = max(stages)
    for rank, actions in enumerate(lists):
        done: set[tuple[int, str, int]] = set()
        for action in actions:
            for micro_batch in action.micro_batches:
                for ways in _needs(action, micro_batch, last):
                    if done.isdisjoint(ways):
                        names = [f"{stage}{kind}{first}" for stage, kind, first in ways]
                        raise _broken(rank, action, f"comes before {' or '.join(names)}")
            for micro_batch in action.micro_batches:
                key = (action.stage, action.kind, micro_batch)
                if key in done:
                    raise _broken(rank, action, "is there twice")
                done.add(key)


def _needs(action: Action, i: int, last: int) -> Iterator[list[tuple[int, str, int]]]:
    """Yield what must have come before, each as the ways in which it can."""
    s = action.stage
    match action.kind:
        case "F":
            if s:
                yield [(s, "RECV_F", i), (s - 1, "F", i)]
        case "B" | "I":
            yield [(s, "F", i)]
            if s < last:
                yield [(s, "RECV_B", i), (s + 1, "B", i), (s + 1, "I", i)]
        case "W":
            yield [(s, "I", i)]
        case "R" | "SEND_F":
            yield [(s, "F", i)]
        case "SEND_B":
            yield [(s, "B", i), (s, "I", i)]
        case _:
            pass


def _broken(rank: int, action: Action, what: str) -> InputError:
    return InputError(
        f"{action} {what}",
        field=f"rank {rank}",
        way_out="Take the lists as they were printed, or mend them",
    )
