from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from schedopt import Chain, InputError, Layer, Platform, Scope, Stage, solve
from schedopt.cli.app import COMMANDS
from schedopt.solving.registry import CHOOSE_ALLOCATION, PARTITIONED, SOLVERS
from tests.cli.commands import GPT2, run, run_process, solve_json


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("solved") / "plan.json"
    done = run(
        "solve", "--chain", GPT2, "--gpus", "4", "--mem", "2G", "--bandwidth", "12GB/s", "-o", path
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def plan(solved: Path, tmp_path: Path) -> Path:
    """Return a copy of a plan, for a test to change."""
    return Path(shutil.copy(solved, tmp_path))


def test_solve_prints_what_a_reader_looks_for(tmp_path: Path) -> None:
    done = run("solve", "--chain", GPT2, "--gpus", "4", "--mem", "2G", "--bandwidth", "12GB/s")
    assert done.returncode == 0
    for word in ("wte", "loss", "Weights", "Activation", "2.00 GB", "Period", "Bound",
                 "proven optimal", "Binding", "12.00 GB/s"):  # fmt: skip
        assert word in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("more", "words"), [("", "transfers are free"), ("--reserved 1G", "9.00 GB (8.00 GB usable)")]
)
def test_the_platform_is_echoed(more: str, words: str) -> None:
    done = run("solve", "--chain", GPT2, "--gpus", "2", "--mem", "9G", *more.split())
    assert words in done.stdout


def test_names_from_a_file_cannot_break_the_tables(tmp_path: Path) -> None:
    document = json.loads(GPT2.read_text())
    document["name"] = "[bold]x\n\x1b[31mred"
    document["layers"][0]["name"] = "[/red] 🎉"
    (tmp_path / "chain.json").write_text(json.dumps(document))
    done = run("solve", "--chain", tmp_path / "chain.json", "--gpus", "2", "--mem", "9G")
    assert done.returncode == 0
    assert done.stdout.startswith("Chain     [bold]x??[31mred: ")
    assert "[/red] 🎉" in done.stdout


def test_json_has_what_is_promised_and_nothing_else_is_printed() -> None:
    document = solve_json("--chain", GPT2, "--gpus", "4", "--mem", "2G", "--bandwidth", "12GB/s")
    promised = """status period_ns period_exact lower_bound_ns lower_bound_exact gap scope pattern
        stages memory_bytes memory_peak_bytes solver seconds ladder bounds"""
    assert set(promised.split()) <= set(document)
    assert document["status"] == "optimal"
    assert document["period_exact"] == document["lower_bound_exact"] == [document["period_ns"], 1]
    assert document["gap"] == 0
    (proof,) = (one for one in document["bounds"] if one["exact"] == document["period_exact"])
    assert "dynamic programme" in proof["proof"]
    assert proof["scope"]["allocation"] == "contiguous"
    assert document["pattern"]["k"] == 1
    assert document["stages"][0]["layers"][0] == 0
    assert document["stages"][-1]["layers"][1] == len(Chain.load(GPT2).layers) - 1
    assert max(document["memory_bytes"]) <= 2 * 10**9


def test_infeasible_gives_3_the_least_memory_and_the_gpu() -> None:
    arguments = ("--chain", GPT2, "--gpus", "4", "--mem")
    document = solve_json(*arguments, "500M")
    why = document["infeasibility"]
    assert document["status"] == "infeasible"
    assert why["gpu"] in range(4)
    least = why["least_memory_bytes"]
    assert run("solve", *arguments, str(least)).returncode == 0
    short = run("solve", *arguments, str(least - 1))
    assert short.returncode == 3
    for word in (f"{least} bytes", "contiguous allocation", "--allocation general", "GPU"):
        assert word in short.stdout


@pytest.mark.parametrize(
    ("mem", "meant"),
    [
        ("2", "2G"),
        ("1500", "1500M"),
        ("0", None),
        ("2M", None),
        ("2 --batch 16 --for megatron", "2G"),
        ("2M --batch 16 --for megatron", None),
    ],
)
def test_a_size_without_a_unit_that_is_far_too_little_is_told(mem: str, meant: str | None) -> None:
    shown = run("solve", "--chain", GPT2, "--gpus", "4", "--mem", *mem.split())
    assert shown.returncode == 3
    assert ("without a unit is bytes" in shown.stdout) == (meant is not None)
    assert meant is None or f"is {meant} meant?" in shown.stdout


def test_infeasible_writes_no_file(tmp_path: Path) -> None:
    run("solve", "--chain", GPT2, "--gpus", "4", "--mem", "1M", "-o", tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_was_written_is_valid(plan: Path) -> None:
    done = run("check", plan)
    assert done.returncode == 0
    assert done.stdout.endswith(f"{plan}: valid\n")


def test_a_broken_plan_gives_5_and_the_place(plan: Path) -> None:
    document = json.loads(plan.read_text())
    document["pattern"]["operations"][0]["start_ns"] += 1
    plan.write_text(json.dumps(document))
    done = run("check", plan)
    assert done.returncode == 5
    assert "stage 0" in done.stdout
    answer = json.loads(run("check", plan, "--json").stdout)
    assert answer["valid"] is False
    assert answer["violations"][0]["place"]


def test_fix_keeps_the_stages_and_takes_the_platform_of_the_plan(plan: Path) -> None:
    before = json.loads(plan.read_text())
    document = solve_json("--fix", plan)
    assert document["status"] == "optimal"
    assert document["solver"] == "initial"
    assert [stage["layers"] for stage in document["stages"]] == [
        stage["layers"] for stage in before["stages"]
    ]
    assert document["pattern"]["period_total_ns"] == before["pattern"]["period_total_ns"]


def test_fix_is_never_worse_than_the_plan_itself(tmp_path: Path) -> None:
    asked = ("--recompute", "--max-k", "2", "--memory", "peak")
    arguments = ("--chain", GPT2, "--gpus", "4", "--mem", "1.3G", "--bandwidth", "12GB/s", *asked)
    path = tmp_path / "plan.json"
    assert run("solve", *arguments, "-o", path).returncode == 0
    before = json.loads(path.read_text())["pattern"]
    after = solve_json("--fix", path, *asked, "--time-limit", "0.01")
    assert after["period_ns"] <= before["period_total_ns"] / before["k"]


def test_fix_on_a_slower_link(plan: Path) -> None:
    document = solve_json("--fix", plan, "--gpus", "4", "--mem", "2G", "--bandwidth", "1MB/s")
    assert document["period_ns"] > json.loads(plan.read_text())["pattern"]["period_total_ns"]


def test_period_is_a_decision(plan: Path) -> None:
    least = json.loads(plan.read_text())["pattern"]["period_total_ns"]
    arguments = ("solve", "--chain", GPT2, "--gpus", "4", "--mem", "2G", "--bandwidth", "12GB/s")
    assert run(*arguments, "--period", str(least)).returncode == 0
    assert run(*arguments, "--period", str(least - 1)).returncode == 3


def test_general_allocation_has_a_ladder_and_a_bound() -> None:
    asked = ("--chain", GPT2, "--gpus", "4", "--mem", "2G", "--bandwidth", "12GB/s")
    document = solve_json(*asked, "--allocation", "general", "--time-limit", "1")
    solvers = [phase["solver"] for phase in document["ladder"]]
    assert solvers[:3] == ["even_split", "next_fit", "contiguous"]
    assert "general" in solvers
    assert document["period_ns"] >= document["lower_bound_ns"] > 0


def test_a_training_step_says_how_long_it_is_and_what_contiguous_stages_take() -> None:
    asked = (
        "--chain",
        GPT2,
        "--gpus",
        "4",
        "--mem",
        "1.5G",
        "--bandwidth",
        "12GB/s",
        "--batch",
        "8",
    )
    done = run("solve", *asked, "--allocation", "general", "--time-limit", "1")
    assert done.returncode == 0
    assert "s for 8 samples, the update of the weights included" in done.stdout
    assert "contiguous stages take at least 1." in done.stdout
    document = solve_json(*asked, "--allocation", "contiguous", "--no-recompute")
    assert document["step_ns"] == document["pattern"]["period_total_ns"]
    assert (document["scope"]["recompute"], document["scope"]["replicas"]) == (False, None)


def test_unequal_gpus() -> None:
    document = solve_json("--chain", GPT2, "--gpus", "3", "--mem", "4G,2G,4G", "--speed", "1,0.5,1")
    assert document["status"] == "optimal"
    assert document["memory_bytes"][1] <= 2 * 10**9


def test_what_is_printed_has_units_for_people() -> None:
    asked = ("--chain", GPT2, "--gpus", "4", "--mem", "0.9G", "--period", "2s", "--max-k", "2")
    done = run("solve", *asked)
    assert done.returncode == 3
    assert "period at most 2.000 s" in done.stdout
    assert "above 2.000 s" in done.stdout
    assert "2000000000" not in done.stdout
    # The least memory to ask for is exact, and nothing else is.
    least = solve_json(*asked)["infeasibility"]["least_memory_bytes"]
    assert done.stdout.count(" bytes") == done.stdout.count(f"({least} bytes)") == 1


def test_a_gpu_that_stays_empty_is_said(tmp_path: Path) -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=1, activation_bytes=1)
    Chain(layers=(layer,) * 2).save(tmp_path / "chain.json")
    asked = ("--chain", tmp_path / "chain.json", "--mem", "9", "--gpus")
    assert "Unused    GPU 2 (1 of 3): no stage" in run("solve", *asked, "3").stdout
    assert "Unused" not in run("solve", *asked, "2").stdout


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        ("theirs", "theirs (their_solver:solve) failed: ValueError: no luck, really"),
        ("invalid", "invalid (their_solver:report) failed: InvalidPlanError: invalid: "),
        ("missing", "missing (no_such:solve) failed: ModuleNotFoundError: No module named 'no_suc"),
        ("wrong", "wrong (their_solver:slove) failed: AttributeError: module 'their_solver' has n"),
    ],
)
def test_a_solver_of_another_package_that_fails_is_one_error(
    solver: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_solver.py").write_text(
        "def solve(problem, run):\n    raise ValueError('no luck,\\n really.')\n"
        "def report(problem, run):\n    import schedopt, dataclasses\n"
        "    plan = schedopt.solve(problem.chain, problem.platform, scope=problem.scope).plan\n"
        "    first, *others = plan.pattern.operations\n"
        "    late = dataclasses.replace(first, start_ns=first.start_ns + 1)\n"
        "    pattern = dataclasses.replace(plan.pattern, operations=(late, *others))\n"
        "    run.report(dataclasses.replace(plan, pattern=pattern))\n"
    )
    (tmp_path / "their-1.dist-info").mkdir()
    (tmp_path / "their-1.dist-info" / "METADATA").write_text("Name: their\nVersion: 1\n")
    (tmp_path / "their-1.dist-info" / "entry_points.txt").write_text(
        "[schedopt.solvers]\ntheirs = their_solver:solve\nmissing = no_such:solve\n"
        "invalid = their_solver:report\nwrong = their_solver:slove\n"
    )
    asked = ("solve", "--chain", GPT2, "--gpus", "2", "--mem", "9G", "--solver", solver)
    done = run(*asked, folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: the solver {words}")
    assert done.stderr.endswith(". For the traceback set SCHEDOPT_TRACEBACK=1\n")
    assert done.stderr.count("\n") == 1
    monkeypatch.setenv("SCHEDOPT_TRACEBACK", "1")
    done = run(*asked, folder=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert f"SolverError: the solver {words}" in done.stderr


# packing takes only stages that leave no choice but a packing.
@pytest.mark.parametrize("solver", sorted({*SOLVERS, *PARTITIONED} - {"packing"}))
def test_solvers_that_choose_the_allocation_refuse_a_plan_that_is_fixed(solver: str) -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
    stages = (Stage(layers=(0, 0), gpus=(0,)), Stage(layers=(1, 1), gpus=(1,)))
    step = solver == "step"
    scope = Scope(allocation="fixed", max_k=None if step else 2, microbatches=2 if step else None)
    problem = (Chain(layers=(layer,) * 2), Platform(2, 9))
    if solver not in CHOOSE_ALLOCATION:
        assert solve(*problem, scope=scope, stages=stages, solver=solver).ladder
        return
    with pytest.raises(InputError) as caught:
        solve(*problem, scope=scope, stages=stages, solver=solver)
    assert caught.value.field == "solver"


def test_without_arguments_the_help_is_shown() -> None:
    done = run()
    assert "solve" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["", *(name for name, _, _ in COMMANDS)])
def test_help_names_the_exit_codes_and_an_example(command: str) -> None:
    shown = " ".join(run(*command.split(), "--help").stdout.replace("│", " ").split())
    assert "Exit codes" in shown
    assert "130 interrupted" in shown
    assert not command or f" schedopt {command} " in shown.partition("Usage")[2].partition("]")[2]
    assert command != "solve" or "for each micro-batch (T / m)" in shown


def test_the_installed_script_is_the_same_command() -> None:
    script = shutil.which("schedopt", path=str(Path(sys.executable).parent))
    assert script is not None
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == run("--version").stdout == run_process("--version").stdout


def test_a_terminal_without_unicode_gets_plain_text(plan: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "schedopt", "check", str(plan)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "valid" in done.stdout.decode("ascii")


def test_a_plan_is_fixed_with_what_is_given_and_the_rest_of_its_platform(plan: Path) -> None:
    def fixed(*more: str) -> Any:
        done = run("solve", "--fix", plan, "--json", *more)
        assert done.returncode in (0, 3), done.stderr
        return json.loads(done.stdout)

    same = fixed()
    assert fixed("--mem", "2G") == same | {"seconds": mock.ANY, "ladder": mock.ANY}
    assert fixed("--bandwidth", "1MB/s")["period_ns"] > same["period_ns"]
    assert fixed("--mem", "1M")["status"] == "infeasible"
    assert fixed("--speed", "2")["period_ns"] < same["period_ns"]
    refused = run("solve", "--fix", plan, "--gpus", "2")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"Error: {plan}: stages[2].gpus: stage 2 lies on GPU 2, and there are 2, from 0 to 1. "
        "Give at least 4 GPUs (--gpus 4), or stages for fewer\n"
    )


def test_a_reader_that_leaves_early_ends_the_program_quietly(plan: Path) -> None:
    command = f"{sys.executable} -m schedopt check {plan} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("Chain")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_behind_standard_output_is_one_error(plan: Path) -> None:
    command = f"{sys.executable} -m schedopt check {plan} > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_is_said_to_a_closed_stream_is_lost(plan: Path, tmp_path: Path, closed: str) -> None:
    other = tmp_path / "page.html"
    for command, code in (
        (f"check {plan}", 0),
        (f"report {plan} -o {other}", 0),
        ("check missing.json", 2),
    ):
        line = f"{sys.executable} -m schedopt {command} {closed}"
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert done.stdout == ""
        assert done.stderr.startswith("Error: missing.json" if code and "2>" not in closed else "")
        assert "Traceback" not in done.stderr
    assert other.read_text().rstrip().endswith("</html>")


def test_an_error_is_not_printed_on_standard_output_where_there_is_no_other() -> None:
    line = f"{sys.executable} -m schedopt check missing.json 2>&-"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_where_time_was_up_before_the_first_solver_more_of_it_is_a_way_out() -> None:
    asked = ("--chain", GPT2, "--gpus", "4", "--mem", "4G", "--batch", "16")
    done = run("solve", *asked, "--solver", "training_step", "--time-limit", "1e-9")
    assert done.returncode == 4
    assert "Try       more time (--time-limit), " in done.stdout


def test_a_partitioner_without_a_plan_points_at_the_exact_solver() -> None:
    done = run("solve", "--chain", GPT2, "--gpus", "4", "--mem", "1.2G", "--solver", "piper")
    assert done.returncode == 4
    assert "Try       --solver contiguous" in done.stdout
