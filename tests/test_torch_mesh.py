"""Whether grids of stages, replicas and tensor groups train as one process does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from schedopt import Chain, InputError
from schedopt.actions import find_grid
from schedopt.profile import Variant
from schedopt.profiling import Profiler, as_model
from schedopt.tied_weights import copy_tied_weights
from schedopt.torch.checkpoints import _check_model, _take_place
from schedopt.torch.copies import find_copies
from schedopt.torch.weights import WholeState
from tests.meshes import (
    MICROBATCHES,
    Shape,
    build,
    build_dropping,
    draw,
    evaluate,
    gradients_of,
    load_others,
    plan_on,
    profiled,
    put_together,
    save_plan,
    steps_of_all_sizes,
    train,
    train_autocast,
    train_whole,
)
from tests.running.pool import warm_ranks
from tests.running.replicated import timed
from tests.torch_ranks import fail_alone

pytestmark = pytest.mark.torch

STEPS: Final = 10
CLOSE: Final = 1e-10
"""By how much weights may differ: AdamW divides gradients by their size, however small it is."""


@pytest.fixture(scope="module")
def measured() -> tuple[Chain, tuple[Variant, ...]]:
    """Return the chain of the decoder, and what it is in groups of two."""
    return profiled()


@pytest.fixture(scope="module")
def expected() -> Mapping[str, Any]:
    """Return what one process makes of all steps."""
    return train_whole(range(STEPS))


def far(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return by how much tensors differ."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - one).abs().max()) for name, one in expected.items())


def agree(ranks: Sequence[Mapping[str, Any]], expected: Mapping[str, Any], steps: slice) -> None:
    """Require the losses, norms and weights of one process."""
    weights = put_together([rank["weights"] for rank in ranks], expected["weights"])
    assert far(weights, expected["weights"]) < CLOSE
    ends = [rank["losses"] for rank in ranks if rank["losses"][0] is not None]
    assert ends
    for losses in ends:
        assert losses == pytest.approx(expected["losses"][steps], abs=1e-12)
    for rank in ranks:
        assert rank["norms"] == pytest.approx(expected["norms"][steps], abs=1e-12)


def nightly(*shapes: Any) -> Any:
    return pytest.param(*shapes, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 2, 2),
        # By day a training goes on on this one.
        nightly(Shape(2, 2, 1, shard="optimizer")),
        nightly(Shape(2, 2, 2)),
        nightly(Shape(2, 2, 2, shard="optimizer", recompute=True)),
        nightly(Shape(2, 2, 2, shard="gradient")),
        nightly(Shape(2, 2, 2, shard="parameter", recompute=True)),
        nightly(Shape(2, 2, 2, chunks=2, shard="optimizer")),
        nightly(Shape(4, 1, 2, recompute=True)),
        nightly(Shape(2, 2, 1, shard="optimizer", order=(1, 0))),
        nightly(Shape(2, 2, 1, shard="parameter")),
        nightly(Shape(2, 2, 1, shard="gradient")),
        nightly(Shape(1, 4, 1)),
        nightly(Shape(1, 4, 1, shard="optimizer")),
    ],
    ids=str,
)
def test_ten_steps_are_those_of_one_process(
    shape: Shape,
    measured: tuple[Chain, tuple[Variant, ...]],
    expected: Mapping[str, Any],
    tmp_path: Path,
) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan_on(shape, *measured), path)
    ranks = warm_ranks().run(train, shape.gpus, str(path), range(STEPS))
    first = put_together([rank["gradients"] for rank in ranks], expected["gradients"])
    assert far(first, expected["gradients"]) < 1e-14
    agree(ranks, expected, slice(None))


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (Shape(2, 1, 2), Shape(2, 2, 1, shard="optimizer")),
        nightly(Shape(2, 2, 1, shard="optimizer", chunks=2), Shape(1, 1, 2)),
        nightly(Shape(1, 2, 2, shard="parameter"), Shape(3, 1, 1)),
        nightly(Shape(3, 1, 1), Shape(1, 4, 1, shard="parameter")),
        nightly(Shape(1, 4, 1, shard="parameter"), Shape(2, 2, 2, shard="optimizer")),
    ],
    ids=str,
)
def test_a_training_goes_on_on_another_plan(
    before: Shape,
    behind: Shape,
    measured: tuple[Chain, tuple[Variant, ...]],
    expected: Mapping[str, Any],
    tmp_path: Path,
) -> None:
    half = STEPS // 2
    paths = [tmp_path / "before.json", tmp_path / "behind.json"]
    for shape, path in zip((before, behind), paths, strict=True):
        save_plan(plan_on(shape, *measured), path)
    state = str(tmp_path / "state")
    warm_ranks().run(partial(train, save=state), before.gpus, str(paths[0]), range(half))
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "before.json",
        "behind.json",
        "state",
    ]
    go_on = partial(train, load=state, seed=9)
    ranks = warm_ranks().run(go_on, behind.gpus, str(paths[1]), range(half, STEPS))
    agree(ranks, expected, slice(half, None))


@pytest.mark.parametrize(
    "shape",
    [Shape(2, 2, 1), nightly(Shape(2, 2, 1, shard="parameter")), nightly(Shape(1, 2, 2))],
    ids=str,
)
def test_steps_may_have_fewer_micro_batches_or_no_backward(
    shape: Shape, measured: tuple[Chain, tuple[Variant, ...]], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan_on(shape, *measured), path)
    fewer = 2 if shape.shard == "parameter" else 3
    ranks = warm_ranks().run(steps_of_all_sizes, shape.gpus, str(path), fewer)
    model, _ = build()
    losses = [
        float(model(**draw(step, count)).detach())
        for step, count in ((0, fewer), (1, 4), (2, 2), (3, 4), (4, 2))
    ]
    ends = [rank["losses"] for rank in ranks if rank["losses"][0] is not None]
    assert len(ends) == shape.gpus // shape.stages
    for found in ends:
        assert found == pytest.approx(losses, abs=1e-12)
    for step, count, name in ((0, fewer, "fewer"), (3, 4, "added")):
        model(**draw(step, count)).backward()
        whole = gradients_of(model)
        assert far(put_together([rank[name] for rank in ranks], whole), whole) < 1e-14
    assert all(rank["unchanged"] for rank in ranks)
    norms = [
        float(torch.nn.utils.get_total_norm(list(gradients_of(model).values()), p))
        for p in (1.0, 2.0, float("inf"))
    ]
    for number, rank in enumerate(ranks):
        assert rank["norms"] == pytest.approx(norms, abs=1e-12)
        counts, shapes, multiple, norm, folder = rank["refused"]
        assert "given 3 micro-batches and another one 2" in counts
        assert ("is of shape (3, 3)" if number == 0 else "another process refuses") in shapes
        assert (fewer == 3) or "3 micro-batches are no multiple of 2 replicas" in multiple
        assert norm.startswith("max_norm: 0 is not a number above 0")
        assert "there is no checkpoint" in folder
    assert {i for rank in ranks for i in rank["micro_batches"]} == set(range(MICROBATCHES))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], list[Any]]:
    """Return a folder with checkpoints of other models, and what the runs that made them gave."""
    folder = tmp_path_factory.mktemp("others")
    how = Profiler(warmup=0, repeats=2, min_share=0)
    dropping = timed(how.chain(as_model(build_dropping(), factory="tests.meshes:any")), 1, 2)
    save_plan(plan_on(Shape(2, 1, 1), dropping, ()), folder / "dropping.json")
    of_dropping = (str(folder / "dropping.json"), str(folder / "dropping"))
    evaluated = warm_ranks().run(evaluate, 2, *of_dropping)
    save_plan(plan_on(Shape(2, 2, 1), *profiled((), dtype=torch.float32)), folder / "single.json")
    of_single = (str(folder / "single.json"), str(folder / "single"))
    return folder, evaluated, warm_ranks().run(train_autocast, 4, *of_single)


def test_an_evaluation_drops_nothing_and_keeps_no_statistics(
    others: tuple[Path, list[Any], list[Any]],
) -> None:
    _, (first, last), _ = others
    assert first["losses"] == [None] * 3
    model, _ = build_dropping()
    value = torch.linspace(-1, 1, 3 * 4 * MICROBATCHES, dtype=torch.float64).view(-1, 4)

    def whole() -> float:
        with torch.no_grad():
            return float(torch.stack([model.eval()(one) for one in value.chunk(4)]).mean())

    assert last["losses"][0] == pytest.approx(whole(), abs=1e-12)
    assert last["losses"][1] != pytest.approx(whole(), abs=1e-3)
    assert last["buffers"]["norm.num_batches_tracked"] == MICROBATCHES
    for name, buffer in last["buffers"].items():
        model.get_buffer(name).copy_(buffer)
    assert last["losses"][2] == pytest.approx(whole(), abs=1e-12)
    assert last["losses"][2] != pytest.approx(last["losses"][0], abs=1e-6)


def test_another_optimizer_or_what_is_no_checkpoint_is_refused(
    others: tuple[Path, list[Any], list[Any]],
) -> None:
    _, ranks, _ = others
    for rank in ranks:
        none, kind, groups, parameter, broken, folder = rank["refused"]
        assert "no optimizer was saved" in none
        assert "the state of AdamW, and the optimizer is SGD" in kind
        assert "has 1 groups of parameters, and this one 2" in groups
        assert "a parameter that this process has not" in parameter
        assert "cannot be read: UnpicklingError" in broken
        assert "is no checkpoint" in folder


def test_the_checkpoint_before_stays_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, part = tmp_path / "state", tmp_path / "state.part"
    for folder in (before, part):
        folder.mkdir()
        (folder / ".metadata").write_text(folder.name)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self == part:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(InputError, match="No space left on device"):
        _take_place(before, part)
    assert (before / ".metadata").read_text() == "state"
    assert (part / ".metadata").read_text() == "state.part"


def test_a_checkpoint_of_another_model_changes_nothing(
    others: tuple[Path, list[Any], list[Any]],
    measured: tuple[Chain, tuple[Variant, ...]],
    tmp_path: Path,
) -> None:
    folder, _, _ = others
    path = tmp_path / "plan.json"
    save_plan(plan_on(Shape(2, 1, 1), *measured), path)
    folders = [str(folder / "single"), str(folder / "none")]
    for messages in warm_ranks().run(load_others, 2, str(path), folders):
        assert (
            "is of another model: embedding.weight is of shape (12, 8) and torch.float32"
            in (messages[0])
        )
        assert "there is no checkpoint" in messages[1]


def test_what_one_process_fails_at_ends_all() -> None:
    first, second = warm_ranks().run(fail_alone, 2)
    assert "process 1 failed: RuntimeError: no idea" in first[0]
    assert "another process refuses its inputs" in first[1]
    assert second == ["RuntimeError: no idea"] * 2


def test_what_is_no_tensor_does_not_hide_another_model() -> None:
    def stored(*shape: int) -> TensorStorageMetadata:
        return TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(shape), [])

    whole = WholeState({name: (torch.Size((2,)), torch.float32) for name in "ab"}, ())
    names: dict[str, Any] = {"model.a": BytesStorageMetadata(), "model.b": stored(1)}
    with pytest.raises(InputError, match="a is no tensor there"):
        _check_model(Path("state"), Metadata(names), whole)
    names["model.a"] = stored(2)
    with pytest.raises(InputError, match="b is of shape"):
        _check_model(Path("state"), Metadata(names), whole)


def test_autocast_holds_for_forwards(others: tuple[Path, list[Any], list[Any]]) -> None:
    _, _, ranks = others
    model, _ = build(dtype=torch.float32)
    losses = []
    for step in range(MICROBATCHES):
        part = {name: one.chunk(MICROBATCHES)[step] for name, one in draw(0).items()}
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**part)
        (loss / MICROBATCHES).backward()
        losses.append(float(loss.detach()))
    expected = gradients_of(model)
    found = put_together([gradients for _, gradients in ranks], expected)
    for name, gradient in expected.items():
        # Sums of single precision in another order; the gradient of keys' biases is none.
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-6), name
    ends = [loss for loss, _ in ranks if loss is not None]
    assert ends == pytest.approx([sum(losses) / MICROBATCHES] * 2, rel=1e-6)
    exact, _ = build(dtype=torch.float32)
    exact(**draw(0)).backward()
    # Autocast was on.
    assert far(found, gradients_of(exact)) > 1e-4


def test_copies_of_tied_weights_stay_one(tmp_path: Path) -> None:
    chain, _ = profiled((), tied=True)
    assert chain.same_gpu
    path = tmp_path / "plan.json"
    plan = plan_on(Shape(2, 1, 1), copy_tied_weights(chain), ())
    # The plan sends the gradients of the copies, too.
    assert {item.source_stage for item in plan.pattern.transfers} == {None, 0, 1}
    save_plan(plan, path)
    state, half = str(tmp_path / "state"), STEPS // 2
    warm_ranks().run(partial(train, tied=True, save=state), 2, str(path), range(half))
    go_on = partial(train, tied=True, seed=9, load=state)
    ranks = warm_ranks().run(go_on, 2, str(path), range(half, STEPS))
    expected = train_whole(range(STEPS), tied=True)
    agree(ranks, expected, slice(half, None))
    assert all("embedding.weight" in rank["weights"] for rank in ranks)


def test_copies_of_which_replicas_share_other_parts_are_refused() -> None:
    chain, _ = profiled((), tied=True)
    plan = plan_on(Shape(2, 2, 1), copy_tied_weights(chain), ())
    first, second = plan.stages
    mixed = replace(plan, stages=(replace(first, shard="optimizer"), second))
    own = torch.nn.Linear(2, 2, bias=False)
    pieces: list[Any] = [SimpleNamespace(module=own)] * len(chain.layers)
    with pytest.raises(InputError, match="have copies of weight, of which replicas share optim"):
        find_copies(mixed, find_grid(mixed), pieces, {id(own.weight): "weight"}, 0)
