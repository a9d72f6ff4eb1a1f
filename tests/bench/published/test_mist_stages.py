"""Plans of others whose stages are not as they should be."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from schedopt.bench.published.mist_tables import Mist
from schedopt.bench.published.tables import Tables
from tests.bench.published.other_tables import Documents, change, shipped, write

PLAN = "l4-aceso-2.6B-p3"
"""Three stages of 118, 125 and 176 operators; the last has two GPUs."""


@pytest.fixture(scope="module")
def documents() -> Documents:
    """Return the tables, with the operators of this plan's model alone."""
    found = {name: one for name, one in shipped().items() if name.startswith("mist")}
    model = ("l4", "2.6B")
    change(found["mist/ops"], lambda line: line if (line["set"], line["model"]) == model else None)
    return found


def stage(number: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    def to(line: dict[str, Any]) -> None:
        line["stages"][number].update(values)

    return to


def whole(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda line: line.update(values)


@pytest.mark.parametrize(
    ("to", "words"),
    [
        (whole(stages=None), "stages: None is not a list"),
        (whole(stages=[]), "stages: there are none"),
        (whole(stages=["one"]), r"stages\[0\]: is no stage"),
        (whole(layers=None), "layers: is not known"),
        (whole(microbatches=None), "microbatches: is not known"),
        (stage(0, ops=None), r"stages\[0\].ops: None is not a list"),
        (stage(0, ops=[0]), r"stages\[0\].ops: has 1 values, not two"),
        (stage(0, ops=["0", 118]), r"stages\[0\].ops: '0' is no whole number from 0"),
        (stage(1, tp=[[1, 124]]), r"stages\[1\].tp: has 124 values, and .* operators 118 to 242"),
        (stage(0, dp=[[0, 118]]), r"stages\[0\].dp\[0\]: 0 is no whole number from 1"),
        (stage(0, dp=[[2, 118]], gpus=2), r"stages\[0\].dp: 2 replicas cannot share 1 samples"),
        (stage(0, gpus=3), r"stages\[0\].gpus: 3 GPUs are not 1 replicas of 1"),
        (
            lambda line: line["stages"].pop(),
            "stages: end with operator 242, and 32 layers have 419",
        ),
        (whole(gpus=5), "gpus: is 5, and its stages have 4"),
        (stage(1, ops=[119, 244]), r"stages\[1\].ops: begins with operator 119, .* ends at 117"),
    ],
)
def test_such_plans_are_left_out_with_a_reason(
    to: Callable[[dict[str, Any]], None], words: str, documents: Documents, tmp_path: Path
) -> None:
    def changed(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["plan"] != PLAN:
            return None
        to(line)
        return line

    plans = deepcopy(documents["mist/plans"])
    change(plans, changed)
    mist = Mist(Tables(write({**documents, "mist/plans": plans}, tmp_path)))
    assert not mist.plans
    assert re.match(words, mist.unpredicted[PLAN])
