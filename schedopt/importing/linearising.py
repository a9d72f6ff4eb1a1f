"""From a graph to a line of layers, and what crosses each cut of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from schedopt.errors import InputError
from schedopt.importing.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Group:
    """Nodes that make up one layer, as positions; the first of those that take time comes first.

    `saved_input_bytes` come on top where the layer before lies in another stage. `output_bytes` are
    the `tensors` that are live after it, each once, those of 0 bytes left out; after the last
    layer what no node reads.
    """

    nodes: tuple[int, ...]
    saved_bytes: int = 0
    saved_input_bytes: int = 0
    output_bytes: int = 0
    tensors: int = 0


def linearise(graph: Graph) -> tuple[Group, ...]:
    """Put the nodes in topological order; those without a time join the layer that feeds them.

    Among the nodes that are ready the first of the file comes first.
    """
    import networkx

    order = list(networkx.lexicographical_topological_sort(graph.directed))
    layer_of = _place(graph, order)
    count = 1 + max(layer_of)
    members: list[list[int]] = [[] for _ in range(count)]
    for node in order:
        members[layer_of[node]].append(node)
    for nodes in members:
        nodes.sort(key=lambda node: not graph.nodes[node].takes_time)
    saved, over = _saved(graph, order, layer_of)
    sizes, tensors = _live(graph, layer_of, count)
    return tuple(
        Group(
            nodes=tuple(nodes),
            saved_bytes=sum(saved[node] for node in nodes),
            saved_input_bytes=sum(over[node] for node in nodes),
            output_bytes=sizes[index],
            tensors=tensors[index],
        )
        for index, nodes in enumerate(members)
    )


def merge(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Merge neighbours until exactly one tensor is live at each cut."""
    merged: list[Group] = []
    for group in groups:
        if merged and merged[-1].tensors != 1:
            before = merged.pop()
            group = replace(
                group,
                nodes=before.nodes + group.nodes,
                saved_bytes=before.saved_bytes + group.saved_bytes,
                saved_input_bytes=before.saved_input_bytes,
            )
        merged.append(group)
    return tuple(merged)


def _place(graph: Graph, order: list[int]) -> list[int]:
    """Return the layer of each node, so that no edge leads backwards.

    A node without a time lies as early as what it reads allows. One that reads nothing measured
    lies as late as those that read it allow.
    """
    feeders, readers = graph.feeders, graph.readers
    layer_of: dict[int, int] = {}
    for node in order:
        if graph.nodes[node].takes_time:
            layer_of[node] = len(layer_of)
    if not layer_of:
        raise InputError(
            "no node takes any time", field="nodes", way_out="Give a profile that was measured"
        )
    # The graph is connected, so each round places at least one more.
    while waiting := [node for node in order if node not in layer_of]:
        for node in waiting:
            known = [layer_of[feeder] for feeder in feeders[node] if feeder in layer_of]
            if known:
                layer_of[node] = max(known)
        for node in reversed(waiting):
            known = [layer_of[reader] for reader in readers[node] if reader in layer_of]
            if node not in layer_of and known:
                layer_of[node] = min(known)
    return [layer_of[node] for node in range(len(order))]


def _saved(graph: Graph, order: list[int], layer_of: list[int]) -> tuple[list[int], list[int]]:
    """Return what each node keeps, and what it keeps on top at the start of a stage.

    A node without a time that reads one measured tensor is a view of it and keeps nothing. A node
    in place shares the storage of the layer before, and holds it alone where that lies elsewhere.
    """
    saved, over, root = [0] * len(order), [0] * len(order), list(range(len(order)))
    for position in order:
        node = graph.nodes[position]
        if not node.takes_time:
            roots = {root[feeder] for feeder in graph.feeders[position]}
            root[position] = roots.pop() if len(roots) == 1 else position
        if node.saved_bytes is not None:
            saved[position] = node.saved_bytes
        elif root[position] != position:
            saved[position] = 0
        elif node.in_place and _shares_storage(graph, position, layer_of):
            over[position] = node.output_bytes
        else:
            saved[position] = node.output_bytes
    return saved, over


def _shares_storage(graph: Graph, node: int, layer_of: list[int]) -> bool:
    """Whether a node alone reads what the layer before it wrote, and reads nothing else."""
    if len(graph.feeders[node]) != 1:
        return False
    feeder = graph.feeders[node][0]
    return graph.readers[feeder] == [node] and layer_of[feeder] == layer_of[node] - 1


def _live(graph: Graph, layer_of: list[int], count: int) -> tuple[list[int], list[int]]:
    """Return for each layer the bytes and the number of the tensors that are live after it."""
    sizes, tensors = [0] * (count + 1), [0] * (count + 1)
    unread = 0
    for node, readers in enumerate(graph.readers):
        size, first = graph.nodes[node].output_bytes, layer_of[node]
        if not readers and first == count - 1:
            unread += size
        last = max((layer_of[reader] for reader in readers), default=first)
        if size and last > first:
            for changes, amount in ((sizes, size), (tensors, 1)):
                changes[first] += amount
                changes[last] -= amount
    sizes, tensors = (list(accumulate(changes[:count])) for changes in (sizes, tensors))
    sizes[-1] = unread
    return sizes, tensors
