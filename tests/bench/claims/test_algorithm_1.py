"""Message passing, and Algorithm 1 of cyclic data parallelism."""

from __future__ import annotations

import pytest

from schedopt.bench.claims import algorithm_1
from schedopt.bench.claims.algorithm_1 import (
    MENDS,
    PRIME,
    Training,
    find_algorithm_1,
    train_by_the_rule,
    try_out,
)
from schedopt.bench.claims.message_passing import Process, Receive, Send, Where, run
from tests.bench.claims.findings import nothing

ONE, TWO, THREE = (1, 0), (2, 0), (3, 0)


def talk(*script: Send | Receive, got: list[object] | None = None) -> Process:
    for action in script:
        content = yield action
        if isinstance(action, Receive) and got is not None:
            got.append(content)


def test_messages_come_in_the_order_in_which_they_are_sent() -> None:
    got: list[object] = []
    receiver = talk(Receive(ONE, "x"), Receive(ONE, "y"), Receive(ONE, "x"), got=got)
    sender = talk(Send(TWO, "x", 1), Send(TWO, "x", 2), Send(TWO, "y", 3))
    outcome = run({TWO: receiver, ONE: sender}, 100)
    assert got == [1, 3, 2]
    assert outcome.completes
    assert outcome.unmatched == ()


def test_who_waits_in_a_circle_is_named() -> None:
    processes: dict[Where, Process] = {
        ONE: talk(Receive(TWO, "x")),
        TWO: talk(Send(THREE, "y", 0), Receive(THREE, "x"), Send(ONE, "x", 0)),
        THREE: talk(Receive(TWO, "x")),
    }
    outcome = run(processes, 100)
    assert outcome.circle == (TWO, THREE)
    assert outcome.waiting[ONE] == Receive(TWO, "x")
    assert outcome.unmatched == ((TWO, THREE, "y"),)


def test_what_does_not_end_is_cut_off() -> None:
    def forever() -> Process:
        while True:
            yield Send(ONE, "x", 0)

    assert run({ONE: forever()}, 50).endless


def test_as_printed_all_wait_for_parameters() -> None:
    case = try_out(2, 3, ())
    # Stage 1: worker 2 waits for itself. Stage 2: 1 for 2, and 2 for 1.
    assert not case["ends"]
    assert case["waits"] == "circle (1, 2) waits for (2, 2) waits for (1, 2)"
    assert case["unmatched"] == []


def test_the_rule_begins_as_plain_gradient_descent() -> None:
    training = Training(2, 1)
    a, b = training.initial(1), training.initial(2)
    half = pow(2, -1, PRIME)
    errors = {n: training.error(0, n, a * b * training.sample(0, n)) for n in (1, 2)}
    inputs = {n: training.sample(0, n) for n in (1, 2)}
    assert train_by_the_rule(training) == {
        1: (a - half * sum(b * inputs[n] * errors[n] for n in (1, 2))) % PRIME,
        2: (b - half * sum(a * inputs[n] * errors[n] for n in (1, 2))) % PRIME,
    }


def test_it_runs_mended_only_and_each_mend_is_needed() -> None:
    found = find_algorithm_1(nothing, 3, 3)
    verdicts = [part.verdict for part in found.parts]
    assert verdicts == ["fails"] * 4 + ["holds-under-convention"]
    assert found.figures["needed"] == dict.fromkeys(MENDS, True)
    # A kind reader still has nobody who sends the first parameters: in stage 1 worker 2 receives
    # them from worker N = 2.
    kind = found.parts[0].readings[1].counterexamples
    assert kind[0]["waits"] == "circle (2, 1) waits for (2, 1)"


@pytest.mark.parametrize("mend", MENDS)
def test_with_a_mend_left_out_it_does_not(mend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = {name: text for name, text in MENDS.items() if name != mend}
    monkeypatch.setattr(algorithm_1, "MENDS", rest)
    assert find_algorithm_1(nothing, 2, 3).parts[-1].verdict == "fails"


def test_against_another_rule_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm_1, "fresh", lambda size, n, j: j > size - n + 1)
    assert find_algorithm_1(nothing, 3, 3).parts[-1].verdict == "fails"
