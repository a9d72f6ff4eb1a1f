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

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, cast

from schedopt.solving.models.precedence import certainly_behind, direct_followers
from schedopt.solving.models.tasks import PatternSolution, Stash, Task
from schedopt.systems.cycles import Difference, least_cycle_time

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.solving.models.tasks import TaskGraph
    from schedopt.stage import Stage

    Expr = cp_model.LinearExpr | int


MOST_ORDERS: Final = 100_000
"""Pairs of micro-batches to order. A model with more is left out: it takes seconds to build, and
CP-SAT, which does not stop before it has read it, found nothing in a minute."""


def never() -> bool:
    """Say that nobody asks to stop."""
    return False


class Arc(NamedTuple):
    """x[second] + T turns >= x[first] + the length of the first, or `least` if that is longer."""

    first: int
    second: int
    turns: int
    least: int = 0


class Between(NamedTuple):
    """Which micro-batches of an earlier step may come before or behind those of a later one.

    Micro-batch j + m of the earlier step is before j of the later one for m < begin, behind it for
    m >= end, and for the m between as the literals [j][m - begin] say: true is behind.
    """

    begin: int
    end: int
    literals: list[list[cp_model.IntVar]]


class OrderModel:
    """The order model for one k and one period.

    Parameters
    ----------
    pipeline : TaskGraph
    k : int
    period_ns : int
        T, of k micro-batches.
    flush : bool
        Whether all k end before the next period begins, so that T is the makespan of a step.
    stopped : callable
        Whether to give up building.

    Attributes
    ----------
    hurry : bool
        Whether to search first without linear programmes.
    left_out : str
        Why the model is not complete and must not be asked: too large, or stopped. Else empty.
    """

    hurry: ClassVar = False

    def __init__(
        self,
        pipeline: TaskGraph,
        k: int,
        period_ns: int,
        *,
        flush: bool = False,
        stopped: Callable[[], bool] = never,
    ) -> None:
        from ortools.sat.python import cp_model

        self.left_out, self.stopped = "", stopped

        self.pipeline, self.path, self.k, self.period_ns = pipeline, pipeline.path, k, period_ns
        self.model: cp_model.CpModel = cp_model.CpModel()
        self.place = {(step.what, step.stage): index for index, step in enumerate(self.path)}
        self.lengths: list[Expr] = [step.length_ns for step in self.path]
        self.each: list[Expr] = [one.each_bytes for one in pipeline.stashes]
        self.spare: dict[int, Expr] = dict(pipeline.spare)
        self.most = pipeline.most_in_flight(k, flush=flush)
        self.split = {
            step.stage: self.model.new_bool_var(f"split{step.stage}")
            for step in self.path
            if step.what == "I"
        }
        # A micro-batch is through before as many more have come as may be in flight.
        turns = 3 + (sum(self.most) + sum(one.beyond for one in pipeline.stashes)) // k
        self.starts = [
            self.model.new_int_var(0, period_ns * turns, f"x{step}_{j}")
            for step in range(len(self.path))
            for j in range(k)
        ]
        self.arcs: list[tuple[Arc, tuple[cp_model.LiteralT, ...]]] = []
        self.orders: list[tuple[cp_model.IntVar, Arc]] = []
        self.between: dict[tuple[int, int], Between] = {}
        self.enough: list[tuple[cp_model.IntVar, list[Arc]]] = []
        self.told: dict[int, cp_model.IntVar] = {}
        self._choose()
        self._start_at_zero()
        self._each_follows_its_way()
        self._first_in_first_out()
        self._in_flight()
        self._one_at_a_time()
        if self.left_out:
            return
        self._fit()
        if flush:
            self._all_end_before_the_next()

    def _choose(self) -> None:
        """Choose what the stages hold, where that is free."""

    def _arc(self, first: tuple[int, int], second: tuple[int, int], least: int = 0) -> Arc:
        """Let the second (step, micro-batch) start after the end of the first."""
        (one, i), (two, j) = first, second
        turns_i, own_i = divmod(i, self.k)
        turns_j, own_j = divmod(j, self.k)
        return Arc(one * self.k + own_i, two * self.k + own_j, turns_j - turns_i, least)

    def _is_there(self, *parts: Task | Stash) -> tuple[cp_model.LiteralT, ...]:
        """Return what must be true for all of them to be there."""
        found: dict[tuple[int, bool], cp_model.LiteralT] = {}
        for part in parts:
            if part.split is not None:
                literal = self.split[part.stage]
                found[part.stage, part.split] = literal if part.split else ~literal
        return tuple(found.values())

    def _require(self, arc: Arc, *if_true: cp_model.LiteralT) -> None:
        length = self.lengths[arc.first // self.k]
        passed = self.starts[arc.second] - self.starts[arc.first]
        crossed = arc.turns * self.period_ns
        if isinstance(length, int):
            lengths: tuple[Expr, ...] = (max(length, arc.least) - crossed,)
        else:
            lengths = (length - crossed, *((arc.least - crossed,) if arc.least else ()))
        for one in lengths:
            kept = self.model.add(passed >= one)
            if if_true:
                kept.only_enforce_if(*if_true)
        self.arcs.append((arc, if_true))

    def _start_at_zero(self) -> None:
        self.model.add(self.starts[0] == 0)

    def _may_meet(self, one: int, two: int) -> bool:
        """Whether two steps are there at once, and not the two ways to run one backward."""
        first, second = self.path[one], self.path[two]
        return first.stage != second.stage or {first.split, second.split} != {False, True}

    def _where_they_meet(self, one: int, two: int) -> tuple[cp_model.LiteralT, ...]:
        """Return what must be true for two steps to be on the same resource."""
        return ()

    def _each_follows_its_way(self) -> None:
        for one, two in direct_followers(self.path):
            there = self._is_there(self.path[one], self.path[two])
            for j in range(self.k):
                self._require(self._arc((one, j), (two, j)), *there)

    def _first_in_first_out(self) -> None:
        for step, one in enumerate(self.path):
            for j in range(self.k):
                arc = self._arc((step, j), (step, j + 1))
                self._require(arc, *self._is_there(one))

    def _in_flight(self) -> None:
        """Let micro-batch j + n enter when j has left, for the most that may be in flight."""
        for one, most in zip(self.pipeline.stashes, self.most, strict=True):
            if one.beyond:
                continue
            there = self._is_there(one)
            for arc in self._left_before(one, most):
                self._require(arc, *there)

    def _fit(self) -> None:
        """Fit what is kept on each GPU into its memory, in the reading of the scope.

        One thing alone fits by the most that may be in flight, if it fits at all.
        """
        on: dict[int, list[int]] = defaultdict(list)
        for number, one in enumerate(self.pipeline.stashes):
            on[one.gpu].append(number)
        for gpu, numbers in on.items():
            at_times = self.pipeline.workspaces_of_one_way(gpu)
            alone, spare = self.each[numbers[0]], self.pipeline.spare[gpu]
            if len(numbers) == 1 and isinstance(alone, int) and alone <= spare and not at_times:
                continue
            if self.pipeline.exact_peak(gpu):
                self._fit_at_each_start(gpu, numbers)
                continue
            held = sum(size for number in numbers for size in self._at_the_most(number))
            self.model.add(held <= self.spare[gpu])
            for stage, split, room in at_times:
                literal = self.split[stage]
                self.model.add(held <= room).only_enforce_if(literal if split else ~literal)

    def _at_the_most(self, number: int) -> list[Expr]:
        """Return the bytes that the most micro-batches in flight at once keep.

        One, if it is there at all, and one more for each n that is not enough.
        """
        one, each = self.pipeline.stashes[number], self.each[number]
        there, literals = self._is_there(one), self._are_enough(number)
        if isinstance(each, int):
            alone = cast("Expr", there[0] if there else 1)
            return [each * alone, *(each * ~literal for literal in literals)]
        held = self.model.new_int_var(0, self._room(one.gpu), f"held{number}")
        self.model.add(held >= each).only_enforce_if(*there)
        for n, literal in enumerate(literals, start=2):
            self.model.add(held >= n * each).only_enforce_if(~literal, *there)
        return [held]

    def _are_enough(self, number: int) -> list[cp_model.IntVar]:
        """Return for n = 1 to one less than the most whether n in flight are enough."""
        one = self.pipeline.stashes[number]
        there = self._is_there(one)
        literals = [
            self.model.new_bool_var(f"z{one.stage}{one.enter}{one.leave}{n}")
            for n in range(1, self.most[number] + (one.beyond > 0))
        ]
        for n, literal in enumerate(literals, start=1):
            arcs = self._left_before(one, n)
            for arc in arcs:
                self._require(arc, literal, *there)
            self.enough.append((literal, arcs))
            if there:
                self.model.add(literal == 1).only_enforce_if(~there[0])
        for fewer, more in pairwise(literals):
            self.model.add_implication(fewer, more)
        if one.beyond:
            self.told[number] = literals[-1]
        return literals

    def _room(self, gpu: int) -> int:
        """Return the most bytes that a GPU may keep beside weights and workspace."""
        return max(0, self.pipeline.spare[gpu])

    def _fit_at_each_start(self, gpu: int, numbers: Sequence[int]) -> None:
        """Fit what lies there whenever something starts, in the reading peak.

        What is kept changes at the starts and ends of the GPU's own operations, so that their
        order says how many micro-batches are in flight.
        """
        for step, one in enumerate(self.path):
            if one.resources != (("gpu", gpu),):
                continue
            if self._gives_up():
                return
            there = self._is_there(one)
            for j in range(self.k):
                sizes: list[Expr] = [self.pipeline.workspace_bytes(one)]
                for number in numbers:
                    stash = self.pipeline.stashes[number]
                    if one.stage == stash.stage and {one.split, stash.split} == {False, True}:
                        continue
                    begun = self._begun(step, j, self.place[stash.enter, stash.stage])
                    ended = self._begun(step, j, self.place[stash.leave, stash.stage])
                    count = begun - ended
                    if self.place[stash.leave, stash.stage] == step:
                        # What leaves at its end is still there.
                        count += 1
                    if also := self._is_there(stash):
                        most = self.most[number]
                        counted = self.model.new_int_var(0, most, f"n{step}_{j}_{number}")
                        self.model.add(counted >= count).only_enforce_if(*also)
                        count = counted
                    sizes.append(stash.each_bytes * count)
                fits = self.model.add(sum(sizes) <= self.pipeline.usable[gpu])
                if there:
                    fits.only_enforce_if(*there)

    def _begun(self, step: int, j: int, other: int) -> Expr:
        """Return the last micro-batch of another step that begins no later than j of a step."""
        if other == step:
            return j
        if (other, step) in self.between:
            begin, _, literals = self.between[other, step]
            return j + begin - 1 + sum(~literal for literal in literals[j])
        begin, end, literals = self.between[step, other]
        behind = [literals[(j - m) % self.k][m - begin] for m in range(begin, end)]
        return j - end + sum(behind)

    def _left_before(self, stash: Stash, n: int) -> list[Arc]:
        """Let micro-batch j + n enter when j has left.

        What stays for no time counts at its instant, so the next comes at a later one.
        """
        enter, leave = (
            self.place[stash.enter, stash.stage],
            self.place[stash.leave, stash.stage],
        )
        arcs = [self._arc((leave, j), (enter, j + n)) for j in range(self.k)]
        if self.path[enter].length_ns == 0 and self.path[leave].length_ns == 0:
            arcs += [self._arc((enter, j), (enter, j + n), least=1) for j in range(self.k)]
        return arcs

    def _one_at_a_time(self) -> None:
        """For two steps on one resource, order each pair of micro-batches that can meet."""
        pairs = self._pairs()
        size = self.k * sum(end - begin for _, _, begin, end in pairs)
        if size > MOST_ORDERS:
            self.left_out = f"{size} orders to choose, more than {MOST_ORDERS}"
        for early, late, begin, end in pairs:
            if self._gives_up():
                return
            there = self._is_there(self.path[early], self.path[late])
            there += self._where_they_meet(early, late)
            rows = [
                [self._order(early, late, j, m, there) for m in range(begin, end)]
                for j in range(self.k)
            ]
            self.between[early, late] = Between(begin, end, rows)
            for row in rows:
                for fewer, more in pairwise(row):
                    self.model.add_implication(fewer, more)

    def _gives_up(self) -> bool:
        """Whether the model is left out, as it is from the moment that the search stops."""
        if not self.left_out and self.stopped():
            self.left_out = "stopped"
        return bool(self.left_out)

    def _pairs(self) -> list[tuple[int, int, int, int]]:
        """Return each two steps that may meet, and the begin and end of what is to be ordered.

        Micro-batch j + m of the earlier step is behind j of the later one from m = end on.
        """
        on: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for step, one in enumerate(self.path):
            for resource in one.resources:
                on[resource].append(step)
        apart = certainly_behind(self.path, self.pipeline.stashes, self.most, self._gives_up)
        if self.left_out:
            return []
        # Two transfers may have several links in common.
        pairs = dict.fromkeys(pair for shared in on.values() for pair in combinations(shared, 2))
        return [
            (early, late, 1 - apart[early][late], apart[late][early])
            for early, late in pairs
            if self._may_meet(early, late)
        ]

    def _order(
        self, early: int, late: int, j: int, m: int, there: tuple[cp_model.LiteralT, ...]
    ) -> cp_model.IntVar:
        behind = self.model.new_bool_var("")
        after = self._arc((late, j), (early, j + m))
        before = self._arc((early, j + m), (late, j))
        self._require(after, behind, *there)
        self._require(before, ~behind, *there)
        self.orders.append((behind, after))
        return behind

    def _all_end_before_the_next(self) -> None:
        """Let all end before micro-batch k begins, and start within the step if they take no time.

        What comes last is the last backward, and each W.
        """
        for step, one in enumerate(self.path):
            if one.what == "W" or (one.stage == 0 and one.what in ("B", "I")):
                arc = self._arc((step, self.k - 1), (0, self.k), least=1)
                self._require(arc, *self._is_there(one))

    def hint(self, answer: PatternSolution) -> None:
        """Start from an answer: its starts and its order. It holds if its period is the same."""
        known: dict[int, int] = {}
        for step, starts in enumerate(answer.starts):
            for j, begin in enumerate(starts):
                known[step * self.k + j] = begin
        for stage, literal in self.split.items():
            self.model.add_hint(literal, bool(answer.starts[self.place["I", stage]]))
        for number, variable in enumerate(self.starts):
            self.model.add_hint(variable, known.get(number, 0))
        holds = self._holds(answer, known)
        for literal, arc in self.orders:
            self.model.add_hint(literal, holds(arc))
        self.hinted_enough = [all(map(holds, arcs)) for _, arcs in self.enough]
        for (literal, _), is_enough in zip(self.enough, self.hinted_enough, strict=True):
            self.model.add_hint(literal, is_enough)

    def _holds(self, answer: PatternSolution, known: Mapping[int, int]) -> Callable[[Arc], bool]:
        """Return whether an arc holds for the starts that are known of an answer."""
        lengths = self._known_lengths(answer)

        def holds(arc: Arc) -> bool:
            if arc.first not in known or arc.second not in known:
                return True
            length = max(arc.least, lengths[arc.first // self.k])
            turns = arc.turns * answer.period_ns
            return known[arc.second] + turns >= known[arc.first] + length

        return holds

    def _known_lengths(self, answer: PatternSolution) -> list[int]:
        """Return the length of each step in an answer, ns."""
        return [step.length_ns for step in self.path]

    def leaves_open(self, solver: cp_model.CpSolver) -> bool:
        """Whether something found has more in flight than the model tells apart."""
        return any(not solver.boolean_value(literal) for literal in self.told.values())

    def shortest(
        self, solver: cp_model.CpSolver, stopped: Callable[[], bool] = never
    ) -> PatternSolution:
        """Return the order that was found with the least period that it allows.

        With the starts that were found, if it is stopped before.
        """
        arcs = list(self._differences(solver))
        least = max(1, self.k * self.pipeline.load_ns)
        found = least_cycle_time(len(self.starts), arcs, least, stopped)
        if found is None:
            found = self.period_ns, [int(solver.value(start)) for start in self.starts]
        period, starts = found
        rows = []
        for step, one in enumerate(self.path):
            there = all(solver.boolean_value(literal) for literal in self._is_there(one))
            row = starts[step * self.k : (step + 1) * self.k] if there else []
            rows.append(tuple(time - starts[0] for time in row))
        return PatternSolution(self.k, period, tuple(rows), self._stages(solver))

    def _differences(self, solver: cp_model.CpSolver) -> Iterator[Difference]:
        """Yield what the order that was found demands of the starts."""
        lengths = [int(solver.value(length)) for length in self.lengths]
        for arc, if_true in self.arcs:
            if all(solver.boolean_value(one) for one in if_true):
                length = max(arc.least, lengths[arc.first // self.k])
                yield arc.first, arc.second, arc.turns, length

    def _stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the stages, where something about them was chosen."""
        return ()
