"""Theorem 4 of Beaumont et al. 2021."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schedopt.bench.claims import periods
from schedopt.bench.claims.periods import find_periods_of_theorem_4
from schedopt.families import theorem_4
from tests.bench.claims.findings import nothing


def test_it_holds() -> None:
    found = find_periods_of_theorem_4(nothing, 3)
    assert found.verdict == "holds"
    assert found.figures == {"proofs": 6, "least_period": {"1": "4", "2": "3", "3": "8/3"}}
    assert found.tables[0].rows[2] == (3, "4", "3", "8/3")


def test_with_more_memory_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def roomy(k: int) -> Any:
        instance = theorem_4(k)
        gpus = [replace(gpu, memory_bytes=10**9) for gpu in instance.platform.gpus]
        return replace(instance, platform=instance.platform.with_gpus(gpus))

    monkeypatch.setattr(periods, "theorem_4", roomy)
    found = find_periods_of_theorem_4(nothing, 2)
    assert found.verdict == "fails"
    # Nothing then keeps a GPU from working all the time.
    assert {"k": 2, "j": 1, "period": "2", "printed": "4", "part": found.parts[0].says} in (
        found.counterexamples
    )
    assert found.parts[1].verdict == "fails"
