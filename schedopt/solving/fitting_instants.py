"""What layers keep at instants, for the relaxation: see `schedopt.bounds.instants`.

There are two instants for each layer, and most of them never matter. So those at which the
allocation of an answer does not fit are added, and the model is solved again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from schedopt.bounds.instants import Instants
from schedopt.solving.cp_sat import LARGEST_SUM

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.bounds.amounts import Array
    from schedopt.solving.relaxed_allocation import RelaxedAllocation

MOST_NEW: Final = 4
"""Instants that are added at once."""


class FittingInstants:
    """The memory of each GPU at those instants that matter.

    Parameters
    ----------
    chosen : RelaxedAllocation
    instants : Instants
        What layers keep at least, whatever is cut.
    rooms : sequence of int
        Of each GPU.
    span : sequence of IntVar
        Of each layer, at least.
    longest : sequence of int
        What these come to at most.
    again : sequence of IntVar
        What is recomputed together with each layer, up to it, bytes; empty without recompute.
    """

    def __init__(
        self,
        chosen: RelaxedAllocation,
        instants: Instants,
        rooms: Sequence[int],
        span: Sequence[cp_model.IntVar],
        longest: Sequence[int],
        again: Sequence[cp_model.IntVar],
    ) -> None:
        self.chosen, self.model, self.rooms = chosen, chosen.model, rooms
        self.instants, self.scaled = instants, instants.scaled
        self.sizes, self.again = self._sizes(instants), again
        self.span, self.longest, self.layers = span, longest, range(len(span))
        self.literals = (chosen.on, chosen.receives, chosen.recomputed, chosen.begins)
        self.known: set[int] = set()
        self.grown: set[int] = set()
        self.sent: list[cp_model.IntVar] = []
        self.longest_sent: list[int] = []
        largest = max(4 * len(span) * (self.scaled.room + 1), 4 * max(longest))
        scope = self.scaled.problem.scope
        self.may_grow = not scope.recompute and largest < LARGEST_SUM
        self.k = scope.max_k or 1
        self.period = self.k * self.scaled.above

    def recall(self, other: FittingInstants) -> None:
        """Add the instants that mattered at another period."""
        self.known, self.grown = set(other.known), set(other.grown)
        for instant in sorted(self.known):
            self._add(instant)
        for instant in sorted(self.grown) if self.may_grow else ():
            self._add_with_cuts(instant)

    def add_violated(self, solver: cp_model.CpSolver) -> bool:
        """Add instants at which the allocation of an answer does not fit; whether there are any.

        First with what layers keep whatever is cut, then with the cuts as variables.
        """
        import numpy as np

        values = [
            np.array([[int(solver.boolean_value(one)) for one in row] for row in literals])
            for literals in self.literals
        ]
        new = self._worst(self.sizes, values, self.known)
        for instant in new:
            self._add(instant)
        self.known |= set(new)
        if new or not self.may_grow:
            return bool(new)
        exact = self._with_cuts([solver.boolean_value(cut) for cut in self.chosen.cut])
        new = self._worst(self._sizes(exact), values, self.grown)
        for instant in new:
            self._add_with_cuts(instant)
        self.grown |= set(new)
        return bool(new)

    def _worst(self, sizes: Sequence[Array], values: Sequence[Array], but: set[int]) -> list[int]:
        """Return the instants at which the most is missing, if something is."""
        import numpy as np

        terms = zip(_coefficients(sizes), values, strict=True)
        held = np.sum([each @ literals for each, literals in terms], axis=0)
        if self.again:
            before = self._before(values) * self.instants.lasts[:, None]
            held[len(self.layers) :] += before[:, None, None]
        # On some GPU, at some side of the case that needs the least.
        missing = (held - np.array(self.rooms)).max(axis=(2, 3)).min(axis=1)
        order = np.argsort(-missing, kind="stable")
        return [int(one) for one in order if missing[one] > 0 and one not in but][:MOST_NEW]

    def _before(self, values: Sequence[Array]) -> Array:
        """Return what is recomputed together with each layer before it: of shape (layers, GPUs)."""
        import numpy as np

        _, _, recomputed, begins = values
        before = np.zeros_like(recomputed)
        for layer in self.layers[1:]:
            goes_on = recomputed[layer] * (1 - begins[layer])
            before[layer] = goes_on * (before[layer - 1] + self.scaled.saved[layer - 1])
        return before

    def _sizes(self, instants: Instants) -> tuple[Array, ...]:
        """Return what layers take: kept, received, recomputed, and beginning a run.

        Each is of shape (instants, cases, sides, layers).
        """
        # What does not fit is as good as one more than fits.
        kept = instants.kept.clip(max=self.scaled.room + 1 - self.scaled.weight)
        weight = self.scaled.weight
        return weight + kept, instants.received, weight + instants.again, instants.checkpoint

    def _on_gpu(self, sizes: Sequence[Array], place: int) -> list[cp_model.LinearExprT]:
        return [
            int(size) * row[place]
            for literals, row_of_sizes in zip(self.literals, _coefficients(sizes), strict=True)
            for size, row in zip(row_of_sizes, literals, strict=True)
            if size
        ]

    def _add(self, instant: int) -> None:
        """Let what layers keep at least fit each GPU: at all sides together, in any case."""
        sizes = [each[instant].sum(axis=1).min(axis=0) for each in self.sizes]
        if int(sum(each.sum() for each in sizes)) >= LARGEST_SUM:
            return
        layer = instant - len(self.layers)
        for place, room in enumerate(self.rooms):
            terms = self._on_gpu(sizes, place)
            if self.again and layer >= 0 and self.instants.lasts[layer]:
                before = self.model.new_int_var(0, room, "")
                saved = int(self.scaled.saved[layer])
                recomputed = self.chosen.recomputed[layer][place]
                self.model.add(before >= self.again[layer] - saved - room * (1 - recomputed))
                terms.append(self.k * before)
            self.model.add(sum(terms) <= self.k * room)

    def _with_cuts(self, cuts: Sequence[bool]) -> Instants:
        """Return what layers keep at least with some cuts, up to the layer of the instant."""
        import numpy as np

        scaled, count = self.scaled, len(self.layers)
        trips = np.where([*cuts, False], scaled.trips, 0)
        before = np.cumsum(trips // 2) - trips // 2
        spans = self.instants.spans.copy()
        for layer in reversed(self.layers[:-1]):
            sent = int(spans[layer + 1])
            if cuts[layer]:
                sent = scaled.sent(sent, layer)
            own = int(scaled.ahead[layer] + scaled.back[layer])
            spans[layer] = scaled.rounded(max(int(spans[layer]), sent + own), own)
        found = Instants(scaled, spans, np.maximum(before - before[:, None], 0))
        behind = np.tile(np.triu(np.ones((count, count), dtype=bool), 1), (2, 1))[:, None, None]
        found.kept = np.maximum(np.where(behind, 0, found.kept), self.instants.kept)
        return found

    def _add_with_cuts(self, instant: int) -> None:
        """Let what layers keep with the cuts that are made fit each GPU, at each side."""
        self._sum_transfers()
        sides = [self.model.new_constant(0)]
        if self.k == 2:
            # The time between the two micro-batches is one and the same at both sides.
            sides = [self.model.new_int_var(0, self.scaled.above, "")] * 2
        for side, behind in enumerate(sides):
            sizes = [each[instant, :, side].min(axis=0) for each in self.sizes]
            shares: list[list[cp_model.LinearExprT]] = [[] for _ in self.rooms]
            for layer in range(instant % len(self.layers) + 1):
                if saved := int(self.scaled.saved[layer]):
                    grown = self._shares(instant, layer, side, behind)
                    for terms, share in zip(shares, grown, strict=True):
                        terms.append(saved * share)
            for place, room in enumerate(self.rooms):
                self.model.add(sum([*self._on_gpu(sizes, place), *shares[place]]) <= room)

    def _sum_transfers(self) -> None:
        """Let variables say how long the transfers before each layer take, one way."""
        if self.sent:
            return
        self.sent, self.longest_sent = [self.model.new_constant(0)], [0]
        for layer, cut in enumerate(self.chosen.cut):
            half = int(self.scaled.trips[layer]) // 2
            self.longest_sent.append(self.longest_sent[-1] + half)
            after = self.model.new_int_var(0, self.longest_sent[-1], "")
            self.model.add(after == self.sent[-1] + half * cut)
            self.sent.append(after)

    def _shares(
        self, instant: int, layer: int, side: int, behind: cp_model.IntVar
    ) -> list[cp_model.LinearExprT]:
        """Return by how much more a layer keeps on each GPU than at least.

        It keeps no more than fits a GPU, and no more than with all cuts. `behind` is the time from
        the first to the second micro-batch of a period at the layer of the instant, rounded up.
        """
        scaled, of = self.scaled, instant % len(self.layers)
        sent, span = self.sent[of] - self.sent[layer], self.span[of]
        ways = [int(times[layer:of].sum()) for times in (scaled.ahead, scaled.back)]
        if instant >= len(self.layers):
            ways.reverse()
        near, far = ways[0] + sent, ways[1] + sent + span
        longest = self.longest_sent[of] - self.longest_sent[layer]
        most_near, most_far = ways[0] + longest, ways[1] + longest + self.longest[of]
        held, most_held = self._held(near, far, most_near, most_far)
        if self.k == 2:
            later = (near - behind, far + behind - 1)
            if side:
                later = (near + behind - 1 - self.period, far - behind + self.period)
            other, most_other = self._held(*later, most_near, most_far + self.period)
            held, most_held = held + other, most_held + most_other
        least = int(self.instants.counts[instant, :, side, layer].min())
        fitting = int(scaled.room - scaled.weight[layer]) // int(scaled.saved[layer])
        most = max(least, min(fitting, most_held))
        self.model.add(held <= most)
        if most == least:
            return [0 for _ in self.rooms]
        row = [self.model.new_int_var(0, most - least, "") for _ in self.rooms]
        for share, on in zip(row, self.chosen.on[layer], strict=True):
            self.model.add(share <= (most - least) * on)
        self.model.add(sum(row) + least >= held)
        return [*row]

    def _held(
        self, near: cp_model.LinearExprT, far: cp_model.LinearExprT, most_near: int, most_far: int
    ) -> tuple[cp_model.LinearExpr, int]:
        """Return floor(near / P) + ceil(far / P), and what it comes to at most."""
        begun = self.model.new_int_var(-1, most_near // self.period, "")
        ended = self.model.new_int_var(0, -(-most_far // self.period), "")
        self.model.add(self.period * (begun + 1) >= near + 1)
        self.model.add(self.period * ended >= far)
        return begun + ended, most_near // self.period - (-most_far // self.period)


def _coefficients(sizes: Sequence[Array]) -> tuple[Array, ...]:
    """Return the coefficients of literals: on a GPU, receiving, recomputed, beginning a run."""
    kept, received, again, checkpoint = sizes
    return kept, received, again - kept, checkpoint
