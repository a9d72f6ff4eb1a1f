"""All-reduces of tensor groups come from the table of collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schedopt.bench.published.mist import predict_all
from schedopt.bench.published.mist_tables import Mist, MistPlan
from schedopt.bench.published.prediction import Prediction
from schedopt.bench.published.tables import Tables
from tests.bench.published.other_tables import Documents, change, shipped, write

TIMES = {1: (1000, 2000), 2: (900, 1700)}
"""Forward and backward of every operator, by tensor degree, ns."""
REDUCED = 300
PLAN = "l4-aceso-22B-p15"
"""Most of its stages are groups of two GPUs, and two are groups of four."""


def flat() -> Documents:
    """Tables in which all operators of a tensor degree take as long, and so do all collectives."""
    documents = {name: one for name, one in shipped().items() if name.startswith("mist")}
    change(documents["mist/plans"], lambda line: line if line["plan"] == PLAN else None)

    def timed(line: dict[str, Any]) -> dict[str, Any]:
        forward, backward = TIMES.get(line["tp"], (5000, 9000))
        return {**line, "forward_ns": forward, "backward_ns": backward}

    change(documents["mist/ops"], timed)
    change(
        documents["mist/collectives"],
        lambda line: {**line, "time_ns": REDUCED} if line["gpus"] != 4 else None,
    )
    return documents


def the_plan(documents: Documents, folder: Path) -> MistPlan:
    (plan,) = Mist(Tables(write(documents, folder))).plans
    return plan


def count(names: list[str], *words: str) -> int:
    return sum(any(word in name for word in words) for name in names)


def test_all_reduces_take_what_the_table_says(tmp_path: Path) -> None:
    for stage in the_plan(flat(), tmp_path).stages:
        names = [str(op["op"]) for op in stage.ops]
        again = [name for name, recomputed in zip(names, stage.again, strict=True) if recomputed]
        ahead, back = ("embedding", "attention-dense", "GEMM-2"), ("qkv", "GEMM-1")
        if len(stage.gpus) == 4:
            # Of groups of four the table has nothing, and the profile stands.
            assert stage.forward_ns == 5000 * len(names)
            continue
        product = TIMES[1][0] / 2 + REDUCED
        forward = 900 * len(names) + (product - 900) * count(names, *ahead)
        recomputed = 900 * len(again) + (product - 900) * count(again, *ahead)
        product = TIMES[1][1] / 2 + REDUCED
        backward = 1700 * len(names) + (product - 1700) * count(names, *back)
        assert stage.forward_ns == pytest.approx(forward)
        assert stage.backward_ns == pytest.approx(backward + recomputed)
        profiled = stage.as_profiled
        assert profiled.forward_ns == 900 * len(names)
        assert profiled.backward_ns == 1700 * len(names) + 900 * len(again)


def test_without_a_profile_of_one_gpu_the_profile_stands(tmp_path: Path) -> None:
    documents = flat()
    change(documents["mist/ops"], lambda line: line if line["tp"] > 1 else None)
    for stage in the_plan(documents, tmp_path).stages:
        assert stage.forward_ns == stage.as_profiled.forward_ns


def test_the_links_of_the_profile_do_not_count(tmp_path: Path) -> None:
    """Slower all-reduces inside the profile change the profile, and not the step."""
    documents = flat()
    before = the_plan(documents, tmp_path / "before").stages[0]

    def slower(line: dict[str, Any]) -> dict[str, Any]:
        late = line["tp"] > 1 and line["op"].endswith(("embedding", "dense", "GEMM-2"))
        return {**line, "forward_ns": line["forward_ns"] + 10_000 * late}

    change(documents["mist/ops"], slower)
    after = the_plan(documents, tmp_path / "after").stages[0]
    assert (after.forward_ns, after.backward_ns) == (before.forward_ns, before.backward_ns)
    assert after.as_profiled.forward_ns > before.as_profiled.forward_ns


def test_without_another_plan_nothing_is_fitted(tmp_path: Path) -> None:
    tables = Tables(write(flat(), tmp_path))
    (step,) = [
        each.predict()
        for each in predict_all(tables)
        if isinstance(each, Prediction) and each.test == "b several nodes"
    ]
    # The other constant is what the optimizer takes.
    optimizer, share = step.constants.items()
    assert optimizer[0].startswith("ns of the optimizer for a MiB of weights")
    assert optimizer[1] == Mist(tables).update_ns[optimizer[0].rpartition(", ")[2]]
    assert share[1] == 0.0


def test_links_that_were_not_measured_do_not_count(tmp_path: Path) -> None:
    documents = flat()
    before = the_plan(documents, tmp_path / "before").stages[0]
    for name in ("collectives", "p2p"):
        table = documents[f"mist/{name}"]
        for column in ("bytes", "time_ns"):
            row = [*table["rows"][0]]
            row[table["columns"].index(column)] = None
            table["rows"].append(row)
    after = the_plan(documents, tmp_path / "after").stages[0]
    assert after.forward_ns == before.forward_ns
