"""What a published plan was made for, as questions of ours: a bound, and a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from schedopt.bench.published.tables import NODE, Line, Tables
from schedopt.bench.suite import Effort
from schedopt.chain import Chain, Layer
from schedopt.importing import import_plan, import_profile
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.profile import Profile
from schedopt.result import Result
from schedopt.solving import solve
from schedopt.solving.replicas.stages import read_step
from schedopt.solving.replicas.step_bound import is_possible
from schedopt.solving.sizes import steps_of_sizes

PLANS: Final = "mist/plans"
COLUMNS: Final = "plan set planner model layers mbs microbatches gpus measured stages"
OPERATORS: Final = "mist/ops"
PIECES: Final = ("embedding", "qkv", "context", "post-attention-dropout", "post-MLP-dropout")
"""Operators behind which a piece ends: little leaves them, or what lies between them keeps much."""
PRECISION: Final = 500
"""A bound is the largest step that has no plan, less at most such a part."""
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
        """Return GPUs of which a plan may use so much, bytes."""
        gpu = self.platform.gpus[0]
        other = replace(gpu, memory_bytes=room + gpu.reserved_bytes)
        return self.platform.with_gpus([other] * self.gpus)

    def bound_ns(self, room: int, longest: int) -> int:
        """Return what no step can beat, on GPUs of which a plan may use so much, ns.

        Of all stages of operators, with replicas, tensor groups and recompute, for each size of
        micro-batches; `longest` is a step that is known.
        """
        problems = steps_of_sizes(self.profile, self.with_room(room), self.batch)
        return least_step(problems, longest)

    def solve(self, room: int, effort: Effort) -> Result:
        """Return our plan, of stages that are cut between pieces of layers."""
        pieces = replace(
            self.profile,
            variants=tuple(
                replace(variant, chain=merge(variant.chain)) for variant in self.profile.variants
            ),
        )
        return solve(pieces, self.with_room(room), batch=self.batch, **effort.options)


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
