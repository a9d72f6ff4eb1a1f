"""Whether a torchtitan of release 0.3 would build the plan that was meant.

It places stages by its schedule's style: rank r of P has r, r + P, ... in a loop, r and 2P - 1 - r
in a V. Each part keeps the modules that its list names: children of the decoder, and numbered
children of its list of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schedopt import Chain, Platform, Scope, check, solve
from schedopt.exporting import find_target
from schedopt.plan import Plan
from schedopt.recipe import Recipe
from tests import transformers
from tests.cli.commands import ROOT
from tests.exporting.engines import refusal
from tests.running.networks import placed

DECODER = (
    "model.embed_tokens",
    "model.layers.0: input_layernorm to self_attn",
    "model.layers.0: post_attention_layernorm to mlp",
    "model.layers.1: input_layernorm to mlp",
    "model.layers: 2 to 3",
    "model: layers.4 to norm",
    "lm_head",
    "loss",
)
"""As layers of a traced decoder are called; some hold several blocks, or more than a block."""


def named(*rows: tuple[int, int, int], names: Sequence[str] = DECODER, **more: Any) -> Plan:
    """Return a plan whose layers have these names; more goes to the chain."""
    plan = placed(*rows)()
    chain = transformers.named(plan.chain, list(names))
    made = replace(plan, chain=replace(chain, **more))
    assert check(made) == ()
    return made


def configured(plan: Plan, folder: Path, microbatches: int = 4) -> tuple[Any, list[list[str]]]:
    """Return the configuration that the export makes, and the rows that it names."""
    files = find_target("torchtitan").export(plan, microbatches)
    assert sorted(files) == ["pipeline.py", "schedule.csv"]
    for name, text in files.items():
        (folder / name).write_text(text)
    scope: dict[str, Any] = {"__file__": str(folder / "pipeline.py")}
    exec(compile(files["pipeline.py"], "pipeline.py", "exec"), scope)
    parallelism = SimpleNamespace(pipeline_parallel_microbatch_size=3)
    config = SimpleNamespace(parallelism=parallelism, training=SimpleNamespace())
    assert scope["apply"](config) is config
    table = Path(parallelism.pipeline_parallel_schedule_csv).read_text()
    return config, [line.split(",") for line in table.splitlines()]


def stages_of(row: Sequence[str]) -> set[int]:
    return {int(action[0]) for action in row}


def test_parts_have_the_modules_of_their_stages(tmp_path: Path) -> None:
    plan = named((0, 2, 0), (3, 3, 1), (4, 7, 2))
    config, rows = configured(plan, tmp_path)
    assert config.parallelism.module_fqns_per_model_part == [
        ["tok_embeddings", "layers.0"],
        ["layers.1"],
        ["layers.2", "layers.3", "layers.4", "norm", "lm_head"],
    ]
    assert config.parallelism.pipeline_parallel_degree == 3
    assert config.training.local_batch_size == 4 * 3
    assert list(map(stages_of, rows)) == [{0}, {1}, {2}]


@pytest.mark.parametrize(
    ("gpus", "schedule", "style"),
    [
        ((0, 1, 0, 1), "PipelineScheduleMulti", [{0, 2}, {1, 3}]),
        # Ranks are numbered as stages are; the GPUs of the plan need not be.
        ((1, 0, 1, 0), "PipelineScheduleMulti", [{0, 2}, {1, 3}]),
        ((0, 1, 1, 0), "ZBVZeroBubble", [{0, 3}, {1, 2}]),
        ((2, 0, 0, 2), "ZBVZeroBubble", [{0, 3}, {1, 2}]),
    ],
)
def test_stages_lie_in_a_loop_or_in_a_v(
    gpus: Sequence[int], schedule: str, style: list[set[int]], tmp_path: Path
) -> None:
    a, b, c, d = gpus
    config, rows = configured(named((0, 2, a), (3, 3, b), (4, 4, c), (5, 7, d)), tmp_path)
    assert config.parallelism.pipeline_parallel_schedule == schedule
    assert list(map(stages_of, rows)) == style
    assert f"GPUs {a}, {b} of the plan" in (tmp_path / "pipeline.py").read_text()


def test_another_placement_is_refused() -> None:
    told = refusal("torchtitan", named((0, 2, 0), (3, 3, 1), (4, 7, 0)))
    assert "stages lie on GPUs 0, 1, 0, neither in a loop nor in a V" in told
    assert 'engine="megatron", microbatches=4' in told
    assert "0, 0, 1, 1, neither" in refusal(
        "torchtitan", named((0, 2, 0), (3, 3, 0), (4, 4, 1), (5, 7, 1))
    )


@pytest.mark.parametrize("rows", [((0, 7, 0),), ((0, 2, 1), (3, 7, 1))])
def test_a_single_gpu_is_refused(rows: tuple[tuple[int, int, int], ...]) -> None:
    # Its pipeline_parallel_degree must be above 1 for micro-batches to be cut at all.
    told = refusal("torchtitan", named(*rows))
    assert "one GPU is no pipeline there" in told
    assert "Solve for more GPUs" in told


def test_stages_that_are_no_whole_modules_are_refused() -> None:
    told = refusal("torchtitan", named((0, 1, 0), (2, 7, 1)))
    assert "stage 1 begins at layer 2, which parts the embedding, a block" in told
    assert 'engine="megatron"' in told
    assert "stage 1 begins at layer 7" in refusal("torchtitan", named((0, 6, 0), (7, 7, 1)))


def test_a_chain_without_names_is_refused() -> None:
    told = refusal("torchtitan", named((0, 3, 0), (4, 7, 1), names=("",) * 8))
    assert "no name holds the number of one. Name them in the chain as a profile does" in told


def test_micro_batches_have_the_size_that_the_chain_tells(tmp_path: Path) -> None:
    recipe = Recipe(factory="hf:llama", arguments={"batch": 5}, torch="2.13.0", cuts=("a",) * 8)
    plan = named((0, 2, 0), (3, 7, 1), recipe=recipe)
    config, _ = configured(plan, tmp_path)
    assert config.parallelism.pipeline_parallel_microbatch_size == 5
    assert config.training.local_batch_size == 4 * 5


def test_weights_that_stages_share_are_refused() -> None:
    rows = ((0, 2, 0), (3, 3, 1), (4, 4, 1), (5, 7, 0))
    told = refusal("torchtitan", named(*rows, same_gpu=((0, 6),)))
    assert "stages 0, 3 have layers that share a GPU" in told
    apart = named(*rows, same_gpu=((1, 2), (6, 7)))
    assert "tok_embeddings" in find_target("torchtitan").export(apart, 4)["pipeline.py"]


def test_the_way_out_leads_out(tmp_path: Path) -> None:
    chain = Chain.load(ROOT / "instances" / "llama-8b.json")
    platform = Platform(gpus=4, memory=80 * 10**9, bandwidth=50 * 10**9)
    scope = Scope(allocation="contiguous")
    plan = solve(chain, platform, scope=scope).plan
    assert plan is not None
    assert 'engine="megatron"' in refusal("torchtitan", plan)
    scope = Scope(allocation="general", max_k=None, microbatches=8, engine="megatron")
    plan = solve(chain, platform, scope=scope, time_limit=1).plan
    assert plan is not None
    config, rows = configured(plan, tmp_path, 8)
    parts = config.parallelism.module_fqns_per_model_part
    blocks = [f"layers.{number}" for number in range(32)]
    assert [one for part in parts for one in part] == ["tok_embeddings", *blocks, "norm", "lm_head"]
    assert config.parallelism.pipeline_parallel_degree == len(rows) == 4
