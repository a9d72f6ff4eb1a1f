"""The suite of `schedopt.bench.periodic`: goals and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from schedopt.bench.general_tables import missed_goals, proven_line, rows_of
from schedopt.bench.records import of_family
from schedopt.bench.suite import Records, Suite, Table, label
from schedopt.bench.tables import Row, columns

KNOWN: Final = {
    "theorem_4": ("Theorem 4", "The least period is 2 (1 + 1/k) ms."),
    "uniform": (
        "Uniform stages",
        "F = 1 and B = 2 ms, room for N activations: the least period is max(3, 3 P / N) ms.",
    ),
}
SAMPLED: Final = {
    "random": (
        "Random chains, k micro-batches",
        "On the best contiguous allocation for k = 1. Ratio: period for k = 1 over the period.",
    ),
    "split_backward": (
        "Split backward",
        "k = 1, on the best contiguous allocation. I and W take half of the backward each, and "
        "half of what is saved is kept from I to W. Ratio: period with whole backwards over the "
        "period.",
    ),
    "recompute_contiguous": (
        "Recompute in the contiguous programme",
        "Any layers of any stage, k = 1. Ratio: period without recompute over the period, where "
        "there is a plan without.",
    ),
    "recompute_fixed": (
        "Recompute for a given allocation",
        "Any layers, on the best contiguous allocation with recompute. Ratio: the period of that "
        "contiguous plan over the period.",
    ),
    "steps": (
        "Steps",
        "m micro-batches with a flush, on the best contiguous allocation in the steady state.",
    ),
}
COLUMNS: Final = (
    "layers gpus bandwidth memory_level max_k microbatches=m seeds proven median_s goal_median_s "
    "longest_s goal_s longest_seed infeasible_without shorter"
)
"""Of the random chains: those that a row of the family has."""


def misses(records: Records) -> Iterator[str]:
    """Yield in words what was not proven in the time that is its goal, or is not as known."""
    for family in (*KNOWN, *SAMPLED):
        for record in of_family(records, family):
            where = label(family, {name: record[name] for name in _key(record)})
            yield from (f"{where}: {missed}" for missed in missed_goals(record))


def _key(record: Row) -> Iterator[str]:
    """Yield what identifies a record: the names before the first figure."""
    return takewhile(lambda name: name not in ("status", "seeds"), record)


def _known(rows: Sequence[Row]) -> list[str]:
    headings = {"gpus": "gpus=GPUs~(P)", "activations": "activations=room~(N)"}
    names = " ".join(headings.get(name, name) for name in _key(rows[0]))
    return columns(rows, f"{names} known_exact period_exact status seconds goal_s")


def _sampled(rows: Sequence[Row]) -> list[str]:
    present = [name for name in COLUMNS.split() if any(name.split("=")[0] in row for row in rows)]
    ratios = [name for name in rows[0] if name.startswith("median_") and "_over_" in name]
    if not ratios:
        return columns(rows, " ".join(present))
    with_ratio = [{**row, "ratio": row[ratios[0]]} for row in rows]
    return columns(with_ratio, " ".join([*present, "ratio=ratio,~median"]))


def _summary(records: Records) -> Iterator[str]:
    for family in KNOWN:
        yield from proven_line(family, records)
    for family in SAMPLED:
        for row in of_family(records, family):
            size = f"{row['layers']} layers, {row['gpus']} GPUs, memory level {row['memory_level']}"
            count = row.get("microbatches")
            kind = f"k up to {row['max_k']}" if count is None else f"{count} micro-batches"
            yield (
                f"{family}, {size}, {kind}: {row['proven']} of {row['seeds']} proven, "
                f"median {row['median_s']} s, longest {row['longest_s']} s"
            )


SUITE: Final = Suite(
    title="How long exact proofs take",
    families=(*KNOWN, *SAMPLED),
    protocol="Random chains are those of `schedopt instance random`, seeds from 0 on, links half "
    "duplex. A memory level is the memory of a GPU over the least with which a contiguous plan "
    "exists, with recompute where the run may recompute; *shorter* counts the seeds whose ratio is "
    "above 1.",
    misses=misses,
    well="All is proven, and within its goal in seconds where there is one.",
    tables=[
        Table(title, text, _known if family in KNOWN else _sampled, rows_of(family))
        for family, (title, text) in {**KNOWN, **SAMPLED}.items()
    ],
    summary=_summary,
    resumable=False,
)
