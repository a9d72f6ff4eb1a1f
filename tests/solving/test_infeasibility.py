"""What is said where there is no plan: the proof, the memory that would do, and what to try."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import (
    Chain,
    Infeasibility,
    Platform,
    Problem,
    Proof,
    ProofKind,
    Scope,
    Stage,
    Suggestion,
    solve,
)
from schedopt.solving import Run
from schedopt.solving.incumbent import find_infeasibility
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import why
from tests.strategies import chains

PROBLEM = Problem(
    chain=Chain(layers=(layer(1, 2, 1, weight=1, sent=1),) * 2), platform=Platform(2, 99)
)
HALVES = replace(
    layer(2, 4, 4, sent=1), backward_input_ns=2, backward_weight_ns=2, saved_weight_bytes=1
)


def test_a_bound_above_the_period_asked_is_a_proof() -> None:
    asked = Problem(
        chain=PROBLEM.chain, platform=PROBLEM.platform, scope=Scope(period_ns=2, max_k=3)
    )
    run = Run(asked)
    run.report_bound(2, asked.scope, "equal")
    assert find_infeasibility(asked, run.incumbent) is None
    run.report_bound(3, asked.scope, "by hand")
    found = find_infeasibility(asked, run.incumbent)
    assert found is not None
    assert found.proof == Proof(ProofKind.BOUND_ABOVE, period_exact=(3, 1), basis="by hand")
    assert found.wider[0] == Suggestion.LONGER_PERIOD
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_least_memory_of_all_proofs_is_told_of_the_gpu_of_the_last() -> None:
    unequal = Problem(chain=PROBLEM.chain, platform=Platform(2, [2, 3]))
    run, scope = Run(unequal), Scope(max_k=None)
    run.report_infeasible(Infeasibility(scope=scope, proof="a", least_memory_bytes=6, gpu=0))
    run.report_infeasible(Infeasibility(scope=Scope(), proof="b", least_memory_bytes=5, gpu=1))
    found = find_infeasibility(unequal, run.incumbent)
    # 4 bytes more for GPU 0 by the first, 2 more for GPU 1 by the second.
    assert found is not None
    assert (found.proof, found.gpu, found.least_memory_bytes) == ("b", 1, 5)
    assert found.amount(5, unequal.platform) == (2, True)
    assert found.say(5, unequal.platform) == "2 B more on every GPU"


@pytest.mark.parametrize(
    "scope",
    [
        Scope(period_ns=5, max_k=None, microbatches=4),
        Scope(period_ns=5, allocation="general"),
        Scope(period_ns=5, grain="layer"),
        Scope(period_ns=5, max_k=3, split_backward=True),
    ],
)
def test_a_period_below_a_bound_is_proven_impossible(scope: Scope) -> None:
    # Each layer works 6 ns, and none can be shared.
    result = solve(Chain(layers=(HALVES,) * 2), Platform(2, 99), scope=scope)
    assert Suggestion.LONGER_PERIOD in why(result).wider


def test_what_to_try_is_not_given_already() -> None:
    chain = Chain(layers=(HALVES,) * 2)
    fixed = [Stage(layers=(0, 1), gpus=(0,))]
    wider = why(solve(chain, Platform(2, 6), stages=fixed)).wider
    assert {Suggestion.RECOMPUTE, Suggestion.OTHER_STAGES} <= {*wider}
    assert Suggestion.ANY_ALLOCATION not in wider
    scope = Scope(recompute=True, allocation="general")
    nowhere = why(solve(chain, Platform(2, 3), scope=scope)).wider
    assert nowhere == (Suggestion.FINER_CHAIN, Suggestion.SMALLER_MICROBATCH)


def test_what_fits_no_allocation_says_how_much_would() -> None:
    chain = Chain(layers=(layer(1, 2, 3, weight=10, sent=1),) * 3)
    scope = Scope(recompute=True, allocation="general", memory="peak", grain="layer")
    # Weights of 30 and what one layer saves.
    found = why(solve(chain, Platform(2, 16), scope=scope))
    assert found.proven_memory_bytes == 17
    assert found.least_memory_bytes is not None


FURTHER_WAYS = [
    # Two layers of 1 + 3 ns, or 1 + 1 + 1 ns in halves; three GPUs, or the first one for both.
    (Scope(period_ns=2), 3, (Suggestion.FINER_CHAIN,)),
    (
        Scope(period_ns=2, split_backward=True, max_k=None, allocation="general"),
        3,
        (Suggestion.FINER_CHAIN,),
    ),
    (Scope(period_ns=5), 1, (Suggestion.SMALLER_MICROBATCH, Suggestion.MORE_GPUS)),
    (Scope(period_ns=5, allocation="fixed"), 3, (Suggestion.OTHER_STAGES,)),
]


@pytest.mark.parametrize(("scope", "gpus", "further"), FURTHER_WAYS)
def test_what_cannot_help_against_the_work_is_not_named(
    scope: Scope, gpus: int, further: tuple[Suggestion, ...]
) -> None:
    halved = replace(layer(1, 3, 1, weight=1, sent=1), backward_input_ns=1, backward_weight_ns=1)
    chain = Chain(layers=(halved,) * 2)
    stages = [Stage(layers=(0, 1), gpus=(0,))] if scope.allocation == "fixed" else []
    result = solve(chain, Platform(gpus, 99), scope=scope, stages=stages)
    assert why(result).wider == (Suggestion.LONGER_PERIOD, *further)
    # What could help is named all the same.
    longer = replace(scope, period_ns=3, allocation="contiguous", split_backward=False)
    ways = why(solve(chain, Platform(3, 99), scope=longer)).wider
    assert Suggestion.SPLIT_BACKWARD in ways


def test_memory_for_gpus_that_differ_is_said_as_what_all_of_them_lack() -> None:
    chain, sizes = Chain(layers=(layer(1, 2, 2, weight=8, sent=2),) * 4), [3, 5]
    found = why(solve(chain, Platform(2, sizes), scope=Scope()))
    assert found.least_memory_bytes is not None
    # Two layers on each GPU keep 20 bytes for one micro-batch: the first one lacks 17.
    assert found.say(found.least_memory_bytes, Platform(2, sizes)) == "17 B more on every GPU"
    enough = solve(chain, Platform(2, [size + 17 for size in sizes]), scope=Scope())
    short = solve(chain, Platform(2, [size + 16 for size in sizes]), scope=Scope())
    assert enough.plan is not None
    assert short.status == "infeasible"
    alike = why(solve(chain, Platform(2, 5), scope=Scope()))
    assert alike.say(20, Platform(2, 5), exact=True) == "20 B (20 bytes)"


@trials(100)
@given(chains(longest=4), st.lists(st.integers(0, 12), min_size=2, max_size=3), st.booleans())
def test_the_memory_found_for_gpus_that_differ_would_do(
    chain: Chain, sizes: list[int], speeds: bool
) -> None:
    scope = Scope(allocation="general")
    speed = ["1", "0.5", "1"][: len(sizes)] if speeds else "1"
    none = solve(chain, Platform(len(sizes), sizes, speed=speed), scope=scope).infeasibility
    if none is None:
        return
    # Stages that are neighbours fit some memory, if each GPU has enough.
    assert none.least_memory_bytes is not None
    assert none.gpu is not None or len(set(sizes)) == 1
    more = none.least_memory_bytes - sizes[none.gpu or 0]
    assert more > 0
    enough = Platform(len(sizes), [size + more for size in sizes], speed=speed)
    assert solve(chain, enough, scope=scope, solver="contiguous").plan is not None
    if none.proven_memory_bytes is not None:
        assert none.proven_memory_bytes <= none.least_memory_bytes


def test_what_is_proven_of_the_sum_is_said_of_the_sum() -> None:
    # The last two layers take no time and keep 5 bytes each, but one after the other: with 6 bytes
    # on each of two GPUs there is a plan for the peak, and none for the sum.
    problem = Problem(
        chain=Chain(layers=(layer(1, 1, 2), layer(0, 0, 5), layer(0, 0, 5))),
        platform=Platform(2, 6),
        scope=Scope(allocation="general", memory="peak"),
    )
    asked = problem.chain, problem.platform
    assert solve(*asked, scope=problem.scope).period == 2
    alone = solve(*asked, scope=problem.scope, solver="general_cpsat")
    assert alone.status == "unknown"
    assert str(alone.ladder[0].note).startswith("no plan with memory read as its sum: ")


def test_that_not_even_one_micro_batch_fits_is_proven_for_the_peak() -> None:
    # Each layer keeps 3 bytes until the gradient of the last one comes back: three GPUs of 5 bytes
    # hold three of the four.
    problem = Problem(
        chain=Chain(layers=(layer(1, 1, 3),) * 4),
        platform=Platform(3, 5),
        scope=Scope(allocation="general", memory="peak", max_k=2),
    )
    result = solve(problem.chain, problem.platform, scope=problem.scope)
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert result.infeasibility.scope.max_k is None
    assert result.infeasibility.scope.memory == "peak"
