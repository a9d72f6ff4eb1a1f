"""The profiles, links and plans of the Mist package, as what a stage of a plan takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, median
from typing import Any, Final

from schedopt.bench.published.mist_profiles import (
    LAYER,
    MIB,
    OPS,
    Curves,
    Op,
    Profiles,
    by_size,
    ran,
    read_off,
    read_profiles,
    unusable,
)
from schedopt.bench.published.mist_stages import read_stages
from schedopt.bench.published.tables import NODE, Line, Tables
from schedopt.errors import InputError
from schedopt.importing.saved_activations import Operator

NAMES: Final = tuple(
    f"mist/{name}" for name in ("ops", "p2p", "collectives", "plans", "measurements")
)
P2P: Final = "set link bytes time_ns"
COLLECTIVES: Final = "set collective gpus bytes time_ns"
PLANS: Final = "plan set model layers mbs microbatches stages_count gpus measured flag stages"
MEASURED: Final = (
    "plan stage rank step_ns allocated_bytes max_allocated_bytes forward_compute_ns "
    "backward_compute_ns optimizer_ns backward_params_all_reduce_ns "
    "backward_embedding_all_reduce_ns"
)
GROUP: Final = ", a group of GPUs "
"""What the name of a stage says where GPUs share its operators."""


@dataclass(frozen=True)
class PlanStage:
    """A stage of a plan: its operators, whether each is computed again, and its GPUs.

    Parameters
    ----------
    ops : sequence of Op
        A line of the profile for each, at the tensor degree and the samples that it runs with, its
        all-reduces as long as in the table of collectives.
    again : sequence of bool
    replicas : sequence of int
        Data-parallel degree of each.
    gpus : range
    """

    ops: Sequence[Op]
    again: Sequence[bool]
    replicas: Sequence[int]
    gpus: range

    @property
    def as_profiled(self) -> PlanStage:
        """The same stage, with the all-reduces of its profile."""
        return replace(self, ops=[op["profiled"] for op in self.ops])

    @property
    def operators(self) -> list[Operator]:
        """What each operator reads and makes."""
        return [
            Operator(op["op"], round(MIB * op["input_mib"]), round(MIB * op["activations_mib"]))
            for op in self.ops
        ]

    @property
    def group(self) -> str:
        """In words, the GPUs that share each operator; empty where each has its own."""
        if max(op["tp"] for op in self.ops) == 1:
            return ""
        return f"{GROUP}{self.gpus[0]} to {self.gpus[-1]}"

    @property
    def forward_ns(self) -> float:
        """Forward of a micro-batch."""
        return float(sum(op["forward_ns"] for op in self.ops))

    @property
    def backward_ns(self) -> float:
        """Backward of a micro-batch, with what is computed again."""
        again = sum(op["forward_ns"] for op, redo in zip(self.ops, self.again, strict=True) if redo)
        return float(sum(op["backward_ns"] for op in self.ops) + again)

    @property
    def weights_mib(self) -> float:
        """Weights of a GPU, in half precision."""
        return float(sum(op["weights_mib"] for op in self.ops))

    @property
    def message_bytes(self) -> float:
        """What a GPU sends to the next stage."""
        return float(self.ops[-1]["output_mib"] * MIB)


@dataclass(frozen=True)
class MistPlan:
    """A plan of somebody else, with the stages that a profile gives it."""

    line: Line
    stages: Sequence[PlanStage]
    ranks: Sequence[Line]
    """What each rank measured."""
    node: int = NODE
    """GPUs of a node."""

    @property
    def name(self) -> str:
        """The id of the plan."""
        return str(self.line["plan"])

    @property
    def on_one_node(self) -> bool:
        """Whether all GPUs are in one node."""
        return int(self.line["gpus"]) <= self.node

    @property
    def doubt(self) -> str:
        """Why its measurement is doubted."""
        return str(self.line["flag"] or "")

    @property
    def step_ns(self) -> float:
        """The measured step, of the rank that took longest."""
        return float(max(rank["step_ns"] for rank in self.ranks))

    def leaves_node(self, stage: int) -> bool:
        """Whether what follows a stage lies in another node."""
        last = self.stages[stage].gpus[-1]
        return last // self.node != (last + 1) // self.node

    def ranks_of(self, stage: int) -> list[Line]:
        """Return what the ranks of a stage measured. Megatron-LM gives all stages as many."""
        each = int(self.line["gpus"]) // len(self.stages)
        return [
            rank
            for rank in self.ranks
            if (rank["rank"] // each if rank["stage"] is None else rank["stage"]) == stage
        ]

    def mean_of(self, stage: int, column: str) -> float | None:
        """Return the mean of a column over the ranks of a stage that have it."""
        found = [rank[column] for rank in self.ranks_of(stage) if rank[column] is not None]
        return mean(found) if found else None


class Mist:
    """All tables of the package."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        # A table of inputs that is none is no reason to leave out one plan after the other.
        self._profiles: Profiles = read_profiles(tables.lines("mist/ops", OPS), self._collectives)
        self._links: Curves = by_size(tables.lines("mist/p2p", P2P), ("set", "link"))

    @property
    def plans(self) -> list[MistPlan]:
        """The plans that were measured, and whose operators were."""
        return self._plans[0]

    @property
    def unpredicted(self) -> Mapping[str, str]:
        """Why other plans are left out."""
        return self._plans[1]

    @cached_property
    def _plans(self) -> tuple[list[MistPlan], dict[str, str]]:
        ranks: dict[str, list[Line]] = {}
        for rank in self.tables.lines("mist/measurements", MEASURED):
            if rank["step_ns"] is not None:
                ranks.setdefault(rank["plan"], []).append(rank)
        plans, left_out = [], {}
        for line in self.tables.lines("mist/plans", PLANS):
            name = str(line["plan"])
            try:
                if not line["measured"] or name not in ranks:
                    raise InputError("it was not measured")
                stages = [*self._stages(line)]
                node = self.tables.gpus_of_node("mist/plans", line["set"])
                plan = MistPlan(line, stages, ranks[name], node)
                self._refuse_unmeasured(plan)
                plans.append(plan)
            except InputError as error:
                left_out[name] = str(error)
        for name in ranks.keys() - {plan.name for plan in plans} - left_out.keys():
            left_out[name] = "there is no plan of this name in mist/plans"
        return plans, left_out

    def _refuse_unmeasured(self, plan: MistPlan) -> None:
        """Refuse a plan of which a message or a collective was not measured."""
        for number, stage in enumerate(plan.stages):
            if number + 1 < len(plan.stages):
                self.message_ns(plan, number)
            self.all_reduce_ns(plan, stage)
        self.embedding_ns(plan)

    def message_ns(self, plan: MistPlan, stage: int) -> float:
        """Return how long one pair of GPUs takes for the message behind a stage."""
        link = "inter" if plan.leaves_node(stage) else "intra"
        return self._sent(plan.line["set"], link, plan.stages[stage].message_bytes)

    def embedding_ns(self, plan: MistPlan) -> float:
        """Return how long first and last stage take to add up the gradient of tied embeddings.

        It has half precision, like the weights.
        """
        first, last = plan.stages[0], plan.stages[-1]
        if len(plan.stages) == 1:
            return 0.0
        apart = first.gpus[0] // plan.node != last.gpus[-1] // plan.node
        count = MIB * first.ops[0]["weights_mib"]
        return self._sent(plan.line["set"], "inter" if apart else "intra", count)

    def all_reduce_ns(self, plan: MistPlan, stage: PlanStage) -> float:
        """Return how long the replicas of a stage take to add up their gradients."""
        table = self._collectives
        found = 0.0
        for replicas in {*stage.replicas} - {1}:
            pairs = zip(stage.ops, stage.replicas, strict=True)
            count = sum(op["weights_mib"] for op, copies in pairs if copies == replicas)
            alike = (plan.line["set"], "all_reduce")
            measured: list[Any] = [key[2] for key in table if key[:2] == alike]
            if not measured:
                raise InputError(
                    f"{plan.name} has replicas, and no all_reduce on {plan.line['set']}",
                    field="mist/collectives",
                    way_out="Add it to the table, or take the plan out",
                )
            nearest = min(measured, key=lambda gpus: abs(gpus - replicas))
            sizes, times = table[plan.line["set"], "all_reduce", nearest]
            found += read_off(sizes, times, MIB * count)
        return found

    @cached_property
    def update_ns(self) -> dict[str, float]:
        """Of each set of GPUs, how long the optimizer takes for a MiB of weights.

        The median over the ranks of all plans that a planner found, waiting included.
        """
        found: dict[str, list[float]] = {}
        for plan in self.plans:
            for number, stage in enumerate(plan.stages):
                for rank in plan.ranks_of(number):
                    if rank["optimizer_ns"] and rank["stage"] is not None and stage.weights_mib:
                        each = rank["optimizer_ns"] / stage.weights_mib
                        found.setdefault(plan.line["set"], []).append(each)
        return {name: median(values) for name, values in found.items()}

    def _stages(self, line: Line) -> Iterator[PlanStage]:
        first = 0
        for stage in read_stages(line):
            numbers = range(stage.first, stage.first + len(stage.tensor))
            degrees = zip(numbers, stage.tensor, stage.replicas, stage.algorithm, strict=True)
            ops = [
                self._op(line, number, tensor, line["mbs"] // replicas, algorithm)
                for number, tensor, replicas, algorithm in degrees
            ]
            yield PlanStage(ops, stage.again, stage.replicas, range(first, first + stage.gpus))
            first += stage.gpus

    def _op(self, line: Line, number: int, tensor: int, samples: int, algorithm: int) -> Op:
        """Return the profile of an operator of the model."""
        key = (line["set"], line["model"], samples, tensor, algorithm)
        if key not in self._profiles:
            raise InputError(
                f"{line['plan']} needs {key[1]} on {key[0]} with {samples} samples, tensor degree "
                f"{tensor} and algorithm {algorithm}, which was not profiled",
                field="mist/ops",
                way_out="Add its operators to the table, or take the plan out",
            )
        if wrong := self._unusable[key]:
            raise InputError(
                f"{key[1]} on {key[0]} with {samples} samples, tensor degree {tensor} and "
                f"algorithm {algorithm}: {wrong}",
                field="mist/ops",
                way_out="Give each once, in the order of execution: one, those of one layer, two",
            )
        profile, layers = self._profiles[key], int(line["layers"])
        inside = profile[LAYER]
        behind = 1 + len(inside) * layers
        if number >= behind + 2:
            raise InputError(
                f"{line['plan']} names operator {number} of {layers} layers; they have "
                f"{behind + 2}, from 0 on",
                field="mist/plans",
                way_out="Correct the operators of its stages, or how many layers it has",
            )
        place = LAYER.stop + number - behind
        if number < behind:
            place = 1 + (number - 1) % len(inside) if number else 0
        if not ran(profile[place]):
            raise InputError(
                f"{line['plan']} needs {profile[place]['op']} of {key[1]} on {key[0]} with "
                f"{samples} samples and tensor degree {tensor}, which did not run",
                field="mist/ops",
                way_out="Give its times, or take the plan out",
            )
        return profile[place]

    @cached_property
    def _unusable(self) -> Mapping[tuple[object, ...], str]:
        return {key: unusable(profile) for key, profile in self._profiles.items()}

    def _sent(self, name: str, link: str, count: float) -> float:
        if (name, link) not in self._links:
            raise InputError(
                f"has no {link} link of {name}",
                field="mist/p2p",
                way_out="Add it to the table, or take the plans that use it out",
            )
        sizes, times = self._links[name, link]
        return read_off(sizes, times, count)

    @cached_property
    def _collectives(self) -> Curves:
        lines = self.tables.lines("mist/collectives", COLLECTIVES)
        return by_size(lines, ("set", "collective", "gpus"))
