"""Data parallelism that chooses for each layer between its gradient and what its W needs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Plan, Platform, check
from schedopt.account import load, traffic
from schedopt.network import Duplex
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig
from schedopt.systems.data_parallel_by_layer import plan as by_layer
from tests.budgets import trials
from tests.systems.configs import AMPLE, with_layers


def layer(gradient: int, half: int, weight_ns: int = 1) -> Layer:
    return Layer(
        forward_ns=3,
        backward_ns=5,
        backward_input_ns=4,
        backward_weight_ns=weight_ns,
        weight_bytes=3 * gradient,
        activation_bytes=1,
        saved_bytes=9,
        saved_weight_bytes=half,
        parameter_bytes=gradient,
        gradient_bytes=gradient,
        optimizer_bytes=gradient,
    )


def two_of_three(gpus: int = 2, microbatches: int = 2, **links: Any) -> SystemConfig:
    """Return layers of which the first and the last send less by what W needs, 1 byte a ns."""
    of_platform: dict[str, Any] = {"bandwidth": 10**9, "duplex": "full"} | links
    return SystemConfig(
        chain=Chain(layers=(layer(240, 12), layer(12, 240), layer(120, 6))),
        platform=Platform(gpus=gpus, memory=AMPLE, **of_platform),
        microbatches=microbatches,
    )


def assert_overlapped(config: SystemConfig) -> None:
    """Require what overlapped data parallelism makes."""
    one, other = by_layer(config), find_system("dp_overlapped").plan(config)
    assert check(one) == ()
    assert one.pattern.period_total_ns == other.pattern.period_total_ns
    assert set(one.pattern.items) == set(other.pattern.items)


def sends(plan: Plan) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for transfer in plan.pattern.transfers:
        found.setdefault(transfer.stage, set()).add(transfer.tensor)
    return found


def test_each_layer_sends_what_is_less() -> None:
    plan = by_layer(two_of_three())
    assert check(plan) == ()
    assert sends(plan) == {0: {"weight_half"}, 1: {"weight_gradient"}, 2: {"weight_half"}}
    # For each update of two micro-batches: 12 and 6 bytes of halves, and 6 + 6 of the gradient.
    sent = Fraction(12 + 12 + 6, 2)
    assert traffic(plan) == {(0, 1): sent, (1, 0): sent}
    # A micro-batch a GPU: F 3 * 3; I and W 4 + 1 twice, B 5; and W of the other one twice.
    assert [one.busy_ns for one in load(plan)] == [Fraction(9 + 10 + 5 + 2, 2)] * 2


def test_a_layer_whose_w_takes_longer_than_what_it_saves_reduces() -> None:
    # 240 - 12 = 228 ns less to send for an update; 228 ns of W of the other micro-batch.
    for weight_ns, tensor in ((227, "weight_half"), (228, "weight_gradient")):
        config = two_of_three()
        config = with_layers(config, layer(240, 12, weight_ns), *config.chain.layers[1:])
        assert sends(by_layer(config))[0] == {tensor}


def test_it_is_overlapped_data_parallelism_where_transfers_are_free() -> None:
    assert_overlapped(two_of_three(bandwidth=None))


@pytest.mark.parametrize("lacking", [(0, 1, 2), (1,)])
def test_it_is_overlapped_data_parallelism_without_halves(lacking: tuple[int, ...]) -> None:
    config = two_of_three()
    nothing = {"backward_input_ns": None, "backward_weight_ns": None, "saved_weight_bytes": None}
    layers = [
        replace(one, **nothing) if number in lacking else one  # type: ignore[arg-type]
        for number, one in enumerate(config.chain.layers)
    ]
    assert_overlapped(with_layers(config, *layers))


@pytest.mark.parametrize(("gpus", "duplex"), [(2, "half"), (3, "full"), (4, "half")])
def test_every_transfer_and_every_weight_half_is_needed(gpus: int, duplex: Duplex) -> None:
    plan = by_layer(two_of_three(gpus, 2 * gpus, duplex=duplex))
    assert check(plan) == ()
    assert "weight_half" in sends(plan)[0]
    pattern = plan.pattern
    for left_out in pattern.transfers:
        rest = tuple(item for item in pattern.transfers if item is not left_out)
        assert check(replace(plan, pattern=replace(pattern, transfers=rest))), left_out
    for operation in pattern.operations:
        if operation.kind == "W":
            others = tuple(item for item in pattern.operations if item is not operation)
            assert check(replace(plan, pattern=replace(pattern, operations=others))), operation


@trials(25)
@given(data=st.data())
def test_random_chains(data: st.DataObject) -> None:
    gpus = data.draw(st.integers(1, 4))
    size, half = st.integers(0, 400), st.integers(0, 20)
    layers = data.draw(
        st.lists(st.builds(layer, size, half, st.integers(0, 9)), min_size=1, max_size=4)
    )
    links = {
        "latency": data.draw(st.integers(0, 3)),
        "duplex": data.draw(st.sampled_from(["half", "full"])),
    }
    config = two_of_three(gpus, gpus * data.draw(st.integers(1, 3)), **links)
    plan = by_layer(with_layers(config, *layers))
    assert check(plan) == ()
    assert plan.pattern.period_total_ns >= max(
        gpu.busy_ns * config.microbatches for gpu in load(plan)
    )
