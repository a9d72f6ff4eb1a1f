"""Configurations of DeepSpeed, by its own rules."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt.checking import check
from schedopt.importing import ImportedLaunch, Pipeline, import_launch
from schedopt.importing.launch_files.splitting import balanced, uniform
from schedopt.systems import zero
from schedopt.systems.config import SystemConfig
from tests.budgets import trials
from tests.importing.launching import layers_of, profile, read, transformer
from tests.refusals import assert_refused
from tests.tensor_groups import two_nodes

BATCH = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}


def deepspeed(
    folder: Path, config: dict[str, Any], gpus: int = 4, *, of: Any = None, **pipeline: Any
) -> ImportedLaunch:
    told = Pipeline(**pipeline) if pipeline else None
    return read(folder, "deepspeed-json", json.dumps(config), gpus, of=of, pipeline=told)


def heavy() -> Any:
    """Return a profile whose embedding and head have 40 bytes of parameters, layers 10."""
    chain = transformer()
    layers = [
        replace(layer, parameter_bytes=40, weight_bytes=60) if number in (0, 9) else layer
        for number, layer in enumerate(chain.layers)
    ]
    return profile(replace(chain, layers=tuple(layers)))


SPLITS: list[tuple[dict[str, Any], list[tuple[int, int]]]] = [
    # Ten modules with 40, 10 times 8, 40: 160 in all.
    ({"partition": "uniform"}, [(0, 2), (3, 5), (6, 7), (8, 9)]),
    ({"partition": "parameters"}, [(0, 0), (1, 4), (5, 8), (9, 9)]),
    ({}, [(0, 0), (1, 4), (5, 8), (9, 9)]),
    ({"partition": "0,1,2,7"}, [(0, 0), (1, 1), (2, 6), (7, 9)]),
]


@pytest.mark.parametrize(("how", "stages"), SPLITS)
def test_modules_are_split_as_deepspeed_does(
    tmp_path: Path, how: dict[str, Any], stages: list[tuple[int, int]]
) -> None:
    found = deepspeed(tmp_path, BATCH, of=heavy(), stages=4, **how)
    assert layers_of(found) == stages
    assert check(found.result) == ()


@given(weights=st.lists(st.integers(0, 9), min_size=1, max_size=8), parts=st.integers(1, 4))
@trials(500)
def test_balanced_parts_spread_least(weights: list[int], parts: int) -> None:
    begins = balanced(weights, parts)
    if len(weights) <= parts:
        assert begins == uniform(len(weights), parts)
        return

    def spread(begins: list[int]) -> int:
        sizes = [sum(weights[a:b]) for a, b in pairwise([*begins, len(weights)])]
        return max(sizes) - min(sizes)

    assert (begins[0], len(begins)) == (0, parts)
    assert all(a < b for a, b in pairwise([*begins, len(weights)]))
    # From left to right it finds one of the cuts that spread least, or comes close: the best cut
    # of what lies before a part need not be a part of the best cut of all.
    every = [[0, *cut] for cut in combinations(range(1, len(weights)), parts - 1)]
    assert spread(begins) >= min(map(spread, every))
    if parts <= 2:
        assert spread(begins) == min(map(spread, every))


def test_degrees(tmp_path: Path) -> None:
    config = BATCH | {"zero_optimization": {"stage": 1}, "pipeline": {"stages": 2}}
    found = deepspeed(tmp_path, config, 8, tensor=2)
    plan = found.result.plan
    assert plan is not None
    assert [stage.gpus for stage in plan.stages] == [(0, 2), (4, 6)]
    assert {(stage.tensor, stage.shard) for stage in plan.stages} == {(2, "optimizer")}
    assert (plan.pattern.k, plan.scope.engine) == (8, "deepspeed")
    assert check(found.result) == ()


@pytest.mark.parametrize(
    ("stage", "shard"), [(0, "none"), (1, "optimizer"), (2, "gradient"), (3, "parameter")]
)
def test_zero_without_a_pipeline(tmp_path: Path, stage: int, shard: str) -> None:
    found = deepspeed(tmp_path, BATCH | {"zero_optimization": {"stage": stage}})
    plan = found.result.plan
    assert plan is not None
    assert {one.shard for one in plan.stages} == {shard}
    assert plan.pattern.k == 16
    assert check(found.result) == ()


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_between_nodes_it_goes_round_in_rings(tmp_path: Path, stage: int, count: int) -> None:
    platform = two_nodes(2, 10**6)
    chain = transformer(2)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": count,
        "zero_optimization": {"stage": stage},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    found = import_launch(tmp_path / "ds.json", "deepspeed-json", profile(chain), platform)
    gpus = len(platform.gpus)
    system = SystemConfig(chain=chain, platform=platform, microbatches=gpus * count)
    ring = {2: zero.gradient, 3: zero.parameter}[stage](system)
    assert found.result.plan is not None
    assert found.result.plan.pattern.period_total_ns == ring.pattern.period_total_ns
    assert len(found.notes) == (count > 1)
    again = config | {"pipeline": {"activation_checkpoint_interval": 1}}
    (tmp_path / "ds.json").write_text(json.dumps(again))
    recomputed = import_launch(tmp_path / "ds.json", "deepspeed-json", profile(chain), platform)
    assert recomputed.result.plan is not None
    assert sum(len(one.recompute) for one in recomputed.result.plan.stages) == 2
    kinds = [operation.kind for operation in recomputed.result.plan.pattern.operations]
    assert kinds.count("R") == 2 * gpus * count
    assert check(recomputed.result) == ()


def test_a_file_that_does_not_name_its_stages_is_told(tmp_path: Path) -> None:
    assert deepspeed(tmp_path, BATCH).notes[0].startswith("Taken as one stage: the file does not")
    assert deepspeed(tmp_path, BATCH, stages=1).notes == ()
    assert deepspeed(tmp_path, BATCH | {"pipeline": {"stages": 1}}).notes == ()
    # No pipeline shares gradients.
    assert deepspeed(tmp_path, BATCH | {"zero_optimization": {"stage": 2}}).notes == ()


def test_what_is_off_is_left_out_with_all_that_it_would_need(tmp_path: Path) -> None:
    off = {"enabled": False, "schedule": {"steps": 3}}
    names = ("curriculum_learning", "data_efficiency", "elasticity", "autotuning")
    nowhere = {"device": "none", "pin_memory": True}
    zero = {"stage": 3, "offload_optimizer": nowhere, "gather_16bit_weights_on_model_save": True}
    config = BATCH | dict.fromkeys(names, off) | {"zero_optimization": zero}
    assert deepspeed(tmp_path, config).launch.shard == "parameter"
    for name in names:
        on = off | {"enabled": True}
        assert_refused(
            partial(deepspeed, tmp_path, config | {name: on}),
            f"{name}.enabled",
            source=tmp_path / "ds.json",
        )
    moved = zero | {"offload_optimizer": nowhere | {"device": "cpu"}}
    assert_refused(
        partial(deepspeed, tmp_path, config | {"zero_optimization": moved}),
        "zero_optimization.offload_optimizer.device",
        "moves what lies on a GPU elsewhere",
        source=tmp_path / "ds.json",
    )


@pytest.mark.parametrize(
    ("batch", "microbatches"),
    [
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1}, 8),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 8}, 8),
        ({"train_micro_batch_size_per_gpu": 1}, 1),
        ({"train_batch_size": 2}, 1),
        ({"train_batch_size": 6, "gradient_accumulation_steps": 3,
          "train_micro_batch_size_per_gpu": 1}, 3),
    ],
)  # fmt: skip
def test_batches(tmp_path: Path, batch: dict[str, int], microbatches: int) -> None:
    found = deepspeed(tmp_path, batch, 4, stages=2)
    assert (found.launch.samples, found.launch.microbatches) == (1, microbatches)


@pytest.mark.parametrize(
    ("interval", "again"),
    [
        (0, [(), ()]),
        (1, [((1, 1), (2, 2), (3, 3), (4, 4)), ((5, 5), (6, 6), (7, 7), (8, 8))]),
        # Runs of two modules from the first of a stage on, of transformer layers alone: not 0 and
        # 1, nor 9.
        (2, [((2, 3), (4, 4)), ((5, 6), (7, 8))]),
    ],
)
def test_recompute(tmp_path: Path, interval: int, again: list[tuple[tuple[int, int], ...]]) -> None:
    config = BATCH | {"pipeline": {"activation_checkpoint_interval": interval}}
    found = deepspeed(tmp_path, config, 2, stages=2)
    plan = found.result.plan
    assert plan is not None
    assert [stage.recompute for stage in plan.stages] == again
    assert check(found.result) == ()


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    config = BATCH | {
        "bf16": {"enabled": True},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": 1,
            "overlap_comm": True,
            "offload_param": {"device": "none"},
        },
        "gradient_clipping": 1.0,
        "wandb": {"enabled": False},
    }
    notes = deepspeed(tmp_path, config, stages=4).notes
    assert [note.rpartition(": ")[2] for note in notes] == [
        "zero_optimization.overlap_comm",
        "bf16.enabled, optimizer.type, optimizer.params.lr",
    ]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "train_micro_batch_size_per_gpu", "is not given"),
    ({"train_batch_size": 5, "train_micro_batch_size_per_gpu": 1}, "train_batch_size",
     "5 samples are not train_micro_batch_size_per_gpu (1) x gradient_accumulation_steps (2) x 2"),
    ({"train_batch_size": "auto"}, "train_batch_size", "'auto' is not a whole number"),
    (BATCH | {"train_batch_size": 16}, "train_batch_size", "16 samples are not"),
    (BATCH | {"zero_optimization": {"stage": 3}}, "zero_optimization.stage",
     "3 beside a pipeline, which DeepSpeed refuses"),
    (BATCH | {"zero_optimization": {"stage": 4}}, "zero_optimization.stage", "DeepSpeed has 0 to"),
    (BATCH | {"pipeline": {"stages": 4}}, "pipeline.stages", "4, and 2 were given besides"),
    (BATCH | {"tensor_parallel": {"autotp_size": 4}}, "pipeline.stages",
     "2 (pipeline) x 4 (tensor) are 8 GPUs, and the platform has 4, no multiple of that"),
    (BATCH | {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
     "zero_optimization.offload_optimizer.device", "'cpu': moves what lies on a GPU elsewhere"),
    (BATCH | {"elasticity": {"enabled": True}}, "elasticity.enabled", "chooses the batch"),
    (BATCH | {"new_thing": 3, "other": {"one": 1}}, "new_thing", "so may other.one"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "field", "rule"), REFUSED)
def test_refused(tmp_path: Path, config: dict[str, Any], field: str, rule: str) -> None:
    assert_refused(
        lambda: deepspeed(tmp_path, config, stages=2), field, rule, source=tmp_path / "ds.json"
    )


@pytest.mark.parametrize(
    ("partition", "rule"),
    [
        ("type:layer", "'type:layer' is not known"),
        ("0,5,3", "does not say where 2 stages of 10 modules begin"),
        ("1,5", "does not say"),
        ("0,10", "does not say"),
    ],
)
def test_partitions_are_refused(tmp_path: Path, partition: str, rule: str) -> None:
    assert_refused(
        lambda: deepspeed(tmp_path, BATCH, stages=2, partition=partition), "partition", rule
    )


@pytest.mark.parametrize("field", ["stages", "tensor"])
def test_sizes_are_refused(field: str) -> None:
    assert_refused(lambda: Pipeline(**{field: 0}), field, "0 is out of range")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "field", "rule"),
    [
        ("{", "", "it is no JSON"),
        ("[]", "", "[] is no object"),
        ('{"a": 1, "a": 2}', "a", "it stands there twice"),
    ],
)
def test_bad_json_is_refused(tmp_path: Path, text: str, field: str, rule: str) -> None:
    assert_refused(
        lambda: read(tmp_path, "deepspeed-json", text), field, rule, source=tmp_path / "ds.json"
    )


MODULE = """\
PARTS = [0, 4, 10]
TOPOLOGY = {"num_pp": 2, "num_mp": 1, "num_dp": 1}
CONFIG = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}
RECOMPUTE = (5, 6)
"""


def test_a_module_of_an_export(tmp_path: Path) -> None:
    def of(text: str, **pipeline: Any) -> ImportedLaunch:
        told = Pipeline(**pipeline) if pipeline else None
        return read(tmp_path, "deepspeed-json", text, 2, file="pipeline.py", pipeline=told)

    found = of(MODULE)
    assert layers_of(found) == [(0, 3), (4, 9)]
    assert found.launch.recompute == ((), ((5, 5), (6, 6)))
    beside = MODULE.replace(
        'CONFIG = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}',
        'CONFIG = str(Path(__file__).with_name("ds.json"))',
    )
    (tmp_path / "ds.json").write_text(json.dumps(BATCH))
    assert of(beside).result.plan == found.result.plan
    assert_refused(
        lambda: of(MODULE.replace("PARTS", "OTHERS")),
        "PARTS",
        "is not assigned",
        source=tmp_path / "pipeline.py",
    )
    assert_refused(
        lambda: of(MODULE.replace("[0, 4, 10]", "3")),
        "PARTS",
        "is no list",
        source=tmp_path / "pipeline.py",
    )
    assert_refused(lambda: of(MODULE, stages=2), "partition", "pipeline.py says how")
