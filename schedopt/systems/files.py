"""``schedopt.comparison/1`` files, and a folder with the plan of each row."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from schedopt.formats.explaining import dump_plain
from schedopt.formats.results import save_result
from schedopt.formats.writing import to_text, write_whole
from schedopt.platform import Platform
from schedopt.result import as_ratio
from schedopt.systems.comparison import Comparison, Row

COMPARISON_FORMAT: Final = "schedopt.comparison/1"


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as a JSON document.

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
        "rows": [_row(row, comparison) for row in comparison.rows],
        "missing": list(comparison.missing),
    }


def _row(row: Row, comparison: Comparison) -> dict[str, Any]:
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
    if figures is None or result is None or result.plan is None:
        return document
    pattern, throughput = result.plan.pattern, figures.throughput
    return document | {
        **asdict(figures),
        "throughput_exact": None if throughput is None else list(as_ratio(throughput)),
        "most_memory_bytes": figures.most_bytes(comparison.memory),
        "sent_most_exact": list(as_ratio(max(figures.sent))),
        "sent_all_exact": list(as_ratio(sum(figures.sent, Fraction(0)))),
        "pattern": {"k": pattern.k, "period_total_ns": pattern.period_total_ns},
    }


def save_comparison(comparison: Comparison, path: str | Path) -> None:
    """Write a comparison, whole or not at all.

    Raises
    ------
    InputError
        If the path cannot be written.
    """
    write_whole(path, to_text(comparison_document(comparison)))


def save_plans(comparison: Comparison, folder: str | Path) -> None:
    """Write the plan of each row as NAME.json, also of those that do not fit.

    Raises
    ------
    InputError
        If a path cannot be written.
    """
    for row in comparison.rows:
        if row.result is not None and row.result.plan is not None:
            save_result(row.result, Path(folder) / f"{row.system.name}.json")
