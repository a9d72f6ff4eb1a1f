"""What holds for every system: the check accepts it, and needs each of its transfers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Plan, Platform, check
from schedopt.account import busy_time, concurrent_activations, load, memory, versions
from schedopt.errors import InputError
from schedopt.network import Duplex
from schedopt.scope import MemoryReading
from schedopt.simulation import simulate
from schedopt.simulation.delaying import delay_transfers
from schedopt.systems.catalogue import SYSTEMS, System, find_system
from schedopt.systems.config import SystemConfig
from tests.budgets import PROFILE, trials
from tests.examples import layer
from tests.systems.configs import AMPLE, system_configs

FETCHING = ("zero_3", "cdp_v1_zero", "cdp_v2_zero")


def in_flight(plan: Plan, of_each: int = 1) -> bool:
    """Whether stage s of P keeps at most P - s micro-batches or mini-batches in flight."""
    last = len(plan.stages)
    kept = concurrent_activations(plan)
    return all(count <= of_each * (last - stage) for (stage, _), count in kept.items())


def two_versions(plan: Plan) -> bool:
    return max(versions(plan).held.values()) <= 2


def double_buffered(plan: Plan) -> bool:
    most = max(concurrent_activations(plan).values())
    return in_flight(plan) and two_versions(plan) and most <= (plan.rule.update_every or 0) + 1


CLAIMED: dict[str, Callable[[Plan], bool]] = {
    **dict.fromkeys(("pipedream", "pipedream_vertical", "pipemare"), in_flight),
    "pipedream_2bw": double_buffered,
    "timeprest": lambda plan: in_flight(plan, len(plan.stages)),
    **{
        f"cdp_{version}{kind}": two_versions
        for version in ("v1", "v2")
        for kind in ("", "_one_gpu", "_mp", "_pp")
    },
}
"""What the source of a system says of its plans."""

every_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)


@st.composite
def plans(draw: st.DrawFn, system: System) -> Plan:
    """Draw a plan of a system for a random config that it can do."""
    config = draw(system_configs())
    try:
        return system.plan(config)
    except InputError as error:
        # Too few layers, or an odd number of GPUs; or what would have to be in no time.
        assume(error.field != "gpus" and "0 ns" not in error.rule)
        raise


@every_system
@trials(30, by_day=3)
@given(data=st.data())
def test_plans_are_valid_and_no_faster_than_what_they_occupy(
    system: System, data: st.DataObject
) -> None:
    plan = data.draw(plans(system))
    assert check(plan) == ()
    assert delay_transfers(plan) == plan
    period = Fraction(plan.pattern.period_total_ns, plan.pattern.k)
    assert period >= max(load.busy_ns for load in load(plan))
    assert all(period >= busy for busy in busy_time(plan).values())
    assert system.name not in CLAIMED or CLAIMED[system.name](plan)
    if plan.scope.microbatches is not None:
        step = simulate(plan, plan.scope.microbatches)
        assert step.makespan_ns <= plan.pattern.period_total_ns


@every_system
@trials(6, by_day=2)
@given(data=st.data())
def test_the_check_wants_exactly_the_memory_of_the_account(
    system: System, data: st.DataObject
) -> None:
    plan = data.draw(plans(system))
    readings: list[MemoryReading] = ["sum", "peak"]
    reading = data.draw(st.sampled_from(readings))
    needed = [need.reading(reading) for need in memory(plan)]
    scope = replace(plan.scope, memory=reading)
    exact = replace(plan, scope=scope, platform=_with_memory(plan.platform, needed))
    assert check(exact) == ()
    fullest = max(range(len(needed)), key=lambda gpu: needed[gpu])
    if needed[fullest]:
        needed[fullest] -= 1
        short = replace(plan, scope=scope, platform=_with_memory(plan.platform, needed))
        assert [violation.kind for violation in check(short)] == ["memory"]


@pytest.mark.parametrize("name", FETCHING)
def test_weights_that_come_for_nothing_and_in_no_time_are_refused(name: str) -> None:
    config = _uneven(2, "half")
    layers = [replace(one, forward_ns=0) for one in config.chain.layers]
    at_once = replace(config, chain=Chain(layers=tuple(layers)))
    assert check(find_system(name).plan(at_once)) == ()
    at_once = replace(at_once, platform=Platform(gpus=2, memory=AMPLE))
    with pytest.raises(InputError, match=r"\.forward_ns: 0 ns.* no time.* Give it 1 ns"):
        find_system(name).plan(at_once)


@pytest.mark.parametrize("name", ["cdp_v1_mp", "cdp_v2_mp"])
def test_sums_that_come_to_a_backward_in_no_time_are_refused(name: str) -> None:
    config = _uneven(6, "full")
    # The second of three stages has two GPUs.
    first, last = find_system(name).plan(config).stages[1].layers
    layers = [
        replace(one, backward_ns=0, forward_ns=one.forward_ns + one.backward_ns)
        if first <= number <= last
        else one
        for number, one in enumerate(config.chain.layers)
    ]
    config = replace(config, chain=Chain(layers=tuple(layers)))
    with pytest.raises(InputError, match=rf"layers\[{first}\]\.backward_ns: 0 ns.* to {last} "):
        find_system(name).plan(config)


def _with_memory(platform: Platform, needed: list[int]) -> Platform:
    gpus = [
        replace(gpu, memory_bytes=count) for gpu, count in zip(platform.gpus, needed, strict=True)
    ]
    return platform.with_gpus(gpus)


@every_system
@pytest.mark.parametrize(
    ("gpus", "duplex"), [pytest.param(2, "half", marks=pytest.mark.nightly), (4, "full")]
)
def test_every_transfer_is_needed(system: System, gpus: int, duplex: Duplex) -> None:
    plan = system.plan(_uneven(gpus, duplex))
    assert check(plan) == ()
    transfers = plan.pattern.transfers
    assert transfers or plan.stages[0].gpus == plan.stages[-1].gpus == (0,)
    # A prime step, so that all chunks and hops of rings have their turn.
    few, step = (100, 5) if PROFILE == "nightly" else (20, 41)
    for left_out in transfers[:: 1 if len(transfers) < few else step]:
        rest = tuple(transfer for transfer in transfers if transfer is not left_out)
        assert check(replace(plan, pattern=replace(plan.pattern, transfers=rest))), left_out


def _uneven(gpus: int, duplex: Duplex) -> SystemConfig:
    layers = tuple(
        layer(
            *(10 + n, 20 - n, 60, 3 + n),
            saved_bytes=5,
            backward_input_ns=9,
            backward_weight_ns=11 - n,
            parameter_bytes=8 + n,
            gradient_bytes=8 + n,
            optimizer_bytes=16,
            update_ns=2,
        )
        for n in range(8)
    )
    return SystemConfig(
        chain=Chain(layers=layers),
        platform=Platform(gpus=gpus, memory=AMPLE, bandwidth="1GB/s", latency=1, duplex=duplex),
        microbatches=4,
        bucket_bytes=30,
    )


def test_names_are_of_one_system_each() -> None:
    assert len({system.name for system in SYSTEMS}) == len(SYSTEMS)
    assert all(find_system(system.name) is system for system in SYSTEMS)
    with pytest.raises(InputError, match=r"'gpip' is not known.*gpipe"):
        find_system("gpip")
