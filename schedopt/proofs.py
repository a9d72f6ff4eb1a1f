"""Kinds of proof, outcomes of a phase, and what to try next: data, and its words in English.

What the report explains of a proof, and which option of the command line stands for a suggestion,
is said in those two places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from string import Formatter
from typing import Any, ClassVar, Final

from schedopt.engine import TITLES, Engine
from schedopt.errors import InputError
from schedopt.units import format_bytes, format_duration
from schedopt.validation import STRICT, Ratio, check_ratio, check_whole


class ProofKind(Enum):
    """Why a bound holds, or why no plan exists."""

    SHARED_WORK = "shared_work"
    LONGEST_LAYER = "longest_layer"
    LONG_LAYERS = "long_layers"
    WORK_OF_STAGES = "work_of_stages"
    WORK_OF_RESOURCE = "work_of_resource"
    IN_FLIGHT_OF_STAGE = "in_flight_of_stage"
    IN_FLIGHT_OF_ALL = "in_flight_of_all"
    IN_FLIGHT_CUTS = "in_flight_cuts"
    STEP_OF_GPUS = "step_of_gpus"
    STEP_OF_STAGES = "step_of_stages"
    STEP_OF_RESOURCE = "step_of_resource"
    ONE_F_ONE_B_STAR = "one_f_one_b_star"
    CONTIGUOUS_DP = "contiguous_dp"
    ORDERS = "orders"
    ORDERS_OF_STEP = "orders_of_step"
    CONTIGUOUS_ALLOCATIONS = "contiguous_allocations"
    ALLOCATIONS = "allocations"
    ALLOCATIONS_WITHOUT_ORDERS = "allocations_without_orders"
    RELAXATION = "relaxation"
    PACKINGS_ONTO_GPUS = "packings_onto_gpus"
    PACKINGS_INTO_HOLES = "packings_into_holes"
    ENGINE_CUTS = "engine_cuts"
    NO_ENGINE_CUT = "no_engine_cut"
    NO_SHORT_ENGINE_CUT = "no_short_engine_cut"
    LAYER_TOO_LARGE = "layer_too_large"
    LAYERS_TOO_LARGE = "layers_too_large"
    GPU_LACKS_MEMORY = "gpu_lacks_memory"
    RESOURCE_TOO_BUSY = "resource_too_busy"
    FILLED_STAGE = "filled_stage"
    # What follows from another proof.
    STAGE_NEEDS = "stage_needs"
    GPU_NEEDS = "gpu_needs"
    NO_MEMORY_HELPS = "no_memory_helps"
    NO_MEMORY_FOR_ONE = "no_memory_for_one"
    PERIOD_ABOVE = "period_above"
    BOUND_ABOVE = "bound_above"


PROOF_WORDS: Final[dict[ProofKind, str]] = {
    ProofKind.SHARED_WORK: "all work, shared evenly by all GPUs",
    ProofKind.LONGEST_LAYER: "the longest layer, on the fastest GPU",
    ProofKind.LONG_LAYERS: "long layers that must share a GPU, on the fastest one",
    ProofKind.WORK_OF_STAGES: "the work of GPU {gpu}, with the stages that are given",
    ProofKind.WORK_OF_RESOURCE: "a GPU or link works so long for each micro-batch",
    ProofKind.IN_FLIGHT_OF_STAGE: (
        "each stage keeps its micro-batches in flight while later stages work on them"
    ),
    ProofKind.IN_FLIGHT_OF_ALL: (
        "what all micro-batches in flight keep must fit the memory of all GPUs"
    ),
    ProofKind.IN_FLIGHT_CUTS: (
        "what micro-batches in flight keep forces cuts, and cuts take transfers"
    ),
    ProofKind.STEP_OF_GPUS: (
        "GPUs start behind the forwards and end before the backwards of other layers"
    ),
    ProofKind.STEP_OF_STAGES: (
        "each stage waits for the forwards before it and is waited for by backwards"
    ),
    ProofKind.STEP_OF_RESOURCE: "the way to a GPU or link, all its work, and the way back",
    ProofKind.ONE_F_ONE_B_STAR: (
        "1F1B* keeps the fewest activations (Beaumont et al. 2021, Theorem 3)"
    ),
    ProofKind.CONTIGUOUS_DP: "exact dynamic programme over cuts and 1F1B* spans",
    ProofKind.ORDERS: "CP-SAT over all orders of k micro-batches",
    ProofKind.ORDERS_OF_STEP: "CP-SAT over all orders of the step",
    ProofKind.CONTIGUOUS_ALLOCATIONS: (
        "CP-SAT over all contiguous allocations and all orders of k micro-batches"
    ),
    ProofKind.ALLOCATIONS: "CP-SAT over all allocations and all orders of k micro-batches",
    ProofKind.ALLOCATIONS_WITHOUT_ORDERS: (
        "CP-SAT over all allocations: nothing is kept for a micro-batch"
    ),
    ProofKind.RELAXATION: (
        "CP-SAT over all allocations, with spans, counts and sums but without orders"
    ),
    ProofKind.PACKINGS_ONTO_GPUS: "CP-SAT over all ways to pack the layers onto GPUs",
    ProofKind.PACKINGS_INTO_HOLES: (
        "CP-SAT over all ways to fill the holes that forced operations leave"
    ),
    ProofKind.ENGINE_CUTS: "every cut that {engine} can run was looked at, or cannot be shorter",
    ProofKind.NO_ENGINE_CUT: "of all cuts that {engine} can run, none fits",
    ProofKind.NO_SHORT_ENGINE_CUT: (
        "of all cuts that {engine} can run, none fits and is as short as asked"
    ),
    ProofKind.LAYER_TOO_LARGE: "layer {first} alone needs {memory}, more than any GPU has",
    ProofKind.LAYERS_TOO_LARGE: "all layers together need {memory}, the GPUs have {room}",
    ProofKind.GPU_LACKS_MEMORY: (
        "GPU {gpu} lacks {memory_bytes} bytes with one micro-batch in flight"
    ),
    ProofKind.RESOURCE_TOO_BUSY: "a GPU or link works {time_ns} ns in each period",
    ProofKind.FILLED_STAGE: (
        "stage {stage} keeps one micro-batch at a time, for {time_ns} ns: there is no room for a "
        "second"
    ),
    ProofKind.STAGE_NEEDS: (
        "stage {stage} needs {memory_bytes} bytes with the fewest activations; {basis}"
    ),
    ProofKind.GPU_NEEDS: (
        "{basis}; GPU {gpu} with layers {first} to {last} needs {memory_bytes} bytes"
    ),
    ProofKind.NO_MEMORY_HELPS: "{basis}; no amount of memory helps",
    ProofKind.NO_MEMORY_FOR_ONE: ("{basis}: memory does not hold one micro-batch after the other"),
    ProofKind.PERIOD_ABOVE: "{basis}; the least period is above {time_ns} ns",
    ProofKind.BOUND_ABOVE: "no period is below {period}: {basis}",
}
"""Each kind of proof in a few words, with its parameters."""

_FIELDS: Final = {
    "memory": "memory_bytes",
    "room": "room_bytes",
    "period": "period_exact",
    "first": "layers",
    "last": "layers",
}
"""What the words call a field otherwise than the field."""


@dataclass(frozen=True)
class Proof:
    """Why a bound holds, or why no plan exists. `str` says it in a few words.

    Parameters
    ----------
    kind : ProofKind
        Says which of the others it needs.
    gpu, stage : int, optional
    layers : (int, int), optional
        The first and the last.
    memory_bytes, room_bytes : int, optional
        What is needed, and what there is.
    time_ns : int, optional
    period_exact : (int, int), optional
        Numerator and denominator, ns.
    engine : {"megatron", "deepspeed"}, optional
    basis : Proof or str, optional
        The proof from which it follows.

    Raises
    ------
    InputError
        If a parameter of its kind is missing.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    kind: ProofKind
    gpu: int | None = None
    stage: int | None = None
    layers: tuple[int, int] | None = None
    memory_bytes: int | None = None
    room_bytes: int | None = None
    time_ns: int | None = None
    period_exact: Ratio | None = None
    engine: Engine | None = None
    basis: Proof | str | None = None

    def __post_init__(self) -> None:
        for name in ("gpu", "stage", "memory_bytes", "room_bytes", "time_ns"):
            check_whole(self, name, high=2**70, optional=True)
        check_ratio(self, "period_exact")
        for _, word, _, _ in Formatter().parse(PROOF_WORDS[self.kind]):
            if word is None:
                continue
            name = _FIELDS.get(word, word)
            if getattr(self, name) is None:
                raise InputError(
                    f"is missing, and the proof {self.kind.value} needs it", field=name
                )

    def __str__(self) -> str:
        first, last = self.layers or (0, 0)
        words = {name: getattr(self, name) for name in self.__dataclass_fields__}
        words |= {
            "first": first,
            "last": last,
            "memory": format_bytes(self.memory_bytes or 0),
            "room": format_bytes(self.room_bytes or 0),
            "period": format_duration(Fraction(*(self.period_exact or (0, 1)))),
            "engine": TITLES[self.engine] if self.engine else "",
        }
        return PROOF_WORDS[self.kind].format_map(words)


class Suggestion(Enum):
    """What could make a plan, or a better one, possible."""

    ANOTHER_ORDER = "another_order"
    LONGER_PERIOD = "longer_period"
    LONGER_PATTERN = "longer_pattern"
    SPLIT_BACKWARD = "split_backward"
    RECOMPUTE = "recompute"
    PEAK_MEMORY = "peak_memory"
    ANY_ALLOCATION = "any_allocation"
    OTHER_STAGES = "other_stages"
    FINER_CHAIN = "finer_chain"
    SMALLER_MICROBATCH = "smaller_microbatch"
    MORE_MEMORY = "more_memory"
    MORE_GPUS = "more_gpus"


SUGGESTION_WORDS: Final[dict[Suggestion, str]] = {
    Suggestion.ANOTHER_ORDER: "another order (without Scope.engine)",
    Suggestion.LONGER_PERIOD: "a longer period (without Scope.period_ns the least is found)",
    Suggestion.LONGER_PATTERN: "longer patterns (Scope.max_k)",
    Suggestion.SPLIT_BACKWARD: "split backwards (Scope.split_backward)",
    Suggestion.RECOMPUTE: "recompute (Scope.recompute)",
    Suggestion.PEAK_MEMORY: "memory read as its peak (Scope.memory)",
    Suggestion.ANY_ALLOCATION: "any allocation (Scope.allocation)",
    Suggestion.OTHER_STAGES: "another allocation (without stages)",
    Suggestion.FINER_CHAIN: "a finer chain",
    Suggestion.SMALLER_MICROBATCH: "a smaller micro-batch",
    Suggestion.MORE_MEMORY: "more memory",
    Suggestion.MORE_GPUS: "more GPUs",
}
"""Each suggestion for a caller of the library."""

SayOne = Callable[[Suggestion], str]


def say_suggestions(
    suggestions: Iterable[Suggestion] | str, say: SayOne = SUGGESTION_WORDS.__getitem__
) -> str:
    """Return suggestions as one phrase; words of another package as they are.

    Examples
    --------
    >>> say_suggestions((Suggestion.SMALLER_MICROBATCH, Suggestion.MORE_GPUS))
    'a smaller micro-batch, or more GPUs'
    """
    if isinstance(suggestions, str):
        return suggestions
    said = [say(suggestion) for suggestion in suggestions]
    return ", ".join([*said[:-1], f"or {said[-1]}"]) if len(said) > 1 else "".join(said)


class Outcome(Enum):
    """What a phase of the portfolio came to."""

    REFUSED = "refused"
    INFEASIBLE = "infeasible"
    OPTIMAL = "optimal"
    PROVES_BEST = "proves_best"
    BOUND_ONLY = "bound_only"
    NO_PLAN_EXISTS = "no_plan_exists"
    NO_PLAN = "no_plan"
    NONE_FITS = "none_fits"
    BEST_OF_KIND = "best_of_kind"
    NOT_PROVEN = "not_proven"
    NO_BETTER_EXISTS = "no_better_exists"
    NO_BETTER = "no_better"
    WOULD_HELP = "would_help"
    WOULD_NOT_HELP = "would_not_help"


OUTCOME_WORDS: Final[dict[Outcome, str]] = {
    Outcome.REFUSED: "left out",
    Outcome.INFEASIBLE: "proven infeasible",
    Outcome.OPTIMAL: "proven optimal",
    Outcome.PROVES_BEST: "proves that the best is optimal",
    Outcome.BOUND_ONLY: "a bound, no plans",
    Outcome.NO_PLAN_EXISTS: "no plan: {proof}",
    Outcome.NO_PLAN: "no plan",
    Outcome.NONE_FITS: "no plan that fits",
    Outcome.BEST_OF_KIND: "best of its kind, proven",
    Outcome.NOT_PROVEN: "not proven optimal",
    Outcome.NO_BETTER_EXISTS: "no better plan exists",
    Outcome.NO_BETTER: "no better plan",
    Outcome.WOULD_HELP: "not allowed: {suggestion}",
    Outcome.WOULD_NOT_HELP: "{suggestion} found no better",
}
"""Each outcome in a few words."""


@dataclass(frozen=True)
class Note:
    """What a phase proved, or why it found nothing. `str` says it in a few words.

    Parameters
    ----------
    outcome : Outcome
    stopped : bool
        Whether it was stopped before its end.
    detail : str
        Why it was refused, or the question that the solver left open, in the solver's words.
    proof : Proof or str, optional
        Why there is no plan.
    least_memory_bytes : int, optional
        The memory with which there is one.
    is_increase : bool
        Whether that is what every GPU needs more than it has.
    suggestion : Suggestion, optional
        The freedom that was tried though it is not allowed.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    outcome: Outcome
    stopped: bool = False
    detail: str = ""
    proof: Proof | str | None = None
    least_memory_bytes: int | None = None
    is_increase: bool = False
    suggestion: Suggestion | None = None

    def __str__(self) -> str:
        return self.say(SUGGESTION_WORDS.__getitem__)

    def say(self, say: SayOne) -> str:
        """Return the note with other words for its suggestion."""
        suggestion = "" if self.suggestion is None else say(self.suggestion)
        said = OUTCOME_WORDS[self.outcome].format(proof=self.proof, suggestion=suggestion)
        if self.least_memory_bytes is not None:
            more = " more on every GPU" if self.is_increase else ""
            said += f"; {format_bytes(self.least_memory_bytes)}{more} would do"
        if self.detail:
            said += f"{': ' if self.outcome is Outcome.REFUSED else '; '}{self.detail}"
        return f"stopped early: {said}" if self.stopped else said
