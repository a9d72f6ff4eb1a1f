"""Configurations of torchtitan, by its own rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from schedopt.account import memory
from schedopt.checking import check
from schedopt.importing import ImportedLaunch, import_launch
from tests.importing.launching import layers_of, profile, read, transformer
from tests.importing.launching import rows_of as rows_of_plan
from tests.refusals import assert_refused
from tests.tensor_groups import two_nodes

NONE = "[activation_checkpoint]\nmode = 'none'\n"


def titan(
    folder: Path,
    parallelism: str,
    gpus: int = 4,
    *,
    training: str = "local_batch_size = 4",
    rest: str = NONE,
    **options: object,
) -> ImportedLaunch:
    """Return what a configuration says; lines are parted by semicolons."""
    lines = (f"[training]\n{training}", f"[parallelism]\n{parallelism}", rest)
    text = "\n".join(lines).replace("; ", "\n")
    return read(folder, "torchtitan-toml", text, gpus, **options)  # type: ignore[arg-type]


PP = "pipeline_parallel_degree"
FQNS = (
    "module_fqns_per_model_part = [['tok_embeddings', 'layers.0'], "
    "['layers.1', 'layers.2', 'layers.3', 'layers.4', 'layers.5', 'layers.6', 'layers.7'], "
    "[], ['norm', 'output']]"
)
# The chain has layers 0 (embedding), 1 to 8, and 9 (head). Embedding and head count as a layer
# each: 10 in all, of which the first stages have one more where it does not go up.
SPLITS = {
    f"{PP} = 2": [(0, 4), (5, 9)],
    f"{PP} = 4": [(0, 2), (3, 5), (6, 7), (8, 9)],
    f"{PP} = 2; pipeline_parallel_schedule = 'Interleaved1F1B'": [(0, 2), (3, 5), (6, 7), (8, 9)],
    f"{PP} = 2; pipeline_parallel_schedule = 'Interleaved1F1B'; "
    "pipeline_parallel_layers_per_stage = 2; pipeline_parallel_first_stage_less_layers = 0; "
    "pipeline_parallel_last_stage_less_layers = 0": [(0, 2), (3, 4), (5, 6), (7, 9)],
    f"{PP} = 2; pipeline_parallel_layers_per_stage = 5": [(0, 4), (5, 9)],
    f"{PP} = 2; pipeline_parallel_first_stage_less_layers = 2": [(0, 4), (5, 9)],
    f"{PP} = 2; pipeline_parallel_last_stage_less_layers = 4": [(0, 6), (7, 9)],
    f"{PP} = 2; {FQNS.replace('[], ', '')}".replace("['norm', 'output']]", "]").replace(
        "'layers.7'], ]", "'layers.7', 'norm', 'lm_head']]"
    ): [(0, 1), (2, 9)],
}  # fmt: skip


@pytest.mark.parametrize("parallelism", SPLITS)
def test_layers_are_split_as_torchtitan_does(tmp_path: Path, parallelism: str) -> None:
    found = titan(tmp_path, parallelism, 4 if "= 4; " in parallelism else int(parallelism[27]))
    assert layers_of(found) == SPLITS[parallelism]
    assert check(found.result) == ()


def test_degrees(tmp_path: Path) -> None:
    found = titan(tmp_path, f"{PP} = 2; tensor_parallel_degree = 2", 8)
    plan = found.result.plan
    assert plan is not None
    # What is left shares the optimizer state: beside a pipeline weights are not fetched again.
    assert [stage.gpus for stage in plan.stages] == [(0, 2), (4, 6)]
    assert {(stage.tensor, stage.shard) for stage in plan.stages} == {(2, "optimizer")}
    assert plan.pattern.k == 8
    copies = "data_parallel_replicate_degree = 4; data_parallel_shard_degree = 1"
    assert titan(tmp_path, f"{PP} = 2; {copies}", 8).launch.shard == "none"


@pytest.mark.parametrize(("pipeline", "shard"), [(2, "optimizer"), (1, "parameter")])
def test_gpus_that_share_sequences_share_their_state(
    tmp_path: Path, pipeline: int, shard: str
) -> None:
    of = profile(transformer(context=2))
    text = f"{PP} = {pipeline}; context_parallel_degree = 2"
    found = titan(tmp_path, text, 8, of=of, training="local_batch_size = 1; global_batch_size = 16")
    plan = found.result.plan
    assert plan is not None
    # Two or four replicas beside each other have sequences of their own.
    replicas = 8 // pipeline
    assert (found.launch.context, found.launch.replicas) == (2, replicas)
    assert {stage.shard for stage in plan.stages} == {shard}
    assert plan.chain.samples_of(plan.pattern.k) == 16
    assert check(found.result) == ()


def test_gpus_that_share_experts(tmp_path: Path) -> None:
    text = f"{PP} = 2; expert_parallel_degree = 4"
    once = "local_batch_size = 2; global_batch_size = 8"
    found = titan(tmp_path, text, 8, of=profile(transformer(expert=4)), training=once)
    assert found.result.plan is not None
    assert (found.launch.expert, found.launch.replicas) == (4, 4)
    assert found.result.plan.pattern.k == 8
    assert check(found.result) == ()


@pytest.mark.parametrize(
    ("degrees", "expert", "rule"),
    [
        (
            "tensor_parallel_degree = 2; expert_parallel_degree = 2",
            2,
            "torchtitan counts those of tensor groups among them",
        ),
        (
            "data_parallel_replicate_degree = 4; data_parallel_shard_degree = 1; "
            "expert_parallel_degree = 4",
            4,
            "torchtitan then shares the optimizer state among them",
        ),
    ],
)
def test_experts_that_torchtitan_shares_otherwise_are_refused(
    tmp_path: Path, degrees: str, expert: int, rule: str
) -> None:
    # Experts are shared by shards, with the tensor groups inside: two groups have the same here.
    of = profile(transformer(expert=expert), 2)
    once = "local_batch_size = 2; global_batch_size = 8"
    assert_refused(
        lambda: titan(tmp_path, f"{PP} = 2; {degrees}", 8, of=of, training=once),
        "experts",
        f"{expert} GPUs share the experts of a layer, and {rule}",
        source=tmp_path / "job.toml",
    )


def test_sizes_of_micro_batches_and_passes(tmp_path: Path) -> None:
    found = titan(
        tmp_path,
        f"{PP} = 2; pipeline_parallel_microbatch_size = 1",
        training="local_batch_size = 2; global_batch_size = 8",
    )
    # Two replicas, two micro-batches in a pass, two passes; then the weights are updated.
    assert (found.launch.replicas, found.launch.microbatches) == (2, 4)
    assert found.result.plan is not None
    first = rows_of_plan(found.result.plan)[0]
    assert [f"{kind}{i // 2}" for kind, _, i in first] == [
        *("F0", "F1", "B0", "B1"),
        *("F2", "F3", "B2", "B3"),
    ]
    assert check(found.result) == ()


def test_replicas_with_one_backward_share_the_optimizer_state(tmp_path: Path) -> None:
    once = "local_batch_size = 1"
    found = titan(tmp_path, "fsdp_reshard_after_forward = 'never'", training=once)
    assert found.launch.shard == "optimizer"
    assert found.result.plan is not None
    assert found.result.plan.scope.engine == "torchtitan"
    copies = "data_parallel_replicate_degree = 4; data_parallel_shard_degree = 1"
    assert titan(tmp_path, copies, training=once).notes == ()
    twice = titan(tmp_path, copies, training="local_batch_size = 1; global_batch_size = 8")
    assert twice.notes[0].startswith("Gradients of replicas are added up once a step; torchtitan")


@pytest.mark.parametrize(
    ("parallelism", "shard"),
    [
        ("", "parameter"),
        ("fsdp_reshard_after_forward = 'always'", "parameter"),
        ("fsdp_reshard_after_forward = 'never'", "gradient"),
        ("data_parallel_replicate_degree = 4; data_parallel_shard_degree = 1", "none"),
    ],
)
def test_without_a_pipeline_replicas_share_by_layers(
    tmp_path: Path, parallelism: str, shard: str
) -> None:
    found = titan(tmp_path, parallelism, training="local_batch_size = 1; global_batch_size = 8")
    plan = found.result.plan
    assert plan is not None
    assert {stage.shard for stage in plan.stages} == {shard}
    assert {stage.gpus for stage in plan.stages} == {(0, 1, 2, 3)}
    assert plan.pattern.k == 8
    assert check(found.result) == ()


@pytest.mark.parametrize(
    ("more", "shard"),
    [("", "parameter"), ("; fsdp_reshard_after_forward = 'never'", "gradient")],
)
def test_groups_of_replicas_have_copies_of_all_shards(
    tmp_path: Path, more: str, shard: str
) -> None:
    text = f"data_parallel_replicate_degree = 2{more}"
    batch = "local_batch_size = 1; global_batch_size = 8"
    found = titan(tmp_path, text, training=batch)
    plan = found.result.plan
    assert plan is not None
    assert {(stage.shard, stage.shard_copies) for stage in plan.stages} == {(shard, 2)}
    assert {stage.gpus for stage in plan.stages} == {(0, 1, 2, 3)}
    assert check(found.result) == ()
    assert found.notes[-1].startswith("Sums of groups are added up once a step; torchtitan")
    flat = titan(tmp_path, more.removeprefix("; "), training=batch)
    assert flat.result.plan is not None
    held, less = (memory(one)[0].by_kind["weights"] for one in (plan, flat.result.plan))
    assert held > less


def test_groups_of_a_pipeline_share_the_optimizer_state(tmp_path: Path) -> None:
    text = (
        f"{PP} = 2; data_parallel_replicate_degree = 2; context_parallel_degree = 2; "
        "data_parallel_shard_degree = 2"
    )
    found = titan(tmp_path, text, 16, of=profile(transformer(context=2)))
    plan = found.result.plan
    assert plan is not None
    assert {(len(stage.gpus), stage.shard_copies) for stage in plan.stages} == {(8, 2)}
    assert plan.scope.engine == "torchtitan"
    assert plan.scope.hybrid
    # Of eight replicas four share, two of which have a sequence together.
    assert plan.stages[0].shard_group == 4
    assert check(found.result) == ()


def test_groups_that_share_all_state_lie_in_a_node(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"

    def on_nodes(degree: int, gpus: int) -> ImportedLaunch:
        path.write_text(
            f"[training]\nlocal_batch_size = 1\n{NONE}"
            f"[parallelism]\ndata_parallel_replicate_degree = {degree}\n"
        )
        return import_launch(path, "torchtitan-toml", profile(), two_nodes(gpus, 10**6))

    found = on_nodes(2, 4)
    assert check(found.result) == ()
    assert found.result.plan is not None
    for item in found.result.plan.pattern.transfers:
        here, there = ((item.shift + (end or 0)) % 8 for end in (item.source, item.target))
        # Weights stay in a node, and each GPU sends gradients to its like in the other one alone.
        assert here // 4 == there // 4 or (item.tensor, here % 4) == ("weight_gradient", there % 4)
    assert_refused(
        lambda: on_nodes(3, 6), "replicas", "GPUs 4 to 7 share all state in 3 groups", source=path
    )


def test_what_is_shared_as_one_is_a_transformer_layer(tmp_path: Path) -> None:
    chain = transformer(4)
    names = ["embed", "layers.0: a", "layers.0: b", "layers.1: a", "layers.1: b", "head"]
    halves = [replace(layer, name=name) for layer, name in zip(chain.layers, names, strict=True)]
    found = titan(
        tmp_path,
        "",
        2,
        training="local_batch_size = 1",
        rest="[activation_checkpoint]\nmode = 'full'",
        of=profile(replace(chain, layers=tuple(halves))),
    )
    assert layers_of(found) == [(0, 0), (1, 2), (3, 4), (5, 5)]
    assert found.result.plan is not None
    again = [stage.recompute for stage in found.result.plan.stages]
    assert again == [(), ((1, 2),), ((3, 4),), ()]
    assert check(found.result) == ()


def test_what_is_too_large_to_be_laid_out_is_refused(tmp_path: Path) -> None:
    # A replica sends to 127 others, of ten parts, weights before two operations and gradients.
    assert_refused(
        lambda: titan(tmp_path, "", 128, training="local_batch_size = 1"),
        "",
        f"its 128 replicas send {128 * 127 * 10 * 3} messages in a step",
        "fewer GPUs",
        source=tmp_path / "job.toml",
    )


ONE_RANK = tuple((n, n) for n in range(1, 9))


@pytest.mark.parametrize(
    ("rest", "again"),
    [
        ("[activation_checkpoint]\nmode = 'full'", ONE_RANK),
        # The default: every second layer.
        ("", ONE_RANK[1::2]),
        ("[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = '3'", ONE_RANK[2::3]),
        (NONE, ()),
    ],
)
def test_activation_checkpointing(
    tmp_path: Path, rest: str, again: tuple[tuple[int, int], ...]
) -> None:
    found = titan(tmp_path, f"{PP} = 2", 2, rest=rest)
    plan = found.result.plan
    assert plan is not None
    own = [unit for unit in ONE_RANK if unit[0] <= 4], [unit for unit in ONE_RANK if unit[0] > 4]
    step = {8: 1, 4: 2, 2: 3, 0: 9}[len(again)]
    # Each rank counts its own layers.
    assert [stage.recompute for stage in plan.stages] == [
        tuple(row[step - 1 :: step]) for row in own
    ]
    assert check(found.result) == ()


@pytest.mark.parametrize("name", ["mode", "selective_ac_option"])
def test_what_the_chain_was_measured_with_is_left_out_as_the_refusal_says(
    tmp_path: Path, name: str
) -> None:
    rest = "[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = 'op'"
    found = titan(tmp_path, f"{PP} = 2", 2, rest=rest, ignored=[name])
    assert found.launch.recompute == ((), ())


REFUSED = [
    (f"{PP} = 3", f"parallelism.{PP}",
     "3 (pipeline) x 1 (replicate) x 1 (shard) x 1 (context) x 1 (tensor) are 3 GPUs, and the "
     "platform"),
    (f"{PP} = 2; data_parallel_shard_degree = 1", f"parallelism.{PP}",
     "2 (pipeline) x 1 (replicate) x 1 (shard) x 1 (context) x 1 (tensor) are 2 GPUs, and the "
     "platform has 4"),
    (f"{PP} = '2x'", f"parallelism.{PP}", "'2x' is not a whole number"),
    ("data_parallel_shard_degree = 0", "parallelism.data_parallel_shard_degree", "0 is no degree"),
    (f"{PP} = 2; fsdp_reshard_after_forward = 'always'", "parallelism.fsdp_reshard_after_forward",
     "'always' fetches the weights for each micro-batch"),
    (f"{PP} = 4; pipeline_parallel_schedule = 'ZBVZeroBubble'",
     "parallelism.pipeline_parallel_schedule", "'ZBVZeroBubble' is not known here"),
    (f"{PP} = 4; pipeline_parallel_schedule = 'PipelineScheduleMulti'",
     "parallelism.pipeline_parallel_schedule", "has no order of its own"),
    (f"{PP} = 4; pipeline_parallel_layers_per_stage = 4",
     "parallelism.pipeline_parallel_layers_per_stage", "it makes 3 stages on 4 ranks"),
    (f"{PP} = 4; pipeline_parallel_layers_per_stage = 1; "
     "pipeline_parallel_first_stage_less_layers = 0; pipeline_parallel_last_stage_less_layers = 0",
     "parallelism.pipeline_parallel_layers_per_stage", "it makes 8 stages on 4 ranks"),
    (f"{PP} = 4; pipeline_parallel_first_stage_less_layers = 5", f"parallelism.{PP}",
     "counted as 5 and 1, are too few for 4 stages"),
    (f"{PP} = 4; {FQNS}", "parallelism.module_fqns_per_model_part", "chunk 2 is empty"),
    (f"{PP} = 2; {FQNS}", "parallelism.module_fqns_per_model_part", "chunk 2 is empty"),
    (f"{PP} = 4; {FQNS.replace(', [], ', ', ')}", "parallelism.module_fqns_per_model_part",
     "3 parts are no multiple of 4 pipeline ranks"),
    (f"{PP} = 4; {FQNS.replace('layers.3', 'layers.4')}",
     "parallelism.module_fqns_per_model_part", "the layers of part 1 do not follow layer 0"),
    (f"{PP} = 4; {FQNS}; pipeline_parallel_layers_per_stage = 2",
     "parallelism.pipeline_parallel_layers_per_stage", "given together with"),
    (f"{PP} = 4; context_parallel_degree = 2", f"parallelism.{PP}",
     "4 (pipeline) x 1 (replicate) x 1 (shard) x 2 (context) x 1 (tensor) are 8 GPUs"),
    (f"{PP} = 4; new_thing = 2", "parallelism.new_thing", "it is unknown here"),
]  # fmt: skip


@pytest.mark.parametrize(("parallelism", "field", "rule"), REFUSED)
def test_refused(tmp_path: Path, parallelism: str, field: str, rule: str) -> None:
    assert_refused(lambda: titan(tmp_path, parallelism), field, rule, source=tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("rest", "field", "rule"),
    [
        ("[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = 'op'",
         "activation_checkpoint.selective_ac_option", "operations are chosen"),
        ("[activation_checkpoint]\nmode = 'memory_budget'", "activation_checkpoint.mode",
         "the compiler chooses"),
        ("[optimizer]\nearly_step_in_backward = true", "optimizer.early_step_in_backward",
         "updated within the backward"),
        ("[fault_tolerance]\nenable = true", "fault_tolerance.enable", "train on without"),
        ("[new]\nthing = 1", "new.thing", "it is unknown here"),
        ("[x", "", "it is no TOML"),
    ],
)  # fmt: skip
def test_other_sections_are_refused(tmp_path: Path, rest: str, field: str, rule: str) -> None:
    assert_refused(
        lambda: titan(tmp_path, f"{PP} = 4", rest=rest), field, rule, source=tmp_path / "job.toml"
    )


@pytest.mark.parametrize(
    ("training", "field", "rule"),
    [
        ("local_batch_size = 4; global_batch_size = 6", "training.global_batch_size",
         "6 samples are no multiple of 4 on each of 1 replica"),
        ("local_batch_size = 3", "training.local_batch_size",
         "3 samples are no multiple of 2 in a micro-batch"),
    ],
)  # fmt: skip
def test_batches_are_refused(tmp_path: Path, training: str, field: str, rule: str) -> None:
    parallelism = f"{PP} = 4; pipeline_parallel_microbatch_size = 2"
    assert_refused(
        lambda: titan(tmp_path, parallelism, training=training),
        field,
        rule,
        source=tmp_path / "job.toml",
    )
