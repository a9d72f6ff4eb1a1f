"""Boehm 2022: all-reduce in buckets next to the backward, and gathering instead of reducing."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Final, Literal

from schedopt.account import busy_time, load, traffic
from schedopt.bench.claims.plans import ROOM, checked
from schedopt.bench.claims.result import Case, Computed, Step, Table, announced, differing, table_of
from schedopt.chain import Chain, Layer
from schedopt.plan import Kind, Plan
from schedopt.platform import Platform
from schedopt.systems import data_parallel
from schedopt.systems.collectives import hop
from schedopt.systems.config import SystemConfig
from schedopt.systems.gradient_exchange import choose_exchange
from schedopt.systems.list_scheduler import ListScheduler

LAYERS: Final = 8
FORWARD, BACKWARD = 1000, 2000
"""Of each layer, ns; bytes take as many ns on a link."""
SHAPES: Final = {
    "equal": (1,) * LAYERS,
    "late": tuple(range(1, 2 * LAYERS, 2)),
    "early": tuple(range(2 * LAYERS - 1, 0, -2)),
}
"""How much gradient each layer has in proportion to the others: CNNs have most of it late."""
RATIOS: Final = tuple(map(Fraction, ("1/4", "1/2", "1", "2", "4")))
"""Gradient over backward, in time on a link."""
LATENCIES: Final = (0, 20, 100, 500, 2000)
"""Of a transfer, ns."""
BUCKETS: Final = (1, 2, 4, LAYERS)

Duplex = Literal["half", "full"]


@dataclass(frozen=True)
class Exchange:
    """Data parallelism whose gradients are sent in some number of buckets."""

    gpus: int
    duplex: Duplex
    shape: str
    ratio: Fraction
    latency_ns: int

    def config(self, buckets: int) -> SystemConfig:
        """Return the chain and the links; a bucket is filled to an equal part of the gradients."""
        parts = SHAPES[self.shape]
        unit = self.ratio * BACKWARD * LAYERS / sum(parts) / 8
        # Up to 8 GPUs cut each into equal parts.
        gradients = [8 * int(unit * part) for part in parts]
        chain = chain_of([(FORWARD, BACKWARD, gradient) for gradient in gradients])
        config = linked(chain, self.gpus, self.duplex, self.latency_ns)
        return replace(config, bucket_bytes=-(-sum(gradients) // buckets))


def chain_of(rows: Sequence[tuple[int, int, int]]) -> Chain:
    """Return layers by their forwards and backwards, ns, and the bytes of their gradients."""
    layers = [
        Layer(
            forward_ns=forward,
            backward_ns=backward,
            weight_bytes=2 * gradient,
            activation_bytes=0,
            parameter_bytes=gradient,
            gradient_bytes=gradient,
            optimizer_bytes=0,
        )
        for forward, backward, gradient in rows
    ]
    return Chain(layers=tuple(layers))


def linked(chain: Chain, gpus: int, duplex: Duplex, latency_ns: int = 0) -> SystemConfig:
    """Return GPUs with a micro-batch each and links on which a byte takes 1 ns."""
    platform = Platform(gpus, ROOM, bandwidth="1GB/s", latency=latency_ns, duplex=duplex)
    return SystemConfig(chain=chain, platform=platform, microbatches=gpus, bucket_bytes=1)


def find_overlap(step: Step, sizes: Sequence[int] = (2, 4), drawn: int = 300) -> Computed:
    """B2: compare the step of blocking, bucketed and overlapped all-reduce on GPUs."""
    duplexes: tuple[Duplex, ...] = ("half", "full")
    cases = [
        measure_buckets(Exchange(gpus, *rest))
        for gpus in announced(step, "{} GPUs", sizes)
        for rest in product(duplexes, SHAPES, RATIOS, LATENCIES)
    ]
    step("chains drawn by seeds")
    random_cases = list(_drawn(drawn))
    quick = [case for case in cases if not case["latency_ns"]]
    losing = [case for case in cases if _gain(case) > 1]
    extremes = {"most_gained": min(cases, key=_gain), "most_lost": max(cases, key=_gain)}
    tried = (
        f"{LAYERS} layers on {', '.join(map(str, sizes))} GPUs, rings over half and full duplex "
        f"links; gradients equal, early and late, {RATIOS[0]} to {RATIOS[-1]} times the backward; "
        f"latency 0 to {LATENCIES[-1]} ns where a backward takes {BACKWARD}"
    )
    return Computed(
        {
            "slower": losing,
            "slower without latency": [*(c for c in losing if not c["latency_ns"]), *random_cases],
            "more work": [case for case in cases if _falls(case["links_ns"])],
            "never slower": [] if any(_falls(c["steps_ns"]) for c in quick) else [{"slower": 0}],
        },
        {"tried": tried, "drawn": drawn},
        figures={
            "cases": len(cases),
            "overlapped_slower": len(losing),
            **{
                name: {**case, "overlapped_over_blocking": round(float(_gain(case)), 3)}
                for name, case in extremes.items()
            },
            "best": _count_best(cases),
        },
        tables=[_best_table(cases, sizes[-1])],
    )


def measure_buckets(exchange: Exchange) -> Case:
    """Return the steps with 1, 2, 4 and as many buckets as layers, and the work of the links."""
    plans = [plan_of(exchange.config(buckets), buckets) for buckets in BUCKETS]
    return {
        "gpus": exchange.gpus,
        "duplex": exchange.duplex,
        "gradients": exchange.shape,
        "gradient_over_backward": str(exchange.ratio),
        "latency_ns": exchange.latency_ns,
        "buckets": [len(plan.stages) for plan in plans],
        "steps_ns": [plan.pattern.period_total_ns for plan in plans],
        "links_ns": [int(sum(busy_time(plan).values()) * exchange.gpus) for plan in plans],
    }


def plan_of(config: SystemConfig, buckets: int) -> Plan:
    """Return the checked plan of data parallelism with a number of buckets."""
    if buckets == 1:
        return checked(data_parallel.blocking(config))
    if buckets == len(config.chain.layers):
        return checked(data_parallel.overlapped(config))
    return checked(data_parallel.bucketed(config))


def _drawn(count: int) -> Iterator[Case]:
    """Yield the random chains without latency on which overlapping takes longer."""
    for seed in range(count):
        draw = random.Random(seed)
        gpus, layers = draw.choice([2, 3, 4, 6]), draw.randint(2, 6)
        times = [[draw.randint(0, 40) for _ in range(layers)] for _ in "FB"]
        gradients = [12 * draw.randint(1, 12) for _ in range(layers)]
        duplex: Duplex = draw.choice(["half", "full"])
        config = linked(chain_of([*zip(*times, gradients, strict=True)]), gpus, duplex)
        steps = [plan_of(config, count).pattern.period_total_ns for count in (1, layers)]
        if steps[1] > steps[0]:
            yield {"seed": seed, "gpus": gpus, "duplex": duplex, "steps_ns": steps}


def _gain(case: Case) -> Fraction:
    return Fraction(case["steps_ns"][-1], case["steps_ns"][0])


def _falls(values: Sequence[int]) -> bool:
    return any(before > after for before, after in pairwise(values))


def _best(case: Case) -> int:
    """Return the fewest buckets with which the step is shortest."""
    return int(case["buckets"][case["steps_ns"].index(min(case["steps_ns"]))])


def _count_best(cases: Sequence[Case]) -> dict[str, dict[str, int]]:
    """Return for each latency how often each number of buckets is best."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for case in cases:
        counts[str(case["latency_ns"])][str(_best(case))] += 1
    return {latency: dict(sorted(count.items())) for latency, count in counts.items()}


def _best_table(cases: Sequence[Case], gpus: int) -> Table:
    cells = {}
    for case in cases:
        if (case["gpus"], case["duplex"], case["gradients"]) == (gpus, "full", "equal"):
            least = Fraction(min(case["steps_ns"]), case["steps_ns"][0])
            place = case["gradient_over_backward"], case["latency_ns"]
            cells[place] = f"{_best(case)} ({float(least):.2f})"
    return Table(
        f"Best number of buckets and its step over that of one, {gpus} GPUs, {LAYERS} equal "
        "layers, full duplex",
        ["gradient over backward", *(f"latency {latency} ns" for latency in LATENCIES)],
        [[str(r), *(cells[str(r), latency] for latency in LATENCIES)] for r in RATIOS],
    )


NUMBER: Final = 24
"""Bytes of a number: parts up to 1 / 4 of any gradient are whole."""


def find_volumes(
    step: Step, sizes: Sequence[int] = (4, 6, 8, 12), replicas: Sequence[int] = (2, 3, 4)
) -> Computed:
    """B4: account plans of both kinds for n, b and the number of GPUs."""
    cases = [
        measure_volumes(n, b, count)
        for n, count in announced(step, "n = {}, {} GPUs", product(sizes, replicas))
        for b in range(1, n + 1)
    ]
    largest = {
        (n, count): max(
            (c["b"] for c in cases if (c["n"], c["GPUs"]) == (n, count) and c["gathering_is_less"]),
            default=0,
        )
        for n, count in product(sizes, replicas)
    }
    tried = (
        f"n = {', '.join(map(str, sizes))}, b of one GPU = 1 to n, "
        f"{', '.join(map(str, replicas))} GPUs: checked plans of one layer"
    )
    laws = ("b < n / 2", "b of all < n / 2", "b of all < n")
    fits = {law: len(cases) - len(differing(cases, "gathering_is_less", law)) for law in laws}
    last = f"n = {sizes[-1]}"
    return Computed(
        {"all": cases, "two GPUs": [case for case in cases if case["GPUs"] == 2]},
        {"tried": tried},
        figures={"cases": len(cases), "fits": fits},
        tables=[
            Table(
                "The largest b of one GPU for which gathering sends less than a ring",
                ["n", *(f"{count} GPUs" for count in replicas), "n / 2"],
                [(n, *(largest[n, r] for r in replicas), str(Fraction(n, 2))) for n in sizes],
            ),
            table_of(
                f"Numbers that a GPU sends, {last}, and its work over that of a reduced gradient",
                [case for case in cases if case["n"] == sizes[-1] and case["b"] in (1, 2, 4, 6)],
                {
                    "GPUs": "GPUs",
                    "b of one GPU": "b",
                    "ring": "ring",
                    "gathered": "gathered",
                    "work": "work_more",
                },
            ),
        ],
    )


def measure_volumes(n: int, b: int, replicas: int) -> Case:
    """Return what each exchange of an n x n gradient sends, in numbers, and which sends less."""
    config = matrix_config(n, b, replicas)
    reducing, gathering = checked(data_parallel.blocking(config)), checked(gather(config))
    ring, _ = numbers_sent(reducing)
    whole, whole_each = numbers_sent(checked(reduce_whole(config)))
    gathered, gathered_each = numbers_sent(gathering)
    (chosen,) = choose_exchange(config.chain, replicas, replicas)
    return {
        "n": n,
        "b": b,
        "GPUs": replicas,
        "ring": str(ring),
        "whole": str(whole),
        "gathered": str(gathered),
        "each_whole": str(whole_each),
        "each_gathered": str(gathered_each),
        "gathering_is_less": gathered < ring,
        "less_than_whole": gathered < whole,
        "chosen": chosen.tensor == "weight_half",
        "work_more": str(load(gathering)[0].busy_ns / load(reducing)[0].busy_ns),
        "b < n / 2": 2 * b < n,
        "b of all < n / 2": 2 * b * replicas < n,
        "b of all < n": b * replicas < n,
        "n^2": str(n * n),
        "2 n b": str(2 * n * b),
    }


def matrix_config(n: int, b: int, replicas: int) -> SystemConfig:
    """Return a matrix of n x n, and b samples in a micro-batch on each GPU."""
    matrix, rows = n * n * NUMBER, n * b * NUMBER
    layer = Layer(
        forward_ns=100,
        backward_ns=200,
        backward_input_ns=100,
        backward_weight_ns=100,
        weight_bytes=2 * matrix,
        activation_bytes=rows,
        parameter_bytes=matrix,
        gradient_bytes=matrix,
        saved_weight_bytes=2 * rows,
    )
    return linked(Chain(layers=(layer,)), replicas, "full")


def reduce_whole(config: SystemConfig) -> Plan:
    """Return a step in which every GPU sends its whole gradient to every other one."""
    scheduler, replicas = _empty(config)
    for i in range(replicas):
        scheduler.run("F", 0, i)
        scheduler.run("B", 0, i)
    for source, target in product(range(replicas), repeat=2):
        if source != target:
            gradient = hop("weight_gradient", 0, 0, (source, target), mode="reduce")
            scheduler.send(gradient, after=[("B", 0, i) for i in range(replicas)])
    return config.flushed(scheduler)


def gather(config: SystemConfig) -> Plan:
    """Return a step in which the inputs of W go to all, and every GPU runs every W."""
    scheduler, replicas = _empty(config)
    kinds: tuple[Kind, ...] = ("F", "I", "W")
    for i, kind in product(range(replicas), kinds):
        scheduler.run(kind, 0, i)
    for i, target in product(range(replicas), range(1, replicas)):
        half = scheduler.send(hop("weight_half", 0, i, (0, target)), after=[("I", 0, i)])
        scheduler.run("W", 0, i, replica=target, after=[half])
    return config.flushed(scheduler, split=True)


def _empty(config: SystemConfig) -> tuple[ListScheduler, int]:
    """Return the scheduler of one layer on all GPUs, and their number."""
    rule = config.flush_rule(replicated=True)
    stages = data_parallel.on_all_gpus(config, [(0, 0)])
    return config.scheduler(rule, stages), config.microbatches


def numbers_sent(plan: Plan) -> tuple[Fraction, Fraction]:
    """Return the numbers that the busiest GPU sends in a step, and the most to one other GPU."""
    volumes = traffic(plan)
    by_gpu: dict[int, Fraction] = defaultdict(Fraction)
    for (source, _), size in volumes.items():
        by_gpu[source] += size
    steps = Fraction(plan.pattern.k, NUMBER)
    return max(by_gpu.values()) * steps, max(volumes.values()) * steps
