"""What binds, on plans worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from schedopt import Chain, Layer, Platform, Stage, solve
from schedopt.account import bubble, find_binding
from tests import examples


def test_the_busiest_gpu_and_the_one_that_lacks_memory() -> None:
    # All three GPUs work 4 of 4 ns; each holds just what it needs.
    binding = find_binding(examples.contiguous())
    assert binding.gpu == 0
    assert binding.share == 1
    assert binding.links == ()
    # Each has just what it needs, so that it lacks what one more micro-batch keeps.
    found = [(lack.gpu, lack.short_bytes, lack.micro_batches) for lack in binding.shortfalls]
    assert found == [(2, 300, 2), (1, 207, 4), (0, 100, 6)]
    assert str(binding).endswith(
        "no room for one more micro-batch in flight on GPU 2 (300 B short of 2), "
        "1 (207 B short of 4), 0 (100 B short of 6)"
    )


def test_nothing_lacks_where_memory_is_ample() -> None:
    plan = examples.two_periodic()
    ample = find_binding(replace(plan, platform=Platform(gpus=3, memory=9)))
    assert ample.shortfalls == ()
    # Each GPU works 4 of 6 ns.
    assert (ample.share, bubble(plan)) == (Fraction(2, 3), Fraction(1, 3))


def test_a_link_that_is_busy_all_the_time_binds() -> None:
    # Two transfers of 2 ns each on the half-duplex link of GPUs 0 and 1, T = 4.
    plan = examples.contiguous()
    slow = find_binding(replace(plan, platform=_slower(plan.platform)))
    assert slow.links == ((0, 1), (1, 2))
    assert "the link of GPUs 0 and 1 is busy all the time" in str(slow)


def _slower(platform: Platform) -> Platform:
    return Platform(gpus=3, memory=[gpu.memory_bytes for gpu in platform.gpus], bandwidth=5 * 10**8)


def test_a_gpu_without_a_stage_does_not_bind() -> None:
    # Nothing takes time, so that no GPU works more than another; only GPU 1 has a stage.
    layer = Layer(forward_ns=0, backward_ns=0, weight_bytes=1, activation_bytes=1)
    stages = [Stage(layers=(0, 0), gpus=(1,))]
    plan = solve(Chain(layers=(layer,)), Platform(2, 9), stages=stages).plan
    assert plan is not None
    assert find_binding(plan).gpu == 1
