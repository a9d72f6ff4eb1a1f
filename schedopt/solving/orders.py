"""The order model: k micro-batches on a given allocation, by CP-SAT at a fixed period.

k micro-batches are unrolled. Each operation or transfer o of micro-batch j < k has an absolute
start x[o, j]; micro-batch j' starts it at x[o, j' mod k] + T floor(j' / k). Which of two things on
one resource comes first is a literal for each pair of micro-batches. A stage never has more
micro-batches in flight than memory allows, nor more than are of use, so only pairs that are close
together can meet.

With T fixed all constraints are differences of two starts, for which CP-SAT finds positive cycles
at once, whatever the unit of time. An order that was found is good for the least T of its longest
cycle (time over periods crossed).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from schedopt.solving.course import Answer, Course, Kept, Step

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Arc = tuple[int, int, int, int]
"""x[second] + T turns >= x[first] + length: first, second, turns, length."""


class OrderModel:
    """The order model for one k and one period.

    Parameters
    ----------
    course : Course
    k : int
    period_ns : int
        T, of k micro-batches.
    flush : bool
        Whether all k end before the next period begins, so that T is the makespan of a step.
    """

    def __init__(self, course: Course, k: int, period_ns: int, *, flush: bool = False) -> None:
        from ortools.sat.python import cp_model

        self.course, self.way, self.k, self.period_ns = course, course.way, k, period_ns
        self.model: cp_model.CpModel = cp_model.CpModel()
        self.place = {(step.what, step.stage): index for index, step in enumerate(self.way)}
        self.most = [one.most(k, flush=flush) for one in course.kept]
        self.split = {
            step.stage: self.model.new_bool_var(f"split{step.stage}")
            for step in self.way
            if step.split
        }
        # A micro-batch is through before as many more have come as may be in flight.
        turns = 3 + sum(self.most) // k
        self.starts = [
            self.model.new_int_var(0, period_ns * turns, f"x{step}_{j}")
            for step in range(len(self.way))
            for j in range(k)
        ]
        self.arcs: list[tuple[Arc, tuple[cp_model.LiteralT, ...]]] = []
        self.orders: list[tuple[cp_model.IntVar, Arc]] = []
        self.enough: list[tuple[cp_model.IntVar, list[Arc]]] = []
        self._start_at_zero()
        self._each_follows_its_way()
        self._first_in_first_out()
        self._in_flight()
        self._one_at_a_time()
        if flush:
            self._all_end_before_the_next()

    def _arc(self, first: tuple[int, int], second: tuple[int, int], length: int) -> Arc:
        """Let the second (step, micro-batch) start so long after the start of the first."""
        (one, i), (two, j) = first, second
        turns_i, own_i = divmod(i, self.k)
        turns_j, own_j = divmod(j, self.k)
        return one * self.k + own_i, two * self.k + own_j, turns_j - turns_i, length

    def _is_there(self, *parts: Step | Kept) -> tuple[cp_model.LiteralT, ...]:
        """Return what must be true for all of them to be there."""
        found: dict[tuple[int, bool], cp_model.LiteralT] = {}
        for part in parts:
            if part.split is not None:
                literal = self.split[part.stage]
                found[part.stage, part.split] = literal if part.split else ~literal
        return tuple(found.values())

    def _require(self, arc: Arc, *if_true: cp_model.LiteralT) -> None:
        first, second, turns, length = arc
        gap = length - turns * self.period_ns
        kept = self.model.add(self.starts[second] - self.starts[first] >= gap)
        if if_true:
            kept.only_enforce_if(*if_true)
        self.arcs.append((arc, if_true))

    def _start_at_zero(self) -> None:
        self.model.add(self.starts[0] == 0)

    def _links(self) -> Iterator[tuple[int, int]]:
        """Yield which step directly follows which; W follows I, and nothing follows W."""
        tails: list[int] = []
        position = 0
        while position < len(self.way):
            step = self.way[position]
            if step.what == "B" and step.split is False:
                yield from ((tail, head) for tail in tails for head in (position, position + 1))
                yield position + 1, position + 2
                tails = [position, position + 1]
                position += 3
            else:
                yield from ((tail, position) for tail in tails)
                tails = [position]
                position += 1

    def _each_follows_its_way(self) -> None:
        for one, two in self._links():
            there = self._is_there(self.way[one], self.way[two])
            for j in range(self.k):
                self._require(self._arc((one, j), (two, j), self.way[one].length_ns), *there)

    def _first_in_first_out(self) -> None:
        for step, one in enumerate(self.way):
            for j in range(self.k):
                arc = self._arc((step, j), (step, j + 1), one.length_ns)
                self._require(arc, *self._is_there(one))

    def _in_flight(self) -> None:
        """Fit what each micro-batch in flight keeps.

        Micro-batch j + n enters when j has left: always for the most, and for a smaller n if that
        many are enough.
        """
        sharing = Counter(one.gpu for one in self.course.kept)
        taken: dict[int, list[cp_model.LinearExprT]] = defaultdict(list)
        for one, most in zip(self.course.kept, self.most, strict=True):
            there = self._is_there(one)
            for arc in self._left_before(one, most):
                self._require(arc, *there)
            if sharing[one.gpu] == 1:
                continue
            literals = [
                self.model.new_bool_var(f"z{one.stage}{one.enter}{one.leave}{n}")
                for n in range(1, most)
            ]
            for n, literal in enumerate(literals, start=1):
                arcs = self._left_before(one, n)
                for arc in arcs:
                    self._require(arc, literal, *there)
                self.enough.append((literal, arcs))
            for fewer, more in pairwise(literals):
                self.model.add_implication(fewer, more)
            # One micro-batch, if it is there at all, and one more for each n that is not enough.
            taken[one.gpu].append(one.each_bytes * (there[0] if there else 1))
            for literal in literals:
                taken[one.gpu].append(one.each_bytes * ~literal)
                if there:
                    self.model.add(literal == 1).only_enforce_if(~there[0])
        for gpu, terms in taken.items():
            self.model.add(sum(terms) <= self.course.spare[gpu])

    def _left_before(self, kept: Kept, n: int) -> list[Arc]:
        enter, leave = self.place[kept.enter, kept.stage], self.place[kept.leave, kept.stage]
        length = self.way[leave].length_ns
        return [self._arc((leave, j), (enter, j + n), length) for j in range(self.k)]

    def _one_at_a_time(self) -> None:
        """For two steps on one resource, order each pair of micro-batches that can meet."""
        on: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for step, one in enumerate(self.way):
            on[one.resource].append(step)
        apart = self._certainly_behind()
        for shared in on.values():
            for early, late in combinations(shared, 2):
                first, second = self.way[early], self.way[late]
                if first.stage == second.stage and {first.split, second.split} == {False, True}:
                    continue
                there = self._is_there(first, second)
                # Micro-batch j + m of the earlier step is behind j of the later one from m on.
                begin, end = 1 - apart[early][late], apart[late][early]
                for j in range(self.k):
                    literals = [self._order(early, late, j, m, there) for m in range(begin, end)]
                    for fewer, more in pairwise(literals):
                        self.model.add_implication(fewer, more)

    def _order(
        self, early: int, late: int, j: int, m: int, there: tuple[cp_model.LiteralT, ...]
    ) -> cp_model.IntVar:
        behind = self.model.new_bool_var(f"y{early}_{late}_{j}_{m}")
        after = self._arc((late, j), (early, j + m), self.way[late].length_ns)
        before = self._arc((early, j + m), (late, j), self.way[early].length_ns)
        self._require(after, behind, *there)
        self._require(before, ~behind, *there)
        self.orders.append((behind, after))
        return behind

    def _certainly_behind(self) -> list[list[int]]:
        """Return the least n for which step b of micro-batch j + n is behind step a of j: [a][b].

        A path of arcs that hold in every pattern; B and I of a stage are one node, whichever is
        there, and leave behind as many in flight as either allows.
        """
        import networkx

        def node(step: int) -> tuple[str, int]:
            one = self.way[step]
            return ("back" if one.what in ("B", "I") else str(one.what), one.stage)

        graph = networkx.DiGraph()

        def add(first: tuple[str, int], second: tuple[str, int], offset: int) -> None:
            known = graph.get_edge_data(first, second, {"weight": None})["weight"]
            graph.add_edge(first, second, weight=offset if known is None else max(known, offset))

        for before, behind in self._links():
            add(node(before), node(behind), 0)
        through: dict[int, dict[bool, int]] = defaultdict(dict)
        for one, most in zip(self.course.kept, self.most, strict=True):
            if one.enter == "F":
                known = through[one.stage].get(bool(one.split), most)
                through[one.stage][bool(one.split)] = min(known, most)
            if one.leave == "W":
                enters = "back" if one.enter == "I" else "F"
                add(("W", one.stage), (enters, one.stage), most)
        for stage, choices in through.items():
            add(("back", stage), ("F", stage), max(choices.values()))
        lengths = dict(networkx.all_pairs_dijkstra_path_length(graph))
        steps = range(len(self.way))
        return [[int(lengths[node(a)][node(b)]) for b in steps] for a in steps]

    def _all_end_before_the_next(self) -> None:
        """Let all end before micro-batch k begins, and start within the step if they take no time.

        What comes last is the last backward, and each W.
        """
        for step, one in enumerate(self.way):
            if one.what == "W" or (one.stage == 0 and one.what in ("B", "I")):
                arc = self._arc((step, self.k - 1), (0, self.k), max(1, one.length_ns))
                self._require(arc, *self._is_there(one))

    def hint(self, answer: Answer) -> None:
        """Start from an answer: its starts and its order. It holds if its period is the same."""
        known: dict[int, int] = {}
        for step, starts in enumerate(answer.starts):
            for j, begin in enumerate(starts):
                known[step * self.k + j] = begin
        for stage, literal in self.split.items():
            self.model.add_hint(literal, bool(answer.starts[self.place["I", stage]]))
        for number, variable in enumerate(self.starts):
            self.model.add_hint(variable, known.get(number, 0))

        def holds(arc: Arc) -> bool:
            first, second, turns, length = arc
            if first not in known or second not in known:
                return True
            return known[second] + turns * answer.period_ns >= known[first] + length

        for literal, arc in self.orders:
            self.model.add_hint(literal, holds(arc))
        for literal, arcs in self.enough:
            self.model.add_hint(literal, all(map(holds, arcs)))

    def shortest(self, solver: cp_model.CpSolver) -> Answer:
        """Return the order that was found with the least period that it allows.

        A cycle of the order that takes C and crosses h periods needs T >= C / h; T grows from
        cycle to cycle until there is none left (Bellman and Ford).
        """
        arcs = [
            arc for arc, if_true in self.arcs if all(solver.boolean_value(one) for one in if_true)
        ]
        least = max(1, self.k * self.course.load_ns)
        period, starts = least_cycle_time(len(self.starts), arcs, least)
        rows = []
        for step, one in enumerate(self.way):
            there = all(solver.boolean_value(literal) for literal in self._is_there(one))
            row = starts[step * self.k : (step + 1) * self.k] if there else []
            rows.append(tuple(time - starts[0] for time in row))
        return Answer(self.k, period, tuple(rows))


def least_cycle_time(count: int, arcs: Sequence[Arc], least: int) -> tuple[int, list[int]]:
    """Return the least whole T for which starts exist, and the starts.

    Parameters
    ----------
    count : int
        Of the starts.
    arcs : sequence of Arc
    least : int
        A T below which there is nothing to look for.
    """
    period = least
    while True:
        starts, came = [0] * count, [-1] * count
        changed = -1
        for _ in range(count + 1):
            changed = -1
            for number, (first, second, turns, length) in enumerate(arcs):
                time = starts[first] + length - turns * period
                if time > starts[second]:
                    starts[second], came[second], changed = time, number, second
            if changed < 0:
                return period, starts
        node = changed
        for _ in range(count):
            node = arcs[came[node]][0]
        total = crossed = 0
        end = node
        while True:
            first, _, turns, length = arcs[came[node]]
            total, crossed, node = total + length, crossed + turns, first
            if node == end:
                break
        period = max(period + 1, -(-total // crossed))
