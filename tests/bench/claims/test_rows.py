"""Every claim computed on a small range, and what must fail if the figures were others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from typing import Any, Final

import pytest

from schedopt import Chain, Layer, Platform
from schedopt.bench.claims import timeprest
from schedopt.bench.claims.papers import CLAIMS
from schedopt.bench.claims.plans import equal_stages
from schedopt.families import Instance, theorem_4, theorem_6
from schedopt.systems import data_parallel, flushes
from tests.bench.claims.results import compute, verdicts

YES, IF, NO = "yes", "if", "no"
SMALL: Final[dict[str, tuple[dict[str, Any], list[str]]]] = {
    "C1": ({"largest": 4}, [YES] * 4),
    "C2": ({"largest": 4}, [YES] * 2),
    "C3": ({"largest": 3, "largest_serial": 3}, [YES, YES, IF, IF]),
    "C4": ({"largest": 4, "largest_stalled": 2}, [YES, IF]),
    "C5": ({"largest": 3}, [IF, YES]),
    "C6": ({"largest": 3}, [IF, IF, YES, IF, IF, IF, IF, IF, IF]),
    "C7": ({"largest": 3, "steps": 3}, [NO, NO, NO, NO, IF]),
    "T1": ({"largest": 4, "largest_checked": 2}, [YES, IF, YES, YES]),
    "T2": ({"largest": 6}, [NO, IF]),
    "T3": ({"largest": 4}, [YES, IF, IF]),
    "T4": ({"differences": (1, 2), "mini_batches": 4}, [NO, YES, YES]),
    "T6": ({"largest": 4}, [YES, IF, YES, YES, NO, YES, IF]),
    "P1": ({"sizes": (1, 2), "totals": (20, 100), "most_general": 2}, [IF, IF, YES]),
    "P2": ({"drawn": 4, "listed": 0}, [YES, YES, YES, IF]),
    "P3": ({"most_k": 3}, [YES, YES]),
    "P4": ({"most_5": 2, "most_6": 3, "drawn": 3}, [YES, YES, YES, IF, YES]),
    "B1": ({"nodes": (2, 3)}, [IF, YES, YES, YES]),
    "B3": ({"widths": (8,)}, [IF]),
    "B4": ({"sizes": [4, 6], "replicas": [2, 3]}, [IF, IF, IF, YES]),
}
"""Options, and the verdicts on the statements. The other claims have tests of their own."""


@pytest.mark.parametrize("name", SMALL)
def test_verdicts(name: str) -> None:
    options, expected = SMALL[name]
    assert verdicts(name, **options) == expected


def test_every_claim_is_tried_somewhere() -> None:
    assert CLAIMS.keys() - SMALL.keys() == {"C8", "C9", "C10", "T5", "B2"}


def plain(name: str, count: int, times: tuple[int, int] = (1, 1)) -> Any:
    """Return data parallelism that is no cycle."""
    return data_parallel.overlapped(equal_stages(count, 1 if "one GPU" in name else count, times))


def plain_except_v(right: Any) -> Any:
    return lambda name, *rest: (right if name in ("v1", "v2") else plain)(name, *rest)


def even(*size: int) -> Instance:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    chain = Chain(layers=(layer,) * 2, provenance={"unit_ns": 1})
    return Instance(chain=chain, platform=Platform(2, 1))


def roomy(family: Callable[[int], Instance]) -> Callable[[int], Instance]:
    def made(k: int) -> Instance:
        instance = family(k)
        gpus = [replace(gpu, memory_bytes=10**12) for gpu in instance.platform.gpus]
        return replace(instance, platform=instance.platform.with_gpus(gpus))

    return made


def slower(right: Any) -> Any:
    return lambda stages, count, backward: right(stages, count, backward + 3)


def with_rows(**changes: Any) -> Callable[[Any], Any]:
    def change(right: dict[str, Any]) -> dict[str, Any]:
        plan = right["Multi-GPU DP"].plan
        return {**right, "Multi-GPU DP, cyclic": replace(right["Multi-GPU DP, cyclic"], plan=plan)}

    return change


RATIOS: Final = {"most_5": 2, "most_6": 3, "drawn": 3}
GATHERED_FREELY: Final = {"gathering_is_less": True, "less_than_whole": True}
MUTANTS: Final[list[tuple[str, dict[str, Any], str, Callable[[Any], Any], str]]] = [
    # Claim, options, what is replaced, by what of it, and the verdicts then.
    ("C1", {"largest": 3}, "cyclic.cyclic_plan", lambda right: plain, "no no no no"),
    # A micro-batch by itself runs as in a cycle.
    ("C2", {"largest": 3}, "cyclic.cyclic_plan", lambda right: plain, "yes yes"),
    (
        "C2",
        {"largest": 2},
        "cyclic.kept_spans",
        lambda right: lambda plan: [[(1, 0, 9)], *right(plan)[1:]],
        "no no",
    ),
    (
        "C3",
        {"largest": 3, "largest_serial": 2},
        "cyclic.cyclic_plan",
        lambda right: plain,
        "yes no no no",
    ),
    # After a flush everything is new.
    (
        "C4",
        {"largest": 2, "largest_stalled": 1},
        "cyclic.cyclic_plan",
        plain_except_v,
        "no if",
    ),
    (
        "C5",
        {"largest": 3},
        "cyclic_gpus.with_room_for_one",
        lambda right: lambda plan, fewer: right(plan, fewer or 1),
        "no yes",
    ),
    (
        "C6",
        {"largest": 3},
        "cyclic_costs.PARALLELISMS",
        with_rows(),
        "if if yes no if if if if if",
    ),
    (
        "C7",
        {"largest": 3, "steps": 3},
        "cyclic_algorithm.is_fresh",
        lambda right: lambda size, n, j: j > size - n + 1,
        "no no no no no",
    ),
    ("T2", {"largest": 3}, "timeprest.run_timeprest", slower, "no no"),
    ("T3", {"largest": 3}, "timeprest.run_timeprest", slower, "yes no no"),
    (
        "T1",
        {"largest": 2, "largest_checked": 2},
        "timeprest.STATEMENTS",
        lambda right: ((4, 4, 3, 1, 1),),
        "yes if no yes",
    ),
    (
        "T4",
        {"differences": (1, 2), "mini_batches": 4},
        "timeprest_influence.train_by_rule",
        lambda right: (
            lambda network, v, data: __import__(
                "schedopt.bench.claims.timeprest_influence", fromlist=["x"]
            ).train_written_out(network, v, data, newest=False)
        ),
        "yes yes yes",
    ),
    (
        "T6",
        {"largest": 2},
        "timeprest_baselines.SYSTEMS",
        lambda right: right | {"GPipe": flushes.one_f_one_b},
        "no if yes yes no yes yes",
    ),
    (
        "T6",
        {"largest": 2},
        "timeprest_baselines.SYSTEMS",
        lambda right: right | {"PipeDream, vertical sync": right["PipeDream"]},
        "yes no yes yes no yes yes",
    ),
    # Never a plan.
    (
        "P1",
        {"sizes": (1, 2), "totals": (20,), "most_general": 1},
        "complexity.answer",
        lambda right: lambda theorem, numbers: None if theorem == 1 else right(theorem, numbers),
        "no if yes",
    ),
    (
        "P2",
        {"drawn": 1, "listed": 0},
        "complexity_activations.fewest",
        lambda right: lambda times, period: [1 + n for n in right(times, period)],
        "no yes yes no",
    ),
    ("P3", {"most_k": 2}, "complexity.theorem_4", lambda right: roomy(theorem_4), "no no"),
    (
        "P4",
        {"most_5": 2, "most_6": 3, "drawn": 3},
        "complexity.section_6_1",
        lambda _: even,
        "no yes yes if yes",
    ),
    (
        "P4",
        {"most_5": 2, "most_6": 3, "drawn": 3},
        "complexity.lemma_2",
        lambda _: even,
        "yes no yes if yes",
    ),
    (
        "P4",
        {"most_5": 2, "most_6": 3, "drawn": 3},
        "complexity.theorem_5",
        lambda _: even,
        "yes yes yes no yes",
    ),
    (
        "P4",
        {"most_5": 2, "most_6": 3, "drawn": 3},
        "complexity.theorem_6",
        lambda _: roomy(theorem_6),
        "yes yes yes if no",
    ),
    # Sums instead of means.
    (
        "B1",
        {"nodes": (2,)},
        "data_parallel_training._mean",
        lambda right: lambda parts: {n: x * len(parts) for n, x in right(parts).items()},
        "no yes yes no",
    ),
    ("B3", {"widths": (8,)}, "data_parallel_training.PRINTED", lambda right: 12, "no"),
    # A gathering that sends nothing.
    (
        "B4",
        {"sizes": [4], "replicas": [2]},
        "data_parallel.measure_volumes",
        lambda right: (
            lambda *size: right(*size) | {"gathering_is_less": True, "less_than_whole": True}
        ),
        "no if if no",
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "place", "change", "expected"),
    MUTANTS,
    ids=[f"{name}-{place.partition('.')[2]}" for name, _, place, _, _ in MUTANTS],
)
def test_other_figures_give_other_verdicts(
    name: str,
    options: dict[str, Any],
    place: str,
    change: Callable[[Any], Any],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module_name, _, attribute = place.partition(".")
    module = import_module(f"schedopt.bench.claims.{module_name}")
    monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    monkeypatch.setattr(timeprest, "_measure", timeprest._measure.__wrapped__)
    assert verdicts(name, **options) == expected.split()


def test_overlap_holds_without_latency_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from schedopt.bench.claims import data_parallel as bench

    monkeypatch.setattr(bench, "RATIOS", (Fraction(1, 2), Fraction(2)))
    monkeypatch.setattr(bench, "LATENCIES", (0, 2000))
    found = compute("B2", sizes=[2], drawn=20)
    assert found.verdict == "holds-under-convention"
    assert {case["latency_ns"] for case in found.counterexamples} == {2000}
    right: Any = bench.plan_of

    def exchanged(config: Any, buckets: int) -> Any:
        layers = len(config.chain.layers)
        return right(config, {1: layers, layers: 1}.get(buckets, buckets))

    monkeypatch.setattr(bench, "plan_of", exchanged)
    monkeypatch.setattr(bench, "RATIOS", (Fraction(1),))
    monkeypatch.setattr(bench, "LATENCIES", (0, 100))
    assert verdicts("B2", sizes=[2], drawn=5) == ["no", "no", "yes"]
