"""The order model where any layer may lie on any GPU.

Which GPU keeps what, and which link carries what, are literals, each true exactly if all or any of
some others are: so memory and links are sums over literals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, cast

from schedopt.bounds.recomputation import input_bytes
from schedopt.plan import Kind
from schedopt.solving.models.free_slots import LINK, FreePlacement, FreeSlots
from schedopt.solving.models.layer_slots import LayerModel

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.network import Resource
    from schedopt.solving.models.order_model import Arc, Expr
    from schedopt.solving.models.placement import Placement
    from schedopt.solving.models.tasks import PatternSolution, Stash, Task
    from schedopt.systems.cycles import Difference

BACKWARDS: Final[tuple[Kind, ...]] = ("B", "I", "W")


class Portion(NamedTuple):
    """Bytes that a slot keeps for each micro-batch if a literal is true."""

    slot: int
    size: int
    if_true: cp_model.IntVar


class FreeModel(LayerModel):
    """The order model of any allocation."""

    hurry: ClassVar = True
    pipeline: FreeSlots
    placement: FreePlacement

    def _place(self) -> Placement:
        return FreePlacement(self.model, self.problem, self.windows)

    def _choose(self) -> None:
        self.defined: list[tuple[cp_model.IntVar, bool, list[cp_model.LiteralT]]] = []
        self.at_once: list[tuple[Arc, tuple[cp_model.LiteralT, ...]]] = []
        self.between_unknown = False
        super()._choose()
        self._send()
        self._meet()
        self._send_within_the_period()

    def _all(self, *literals: cp_model.LiteralT) -> cp_model.IntVar:
        """Return a literal that is true exactly if all of some are."""
        found = self.model.new_bool_var("")
        for literal in literals:
            self.model.add_implication(found, literal)
        self.model.add_bool_or(found, *(~literal for literal in literals))
        self.defined.append((found, True, list(literals)))
        return found

    def _any(self, *literals: cp_model.LiteralT) -> cp_model.IntVar:
        """Return a literal that is true exactly if any of some is."""
        found = self.model.new_bool_var("")
        for literal in literals:
            self.model.add_implication(literal, found)
        self.model.add_bool_or(~found, *literals)
        self.defined.append((found, False, list(literals)))
        return found

    def _send(self) -> None:
        """Say which link each transfer occupies, and that it takes time only if it is sent."""
        platform = self.problem.platform
        self.sent: dict[int, cp_model.IntVar] = {}
        ways: dict[tuple[str, int], dict[Resource, list[cp_model.LiteralT]]] = {}
        sent: dict[int, list[cp_model.LiteralT]] = defaultdict(list)
        for (layer, source, target), goes in self.placement.goes.items():
            if source == target:
                continue
            sent[layer].append(goes)
            for what, route in (
                ("activation", platform.route(source, target)),
                ("gradient", platform.route(target, source)),
            ):
                for link in route:
                    links = ways.setdefault((what, layer), defaultdict(list))
                    links[link].append(goes)
        self.sent = {layer: self._any(*literals) for layer, literals in sent.items()}
        self.uses: dict[tuple[str, int], dict[Resource, cp_model.IntVar]] = {}
        known: dict[tuple[int, ...], cp_model.IntVar] = {}
        for key, links in ways.items():
            self.uses[key] = {}
            for link, literals in links.items():
                # Both directions of a half-duplex link are one.
                same = tuple(sorted(index_of(literal) for literal in literals))
                if same not in known:
                    known[same] = self._any(*literals)
                self.uses[key][link] = known[same]

    def _meet(self) -> None:
        """Say which two transfers use one link."""
        self.meets: dict[tuple[int, int], cp_model.IntVar] = {}
        known: dict[tuple[object, ...], cp_model.IntVar] = {}
        sends = [number for number, step in enumerate(self.path) if step.resources == LINK]
        for one, two in combinations_with_replacement(sends, 2):
            first, second = (
                self.uses.get((self.path[n].what, self.path[n].stage), {}) for n in (one, two)
            )
            shared = [(first[link], second[link]) for link in first if link in second]
            if one == two or not shared:
                continue
            key = tuple(sorted(tuple(sorted((a.index, b.index))) for a, b in shared))
            if key not in known:
                both = [a if a is b else self._all(a, b) for a, b in shared]
                known[key] = self._any(*both)
            self.meets[one, two] = known[key]
        self.met = {literal.index for literal in known.values()}

    def _send_within_the_period(self) -> None:
        """Let no link send for longer than a period. The orders imply it."""
        busy: dict[Resource, list[Expr]] = defaultdict(list)
        for (_, layer), links in self.uses.items():
            for link, used in links.items():
                busy[link].append(self.pipeline.sent_ns(layer) * used)
        for times in busy.values():
            self.model.add(self.k * sum(times) <= self.period_ns)

    def _terms(self, step: Task) -> Iterator[tuple[int, cp_model.IntVar]]:
        if step.resources != LINK:
            yield from super()._terms(step)
            return
        for (layer, source, target), goes in self.placement.goes.items():
            if layer == step.stage and source != target:
                yield self.pipeline.sent_ns(layer), goes

    def _require(self, arc: Arc, *if_true: cp_model.LiteralT) -> None:
        step = self.path[arc.first // self.k]
        sent = self.sent.get(step.stage) if step.resources == LINK else None
        if sent is None:
            super()._require(arc, *if_true)
            return
        # The length is one of two. What meets is sent.
        passed = self.starts[arc.second] - self.starts[arc.first] + arc.turns * self.period_ns
        meets = any(index_of(literal) in self.met for literal in if_true)
        unless = () if meets else (sent,)
        kept = self.model.add(passed >= self.pipeline.sent_ns(step.stage))
        kept.only_enforce_if(*if_true, *unless)
        if not meets:
            kept = self.model.add(passed >= 0)
            if if_true:
                kept.only_enforce_if(*if_true)
        self.arcs.append((arc, if_true))

    def _may_meet(self, one: int, two: int) -> bool:
        if self.path[one].resources == LINK:
            return (one, two) in self.meets
        return super()._may_meet(one, two)

    def _where_they_meet(self, one: int, two: int) -> tuple[cp_model.LiteralT, ...]:
        if self.path[one].resources == LINK:
            return (self.meets[one, two],)
        return super()._where_they_meet(one, two)

    def _weigh(self) -> None:
        """Say what each slot keeps for each micro-batch."""
        chosen = self.placement
        self.kept_there = {
            pair: self._all(here, ~chosen.again[pair]) if chosen.again else here
            for pair, here in chosen.inside.items()
        }
        self.portions = [
            [portion for portion in self._portions(one) if portion.size]
            for one in self.pipeline.stashes
        ]

    def _portions(self, one: Stash) -> Iterator[Portion]:
        layer, chosen = self.layers[one.stage], self.placement
        for slot in self.windows.slots_of[one.stage]:
            pair = one.stage, slot
            if one.enter == "I":
                yield Portion(slot, layer.saved_weight_bytes or 0, chosen.inside[pair])
            elif one.leave not in ("B", "W" if layer.saved_weight_bytes is None else "I"):
                continue
            elif one.enter == "R":
                yield Portion(slot, layer.saved, chosen.again[pair])
            else:
                yield Portion(slot, layer.saved, self.kept_there[pair])
                if pair in chosen.begins:
                    checkpoint = input_bytes(self.problem.chain, one.stage)
                    yield Portion(slot, checkpoint, chosen.begins[pair])
                if pair in chosen.behind:
                    yield Portion(slot, layer.saved_input_bytes or 0, chosen.behind[pair])

    def _fit(self) -> None:
        """Fit what the layers of each GPU keep into its memory."""
        on: dict[int, list[Expr]] = defaultdict(list)
        counted: dict[tuple[str, str, int], list[cp_model.IntVar]] = {}
        for number, one in enumerate(self.pipeline.stashes):
            portions = self.portions[number]
            if not (portions or self.placement.joined or one.beyond):
                continue
            enough = self._are_enough(number)
            counted[one.enter, one.leave, one.stage] = enough
            self._are_there_on_average(number, enough)
            self._are_there_at_least(number, enough)
            there = self._is_there(one)
            everywhere: list[list[cp_model.IntVar]] = []
            for portion in portions:
                # One, if it is there at all, and one more for each n that is not enough.
                alone = self._all(portion.if_true, *there) if there else portion.if_true
                more = [self._all(portion.if_true, ~fewer) for fewer in enough]
                on[portion.slot] += [portion.size * count for count in (alone, *more)]
                if portion.if_true is self.placement.inside.get((one.stage, portion.slot)):
                    everywhere.append(more)
            if everywhere:
                for fewer, *more in zip(enough, *everywhere, strict=True):
                    self.model.add_exactly_one(fewer, *more)
        for slot, sizes in on.items():
            self.model.add(sum(sizes) <= self.spare[slot])
        self._join(counted)

    def _are_there_at_least(self, number: int, enough: Sequence[cp_model.IntVar]) -> None:
        """Let as many be in flight as the way to the end and back takes. The orders imply it."""
        one = self.pipeline.stashes[number]
        if one.enter != "F" or one.leave == "W":
            return
        there = [*self._is_there(one)]
        for literal in enough[: self.windows.least[one.stage] - 1]:
            self.model.add_bool_or(~literal, *(~also for also in there))
        most = 1 + sum(~literal for literal in enough)
        kept = self.model.add(self.k * self._way_through(one.stage) <= self.period_ns * most)
        if number in self.told:
            there.append(self.told[number])
        if there:
            kept.only_enforce_if(*there)

    def _way_through(self, layer: int) -> Expr:
        """Return the least time from the forward of a layer through all behind it and back, ns."""
        way = cast("Expr", self.model.new_constant(0))
        for number, step in enumerate(self.path):
            if step.stage < layer or step.what in ("R", "W"):
                continue
            length = self.lengths[number]
            if step.resources == LINK:
                if step.stage in self.sent:
                    way += self.pipeline.sent_ns(step.stage) * self.sent[step.stage]
            elif step.split is None:
                way += length
            elif step.what == "I":
                whole = self.lengths[self.place["B", step.stage]]
                if isinstance(length, int) and isinstance(whole, int):
                    way += whole + (length - whole) * self.split[step.stage]
        return way

    def _join(self, counted: dict[tuple[str, str, int], list[cp_model.IntVar]]) -> None:
        """Let joined layers run one directly behind the other, and keep as many micro-batches."""
        for layer, joined in self.placement.joined.items():
            for step in self.path:
                if step.stage == layer and step.resources == (("gpu",),):
                    before = self.place[step.what, layer - 1]
                    both = (before, self.place[step.what, layer])
                    self._follow_at_once(*(both[::-1] if step.what in BACKWARDS else both), joined)
            if layer in self.split:
                self.model.add(self.split[layer] == self.split[layer - 1]).only_enforce_if(joined)
            if layer in self.works:
                self.model.add(self.works[layer] == self.works[layer - 1]).only_enforce_if(joined)
            for (enter, leave, of), enough in counted.items():
                if of != layer:
                    continue
                for n, first in enumerate(counted[enter, leave, layer - 1]):
                    if n >= len(enough) and self.windows.beyond[layer]:
                        continue
                    unless = [~enough[n]] if n < len(enough) else []
                    self.model.add_bool_or(first, ~joined, *unless)

    def _follow_at_once(self, one: int, two: int, joined: cp_model.IntVar) -> None:
        there = self._is_there(self.path[one], self.path[two])
        for j in range(self.k):
            arc = self._arc((one, j), (two, j))
            self._require(arc, joined, *there)
            passed = self.starts[arc.second] - self.starts[arc.first]
            self.model.add(passed <= self.lengths[one]).only_enforce_if(joined, *there)
            self.at_once.append((arc, (joined, *there)))
        for other, step in enumerate(self.path):
            if step.resources != (("gpu",),) or any(length for length, _ in self._terms(step)):
                continue
            if any(self.windows.beyond):
                # It may come so late that its order is not known.
                self.between_unknown = True
                continue
            self._keep_from_between(other, one, two, joined)

    def _keep_from_between(self, other: int, one: int, two: int, joined: cp_model.IntVar) -> None:
        """Let a step that takes no time not come between two that follow at once."""
        if not self._are_ordered(other, one) or not self._are_ordered(other, two):
            return
        there = self._is_there(self.path[other], self.path[one], self.path[two])
        there += self._where_they_meet(other, one)
        for j in range(self.k):
            same = self._begun(other, j, one) == self._begun(other, j, two)
            self.model.add(same).only_enforce_if(joined, *there)

    def _are_ordered(self, one: int, two: int) -> bool:
        return (one, two) in self.between or (two, one) in self.between

    def _differences(self, solver: cp_model.CpSolver) -> Iterator[Difference]:
        yield from super()._differences(solver)
        for arc, if_true in self.at_once:
            if all(solver.boolean_value(one) for one in if_true):
                length = int(solver.value(self.lengths[arc.first // self.k]))
                yield arc.second, arc.first, -arc.turns, -length

    def leaves_open(self, solver: cp_model.CpSolver) -> bool:
        """Whether something found has more in flight, or more between, than is told apart."""
        return self.between_unknown or super().leaves_open(solver)

    def hint(self, answer: PatternSolution) -> None:
        """Start from an answer, with its stages and what they recompute."""
        super().hint(answer)
        hints = self.model.proto.solution_hint
        known = {
            number: bool(value) for number, value in zip(hints.vars, hints.values, strict=True)
        }

        def is_true(literal: cp_model.LiteralT) -> bool:
            index = index_of(literal)
            return known[index] if index >= 0 else not known[-index - 1]

        for literal, of_all, others in self.defined:
            known[literal.index] = (all if of_all else any)(map(is_true, others))
            self.model.add_hint(literal, known[literal.index])


def index_of(literal: cp_model.LiteralT) -> int:
    """Return the number of a literal in its model, below 0 for the opposite of one."""
    return cast("cp_model.IntVar", literal).index
