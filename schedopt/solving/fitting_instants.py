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
    """

    def __init__(
        self,
        chosen: RelaxedAllocation,
        instants: Instants,
        rooms: Sequence[int],
        span: Sequence[cp_model.IntVar],
        longest: Sequence[int],
    ) -> None:
        self.chosen, self.model, self.rooms = chosen, chosen.model, rooms
        self.instants, self.scaled = instants, instants.scaled
        self.span, self.longest, self.layers = span, longest, range(len(span))
        self.literals = (chosen.on, chosen.receives, chosen.recomputed, chosen.begins)
        self.known: set[int] = set()
        self.grown: set[int] = set()
        self.sent: list[cp_model.IntVar] = []
        self.longest_sent: list[int] = []
        largest = max(4 * len(span) * (self.scaled.room + 1), 4 * max(longest))
        self.may_grow = not self.scaled.problem.scope.recompute and largest < LARGEST_SUM

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
        new = self._worst(self.instants, values, self.known)
        for instant in new:
            self._add(instant)
        self.known |= set(new)
        if new or not self.may_grow:
            return bool(new)
        exact = self._with_cuts([solver.boolean_value(cut) for cut in self.chosen.cut])
        new = self._worst(exact, values, self.grown)
        for instant in new:
            self._add_with_cuts(instant)
        self.grown |= set(new)
        return bool(new)

    def _worst(self, instants: Instants, values: Sequence[Array], but: set[int]) -> list[int]:
        """Return the instants at which the most is missing, if something is."""
        import numpy as np

        held = np.zeros((2 * len(self.layers), len(self.rooms)), dtype=np.int64)
        for instant in range(len(held)):
            for sizes, literals in zip(self._sizes(instants, instant), values, strict=True):
                held[instant] += sizes @ literals
        missing = (held - np.array(self.rooms)).max(axis=1)
        order = np.argsort(-missing, kind="stable")
        return [int(one) for one in order if missing[one] > 0 and one not in but][:MOST_NEW]

    def _sizes(self, instants: Instants, instant: int) -> tuple[Array, Array, Array, Array]:
        """Return what layers take: on a GPU, receiving, recomputed, and beginning a run."""
        # What does not fit is as good as one more than fits.
        kept = instants.kept[instant].clip(max=self.scaled.room + 1 - self.scaled.weight)
        again = instants.again[instant] - kept
        return (
            self.scaled.weight + kept,
            instants.received[instant],
            again,
            instants.checkpoint[instant],
        )

    def _on_gpu(self, sizes: Sequence[Array], place: int) -> list[cp_model.LinearExprT]:
        return [
            int(size) * row[place]
            for literals, row_of_sizes in zip(self.literals, sizes, strict=True)
            for size, row in zip(row_of_sizes, literals, strict=True)
            if size
        ]

    def _add(self, instant: int) -> None:
        """Let what layers keep at least fit each GPU."""
        sizes = self._sizes(self.instants, instant)
        if int(sum(abs(each).sum() for each in sizes)) >= LARGEST_SUM:
            return
        for place, room in enumerate(self.rooms):
            self.model.add(sum(self._on_gpu(sizes, place)) <= room)

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
        behind = np.triu(np.ones((count, count), dtype=bool), 1)
        behind = np.concatenate([behind, behind])
        found.kept = np.maximum(np.where(behind, 0, found.kept), self.instants.kept)
        return found

    def _add_with_cuts(self, instant: int) -> None:
        """Let what layers keep with the cuts that are made fit each GPU."""
        self._sum_transfers()
        sizes = self._sizes(self.instants, instant)
        shares: list[list[cp_model.LinearExprT]] = [[] for _ in self.rooms]
        for layer in range(instant % len(self.layers) + 1):
            if saved := int(self.scaled.saved[layer]):
                for terms, share in zip(shares, self._shares(instant, layer), strict=True):
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

    def _shares(self, instant: int, layer: int) -> list[cp_model.LinearExprT]:
        """Return by how much more a layer keeps on each GPU than at least.

        It keeps no more than fits a GPU, and no more than with all cuts.
        """
        scaled, of = self.scaled, instant % len(self.layers)
        sent, span = self.sent[of] - self.sent[layer], self.span[of]
        ways = [int(times[layer:of].sum()) for times in (scaled.ahead, scaled.back)]
        if instant >= len(self.layers):
            ways.reverse()
        near, far = ways[0] + sent, ways[1] + sent + span
        longest = self.longest_sent[of] - self.longest_sent[layer]
        most_near = (ways[0] + longest) // scaled.above
        most_far = -(-(ways[1] + longest + self.longest[of]) // scaled.above)
        least = int(self.instants.counts[instant, layer])
        fitting = int(scaled.room - scaled.weight[layer]) // int(scaled.saved[layer])
        most = max(least, min(fitting, most_near + most_far))
        begun = self.model.new_int_var(0, min(most, most_near), "")
        ended = self.model.new_int_var(0, min(most, most_far), "")
        self.model.add(scaled.above * (begun + 1) >= near + 1)
        self.model.add(scaled.above * ended >= far)
        self.model.add(begun + ended <= most)
        if most == least:
            return [0 for _ in self.rooms]
        row = [self.model.new_int_var(0, most - least, "") for _ in self.rooms]
        for share, on in zip(row, self.chosen.on[layer], strict=True):
            self.model.add(share <= (most - least) * on)
        self.model.add(sum(row) + least >= begun + ended)
        return [*row]
