"""Whether lists of actions can be run to their end, whatever the times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from schedopt.actions.action import Action
from schedopt.actions.gradient_accounting import check_sums
from schedopt.errors import InputError

Placed = tuple[int, int]
"""An action by its rank and its place in the rank's list."""


def order_lists(lists: Sequence[Sequence[Action]]) -> list[tuple[int, Action]]:
    """Return rank and action in a total order in which everything can be done one by one.

    A transfer is one event, at which both of its ends meet: neither goes on alone.

    Raises
    ------
    InputError
        If an action is missing or lacks what it needs on its rank or its other end, if an update
        lacks a gradient, or if actions wait for each other in a circle, with their names.
    """
    import networkx as nx

    _check_places(lists)
    extent = _measure(lists)
    _check_needs(lists, extent)
    meeting = dict(_pair_ends(lists))
    graph = nx.DiGraph()
    for rank, actions in enumerate(lists):
        places = [meeting.get((rank, place), (rank, place)) for place in range(len(actions))]
        graph.add_nodes_from(places)
        graph.add_edges_from(pairwise(places), rank=rank)
    receivers = {sender: other for other, sender in meeting.items() if other != sender}
    try:
        before, after = nx.find_cycle(graph)[0][:2]
    except nx.NetworkXNoCycle:
        found: list[tuple[int, Action]] = []
        for placed in nx.topological_sort(graph):
            ends = [placed, receivers[placed]] if placed in receivers else [placed]
            found += [(rank, lists[rank][place]) for rank, place in ends]
        check_sums(found, extent.every)
        return found
    circle = pairwise([before, *nx.shortest_path(graph, after, before)])
    told = []
    for rank, group in groupby(circle, lambda edge: graph.edges[edge]["rank"]):
        row = list(group)
        # Of a row on one rank only the first and the last matter.
        names = []
        for placed in (row[-1][1], row[0][0]):
            here = placed if placed[0] == rank else receivers[placed]
            names.append(str(lists[here[0]][here[1]]))
        told.append(f"{' waits for '.join(names)} on rank {rank}")
    raise InputError(
        f"actions wait for each other for ever: {'; '.join(told)}",
        way_out="Put both ends of each transfer in the same order on both ranks",
    )


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
        if action.part is not None and placed[0] != _rank_of(action):
            raise _broken(placed[0], action, f"is there, and not on rank {_rank_of(action)}")
        if action.other_end.stage < 0:
            raise _broken(placed[0], action, "is of the first stage, which has none before it")
        other = ends.get(action.other_end)
        if other is None:
            raise _broken(placed[0], action, f"has no other end {action.other_end} on any rank")
        if other[0] == placed[0]:
            raise _broken(placed[0], action, "is sent to its own rank")
        yield placed, placed if action.is_send else other


def _rank_of(action: Action) -> int:
    """Return the rank of what names it: an end of a transfer between replicas, or G."""
    assert action.part is not None
    return action.part.source if action.is_send else action.part.target


def _check_places(lists: Sequence[Sequence[Action]]) -> None:
    """Refuse a rank that has nothing to do."""
    if not lists:
        raise InputError("there are no actions", way_out="Give one line for each rank")
    for rank, actions in enumerate(lists):
        if not actions:
            raise InputError(
                "there are no actions", field=f"rank {rank}", way_out="Give each rank a stage"
            )


@dataclass(frozen=True)
class _Extent:
    """What a step is about.

    Parameters
    ----------
    stages, micro_batches : int
    versions : dict of (int, int) to int
        How many versions of a stage are made on a rank, by rank and stage.
    recomputing : frozenset of int
        The stages that recompute.
    homes : dict of (int, int) to int
        The rank of a micro-batch in a stage.
    """

    stages: int
    micro_batches: int
    versions: dict[tuple[int, int], int]
    recomputing: frozenset[int]
    homes: dict[tuple[int, int], int]

    @property
    def every(self) -> int:
        """The micro-batches of one update."""
        return self.micro_batches // max(1, max(self.versions.values()))


def _measure(lists: Sequence[Sequence[Action]]) -> _Extent:
    placed = [(rank, action) for rank, actions in enumerate(lists) for action in actions]
    versions = dict.fromkeys(((rank, action.stage) for rank, action in placed), 0)
    homes: dict[tuple[int, int], int] = {}
    for rank, action in placed:
        versions[rank, action.stage] += action.makes_version
        if action.kind == "F":
            homes.update({(action.stage, i): rank for i in action.micro_batches})
    extent = _Extent(
        1 + max(action.stage for _, action in placed),
        max((a.micro_batches.stop for _, a in placed if not a.makes_version), default=1),
        versions,
        frozenset(action.stage for _, action in placed if action.kind == "R"),
        homes,
    )
    for rank, action in placed:
        _check_home(rank, action, extent)
    _check_updates(extent)
    return extent


def _check_updates(extent: _Extent) -> None:
    """Refuse updates that do not share the micro-batches out evenly, the same in each stage."""
    most = max(extent.versions.values(), default=0)
    for (_, stage), count in sorted(extent.versions.items(), key=lambda one: one[0][::-1]):
        if count != most or (most and extent.micro_batches % most):
            raise InputError(
                f"stage {stage} has {count} updates for {extent.micro_batches} micro-batches, "
                f"and some stage has {most}",
                way_out="Give each stage, on each of its ranks, an update for each mini-batch, or "
                "the weights",
            )


_Done = tuple[int, str, int]
"""Stage, kind and micro-batch of an action."""


def _check_needs(lists: Sequence[Sequence[Action]], extent: _Extent) -> None:
    """Refuse an action that is missing, is there twice or comes before what it needs."""
    for rank, actions in enumerate(lists):
        done: set[_Done] = set()
        for action in actions:
            for ways in _needs(action, rank, extent):
                if done.isdisjoint(ways):
                    names = " or ".join(_name(one) for one in ways)
                    raise _broken(rank, action, f"comes before {names}")
            for micro_batch in action.micro_batches if action.part is None else ():
                key = (action.stage, action.kind, micro_batch)
                if key in done:
                    raise _broken(rank, action, "is there twice")
                done.add(key)
        _check_gradients(rank, done, extent)
    for stage in range(extent.stages):
        for i in range(extent.micro_batches):
            if (stage, i) not in extent.homes:
                raise InputError(
                    f"{stage}F{i} is not there",
                    field="actions",
                    way_out="Run each micro-batch forward and backward in each stage",
                )


def _check_home(rank: int, action: Action, extent: _Extent) -> None:
    """Refuse what belongs to a micro-batch that runs on another rank."""
    if not (action.is_read or action.is_boundary):
        return
    for i in action.micro_batches:
        home = extent.homes.get((action.stage, i), rank)
        if home != rank:
            raise _broken(rank, action, f"is there, and {action.stage}F{i} on rank {home}")


def _check_gradients(rank: int, done: set[_Done], extent: _Extent) -> None:
    """Refuse a rank that has not exactly one gradient of each of its micro-batches."""
    for (stage, i), home in extent.homes.items():
        if home != rank:
            continue
        whole, half = (stage, "B", i), (stage, "W", i)
        if whole in done and (stage, "I", i) in done:
            raise InputError(
                f"{_name(whole)} is there beside its halves",
                field=f"rank {rank}",
                way_out="Take either the whole backward or its halves",
            )
        if whole not in done and half not in done:
            raise InputError(
                f"neither {_name(whole)} nor {_name(half)} is there",
                field=f"rank {rank}",
                way_out="Run each micro-batch forward and backward in each stage",
            )


def _needs(action: Action, rank: int, extent: _Extent) -> Iterator[list[_Done]]:
    """Yield what must have come before on the rank, each as the ways in which it can."""
    s = action.stage
    if action.makes_version:
        yield from _needs_of_version(action, rank, extent)
        return
    if action.kind == "SEND_V":
        mini_batch = action.first // extent.every
        yield [(s, "U", mini_batch), (s, "V", mini_batch)]
    if action.version:
        yield [(s, "U", action.version - 1), (s, "V", action.version - 1)]
    for i in action.micro_batches:
        match action.kind:
            case "F":
                if s:
                    yield [(s, "RECV_F", i), (s - 1, "F", i)]
            case "B" | "I":
                yield [(s, "F", i)]
                if s < extent.stages - 1:
                    yield [(s, "RECV_B", i), (s + 1, "B", i), (s + 1, "I", i)]
                if s in extent.recomputing:
                    yield [(s, "R", i)]
            case "W":
                yield [(s, "I", i)]
            case "R" | "SEND_F":
                yield [(s, "F", i)]
            case "SEND_B":
                yield [(s, "B", i), (s, "I", i)]
            case _:
                pass


def _needs_of_version(action: Action, rank: int, extent: _Extent) -> Iterator[list[_Done]]:
    """Yield the version before, and of an update the gradients of the mini-batch on its rank.

    The updates of a stage share the micro-batches of the step out evenly.
    """
    s, mini_batch = action.stage, action.first
    if mini_batch:
        yield [(s, "U", mini_batch - 1), (s, "V", mini_batch - 1)]
    for i in range(mini_batch * extent.every, (mini_batch + 1) * extent.every):
        if action.kind == "U" and extent.homes.get((s, i)) == rank:
            yield [(s, "B", i), (s, "W", i)]


def _name(done: _Done) -> str:
    stage, kind, first = done
    return f"{stage}{kind}{first}"


def _broken(rank: int, action: Action, what: str) -> InputError:
    return InputError(
        f"{action} {what}",
        field=f"rank {rank}",
        way_out="Take the lists as they were printed, or mend them",
    )
