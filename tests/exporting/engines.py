"""What the exports to engines are held against."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from schedopt import Chain, InputError, Plan, Platform, Problem, Scope, Stage, solve
from schedopt.chain import EXPERT_BYTES
from schedopt.engine import Engine
from schedopt.exporting import find_target
from schedopt.problem import training_step
from schedopt.profile import Variant
from schedopt.solving.engines.cuts import EngineCuts
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.layout import lay_out_step
from schedopt.systems.steps import engine_step
from tests.examples import layer
from tests.solvers.test_engine_steps_by_hand import transformer
from tests.transformers import transformers

LAYER = layer(10, 20, 100, 10)


@st.composite
def engine_plans(draw: st.DrawFn, engine: Engine) -> Plan:
    """Draw a plan in the order of an engine, on GPUs with ample memory."""
    chain: Chain = draw(transformers(most=6))
    gpus = draw(st.integers(1, 4))
    most = len(chain.layers) - 2
    ranks = min(gpus, most)
    chunks = draw(st.integers(1, 3)) if engine == "megatron" and ranks > 1 else 1
    count = ranks * draw(st.integers(1, 2))
    scope = Scope(allocation="general", max_k=None, microbatches=count, engine=engine)
    problem = Problem(chain=chain, platform=Platform(gpus, 10**9), scope=scope)
    shapes = [EngineCuts(problem, Grid(ranks=ranks, chunks=many)) for many in range(chunks, 0, -1)]
    shapes.append(EngineCuts(problem, Grid(ranks=1, chunks=1)))
    cuts = next(shape for shape in shapes if shape.exist)
    begins = draw(st.sampled_from([*cuts.promising(None, lambda: False)]))
    return engine_step(problem, cuts.stages(begins))


def grid_plan(
    engine: Engine,
    grid: Grid,
    begins: Sequence[int],
    *,
    blocks: int = 6,
    count: int = 8,
    samples: int = 1,
    context: int = 1,
    expert: int = 1,
    copies: int = 1,
) -> Plan:
    """Return a training step on a grid, of a transformer whose stages begin at these layers.

    So many micro-batches count parts of sequences, if GPUs share them. So many groups of replicas
    have copies of what they share. Each GPU has 24 bytes of experts of a layer, if GPUs share them.
    """
    chain = transformer(blocks)
    if expert > 1:
        experts: dict[str, Any] = dict.fromkeys(EXPERT_BYTES, 8)
        layers = (
            replace(one, weight_bytes=one.weight_bytes + 24, **experts) for one in chain.layers
        )
        chain = replace(chain, layers=tuple(layers), expert=expert)
    chain = replace(chain, samples=samples, context=context)
    scope = Scope(
        allocation="general",
        max_k=None,
        memory="peak",
        recompute=True,
        replicas=None,
        shard="optimizer",
        engine=engine,
        tensor=None,
        hybrid=copies > 1,
    )
    variants = (Variant(tensor=grid.tensor, chain=chain),) if grid.tensor > 1 else ()
    gpus = grid.ranks * grid.replicas * grid.tensor
    platform = Platform(gpus, 10**4, bandwidth=10**9)
    problem = training_step(chain, platform, chain.samples_of(count), scope, variants)
    last = len(chain.layers) - 1
    stages = [
        Stage(
            layers=(begin, end - 1),
            gpus=tuple(grid.gpu(number % grid.ranks, n) for n in range(grid.replicas)),
            recompute=tuple((n, n) for n in range(max(1, begin), min(last, end)))[
                : grid.recomputed
            ],
            shard=grid.shard,
            tensor=grid.tensor,
            shard_copies=copies,
        )
        for number, (begin, end) in enumerate(pairwise([*begins, last + 1]))
    ]
    return lay_out_step(problem, grid, stages)


def plan_of(
    engine: Engine | None, names: Sequence[str], *, gpus: int = 2, count: int = 4, **more: Any
) -> Plan:
    """Return the best step on layers with these names, in the order of an engine or in any."""
    chain = Chain(layers=tuple(replace(LAYER, name=name) for name in names))
    scope = Scope(allocation="contiguous", max_k=None, microbatches=count, engine=engine)
    platform = Platform(**{"gpus": gpus, "memory": 10**6} | more)
    plan = solve(chain, platform, scope=scope, time_limit=5).plan
    assert plan is not None
    return plan


def cut(plan: Plan, *rows: tuple[int, int, int]) -> Plan:
    """Return the plan with other stages: first and last layer, and GPU."""
    return replace(plan, stages=tuple(Stage(layers=(a, b), gpus=(gpu,)) for a, b, gpu in rows))


def write_export(target: str, plan: Plan, folder: Path) -> None:
    """Write the files of an export of all micro-batches of a plan."""
    for name, text in find_target(target).export(plan, plan.pattern.k).items():
        (folder / name).write_text(text)


def refusal(target: str, plan: Plan, microbatches: int = 4) -> str:
    """Return what a target says of a plan that it cannot express."""
    with pytest.raises(InputError) as caught:
        find_target(target).export(plan, microbatches)
    assert caught.value.field == "to"
    assert caught.value.way_out
    return str(caught.value)


def blocks_of(plan: Plan, first: int, last: int) -> list[int]:
    """Return the transformer layers of a stage, as the names of the strategy say."""
    found = [
        re.search(r"model\.layers\.(\d+)", layer.name)
        for layer in plan.chain.layers[first : last + 1]
    ]
    return sorted({int(match[1]) for match in found if match})


def parse_layout(layout: str) -> list[str]:
    """Return the letters of each stage of a layout of Megatron-LM.

    Commas say nothing. ``(...)*n`` is what is in the parentheses n times, ``x*n`` one sign so
    often; then ``|`` parts the stages.
    """
    text = layout.replace(",", "")
    while match := re.search(r"\(([^()]*)\)\*(\d+)", text):
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    while match := re.search(r"([^*()])\*(\d+)", text):
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    stages = text.split("|")
    assert set("".join(stages)) <= set("EtmL")
    return stages


def by_rank(stages: Sequence[str], ranks: int) -> list[list[str]]:
    """Return the letters of each virtual stage of each rank: stage s is on rank s mod P."""
    assert len(stages) % ranks == 0
    return [list(stages[rank::ranks]) for rank in range(ranks)]
