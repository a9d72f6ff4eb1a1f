"""``schedopt instance three-partition`` and ``schedopt bench hardness``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_instance import Here, here, written

__all__ = ["here"]

EXITS = {"yes": 0, "no": 3}


@pytest.mark.parametrize("theorem", ["1", "2"])
@pytest.mark.parametrize("solvable", ["yes", "no"])
def test_what_is_written_is_answered_as_printed(
    theorem: str, solvable: str, here: Here, tmp_path: Path
) -> None:
    shown = here.print(
        "instance", "three-partition", "--theorem", theorem, "--m", "4", f"--{solvable}",
        "--seed", "2", "--total", "100", "-o", "my chain.json",
    )  # fmt: skip
    kind = "any allocation, any k" if theorem == "1" else "the given allocation"
    assert f"Known     {kind}" in shown
    assert ("infeasible" in shown) == (solvable == "no")
    command = written(shown)
    if theorem == "1":
        assert command == [
            "solve", "--chain", "my chain.json", "--gpus", "4", "--mem", "1",
            "--allocation", "general", "--period", "100", "--solver", "packing",
        ]  # fmt: skip
        code, printed, errors = here.run(*command, "--json")
        assert (code, errors) == (EXITS[solvable], "")
        status = {"yes": "optimal", "no": "infeasible"}[solvable]
        assert json.loads(printed)["status"] == status
    found = json.loads(here.print("bench", "hardness", "--instance", "my chain.json", "--json"))
    assert (found["answer"], found["theorem"], found["m"], found["V"]) == (
        solvable, int(theorem), 4, 100,
    )  # fmt: skip
    assert found["period_ns"] == (100 if theorem == "1" else 800)
    assert len(found["numbers"]) == 12
    assert sum(found["numbers"]) == 400
    assert [sum(group) for group in found["groups"]] == ([100] * 4 if solvable == "yes" else [])
    own = sorted(number for group in found["groups"] for number in group)
    assert own == (sorted(found["numbers"]) if solvable == "yes" else [])
    assert found["exhaustive_search"] == (None if solvable == "yes" else "agrees")
    assert found["seconds"] < 60
    assert "checked" in found["proof"] or "CP-SAT" in found["proof"]
    text = here.print("bench", "hardness", "--instance", "my chain.json")
    assert f"Answer    {solvable}, in " in text
    assert text.count("Group     ") == (4 if solvable == "yes" else 0)


def test_the_command_of_theorem_2_is_printed_and_quoted(here: Here) -> None:
    arguments = ("three-partition", "--theorem", "2", "--m", "2", "--yes", "-o", "my chain.json")
    shown = here.print("instance", *arguments)
    assert "Solve     schedopt bench hardness --instance 'my chain.json'" in shown
    document = json.loads(here.print("instance", *arguments, "--json"))
    assert document["solve"] == shlex.split("schedopt bench hardness --instance 'my chain.json'")
    assert document["known"][0]["period_exact"] == [4000, 1]


def test_a_chain_of_another_family_is_refused_by_its_file(here: Here, tmp_path: Path) -> None:
    here.print("instance", "uniform", "--layers", "6", "-o", "uniform.json")
    errors = here.fail("bench", "hardness", "--instance", "uniform.json")
    assert errors.startswith("Error: uniform.json: provenance.family: 'uniform' is no family of")
    here.print("instance", "three-partition", "--theorem", "2", "--m", "2", "--no", "-o", "no.json")
    document: dict[str, Any] = json.loads((tmp_path / "no.json").read_text())
    document["layers"][-1]["activation_bytes"] = 2
    (tmp_path / "no.json").write_text(json.dumps(document))
    errors = here.fail("bench", "hardness", "--instance", "no.json", "--json")
    assert errors.startswith(
        "Error: no.json: layers[11].activation_bytes: 2, and 1 in Theorem 2. Write one with"
    )


def test_no_answer_in_time_gives_4(here: Here) -> None:
    here.print("instance", "three-partition", "--theorem", "1", "--m", "8", "--no", "-o", "c.json")
    code, printed, errors = here.run(
        "bench", "hardness", "--instance", "c.json", "--time-limit", "1e-9", "--json"
    )
    assert (code, errors) == (4, "")
    assert json.loads(printed)["answer"] == "unknown"


def test_the_help_names_the_exit_code_and_an_example(here: Here) -> None:
    shown = here.print("bench", "hardness", "--help")
    assert "4 no answer" in shown
    assert "schedopt bench hardness --instance chain.json --json" in shown
