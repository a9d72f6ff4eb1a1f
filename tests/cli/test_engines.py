"""Plans for engines with an order of their own, as a user makes and exports them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schedopt import Result
from tests.cli.commands import ROOT, printed, run
from tests.importing.launching import transformer

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


@pytest.mark.parametrize(
    ("engine", "source", "said"),
    [
        ("torchtitan", "torchtitan-toml", "parallelism.data_parallel_replicate_degree = 2"),
        pytest.param(
            *("megatron", "megatron-args", "--num-distributed-optimizer-instances 2"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_groups_of_replicas_come_back_from_what_is_exported(
    engine: str, source: str, said: str, tmp_path: Path
) -> None:
    chain, machine, plan, out, now = (
        tmp_path / name for name in ("chain.json", "two.json", "plan.json", "out", "now.json")
    )
    small = transformer(2)
    part: dict[str, Any] = {
        f"{kind}_bytes": 1000 for kind in ("parameter", "gradient", "optimizer")
    }
    layers = [
        replace(layer, weight_bytes=3000, activation_bytes=4000, **part) for layer in small.layers
    ]
    replace(small, layers=tuple(layers)).save(chain)
    inside = {"bandwidth": "100GB/s", "duplex": "full"}
    nodes = [
        {"name": name, "gpus": 2, "memory": "1M", "link": inside} for name in ("left", "right")
    ]
    between = {"between": ["left", "right"], "bandwidth": "1GB/s", "duplex": "full"}
    machine.write_text(
        json.dumps({"format": "schedopt.platform/1", "nodes": nodes, "links": [between]})
    )
    asked = ("--chain", chain, "--platform", machine)
    step = ("solve", *asked, "--batch", "4", "--for", engine, "--workers", "1")
    printed(*step, "--no-hybrid", "-o", now)
    # On several nodes it is the default.
    assert "share the optimizer state, perhaps in groups" in printed(*step, "-o", plan)
    alone, found = Result.load(now), Result.load(plan).plan
    assert found is not None
    assert alone.lower_bound is not None
    assert found.pattern.period < alone.lower_bound
    assert {(stage.gpus, stage.shard_copies) for stage in found.stages} == {((0, 1, 2, 3), 2)}
    printed("export", plan, "--to", engine, "-o", out)
    file = out / "pipeline.py" if out.is_dir() else out
    assert said in file.read_text()
    printed("import", file, "--from", source, *asked, "-o", now)
    read = Result.load(now).plan
    assert read is not None
    assert (read.stages, read.pattern) == (found.stages, found.pattern)
    printed(*step, "--start", now, "-o", plan)
    assert Result.load(plan).period == found.pattern.period
    printed("solve", *asked, "--batch", "4", "--workers", "1", "--hybrid", "-o", plan)
    best = Result.load(plan)
    assert best.period is not None
    assert best.lower_bound is not None
    assert best.lower_bound <= best.period <= found.pattern.period


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
