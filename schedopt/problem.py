"""What is asked: a chain, a platform, a rule, and the plans that are allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from schedopt.chain import Chain
from schedopt.engine import TITLES, stage_begins, why_not_modules
from schedopt.errors import InputError
from schedopt.platform import Platform
from schedopt.profile import Variant, check_alike, check_together
from schedopt.rule import Rule
from schedopt.scope import Scope, allows_most
from schedopt.stage import Stage
from schedopt.validation import STRICT, as_tuple, as_whole, require_kind

__all__ = [
    "LARGEST_HORIZON_NS",
    "Problem",
    "Scope",
    "training_step",
    "widest_step",
]

LARGEST_HORIZON_NS: Final = 2**47
"""What all layers and transfers may take in all, on the slowest GPU (about 39 hours)."""
MOST_OF_BATCH: Final = 2**16
"""Micro-batches of a training step: plans of more take long to lay out and check."""
FEW_BYTES_PER_S: Final = 10_000
"""Of a link: whoever gives less has most likely left out the unit."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is asked.

    Parameters
    ----------
    chain : Chain
    platform : Platform
    rule : Rule
    scope : Scope
    variants : sequence of Variant
        What the layers cost in tensor groups of two GPUs and more, smaller groups first, with as
        many samples; `chain` is what they cost on one GPU.
    stages : sequence of Stage
        The allocation that is given, for the scope *fixed*; else empty. What they recompute is a
        hint where the scope allows recompute.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    chain: Chain
    platform: Platform
    rule: Rule = field(default_factory=Rule)
    scope: Scope = field(default_factory=Scope)
    variants: tuple[Variant, ...] = ()
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in (
            ("chain", Chain),
            ("platform", Platform),
            ("rule", Rule),
            ("scope", Scope),
        ):
            require_kind(getattr(self, name), kind, name)
        as_tuple(self, "stages", Stage)
        as_tuple(self, "variants", Variant)
        self._check_variants()
        self._check_stages()
        self._check_horizon()
        every = range(len(self.chain.layers))
        if not self.rule.is_given:
            if self.chain.copied and self.rule != Rule.of_flush(self.rule.update_every or 1):
                raise InputError(
                    "the gradients of copied weights are added up in steps that end with a flush",
                    field="chain.copied",
                    way_out="Keep tied layers together, or take a rule of flushes (Rule.of_flush)",
                )
            for name in ("parameter_bytes", "gradient_bytes"):
                self._require(name, every, needed_by="a rule with updates")
        for number, stage in enumerate(self.stages):
            if stage.shard != "none":
                self._check_shard(number, stage)
        self._check_step(every)
        if self.scope.split_backward:
            self._check_halves()
        if self.scope.engine is not None:
            if self.scope.microbatches is None:
                raise InputError(
                    f"{TITLES[self.scope.engine]} ends each step with a flush, so a step needs a "
                    "length",
                    field="scope.microbatches",
                    way_out="Give the micro-batches of a step, or a batch (solve.batch)",
                )
            stage_begins(self.chain, self.scope.engine)
            why, way_out = why_not_modules(self.chain, self.scope.engine)
            if why:
                raise InputError(why, field="scope.engine", way_out=way_out)

    def _check_step(self, every: range) -> None:
        """Require of replicas a step that ends with the update of all of it, or no updates."""
        count, updated = self.scope.microbatches, self.rule.update_every
        if self.scope.replicas != 1 and updated != count:
            raise InputError(
                f"replicas add up the gradients of a step of {count or 'how many'} micro-batches, "
                f"and the rule updates every {updated or 'how many'}",
                field="scope.replicas",
                way_out="Give both the same number, neither, or a batch (solve.batch)",
            )
        if self.scope.uneven and not (self.is_training_step and self.platform.uniform):
            raise InputError(
                "replicas are dealt unequal numbers of micro-batches in a training step, on GPUs "
                "and links that are all alike",
                field="scope.uneven",
                way_out="Ask for a batch (solve.batch) on such a platform, or leave it out",
            )
        if self.degrees != (1,) and not (self.is_training_step or self.stages):
            raise InputError(
                "tensor groups are searched for in a training step",
                field="scope.tensor",
                way_out="Ask for a batch (solve.batch), or leave groups out (Scope.tensor = 1)",
            )
        if self.scope.shard in ("gradient", "parameter") and self.rule.is_given:
            raise InputError(
                "gradients and parameters are shared in a training step",
                field="scope.shard",
                way_out="Ask for a batch (solve.batch), or share the optimizer state alone",
            )
        if self.scope.shard != "none":
            self._require("optimizer_bytes", every, needed_by="a shard of the optimizer state")

    def _check_variants(self) -> None:
        before = 1
        for number, variant in enumerate(self.variants):
            field = f"variants[{number}]"
            if variant.tensor <= before:
                raise InputError(
                    f"{variant.tensor} comes behind {before}",
                    field=f"{field}.tensor",
                    way_out="Give groups of two GPUs and more, smaller ones first",
                )
            before = variant.tensor
            check_alike(self.chain, variant.chain, f"{field}.chain")
            check_together(self.chain, variant.chain, f"{field}.chain")
            if variant.chain.samples != self.chain.samples:
                raise InputError(
                    f"{variant.chain.samples}, and the chain has {self.chain.samples}",
                    field=f"{field}.chain.samples",
                    way_out="Give variants of one size of micro-batches",
                )
            if variant.chain.measured != self.chain.measured:
                raise InputError(
                    "other modules are computed again than in the chain",
                    field=f"{field}.chain.recomputed_modules",
                    way_out="Give variants of layers that run alike",
                )
        for number, stage in enumerate(self.stages):
            if stage.tensor not in (1, *(variant.tensor for variant in self.variants)):
                raise InputError(
                    f"nothing says what the layers cost in groups of {stage.tensor} GPUs",
                    field=f"stages[{number}].tensor",
                    way_out="Give a variant of that size (Problem.variants), or another size",
                )

    def _require(self, name: str, layers: Iterable[int], *, needed_by: str) -> None:
        """Require a field of layers, whatever the size of their tensor group."""
        numbers = list(layers)
        self.chain.require(name, numbers, needed_by=needed_by)
        for place, variant in enumerate(self.variants):
            try:
                variant.chain.require(name, numbers, needed_by=needed_by)
            except InputError as error:
                raise error.within(f"variants[{place}].chain") from None

    @property
    def degrees(self) -> tuple[int, ...]:
        """The GPUs that a tensor group may have in the scope and in some node, ascending."""
        return tuple(one for one in self._allowed_degrees() if one <= self.platform.largest_node)

    @property
    def degrees_without_node(self) -> tuple[int, ...]:
        """The GPUs of tensor groups that the scope allows and no node holds, ascending."""
        return tuple(one for one in self._allowed_degrees() if one > self.platform.largest_node)

    def _allowed_degrees(self) -> Iterator[int]:
        known = (1, *(variant.tensor for variant in self.variants))
        return (count for count in known if allows_most(self.scope.tensor, count))

    def in_group(self, tensor: int) -> Chain:
        """Return what the layers cost on each GPU of a tensor group of this degree."""
        return next((one.chain for one in self.variants if one.tensor == tensor), self.chain)

    @property
    def is_training_step(self) -> bool:
        """Whether it is about a step that ends with the update of its weights."""
        return self.scope.microbatches is not None and not self.rule.is_given

    @property
    def replica_counts(self) -> tuple[int, ...]:
        """How many replicas that run as many micro-batches each a stage may have, ascending.

        Those that share sequences or experts count as replicas.
        """
        count = self.scope.microbatches or 1
        return tuple(number for number in self._possible_counts() if count % number == 0)

    @property
    def uneven_counts(self) -> tuple[int, ...]:
        """How many replicas some of which run one micro-batch more a stage may have, ascending."""
        count = self.scope.microbatches or 1
        if not self.scope.uneven:
            return ()
        return tuple(
            number
            for number in self._possible_counts()
            # Replicas with the same experts have as many micro-batches as the others.
            if count % number and (self.chain.expert == 1 or number == self.chain.expert)
        )

    def _possible_counts(self) -> range:
        count = self.scope.microbatches or 1
        most = min(len(self.platform.gpus), count, self.scope.replicas or count)
        together = self.chain.together
        if self.chain.expert > 1 and not self.chain.knows_experts:
            most = min(most, together)
        return range(together, most + 1, together)

    def with_extra_memory(self, extra_bytes: int) -> Self:
        """Return the same problem with more memory on every GPU."""
        gpus = [
            replace(gpu, memory_bytes=gpu.memory_bytes + extra_bytes) for gpu in self.platform.gpus
        ]
        return replace(self, platform=self.platform.with_gpus(gpus))

    def _check_stages(self) -> None:
        if (self.scope.allocation == "fixed") != bool(self.stages):
            raise InputError(
                "stages go with the scope fixed, and only with it",
                field="stages",
                way_out="Give both or neither",
            )

    def _check_shard(self, number: int, stage: Stage) -> None:
        if self.rule.is_given and stage.shard != "optimizer":
            raise InputError(
                f"{stage.shard} is sharded, but the rule says nothing of updates",
                field=f"stages[{number}].shard",
                way_out="Give the micro-batches of one update (Rule.update_every), or shard the "
                "optimizer state at most",
            )
        # A layer that does not exist is a violation, which the check of a plan reports.
        layers = [layer for layer in stage.layer_range if 0 <= layer < len(self.chain.layers)]
        self._require("optimizer_bytes", layers, needed_by=f"the shards of stage {number}")

    def _check_halves(self) -> None:
        # A layer has both or neither.
        for number, layer in enumerate(self.chain.layers):
            if layer.backward_input_ns is None:
                raise InputError(
                    "absent, and a split backward needs both halves of every layer",
                    field=f"layers[{number}].backward_input_ns",
                    way_out="Take a chain that has them (schedopt profile measures both), or "
                    "leave the split (Scope.split_backward) out",
                )

    def _check_horizon(self) -> None:
        gpus, platform = set(self.platform.gpus), self.platform
        work = sum(
            max(gpu.duration_ns(layer.longest_ns) for gpu in gpus) for layer in self.chain.layers
        )
        sent = (layer.activation_bytes for layer in self.chain.layers)
        trips = sorted(2 * platform.longest_transfer_ns(count) for count in sent)
        total = work + sum(trips[-len(platform.gpus) :])
        if total < LARGEST_HORIZON_NS:
            return
        field, link = "platform", platform.link
        way_out = f"Stay below {LARGEST_HORIZON_NS} ns; check bandwidth, latency and speed"
        if link is not None and work < LARGEST_HORIZON_NS:
            field = "latency" if 4 * link.latency_ns >= trips[-1] else "bandwidth"
            if field == "bandwidth" and link.bandwidth_bytes_per_s < FEW_BYTES_PER_S:
                meant = f"{link.bandwidth_bytes_per_s}GB/s"
                way_out += f". A rate without a unit is bytes a second: is {meant} meant?"
        raise InputError(
            f"layers and transfers take {total} ns on the slowest GPU", field=field, way_out=way_out
        )


def training_step(
    chain: Chain,
    platform: Platform,
    batch: int,
    scope: Scope | None = None,
    variants: Sequence[Variant] = (),
) -> Problem:
    """Return the question for the shortest training step of a batch.

    All its micro-batches go through, replicas add their gradients up, the weights are updated, and
    then the next one begins.

    Parameters
    ----------
    chain : Chain
    platform : Platform
    batch : int
        Samples of a step, a multiple of those of a micro-batch.
    scope : Scope, optional
        What is allowed, for any number of micro-batches. Default: `widest_step`.
    variants : sequence of Variant
        As of a `Problem`.

    Raises
    ------
    InputError
        If no number of micro-batches makes the batch, or the scope is not one of steps.
    """
    as_whole(batch, "batch", low=1)
    require_kind(chain, Chain, "chain")
    count, rest = divmod(batch, chain.samples)
    count *= chain.context
    if rest:
        raise InputError(
            f"{batch} samples are no whole number of micro-batches of {chain.samples}",
            field="batch",
            way_out=f"Give {f'{batch - rest} or ' if count else ''}{batch - rest + chain.samples}, "
            "or profile the chain with another micro-batch",
        )
    if count > MOST_OF_BATCH:
        raise InputError(
            f"{count} micro-batches are more than {MOST_OF_BATCH}, the most of a training step",
            field="batch",
            way_out="Give a smaller batch, or profile the chain with a larger micro-batch",
        )
    if scope is None:
        scope = widest_step(chain, tensor=None if variants else 1)
    if scope.allocation == "fixed":
        raise InputError(
            "the stages of a training step are searched for",
            field="scope.allocation",
            way_out="Leave the stages free",
        )
    return Problem(
        chain=chain,
        platform=platform,
        rule=Rule.of_flush(count),
        scope=replace(scope, microbatches=count, max_k=None),
        variants=tuple(variants),
    )


def widest_step(chain: Chain, tensor: int | None = 1) -> Scope:
    """Return the scope of all that training steps of a chain may do with whole backwards.

    `tensor` is the most GPUs of a tensor group, as of a `Scope`.
    """
    known = all(layer.optimizer_bytes is not None for layer in chain.layers)
    return Scope(
        allocation="general",
        max_k=None,
        memory="peak",
        recompute=True,
        replicas=None,
        shard="optimizer" if known else "none",
        tensor=tensor,
    )
