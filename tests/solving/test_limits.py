"""What ends a solve: its gap, another thread, and what its options must be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schedopt import (
    Chain,
    Gpu,
    InputError,
    Layer,
    Platform,
    Problem,
    Result,
    Scope,
    effort,
    solve,
)
from schedopt.bench.periodic import halves
from schedopt.result import Bound
from schedopt.solving import Progress, Run, options, portfolio
from schedopt.solving.registry import load_solver

EQUAL = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
LONG = Layer(forward_ns=5, backward_ns=7, weight_bytes=0, activation_bytes=1)
# 3, 3, 3 and 12: the longest layer takes 12, an even split 6 and 15.
CHAIN, PLATFORM = Chain(layers=(EQUAL, EQUAL, EQUAL, LONG)), Platform(2, 99)


def test_a_search_ends_within_its_gap() -> None:
    near = solve(CHAIN, PLATFORM, gap=0.25)
    assert near.solver == "even_split"
    assert not any(phase.solver == "next_fit" for phase in near.ladder)
    assert (near.status, near.period, near.gap) == ("feasible", Fraction(15), Fraction(1, 4))
    assert near.verdict == "proven within 25.00% of the best with any k"
    nearer = solve(CHAIN, PLATFORM, gap=0.24)
    assert (nearer.status, nearer.period) == ("optimal", Fraction(12))


@pytest.mark.parametrize(
    "scope",
    [
        Scope.usual(),
        Scope.usual(recompute=True),
        Scope(),
        Scope(microbatches=8),
        Scope(allocation="general", microbatches=8),
        Scope(engine="torch", microbatches=8),
    ],
)
def test_who_asks_to_stop_before_anything_is_known_has_a_plan_at_once(scope: Scope) -> None:
    stop = threading.Event()
    stop.set()
    result = solve(CHAIN, PLATFORM, scope=scope, stop=stop)
    assert result.plan is not None
    # So does who has no time.
    assert solve(CHAIN, PLATFORM, scope=scope, time_limit=1e-6).plan is not None


def test_a_solver_that_is_named_does_not_begin_once_it_is_asked_to_stop() -> None:
    stop = threading.Event()
    stop.set()
    assert solve(CHAIN, PLATFORM, solver="even_split", stop=stop).ladder == ()


def test_other_freedoms_are_tried_briefly_where_all_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[float | None] = []

    def load_noting(name: str) -> Any:
        return (
            (lambda _, run: left.append(run.remaining()))
            if name == "periodic"
            else load_solver(name)
        )

    monkeypatch.setattr(portfolio, "load_solver", load_noting)
    result = solve(halves(CHAIN), PLATFORM, gap=0.25, time_limit=1000)
    assert (result.solver, result.gap) == ("even_split", Fraction(1, 4))
    assert len(left) == 1
    assert left[0] is not None
    assert left[0] <= portfolio.BRIEFLY_S


def test_the_verdict_says_the_gap_of_short_and_of_long_patterns_rounded_up() -> None:
    problem = Problem(chain=CHAIN, platform=PLATFORM, scope=Scope(max_k=2))
    plan = solve(CHAIN, PLATFORM, solver="even_split").plan
    assert plan is not None

    def verdict(**bounds: int) -> str:
        scopes = {"one": Scope(), "two": Scope(max_k=2), "many": Scope(max_k=None)}
        proven = [
            Bound(exact=(value, 1000), scope=scopes[name], proof="by hand")
            for name, value in bounds.items()
        ]
        return Result(problem=problem, status="feasible", plan=plan, bounds=tuple(proven)).verdict

    assert verdict() == "not proven optimal"
    assert verdict(two=10_000) == "proven within 50.00% of the best with k up to 2"
    assert verdict(one=14_999, two=10_000, many=5_000) == (
        "proven within 0.01% of the best with k = 1 and within 50.00% of the best with k up to 2 "
        "and within 200.00% of the best with any k"
    )
    # What is no better than what holds for longer patterns is not said again.
    assert verdict(one=10_000, many=10_000) == "proven within 50.00% of the best with any k"
    assert verdict(one=15_000, two=12_000) == (
        "proven the best with k = 1 and within 25.00% of the best with k up to 2"
    )


def test_another_thread_ends_a_solve_with_the_best_so_far() -> None:
    stop, found = threading.Event(), threading.Event()
    results: list[Result] = []

    def show(progress: Progress) -> None:
        if progress.period is not None:
            found.set()

    def search() -> None:
        chain = Chain(layers=(LONG, EQUAL) * 8)
        scope = Scope(allocation="general", max_k=4)
        results.append(
            solve(
                chain, Platform(3, 9), scope=scope, time_limit=None, gap=0, stop=stop,
                on_progress=show,
            )
        )  # fmt: skip

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    assert found.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert results[0].plan is not None


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ("time_limit", {"time_limit": "5"}),
        ("time_limit", {"time_limit": True}),
        ("time_limit", {"time_limit": float("nan")}),
        ("gap", {"gap": "0.1"}),
        ("gap", {"gap": -0.1}),
        ("gap", {"gap": float("inf")}),
        ("seed", {"seed": "a"}),
        ("seed", {"seed": None}),
        ("seed", {"seed": 1.5}),
        ("seed", {"seed": -1}),
        ("workers", {"workers": 0}),
        ("workers", {"workers": -1}),
        ("workers", {"workers": 1.5}),
        ("work_limit", {"work_limit": 0}),
        ("initial", {"initial": "x"}),
        ("stages[0]", {"stages": [(0, 3)]}),
        ("on_progress", {"on_progress": 5}),
        ("solver", {"solver": 5}),
        ("stop", {"stop": True}),
    ],
)
def test_an_option_of_the_wrong_type_is_an_input_error(field: str, typed: Any) -> None:
    if "stages" in typed:
        typed["scope"] = Scope(allocation="fixed")
    with pytest.raises(InputError) as caught:
        solve(CHAIN, PLATFORM, **typed)
    assert caught.value.field == field
    assert caught.value.way_out


def test_a_search_starts_from_a_result() -> None:
    first = solve(CHAIN, PLATFORM, solver="contiguous")
    again = solve(CHAIN, PLATFORM, scope=Scope(), initial=first)
    assert (again.solver, again.period) == ("initial", first.period)
    nothing = solve(CHAIN, Platform(2, 0), scope=Scope())
    assert nothing.plan is None
    assert solve(CHAIN, PLATFORM, scope=Scope(), initial=nothing).solver != "initial"


def test_numbers_of_numpy_are_numbers() -> None:
    layers = np.array([EQUAL, EQUAL, EQUAL, LONG], dtype=object)
    numbers: Any = {
        "gpus": np.int64(2),
        "memory": np.array([99, 98]),
        "reserved": np.int32(1),
        "speed": np.int64(2),
        "bandwidth": np.int64(10**9),
        "latency": np.int16(3),
    }
    platform = Platform(**numbers)
    made: Any = {"layers": layers}
    assert Chain(**made) == CHAIN
    assert platform.gpus == tuple(
        Gpu(memory_bytes=size, reserved_bytes=1, speed=Decimal(2)) for size in (99, 98)
    )
    assert platform.transfer_ns(7, 0, 1) == 10
    numpys: Any = {
        "seed": np.int64(3),
        "workers": np.int8(1),
        "work_limit": np.int64(10),
        "time_limit": np.float64(5),
        "gap": np.float32(0.5),
    }
    result = solve(CHAIN, platform, scope=Scope(), **numpys)
    assert type(result.seed) is int
    assert result.plan is not None


def test_threads_are_few_for_each_core_unless_the_work_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def load(name: str) -> Callable[[Problem, Run], None]:
        return lambda problem, run: seen.append(run.workers)

    monkeypatch.setattr(portfolio, "load_solver", load)
    monkeypatch.setattr(options, "usable_cores", lambda: 2)
    for asked in ({}, {"workers": 1}, {"workers": 64}, {"workers": 64, "work_limit": 10}):
        solve(CHAIN, PLATFORM, solver="contiguous", **asked)  # type: ignore[arg-type]
    assert seen == [2, 1, 16, 64]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({}, 8),
    ],
)
def test_the_quota_of_a_container_limits_the_cores(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(effort, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8), raising=False)
    assert effort.usable_cores() == cores


def test_what_runs_side_by_side_hears_of_each_other_and_ends_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The searcher finds 12 only after the prover has said that nothing is below.
    proven = threading.Event()
    best = solve(CHAIN, PLATFORM, solver="contiguous").plan

    def search(problem: Problem, run: Run) -> None:
        assert proven.wait(60)
        assert run.bound(problem.scope) == 12
        assert best is not None
        run.report(best)

    def prove(problem: Problem, run: Run) -> None:
        run.report_bound(12, problem.scope, "by hand")
        proven.set()
        while not run.stopped():
            threading.Event().wait(0.01)

    def load(name: str) -> Callable[[Problem, Run], None]:
        return {"general": search, "general_cpsat": prove}.get(name, lambda problem, run: None)

    monkeypatch.setattr(portfolio, "load_solver", load)
    monkeypatch.setattr(portfolio, "lower_bounds", lambda problem, stopped: _nothing(problem))
    scope = Scope(allocation="general", memory="peak")
    result = solve(CHAIN, PLATFORM, scope=scope, time_limit=None)
    assert (result.status, result.solver) == ("optimal", "general")
    names = [phase.solver for phase in result.ladder if not phase.freedom]
    assert names[-2:] == ["general", "general_cpsat"]


def _nothing(problem: Problem) -> Any:
    scope = Scope(allocation="general", max_k=None, memory="peak")
    yield Bound(exact=(1, 1), scope=scope, proof="by hand")


def test_what_runs_side_by_side_has_the_share_of_its_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: dict[str, float] = {}

    def load(name: str) -> Callable[[Problem, Run], None]:
        def look(problem: Problem, run: Run) -> None:
            left.setdefault(name, run.remaining() or 0)

        return look

    monkeypatch.setattr(portfolio, "load_solver", load)
    # Weights: 24 of the search, 1 of orders, and 1 of what is not allowed.
    solve(CHAIN, PLATFORM, scope=Scope(allocation="general", memory="peak"), time_limit=1000)
    assert 1000 * 24 / 26 - 20 < left["general"] <= 1000 * 24 / 26
    assert abs(left["general_cpsat"] - left["general"]) < 20
