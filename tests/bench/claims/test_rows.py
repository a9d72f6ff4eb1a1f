"""Every claim computed on a small range, and what must fail if the figures were others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib import import_module
from typing import Any, Final

import pytest

from schedopt import Chain, Platform
from schedopt.bench.claims import data_parallel as all_reduce
from schedopt.bench.claims import timeprest
from schedopt.bench.claims.plans import equal_stages, plain_layer
from schedopt.bench.claims.suite import CLAIMS
from schedopt.bench.claims.timeprest_influence import train_written_out
from schedopt.families import Instance, theorem_4, theorem_6
from schedopt.systems import data_parallel, flushes
from tests.bench.claims.results import SMALL, compute, small, verdicts, verdicts_of


@pytest.mark.parametrize("name", SMALL)
def test_verdicts(name: str) -> None:
    assert verdicts_of(small(name)) == SMALL[name][1].split()


def test_every_claim_is_tried_somewhere() -> None:
    assert CLAIMS.keys() - SMALL.keys() == {"C8", "C9", "C10", "T5", "B2"}


def plain(name: str, count: int, times: tuple[int, int] = (1, 1)) -> Any:
    """Return data parallelism that is no cycle."""
    return data_parallel.overlapped(equal_stages(count, 1 if "one GPU" in name else count, times))


def even(*size: int) -> Instance:
    chain = Chain(layers=(plain_layer(1, 1),) * 2, provenance={"unit_ns": 1})
    return Instance(chain=chain, platform=Platform(2, 1))


def roomy(family: Callable[[int], Instance]) -> Callable[[int], Instance]:
    def made(k: int) -> Instance:
        instance = family(k)
        gpus = [replace(gpu, memory_bytes=10**12) for gpu in instance.platform.gpus]
        return replace(instance, platform=instance.platform.with_gpus(gpus))

    return made


def other_row(right: dict[str, Any]) -> dict[str, Any]:
    row = right["Multi-GPU DP, cyclic"]
    return {**right, "Multi-GPU DP, cyclic": replace(row, plan=right["Multi-GPU DP"].plan)}


CHANGES: Final[dict[str, Callable[[Any], Any]]] = {
    "no cycle": lambda right: plain,
    "no cycle but in v1, v2": lambda right: (
        lambda name, *rest: (right if name in ("v1", "v2") else plain)(name, *rest)
    ),
    "kept longer": lambda right: lambda plan: [[(1, 0, 9)], *right(plan)[1:]],
    "a GPU less": lambda right: lambda plan, fewer: right(plan, fewer or 1),
    "another plan in a row": other_row,
    "a later rule": lambda right: lambda size, n, j: j > size - n + 1,
    "longer backwards": lambda right: lambda stages, n, length: right(stages, n, length + 3),
    "other statements": lambda right: ((4, 4, 3, 1, 1),),
    "the old base": lambda right: partial(train_written_out, newest=False),
    "another GPipe": lambda right: right | {"GPipe": flushes.one_f_one_b},
    "stashing only": lambda right: right | {"PipeDream, vertical sync": right["PipeDream"]},
    "never a plan": lambda right: lambda number, drawn: None if number == 1 else right(2, drawn),
    "roomy, Theorem 4": lambda right: roomy(theorem_4),
    "roomy, Theorem 6": lambda right: roomy(theorem_6),
    "even": lambda right: even,
    "sums": lambda right: lambda parts: {n: x * len(parts) for n, x in right(parts).items()},
    "12 bytes": lambda right: 12,
    "nothing gathered": lambda right: (
        lambda *size: right(*size) | {"gathering_is_less": True, "less_than_whole": True}
    ),
}
"""What stands in place of what is right."""
TINY: Final[dict[str, dict[str, Any]]] = {
    "C3": {"largest": 3, "largest_serial": 2},
    "C4": {"largest": 2, "largest_stalled": 1},
    "T1": {"largest": 2, "largest_checked": 2},
    "T2": {"largest": 3},
    "T3": {"largest": 3},
    "T6": {"largest": 2},
    "P1": {"sizes": (1, 2), "totals": (20,), "most_general": 1},
    "P3": {"most_k": 2},
    "B1": {"nodes": (2,)},
    "B4": {"sizes": [4], "replicas": [2]},
}


@pytest.mark.parametrize(
    ("name", "place", "change", "expected"),
    [
        ("C1", "cyclic.cyclic_plan", "no cycle", "no no no no"),
        # A micro-batch by itself runs as in a cycle.
        ("C2", "cyclic.cyclic_plan", "no cycle", "yes yes"),
        ("C2", "cyclic.kept_spans", "kept longer", "no no"),
        ("C3", "cyclic.cyclic_plan", "no cycle", "yes no no no"),
        # After a flush everything is new.
        ("C4", "cyclic.cyclic_plan", "no cycle but in v1, v2", "no if"),
        ("C5", "cyclic_gpus.with_room_for_one", "a GPU less", "no yes"),
        ("C6", "cyclic_costs.PARALLELISMS", "another plan in a row", "if if yes no if if if if if"),
        ("C7", "cyclic_algorithm.is_fresh", "a later rule", "no no no no no"),
        ("T1", "timeprest.STATEMENTS", "other statements", "yes if no yes"),
        ("T2", "timeprest.run_timeprest", "longer backwards", "no no"),
        ("T3", "timeprest.run_timeprest", "longer backwards", "yes no no"),
        ("T4", "timeprest_influence.train_by_rule", "the old base", "yes yes yes"),
        ("T6", "timeprest_baselines.SYSTEMS", "another GPipe", "no if yes yes no yes yes"),
        ("T6", "timeprest_baselines.SYSTEMS", "stashing only", "yes no yes yes no yes yes"),
        ("P1", "complexity.answer", "never a plan", "no if yes"),
        ("P3", "complexity.theorem_4", "roomy, Theorem 4", "no no"),
        ("P4", "complexity.section_6_1", "even", "no yes yes if yes"),
        ("P4", "complexity.lemma_2", "even", "yes no yes if yes"),
        ("P4", "complexity.theorem_5", "even", "yes yes yes no yes"),
        ("P4", "complexity.theorem_6", "roomy, Theorem 6", "yes yes yes if no"),
        ("B1", "data_parallel_training._mean", "sums", "no yes yes no"),
        ("B3", "data_parallel_training.PRINTED", "12 bytes", "no"),
        ("B4", "data_parallel.measure_volumes", "nothing gathered", "no if if no"),
    ],
)
def test_other_figures_give_other_verdicts(
    name: str, place: str, change: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_name, _, attribute = place.partition(".")
    module = import_module(f"schedopt.bench.claims.{module_name}")
    monkeypatch.setattr(module, attribute, CHANGES[change](getattr(module, attribute)))
    monkeypatch.setattr(timeprest, "_measure", timeprest._measure.__wrapped__)
    assert verdicts(name, **TINY.get(name, SMALL[name][0])) == expected.split()


def test_overlap_holds_without_latency_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_reduce, "RATIOS", (Fraction(1, 2), Fraction(2)))
    monkeypatch.setattr(all_reduce, "LATENCIES", (0, 2000))
    found = compute("B2", sizes=[2], drawn=20)
    assert found.verdict == "holds-under-convention"
    assert {case["latency_ns"] for case in found.counterexamples} == {2000}
    right = all_reduce.plan_of

    def exchanged(config: Any, buckets: int) -> Any:
        layers = len(config.chain.layers)
        return right(config, {1: layers, layers: 1}.get(buckets, buckets))

    monkeypatch.setattr(all_reduce, "plan_of", exchanged)
    monkeypatch.setattr(all_reduce, "RATIOS", (Fraction(1),))
    monkeypatch.setattr(all_reduce, "LATENCIES", (0, 100))
    assert verdicts("B2", sizes=[2], drawn=5) == ["no", "no", "yes"]
