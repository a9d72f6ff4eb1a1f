"""What a plan is compared with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Platform, Result, Scope, solve
from schedopt.comparing.baselines import named_baseline, usual_baselines
from schedopt.comparing.measures import measure_plan
from schedopt.reporting.tables import comparison_table, say_best
from tests.budgets import trials
from tests.strategies import chains, platforms


def layer(forward: int, backward: int, weight: int, activation: int = 1) -> Layer:
    return Layer(
        forward_ns=forward,
        backward_ns=backward,
        weight_bytes=weight,
        activation_bytes=activation,
    )


def best(chain: Chain, platform: Platform) -> Result:
    return solve(chain, platform, scope=Scope())


UNEVEN = Chain(layers=(layer(4, 8, 1), layer(1, 2, 1), layer(1, 2, 1), layer(1, 2, 1)))


def test_the_usual_cuts_by_hand() -> None:
    result = best(UNEVEN, Platform(gpus=2, memory=100))
    assert result.plan is not None
    even, balanced = usual_baselines(result.plan, 8)
    # Two layers each: 12 + 3 against 6. By time: 12 against 9.
    assert even.figures is not None
    assert balanced.figures is not None
    assert [even.figures.period, balanced.figures.period] == [15, 12]
    assert result.period == 12
    ours = measure_plan(result.plan, 8, "ours")
    # The first GPU waits behind two forwards for the first gradient, 5 + 6 - 10 or 4 + 9 - 8; cut
    # by time, also behind the last backward but one for the last gradient, 9 - 8.
    assert even.figures.step_ns == 8 * 15 + 1
    assert ours.step_ns == 8 * 12 + 5 + 1
    rows = comparison_table(ours, [even, balanced], "sum").rows
    assert rows[1][1:6] == ("15 ns", "121 ns", "8", "6 B", "yes")
    assert [row[6] for row in rows] == ["-", "1.19 times as fast", "1.00 times as fast"]
    assert say_best(ours, [even, balanced]).endswith(
        "1.00 times as fast as the best of the others, Equal times of stages, 1F1B*."
    )


def test_what_does_not_fit_says_what_would() -> None:
    # Half the layers on each GPU: 22 bytes, and 2 or 4 of activations.
    chain = Chain(layers=(layer(1, 1, 20), layer(1, 1, 2), layer(1, 1, 1), layer(1, 1, 1)))
    result = best(chain, Platform(gpus=2, memory=22))
    assert result.plan is not None
    baselines = list(usual_baselines(result.plan, 4))
    assert [baseline.figures for baseline in baselines] == [None, None]
    assert [baseline.note for baseline in baselines] == [
        "does not fit at any period; it would with 24 B",
        "does not fit at any period; it would with 24 B",
    ]
    ours = measure_plan(result.plan, 4, "ours")
    assert say_best(ours, baselines).startswith("None of what it is compared with fits")
    assert comparison_table(ours, baselines, "sum").rows[1][1:7] == ("-", "-", "-", "-", "no", "-")


def test_tied_layers_are_not_parted() -> None:
    tied = replace(UNEVEN, same_gpu=((0, 3),))
    result = best(tied, Platform(gpus=2, memory=100))
    assert result.plan is not None
    even, balanced = usual_baselines(result.plan, 4)
    assert (even.figures, even.note) == (None, "the even split parts the tied layers 0 and 3")
    assert balanced.figures is not None
    # All four are tied: one stage, and all their time.
    assert balanced.figures.period == sum(
        layer.forward_ns + layer.backward_ns for layer in tied.layers
    )


@given(data=st.data())
@trials(60)
def test_a_best_plan_is_never_behind_the_usual_ones(data: st.DataObject) -> None:
    chain = data.draw(chains(tied=True))
    result = best(chain, data.draw(platforms()))
    if result.plan is None:
        return
    for baseline in usual_baselines(result.plan, 3):
        if baseline.figures is not None:
            assert not baseline.figures.over_bytes
            assert result.period is not None
            assert baseline.figures.period >= result.period


def test_a_named_plan_is_of_the_same_chain_and_says_where_it_runs() -> None:
    plan = best(UNEVEN, Platform(gpus=2, memory=100)).plan
    other = best(UNEVEN, Platform(gpus=3, memory=50)).plan
    assert plan is not None
    assert other is not None
    assert named_baseline("now.json", plan, plan, 4).note == ""
    baseline = named_baseline("now.json", other, plan, 4)
    assert baseline.figures == measure_plan(other, 4, "now.json")
    assert baseline.note == f"on {other.platform}"
    small = replace(other, platform=Platform(gpus=3, memory=2))
    lacking = named_baseline("now.json", small, plan, 4)
    # Layers 1 to 3, and what one micro-batch keeps of them: 6 bytes. A third GPU is of no use.
    assert other.stages[1].layers == (1, 3)
    assert lacking.note == f"on {small.platform}; GPU 1 lacks 4 B"
    ours = measure_plan(plan, 4, "ours")
    assert comparison_table(ours, [lacking], "sum").rows[1][5] == "no"
    assert say_best(ours, [lacking]).startswith("None of what it is compared with fits")
    different = replace(plan, chain=replace(UNEVEN, input_bytes=7))
    with pytest.raises(InputError, match=r"now.json: chain_sha256: .* another chain"):
        named_baseline("now.json", plan, different, 4)


def test_a_named_plan_may_have_micro_batches_of_another_size() -> None:
    """Two samples take less than twice as long as one; a step has as many of them."""
    twice = replace(
        UNEVEN,
        layers=tuple(replace(one, forward_ns=2 * one.forward_ns - 1) for one in UNEVEN.layers),
        samples=2,
    )
    plan = best(UNEVEN, Platform(gpus=1, memory=100)).plan
    other = best(twice, Platform(gpus=1, memory=100)).plan
    assert plan is not None
    assert other is not None
    baseline = named_baseline("now.json", other, plan, 4)
    assert baseline.figures is not None
    assert (baseline.figures.microbatches, baseline.figures.samples) == (2, 2)
    # Four samples: 4 (4 + 8 + 3 * 3) ns, and 2 (7 + 8 + 3 * (1 + 2)) ns.
    ours = measure_plan(plan, 4, "ours")
    assert (ours.step_ns, baseline.figures.step_ns) == (84, 48)
    assert comparison_table(ours, [baseline], "sum").rows[1][6] == "0.57 times as fast"
    again = replace(other, chain=replace(twice, samples=1, recomputed_modules=("mlp",)))
    assert named_baseline("now.json", again, plan, 4).figures is not None
    renamed = replace(twice.layers[0], name="other")
    strange = replace(other, chain=replace(twice, layers=(renamed, *twice.layers[1:])))
    with pytest.raises(InputError, match="another chain"):
        named_baseline("now.json", strange, plan, 4)
