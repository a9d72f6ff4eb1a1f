from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from schedopt import Chain, InputError, Profile
from schedopt.profile import Variant
from schedopt.profiling import Estimator, Model, Profiler, load_model, profile_variants
from schedopt.profiling.hf import with_batch
from tests.profiling.networks import TINY, mixed, profiled_tiny

QUICK = Profiler(warmup=0, repeats=2, min_share=0)
SIZES = ("name", "activation_bytes", "saved_bytes", "weight_bytes", "workspace_bytes")


def llama() -> Model:
    return load_model(f"hf:{TINY['llama']}", batch=2, seq=8)


def sizes_of(chain: Chain) -> list[tuple[Any, ...]]:
    return [tuple(getattr(layer, name) for name in SIZES) for layer in chain.layers]


def measured(*sizes: int, known: Profile | None = None, how: Profiler = QUICK) -> Profile:
    return profile_variants(llama, sizes, how, known=known)


@pytest.fixture(scope="module")
def both() -> Profile:
    return measured(4, 2)


def test_each_size_is_that_of_a_model_built_with_it(both: Profile) -> None:
    assert both.sizes == (2, 4)
    assert both.degrees == (1,)
    small, large = (variant.chain for variant in both.variants)
    assert sizes_of(small) == sizes_of(profiled_tiny("llama"))
    for one, other in zip(small.layers[:-1], large.layers[:-1], strict=True):
        assert other.activation_bytes == 2 * one.activation_bytes
    assert [chain.recipe.arguments["batch"] for chain in (small, large) if chain.recipe] == [2, 4]


def test_trivial_layers_are_the_same_in_all_sizes_of_a_model_that_is_built_once() -> None:
    estimator = Estimator(flops=10**9, min_share=0.05)
    load = mock.Mock(wraps=llama)
    profile = profile_variants(load, [1, 8], estimator)
    assert load.call_count == 1
    first, second = (variant.chain for variant in profile.variants)
    assert first.recipe is not None
    assert second.recipe is not None
    assert first.recipe.cuts == second.recipe.cuts
    assert 1 < len(first.layers) < len(profiled_tiny("llama").layers)


@pytest.mark.parametrize("family", TINY)
def test_inputs_are_those_of_a_model_that_is_built_with_the_size(family: str) -> None:
    size = {"image": 64} if family in ("vit", "resnet18") else {"seq": 8}
    built = load_model(f"hf:{TINY[family]}", batch=3, **size)
    model = load_model(f"hf:{TINY[family]}", batch=2, **size)
    made = with_batch(model, 3)
    assert made.module is model.module
    assert made.arguments == built.arguments
    for name, value in built.tensors.items():
        assert made.tensors[name].equal(value)


def test_what_was_measured_is_not_measured_again(both: Profile) -> None:
    with mock.patch.object(Profiler, "chain", side_effect=AssertionError):
        assert measured(2, 4, known=both) == both
        assert measured(4, known=both) == both
    wider = measured(2, 3, known=both)
    assert wider.sizes == (2, 3, 4)
    assert [wider.variants[0], wider.variants[2]] == list(both.variants)


def measured_anew(known: Profile, **options: Any) -> int:
    """Return how often a size is measured that is known, of which nothing is kept then."""
    anew = replace(known.variants[0].chain, name="anew")
    with mock.patch.object(Profiler, "chain", return_value=anew) as chain:
        profile = measured(2, known=known, **options)
    assert [variant.chain.name for variant in profile.variants] == ["anew"]
    return int(chain.call_count)


@pytest.mark.parametrize(
    "how",
    [
        replace(QUICK, repeats=3),
        replace(QUICK, warmup=1),
        replace(QUICK, optimizer="sgd"),
        replace(QUICK, min_share=0.5),
    ],
)
def test_what_was_measured_otherwise_is_measured_again(both: Profile, how: Profiler) -> None:
    assert measured_anew(both, how=how) == 1


@pytest.mark.parametrize("key", ["torch", "transformers", "device_name", "threads"])
def test_what_was_measured_elsewhere_is_measured_again(both: Profile, key: str) -> None:
    elsewhere = [
        Variant(
            tensor=1,
            chain=replace(
                variant.chain, provenance={**variant.chain.provenance, key: "another one"}
            ),
        )
        for variant in both.variants
    ]
    assert measured_anew(Profile(variants=tuple(elsewhere))) == 1


def test_what_another_model_took_is_measured_again(both: Profile) -> None:
    def other() -> Model:
        return load_model(f"hf:{TINY['llama']}", batch=2, seq=4)

    assert profile_variants(other, [2], QUICK, known=both).sizes == (2,)


def test_what_is_interrupted_has_what_was_measured() -> None:
    seen: list[Profile] = []

    def stop(profile: Profile) -> None:
        seen.append(profile)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_variants(llama, [1, 2, 4], QUICK, on_variant=stop)
    assert [profile.sizes for profile in seen] == [(1,), (1, 2)]
    whole = measured(1, 2, 4, known=seen[-1])
    assert whole.variants[:2] == seen[-1].variants


@pytest.mark.parametrize(("sizes", "says"), [([1, 1], "there twice"), ([], "there is no size")])
def test_sizes_that_are_none_are_refused(sizes: list[int], says: str) -> None:
    with pytest.raises(InputError, match=f"batch: .*{says}"):
        profile_variants(llama, sizes, QUICK)


def test_a_model_with_inputs_of_its_own_is_refused() -> None:
    import torch

    model = Model(module=mixed(), inputs=torch.zeros(8, 4), factory="models:build")
    with pytest.raises(InputError, match="batch: models:build makes its own inputs"):
        profile_variants(lambda: model, [1, 2], QUICK)
