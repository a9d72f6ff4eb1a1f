"""What lies in each slot and row takes: time, workspace, weights and what is stashed.

All are sums over the literals that say which layers lie there, and which of them are recomputed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from schedopt.account.timeline import layer_ns
from schedopt.bounds.recomputation import input_bytes
from schedopt.chain import Layer
from schedopt.solving.models.placement import Placement
from schedopt.solving.models.slots import SlotGraph
from schedopt.solving.models.tasks import Stash, Task
from schedopt.solving.models.variables import Hint, Variables

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.solving.models.placement import Pair
    from schedopt.solving.models.variables import Expr


class Portion(NamedTuple):
    """Bytes that a slot keeps for each micro-batch where an expression is 1, and not 0."""

    slot: int
    size: int
    there: cp_model.LinearExpr


class SlotContents:
    """The lengths of tasks, and what is left in the memory of each slot.

    Attributes
    ----------
    kept : dict
        Whether a layer lies in a slot and is not recomputed.
    spare : dict of int to expression
        Bytes of each slot for stashes.
    works : dict of int to literal
        Whether anything in a row takes time. Only where layers need a workspace.
    """

    def __init__(self, variables: Variables, graph: SlotGraph, placement: Placement) -> None:
        self.variables, self.model = variables, variables.model
        self.slots, self.problem, self.placement = graph.slots, graph.problem, placement
        self.layers = graph.problem.chain.layers
        self._in_row: dict[int, list[Pair]] = defaultdict(list)
        self._in_slot: dict[int, list[int]] = defaultdict(list)
        for layer, slot in placement.inside:
            self._in_row[self.slots.row(layer, slot)].append((layer, slot))
            self._in_slot[slot].append(layer)
        self._measure()
        self.kept = dict(self._kept())
        self.works: dict[int, cp_model.IntVar] = {}
        self.workspace: dict[int, cp_model.IntVar] = {}
        self._take_workspaces()
        self.spare = dict(self._spare())
        self._work_within_the_period()

    def _measure(self) -> None:
        """length[o] = the sum of the lengths of the layers of its row."""
        for position, task in enumerate(self.variables.path):
            terms = list(self.terms(task))
            lengths = {length for length, _ in terms}
            if not terms or (self._always_runs(task) and len(lengths) == 1):
                self.variables.lengths[position] = lengths.pop() if terms else 0
                continue
            most = sum(length for length, _ in terms)
            if task.split is None:
                most = min(most, self.variables.period_ns // self.variables.k)
            total = sum(length * literal for length, literal in terms)
            name = f"d{task.kind}{task.stage}"
            length = self.variables.integer(most, name, partial(_value, total))
            self.model.add(length == total)
            self.variables.lengths[position] = length

    def _always_runs(self, task: Task) -> bool:
        """Whether a task is there wherever its row lies: a layer always lies somewhere."""
        return self.slots.by_layer and task.kind in ("F", "B", "I", "W")

    def terms(self, task: Task) -> Iterator[tuple[int, cp_model.IntVar]]:
        """Yield how long a task takes for each thing in its row, ns, and whether it is there."""
        chosen = self.placement
        if task.kind in ("activation", "gradient"):
            for (layer, source, target), goes in chosen.goes.items():
                if layer == task.stage and source != target:
                    yield self.slots.sent_ns(layer), goes
        for layer, slot in self._in_row[task.stage]:
            match task.kind:
                case "F" | "B" | "I" | "W" | "R" as kind:
                    literals = chosen.recomputed if kind == "R" else chosen.inside
                    gpu = self.problem.platform.gpus[slot]
                    yield gpu.duration_ns(layer_ns(self.layers[layer], kind)), literals[layer, slot]
                case _:
                    if (layer, slot) in chosen.parted:
                        yield self.slots.sent_ns(layer), chosen.parted[layer, slot]

    def _kept(self) -> Iterator[tuple[Pair, cp_model.LinearExpr]]:
        """Yield inside and not recomputed: as a literal where other literals are made of it."""
        for pair, here in self.placement.inside.items():
            recomputed = self.placement.recomputed.get(pair)
            if recomputed is None:
                yield pair, here
            elif self.slots.anywhere:
                yield pair, self.variables.all_of(here, ~recomputed)
            else:
                yield pair, here - recomputed

    def portions(self, stash: Stash) -> Iterator[Portion]:
        """Yield what may lie in the row of a stash for each micro-batch."""
        chosen = self.placement
        for pair in self._in_row[stash.stage]:
            number, slot = pair
            layer = self.layers[number]
            if stash.enter == "I":
                yield Portion(slot, layer.saved_weight_bytes or 0, chosen.inside[pair])
            elif stash.leave not in ("B", "W" if layer.saved_weight_bytes is None else "I"):
                continue
            elif stash.enter == "R":
                yield Portion(slot, layer.saved, chosen.recomputed[pair])
            else:
                yield Portion(slot, layer.saved, self.kept[pair])
                if pair in chosen.begins:
                    checkpoint = input_bytes(self.problem.chain, number)
                    yield Portion(slot, checkpoint, chosen.begins[pair])
                if pair in chosen.behind:
                    yield Portion(slot, layer.saved_input_bytes or 0, chosen.behind[pair])

    def _take_workspaces(self) -> None:
        """Take the largest workspace of a slot.

        Only operations that take time take one, but then that of every layer of the row counts.
        """
        largest = max(layer.workspace_bytes or 0 for layer in self.layers)
        if not largest:
            return
        for slot in range(self.slots.count):
            rule = partial(self._largest_workspace, slot)
            self.workspace[slot] = self.variables.integer(largest, f"workspace{slot}", rule)
        for row in range(self.slots.rows):
            works = self.variables.literal(f"works{row}", partial(self._any_works, row))
            self.works[row] = works
            for number, slot in self._in_row[row]:
                here, layer = self.placement.inside[number, slot], self.layers[number]
                if layer.workspace_bytes:
                    larger = self.model.add(self.workspace[slot] >= layer.workspace_bytes)
                    larger.only_enforce_if(here, works)
                self._let_work(row, layer, here)

    def _let_work(self, row: int, layer: Layer, here: cp_model.IntVar) -> None:
        """Say that a row works if the way to run a layer that is there takes time."""
        works, split = self.works[row], self.variables.split.get(row)
        whole, halves = _takes_time(layer)
        if split is None or layer.forward_ns:
            if whole:
                self.model.add_implication(here, works)
            return
        if whole:
            self.model.add_bool_or(works, ~here, split)
        if halves:
            self.model.add_bool_or(works, ~here, ~split)

    def _any_works(self, row: int, hint: Hint) -> bool:
        split = row in self.variables.split and bool(hint(self.variables.split[row]))
        return any(
            hint(self.placement.inside[pair]) and _takes_time(self.layers[pair[0]])[split]
            for pair in self._in_row[row]
        )

    def _largest_workspace(self, slot: int, hint: Hint) -> int:
        return max(
            (
                self.layers[layer].workspace_bytes or 0
                for layer in self._in_slot[slot]
                if hint(self.placement.inside[layer, slot])
                and hint(self.works[self.slots.row(layer, slot)])
            ),
            default=0,
        )

    def _spare(self) -> Iterator[tuple[int, Expr]]:
        """Yield what weights and workspace of a slot leave of its GPU, which is not below 0."""
        for slot in range(self.slots.count):
            spare: Expr = self.slots.usable[slot]
            for layer in self._in_slot[slot]:
                spare -= self.layers[layer].weight_bytes * self.placement.inside[layer, slot]
            if slot in self.workspace:
                spare -= self.workspace[slot]
            self.model.add(spare >= 0)
            yield slot, spare

    def _work_within_the_period(self) -> None:
        """K times the work of a GPU <= T.

        Redundant: the orders imply it. But it excludes allocations before any order is chosen.
        """
        split, variables = self.problem.scope.split_backward, self.variables
        for slot in range(self.slots.count):
            gpu, total = self.problem.platform.gpus[slot], cast("Expr", self.model.new_constant(0))
            for number in self._in_slot[slot]:
                layer, pair = self.layers[number], (number, slot)
                forward, backward = map(gpu.duration_ns, (layer.forward_ns, layer.backward_ns))
                if split:
                    halves = (layer.backward_input_ns or 0, layer.backward_weight_ns or 0)
                    backward = min(backward, sum(map(gpu.duration_ns, halves)))
                total += (forward + backward) * self.placement.inside[pair]
                if pair in self.placement.recomputed:
                    total += forward * self.placement.recomputed[pair]
            self.model.add(variables.k * total <= variables.period_ns)


def _value(expression: Expr, hint: Hint) -> int:
    return hint(expression)


def _takes_time(layer: Layer) -> tuple[bool, bool]:
    """Return whether a layer takes time with a whole backward, and with a split one."""
    return (
        bool(layer.forward_ns or layer.backward_ns),
        bool(layer.forward_ns or layer.backward_input_ns or layer.backward_weight_ns),
    )
