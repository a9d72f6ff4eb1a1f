"""The chain of layers that is trained: what each costs in time and memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

from schedopt.errors import InputError
from schedopt.layer import (
    EXPERT_BYTES,
    LAYER_BYTES,
    LAYER_NUMBERS,
    STATE_BYTES,
    Layer,
    check_name,
)
from schedopt.recipe import Recipe
from schedopt.stage import LARGEST_GROUP
from schedopt.stored import Stored
from schedopt.units import format_duration, printable
from schedopt.validation import (
    LARGEST_TOTAL,
    STRICT,
    as_rows,
    as_tuple,
    check_mapping,
    check_whole,
)

__all__ = [
    "CHAIN_FORMAT",
    "EXPERT_BYTES",
    "STATE_BYTES",
    "Chain",
    "Layer",
    "Measured",
    "say_recomputed",
]

CHAIN_FORMAT: Final = "schedopt.chain/1"
MOST_LAYERS: Final = 4096
LARGEST_CHAIN_NS: Final = 2**39
"""The total time of a chain stays below this (about 550 s), so that solvers fit 64 bits."""

Measured = tuple[int, tuple[str, ...]]
"""Samples of a micro-batch, and modules that are computed again: how a chain was measured."""


def say_recomputed(modules: Sequence[str]) -> str:
    """Say behind a size which modules are computed again; empty if none are."""
    return f", with {', '.join(modules)} computed again" if modules else ""


@dataclass(frozen=True, kw_only=True)
class Chain(
    Stored, load="schedopt.formats.chains:load_chain", text="schedopt.formats.chains:chain_to_json"
):
    """A chain of layers, in the order of the forward; ``schedopt.chain/1`` in a file.

    Parameters
    ----------
    layers : sequence of Layer
        1 to 4096. Their total time stays below 2**39 ns.
    name : str
        What a person calls it.
    input_bytes : int
        Size of a_0, the input of the first layer for one micro-batch.
    same_gpu : sequence of sequences of int
        Groups of layers (0-based) that must share a GPU, for example because weights are tied.
    copied : sequence of sequences of int
        Groups of layers with tied weights of which each has a copy, wherever it lies. The gradients
        of the copies are added up before an update. See `schedopt.tied_weights`.
    samples : int
        How many samples a micro-batch holds.
    context : int
        c, the GPUs that share each sequence (context parallelism; Liu et al. 2023). Each takes a
        part of its tokens, and holds all weights. All figures are those of one of them, with what
        they send each other. What is called a micro-batch elsewhere is then the part that one of
        them takes: c replicas of a stage, on GPUs in a row, have those of the same `samples`
        samples, and run them at the same time.
    expert : int
        e, a multiple of c: the GPUs that share the experts of each layer (expert parallelism;
        Lepikhin et al. 2021). They are replicas in a row, which run each operation at the same
        time and send each other tokens, as the figures have it. A stage has e of them, or where
        all layers say what their experts take (`Layer.expert_parameter_bytes`), a multiple: the
        replicas at the same place of each row have the same experts, and add up their gradients,
        and share their state, among themselves.
    recomputed_modules : sequence of str
        Modules of each layer that are computed again in its backward (selective recompute;
        Korthikanti et al. 2022), by the names that Megatron-LM has for them, such as *core_attn*.
        All figures are those of layers that do so.
    recipe : Recipe, optional
        How to cut the model again.
    provenance : mapping
        Where the figures come from: device, driver, dtype, micro-batch, repeats, spread, date.

    Raises
    ------
    InputError
        With the field, the rule and the way out.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    layers: tuple[Layer, ...]
    name: str = ""
    input_bytes: int = 0
    same_gpu: tuple[tuple[int, ...], ...] = ()
    copied: tuple[tuple[int, ...], ...] = ()
    samples: int = 1
    context: int = 1
    expert: int = 1
    recomputed_modules: tuple[str, ...] = ()
    recipe: Recipe | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        as_tuple(self, "layers", Layer)
        if not self.layers:
            raise InputError(
                "a chain has at least one layer", field="layers", way_out="Add a layer"
            )
        if len(self.layers) > MOST_LAYERS:
            raise InputError(
                f"{len(self.layers)} layers are too many",
                field="layers",
                way_out=f"Merge layers; at most {MOST_LAYERS} are allowed",
            )
        check_name(self.name)
        check_mapping(self.provenance, "provenance")
        check_whole(self, "input_bytes")
        check_whole(self, "samples", low=1)
        for name in ("context", "expert"):
            check_whole(self, name, low=1, high=LARGEST_GROUP)
        if self.expert > 1 and self.expert % self.context:
            raise InputError(
                f"{self.expert} is no multiple of {self.context}, the GPUs that share each "
                "sequence",
                field="expert",
                way_out=f"Give {self.context} or a multiple, or 1",
            )
        self._check_experts()
        as_tuple(self, "recomputed_modules", str)
        object.__setattr__(self, "recomputed_modules", tuple(sorted({*self.recomputed_modules})))
        self._check_totals()
        seen: set[int] = set()
        for name in ("same_gpu", "copied"):
            self._check_groups(name, seen)
        self._check_copies()

    def _check_experts(self) -> None:
        absent = [layer.expert_parameter_bytes is None for layer in self.layers]
        if self.expert == 1 and not all(absent):
            raise InputError(
                "given, and no GPUs share experts",
                field=f"layers[{absent.index(False)}].expert_parameter_bytes",
                way_out="Say how many do (expert), or count them in parameter_bytes, "
                "gradient_bytes and optimizer_bytes",
            )
        if len({*absent}) > 1:
            raise InputError(
                "absent, and other layers say what their experts take",
                field=f"layers[{absent.index(True)}].expert_parameter_bytes",
                way_out="Give 0 where a layer has no experts, or none for all layers",
            )

    def _check_totals(self) -> None:
        total = sum(layer.longest_ns for layer in self.layers)
        if total >= LARGEST_CHAIN_NS:
            raise InputError(
                f"the layers take {total} ns in all",
                field="layers",
                way_out=f"Stay below {LARGEST_CHAIN_NS} ns (550 s); check the unit of the times",
            )
        for name in LAYER_BYTES:
            amount = sum(getattr(layer, name) or 0 for layer in self.layers)
            if amount >= LARGEST_TOTAL:
                raise InputError(
                    f"{name} adds up to {amount} bytes",
                    field="layers",
                    way_out=f"Stay below {LARGEST_TOTAL}; check the unit of the sizes",
                )

    def _check_copies(self) -> None:
        for layer in sorted({layer for _, *others in self.copied for layer in others}):
            for name in STATE_BYTES:
                self.require(f"tied_{name}", [layer], needed_by="a copy of tied weights")
                self.require(name, [layer], needed_by="a copy of tied weights")
                own, tied = (getattr(self.layers[layer], part) for part in (name, f"tied_{name}"))
                if tied > own:
                    raise InputError(
                        f"{tied} is more than {name} ({own}), of which it is a part",
                        field=f"layers[{layer}].tied_{name}",
                        way_out="Count the copy in the layer that has it",
                    )

    def _check_groups(self, name: str, seen: set[int]) -> None:
        as_rows(self, name)
        groups: tuple[tuple[int, ...], ...] = getattr(self, name)
        for position, group in enumerate(groups):
            where = f"{name}[{position}]"
            if len(group) < 2 or list(group) != sorted(set(group)):
                raise InputError(
                    f"{list(group)} is not a group of layers",
                    field=where,
                    way_out="List two or more different layers in ascending order",
                )
            for layer in group:
                if layer >= len(self.layers):
                    raise InputError(
                        f"layer {layer} does not exist",
                        field=where,
                        way_out=f"Layers are counted from 0 to {len(self.layers) - 1}",
                    )
            if seen & set(group):
                raise InputError(
                    f"layer {min(seen & set(group))} is in two groups",
                    field=where,
                    way_out="Merge the groups",
                )
            seen |= set(group)

    def __str__(self) -> str:
        count = len(self.layers)
        work = sum(layer.forward_ns + layer.backward_ns for layer in self.layers)
        return (
            f"{printable(self.name) or 'unnamed'}: {count} layer{'s' if count > 1 else ''}, "
            f"{format_duration(work)} for one micro-batch on one GPU"
        )

    @property
    def measured(self) -> Measured:
        """The samples of a micro-batch, and the modules of each layer that are computed again."""
        return self.samples, self.recomputed_modules

    @property
    def has_halves(self) -> bool:
        """Whether the backward of every layer can be split into its two halves."""
        return all(layer.backward_input_ns is not None for layer in self.layers)

    @property
    def knows_gradients(self) -> bool:
        """Whether every layer says what its parameters and their gradients take."""
        parts = ((layer.parameter_bytes, layer.gradient_bytes) for layer in self.layers)
        return not any(None in part for part in parts)

    @cached_property
    def sha256(self) -> str:
        """The identity of the chain: what it costs, without names, samples and where it is from."""
        layers = [
            {name: value for name in LAYER_NUMBERS if (value := getattr(layer, name)) is not None}
            for layer in self.layers
        ]
        document: dict[str, Any] = {
            "format": CHAIN_FORMAT,
            "input_bytes": self.input_bytes,
            "layers": layers,
        }
        for name in ("same_gpu", "copied"):
            if groups := getattr(self, name):
                document[name] = groups
        for name in ("context", "expert"):
            if (count := getattr(self, name)) > 1:
                document[name] = count
        if self.recomputed_modules:
            document["recomputed_modules"] = self.recomputed_modules
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def together(self) -> int:
        """How many replicas in a row run each operation at the same time."""
        return max(self.context, self.expert)

    @property
    def sharing(self) -> str:
        """What they share, in words."""
        what = "the experts of a layer" if self.expert > 1 else "each sequence"
        return f"{self.together} GPUs share {what}"

    @property
    def knows_experts(self) -> bool:
        """Whether the layers say what their experts take, which GPUs share."""
        return self.layers[0].expert_parameter_bytes is not None

    def samples_of(self, microbatches: int) -> int:
        """Return the samples of a step of `microbatches`, which has all parts of each."""
        return microbatches * self.samples // self.context

    def require_alone(self, *, needed_by: str) -> None:
        """Refuse to go on where GPUs share sequences or experts, and nothing does that there."""
        if self.together > 1:
            raise InputError(
                f"{self.sharing}, and {needed_by} does not do that",
                field="chain.expert" if self.expert > 1 else "chain.context",
                way_out="Give a profile of one GPU without others (context and expert 1), or "
                "export the plan for megatron or torchtitan",
            )

    def require(self, name: str, layers: Iterable[int], *, needed_by: str) -> None:
        """Refuse to go on where an optional field is absent, rather than take it as 0."""
        for layer in layers:
            if getattr(self.layers[layer], name) is None:
                raise InputError(
                    f"absent, and {needed_by} needs it",
                    field=f"layers[{layer}].{name}",
                    way_out="Measure it, or choose something that does not need it",
                )
