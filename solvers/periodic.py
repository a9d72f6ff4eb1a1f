"""The best k-periodic pattern for a given allocation, by order literals, proven by CP-SAT.

k micro-batches are unrolled. Each operation or transfer o of micro-batch j < k has an absolute
start x[o, j]; micro-batch j' starts it at x[o, j' mod k] + T floor(j' / k). Which of two things on
one resource comes first is a literal for each pair of micro-batches. A stage never has more
micro-batches in flight than memory allows, so only pairs that are close together can meet.

With T fixed all constraints are differences of two starts, for which CP-SAT finds positive cycles
at once, whatever the unit of time. So T is bisected; an order that was found is good for the least
T of its longest cycle (time over periods crossed), to which the search drops.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Final

from schedopt.errors import InputError
from schedopt.plan import (
    Kind,
    Operation,
    Pattern,
    Plan,
    Tensor,
    Transfer,
    count_from_first_backward,
    place_in_period,
)
from schedopt.platform import Resource
from schedopt.problem import Problem, Scope
from schedopt.result import Infeasibility
from schedopt.solvers.one_f_one_b_star import refuse_unsupported, require_stages
from schedopt.solving.cp_sat import solve_model
from schedopt.solving.run import Run

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

PROOF: Final = "CP-SAT over all orders of k micro-batches"
LONGEST: Final = 8
"""The k to which the search goes where any is allowed."""


@dataclass(frozen=True)
class Step:
    """An operation or a transfer on the way of a micro-batch.

    Parameters
    ----------
    what : Kind or Tensor
    stage : int
    length_ns : int
    resource : tuple
        What it occupies: a GPU or a link; empty for a transfer without a link.
    """

    what: Kind | Tensor
    stage: int
    length_ns: int
    resource: tuple[object, ...]


@dataclass(frozen=True)
class StageRoom:
    """What a stage takes on its GPU."""

    gpu: int
    weight_bytes: int
    workspace_bytes: int
    each_bytes: int


@dataclass(frozen=True)
class Answer:
    """A pattern: the period and the start of each step of each micro-batch, ns."""

    k: int
    period_ns: int
    starts: tuple[tuple[int, ...], ...]


def solve(problem: Problem, run: Run) -> None:
    """Scan k and report the best pattern with its proof.

    Where no allocation is given, that of the best plan so far is kept; then nothing is proven.

    Raises
    ------
    InputError
        If there is no allocation, or it has replicas, or more is asked than whole operations.
    """
    refuse_unsupported(problem, "periodic")
    if problem.scope.memory != "sum":
        raise InputError(
            "periodic counts memory as sum", field="scope.memory", way_out="Use the reading sum"
        )
    best_so_far = run.best()
    given = problem
    if problem.scope.allocation != "fixed" and best_so_far is not None:
        scope = replace(problem.scope, allocation="fixed")
        given = replace(problem, scope=scope, stages=best_so_far.stages)
    require_stages(given, "periodic")
    search = _Search(given)
    if search.caps is None:
        if given is problem:
            run.report_infeasible(search.explain())
        return
    for answer in search.scan(run):
        plan = search.plan(answer)
        run.report(replace(plan, scope=problem.scope))
    if given is problem:
        search.report_bound(run)


class _Search:
    """The scan of k for one allocation."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.way = list(steps(problem))
        self.rooms = list(stage_rooms(problem))
        self.caps = most_in_flight(problem, self.rooms, len(self.way))
        self.load = longest_work(self.way)
        self.longest = problem.scope.max_k or LONGEST
        self.asked = problem.scope.period_ns
        self.bounds: dict[int, Fraction] = {}

    def scan(self, run: Run) -> Iterator[Answer]:
        """Yield each answer that improves on the best, for one k after the other."""
        answers: dict[int, Answer] = {}
        for k in range(1, self.longest + 1):
            known = _repeated(answers, k)
            low, best = max(1, k * self.load), run.period()
            high = known.period_ns if known else k * sum(step.length_ns for step in self.way)
            high = max(high, low)
            if best is not None:
                # What is not better than the best is of no use.
                high = min(high, -(-best.numerator * k // best.denominator))
            if self.asked is not None:
                high = min(high, k * self.asked)
            # An order that was found is often the best: so every other question is whether a
            # period 1 ns shorter is possible, which proves it if not.
            first = known is None and best is None
            period, just_below = (high if first else high - 1), False
            while low <= period and not run.stopped():
                found = self._decide(k, period, known, run)
                if found is None:
                    break
                if found.starts:
                    answers[k] = known = found
                    high = found.period_ns
                    yield found
                else:
                    low = period + 1
                self.bounds[k] = Fraction(low, k)
                period = (low + high) // 2 if just_below and low < high - 1 else high - 1
                just_below = not just_below
            self.bounds.setdefault(k, Fraction(k * self.load, k))
            if run.stopped() or run.period() == self.load:
                return

    def _decide(self, k: int, period: int, known: Answer | None, run: Run) -> Answer | None:
        """Return an answer up to a period, one without starts if there is none, None if unknown."""
        from ortools.sat.python import cp_model

        assert self.caps is not None
        model = OrderModel(self.problem, self.way, self.rooms, self.caps, k, period)
        if known is not None:
            model.hint(known)
        status, solver = solve_model(model.model, run)
        if status == cp_model.INFEASIBLE:
            return Answer(k, period, ())
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return model.shortest(solver)

    def report_bound(self, run: Run) -> None:
        """Report what holds for every k that was looked at."""
        scope = Scope(allocation="fixed", max_k=None, gpu_order="any")
        run.report_bound(self.load, scope, "a GPU or link works so long for each micro-batch")
        if not self._caps_are_those_of_memory():
            return
        for last in range(1, self.longest + 1):
            if last not in self.bounds:
                break
            value = min(self.bounds[k] for k in range(1, last + 1))
            proven = replace(scope, max_k=last)
            if self.asked is None or value <= self.asked:
                run.report_bound(value, proven, PROOF)
            elif run.best() is None:
                run.report_infeasible(
                    Infeasibility(
                        scope=replace(proven, period_ns=self.asked),
                        proof=f"{PROOF}; the least period is above {self.asked} ns",
                        wider="a longer period, a longer pattern, or another allocation",
                    )
                )

    def _caps_are_those_of_memory(self) -> bool:
        """Whether no more micro-batches in flight than were looked at could fit."""
        return all(
            cap < len(self.way) and room.each_bytes
            for cap, room in zip(self.caps or (), self.rooms, strict=True)
        )

    def explain(self) -> Infeasibility:
        """Say which GPU cannot hold its stages even with one micro-batch in flight."""
        needs: dict[int, int] = defaultdict(int)
        for room in self.rooms:
            needs[room.gpu] += room.weight_bytes + room.each_bytes
        for gpu in needs:
            needs[gpu] += max(room.workspace_bytes for room in self.rooms if room.gpu == gpu)
        gpus = self.problem.platform.gpus
        worst = max(needs, key=lambda gpu: needs[gpu] - gpus[gpu].usable_bytes)
        enough = needs[worst] + gpus[worst].reserved_bytes
        return Infeasibility(
            scope=Scope(allocation="fixed", max_k=None, gpu_order="any"),
            proof=f"GPU {worst} needs {needs[worst]} bytes with one micro-batch in flight",
            least_memory_bytes=enough,
            proven_memory_bytes=enough,
            gpu=worst,
            wider="another allocation",
        )

    def plan(self, answer: Answer) -> Plan:
        """Return the plan of an answer."""
        pattern = make_pattern(self.way, answer)
        return Plan(
            chain=self.problem.chain,
            platform=self.problem.platform,
            rule=self.problem.rule,
            scope=self.problem.scope,
            stages=self.problem.stages,
            pattern=count_from_first_backward(
                pattern.operations, pattern.transfers, answer.k, answer.period_ns
            ),
        )


def make_pattern(way: Sequence[Step], answer: Answer) -> Pattern:
    """Return the pattern of an answer, with starts in [0, T) and index shifts."""
    operations: list[Operation] = []
    transfers: list[Transfer] = []
    for step, starts in zip(way, answer.starts, strict=True):
        for micro_batch, begin in enumerate(starts):
            start, shift = place_in_period(begin, micro_batch, answer.k, answer.period_ns)
            if step.what == "F" or step.what == "B":
                operations.append(
                    Operation(kind=step.what, stage=step.stage, shift=shift, start_ns=start)
                )
            elif step.what == "activation" or step.what == "gradient":
                transfers.append(
                    Transfer(tensor=step.what, stage=step.stage, shift=shift, start_ns=start)
                )
    return Pattern(
        k=answer.k,
        period_total_ns=answer.period_ns,
        operations=tuple(operations),
        transfers=tuple(transfers),
    )


def steps(problem: Problem) -> Iterator[Step]:
    """Yield what a micro-batch does, in order: forwards with transfers, then backwards."""
    count = len(problem.stages)
    for stage in range(count):
        yield _operation(problem, "F", stage)
        if stage < count - 1:
            yield from _transfer(problem, "activation", stage, stage, stage + 1)
    for stage in reversed(range(count)):
        yield _operation(problem, "B", stage)
        if stage > 0:
            yield from _transfer(problem, "gradient", stage - 1, stage, stage - 1)


def _operation(problem: Problem, kind: Kind, index: int) -> Step:
    stage = problem.stages[index]
    gpu = problem.platform.gpus[stage.gpus[0]]
    layers = problem.chain.layers[stage.first : stage.last + 1]
    times = (one.forward_ns if kind == "F" else one.backward_ns for one in layers)
    length = sum(gpu.duration_ns(time) for time in times)
    return Step(kind, index, length, ("gpu", stage.gpus[0]))


def _transfer(
    problem: Problem, tensor: Tensor, index: int, source: int, target: int
) -> Iterator[Step]:
    """Yield the transfer between two stages, if they lie on GPUs with a link between them."""
    ends = problem.stages[source].gpus[0], problem.stages[target].gpus[0]
    route: tuple[Resource, ...] = problem.platform.route(*ends)
    if route:
        count = problem.chain.layers[problem.stages[index].last].activation_bytes
        yield Step(tensor, index, problem.platform.transfer_ns(count, *ends), route[0])


def stage_rooms(problem: Problem) -> Iterator[StageRoom]:
    """Yield what each stage takes on its GPU."""
    for stage in problem.stages:
        layers = problem.chain.layers[stage.first : stage.last + 1]
        works = any(layer.forward_ns + layer.backward_ns for layer in layers)
        yield StageRoom(
            stage.gpus[0],
            sum(layer.weight_bytes for layer in layers),
            max(layer.workspace_bytes or 0 for layer in layers) if works else 0,
            sum(layer.saved for layer in layers) + (layers[0].saved_input_bytes or 0),
        )


def longest_work(way: Sequence[Step]) -> int:
    """Return the longest time that a resource works for a micro-batch, ns."""
    work: dict[tuple[object, ...], int] = defaultdict(int)
    for step in way:
        work[step.resource] += step.length_ns
    return max(work.values())


def most_in_flight(problem: Problem, rooms: Sequence[StageRoom], items: int) -> list[int] | None:
    """Return for each stage how many micro-batches may be in flight; None if not even one.

    More than there are steps are not looked at; where more would fit, nothing is claimed.
    """
    caps = []
    for room in rooms:
        on_gpu = [one for one in rooms if one.gpu == room.gpu]
        spare = problem.platform.gpus[room.gpu].usable_bytes
        spare -= sum(one.weight_bytes for one in on_gpu)
        spare -= max(one.workspace_bytes for one in on_gpu)
        spare -= sum(one.each_bytes for one in on_gpu)
        if spare < 0:
            return None
        caps.append(min(items, 1 + spare // room.each_bytes) if room.each_bytes else items)
    return caps


def _repeated(answers: Mapping[int, Answer], k: int) -> Answer | None:
    """Return the best answer for a divisor of k as one for k."""
    found = [one for one in answers.values() if k % one.k == 0]
    if not found:
        return None
    best = min(found, key=lambda one: Fraction(one.period_ns, one.k))
    turns = k // best.k
    starts = tuple(
        tuple(begin + turn * best.period_ns for turn in range(turns) for begin in of_step)
        for of_step in best.starts
    )
    return Answer(k, best.period_ns * turns, starts)


Arc = tuple[int, int, int, int]
"""x[second] + T turns >= x[first] + length: first, second, turns, length."""


class OrderModel:
    """The order model for one k and one period.

    Parameters
    ----------
    problem : Problem
    way : sequence of Step
    rooms : sequence of StageRoom
    caps : sequence of int
        Micro-batches in flight of each stage, at most.
    k : int
    period_ns : int
        T, of k micro-batches.
    flush : bool
        Whether all k end before the next period begins, so that T is the makespan of a step.
    """

    def __init__(
        self,
        problem: Problem,
        way: Sequence[Step],
        rooms: Sequence[StageRoom],
        caps: Sequence[int],
        k: int,
        period_ns: int,
        *,
        flush: bool = False,
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.way, self.rooms, self.caps = problem, way, rooms, caps
        self.k, self.period_ns = k, period_ns
        self.model: cp_model.CpModel = cp_model.CpModel()
        self.place = {(step.what, step.stage): index for index, step in enumerate(way)}
        horizon = period_ns * ((k - 1 + caps[0]) // k + 1)
        self.starts = [
            self.model.new_int_var(0, horizon, f"x{step}_{j}")
            for step in range(len(way))
            for j in range(k)
        ]
        self.always: list[Arc] = []
        self.choices: list[tuple[cp_model.IntVar, Arc, Arc | None]] = []
        self._start_at_zero()
        self._each_follows_its_way()
        self._first_in_first_out()
        self._one_at_a_time()
        self._in_flight()
        if flush:
            self._all_end_before_the_next()

    def _arc(self, first: tuple[int, int], second: tuple[int, int], length: int) -> Arc:
        """Let the second (step, micro-batch) start so long after the start of the first."""
        (one, i), (two, j) = first, second
        turns_i, own_i = divmod(i, self.k)
        turns_j, own_j = divmod(j, self.k)
        return one * self.k + own_i, two * self.k + own_j, turns_j - turns_i, length

    def _require(self, arc: Arc, if_true: cp_model.LiteralT | None = None) -> None:
        first, second, turns, length = arc
        gap = length - turns * self.period_ns
        kept = self.model.add(self.starts[second] - self.starts[first] >= gap)
        if if_true is None:
            self.always.append(arc)
        else:
            kept.only_enforce_if(if_true)

    def _start_at_zero(self) -> None:
        self.model.add(self.starts[0] == 0)

    def _all_end_before_the_next(self) -> None:
        """Start micro-batch k behind the last backward of k - 1, which all others precede.

        It starts within the step even if it takes no time.
        """
        last = len(self.way) - 1
        length = max(1, self.way[last].length_ns)
        self._require(self._arc((last, self.k - 1), (0, self.k), length))

    def _each_follows_its_way(self) -> None:
        for step in range(len(self.way) - 1):
            for j in range(self.k):
                self._require(self._arc((step, j), (step + 1, j), self.way[step].length_ns))

    def _first_in_first_out(self) -> None:
        for step, one in enumerate(self.way):
            for j in range(self.k):
                self._require(self._arc((step, j), (step, j + 1), one.length_ns))

    def _one_at_a_time(self) -> None:
        """For two steps on one resource, order each pair of micro-batches that can meet.

        The earlier step of micro-batch j + m runs behind the later step of j, or before it. Behind
        is certain from m = N on, N being the most in flight of the earlier stage of both.
        """
        on: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for step, one in enumerate(self.way):
            on[one.resource].append(step)
        for shared in on.values():
            for early, late in combinations(shared, 2):
                near = self.caps[min(self.way[early].stage, self.way[late].stage)]
                for j in range(self.k):
                    literals = [self._order(early, late, j, m) for m in range(1, near)]
                    for fewer, more in pairwise(literals):
                        self.model.add_implication(fewer, more)

    def _order(self, early: int, late: int, j: int, m: int) -> cp_model.IntVar:
        behind = self.model.new_bool_var(f"y{early}_{late}_{j}_{m}")
        after = self._arc((late, j), (early, j + m), self.way[late].length_ns)
        before = self._arc((early, j + m), (late, j), self.way[early].length_ns)
        self._require(after, behind)
        self._require(before, ~behind)
        self.choices.append((behind, after, before))
        return behind

    def _in_flight(self) -> None:
        """Fit weights, the largest workspace and what each micro-batch in flight keeps.

        Micro-batch j + n enters a stage when j has left it: always for the cap, and for a smaller
        n if that many are enough.
        """
        for gpu, count in Counter(room.gpu for room in self.rooms).items():
            on_gpu = [stage for stage, room in enumerate(self.rooms) if room.gpu == gpu]
            spare = self.problem.platform.gpus[gpu].usable_bytes
            spare -= sum(self.rooms[stage].weight_bytes for stage in on_gpu)
            spare -= max(self.rooms[stage].workspace_bytes for stage in on_gpu)
            kept: list[cp_model.LinearExprT] = []
            for stage in on_gpu:
                each, cap = self.rooms[stage].each_bytes, self.caps[stage]
                self._enter_when_left(stage, cap)
                enough = [
                    self.model.new_bool_var(f"z{stage}_{n}") for n in range(1, cap) if count > 1
                ]
                for n, literal in enumerate(enough, start=1):
                    self._enter_when_left(stage, n, literal)
                    kept.append(each * ~literal)
                for fewer, more in pairwise(enough):
                    self.model.add_implication(fewer, more)
                spare -= each
            if kept:
                self.model.add(sum(kept) <= spare)

    def _enter_when_left(self, stage: int, n: int, if_true: cp_model.IntVar | None = None) -> None:
        enter, leave = self.place["F", stage], self.place["B", stage]
        length = self.way[leave].length_ns
        for j in range(self.k):
            arc = self._arc((leave, j), (enter, j + n), length)
            self._require(arc, if_true)
            if if_true is not None:
                self.choices.append((if_true, arc, None))

    def hint(self, answer: Answer) -> None:
        """Start from an answer: its starts and its order. It holds if its period is the same."""
        starts = [begin for of_step in answer.starts for begin in of_step]
        for variable, start in zip(self.starts, starts, strict=True):
            self.model.add_hint(variable, start)

        def holds(arc: Arc) -> bool:
            first, second, turns, length = arc
            return starts[second] + turns * answer.period_ns >= starts[first] + length

        true: dict[int, bool] = {}
        for literal, arc, _ in self.choices:
            true[literal.index] = true.get(literal.index, True) and holds(arc)
        for literal in {literal.index: literal for literal, _, _ in self.choices}.values():
            self.model.add_hint(literal, true[literal.index])

    def shortest(self, solver: cp_model.CpSolver) -> Answer:
        """Return the order that was found with the least period that it allows.

        A cycle of the order that takes C and crosses h periods needs T >= C / h; T grows from
        cycle to cycle until there is none left (Bellman and Ford).
        """
        arcs = list(self.always)
        for literal, if_true, if_false in self.choices:
            chosen = if_true if solver.boolean_value(literal) else if_false
            if chosen is not None:
                arcs.append(chosen)
        period, starts = least_cycle_time(
            len(self.starts), arcs, max(1, self.k * longest_work(self.way))
        )
        begin = starts[0]
        rows = [starts[row : row + self.k] for row in range(0, len(starts), self.k)]
        return Answer(self.k, period, tuple(tuple(time - begin for time in row) for row in rows))


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
