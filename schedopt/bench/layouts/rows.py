"""Lines of a table of layouts: what runs in which order, as a chain on pipeline ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from schedopt.bench.layouts.shapes import SHAPES, find_attention, longest
from schedopt.bench.published.tables import Line, Tables
from schedopt.chain import EXPERT_BYTES, Chain
from schedopt.errors import InputError
from schedopt.formats.presets import GPUS, LATENCY_NS, PRESETS
from schedopt.megatron_layout import LayoutChunk, read_layout
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.profiling.decoder import make_chain
from schedopt.profiling.decoder_shape import Batch, Decoder, Experts
from schedopt.profiling.rates import find_rates
from schedopt.units import parse_bandwidth
from schedopt.validation import as_whole, show

COLUMNS: Final = (
    "model pp chunks_per_stage layout stages hardware tp ep cp global_batch mbs note layers "
    "hidden heads kv_heads ffn vocabulary moe"
)
USUAL_GPU: Final = "h100"
"""Of lines that name no GPU whose rates are known."""
AMPLE: Final = 10**15
"""Bytes of a GPU: what a recipe leaves free is not known, so peaks are told, not limited."""
SEQUENCE: Final = 8192
SEQUENCE_OF_EXPERTS: Final = 4096
"""Tokens of a sample, where a line does not say."""
USUAL_EXPERT: Final = 64
"""GPUs that share the experts of a layer, where a line does not say."""
ROUNDS: Final = 8
"""Micro-batches for each rank, where a line does not say the batch."""
MOST_MICRO_BATCHES: Final = 128
"""Of a longer step: more make it longer, and change little between layouts."""
_COUNTS: Final = {
    "count": r"(\d+) experts",
    "active": r"top (\d+)",
    "shared": r"(\d+) shared",
    "ffn": r"expert ffn (\d+)",
}


@dataclass(frozen=True, kw_only=True)
class LayoutRow:
    """A line of a table: a layout, and what it is run with.

    Parameters
    ----------
    place : str
        In the table.
    model, layout, gpu : str
    ranks, chunks, microbatches : int
        p, v and m.
    read : sequence of LayoutChunk
        The layout.
    chain : Chain or None
        None where the shape of the model is not known.
    """

    place: str
    model: str
    layout: str
    gpu: str
    ranks: int
    chunks: int
    microbatches: int
    read: tuple[LayoutChunk, ...]
    chain: Chain | None

    @property
    def begins(self) -> tuple[int, ...]:
        """The first layer of each stage."""
        begins = [0]
        for chunk in self.read[:-1]:
            begins.append(begins[-1] + chunk.embedding + chunk.layers + chunk.mtp + chunk.loss)
        return tuple(begins)

    @property
    def problem(self) -> Problem:
        """The question for the shortest step on its ranks."""
        assert self.chain is not None
        preset = next(preset for preset in PRESETS.values() if preset.gpu == self.gpu)
        # Each GPU of a tensor group sends its part through a card of its own, node to node.
        platform = Platform(
            self.ranks,
            AMPLE,
            bandwidth=parse_bandwidth(preset.between),
            latency=2 * LATENCY_NS,
            duplex="full",
        )
        scope = Scope(
            allocation="general", max_k=None, microbatches=self.microbatches, engine="megatron"
        )
        return Problem(chain=self.chain, platform=platform, scope=scope)


def read_rows(tables: Tables, name: str) -> list[LayoutRow]:
    """Return the lines of a table.

    Raises
    ------
    InputError
        Naming the file, the line and the column, where one is not as it should be.
    """
    found = []
    for number, line in enumerate(tables.lines(name, COLUMNS)):
        place = f"rows[{number}]"
        try:
            found.append(_read(line, place))
        except InputError as error:
            raise InputError(
                error.rule,
                field=f"{place}.{error.field}" if error.field else place,
                way_out=error.way_out,
                source=f"{name}.json",
            ) from None
    return found


def _read(line: Line, place: str) -> LayoutRow:
    ranks, chunks = (as_whole(line[name], name, low=1) for name in ("pp", "chunks_per_stage"))
    read = read_layout(line["layout"], ranks=ranks)
    if len(read) != ranks * chunks:
        raise InputError(
            f"has {len(read)} chunks, not {ranks} x {chunks}",
            field="layout",
            way_out="Give pp x chunks_per_stage of them",
        )
    own = [[int(c.embedding), c.layers, c.mtp, int(c.loss)] for c in read]
    if line["stages"] is not None and line["stages"] != own:
        raise InputError(
            "are not those of the layout", field="stages", way_out="Give one of the two as it is"
        )
    shape = line
    if line["hidden"] is None:
        shape = {**line, **(longest(SHAPES, str(line["model"])) or {})}
    layers = sum(chunk.layers for chunk in read)
    if shape["layers"] is not None and shape["layers"] != layers:
        raise InputError(
            f"has {layers} transformer layers, not {shape['layers']}",
            field="layout",
            way_out="Place each layer once",
        )
    gpu = _gpu(line["hardware"])
    return LayoutRow(
        place=place,
        model=str(line["model"]),
        layout=str(line["layout"]),
        gpu=gpu,
        ranks=ranks,
        chunks=chunks,
        microbatches=_microbatches(line, ranks, chunks),
        read=read,
        chain=_chain(shape, read, gpu),
    )


def _gpu(hardware: object) -> str:
    """Return the kind of GPU that a line names: GB200 has a B200."""
    named = str(hardware).lower()
    return next((gpu for gpu in GPUS if gpu in named), USUAL_GPU)


def _degree(line: Line, name: str) -> int:
    value = line[name]
    return 1 if value is None else as_whole(value, name, low=1)


def _microbatches(line: Line, ranks: int, chunks: int) -> int:
    """Return the micro-batches of a pipeline."""
    count = ROUNDS * ranks
    if line["global_batch"] is not None:
        gpus = re.match(r"(\d+) x ", str(line["hardware"]))
        own = ranks * _degree(line, "tp") * _degree(line, "cp")
        replicas = max(1, int(gpus[1]) // own) if gpus else 1
        batch = as_whole(line["global_batch"], "global_batch", low=1)
        count = max(1, batch // (replicas * _degree(line, "mbs")))
    count = min(count, MOST_MICRO_BATCHES)
    # Chunks take turns in groups of as many micro-batches as there are ranks.
    return count if chunks == 1 else max(1, count // ranks) * ranks


def _chain(line: Line, read: Sequence[LayoutChunk], gpu: str) -> Chain | None:
    """Return the chain of a micro-batch."""
    sizes = ("hidden", "heads", "kv_heads", "ffn", "vocabulary")
    if any(line[name] is None for name in sizes):
        return None
    hidden, heads, kv_heads, ffn, vocabulary = (as_whole(line[n], n, low=1) for n in sizes)
    experts, dense = _experts(line["moe"])
    decoder = Decoder(
        layers=sum(chunk.layers for chunk in read),
        hidden=hidden,
        ffn=ffn,
        vocabulary=vocabulary,
        attention=find_attention(str(line["model"]), hidden, heads, kv_heads),
        experts=experts,
        dense=dense,
        predictors=sum(chunk.mtp for chunk in read),
        name=str(line["model"]),
    )
    told = re.search(r"sequence (\d+)", str(line["note"]))
    usual = SEQUENCE if experts is None else SEQUENCE_OF_EXPERTS
    batch = Batch(
        sequence=int(told[1]) if told else usual,
        samples=_degree(line, "mbs"),
        tensor=_degree(line, "tp"),
        context=_degree(line, "cp"),
        expert=USUAL_EXPERT if line["ep"] is None and experts else _degree(line, "ep"),
    )
    # One pipeline stands for all, also where their GPUs share sequences or experts.
    found = make_chain(decoder, batch, find_rates(gpu, "half"))
    absent: dict[str, Any] = dict.fromkeys(EXPERT_BYTES)
    layers = tuple(replace(layer, **absent) for layer in found.layers)
    return replace(found, layers=layers, context=1, expert=1)


def _experts(moe: object) -> tuple[Experts | None, int]:
    """Return the experts that a line has in words, and how many layers come before them."""
    if moe is None:
        return None, 0
    found = {name: re.search(pattern, str(moe)) for name, pattern in _COUNTS.items()}
    for name in ("count", "active", "ffn"):
        if found[name] is None:
            raise InputError(
                f"{show(moe)} does not tell the experts",
                field="moe",
                way_out="Write: 58 MoE layers after 3 dense; 256 experts, top 8, 1 shared, expert "
                "ffn 2048",
            )
    dense = re.search(r"after (\d+) dense", str(moe))
    numbers = {name: int(match[1]) if match else 0 for name, match in found.items()}
    return Experts(**numbers), int(dense[1]) if dense else 0
