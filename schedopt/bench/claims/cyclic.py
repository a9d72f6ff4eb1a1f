"""Fournier and Oyallon: when cyclic data parallelism runs and keeps what, and what it reads."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from schedopt.account import residencies, versions
from schedopt.account.profile import peak_of, profile_of
from schedopt.bench.claims.plans import checked, equal_stages, timeline_of
from schedopt.bench.claims.result import (
    Case,
    Computed,
    Picture,
    Step,
    Table,
    announced,
    differing,
    sole,
)
from schedopt.drawing.charts import chart_simulation
from schedopt.drawing.picture import draw_picture
from schedopt.plan import Plan
from schedopt.rule import Rule
from schedopt.simulation import simulate
from schedopt.systems import cyclic, data_parallel, flushes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMES: Final = ((1, 1), (1, 2), (2, 3))
"""Forward and backward of a stage; the first are the time steps of the source."""
LARGEST_LONGER: Final = 8
"""N with other lengths of F and B."""
CONSTRUCTORS: Final = {
    "v1": cyclic.cdp_v1,
    "v2": cyclic.cdp_v2,
    "v2, one GPU": cyclic.cdp_v2_one_gpu,
    "v2, model parallel": cyclic.cdp_v2_mp,
    "v2, pipeline": cyclic.cdp_v2_pp,
}


@cache
def cyclic_plan(name: str, count: int, times: tuple[int, int] = TIMES[0]) -> Plan:
    """Return a checked plan of N stages and micro-batches over links that take no time."""
    gpus = {"v2, one GPU": 1, "v2, model parallel": count * (count + 1) // 2}.get(name, count)
    return checked(CONSTRUCTORS[name](equal_stages(count, gpus, times)))


def find_starts(step: Step, largest: int = 16) -> Computed:
    """C1: read starts, use of the stages and period off the plans of CDP-v1 and v2."""
    cases, longer = [], []
    for count in announced(step, "N = {}", range(2, largest + 1)):
        cases += [measure_starts(name, count, TIMES[0]) for name in ("v1", "v2", "v2, pipeline")]
        if count <= LARGEST_LONGER:
            longer += [measure_starts("v2", count, times) for times in TIMES[1:]]
    shown = {
        "dp": "Data parallelism, N = 3: a training step",
        "v1": "CDP-v1, N = 3: three training steps",
        "v2": "CDP-v2, N = 3: three training steps",
    }
    return Computed(
        {
            "F = B": cases,
            "longer backwards": [
                case
                for name in ("starts", "at_once", "period")
                for case in differing(longer, "rule", "N", "F, B", name, f"printed_{name}")
            ],
        },
        {
            "tried": f"N = 2 to {largest}, CDP-v1 and v2 on N GPUs, and one GPU a stage, each plan "
            "checked",
            "longer": LARGEST_LONGER,
        },
        figures={"plans": len(cases) + len(longer)},
        pictures=[
            Picture(name, f"{words} of equal stages", partial(draw_timeline, name))
            for name, words in shown.items()
        ],
    )


def measure_starts(version: str, count: int, times: tuple[int, int]) -> Case:
    """Return starts, GPUs that compute a stage at once, and period, with the printed ones."""
    plan = cyclic_plan(version, count, times)
    timeline, both = timeline_of(plan), sum(times)
    first = timeline.at("F", 0, 0).start_ns
    return {
        "rule": version,
        "N": count,
        "F, B": times,
        "starts": [timeline.at("F", 0, n).start_ns - first for n in range(count)],
        "printed_starts": [both * n for n in range(count)],
        "at_once": computing(plan),
        "printed_at_once": [1],
        "period": plan.pattern.period_total_ns * count // plan.pattern.k,
        "printed_period": both * count,
    }


def computing(plan: Plan) -> list[int]:
    """Return by how many GPUs a stage is computed at an instant; several where that changes."""
    timeline = timeline_of(plan)
    busy = [[0] * timeline.length_ns for _ in plan.stages]
    for operation, _, run in timeline.operations():
        for instant in range(run.start_ns, run.end_ns):
            busy[operation.stage][instant % timeline.length_ns] += 1
    return sorted({count for stage in busy for count in stage})


def draw_timeline(name: str, count: int = 3) -> Figure:
    """Draw some training steps of data parallelism, or of cyclic data parallelism.

    A transfer takes a quarter of a step, so that it can be seen what is sent when.
    """
    config = equal_stages(count, count, (4, 4), latency_ns=0)
    shown = 3 if name == "dp" else 3 * count
    plan = (data_parallel.overlapped if name == "dp" else CONSTRUCTORS[name])(config)
    return draw_picture(chart_simulation(simulate(plan, shown, timing="pattern")))


def find_occupied(step: Step, largest: int = 16) -> Computed:
    """C2: measure for how long each stage keeps the activations of a micro-batch."""
    cases = [
        {
            "N": count,
            "F, B": times,
            "j": stage + 1,
            "steps": sorted({end - start for _, start, end in spans}),
            "printed": [sum(times) * (count - stage)],
        }
        for count in announced(step, "N = {}", range(2, largest + 1))
        for times in (TIMES if count <= LARGEST_LONGER else TIMES[:1])
        for stage, spans in enumerate(kept_spans(cyclic_plan("v2", count, times)))
    ]
    return Computed(
        {"all": cases, "F = B": [case for case in cases if case["F, B"] == TIMES[0]]},
        {"largest": largest, "longer": LARGEST_LONGER},
        figures={"stages": len(cases)},
    )


def kept_spans(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """Return for each stage the bytes, start and end of each activation that it keeps, ns."""
    spans: list[list[tuple[int, int, int]]] = [[] for _ in plan.stages]
    for residency in residencies(plan):
        if residency.kind == "activation":
            assert residency.start_ns is not None
            assert residency.end_ns is not None
            span = (residency.count, residency.start_ns, residency.end_ns)
            spans[residency.stage].append(span)
    return spans


COLUMNS: Final = (
    *("DP", "printed", "CDP most", "least", "most in a row", "least"),
    *("from the end of F", "printed"),
)


def find_activations(step: Step, largest: int = 16, largest_serial: int = 8) -> Computed:
    """C3: measure the most and the least that is kept, over a period."""
    cases = []
    for count in announced(step, "N = {}", range(2, largest + 1)):
        plain = data_parallel.overlapped(equal_stages(count, count))
        cases.append(measure_kept("DP", "at once", plain))
        cases.append(measure_kept("CDP", "at once", cyclic_plan("v2", count)))
        if count <= largest_serial:
            serial = flushes.gpipe(equal_stages(count, 1))
            cases.append(measure_kept("DP", "in a row", serial))
            cases.append(measure_kept("CDP", "in a row", cyclic_plan("v2, one GPU", count)))
    cycle = [case for case in cases if case["system"] == "CDP"]
    by_key = {(case["N"], case["system"], case["operations"]): case for case in cases}
    rows = []
    for count in range(2, largest + 1):
        dp, cdp = (by_key[count, system, "at once"] for system in ("DP", "CDP"))
        in_a_row = by_key.get((count, "CDP", "in a row"), {"most": "", "least": ""})
        both = [dp["most"], dp["printed"], cdp["most"], cdp["least"]]
        both += [in_a_row["most"], in_a_row["least"]]
        rows.append([count, *both, cdp["most_from_end_of_F"], cdp["printed"]])
    return Computed(
        {
            "DP": [case for case in cases if case["system"] == "DP"],
            "CDP, more": [c for c in cycle if Fraction(c["most"]) > Fraction(c["printed"])],
            "CDP, in a row": [case for case in cycle if case["operations"] == "in a row"],
            "CDP, at once": [case for case in cycle if case["operations"] == "at once"],
        },
        {
            "tried": f"N = 2 to {largest} with the N operations of a step at once, on N GPUs added "
            f"up, and to {largest_serial} on one GPU in a row"
        },
        figures={"cases": cases},
        tables=[
            Table(
                "Activations that are kept, in those of the model for a micro-batch",
                ["N", *COLUMNS],
                rows,
            )
        ],
    )


def measure_kept(system: str, operations: str, plan: Plan) -> Case:
    """Return the most and the least of activations, in those of the model for a micro-batch."""
    count, timeline = plan.rule.update_every or 1, timeline_of(plan)
    whole, from_end = [], []
    for stage, spans in enumerate(kept_spans(plan)):
        forward_ns = timeline.stage_ns("F", stage, plan.stages[stage].gpus[0])
        whole += spans
        from_end += [(size, start + forward_ns, end) for size, start, end in spans]
    found = profile_of(whole, timeline.length_ns)
    # The level at the start of the period is that at its end.
    later = found[1:] if len(found) > 1 and found[1].start_ns == 0 else found
    most_from_end = peak_of(from_end, timeline.length_ns)
    return {
        "system": system,
        "operations": operations,
        "N": count,
        "most": str(Fraction(max(level.most for level in found), count)),
        "least": str(Fraction(min(level.count for level in later), count)),
        "most_from_end_of_F": str(Fraction(most_from_end, count)),
        "printed": str(count if system == "DP" else Fraction(count + 1, 2)),
    }


UNIT: Final = 100
"""F and B of a stage where transfers take time, ns."""
SENDING: Final = (1, 25, 50, 100, 200)
"""How long a transfer takes, ns."""


def find_rule(step: Step, largest: int = 16, largest_stalled: int = 5) -> Computed:
    """C4: compare the rule with what is there when it is read, and count what is delayed."""
    newest: list[Case] = []
    shares: list[Case] = []
    slacks = {}
    for count in announced(step, "N = {}", range(2, largest + 1)):
        names = ["v2, pipeline"] + ["v2, one GPU"] * (count <= largest_stalled)
        newest += [_read_newest(name, count) for name in names]
        v1, v2 = (_delayed_share(cyclic_plan(name, count)) for name in ("v1", "v2"))
        shares.append({"N": count, "v1": str(v1), "v2": str(v2), "left": str(v2 / v1)})
        slacks[count] = slack(cyclic_plan("v2", count))
    stalls = [
        _stall(count, name)
        for count in announced(
            step, "N = {}, transfers that take time", range(2, largest_stalled + 1)
        )
        for name in ("v1", "v2")
    ]
    shown = min(4, largest)
    return Computed(
        {
            "newest": newest,
            "not half": [case for case in shares if case["left"] != "1/2"],
            "not half in the limit": [
                case
                for case in shares
                if Fraction(case["left"]) != Fraction((n := case["N"]) - 1, 2 * n)
            ],
        },
        {"largest": largest},
        figures={
            "delayed": shares,
            "pairs_without_slack": {
                str(count): sum(ns == 0 for row in rows for ns in row)
                for count, rows in slacks.items()
            },
            "periods_with_transfers": stalls,
        },
        tables=[
            Table(
                f"Slack of each read in CDP-v2, in steps, N = {shown}",
                ["micro-batch n", *(f"stage {j + 1}" for j in range(shown))],
                [(n + 1, *row) for n, row in enumerate(slacks[shown])],
            ),
            Table(
                "Period over that with free transfers, by what a transfer takes, in steps",
                ["N", "rule", *(str(Fraction(ns, UNIT)) for ns in SENDING)],
                [(case["N"], case["rule"], *case["periods"]) for case in stalls],
            ),
        ],
    )


def _read_newest(name: str, count: int) -> Case:
    """Return the delays of a run that always reads the newest version there is."""
    plan = replace(cyclic_plan(name, count), rule=Rule(update_every=count))
    read = versions(plan).forward_staleness
    each = range(count)
    return {
        "N": count,
        "delays": [
            [sole(d for (i, s), d in read.items() if (i % count, s) == (n, j)) for j in each]
            for n in each
        ],
        "printed": [[int(not j + 1 >= count - n) for j in each] for n in each],
    }


def _delayed_share(plan: Plan) -> Fraction:
    delays = versions(plan).forward_staleness.values()
    return Fraction(sum(delay > 0 for delay in delays), len(delays))


def slack(plan: Plan) -> list[list[int]]:
    """Return how long before each read its version is made, ns, by micro-batch and stage."""
    timeline, every = timeline_of(plan), plan.rule.update_every or 1

    def before(n: int, stage: int) -> int:
        # The first update that counts comes after micro-batch `last`.
        last = (n // every - (plan.rule.forward_delay(n, stage) or 0)) * every - 1
        return timeline.at("F", stage, n).start_ns - timeline.at("B", stage, last).end_ns

    return [[before(n, stage) for stage in range(len(plan.stages))] for n in range(every)]


def _stall(count: int, name: str) -> Case:
    """Return periods where transfers take time, over those where none does."""
    configs = [equal_stages(count, count, (UNIT, UNIT), latency_ns=ns - 1) for ns in SENDING]
    patterns = [checked(CONSTRUCTORS[name](config)).pattern for config in configs]
    periods = [Fraction(pattern.period_total_ns, pattern.k) for pattern in patterns]
    return {
        "N": count,
        "rule": name,
        "periods": [round(float(period / (2 * UNIT)), 3) for period in periods],
    }
