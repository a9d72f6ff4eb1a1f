"""How much of the endless run is replayed, and that more shows nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, reject

from schedopt.checking import weights
from schedopt.checking.timeline import Timeline, lay_out
from schedopt.checking.weights import Followed, follow_weights
from schedopt.checking.window import Window, open_window
from schedopt.errors import InputError
from schedopt.folding import whole
from schedopt.plan import Plan
from tests.budgets import trials
from tests.checking.helpers import kinds
from tests.examples import flushed
from tests.folded_plans import changed_folded_plans

UNFIT = ("rule", "reference", "layers", "group", "operations", "transfer", "placement")
"""What is wrong with plans that are not replayed."""


def longer(timeline: Timeline, stages: range | list[int]) -> Window:
    window = open_window(timeline, stages)
    return replace(window, rounds=window.rounds + 2, is_closed=False)


def residencies(followed: Followed) -> Counter[tuple[object, ...]]:
    """Return what lies where from when in a round, and how long, as often as it does."""
    return Counter(
        (one.group, one.size, one.since % one.every_ns, one.until - one.since, one.every_ns)
        for one in followed.residencies
    )


@trials(2000, by_day=20)
@given(changed_folded_plans())
def test_a_longer_replay_of_a_step_says_the_same(plan: Plan) -> None:
    try:
        step = whole(plan)
    except InputError:
        reject()
    if {*kinds(step)} & {*UNFIT}:
        reject()
    timeline = lay_out(step)
    short = follow_weights(timeline)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "open_window", longer)
        more = follow_weights(timeline)
    assert {(one.kind, one.place) for one in short.violations} == {
        (one.kind, one.place) for one in more.violations
    }
    assert short.unknown == more.unknown
    assert residencies(short) == residencies(more)


def test_of_a_step_that_ends_with_a_flush_one_round_is_steady_behind_the_first() -> None:
    timeline = lay_out(flushed())
    assert open_window(timeline, [0]).rounds == 1
