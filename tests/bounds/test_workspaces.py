"""What GPUs leave free for their next operation, against plans, and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Plan, Platform, Problem, Scope
from schedopt.account import memory
from schedopt.bounds import propagation_bound
from schedopt.bounds.workspaces import reserve_workspace
from tests.budgets import trials
from tests.layers import layer
from tests.random_plans import valid_plans

PEAK = Scope(allocation="general", memory="peak", max_k=1)


def with_bytes(chain: Chain, data: st.DataObject) -> Chain:
    """Return a chain with weights and workspaces of which something may be reserved.

    Some layers take no time. Plans stay valid if operations end earlier.
    """
    weights, workspaces = st.integers(0, 5), st.integers(0, 2) | st.integers(2, 5)
    layers = []
    for one in chain.layers:
        some = data.draw(st.integers(0, 3)) and 1
        layers.append(
            replace(
                one,
                forward_ns=some * one.forward_ns,
                backward_ns=some * one.backward_ns,
                backward_input_ns=some * (one.backward_input_ns or 0),
                backward_weight_ns=some * (one.backward_weight_ns or 0),
                weight_bytes=data.draw(weights),
                workspace_bytes=data.draw(workspaces),
                parameter_bytes=None,
                gradient_bytes=None,
                optimizer_bytes=None,
            )
        )
    return replace(chain, layers=tuple(layers))


@trials(1000, by_day=20)
@given(valid_plans(), st.data())
def test_what_just_fits_fits_in_what_is_left(plan: Plan, data: st.DataObject) -> None:
    assume(all(len(set(stage.gpus)) == 1 for stage in plan.stages))
    plan = replace(plan, chain=with_bytes(plan.chain, data))
    needs = memory(plan)
    # Buffers are counted by no bound.
    assume(not any(need.by_kind.get("received") for need in needs))
    most = max(need.peak_bytes for need in needs)
    gpus = [Gpu(memory_bytes=need.peak_bytes or most) for need in needs]
    split = any(operation.kind == "I" for operation in plan.pattern.operations)
    again = any(stage.recompute for stage in plan.stages)
    scope = replace(plan.scope, memory="peak", split_backward=split, recompute=again)
    problem = Problem(chain=plan.chain, platform=plan.platform.with_gpus(gpus), scope=scope)
    reserved = reserve_workspace(problem)
    left = memory(replace(plan, chain=reserved.chain))
    for gpu, need in zip(reserved.platform.gpus, left, strict=True):
        assert need.peak_bytes <= gpu.usable_bytes


def problem_of(*layers: Layer, gpus: int = 1, room: int = 20) -> Problem:
    return Problem(chain=Chain(layers=layers), platform=Platform(gpus, room), scope=PEAK)


def of(weight: int, workspace: int, ahead: int = 1, back: int = 1) -> Layer:
    return replace(layer(ahead, back, 1, weight=weight), workspace_bytes=workspace)


def test_what_every_layer_takes_is_reserved() -> None:
    problem = problem_of(of(6, 3), of(5, 2))
    reserved = reserve_workspace(problem)
    assert reserved.platform.gpus[0].usable_bytes == 20 - 2
    found = [(one.weight_bytes, one.workspace_bytes) for one in reserved.chain.layers]
    assert found == [(6, 1), (5, 0)]


def test_layers_without_time_take_less_of_all() -> None:
    # Alone on a GPU the first one leaves nothing free.
    sizes: dict[str, Any] = {
        "saved_bytes": 7,
        "saved_input_bytes": 4,
        "backward_input_ns": 0,
        "backward_weight_ns": 0,
        "saved_weight_bytes": 3,
    }
    first = replace(of(20, 9, ahead=0, back=0), **sizes)
    reserved = reserve_workspace(problem_of(first, of(5, 2), gpus=2))
    assert reserved.platform.gpus[0].usable_bytes == 20 - 2
    one, other = reserved.chain.layers
    assert (one.weight_bytes, one.saved, one.saved_input_bytes) == (18, 5, 2)
    assert (one.saved_weight_bytes, one.workspace_bytes) == (1, 7)
    assert (other.weight_bytes, other.saved, other.workspace_bytes) == (5, 1, 0)


def test_with_recompute_layers_without_time_are_kept_whole() -> None:
    problem = problem_of(of(0, 9, ahead=0, back=0), of(5, 2))
    assert reserve_workspace(problem) is not problem
    again = replace(problem, scope=replace(PEAK, recompute=True))
    assert reserve_workspace(again) is again


@pytest.mark.parametrize(
    ("layers", "room", "reserved"),
    [
        ((of(2, 1), of(5, 9)), 20, 1),
        # A GPU may have no layers.
        ((of(5, 9), of(5, 9)), 8, 8),
        # Layers that take no time.
        ((of(0, 9, ahead=0, back=0), of(5, 9)), 20, 9),
        ((of(0, 9, ahead=0), of(5, 9)), 20, 0),
        ((of(0, 9, back=0), of(5, 9)), 20, 0),
    ],
)
def test_no_more_is_reserved_than_may_be(
    layers: tuple[Layer, ...], room: int, reserved: int
) -> None:
    left = reserve_workspace(problem_of(*layers, gpus=3, room=room))
    assert left.platform.gpus[0].usable_bytes == room - reserved


@pytest.mark.parametrize(("first", "second", "left"), [(1, 1, 20 - 9), (0, 1, 20), (1, 0, 20)])
def test_halves_that_take_no_time_take_no_workspace(first: int, second: int, left: int) -> None:
    halves = replace(of(5, 9), backward_input_ns=first, backward_weight_ns=second)
    problem = problem_of(halves)
    assert reserve_workspace(problem).platform.gpus[0].usable_bytes == 20 - 9
    split = replace(problem, scope=replace(PEAK, split_backward=True))
    assert reserve_workspace(split).platform.gpus[0].usable_bytes == left


def test_nothing_is_reserved_where_memory_is_read_as_a_sum() -> None:
    problem = problem_of(of(6, 3))
    in_sum = replace(problem, scope=replace(PEAK, memory="sum"))
    assert reserve_workspace(in_sum) is in_sum


def test_idle_gpus_leave_room_for_what_comes_next() -> None:
    # Beside a workspace two GPUs have 8 bytes, also while they idle. Four layers keep 2 bytes each
    # for 8, 6, 4 and 2 ns.
    four = [replace(layer(1, 1, 2), workspace_bytes=2) for _ in range(4)]
    problem = problem_of(*four, gpus=2, room=6)
    any_k = replace(problem, scope=replace(PEAK, max_k=None))
    bound = propagation_bound(any_k)
    assert bound is not None
    assert 4.95 < bound.period <= 5
