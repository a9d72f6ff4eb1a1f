"""What is asked: a chain, a platform, a rule, and the plans that are allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, Self

from schedopt.chain import Chain
from schedopt.engine import ENGINES, TITLES, Engine, stage_begins
from schedopt.errors import InputError
from schedopt.platform import Platform
from schedopt.profile import Variant, check_alike
from schedopt.rule import Rule
from schedopt.stage import LARGEST_GROUP, SHARDS, Shard, Stage
from schedopt.validation import STRICT, as_tuple, as_whole, check_choice, check_whole, show

Allocation = Literal["contiguous", "general", "fixed"]
Grain = Literal["stage", "layer"]
MemoryReading = Literal["sum", "peak"]
GpuOrder = Literal["given", "any"]

_SHARED: Final[dict[Shard, str]] = {
    "none": "",
    "optimizer": " that may share the optimizer state",
    "gradient": " that may share the optimizer state and gradients",
    "parameter": " that may share the optimizer state, gradients and parameters",
}
MOST_MICROBATCHES: Final = 2**20
"""Of a step."""
LARGEST_HORIZON_NS: Final = 2**47
"""What all layers and transfers may take in all, on the slowest GPU (about 39 hours)."""


USUAL_MAX_K: Final = 2
"""The longest pattern that is looked for on any allocation where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The plans that are allowed: what a bound and the word *optimal* speak of.

    Each field defaults to the narrowest: neighbouring layers, patterns of one micro-batch, memory
    as a sum. `Scope.usual` is what `schedopt.solve` takes where no scope is given.

    All of them have one micro-batch for each operation and transfer, and one GPU for each stage
    unless `replicas` says more. Plans of other kinds can be written down, checked and run; no bound
    speaks of them.

    Parameters
    ----------
    allocation : {"contiguous", "general", "fixed"}
        One stage for each GPU; layers anywhere; or the stages that are given.
    max_k : int or None
        The longest pattern, in micro-batches. None: any.
    grain : {"stage", "layer"}
        Whether the layers of a stage run as one.
    memory : {"sum", "peak"}
        The reading that decides whether a plan fits: each kind of memory at its own maximum,
        added up (Beaumont et al. 2021, section 3.2), or the true maximum over time.
    split_backward : bool
        Whether the weight half of a backward may run later.
    recompute : bool
        Whether layers may be computed again instead of kept.
    microbatches : int, optional
        None: the steady state, T / k, is minimised. m: the makespan of m micro-batches, with a
        flush at the end, divided by m.
    gpu_order : {"given", "any"}
        For contiguous allocations: whether stages lie on the GPUs in the order in which the
        platform lists them. The same where all GPUs and links are alike.
    period_ns : int, optional
        A decision: only plans with T / k at most this are looked for.
    engine : {"megatron", "torchtitan", "deepspeed", "torch"}, optional
        Only steps that this engine runs: its stages, and its own order. See `schedopt.engine`. Of a
        training step these are grids of all GPUs.
    replicas : int or None
        The most GPUs among which a stage deals its micro-batches in turn, the same number to each.
        None: any. Of a training step, one whose rule updates the weights, they divide
        `microbatches`; gradients are added up, and updated weights gathered, around rings of all
        replicas of a stage (Patarasuk and Yuan 2009). In the steady state of the rule *given* no
        update is in the pattern, nor what replicas send for it.
    shard : {"none", "optimizer", "gradient", "parameter"}
        The most that replicas may share of the state of a stage (Rajbhandari et al. 2020): nothing,
        the optimizer state (ZeRO-1), gradients too (ZeRO-2), parameters too (ZeRO-3). Each stage
        may share less. One that shares gradients or parameters runs layer by layer: its layers are
        stages of the plan on the same GPUs, which a forward runs one right behind the other, and a
        backward too, with what it recomputes. Where the allocation is contiguous they count as one.
    tensor : int or None
        The most GPUs of a tensor group. None: any for which the problem has a variant. A group lies
        inside a node.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    allocation: Allocation = "contiguous"
    max_k: int | None = 1
    grain: Grain = "stage"
    memory: MemoryReading = "sum"
    split_backward: bool = False
    recompute: bool = False
    microbatches: int | None = None
    gpu_order: GpuOrder = "given"
    period_ns: int | None = None
    engine: Engine | None = None
    replicas: int | None = 1
    shard: Shard = "none"
    tensor: int | None = 1

    def __post_init__(self) -> None:
        check_choice(self, "allocation", ("contiguous", "general", "fixed"))
        check_choice(self, "grain", ("stage", "layer"))
        check_choice(self, "memory", ("sum", "peak"))
        check_choice(self, "gpu_order", ("given", "any"))
        check_whole(self, "max_k", low=1, high=2**20, optional=True)
        check_whole(self, "microbatches", low=1, high=MOST_MICROBATCHES, optional=True)
        check_whole(self, "period_ns", low=1, optional=True)
        check_whole(self, "replicas", low=1, high=2**20, optional=True)
        check_choice(self, "shard", SHARDS)
        check_whole(self, "tensor", low=1, high=LARGEST_GROUP, optional=True)
        if self.replicas != 1 or self.shard != "none":
            self._check_replicas()
        for name in ("split_backward", "recompute"):
            if not isinstance(getattr(self, name), bool):
                raise InputError("neither True nor False", field=name)
        if self.engine is not None:
            self._check_engine()

    @classmethod
    def usual(cls, **changes: Any) -> Scope:
        """Return the scope of `schedopt.solve` without one, with some fields changed.

        Any allocation, patterns of up to two micro-batches, memory as its true peak.

        Examples
        --------
        >>> Scope.usual(recompute=True).allocation
        'general'
        """
        usual: dict[str, Any] = {"allocation": "general", "max_k": USUAL_MAX_K, "memory": "peak"}
        return cls(**usual | changes)

    def _check_replicas(self) -> None:
        name = "shard" if self.replicas == 1 else "replicas"
        if self.replicas == 1:
            raise InputError(
                "only replicas share the state of a stage",
                field=name,
                way_out="Allow replicas, or leave it out",
            )
        if self.allocation == "fixed":
            raise InputError(
                "are not searched for stages that are given",
                field=name,
                way_out="Leave one of the two out",
            )

    def _check_engine(self) -> None:
        check_choice(self, "engine", ENGINES)
        name = TITLES[self.engine or ENGINES[0]]
        free = {
            "split_backward": self.split_backward,
            "grain": self.grain == "layer",
        }
        for field_name, asked in free.items():
            if asked:
                raise InputError(
                    f"{name} runs whole forwards and backwards of whole stages",
                    field=field_name,
                    way_out="Leave it out",
                )
        if self.shard not in ("none", "optimizer"):
            raise InputError(
                f"in a pipeline {name} shares the optimizer state at most",
                field="shard",
                way_out="Share the optimizer state, or leave the engine out",
            )

    def covers(self, other: Scope) -> bool:
        """Whether every plan of `other` is one of this scope, so that its bounds hold there."""
        return (
            (self.allocation == "general" or self.allocation == other.allocation)
            and self._covers_length(other)
            and (self.grain == "layer" or other.grain == "stage")
            and (self.memory == "peak" or other.memory == "sum")
            and (self.split_backward or not other.split_backward)
            and (self.recompute or not other.recompute)
            and (self.gpu_order == "any" or other.gpu_order == "given")
            and (self.period_ns is None or self.period_ns == other.period_ns)
            and (self.engine is None or self.engine == other.engine)
            and self._covers_replicas(other)
            and _allows_most(self.tensor, other.tensor)
        )

    def _covers_replicas(self, other: Scope) -> bool:
        many = _allows_most(self.replicas, other.replicas)
        return many and SHARDS.index(other.shard) <= SHARDS.index(self.shard)

    def _covers_length(self, other: Scope) -> bool:
        if self.microbatches is not None:
            return self.microbatches == other.microbatches
        longest = other.max_k if other.microbatches is None else other.microbatches
        return self.max_k is None or (longest is not None and longest <= self.max_k)

    def __str__(self) -> str:
        words = [
            {
                "contiguous": "contiguous allocation",
                "general": "any allocation",
                "fixed": "the given allocation",
            }[self.allocation],
            *(
                [{None: "any k", 1: "k = 1"}.get(self.max_k, f"k up to {self.max_k}")]
                if self.microbatches is None
                else []
            ),
            f"whole {self.grain}s",
            "backward may be split" if self.split_backward else "whole backward",
            "recompute allowed" if self.recompute else "no recompute",
            f"memory as {self.memory}",
        ]
        if self.allocation == "contiguous" and self.gpu_order == "given":
            words.append("GPUs in the given order")
        if self.microbatches is not None:
            words.append(f"a step of {self.microbatches} micro-batches with a flush")
        if self.replicas != 1:
            words.append(self._say_replicas())
        if self.tensor != 1:
            most = "any size" if self.tensor is None else f"up to {self.tensor} GPUs"
            words.append(f"tensor groups of {most}")
        if self.period_ns is not None:
            words.append(f"period at most {self.period_ns} ns")
        if self.engine is not None:
            words.append(f"as {TITLES[self.engine]} runs it")
        return ", ".join(words)

    def allows(self, stages: Sequence[Stage]) -> bool:
        """Whether stages have no more replicas, and share no more of their state, than allowed."""
        most = max(len(stage.gpus) for stage in stages)
        levels = {stage.shard for stage in stages if len(stage.gpus) > 1}
        allowed = SHARDS[: SHARDS.index(self.shard) + 1]
        large = max(stage.tensor for stage in stages)
        return (
            _allows_most(self.replicas, most)
            and _allows_most(self.tensor, large)
            and levels <= {*allowed}
        )

    def _say_replicas(self) -> str:
        most = "any number of" if self.replicas is None else f"up to {self.replicas}"
        return f"{most} replicas of a stage{_SHARED[self.shard]}"


def _allows_most(most: int | None, other: int | None) -> bool:
    """Whether what is at most `other` is at most `most`; None: anything."""
    return most is None or (other is not None and other <= most)


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
            if not isinstance(getattr(self, name), kind):
                raise InputError(
                    f"{show(getattr(self, name))} is not a {kind.__name__}",
                    field=name,
                    way_out=f"Give a schedopt.{kind.__name__}",
                )
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
            if variant.chain.samples != self.chain.samples:
                raise InputError(
                    f"{variant.chain.samples}, and the chain has {self.chain.samples}",
                    field=f"{field}.chain.samples",
                    way_out="Give variants of one size of micro-batches",
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
        """The GPUs that a tensor group may have in the scope, ascending."""
        found = (1, *(variant.tensor for variant in self.variants))
        return tuple(count for count in found if _allows_most(self.scope.tensor, count))

    def in_group(self, tensor: int) -> Chain:
        """Return what the layers cost on each GPU of a tensor group of so many."""
        return next((one.chain for one in self.variants if one.tensor == tensor), self.chain)

    @property
    def is_training_step(self) -> bool:
        """Whether it is about a step that ends with the update of its weights."""
        return self.scope.microbatches is not None and not self.rule.is_given

    @property
    def replica_counts(self) -> tuple[int, ...]:
        """How many replicas a stage may have, ascending."""
        count = self.scope.microbatches or 1
        most = min(len(self.platform.gpus), count, self.scope.replicas or count)
        return tuple(number for number in range(1, most + 1) if count % number == 0)

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
        gpus = set(self.platform.gpus)
        total = sum(
            max(gpu.duration_ns(layer.longest_ns) for gpu in gpus) for layer in self.chain.layers
        )
        sent = (layer.activation_bytes for layer in self.chain.layers)
        trips = sorted(2 * self.platform.longest_transfer_ns(count) for count in sent)
        total += sum(trips[-len(self.platform.gpus) :])
        if total >= LARGEST_HORIZON_NS:
            raise InputError(
                f"layers and transfers take {total} ns on the slowest GPU",
                field="platform",
                way_out=f"Stay below {LARGEST_HORIZON_NS} ns; check bandwidth, latency and speed",
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
    count, rest = divmod(batch, chain.samples)
    if rest:
        raise InputError(
            f"{batch} samples are no whole number of micro-batches of {chain.samples}",
            field="batch",
            way_out=f"Give {f'{batch - rest} or ' if count else ''}{batch - rest + chain.samples}, "
            "or profile the chain with another micro-batch",
        )
    if count > MOST_MICROBATCHES:
        raise InputError(
            f"{count} micro-batches are more than {MOST_MICROBATCHES}",
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
