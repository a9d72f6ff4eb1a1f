from __future__ import annotations

import sys
from time import process_time

import pytest

from schedopt.chain import Chain
from schedopt.checking import check
from schedopt.formats.results import result_to_json
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.result import Result
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn
from schedopt.systems.folded_step import folded_step
from tests.examples import BYTE_A_NS, layer, planned, stages, timed

GPUS = 64
PERIOD = 24


def pipeline(layers_each: int = 1, rule: Rule | None = None) -> Plan:
    """Return 1F1B on 64 GPUs: F_s from 12s to 12s + 10, B_s from 1524 - 12s, transfers of 2 ns.

    Stage s is busy over [12s, 1534 - 12s), so NCA = 64 - s.
    """
    first = layer(10, 10, 50, 2, saved_bytes=7, parameter_bytes=20, gradient_bytes=20)
    more = layer(0, 0, 0, 2, saved_bytes=0, parameter_bytes=0, gradient_bytes=0)
    starts: dict[str, int] = {}
    for stage in range(GPUS):
        forward, backward = 12 * stage, 1524 - 12 * stage
        starts |= {f"F{stage}": forward, f"B{stage}": backward}
        if stage < GPUS - 1:
            # B of the next stage ends 2 ns before B of this one starts.
            starts |= {f"a{stage}": forward + 10, f"g{stage}": backward - 2}
    return planned(
        (first, *[more] * (layers_each - 1)) * GPUS,
        Platform(
            gpus=GPUS,
            memory=[50 + 7 * (GPUS - stage) for stage in range(GPUS)],
            bandwidth=BYTE_A_NS,
            duplex="full",
        ),
        timed(PERIOD, starts),
        rule=rule or Rule(),
        stages=stages(*((s * layers_each, (s + 1) * layers_each - 1, [s]) for s in range(GPUS))),
    )


@pytest.mark.parametrize("layers_each", [1, 15])
def test_64_gpus_pass(layers_each: int) -> None:
    assert check(pipeline(layers_each)) == ()


def test_weights_of_64_gpus_are_followed() -> None:
    plan = pipeline(rule=Rule(update_every=64, forward_reads="delay", delay=1))
    # Two versions of 20 bytes on each GPU, where 50 has room for one.
    assert {violation.kind for violation in check(plan)} == {"memory"}


def test_1024_gpus_are_a_small_file_that_is_checked_soon() -> None:
    # Eight stages of 8 GPUs in each of 16 parts, which run 256 micro-batches each.
    sizes = {"parameter_bytes": 10**6, "gradient_bytes": 10**6, "optimizer_bytes": 2 * 10**6}
    one = layer(10**5, 2 * 10**5, 4 * 10**6, 1000, saved_bytes=10, **sizes)
    gpus = [range(128 * n, 128 * (n + 1)) for n in range(8)]
    found = [
        Stage(
            layers=(n, n),
            gpus=tuple(row[8 * part + k] for k in range(8) for part in range(16)),
            shard="optimizer",
        )
        for n, row in enumerate(gpus)
    ]
    config = SystemConfig(
        chain=Chain(layers=(one,) * 8),
        platform=Platform(1024, 10**9, bandwidth=BYTE_A_NS, duplex="full"),
        microbatches=4096,
    )
    turns: list[Turn] = [("F", n, i) for i in range(256) for n in range(8)]
    turns += [("B", n, i) for i in range(256) for n in reversed(range(8))]
    plan = folded_step(config, found, 16, turns)
    began = process_time()
    assert check(plan) == ()
    # Watched by a profiler it takes several times as long.
    assert process_time() - began < 10 or sys.getprofile() is not None
    text = result_to_json(Result(problem=plan.problem, status="feasible", plan=plan))
    assert len(text) < 5_000_000
