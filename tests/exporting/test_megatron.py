from __future__ import annotations

import shlex
import subprocess
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from schedopt import Chain, Plan, Platform, Recipe, Result, Scope, Stage, solve
from schedopt.checking import check
from schedopt.exporting.megatron import export
from schedopt.systems import flushes
from schedopt.systems.config import SystemConfig
from tests import examples
from tests.budgets import trials
from tests.exporting.engines import (
    LAYER,
    blocks_of,
    by_rank,
    cut,
    engine_plans,
    parse_layout,
    plan_of,
    refusal,
)

ROOT = Path(__file__).parents[2]


def arguments(text: str) -> Namespace:
    """Return what the array of the file says, as the program that gets it reads it."""
    body = text.partition("PIPELINE_ARGS=(")[2].rpartition(")")[0]
    return parse(shlex.split(body))


def parse(words: list[str]) -> Namespace:
    parser = ArgumentParser(allow_abbrev=False)
    for name in ("pipeline-model-parallel-size", "num-layers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--pipeline-model-parallel-layout", required=True)
    parser.add_argument("--untie-embeddings-and-output-weights", action="store_true")
    for name in (
        "micro-batch-size",
        "global-batch-size",
        "tensor-model-parallel-size",
        "context-parallel-size",
        "expert-model-parallel-size",
        "microbatch-group-size-per-virtual-pipeline-stage",
    ):
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_args(words)


def exported(plan: Plan, microbatches: int) -> str:
    (text,) = export(plan, microbatches).values()
    return text


def test_the_parser_reads_the_example_of_the_guide() -> None:
    ranks = by_rank(parse_layout("Et*3|(tt|)*29,m|L"), 16)
    assert ranks[0] == ["Ettt", "tt"]
    assert ranks[1:14] == [["tt", "tt"]] * 13
    assert ranks[14:] == [["tt", "m"], ["tt", "L"]]


@trials(80)
@given(engine_plans("megatron"))
def test_the_layout_gives_the_layers_of_each_rank_back(plan: Plan) -> None:
    found = arguments(exported(plan, plan.pattern.k))
    stages = parse_layout(found.pipeline_model_parallel_layout)
    ranks = by_rank(stages, found.pipeline_model_parallel_size)
    assert [stage.gpus[0] for stage in plan.stages] == [*range(len(ranks))] * len(ranks[0])
    letters = "".join(stages)
    assert letters == "E" + "t" * found.num_layers + "L"
    assert [not row for row in stages] == [stage.is_empty for stage in plan.stages]
    # Transformer layers are numbered through the stages in order.
    numbers = iter(range(found.num_layers))
    for stage, row in zip(plan.stages, stages, strict=True):
        assert blocks_of(plan, *stage.layers) == [next(numbers) for one in row if one == "t"]
        assert ("E" in row) == (stage.first == 0)
        assert ("L" in row) == (stage.last == len(plan.chain.layers) - 1)


SIX = ("embed", "h.0", "h.1", "h.2", "h.3", "head")


def test_bash_reads_the_file(tmp_path: Path) -> None:
    plan = plan_of("megatron", SIX)
    recipe = Recipe(factory="a:b", arguments={"batch": 3})
    named = replace(plan, chain=replace(plan.chain, name="a\n'b' $(exit 7)", recipe=recipe))
    file = tmp_path / "megatron.sh"
    file.write_text(exported(named, 4))
    command = f'set -eu; source {file}; printf "%s\\n" "${{PIPELINE_ARGS[@]}}"'
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stderr == ""
    assert parse(done.stdout.splitlines()) == Namespace(
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=2,
        pipeline_model_parallel_layout="Et*2|t*2L",
        microbatch_group_size_per_virtual_pipeline_stage=None,
        context_parallel_size=1,
        expert_model_parallel_size=1,
        num_layers=4,
        untie_embeddings_and_output_weights=True,
        micro_batch_size=3,
        global_batch_size=12,
    )


def test_what_is_carried_over_is_said() -> None:
    plan = plan_of("megatron", SIX)
    # (4 + 1) forwards and backwards of three layers.
    assert "a step of 4 micro-batches takes 450 ns" in exported(plan, 4)
    assert "That is the order of the plan." in exported(plan, 4)
    assert "is GPU 1 of the plan: layers 3-5." in exported(plan, 4)
    # Its own order takes a round more; that of the plan empties the pipeline before the fifth.
    assert "a step of 5 micro-batches takes 540 ns" in exported(plan, 5)
    assert "The order of the plan is not carried over; it takes 630 ns." in exported(plan, 5)
    assert "--global-batch-size to 5 times" in exported(plan, 5)
    swapped = cut(plan, (0, 2, 1), (3, 5, 0))
    assert "Rank 0 is GPU 1 of the plan: layers 0-2." in exported(swapped, 4)


@trials(30)
@given(engine_plans("megatron"))
def test_arguments_that_would_change_the_step_are_named(plan: Plan) -> None:
    text = exported(plan, plan.pattern.k)
    told = text.partition("# Take out of those, where they are: ")[2].partition(".\n")[0]
    names = told.replace("\n# ", " ").split(", ")
    given = text.partition("PIPELINE_ARGS=(")[2]
    assert len(names) == len({*names})
    assert not [name for name in names if f"{name} " in given or f"{name}\n" in given]
    for name, value in (
        ("--recompute-granularity", "full"),
        ("--use-distributed-optimizer", ""),
        ("--recompute-activations", ""),
        ("--decoder-first-pipeline-num-layers", "1"),
    ):
        assert name in names or f"{name} {value}".strip() in given
    assert max(map(len, text.partition("PIPELINE_ARGS=(")[0].splitlines())) <= 100


def test_halves_of_a_backward_are_not_carried_over() -> None:
    half = replace(LAYER, backward_input_ns=10, backward_weight_ns=10)
    chain = Chain(layers=tuple(replace(half, name=name) for name in SIX))
    config = SystemConfig(chain=chain, platform=Platform(gpus=2, memory=10**6), microbatches=4)
    plan = flushes.zero_bubble(config)
    assert check(plan) == ()
    assert {operation.kind for operation in plan.pattern.operations} >= {"I", "W"}
    text = exported(plan, 4)
    assert "That is the order of the plan." not in text
    # Its own step: (4 + 1) forwards and backwards of three layers.
    assert "a step of 4 micro-batches takes 450 ns" in text
    assert f"it takes {plan.pattern.period_total_ns} ns." in text
    assert plan.pattern.period_total_ns < 450


def test_modules_that_are_computed_again_are_named() -> None:
    plan = plan_of("megatron", SIX)
    again = replace(plan, chain=replace(plan.chain, recomputed_modules=("mlp", "core_attn")))
    text = exported(again, 4)
    assert "--recompute-granularity selective\n    --recompute-modules core_attn mlp\n" in text
    assert "--recompute-num-layers, --use-distributed" in text.replace("\n# ", " ")
    told = refusal("megatron", replace(again, stages=recomputed(again)), 4)
    assert "stages compute whole layers again, and layers core_attn, mlp, where one" in told
    for engine in ("torchtitan", "deepspeed"):
        assert "knows no such names" in refusal(engine, again, 4)


def recomputed(plan: Plan) -> tuple[Stage, ...]:
    """Return stages that compute their second layer again."""
    return tuple(
        replace(stage, recompute=((stage.first + 1, stage.first + 1),)) for stage in plan.stages
    )


def test_tied_layers_stay_tied() -> None:
    plan = plan_of("megatron", SIX, gpus=1)
    tied = replace(plan, chain=replace(plan.chain, same_gpu=((0, 5),)))
    assert arguments(exported(plan, 4)).untie_embeddings_and_output_weights
    assert not arguments(exported(tied, 4)).untie_embeddings_and_output_weights


def test_stages_that_it_cannot_run_are_refused() -> None:
    plan = plan_of("megatron", ("embed", "h.0: a to b", "h.0: c", "h.1", "head"), count=2)
    first, second = plan.stages
    refused = {
        "stage 1 begins at layer 2, which parts the embedding, a transformer layer": cut(
            plan, (0, 1, 0), (2, 4, 1)
        ),
        # A V is no round robin; nor may one GPU have more stages than another.
        "on GPUs 0, 1, 1, 0, not": cut(plan, (0, 0, 0), (1, 2, 1), (3, 3, 1), (4, 4, 0)),
        "on GPUs 0, 1, 0, not": cut(plan, (0, 0, 0), (1, 2, 1), (3, 4, 0)),
        "several stages lie on a single GPU": cut(plan, (0, 2, 0), (3, 4, 0)),
        "stage 0 does not compute the first 1 of its transformer layers again": replace(
            plan, stages=(replace(first, recompute=((0, 0),)), second)
        ),
        "stage 1 has 1 replicas, and stage 0 has 2": replace(
            plan, stages=(replace(first, gpus=(0, 1)), second)
        ),
    }
    for why, bad in refused.items():
        told = refusal("megatron", bad, 2)
        assert why in told
        assert 'Find the best plan that it can run: solve with Scope(engine="megatron"' in told


def test_stages_take_turns_in_groups_of_micro_batches() -> None:
    plan = plan_of("megatron", ("embed", "h.0: a to b", "h.0: c", "h.1", "head"), count=2)
    loop = cut(plan, (0, 0, 0), (1, 2, 1), (3, 3, 0), (4, 4, 1))
    assert "interleaved 1F1B with a flush" in exported(loop, 2)
    told = refusal("megatron", loop, 3)
    assert "3 is no multiple of 2 GPUs" in told
    assert "Give 2 micro-batches" in told


def test_what_does_not_fit_in_its_own_order_is_refused() -> None:
    # Three layers of 100 and 10 bytes kept for each of 1 or, as in 1F1B, of 2 micro-batches.
    plan = plan_of(None, SIX, memory=330)
    told = refusal("megatron", plan)
    assert "in its own order GPU 0 needs 360 B, and has 330 B" in told


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("a; b; c; d", "no name holds the number of one"),
        ("embed; h.0; x.0; head", "their names number h.N, x.N"),
        ("h.0; h.1; h.2; head", "nothing comes before the first"),
        ("embed; h.0; h.1; h.2", "nothing comes behind the last"),
        ("embed; h.0; other; h.1; head", "layer 2 ('other') lies between them"),
        ("embed; h.1; h.2; head", "layer 1 ('h.1') does not follow number -1"),
        ("embed; h.0; h.2; head", "layer 2 ('h.2') does not follow number 0"),
        ("embed; h.1; h.0; head", "layer 1 ('h.1') does not follow number -1"),
    ],
)
def test_names_that_do_not_tell_are_refused(names: str, why: str) -> None:
    plan = examples.contiguous()
    chain = Chain(layers=tuple(replace(LAYER, name=name) for name in names.split("; ")))
    whole = cut(replace(plan, chain=chain), (0, len(chain.layers) - 1, 0))
    told = refusal("megatron", whole, 2)
    assert why in told
    assert "Name them in the chain as a profile does" in told


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2-small", 12),
        ("gpt2-medium", 24),
        ("bert-large", 24),
        ("llama-8b", 32),
        ("vit-b16", 12),
    ],
)
def test_measured_chains_tell(name: str, count: int) -> None:
    chain = Chain.load(ROOT / "instances" / f"{name}.json")
    plan = solve(chain, Platform(1, "1T"), scope=Scope()).plan
    assert plan is not None
    found = arguments(exported(plan, 2))
    assert found.num_layers == count
    assert found.pipeline_model_parallel_layout == f"Et*{count}L"
    assert found.global_batch_size == 2 * found.micro_batch_size


def test_a_solved_chain_is_exported_as_solved() -> None:
    chain = Chain.load(ROOT / "instances" / "gpt2-small.json")
    scope = Scope(allocation="general", max_k=None, microbatches=8, engine="megatron")
    result: Result = solve(chain, Platform(gpus=4, memory="4G", bandwidth="12GB/s"), scope=scope)
    assert result.status == "optimal"
    assert result.plan is not None
    text = exported(result.plan, 8)
    assert "That is the order of the plan." in text
    stages = parse_layout(arguments(text).pipeline_model_parallel_layout)
    assert len(stages) == len(result.plan.stages)
