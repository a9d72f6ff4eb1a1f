"""One model in several tensor groups and micro-batch sizes, cut in the same places in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.profile import Profile, Variant
from schedopt.profiling.model import Model
from schedopt.profiling.profiler import Estimator, Profiler
from schedopt.recipe import Recipe
from schedopt.units import printable

_OWN: Final = ("micro_batch", "date")
"""What variants do not share of their provenance."""


def profile_variants(
    load: Callable[[], Model],
    sizes: Sequence[int],
    how: Profiler | Estimator,
    *,
    degrees: Sequence[int] = (1,),
    known: Profile | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    on_variant: Callable[[Profile], None] | None = None,
) -> Profile:
    """Measure a model, which is built once, in several tensor groups and micro-batch sizes.

    The first one, on one GPU, says where the model is cut. In a tensor group the model is split as
    its own plan says (`schedopt.profiling.tensor_parallel`), and the figures are those of the first
    GPU, with the collectives in its times. To measure it, start as many processes as the largest
    group has GPUs, with torchrun; all of them return the same.

    Parameters
    ----------
    load : callable
        Makes the model, one of those known by name (``hf:``).
    sizes : sequence of int
        Samples of a micro-batch.
    how : Profiler or Estimator
    degrees : sequence of int
        t, the GPUs of a tensor group; 1 is among them.
    known : Profile, optional
        What was measured before. Of its variants those are kept whose model, arguments, device,
        versions and ways to measure are those of now.
    on_progress : callable, optional
        Called after each sweep with the number done, the number in all, and the variant.
    on_variant : callable, optional
        Called in the first process with the profile so far, whenever another variant was measured.

    Raises
    ------
    InputError
        As for `profile`; also if a size or a degree is there twice, the model makes its own inputs,
        or it cannot be split so.
    """
    _check_once("batch", "size", sizes)
    _check_once("tensor_parallel", "degree", degrees)
    if 1 not in degrees:
        raise InputError(
            "1, the whole model on one GPU, is missing",
            field="tensor_parallel",
            way_out=f"Give 1,{','.join(map(str, degrees))}",
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
        from schedopt.profiling.processes import from_first
        from schedopt.profiling.tensor_parallel import check_split, split

        for tensor in degrees:
            check_split(model, tensor)
        groups = {tensor: how.group(tensor) for tensor in sorted(degrees)}
        found = from_first({} if known is None else _usable(known, model, how))
        for tensor, group in groups.items():
            part = model if tensor == 1 or group is None else split(model, group)
            for samples in sizes:
                if (tensor, samples) in found:
                    continue
                cuts = next((_cuts(chain) for chain in found.values()), None)
                show = None if on_progress is None else _named(on_progress, tensor, samples)
                chain = None
                if group is not None:
                    chain = how.chain(with_batch(part, samples), cuts=cuts, on_progress=show)
                chain = from_first(chain)
                if tensor > 1:
                    chain = _as_part(found[1, samples], chain, tensor)
                found[tensor, samples] = chain
                if on_variant is not None and (group is None or group.rank == 0):
                    on_variant(_as_profile(found))
    return _as_profile(found)


def _check_once(field: str, what: str, numbers: Sequence[int]) -> None:
    if not numbers or len(set(numbers)) < len(numbers):
        raise InputError(
            f"a {what} is there twice" if numbers else f"there is no {what}",
            field=field,
            way_out=f"Give each {what} once, such as 1,2,4",
        )


def _as_part(whole: Chain, part: Chain, tensor: int) -> Chain:
    """Return the chain of a GPU of a group, with the outputs of the whole model, as a variant has.

    Logits are split over the group; all other outputs are whole on each GPU.
    """
    layers = []
    for one, other in zip(whole.layers, part.layers, strict=True):
        if other.activation_bytes not in (one.activation_bytes, one.activation_bytes // tensor):
            raise InputError(
                f"layer {one.name!r:.60} makes {other.activation_bytes} bytes in a group of "
                f"{tensor} GPUs, and {one.activation_bytes} on one",
                field="tensor_parallel",
                way_out="Merge more layers (Estimator.min_share), or leave it out for this model",
            )
        layers.append(replace(other, name=one.name, activation_bytes=one.activation_bytes))
    provenance = {**part.provenance, "tensor_parallel": tensor}
    return replace(part, layers=tuple(layers), provenance=provenance)


def _as_profile(chains: Mapping[tuple[int, int], Chain]) -> Profile:
    variants = tuple(
        Variant(tensor=tensor, chain=chain) for (tensor, _), chain in sorted(chains.items())
    )
    return Profile(name=variants[0].chain.name, variants=variants)


def _named(
    on_progress: Callable[[int, int, str], None], tensor: int, samples: int
) -> Callable[[int, int], None]:
    name = f"batch {samples}" if tensor == 1 else f"{tensor} GPUs, batch {samples}"
    return lambda done, total: on_progress(done, total, name)


def _usable(
    known: Profile, model: Model, how: Profiler | Estimator
) -> dict[tuple[int, int], Chain]:
    """Return the chains that would be measured alike now, by degree and samples."""
    now = _shared(how.conditions(model))
    found: dict[tuple[int, int], Chain] = {}
    for variant in known.variants:
        chain, recipe = variant.chain, variant.chain.recipe
        if recipe is not None and _same_model(recipe, model):
            then = {key: chain.provenance.get(key) for key in now}
            # The last cut is the end of the model, whatever it is called.
            if then == now and all(
                _cuts(other)[:-1] == recipe.cuts[:-1] for other in found.values()
            ):
                found[variant.tensor, chain.samples] = chain
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
