"""Beaumont et al. 2021: 3-partition, 1F1B*, longer patterns, and contiguous allocations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Final, Literal

from schedopt.bench.claims.plans import ask, plain_layer, problem_of
from schedopt.bench.claims.result import Case, Computed, Step, Table, announced, differing, table_of
from schedopt.chain import Chain
from schedopt.checking import check
from schedopt.errors import InputError
from schedopt.families import Instance, lemma_2, section_6_1, theorem_4, theorem_5, theorem_6
from schedopt.families.partition import draw_numbers, find_triples, wrong_groups
from schedopt.families.reductions import Reduction
from schedopt.families.theorems import ALLOCATIONS
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.solvers.packing import Undecided

Theorem = Literal[1, 2]
THEOREMS: Final[tuple[Theorem, ...]] = (1, 2)
OUTSIDE: Final = ((5, 5, 4, 2, 2, 2), (7, 1, 1, 1, 5, 5), (6, 6, 4, 4, 3, 1))
"""Numbers that make no two groups of three with equal sums, but groups of two and four."""
WORDS: Final = {True: "YES", False: "NO"}


def find_reductions(
    step: Step,
    sizes: Sequence[int] = range(1, 9),
    totals: Sequence[int] = (20, 100, 1000),
    most_general: int = 4,
) -> Computed:
    """P1: answer the scheduling problems of 3-partitions of m and V exactly, and compare.

    Up to the m `most_general` the solver of all allocations is asked as well.
    """
    pairs = announced(step, "m = {}, V = {}", product(sizes, totals))
    drawn = [draw_numbers(*pair, 0, solvable=kind) for pair in pairs for kind in (True, False)]
    inside = {n: [compare_partition(n, numbers) for numbers in drawn] for n in THEOREMS}
    step("numbers outside V / 4 to V / 2")
    wrong = {n: [case for case in inside[n] if _is_wrong(case)] for n in THEOREMS}
    outside = {n: [compare_partition(n, numbers) for numbers in OUTSIDE] for n in THEOREMS}
    step("by the solvers for all problems")
    general = [_ask_general(numbers) for numbers in drawn if len(numbers) <= 3 * most_general]
    yes = sum(case["partition"] for case in inside[1])
    tried = (
        f"{len(drawn)} instances, m = {min(sizes)} to {max(sizes)}, V = "
        f"{', '.join(map(str, totals))}: {yes} YES, {len(drawn) - yes} NO"
    )
    return Computed(
        {
            **{f"inside {n}": wrong[n] for n in THEOREMS},
            **{f"all {n}": [*wrong[n], *filter(_is_wrong, outside[n])] for n in THEOREMS},
            "general": [case for case in general if not case["agrees"]],
        },
        {"tried": tried, "outside": len(OUTSIDE), "most_general": most_general},
        figures={
            "yes": yes,
            "no": len(drawn) - yes,
            "plans_checked": sum(case["plan"] for cases in inside.values() for case in cases),
            "by_solver": len(general),
        },
        tables=[
            table_of(
                "Answers",
                [{**one, "other": two["plan"]} for one, two in zip(*inside.values(), strict=True)],
                {
                    "m": "m",
                    "V": "V",
                    "3-partition": lambda case: WORDS[case["partition"]],
                    "Theorem 1": lambda case: WORDS[case["plan"]],
                    "Theorem 2": lambda case: WORDS[case["other"]],
                },
            )
        ],
    )


def compare_partition(theorem: Theorem, numbers: Sequence[int]) -> Case:
    """Answer both problems of some numbers, and look at the groups that the plan makes."""
    m = len(numbers) // 3
    plan = answer(theorem, numbers)
    case = {
        "theorem": f"Theorem {theorem}",
        "m": m,
        "V": sum(numbers) // m,
        "numbers": [*numbers],
        "partition": find_triples(numbers) is not None,
        "plan": plan is not None,
    }
    if plan is not None and (violations := check(plan)):
        case["wrong"] = f"the plan is not valid: {violations[0]}"
    elif plan is not None:
        groups = Reduction(theorem, tuple(numbers)).groups(plan)
        case |= {"wrong": wrong} if (wrong := wrong_groups(groups, numbers)) else {}
    return case


def answer(theorem: Theorem, numbers: Sequence[int]) -> Plan | None:
    """Return a plan of the period of a theorem, or None if it is proven that there is none."""
    result = ask(Reduction(theorem, tuple(numbers)).problem(), "packing")
    if result.status == "unknown":
        raise Undecided
    return result.plan


def _ask_general(numbers: Sequence[int]) -> Case:
    """Ask the solver of all allocations for the period of Theorem 1."""
    status = ask(Reduction(1, tuple(numbers)).problem(), "general_cpsat").status
    partition = find_triples(numbers) is not None
    agrees = status == ("optimal" if partition else "infeasible")
    return {"numbers": [*numbers], "partition": partition, "status": status, "agrees": agrees}


def _is_wrong(case: Case) -> bool:
    return case["partition"] != case["plan"] or "wrong" in case


def find_periods(step: Step, most_k: int = 7) -> Computed:
    """P3: prove the least period of Theorem 4's chain for each k and each j up to k."""
    lengths = range(1, most_k + 1)
    pairs = [(k, j) for k in lengths for j in range(1, k + 1)]
    cases = [_least_period(k, j) for k, j in announced(step, "k = {}, patterns of {}", pairs)]
    periods = {(case["k"], case["j"]): case["period"] for case in cases}
    unproven = [case for case in cases if case["status"] != "optimal"]
    as_good = [
        case for case in cases if case["j"] < (k := case["k"]) and case["period"] == periods[k, k]
    ]
    return Computed(
        {
            "other periods": [*unproven, *differing(cases, "k", "j", "period", "printed")],
            "as good": [*unproven, *as_good],
        },
        {"most_k": most_k},
        figures={"proofs": len(cases), "least_period": {str(k): periods[k, k] for k in lengths}},
        tables=[
            Table(
                "The least T / k, by the longest pattern that is allowed",
                ["chain for k", *(f"j = {j}" for j in lengths)],
                [(k, *(periods.get((k, j), "") for j in lengths)) for k in lengths],
            )
        ],
    )


def _least_period(k: int, longest: int) -> Case:
    """Return the least T / k of Theorem 4's chain with patterns up to a length."""
    instance = theorem_4(k)
    scope = Scope(allocation="fixed", max_k=longest)
    stages = tuple(instance.known[-1].stages)
    result = ask(problem_of(instance.chain, instance.platform, scope, stages), "periodic")
    return {
        "k": k,
        "j": longest,
        "status": result.status,
        "period": _in_units(result.period, instance),
        "printed": str(2 * (1 + Fraction(1, longest))),
    }


def _in_units(period: Fraction | None, instance: Instance) -> str:
    return "none" if period is None else str(period / instance.chain.provenance["unit_ns"])


COLUMNS: Final = ("k", "contiguous", "general", "ratio", "printed")


def find_ratios(step: Step, most_5: int = 4, most_6: int = 8, drawn: int = 60) -> Computed:
    """P4: solve each family exactly, contiguous and with any allocation, and take the ratios.

    The families of Theorems 5 and 6 up to a k, and random chains against the factor 2.
    """
    step("section 6.1 and Lemma 2")
    simple, lemma = solve_both(section_6_1()), solve_both(lemma_2())
    fifth = [
        {**_solve_member(theorem_5, k), "printed": str(2 - Fraction(1, k))}
        for k in announced(step, "Theorem 5, k = {}", range(1, most_5 + 1))
    ]
    sixth = [
        {**_solve_member(theorem_6, k), "printed": str(k - 1)}
        for k in announced(step, "Theorem 6, k = {}", range(2, most_6 + 1))
    ]
    chains = announced(step, "random chain, seed {}", range(drawn))
    twice = [{"seed": seed, **solve_both(drawn_chain(seed))} for seed in chains]
    simple_holds = simple["proven"] and (simple["contiguous"], simple["general"]) == ("3", "2")
    lemma_holds = lemma["proven"] and lemma["contiguous"] == "none" != lemma["general"]
    return Computed(
        {
            "section 6.1": [] if simple_holds else [simple],
            "lemma 2": [] if lemma_holds else [lemma],
            "more than twice": [case for case in (*twice, *fifth[1:]) if not 0 < _ratio(case) <= 2],
            "theorem 5": fifth,
            "less": [case for case in fifth[1:] if _ratio(case) < Fraction(case["printed"])],
            "theorem 6": sixth,
        },
        {"most_5": most_5, "most_6": most_6, "drawn": drawn},
        figures={
            "section_6_1": simple["ratio"],
            "theorem_5": {str(case["k"]): case["ratio"] for case in fifth},
            "theorem_6": {str(case["k"]): case["ratio"] for case in sixth},
            "largest_ratio_of_random_chains": str(max(map(_ratio, twice), default=None)),
        },
        tables=[
            Table(
                f"{title}: least periods, and contiguous over any allocation",
                COLUMNS,
                [[case.get(name) or "" for name in COLUMNS] for case in cases],
            )
            for title, cases in (("Theorem 5", fifth), ("Theorem 6", sixth))
        ],
    )


def _solve_member(family: Callable[[int], Instance], k: int) -> Case:
    """Solve a chain of a family, or return why there is none for this k."""
    try:
        return {"k": k, **solve_both(family(k))}
    except InputError as error:
        return {"k": k, "ratio": None, "proven": False, "why": error.rule}


def solve_both(instance: Instance) -> Case:
    """Return the least periods by allocation ("none": no plan), their ratio, and "proven"."""
    scopes = [Scope(allocation=allocation, max_k=None) for allocation in ALLOCATIONS]
    results = [ask(problem_of(instance.chain, instance.platform, scope)) for scope in scopes]
    contiguous, general = (result.period for result in results)
    ratio = None if contiguous is None or general is None else str(contiguous / general)
    return {
        "contiguous": _in_units(contiguous, instance),
        "general": _in_units(general, instance),
        "ratio": ratio,
        "proven": all(result.status in ("optimal", "infeasible") for result in results),
    }


def drawn_chain(seed: int) -> Instance:
    """Return a random chain without any memory, where a bound on the ratio has to show."""
    draw = random.Random(seed)
    layers = [
        plain_layer(draw.choice((1, 1, 2, 5, 9)), draw.choice((0, 1, 2, 5, 9)))
        for _ in range(draw.randint(3, 8))
    ]
    chain = Chain(layers=tuple(layers), provenance={"unit_ns": 1})
    return Instance(chain=chain, platform=Platform(draw.randint(2, 4), 1))


def _ratio(case: Case) -> Fraction:
    """Return the ratio, or 0 where it is not proven or there is none."""
    return Fraction(case["ratio"]) if case["proven"] and case["ratio"] is not None else Fraction(0)
