"""Versions and memory of TiMePReSt, by hand; VGG-16 against what is known of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from schedopt.bench.claims import weight_versions
from schedopt.bench.claims.vgg import vgg16, vgg16_chain
from schedopt.bench.claims.weight_versions import find_versions
from tests.bench.claims.findings import nothing


def test_vgg_has_its_parameters() -> None:
    with torch.device("meta"):
        model = vgg16(1000)
    # Table 2 of Simonyan and Zisserman 2015: 138 million.
    assert sum(parameter.numel() for parameter in model.parameters()) == 138_357_544
    weighted = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(weighted) == len(model) == 16


def test_the_chain_of_vgg() -> None:
    chain = vgg16_chain(4, 32, 100)
    assert len(chain.layers) == 16
    first, last = chain.layers[0], chain.layers[-1]
    # 3 x 3 x 3 weights and a bias for each of 64 channels, single precision.
    assert first.parameter_bytes == 4 * 64 * (27 + 1)
    assert first.activation_bytes == 4 * 4 * 64 * 32 * 32
    assert last.parameter_bytes == 4 * 100 * (4096 + 1)


def test_two_stages_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stage 2 updates mini-batch i before the forwards of i + 1 come, stage 1 two later. With
    # vertical sync stage 2 still reads what stage 1 had, and keeps two.
    case = weight_versions._case(2, 2, "live")
    assert case["held"] == [1, 1]
    assert (case["forward"], case["backward"], case["backward_all"]) == (1, 0, 0)
    assert weight_versions._case(2, 2, "entry")["held"] == [1, 2]
    assert case["pipedream"] == [2, 1]


def splits(data: str, images: int, count: int, reads: str) -> list[dict[str, Any]]:
    """Return a split as it is printed."""
    return [
        {"data": data, "images": images, "N": count, "cut": 7, "reads": reads,
         "bytes": [50, 60], "pipedream_bytes": [100, 100], "less": [50.0, 40.0]}
    ]  # fmt: skip


def test_verdicts_follow_from_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_versions, "_splits", splits)
    found = find_versions(nothing, 3, [(64, 2)])
    assert [part.verdict for part in found.parts] == [
        "holds-under-convention", "fails", "holds-under-convention", "holds-under-convention",
        "holds-under-convention",
    ]  # fmt: skip

    def less(*arguments: Any) -> list[dict[str, Any]]:
        return [splits(*arguments)[0] | {"less": [50.0, 30.0], "bytes": [50, 100]}]

    monkeypatch.setattr(weight_versions, "_splits", less)
    found = find_versions(nothing, 2, [(64, 2)])
    assert [part.verdict for part in found.parts[3:]] == ["fails", "fails"]


def test_a_split_of_vgg() -> None:
    found = weight_versions._splits("CIFAR-100", 8, 2, "live")
    assert [case["cut"] for case in found] == list(range(1, 16))
    for case in found:
        one, other = case["bytes"], case["pipedream_bytes"]
        assert one[0] < other[0]
        assert one[1] < other[1]
