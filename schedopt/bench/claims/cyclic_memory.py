"""Fournier and Oyallon: activation memory of workers that begin one after the other."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from schedopt.account.profile import Level, profile_of
from schedopt.bench.claims.result import Case, Computed, Picture, Step, Table, announced, table_of
from schedopt.profiling.devices import make_clock
from schedopt.profiling.factory import load_model
from schedopt.profiling.fake_tensors import without_memory
from schedopt.profiling.model import Model
from schedopt.profiling.rates import Roofline
from schedopt.profiling.roofline import FlopClock
from schedopt.profiling.saved_tensors import SavedTensor, storage_bytes, storage_key
from schedopt.profiling.states import tensor_bytes
from schedopt.profiling.tracing import WithLoss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PRINTED: Final = {"resnet50": 0.30, "vit-b16": 0.42}
TITLES: Final = {"resnet50": "ResNet-50", "vit-b16": "ViT-B/16"}
RATE: Final = 10**9
CLOSE: Final = 0.02
"""How far a saving may be from the printed one to count as the same."""
NOISE: Final = 0.05
"""How far savings over measured times may be from those over FLOPs."""


@dataclass(frozen=True)
class Curve:
    """The storages that autograd keeps of one micro-batch."""

    spans: tuple[tuple[int, int, int], ...]
    """Bytes, start and end, ns since the forward began."""
    length_ns: int
    """Of forward and backward."""
    gradients: tuple[tuple[int, int, int], ...] = ()
    """The same of the gradients of parameters, from when they are whole to the end."""

    def with_gradients(self) -> Curve:
        """Return the same with the gradients of parameters counted as well."""
        return replace(self, spans=(*self.spans, *self.gradients))

    def over_workers(self, workers: int, *, cyclic: bool) -> list[Level]:
        """Return the bytes of all workers over time, one micro-batch after the other on each.

        In a cycle each begins the n-th part of a round after the one before; else all at once.
        """
        shifts = [n * self.length_ns // workers if cyclic else 0 for n in range(workers)]
        shifted = [
            (size, start + shift, end + shift)
            for shift in shifts
            for size, start, end in self.spans
        ]
        return profile_of(shifted, self.length_ns)

    def peak(self, workers: int, *, cyclic: bool) -> float:
        """Return the most bytes for each worker."""
        return max(level.most for level in self.over_workers(workers, cyclic=cyclic)) / workers


def curve_by_flops(load: Callable[[], Model], rate: int) -> Curve:
    """Record a model without its memory; time is its FLOPs at a rate per second."""
    with without_memory():
        model = load()
        # Fake tensors look operators up at the first run.
        with FlopClock(Roofline(flops=rate)) as clock:
            return _record(model, clock)


def curve_by_time(model: Model) -> Curve:
    """Record a model on the CPU by the clock, after a run that is not looked at."""
    clock = make_clock(torch.device("cpu"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _record(model, clock)
        return _record(model, clock)
    finally:
        torch.set_num_threads(threads)


def _record(model: Model, clock: Any) -> Curve:
    whole = WithLoss(model.module, model.loss)
    parameters = list(whole.parameters())
    for parameter in parameters:
        parameter.grad = None
    permanent = {storage_key(one) for one in chain(parameters, whole.buffers())}
    open_storages: dict[int, tuple[int, Any, int]] = {}  # Bytes, since when, and how often.
    closed: list[tuple[int, Any, Any]] = []
    made: list[tuple[int, Any]] = []

    def pack(tensor: Tensor) -> SavedTensor:
        saved, key = SavedTensor(tensor), storage_key(tensor)
        if key not in permanent:
            size, since, times = open_storages.get(key, (storage_bytes(tensor), clock.mark(), 0))
            open_storages[key] = (size, since, times + 1)
            weakref.finalize(saved, release, key)
        return saved

    def release(key: int, for_good: bool = False) -> None:
        if key in open_storages:
            size, since, times = open_storages.pop(key)
            if times == 1 or for_good:
                closed.append((size, since, clock.mark()))
            else:
                open_storages[key] = (size, since, times - 1)

    hooks: list[Any] = [
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda gradient: made.append((tensor_bytes(gradient), clock.mark()))
        )
        for parameter in parameters
        if parameter.requires_grad
    ]
    collected = gc.isenabled()
    gc.disable()
    try:
        start = clock.mark()
        with torch.autograd.graph.saved_tensors_hooks(pack, SavedTensor.unpack):
            loss = whole(*model.args, **model.kwargs)
        loss.backward()
        end = clock.mark()
    finally:
        for hook in hooks:
            hook.remove()
        if collected:
            gc.enable()
    del loss
    for key in [*open_storages]:
        release(key, for_good=True)
    since_start = partial(clock.between, start)
    length = max(1, since_start(end))
    return Curve(
        tuple((size, since_start(first), since_start(last)) for size, first, last in closed),
        length,
        tuple((size, since_start(since), length) for size, since in made),
    )


def find_savings(
    step: Step,
    printed: Mapping[str, float] = PRINTED,
    workers: Sequence[int] = (4, 8, 32),
    repeats: int = 3,
) -> Computed:
    """C8: record what autograd keeps of one micro-batch, and let workers begin in turn."""
    most = max(workers)
    curves: dict[str, Curve] = {}
    figures: dict[str, Any] = {}
    wrong: dict[str, list[Case]] = {}
    cases: list[Case] = []
    timed: list[Case] = []
    far: list[Case] = []
    for name in announced(step, "{}, over FLOPs", printed):
        curve = curves[name] = curve_by_flops(partial(load_model, f"hf:{name}"), RATE)
        own = {count: _saving(curve, count, name, "FLOPs") for count in workers}
        measured: dict[int, list[float]] = {count: [] for count in workers}
        for run in announced(step, "measured, run {}", range(1, repeats + 1)):
            by_time = curve_by_time(load_model(f"hf:{name}"))
            for count in workers:
                case = _saving(by_time, count, name, f"run {run}")
                measured[count].append(case["saving"])
                timed.append(case)
                far += [case] if abs(case["saving"] - own[count]["saving"]) > NOISE else []
        cases += own.values()
        saving, want = own[most]["saving"], printed[name]
        shown = {**own[most], "printed": want}
        wrong[f"{name}, other"] = [shown] if abs(saving - want) > CLOSE else []
        wrong[f"{name}, less"] = [shown] if saving < want - CLOSE else []
        figures |= {
            f"{name}_saving_over_flops": {str(n): case["saving"] for n, case in own.items()},
            f"{name}_saving_over_measured_time": {
                str(n): [min(found), max(found)] for n, found in measured.items()
            },
            f"{name}_kept_bytes": round(curve.peak(1, cyclic=False)),
            f"{name}_saving_with_gradients": _saving(curve.with_gradients(), most)["saving"],
        }
    return Computed(
        {**wrong, "not falling": not_falling(cases), "other times": far},
        {"most": most, "workers": ", ".join(map(str, workers)), "repeats": repeats},
        figures=figures,
        tables=[_table("Over FLOPs", cases), _table("Over measured times", timed)],
        pictures=[
            Picture(
                "memory",
                "Activation memory of a worker over a step",
                lambda: _draw(curves, workers),
            )
        ],
    )


def _saving(curve: Curve, workers: int, model: str = "", time: str = "") -> Case:
    together, in_turn = (curve.peak(workers, cyclic=cyclic) for cyclic in (False, True))
    return {
        "model": model,
        "time": time,
        "workers": workers,
        "together_bytes": round(together),
        "in_turn_bytes": round(in_turn),
        "saving": round(1 - in_turn / together, 4),
    }


def not_falling(cases: Sequence[Case]) -> list[Case]:
    """Return the cases in which more workers need more each than fewer."""
    return [
        case
        for case in cases
        for fewer in cases
        if fewer["model"] == case["model"]
        and fewer["workers"] < case["workers"]
        and fewer["in_turn_bytes"] < case["in_turn_bytes"]
    ]


def _table(title: str, cases: Sequence[Case]) -> Table:
    return table_of(
        f"{title}: the most for each worker, MB",
        cases,
        {
            "model": lambda case: TITLES.get(case["model"], case["model"]),
            "time": "time",
            "workers": "workers",
            "all at once": lambda case: f"{case['together_bytes'] / 1e6:.1f}",
            "in turn": lambda case: f"{case['in_turn_bytes'] / 1e6:.1f}",
            "saving": lambda case: f"{case['saving']:.1%}",
        },
    )


def _draw(curves: Mapping[str, Curve], workers: Sequence[int]) -> Figure:
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
    from schedopt.drawing.styles import COLOURS

    lines = [(1, "k", "-", "all at once")]
    lines += [
        (count, colour, "--", f"in turn, N = {count}")
        for count, colour in zip(workers, COLOURS, strict=False)
    ]
    for count, colour, dash, label in lines:
        found = curve.over_workers(count, cyclic=count > 1)
        times = [level.start_ns / curve.length_ns for level in found]
        sizes = [level.count / count / 1e6 for level in found]
        x, y = [*times, 1.0], [*sizes, sizes[0]]
        axes.step(x, y, where="post", color=colour, linestyle=dash, linewidth=1.2, label=label)
    half, grey = curve.peak(1, cyclic=False) / 2e6, "#888888"
    axes.axhline(half, color=grey, linewidth=0.8, linestyle=":", label="half of the most")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 1)
    axes.spines[["top", "right"]].set_visible(False)
