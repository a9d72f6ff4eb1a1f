"""The variables of an order model, the differences of starts in it, and the hint of a pattern.

Every variable is made with a rule that says which value a known pattern gives it. So a hint is
always complete, and no constraint has to know how it is hinted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from schedopt.solving.models.tasks import PatternSolution, Stash, Task, TaskGraph
from schedopt.systems.cycles import Difference

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import Literal

    Expr = cp_model.LinearExpr | int
    Rule = Callable[["Hint"], int]


class Arc(NamedTuple):
    """x[second] + T turns >= x[first] + the length of the first, or `least` if that is longer."""

    first: int
    second: int
    turns: int
    least: int = 0


class Variables:
    """Starts of tasks, lengths, and which backwards are split, for k micro-batches in a period T.

    With a flush all k end before the next period begins.

    Attributes
    ----------
    most : list of int
        Micro-batches that each stash may hold.
    split : dict of int to literal
        Whether the backward of a stage is split.
    starts : list of variable
        x[o, j] of task o and micro-batch j < k, at o k + j, ns.
    lengths : list of expression
        Of each task, ns; the allocation sets those that it chooses.
    sent : dict of int to (int, literal)
        Of a task that takes a known time or none: the time, ns, and whether it takes it.
    implies_sent : set of int
        Literals that are true only where such tasks take their time.
    arcs : list of (Arc, tuple of literal)
        All that is demanded of two starts, and what must be true for it.
    """

    def __init__(self, graph: TaskGraph, k: int, period_ns: int, *, flush: bool = False) -> None:
        from ortools.sat.python import cp_model

        self.model: cp_model.CpModel = cp_model.CpModel()
        self.graph, self.path, self.k, self.period_ns = graph, graph.path, k, period_ns
        self.index = {task.key: position for position, task in enumerate(self.path)}
        self.most = graph.most_in_flight(k, flush=flush)
        self.rules: dict[int, Rule] = {}
        self.order: list[cp_model.IntVar] = []
        self.split = {
            task.stage: self.literal(f"split{task.stage}", partial(Hint.exists, task=position))
            for position, task in enumerate(self.path)
            if task.kind == "I"
        }
        # A micro-batch is through before as many more have come as may be in flight.
        turns = 3 + (sum(self.most) + sum(stash.extra_in_flight for stash in graph.stashes)) // k
        self.starts = [
            self.integer(period_ns * turns, f"x{task}_{j}", partial(Hint.start, task=task, j=j))
            for task in range(len(self.path))
            for j in range(k)
        ]
        self.lengths: list[Expr] = [task.length_ns for task in self.path]
        self.sent: dict[int, tuple[int, cp_model.IntVar]] = {}
        self.implies_sent: set[int] = set()
        self.arcs: list[tuple[Arc, tuple[Literal, ...]]] = []

    def literal(self, name: str, rule: Rule) -> cp_model.IntVar:
        """Return a new literal, and keep the rule of its hint."""
        return self._with_rule(self.model.new_bool_var(name), rule)

    def integer(self, most: int, name: str, rule: Rule) -> cp_model.IntVar:
        """Return a new variable from 0 on, and keep the rule of its hint."""
        return self._with_rule(self.model.new_int_var(0, most, name), rule)

    def _with_rule(self, variable: cp_model.IntVar, rule: Rule) -> cp_model.IntVar:
        self.rules[variable.index] = rule
        self.order.append(variable)
        return variable

    def all_of(self, *literals: Literal) -> cp_model.IntVar:
        """Return a literal that is true exactly if all of some are."""
        defined = self.literal("", lambda hint: all(map(hint, literals)))
        for literal in literals:
            self.model.add_implication(defined, literal)
        self.model.add_bool_or(defined, *(~literal for literal in literals))
        return defined

    def any_of(self, *literals: Literal) -> cp_model.IntVar:
        """Return a literal that is true exactly if any of some is."""
        defined = self.literal("", lambda hint: any(map(hint, literals)))
        for literal in literals:
            self.model.add_implication(literal, defined)
        self.model.add_bool_or(~defined, *literals)
        return defined

    def exist(self, *parts: Task | Stash) -> tuple[Literal, ...]:
        """Return what must be true for all of some tasks and stashes to exist."""
        needed: dict[tuple[int, bool], Literal] = {}
        for part in parts:
            if part.split is not None:
                literal = self.split[part.stage]
                needed[part.stage, part.split] = literal if part.split else ~literal
        return tuple(needed.values())

    def arc(self, first: tuple[int, int], second: tuple[int, int], least: int = 0) -> Arc:
        """Let the second (task, micro-batch) start after the end of the first."""
        (task, i), (other, j) = first, second
        turns_i, own_i = divmod(i, self.k)
        turns_j, own_j = divmod(j, self.k)
        return Arc(task * self.k + own_i, other * self.k + own_j, turns_j - turns_i, least)

    def require(self, arc: Arc, *if_true: Literal) -> None:
        """Demand an arc, where some literals are true."""
        for demanded, also in self._bounds(arc, if_true):
            constraint = self.model.add(self.passed(arc) >= demanded)
            if literals := (*if_true, *also):
                constraint.only_enforce_if(*literals)
        self.arcs.append((arc, if_true))

    def passed(self, arc: Arc) -> Expr:
        """Return the time from the first start of an arc to the second, in one period, ns."""
        return self.starts[arc.second] - self.starts[arc.first]

    def _bounds(
        self, arc: Arc, if_true: tuple[Literal, ...]
    ) -> Iterator[tuple[Expr, tuple[Literal, ...]]]:
        """Yield what must pass, ns, and what else must be true for it."""
        task, crossed = arc.first // self.k, arc.turns * self.period_ns
        length = self.lengths[task]
        if task in self.sent:
            # The length is one of two, which is easier than a sum.
            time, sent = self.sent[task]
            is_sent = any(literal.index in self.implies_sent for literal in if_true)
            yield time - crossed, () if is_sent else (sent,)
            if not is_sent:
                yield -crossed, ()
        elif isinstance(length, int):
            yield max(length, arc.least) - crossed, ()
        else:
            yield length - crossed, ()
            if arc.least:
                yield arc.least - crossed, ()

    def hint(self, solution: PatternSolution) -> None:
        """Start the search from a pattern: feasible if its period is that of the model."""
        value = Hint(self, solution)
        for variable in self.order:
            self.model.add_hint(variable, value(variable))

    def differences(self, solver: cp_model.CpSolver) -> Iterator[Difference]:
        """Yield what the order that was found demands of the starts."""
        lengths = [int(solver.value(length)) for length in self.lengths]
        for arc, if_true in self.arcs:
            if all(solver.boolean_value(literal) for literal in if_true):
                length = max(arc.least, lengths[arc.first // self.k])
                yield arc.first, arc.second, arc.turns, length

    def starts_by_task(
        self, solver: cp_model.CpSolver, starts: list[int]
    ) -> tuple[tuple[int, ...], ...]:
        """Return the starts of each task, from the first forward on; none if it does not exist."""
        rows: list[tuple[int, ...]] = []
        for position, task in enumerate(self.path):
            exists = all(solver.boolean_value(literal) for literal in self.exist(task))
            row = starts[position * self.k : (position + 1) * self.k] if exists else []
            rows.append(tuple(time - starts[0] for time in row))
        return tuple(rows)


class Hint:
    """The value of each variable and expression in a known pattern.

    Attributes
    ----------
    slot_of : dict of int to int
        Where each layer lies.
    recomputed, firsts : set of int
        Layers that are recomputed, and that begin a stage.
    """

    def __init__(self, variables: Variables, solution: PatternSolution) -> None:
        self.variables, self.solution = variables, solution
        self._values: dict[int, int] = {}
        stages = solution.stages
        self.firsts = {stage.first for stage in stages}
        self.slot_of = {layer: stage.gpus[0] for stage in stages for layer in stage.layer_range}
        self.recomputed = {layer for stage in stages for layer in stage.recomputed_layers}

    def __call__(self, expression: Expr | Literal) -> int:
        """Return the value of a literal, a variable or a linear expression."""
        from ortools.sat.python import cp_model

        if isinstance(expression, int):
            return expression
        if isinstance(expression, cp_model.IntVar):
            index = expression.index
            if index not in self._values:
                self._values[index] = int(self.variables.rules[index](self))
            return self._values[index]
        flat = cp_model.FlatIntExpr(expression)
        terms = zip(flat.vars, flat.coeffs, strict=True)
        return flat.offset + sum(coefficient * self(variable) for variable, coefficient in terms)

    def exists(self, task: int) -> bool:
        """Whether a task exists."""
        return bool(self.solution.starts[task])

    def start(self, task: int, j: int) -> int:
        """Return the start of micro-batch j of a task, ns; 0 if it does not exist."""
        return self.solution.starts[task][j] if self.exists(task) else 0

    def recomputes(self, layer: int) -> bool:
        """Whether a layer is recomputed."""
        return layer in self.recomputed

    def begins_run(self, layer: int) -> bool:
        """Whether a run of recomputed layers begins at a layer."""
        return self.recomputes(layer) and not self._continues_recompute(layer)

    def begins_kept(self, layer: int) -> bool:
        """Whether a layer is kept, and no kept layer of its stage is directly before it."""
        return not self.recomputes(layer) and (
            layer in self.firsts or self._continues_recompute(layer)
        )

    def _continues_recompute(self, layer: int) -> bool:
        return layer not in self.firsts and self.recomputes(layer - 1)

    def holds(self, arc: Arc) -> bool:
        """Whether an arc holds, as it does too if one of its tasks does not exist."""
        k, starts = self.variables.k, self.solution.starts
        (first, i), (second, j) = divmod(arc.first, k), divmod(arc.second, k)
        if not (self.exists(first) and self.exists(second)):
            return True
        length = max(arc.least, self(self.variables.lengths[first]))
        return starts[second][j] + arc.turns * self.solution.period_ns >= starts[first][i] + length
