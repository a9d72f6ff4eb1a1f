"""Profiles and plans from tables, those of small ones by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schedopt import InputError, Platform, Profile, Result
from schedopt.bench.published.mist_tables import Mist
from schedopt.bench.published.tables import Tables
from schedopt.checking import check
from schedopt.importing import import_degrees, import_plan, import_profile
from tests.cli.commands import printed, run
from tests.importing.files import FILES

PUBLISHED = Path(__file__).parents[2] / "instances" / "published"
PLANS = PUBLISHED / "mist" / "plans.json"
OPERATORS = PUBLISHED / "mist" / "ops.json"
PARTS: dict[str, list[Any]] = {
    "columns": [
        "model", "mbs", "tp", "part", "count", "forward_ns", "backward_ns", "weights_bytes",
        "activations_shared_bytes", "input_bytes", "output_bytes", "fwd_reserved_max_bytes",
        "bwd_reserved_max_bytes",
    ],
    "rows": [
        ["small", 1, 1, "embedding", 1, 10, 20, 100, 30, 4, 64, 0, 7],
        ["small", 1, 1, "layer", 2, 50, 90, 40, 500, 64, 64, 9, 8],
        ["small", 1, 1, "head", 1, 5, 6, 100, 20, 64, 0, 0, 0],
        ["small", 1, 2, "embedding", 1, 7, 12, 50, 31, 4, 32, 0, 7],
        ["small", 1, 2, "layer", 2, 30, 50, 20, 260, 32, 32, 9, 8],
        ["small", 1, 2, "head", 1, 3, 4, 50, 10, 32, 0, 0, 0],
        ["large", 1, 1, "head", 1, 3, 4, 50, 10, 32, 0, 0, 0],
    ],
}  # fmt: skip


def table(path: Path, columns: list[str], rows: list[Any], **more: Any) -> Path:
    path.write_text(
        json.dumps({"format": "schedopt-data/1", "columns": columns, "rows": rows, **more})
    )
    return path


def parts(folder: Path, **changes: Any) -> Path:
    return table(folder / "layers.json", **{**PARTS, **changes})


def test_parts_become_layers_in_each_degree(tmp_path: Path) -> None:
    imported = import_profile(parts(tmp_path), "superscaler", model="small")
    profile = imported.profile
    assert (profile.name, profile.degrees, profile.sizes) == ("small", (1, 2), (1,))
    whole, half = (variant.chain for variant in profile.variants)
    assert [layer.name for layer in whole.layers] == ["embedding", "layer.0", "layer.1", "head"]
    assert [layer.forward_ns for layer in whole.layers] == [10, 50, 50, 5]
    assert [layer.backward_ns for layer in half.layers] == [12, 50, 50, 4]
    assert [layer.saved for layer in half.layers] == [31, 260, 260, 10]
    # What a group sends is the whole output, whatever each GPU has of it.
    assert [layer.activation_bytes for layer in half.layers] == [64, 64, 64, 0]
    assert [layer.workspace_bytes for layer in whole.layers] == [7, 9, 9, 0]
    assert (whole.layers[1].parameter_bytes, whole.layers[1].weight_bytes) == (40, 9 * 40)
    assert (whole.layers[1].gradient_bytes, whole.layers[1].optimizer_bytes) == (80, 240)
    assert whole.input_bytes == 4
    assert "18 bytes a parameter" in " ".join(imported.notes)


def test_operators_of_one_layer_are_repeated() -> None:
    profile = import_profile(OPERATORS, "superscaler", model="1.3B", gpu="a10g", layers=3).profile
    chain, _ = profile.of_size(2)
    names = [layer.name for layer in chain.layers]
    assert len(names) == 1 + 3 * 13 + 2
    assert names[:2] == ["encoder-embedding", "enc-1st-layernorm.0"]
    assert names[-3:] == ["enc-post-MLP-dropout.2", "final-layernorm", "gpt-post-process"]
    softmax, dropout, context = chain.layers[4:7]
    # Of dropout (768 MiB here, a third of which is its mask) the next product keeps the rest.
    mask = 768 * 2**20 // 3
    assert (softmax.saved, dropout.saved, context.saved) == (2 * mask, mask, 2 * mask)
    # A stage that begins with dropout gets values for the product; with the product, dropout too.
    values = 48 * 2**20
    assert (dropout.saved_input_bytes, context.saved_input_bytes) == (values, values)


def test_sizes_that_ran_out_of_memory_are_left_out() -> None:
    imported = import_profile(OPERATORS, "superscaler", model="40B", gpu="a10g", layers=2)
    assert imported.profile.sizes == (1, 2, 4)
    assert imported.profile.degrees == (1, 2, 4, 8)
    assert "Micro-batches of 8 are left out" in " ".join(imported.notes)


def test_lists_of_layers_take_their_bytes_from_the_table_beside(tmp_path: Path) -> None:
    columns = ["model", "gpu", "mbs", "tp", "forward_ns", "backward_ns", "update_ns"]
    path = table(tmp_path / "profiles.json", columns, [["m", "g", 4, 1, [1, 2], [3, 4], [5, 6]]])
    sizes = ["model", "tp", "layer", "params_bytes", "act_output_bytes", "act_input_bytes",
             "act_mem_bytes"]  # fmt: skip
    table(tmp_path / "bytes.json", sizes, [["m", 1, 0, 8, 16, 2, 64], ["m", 1, 1, 12, 8, 16, 32]])
    (variant,) = import_profile(path, "sailor").profile.variants
    first, second = variant.chain.layers
    assert variant.chain.samples == 4
    assert variant.chain.input_bytes == 4 * 2
    assert (first.forward_ns, first.backward_ns, first.update_ns) == (1, 3, 5)
    assert (second.activation_bytes, second.saved) == (4 * 8, 4 * 32)
    # 24 bytes for each parameter of 4.
    assert (second.parameter_bytes, second.weight_bytes) == (12, 6 * 12)
    table(tmp_path / "bytes.json", sizes, [["m", 1, 0, 8, 16, 2, 64]])
    with pytest.raises(InputError, match=r"bytes.json: layer: has no bytes of layer 1 of m"):
        import_profile(path, "sailor")


@pytest.mark.parametrize(
    ("name", "row", "says"),
    [
        ("profiles", ["m", "g", 4, "1", [1], [3], [5]], r"profiles.json: rows\[0\].tp: '1' is not"),
        ("profiles", ["m", 5, 4, 1, [1], [3], [5]], r"profiles.json: rows\[0\].gpu: 5 is not text"),
        (
            "profiles",
            ["m", "g", 4, 1, [1], [3], [None]],
            r"profiles.json: rows\[0\].update_ns\[0\]",
        ),
        ("bytes", ["m", 1, -1, 8, 16, 2, 64], r"bytes.json: rows\[0\].layer: -1 is negative"),
        ("bytes", ["m", 1, 0, "8", 16, 2, 64], r"bytes.json: rows\[0\].params_bytes: '8' is not"),
    ],
)
def test_a_cell_of_sailor_is_refused_with_file_and_line(
    name: str, row: list[Any], says: str, tmp_path: Path
) -> None:
    times = ["model", "gpu", "mbs", "tp", "forward_ns", "backward_ns", "update_ns"]
    sizes = ["model", "tp", "layer", "params_bytes", "act_output_bytes"]
    path = table(tmp_path / "profiles.json", times, [["m", "g", 4, 1, [1], [3], [5]]])
    columns = [*sizes, "act_input_bytes", "act_mem_bytes"]
    table(tmp_path / "bytes.json", columns, [["m", 1, 0, 8, 16, 2, 64]])
    table(tmp_path / f"{name}.json", times if name == "profiles" else columns, [row])
    with pytest.raises(InputError, match=says):
        import_profile(path, "sailor")


def test_all_degrees_of_piper_are_a_profile(tmp_path: Path) -> None:
    document = json.loads(FILES["piper"])
    for node in document["nodes"]:
        one = node["TMPCs"].get("1")
        if one is not None:
            halves = [{**entry, "timePerSample": entry["timePerSample"] / 2} for entry in one]
            node["TMPCs"]["2"] = halves
    path = tmp_path / "piper.json"
    path.write_text(json.dumps(document))
    profile, notes = import_degrees(path)
    assert profile.degrees == (1, 2)
    whole, half = (variant.chain for variant in profile.variants)
    for one, other in zip(whole.layers, half.layers, strict=True):
        assert other.name == one.name
        assert 2 * (other.forward_ns + other.backward_ns) == pytest.approx(
            one.forward_ns + one.backward_ns, abs=4
        )
    assert "left out" in notes[-1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"columns": ["model", "mbs", "tp", "forward_us", "backward_ns"], "rows": []},
         "layers.json: forward_ns: is not a column of this table"),
        ({"format": "other"}, "layers.json: format: this is no table"),
        ({"rows": [PARTS["rows"][0][:-1]]}, r"layers.json: rows\[0\]: 12 values for 13 columns"),
        ({"rows": [[*PARTS["rows"][0][:5], -1, *PARTS["rows"][0][6:]]]},
         r"layers.json: rows\[0\].forward_ns: -1 is negative"),
        ({"rows": [[*PARTS["rows"][0][:5], 0.0015, *PARTS["rows"][0][6:]]]},
         r"forward_ns: 0.0015 is not a whole number .* in the unit that the name of its column"),
        ({"rows": [[*PARTS["rows"][0][:5], "12 us", *PARTS["rows"][0][6:]]]},
         r"forward_ns: '12 us' is not a number"),
        ({"rows": [PARTS["rows"][0], PARTS["rows"][3], PARTS["rows"][4]]}, "layers"),
        ({"rows": []}, "layers.json: rows: has no lines"),
        ({"rows": PARTS["rows"][2::-1]}, r"rows\[1\].part: layer stands behind head"),
        ({"rows": [["", *PARTS["rows"][0][1:]]]}, r"rows\[0\].model: is empty"),
        # So many layers would never end.
        ({"rows": [[*PARTS["rows"][1][:4], 2**49, *PARTS["rows"][1][5:]]]},
         r"rows\[0\].count: 562949953421312 is not a whole number from 1 to 4096"),
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        import_profile(parts(tmp_path, **change), "superscaler")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "model: the table has several: small, large"),
        ({"model": "medium"}, "model: the table has no 'medium'. Choose one of small, large"),
        ({"model": "small", "gpu": "v100"}, "gpu: the table is of one kind"),
    ],
)
def test_lines_that_are_not_there_are_refused(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        import_profile(parts(tmp_path), "superscaler", **options)


def test_operators_need_the_number_of_layers() -> None:
    with pytest.raises(InputError, match=r"ops.json: layers: the table has the operators of one"):
        import_profile(OPERATORS, "superscaler", model="1.3B", gpu="a10g")


@pytest.mark.parametrize("layers", [0, 10**9])
def test_so_many_layers_are_refused(layers: int) -> None:
    with pytest.raises(InputError, match=r"layers: .*4096"):
        import_profile(OPERATORS, "superscaler", model="1.3B", gpu="a10g", layers=layers)


def operators(folder: Path, change: Callable[[list[list[Any]]], None]) -> Path:
    """The operators of one model on one GPU and two, with one sample and two, and a change."""
    document = json.loads(OPERATORS.read_text())
    names = ("set", "model", "mbs", "tp", "algo")
    places = [document["columns"].index(name) for name in names]
    wanted = [["a10g", "1.3B", mbs, tp, 0] for tp in (1, 2) for mbs in (1, 2)]
    rows = [row for key in wanted for row in document["rows"] if [row[at] for at in places] == key]
    change(rows)
    return table(folder / "ops.json", document["columns"], rows)


def test_operators_out_of_order_are_refused(tmp_path: Path) -> None:
    path = operators(tmp_path, lambda rows: rows.reverse())
    with pytest.raises(InputError, match=r"ops.json: rows\[0\].op: with tensor degree 2 and 2 sam"):
        import_profile(path, "superscaler", layers=2)


def test_a_degree_that_did_not_run_with_a_size_is_told(tmp_path: Path) -> None:
    place = json.loads(OPERATORS.read_text())["columns"].index("forward_ns")

    def stop(rows: list[list[Any]]) -> None:
        rows[-1][place] = 10**10

    imported = import_profile(operators(tmp_path, stop), "superscaler", layers=2)
    shapes = {(one.tensor, one.chain.samples) for one in imported.profile.variants}
    assert shapes == {(1, 1), (1, 2), (2, 1)}
    said = "With tensor degree 2 micro-batches of 2 are left out: an operator did not run."
    assert said in imported.notes


def imported(name: str, platform: str) -> Result:
    return import_plan(PLANS, Platform.load(platform), plan=name)


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        pytest.param("a10g-aceso-1.3B-p2", "a10g:1x2", marks=pytest.mark.nightly),
        ("a10g-aceso-2.6B-p2", "a10g:1x4"),
        pytest.param("a10g-aceso-6.7B-p7", "a10g:1x8", marks=pytest.mark.nightly),
        ("l4-aceso-2.6B-p3", "l4:1x4"),
    ],
)
def test_a_plan_has_the_stages_and_times_of_the_table(name: str, platform: str) -> None:
    """Held against the code that predicts published steps, which shares no line with this."""
    result = imported(name, platform)
    plan = result.plan
    assert plan is not None
    assert {violation.kind for violation in check(plan)} <= {"memory"}
    (theirs,) = (each for each in Mist(Tables(PUBLISHED)).plans if each.name == name)
    profiled = [stage.as_profiled for stage in theirs.stages]
    assert plan.pattern.k == theirs.line["microbatches"]
    assert len(plan.stages) == len(theirs.stages)
    layers, first = plan.costs.layers, 0
    for stage, other in zip(plan.stages, profiled, strict=True):
        assert stage.first == first
        assert stage.every_gpu == tuple(other.gpus)
        assert len(stage.layer_range) == len(other.ops)
        forward = sum(layers[layer].forward_ns for layer in stage.layer_range)
        backward = sum(layers[layer].backward_ns for layer in stage.layer_range)
        again = sum(layers[layer].forward_ns for layer in stage.recomputed_layers)
        assert forward == other.forward_ns
        assert backward + again == other.backward_ns
        first = stage.last + 1
    longest = max(stage.forward_ns + stage.backward_ns for stage in profiled)
    assert plan.pattern.period_total_ns >= plan.pattern.k * longest


def test_stages_with_different_numbers_of_replicas() -> None:
    """The second stage has two replicas, and two samples come at a time: one for each of them."""
    plan = imported("a10g-aceso-2.6B-p3", "a10g:1x4").plan
    assert plan is not None
    assert [len(stage.gpus) for stage in plan.stages] == [1, 2, 1]
    assert (plan.chain.samples, plan.pattern.k) == (1, 64)
    assert {violation.kind for violation in check(plan)} <= {"memory"}
    layers = plan.costs.layers
    loads = [
        sum(layers[layer].forward_ns + layers[layer].backward_ns for layer in stage.layer_range)
        + sum(layers[layer].forward_ns for layer in stage.recomputed_layers)
        for stage in plan.stages
    ]
    each = [64 * load // len(stage.gpus) for load, stage in zip(loads, plan.stages, strict=True)]
    assert max(each) <= plan.pattern.period_total_ns <= 1.2 * max(each)


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return the table of plans with another first plan that is called a10g-aceso-2.6B-p2."""
    document = json.loads(PLANS.read_text())
    rows = [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]
    (plan,) = (row for row in rows if row["plan"] == "a10g-aceso-2.6B-p2")
    change(plan)
    row = [plan[column] for column in document["columns"]]
    return table(folder / "plans.json", document["columns"], [row])


def in_stage(number: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plan: plan["stages"][number].update(fields)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda plan: plan.update(stages=plan["stages"][:1], gpus=2),
         "the stages end at operator .* the profile has 419"),
        (lambda plan: plan.update(gpus=8), r"plans.json: rows\[0\].gpus: 8, and .* have 4 GPUs"),
        (in_stage(0, ops=[1, 211]), "lists of a stage are not as long"),
        (lambda plan: plan.update(layers=31), "names operators .* the profile has 406"),
        (in_stage(0, tp=[[1, 1], [2, 10_000]]), "lists of a stage are not as long"),
        (in_stage(0, ops=[0]), r"stages\[0\].ops: has 1 values, not two"),
        (in_stage(0, dp=[[1]]), r"stages\[0\].dp\[0\]: has 1 values, not two"),
        (in_stage(0, gpus=3), "3 GPUs are not 1 replicas of 2"),
        (lambda plan: plan.update(mbs=3), "ops.json: mbs: no micro-batches of 3 samples"),
        (lambda plan: plan.update(model="9B"), "the table has no '9B'"),
        (lambda plan: plan.update(set="h100"), "the table has no 'h100'"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_its_profile_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    path = changed(tmp_path, change)
    with pytest.raises(InputError, match=says):
        import_plan(path, Platform.load("a10g:1x4"), profile=OPERATORS)


def test_replicas_take_turns(tmp_path: Path) -> None:
    def twice(plan: dict[str, Any]) -> None:
        plan["mbs"], plan["gpus"] = 2, 8
        for stage in plan["stages"]:
            stage["dp"], stage["gpus"] = [[2, stage["dp"][0][1]]], 2 * stage["gpus"]

    path = changed(tmp_path, twice)
    result = import_plan(path, Platform.load("a10g:1x8"), profile=OPERATORS)
    plan = result.plan
    assert plan is not None
    assert [len(stage.gpus) for stage in plan.stages] == [2, 2]
    assert plan.chain.samples == 1
    assert plan.pattern.k == 2 * 64
    assert {violation.kind for violation in check(plan)} <= {"memory"}


@pytest.mark.parametrize(
    ("name", "platform", "says"),
    [
        (None, "a10g:1x2", "plan: the table has several"),
        ("a10g-aceso-2.6B-p4", "a10g:1x2", "takes GPUs 2 to 2, and the platform has 2"),
    ],
)
def test_a_plan_that_cannot_be_ours_is_refused(name: str, platform: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        imported(name, platform)


def test_the_command_writes_profiles_and_plans(tmp_path: Path) -> None:
    path = parts(tmp_path)
    said = printed("import", path, "--from", "superscaler", "--model", "small",
                   "-o", tmp_path / "profile.json")  # fmt: skip
    assert "small: 4 layers in 2 variants" in said
    assert Profile.load(tmp_path / "profile.json").degrees == (1, 2)
    plan = tmp_path / "plan.json"
    said = printed("import", PLANS, "--from", "superscaler", "--plan", "a10g-aceso-1.3B-p2",
                   "--platform", "a10g:1x2", "-o", plan)  # fmt: skip
    assert "2 stages of 315 operators, a step of 16 micro-batches" in said
    # It needs more memory than there is where all is computed again at once, and is drawn so.
    assert run("check", plan).returncode == 5
    assert "over memory" in run("show", plan).stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "sailor", "--plan", "x", "--platform", "l4:1"], "--plan: sailor has no such"),
        (["--from", "piper", "--model", "x"], "--model and --gpu: piper has no such thing"),
        (["--from", "sailor", "--layers", "3"], "--layers: sailor has no such thing"),
        (["--from", "superscaler", "--all-degrees"], "--all-degrees: superscaler has no such"),
        (["--from", "superscaler", "--plan", "x"], "--plan and --platform: go together"),
        (["--from", "superscaler"], "--model: the table has several: small, large"),
    ],
)
def test_options_that_a_format_lacks_are_refused(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    done = run("import", parts(tmp_path), *arguments, "-o", tmp_path / "out.json")
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "out.json").exists()
