"""How much memory workers need for activations when they begin one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from schedopt.bench.claims.claim import CDP, Claim, Finding, Part, Picture, Reading, Step, Table
from schedopt.bench.claims.curves import Curve, curve_by_flops, curve_by_time
from schedopt.profiling.factory import load_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM: Final = Claim(
    id="C8",
    says="Cyclic data parallelism lowers the activation memory of a worker by 30 % for ResNet-50 "
    "and by 42 % for ViT-B/16, parameters left out.",
    sources=(f"{CDP}, Fig. 4", f"{CDP}, section 4, Activation memory tracking"),
)
PRINTED: Final = {"resnet50": 0.30, "vit-b16": 0.42}
TITLES: Final = {"resnet50": "ResNet-50", "vit-b16": "ViT-B/16"}
WORKERS: Final = (4, 8, 32)
RATE: Final = 10**9
CLOSE: Final = 0.02
"""How far a saving may be from the printed one to count as the same."""
NOISE: Final = 0.05
"""How far savings over measured times may be from those over FLOPs."""
REPEATS: Final = 3
AT_LEAST: Final = (
    "at least so much; what autograd keeps, with fused attention, and neither gradients nor what "
    "an operator needs while it runs"
)


def find_savings(
    step: Step,
    printed: dict[str, float] | None = None,
    workers: Sequence[int] = WORKERS,
    repeats: int = REPEATS,
) -> Finding:
    """Record what autograd keeps of one micro-batch, and let workers begin in turn."""
    wanted = PRINTED if printed is None else printed
    curves, cases, timed = {}, [], []
    for name in wanted:
        step(f"{name}, over FLOPs")
        curves[name] = curve_by_flops(partial(load_model, f"hf:{name}"), RATE)
        cases += [
            {"model": name, "time": "FLOPs", **_saving(curves[name], count)} for count in workers
        ]
        for run in range(repeats):
            step(f"{name}, over measured time, run {run + 1}")
            curve = _measure(name)
            timed += [
                {"model": name, "time": f"run {run + 1}", **_saving(curve, count)}
                for count in workers
            ]
    final = [case for case in cases if case["workers"] == max(workers)]
    return Finding(
        claim=CLAIM,
        parts=[
            _part(case, wanted[case["model"]]) for case in final
        ] + [
            Part(
                says="the more workers, the less each needs",
                readings=[
                    Reading(
                        tried=f"{', '.join(map(str, workers))} workers, over FLOPs",
                        counterexamples=_not_falling(cases),
                    )
                ],
            ),
            Part(
                says="it is the same over measured times",
                readings=[
                    Reading(
                        tried=f"{repeats} runs on a CPU, a micro-batch of 1, savings within "
                        f"{100 * NOISE:.0f} points of those over FLOPs",
                        counterexamples=_far(timed, cases),
                    )
                ],
            ),
        ],
        figures={
            f"{name}_saving_over_flops": {
                str(case["workers"]): case["saving"] for case in cases if case["model"] == name
            }
            for name in wanted
        }
        | {
            f"{name}_saving_over_measured_time": {
                str(count): _spread(timed, name, count) for count in workers
            }
            for name in wanted
        }
        | {f"{name}_kept_bytes": round(curves[name].peak(1, cyclic=False)) for name in wanted}
        | {
            f"{name}_saving_with_gradients": _saving(curves[name].with_gradients(), max(workers))[
                "saving"
            ]
            for name in wanted
        },
        notes=[
            "One micro-batch of one image. What grows with the images (all but gradients) keeps "
            "its shares for more of them.",
            "Gradients of parameters, if they are counted from when they are whole to the end of "
            "the step, make the savings smaller: see the figures.",
        ],
        tables=[_table("Over FLOPs", cases), _table("Over measured times", timed)],
        pictures=[
            Picture(
                name="memory",
                title="Activation memory of a worker over a step",
                draw=lambda: _draw(curves, workers),
            )
        ],
    )  # fmt: skip


def _part(case: dict[str, Any], printed: float) -> Part:
    tried = f"{case['workers']} workers, over FLOPs"
    case = {**case, "printed": printed}
    return Part(
        says=f"{TITLES.get(case['model'], case['model'])}: {printed:.0%} less",
        readings=[
            Reading(
                tried=tried,
                counterexamples=[] if abs(case["saving"] - printed) <= CLOSE else [case],
            ),
            Reading(
                convention=AT_LEAST,
                tried=tried,
                counterexamples=[] if case["saving"] >= printed - CLOSE else [case],
            ),
        ],
    )


def _measure(name: str) -> Curve:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return curve_by_time(load_model(f"hf:{name}"))
    finally:
        torch.set_num_threads(threads)


def _saving(curve: Curve, workers: int) -> dict[str, Any]:
    together, in_turn = (curve.peak(workers, cyclic=cyclic) for cyclic in (False, True))
    return {
        "workers": workers,
        "together_bytes": round(together),
        "in_turn_bytes": round(in_turn),
        "saving": round(1 - in_turn / together, 4),
    }


def _not_falling(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases in which more workers need more each than fewer."""
    return [
        case
        for case in cases
        for fewer in cases
        if fewer["model"] == case["model"]
        and fewer["workers"] < case["workers"]
        and fewer["in_turn_bytes"] < case["in_turn_bytes"]
    ]


def _far(timed: Sequence[dict[str, Any]], cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases over measured times whose saving is another than over FLOPs."""
    known = {(case["model"], case["workers"]): case["saving"] for case in cases}
    return [
        case
        for case in timed
        if abs(case["saving"] - known[case["model"], case["workers"]]) > NOISE
    ]


def _spread(timed: Sequence[dict[str, Any]], name: str, workers: int) -> list[float]:
    """Return the least and the most saving of all runs."""
    found = [
        case["saving"] for case in timed if (case["model"], case["workers"]) == (name, workers)
    ]
    return [min(found), max(found)] if found else []


def _table(title: str, cases: Sequence[dict[str, Any]]) -> Table:
    return Table(
        title=f"{title}: the most for each worker, MB",
        header=["model", "time", "workers", "all at once", "in turn", "saving"],
        rows=[
            (
                TITLES.get(case["model"], case["model"]),
                case["time"],
                case["workers"],
                f"{case['together_bytes'] / 1e6:.1f}",
                f"{case['in_turn_bytes'] / 1e6:.1f}",
                f"{case['saving']:.1%}",
            )
            for case in cases
        ],
    )


def _draw(curves: dict[str, Curve], workers: Sequence[int]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        _draw_model(axes, curve, workers)
        axes.set_title(TITLES.get(name, name))
        axes.set_xlabel("share of a step, by FLOPs")
    panels[0].set_ylabel("activation memory of a worker, MB")
    panels[-1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _draw_model(axes: Axes, curve: Curve, workers: Sequence[int]) -> None:
    from schedopt.drawing.looks import COLOURS

    lines = [(1, False, "k", "-", "all at once")]
    lines += [
        (count, True, colour, "--", f"in turn, N = {count}")
        for count, colour in zip(workers, COLOURS, strict=False)
    ]
    for count, cyclic, colour, dash, label in lines:
        found = curve.over_workers(count, cyclic=cyclic)
        times = [one.start_ns / curve.length_ns for one in found]
        sizes = [one.count / count / 1e6 for one in found]
        axes.step(
            [*times, 1.0],
            [*sizes, sizes[0]],
            where="post",
            color=colour,
            linestyle=dash,
            linewidth=1.2,
            label=label,
        )
    axes.axhline(
        curve.peak(1, cyclic=False) / 2e6, color="#888888", linewidth=0.8, linestyle=":",
        label="half of the most",
    )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 1)
    axes.spines[["top", "right"]].set_visible(False)
