"""Best plans by the rule of Piper, with proof, on the clusters of a table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any, Final

from schedopt.bench.piper.model import Cluster, Model, PiperStage, read_cluster, read_model, time_of
from schedopt.bench.piper.search import PiperSearch
from schedopt.bench.published.tables import Tables
from schedopt.bench.records import exact, of_family
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table

CLUSTERS: Final = "piper/clusters"
GOAL_S: Final = 10.0
ROUNDED_NS: Final = 5_000
"""What the figures of the planner were rounded by, at most."""


def piper_cases(tables: Tables) -> list[Case]:
    """Return a case for each cluster.

    Raises
    ------
    InputError
        Naming the table and the line, where one is not as it should be.
    """
    model = read_model(tables)

    @cache
    def search(bytes_per_s: int, microbatches: int) -> PiperSearch:
        return PiperSearch(model, bytes_per_s, microbatches)

    def case(cluster: Cluster, planner_ns: int | None) -> Case:
        def measure(effort: Effort, proceed: Proceed) -> dict[str, Any]:
            start = time.process_time()
            found = search(cluster.bytes_per_s, cluster.microbatches).solve(
                cluster.gpus, cluster.memory_bytes
            )
            seconds = round(time.process_time() - start, 2)
            plan = found.plan if found else ()
            return {
                "status": "optimal" if found else "infeasible",
                "period_exact": exact(time_of(model, cluster, plan)) if found else None,
                "bound_exact": [max(0, found.load_ns - 1), 1] if found else None,
                "planner_exact": None if planner_ns is None else [planner_ns, 1],
                "stages": len(plan),
                "largest_tensor": max((stage.tensor for stage in plan), default=None),
                "plan": " ".join(_stages(model, plan)),
                "cpu_seconds": seconds,
                "goal_s": GOAL_S,
            }

        key = {
            "gpus": cluster.gpus,
            "memory_bytes": cluster.memory_bytes,
            "bandwidth_bytes_per_s": cluster.bytes_per_s,
            "microbatches": cluster.microbatches,
        }
        return Case("piper", key, measure)

    columns = "gpus memory_bytes bandwidth_bytes_per_s microbatches planner_ns"
    lines = enumerate(tables.lines(CLUSTERS, columns))
    return [case(*read_cluster(line, f"rows[{number}]", CLUSTERS)) for number, line in lines]


def _stages(model: Model, plan: tuple[PiperStage, ...]) -> Iterator[str]:
    """Yield of each stage its nodes, replicas and tensor degree, and its variants by number."""
    for stage in plan:
        names = [model.nodes[node][stage.tensor][at].name for node, at in stage.nodes.items()]
        counts = "+".join(f"{names.count(name)}~{name}" for name in dict.fromkeys(names))
        yield f"{stage.replicas}x{stage.tensor}:{counts}"


def _misses(records: Records) -> Iterator[str]:
    for row in of_family(records, "piper"):
        if row["cpu_seconds"] > row["goal_s"]:
            yield (
                f"{row['gpus']} GPUs, {row['memory_bytes']} bytes: {row['cpu_seconds']} CPU s, "
                f"the goal is {row['goal_s']:g} s"
            )

        planner, found = row["planner_exact"], row["period_exact"]
        if planner and (not found or Fraction(*found) > planner[0] + ROUNDED_NS):
            yield f"{row['gpus']} GPUs, {row['memory_bytes']} bytes: Piper's plan is shorter"


def _summary(records: Records) -> Iterator[str]:
    rows = of_family(records, "piper")
    proven = sum(row["status"] == "optimal" for row in rows)
    yield f"{len(rows)} clusters: {proven} plans, each proven best; the others have none."


SUITE: Final = Suite(
    title="The best plans by the rule of Piper",
    families=("piper",),
    protocol="Stages of a graph with replicas, a tensor degree for each stage, and a variant "
    "(such as with recompute) for each node; the time of a micro-batch is the largest load of a "
    "stage, and memory is counted, as Piper's publication says (Tarnawski et al. 2021). Variants "
    "are chosen exactly, where Piper chooses them greedily. Each plan is scored again by code of "
    "its own, exactly; loads below it by 1 ns or more have no plan.",
    misses=_misses,
    well=f"Each plan is found and proven within {GOAL_S:g} CPU s, none is longer than Piper's.",
    tables=[
        Table(
            "Plans",
            "The first case of a bandwidth also adds up all stages, for those that follow.",
            "gpus memory_bytes bandwidth_bytes_per_s status period_exact=time~of~a~micro-batch "
            "planner_exact=Piper stages "
            "largest_tensor=largest~tensor~degree cpu_seconds",
            "piper",
        ),
        Table(
            "Stages",
            "Replicas x tensor degree: nodes of each variant, from the first stage to the last.",
            "gpus memory_bytes bandwidth_bytes_per_s plan",
            "piper",
        ),
    ],
    summary=_summary,
)
