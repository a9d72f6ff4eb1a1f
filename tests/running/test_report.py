"""What was measured beside what was predicted, on synthetic layers in one process."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from schedopt import InputError, Platform, Scope, Stage, check, solve
from schedopt.cli.run_tables import print_report
from schedopt.drawing import save_picture
from schedopt.plan import Plan
from schedopt.profiling import load_model, profile
from schedopt.running import BACKENDS, Job, Report, execute, make_trace
from schedopt.running.report import RUN_FORMAT
from schedopt.running.timelines import chart_run
from schedopt.tied_weights import copy_tied_weights
from tests.examples import contiguous, general, recomputed, split_backward

STRETCH = 200_000
"""Nanoseconds of the examples take so many times as long."""


PLANS = {
    "contiguous": contiguous,
    "general": general,
    "recomputed": recomputed,
    "split": split_backward,
}


@cache
def report_of(make: str) -> Report:
    plan = PLANS[make]()
    assert check(plan) == ()
    job = Job(plan=plan, model=None, backend="logical", microbatches=6, steps=2, stretch=STRETCH)
    return execute(job)


def test_the_prediction_is_what_was_worked_out_by_hand() -> None:
    planned = report_of("contiguous").predicted
    # F0 0-2, link, F1, link, F2, B2 to 10, link, B1 to 14, link, B0: 5 and 3 in flight. The
    # last backward of stage 2 ends at 10 and then every 4 ns; all is over 5 micro-batches later.
    assert planned.live == (5, 3, 1)
    assert planned.period_ns == 4
    assert planned.weights_bytes == (10, 20, 30)
    assert planned.lengths_ns["0F"] == planned.lengths_ns["2B"] == 2
    assert planned.lengths_ns["0SEND_F"] == planned.lengths_ns["2SEND_B"] == 1
    assert len(planned.memory_bytes) == 3


@pytest.mark.parametrize("make", PLANS)
def test_what_lies_in_memory_is_as_predicted(make: str) -> None:
    report = report_of(make)
    assert report.measured.live == report.predicted.live
    # Storages are at least 4 bytes, and a layer hands on one number where the plan says 1 byte.
    for found, planned in zip(
        report.measured.saved_bytes, report.predicted.saved_bytes, strict=True
    ):
        assert found is not None
        assert planned is not None
        assert abs(found - planned) <= 64


def test_a_replayed_step_takes_no_less_than_the_plan() -> None:
    report = report_of("contiguous")
    assert report.measured.step_ns >= report.predicted.step_ns
    assert report.measured.period_ns is not None
    assert report.measured.period_ns >= 4


def test_the_document_is_json_and_holds_both() -> None:
    report = report_of("general")
    document = json.loads(json.dumps(report.to_json()))
    assert document["format"] == RUN_FORMAT
    assert document["plan_period_ns"] == 6
    assert document["gradient_difference"] is None
    # Sleeping layers have no optimizer of their own.
    assert report.other_states == []
    for name in ("predicted", "measured"):
        found = document[name]
        assert {"period_ns", "step_ns", "bubble", "memory_bytes", "live"} <= found.keys()
        assert len(found["memory_bytes"]) == 2


def test_the_trace_shows_every_operation_of_the_plan_and_of_each_step() -> None:
    report = report_of("contiguous")
    events = make_trace(report)["traceEvents"]
    for process in (1, 2):
        names = sorted(
            event["name"]
            for event in events
            if event["ph"] == "X" and event["pid"] == process and event["cat"] in "FB"
        )
        assert names == sorted(f"{s}{kind}{i}" for s in range(3) for kind in "FB" for i in range(6))
    last = max(
        event["ts"] + event["dur"] for event in events if event.get("pid") == 1 if "ts" in event
    )
    assert last == pytest.approx(report.predicted.step_ns / 1000)
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "rank 2, GPU 2" in threads


def test_the_picture_has_two_rows_a_rank(tmp_path: Path) -> None:
    chart = chart_run(report_of("general"))
    assert [row.name for row in chart.gpus] == ["0 plan", "0 replayed", "1 plan", "1 replayed"]
    assert all(len(row.boxes) == 6 * 4 for row in chart.gpus[:1])
    save_picture(chart, tmp_path / "run.svg")
    assert b"0 replayed" in (tmp_path / "run.svg").read_bytes()


def test_the_picture_says_which_step_it_shows() -> None:
    once = report_of("general")
    thrice = Report(once.job, once.outcome, 0.0)
    vars(thrice)["steps"] = 3 * once.steps
    last = "6 micro-batches, logical; replayed: "
    assert chart_run(once).facts[-1] == f"{last}one step"
    assert chart_run(thrice).facts[-1] == f"{last}the step of median length of 3"


def test_the_picture_tells_how_busy_ranks_are_in_a_step_of_its_own_length() -> None:
    report = report_of("contiguous")
    slow = Report(replace(report.job, stretch=STRETCH / 2), report.outcome, 0.0)
    assert slow.measured.step_ns > 1.5 * slow.predicted.step_ns
    rows = {row.name: row for row in chart_run(slow).gpus}
    # Each rank works 2 + 2 ns on each of 6 micro-batches in a step of 36 ns, however long the run.
    assert [rows[f"{rank} plan"].busy for rank in range(3)] == [Fraction(24, 36)] * 3
    idle = [1 - float(row.busy) for name, row in rows.items() if name.endswith("replayed")]
    assert sum(idle) / 3 == pytest.approx(slow.measured.bubble)


def test_where_they_part_most_comes_first() -> None:
    found = report_of("contiguous").discrepancies
    apart = [abs(one.measured_ns - one.predicted_ns) for one in found]
    assert apart == sorted(apart, reverse=True)
    assert {one.name for one in found} >= {"0F", "1F", "2F", "0B", "1B", "2B"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("microbatches", 0),
        ("steps", 0),
        ("seed", -1),
        ("stretch", 0.0),
        ("device", "cuda"),
        ("backend", "mpi"),
        ("model", contiguous),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(field: str, value: object) -> None:
    given = {"plan": contiguous(), "model": None, "backend": "logical", "microbatches": 4}
    with pytest.raises(InputError, match=field):
        Job(**{**given, field: value})  # type: ignore[arg-type]


def test_a_factory_in_the_script_itself_runs_only_where_there_is_one_process() -> None:
    given = {"plan": contiguous(), "model": "__main__:build", "microbatches": 4}
    for backend in BACKENDS:
        if backend == "logical":
            Job(**given, backend=backend)  # type: ignore[arg-type]
            continue
        with pytest.raises(InputError, match="model: __main__ is another module in each rank"):
            Job(**given, backend=backend)  # type: ignore[arg-type]


MODULE = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)), torch.randn(4, 64)
"""
KEPT = (2 * (64 * 64 + 64) * 4 + 2 * 4, 2 * (64 * 32 + 32) * 4 + 2 * 4)
"""Of the layers with parameters: two moments of each in single precision, and two counters."""


def test_another_optimizer_than_that_of_the_plan_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "three_layers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    name = "three_layers:build"
    chain = profile(load_model(name), optimizer="adamw", warmup=0, repeats=2, min_share=0)
    plan = solve(
        chain,
        Platform(gpus=2, memory="1M"),
        scope=Scope(allocation="fixed"),
        stages=(Stage(layers=(0, 0), gpus=(0,)), Stage(layers=(1, 2), gpus=(1,))),
    ).plan
    assert plan is not None
    unknown = replace(chain, layers=tuple(replace(a, optimizer_bytes=None) for a in chain.layers))
    cases: tuple[tuple[Plan, str, tuple[int, int], list[tuple[int, int, int]]], ...] = (
        (plan, "adamw", KEPT, []),
        (plan, "adam", KEPT, []),
        (plan, "sgd", (0, 0), [(0, KEPT[0], 0), (1, KEPT[1], 0)]),
        (replace(plan, chain=unknown), "sgd", (0, 0), []),
    )
    for one, optimizer, found, told in cases:
        run = {"plan": one, "model": name, "microbatches": 2, "steps": 1, "optimizer": optimizer}
        report = execute(Job(**run, backend="logical"))  # type: ignore[arg-type]
        assert report.optimizer_bytes == found
        assert report.other_states == told
        print_report(report)
        said = " ".join(capsys.readouterr().out.split())
        words = (
            "Note: the optimizer keeps 0 B of stage 0 (and other bytes of 1 more), in the plan "
            "33.29 KB: the plan was made for another optimizer. Train with that one, or profile "
            "with this one and solve again."
        )
        assert (words in said) == bool(told)
        assert report.to_json()["optimizer_bytes"] == found


TIED = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    shared = nn.Linear(64, 64)
    return nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(64, 8)), torch.randn(4, 64)
"""


def test_copies_in_one_stage_are_no_sign_of_another_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tied_layers.py").write_text(TIED)
    monkeypatch.syspath_prepend(tmp_path)
    model = load_model("tied_layers:build")
    chain = profile(model, optimizer="adamw", warmup=0, repeats=2, min_share=0)
    last = len(chain.layers) - 1
    plan = solve(
        copy_tied_weights(chain),
        Platform(gpus=2, memory="1M"),
        scope=Scope(allocation="fixed"),
        stages=(Stage(layers=(0, last - 1), gpus=(0,)), Stage(layers=(last, last), gpus=(1,))),
    ).plan
    assert plan is not None
    for optimizer, told in (("adamw", []), ("sgd", [1])):
        report = execute(
            Job(
                plan=plan,
                model="tied_layers:build",
                microbatches=2,
                steps=1,
                optimizer=optimizer,
                backend="logical",
            )
        )
        # The plan counts two copies in stage 0, which are one parameter there.
        assert [stage for stage, *_ in report.other_states] == told
