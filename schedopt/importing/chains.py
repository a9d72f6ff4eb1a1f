"""From a published profile to a chain."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, get_args

from schedopt.chain import Chain, Layer
from schedopt.errors import InputError, naming_file
from schedopt.importing import dnn_partitioning, pipedream, piper
from schedopt.importing.graph import Graph, Node
from schedopt.importing.linearising import Group, linearise, merge
from schedopt.importing.piper import piper_degrees, piper_text, read_piper
from schedopt.importing.reading import read_file
from schedopt.profile import Profile, Variant
from schedopt.units import format_duration, printable
from schedopt.validation import as_whole, show

Source = Literal["pipedream", "dnn-partitioning", "piper"]
Cuts = Literal["order", "articulation"]
SOURCES: Final[tuple[Source, ...]] = get_args(Source)
CUTS: Final[tuple[Cuts, ...]] = get_args(Cuts)
MOST_COPIES: Final = 64
LONGEST_LIST: Final = 20
"""The provenance names up to this many nodes; of more it gives the number."""

FACTOR: Final = 10
"""Forward and backward of one node rarely differ by more."""
FACTOR_ALIKE: Final = 3
"""Nodes with the same description rarely differ by more from one another."""
SHARE: Final = 100
"""What takes less than this part of the whole is left alone: small times are noise."""
SHOWN: Final = 5

_READERS: Final[dict[str, tuple[Callable[[str], Graph], str]]] = {
    "pipedream": (pipedream.read_pipedream, pipedream.EXPECTED),
    "dnn-partitioning": (dnn_partitioning.read_dnn_partitioning, dnn_partitioning.EXPECTED),
    "piper": (piper.read_piper, piper.EXPECTED),
}
_NODE_LINE: Final = re.compile(r"^\S[^\n]* -- [^\n]*forward_compute_time=", re.MULTILINE)


@dataclass(frozen=True)
class Imported:
    """A chain with its provenance, and notes: how it was made, what was left out or looks odd."""

    chain: Chain
    notes: tuple[str, ...]


def import_chain(
    path: str | Path,
    source: Source,
    *,
    cuts: Cuts = "order",
    copies: int = 4,
    name: str | None = None,
    degree: int = 1,
) -> Imported:
    """Turn a published profile into a chain.

    Times become whole nanoseconds and sizes whole bytes, rounded to the nearest from the exact
    decimals of the file.

    Parameters
    ----------
    path : path
        The file. *piper*: that of its authors, or a table of variants (``schedopt-data/1``) with
        the table ``edges.json`` in the same folder.
    source : {"pipedream", "dnn-partitioning", "piper"}
        Who wrote it.
    cuts : {"order", "articulation"}
        A graph is put in topological order. "order": each node that takes time is a layer, and
        what crosses a cut is the sum of the live tensors. "articulation": layers are merged
        until each cut is crossed by exactly one tensor.
    copies : int
        How many times the parameters lie on the GPU. 4: two versions, gradient, momentum.
    name : str, optional
        Of the chain. Default: that of the file without its endings.
    degree : int
        Of tensor parallelism; of these formats *piper* alone has others than 1.

    Raises
    ------
    InputError
        Naming the file, the field or line, the rule and the way out.
    """
    _check_word("source", source, SOURCES)
    _check_word("cuts", cuts, CUTS)
    copies = as_whole(copies, "copies", low=1, high=MOST_COPIES)
    text, digest = _read(path, source)
    with naming_file(path):
        _check_format(text, source)
        graph = read_piper(text, degree) if source == "piper" else _READERS[source][0](text)
        ordered = linearise(graph)
        groups = merge(ordered) if cuts == "articulation" else ordered
        layers = tuple(_layer(graph, group, copies) for group in groups)
        absorbed = [node.name for node in graph.nodes if not node.takes_time]
        chain = Chain(
            layers=layers,
            name=printable(Path(path).name.split(".")[0]) if name is None else name,
            input_bytes=graph.input_bytes,
            provenance={
                "format": source,
                "file": printable(Path(path).name),
                "sha256": digest,
                "linearised": cuts,
                "cuts": len(groups) - 1,
                "single_tensor_cuts": _single(groups),
                "weight_copies": copies,
                **({"tensor_parallel": degree} if degree > 1 else {}),
                "dropped": _short(graph.dropped),
                "absorbed": _short(absorbed),
            },
        )
    return Imported(chain, _notes(graph, ordered, groups, cuts, absorbed))


def import_degrees(
    path: str | Path, *, cuts: Cuts = "order", copies: int = 4, name: str | None = None
) -> tuple[Profile, tuple[str, ...]]:
    """Turn a profile of Piper into one with all degrees of tensor parallelism, and its notes.

    The parameters are those of `import_chain`. The time of recomputation is that of the forward, so
    each degree is one variant. What is sent where a cut meets split tensors is left out.
    """
    text, _ = _read(path, "piper")
    with naming_file(path):
        degrees, others = piper_degrees(text)
    chains = [
        import_chain(path, "piper", cuts=cuts, copies=copies, name=name, degree=degree)
        for degree in (degrees or [1])
    ]
    with naming_file(path):
        variants = tuple(
            Variant(tensor=degree, chain=imported.chain)
            for degree, imported in zip(degrees, chains, strict=True)
        )
        profile = Profile(name=chains[0].chain.name, variants=variants)
    left_out = ["Bytes that tensor parallelism adds to edges between stages are left out."]
    if others:
        listed = ", ".join(map(str, others))
        left_out.append(f"Tensor degrees {listed} are left out: not all nodes have them.")
    return profile, (*chains[0].notes, *left_out)


def _read(path: str | Path, source: str) -> tuple[str, str]:
    """Return a file as text in the format of the source, and the digest of the file."""
    with naming_file(path):
        text, digest = read_file(path)
    return (piper_text(Path(path), text) if source == "piper" else text), digest


def _check_word(field: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise InputError(
            f"{show(value)} is not known", field=field, way_out=f"Choose {' or '.join(words)}"
        )


def _check_format(text: str, source: str) -> None:
    found = _recognise(text)
    if found == source:
        return
    expected = f"expected is {_READERS[source][1]}"
    if found == "schedopt":
        raise InputError(
            f"this is a file of schedopt; {expected}", way_out="It needs no import; solve it"
        )
    if found is not None:
        raise InputError(
            f"this looks like {found}, not {source}; {expected}",
            way_out=f'Read it with import_chain(source="{found}")',
        )
    if text.lstrip().startswith("{") == (source == "pipedream"):
        raise InputError(
            f"this is not {source}; {expected}", way_out=f"Choose {' or '.join(SOURCES)}"
        )


def _recognise(text: str) -> str | None:
    """Say whose file it seems to be."""
    if not text.lstrip().startswith("{"):
        return "pipedream" if _NODE_LINE.search(text) else None
    if '"schedopt.' in text:
        return "schedopt"
    if '"TMPCs"' in text:
        return "piper"
    return "dnn-partitioning" if '"fpgaLatency"' in text or '"isBackwardNode"' in text else None


def _layer(graph: Graph, group: Group, copies: int) -> Layer:
    nodes = [graph.nodes[position] for position in group.nodes]
    parameters = sum(node.parameter_bytes for node in nodes)
    timed = [node for node in nodes if node.takes_time]
    return Layer(
        name=" to ".join(dict.fromkeys((_label(timed[0]), _label(timed[-1])))),
        forward_ns=sum(node.forward_ns for node in nodes),
        backward_ns=sum(node.backward_ns for node in nodes),
        weight_bytes=copies * parameters,
        activation_bytes=group.output_bytes,
        saved_bytes=group.saved_bytes,
        saved_input_bytes=group.saved_input_bytes,
        parameter_bytes=parameters,
        gradient_bytes=parameters if copies >= 2 else None,
    )


def _label(node: Node) -> str:
    operator = node.description.split("(")[0].strip()
    return printable(f"{node.name:.40} {operator:.40}".strip())


def _single(groups: Sequence[Group]) -> int:
    return sum(group.tensors == 1 for group in groups[:-1])


def _short(names: Sequence[str]) -> Any:
    return [printable(name) for name in names] if len(names) <= LONGEST_LIST else len(names)


def _notes(
    graph: Graph,
    ordered: Sequence[Group],
    groups: Sequence[Group],
    cuts: str,
    absorbed: Sequence[str],
) -> tuple[str, ...]:
    count, single = len(ordered) - 1, _single(ordered)
    if count == single:
        notes = [f"The graph is a chain: exactly one tensor crosses each of {count} cuts."]
    elif cuts == "order":
        notes = [
            f"The graph is no chain. The layers stand in topological order; {single} of {count} "
            "cuts are crossed by exactly one tensor. At the others the live tensors are added up."
        ]
    else:
        notes = [
            f"The graph is no chain. {len(ordered)} layers in topological order were merged to "
            f"{len(groups)}, so that exactly one tensor crosses each of {len(groups) - 1} cuts."
        ]
    if graph.dropped:
        notes.append(
            f"Dropped, being inputs from the loader: {_few(graph.dropped)}. What is read of them "
            "is the input of the chain."
        )
    if absorbed:
        notes.append(f"Without a time, so part of the layer that feeds them: {_few(absorbed)}.")
    return tuple(printable(note) for note in (*notes, *graph.remarks, *_odd_times(graph)))


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"{name:.40}" for name in names[:5]) + more


def _odd_times(graph: Graph) -> tuple[str, ...]:
    """Return warnings of backward times that seem to sit on the wrong node."""
    forward = sum(node.forward_ns for node in graph.nodes)
    backward = sum(node.backward_ns for node in graph.nodes)
    usual = _usual_ratios(graph)
    long, short = [], []
    for node in graph.nodes:
        alike = usual.get(node.description)
        if node.backward_ns * SHARE > backward and (
            node.backward_ns > FACTOR * node.forward_ns
            or (alike is not None and node.backward_ns > FACTOR_ALIKE * alike * node.forward_ns)
        ):
            long.append(node)
        if node.forward_ns * SHARE > forward and node.forward_ns > FACTOR * node.backward_ns:
            short.append(node)
    found = [
        f"Suspicious: the backward seems too {word} for its forward: {_name_times(nodes)}."
        for word, nodes in (("long", long), ("short", short))
        if nodes
    ]
    if found:
        found.append(
            "A profiler may have booked a backward on the wrong node. The times are kept as they "
            "are in the file."
        )
    return tuple(found)


def _usual_ratios(graph: Graph) -> dict[str, Fraction]:
    """Return the median of backward to forward of nodes that compute the same."""
    ratios: dict[str, list[Fraction]] = {}
    for node in graph.nodes:
        if node.description and node.forward_ns:
            ratio = Fraction(node.backward_ns, node.forward_ns)
            ratios.setdefault(node.description, []).append(ratio)
    return {text: median(values) for text, values in ratios.items() if len(values) >= 3}


def _name_times(nodes: list[Node]) -> str:
    parts = [
        f"{node.name} (forward {format_duration(node.forward_ns)}, "
        f"backward {format_duration(node.backward_ns)})"
        for node in nodes[:SHOWN]
    ]
    more = len(nodes) - SHOWN
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
