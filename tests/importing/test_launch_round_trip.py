"""What `schedopt export` writes for an engine is read back as the same plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Problem, Stage
from schedopt.checking import check
from schedopt.engine import Engine, recomputable_units, stage_begins, why_not_stages
from schedopt.plan import Plan
from schedopt.problem import training_step, widest_step
from schedopt.solving.engines.grid import Grid, grids_of
from schedopt.solving.engines.layout import lay_out_step
from tests.budgets import trials
from tests.importing.launching import P2, SOURCES, megatron, read_back
from tests.solvers.test_engine_grids import steps


@st.composite
def engine_steps(draw: st.DrawFn, engine: Engine) -> Plan:
    """Draw a training step on some grid, cut anywhere."""
    drawn: Problem = draw(steps(engine))
    assume(drawn.is_training_step)
    chain = drawn.chain
    scope = replace(
        widest_step(chain, tensor=None if drawn.variants else 1),
        engine=engine,
    )
    batch = (drawn.scope.microbatches or 1) * chain.samples
    problem = training_step(chain, drawn.platform, batch, scope, drawn.variants)
    begins = sorted(stage_begins(chain, engine))
    grids = [*grids_of(problem, len(begins))]
    assume(grids)
    grid: Grid = draw(st.sampled_from(grids))
    others = begins[1:]
    # Groups of replicas with copies of all shards: as many as divide those beside each sequence.
    counts = [g for g in range(1, grid.replicas) if grid.replicas // chain.context % g == 0]
    may_copy = engine != "deepspeed" and grid.shard != "none" and chain.expert == 1
    copies = draw(st.sampled_from(counts)) if may_copy else 1
    problem = replace(problem, scope=replace(problem.scope, hybrid=copies > 1))
    cuts = draw(
        st.lists(
            st.sampled_from(others) if others else st.nothing(),
            min_size=grid.parts - 1,
            max_size=grid.parts - 1,
            unique=True,
        )
    )
    firsts = [0, *sorted(cuts)]
    units = recomputable_units(chain, engine)
    stages = []
    for number, (first, end) in enumerate(
        zip(firsts, [*firsts[1:], len(chain.layers)], strict=True)
    ):
        own = [unit for unit in units if first <= unit[0] and unit[1] < end]
        gpus = tuple(grid.gpu(number % grid.ranks, one) for one in range(grid.replicas))
        stages.append(
            Stage(
                layers=(first, end - 1),
                gpus=gpus,
                recompute=tuple(own[: grid.recomputed]),
                shard=grid.shard,
                tensor=grid.tensor,
                shard_copies=copies,
            )
        )
    assume(not why_not_stages(chain, stages, engine))
    plan = lay_out_step(problem, grid, stages)
    assume(not check(plan))
    return plan


@pytest.mark.parametrize("engine", SOURCES)
@given(data=st.data())
@trials(300)
def test_what_is_exported_is_read_back(engine: Engine, data: st.DataObject) -> None:
    plan = data.draw(engine_steps(engine))
    with TemporaryDirectory() as folder:
        found = read_back(Path(folder), plan, engine)
    assert found.result.plan == plan
    assert found.result.status == "feasible"
    assert check(found.result) == ()


def test_groups_of_many_replicas_are_read_as_a_fold(tmp_path: Path) -> None:
    text = f"{P2} --use-distributed-optimizer --num-distributed-optimizer-instances 16"
    plan = megatron(tmp_path, f"{text} --global-batch-size 256", 512).result.plan
    assert plan is not None
    assert {(len(stage.gpus), stage.shard_copies) for stage in plan.stages} == {(256, 16)}
    assert plan.pattern.fold == 256
    assert check(plan) == ()
    # Written and read once more it is the same.
    assert read_back(tmp_path, plan, "megatron").result.plan == plan
