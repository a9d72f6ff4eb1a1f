"""What a published plan was made for, as questions of ours: a bound, and a plan."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from schedopt.bench.published.tables import NODE, Line, Tables
from schedopt.bench.suite import Effort
from schedopt.chain import Chain, Layer
from schedopt.importing import import_plan, import_profile
from schedopt.interrupts import stopping_first
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.profile import Profile
from schedopt.result import Result
from schedopt.solving.clock import Clock
from schedopt.solving.phases import search_phases
from schedopt.solving.replicas.stages import read_step
from schedopt.solving.replicas.step_bound import is_possible
from schedopt.solving.run import Progress, Run
from schedopt.solving.sizes import steps_of_sizes

PLANS: Final = "mist/plans"
COLUMNS: Final = "plan set planner model layers mbs microbatches gpus measured stages"
OPERATORS: Final = "mist/ops"
PIECES: Final = ("embedding", "qkv", "context", "post-attention-dropout", "post-MLP-dropout")
"""Operators behind which a piece ends: little leaves them, or what lies between them keeps much."""
PRECISION: Final = 500
"""A bound is the largest step that has no plan, less at most such a part."""
FEW: Final = 16
"""The most GPUs for which a search has no longer than the limit."""
PART_OF_SIZE: Final = 0.5
"""Of the time that is left, for each size of micro-batches; the rest is for the best of them."""
_ADDED: Final = (
    "forward_ns",
    "backward_ns",
    "weight_bytes",
    "saved",
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_bytes",
)


@dataclass(frozen=True)
class Inputs:
    """The model, the GPUs and the batch that a plan is for.

    Parameters
    ----------
    tables : Tables
    kind : str
        Of the GPUs, as the tables and a preset call it.
    model : str
    layers, gpus, batch : int
        Layers of the model, GPUs, and samples of a step.
    """

    tables: Tables
    kind: str
    model: str
    layers: int
    gpus: int
    batch: int

    @cached_property
    def platform(self) -> Platform:
        """Nodes of 8 GPUs, or a part of one."""
        each = min(self.gpus, NODE)
        return Platform.load(f"{self.kind}:{-(-self.gpus // NODE)}x{each}")

    @cached_property
    def profile(self) -> Profile:
        """The operators of the model, of all degrees and sizes that ran."""
        return import_profile(
            self.tables.path(OPERATORS),
            "superscaler",
            model=self.model,
            gpu=self.kind,
            layers=self.layers,
        ).profile

    def score(self, plan: str) -> Result:
        """Return a plan of the table, laid out as a step of 1F1B."""
        path = self.tables.path(PLANS)
        return import_plan(path, self.platform, plan=plan, profile=self.tables.path(OPERATORS))

    def with_room(self, room: int) -> Platform:
        """Return GPUs of which a plan may use `room` bytes."""
        gpu = self.platform.gpus[0]
        other = replace(gpu, memory_bytes=room + gpu.reserved_bytes)
        return self.platform.with_gpus([other] * self.gpus)

    def bound_ns(self, room: int, longest: int) -> int:
        """Return what no step can beat, ns, on GPUs of which a plan may use `room` bytes.

        Of all stages of operators, with replicas, tensor groups and recompute, for each size of
        micro-batches; `longest` is a step that is known.
        """
        problems = steps_of_sizes(self.profile, self.with_room(room), self.batch)
        return least_step(problems, longest)

    def solve(self, room: int, effort: Effort, known: Plan | None = None) -> Plan | None:
        """Return our plan, of stages that are cut between pieces of layers.

        `known` is one to be bettered: if none better is found, it is the answer. On more than
        `FEW` GPUs the limit is longer in proportion, since laying a plan out takes longer.
        """
        limit_s = effort.time_limit * max(1.0, self.gpus / FEW)
        pieces = replace(
            self.profile,
            variants=tuple(
                replace(variant, chain=merge(variant.chain)) for variant in self.profile.variants
            ),
        )
        problems = steps_of_sizes(pieces, self.with_room(room), self.batch)
        return shortest_step(problems, replace(effort, time_limit=limit_s), known)


def list_inputs(tables: Tables) -> dict[Inputs, list[Line]]:
    """Return the plans of the tables by what they are for."""
    found: dict[Inputs, list[Line]] = {}
    for line in tables.lines(PLANS, COLUMNS):
        inputs = Inputs(
            tables,
            line["set"],
            line["model"],
            line["layers"],
            line["gpus"],
            line["mbs"] * line["microbatches"],
        )
        found.setdefault(inputs, []).append(line)
    return found


def shortest_step(
    problems: Sequence[Problem], effort: Effort, known: Plan | None = None
) -> Plan | None:
    """Return the plan with the shortest of several steps; `known`, if none is found to be shorter.

    The limit counts CPU seconds of the process. Each step in turn has half of what is left, and the
    rest is for that which is the shortest then: a search that finds none is of no use, and later
    ones end where they cannot be shorter. (Side by side and by the wall clock, other work on the
    machine would leave some of them no time.)
    A request to stop ends the search for all of them.
    """
    best, began, asked = known, time.process_time(), threading.Event()

    def left_s() -> float:
        return max(0.0, effort.time_limit - (time.process_time() - began))

    with stopping_first(asked.set):
        for problem in problems:
            if asked.is_set():
                return best
            best = _search(problem, PART_OF_SIZE * left_s(), effort, best) or best
        sizes = [problem.chain.samples for problem in problems]
        again = problems[0 if best is None else sizes.index(best.chain.samples)]
        return best if asked.is_set() else _search(again, left_s(), effort, best) or best


def _search(problem: Problem, limit_s: float, effort: Effort, known: Plan | None) -> Plan | None:
    """Return a plan found within `limit_s` CPU seconds, if its step is shorter than the known one.

    The search ends as soon as it is proven to have no such step.
    """
    count = problem.scope.microbatches or 1
    shortest = None if known is None else known.pattern.period_total_ns

    def watch(progress: Progress) -> None:
        bound = progress.bound
        if bound is not None and shortest is not None and bound * count >= shortest:
            run.stop()

    run = Run(
        problem,
        seed=effort.seed,
        workers=effort.workers,
        on_progress=watch,
        cutoff=lambda: shortest,
    )
    run.clock = Clock(limit_s, now=time.process_time)
    with stopping_first(run.stop):
        search_phases(problem, run)
    plan = run.best()
    if plan is None or (shortest is not None and plan.pattern.period_total_ns >= shortest):
        return None
    return plan


def least_step(problems: Iterable[Problem], longest: int) -> int:
    """Return a bound for the shortest of several steps, ns, one of which takes no longer."""
    steps = [step for problem in problems if (step := read_step(problem)) is not None]
    low, high = 0, longest
    while high - low > max(1, high // PRECISION):
        middle = (low + high) // 2
        if any(is_possible(step, middle) for step in steps):
            high = middle
        else:
            low = middle
    return low + 1


def merge(chain: Chain) -> Chain:
    """Return a chain whose layers are pieces of operators: with the same times and bytes."""
    pieces: list[list[Layer]] = [[]]
    for layer in chain.layers:
        pieces[-1].append(layer)
        if any(name in layer.name for name in PIECES):
            pieces.append([])
    layers = tuple(_piece(piece) for piece in pieces if piece)
    return Chain(layers=layers, input_bytes=chain.input_bytes, samples=chain.samples)


def _piece(layers: Sequence[Layer]) -> Layer:
    added = {name: sum(getattr(layer, name) or 0 for layer in layers) for name in _ADDED}
    return Layer(
        saved_bytes=added.pop("saved"),
        name=f"{layers[0].name} to {layers[-1].name}",
        activation_bytes=layers[-1].activation_bytes,
        saved_input_bytes=layers[0].saved_input_bytes,
        **added,
    )
