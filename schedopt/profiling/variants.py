"""One model in several micro-batch sizes, cut in the same places in all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from schedopt.chain import Chain, Recipe
from schedopt.errors import InputError
from schedopt.profile import Profile, Variant
from schedopt.profiling.model import Model
from schedopt.profiling.profiler import Estimator, Profiler
from schedopt.units import printable

_OWN: Final = ("micro_batch", "date")
"""What variants do not share of their provenance."""


def profile_variants(
    load: Callable[[], Model],
    sizes: Sequence[int],
    how: Profiler | Estimator,
    *,
    known: Profile | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    on_variant: Callable[[Profile], None] | None = None,
) -> Profile:
    """Measure a model, which is built once, in several micro-batch sizes.

    The first one says where the model is cut.

    Parameters
    ----------
    load : callable
        Makes the model, one of those known by name (``hf:``).
    sizes : sequence of int
        Samples of a micro-batch.
    how : Profiler or Estimator
    known : Profile, optional
        What was measured before. Of its variants those are kept whose model, arguments, device,
        versions and ways to measure are those of now.
    on_progress : callable, optional
        Called after each sweep with the number done, the number in all, and the variant.
    on_variant : callable, optional
        Called with the profile so far, whenever another variant was measured.

    Raises
    ------
    InputError
        As for `profile`; also if a size is there twice, or the model makes its own inputs.
    """
    if not sizes or len(set(sizes)) < len(sizes):
        raise InputError(
            "a size is there twice" if sizes else "there is no size",
            field="batch",
            way_out="Give each size once, such as 1,2,4",
        )
    with how.session():
        model = load()
        if not model.factory.startswith("hf:"):
            raise InputError(
                f"{printable(model.factory) or 'the model'} makes its own inputs",
                field="batch",
                way_out="Leave it out, or name a known model (hf:NAME)",
            )
        from schedopt.profiling.hf import with_batch

        found = {} if known is None else _usable(known, model, how)
        for samples in sizes:
            if samples in found:
                continue
            cuts = next((_cuts(chain) for chain in found.values()), None)
            show = None if on_progress is None else _named(on_progress, f"batch {samples}")
            found[samples] = how.chain(with_batch(model, samples), cuts=cuts, on_progress=show)
            if on_variant is not None:
                on_variant(_as_profile(found))
    return _as_profile(found)


def _as_profile(chains: Mapping[int, Chain]) -> Profile:
    variants = tuple(Variant(tensor=1, chain=chain) for _, chain in sorted(chains.items()))
    return Profile(name=variants[0].chain.name, variants=variants)


def _named(on_progress: Callable[[int, int, str], None], name: str) -> Callable[[int, int], None]:
    return lambda done, total: on_progress(done, total, name)


def _usable(known: Profile, model: Model, how: Profiler | Estimator) -> dict[int, Chain]:
    """Return the chains that would be measured alike now, by the samples of a micro-batch."""
    now = _shared(how.conditions(model))
    found: dict[int, Chain] = {}
    for variant in known.variants:
        chain, recipe = variant.chain, variant.chain.recipe
        if variant.tensor == 1 and recipe is not None and _same_model(recipe, model):
            then = {key: chain.provenance.get(key) for key in now}
            if then == now and all(_cuts(other) == recipe.cuts for other in found.values()):
                found[chain.samples] = chain
    return found


def _same_model(recipe: Recipe, model: Model) -> bool:
    return recipe.factory == model.factory and (
        _without_batch(recipe.arguments) == _without_batch(model.arguments)
    )


def _without_batch(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "batch"}


def _shared(provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in provenance.items() if key not in _OWN}


def _cuts(chain: Chain) -> tuple[str, ...]:
    assert chain.recipe is not None
    return chain.recipe.cuts
