"""Which versions cyclic data parallelism reads, and for how long they have been there."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from schedopt.account import versions
from schedopt.bench.claims.claim import CDP, Claim, Finding, Part, Reading, Step, Table, against
from schedopt.bench.claims.cyclic_plans import (
    CONSTRUCTORS,
    cyclic_plan,
    equal_stages,
    timeline_of,
)
from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.rule import Rule

CLAIM: Final = Claim(
    id="C4",
    says="CDP-v2 reads the newest parameters there are: those of the last update iff "
    "j >= N - n + 1; so half as many are delayed as in CDP-v1.",
    sources=(f"{CDP}, section 2.2",),
)
IN_THE_LIMIT: Final = "half in the limit: (N - 1) / (2 N) of them stay delayed, a little less"
UNIT: Final = 100
"""F and B of a stage where transfers take time, ns."""
SENDING: Final = (1, 25, 50, 100, 200)
"""How long a transfer takes, ns."""


def find_rule(step: Step, largest: int = 16, largest_stalled: int = 5) -> Finding:
    """Compare the rule with what is there when it is read, and count what is delayed."""
    newest, shares, slacks = [], [], {}
    for count in range(2, largest + 1):
        step(f"N = {count}")
        for name in ("v2, pipeline", "v2"):
            if name == "v2" and count > largest_stalled:
                continue
            newest.append(_newest(name, count))
        shares.append(_share(count))
        slacks[count] = slack(cyclic_plan("v2", count))
    stalls = []
    for count in range(2, largest_stalled + 1):
        step(f"N = {count}, transfers that take time")
        stalls += [_stalled(count, name) for name in ("v1", "v2")]
    tried = (
        f"N = 2 to {largest}, all stages and micro-batches: one GPU a stage, reading what is there"
    )
    no_slack = {str(count): sum(s == 0 for row in slacks[count] for s in row) for count in slacks}
    shown = min(4, largest)
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="what the rule reads is the newest that there is",
                readings=[
                    Reading(tried=tried, counterexamples=against(newest, "N", "delays", "printed"))
                ],
            ),
            Part(
                says="CDP-v2 delays half as many parameters as CDP-v1",
                readings=[
                    Reading(
                        tried=f"N = 2 to {largest}, versions by the account",
                        counterexamples=[case for case in shares if case["left"] != "1/2"],
                    ),
                    Reading(
                        convention=IN_THE_LIMIT,
                        tried=f"N = 2 to {largest}",
                        counterexamples=[
                            case
                            for case in shares
                            if Fraction(case["left"]) != Fraction(case["N"] - 1, 2 * case["N"])
                        ],
                    ),
                ],
            ),
        ],
        figures={
            "delayed": shares,
            "pairs_without_slack": no_slack,
            "periods_with_transfers": stalls,
        },
        notes=[
            "Slack is the time from when a version is made (the end of the last backward of its "
            "mini-batch in that stage) to when it is read, where each micro-batch begins two steps "
            "behind the one before. Pairs with j = N - n + 1 have none, so transfers that take any "
            "time move their micro-batch, and the period grows only when that is used up, or when "
            "links are full: each carries a gradient and parameters of a stage every two steps.",
        ],
        tables=[
            Table(
                title=f"Slack of each read in CDP-v2, in steps, N = {shown}",
                header=["micro-batch n", *(f"stage {j + 1}" for j in range(shown))],
                rows=[(n + 1, *row) for n, row in enumerate(slacks[shown])],
            ),
            Table(
                title="Period over that with free transfers, by what a transfer takes, in steps",
                header=["N", "rule", *(str(Fraction(ns, UNIT)) for ns in SENDING)],
                rows=[(case["N"], case["rule"], *case["periods"]) for case in stalls],
            ),
        ],
    )


def _newest(name: str, count: int) -> dict[str, Any]:
    """Return the delays of a run that reads whatever is the newest at that moment."""
    plan = cyclic_plan("v2, one GPU" if name == "v2" else name, count)
    read = versions(replace(plan, rule=Rule(update_every=count))).forward_staleness
    each = range(1, count + 1)
    delays = [[_same(read, n - 1, j - 1, count) for j in each] for n in each]
    return {
        "N": count,
        "delays": delays,
        "printed": [[int(not j >= count - n + 1) for j in each] for n in each],
    }


def _same(read: dict[tuple[int, int], int], n: int, stage: int, count: int) -> object:
    """Return the delay of a micro-batch, if it is the same in each mini-batch."""
    found = {delay for (i, s), delay in read.items() if i % count == n and s == stage}
    return found.pop() if len(found) == 1 else sorted(found)


def _share(count: int) -> dict[str, Any]:
    one, two = (_delayed(cyclic_plan(name, count)) for name in ("v1", "v2"))
    return {"N": count, "v1": str(one), "v2": str(two), "left": str(two / one)}


def _delayed(plan: Plan) -> Fraction:
    found = versions(plan).forward_staleness.values()
    return Fraction(sum(delay > 0 for delay in found), len(found))


def slack(plan: Plan) -> list[list[int]]:
    """Return how long before each read its version is made, ns, by micro-batch and stage."""
    timeline, every = timeline_of(plan), plan.rule.update_every or 1
    found = []
    for n in range(every):
        row = []
        for stage in range(len(plan.stages)):
            # The first update that counts comes behind micro-batch `last`.
            last = (n // every - (plan.rule.forward_delay(n, stage) or 0)) * every - 1
            made = timeline.at("B", stage, last).end_ns
            row.append(timeline.at("F", stage, n).start_ns - made)
        found.append(row)
    return found


def _stalled(count: int, name: str) -> dict[str, Any]:
    """Return periods where transfers take time, over those where none does."""
    periods = []
    for sending in SENDING:
        setting = equal_stages(count, count, (UNIT, UNIT), latency_ns=sending - 1)
        plan = CONSTRUCTORS[name](setting)
        assert not check(plan)
        period = Fraction(plan.pattern.period_total_ns, plan.pattern.k)
        periods.append(round(float(period / (2 * UNIT)), 3))
    return {"N": count, "rule": name, "periods": periods}
