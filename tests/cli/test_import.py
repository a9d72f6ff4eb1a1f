from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

from schedopt import Chain, Result
from schedopt.account import memory
from schedopt.units import format_duration
from tests.cli.commands import GPT2, printed, run
from tests.importing.files import DNN, FILES, PIPEDREAM


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "small.graph.txt"
    path.write_text(PIPEDREAM)
    return path


def test_import_prints_what_a_reader_looks_for(tmp_path: Path, profile: Path) -> None:
    chain = tmp_path / "my chain.json"
    shown = printed("import", profile, "--from", "pipedream", "-o", chain)
    assert shown.splitlines() == [
        "Chain     small: 5 layers, forward 6.250 ms, backward 9.251 ms for one micro-batch",
        "Sizes     parameters 327 B, weights 1.31 KB (4 copies)",
        "          saved 2.90 KB for each micro-batch, input 100 B, largest output of a layer "
        "1.00 KB",
        "Note      The graph is a chain: exactly one tensor crosses each of 4 cuts.",
        "Note      Dropped, being inputs from the loader: node1. What is read of them is the input "
        "of the chain.",
        "Note      Without a time, so part of the layer that feeds them: node5, node7.",
        f"Chain written to {chain}",
        f"Solve     schedopt solve --chain '{chain}' --gpus 4 --mem 16G",
    ]
    assert run("solve", "--chain", chain, "--gpus", "4", "--mem", "16G").returncode == 0


@pytest.mark.parametrize("source", FILES)
def test_json_is_one_document(tmp_path: Path, source: str) -> None:
    (tmp_path / "profile").write_text(FILES[source])
    chain = tmp_path / "chain.json"
    done = run("import", tmp_path / "profile", "--from", source, "-o", chain, "--json")
    assert done.stderr == ""
    document = json.loads(done.stdout)
    written = Chain.load(chain)
    assert document["chain_sha256"] == written.sha256
    assert document["layers"] == len(written.layers)
    assert document["provenance"] == written.provenance
    assert document["saved_bytes"] == sum(layer.saved for layer in written.layers)
    assert document["notes"]
    assert {"name", "forward_ns", "backward_ns", "parameter_bytes", "weight_bytes"} <= set(document)


def test_options_reach_the_chain(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text(DNN)
    chain = tmp_path / "chain.json"
    options = ("--cuts", "articulation", "--copies", "2", "--name", "mine")
    done = run("import", tmp_path / "profile", "--from", "dnn-partitioning", *options, "-o", chain)
    assert done.returncode == 0
    assert "were merged to 2" in done.stdout
    written = Chain.load(chain)
    assert (written.name, len(written.layers)) == ("mine", 2)
    assert written.provenance["weight_copies"] == 2


MEGATRON = """\
ARGS=(
    --num-layers 12 --hidden-size 768
    --untie-embeddings-and-output-weights
    --pipeline-model-parallel-size 4
    --micro-batch-size 1 --global-batch-size 16
    --overlap-grad-reduce
)
"""
MACHINE = ("--chain", GPT2, "--gpus", "4", "--bandwidth", "12GB/s")


@pytest.fixture
def launch(tmp_path: Path) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(MEGATRON)
    return path


def test_what_is_run_now_is_a_plan_with_what_it_costs(tmp_path: Path, launch: Path) -> None:
    plan = tmp_path / "now.plan.json"
    typed = ("import", launch, "--from", "megatron-args", *MACHINE)
    shown = printed(*typed, "--mem", "16G", "-o", plan).splitlines()
    assert (
        shown[0] == "Plan      Megatron-LM: 4 stages on 4 pipeline ranks, 1 replica of 1 GPU each"
    )
    step = Result.load(plan).plan
    assert step is not None
    assert shown[1] == (
        f"Step      {format_duration(step.pattern.period_total_ns)} for 16 samples in 16 "
        "micro-batches, the update of the weights included"
    )
    bound = re.fullmatch(
        r"Bound     \S+ s: no plan on these GPUs has a shorter step with such micro-batches; at "
        r"most (\d+\.\d\d)% of the step can be saved",
        shown[2],
    )
    assert bound is not None
    least, period = Result.load(plan).lower_bound, step.pattern.period
    assert least is not None
    assert 0 <= Fraction(bound[1]) / 100 - (1 - least / period) < Fraction(1, 10_000)
    assert re.fullmatch(
        r"Memory    fits: GPU \d has the least room, and needs \S+ GB of its 16\.00 GB", shown[3]
    )
    assert shown[4:6] == [
        "Note      Sent as the plan says, behind the last backward and as soon as links are free: "
        "--overlap-grad-reduce",
        "Note      Taken as it was when the chain was measured: --hidden-size",
    ]
    assert shown[6] == f"Plan written to {plan}"
    solve = f"schedopt solve --chain {GPT2} --gpus 4 --mem 16G --bandwidth 12GB/s --batch 16"
    solve += f" --for megatron --start {plan}"
    assert shown[7].startswith(f"Solve     {solve} -o ")
    assert run("check", plan).returncode == 0


def test_the_command_for_a_better_step_asks_of_the_same_chain(tmp_path: Path, launch: Path) -> None:
    typed = ("import", launch, "--from", "megatron-args", *MACHINE, "--mem", "16G")
    shown = printed(*typed, "--tied", "copied", "-o", tmp_path / "now.plan.json")
    assert " --tied copied --batch 16 --for megatron --start " in shown


def test_what_does_not_fit_is_written_and_told(tmp_path: Path, launch: Path) -> None:
    plan = tmp_path / "now.plan.json"
    typed = ("import", launch, "--from", "megatron-args", *MACHINE)
    shown = printed(*typed, "--mem", "1G", "-o", plan)
    # Nothing can begin with it.
    assert "--for megatron -o " in shown
    assert re.search(
        r"^Memory    does not fit: GPU \d needs \S+ [GM]B more than its 1.00 GB",
        shown,
        re.MULTILINE,
    )
    assert run("check", plan).returncode == 5
    document = json.loads(printed(*typed, "--mem", "1G", "-o", plan, "--json"))
    loaded = Result.load(plan)
    assert loaded.status == "unknown"
    assert loaded.plan is not None
    needs = [need.peak_bytes for need in memory(loaded.plan)]
    worst = max(range(4), key=needs.__getitem__)
    assert document["memory_bytes"] == needs
    assert (document["binding_gpu"], document["over_bytes"]) == (worst, needs[worst] - 10**9)
    assert (document["fits"], document["engine"]) == (False, "megatron")
    assert loaded.lower_bound is not None
    assert Fraction(*document["step_bound_exact"]) == 16 * loaded.lower_bound


def test_options_of_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "gradient_accumulation_steps": 8}')
    plan = tmp_path / "now.plan.json"
    typed = ("import", tmp_path / "ds.json", "--from", "deepspeed-json", *MACHINE, "--mem", "16G")
    printed(*typed, "--stages", "4", "--partition", "uniform", "-o", plan)
    loaded = Result.load(plan).plan
    assert loaded is not None
    # 26 modules before the loss, which is two layers of the chain.
    assert [stage.layers for stage in loaded.stages] == [(0, 6), (7, 13), (14, 19), (20, 27)]


def test_a_bound_of_modules_that_are_computed_again_says_so(tmp_path: Path, launch: Path) -> None:
    """A shorter step without them, as the profile has it too, is no shorter one of such layers."""
    shape = "layers=12,hidden=64,heads=4,ffn=96,vocabulary=100"
    profile, plan = tmp_path / "profile.json", tmp_path / "now.plan.json"
    again = ("--recompute-modules", "mlp")
    printed("profile", "--shape", shape, "--on", "h100", "--seq", "64", *again, "-o", profile)
    launch.write_text(f"{MEGATRON}--recompute-granularity selective {' '.join(again)}\n")
    typed = ("import", launch, "--from", "megatron-args", "--chain", profile, "--gpus", "4")
    shown = printed(*typed, "--mem", "16G", "-o", plan)
    assert "1 replica of 1 GPU each, with mlp computed again\n" in shown
    assert "a shorter step with such micro-batches, with mlp computed again; at most" in shown
