"""The figures of `schedopt.bench.periodic` as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from schedopt.bench.markdown import circumstances, opening, period, table

KNOWN: Final = {
    "theorem_4": ("Theorem 4", "The least period is 2 (1 + 1/k) ms."),
    "uniform": (
        "Uniform stages",
        "F = 1 and B = 2 ms, room for N activations: the least period is max(3, 3 P / N) ms.",
    ),
}
DRAWN: Final = {
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
HEADER: Final = {
    "layers": "layers",
    "gpus": "GPUs",
    "bandwidth": "bandwidth",
    "memory_level": "memory level",
    "max_k": "k up to",
    "microbatches": "m",
    "seeds": "seeds",
    "proven": "proven",
    "median_s": "median s",
    "goal_median_s": "goal",
    "longest_s": "longest s",
    "goal_s": "goal",
    "longest_seed": "at seed",
    "infeasible_without": "infeasible without",
    "shorter": "shorter",
}


def missed_goals(document: Mapping[str, Any]) -> list[str]:
    """Return in words what was not proven in the time that is its goal, or is not as known."""
    found = []
    for family in (name for name in (*KNOWN, *DRAWN) if name in document):
        for row in document[family]:
            sizes = ", ".join(f"{name} {row[name]}" for name in _given(row))
            found += [f"{family}, {sizes}: {what}" for what in _misses(row)]
    return found


def _given(row: Mapping[str, Any]) -> Iterator[str]:
    for name in row:
        if name in ("status", "seeds"):
            return
        yield name


def _misses(row: Mapping[str, Any]) -> Iterator[str]:
    if "seconds" in row:
        if row["status"] != "optimal" or row["period_exact"] != row["known_exact"]:
            yield f"{row['status']}, period {period(row['period_exact'])}"
        if row["seconds"] >= row["goal_s"]:
            yield f"{row['seconds']} s, goal {row['goal_s']:g} s"
        return
    if row["proven"] < row["seeds"]:
        yield f"{row['proven']} of {row['seeds']} proven"
    if row["median_s"] >= row.get("goal_median_s", float("inf")):
        yield f"median {row['median_s']} s, goal {row['goal_median_s']:g} s"
    if row["longest_s"] >= row.get("goal_s", float("inf")):
        longest = f"longest {row['longest_s']} s at seed {row['longest_seed']}"
        yield f"{longest}, goal {row['goal_s']:g} s"


def to_markdown(document: Mapping[str, Any]) -> str:
    """Return the figures as Markdown, a table for each family."""
    lines = opening(
        "How long exact proofs take",
        _protocol(document),
        missed_goals(document),
        "All is proven, and within its goal in seconds where there is one.",
    )
    for family, (title, text) in KNOWN.items():
        if family in document:
            lines += ["", f"## {title}", "", text, "", *_known(document[family])]
    for family, (title, text) in DRAWN.items():
        if family in document:
            lines += ["", f"## {title}", "", text, "", *_drawn(document[family])]
    return "\n".join(lines) + "\n"


def _protocol(document: Mapping[str, Any]) -> str:
    return (
        f"{circumstances(document)}. Random chains are those of "
        "`schedopt instance random`, seeds from 0 on, links half duplex. A memory level is the "
        "memory of a GPU over the least with which a contiguous plan exists, with recompute where "
        "the run may recompute; *shorter* counts the seeds whose ratio is above 1."
    )


def _known(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(_given(rows[0]))
    cells = [
        [
            *(row[name] for name in names),
            period(row["known_exact"]),
            period(row["period_exact"]),
            row["status"],
            f"{row['seconds']:.3f}",
            f"{row['goal_s']:g}",
        ]
        for row in rows
    ]
    header = {"gpus": "GPUs (P)", "activations": "room (N)"}
    known = [header.get(name, name) for name in names]
    return table([*known, "known", "found", "status", "seconds", "goal"], cells)


def _drawn(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [name for name in HEADER if any(name in row for row in rows)]
    ratios = [name for name in rows[0] if name.startswith("median_") and "_over_" in name]
    cells = [
        [
            *(_cell(name, row.get(name)) for name in names),
            *("" if row[name] is None else f"{row[name]:.3f}" for name in ratios),
        ]
        for row in rows
    ]
    return table([*(HEADER[name] for name in names), *("ratio, median" for _ in ratios)], cells)


def _cell(name: str, value: object) -> object:
    if value is None:
        return ""
    if name in ("median_s", "longest_s"):
        return f"{value:.3f}"
    return f"{value:g}" if isinstance(value, float) else value
