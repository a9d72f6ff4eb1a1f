"""``schedopt.comparison/1`` files: written with their plans, and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Final

from schedopt.chain import Chain
from schedopt.comparing.comparison import COMPARISON_FORMAT, OURS, Comparison, Row
from schedopt.comparing.measures import Figures
from schedopt.errors import InputError, naming_file
from schedopt.formats.chains import chain_document
from schedopt.formats.explaining import build, dump_plain
from schedopt.formats.reading import read_document
from schedopt.formats.results import result_document, result_from_document
from schedopt.formats.writing import to_text
from schedopt.platform import Platform
from schedopt.scope import MemoryReading
from schedopt.systems.catalogue import SYSTEMS, System
from schedopt.units import counted
from schedopt.validation import STRICT, as_ratio

MOST_KEPT: Final = 20_000
"""Operations and transfers of a plan that is kept in the file; of a larger one the figures are."""

_SHARED: Final = ("chain", "chain_sha256", "platform")
"""What a plan file holds, and rows have in common, unless modules are computed again."""


def comparison_to_json(comparison: Comparison) -> str:
    """Return the text of a ``schedopt.comparison/1`` file: the figures, the chain, the plans."""
    document = comparison_document(comparison)
    document["chain"] = chain_document(comparison.chain)
    for row, cells in zip(comparison.rows, document["rows"], strict=True):
        result = row.result
        if result is None or result.plan is None or len(result.plan.pattern.items) > MOST_KEPT:
            continue
        plan = result_document(result)
        shared = {name for name in _SHARED if plan[name] == document[name]}
        cells["plan"] = {name: plan[name] for name in plan if name not in shared}
    return to_text(document)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the figures of a comparison as a JSON document.

    Times in ns, memory in bytes, all of them whole or as numerator and denominator.
    """
    return {
        "format": COMPARISON_FORMAT,
        "version": comparison.version,
        "chain_name": comparison.chain.name,
        "chain_sha256": comparison.chain.sha256,
        "platform": dump_plain(comparison.platform, Platform),
        "microbatches": comparison.microbatches,
        "bucket_bytes": comparison.bucket_bytes,
        "memory": comparison.memory,
        "rows": [_row_document(row, comparison) for row in comparison.rows],
        "missing": list(comparison.missing),
    }


def _row_document(row: Row, comparison: Comparison) -> dict[str, Any]:
    document: dict[str, Any] = {
        "system": row.system.name,
        "title": row.system.title,
        "source": row.system.source,
        "outcome": row.outcome,
        "note": row.note,
    }
    result, figures = row.result, row.figures
    if result is not None:
        bound = result.lower_bound
        document |= {
            "status": result.status,
            "lower_bound_exact": None if bound is None else list(as_ratio(bound)),
        }
    if figures is None:
        return document
    throughput = figures.throughput
    document |= {
        **asdict(figures),
        "throughput_exact": None if throughput is None else list(as_ratio(throughput)),
        "most_memory_bytes": figures.most_bytes(comparison.memory),
        "sent_most_exact": list(as_ratio(max(figures.sent))),
        "sent_all_exact": list(as_ratio(sum(figures.sent, Fraction(0)))),
    }
    if result is not None and result.plan is not None:
        pattern = result.plan.pattern
        document["pattern"] = {"k": pattern.k, "period_total_ns": pattern.period_total_ns}
    return document


def load_comparison(path: str | Path) -> Comparison:
    """Read a comparison. Its plans are not checked.

    A row has a result where the file has its plan.

    Raises
    ------
    InputError
        Naming the file, the field, the rule and the way out.
    """
    document = read_document(path, COMPARISON_FORMAT)
    with naming_file(path):
        return _comparison(document)


@dataclass(frozen=True, kw_only=True)
class _File:
    """What a file holds; each row in two parts, since its figures are data of their own."""

    __pydantic_config__: ClassVar[Any] = STRICT

    version: str
    chain_name: str
    chain_sha256: str
    chain: Chain
    platform: Platform
    microbatches: int
    bucket_bytes: int
    memory: MemoryReading
    rows: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _FileRow:
    __pydantic_config__: ClassVar[Any] = STRICT

    system: str
    title: str
    source: str
    note: str
    plan: dict[str, Any] | None = None


def _comparison(document: dict[str, Any]) -> Comparison:
    if "chain" not in document:
        raise InputError(
            "is missing: an older version wrote the file, without its plans",
            field="chain",
            way_out="Compare again",
        )
    file = build(_File, document)
    if file.chain.sha256 != file.chain_sha256:
        raise InputError(
            "does not belong to the chain in the file",
            field="chain_sha256",
            way_out="The plans are for another chain, or it was edited: compare again",
        )
    shared = {name: document[name] for name in _SHARED}
    rows = []
    for number, cells in enumerate(file.rows):
        try:
            rows.append(_read_row(cells, shared, len(file.platform.gpus)))
        except InputError as error:
            raise error.within(f"rows[{number}]") from None
    return Comparison(
        chain=file.chain,
        platform=file.platform,
        microbatches=file.microbatches,
        memory=file.memory,
        bucket_bytes=file.bucket_bytes,
        rows=tuple(rows),
        missing=file.missing,
        version=file.version,
    )


def _read_row(cells: Mapping[str, Any], shared: Mapping[str, Any], gpus: int) -> Row:
    head, names = {field.name for field in fields(_FileRow)}, {f.name for f in fields(Figures)}
    row = build(_FileRow, {name: cells[name] for name in head & cells.keys()})
    figures = None
    if "step_ns" in cells:
        figures = build(Figures, {name: cells[name] for name in names & cells.keys()})
        for name in ("memory_sum_bytes", "memory_peak_bytes", "sent_exact"):
            if len(getattr(figures, name)) != gpus:
                raise InputError(
                    f"has {len(getattr(figures, name))} entries for {counted(gpus, 'GPU')}",
                    field=name,
                    way_out="Compare again",
                )
    result = None
    if row.plan is not None:
        try:
            result = result_from_document({**shared, **row.plan})
        except InputError as error:
            raise error.within("plan") from None
    known = {system.name: system for system in (*SYSTEMS, *OURS)}
    system = System(name=row.system, title=row.title, constructor="", source=row.source)
    return Row(
        system=known.get(row.system, system),
        figures=figures,
        result=result,
        note=row.note,
        is_late=cells.get("outcome") == "out of time",
    )
