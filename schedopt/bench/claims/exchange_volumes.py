"""Reducing the gradient of a matrix over GPUs, or gathering what it is made of."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import product
from typing import Any, Final

from schedopt.account import load, traffic
from schedopt.bench.claims.claim import (
    DATA_PARALLEL,
    Claim,
    Finding,
    Part,
    Reading,
    Step,
    Table,
    against,
)
from schedopt.chain import Chain, Layer
from schedopt.checking import check
from schedopt.plan import Plan, Transfer
from schedopt.platform import Platform
from schedopt.stage import Stage
from schedopt.systems import data_parallel
from schedopt.systems.config import SystemConfig
from schedopt.systems.gradient_exchange import choose_exchange
from schedopt.systems.list_scheduler import ListScheduler

CLAIM: Final = Claim(
    id="B4",
    says="Instead of all-reducing the gradient of an n x n matrix, gathering errors and "
    "activations of b samples sends 2 n b numbers instead of n^2, so less iff b < n / 2.",
    sources=(f"{DATA_PARALLEL}, A Bandwidth Optimization for Data-Parallel Training",),
)
NUMBER: Final = 24
"""Bytes of a number: parts up to 1 / 4 of any gradient are whole."""
ROOM: Final = 10**9
RING: Final = "a ring all-reduce"
OF_ONE: Final = f"{RING}, b of one GPU"
OF_ALL: Final = f"{RING}, b of all GPUs"
OF_TWO: Final = f"{RING} of two GPUs, b of one of them"
WHOLE: Final = "every GPU sends its whole gradient to every other, b of one GPU"
EACH: Final = "counted from one GPU to one other, where each sends all it has to each; b of one GPU"


def config_of(n: int, b: int, replicas: int) -> SystemConfig:
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
    return SystemConfig(
        chain=Chain(layers=(layer,)),
        platform=Platform(replicas, ROOM, bandwidth="100GB/s", duplex="full"),
        microbatches=replicas,
    )


def reduce_whole(config: SystemConfig) -> Plan:
    """Return a step in which every GPU sends its whole gradient to every other one."""
    scheduler = _empty(config)
    replicas = config.microbatches
    for i in range(replicas):
        scheduler.run("F", 0, i)
        scheduler.run("B", 0, i)
    for source, target in product(range(replicas), repeat=2):
        if source != target:
            sent = _transfer("weight_gradient", 0, source, target)
            scheduler.send(sent, after=[("B", 0, i) for i in range(replicas)])
    return config.flushed(scheduler)


def gather(config: SystemConfig) -> Plan:
    """Return a step in which what W needs goes to all, and every GPU runs every W."""
    scheduler = _empty(config)
    replicas = config.microbatches
    for i in range(replicas):
        for kind in ("F", "I", "W"):
            scheduler.run(kind, 0, i)
    for i, target in product(range(replicas), range(1, replicas)):
        item = _transfer("weight_half", i, 0, target)
        scheduler.send(item, after=[("I", 0, i)])
        scheduler.run("W", 0, i, replica=target, after=[item])
    return config.flushed(scheduler, split=True)


def _empty(config: SystemConfig) -> ListScheduler:
    stages = [Stage(layers=(0, 0), gpus=tuple(range(config.microbatches)))]
    return config.scheduler(config.flush_rule(replicated=True), stages)


def _transfer(tensor: Any, i: int, source: int, target: int) -> Transfer:
    mode: Any = "reduce" if tensor == "weight_gradient" else "copy"
    return Transfer(
        tensor=tensor, stage=0, shift=i, start_ns=0, source=source, target=target, mode=mode
    )


def sent(plan: Plan) -> tuple[Fraction, Fraction]:
    """Return the numbers that the busiest GPU sends in a step, and the most to one other GPU."""
    assert not check(plan)
    count = plan.pattern.k
    found = traffic(plan)
    by_gpu = (
        sum((size for (gpu, _), size in found.items() if gpu == source), Fraction(0))
        for source in range(len(plan.platform.gpus))
    )
    return max(by_gpu) * count / NUMBER, max(found.values()) * count / NUMBER


def measure(n: int, b: int, replicas: int) -> dict[str, Any]:
    """Return what each way sends, in numbers, and which one sends less."""
    config = config_of(n, b, replicas)
    reducing = data_parallel.blocking(config)
    ring, _ = sent(reducing)
    whole, whole_each = sent(reduce_whole(config))
    gathering = gather(config)
    gathered, gathered_each = sent(gathering)
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


def find_volumes(
    step: Step, sizes: Iterable[int] = (4, 6, 8, 12), replicas: Iterable[int] = (2, 3, 4)
) -> Finding:
    """Account plans of both kinds for n, b and the number of GPUs."""
    chosen, counts = list(sizes), list(replicas)
    cases = []
    for n, count in product(chosen, counts):
        step(f"n = {n}, {count} GPUs")
        cases += [measure(n, b, count) for b in range(1, n + 1)]
    two = [case for case in cases if case["GPUs"] == 2]
    tried = (
        f"n = {', '.join(map(str, chosen))}, b of one GPU = 1 to n, "
        f"{', '.join(map(str, counts))} GPUs: checked plans of one layer"
    )

    def reading(convention: str, found: list[dict[str, Any]], one: str, other: str) -> Reading:
        wrong = against(found, "n", "b", "GPUs", one, other)
        return Reading(convention=convention, tried=tried, counterexamples=wrong)

    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="gathering sends less iff b < n / 2",
                readings=[
                    reading(OF_ONE, cases, "gathering_is_less", "b < n / 2"),
                    reading(OF_ALL, cases, "gathering_is_less", "b of all < n / 2"),
                    reading(OF_TWO, two, "gathering_is_less", "b < n / 2"),
                    reading(WHOLE, cases, "less_than_whole", "b < n / 2"),
                ],
            ),
            Part(
                says="the all-reduce sends n^2 numbers",
                readings=[
                    reading(RING, cases, "ring", "n^2"),
                    reading(EACH, cases, "each_whole", "n^2"),
                ],
            ),
            Part(
                says="gathering sends 2 n b numbers",
                readings=[
                    reading("b of one GPU", cases, "gathered", "2 n b"),
                    reading(EACH, cases, "each_gathered", "2 n b"),
                ],
            ),
            Part(
                says="the choice of this program for a layer is what sends less",
                readings=[reading("", cases, "chosen", "gathering_is_less")],
            ),
        ],
        figures={
            "cases": len(cases),
            "fits": {
                law: len(cases) - len(against(cases, "gathering_is_less", law))
                for law in ("b < n / 2", "b of all < n / 2", "b of all < n")
            },
        },
        notes=[
            "A ring sends 2 (R - 1) / R of n^2 numbers from each GPU, gathering (R - 1) 2 n b for "
            "b of one GPU: it sends less iff the samples of all GPUs are fewer than n. The price: "
            "every GPU runs the weight half of every micro-batch.",
        ],
        tables=[
            Table(
                title="The largest b of one GPU for which gathering sends less than a ring",
                header=["n", *(f"{count} GPUs" for count in counts), "n / 2"],
                rows=[(n, *(_largest(cases, n, r) for r in counts), str(Fraction(n, 2)))
                      for n in chosen],
            ),
            Table(
                title=f"Numbers that a GPU sends, n = {chosen[-1]}, and its work over that of a "
                f"reduced gradient",
                header=["GPUs", "b of one GPU", "ring", "gathered", "work"],
                rows=[
                    (case["GPUs"], case["b"], case["ring"], case["gathered"], case["work_more"])
                    for case in cases
                    if case["n"] == chosen[-1] and case["b"] in (1, 2, 4, 6)
                ],
            ),
        ],
    )  # fmt: skip


def _largest(cases: list[dict[str, Any]], n: int, replicas: int) -> int:
    found = (
        case["b"]
        for case in cases
        if (case["n"], case["GPUs"]) == (n, replicas) and case["gathering_is_less"]
    )
    return max(found, default=0)
