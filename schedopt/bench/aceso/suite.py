"""Plans that Aceso's search and Megatron-LM's rules made: how far from what is possible."""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction
from statistics import geometric_mean, median
from typing import Any, Final

from schedopt.account import memory
from schedopt.bench.aceso.inputs import Inputs, list_inputs
from schedopt.bench.cases import compile_search
from schedopt.bench.published.mist_tables import Mist, MistPlan
from schedopt.bench.published.tables import Line, Tables
from schedopt.bench.records import Record, RecordFile, exact, of_family
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table
from schedopt.checking import check
from schedopt.errors import InvalidPlanError
from schedopt.plan import Plan
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.units import format_bytes

PLANS: Final = "plans"
PROBLEMS: Final = "problems"
OURS: Final = {
    "ours": "in the memory of the GPU",
    "roomy": "in the memory that they need by our account",
}
"""What our plans are called in records, and what they may use."""
_KEY: Final = ("kind", "model", "gpus", "batch")


def plan_cases(tables: Tables) -> Iterator[Case]:
    """Yield a case for each plan: its step and memory by our account, and as measured."""
    measured = {plan.name: plan for plan in Mist(tables).plans}
    for inputs, lines in list_inputs(tables).items():
        for line in lines:
            yield _plan_case(inputs, line, measured.get(line["plan"]))


def problem_cases(tables: Tables, file: RecordFile) -> Iterator[Case]:
    """Yield a case for what plans were made for: a bound for all of them, and our plan."""
    for inputs in list_inputs(tables):
        key = _key(inputs)
        theirs = [row for row in of_family(file.records, PLANS) if _is_of(row, key)]
        yield _problem_case(inputs, key, theirs)


def _key(inputs: Inputs) -> dict[str, Any]:
    return {name: getattr(inputs, name) for name in _KEY}


def _is_of(row: Record, key: dict[str, Any]) -> bool:
    return all(row[name] == value for name, value in key.items())


def _plan_case(inputs: Inputs, line: Line, measured: MistPlan | None) -> Case:
    def measure(_: Effort, __: Proceed) -> dict[str, Any]:
        plan = inputs.score(line["plan"]).plan
        assert plan is not None
        wrong = [violation for violation in check(plan) if violation.kind != "memory"]
        if wrong:
            raise InvalidPlanError(f"{line['plan']}: {wrong[0]}")
        peaks = measured and [
            rank["max_allocated_bytes"] for rank in measured.ranks if rank["max_allocated_bytes"]
        ]
        return {
            **_key(inputs),
            "planner": line["planner"],
            "samples": line["mbs"],
            "stages": len(plan.stages),
            "step_exact": [plan.pattern.period_total_ns, 1],
            "measured_exact": [round(measured.step_ns), 1] if measured else None,
            "needed_bytes": max(need.peak_bytes for need in memory(plan)),
            "measured_bytes": max(peaks) if peaks else None,
        }

    return Case(PLANS, {"plan": line["plan"]}, measure)


def _problem_case(inputs: Inputs, key: dict[str, Any], theirs: list[Record]) -> Case:
    def measure(effort: Effort, proceed: Proceed) -> dict[str, Any]:
        compile_search()
        COMPILATIONS["replicas"].compile_here()
        room = inputs.platform.gpus[0].usable_bytes
        rooms = {"ours": room, "roomy": max([room, *(row["needed_bytes"] for row in theirs)])}
        known = [Fraction(*row["step_exact"]) for row in theirs]
        figures: dict[str, Any] = {}
        plan: Plan | None = None
        began = time.process_time()
        for name, there in rooms.items():
            proceed(f"{inputs.model} on {inputs.gpus} {inputs.kind}, {format_bytes(there)}")
            plan = inputs.solve(there, effort, plan)
            step = None if plan is None else Fraction(plan.pattern.period_total_ns)
            known += [step] if step is not None else []
            figures |= {
                f"{name}_memory_bytes": there,
                f"{name}_exact": exact(step),
                f"{name}_samples": None if plan is None else plan.chain.samples,
                f"{name}_stages": "none" if plan is None else " ".join(_stages(plan)),
            }
        solved = time.process_time()
        proceed(f"{inputs.model} on {inputs.gpus} {inputs.kind}, bound")
        bound = inputs.bound_ns(rooms["roomy"], int(min(known)))
        return {
            **figures,
            "bound_exact": [bound, 1],
            "search_cpu_s": round(solved - began, 1),
            "bound_cpu_s": round(time.process_time() - solved, 1),
        }

    return Case(PROBLEMS, key, measure)


def _stages(plan: Plan) -> Iterator[str]:
    """Yield of each stage its replicas, its tensor degree and its pieces, and those done again."""
    for stage in plan.stages:
        again = len([*stage.recomputed_layers])
        recomputed = f"({again}~again)" if again else ""
        yield f"{len(stage.gpus)}x{stage.tensor}:{len(stage.layer_range)}{recomputed}"


def _plan_rows(records: Records) -> list[dict[str, Any]]:
    """Return the plans with what was found for their inputs."""
    found = []
    for row in of_family(records, PLANS):
        key = {name: row[name] for name in _KEY}
        problem = next((one for one in of_family(records, PROBLEMS) if _is_of(one, key)), None)
        if problem is None:
            continue
        steps = {name: problem[f"{name}_exact"] for name in OURS}
        ratios = {
            f"theirs_over_{name}": None if step is None else float(_ratio(row["step_exact"], step))
            for name, step in steps.items()
        }
        found.append(
            {
                **row,
                **{f"{name}_exact": step for name, step in steps.items()},
                **ratios,
                "bound_exact": problem["bound_exact"],
                "gap": float(_ratio(row["step_exact"], problem["bound_exact"]) - 1),
                "room": row["needed_bytes"] <= problem["ours_memory_bytes"],
            }
        )
    return found


def _ratio(one: list[int], other: list[int]) -> Fraction:
    return Fraction(*one) / Fraction(*other)


def _problem_rows(records: Records) -> list[dict[str, Any]]:
    return [
        {
            **row,
            "gap": None
            if row["roomy_exact"] is None
            else float(_ratio(row["roomy_exact"], row["bound_exact"]) - 1),
        }
        for row in of_family(records, PROBLEMS)
    ]


def _misses(records: Records) -> Iterator[str]:
    for row in _plan_rows(records):
        if row["gap"] < 0:
            yield f"{row['plan']}: {-row['gap']:.1%} below its bound"
        if row["theirs_over_roomy"] is None:
            yield f"{row['plan']}: we found no plan in the memory that it needs"
        elif row["theirs_over_roomy"] < 1:
            longer = 1 / row["theirs_over_roomy"] - 1
            yield f"{row['plan']}: ours takes {longer:.1%} longer in the memory that it needs"


def _summary(records: Records) -> Iterator[str]:
    rows = _plan_rows(records)
    if not rows:
        return
    gaps = sorted(row["gap"] for row in rows)
    yield f"{len(rows)} plans, {median(gaps):.1%} above their bounds in the median."
    for name, where in OURS.items():
        ratios = [
            row[f"theirs_over_{name}"] for row in rows if row[f"theirs_over_{name}"] is not None
        ]
        if ratios:
            yield (
                f"{where[0].upper() + where[1:]} ours is shorter than "
                f"{sum(ratio > 1 for ratio in ratios)} of {len(rows)}; theirs take "
                f"{geometric_mean(ratios):.3f} times as long (geometric mean of {len(ratios)})."
            )


SUITE: Final = Suite(
    title="Plans of Aceso and Megatron-LM",
    families=(PLANS, PROBLEMS),
    protocol="Each published plan with its own inputs: the profile of operators, the GPUs and "
    "nodes, the batch. Its step is that of 1F1B by our account, which leaves out messages that "
    "block a GPU, the optimizer, and tied embeddings; the same account scores ours. The bound is "
    "over all contiguous stages of operators, with any replicas, tensor degrees, shared optimizer "
    "states, recompute and sizes of micro-batches, on GPUs with the memory that these plans need "
    "by our account, where that is more than the GPU has. Stages of ours are cut between pieces "
    "of a layer: the norm with queries, keys and values; the scores; the projection; the MLP. Our "
    "account of recompute holds all that a stage computes again at once, where Megatron-LM does "
    "one run of operators after the other: so it needs more memory than was measured, most where "
    "a stage has many layers. The limit is for each search on up to 16 GPUs, and longer in "
    "proportion on more; it counts CPU seconds of the process. Each size of micro-batches "
    "in turn has half of what is left of it, and the rest is for the one with the shortest step.",
    misses=_misses,
    well="No plan is below its bound, and ours is nowhere longer in the memory that theirs need.",
    summary=_summary,
    overview=Table(
        "Plans, and what is possible",
        "",
        "plan step_exact=step gap theirs_over_ours=over~ours theirs_over_roomy=in~their~memory",
        _plan_rows,
    ),
    tables=[
        Table(
            "Plans",
            "The gap is that of their step to the bound. Memory is that of the fullest GPU by our "
            "account, and as measured. Ours keeps to the memory of the GPU; the last two columns "
            "are ours with the memory that theirs need by our account.",
            "plan planner stages samples=micro-batch step_exact=step measured_exact=measured "
            "needed_bytes=needs measured_bytes=measured room=fits bound_exact=no~less~than gap "
            "ours_exact=ours theirs_over_ours=theirs~over~ours roomy_exact=ours~with~more "
            "theirs_over_roomy=theirs~over~it",
            _plan_rows,
        ),
        Table(
            "What they were made for",
            "The gap is that of our step with the memory of the bound.",
            "kind=GPU model gpus batch ours_memory_bytes=memory ours_exact=ours "
            "ours_samples=micro-batch roomy_memory_bytes=with~more roomy_exact=ours~with~more "
            "roomy_samples=micro-batch bound_exact=no~less~than gap search_cpu_s=searches,~CPU~s "
            "bound_cpu_s=bound,~CPU~s",
            _problem_rows,
            keys=2,
        ),
        Table(
            "Our stages",
            "In the memory of the GPU. Replicas x tensor degree: pieces, and how many of them are "
            "computed again.",
            "kind=GPU model gpus ours_stages=stages",
            _problem_rows,
            keys=2,
        ),
    ],
)
