"""Whether the reductions from 3-partition say what they should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from schedopt.chain import Chain
from schedopt.checking import check
from schedopt.claims.claim import COMPLEXITY, Claim, Finding, Part, Reading, Step, Table
from schedopt.claims.holes import forced_starts, holes, pack, place
from schedopt.families.partition import draw_numbers, find_triples, theorem_1, theorem_2
from schedopt.plan import Kind, Plan
from schedopt.problem import Problem, Scope
from schedopt.solving import solve
from schedopt.solving.run import Run
from schedopt.stage import Stage

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
    answer : callable
        From numbers to a plan of the period, or None if it is proven that there is none.
    groups : callable
        From a plan to the places that lie together.
    """

    title: str
    answer: Callable[[Sequence[int]], Plan | None]
    groups: Callable[[Plan], list[list[int]]]


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
    wrong = "" if plan is None else _look(theorem.groups(plan), numbers, check(plan))
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
    total = 3 * sum(numbers) // len(numbers)
    if violations:
        return f"the plan is not valid: {violations[0]}"
    if sorted(place for group in groups for place in group) != [*range(len(numbers))]:
        return "the groups do not hold every number once"
    sizes = [[numbers[place] for place in group] for group in groups]
    if any(sum(group) != total for group in sizes):
        return f"a group does not add up to V: {sizes}"
    if any(len(group) != 3 for group in sizes):
        return f"a group is not of three: {sizes}"
    return ""


def _wrong(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [case for case in cases if case["partition"] != case["plan"] or "wrong" in case]


def answer_theorem_1(numbers: Sequence[int]) -> Plan | None:
    """Return a plan of period V on any allocation, or None if there is none.

    The chain keeps nothing, so that each GPU runs its layers in any order: load alone counts.
    """
    instance = theorem_1(numbers)
    period = sum(numbers) // len(instance.platform.gpus)
    free = Problem(
        chain=instance.chain, platform=instance.platform, scope=Scope(allocation="general")
    )
    rooms = [period] * len(instance.platform.gpus)
    gpus = pack(numbers, rooms, Run(free, time_limit=TIME_LIMIT))
    if gpus is None:
        return None
    stages = tuple(Stage(layers=(n, n), gpus=(gpu,)) for n, gpu in enumerate(gpus))
    begins = [0] * len(rooms)
    phases: dict[tuple[Kind, int], int] = {}
    for layer, gpu in enumerate(gpus):
        phases["F", layer] = begins[gpu]
        begins[gpu] += numbers[layer]
    scope = Scope(allocation="fixed")
    return place(replace(free, scope=scope, stages=stages), phases, period)


def groups_of_theorem_1(plan: Plan) -> list[list[int]]:
    """Return the layers of each GPU."""
    return [
        [number for number, stage in enumerate(plan.stages) if stage.gpus == (gpu,)]
        for gpu in range(len(plan.platform.gpus))
    ]


def answer_theorem_2(numbers: Sequence[int]) -> Plan | None:
    """Return a plan of period 2 m V on the given allocation, or None if there is none."""
    instance, stages = theorem_2(numbers)
    m = len(numbers) // 3
    period = 2 * sum(numbers)
    problem = Problem(
        chain=instance.chain,
        platform=instance.platform,
        scope=Scope(allocation="fixed"),
        stages=stages,
    )
    forced = forced_starts(problem, period)
    assert forced is not None
    free = holes(problem, forced, period)
    phases = {one: start % period for one, start in forced.items()}
    own = {0: range(m, 4 * m), 1: range(m)}
    for gpu, layers in own.items():
        sizes = [instance.chain.layers[layer].forward_ns for layer in layers]
        rooms = pack(sizes, [room for _, room in free[gpu]], Run(problem, time_limit=TIME_LIMIT))
        if rooms is None:
            return None
        begins = [start for start, _ in free[gpu]]
        for layer, size, room in zip(layers, sizes, rooms, strict=True):
            phases["F", layer] = begins[room]
            begins[room] += size
    return place(problem, phases, period)


def groups_of_theorem_2(plan: Plan) -> list[list[int]]:
    """Return the numbers between any two of the layers that keep something, by their place."""
    m = len(plan.stages) // 6
    forwards = sorted(
        (one for one in plan.pattern.operations if one.kind == "F"), key=lambda one: one.start_ns
    )
    groups: list[list[int]] = [[]]
    for one in forwards:
        if plan.stages[one.stage].gpus != (0,):
            continue
        if one.stage >= 4 * m:
            groups.append([])
        else:
            groups[-1].append(one.stage - m)
    # What comes before the first of them comes behind the last.
    return [group for group in [groups[0] + groups[-1], *groups[1:-1]] if group]


THEOREMS: Final = (
    Theorem("Theorem 1", answer_theorem_1, groups_of_theorem_1),
    Theorem("Theorem 2", answer_theorem_2, groups_of_theorem_2),
)


def _by_solver(numbers: Sequence[int]) -> dict[str, Any]:
    """Ask the solver of all allocations for the period of Theorem 1."""
    instance = theorem_1(numbers)
    period = sum(numbers) // len(instance.platform.gpus)
    chain: Chain = instance.chain
    result = solve(
        chain,
        instance.platform,
        scope=Scope(allocation="general", period_ns=period),
        solver="general_cpsat",
        workers=1,
        time_limit=TIME_LIMIT,
    )
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
