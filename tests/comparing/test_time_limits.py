"""What there is no time for, when systems are put side by side."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from schedopt import Plan, Problem, compare
from schedopt.comparing import builder, our_step
from schedopt.comparing.comparison import Comparison
from schedopt.systems.catalogue import System
from schedopt.systems.config import SystemConfig
from tests.comparing.test_comparison import rows
from tests.systems import stand_ins
from tests.systems.stand_ins import CHAIN, PLATFORM, SYSTEMS, install


def test_a_system_without_an_end_leaves_time_for_our_plans(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, *SYSTEMS, System("endless", "", "tests.systems.stand_ins:endless", ""))
    monkeypatch.setattr(builder, "SLOW", ("in_pairs",))
    config = SystemConfig(chain=CHAIN, platform=PLATFORM, microbatches=8)
    before, begin = signal.getsignal(signal.SIGALRM), time.monotonic()
    found = compare(
        CHAIN,
        PLATFORM,
        systems=["in_pairs", "alone", "endless", "schedopt"],
        time_limit=3,
        plans={"now": stand_ins.alone(config)},
    )
    # Those that may take long come last.
    assert {name: row.outcome for name, row in rows(found).items()} == {
        "now": "fits",
        "alone": "fits",
        "schedopt": "fits",
        "endless": "out of time",
        "in_pairs": "out of time",
    }
    assert time.monotonic() - begin >= 2
    assert found.rows[-1].outcome == "out of time"
    found.save(tmp_path / "c.json")
    assert [row.outcome for row in Comparison.load(tmp_path / "c.json").rows] == [
        row.outcome for row in found.rows
    ]
    assert signal.getsignal(signal.SIGALRM) == before
    # Nothing is left for our plans: so the system has all of it.
    alone = compare(CHAIN, PLATFORM, systems=["endless"], time_limit=0.1)
    assert alone.rows[0].note == "no time was left for it"


def test_our_step_does_without_a_start_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_for_ever(plan: Plan, problem: Problem) -> Plan | None:
        while True:
            time.sleep(1)

    install(monkeypatch, System("flushed", "", "tests.systems.stand_ins:flushed", ""))
    monkeypatch.setattr(our_step, "still_valid", check_for_ever)
    found = compare(CHAIN, PLATFORM, systems=["flushed", "schedopt_step"], time_limit=1)
    step = rows(found)["schedopt_step"]
    assert step.outcome == "fits"
    assert not step.note.startswith("that of flushed")
