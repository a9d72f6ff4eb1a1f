"""Dutta, Chaki and De, TiMePReSt: the order nF1B, its version difference, and its passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import product
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final

from schedopt.account.timeline import Timeline
from schedopt.bench.claims.plans import equal_stages
from schedopt.bench.claims.result import (
    Case,
    Computed,
    Picture,
    Step,
    Table,
    announced,
    differing,
    sole,
    table_of,
)
from schedopt.checking import check
from schedopt.drawing.charts import chart_simulation
from schedopt.drawing.picture import draw_picture
from schedopt.plan import Kind, Plan
from schedopt.problem import Scope
from schedopt.rule import Rule
from schedopt.simulation import simulate
from schedopt.systems.config import SystemConfig
from schedopt.systems.timeprest import timeprest_plan, timeprest_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS: Final[dict[str, Callable[[int], int]]] = {
    "1": lambda n: 1,
    "2": lambda n: 2,
    "N": lambda n: n,
    "2N": lambda n: 2 * n,
}
"""How long a backward of a mini-batch takes for N micro-batches, in their forwards."""
SOURCE_LENGTH: Final = "1"
"""As in the figures of the source."""
STEADY: Final = 4
"""Mini-batches of the steady state that are measured."""
EARLY: Final = 5
"""Mini-batches from the first on whose forwards are measured."""
FIGURES: Final = ((4, 2), (4, 4), (3, 3), (5, 3))
"""W and N of the figures 7a, 7b, 9a, and 9b and 10."""
STATEMENTS: Final = (
    # W, N, mini-batch, micro-batch (None: the backward), the last update that it uses.
    *((4, 2, mini, None, update) for mini, update in ((3, 1), (4, 2), (5, 3))),
    *((4, 2, mini, 0, update) for mini, update in ((5, 1), (3, 0), (4, 0))),
    *((4, 4, mini, None, update) for mini, update in ((2, 1), (3, 2))),
    *((4, 4, 3, micro, update) for micro, update in enumerate((0, 0, 1, 1))),
)
"""What the text says of the figures 7a and 7b."""


def config_of(stages: int, count: int, backward: int) -> SystemConfig:
    """Return W equal stages; F lasts N ns, so that B can be any whole number of forwards."""
    return equal_stages(stages, stages, (count, backward), microbatches=count)


@dataclass(frozen=True)
class Run:
    """A run from an empty pipeline as one step, with backwards as long as several forwards."""

    stages: int
    count: int
    backward: int
    mini_batches: int
    plan: Plan

    @cached_property
    def timeline(self) -> Timeline:
        """When its operations run."""
        return Timeline(self.plan)

    @property
    def steady(self) -> range:
        """Mini-batches, from 0, after those that fill the pipeline and before it runs out."""
        fill = _filling(self.stages, self.count, self.backward)
        return range(fill, fill + STEADY)

    def span_ns(self, kind: Kind, stage: int, micro_batch: int) -> tuple[int, int]:
        """Return start and end of an operation."""
        at = self.timeline.at(kind, stage, micro_batch)
        return at.start_ns, at.end_ns

    def backward_ns(self, mini_batch: int, stage: int) -> tuple[int, int]:
        """Return start and end of the backward of a mini-batch, from 0, in a stage."""
        return self.span_ns("B", stage, mini_batch * self.count)

    def points(self, time_ns: int) -> int:
        """Return a time in time points, which are whole."""
        points, rest = divmod(time_ns, self.count)
        assert not rest
        return points

    def through(self, instant_ns: int) -> int:
        """Return how many mini-batches are through their backward in all stages."""
        return sum(self.backward_ns(i, 0)[1] <= instant_ns for i in range(self.mini_batches))

    def version_difference(self, mini_batch: int) -> int:
        """Return i, from 1, less the mini-batches that are through when its backward starts."""
        start, _ = self.backward_ns(mini_batch - 1, self.stages - 1)
        return mini_batch - self.through(start)

    def order(self, stage: int) -> str:
        """Return what a GPU runs, a letter each."""
        own = [
            (run.start_ns, operation.kind)
            for operation, _, run in self.timeline.operations()
            if operation.stage == stage
        ]
        return "".join(kind for _, kind in sorted(own))


def _filling(stages: int, count: int, backward: int) -> int:
    """Return at least how many mini-batches the first GPU begins before a backward comes to it."""
    return (stages * (backward + 1) + count) // count + 1


def run_timeprest(stages: int, count: int, backward: int, mini_batches: int | None = None) -> Run:
    """Run mini-batches through W stages, backwards first; nothing bounds what runs ahead.

    The backward of a mini-batch takes as long as `backward` forwards of one of its N micro-batches.
    By default there are enough mini-batches to see the steady state.
    """
    config = config_of(stages, count, backward)
    total = mini_batches or 2 * _filling(stages, count, backward) + STEADY
    rule = Rule(update_every=count, backward_reads="live")
    scheduler = timeprest_run(config, rule, config.pipeline(), total * count, bounded=False)
    scheduler.settle()
    scope = Scope(allocation="general", max_k=None, microbatches=total * count)
    plan = scheduler.plan(scheduler.step(total * count), scope)
    return Run(stages, count, backward, total, plan)


def measured(step: Step, largest: int, names: Iterable[str] = tuple(LENGTHS)) -> list[Case]:
    """Return what is measured on each run, for W and N from 2 and the lengths of backwards."""
    runs = product(names, range(2, largest + 1), range(2, largest + 1))
    return [_measure(*run) for run in announced(step, "B = {}, W = {}, N = {}", runs)]


@cache
def _measure(name: str, stages: int, count: int) -> Case:
    run = run_timeprest(stages, count, LENGTHS[name](count))
    last, pairs = stages - 1, [*product(run.steady, range(stages))]
    between = [run.order(s).split("B") for s in range(stages)]

    def start(mini: int, stage: int) -> int:
        return run.backward_ns(mini, stage)[0]

    v = sole(run.version_difference(i + 1) for i in run.steady)
    arrives, _ = run.backward_ns(0, 0)
    case = {"W": stages, "N": count, "B": name}
    forwards = []
    for mini in range(min(EARLY, run.mini_batches)):
        first, end = mini * count, (mini + 1) * count - 1
        taken = run.span_ns("F", last, end)[1] - run.span_ns("F", 0, first)[0]
        early = run.span_ns("F", 0, end)[1] <= arrives
        printed = stages + count - 1 + mini
        row = {"mini_batch": mini + 1, "points": run.points(taken), "printed": printed}
        forwards.append({**case, **row, "early": early})
    return {
        "order": {
            **case,
            "ahead": sole(len(order[i]) for order in between for i in run.steady),
            "every": sole(run.points(start(i + 1, s) - start(i, s)) for i, s in pairs),
            "printed": count + 1,
            "N + L": count + run.backward,
        },
        "difference": {
            **case,
            "L": run.backward,
            "v": v,
            "printed": (stages + count - 2) // count,
            "is_one": v == 1,
            "printed_is_one": stages <= count + 1,
        },
        "forwards": forwards,
        "backward": {
            **case,
            "points": sole(
                run.points(run.backward_ns(i, 0)[1] - start(i, last)) for i in run.steady
            ),
        },
    }


def _as_in_source(cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if case["B"] == SOURCE_LENGTH]


def _tried(largest: int) -> str:
    return f"W, N = 2 to {largest}, backwards of {', '.join(LENGTHS)} forwards"


def find_order(step: Step, largest: int = 10, largest_checked: int = 4) -> Computed:
    """T1: run by the priority rule, and look at order and period in the steady state."""
    cases = [case["order"] for case in measured(step, largest)]
    sizes = product(range(2, largest_checked + 1), repeat=2)
    invalid = [
        case
        for stages, count in announced(step, "check, W = {}, N = {}", sizes)
        for name in LENGTHS
        if (case := _check_plan(stages, count, name))
    ]
    stated = [_look_up(*row) for row in STATEMENTS]
    return Computed(
        {
            "all": cases,
            "B = F": _as_in_source(cases),
            "other updates": [case for case in stated if case["found"] != case["said"]],
            "invalid": invalid,
        },
        {"tried": _tried(largest), "statements": len(STATEMENTS), "checked": largest_checked},
        figures={"runs": len(cases)},
        pictures=[
            Picture(
                f"{stages}-{count}",
                f"nF1B, W = {stages}, N = {count}: the first mini-batches",
                partial(_draw_run, stages, count),
            )
            for stages, count in FIGURES
        ],
    )


def _check_plan(stages: int, count: int, name: str) -> Case | None:
    """Return what is wrong about the plan of the steady state, if anything."""
    backward = LENGTHS[name](count)
    config = config_of(stages, count, backward)
    plan = timeprest_plan(config, config.pipeline(), count, bounded=False)
    wrong = [str(violation) for violation in check(plan)]
    period = Fraction(plan.pattern.period_total_ns, plan.pattern.k)
    if not wrong and period == count + backward:
        return None
    return {"W": stages, "N": count, "B": name, "violations": wrong, "period": str(period)}


def _look_up(stages: int, count: int, mini: int, micro: int | None, update: int) -> Case:
    run = run_timeprest(stages, count, 1)
    if micro is None:
        instant, _ = run.backward_ns(mini - 1, stages - 1)
    else:
        instant, _ = run.span_ns("F", 0, (mini - 1) * count + micro)
    return {
        "W": stages,
        "N": count,
        "mini_batch": mini,
        "operation": "backward" if micro is None else f"forward of {'ABCD'[micro]}",
        "found": run.through(instant),
        "said": update,
    }


def _draw_run(stages: int, count: int) -> Figure:
    """Draw a run; micro-batches are counted from 0, a backward names the first that it covers."""
    mini_batches = 7
    run = run_timeprest(stages, count, 1, mini_batches)
    simulated = simulate(run.plan, mini_batches * count, timing="pattern")
    return draw_picture(chart_simulation(simulated))


def find_difference(step: Step, largest: int = 10) -> Computed:
    """T2: measure v in the steady state, and look for the law that it follows."""
    cases = [case["difference"] for case in measured(step, largest)]
    same = _as_in_source(cases)
    laws = fit_laws(cases)
    sizes = range(2, largest + 1)

    def rows(name: str, cell: Callable[[Case], object]) -> list[list[object]]:
        own = [case for case in cases if case["B"] == name]
        return [[cell(case) for case in own if case["W"] == stages] for stages in sizes]

    return Computed(
        {"all": cases, "B = F": same},
        {"tried": _tried(largest)},
        figures={
            "cases": len(cases),
            "printed_fits": len(cases) - len(differing(cases, "v", "printed")),
            "printed_fits_where_B_is_one_F": len(same) - len(differing(same, "v", "printed")),
            "laws_tried": len(laws),
            "best_laws": laws[:3],
            "v": {name: rows(name, lambda case: case["v"]) for name in LENGTHS},
        },
        tables=[
            table_of(
                "Laws of a small family, L the length of a backward",
                laws[:5],
                {"v": "law", f"of {len(cases)} cases": "fits"},
            ),
            *(
                Table(
                    f"v where a backward takes {name} forwards; in brackets what is printed "
                    "instead",
                    ["W", *(f"N = {count}" for count in sizes)],
                    [(stages, *row) for stages, row in zip(sizes, rows(name, _cell), strict=True)],
                )
                for name in LENGTHS
            ),
        ],
        pictures=[
            Picture(
                "table",
                "Version differences; where the printed law differs, it is in brackets",
                lambda: draw_differences(cases, largest),
            )
        ],
    )


def fit_laws(cases: Sequence[Case]) -> list[Case]:
    """Return laws rounded((a W + b N + c) / (N + d)) by how many cases they fit, best first.

    a and d may be the length of a backward too.
    """
    shapes: list[tuple[str, Callable[[Fraction], int]]] = [("floor", floor), ("ceil", ceil)]
    factors: list[Any] = [1, 2, "L"]
    added: list[Any] = [0, 1, "L"]
    laws = []
    for (how, rounded), a, b, c, d in product(shapes, factors, (0, 1, 2), range(-2, 3), added):
        fits = 0
        for case in cases:
            above_value = case.get(a, a) * case["W"] + b * case["N"] + c
            fits += rounded(Fraction(above_value, case["N"] + case.get(d, d))) == case["v"]
        above = re.sub(r"\b1 (?=[WN])", "", f"{a} W" + (f" + {b} N" if b else ""))
        above += f" {'+' if c > 0 else '-'} {abs(c)}" if c else ""
        below = f"(N + {d})" if d else "N"
        laws.append({"law": f"{how}(({above}) / {below})", "fits": fits})
    return sorted(laws, key=lambda law: (-law["fits"], len(law["law"])))


def _cell(case: Case) -> str:
    return f"{case['v']}" + (f" ({case['printed']})" if case["v"] != case["printed"] else "")


def draw_differences(cases: Sequence[Case], largest: int) -> Figure:
    """Draw v over W and N for each length of a backward; grey where the printed law differs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.2), layout="constrained")
    sizes = range(2, largest + 1)
    for axes, name in zip(figure.subplots(1, len(LENGTHS)), LENGTHS, strict=True):
        for case in (case for case in cases if case["B"] == name):
            x, y = case["N"], case["W"]
            axes.text(x, y, _cell(case), ha="center", va="center", fontsize=8)
            if case["v"] != case["printed"]:
                corners = [x - 0.5, x + 0.5], y - 0.5, y + 0.5
                axes.fill_between(*corners, color="#dddddd", linewidth=0)
        axes.set(xlim=(1.5, largest + 0.5), ylim=(largest + 0.5, 1.5), xticks=sizes, yticks=sizes)
        axes.set_title(f"backward of {name} forward{'s' if name != '1' else ''}", fontsize=10)
        axes.set_xlabel("micro-batches N")
        axes.set_ylabel("GPUs W")
    return figure


def find_forwards(step: Step, largest: int = 10) -> Computed:
    """T3: measure from the start to the end of the forwards of each mini-batch."""
    runs = measured(step, largest, ("1", "2"))
    cases = [case for run in runs for case in run["forwards"]]
    backwards = [run["backward"] for run in runs]
    later = [case for case in cases if case["mini_batch"] > 1]
    same = _as_in_source(cases)
    steady = {
        f"W = {w}, N = {n}": [case["points"] for case in same if (case["W"], case["N"]) == (w, n)]
        for w, n in FIGURES
    }
    return Computed(
        {
            "first": [case for case in cases if case["mini_batch"] == 1],
            "later": later,
            "early": [case for case in _as_in_source(later) if case["early"]],
            "backwards": backwards,
            "backwards, B = F": _as_in_source(backwards),
        },
        {"tried": f"W, N = 2 to {largest}, backwards of 1 and 2 forwards", "last": EARLY},
        figures={"steady": steady},
    )
