"""Classes derived from those that have files."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedopt import Chain, Layer, Platform, Result, check, solve


class MyChain(Chain):
    """A chain with a method of its own."""

    def count(self) -> int:
        return len(self.layers)


class MyPlatform(Platform):
    """A platform of its own class."""


class MyResult(Result):
    """A result of its own class."""


LAYER = Layer(forward_ns=3, backward_ns=2, weight_bytes=1, activation_bytes=1)
CHAIN = MyChain(layers=(LAYER,) * 3, name="mine")


def test_a_derived_class_is_read_as_itself(tmp_path: Path) -> None:
    CHAIN.save(tmp_path / "chain.json")
    loaded = MyChain.load(tmp_path / "chain.json")
    assert loaded == CHAIN
    assert loaded.count() == 3
    assert type(Chain.load(tmp_path / "chain.json")) is Chain


@pytest.mark.parametrize("kind", [Result, MyResult])
def test_a_derived_class_is_solved_like_its_base(tmp_path: Path, kind: type[Result]) -> None:
    result = solve(CHAIN, MyPlatform(gpus=2, memory=100))
    result.save(tmp_path / "plan.json")
    loaded = kind.load(tmp_path / "plan.json")
    assert type(loaded) is kind
    assert loaded.status == "optimal"
    assert loaded.period == 10
    assert check(loaded) == ()
