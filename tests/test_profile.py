"""Profiles: files, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.profile import Profile, Variant, kinds_of_one_size, of_one_size
from schedopt.scope import Scope
from tests.tensor_groups import chain_in_group, two_nodes, variants


def profile() -> Profile:
    """Return a profile of three degrees and two sizes of micro-batches."""
    return Profile(
        name="six layers",
        variants=tuple(
            Variant(tensor=t, chain=replace(chain_in_group(t), samples=samples))
            for t in (1, 2, 4)
            for samples in (1, 2)
        ),
    )


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    profile().save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile()


def test_a_file_says_which_modules_are_computed_again(tmp_path: Path) -> None:
    chain = replace(chain_in_group(1), recomputed_modules=("core_attn",))
    chain.save(tmp_path / "chain.json")
    assert Chain.load(tmp_path / "chain.json") == chain


def test_a_chain_is_a_profile_of_one_variant(tmp_path: Path) -> None:
    chain = chain_in_group(1)
    chain.save(tmp_path / "chain.json")
    assert Profile.load(tmp_path / "chain.json").variants == (Variant(tensor=1, chain=chain),)


def test_of_each_size_there_is_a_chain_and_what_it_costs_in_groups() -> None:
    found = profile()
    assert found.sizes == (1, 2)
    assert found.degrees == (1, 2, 4)
    chain, groups = found.of_size(2)
    assert chain == replace(chain_in_group(1), samples=2)
    assert [variant.tensor for variant in groups] == [2, 4]


def test_a_size_that_was_not_measured_on_one_gpu_is_refused() -> None:
    lacking = Profile(variants=variants())
    with pytest.raises(InputError, match="no variant of 1 sample is for one GPU"):
        lacking.of_size(1)


def test_one_size_can_be_chosen() -> None:
    two = profile().with_size(2)
    assert (two.sizes, two.degrees, two.name) == ((2,), (1, 2, 4), "six layers")
    assert of_one_size(two) == profile().of_size(2)
    assert of_one_size(chain_in_group(1)) == (chain_in_group(1), ())
    with pytest.raises(InputError, match="samples: there are no micro-batches of 3 samples"):
        profile().with_size(3)
    with pytest.raises(InputError, match="chain: has micro-batches of 1 and 2 samples"):
        of_one_size(profile())


def test_of_one_size_there_may_be_several_kinds() -> None:
    chain = chain_in_group(1)
    again = replace(chain, recomputed_modules=("mlp",))
    both = Profile(variants=(*variants((1, 2)), Variant(tensor=1, chain=again)))
    assert kinds_of_one_size(both) == ((chain, variants((2,))), (again, ()))
    assert kinds_of_one_size(chain) == ((chain, ()),)
    with pytest.raises(InputError, match="1 sample and 1 sample, with mlp computed again are"):
        of_one_size(both)
    with pytest.raises(InputError, match="chain: has micro-batches of 1 and 2 samples"):
        kinds_of_one_size(profile())


def test_what_identifies_a_profile_is_what_was_measured() -> None:
    assert Profile(variants=profile().variants[:1]).sha256 == profile().variants[0].chain.sha256
    assert profile().sha256 == replace(profile(), variants=profile().variants[::-1]).sha256
    sizes = {profile().with_size(samples).sha256 for samples in (1, 2)}
    assert len({profile().sha256, *sizes}) == 3
    in_a_group = Profile(variants=(Variant(tensor=2, chain=chain_in_group(1)),))
    assert in_a_group.sha256 != chain_in_group(1).sha256


@pytest.mark.parametrize(
    ("second", "field", "rule"),
    [
        (chain_in_group(2, layers=5), "variants[1].chain.layers", "5 layers"),
        (
            Chain(layers=tuple(replace(layer, name="x") for layer in chain_in_group(2).layers)),
            "variants[1].chain.layers[0].name",
            "'x'",
        ),
        (
            replace(chain_in_group(2), same_gpu=((0, 1),)),
            "variants[1].chain.same_gpu",
            "ties other layers",
        ),
    ],
)
def test_variants_of_other_layers_are_refused(second: Chain, field: str, rule: str) -> None:
    first = Variant(tensor=1, chain=chain_in_group(1))
    with pytest.raises(InputError, match=rule) as caught:
        Profile(variants=(first, Variant(tensor=2, chain=second)))
    assert caught.value.field == field


def test_a_variant_twice_is_refused() -> None:
    with pytest.raises(InputError, match="tensor degree 2 with 1 sample is there twice"):
        Profile(variants=2 * variants((2,)))


def test_the_variants_of_a_problem_have_the_samples_of_its_chain() -> None:
    chain = replace(chain_in_group(1), samples=2)
    with pytest.raises(InputError, match="1, and the chain has 2"):
        Problem(chain=chain, platform=two_nodes(), variants=variants())


def test_the_variants_of_a_problem_ascend() -> None:
    with pytest.raises(InputError, match="2 comes behind 4"):
        Problem(chain=chain_in_group(1), platform=two_nodes(), variants=variants((4, 2)))


def test_layers_of_which_modules_are_computed_again_are_variants_too() -> None:
    kept = chain_in_group(1)
    again = replace(kept, recomputed_modules=("mlp", "core_attn", "mlp"))
    assert again.recomputed_modules == ("core_attn", "mlp")
    assert again.sha256 != kept.sha256
    both = Profile(variants=(Variant(tensor=1, chain=kept), Variant(tensor=1, chain=again)))
    assert both.measured == ((1, ()), (1, ("core_attn", "mlp")))
    assert both.of_size(1, ("core_attn", "mlp")) == (again, ())
    assert both.of_size(1, ()) == (kept, ())
    with pytest.raises(InputError, match="1 sample and 1 sample, with core_attn, mlp computed"):
        both.of_size(1)
    assert Profile(variants=both.variants[1:]).of_size(1) == (again, ())


def test_a_problem_has_variants_of_layers_that_run_alike() -> None:
    chain = chain_in_group(1)
    other = replace(chain_in_group(2), recomputed_modules=("mlp",))
    with pytest.raises(InputError, match="other modules are computed again") as caught:
        Problem(
            chain=chain,
            platform=Platform(2, "1M"),
            scope=Scope(tensor=None),
            variants=(Variant(tensor=2, chain=other),),
        )
    assert caught.value.field == "variants[0].chain.recomputed_modules"
