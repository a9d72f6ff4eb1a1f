"""Tables as somebody else might bring them, made from those that are shipped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.cli.commands import ROOT

SHIPPED: Final = ROOT / "instances" / "published"
Documents: TypeAlias = dict[str, dict[str, Any]]
"""Tables by folder and name."""
MEASURED: Final[Mapping[str, str]] = {
    "mist/plans": "{plan}",
    "vocabulary/one_host": "{name}",
    "vocabulary/paper_tables": "{gpus} GPUs, sequence {sequence}",
    "zero_bubble/measured": "{model}",
    "zero_bubble/bubble_rates": "{model}",
    "sailor/runs": "{run}",
    "vtrain/runs": "{parameters_billion}B, tp {tp}, dp {dp}, pp {pp}, mbs {mbs}",
    "simumax/b200": "{case}",
    "korthikanti/rows": "{model}",
}
"""Tables of what was measured, and how a line is found again in the results."""


def shipped() -> Documents:
    """Return all tables."""
    return {
        path.relative_to(SHIPPED).with_suffix("").as_posix(): json.loads(path.read_text())
        for path in sorted(SHIPPED.glob("*/*.json"))
    }


def write(documents: Documents, folder: Path) -> Path:
    """Write tables into a folder."""
    for name, document in documents.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
    return folder


def lines(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of a table."""
    return [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]


def change(document: dict[str, Any], to: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change the lines of a table, or take them out."""
    changed = [line for one in lines(document) if (line := to(one)) is not None]
    document["rows"] = [[line[name] for name in document["columns"]] for line in changed]


def half(documents: Documents) -> None:
    """Every other line of what was measured."""
    for name in MEASURED:
        documents[name]["rows"] = documents[name]["rows"][::2]


def renamed(documents: Documents) -> None:
    """GPUs, models, plans and sites that nobody has seen."""
    names: dict[str, str] = {}
    for document in documents.values():
        for line in lines(document):
            for column in ("set", "model", "gpu", "plan", "site", "run", "case", "name"):
                if isinstance(line.get(column), str):
                    names.setdefault(line[column], f"new-{len(names)}")
            for one in line.get("gpu_tp", ()):
                for pair in one if isinstance(one[0], list) else [one]:
                    names.setdefault(pair[0], f"new-{len(names)}")

    def rename(value: Any) -> Any:
        if isinstance(value, str):
            return names.get(value, value)
        return [rename(one) for one in value] if isinstance(value, list) else value

    for document in documents.values():
        document["rows"] = [rename(row) for row in document["rows"]]
        if isinstance(document["hardware"], dict):
            document["hardware"] = {
                names.get(key, key): words for key, words in document["hardware"].items()
            }
    notes = documents["simumax/b200"]["notes"]
    for old, new in sorted(names.items(), key=lambda pair: -len(pair[0])):
        shape = rf"{re.escape(old)}\S*: hidden"
        notes[:] = [re.sub(shape, f"{new}: hidden", note) for note in notes]


def turned(documents: Documents) -> None:
    """Columns in another order."""
    for document in documents.values():
        document["columns"].reverse()
        for row in document["rows"]:
            row.reverse()


def doubled(documents: Documents) -> None:
    """Every line twice: runs that were repeated."""
    for name in MEASURED:
        documents[name]["rows"] *= 2


def longer(documents: Documents) -> None:
    """Twice the micro-batches, and half the sequence where shapes alone are read."""

    def more(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "microbatches": 2 * line["microbatches"]}

    for name, document in documents.items():
        if name in MEASURED and "microbatches" in document["columns"]:
            change(document, more)
    for name in ("vtrain/runs", "korthikanti/rows", "simumax/b200"):
        change(documents[name], lambda line: {**line, "sequence": line["sequence"] // 2})


def _with(values: Mapping[str, int], line: dict[str, Any]) -> dict[str, Any]:
    # Steps are long enough for whatever is put into them.
    return {**line, **values, **({"step_ns": 20 * line["step_ns"]} if line.get("step_ns") else {})}


def larger(documents: Documents) -> None:
    """More stages, replicas, layers, samples and chunks, and a tensor degree that spans nodes."""
    more = {
        "vtrain/runs": {"tp": 16, "pp": 32, "dp": 3, "layers": 96, "mbs": 16},
        "korthikanti/rows": {"tp": 16, "pp": 32, "chunks_per_stage": 8, "layers": 256, "mbs": 16},
        "simumax/b200": {"tp": 16, "cp": 2, "pp": 4, "layers": 64, "mbs": 16},
        "zero_bubble/passes": {"stages": 16, "microbatches": 64},
        "zero_bubble/bubble_rates": {"stages": 16, "microbatches": 64},
        "zero_bubble/measured": {"stages": 16, "microbatches": 64, "layers": 62},
    }
    for name, values in more.items():
        change(documents[name], partial(_with, values))


def unprofiled(documents: Documents) -> None:
    """Nothing of what runs on several GPUs was profiled."""
    for name in ("mist/ops", "sailor/profiles"):
        change(documents[name], lambda line: line if line["tp"] == 1 else None)
    change(documents["mist/collectives"], lambda line: None)


def unlinked(documents: Documents) -> None:
    """No link between nodes was measured."""
    change(documents["mist/p2p"], lambda line: line if line["link"] == "intra" else None)
    change(documents["sailor/network"], lambda line: None)


def untimed(documents: Documents) -> None:
    """Steps that were not measured."""
    for name in MEASURED:
        if "step_ns" in documents[name]["columns"]:
            change(documents[name], lambda line: {**line, "step_ns": None})
    change(documents["mist/measurements"], lambda line: {**line, "step_ns": None})


def unmeasured(documents: Documents) -> None:
    """Memory and passes that were not measured."""
    for name, document in documents.items():
        if name in MEASURED or name == "mist/measurements":
            change(
                document,
                lambda line: {
                    column: None if "bytes" in column or column.startswith("forward") else value
                    for column, value in line.items()
                },
            )


def empty(documents: Documents) -> None:
    """Tables without lines."""
    for document in documents.values():
        document["rows"] = []


def no_inputs(documents: Documents) -> None:
    """What was measured, and nothing to predict it from."""
    for name in [*documents]:
        if name not in MEASURED and name != "mist/measurements":
            del documents[name]


OTHER: Final = (
    *(half, renamed, turned, doubled, longer, larger, unprofiled, unlinked, untimed),
    *(unmeasured, empty, no_inputs),
)
