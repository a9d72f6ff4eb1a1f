"""How many micro-batches are in flight, and what they keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from schedopt.solving.models.variables import Arc, Hint, Variables

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.solving.models.tasks import Stash
    from schedopt.solving.models.variables import Expr


class MemoryConstraints:
    """The most micro-batches of each stash in flight, and the bytes that they take.

    Attributes
    ----------
    unresolved : dict of int to literal
        By stash, where more may be in flight than the model tells apart: whether no more are.
    """

    def __init__(self, variables: Variables) -> None:
        self.variables, self.k, self.model = variables, variables.k, variables.model
        self.stashes = variables.graph.stashes
        self.unresolved: dict[int, cp_model.IntVar] = {}

    def limit_in_flight(self) -> None:
        """Let micro-batch j + n enter when j has left, for the n that may be in flight."""
        for stash, most in zip(self.stashes, self.variables.most, strict=True):
            if not stash.extra_in_flight:
                self._let_only(most, stash)

    def _let_only(self, n: int, stash: Stash, *if_true: cp_model.IntVar) -> list[Arc]:
        """Let no more than n be in flight, where literals are true."""
        arcs = self._left_before(stash, n)
        for arc in arcs:
            self.variables.require(arc, *if_true, *self.variables.exist(stash))
        return arcs

    def _left_before(self, stash: Stash, n: int) -> list[Arc]:
        """Return that micro-batch j + n enters when j has left.

        What stays for no time counts at its instant, so the next comes at a later one.
        """
        enter, leave = self._ends(stash)
        arcs = [self.variables.arc((leave, j), (enter, j + n)) for j in range(self.k)]
        if not any(self.variables.path[position].length_ns for position in (enter, leave)):
            arcs += [self.variables.arc((enter, j), (enter, j + n), least=1) for j in range(self.k)]
        return arcs

    def _ends(self, stash: Stash) -> tuple[int, int]:
        """Return the positions of the tasks where a stash enters and leaves."""
        index = self.variables.index
        return index[stash.enter, stash.stage], index[stash.leave, stash.stage]

    def enough(self, number: int) -> list[cp_model.IntVar]:
        """Return for n = 1 to one less than the most whether n in flight are enough.

        enough[n] implies that micro-batch j + n enters when j has left, and enough[n + 1].
        """
        stash = self.stashes[number]
        exist = self.variables.exist(stash)
        literals: list[cp_model.IntVar] = []
        for n in range(1, self.variables.most[number] + (stash.extra_in_flight > 0)):
            name = f"z{stash.stage}{stash.enter}{stash.leave}{n}"
            literals.append(self.variables.literal(name, self._all_hold(stash, n)))
        for n, literal in enumerate(literals, start=1):
            self._let_only(n, stash, literal)
            if exist:
                self.model.add(literal == 1).only_enforce_if(~exist[0])
        for fewer, more in pairwise(literals):
            self.model.add_implication(fewer, more)
        if stash.extra_in_flight:
            self.unresolved[number] = literals[-1]
        return literals

    def _all_hold(self, stash: Stash, n: int) -> Callable[[Hint], bool]:
        return lambda hint: all(map(hint.holds, self._left_before(stash, n)))

    def most_bytes(
        self, number: int, each: Expr, room: int, enough: Sequence[cp_model.IntVar]
    ) -> list[Expr]:
        """Return what the most micro-batches in flight at once keep, as a sum.

        Bytes for one, if the stash exists at all, and once more for each n that is not `enough`.
        Where the model chooses these bytes, the sum is bounded by n times them, up to the room.
        """
        exist = self.variables.exist(self.stashes[number])
        if isinstance(each, int):
            alone = cast("Expr", exist[0] if exist else 1)
            return [each * alone, *(each * ~literal for literal in enough)]

        def held_bytes(hint: Hint) -> int:
            exists = all(map(hint, exist))
            return exists * hint(each) * (1 + sum(not hint(literal) for literal in enough))

        held = self.variables.integer(room, f"held{number}", held_bytes)
        self.model.add(held >= each).only_enforce_if(*exist)
        for n, literal in enumerate(enough, start=2):
            self.model.add(held >= n * each).only_enforce_if(~literal, *exist)
        return [held]

    def at_least_the_average(self, number: int, enough: Sequence[cp_model.IntVar]) -> None:
        """Let the most in flight be no less than the average.

        Redundant: the orders imply it. But a sum over all micro-batches is a bound that the search
        has before any order is chosen.
        """
        stash, variables = self.stashes[number], self.variables
        enter, leave = self._ends(stash)
        spans = self.k * variables.lengths[leave] + sum(
            variables.starts[leave * self.k + j] - variables.starts[enter * self.k + j]
            for j in range(self.k)
        )
        most = 1 + sum(~literal for literal in enough)
        average = self.model.add(spans <= variables.period_ns * most)
        if where := (*variables.exist(stash), *self.resolved(number)):
            average.only_enforce_if(*where)

    def resolved(self, number: int) -> list[cp_model.IntVar]:
        """Return what must be true for the model to tell how many of a stash are in flight."""
        return [self.unresolved[number]] if number in self.unresolved else []
