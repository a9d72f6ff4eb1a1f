"""What lies on a GPU at the worst, where the model chooses which layers lie there.

Each layer runs apart. Those that are joined to a stage run as one: what the stage keeps begins as
the first forward starts and ends as the last backward does, and nothing comes between. So as the
last forward of a stage starts all that the stage keeps is there, and as its first backward starts,
still.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from schedopt.account.timeline import layer_ns
from schedopt.bounds.recomputation import input_bytes
from schedopt.chain import Chain
from schedopt.plan import Kind
from schedopt.solving.models.peaks import Kept, PeakConstraints
from schedopt.solving.models.placement import Placement
from schedopt.solving.models.resources import ResourceConstraints
from schedopt.solving.models.slots import ANY_GPU, KINDS, SlotGraph
from schedopt.solving.models.tasks import Stash, Task, TaskKey
from schedopt.solving.models.variables import Hint, Variables
from schedopt.transfer import Tensor

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import Literal

    from schedopt.solving.models.placement import Literals
    from schedopt.solving.models.variables import Expr

    Together = Mapping[tuple[int, int], cp_model.IntVar]


class LayerPeaks:
    """What fits on the GPU of each layer as one of its operations starts.

    `together` says which two layers share a GPU, the earlier one first.
    """

    def __init__(
        self, variables: Variables, graph: SlotGraph, placement: Placement, together: Together
    ) -> None:
        self.variables, self.model, self.graph = variables, variables.model, graph
        self.placement, self.together = placement, together
        self.chain, self.layers = graph.problem.chain, graph.problem.chain.layers
        self.recomputed = self._of_layers(placement.recomputed)
        self.begins = self._of_layers(placement.begins)
        self.behind = self._of_layers(placement.behind)
        self.workspaces = dict(self._workspaces())

    def _of_layers(self, literals: Literals) -> dict[int, cp_model.IntVar]:
        """Return whether something is true of a layer in any slot."""
        slots_of = self.graph.domains.slots_of
        return {
            layer: self.variables.any_of(*(literals[layer, slot] for slot in slots))
            for layer, slots in enumerate(slots_of)
            if any((layer, slot) in literals for slot in slots)
        }

    def fit(self, resources: ResourceConstraints) -> None:
        """Add the constraints, unless the model is given up."""
        peaks, usable = PeakConstraints(self.variables, resources), self.graph.slots.usable
        for position, task in enumerate(self.variables.path):
            if task.resources != ANY_GPU:
                continue
            takes = self.workspaces[task.key]
            if not (_is_something(takes) or something_comes(task.kind, task.stage, self.graph)):
                continue
            slots = self.graph.domains.slots_of[task.stage]
            room = sum(usable[slot] * self.placement.inside[task.stage, slot] for slot in slots)
            kept = [
                Kept(number, size, (*together, *there))
                for number, stash in enumerate(self.graph.stashes)
                if (together := self._shares_gpu(task.stage, stash.stage)) is not None
                for size, there in self._portions(stash)
            ]
            others = takes + self._weights(task.stage) + self._still_kept(task)
            peaks.fit(position, kept, others, room)

    def _shares_gpu(self, one: int, other: int) -> tuple[Literal, ...] | None:
        """Return what must be true for two layers to share a GPU; None: they never do."""
        if one == other:
            return ()
        literal = self.together.get((min(one, other), max(one, other)))
        return None if literal is None else (literal,)

    def _portions(self, stash: Stash) -> Iterator[tuple[int, tuple[Literal, ...]]]:
        """Yield the bytes that a layer may keep of each micro-batch, and what must be true."""
        number = stash.stage
        literals = [of.get(number) for of in (self.recomputed, self.begins, self.behind)]
        return portions_of_layer(self.chain, number, stash, *literals)

    def _weights(self, own: int) -> Expr:
        """Return the weights on the GPU of a layer."""
        total: Expr = self.layers[own].weight_bytes
        for number, layer in enumerate(self.layers):
            for literal in self._shares_gpu(own, number) or ():
                total += layer.weight_bytes * literal
        return total

    def _still_kept(self, task: Task) -> Expr:
        """Return what the input halves of joined layers, which ran before, leave only at the end.

        All that is for W comes as the first of them starts.
        """
        total: Expr = 0
        if task.kind != "I":
            return total
        joined: list[Literal] = []
        for number in range(task.stage + 1, len(self.layers)):
            if number not in self.placement.joined:
                break
            joined.append(self.placement.joined[number])
            for stash in self.graph.stashes:
                if (stash.stage, stash.leave) == (number, "I"):
                    for size, there in self._portions(stash):
                        if size:
                            total += size * self.variables.all_of(*joined, *there)
        return total

    def _workspaces(self) -> Iterator[tuple[TaskKey, Expr]]:
        """Yield what an operation of each layer takes: the most of all layers that run as one."""
        needs = [layer.workspace_bytes or 0 for layer in self.layers]
        exist = {task.kind for task in self.variables.path}
        for kind in KINDS:
            if kind not in exist:
                continue
            before: cp_model.IntVar | None = None
            for number, layer in enumerate(self.layers):
                again = self.recomputed.get(number) if kind == "R" else None
                need = needs[number] if layer_ns(layer, kind) else 0
                if not (self.placement.joined and any(needs)):
                    yield (kind, number), need if again is None else need * again
                    continue
                rule = partial(self._most_of_stage, kind, number)
                takes = self.variables.integer(max(needs), f"takes{kind}{number}", rule)
                demand = self.model.add(takes >= need)
                if again is not None:
                    demand.only_enforce_if(again)
                if before is not None and number in self.placement.joined:
                    self.model.add(takes == before).only_enforce_if(self.placement.joined[number])
                before = takes
                yield (kind, number), takes

    def _most_of_stage(self, kind: Kind, number: int, hint: Hint) -> int:
        stage = next(stage for stage in hint.solution.stages if number in stage.layer_range)
        layers = stage.recomputed_layers if kind == "R" else stage.layer_range
        return max((self.layers[layer].workspace_bytes or 0 for layer in layers), default=0)


class StagePeaks:
    """What fits on the GPU of each slot, which holds one stage, as one of its operations starts."""

    def __init__(self, variables: Variables, graph: SlotGraph, placement: Placement) -> None:
        self.variables, self.graph, self.placement = variables, graph, placement
        self.chain, self.layers = graph.problem.chain, graph.problem.chain.layers

    def fit(self, resources: ResourceConstraints) -> None:
        """Add the constraints, unless the model is given up."""
        peaks = PeakConstraints(self.variables, resources)
        for position, task in enumerate(self.variables.path):
            if task.resources != (("gpu", task.stage),):
                continue
            slot, kept, takes = task.stage, list[Kept](), self._workspace(task)
            if not (_is_something(takes) or something_comes(task.kind, None, self.graph)):
                continue
            weights: Expr = 0
            for number, slots in enumerate(self.graph.domains.slots_of):
                if slot in slots:
                    weights += (
                        self.layers[number].weight_bytes * self.placement.inside[number, slot]
                    )
                    kept += self._kept(number, slot)
            peaks.fit(position, kept, weights + takes, self.graph.slots.usable[slot])

    def _kept(self, number: int, slot: int) -> Iterator[Kept]:
        """Yield what a layer may keep in a slot."""
        chosen, pair = self.placement, (number, slot)
        literals = [of.get(pair) for of in (chosen.recomputed, chosen.begins, chosen.behind)]
        for at, stash in enumerate(self.graph.stashes):
            if stash.stage == slot:
                for size, there in portions_of_layer(self.chain, number, stash, *literals):
                    yield Kept(at, size, (chosen.inside[pair], *there))

    def _workspace(self, task: Task) -> Expr:
        """Return what an operation of a slot takes: the most of its layers."""
        inside = self.placement.recomputed if task.kind == "R" else self.placement.inside
        needs = [
            (literal, size)
            for (number, slot), literal in inside.items()
            if slot == task.stage and (size := self.layers[number].workspace_bytes)
        ]
        if not needs:
            return 0
        most, rule = max(size for _, size in needs), partial(_largest, needs)
        takes = self.variables.integer(most, f"takes{task.kind}{task.stage}", rule)
        for literal, size in needs:
            self.variables.model.add(takes >= size).only_enforce_if(literal)
        return takes


def _largest(needs: Sequence[tuple[cp_model.IntVar, int]], hint: Hint) -> int:
    return max(size * hint(literal) for literal, size in needs)


def _is_something(size: Expr) -> bool:
    return not isinstance(size, int) or size > 0


def something_comes(kind: Kind | Tensor, number: int | None, graph: SlotGraph) -> bool:
    """Whether there may be more on a GPU as a kind of operation starts than before.

    Of one layer or, without a number, of any. If what comes takes no time, that is seen as the next
    operation starts.
    """
    layers, scope = graph.problem.chain.layers, graph.problem.scope
    halves = [layer.backward_input_ns for layer in layers] if scope.split_backward else []
    if not all((*(layer.forward_ns for layer in layers), *halves)):
        return True
    if kind != "I":
        return kind in ("F", "R")
    some = layers if number is None else layers[number : number + 1]
    return any(layer.saved_weight_bytes for layer in some)


def portions_of_layer(
    chain: Chain,
    number: int,
    stash: Stash,
    again: cp_model.IntVar | None,
    begins: cp_model.IntVar | None,
    behind: cp_model.IntVar | None,
) -> Iterator[tuple[int, tuple[Literal, ...]]]:
    """Yield the bytes that a layer may keep of each micro-batch in a stash, and what must be true.

    `again` says whether it is recomputed, `begins` whether a run begins with it, and `behind`
    whether it is kept behind one that is not; None: it never is.
    """
    layer = chain.layers[number]
    if stash.enter == "I":
        yield layer.saved_weight_bytes or 0, ()
    elif stash.leave not in ("B", "W" if layer.saved_weight_bytes is None else "I"):
        return
    elif stash.enter == "R":
        if again is not None:
            yield layer.saved, (again,)
    else:
        yield layer.saved, () if again is None else (~again,)
        if begins is not None:
            yield input_bytes(chain, number), (begins,)
        if behind is not None:
            yield layer.saved_input_bytes or 0, (behind,)
