"""A profile: the layers of a model, measured in several tensor groups and micro-batch sizes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from schedopt.chain import Chain, Measured, say_recomputed
from schedopt.errors import InputError
from schedopt.stage import LARGEST_GROUP
from schedopt.stored import Stored
from schedopt.units import counted
from schedopt.validation import STRICT, as_tuple, check_whole, show

PROFILE_FORMAT: Final = "schedopt.profile/1"
_ALIKE: Final = {
    "same_gpu": "ties other layers",
    "copied": "copies other layers",
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A chain as it was measured in a tensor group.

    Parameters
    ----------
    tensor : int
        t, the GPUs of a group, each of which computes a part of every layer (Shoeybi et al. 2019).
    chain : Chain
        What each GPU of a group takes and holds: times with the collectives inside the group, and
        its own part of weights and activations. `activation_bytes` are those of the whole output,
        which the GPUs of a group send together, each a part.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    tensor: int
    chain: Chain

    def __post_init__(self) -> None:
        check_whole(self, "tensor", low=1, high=LARGEST_GROUP)
        if not isinstance(self.chain, Chain):
            raise InputError(
                f"{show(self.chain)} is not a Chain", field="chain", way_out="Give a schedopt.Chain"
            )


def of_one_size(model: Chain | Profile) -> tuple[Chain, tuple[Variant, ...]]:
    """Return what there is of a model with one size of micro-batches: see `Profile.of_size`.

    Raises
    ------
    InputError
        If there are several sizes.
    """
    if not isinstance(model, Profile):
        return model, ()
    return model.of_size(_only_size(model))


def kinds_of_one_size(model: Chain | Profile) -> tuple[tuple[Chain, tuple[Variant, ...]], ...]:
    """Return what there is of a model with one size of micro-batches.

    One for each set of modules that are computed again, none of them first: see `Profile.of_size`.

    Raises
    ------
    InputError
        If there are several sizes.
    """
    if not isinstance(model, Profile):
        return ((model, ()),)
    _only_size(model)
    return tuple(model.of_size(*measured) for measured in model.measured)


def _only_size(profile: Profile) -> int:
    if len(profile.sizes) > 1:
        raise InputError(
            f"has micro-batches of {' and '.join(map(str, profile.sizes))} samples",
            field="chain",
            way_out="Choose one (Profile.with_size), or ask for a batch (solve.batch), which "
            "chooses",
        )
    return profile.sizes[0]


def check_alike(one: Chain, other: Chain, field: str) -> None:
    """Require that two chains are the same layers.

    Raises
    ------
    InputError
        Naming the field of `other`, and what differs.
    """
    count = len(one.layers)
    if len(other.layers) != count:
        raise InputError(
            f"has {len(other.layers)} layers, and another variant has {count}",
            field=f"{field}.layers",
            way_out="Measure the same layers in each variant",
        )
    for number, (layer, like) in enumerate(zip(other.layers, one.layers, strict=True)):
        if layer.name != like.name:
            raise InputError(
                f"{show(layer.name)}, and another variant has {show(like.name)} there",
                field=f"{field}.layers[{number}].name",
                way_out="Measure the same layers in each variant, in the same order",
            )
    for name, what in _ALIKE.items():
        if getattr(one, name) != getattr(other, name):
            raise InputError(
                f"{what} than another variant",
                field=f"{field}.{name}",
                way_out="Tie the same layers in each variant",
            )


def say_measured(measured: Measured) -> str:
    """Say how a chain was measured."""
    samples, modules = measured
    return f"{counted(samples, 'sample')}{say_recomputed(modules)}"


def check_together(one: Chain, other: Chain, field: str) -> None:
    """Require that as many GPUs share each sequence, and the experts, in two chains.

    Raises
    ------
    InputError
        Naming the field of `other`.
    """
    for name in ("context", "expert"):
        own, others = getattr(other, name), getattr(one, name)
        if own != others:
            raise InputError(
                f"{own}, and another variant has {others}",
                field=f"{field}.{name}",
                way_out="Give a profile for each number of GPUs that share sequences or experts",
            )
    if other.knows_experts != one.knows_experts:
        raise InputError(
            "what experts take is not said in all variants",
            field=f"{field}.layers",
            way_out="Give expert_parameter_bytes, expert_gradient_bytes and expert_optimizer_bytes "
            "in each, or in none",
        )


@dataclass(frozen=True, kw_only=True)
class Profile(
    Stored,
    load="schedopt.formats.profiles:load_profile",
    text="schedopt.formats.profiles:profile_to_json",
):
    """One model as it was measured; ``schedopt.profile/1`` in a file.

    A chain is a profile with one variant, on one GPU, and `Profile.load` reads its file too.

    Parameters
    ----------
    variants : sequence of Variant
        One for each tensor degree, number of samples of a micro-batch (`Chain.samples`) and set of
        modules that are computed again (`Chain.recomputed_modules`). The layers, their names and
        their ties are the same in all.
    name : str
        What a person calls it.

    Raises
    ------
    InputError
        With the field, the rule and the way out.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    variants: tuple[Variant, ...]
    name: str = ""

    def __post_init__(self) -> None:
        as_tuple(self, "variants", Variant)
        if not self.variants:
            raise InputError(
                "a profile has at least one variant", field="variants", way_out="Add one"
            )
        if not isinstance(self.name, str):
            raise InputError(
                f"{show(self.name)} is not text", field="name", way_out="Put it in quotes"
            )
        seen: set[tuple[int, Measured]] = set()
        for number, variant in enumerate(self.variants):
            key = variant.tensor, variant.chain.measured
            if key in seen:
                raise InputError(
                    f"tensor degree {key[0]} with {say_measured(key[1])} is there twice",
                    field=f"variants[{number}]",
                    way_out="Keep one of them",
                )
            seen.add(key)
            check_alike(self.variants[0].chain, variant.chain, f"variants[{number}].chain")
            check_together(self.variants[0].chain, variant.chain, f"variants[{number}].chain")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of samples of a micro-batch, ascending."""
        return tuple(sorted({variant.chain.samples for variant in self.variants}))

    @property
    def measured(self) -> tuple[Measured, ...]:
        """What there is of each: sizes of micro-batches, and modules that are computed again."""
        return tuple(sorted({variant.chain.measured for variant in self.variants}))

    @property
    def degrees(self) -> tuple[int, ...]:
        """The tensor degrees, ascending."""
        return tuple(sorted({variant.tensor for variant in self.variants}))

    @property
    def sha256(self) -> str:
        """What identifies it: of a chain on one GPU that of the chain."""
        keys = sorted((one.tensor, one.chain.samples, one.chain.sha256) for one in self.variants)
        if len(keys) == 1 and keys[0][0] == 1:
            return keys[0][2]
        return hashlib.sha256(json.dumps(keys).encode()).hexdigest()

    def with_size(self, samples: int) -> Profile:
        """Return only what was measured with micro-batches of some size.

        Raises
        ------
        InputError
            If nothing was.
        """
        alike = tuple(one for one in self.variants if one.chain.samples == samples)
        if not alike:
            raise InputError(
                f"there are no micro-batches of {show(samples)} samples",
                field="samples",
                way_out=f"Choose {' or '.join(map(str, self.sizes))}",
            )
        return replace(self, variants=alike)

    def of_size(
        self, samples: int, recomputed: Sequence[str] | None = None
    ) -> tuple[Chain, tuple[Variant, ...]]:
        """Return the chain on one GPU for a size of micro-batches, and its variants in groups.

        `recomputed` are the modules of each layer that are computed again; None: there is no
        choice.

        Raises
        ------
        InputError
            If it was not measured on one GPU with such micro-batches, or several times.
        """
        known = [modules for size, modules in self.measured if size == samples]
        if recomputed is None and len(known) > 1:
            raise InputError(
                f"{' and '.join(say_measured((samples, modules)) for modules in known)} are there",
                field="variants",
                way_out="Solve for a batch (solve.batch), which chooses, or keep one of them",
            )
        own = (samples, known[0] if recomputed is None and known else tuple(recomputed or ()))
        alike = sorted(
            (variant for variant in self.variants if variant.chain.measured == own),
            key=lambda variant: variant.tensor,
        )
        if not alike or alike[0].tensor != 1:
            raise InputError(
                f"no variant of {say_measured(own)} is for one GPU (tensor 1)",
                field="variants",
                way_out="Measure one, or leave the variants of this size out",
            )
        return alike[0].chain, tuple(alike[1:])
