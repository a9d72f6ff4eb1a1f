"""Plans for engines with an order of their own, as a user makes and exports them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schedopt import Result
from tests.cli.commands import ROOT, printed, run

CHAIN = ROOT / "instances" / "gpt2-small.json"
PLATFORM = ("--gpus", "2", "--mem", "8G", "--bandwidth", "12GB/s")


@pytest.mark.parametrize("engine", ["megatron", "deepspeed"])
def test_from_a_chain_to_what_the_engine_takes(engine: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    asked = ("--for", engine, "--microbatches", "4")
    shown = printed("solve", "--chain", CHAIN, *PLATFORM, *asked, "-o", plan, "--json")
    document = json.loads(shown)
    assert document["status"] == "optimal"
    assert document["scope"]["engine"] == engine
    assert " can run" in document["bounds"][-1]["proof"]
    out = tmp_path / "out"
    printed("export", plan, "--to", engine, "--microbatches", "4", "-o", out)
    file = out / "pipeline.py" if out.is_dir() else out
    assert "That is the order of the plan." in file.read_text()


def test_a_search_that_begins_with_a_plan_finds_none_that_is_longer(tmp_path: Path) -> None:
    script, now, plan = (tmp_path / name for name in ("run.sh", "now.json", "plan.json"))
    script.write_text(
        "--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 "
        "--untie-embeddings-and-output-weights"
    )
    chain = ("--chain", CHAIN, *PLATFORM, "--duplex", "full")
    printed("import", script, "--from", "megatron-args", *chain, "-o", now)
    asked = ("solve", *chain, "--batch", "8", "--for", "megatron", "--start", now)
    printed(*asked, "--time-limit", "0.001", "-o", plan)
    begun, found = Result.load(now).plan, Result.load(plan)
    assert begun is not None
    assert found.plan is not None
    # There is no time for anything else.
    assert (found.solver, found.plan.pattern) == ("initial", begun.pattern)
    done = run("solve", "--fix", plan, "--start", now)
    assert (done.returncode, "--start" in done.stderr) == (2, True)
    done = run("solve", *chain, "--batch", "16", "--for", "megatron", "--start", now)
    assert done.returncode == 2
    assert f"Error: {now}: initial: the plan to start from does not answer" in done.stderr


def test_a_step_has_four_micro_batches_for_each_gpu_if_nothing_is_said(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    printed("solve", "--chain", CHAIN, *PLATFORM, "--for", "megatron", "-o", plan)
    gpus = int(PLATFORM[PLATFORM.index("--gpus") + 1])
    assert Result.load(plan).problem.scope.microbatches == 4 * gpus


def test_what_each_restriction_costs(tmp_path: Path) -> None:
    plan, asked = tmp_path / "plan.json", ("--for", "megatron", "--microbatches", "4")
    limit = ("--time-limit", "3", "--workers", "1")
    shown = printed(
        "solve", "--chain", CHAIN, *PLATFORM, *asked, *limit, "--restrictions", "-o", plan, "--json"
    )
    ladder = json.loads(shown)["ladder"]
    assert [row["freedom"] for row in ladder] == ["", "cuts anywhere", "any order"]
    periods = [row["period_exact"][0] / row["period_exact"][1] for row in ladder]
    assert periods == sorted(periods, reverse=True)
    kept = Result.load(plan)
    assert [row.freedom for row in kept.ladder] == [row["freedom"] for row in ladder]
    assert kept.problem.scope.engine == "megatron"
    done = run("solve", "--chain", CHAIN, *PLATFORM, "--restrictions")
    assert done.returncode == 2
    assert "Error: --restrictions: asked of no engine. Name one (--for)" in done.stderr


def test_a_plan_with_cuts_elsewhere_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    asked = ("--allocation", "contiguous", "--gpus", "4", "--mem", "8G")
    assert run("solve", "--chain", CHAIN, *asked, "-o", plan).returncode == 0
    done = run("export", plan, "--to", "megatron", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "Error: --to: megatron cannot express it: stage " in done.stderr
    assert "which parts the embedding, a transformer layer or the head" in done.stderr
    assert "solve with --for megatron --microbatches 16" in done.stderr
    assert not (tmp_path / "out").exists()
