"""Any allocation: any layer may lie on any GPU.

Which GPU keeps what, and which link carries what, are literals, each true exactly if all or any of
some others are: so memory and links are sums over literals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, Final, cast

from schedopt.plan import Kind
from schedopt.solving.models.contiguous_allocation import SharedGpus
from schedopt.solving.models.layer_peaks import LayerPeaks
from schedopt.solving.models.memory import MemoryConstraints
from schedopt.solving.models.placement import Placement
from schedopt.solving.models.slot_contents import SlotContents
from schedopt.solving.models.slots import ANY_GPU, ANY_LINK, SlotGraph
from schedopt.solving.models.variables import Variables
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import Literal

    from schedopt.network import Resource
    from schedopt.solving.models.order_model import OrderModel
    from schedopt.solving.models.resources import ResourceConstraints
    from schedopt.solving.models.variables import Expr
    from schedopt.transfer import Tensor

BACKWARDS: Final[tuple[Kind, ...]] = ("B", "I", "W")


class AnyAllocation:
    """Any allocation, which the model chooses."""

    linearize: ClassVar = False

    def __init__(self, graph: SlotGraph) -> None:
        self.graph, self.slots, self.domains = graph, graph.slots, graph.domains

    def choose(self, variables: Variables) -> None:
        """Choose where layers lie, which of them are one stage, and what links carry."""
        self.variables, self.model = variables, variables.model
        self.placement = Placement(variables, self.graph.problem, self.domains)
        self.contents = SlotContents(variables, self.graph, self.placement)
        self.gpus = SharedGpus(variables, self.placement, self.domains)
        self.links = SharedLinks(variables, self.placement, self.graph)

    def meet_if(self, early: int, late: int) -> tuple[Literal, ...] | None:
        """Return what must be true for two tasks to share a GPU or link; None: they never do."""
        if self.variables.path[early].resources == ANY_LINK:
            meets = self.links.meets.get((early, late))
            return None if meets is None else (meets,)
        return self.gpus.meet_if(early, late)

    def fit(self, model: OrderModel) -> None:
        """Fit what the layers of each GPU keep into its memory, and run as one what is joined."""
        if self.domains.at_one_instant:
            together = self.gpus.together
            LayerPeaks(self.variables, self.graph, self.placement, together).fit(model.resources)
            if not model.left_out:
                self._join(model, {})
            return
        enough = self._fit_portions(model.memory)
        self._join(model, enough)

    def _fit_portions(
        self, memory: MemoryConstraints
    ) -> dict[tuple[str, str, int], list[cp_model.IntVar]]:
        """Bytes once if a stash exists there at all, and once more for each n not enough.

        Return whether n = 1, 2, ... in flight are enough, by the ends of a stash and its layer.
        """
        on: dict[int, list[Expr]] = defaultdict(list)
        enough_of: dict[tuple[str, str, int], list[cp_model.IntVar]] = {}
        for number, stash in enumerate(self.graph.stashes):
            portions = [portion for portion in self.contents.portions(stash) if portion.size]
            if not (portions or self.placement.joined or stash.extra_in_flight):
                continue
            enough = memory.enough(number)
            enough_of[stash.enter, stash.leave, stash.stage] = enough
            memory.at_least_the_average(number, enough)
            self._at_least_the_way(number, enough, memory)
            exist = self.variables.exist(stash)
            everywhere: list[list[cp_model.IntVar]] = []
            for slot, size, there in portions:
                literal = cast("cp_model.IntVar", there)
                alone = self.variables.all_of(literal, *exist) if exist else literal
                more = [self.variables.all_of(literal, ~fewer) for fewer in enough]
                on[slot] += [size * count for count in (alone, *more)]
                if literal is self.placement.inside.get((stash.stage, slot)):
                    everywhere.append(more)
            if everywhere:
                # Redundant: where n are not enough, that is so in exactly one slot.
                for fewer, *more in zip(enough, *everywhere, strict=True):
                    self.model.add_exactly_one(fewer, *more)
        for slot, sizes in on.items():
            self.model.add(sum(sizes) <= self.contents.spare[slot])
        return enough_of

    def _at_least_the_way(
        self, number: int, enough: Sequence[cp_model.IntVar], memory: MemoryConstraints
    ) -> None:
        """Let as many be in flight as the way to the end and back takes periods.

        Redundant: the orders imply it. But it excludes allocations before any order is chosen.
        """
        stash, variables = self.graph.stashes[number], self.variables
        if stash.enter != "F" or stash.leave == "W":
            return
        exist = variables.exist(stash)
        for literal in enough[: self.domains.least[stash.stage] - 1]:
            self.model.add_bool_or(~literal, *(~also for also in exist))
        most = 1 + sum(~literal for literal in enough)
        way = self._way_through(stash.stage)
        kept = self.model.add(variables.k * way <= variables.period_ns * most)
        if where := (*exist, *memory.resolved(number)):
            kept.only_enforce_if(*where)

    def _way_through(self, layer: int) -> Expr:
        """Return the least time from the forward of a layer through all behind it and back, ns."""
        variables = self.variables
        way = cast("Expr", self.model.new_constant(0))
        for position, task in enumerate(variables.path):
            if task.stage < layer or task.kind in ("R", "W"):
                continue
            length = variables.lengths[position]
            if task.resources == ANY_LINK:
                if position in variables.sent:
                    time, sent = variables.sent[position]
                    way += time * sent
            elif task.split is None:
                way += length
            elif task.kind == "I":
                whole = variables.lengths[variables.index["B", task.stage]]
                if isinstance(length, int) and isinstance(whole, int):
                    way += whole + (length - whole) * variables.split[task.stage]
        return way

    def _join(
        self, model: OrderModel, enough_of: dict[tuple[str, str, int], list[cp_model.IntVar]]
    ) -> None:
        """Let joined layers run one directly behind the other, and keep as many micro-batches."""
        variables = self.variables
        for layer, joined in self.placement.joined.items():
            for task in variables.path:
                if task.stage == layer and task.resources == ANY_GPU:
                    pair = variables.index[task.kind, layer - 1], variables.index[task.key]
                    first, second = pair[::-1] if task.kind in BACKWARDS else pair
                    model.timing.follow_at_once(first, second, joined)
                    self._let_nothing_between(first, second, joined, model.resources)
            for literals in (variables.split, self.contents.works):
                if layer in literals:
                    same = self.model.add(literals[layer] == literals[layer - 1])
                    same.only_enforce_if(joined)
            for (enter, leave, of), enough in enough_of.items():
                if of != layer:
                    continue
                for n, first_enough in enumerate(enough_of[enter, leave, layer - 1]):
                    if n >= len(enough) and self.domains.extra[layer]:
                        continue
                    unless = [~enough[n]] if n < len(enough) else []
                    self.model.add_bool_or(first_enough, ~joined, *unless)

    def _let_nothing_between(
        self, first: int, second: int, joined: cp_model.IntVar, resources: ResourceConstraints
    ) -> None:
        """Let a task that takes no time not come between two that follow at once."""
        variables = self.variables
        for other, task in enumerate(variables.path):
            if task.resources != ANY_GPU or any(length for length, _ in self.contents.terms(task)):
                continue
            if any(self.domains.extra):
                # It may come so late that its order is not known.
                resources.resolved = False
                continue
            if not all(resources.are_ordered(other, task) for task in (first, second)):
                continue
            where = self.gpus.meet_if(other, first)
            exist = variables.exist(task, variables.path[first], variables.path[second])
            for j in range(variables.k):
                same = resources.begun(other, j, first) == resources.begun(other, j, second)
                self.model.add(same).only_enforce_if(joined, *exist, *(where or ()))

    def stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the stages that were chosen."""
        return self.placement.stages(solver)


class SharedLinks:
    """Which link each transfer occupies, as literals, and which two transfers meet there.

    Transfers take their time only if they are sent.

    Attributes
    ----------
    meets : dict
        Whether two transfers, the earlier first, use one link.
    """

    def __init__(self, variables: Variables, placement: Placement, graph: SlotGraph) -> None:
        self.variables, self.placement, self.slots = variables, placement, graph.slots
        self.uses: dict[tuple[Tensor, int], dict[Resource, cp_model.IntVar]] = {}
        self.meets: dict[tuple[int, int], cp_model.IntVar] = {}
        self._send()
        self._meet()
        self._send_within_the_period()

    def _send(self) -> None:
        """Say which link each transfer occupies, and that it takes time only if it is sent."""
        platform = self.slots.problem.platform
        ways: dict[tuple[Tensor, int], dict[Resource, list[cp_model.IntVar]]] = {}
        sends: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        for (layer, source, target), goes in self.placement.goes.items():
            if source == target:
                continue
            sends[layer].append(goes)
            ends: tuple[tuple[Tensor, int, int], ...] = (
                ("activation", source, target),
                ("gradient", target, source),
            )
            for tensor, here, there in ends:
                for link in platform.route(here, there):
                    links = ways.setdefault((tensor, layer), defaultdict(list))
                    links[link].append(goes)
        sent = {layer: self.variables.any_of(*literals) for layer, literals in sends.items()}
        for position, task in enumerate(self.variables.path):
            if task.resources == ANY_LINK and task.stage in sent:
                self.variables.sent[position] = self.slots.sent_ns(task.stage), sent[task.stage]
        # Both directions of a half-duplex link are one.
        known: dict[tuple[int, ...], cp_model.IntVar] = {}
        for key, links in ways.items():
            self.uses[key] = {}
            for link, literals in links.items():
                same = tuple(sorted(literal.index for literal in literals))
                if same not in known:
                    known[same] = self.variables.any_of(*literals)
                self.uses[key][link] = known[same]

    def _meet(self) -> None:
        """Say which two transfers use one link."""
        variables = self.variables
        known: dict[tuple[tuple[int, ...], ...], cp_model.IntVar] = {}
        sends = [
            position for position, task in enumerate(variables.path) if task.resources == ANY_LINK
        ]
        for pair in combinations(sends, 2):
            first, second = (
                self.uses.get(cast("tuple[Tensor, int]", variables.path[position].key), {})
                for position in pair
            )
            shared = [(first[link], second[link]) for link in first if link in second]
            if not shared:
                continue
            key = tuple(sorted(tuple(sorted((a.index, b.index))) for a, b in shared))
            if key not in known:
                both = [a if a is b else variables.all_of(a, b) for a, b in shared]
                known[key] = variables.any_of(*both)
            self.meets[pair] = known[key]
        # What meets is sent.
        variables.implies_sent = {literal.index for literal in known.values()}

    def _send_within_the_period(self) -> None:
        """K times what a link sends <= T. Redundant, as the orders imply it."""
        busy: dict[Resource, list[Expr]] = defaultdict(list)
        for (_, layer), links in self.uses.items():
            for link, used in links.items():
                busy[link].append(self.slots.sent_ns(layer) * used)
        for times in busy.values():
            self.variables.model.add(self.variables.k * sum(times) <= self.variables.period_ns)
