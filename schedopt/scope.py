"""The plans that are allowed: what a bound and the word *optimal* speak of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from schedopt.engine import ENGINES, TITLES, Engine
from schedopt.errors import InputError
from schedopt.stage import LARGEST_GROUP, SHARDS, Shard, Stage, say_shared
from schedopt.units import counted
from schedopt.validation import STRICT, check_choice, check_whole

Allocation = Literal["contiguous", "general", "fixed"]
Grain = Literal["stage", "layer"]
MemoryReading = Literal["sum", "peak"]
GpuOrder = Literal["given", "any"]

MOST_MICROBATCHES: Final = 2**20
"""Of a step."""
USUAL_MAX_K: Final = 2
"""The longest pattern that is looked for on any allocation where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The plans that are allowed: what a bound and the word *optimal* speak of.

    Each field defaults to the narrowest: neighbouring layers, patterns of one micro-batch, memory
    as a sum. `Scope.usual` is what `schedopt.solve` takes where no scope is given.

    All of them have one micro-batch for each operation and transfer, and one GPU for each stage
    unless `replicas` says more. Plans of other kinds can be written down, checked and run; no bound
    speaks of them. `schedopt.check` holds replicas and shards of a plan against a scope that allows
    replicas, and tensor groups against one that allows these.

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
        The most GPUs among which a stage deals its micro-batches in turn. None: any. Of a training
        step, one whose rule updates the weights, they divide `microbatches`; gradients are added
        up, and updated weights gathered, around rings of all replicas of a stage (Patarasuk and
        Yuan 2009). In the steady state of the rule *given* no update is in the pattern, nor what
        replicas send for it.
    shard : {"none", "optimizer", "gradient", "parameter"}
        The most that replicas may share of the state of a stage (Rajbhandari et al. 2020): nothing,
        the optimizer state (ZeRO-1), gradients too (ZeRO-2), parameters too (ZeRO-3). Each stage
        may share less. One that shares gradients or parameters runs layer by layer: its layers are
        stages of the plan on the same GPUs, which a forward runs one right behind the other, and a
        backward too, with what it recomputes. Where the allocation is contiguous they count as one.
    uneven : bool
        Whether replicas that share nothing need not divide the micro-batches of a training step:
        some then run one more. The next step begins on another replica, so that all GPUs and links
        must be alike.
    hybrid : bool
        Whether groups of replicas may have copies of all shards (HSDP; `Stage.shard_copies`).
        They are looked for as Megatron-LM and torchtitan have them.
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
    uneven: bool = False
    hybrid: bool = False

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
        for name in ("split_backward", "recompute", "uneven", "hybrid"):
            if not isinstance(getattr(self, name), bool):
                raise InputError("neither True nor False", field=name)
        if self.uneven and (self.replicas == 1 or self.engine is not None):
            raise InputError(
                "only replicas are dealt unequal numbers of micro-batches, and no engine does so",
                field="uneven",
                way_out="Allow replicas without an engine, or leave it out",
            )
        if self.hybrid and self.shard == "none":
            raise InputError(
                "there are copies of shards where replicas share something",
                field="hybrid",
                way_out="Share the optimizer state or more (Scope.shard), or leave it out",
            )
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
            and allows_most(self.tensor, other.tensor)
        )

    def _covers_replicas(self, other: Scope) -> bool:
        many = allows_most(self.replicas, other.replicas)
        shared = SHARDS.index(other.shard) <= SHARDS.index(self.shard)
        dealt = self.uneven or not other.uneven
        return many and shared and dealt and (self.hybrid or not other.hybrid)

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
            words.append(f"a step of {counted(self.microbatches, 'micro-batch')} with a flush")
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
        """Whether stages have replicas of allowed numbers, which share no more than is allowed."""
        most = max(len(stage.gpus) for stage in stages)
        levels = {stage.shard for stage in stages if len(stage.gpus) > 1}
        allowed = SHARDS[: SHARDS.index(self.shard) + 1]
        large = max(stage.tensor for stage in stages)
        count = self.microbatches or 0
        unequal = [stage for stage in stages if count % len(stage.gpus)]
        return (
            allows_most(self.replicas, most)
            and allows_most(self.tensor, large)
            and levels <= {*allowed}
            and all(self.uneven and stage.shard == "none" for stage in unequal)
            and (self.hybrid or all(stage.shard_copies == 1 for stage in stages))
        )

    def _say_replicas(self) -> str:
        most = "any number of" if self.replicas is None else f"up to {self.replicas}"
        others = "" if self.shard == "none" else "or "
        dealt = f", {others}some of which run one micro-batch more" if self.uneven else ""
        groups = ", perhaps in groups" if self.hybrid else ""
        shared = "" if self.shard == "none" else f" that may share {say_shared(self.shard)}"
        return f"{most} replicas of a stage{shared}{groups}{dealt}"


def allows_most(most: int | None, other: int | None) -> bool:
    """Whether what is at most `other` is at most `most`; None: anything."""
    return most is None or (other is not None and other <= most)
