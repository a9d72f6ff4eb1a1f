"""Lines that are left out of a test, and figures that cannot be: each with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schedopt.bench.published.marks import ROWS
from schedopt.bench.published.suite import SUITE, published_cases
from schedopt.bench.published.tables import Tables
from schedopt.bench.records import RecordFile
from schedopt.bench.suite import Case, measure
from schedopt.errors import InputError
from tests.bench.published.other_tables import Documents, change, shipped, write


def tables_of(package: str) -> Documents:
    return {name: one for name, one in shipped().items() if name.startswith(f"{package}/")}


def cases_of(documents: Documents, folder: Path) -> list[Case]:
    package = next(iter(documents)).split("/")[0]
    cases = published_cases(Tables(write(documents, folder)))
    return [case for case in cases if case.key["package"] == package]


def reasons(cases: list[Case]) -> dict[str, str]:
    return {case.key["row"]: case.key["why"] for case in cases if "why" in case.key}


def test_a_step_that_is_shorter_than_its_update(tmp_path: Path) -> None:
    documents = tables_of("vtrain")

    def short(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "step_ns": 5} if line["tp"] == 2 and line["pp"] == 8 else line

    change(documents["vtrain/runs"], short)
    cases, file = cases_of(documents, tmp_path), RecordFile(None)
    assert measure([cases], None, file)
    lines = SUITE.to_markdown(file.records).splitlines()
    (said,) = (line for line in lines if "39.1B, tp 2, dp 16, pp 16, mbs 2 | test a:" in line)
    for word in ("| vtrain |", ": -", "is predicted", "was measured", "fitted on"):
        assert word in said
    # All others are predicted, and with the same tables nothing is done again.
    assert len([row for row in file.records if row.family == ROWS]) > 50
    assert all(case.is_in(file.records) for case in cases)


def test_a_site_with_several_kinds_of_gpus_is_one(tmp_path: Path) -> None:
    documents = tables_of("sailor")

    def of_one_kind(line: dict[str, Any]) -> dict[str, Any]:
        if line["run"] != "mit/N2/plan_config_N2_D1":
            return line
        return {**line, "gpu_tp": [["RTX-3090", 2], ["RTX-3090", 2]]}

    change(documents["sailor/runs"], of_one_kind)
    cases = cases_of(documents, tmp_path)
    tests = {case.key["row"]: case.key["test"] for case in cases if "test" in case.key}
    assert tests["mit/N2/plan_config_N2_D1"].endswith(" mit")
    assert not tests["clariden/OPT-350/N2/plan_config_N2_D1"].endswith(" mit")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("forward_ns", 10**10, "needs enc-attention-dense of 20B on a10g with 1 samples and"),
        ("forward_ns", None, "enc-attention-dense: forward_ns not stated"),
    ],
)
def test_an_operator_that_was_not_measured(
    column: str, value: int | None, words: str, tmp_path: Path
) -> None:
    documents = tables_of("mist")

    def worse(line: dict[str, Any]) -> dict[str, Any]:
        which = (line["set"], line["model"], line["mbs"], line["tp"], line["op"])
        wanted = ("a10g", "20B", 1, 4, "enc-attention-dense")
        return {**line, column: value} if which == wanted else line

    change(documents["mist/ops"], worse)
    why = reasons(cases_of(documents, tmp_path))
    assert words in why["a10g-aceso-20B-p12"]
    assert "l4-aceso-13B-p14" not in why


@pytest.mark.parametrize(("name", "column"), [("ops", "input_mib"), ("p2p", "time_ns")])
def test_an_input_that_is_none_is_refused_once(name: str, column: str, tmp_path: Path) -> None:
    documents = tables_of("mist")
    table = documents[f"mist/{name}"]
    table["rows"][3][table["columns"].index(column)] = "x"
    with pytest.raises(InputError, match=rf"{name}.json: rows\[3\].{column}: 'x' is no time"):
        cases_of(documents, tmp_path)


def test_steps_that_do_not_grow_with_their_micro_batches(tmp_path: Path) -> None:
    documents = tables_of("simumax")
    table = documents["simumax/b200"]

    def alike(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "step_ns": 10**9} if line["microbatches"] in (4, 8) else line

    change(table, alike)
    why = reasons(cases_of(documents, tmp_path))
    assert "took no longer" in why["llama3_70b_l12_tp1_pp2_dp4_mbc32_cef"]


def test_peaks_of_some_ranks_are_of_no_stage(tmp_path: Path) -> None:
    documents = tables_of("simumax")
    lost = "llama3_70b_l12_tp1_pp2_dp4_mbc4_cef"

    def of_some(line: dict[str, Any]) -> dict[str, Any]:
        of_all = line["allocated_by_rank_bytes"]
        some = {rank: size for rank, size in of_all.items() if rank != "3"}
        return {**line, "allocated_by_rank_bytes": some} if line["case"] == lost else line

    change(documents["simumax/b200"], of_some)
    assert "not of all ranks" in reasons(cases_of(documents, tmp_path))[lost]


def test_peaks_that_others_are_predicted_from(tmp_path: Path) -> None:
    documents = tables_of("vocabulary")

    def unknown(line: dict[str, Any]) -> dict[str, Any]:
        lost = line["vocabulary"] == 64000 and line["method"] == "base"
        return {**line, "peak_bytes": None} if lost else line

    change(documents["vocabulary/paper_tables"], unknown)
    why = [case.key["why"] for case in cases_of(documents, tmp_path) if "why" in case.key]
    assert why.count("peak: those of larger vocabularies are predicted from it") == 2
    assert why.count("peak: not measured") == 1
