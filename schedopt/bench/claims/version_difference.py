"""The version difference of TiMePReSt."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final

from schedopt.bench.claims.claim import (
    TIMEPREST,
    Claim,
    Finding,
    Part,
    Picture,
    Reading,
    Step,
    Table,
)
from schedopt.bench.claims.timeprest_measures import AS_LONG, measured, tried_on, wrong_ones
from schedopt.bench.claims.timeprest_runs import LENGTHS, SOURCE_LENGTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIFFERENCE: Final = Claim(
    id="T2",
    says="The version difference is v = floor((W + N - 2) / N), and v = 1 iff W <= N + 1.",
    sources=(f"{TIMEPREST}, section 4.4, equations 11, 20 and 25",),
)


def find_difference(step: Step, largest: int = 10) -> Finding:
    """Measure v in the steady state, and look for the law that it follows."""
    cases = [found["difference"] for found in measured(step, largest)]
    same = [case for case in cases if case["B"] == SOURCE_LENGTH]
    laws = fit_laws(cases)
    tried = tried_on(largest)

    def part(says: str, one: str, other: str) -> Part:
        return Part(
            says=says,
            readings=[
                Reading(tried=tried, counterexamples=wrong_ones(cases, one, other)),
                Reading(
                    convention=AS_LONG, tried=tried, counterexamples=wrong_ones(same, one, other)
                ),
            ],
        )

    return Finding(
        claim=DIFFERENCE,
        parts=[
            part("v = floor((W + N - 2) / N)", "v", "printed"),
            part("v = 1 iff W <= N + 1", "is_one", "printed_is_one"),
        ],
        figures={
            "cases": len(cases),
            "printed_fits": len(cases) - len(wrong_ones(cases, "v", "printed")),
            "printed_fits_where_B_is_one_F": len(same) - len(wrong_ones(same, "v", "printed")),
            "laws_tried": len(laws),
            "best_laws": laws[:3],
            "v": {name: _grid(cases, name) for name in LENGTHS},
        },
        notes=[
            "v is i less the mini-batches that are through in all stages when the backward of "
            "mini-batch i starts, the same for all i in the steady state. A backward starts every "
            "N + L points and takes W L, so ceil(W L / (N + L)) of them are on their way.",
        ],
        tables=[
            Table(
                title="Laws of a small family, L the length of a backward",
                header=["v", f"of {len(cases)} cases"],
                rows=[(law["law"], law["fits"]) for law in laws[:5]],
            ),
            *(_difference_table(cases, name, largest) for name in LENGTHS),
        ],
        pictures=[
            Picture(
                name="table",
                title="Version differences; where the printed law differs, it is in brackets",
                draw=lambda: draw_differences(cases, largest),
            )
        ],
    )


def fit_laws(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return laws rounded((a W + b N + c) / (N + d)) by how many cases they fit, best first.

    a and d may be the length of a backward too.
    """
    shapes: list[tuple[str, Callable[[Fraction], int]]] = [("floor", floor), ("ceil", ceil)]
    factors: list[int | str] = [1, 2, "L"]
    added: list[int | str] = [0, 1, "L"]
    found = []
    for (how, rounded), a, b, c, d in product(shapes, factors, (0, 1, 2), range(-2, 3), added):

        def value(case: dict[str, Any], number: int | str) -> int:
            return int(case["L"]) if isinstance(number, str) else number

        fits = sum(
            rounded(
                Fraction(value(case, a) * case["W"] + b * case["N"] + c, case["N"] + value(case, d))
            )
            == case["v"]
            for case in cases
        )
        above = re.sub(r"\b1 (?=[WN])", "", f"{a} W" + (f" + {b} N" if b else ""))
        above += f" {'+' if c > 0 else '-'} {abs(c)}" if c else ""
        below = f"(N + {d})" if d else "N"
        found.append({"law": f"{how}(({above}) / {below})", "fits": fits})
    return sorted(found, key=lambda law: (-law["fits"], len(law["law"])))


def _grid(cases: list[dict[str, Any]], name: str) -> list[list[object]]:
    """Return v by W and N."""
    mine = [case for case in cases if case["B"] == name]
    return [
        [case["v"] for case in mine if case["W"] == stages]
        for stages in sorted({case["W"] for case in mine})
    ]


def _difference_table(cases: list[dict[str, Any]], name: str, largest: int) -> Table:
    rows = []
    for stages in range(2, largest + 1):
        mine = [case for case in cases if case["W"] == stages and case["B"] == name]
        rows.append((stages, *(_cell(case) for case in mine)))
    return Table(
        title=f"v where a backward takes {name} forwards; in brackets what is printed instead",
        header=["W", *(f"N = {count}" for count in range(2, largest + 1))],
        rows=rows,
    )


def _cell(case: dict[str, Any]) -> str:
    return f"{case['v']}" + (f" ({case['printed']})" if case["v"] != case["printed"] else "")


def draw_differences(cases: list[dict[str, Any]], largest: int) -> Figure:
    """Draw v over W and N for each length of a backward; grey where the printed law differs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.2), layout="constrained")
    sizes = range(2, largest + 1)
    for axes, name in zip(figure.subplots(1, len(LENGTHS)), LENGTHS, strict=True):
        mine = {(case["W"], case["N"]): case for case in cases if case["B"] == name}
        for (stages, count), case in mine.items():
            wrong = case["v"] != case["printed"]
            axes.text(count, stages, _cell(case), ha="center", va="center", fontsize=8)
            if wrong:
                axes.fill_between([count - 0.5, count + 0.5], stages - 0.5, stages + 0.5,
                                  color="#dddddd", linewidth=0)  # fmt: skip
        axes.set(xlim=(1.5, largest + 0.5), ylim=(largest + 0.5, 1.5), xticks=sizes, yticks=sizes)
        axes.set_title(f"backward of {name} forward{'s' if name != '1' else ''}", fontsize=10)
        axes.set_xlabel("micro-batches N")
        axes.set_ylabel("GPUs W")
    return figure
