"""What the parallelisms of a table take with and without a cycle, each as a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, TypeAlias

from schedopt.account import memory, messages, residencies, versions
from schedopt.account.timeline import Timeline
from schedopt.bench.claims.claim import CDP, Claim, Finding, Part, Reading, Step, Table
from schedopt.chain import Chain, Layer
from schedopt.checking import check
from schedopt.plan import Plan, Transfer
from schedopt.platform import Platform
from schedopt.stage import Stage
from schedopt.systems import cyclic, cyclic_zero, data_parallel, flushes, zero
from schedopt.systems.collectives import all_reduce_and_update
from schedopt.systems.config import SystemConfig

CLAIM: Final = Claim(
    id="C6",
    says="Memory, volume, messages, GPUs and rule of the parallelisms, with and without a cycle.",
    sources=(f"{CDP}, Table 1",),
)
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
ROOM: Final = 10**9
ROUND: Final = 4
"""Messages of a GPU in two rounds of a ring, one of sums and one of copies: each comes and goes."""
FEW: Final = 6
"""O(1): a gradient, and parameters for a forward and for a backward, come and go."""

VERSIONS: Final = "of two versions of the parameters one counts"
SHARED: Final = "parameters lie on one GPU once, whatever micro-batches share them"
TREE: Final = "an all-reduce is a ring of 2 (N - 1) rounds; O(log N) would need another one"
BOTH_WAYS: Final = "the last output is not sent, and gradients come back: 2 (N - 1) / N"
OWN_FIRST: Final = "a GPU adds the gradients of its micro-batches up before it sends their sum"
GATHERED: Final = "gradients and gathered parameters on their way come on top"
MORE: Final = "parameters are sent for F and for B: 1.5 times (appendix C.4)"

Value: TypeAlias = Fraction | str
"""A figure, or an order of growth."""
Law: TypeAlias = Callable[[int], Value]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Parameters
    ----------
    name : str
    plan : callable
        Returns its plan for N.
    printed : mapping
        For each column what is printed.
    agreed : mapping
        For a column what may be read instead, with the convention.
    other : callable, optional
        The plan that the convention is about, if it is another one.
    """

    name: str
    plan: Callable[[int], Plan]
    printed: Mapping[str, Law]
    agreed: Mapping[str, tuple[str, Law]] = field(default_factory=dict)
    other: Callable[[int], Plan] | None = None


def config_of(count: int, gpus: int) -> SystemConfig:
    """Return N equal stages of a time step F and one B, over links that take no time."""
    layer = Layer(
        forward_ns=1,
        backward_ns=1,
        weight_bytes=3 * SIZE,
        activation_bytes=SENT,
        saved_bytes=SAVED,
        parameter_bytes=SIZE,
        gradient_bytes=SIZE,
        optimizer_bytes=SIZE,
    )
    return SystemConfig(
        chain=Chain(layers=(layer,) * count), platform=Platform(gpus, ROOM), microbatches=count
    )


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


def own_first(plan: Plan) -> Plan:
    """Return a plan in a pyramid in which each GPU sends one sum of gradients an update."""
    every = plan.rule.update_every or 1
    kept: list[Transfer] = []
    for transfer in plan.pattern.transfers:
        replicas = len(plan.stages[transfer.stage].gpus)
        if transfer.tensor != "weight_gradient":
            kept.append(transfer)
        elif transfer.shift % every >= every - replicas:
            kept.append(replace(transfer, mode="reduce"))
    return replace(plan, pattern=replace(plan.pattern, transfers=tuple(kept)))


def _pyramid(count: int) -> Plan:
    return cyclic.cdp_v2_mp(config_of(count, count * (count + 1) // 2))


def _number(*values: int) -> Law:
    return lambda n: Fraction(*values)


def _grows(how: str) -> Law:
    return lambda n: how


def _over_n(n: int) -> Fraction:
    return Fraction(1, n)


def _halves(n: int) -> Fraction:
    return Fraction(n + 1, 2)


def _columns(
    activations: Law, parameters: Law, weights: Law, sent: Law, grows: str, gpus: Law, delay: int
) -> dict[str, Law]:
    return dict(
        zip(
            COLUMNS,
            (activations, parameters, weights, sent, _grows(grows), gpus, _number(delay)),
            strict=True,
        )
    )


NONE, ONE = _number(0), _number(1)
CONSTANT: Final = "O(1)"
LOG: Final = "O(log N)"
_RING: Final = (TREE, lambda n: Fraction(ROUND * (n - 1)))
_RING_AND_ONE: Final = (
    f"{TREE}; at the same time the gradient of an activation comes or goes",
    lambda n: Fraction(ROUND * (n - 1) + 1),
)
_TWO_WAYS: Final = (BOTH_WAYS, lambda n: Fraction(2 * (n - 1), n))

ROWS: Final = (
    Row(
        "Single-GPU DP",
        lambda n: flushes.gpipe(config_of(n, 1)),
        _columns(lambda n: Fraction(n), lambda n: Fraction(n), NONE, NONE, CONSTANT, ONE, 0),
        {"parameters": (SHARED, ONE)},
    ),
    Row(
        "Single-GPU DP, cyclic",
        lambda n: cyclic.cdp_v2_one_gpu(config_of(n, 1)),
        _columns(_halves, _halves, NONE, NONE, CONSTANT, ONE, 1),
        {"parameters": (f"{SHARED}; {VERSIONS}", ONE)},
    ),
    Row(
        "Multi-GPU DP",
        lambda n: data_parallel.overlapped(config_of(n, n)),
        _columns(ONE, ONE, ONE, NONE, LOG, lambda n: Fraction(n), 0),
        {"messages": _RING},
    ),
    Row(
        "Multi-GPU DP, cyclic",
        lambda n: cyclic.cdp_v2(config_of(n, n)),
        _columns(ONE, ONE, ONE, NONE, CONSTANT, lambda n: Fraction(n), 1),
        {"parameters": (VERSIONS, ONE)},
    ),
    Row(
        "DP with MP",
        replicated_pipeline,
        _columns(_over_n, _over_n, ONE, ONE, LOG, lambda n: Fraction(n * n), 0),
        {"messages": _RING_AND_ONE, "activations_sent": _TWO_WAYS},
    ),
    Row(
        "DP with MP, cyclic",
        _pyramid,
        _columns(
            _over_n,
            _over_n,
            _number(1, 2),
            ONE,
            CONSTANT,
            lambda n: Fraction(n * (n + 1), 2),
            1,
        ),
        {
            "parameters": (VERSIONS, _over_n),
            "weights_sent": (OWN_FIRST, _number(1, 2)),
            "activations_sent": _TWO_WAYS,
        },
        lambda n: own_first(_pyramid(n)),
    ),
    Row(
        "PP",
        lambda n: cyclic.cdp_v2_pp(config_of(n, n)),
        _columns(ONE, _over_n, NONE, ONE, CONSTANT, lambda n: Fraction(n), 1),
        {"parameters": (VERSIONS, _over_n), "activations_sent": _TWO_WAYS},
    ),
    Row(
        "ZeRO-DP",
        lambda n: zero.parameter(config_of(n, n)),
        _columns(ONE, _over_n, ONE, NONE, LOG, lambda n: Fraction(n), 0),
        {
            "parameters": (GATHERED, _over_n),
            "weights_sent": (MORE, _number(3, 2)),
            "messages": _RING,
        },
    ),
    Row(
        "ZeRO-DP, cyclic",
        lambda n: cyclic_zero.cdp_v2(config_of(n, n)),
        _columns(ONE, _over_n, ONE, NONE, CONSTANT, lambda n: Fraction(n), 1),
        {
            "parameters": (f"{GATHERED}; {VERSIONS}", _over_n),
            "weights_sent": (MORE, _number(3, 2)),
        },
    ),
)


def measure(plan: Plan) -> dict[str, Fraction]:
    """Return the columns of a plan, read off its account."""
    assert not check(plan)
    count = len(plan.chain.layers)
    model = 3 * SIZE * count
    kinds = [gpu.by_kind for gpu in memory(plan)]
    sent = _sent(plan)
    return {
        "activations": Fraction(max(kind.get("activation", 0) for kind in kinds), SAVED * count),
        "parameters": Fraction(max(sum(_states(kind)) for kind in kinds), model),
        "parameters_once": Fraction(_once(plan), model),
        "weights_sent": sent["weights"] / (2 * (count - 1) * SIZE),
        "activations_sent": sent["activations"] / (SENT * count),
        "messages": Fraction(max(messages(plan).values())),
        "gpus": Fraction(len({gpu for stage in plan.stages for gpu in stage.gpus})),
        "delay": Fraction(max(versions(plan).forward_staleness.values())),
    }


def _states(kind: Mapping[str, int]) -> list[int]:
    return [count for name, count in kind.items() if name in ("weights", "gradient", "gathered")]


def _once(plan: Plan) -> int:
    """Return the most that lies on a GPU of weights, if of each stage one version counts."""
    always: dict[int, int] = defaultdict(int)
    newest: dict[tuple[int, int], int] = defaultdict(int)
    for one in residencies(plan):
        if one.kind == "weights" and one.start_ns is None:
            always[one.gpu] += one.count
        elif one.kind == "weights":
            newest[one.gpu, one.stage] = max(newest[one.gpu, one.stage], one.count)
    for (gpu, _), count in newest.items():
        always[gpu] += count
    return max(always.values())


def _sent(plan: Plan) -> dict[str, Fraction]:
    """Return the bytes sent for each micro-batch, of weights and gradients, and of activations."""
    timeline = Timeline(plan)
    found = {"weights": 0, "activations": 0}
    for transfer, _, source, count, run in timeline.transfers():
        if source != run.gpu:
            found["activations" if transfer.is_boundary else "weights"] += count
    return {name: Fraction(count, timeline.length) for name, count in found.items()}


def fits(measured: Fraction, expected: Value, count: int) -> bool:
    """Whether a figure is what is expected, or stays below its order of growth."""
    if isinstance(expected, Fraction):
        return measured == expected
    return measured <= (FEW if expected == CONSTANT else ROUND * (count - 1).bit_length())


def find_table(step: Step, largest: int = 8) -> Finding:
    """Measure every row for N from 2 on, as printed and with what may be agreed on."""
    parts, figures, rows = [], {}, []
    for row in ROWS:
        printed, agreed, last = [], [], {}
        for count in range(2, largest + 1):
            step(f"{row.name}, N = {count}")
            last = measure(row.plan(count))
            printed += _wrong(row, last, count, {})
            other = measure(row.other(count)) if row.other else last
            agreed += _wrong(row, other, count, row.agreed)
        part = Part(says=row.name, readings=_readings(row, largest, printed, agreed))
        parts.append(part)
        figures[row.name] = {
            "verdict": part.verdict,
            "wrong_as_printed": sorted({case["column"] for case in printed}),
            f"N = {largest}": {name: str(value) for name, value in last.items()},
            "printed": {name: str(law(largest)) for name, law in row.printed.items()},
        }
        rows.append((row.name, *(_cell(row, last, name, largest) for name in COLUMNS)))
    return Finding(
        claim=CLAIM,
        parts=parts,
        figures={"rows": figures, "units": COLUMNS},
        notes=[f"{name}: {unit}." for name, unit in COLUMNS.items()]
        + [
            f"O(1) counts as at most {FEW} messages of a GPU between two time steps, O(log N) as "
            f"{ROUND} for each of ceil(log2 N) rounds; transfers take no time."
        ],
        tables=[
            Table(
                title=f"Measured for N = {largest}, in brackets what is printed if it differs",
                header=["row", *COLUMNS],
                rows=rows,
            )
        ],
    )


def _wrong(
    row: Row,
    measured: Mapping[str, Fraction],
    count: int,
    agreed: Mapping[str, tuple[str, Law]],
) -> list[dict[str, Any]]:
    found = []
    for column, printed in row.printed.items():
        law = agreed[column][1] if column in agreed else printed
        # What is agreed on about the parameters is what lies there once.
        name = f"{column}_once" if column == "parameters" and column in agreed else column
        if not fits(measured[name], law(count), count):
            found.append(
                {
                    "N": count,
                    "column": column,
                    "measured": str(measured[name]),
                    "printed": str(law(count)),
                }
            )
    return found


def _readings(
    row: Row, largest: int, printed: list[dict[str, Any]], agreed: list[dict[str, Any]]
) -> list[Reading]:
    tried = f"N = 2 to {largest}, {', '.join(COLUMNS).replace('_', ' ')}"
    readings = [Reading(tried=tried, counterexamples=printed)]
    if row.agreed:
        texts = dict.fromkeys(text for text, _ in row.agreed.values())
        readings.append(Reading(tried=tried, counterexamples=agreed, convention="; ".join(texts)))
    return readings


def _cell(row: Row, measured: Mapping[str, Fraction], column: str, count: int) -> str:
    expected = row.printed[column](count)
    value = str(measured[column])
    same = isinstance(expected, Fraction) and fits(measured[column], expected, count)
    return value if same else f"{value} ({expected})"
