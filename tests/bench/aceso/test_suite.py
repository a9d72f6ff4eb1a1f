"""Published plans against bounds and plans of ours: small tables, and the results that are kept."""

from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import schedopt.bench.aceso.inputs as inputs_module
from schedopt import Chain, Plan, Platform, Problem, Stage
from schedopt.account import memory
from schedopt.bench.aceso.inputs import Inputs, list_inputs, merge, shortest_step
from schedopt.bench.aceso.suite import SUITE, plan_cases, problem_cases
from schedopt.bench.published.tables import Tables
from schedopt.bench.records import RecordFile, load_records, of_family
from schedopt.bench.suite import Effort, measure
from schedopt.checking import check
from schedopt.errors import InputError
from schedopt.problem import training_step, widest_step
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import flush_step
from schedopt.systems.flushes import one_f_one_b_order
from tests.bench.suites import RESULTS, holds, one_figure
from tests.cli.commands import printed
from tests.layers import layer

SHIPPED = RESULTS.parent / "instances" / "published"


def tables(folder: Path, *plans: str) -> Path:
    """Return a folder with some of the plans."""
    shutil.copytree(SHIPPED / "mist", folder / "mist")
    path = folder / "mist" / "plans.json"
    document = json.loads(path.read_text())
    at = document["columns"].index("plan")
    document["rows"] = [row for row in document["rows"] if row[at] in plans]
    path.write_text(json.dumps(document))
    return folder


def test_all_published_plans_are_there() -> None:
    found = list_inputs(Tables(SHIPPED))
    assert sum(map(len, found.values())) == 37
    assert len(found) == 11
    batches = {(inputs.model, inputs.gpus): inputs.batch for inputs in found}
    assert batches["1.3B", 2] == 32
    assert batches["40B", 64] == 1024


def inputs(gpus: int = 2) -> Inputs:
    return Inputs(Tables(SHIPPED), "a10g", "1.3B", 24, gpus, 32)


def test_pieces_take_what_their_operators_take() -> None:
    chain, _ = inputs().profile.of_size(1)
    pieces = merge(chain)
    assert len(pieces.layers) == 1 + 4 * 24 + 1
    for name in ("forward_ns", "backward_ns", "weight_bytes", "saved", "optimizer_bytes"):
        sums = [sum(getattr(layer, name) for layer in each.layers) for each in (chain, pieces)]
        assert sums[0] == sums[1], name
    # Behind the scores come what enters the projection and the sum past it.
    assert pieces.layers[2].activation_bytes == chain.layers[6].activation_bytes
    assert pieces.layers[2].saved_input_bytes == chain.layers[3].saved_input_bytes
    assert pieces.input_bytes == chain.input_bytes


def test_a_plan_of_pieces_costs_what_it_costs_of_operators() -> None:
    """Two stages, both with recompute, by either chain."""
    (chain, _), count = inputs().profile.of_size(1), 4
    pieces = merge(chain)
    behind = [0]
    for piece in pieces.layers:
        first, _, last = piece.name.partition(" to ")
        names = [layer.name for layer in chain.layers]
        assert names.index(first) == behind[-1]
        behind.append(names.index(last) + 1)
    found = []
    for layers, place in ((pieces, range(len(behind))), (chain, behind)):
        stages = [
            Stage(
                layers=(place[first], place[end] - 1),
                gpus=(gpu,),
                recompute=((place[again], place[again + 1] - 1),),
            )
            for gpu, (first, end, again) in enumerate([(0, 50, 2), (50, 98, 54)])
        ]
        config = SystemConfig(chain=layers, platform=inputs().platform, microbatches=count)
        plan = flush_step(config, stages, one_f_one_b_order(2, count))
        assert {violation.kind for violation in check(plan)} <= {"memory"}
        found.append((plan.pattern.period_total_ns, memory(plan)))
    assert found[0] == found[1]


@pytest.mark.nightly
def test_the_bound_lies_below_every_plan_of_the_table() -> None:
    """With the memory that theirs needs, and higher with less."""
    one = inputs()
    plan = one.score("a10g-aceso-1.3B-p2").plan
    assert plan is not None
    step = plan.pattern.period_total_ns
    room = max(need.peak_bytes for need in memory(plan))
    bound = one.bound_ns(room, step)
    assert bound <= step
    # Two GPUs do all the work, and the head comes behind all of it.
    chain, _ = one.profile.of_size(2)
    work = 16 * sum(layer.forward_ns + layer.backward_ns for layer in chain.layers)
    assert bound > work // 2 * 99 // 100
    assert one.bound_ns(room * 3 // 4, 2 * step) >= bound


def small_steps() -> list[Problem]:
    """Steps of 8 samples on two GPUs, in micro-batches of 1, 2 and 4: those of 2 are the best."""
    found = []
    for samples, forward_ns in ((1, 10), (2, 15), (4, 40)):
        one = layer(forward_ns, 2 * forward_ns, weight=10)
        one = replace(one, parameter_bytes=10, gradient_bytes=0, optimizer_bytes=0)
        chain = Chain(layers=(one,) * 2, samples=samples)
        found.append(training_step(chain, Platform(2, 1000), 8, widest_step(chain)))
    return found


def test_the_best_size_of_micro_batches_is_found_and_nothing_known_is_lost() -> None:
    one, two, four = small_steps()
    effort = Effort(1, 0.5)
    # What was compiled is loaded, and ortools imported, in the time of the first.
    shortest_step([one], Effort(1, 3.0))
    best = shortest_step([one, two, four], Effort(1, 2.0))
    assert best is not None
    # Two replicas each do two micro-batches of two layers; then gradients, of no bytes, are sent.
    assert best.chain.samples == 2
    assert best.pattern.period_total_ns == 2 * 2 * 45 + 1
    assert shortest_step([one, two, four], effort, best) is best
    longer = shortest_step([one], effort)
    assert longer is not None
    found = shortest_step([one, two], effort, longer)
    assert found is not None
    assert found.pattern.period_total_ns == best.pattern.period_total_ns


def test_no_size_of_micro_batches_is_left_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one takes longer than its share; the rest is for the one with the shortest step."""
    problems = small_steps()
    plan = shortest_step(problems[1:2], Effort(1, 2.0))
    now, asked = [0.0], []

    def search(problem: Problem, limit_s: float, effort: Effort, known: Plan | None) -> Plan | None:
        asked.append((problem.chain.samples, limit_s))
        now[0] += limit_s * (1.5 if len(asked) == 1 else 1.0)
        return plan if problem is problems[1] else None

    monkeypatch.setattr(inputs_module, "_search", search)
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    assert shortest_step(problems, Effort(1, 60.0)) is plan
    assert asked == [(1, 30.0), (2, 7.5), (4, 3.75), (2, 3.75)]


def test_a_request_to_stop_ends_the_search_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def search(problem: Problem, _limit_s: float, _effort: Effort, _known: Plan | None) -> None:
        asked.append(problem.chain.samples)
        if len(asked) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(inputs_module, "_search", search)
    assert shortest_step(small_steps(), Effort(1, 60.0)) is None
    assert asked == [1, 2]


@pytest.mark.nightly
def test_a_small_table_is_measured_and_goes_on(tmp_path: Path) -> None:
    folder = tables(tmp_path, "a10g-megatron-1.3B-p2", "a10g-aceso-1.3B-p1")
    file, effort = RecordFile(None), Effort(1, 2.0)

    def batches() -> Any:
        yield [*plan_cases(Tables(folder))]
        yield [*problem_cases(Tables(folder), file)]

    assert measure(batches(), effort, file)
    plans, problems = (of_family(file.records, name) for name in ("plans", "problems"))
    assert [row["plan"] for row in plans] == ["a10g-aceso-1.3B-p1", "a10g-megatron-1.3B-p2"]
    assert len(problems) == 1
    assert all(row["step_exact"][0] >= problems[0]["bound_exact"][0] for row in plans)
    assert plans[1]["measured_exact"] is not None
    before = len(file.records)
    assert measure(batches(), effort, file)
    assert len(file.records) == before


def test_what_is_not_as_it_should_be_is_told() -> None:
    records = load_records(RESULTS / "aceso.jsonl", SUITE.families)
    row = next(record for record in records if record.family == "plans")
    low = [one_figure(record, step_exact=[1, 1]) if record is row else record for record in records]
    assert any(f"{row['plan']}: 100.0% below its bound" in line for line in SUITE.misses(low))
    none = [
        one_figure(one, roomy_exact=None) if one.family == "problems" else one for one in records
    ]
    assert any("we found no plan in the memory" in line for line in SUITE.misses(none))


def test_the_results_are_of_the_shipped_tables() -> None:
    records = load_records(RESULTS / "aceso.jsonl", SUITE.families)
    rows = of_family(records, "plans")
    assert [row["plan"] for row in rows] == [
        line["plan"] for lines in list_inputs(Tables(SHIPPED)).values() for line in lines
    ]
    assert len(of_family(records, "problems")) == 11
    assert not [line for line in SUITE.misses(records) if "below its bound" in line]
    holds(SUITE, records, "a10g-megatron-40B-p16")
    # Steps by the one account, and never below their bound.
    for problem in of_family(records, "problems"):
        for name in ("ours", "roomy"):
            step = problem[f"{name}_exact"]
            assert step is None or step[0] / step[1] >= problem["bound_exact"][0]


def test_gpus_without_a_preset_are_refused(tmp_path: Path) -> None:
    folder = tables(tmp_path, "a10g-megatron-1.3B-p2")
    path = folder / "mist" / "plans.json"
    document = json.loads(path.read_text())
    document["rows"][0][document["columns"].index("set")] = "z9"
    path.write_text(json.dumps(document))
    (found,) = list_inputs(Tables(folder))
    with pytest.raises(InputError, match="there is no preset 'z9'"):
        found.score("a10g-megatron-1.3B-p2")


def test_help_says_that_the_limit_counts_cpu_seconds() -> None:
    words = " ".join(printed("bench", "aceso", "--help").replace("│", " ").split())
    assert "CPU seconds for each search" in words
    assert "Seconds for each run" not in words
