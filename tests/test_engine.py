"""What Megatron-LM lets stages be: without layers, and with layers that predict further tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt import Chain, InputError, Plan, Platform, Problem, Scope, Stage, account, check
from schedopt.actions import make_actions
from schedopt.engine import why_not_stages
from schedopt.exporting.megatron import make_layout
from schedopt.reporting.tables import layer_names, layer_range
from schedopt.systems.steps import engine_step
from schedopt.transformer_blocks import find_blocks
from tests.layers import layer

LAYER = layer(1, 2, 1, weight=4, sent=1)


def chain(*names: str) -> Chain:
    return Chain(layers=tuple(replace(LAYER, name=name) for name in names))


FURTHER = chain("embed", *(f"layers.{n}" for n in range(4)), "mtp.0: norm", "mtp.1", "head")


def stages(*rows: tuple[int, int], ranks: int = 2) -> list[Stage]:
    return [Stage(layers=row, gpus=(number % ranks,)) for number, row in enumerate(rows)]


def step(chain: Chain, *rows: tuple[int, int]) -> Plan:
    """Return a step of four micro-batches on two GPUs."""
    scope = Scope(allocation="general", max_k=None, microbatches=4, engine="megatron")
    platform = Platform(2, 1000, bandwidth="1GB/s", duplex="full")
    return engine_step(Problem(chain=chain, platform=platform, scope=scope), stages(*rows))


def test_layers_that_predict_further_tokens_lie_before_the_head() -> None:
    blocks = find_blocks(FURTHER)
    assert (blocks.count, blocks.predictors, blocks.head, blocks.first_predictor) == (4, 2, 5, 5)
    assert sorted(blocks.begins) == [0, 1, 2, 3, 4, 5, 7]
    with pytest.raises(InputError, match="so there is no head"):
        find_blocks(chain("embed", "layers.0", "mtp.0"))


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (((0, 1), (2, 3), (4, 4), (5, 7)), ""),
        (((0, 1), (2, 4), (5, 4), (5, 7)), ""),
        (((0, 1), (2, 1), (2, 4), (5, 7)), ""),
        (((0, 1), (2, 3), (4, 6), (7, 7)), "stage 2 has the layers that predict further tokens"),
        (((0, 1), (2, 5), (6, 6), (7, 7)), "stage 2 begins at layer 6, which parts"),
    ],
)
def test_where_stages_may_end(rows: tuple[tuple[int, int], ...], why: str) -> None:
    found = why_not_stages(FURTHER, stages(*rows), "megatron")
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_a_stage_without_layers_passes_on_what_it_gets() -> None:
    plan = step(FURTHER, (0, 1), (2, 1), (2, 4), (5, 7))
    assert check(plan) == ()
    assert make_layout(plan) == "Et||t*3|m*2L"
    assert [layer_range(stage) for stage in plan.stages] == ["0-1", "none", "2-4", "5-7"]
    assert layer_names(plan, plan.stages[1]) == ""
    sent = [item for item in plan.pattern.transfers if item.stage == 1]
    assert len(sent) == 8
    # Of both GPUs: their weights, 4 of each layer.
    held = [need.by_kind["weights"] for need in account.memory(plan)]
    assert held == [20, 12]


def test_only_megatron_has_stages_without_layers() -> None:
    plan = step(FURTHER, (0, 1), (2, 1), (2, 4), (5, 7))
    other = replace(plan, scope=replace(plan.scope, engine=None))
    messages = [str(violation) for violation in check(other)]
    assert any("it has no layers, which only Megatron-LM runs" in message for message in messages)
    for engine in ("torchtitan", "torch"):
        assert "stage 1 has no layers" in why_not_stages(
            chain("embed", "layers.0", "layers.1", "head"),
            stages((0, 0), (1, 0), (1, 1), (2, 3)),
            engine,
        )


def test_stages_without_layers_are_not_run_here() -> None:
    with pytest.raises(InputError, match="stage 1 has no layers, which only Megatron-LM runs"):
        make_actions(step(FURTHER, (0, 1), (2, 1), (2, 4), (5, 7)), 4)


def test_there_are_no_more_stages_than_parts() -> None:
    short = chain("embed", "layers.0", "head")
    rows = ((0, 0), (1, 1), (2, 1), (2, 2))
    assert "4 stages, and 3 parts" in why_not_stages(short, stages(*rows), "megatron")
