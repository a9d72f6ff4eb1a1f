"""What is sent for a matrix, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt.bench.claims import exchange_volumes
from schedopt.bench.claims.exchange_volumes import OF_TWO, find_volumes, measure
from tests.bench.claims.findings import nothing


@pytest.mark.parametrize(
    ("n", "b", "gpus", "ring", "gathered"),
    [
        # 2 (R - 1) / R n^2 and (R - 1) 2 n b.
        (4, 1, 2, "16", "8"),
        (4, 2, 2, "16", "16"),
        (6, 2, 3, "48", "48"),
        (6, 1, 3, "48", "24"),
        (4, 1, 4, "24", "24"),
    ],
)
def test_numbers_that_a_gpu_sends(n: int, b: int, gpus: int, ring: str, gathered: str) -> None:
    found = measure(n, b, gpus)
    assert (found["ring"], found["gathered"]) == (ring, gathered)
    assert found["gathering_is_less"] == found["b of all < n"] == (b * gpus < n)
    assert found["whole"] == str((gpus - 1) * n * n)
    # F, I and all W instead of F, B: 100 + 100 + 100 R over 300.
    assert found["work_more"] == {2: "4/3", 3: "5/3", 4: "2"}[gpus]


def test_it_holds_for_two_gpus() -> None:
    found = find_volumes(nothing, [4, 6], [2, 3])
    assert found.verdict == "holds-under-convention"
    assert OF_TWO in found.conventions
    fits: Any = found.figures["fits"]
    assert fits["b of all < n"] == found.figures["cases"] == 20


def test_with_a_gathering_that_sends_nothing_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = exchange_volumes.measure

    def wrong(n: int, b: int, replicas: int) -> dict[str, Any]:
        return right(n, b, replicas) | {"gathering_is_less": True, "less_than_whole": True}

    monkeypatch.setattr(exchange_volumes, "measure", wrong)
    found = find_volumes(nothing, [4], [2])
    assert [part.verdict == "fails" for part in found.parts] == [True, False, False, True]
