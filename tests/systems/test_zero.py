"""ZeRO on two GPUs, worked out by hand.

Two layers with F 1 and B 2 ns keep 1 byte each, and have 4 bytes of parameters, 4 of gradients and
8 of optimizer state, in two chunks. Half a layer's weights take 2 ns in each direction.
"""

from __future__ import annotations

import pytest

from schedopt import Plan, check
from schedopt.account import memory, traffic, versions
from schedopt.systems import data_parallel, zero
from schedopt.systems.catalogue import Constructor
from schedopt.systems.config import SystemConfig
from tests.systems.configs import equal

FULL = 2 * (4 + 4 + 8)
"""What the weights of both layers take where nothing is sharded."""


def two_layers(microbatches: int = 2, **more: int) -> SystemConfig:
    sizes = {"weight_bytes": 16, "parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    return equal(2, microbatches, linked=True, **sizes, **more)


def summary(plan: Plan) -> tuple[int, int, int]:
    """Return period, peak of memory and the bytes that a GPU sends in a step; both are alike."""
    (one, other), sent = memory(plan), traffic(plan)
    assert one.peak_bytes == other.peak_bytes
    assert sent[0, 1] == sent[1, 0]
    assert set(versions(plan).held.values()) == {1}
    count = sent[0, 1] * plan.pattern.k
    assert count.denominator == 1
    return plan.pattern.period_total_ns, one.peak_bytes, count.numerator


def test_data_parallelism_holds_everything_everywhere() -> None:
    # B1 ends at 4, B0 at 6; all-reduces over 4-8 and 8-12.
    assert summary(data_parallel.overlapped(two_layers())) == (12, FULL + 2, 8)


def test_zero_1_shards_the_optimizer_state() -> None:
    # As many bytes as an all-reduce: gradients to their homes, weights back.
    assert summary(zero.optimizer(two_layers())) == (12, FULL - 8 + 2, 8)


@pytest.mark.parametrize("system", [zero.optimizer, zero.gradient])
def test_updated_weights_set_out_while_others_are_still_computed(system: Constructor) -> None:
    # F over 0-3, B2 3-11, B1 11-19. Half of layer 2's gradient comes over 11-15, so its update
    # (half of 2 ns) goes before B0, over 19-20; that of layer 1 comes over 19-23, and layer 2's
    # weights leave over 23-27. B0 20-28, layer 1's update 28-29, layer 0's gradient 28-32, layer
    # 1's weights 32-36, layer 0's update 32-33 and its weights 36-40.
    sizes = {"weight_bytes": 32, "parameter_bytes": 8, "gradient_bytes": 8, "optimizer_bytes": 16}
    plan = system(equal(2, 2, layers=3, linked=True, backward_ns=8, update_ns=2, **sizes))
    assert check(plan) == ()
    assert plan.pattern.period_total_ns == 40


def test_zero_2_shards_the_gradients() -> None:
    # Over 4-6 half the gradients of both layers lie away from home, beside 1 byte saved.
    assert summary(zero.gradient(two_layers())) == (12, FULL - 8 - 4 + 4 + 1, 8)


def test_zero_3_shards_the_parameters_and_sends_half_as_much_again() -> None:
    # Weights come over 0-2, 2-4, 4-6 and 6-8 for F0 2-3, F1 4-5, B1 6-8 and B0 8-10; gradients
    # go home over 8-10 and 10-12. Most lies there over 6-8: two halves of weights, half a
    # gradient, and 2 bytes saved.
    assert summary(zero.parameter(two_layers())) == (12, FULL // 2 + 2 * 2 + 2 + 2, 12)


def test_weights_are_gathered_one_operation_ahead() -> None:
    plan = zero.parameter(two_layers())
    moments = [(o.start_ns, o.kind, o.stage) for o in plan.pattern.operations if not o.shift]
    assert sorted(moments) == [(2, "F", 0), (4, "F", 1), (6, "B", 1), (8, "B", 0)]
    # A long backward is what the next gathering waits for, though the link is idle.
    assert _gathered(two_layers(backward_ns=20), 0) == [0, 2, 4, 6]
    # F0 2-3, F1 4-5, B1 6-26, B0 26-46: B0's came when F1 had ended. The next F0 may gather when
    # B1 has ended, F1 when B0 has.
    assert _gathered(two_layers(microbatches=4, backward_ns=20), 2)[:2] == [26, 46]


def _gathered(config: SystemConfig, micro_batch: int) -> list[int]:
    """Return when the weights for a micro-batch set out."""
    sent = zero.parameter(config).pattern.transfers
    return sorted(t.start_ns for t in sent if t.tensor == "weights" and t.shift == micro_batch)


def test_each_gpu_updates_what_is_at_home() -> None:
    # 5 ns of an update are 3 on each GPU. Reduced over 4-6 and 6-8, applied over 6-9 and 9-12,
    # sent over 9-11 and 12-14.
    plan = zero.optimizer(two_layers(update_ns=5))
    assert plan.pattern.period_total_ns == 14
    assert sorted(o.start_ns for o in plan.pattern.operations if o.kind == "U") == [6, 6, 9, 9]


@pytest.mark.parametrize(("rounds", "gathered"), [(1, 2), (2, 4)])
def test_gradients_go_home_once_a_step_and_weights_come_for_each_operation(
    rounds: int, gathered: int
) -> None:
    plan = zero.parameter(two_layers(microbatches=2 * rounds))
    kinds = [transfer.tensor for transfer in plan.pattern.transfers if transfer.stage == 0]
    assert kinds.count("weight_gradient") == 2
    assert kinds.count("weights") == 2 * gathered
