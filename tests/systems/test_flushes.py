"""Systems with a flush: makespan, activations and versions, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schedopt import Chain, Plan
from schedopt.account import concurrent_activations, versions
from schedopt.errors import InputError
from schedopt.systems import data_parallel, flushes
from schedopt.systems.catalogue import Constructor
from schedopt.systems.config import SystemConfig
from schedopt.systems.data_parallel import list_buckets
from tests.examples import layer
from tests.systems.configs import equal

BARE = equal(2, 2, gradient_bytes=None)
"""Layers that do not say how large their gradients are."""


def order(plan: Plan, gpu: int) -> list[tuple[str, int, int]]:
    """Return kind, stage and micro-batch of what a GPU runs, in a step."""
    here = [o for o in plan.pattern.operations if plan.stages[o.stage].gpu(o.shift) == gpu]
    return [(o.kind, o.stage, o.shift) for o in sorted(here, key=lambda one: one.start_ns)]


def test_gpipe_takes_m_and_p_less_one_rounds_and_keeps_all_activations() -> None:
    # F 0-1 ... on GPU 0; the last F ends at m + P - 1, the last B takes as many rounds of 2.
    plan = flushes.gpipe(equal(4, 6))
    assert plan.pattern.period_total_ns == (1 + 2) * (6 + 4 - 1)
    assert set(concurrent_activations(plan).values()) == {6}
    assert order(plan, 1) == [(kind, 1, i) for kind in ("F", "B") for i in range(6)]
    assert set(versions(plan).held.values()) == {1}


@pytest.mark.parametrize("microbatches", [2, 4, 7])
def test_one_f_one_b_takes_as_long_and_keeps_one_activation_less_a_stage(microbatches: int) -> None:
    plan = flushes.one_f_one_b(equal(4, microbatches))
    assert plan.pattern.period_total_ns == (1 + 2) * (microbatches + 4 - 1)
    held = {(stage, stage): min(microbatches, 4 - stage) for stage in range(4)}
    assert concurrent_activations(plan) == held
    assert set(versions(plan).held.values()) == {1}


def test_one_gpu_does_all_the_work_and_then_updates_once() -> None:
    plan = flushes.one_gpu(equal(3, 5, layers=4, update_ns=7))
    assert plan.pattern.period_total_ns == 5 * 4 * (1 + 2) + 4 * 7
    assert concurrent_activations(plan) == {(0, 0): 1}


@pytest.mark.parametrize("microbatches", [4, 8, 12])
def test_two_stages_a_gpu_halve_the_bubble(microbatches: int) -> None:
    # F 2 and B 4 on each of 4 GPUs; 3 rounds of a stage instead of a GPU stay idle.
    plan = flushes.interleaved(equal(4, microbatches, layers=8))
    assert plan.pattern.period_total_ns == 6 * microbatches + 3 * 3
    assert [stage.gpus for stage in plan.stages] == [(n,) for n in (0, 1, 2, 3, 0, 1, 2, 3)]
    # The first four of stage 0, of stage 4, and so on; 10, 8, 6 and 4 forwards ahead.
    assert order(plan, 0)[:8] == [("F", stage, i) for stage in (0, 4) for i in range(4)]
    if microbatches > 4:
        ahead = [[kind for kind, _, _ in order(plan, gpu)].index("B") for gpu in range(4)]
        assert ahead == [10 + 1, 8 + 1, 6 + 1, 4 + 1]
    if microbatches == 8:
        # GPU 3 runs ahead F of stage 3 four times, then F7 B7 F7 B7 F7 B7 F7 B7 F3 B3: 5 of
        # stage 3 and 1 of stage 7. GPU 0 runs 10 ahead: 0-3, 0-3 of stage 4, 4 and 5 of stage 0.
        held = concurrent_activations(plan)
        assert (held[3, 3], held[7, 3], held[0, 0], held[4, 0]) == (5, 1, 8, 4)


@pytest.mark.parametrize("microbatches", [4, 8, 12])
def test_chimera_leaves_two_slots_less_than_its_depth(microbatches: int) -> None:
    # Li and Hoefler 2021, figure 3, with B as long as F: slots of 1 ns, P - 2 of them idle, and
    # 1 ns in which the last transfers, that take no time, start.
    plan = flushes.chimera(equal(4, microbatches, backward_ns=1))
    assert plan.pattern.period_total_ns == 2 * microbatches + 4 - 2 + 1
    assert [stage.gpus for stage in plan.stages] == [(0, 3), (1, 2), (2, 1), (3, 0)]
    down = {(0, 0): 2, (1, 1): 2, (2, 2): 2, (3, 3): 1}
    up = {(0, 3): 2, (1, 2): 2, (2, 1): 2, (3, 0): 1}
    assert concurrent_activations(plan) == down | up
    assert set(versions(plan).held.values()) == {1}


def test_a_unit_of_chimera_with_long_backwards_is_as_in_the_paper() -> None:
    # Bubble of (P - 2) / (3 N / 2 + P - 2) with B = 2 F and N = P = 4: a quarter of 16.
    plan = flushes.chimera(equal(4, 4))
    assert plan.pattern.period_total_ns == 16 + 1


@pytest.mark.parametrize("microbatches", [4, 5, 9])
def test_zero_bubble_leaves_f_and_i_less_w_a_stage(microbatches: int) -> None:
    # Qi et al. 2023, table 1: (P - 1) (F + I - W), and the memory of P micro-batches.
    times: dict[str, Any] = {"forward_ns": 5, "backward_input_ns": 7, "backward_weight_ns": 4}
    plan = flushes.zero_bubble(equal(4, microbatches, **times))
    assert plan.pattern.period_total_ns == 16 * microbatches + 3 * 8
    for stage in range(4):
        started = [o.start_ns for o in plan.pattern.operations if (o.kind, o.stage) == ("F", stage)]
        ended = [
            o.start_ns + 4 for o in plan.pattern.operations if (o.kind, o.stage) == ("W", stage)
        ]
        in_flight = [sum(s <= t for s in started) - sum(e <= t for e in ended) for t in started]
        assert max(in_flight) <= 4
    assert concurrent_activations(plan) == {(s, s): min(microbatches, 4 - s) for s in range(4)}


def linked(gpus: int, microbatches: int, **more: int) -> SystemConfig:
    """Return 3 layers of 3 ns whose gradients of 4 bytes take 4 ns from GPU to GPU."""
    return equal(gpus, microbatches, layers=3, linked=True, **({"gradient_bytes": 4} | more))


def test_a_blocking_all_reduce_follows_all_backwards() -> None:
    # 2 micro-batches a GPU; 12 bytes in 2 chunks, out and back over 6 ns each; the update.
    plan = data_parallel.blocking(linked(2, 4, update_ns=1))
    assert plan.pattern.period_total_ns == 2 * 9 + 2 * 6 + 3
    assert len(plan.pattern.transfers) == 2 * 2
    # In 3 chunks over 3 GPUs: 2 hops of 4 ns each way.
    plan = data_parallel.blocking(linked(3, 3))
    assert plan.pattern.period_total_ns == 9 + 2 * 2 * 4
    assert len(plan.pattern.transfers) == 2 * 2 * 3


def test_an_overlapped_all_reduce_goes_on_beside_the_backward() -> None:
    # The last layer's all-reduce lasts 4 ns from 5 on, the next from 9, the first from 13.
    plan = data_parallel.overlapped(linked(2, 2))
    assert plan.pattern.period_total_ns == 5 + 3 * 4
    # Where it takes 2 ns each, only the first layer's shows.
    plan = data_parallel.overlapped(linked(2, 2, gradient_bytes=2))
    assert plan.pattern.period_total_ns == 9 + 2
    assert set(versions(plan).held.values()) == {1}


def _with_gradients(*sizes: int) -> Chain:
    layers = (layer(1, 1, 100, gradient_bytes=size, parameter_bytes=size) for size in sizes)
    return Chain(layers=tuple(layers))


def test_buckets_are_filled_from_the_end() -> None:
    chain = _with_gradients(1, 5, 2, 4, 3)
    assert list_buckets(chain, 6) == [(0, 0), (1, 2), (3, 4)]
    assert list_buckets(chain, 8) == [(0, 1), (2, 4)]
    assert list_buckets(chain, 1) == [(n, n) for n in range(5)]
    assert list_buckets(chain, 16) == [(0, 4)]
    # Layers without gradients wait for one that has some, or join the first that has.
    assert list_buckets(_with_gradients(0, 0, 2, 0, 3, 0), 1) == [(0, 3), (4, 5)]
    assert list_buckets(_with_gradients(0, 0), 1) == [(0, 1)]
    plan = data_parallel.bucketed(replace(equal(2, 2), chain=chain, bucket_bytes=6))
    assert [stage.layers for stage in plan.stages] == [(0, 0), (1, 2), (3, 4)]


@pytest.mark.parametrize(
    ("system", "config", "rule"),
    [
        (data_parallel.blocking, equal(2, 5), "5 is no multiple of 2.*Use 4 or 6 micro-batches"),
        (flushes.gpipe, equal(4, 4, layers=3), "3 layers cannot be cut into 4 stages"),
        (flushes.interleaved, equal(4, 6, layers=8), "6 is no multiple of 4.*Use 4 or 8 micro"),
        (flushes.chimera, equal(4, 3), "3 is no multiple of 4.*Use 4 micro-batches"),
        (flushes.chimera, equal(3, 3), "even number of GPUs.*Use 2 or 4 GPUs"),
        (data_parallel.blocking, BARE, r"layers\[0\].gradient_bytes"),
        (data_parallel.overlapped, BARE, r"layers\[0\].gradient_bytes"),
        (data_parallel.bucketed, BARE, r"layers\[0\].gradient_bytes"),
        (flushes.chimera, BARE, r"layers\[0\].gradient_bytes"),
        (
            flushes.zero_bubble,
            equal(2, 2, backward_input_ns=None, backward_weight_ns=None),
            r"layers\[0\].backward_input_ns",
        ),
    ],
)
def test_what_a_system_cannot_do_is_refused_with_a_way_out(
    system: Constructor, config: SystemConfig, rule: str
) -> None:
    with pytest.raises(InputError, match=rule):
        system(config)


def test_without_replicas_no_version_is_looked_at() -> None:
    assert flushes.gpipe(BARE).rule.is_given
    assert flushes.one_f_one_b(BARE).pattern.period_total_ns == 3 * 3
