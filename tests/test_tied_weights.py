"""Tied weights as copies: by hand, on the command line, and where they are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schedopt import (
    Chain,
    InputError,
    Layer,
    Plan,
    Platform,
    Problem,
    Result,
    Rule,
    Scope,
    check,
    solve,
)
from schedopt.account import memory
from schedopt.chain import STATE_BYTES
from schedopt.formats import load_chain
from schedopt.running.model_match import match_model
from schedopt.tied_weights import copy_tied_weights
from schedopt.training_state import with_training_state
from tests.cli.commands import printed, run
from tests.exporting.engines import plan_of, refusal
from tests.exporting.test_megatron import SIX, arguments, exported
from tests.running.test_model_match import mlp

NOTHING: dict[str, Any] = dict.fromkeys(STATE_BYTES, 0)
LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1, **NOTHING)
EMBEDDING = replace(
    LAYER, weight_bytes=80, parameter_bytes=20, gradient_bytes=20, optimizer_bytes=40
)
HEAD = replace(
    LAYER, weight_bytes=3, tied_parameter_bytes=20, tied_gradient_bytes=20, tied_optimizer_bytes=40
)
CHAIN = Chain(layers=(EMBEDDING, LAYER, LAYER, HEAD), same_gpu=((0, 3),))


def test_a_copy_has_parameters_gradients_and_optimizer_state() -> None:
    copied = copy_tied_weights(CHAIN)
    assert (copied.same_gpu, copied.copied) == ((), ((0, 3),))
    assert copied.layers[:3] == CHAIN.layers[:3]
    head = copied.layers[3]
    assert (head.parameter_bytes, head.gradient_bytes, head.optimizer_bytes) == (20, 20, 40)
    # And three bytes of a buffer.
    assert head.weight_bytes == 83
    assert copied.sha256 != CHAIN.sha256
    assert copy_tied_weights(copied) == copied


def test_copies_make_a_pipeline_of_what_had_to_be_one_stage() -> None:
    # A stage of two layers: 2 * 3 ns, two micro-batches in flight at the first, one at the last.
    together = solve(CHAIN, Platform(2, 1000), scope=Scope(allocation="contiguous"))
    assert together.period == 12
    chain = copy_tied_weights(CHAIN)
    result = solve(chain, Platform(2, 1000), scope=Scope(allocation="contiguous"))
    assert result.status == "optimal"
    assert result.period == 6
    plan = result.plan
    assert isinstance(plan, Plan)
    assert [need.sum_bytes for need in memory(plan)] == [80 + 2 * 2, 83 + 2]
    assert check(plan) == ()
    # The copy is what makes the second GPU too small.
    assert [each.kind for each in check(replace(plan, platform=Platform(2, [84, 85])))] == []
    short = check(replace(plan, platform=Platform(2, [84, 84])))
    assert [each.kind for each in short] == ["memory"]


def test_the_state_of_a_copy_follows_the_training_state() -> None:
    chain = with_training_state(CHAIN, "mixed-adam:4")
    head = chain.layers[3]
    # Five elements: 2 bytes of weight, 2 of gradient, 12 of optimizer state.
    tied = (head.tied_parameter_bytes, head.tied_gradient_bytes, head.tied_optimizer_bytes)
    assert tied == (10, 10, 60)
    assert copy_tied_weights(chain).layers[3].weight_bytes == 83
    assert with_training_state(copy_tied_weights(CHAIN), "mixed-adam:4") == replace(
        copy_tied_weights(chain), provenance=chain.provenance
    )
    odd = replace(CHAIN, layers=(*CHAIN.layers[:3], replace(HEAD, tied_gradient_bytes=18)))
    with pytest.raises(InputError, match=r"tied_gradient_bytes: 18 bytes are no whole"):
        with_training_state(odd, "mixed-adam:4")


def test_copies_are_written_and_read(tmp_path: Path) -> None:
    chain = copy_tied_weights(CHAIN)
    chain.save(tmp_path / "chain.json")
    assert load_chain(tmp_path / "chain.json") == chain


def test_a_layer_that_does_not_say_what_a_copy_takes_is_refused() -> None:
    with pytest.raises(InputError, match=r"layers\[3\]\.tied_parameter_bytes: absent"):
        copy_tied_weights(replace(CHAIN, layers=(EMBEDDING, LAYER, LAYER, LAYER)))
    with pytest.raises(InputError, match=r"tied_parameter_bytes: .*without the others"):
        replace(HEAD, tied_gradient_bytes=None)
    # What is said to be a copy is counted in the layer that has it.
    with pytest.raises(InputError, match=r"layers\[3\]\.tied_parameter_bytes: 20 is more than"):
        replace(CHAIN, same_gpu=(), copied=((0, 3),))


def test_updates_of_copies_but_at_a_flush_are_refused() -> None:
    asked = Problem(chain=copy_tied_weights(CHAIN), platform=Platform(2, 1000))
    assert replace(asked, rule=Rule.of_flush(4)).rule.update_every == 4
    with pytest.raises(InputError, match=r"chain\.copied: .*Keep tied layers together"):
        replace(asked, rule=Rule(update_every=4))


def test_megatron_alone_adds_up_the_gradients_of_copies() -> None:
    plan = plan_of("megatron", SIX)
    assert len(plan.stages) == 2
    assert arguments(exported(plan, 4)).untie_embeddings_and_output_weights
    layers = plan.chain.layers
    changes = NOTHING | {f"tied_{name}": 0 for name in STATE_BYTES}
    last = replace(layers[-1], **changes)
    chain = replace(plan.chain, layers=(*layers[:-1], last), copied=((0, len(layers) - 1),))
    copied = replace(plan, chain=chain)
    assert not arguments(exported(copied, 4)).untie_embeddings_and_output_weights
    for target in ("torch-csv", "torchtitan", "deepspeed"):
        said = refusal(target, copied)
        assert f"layers 0, {len(layers) - 1} have copies of the same weights" in said
        assert "Export to megatron" in said


def test_stages_alone_of_copies_are_refused() -> None:
    with pytest.raises(InputError, match=r"chain\.copied: the stages alone do not add up"):
        match_model(mlp(), copy_tied_weights(CHAIN))


def test_a_batch_adds_the_gradients_of_copies_up(tmp_path: Path) -> None:
    file, plan = tmp_path / "chain.json", tmp_path / "plan.json"
    CHAIN.save(file)
    machine = ("--chain", file, "--gpus", "2", "--mem", "86", "--bandwidth", "20GB/s")
    scope = ("--allocation", "contiguous", "--replicas", "1", "--no-recompute")
    solved = ("solve", *machine, "--batch", "4", *scope, "--time-limit", "5")
    done = run(*solved)
    assert (done.returncode, "--tied copied" in done.stdout) == (3, True), done.stdout
    # F of 2 ns, 1 ns on the way, 4 x 6 ns on the last GPU, 1 ns back, B of 4 ns, and 1 ns for the
    # gradient of the copy. 1F1B has two micro-batches in flight, and waits 2 ns for the third.
    done = run(*solved, "--tied", "copied", "-o", plan)
    assert (done.returncode, "33 ns" in done.stdout) == (0, True), done.stdout
    assert "proven optimal" in done.stdout
    found = Result.load(plan).plan
    assert found is not None
    sent = [item for item in found.pattern.transfers if item.source_stage is not None]
    assert len(sent) == 2
    row = ("--systems", "one_f_one_b_flush", "--microbatches", "4", "--json")
    compared = ("compare", *machine, *row, "--tied", "copied")
    assert json.loads(printed(*compared))["rows"][0]["step_ns"] == 35


def test_the_option_copies_or_says_why_not(tmp_path: Path) -> None:
    file, plan = tmp_path / "chain.json", tmp_path / "plan.json"
    CHAIN.save(file)
    solved = ("solve", "--chain", file, "--gpus", "2", "--mem", "1000")
    assert "12 ns" in printed(*solved)
    assert "12 ns" in printed(*solved, "--tied", "together")
    assert "6 ns" in printed(*solved, "--tied", "copied", "-o", plan)
    assert "6 ns" in printed("solve", "--fix", plan)
    assert "6 ns" in printed("solve", "--fix", plan, "--chain", file, "--tied", "copied")
    refused = {
        ("--tied", "apart"): "--tied",
    }
    for options, message in refused.items():
        done = run(*solved, *options)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    done = run("solve", "--fix", plan, "--tied", "copied")
    assert (done.returncode, "--tied: given without a chain" in done.stderr) == (2, True)
    replace(CHAIN, layers=(LAYER,) * 4).save(file)
    done = run(*solved, "--tied", "copied")
    assert done.returncode == 2
    assert "layers[3].tied_parameter_bytes: absent" in done.stderr
    assert str(file) in done.stderr
