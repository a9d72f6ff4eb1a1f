from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import pytest

from schedopt import Chain, Layer, Platform, Scope, Stage
from schedopt.families import Fact, Instance
from schedopt.families.instance import platform_to_json, stages_on
from tests.refusals import assert_refused

ANY_K = Scope(max_k=None)


def fact(**changes: Any) -> Fact:
    plain: dict[str, Any] = {"scope": ANY_K, "period": Fraction(7, 2), "source": "here"}
    return Fact(**plain | changes)


def chain() -> Chain:
    return Chain(
        layers=(Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0),) * 3
    )


def test_a_fact_has_a_status_and_a_document() -> None:
    assert fact(k=2).status == "optimal"
    assert fact(k=2).to_json() == {
        "status": "optimal",
        "period_exact": [7, 2],
        "k": 2,
        "scope": {
            "allocation": "contiguous",
            "max_k": None,
            "grain": "stage",
            "memory": "sum",
            "split_backward": False,
            "recompute": False,
            "microbatches": None,
            "gpu_order": "given",
            "period_ns": None,
            "engine": None,
            "replicas": 1,
            "shard": "none",
            "tensor": 1,
            "uneven": False,
            "hybrid": False,
        },
        "source": "here",
    }
    nothing = fact(period=None, k=None)
    assert nothing.status == "infeasible"
    assert nothing.to_json()["period_exact"] is nothing.to_json()["k"] is None


def test_lists_become_tuples() -> None:
    stage = Stage(layers=(0, 2), gpus=(0,))
    assert fact(stages=[stage]).stages == (stage,)
    assert Instance(
        chain=chain(),
        platform=Platform(1, 0),
        known=[fact()],  # type: ignore[arg-type]
    ).known == (fact(),)


def test_nothing_can_be_changed_afterwards() -> None:
    instance = Instance(chain=chain(), platform=Platform(1, 0))
    with pytest.raises(FrozenInstanceError):
        instance.known = (fact(),)  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        fact().k = 2  # type: ignore[misc]


def test_the_gpu_of_each_layer_makes_stages() -> None:
    assert stages_on([]) == ()
    assert stages_on([2]) == (Stage(layers=(0, 0), gpus=(2,)),)
    assert stages_on(gpu for gpu in (1, 1, 0, 0, 0, 1)) == (
        Stage(layers=(0, 1), gpus=(1,)),
        Stage(layers=(2, 4), gpus=(0,)),
        Stage(layers=(5, 5), gpus=(1,)),
    )


def test_a_platform_in_three_numbers() -> None:
    assert platform_to_json(Platform(3, "2G", bandwidth="12GB/s")) == {
        "gpus": 3,
        "memory_bytes": 2 * 10**9,
        "bandwidth_bytes_per_s": 12 * 10**9,
    }
    assert platform_to_json(Platform(1, 0))["bandwidth_bytes_per_s"] is None


BAD: dict[str, tuple[Callable[[], object], str, str]] = {
    "no scope": (lambda: fact(scope=None), "scope", "None is not a Scope"),
    "scope in words": (lambda: fact(scope="general"), "scope", "'general' is not a Scope"),
    "period int": (lambda: fact(period=3), "period", "3 is no period"),
    "period float": (lambda: fact(period=3.5), "period", "3.5 is no period"),
    "period 0": (lambda: fact(period=Fraction(0)), "period", "is no period"),
    "period negative": (lambda: fact(period=Fraction(-1)), "period", "is no period"),
    "k = 0": (lambda: fact(k=0), "k", "0 is out of range"),
    "k True": (lambda: fact(k=True), "k", "True is not a whole number"),
    "k too large": (lambda: fact(k=2**20 + 1), "k", "1048577 is out of range"),
    "period without k": (lambda: fact(k=None), "k", "a period goes with the k"),
    "k without period": (lambda: fact(period=None), "k", "a period goes with the k"),
    "one stage": (lambda: fact(stages=Stage(layers=(0, 0), gpus=(0,))), "stages", "not a seq"),
    "known: one fact": (
        lambda: Instance(chain=chain(), platform=Platform(1, 0), known=fact()),  # type: ignore[arg-type]
        "known", "is not a sequence",
    ),
    "known: no fact": (
        lambda: Instance(chain=chain(), platform=Platform(1, 0), known=(fact(), 3)),  # type: ignore[arg-type]
        "known[1]", "3 is not a Fact",
    ),
    "no chain": (
        lambda: Instance(chain=None, platform=Platform(1, 0)),  # type: ignore[arg-type]
        "chain", "None is not a Chain",
    ),
    "no platform": (
        lambda: Instance(chain=chain(), platform=4),  # type: ignore[arg-type]
        "platform", "4 is not a Platform",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_fields_are_named(case: str) -> None:
    make, field, rule = BAD[case]
    assert_refused(make, field, rule)
