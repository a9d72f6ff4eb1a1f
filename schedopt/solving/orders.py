"""The order model: k micro-batches on a given allocation, by CP-SAT at a fixed period.

k micro-batches are unrolled. Each operation or transfer o of micro-batch j < k has an absolute
start x[o, j]; micro-batch j' starts it at x[o, j' mod k] + T floor(j' / k). Which of two things on
one resource comes first is a literal for each pair of micro-batches. A stage never has more
micro-batches in flight than memory allows, nor more than are of use, so only pairs that are close
together can meet.

How many are of use: leave every operation where it is, and only choose which micro-batch it runs.
From the forward of the last stage outwards, let each backward, and each W, take the earliest run
that comes in time, and each forward the latest. No stage keeps more than before. Between two steps
that follow one another at most one micro-batch waits at some instant of each period, or there would
be an earlier run, and k more come before it is so again: never more than k + 1.

With T fixed all constraints are differences of two starts, for which CP-SAT finds positive cycles
at once, whatever the unit of time. An order that was found is good for the least T of its longest
cycle (time over periods crossed).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from schedopt.errors import InputError
from schedopt.plan import Kind, Operation, Pattern, Tensor, Transfer, place_in_period
from schedopt.platform import Resource
from schedopt.problem import Problem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


@dataclass(frozen=True)
class Step:
    """An operation or a transfer on the way of a micro-batch.

    Parameters
    ----------
    what : Kind or Tensor
    stage : int
    length_ns : int
    resource : tuple
        What it occupies: a GPU or a link.
    split : bool or None
        Whether it is there only where the stage's backward is split (I, W), or only where it is
        whole (B). None: always.
    """

    what: Kind | Tensor
    stage: int
    length_ns: int
    resource: tuple[object, ...]
    split: bool | None = None


@dataclass(frozen=True)
class Kept:
    """Bytes that a stage keeps for each micro-batch between two of its operations.

    Parameters
    ----------
    stage, gpu : int
    enter, leave : Kind
        From the start of the first to the end of the second.
    each_bytes : int
    fit : int or None
        Micro-batches that the memory holds, at least 1; None: any number.
    links : int
        Steps from the first operation to the second.
    split : bool or None
        As in `Step`.
    """

    stage: int
    gpu: int
    enter: Kind
    leave: Kind
    each_bytes: int
    fit: int | None
    links: int
    split: bool | None = None

    def most(self, k: int, *, flush: bool = False) -> int:
        """Return how many micro-batches may be in flight, as far as they fit and are of use."""
        useful = k if flush else self.links * (k + 1)
        return useful if self.fit is None else min(self.fit, useful)


@dataclass(frozen=True)
class Answer:
    """A pattern: the period and the start of each step of each micro-batch, ns.

    A step that is not there has no starts; without steps there is no pattern up to the period.
    """

    k: int
    period_ns: int
    starts: tuple[tuple[int, ...], ...]


class Course:
    """What a micro-batch does on a given allocation, and what it keeps on the way.

    Parameters
    ----------
    problem : Problem
        With stages, each on one GPU.

    Attributes
    ----------
    way : list of Step
        Forwards with transfers, then backwards.
    kept : list of Kept
    spare : dict of int to int
        Bytes that each GPU has beside weights and the largest workspace.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.way = list(self._steps())
        self.spare = self._spare()
        self.kept = [one for stage in range(len(problem.stages)) for one in self._keeps(stage)]

    @property
    def load_ns(self) -> int:
        """The longest time that a resource works for a micro-batch."""
        work: dict[tuple[object, ...], int] = defaultdict(int)
        backward: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for step in self.way:
            if step.split is None:
                work[step.resource] += step.length_ns
            else:
                backward[step.stage][step.split] += step.length_ns
        for stage, choices in backward.items():
            work["gpu", self.problem.stages[stage].gpus[0]] += min(choices)
        return max(work.values())

    @property
    def whole_ns(self) -> int:
        """How long a micro-batch takes on its own, its backwards whole."""
        return sum(step.length_ns for step in self.way if not step.split)

    def lacking(self) -> tuple[int, int]:
        """Return the GPU that lacks the most with one micro-batch in flight, and the bytes."""
        short = {gpu: -spare for gpu, spare in self.spare.items()}
        for one in self.kept:
            if not one.split:
                short[one.gpu] += one.each_bytes
        worst = max(short, key=lambda gpu: short[gpu])
        return worst, short[worst]

    def _steps(self) -> Iterator[Step]:
        count = len(self.problem.stages)
        for stage in range(count):
            yield self._operation("F", stage)
            if stage < count - 1:
                yield from self._transfer("activation", stage, stage, stage + 1)
        for stage in reversed(range(count)):
            if self.problem.scope.split_backward:
                yield self._operation("B", stage, split=False)
                yield self._operation("I", stage, split=True)
                yield self._operation("W", stage, split=True)
            else:
                yield self._operation("B", stage)
            if stage > 0:
                yield from self._transfer("gradient", stage - 1, stage, stage - 1)

    def _operation(self, kind: Kind, index: int, *, split: bool | None = None) -> Step:
        from schedopt.account.timeline import layer_ns

        stage = self.problem.stages[index]
        gpu = self.problem.platform.gpus[stage.gpus[0]]
        layers = self.problem.chain.layers[stage.first : stage.last + 1]
        length = sum(gpu.duration_ns(layer_ns(layer, kind)) for layer in layers)
        return Step(kind, index, length, ("gpu", stage.gpus[0]), split)

    def _transfer(self, tensor: Tensor, index: int, source: int, target: int) -> Iterator[Step]:
        """Yield the transfer between two stages, if they lie on GPUs with a link between them."""
        stages, platform = self.problem.stages, self.problem.platform
        ends = stages[source].gpus[0], stages[target].gpus[0]
        route: tuple[Resource, ...] = platform.route(*ends)
        if route:
            count = self.problem.chain.layers[stages[index].last].activation_bytes
            yield Step(tensor, index, platform.transfer_ns(count, *ends), route[0])

    def _spare(self) -> dict[int, int]:
        spare: dict[int, int] = {}
        workspaces: dict[int, int] = defaultdict(int)
        for stage in self.problem.stages:
            gpu = stage.gpus[0]
            layers = self.problem.chain.layers[stage.first : stage.last + 1]
            left = spare.get(gpu, self.problem.platform.gpus[gpu].usable_bytes)
            spare[gpu] = left - sum(layer.weight_bytes for layer in layers)
            if any(layer.longest_ns for layer in layers):
                most = max(layer.workspace_bytes or 0 for layer in layers)
                workspaces[gpu] = max(workspaces[gpu], most)
        return {gpu: left - workspaces[gpu] for gpu, left in spare.items()}

    def _keeps(self, index: int) -> Iterator[Kept]:
        stage = self.problem.stages[index]
        layers = self.problem.chain.layers[stage.first : stage.last + 1]
        received = layers[0].saved_input_bytes or 0
        saved = sum(layer.saved for layer in layers) + received
        if not self.problem.scope.split_backward:
            yield self._kept(index, "F", "B", saved)
            return
        yield self._kept(index, "F", "B", saved, split=False)
        to_the_end = [layer for layer in layers if layer.saved_weight_bytes is None]
        late = sum(layer.saved for layer in to_the_end)
        late += received if layers[0].saved_weight_bytes is None else 0
        half = sum(layer.saved_weight_bytes or 0 for layer in layers)
        # What keeps nothing needs no count where another one covers its time.
        if saved > late or not late:
            yield self._kept(index, "F", "I", saved - late, split=True)
        if late:
            yield self._kept(index, "F", "W", late, split=True)
        if half or not late:
            yield self._kept(index, "I", "W", half, split=True)

    def _kept(
        self, index: int, enter: Kind, leave: Kind, each: int, *, split: bool | None = None
    ) -> Kept:
        gpu = self.problem.stages[index].gpus[0]
        fit = max(1, self.spare[gpu] // each) if each else None
        # Forwards and backwards of the stages behind, and the transfers between them.
        behind = [step for step in self.way if step.split is not True and step.stage >= index]
        through = sum(step.what != "gradient" or step.stage >= index for step in behind) - 1
        links = {("F", "B"): through, ("F", "I"): through, ("F", "W"): through + 1}
        return Kept(index, gpu, enter, leave, each, fit, links.get((enter, leave), 1), split)

    def pattern(self, answer: Answer) -> Pattern:
        """Return the pattern of an answer, with starts in [0, T) and index shifts."""
        operations: list[Operation] = []
        transfers: list[Transfer] = []
        for step, starts in zip(self.way, answer.starts, strict=True):
            for micro_batch, begin in enumerate(starts):
                start, shift = place_in_period(begin, micro_batch, answer.k, answer.period_ns)
                match step.what:
                    case "activation" | "gradient" as tensor:
                        transfers.append(
                            Transfer(tensor=tensor, stage=step.stage, shift=shift, start_ns=start)
                        )
                    case "F" | "B" | "I" | "W" as kind:
                        operations.append(
                            Operation(kind=kind, stage=step.stage, shift=shift, start_ns=start)
                        )
        return Pattern(
            k=answer.k,
            period_total_ns=answer.period_ns,
            operations=tuple(operations),
            transfers=tuple(transfers),
        )


def require_stages(problem: Problem, solver: str) -> None:
    """Raise `InputError` unless every layer lies in one of the stages, each on one GPU."""
    if problem.scope.allocation != "fixed":
        raise InputError(
            f"{solver} needs an allocation",
            field="solver",
            way_out="Fix the stages of a plan (--fix), or use contiguous",
        )
    count = len(problem.platform.gpus)
    for stage in problem.stages:
        if len(stage.gpus) > 1:
            raise InputError(
                f"{solver} needs one GPU for each stage",
                field="stages",
                way_out="Give stages without replicas",
            )
        if not 0 <= stage.gpus[0] < count:
            raise InputError(
                f"there is no GPU {stage.gpus[0]}, but {count} from 0 to {count - 1}",
                field="stages",
                way_out="Give more GPUs, or stages for these",
            )
    layers = [layer for stage in problem.stages for layer in range(stage.first, stage.last + 1)]
    if layers != list(range(len(problem.chain.layers))):
        raise InputError(
            f"the stages do not hold each of {len(problem.chain.layers)} layers once and in order",
            field="stages",
            way_out="Start each stage behind the last layer of the one before",
        )


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
