"""Fournier and Oyallon: the costs of the parallelisms with and without a cycle, each as a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from typing import Final, TypeAlias

from schedopt.account import memory, messages, residencies, versions
from schedopt.account.timeline import Timeline
from schedopt.bench.claims.plans import checked, equal_stages
from schedopt.bench.claims.result import Case, Computed, Step, Table, announced
from schedopt.plan import Plan
from schedopt.stage import Stage
from schedopt.systems import cyclic, cyclic_zero, data_parallel, flushes, zero
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import flush_step

COLUMNS: Final = {
    "activations": "in B Psi_A, the most that a GPU keeps, each stage at its own maximum",
    "parameters": "in Psi_P, the most that lies on a GPU of parameters, gradients and states",
    "weights_sent": "in 2 (N - 1) / N Psi_P, bytes sent of gradients and parameters by all GPUs "
    "for each micro-batch, over what each GPU of a ring sends in an all-reduce",
    "activations_sent": "in B Psi_A^int, bytes sent of activations and their gradients, for each "
    "micro-batch",
    "messages": "the most messages that come from or go to a GPU between two time steps",
    "gpus": "GPUs that have a stage",
    "delay": "the most updates that a forward reads behind its own",
}
"""What is measured, and in which unit: the cost model."""
SIZE: Final = 840
"""Bytes of the parameters of a stage; parts up to 1 / 8 are whole."""
SENT: Final = 60
"""Bytes of the output of a stage."""
SAVED: Final = 600
ROUND: Final = 4
"""Messages of a GPU in two rounds of a ring, one of sums and one of copies: each comes and goes."""
FEW: Final = 6
"""O(1): a gradient, and parameters for a forward and for a backward, come and go."""

Law: TypeAlias = Callable[[Fraction], Fraction | int | str]
"""From N to a figure, or to an order of growth."""
CONSTANT: Final = "O(1)"
LAWS: Final[dict[str, Law]] = {
    "N": lambda n: n,
    "N^2": lambda n: n * n,
    "1/N": lambda n: 1 / n,
    "(N+1)/2": lambda n: (n + 1) / 2,
    "N(N+1)/2": lambda n: n * (n + 1) / 2,
    "2(N-1)/N": lambda n: 2 * (n - 1) / n,
    "4(N-1)": lambda n: ROUND * (n - 1),
    "4(N-1)+1": lambda n: ROUND * (n - 1) + 1,
    "O(1)": lambda n: CONSTANT,
    "O(log_N)": lambda n: "O(log N)",
}
"""By their names; a number stands for itself."""


@dataclass(frozen=True)
class Parallelism:
    """A row of the paper's table."""

    plan: Callable[[int], Plan]
    """Returns its plan for N."""
    printed: str
    """A law for each column."""
    agreed: Mapping[str, str] = field(default_factory=dict)
    """For a column the law under the convention that the statement of that name has."""
    other: Callable[[int], Plan] | None = None
    """The plan that the convention is about, if it is another one."""

    def expected(self, count: int, *, agreed: bool) -> dict[str, Fraction | int | str]:
        """Return what the laws of the columns give for N."""
        laws = dict(zip(COLUMNS, self.printed.split(), strict=True))
        laws |= self.agreed if agreed else {}
        n = Fraction(count)
        return {
            column: LAWS[law](n) if law in LAWS else Fraction(law) for column, law in laws.items()
        }


def config_of(count: int, gpus: int) -> SystemConfig:
    """Return N equal stages of a time step F and one B, over links that take no time."""
    return equal_stages(count, gpus, parameter_bytes=SIZE, output_bytes=SENT, saved_bytes=SAVED)


def on_n(constructor: Callable[[SystemConfig], Plan]) -> Callable[[int], Plan]:
    """Return what makes a plan of N stages on N GPUs."""
    return lambda n: constructor(config_of(n, n))


def replicated_pipeline(count: int) -> Plan:
    """Return data parallelism with model parallelism: N GPUs for each stage."""
    config = config_of(count, count * count)
    stages = [
        Stage(layers=(s, s), gpus=tuple(range(s * count, (s + 1) * count))) for s in range(count)
    ]
    turns = product(range(count), data_parallel.course(count))
    return flush_step(config, stages, ((kind, stage, i) for i, (kind, stage) in turns))


def pyramid(count: int) -> Plan:
    """Return cyclic data parallelism with model parallelism: N - j + 1 GPUs for stage j."""
    return cyclic.cdp_v2_mp(config_of(count, count * (count + 1) // 2))


def sum_first(plan: Plan) -> Plan:
    """Return a plan in a pyramid in which each GPU sends one sum of gradients an update."""
    every = plan.rule.update_every or 1
    transfers = []
    for transfer in plan.pattern.transfers:
        replicas = len(plan.stages[transfer.stage].gpus)
        if transfer.tensor != "weight_gradient":
            transfers.append(transfer)
        elif transfer.shift % every >= every - replicas:
            transfers.append(replace(transfer, mode="reduce"))
    return replace(plan, pattern=replace(plan.pattern, transfers=tuple(transfers)))


PARALLELISMS: Final = {
    "Single-GPU DP": Parallelism(
        lambda n: flushes.gpipe(config_of(n, 1)), "N N 0 0 O(1) 1 0", {"parameters": "1"}
    ),
    "Single-GPU DP, cyclic": Parallelism(
        lambda n: cyclic.cdp_v2_one_gpu(config_of(n, 1)),
        "(N+1)/2 (N+1)/2 0 0 O(1) 1 1",
        {"parameters": "1"},
    ),
    "Multi-GPU DP": Parallelism(
        on_n(data_parallel.overlapped), "1 1 1 0 O(log_N) N 0", {"messages": "4(N-1)"}
    ),
    "Multi-GPU DP, cyclic": Parallelism(
        on_n(cyclic.cdp_v2), "1 1 1 0 O(1) N 1", {"parameters": "1"}
    ),
    "DP with MP": Parallelism(
        replicated_pipeline,
        "1/N 1/N 1 1 O(log_N) N^2 0",
        {"messages": "4(N-1)+1", "activations_sent": "2(N-1)/N"},
    ),
    "DP with MP, cyclic": Parallelism(
        pyramid,
        "1/N 1/N 1/2 1 O(1) N(N+1)/2 1",
        {"parameters": "1/N", "weights_sent": "1/2", "activations_sent": "2(N-1)/N"},
        lambda n: sum_first(pyramid(n)),
    ),
    "PP": Parallelism(
        on_n(cyclic.cdp_v2_pp),
        "1 1/N 0 1 O(1) N 1",
        {"parameters": "1/N", "activations_sent": "2(N-1)/N"},
    ),
    "ZeRO-DP": Parallelism(
        on_n(zero.parameter),
        "1 1/N 1 0 O(log_N) N 0",
        {"parameters": "1/N", "weights_sent": "3/2", "messages": "4(N-1)"},
    ),
    "ZeRO-DP, cyclic": Parallelism(
        on_n(cyclic_zero.cdp_v2),
        "1 1/N 1 0 O(1) N 1",
        {"parameters": "1/N", "weights_sent": "3/2"},
    ),
}


def measure_costs(plan: Plan) -> dict[str, Fraction]:
    """Return the columns of a plan, read off its account."""
    checked(plan)
    count = len(plan.chain.layers)
    model = 3 * SIZE * count
    kinds = [gpu.by_kind for gpu in memory(plan)]
    states = ("weights", "gradient", "gathered")
    sent = _sent(plan)
    return {
        "activations": Fraction(max(kind.get("activation", 0) for kind in kinds), SAVED * count),
        "parameters": Fraction(
            max(sum(kind.get(name, 0) for name in states) for kind in kinds), model
        ),
        "parameters_once": Fraction(_weights_once(plan), model),
        "weights_sent": sent[False] / (2 * (count - 1) * SIZE),
        "activations_sent": sent[True] / (SENT * count),
        "messages": Fraction(max(messages(plan).values())),
        "gpus": Fraction(len({gpu for stage in plan.stages for gpu in stage.gpus})),
        "delay": Fraction(max(versions(plan).forward_staleness.values())),
    }


def _weights_once(plan: Plan) -> int:
    """Return the most that lies on a GPU of weights, if of each stage one version counts."""
    always: dict[int, int] = defaultdict(int)
    newest: dict[tuple[int, int], int] = defaultdict(int)
    for residency in residencies(plan):
        gpu, size = residency.gpu, residency.count
        if residency.kind == "weights" and residency.start_ns is None:
            always[gpu] += size
        elif residency.kind == "weights":
            newest[gpu, residency.stage] = max(newest[gpu, residency.stage], size)
    for (gpu, _), size in newest.items():
        always[gpu] += size
    return max(always.values())


def _sent(plan: Plan) -> dict[bool, Fraction]:
    """Return the bytes sent for each micro-batch: of activations (True), and of weights."""
    timeline = Timeline(plan)
    sent = {True: 0, False: 0}
    for transfer, _, source, count, run in timeline.transfers():
        if source != run.gpu:
            sent[transfer.is_boundary] += count
    return {name: Fraction(count, timeline.length) for name, count in sent.items()}


def fits(measured: Fraction, expected: Fraction | int | str, count: int) -> bool:
    """Whether a figure is as expected, or stays below its order of growth."""
    if not isinstance(expected, str):
        return measured == expected
    return measured <= (FEW if expected == CONSTANT else ROUND * (count - 1).bit_length())


def find_costs(step: Step, largest: int = 8) -> Computed:
    """C6: measure every row for N from 2 on, as printed and with what may be agreed on."""
    cases: dict[str, list[Case]] = {}
    figures, rows = {}, []
    for name, row in PARALLELISMS.items():
        printed: list[Case] = []
        agreed: list[Case] = []
        last = {}
        for count in announced(step, f"{name}, N = {{}}", range(2, largest + 1)):
            last = measure_costs(row.plan(count))
            printed += _wrong(row, last, count, agreed=False)
            other = measure_costs(row.other(count)) if row.other else last
            agreed += _wrong(row, other, count, agreed=True)
        cases |= {name: printed, f"{name}, agreed": agreed}
        laws = row.expected(largest, agreed=False)
        figures[name] = {
            "verdict": "fails" if agreed else "holds-under-convention" if printed else "holds",
            "wrong_as_printed": sorted({case["column"] for case in printed}),
            f"N = {largest}": {column: str(value) for column, value in last.items()},
            "printed": {column: str(value) for column, value in laws.items()},
        }
        cells = [
            str(last[column]) if last[column] == law else f"{last[column]} ({law})"
            for column, law in laws.items()
        ]
        rows.append((name, *cells))
    return Computed(
        cases,
        {"tried": f"N = 2 to {largest}, {', '.join(COLUMNS).replace('_', ' ')}"},
        figures={"rows": figures, "units": COLUMNS},
        notes=[f"{name}: {unit}." for name, unit in COLUMNS.items()],
        tables=[
            Table(
                f"Measured for N = {largest}, in brackets what is printed if it differs",
                ["row", *COLUMNS],
                rows,
            )
        ],
    )


def _wrong(
    row: Parallelism, measured: Mapping[str, Fraction], count: int, *, agreed: bool
) -> list[Case]:
    wrong = []
    for column, expected in row.expected(count, agreed=agreed).items():
        # What is agreed on about the parameters is what lies there once.
        once = agreed and column == "parameters" and column in row.agreed
        value = measured["parameters_once" if once else column]
        if not fits(value, expected, count):
            case = {"N": count, "column": column, "measured": str(value), "printed": str(expected)}
            wrong.append(case)
    return wrong
