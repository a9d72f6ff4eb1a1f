"""Whether lists of actions can be run to their end, whatever the times.

Each action must be there once, on its rank and behind what it needs; both ends of each transfer
must be there, and ranks must not wait for each other in a cycle; and what replicas send each other
must add up: see `check_weights`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from schedopt.actions.action import Action
from schedopt.actions.weight_replay import Order, broken, check_weights
from schedopt.errors import InputError

Lists = Sequence[Sequence[Action]]
"""The actions of each rank."""
_Position = tuple[int, int]
"""An action by its rank and its place in the rank's list."""
_Done = tuple[int, str, int]
"""Stage, kind and micro-batch, of an update mini-batch, of an action."""

_RUN_ALL: Final = "Run each micro-batch forward and backward in each stage"


def check_order(lists: Lists, order: Order) -> None:
    """Refuse lists in a total order, both ends of a transfer together, that do not add up."""
    check_weights(order, _check_lists(lists).update_every)


def find_order(lists: Lists) -> list[tuple[int, Action]]:
    """Return rank and action in a total order in which everything can be done one by one.

    A transfer is one event, at which both of its ends meet: neither goes on alone. Takes time
    linear in the number of actions, and memory for a graph of them.

    Raises
    ------
    InputError
        If an action is missing or lacks what it needs on its rank or its other end, if an update
        lacks a gradient, or if actions wait for each other in a cycle, with their names.
    """
    import networkx as nx

    step = _check_lists(lists)
    graph = nx.DiGraph()
    for rank, actions in enumerate(lists):
        events = [step.sender.get((rank, n), (rank, n)) for n in range(len(actions))]
        graph.add_nodes_from(events)
        graph.add_edges_from(pairwise(events), rank=rank)
    receiver = {sender: end for end, sender in step.sender.items() if end != sender}
    try:
        before, after = nx.find_cycle(graph)[0][:2]
    except nx.NetworkXNoCycle:
        order = [
            (rank, lists[rank][n])
            for event in nx.topological_sort(graph)
            for rank, n in ([event, receiver[event]] if event in receiver else [event])
        ]
        check_weights(order, step.update_every)
        return order
    cycle = pairwise([before, *nx.shortest_path(graph, after, before)])
    waits = []
    for rank, group in groupby(cycle, lambda edge: graph.edges[edge]["rank"]):
        edges = list(group)
        # Of consecutive actions of one rank only the first and the last matter.
        ends = (edges[-1][1], edges[0][0])
        here = [end if end[0] == rank else receiver[end] for end in ends]
        names = " waits for ".join(str(lists[r][n]) for r, n in here)
        waits.append(f"{names} on rank {rank}")
    raise InputError(
        f"deadlock: the actions wait for each other in a cycle: {'; '.join(waits)}",
        way_out="Put both ends of each transfer in the same order on both ranks",
    )


@dataclass(frozen=True)
class _Step:
    """What lists of actions consist of.

    `versions` has how many versions of a stage are made on a rank, by rank and stage; `homes` the
    rank of a micro-batch in a stage; `sender` the position of the sending end, by that of each end
    of a transfer.
    """

    stages: int
    micro_batches: int
    versions: dict[tuple[int, int], int]
    recomputing: frozenset[int]
    homes: dict[tuple[int, int], int]
    sender: dict[_Position, _Position]

    @property
    def update_every(self) -> int:
        """The micro-batches of one update."""
        return self.micro_batches // max(1, max(self.versions.values()))


def _check_lists(lists: Lists) -> _Step:
    """Check all that concerns one rank alone, and that transfers have both ends."""
    if not lists:
        raise InputError("there are no actions", way_out="Give one line for each rank")
    for rank, actions in enumerate(lists):
        if not actions:
            raise InputError(
                "there are no actions", field=f"rank {rank}", way_out="Give each rank a stage"
            )
    placed = [(rank, action) for rank, actions in enumerate(lists) for action in actions]
    versions = dict.fromkeys(((rank, action.stage) for rank, action in placed), 0)
    homes: dict[tuple[int, int], int] = {}
    for rank, action in placed:
        versions[rank, action.stage] += action.makes_version
        if action.kind == "F":
            homes.update({(action.stage, i): rank for i in action.micro_batches})
    step = _Step(
        1 + max(action.stage for _, action in placed),
        max((a.micro_batches.stop for _, a in placed if not a.is_of_mini_batch), default=1),
        versions,
        frozenset(action.stage for _, action in placed if action.kind == "R"),
        homes,
        {},
    )
    for rank, action in placed:
        for i in action.micro_batches if action.reads_weights or action.is_boundary else ():
            home = homes.get((action.stage, i), rank)
            if home != rank:
                raise broken(rank, action, f"is there, and {action.stage}F{i} on rank {home}")
    _check_updates(step)
    for rank, actions in enumerate(lists):
        _check_rank(rank, actions, step)
    for stage in range(step.stages):
        for i in range(step.micro_batches):
            if (stage, i) not in homes:
                raise InputError(f"{stage}F{i} is missing", field="actions", way_out=_RUN_ALL)
    step.sender.update(_pair_ends(lists))
    return step


def _check_updates(step: _Step) -> None:
    """Refuse updates that do not share the micro-batches evenly, the same in each stage."""
    most = max(step.versions.values(), default=0)
    for (_, stage), count in sorted(step.versions.items(), key=lambda item: item[0][::-1]):
        if count != most or (most and step.micro_batches % most):
            raise InputError(
                f"stage {stage} has {count} updates for {step.micro_batches} micro-batches, "
                f"and some stage has {most}",
                way_out="Give each stage, on each of its ranks, an update for each mini-batch, or "
                "the weights",
            )


def _check_rank(rank: int, actions: Iterable[Action], step: _Step) -> None:
    """Refuse an action that is there twice or comes before what it needs, and missing gradients."""
    done: set[_Done] = set()
    for action in actions:
        for alternatives in _needs(action, rank, step):
            if done.isdisjoint(alternatives):
                names = " or ".join(map(_name, alternatives))
                raise broken(rank, action, f"comes before {names}")
        for i in action.micro_batches if action.part is None else ():
            # An update of some chunks makes no version yet, and others may follow.
            key = (action.stage, str(action.share or "") + action.kind, i)
            if key in done:
                raise broken(rank, action, "is there twice")
            done.add(key)
    for (stage, i), home in step.homes.items():
        whole, half = (stage, "B", i), (stage, "W", i)
        if home != rank:
            continue
        if whole in done and (stage, "I", i) in done:
            raise InputError(
                f"{_name(whole)} is there in addition to its halves",
                field=f"rank {rank}",
                way_out="Take either the whole backward or its halves",
            )
        if whole not in done and half not in done:
            raise InputError(
                f"{_name(whole)} and {_name(half)} are both missing",
                field=f"rank {rank}",
                way_out=_RUN_ALL,
            )


def _needs(action: Action, rank: int, step: _Step) -> Iterator[list[_Done]]:
    """Yield what must have come before on the rank: of each list one."""
    s, every = action.stage, step.update_every

    def version(number: int) -> list[_Done]:
        return [(s, "U", number), (s, "BROADCAST_PARAM", number)]

    if action.is_of_mini_batch:
        if action.first and action.makes_version:
            yield version(action.first - 1)
        for i in range(action.first * every, (action.first + 1) * every):
            if action.kind == "U" and step.homes.get((s, i)) == rank:
                yield [(s, "B", i), (s, "W", i)]
        return
    if action.version and action.reads_weights:
        yield version(action.version - 1)
    for i in action.micro_batches:
        match action.kind:
            case "F" if s:
                yield [(s, "RECV_F", i), (s - 1, "F", i)]
            case "B" | "I":
                yield [(s, "F", i)]
                if s < step.stages - 1:
                    yield [(s, "RECV_B", i), (s + 1, "B", i), (s + 1, "I", i)]
                if s in step.recomputing:
                    yield [(s, "R", i)]
            case "W":
                yield [(s, "I", i)]
            case "R" | "SEND_F":
                yield [(s, "F", i)]
            case "SEND_B":
                yield [(s, "B", i), (s, "I", i)]
            case _:
                pass


def _pair_ends(lists: Lists) -> Iterator[tuple[_Position, _Position]]:
    """Yield each end of a transfer with the position of its sending end."""
    ends: dict[Action, _Position] = {}
    for rank, actions in enumerate(lists):
        for n, action in enumerate(actions):
            if action.is_transfer and action in ends:
                raise broken(rank, action, "is there twice")
            if action.is_transfer:
                ends[action] = rank, n
    for action, position in ends.items():
        rank, part = position[0], action.part
        own = rank if part is None else part.source if action.is_send else part.target
        if own != rank:
            raise broken(rank, action, f"is there, and not on rank {own}")
        wanted = action.other_end
        if wanted.stage < 0:
            raise broken(rank, action, "is of the first stage, which has none before it")
        other = ends.get(wanted)
        if other is None:
            raise broken(rank, action, f"has no other end {wanted} on any rank")
        if other[0] == rank:
            raise broken(rank, action, "is sent to its own rank")
        yield position, position if action.is_send else other


def _name(done: _Done) -> str:
    stage, kind, first = done
    return str(Action(stage, kind, first))  # type: ignore[arg-type]
