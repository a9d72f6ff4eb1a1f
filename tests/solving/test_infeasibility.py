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
    Layer,
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
from tests.strategies import chains

LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=1, activation_bytes=1)
PROBLEM = Problem(chain=Chain(layers=(LAYER,) * 2), platform=Platform(2, 99))
HALVES = Layer(
    forward_ns=2, backward_ns=4, weight_bytes=0, activation_bytes=1, saved_bytes=4,
    backward_input_ns=2, backward_weight_ns=2, saved_weight_bytes=1,
)  # fmt: skip


def test_a_bound_above_the_period_asked_is_a_proof() -> None:
    asked = Problem(
        chain=PROBLEM.chain, platform=PROBLEM.platform, scope=Scope(period_ns=2, max_k=3)
    )
    run = Run(asked)
    run.report_bound(2, asked.scope, "equal")
    assert find_infeasibility(asked, run.incumbent) is None
    run.report_bound(3, asked.scope, "by hand")
    why = find_infeasibility(asked, run.incumbent)
    assert why is not None
    assert why.proof == Proof(ProofKind.BOUND_ABOVE, period_exact=(3, 1), basis="by hand")
    assert why.wider[0] == Suggestion.LONGER_PERIOD
    assert pickle.loads(pickle.dumps(why)) == why


def test_the_least_memory_of_all_proofs_is_told_of_the_gpu_of_the_last() -> None:
    unequal = Problem(chain=PROBLEM.chain, platform=Platform(2, [2, 3]))
    run, scope = Run(unequal), Scope(max_k=None)
    run.report_infeasible(Infeasibility(scope=scope, proof="a", least_memory_bytes=6, gpu=0))
    run.report_infeasible(Infeasibility(scope=Scope(), proof="b", least_memory_bytes=5, gpu=1))
    why = find_infeasibility(unequal, run.incumbent)
    # 4 bytes more for GPU 0 by the first, 2 more for GPU 1 by the second.
    assert why is not None
    assert (why.proof, why.gpu, why.least_memory_bytes) == ("b", 1, 5)
    assert why.amount(5, unequal.platform) == (2, True)
    assert why.say(5, unequal.platform) == "2 B more on every GPU"


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
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert Suggestion.LONGER_PERIOD in result.infeasibility.wider


def test_what_to_try_is_not_given_already() -> None:
    chain = Chain(layers=(HALVES,) * 2)
    fixed = [Stage(layers=(0, 1), gpus=(0,))]
    without = solve(chain, Platform(2, 6), stages=fixed).infeasibility
    assert without is not None
    assert Suggestion.RECOMPUTE in without.wider
    assert Suggestion.OTHER_STAGES in without.wider
    assert Suggestion.ANY_ALLOCATION not in without.wider
    scope = Scope(recompute=True, allocation="general")
    nowhere = solve(chain, Platform(2, 3), scope=scope).infeasibility
    assert nowhere is not None
    assert nowhere.wider == (Suggestion.FINER_CHAIN, Suggestion.SMALLER_MICROBATCH)


def test_what_fits_no_allocation_says_how_much_would() -> None:
    heavy = Layer(forward_ns=1, backward_ns=2, weight_bytes=10, activation_bytes=1, saved_bytes=3)
    scope = Scope(recompute=True, allocation="general", memory="peak", grain="layer")
    # Weights of 30 and what one layer saves.
    result = solve(Chain(layers=(heavy,) * 3), Platform(2, 16), scope=scope)
    assert result.infeasibility is not None
    assert result.infeasibility.proven_memory_bytes == 17
    assert result.infeasibility.least_memory_bytes is not None


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
    layer = Layer(
        forward_ns=1,
        backward_ns=3,
        backward_input_ns=1,
        backward_weight_ns=1,
        weight_bytes=1,
        activation_bytes=1,
    )
    stages = [Stage(layers=(0, 1), gpus=(0,))] if scope.allocation == "fixed" else []
    result = solve(Chain(layers=(layer,) * 2), Platform(gpus, 99), scope=scope, stages=stages)
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert result.infeasibility.wider == (Suggestion.LONGER_PERIOD, *further)
    # What could help is named all the same.
    longer = replace(scope, period_ns=3, allocation="contiguous", split_backward=False)
    ways = solve(Chain(layers=(layer,) * 2), Platform(3, 99), scope=longer).infeasibility.wider  # type: ignore[union-attr]
    assert Suggestion.SPLIT_BACKWARD in ways


def test_memory_for_gpus_that_differ_is_said_as_what_all_of_them_lack() -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=8, activation_bytes=2)
    chain, sizes = Chain(layers=(layer,) * 4), [3, 5]
    result = solve(chain, Platform(2, sizes), scope=Scope())
    why = result.infeasibility
    assert why is not None
    assert why.least_memory_bytes is not None
    # Two layers on each GPU keep 20 bytes for one micro-batch: the first one lacks 17.
    assert why.say(why.least_memory_bytes, result.problem.platform) == "17 B more on every GPU"
    enough = solve(chain, Platform(2, [size + 17 for size in sizes]), scope=Scope())
    short = solve(chain, Platform(2, [size + 16 for size in sizes]), scope=Scope())
    assert enough.plan is not None
    assert short.status == "infeasible"
    alike = solve(chain, Platform(2, 5), scope=Scope()).infeasibility
    assert alike is not None
    assert alike.say(20, Platform(2, 5), exact=True) == "20 B (20 bytes)"


@trials(100)
@given(chains(longest=4), st.lists(st.integers(0, 12), min_size=2, max_size=3), st.booleans())
def test_the_memory_found_for_gpus_that_differ_would_do(
    chain: Chain, sizes: list[int], speeds: bool
) -> None:
    scope = Scope(allocation="general")
    speed = ["1", "0.5", "1"][: len(sizes)] if speeds else "1"
    why = solve(chain, Platform(len(sizes), sizes, speed=speed), scope=scope).infeasibility
    if why is None:
        return
    # Stages that are neighbours fit some memory, if each GPU has enough.
    assert why.least_memory_bytes is not None
    assert why.gpu is not None
    more = why.least_memory_bytes - sizes[why.gpu]
    assert more > 0
    enough = Platform(len(sizes), [size + more for size in sizes], speed=speed)
    assert solve(chain, enough, scope=scope, solver="contiguous").plan is not None
    if why.proven_memory_bytes is not None:
        assert why.proven_memory_bytes <= why.least_memory_bytes
