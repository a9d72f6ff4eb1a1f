"""What stages anywhere gain over contiguous ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from schedopt.bench.claims.claim import (
    COMPLEXITY,
    Claim,
    Finding,
    Part,
    Reading,
    Step,
    Table,
    against,
)
from schedopt.chain import Chain, Layer
from schedopt.errors import InputError
from schedopt.families import Instance, lemma_2, section_6_1, theorem_5, theorem_6
from schedopt.families.theorems import ALLOCATIONS
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.solving import solve

CLAIM: Final = Claim(
    id="P4",
    says="Without memory limits the best contiguous allocation is at most twice as slow as the "
    "best of all, and 2 - 1 / k times for some chain; within memory limits it may not exist, or "
    "be slower by any factor.",
    sources=(
        f"{COMPLEXITY}, section 6.1",
        f"{COMPLEXITY}, Lemma 2",
        f"{COMPLEXITY}, Theorem 5",
        f"{COMPLEXITY}, Theorem 6",
    ),
)
AT_LEAST: Final = "for k = 2 and more, where there is such a chain, and at least so many times"
TIME_LIMIT: Final = 30.0
NONE: Final = "none"


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Parameters
    ----------
    most_5, most_6 : int
        The largest k of the families of Theorems 5 and 6.
    drawn : int
        Random chains against the factor 2.
    """

    most_5: int = 4
    most_6: int = 8
    drawn: int = 60


def find_ratios(step: Step, effort: Effort | None = None) -> Finding:
    """Solve each family exactly, contiguous and with any allocation, and take the ratios."""
    tried = effort or Effort()

    def rows(family: Callable[[int], Instance], most: int, least: int = 2) -> list[dict[str, Any]]:
        found = []
        for k in range(least, most + 1):
            step(f"{family.__name__}, k = {k}")
            found.append({"k": k, **_of_instance(family, k)})
        return found

    step("section 6.1 and Lemma 2")
    simple, lemma = solve_both(section_6_1()), solve_both(lemma_2())
    fifth, sixth = rows(theorem_5, tried.most_5, 1), rows(theorem_6, tried.most_6)
    twice = []
    for seed in range(tried.drawn):
        step(f"random chain {seed + 1} of {tried.drawn}")
        twice.append({"seed": seed, **solve_both(drawn_chain(seed))})
    for row in fifth:
        row["printed"] = str(2 - Fraction(1, row["k"]))
    for row in sixth:
        row["printed"] = str(row["k"] - 1)
    fine = [case for case in twice if _ratio(case) is not None]
    most = max((ratio for case in fine if (ratio := _ratio(case)) is not None), default=None)
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="costs 1, 2, 1 on 2 GPUs: contiguous 3, any allocation 2",
                readings=[
                    Reading(
                        tried="solved exactly",
                        counterexamples=_unless(
                            simple, simple["contiguous"] == "3" and simple["general"] == "2"
                        ),
                    )
                ],
            ),
            Part(
                says="Lemma 2: weights 1, 2, 1 on 2 GPUs with memory 2 fit in no contiguous "
                "allocation, but in another",
                readings=[
                    Reading(
                        tried="solved exactly",
                        counterexamples=_unless(
                            lemma, lemma["contiguous"] == NONE and lemma["general"] != NONE
                        ),
                    )
                ],
            ),
            Part(
                says="Theorem 5: contiguous is at most twice as slow as the best of all",
                readings=[
                    Reading(
                        tried=f"{tried.drawn} random chains of 3 to 8 layers on 2 to 4 GPUs, and "
                        "the family of the theorem",
                        counterexamples=[
                            case for case in (*twice, *fifth[1:]) if not _at_most_twice(case)
                        ],
                    )
                ],
            ),
            Part(
                says="Theorem 5: on the chain of the proof it is 2 - 1 / k times, for every k",
                readings=[
                    Reading(
                        tried=f"k = 1 to {tried.most_5}, solved exactly",
                        counterexamples=against(fifth, "k", "ratio", "printed"),
                    ),
                    Reading(
                        convention=AT_LEAST,
                        tried=f"k = 2 to {tried.most_5}, solved exactly",
                        counterexamples=[row for row in fifth[1:] if not _reaches(row)],
                    ),
                ],
            ),
            Part(
                says="Theorem 6: within memory it is k - 1 times for some chain",
                readings=[
                    Reading(
                        tried=f"k = 2 to {tried.most_6}, solved exactly",
                        counterexamples=against(sixth, "k", "ratio", "printed"),
                    )
                ],
            ),
        ],
        figures={
            "section_6_1": simple["ratio"],
            "theorem_5": {str(row["k"]): row["ratio"] for row in fifth},
            "theorem_6": {str(row["k"]): row["ratio"] for row in sixth},
            "largest_ratio_of_random_chains": str(most),
        },
        notes=[
            "The proof of Theorem 6 prints a load of k + 1 on each GPU and the period k; solved, "
            "it is k."
        ],
        tables=[_table("Theorem 5", fifth), _table("Theorem 6", sixth)],
    )


def solve_both(instance: Instance) -> dict[str, Any]:
    """Return the least periods, contiguous and of any allocation, in units of the instance.

    Returns
    -------
    dict
        "contiguous" and "general", "none" where there is no plan; "ratio"; "proven", whether both
        are.
    """
    unit = instance.chain.provenance["unit_ns"]
    found: dict[str, Any] = {}
    proven = True
    for allocation in ALLOCATIONS:
        result = solve(
            instance.chain,
            instance.platform,
            scope=Scope(allocation=allocation, max_k=None),
            workers=1,
            time_limit=TIME_LIMIT,
        )
        proven = proven and result.status in ("optimal", "infeasible")
        found[allocation] = NONE if result.period is None else str(result.period / unit)
    ratio = None
    if NONE not in found.values():
        ratio = str(Fraction(found["contiguous"]) / Fraction(found["general"]))
    return {**found, "ratio": ratio, "proven": proven}


def drawn_chain(seed: int) -> Instance:
    """Return a random chain without any memory, where a bound on the ratio has to show."""
    draw = random.Random(seed)
    layers = tuple(
        Layer(
            forward_ns=draw.choice((1, 1, 2, 5, 9)),
            backward_ns=draw.choice((0, 1, 2, 5, 9)),
            weight_bytes=0,
            activation_bytes=0,
        )
        for _ in range(draw.randint(3, 8))
    )
    chain = Chain(layers=layers, provenance={"unit_ns": 1})
    return Instance(chain=chain, platform=Platform(draw.randint(2, 4), 1))


def _of_instance(family: Callable[[int], Instance], k: int) -> dict[str, Any]:
    try:
        return solve_both(family(k))
    except InputError as error:
        return {"ratio": None, "proven": False, "why": error.rule}


def _ratio(case: dict[str, Any]) -> Fraction | None:
    return Fraction(case["ratio"]) if case["proven"] and case["ratio"] is not None else None


def _at_most_twice(case: dict[str, Any]) -> bool:
    ratio = _ratio(case)
    return ratio is not None and ratio <= 2


def _reaches(case: dict[str, Any]) -> bool:
    ratio = _ratio(case)
    return ratio is not None and ratio >= Fraction(case["printed"])


def _unless(case: dict[str, Any], so: bool) -> list[dict[str, Any]]:
    """Return a case as a counterexample unless it is as it is said, and proven."""
    return [] if so and case["proven"] else [case]


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    names = ("k", "contiguous", "general", "ratio", "printed")
    return Table(
        title=f"{title}: least periods, and contiguous over any allocation",
        header=names,
        rows=[[row.get(name) or "" for name in names] for row in rows],
    )
