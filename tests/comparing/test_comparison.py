"""Systems side by side, with numbers that are worked out by hand."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from schedopt import (
    InputError,
    InvalidPlanError,
    Plan,
    Platform,
    Problem,
    Profile,
    Result,
    Variant,
    compare,
)
from schedopt.comparing import builder, our_step
from schedopt.comparing.comparison import Comparison, Order, Outcome, Row
from schedopt.comparing.files import comparison_document
from schedopt.comparing.measures import Figures
from schedopt.scope import MemoryReading
from schedopt.solving.options import still_valid
from schedopt.systems.catalogue import System
from tests.systems import stand_ins
from tests.systems.stand_ins import CHAIN, PLATFORM, SYSTEMS, install, names


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def rows(found: Comparison) -> dict[str, Row]:
    return {row.system.name: row for row in found.rows}


def figures(found: Comparison, name: str) -> Figures:
    known = rows(found)[name].figures
    assert known is not None
    return known


def test_figures_by_hand() -> None:
    found = compare(CHAIN, PLATFORM, systems=names)
    assert found.microbatches == 8
    alone = Figures(
        period_exact=(6, 1),
        microbatches=8,
        update_every=8,
        step_ns=48,
        memory_sum_bytes=(30, 0),
        memory_peak_bytes=(30, 0),
        over_bytes=0,
        over_gpu=None,
        gpus_used=1,
        sent_exact=((0, 1), (0, 1)),
        messages=(0, 0),
        simultaneous=0,
        versions=None,
        forward_staleness=None,
        backward_staleness=None,
    )
    there_and_back = replace(
        alone,
        period_exact=(12, 1),
        step_ns=96,
        memory_sum_bytes=(15, 15),
        memory_peak_bytes=(15, 15),
        gpus_used=2,
        sent_exact=((3, 1), (3, 1)),
        messages=(1, 1),
        simultaneous=1,
    )
    assert figures(found, "alone") == alone
    assert figures(found, "there_and_back") == there_and_back
    assert alone.throughput == Fraction(10**9, 6)


def test_steps_of_all_plans_have_updates() -> None:
    slow = replace(CHAIN, layers=tuple(replace(layer, update_ns=7) for layer in CHAIN.layers))
    found = compare(slow, PLATFORM, systems=["alone", "there_and_back", "schedopt_step"])
    # Both layers on one GPU; one on each, of which GPU 0 is through last.
    assert figures(found, "alone").step_ns == 48 + 2 * 7
    assert figures(found, "there_and_back").step_ns == 96 + 7
    assert figures(found, "alone").period == 6
    # On two replicas 4 micro-batches of 6 ns each. Then both halves of the gradient take 2 ns on
    # one link, each half of both updates 7 ns, and both halves of the weights 2 ns.
    assert figures(found, "schedopt_step").step_ns == 24 + 2 * 2 + 7 + 2


def test_what_is_known_of_the_weights_makes_no_step_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, System("gpipe", "", "schedopt.systems.flushes:gpipe", ""))
    first, second = (replace(layer, update_ns=7) for layer in CHAIN.layers)
    unknown = replace(first, parameter_bytes=None, gradient_bytes=None, optimizer_bytes=None)
    steps = [
        figures(compare(replace(CHAIN, layers=layers), PLATFORM, systems=["gpipe"]), "gpipe")
        for layers in ((first, second), (unknown, second))
    ]
    assert [step.versions for step in steps] == [1, None]
    assert steps[0].step_ns == steps[1].step_ns


def test_without_links_nothing_is_under_way() -> None:
    free = compare(CHAIN, Platform(gpus=2, memory=32), systems=["there_and_back", "schedopt"])
    there = figures(free, "there_and_back")
    assert (there.step_ns, there.messages) == (48, None)
    assert list(there.sent) == [3, 3]
    # Two stages whose transfers no pattern lists, as they take no time.
    assert figures(free, "schedopt").period == 3
    assert list(figures(free, "schedopt").sent) == [3, 3]


def test_versions_and_what_is_too_large() -> None:
    found = compare(CHAIN, PLATFORM, systems=["stale"])
    old = figures(found, "stale")
    assert (old.versions, old.forward_staleness, old.backward_staleness) == (2, 1, 1)
    assert (old.microbatches, old.update_every) == (8, 1)
    # A second version of the 4 bytes of parameters.
    assert old.most_bytes("sum") == old.most_bytes("peak") == 34
    assert (old.over_bytes, old.over_gpu) == (2, 0)
    assert rows(found)["stale"].outcome == "too large"
    unequal = Platform(gpus=2, memory=[40, 10], bandwidth="1GB/s")
    found = compare(CHAIN, unequal, systems=["stale", "there_and_back"])
    assert rows(found)["stale"].outcome == "fits"
    there = figures(found, "there_and_back")
    assert (there.over_bytes, there.over_gpu, there.most_bytes("sum")) == (5, 1, 15)


@pytest.mark.parametrize(
    ("reading", "outcome"), [("sum", "too large"), ("peak", "fits")], ids=["sum", "peak"]
)
def test_the_reading_decides_what_fits(
    reading: MemoryReading, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, System("layered", "", "tests.systems.stand_ins:layered", ""))
    first, second = CHAIN.layers
    chain = replace(CHAIN, layers=(replace(first, workspace_bytes=4), second))
    # While layer 0 works, with 4 bytes more, the 5 bytes of layer 1 do not lie there.
    found = compare(chain, PLATFORM, systems=["layered"], memory=reading)
    known = figures(found, "layered")
    assert (known.memory_sum_bytes, known.memory_peak_bytes) == ((34, 0), (30, 0))
    assert (found.memory, found.rows[0].outcome) == (reading, outcome)


def test_our_plan_is_a_row_like_the_others() -> None:
    found = compare(CHAIN, PLATFORM)
    assert {row.system.name for row in found.rows} == {*names, "schedopt", "schedopt_step"}
    # One GPU has 6 ns of work in a micro-batch, and so has the link between two.
    assert figures(found, "schedopt").period == 6
    assert rows(found)["schedopt"].note == "proven optimal among plans without replicas"
    step = rows(found)["schedopt_step"].result
    assert step is not None
    assert step.problem.scope.microbatches == 8
    assert figures(found, "schedopt_step").step_ns <= figures(found, "schedopt").step_ns
    small = compare(CHAIN, Platform(gpus=2, memory=12, bandwidth="1GB/s"), systems=["schedopt"])
    assert small.rows[0].outcome == "impossible"
    assert small.rows[0].note == "proven infeasible without replicas: a plan exists with 15 B"


def test_our_step_starts_from_the_shortest_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = ("flushed", "flushed_too")
    own = (System(name, "", "tests.systems.stand_ins:flushed", "") for name in twice)
    install(monkeypatch, *SYSTEMS, *own)

    def return_the_start(problems: list[Problem], *, initial: Plan | None, **more: Any) -> Result:
        assert initial is not None
        return Result(problem=problems[0], status="feasible", plan=initial, solver="initial")

    tried: list[Plan] = []

    def note(plan: Plan, problem: Problem) -> Plan | None:
        tried.append(plan)
        return still_valid(plan, problem)

    monkeypatch.setattr(builder, "solve_sizes", return_the_start)
    monkeypatch.setattr(our_step, "still_valid", note)
    # Of the others each is the pattern of an endless run, of which a step is another plan.
    found = compare(
        CHAIN, PLATFORM, microbatches=2, systems=["there_and_back", *twice, "schedopt_step"]
    )
    assert figures(found, "schedopt_step").step_ns == 12
    assert rows(found)["schedopt_step"].note == ("that of flushed; not proven optimal")
    # What is no shorter is not checked again.
    assert [plan.pattern.period_total_ns for plan in tried].count(12) == 1


def selective() -> Profile:
    """Return the chain twice: as it is, and with a module of each layer computed again.

    A layer then takes 4 ns instead of 3, and keeps 2 bytes instead of 5.
    """
    layers = tuple(replace(layer, backward_ns=3, saved_bytes=2) for layer in CHAIN.layers)
    again = replace(CHAIN, layers=layers, recomputed_modules=("mlp",))
    return Profile(variants=(Variant(tensor=1, chain=again), Variant(tensor=1, chain=CHAIN)))


def test_our_step_may_compute_modules_again(tmp_path: Path) -> None:
    small = Platform(1, 24)
    found = compare(selective(), small, systems=["alone", "schedopt", "schedopt_step"])
    # Both layers take 20 bytes, and keep 10 or 4.
    assert (found.chain, rows(found)["alone"].outcome) == (CHAIN, "too large")
    step = rows(found)["schedopt_step"]
    assert step.result is not None
    assert step.result.plan is not None
    assert step.result.plan.chain.recomputed_modules == ("mlp",)
    assert figures(found, "schedopt_step").step_ns == 4 * 2 * 4
    assert step.note.endswith(", with mlp computed again")
    assert rows(found)["schedopt"].outcome == "impossible"
    found.save(tmp_path / "c.json")
    again = rows(Comparison.load(tmp_path / "c.json"))
    for name in ("alone", "schedopt_step"):
        assert again[name].result == rows(found)[name].result
    # With room for it nothing is computed again; a plan that does is one to compare with.
    ample = Platform(1, 32)
    plan = replace(step.result.plan, platform=ample)
    wide = compare(selective(), ample, systems=["schedopt_step"], plans={"now": plan})
    assert [figures(wide, name).step_ns for name in ("schedopt_step", "now")] == [24, 32]
    assert rows(wide)["schedopt_step"].note == "proven optimal"
    with pytest.raises(InputError, match="'now' is a plan for another chain"):
        compare(CHAIN, ample, systems=["alone"], plans={"now": plan})


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("throughput", ["alone", "in_pairs", "there_and_back", "stale", "halves"]),
        ("memory", ["there_and_back", "alone", "in_pairs", "stale", "halves"]),
        ("name", ["alone", "in_pairs", "there_and_back", "stale", "halves"]),
    ],
)
def test_those_that_fit_come_first(by: Order, expected: list[str]) -> None:
    found = compare(CHAIN, PLATFORM, systems=names)
    assert [row.system.name for row in found.ordered(by).rows] == expected


def test_a_plan_of_ones_own_is_a_row_like_the_others() -> None:
    alone = rows(compare(CHAIN, PLATFORM, systems=["alone"]))["alone"].result
    assert alone is not None
    assert alone.plan is not None
    found = compare(CHAIN, PLATFORM, systems=["alone"], plans={"now": alone.plan})
    assert figures(found, "now") == figures(found, "alone")
    assert found.missing == ()
    assert comparison_document(found)["rows"][1]["title"] == "a plan of yours"
    # Too large here, in a platform with less memory.
    small = Platform(2, 29, bandwidth="1GB/s")
    plan = replace(alone.plan, platform=small)
    assert rows(compare(CHAIN, small, systems=["alone"], plans={"now": plan}))["now"].outcome == (
        "too large"
    )
    for name, platform, rule in (
        ("now", PLATFORM, "'now' is a plan for another platform"),
        ("schedopt", small, "'schedopt' is the name of a system"),
    ):
        with pytest.raises(InputError, match=rule):
            compare(CHAIN, platform, systems=["alone"], plans={name: plan})
    other = replace(plan, chain=replace(CHAIN, input_bytes=CHAIN.input_bytes + 1))
    with pytest.raises(InputError, match="'now' is a plan for another chain"):
        compare(CHAIN, small, systems=["alone"], plans={"now": other})


def test_what_a_system_cannot_do_is_a_row() -> None:
    found = compare(CHAIN, PLATFORM, systems=["halves"])
    assert found.rows[0].outcome == "impossible"
    assert found.rows[0].note == "layers[0].backward_input_ns: absent, and a split needs it"


@pytest.mark.parametrize(
    ("most", "place", "name", "note"),
    [
        # F and B of 8 micro-batches.
        (15, "schedopt.simulation.events", "alone", "microbatches: 8 would make 16 events"),
        # The same on two GPUs, with activation and gradient between them: 8 times 6.
        (
            47,
            "schedopt.systems.list_scheduler",
            "gpipe",
            "microbatches: the run would have more than 47 operations and transfers",
        ),
    ],
    ids=["simulation", "scheduler"],
)
def test_more_than_can_be_laid_out_is_a_row(
    most: int, place: str, name: str, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, SYSTEMS[0], System("gpipe", "", "schedopt.systems.flushes:gpipe", ""))
    for limit, outcome in ((most, "impossible"), (most + 1, "fits")):
        monkeypatch.setattr(f"{place}.MOST_EVENTS", limit)
        (row,) = compare(
            CHAIN, Platform(gpus=2, memory=200, bandwidth="1GB/s"), systems=[name]
        ).rows
        assert row.outcome == outcome
        if outcome == "impossible":
            assert row.note == note


def test_a_step_is_rounded_up_to_what_a_system_can_do() -> None:
    found = compare(CHAIN, PLATFORM, systems=["alone", "in_pairs"], microbatches=7)
    assert (figures(found, "alone").microbatches, rows(found)["alone"].note) == (7, "")
    assert (figures(found, "alone").step_ns, figures(found, "in_pairs").step_ns) == (42, 48)
    assert (figures(found, "in_pairs").microbatches, rows(found)["in_pairs"].note) == (
        8,
        "a step of 8",
    )


@pytest.mark.parametrize(("asked", "tried"), [(8, [8]), (7, [7, 8])])
def test_what_cannot_be_done_is_not_tried_again(
    asked: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, System("never", "", "tests.systems.stand_ins:never", ""))
    found: list[int] = []
    monkeypatch.setattr(stand_ins, "asked_for", found)
    row = compare(CHAIN, PLATFORM, systems=["never"], microbatches=asked).rows[0]
    assert (row.outcome, row.note) == ("impossible", "microbatches: does not settle")
    assert found == tried


def test_bad_input_is_an_error_and_no_row() -> None:
    with pytest.raises(InputError, match=r"'alon' is not known.*alone, .*schedopt"):
        compare(CHAIN, PLATFORM, systems=["alon"])
    for wrong in ("alone", 3):
        with pytest.raises(InputError, match=rf"^systems: {wrong!r} is not a list of names. Give"):
            compare(CHAIN, PLATFORM, systems=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^systems: \[\] is not known"):
        compare(CHAIN, PLATFORM, systems=[[]])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"^chain: 1 is not a Chain"):
        compare(1, PLATFORM)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^platform: 2 is not a Platform"):
        compare(CHAIN, 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="microbatches"):
        compare(CHAIN, PLATFORM, microbatches=0)
    with pytest.raises(InputError, match="bucket_bytes"):
        compare(CHAIN, PLATFORM, bucket_bytes=0)
    with pytest.raises(InputError, match="time_limit"):
        compare(CHAIN, PLATFORM, systems=["schedopt"], time_limit=0)


def test_a_plan_that_is_not_valid_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, System("wrong", "", "tests.systems.stand_ins:wrong", ""))
    with pytest.raises(InvalidPlanError, match="the plan of wrong is not valid: o"):
        compare(CHAIN, PLATFORM, systems=["wrong"])


def test_an_interrupt_keeps_the_rows_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    pressing = System("pressing", "", "tests.systems.stand_ins:interrupting", "")
    install(monkeypatch, SYSTEMS[0], pressing, SYSTEMS[1])
    before = signal.getsignal(signal.SIGINT)
    done: list[tuple[int, int, str]] = []
    found = compare(CHAIN, PLATFORM, on_progress=lambda *words: done.append(words))
    assert signal.getsignal(signal.SIGINT) == before
    assert [row.system.name for row in found.rows] == ["alone"]
    assert found.missing == ("pressing", "stale", "schedopt", "schedopt_step")
    assert done == [(0, 5, "alone"), (1, 5, "pressing")]


def test_an_interrupt_of_a_search_keeps_its_best_and_ends() -> None:
    def press(done: int, total: int, name: str) -> None:
        if name == "schedopt":
            os.kill(os.getpid(), signal.SIGINT)

    found = compare(CHAIN, PLATFORM, systems=["schedopt", "schedopt_step"], on_progress=press)
    assert [row.system.name for row in found.rows] == ["schedopt"]
    assert found.missing == ("schedopt_step",)
