"""Which cuts of a chain lead from one node to another, as literals of a model.

A transfer between two nodes occupies every hop between them, and takes the time of the whole route.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Final

from schedopt.bounds.amounts import Scaled
from schedopt.network import Resource

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    Literals = Sequence[Sequence[cp_model.IntVar]]

MOST_CROSSINGS: Final = 20_000
"""Layers times pairs of nodes: with more nothing is said of nodes."""


class CutTransfers:
    """For each layer but the last: from which node to which its output goes, if to another one.

    `on` are the literals whether a layer lies on each of the GPUs that are numbered.
    """

    def __init__(
        self, model: cp_model.CpModel, scaled: Scaled, on: Literals, gpus: Sequence[int]
    ) -> None:
        self.model, self.scaled, self.platform = model, scaled, scaled.problem.platform
        self.layers = range(len(on) - 1)
        self.members: dict[int, list[int]] = defaultdict(list)
        if (network := self.platform.network) is not None:
            for place, number in enumerate(gpus):
                self.members[network.node_of[number]].append(place)
        self.home = {node: gpus[places[0]] for node, places in self.members.items()}
        self.directions = [*permutations(self.members, 2)]
        if len(self.layers) * len(self.directions) > MOST_CROSSINGS:
            self.directions = []
        self.goes = [self._literals(on[layer], on[layer + 1]) for layer in self.layers]

    def _literals(
        self, here: Sequence[cp_model.IntVar], behind: Sequence[cp_model.IntVar]
    ) -> dict[tuple[int, int], cp_model.IntVar]:
        """Let a literal hold for the nodes of a layer and of the next, if these are two."""
        goes = {direction: self.model.new_bool_var("") for direction in self.directions}
        for (source, target), literal in goes.items():
            sends = sum(here[place] for place in self.members[source])
            receives = sum(behind[place] for place in self.members[target])
            self.model.add(literal >= sends + receives - 1)
        return goes

    def longer(self, layer: int) -> cp_model.LinearExpr | int:
        """Return how much longer than the least both transfers behind a layer take."""
        if layer not in self.layers:
            return 0
        least = int(self.scaled.trips[layer])
        return sum(
            max(0, self._trip(layer, direction) - least) * literal
            for direction, literal in self.goes[layer].items()
        )

    def longest(self, layer: int) -> int:
        """Return how long both transfers behind a layer take at most."""
        trips = (
            self._trip(layer, direction) for direction in self.directions if layer in self.layers
        )
        return max(trips, default=int(self.scaled.trips[layer]))

    def _trip(self, layer: int, direction: tuple[int, int]) -> int:
        source, target = (self.home[node] for node in direction)
        return self.scaled.time(sum(self._times(layer, source, target)))

    def _times(self, layer: int, source: int, target: int) -> tuple[int, int]:
        """Return how long a layer's output takes ahead, and its gradient back, ns."""
        sent = self.scaled.problem.chain.layers[layer].activation_bytes
        return (
            self.platform.transfer_ns(sent, source, target),
            self.platform.transfer_ns(sent, target, source),
        )

    def fit_hops(self) -> None:
        """Let each hop carry what goes over it in a period."""
        hops = {
            hop
            for source, target in combinations(self.home.values(), 2)
            for ends in ((source, target), (target, source))
            for hop in self.platform.route(*ends)
        }
        for hop in sorted(hops) if self.directions else ():
            terms = [
                self._busy(layer, direction, hop) * literal
                for layer in self.layers
                for direction, literal in self.goes[layer].items()
            ]
            self.model.add(sum(terms) <= self.scaled.limit)

    def _busy(self, layer: int, direction: tuple[int, int], hop: Resource) -> int:
        """Return how long a hop is busy with the output of a layer and its gradient."""
        source, target = (self.home[node] for node in direction)
        ahead, back = self._times(layer, source, target)
        return self.scaled.time(
            (hop in self.platform.route(source, target)) * ahead
            + (hop in self.platform.route(target, source)) * back
        )
