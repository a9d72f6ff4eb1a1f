"""How the phases share the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt import Chain, Platform, Problem, Scope
from schedopt.bench.periodic import halves
from schedopt.problem import MOST_OF_BATCH
from schedopt.proofs import Suggestion
from schedopt.solving.phases import (
    LEAST_S_OF_START,
    Phase,
    has_time,
    plan_phases,
    share_time,
    side_by_side,
    what_if_phases,
)
from tests.layers import layer

CHAIN = halves(Chain(layers=(layer(2, 4, 8),) * 40))
ANY = Scope(allocation="general", max_k=2)


def parts_of_the_time(scope: Scope) -> dict[tuple[str, bool], float]:
    """Return the part of the searches, by what it may do and whether it is only tried."""
    problem = Problem(chain=CHAIN, platform=Platform(4, 999), scope=scope)
    left, found = 1.0, dict[tuple[str, bool], float]()
    for phase, share in share_time([*plan_phases(problem), *what_if_phases(problem)]):
        if phase.weight:
            key = (phase.freedom, phase.tried is not None)
            found[key] = found.get(key, 0.0) + left * share
            left *= 1 - share
    assert left == pytest.approx(0.0)
    return found


def test_the_search_for_what_is_asked_has_most_of_the_time() -> None:
    parts = parts_of_the_time(ANY)
    assert max(parts, key=parts.__getitem__) == ("k up to 2", False)
    assert parts["k up to 2", False] >= 0.6


def test_a_search_that_only_finds_a_start_has_less_than_the_one_with_every_freedom() -> None:
    asked = Scope(allocation="general", max_k=2, recompute=True, split_backward=True)
    parts = parts_of_the_time(asked)
    assert parts["k up to 2", False] >= 0.7
    assert parts["", False] == pytest.approx(parts["recompute", False])
    assert parts["", False] == pytest.approx(parts["split backward", False])
    assert 0.02 <= parts["", False] <= 0.08


def test_what_is_not_allowed_takes_a_tenth_of_the_time_at_most() -> None:
    parts = parts_of_the_time(ANY)
    assert sum(part for (_, tried), part in parts.items() if tried) <= 0.12


def test_with_little_time_none_is_kept_for_what_comes_behind_the_search() -> None:
    problem = Problem(chain=CHAIN, platform=Platform(4, 999), scope=ANY)
    phases = [*plan_phases(problem), *what_if_phases(problem)]
    (search,) = (
        phase for phase in phases if phase.freedom == "k up to 2" and "general" in phase.solvers
    )
    short, long = (dict(share_time(phases, seconds)) for seconds in (1.0, 20.0))
    assert short[search] == 1
    assert long == dict(share_time(phases))
    assert 0.7 < long[search] < 0.95


def test_a_step_with_layers_anywhere_has_all_the_time() -> None:
    asked = Scope(allocation="general", max_k=None, microbatches=8, recompute=True)
    problem = Problem(chain=CHAIN, platform=Platform(4, 999), scope=asked)
    assert [*plan_phases(problem)] == [Phase(("step",), "", problem)]


def test_what_proves_short_chains_for_longer_patterns_keeps_a_fifth_of_the_time() -> None:
    short = Problem(chain=Chain(layers=(layer(2, 4, 8),) * 6), platform=Platform(3, 99), scope=ANY)
    phases = [*plan_phases(short), *what_if_phases(short)]
    shares = dict(share_time(phases))
    first, last = (phase for phase in phases if phase.solvers == ("general", "general_cpsat"))
    assert (1 - shares[first]) * shares[last] >= 0.2


def test_solvers_that_do_not_run_side_by_side_take_turns_that_add_up() -> None:
    phase = Phase(("general", "general_cpsat"), "", Problem(chain=CHAIN, platform=Platform(4, 999)))
    left, names = 1.0, []
    for name, share in phase.in_turn(0.5):
        left -= left * share
        names.append(name)
    assert names == ["general_cpsat", "general"]
    assert left == pytest.approx((1 - 0.25) * (1 - 0.5))


def test_only_a_start_is_left_out_for_lack_of_time() -> None:
    asked = Scope(allocation="general", max_k=2, recompute=True)
    problem = Problem(chain=CHAIN, platform=Platform(4, 999), scope=asked)
    phases = [*plan_phases(problem)]
    short = [
        phase.freedom
        for number, phase in enumerate(phases)
        if not has_time(phase, phases[number + 1 :], LEAST_S_OF_START / 2) and phase.weight
    ]
    assert short == ["", "recompute"]
    assert all(
        has_time(phase, phases[number + 1 :], seconds)
        for number, phase in enumerate(phases)
        for seconds in (None, LEAST_S_OF_START)
    )


@pytest.mark.parametrize(
    ("seconds", "saved", "proven"),
    [(None, 8, True), (1.6, 8, True), (1.4, 8, False), (0.0, 8, False), (0.0, 0, True)],
)
def test_what_proves_is_left_out_where_it_would_only_take_from_the_search(
    seconds: float | None, saved: int, *, proven: bool
) -> None:
    chain = Chain(layers=(layer(2, 4, saved),) * 15)
    problem = Problem(chain=chain, platform=Platform(4, 999), scope=ANY)
    phase = Phase(("general", "general_cpsat"), "", problem)
    assert side_by_side(phase, seconds) == phase.solvers[: 1 + proven]


@pytest.mark.parametrize(("above", "tried"), [(0, {Suggestion.TRAINING_STEP}), (1, set())])
def test_a_step_longer_than_a_training_step_may_be_is_not_tried_as_one(
    above: int, tried: set[Suggestion]
) -> None:
    known = replace(layer(2, 4, 8), parameter_bytes=0, gradient_bytes=0)
    scope = replace(ANY, microbatches=MOST_OF_BATCH + above)
    problem = Problem(chain=Chain(layers=(known,) * 4), platform=Platform(4, 999), scope=scope)
    assert {phase.tried for phase in what_if_phases(problem)} == tried
