"""What may run at the same time: each two tasks on one resource come in an order.

Which of two things on one resource comes first is a literal for each pair of micro-batches. No
stash holds more micro-batches than memory allows, nor more than are of use, so that only pairs
which are close together need one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from schedopt.solving.models.tasks import Stash, Task, direct_followers
from schedopt.solving.models.variables import Hint, Variables

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import Literal

    from schedopt.solving.models.variables import Arc, Expr

MOST_ORDERS: Final = 100_000
"""Pairs of micro-batches to order. A model with more is left out: it takes seconds to build, and
CP-SAT, which does not stop before it has read it, found nothing in a minute."""


class Between(NamedTuple):
    """Which micro-batches of an earlier task may come before or behind those of a later one.

    Micro-batch j + m of the earlier task is before j of the later one for m < begin, behind it for
    m >= end, and for the m between as the literals [j][m - begin] say: true is behind.
    """

    begin: int
    end: int
    literals: list[list[cp_model.IntVar]]


class ResourceConstraints:
    """The order of tasks on GPUs and links, where two that list one resource meet if they share it.

    Attributes
    ----------
    between : dict of (int, int) to Between
        By the earlier and the later task on the path.
    orders : int
        Literals that say an order.
    left_out : str
        Why the model is not complete and must not be solved: too large, or stopped. Else empty.
    resolved : bool
        Whether every order that matters is chosen.
    """

    def __init__(
        self,
        variables: Variables,
        meet_if: Callable[[int, int], tuple[Literal, ...] | None],
        stopped: Callable[[], bool],
    ) -> None:
        self.variables, self.path, self.k = variables, variables.path, variables.k
        self.meet_if, self.stopped = meet_if, stopped
        self.between: dict[tuple[int, int], Between] = {}
        self.orders = 0
        self.left_out = ""
        self.resolved = True

    def one_at_a_time(self) -> None:
        """For two tasks on one resource, order each pair of micro-batches that can meet.

        Once micro-batch j + m of the earlier task is behind j of the later one, so is j + m + 1.
        """
        pairs = self._pairs()
        size = self.k * sum(end - begin for *_, begin, end in pairs)
        if size > MOST_ORDERS:
            self.left_out = f"{size} orders to choose, more than {MOST_ORDERS}"
        for early, late, where, begin, end in pairs:
            if self.gives_up():
                return
            if_true = self.variables.exist(self.path[early], self.path[late]) + where
            rows = [
                [self._order(early, late, j, m, if_true) for m in range(begin, end)]
                for j in range(self.k)
            ]
            self.between[early, late] = Between(begin, end, rows)
            for row in rows:
                for fewer, more in pairwise(row):
                    self.variables.model.add_implication(fewer, more)

    def gives_up(self) -> bool:
        """Whether the model is left out, as it is from the moment that the search stops."""
        if not self.left_out and self.stopped():
            self.left_out = "stopped"
        return bool(self.left_out)

    def _pairs(self) -> list[tuple[int, int, tuple[Literal, ...], int, int]]:
        """Return each two tasks that may meet, where they do, and the range to be ordered.

        Micro-batch j + m of the earlier task is behind j of the later one from m = end on.
        """
        on: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for position, task in enumerate(self.path):
            for resource in task.resources:
                on[resource].append(position)
        stashes, most = self.variables.graph.stashes, self.variables.most
        behind = certainly_behind(self.path, stashes, most, self.gives_up)
        if self.left_out:
            return []
        # Two transfers may have several links in common.
        pairs = dict.fromkeys(pair for shared in on.values() for pair in combinations(shared, 2))
        return [
            (early, late, where, 1 - behind[early][late], behind[late][early])
            for early, late in pairs
            if not self.path[early].excludes(self.path[late])
            and (where := self.meet_if(early, late)) is not None
        ]

    def _order(
        self, early: int, late: int, j: int, m: int, if_true: tuple[Literal, ...]
    ) -> cp_model.IntVar:
        after = self.variables.arc((late, j), (early, j + m))
        before = self.variables.arc((early, j + m), (late, j))
        behind = self.variables.literal("", _holds(after))
        self.variables.require(after, behind, *if_true)
        self.variables.require(before, ~behind, *if_true)
        self.orders += 1
        return behind

    def begun(self, task: int, j: int, other: int) -> Expr:
        """Return the last micro-batch of another task that begins no later than j of a task."""
        if other == task:
            return j
        if (other, task) in self.between:
            begin, _, literals = self.between[other, task]
            return j + begin - 1 + sum(~literal for literal in literals[j])
        begin, end, literals = self.between[task, other]
        behind = [literals[(j - m) % self.k][m - begin] for m in range(begin, end)]
        return j - end + sum(behind)

    def are_ordered(self, first: int, second: int) -> bool:
        """Whether the order of two tasks is known."""
        return (first, second) in self.between or (second, first) in self.between


def _holds(arc: Arc) -> Callable[[Hint], int]:
    return lambda hint: hint.holds(arc)


def certainly_behind(
    path: Sequence[Task],
    stashes: Sequence[Stash],
    most: Sequence[int],
    stopped: Callable[[], bool],
) -> list[list[int]]:
    """Return the least n for which task b of micro-batch j + n is behind task a of j: [a][b].

    A shortest path of arcs that hold in every pattern; B and I of a stage are one node, whichever
    exists, and leave behind as many in flight as either allows. If stopped, rows are empty.

    Dijkstra from every node, with a constant number of arcs each: O(n^2 log n) for n tasks.
    """
    import networkx

    nodes = [_node(task) for task in path]
    graph = networkx.DiGraph()
    for first, second, offset in _certain_arcs(path, stashes, most):
        known = graph.get_edge_data(first, second, {"weight": offset})["weight"]
        graph.add_edge(first, second, weight=max(known, offset))
    lengths: dict[tuple[str, int], list[int]] = {}
    for a in nodes:
        if stopped():
            break
        if a not in lengths:
            to = networkx.single_source_dijkstra_path_length(graph, a)
            lengths[a] = [int(to[b]) for b in nodes]
    return [lengths.get(a, []) for a in nodes]


def _node(task: Task) -> tuple[str, int]:
    return "back" if task.kind in ("B", "I") else str(task.kind), task.stage


def _certain_arcs(
    path: Sequence[Task], stashes: Sequence[Stash], most: Sequence[int]
) -> Iterator[tuple[tuple[str, int], tuple[str, int], int]]:
    """Yield two nodes, and how many micro-batches later the second is behind the first."""
    for before, behind in direct_followers(path):
        yield _node(path[before]), _node(path[behind]), 0
    through: dict[tuple[int, str], dict[bool, int]] = defaultdict(dict)
    for stash, count in zip(stashes, most, strict=True):
        if stash.enter != "I":
            known = through[stash.stage, stash.enter].get(bool(stash.split), count)
            through[stash.stage, stash.enter][bool(stash.split)] = min(known, count)
        if stash.leave == "W":
            enters = "back" if stash.enter == "I" else stash.enter
            yield ("W", stash.stage), (enters, stash.stage), count
    for (stage, enter), choices in through.items():
        yield ("back", stage), (enter, stage), max(choices.values())
