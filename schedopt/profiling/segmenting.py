"""Cutting a graph of operators into segments that run one after the other.

A tensor is *carried* if it depends on an input and on a parameter. Everything else (masks, ranges,
the inputs themselves) can be had anywhere, so each segment makes its own. A graph is cut behind
each tensor through which every path from the first carried tensors to the loss leads: there, and
only there, exactly one carried tensor is live. These are the dominators of the loss.

What cannot be made twice is carried, too: random numbers, and memory that a carried tensor is
written into or that outlives the step. It counts as made where it is first used, so a model can be
cut before it. A submodule that is kept whole is an operator that brings its parameters along.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from posixpath import commonpath

import torch
from torch import Tensor, fx

from schedopt.errors import InputError
from schedopt.profiling.pieces import Piece
from schedopt.profiling.tracing import before, storages, written

START = ""
"""Stands before the first carried tensors; no node has this name."""


def find_cuts(module: fx.GraphModule) -> list[str]:
    """Return the names of the nodes behind which the graph can be cut, the loss last."""
    import networkx

    carried = _carried(module)
    loss = _loss(module.graph)
    if loss not in carried:
        raise InputError(
            "the loss depends on no parameter that an input reaches",
            field="model",
            way_out="Let the loss be computed from what the module returns",
        )
    paths = networkx.DiGraph()
    for node, needed in carried.items():
        paths.add_edges_from((source.name, node.name) for source in needed)
        if not needed:
            paths.add_edge(START, node.name)
    above = networkx.immediate_dominators(paths, START)
    single = {node.name for node in carried if isinstance(node.meta.get("val"), Tensor)}
    cuts, name = [], loss.name
    while name != START:
        if name in single:
            cuts.append(name)
        name = above[name]
    return cuts[::-1]


def choose_cuts(
    cuts: Sequence[str], costs: Sequence[int], sizes: Sequence[int], min_share: float
) -> list[str]:
    """Merge trivial layers into a neighbour, the cheapest first.

    Parameters
    ----------
    cuts : sequence of str
        The end of each layer; the last one stays.
    costs : sequence of int
        Of each layer.
    sizes : sequence of int
        What each layer hands on, bytes. Of its two sides a layer loses the one that carries more.
    min_share : float
        A layer with less than this share of all costs is trivial.

    Returns
    -------
    list of str
        The cuts that stay.

    Examples
    --------
    >>> choose_cuts(["a", "b", "c"], [50, 1, 49], [8, 4, 1], 0.02)
    ['b', 'c']
    """
    kept, shares, carried = list(cuts), list(costs), list(sizes)
    least = min_share * sum(costs)
    while len(kept) > 1:
        small = min(range(len(kept)), key=shares.__getitem__)
        if shares[small] >= least:
            break
        before = carried[small - 1] if small else -1
        after = carried[small] if small < len(kept) - 1 else -1
        end = small - 1 if before >= after else small
        shares[end + 1] += shares[end]
        for values in (kept, shares, carried):
            del values[end]
    return kept


def make_segments(module: fx.GraphModule, cuts: Sequence[str]) -> list[Piece]:
    """Return the segments between cuts, which share the parameters of the module.

    The cuts are some of `find_cuts`, in order, the loss last; others are refused.
    """
    possible = find_cuts(module)
    missing = [cut for cut in cuts if cut not in possible]
    if list(cuts) != [cut for cut in possible if cut in {*cuts, possible[-1]}]:
        raise InputError(
            f"the model cannot be cut at {missing[0] if missing else list(cuts)!r:.60}",
            field="recipe.cuts",
            way_out="Profile the model again: it, torch or a library has changed since",
        )
    nodes = {node.name: node for node in module.graph.nodes}
    ends = [nodes[cut] for cut in cuts]
    carried = _carried(module)
    return [
        _make_segment(module, carried, begin, end)
        for begin, end in pairwise([None, *ends[:-1], _loss(module.graph)])
    ]


def _loss(graph: fx.Graph) -> fx.Node:
    (output,) = (node for node in graph.nodes if node.op == "output")
    loss: fx.Node = output.all_input_nodes[0]
    return loss


def _carried(module: fx.GraphModule) -> dict[fx.Node, list[fx.Node]]:
    """Return the carried nodes in order, each with the carried ones that come before it."""
    nodes = [node for node in module.graph.nodes if node.op != "output"]
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    inputs = [node for node in nodes if node.op == "placeholder"]
    weights = [node for node in nodes if node.op == "get_attr" and node.target in parameters]
    # Submodules that are kept whole bring their parameters along.
    kept = [node for node in nodes if node.op == "call_module"]
    below = _below_all(nodes, inputs) & _below_all(nodes, [*weights, *kept])
    carried = below - {*inputs, *weights}
    made: dict[fx.Node, list[fx.Node]] = {}
    while (once := _made_once(nodes, carried)) is not None:
        new = _below_all(nodes, [once])
        first = next((node for node in nodes if node in new & carried), once)
        carried |= new
        made[once] = [prior for prior in (*before(first), *made.get(first, ())) if prior not in new]
    return {
        node: [prior for prior in (*before(node), *made.get(node, ())) if prior in carried]
        for node in nodes
        if node in carried
    }


def _below_all(nodes: Sequence[fx.Node], sources: Sequence[fx.Node]) -> set[fx.Node]:
    """Return sources and all that depends on them; the nodes are in order."""
    below = set(sources)
    for node in nodes:
        if any(prior in below for prior in before(node)):
            below.add(node)
    return below


def _made_once(nodes: Sequence[fx.Node], carried: set[fx.Node]) -> fx.Node | None:
    """Return the first node that no two segments may run, though it is not carried yet."""
    own = ("call_function", "call_module")
    lasting = {key for node in nodes if node.op not in own for key in storages(node)}
    filled = {
        key for node in carried if (owner := written(node)) is not None for key in storages(owner)
    }
    used = {prior for node in nodes for prior in before(node)}
    for node in nodes:
        if node in carried or node.op != "call_function":
            continue
        is_random = _is_random(node)
        is_lasting = written(node) is not None and not lasting.isdisjoint(storages(node))
        if is_random or (is_lasting and node in used) or not filled.isdisjoint(storages(node)):
            return node
    return None


def _is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers, itself or in a graph that it runs."""
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return True
    owner = node.graph.owning_module
    graphs = [
        getattr(owner, str(source.target), None)
        for source in node.all_input_nodes
        if source.op == "get_attr"
    ]
    inner = [graph for graph in graphs if isinstance(graph, fx.GraphModule)]
    return any(_is_random(inside) for graph in inner for inside in graph.graph.nodes)


def _make_segment(
    module: fx.GraphModule,
    carried: dict[fx.Node, list[fx.Node]],
    begin: fx.Node | None,
    end: fx.Node,
) -> Piece:
    own = _own_nodes(carried, begin, end)
    needed = _with_what_they_need(module.graph, own, begin)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    if begin is not None:
        copies[begin] = graph.placeholder("value")
    side = [node for node in module.graph.nodes if node in needed and node.op == "placeholder"]
    for node in side:
        copies[node] = graph.placeholder(node.meta["input"])
    for node in module.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, lambda source: copies[source])
    graph.output(copies[end])
    graph.lint()
    inputs = tuple(node.meta["input"] for node in side)
    return Piece(_name(own), fx.GraphModule(module, graph), inputs, end.name)


def _own_nodes(
    carried: dict[fx.Node, list[fx.Node]], begin: fx.Node | None, end: fx.Node
) -> dict[fx.Node, None]:
    """Return the carried nodes from which the end is made, up to the beginning."""
    own: set[fx.Node] = set()
    stack = [end]
    while stack:
        node = stack.pop()
        if node in own or node is begin or node not in carried:
            continue
        own.add(node)
        stack += before(node)
    return {node: None for node in carried if node in own}


def _with_what_they_need(
    graph: fx.Graph, own: dict[fx.Node, None], begin: fx.Node | None
) -> set[fx.Node]:
    """Return nodes with all that they read, and with what writes over buffers beside them."""
    nodes = list(graph.nodes)
    needed = set(own)
    buffers = {source for node in own for source in node.all_input_nodes if source.op == "get_attr"}
    for node in reversed(nodes):
        owner = written(node)
        if owner is not None and owner.op == "get_attr" and _same_module(owner, buffers):
            needed.add(node)
        if node in needed:
            needed.update(prior for prior in before(node) if prior is not begin)
    return needed


def _same_module(owner: fx.Node, buffers: set[fx.Node]) -> bool:
    """Whether a buffer belongs to a module of which some other buffer or parameter is used."""
    module = str(owner.target).rpartition(".")[0]
    return any(str(buffer.target).rpartition(".")[0] == module for buffer in buffers)


def _name(own: dict[fx.Node, None]) -> str:
    """Name a segment after the modules that its operators come from.

    A segment between modules is named after its first operator; what follows them is the loss.
    """
    paths = [path for node in own if (path := _module_path(node))]
    if not paths:
        return next((node.name for node in own if _is_in_model(node)), "loss")
    common = commonpath(paths)
    inner = [path for path in paths if path != common] or [common]
    first, last = (_below(common, path) for path in (inner[0], inner[-1]))
    parts = first if first == last else f"{first} to {last}"
    return ": ".join(part for part in (common, parts) if part).replace("/", ".")


def _innermost(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return str([entry[0] for entry in stack.values()][-1]) if stack else ""


def _is_in_model(node: fx.Node) -> bool:
    """Whether an operator comes from the model itself, not from the loss behind it."""
    return _innermost(node).removeprefix("L['self'].").partition(".")[0] == "module"


def _module_path(node: fx.Node) -> str:
    """Return the innermost module that an operator comes from, as a path with slashes."""
    inner = _innermost(node).removeprefix("L['self'].").partition("module.")[2]
    return inner.replace(".", "/")


def _below(common: str, path: str) -> str:
    """Return what lies just below the common path, with the number of a block."""
    rest = path.removeprefix(common).strip("/").split("/")
    return "/".join(rest[: 2 if len(rest) > 1 and rest[1].isdigit() else 1])
