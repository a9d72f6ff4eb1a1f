"""All-reduce behind the backward, layer by layer beside it, and in buckets."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, Final, Literal

from schedopt.account import busy_time
from schedopt.bench.claims.claim import DATA_PARALLEL, Claim, Finding, Part, Reading, Step, Table
from schedopt.chain import Chain, Layer
from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.systems import data_parallel
from schedopt.systems.config import SystemConfig

CLAIM: Final = Claim(
    id="B2",
    says="An all-reduce that begins with each layer's gradient hides behind the backward of the "
    "layers before it; larger buckets communicate less and may hide less.",
    sources=(f"{DATA_PARALLEL}, Integrating Data Parallelism into the Backwards Pass",),
)
NO_LATENCY: Final = "links without latency, and gradients that the ring cuts into equal parts"
LAYERS: Final = 8
FORWARD, BACKWARD = 1000, 2000
"""Of each layer, ns; bytes take as many ns on a link."""
SHAPES: Final = {
    "equal": (1,) * LAYERS,
    "late": tuple(range(1, 2 * LAYERS, 2)),
    "early": tuple(range(2 * LAYERS - 1, 0, -2)),
}
"""How much gradient each layer has beside the others: CNNs have most of it late."""
RATIOS: Final = tuple(map(Fraction, ("1/4", "1/2", "1", "2", "4")))
"""Gradient over backward, in time on a link."""
LATENCIES: Final = (0, 20, 100, 500, 2000)
"""Of a transfer, ns."""
BUCKETS: Final = (1, 2, 4, LAYERS)
ROOM: Final = 10**12

Duplex = Literal["half", "full"]


@dataclass(frozen=True)
class Case:
    """Data parallelism of which all gradients are sent in some number of buckets."""

    gpus: int
    duplex: Duplex
    shape: str
    ratio: Fraction
    latency_ns: int

    def config(self, buckets: int) -> SystemConfig:
        """Return the chain and the links; a bucket is filled to an equal part of the gradients."""
        chain = chain_of([FORWARD] * LAYERS, [BACKWARD] * LAYERS, self.gradients())
        return _config(chain, self, -(-sum(self.gradients()) // buckets))

    def gradients(self) -> list[int]:
        """Return bytes by layer; each is cut into equal parts by up to 8 GPUs."""
        parts = SHAPES[self.shape]
        unit = self.ratio * BACKWARD * LAYERS / sum(parts) / 8
        return [8 * int(unit * part) for part in parts]

    def to_json(self) -> dict[str, Any]:
        """Return what tells it from others."""
        return {
            "gpus": self.gpus,
            "duplex": self.duplex,
            "gradients": self.shape,
            "gradient_over_backward": str(self.ratio),
            "latency_ns": self.latency_ns,
        }


def chain_of(forward: Sequence[int], backward: Sequence[int], gradients: Sequence[int]) -> Chain:
    """Return layers by their times, ns, and the bytes of their gradients."""
    return Chain(
        layers=tuple(
            Layer(
                forward_ns=f,
                backward_ns=b,
                weight_bytes=2 * g,
                activation_bytes=0,
                parameter_bytes=g,
                gradient_bytes=g,
                optimizer_bytes=0,
            )
            for f, b, g in zip(forward, backward, gradients, strict=True)
        )
    )


def _config(chain: Chain, case: Case, bucket_bytes: int) -> SystemConfig:
    platform = Platform(
        case.gpus, ROOM, bandwidth="1GB/s", latency=case.latency_ns, duplex=case.duplex
    )
    return SystemConfig(
        chain=chain, platform=platform, microbatches=case.gpus, bucket_bytes=bucket_bytes
    )


def find_overlap(step: Step, sizes: Sequence[int] = (2, 4), drawn: int = 300) -> Finding:
    """Compare the step of blocking, bucketed and overlapped all-reduce on so many GPUs."""
    cases = []
    for gpus in sizes:
        step(f"{gpus} GPUs")
        for duplex, shape, ratio, latency in product(("half", "full"), SHAPES, RATIOS, LATENCIES):
            cases.append(measure(Case(gpus, duplex, shape, ratio, latency)))  # type: ignore[arg-type]
    step("chains drawn by seeds")
    random_cases = list(_drawn(drawn))
    tried = (
        f"{LAYERS} layers on {', '.join(map(str, sizes))} GPUs, rings over half and full duplex "
        f"links; gradients equal, early and late, {RATIOS[0]} to {RATIOS[-1]} times the backward; "
        f"latency 0 to {LATENCIES[-1]} ns where a backward takes {BACKWARD}"
    )
    quick = [case for case in cases if not case["latency_ns"]]
    losing = [case for case in cases if case["steps_ns"][-1] > case["steps_ns"][0]]
    dear = [case for case in cases if any(more < less for less, more in pairwise(case["links_ns"]))]
    hidden = [case for case in quick if any(a > b for a, b in pairwise(case["steps_ns"]))]
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="sending layer by layer takes no longer than sending behind the backward",
                readings=[
                    Reading(tried=tried, counterexamples=losing),
                    Reading(
                        convention=NO_LATENCY,
                        tried=f"latency 0 of these, and {drawn} chains of 2 to 6 layers by seeds",
                        counterexamples=[
                            *(case for case in losing if not case["latency_ns"]),
                            *random_cases,
                        ],
                    ),
                ],
            ),
            Part(
                says="in larger buckets the links work no longer",
                readings=[Reading(tried=tried, counterexamples=dear)],
            ),
            Part(
                says="larger buckets can hide less",
                readings=[Reading(tried=tried, counterexamples=[] if hidden else [{"slower": 0}])],
            ),
        ],
        figures={
            "cases": len(cases),
            "overlapped_slower": len(losing),
            "most_gained": _ratio(min(cases, key=_gain)),
            "most_lost": _ratio(max(cases, key=_gain)),
            "best": _count_best(cases),
        },
        notes=[
            "A step is a forward and a backward of all layers on every GPU and the all-reduce of "
            "all gradients; each ring of R GPUs sends 2 (R - 1) R messages for each bucket.",
            "Where several are as short, the fewest buckets count as the best.",
        ],
        tables=[_table([case for case in cases if _is_shown(case, sizes[-1])])],
    )


def measure(case: Case) -> dict[str, Any]:
    """Return the steps with 1, 2, 4 and as many buckets as layers, and the work of the links."""
    plans = [plan_of(case.config(buckets), buckets) for buckets in BUCKETS]
    return {
        **case.to_json(),
        "buckets": [len(plan.stages) for plan in plans],
        "steps_ns": [plan.pattern.period_total_ns for plan in plans],
        "links_ns": [int(sum(busy_time(plan).values()) * case.gpus) for plan in plans],
    }


def plan_of(config: SystemConfig, buckets: int) -> Plan:
    """Return a plan that the check accepts."""
    if buckets == 1:
        plan = data_parallel.blocking(config)
    elif buckets == len(config.chain.layers):
        plan = data_parallel.overlapped(config)
    else:
        plan = data_parallel.bucketed(config)
    assert not check(plan)
    return plan


def _drawn(count: int) -> Iterator[dict[str, Any]]:
    """Yield the random chains without latency on which overlapping takes longer."""
    for seed in range(count):
        draw = random.Random(seed)
        gpus, layers = draw.choice([2, 3, 4, 6]), draw.randint(2, 6)
        forward, backward = ([draw.randint(0, 40) for _ in range(layers)] for _ in "FB")
        gradients = [12 * draw.randint(1, 12) for _ in range(layers)]
        duplex: Duplex = draw.choice(["half", "full"])
        case = Case(gpus, duplex, "drawn", Fraction(1), 0)
        config = _config(chain_of(forward, backward, gradients), case, 1)
        one, all_ = (plan_of(config, count).pattern.period_total_ns for count in (1, layers))
        if all_ > one:
            yield {"seed": seed, "gpus": gpus, "duplex": duplex, "steps_ns": [one, all_]}


def _gain(case: dict[str, Any]) -> Fraction:
    return Fraction(case["steps_ns"][-1], case["steps_ns"][0])


def _ratio(case: dict[str, Any]) -> dict[str, Any]:
    return {**case, "overlapped_over_blocking": round(float(_gain(case)), 3)}


def _best(case: dict[str, Any]) -> int:
    """Return the fewest buckets with which the step is shortest."""
    return int(case["buckets"][case["steps_ns"].index(min(case["steps_ns"]))])


def _count_best(cases: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return for each latency how often each number of buckets is best."""
    found: dict[str, dict[str, int]] = {}
    for case in cases:
        row = found.setdefault(str(case["latency_ns"]), {})
        name = str(_best(case))
        row[name] = row.get(name, 0) + 1
    return {latency: dict(sorted(row.items())) for latency, row in found.items()}


def _is_shown(case: dict[str, Any], gpus: int) -> bool:
    return bool(case["gpus"] == gpus and case["duplex"] == "full" and case["gradients"] == "equal")


def _table(cases: list[dict[str, Any]]) -> Table:
    def cell(ratio: Fraction, latency: int) -> str:
        (case,) = (
            case
            for case in cases
            if (case["gradient_over_backward"], case["latency_ns"]) == (str(ratio), latency)
        )
        least = Fraction(min(case["steps_ns"]), case["steps_ns"][0])
        return f"{_best(case)} ({float(least):.2f})"

    return Table(
        title=f"Best number of buckets and its step over that of one, {cases[0]['gpus']} GPUs, "
        f"{LAYERS} equal layers, full duplex",
        header=["gradient over backward", *(f"latency {latency} ns" for latency in LATENCIES)],
        rows=[(str(ratio), *(cell(ratio, latency) for latency in LATENCIES)) for ratio in RATIOS],
    )
