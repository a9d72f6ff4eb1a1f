"""Whether the reductions from 3-partition say what they should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from schedopt.bench.claims.claim import COMPLEXITY, Claim, Finding, Part, Reading, Step, Table
from schedopt.checking import check
from schedopt.families.partition import draw_numbers, find_triples, wrong_groups
from schedopt.families.reductions import Reduction
from schedopt.plan import Plan
from schedopt.result import Result
from schedopt.solvers.packing import Undecided
from schedopt.solving import solve

CLAIM: Final = Claim(
    id="P1",
    says="A 3-partition exists exactly if a chain has a plan of a given period: with any "
    "allocation (Theorem 1), and with a given one (Theorem 2).",
    sources=(f"{COMPLEXITY}, Theorem 1", f"{COMPLEXITY}, Theorem 2"),
)
BETWEEN: Final = (
    "every number lies between V / 4 and V / 2, as 3-partition is usually stated: else V may be "
    "made of two numbers or of four"
)
LOOSE: Final = ((5, 5, 4, 2, 2, 2), (7, 1, 1, 1, 5, 5), (6, 6, 4, 4, 3, 1))
"""Numbers that make no two groups of three with equal sums, but groups of two and four."""
TIME_LIMIT: Final = 60.0


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Parameters
    ----------
    sizes, totals : sequence of int
        m and V; for each pair numbers drawn in groups, and numbers drawn one by one.
    generic : int
        Up to this m the solvers for all problems are asked as well.
    """

    sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    totals: tuple[int, ...] = (20, 100, 1000)
    generic: int = 4


@dataclass(frozen=True)
class Theorem:
    """How one theorem turns numbers into a problem, and answers it.

    Parameters
    ----------
    title : str
    number : {1, 2}
    answer : callable
        From numbers to a plan of the period, or None if it is proven that there is none.
    """

    title: str
    number: Literal[1, 2]
    answer: Callable[[Sequence[int]], Plan | None]

    def groups(self, plan: Plan, numbers: Sequence[int]) -> list[list[int]]:
        """Return the places that lie together in a plan."""
        return Reduction(self.number, tuple(numbers)).groups(plan)


def find_reductions(step: Step, effort: Effort | None = None) -> Finding:
    """Answer the scheduling problems of many 3-partitions exactly, and compare."""
    tried = effort or Effort()
    drawn = []
    for m in tried.sizes:
        for total in tried.totals:
            step(f"m = {m}, V = {total}")
            drawn += [draw_numbers(m, total, 0, solvable=kind) for kind in (True, False)]
    answers = {
        theorem.title: [compare(theorem, numbers) for numbers in drawn] for theorem in THEOREMS
    }
    step("numbers outside V / 4 to V / 2")
    loose = {
        theorem.title: [compare(theorem, numbers) for numbers in LOOSE] for theorem in THEOREMS
    }
    step("by the solvers for all problems")
    small = [numbers for numbers in drawn if len(numbers) <= 3 * tried.generic]
    generic = [_by_solver(numbers) for numbers in small]
    yes = sum(case["partition"] for case in answers[THEOREMS[0].title])
    words = (
        f"{len(drawn)} instances, m = {min(tried.sizes)} to {max(tried.sizes)}, V = "
        f"{', '.join(map(str, tried.totals))}: {yes} YES, {len(drawn) - yes} NO"
    )
    return Finding(
        claim=CLAIM,
        parts=[
            *(
                Part(
                    says=f"{theorem.title}: there is a plan exactly if there is a 3-partition, "
                    "which the plan holds",
                    readings=[
                        Reading(
                            tried=f"{words}; {len(LOOSE)} with smaller and larger numbers",
                            counterexamples=[
                                *_wrong(answers[theorem.title]), *_wrong(loose[theorem.title])
                            ],
                        ),
                        Reading(
                            convention=BETWEEN,
                            tried=words,
                            counterexamples=_wrong(answers[theorem.title]),
                        ),
                    ],
                )
                for theorem in THEOREMS
            ),
            Part(
                says="the exact solver of all allocations finds the same for Theorem 1",
                readings=[
                    Reading(
                        tried=f"m up to {tried.generic}",
                        counterexamples=[case for case in generic if not case["agrees"]],
                    )
                ],
            ),
        ],
        figures={
            "yes": yes,
            "no": len(drawn) - yes,
            "plans_checked": sum(
                case["plan"] for cases in answers.values() for case in cases
            ),
            "by_solver": len(generic),
        },
        notes=[
            "A chain that keeps nothing has a plan of period V exactly if its layers fit into "
            "GPUs with room for V each. On the given allocation, what keeps an activation has its "
            "start forced, by the longest paths between starts; the other layers must fit into "
            "the holes. Both packings are decided by CP-SAT, every plan goes through the check, "
            "and the groups are read off the plan. Theorem 2 is answered for patterns of one "
            "micro-batch, as its proof does."
        ],
        tables=[_table(answers)],
    )  # fmt: skip


def compare(theorem: Theorem, numbers: Sequence[int]) -> dict[str, Any]:
    """Answer both problems of some numbers, and look at the groups that the plan makes."""
    m = len(numbers) // 3
    plan = theorem.answer(numbers)
    wrong = "" if plan is None else _look(theorem.groups(plan, numbers), numbers, check(plan))
    partition = find_triples(numbers) is not None
    return {
        "theorem": theorem.title,
        "m": m,
        "V": sum(numbers) // m,
        "numbers": [*numbers],
        "partition": partition,
        "plan": plan is not None,
        **({"wrong": wrong} if wrong else {}),
    }


def _look(groups: list[list[int]], numbers: Sequence[int], violations: Sequence[object]) -> str:
    """Say what is wrong about a plan and its groups, if anything."""
    if violations:
        return f"the plan is not valid: {violations[0]}"
    return wrong_groups(groups, numbers)


def _wrong(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [case for case in cases if case["partition"] != case["plan"] or "wrong" in case]


def _answer(theorem: Literal[1, 2], numbers: Sequence[int]) -> Plan | None:
    result = _solve(Reduction(theorem, tuple(numbers)), "packing")
    if result.status == "unknown":
        raise Undecided
    return result.plan


def _solve(reduction: Reduction, solver: str) -> Result:
    problem = reduction.problem()
    return solve(
        problem.chain,
        problem.platform,
        scope=problem.scope,
        stages=problem.stages,
        solver=solver,
        workers=1,
        time_limit=TIME_LIMIT,
    )


THEOREMS: Final = (
    Theorem("Theorem 1", 1, partial(_answer, 1)),
    Theorem("Theorem 2", 2, partial(_answer, 2)),
)


def _by_solver(numbers: Sequence[int]) -> dict[str, Any]:
    """Ask the solver of all allocations for the period of Theorem 1."""
    result = _solve(Reduction(1, tuple(numbers)), "general_cpsat")
    partition = find_triples(numbers) is not None
    wanted = "optimal" if partition else "infeasible"
    return {
        "numbers": [*numbers],
        "partition": partition,
        "status": result.status,
        "agrees": result.status == wanted,
    }


def _table(answers: dict[str, list[dict[str, Any]]]) -> Table:
    one, two = answers.values()
    return Table(
        title="Answers",
        header=["m", "V", "3-partition", *answers],
        rows=[
            (a["m"], a["V"], _word(a["partition"]), _word(a["plan"]), _word(b["plan"]))
            for a, b in zip(one, two, strict=True)
        ],
    )


def _word(found: bool) -> str:
    return "YES" if found else "NO"
