"""The schedules of torchtitan's launch files: orders of torch, and rows of a file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from schedopt.checking import check
from schedopt.importing import ImportedLaunch
from schedopt.importing.launch_files.schedules import LOOPED, engine_rows, rows_of
from schedopt.systems.steps import engine_order
from tests.importing.launching import profile, read, transformer
from tests.importing.launching import rows_of as rows_of_plan
from tests.importing.test_launch_torchtitan import PP, titan
from tests.refusals import assert_refused

V_ROWS = """\
0F0,3F0,3B0,0B0
1F0,2F0,2B0,1B0
"""


def test_every_other_layer_of_a_rank_is_counted_where_its_stages_lie(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(V_ROWS)
    parts = (
        "module_fqns_per_model_part = [['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2'], "
        "['layers.3', 'layers.4'], ['layers.5', 'layers.6', 'layers.7', 'norm', 'output']]"
    )
    found = titan(tmp_path, f"{CSV}; {parts}", 2, training="local_batch_size = 1", rest="")
    assert found.launch.homes == (0, 1, 1, 0)
    # Rank 0 has layers 1, 6, 7 and 8 of the chain, rank 1 layers 2, 3, 4 and 5.
    assert found.launch.recompute == ((), ((3, 3),), ((5, 5),), ((6, 6), (8, 8)))


def test_gpipe_runs_all_forwards_first(tmp_path: Path) -> None:
    found = titan(tmp_path, f"{PP} = 2; pipeline_parallel_schedule = 'GPipe'", 2)
    assert found.result.plan is not None
    rows = rows_of_plan(found.result.plan)
    assert [kind for kind, *_ in rows[0]] == ["F"] * 4 + ["B"] * 4
    assert found.result.plan.scope.engine is None
    assert check(found.result) == ()


@pytest.mark.nightly
@pytest.mark.parametrize("schedule", LOOPED)
@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (2, 6), (3, 3), (3, 2), (4, 10), (4, 5)])
def test_orders_are_those_of_torch(schedule: str, ranks: int, count: int) -> None:
    from torch.distributed.pipelining.schedules import get_schedule_class

    rows = rows_of(schedule, ranks, 2, count)
    if rows is None:
        rows = engine_rows(ranks, [*engine_order(ranks, 2, count)])
    for rank in range(ranks):
        # What the class makes of its stages in __init__ needs a process group; the order does not.
        made = object.__new__(get_schedule_class(schedule))
        made.__dict__ |= {
            "_stages": [rank, rank + ranks],
            "n_local_stages": 2,
            "pp_group_size": ranks,
            "_n_microbatches": count,
            "microbatches_per_round": count // max(1, count // ranks),
        }
        actions = made._calculate_single_rank_operations(rank)
        own = [str(action) for action in actions if action is not None]
        assert [f"{stage}{kind}{i}" for kind, stage, i in rows[rank]] == own


CSV = f"{PP} = 2; pipeline_parallel_schedule = 'PipelineScheduleMulti'; "
CSV += "pipeline_parallel_schedule_csv = 'rows.csv'"
ROWS = "0F0,0F1,,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_rows_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    found = titan(tmp_path, CSV, 2, training="local_batch_size = 2")
    plan = found.result.plan
    assert plan is not None
    # These are the rows of 1F1B.
    assert (found.launch.rows, plan.scope.engine) == (None, "torchtitan")
    (tmp_path / "rows.csv").write_text(ROWS.replace("1B0,1F1", "1F1,1B0"))
    other = titan(tmp_path, CSV, 2, training="local_batch_size = 2")
    assert other.result.plan is not None
    assert [kind for kind, *_ in rows_of_plan(other.result.plan)[1]] == ["F", "F", "B", "B"]
    assert other.result.plan.scope.engine is None
    assert check(other.result) == ()


@pytest.mark.parametrize(
    ("rows", "field", "rule"),
    [
        ("0F0,0F1,0B0,0B1\n", "", "it has 1 rows, and there are 2 pipeline ranks"),
        (ROWS.replace("0F1", "0SEND_F1"), "line 1", "'0SEND_F1' is no operation"),
        (ROWS.replace(",0B1", ""), "line 1", "stage 0 runs F for micro-batch 1"),
        (ROWS.replace("0B1", "0B0"), "line 1", "stage 0 runs BBF for micro-batch 0"),
        (ROWS.replace("1F1", "2F1"), "", "it names stage 2 and micro-batch 1, and there are 2"),
        (ROWS.replace("1B1", "1B1,0F0"), "line 2", "stage 0 runs on rank 0 too"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, rows: str, field: str, rule: str) -> None:
    (tmp_path / "rows.csv").write_text(rows)
    assert_refused(
        lambda: titan(tmp_path, CSV, 2, training="local_batch_size = 2"),
        field,
        rule,
        source=tmp_path / "rows.csv",
    )


PYTHON = """\
from pathlib import Path

def apply(config):
    parallelism = config.parallelism
    parallelism.pipeline_parallel_degree = 2
    csv = Path(__file__).with_name("rows.csv")
    parallelism.pipeline_parallel_schedule = "PipelineScheduleMulti"
    parallelism.pipeline_parallel_schedule_csv = str(csv)
    size = 1
    parallelism.pipeline_parallel_microbatch_size = size
    config.training.local_batch_size = 2 * size
    config.activation_checkpoint = FullAC.Config()
    return config
"""


def test_python_is_read_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    found = read(tmp_path, "torchtitan-toml", PYTHON, 2, file="pipeline.py")
    again = "[activation_checkpoint]\nmode = 'full'"
    like = titan(tmp_path, CSV, 2, training="local_batch_size = 2", rest=again)
    assert found.result.plan == like.result.plan
    assert found.launch.microbatches == 2
    assert len(found.launch.recompute[0]) == 4


def test_python_that_assigns_nothing_is_refused(tmp_path: Path) -> None:
    def of(text: str) -> ImportedLaunch:
        return read(tmp_path, "torchtitan-toml", text, file="job.py", of=profile(transformer()))

    for text, rule in (
        ("x = 1", "no function without parameters returns"),
        ("x = = 1", "it is no Python"),
    ):
        assert_refused(partial(of, text), "", rule, source=tmp_path / "job.py")
