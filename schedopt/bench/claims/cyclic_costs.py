"""Fournier and Oyallon: the costs of the parallelisms with and without a cycle, each as a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, TypeAlias

from schedopt.account import memory, messages, residencies, versions
from schedopt.account.timeline import Timeline
from schedopt.bench.claims.plans import checked, equal_stages
from schedopt.bench.claims.result import Case, Computed, Step, Table, announced
from schedopt.plan import Plan
from schedopt.stage import Stage
from schedopt.systems import cyclic, cyclic_zero, data_parallel, flushes, zero
from schedopt.systems.collectives import all_reduce_and_update
from schedopt.systems.config import SystemConfig

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

Value: TypeAlias = Fraction | str
"""A figure, or an order of growth."""
Law: TypeAlias = Callable[[Fraction], Value | int]
"""From N."""


@dataclass(frozen=True)
class Parallelism:
    """A row of the paper's table.

    Parameters
    ----------
    plan : callable
        Returns its plan for N.
    printed : tuple of callable
        A law for each column.
    agreed : mapping
        For a column the law under the convention that the statement of that name has.
    other : callable, optional
        The plan that the convention is about, if it is another one.
    """

    plan: Callable[[int], Plan]
    printed: tuple[Law, ...]
    agreed: Mapping[str, Law] = field(default_factory=dict)
    other: Callable[[int], Plan] | None = None

    def laws(self, agreed: bool) -> dict[str, Law]:
        """Return the law of each column."""
        printed = dict(zip(COLUMNS, self.printed, strict=True))
        return printed | dict(self.agreed) if agreed else printed


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
    scheduler = config.scheduler(config.flush_rule(replicated=True), stages)
    for i in range(count):
        for stage in range(count):
            scheduler.run("F", stage, i)
        for stage in reversed(range(count)):
            scheduler.run("B", stage, i)
    for stage in reversed(range(count)):
        all_reduce_and_update(scheduler, stage, count)
    return config.flushed(scheduler)


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


def _always(value: Value | int) -> Law:
    return lambda n: value


CONSTANT: Final = "O(1)"
FREE, ONE, HALF, TWICE = (_always(Fraction(*two)) for two in ((0,), (1,), (1, 2), (3, 2)))
O_1, O_LOG = _always(CONSTANT), _always("O(log N)")


def _n(n: Fraction) -> Fraction:
    return n


def _part(n: Fraction) -> Fraction:
    return 1 / n


def _halves(n: Fraction) -> Fraction:
    return (n + 1) / 2


def _both_ways(n: Fraction) -> Fraction:
    return 2 * (n - 1) / n


def _ring(n: Fraction) -> Fraction:
    return ROUND * (n - 1)


PARALLELISMS: Final = {
    "Single-GPU DP": Parallelism(
        lambda n: flushes.gpipe(config_of(n, 1)),
        (_n, _n, FREE, FREE, O_1, ONE, FREE),
        {"parameters": ONE},
    ),
    "Single-GPU DP, cyclic": Parallelism(
        lambda n: cyclic.cdp_v2_one_gpu(config_of(n, 1)),
        (_halves, _halves, FREE, FREE, O_1, ONE, ONE),
        {"parameters": ONE},
    ),
    "Multi-GPU DP": Parallelism(
        on_n(data_parallel.overlapped),
        (ONE, ONE, ONE, FREE, O_LOG, _n, FREE),
        {"messages": _ring},
    ),
    "Multi-GPU DP, cyclic": Parallelism(
        on_n(cyclic.cdp_v2),
        (ONE, ONE, ONE, FREE, O_1, _n, ONE),
        {"parameters": ONE},
    ),
    "DP with MP": Parallelism(
        replicated_pipeline,
        (_part, _part, ONE, ONE, O_LOG, lambda n: n * n, FREE),
        {"messages": lambda n: ROUND * (n - 1) + 1, "activations_sent": _both_ways},
    ),
    "DP with MP, cyclic": Parallelism(
        pyramid,
        (_part, _part, HALF, ONE, O_1, lambda n: n * (n + 1) / 2, ONE),
        {"parameters": _part, "weights_sent": HALF, "activations_sent": _both_ways},
        lambda n: sum_first(pyramid(n)),
    ),
    "PP": Parallelism(
        on_n(cyclic.cdp_v2_pp),
        (ONE, _part, FREE, ONE, O_1, _n, ONE),
        {"parameters": _part, "activations_sent": _both_ways},
    ),
    "ZeRO-DP": Parallelism(
        on_n(zero.parameter),
        (ONE, _part, ONE, FREE, O_LOG, _n, FREE),
        {"parameters": _part, "weights_sent": TWICE, "messages": _ring},
    ),
    "ZeRO-DP, cyclic": Parallelism(
        on_n(cyclic_zero.cdp_v2),
        (ONE, _part, ONE, FREE, O_1, _n, ONE),
        {"parameters": _part, "weights_sent": TWICE},
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


def fits(measured: Fraction, expected: Value | int, count: int) -> bool:
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
        laws = {column: law(Fraction(largest)) for column, law in row.laws(agreed=False).items()}
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
    for column, law in row.laws(agreed).items():
        # What is agreed on about the parameters is what lies there once.
        once = agreed and column == "parameters" and column in row.agreed
        value, expected = measured["parameters_once" if once else column], law(Fraction(count))
        if not fits(value, expected, count):
            case = {"N": count, "column": column, "measured": str(value), "printed": str(expected)}
            wrong.append(case)
    return wrong
