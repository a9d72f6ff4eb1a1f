"""Kinds of proof, outcomes of a phase, and what to try next: data, and its words in English.

What the report explains of a proof, and which option of the command line stands for a suggestion,
is said in those two places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from operator import attrgetter
from string import Formatter
from typing import Any, ClassVar, Final, Self

from schedopt.engine import TITLES, Engine
from schedopt.errors import InputError
from schedopt.units import format_bytes, format_duration
from schedopt.validation import STRICT, Ratio, check_ratio, check_whole


class _Worded(Enum):
    """Members with a value, which files hold, and words."""

    words: str

    def __new__(cls, value: str, words: str) -> Self:
        member = object.__new__(cls)
        member._value_, member.words = value, words
        return member


class ProofKind(_Worded):
    """Why a bound holds, or why no plan exists; its words name the parameters."""

    SHARED_WORK = "shared_work", "all work, shared evenly by all GPUs"
    LONGEST_LAYER = "longest_layer", "the longest layer, on the fastest GPU"
    LONG_LAYERS = "long_layers", "long layers that must share a GPU, on the fastest one"
    WORK_OF_STAGES = "work_of_stages", "the work of GPU {gpu}, with the stages that are given"
    WORK_OF_RESOURCE = "work_of_resource", "a GPU or link works so long for each micro-batch"
    IN_FLIGHT_OF_STAGE = (
        "in_flight_of_stage",
        "each stage keeps its micro-batches in flight while later stages work on them",
    )
    IN_FLIGHT_OF_ALL = (
        "in_flight_of_all",
        "what all micro-batches in flight keep must fit the memory of all GPUs",
    )
    IN_FLIGHT_CUTS = (
        "in_flight_cuts",
        "what micro-batches in flight keep forces cuts, and cuts take transfers",
    )
    IN_FLIGHT_INSTANTS = (
        "in_flight_instants",
        "what micro-batches in flight keep at one instant forces cuts, and cuts take transfers",
    )
    STEP_OF_GPUS = (
        "step_of_gpus",
        "GPUs start behind the forwards and end before the backwards of other layers",
    )
    STEP_IN_FLIGHT = (
        "step_in_flight",
        "what micro-batches in flight keep forces cuts and turns, and GPUs wait at both ends",
    )
    STEP_OF_AVERAGES = (
        "step_of_averages",
        "what all micro-batches keep must fit the memory over a step, and recompute is work",
    )
    STEP_OF_GRADIENTS = (
        "step_of_gradients",
        "all work, shared evenly by all GPUs, and gradients that go round behind it",
    )
    STEP_OF_STAGES = (
        "step_of_stages",
        "each stage waits for the forwards before it and is waited for by backwards",
    )
    TRAINING_STEP = (
        "training_step",
        "dynamic programme over cuts and replicas: work, turns that memory forces, ways to a stage "
        "and back, collectives",
    )
    NO_STAGES_WITH_REPLICAS = (
        "no_stages_with_replicas",
        "dynamic programme over cuts and replicas: none fits one micro-batch after the other",
    )
    STEP_OF_RESOURCE = (
        "step_of_resource",
        "the way to a GPU or link, all its work, and the way back",
    )
    ONE_F_ONE_B_STAR = (
        "one_f_one_b_star",
        "1F1B* keeps the fewest activations (Beaumont et al. 2021, Theorem 3)",
    )
    CONTIGUOUS_DP = "contiguous_dp", "exact dynamic programme over cuts and 1F1B* spans"
    REPLICATED_DP = (
        "replicated_dp",
        "exact dynamic programme over cuts, replicas and 1F1B* spans",
    )
    ORDERS = "orders", "CP-SAT over all orders of k micro-batches"
    ORDERS_OF_STEP = "orders_of_step", "CP-SAT over all orders of the step"
    CONTIGUOUS_ALLOCATIONS = (
        "contiguous_allocations",
        "CP-SAT over all contiguous allocations and all orders of k micro-batches",
    )
    ALLOCATIONS = "allocations", "CP-SAT over all allocations and all orders of k micro-batches"
    ALLOCATIONS_WITHOUT_ORDERS = (
        "allocations_without_orders",
        "CP-SAT over all allocations: nothing is kept for a micro-batch",
    )
    RELAXATION = (
        "relaxation",
        "CP-SAT over all allocations, with spans, counts and sums but without orders",
    )
    ORDERS_OF_GPUS = (
        "orders_of_gpus",
        "no GPU can hold its share of the layers, whatever the order of its operations",
    )
    ORDERS_OF_ALLOCATIONS = (
        "orders_of_allocations",
        "no allocation has orders of its operations on all GPUs that agree",
    )
    PACKINGS_ONTO_GPUS = "packings_onto_gpus", "CP-SAT over all ways to pack the layers onto GPUs"
    PACKINGS_INTO_HOLES = (
        "packings_into_holes",
        "CP-SAT over all ways to fill the holes that forced operations leave",
    )
    ENGINE_CUTS = (
        "engine_cuts",
        "every cut that {engine} can run was looked at, or cannot be shorter",
    )
    ENGINE_PATHS = (
        "engine_paths",
        "a search over all cuts that {engine} can run, by paths through its order",
    )
    NO_ENGINE_CUT = "no_engine_cut", "of all cuts that {engine} can run, none fits"
    NO_ENGINE_GRID = (
        "no_engine_grid",
        "no pipeline, data and tensor parallel sizes of {engine} take all the GPUs and share the "
        "micro-batches evenly",
    )
    NO_SHORT_ENGINE_CUT = (
        "no_short_engine_cut",
        "of all cuts that {engine} can run, none fits and is as short as asked",
    )
    LAYER_TOO_LARGE = "layer_too_large", "layer {first} alone needs {memory}, more than any GPU has"
    LAYERS_TOO_LARGE = "layers_too_large", "all layers together need {memory}, the GPUs have {room}"
    GPU_LACKS_MEMORY = (
        "gpu_lacks_memory",
        "GPU {gpu} lacks {memory_bytes} bytes with one micro-batch in flight",
    )
    RESOURCE_TOO_BUSY = "resource_too_busy", "a GPU or link works {time_ns} ns in each period"
    FILLED_STAGE = (
        "filled_stage",
        "stage {stage} keeps one micro-batch at a time, for {time_ns} ns: there is no room for a "
        "second",
    )
    # What follows from another proof.
    STAGE_NEEDS = (
        "stage_needs",
        "stage {stage} needs {memory_bytes} bytes with the fewest activations; {basis}",
    )
    GPU_NEEDS = (
        "gpu_needs",
        "{basis}; GPU {gpu} with layers {first} to {last} needs {memory_bytes} bytes",
    )
    NO_MEMORY_HELPS = "no_memory_helps", "{basis}; no amount of memory helps"
    NO_MEMORY_FOR_ONE = (
        "no_memory_for_one",
        "{basis}: memory does not hold one micro-batch after the other",
    )
    PERIOD_ABOVE = "period_above", "{basis}; the least period is above {time_ns} ns"
    BOUND_ABOVE = "bound_above", "no period is below {period}: {basis}"
    CLAIMED = "claimed", "the solver {solver} says so, which schedopt has not verified: {basis}"


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
    solver : str, optional
        A solver of another package.
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
    solver: str | None = None
    basis: Proof | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, ProofKind):
            raise InputError(
                f"{self.kind!r:.60} is not a ProofKind",
                field="kind",
                way_out="Give a member, such as ProofKind.SHARED_WORK",
            )
        for name in ("gpu", "stage", "memory_bytes", "room_bytes", "time_ns"):
            check_whole(self, name, high=2**70, optional=True)
        check_ratio(self, "period_exact")
        for _, word, _, _ in Formatter().parse(self.kind.words):
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
        return self.kind.words.format_map(words)


class Suggestion(_Worded):
    """What could make a plan, or a better one, possible; its words are for callers."""

    PLAIN_TORCH = "plain_torch", 'what plain torch runs (Scope.engine = "torch")'
    NO_GRID = (
        "no_grid",
        'one stage for each GPU, in another order (Scope.allocation = "contiguous", no engine)',
    )
    ANOTHER_ORDER = "another_order", "another order (without Scope.engine)"
    LONGER_PERIOD = "longer_period", "a longer period (without Scope.period_ns the least is found)"
    LONGER_PATTERN = "longer_pattern", "longer patterns (Scope.max_k)"
    SPLIT_BACKWARD = "split_backward", "split backwards (Scope.split_backward)"
    RECOMPUTE = "recompute", "recompute (Scope.recompute)"
    REPLICAS = "replicas", "replicas (Scope.replicas)"
    SHARE_OPTIMIZER = "share_optimizer", "replicas that share the optimizer state (Scope.shard)"
    SHARE_MORE = "share_more", "replicas that share more of their state (Scope.shard)"
    COPIES = "copies", "a copy of tied weights in each layer that uses them (copy_tied_weights)"
    TRAINING_STEP = "training_step", "a training step (solve.batch)"
    PEAK_MEMORY = "peak_memory", "memory read as its peak (Scope.memory)"
    ANY_ALLOCATION = "any_allocation", "any allocation (Scope.allocation)"
    OTHER_STAGES = "other_stages", "another allocation (without stages)"
    FINER_CHAIN = "finer_chain", "a finer chain"
    SMALLER_MICROBATCH = "smaller_microbatch", "a smaller micro-batch"
    OTHER_MICROBATCHES = "other_microbatches", "another batch or size of micro-batches"
    OTHER_GPUS = "other_gpus", "another number of GPUs"
    MORE_MEMORY = "more_memory", "more memory"
    MORE_GPUS = "more_gpus", "more GPUs"

    def __str__(self) -> str:
        return self.words


SayOne = Callable[[Suggestion], str]


def say_suggestions(
    suggestions: Iterable[Suggestion] | str, say: SayOne = attrgetter("words")
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


class Outcome(_Worded):
    """What a phase of the portfolio came to."""

    REFUSED = "refused", "left out"
    INFEASIBLE = "infeasible", "proven infeasible"
    OPTIMAL = "optimal", "proven optimal"
    PROVES_BEST = "proves_best", "proves that the best is optimal"
    BOUND_ONLY = "bound_only", "a bound, no plans"
    NO_PLAN_EXISTS = "no_plan_exists", "no plan: {proof}"
    NO_PLAN_IN_SUM = "no_plan_in_sum", "no plan with memory read as its sum: {proof}"
    NO_PLAN = "no_plan", "no plan"
    NONE_FITS = "none_fits", "no plan that fits"
    BEST_OF_KIND = "best_of_kind", "best of its kind, proven"
    NOT_PROVEN = "not_proven", "not proven optimal"
    NO_BETTER_EXISTS = "no_better_exists", "no better plan exists"
    NO_BETTER = "no_better", "no better plan"
    WOULD_HELP = "would_help", "not allowed: {suggestion}"
    WOULD_NOT_HELP = "would_not_help", "{suggestion} found no better"


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
    dropped_exact : (int, int), optional
        The normalized period, ns, of a better plan that would fit if nothing came before it is
        read.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    outcome: Outcome
    stopped: bool = False
    detail: str = ""
    proof: Proof | str | None = None
    least_memory_bytes: int | None = None
    is_increase: bool = False
    suggestion: Suggestion | None = None
    dropped_exact: Ratio | None = None

    def __post_init__(self) -> None:
        check_ratio(self, "dropped_exact")

    def __str__(self) -> str:
        return self.say(attrgetter("words"))

    def say(self, say: SayOne) -> str:
        """Return the note with other words for its suggestion."""
        suggestion = "" if self.suggestion is None else say(self.suggestion)
        said = self.outcome.words.format(proof=self.proof, suggestion=suggestion)
        if self.least_memory_bytes is not None:
            more = " more on every GPU" if self.is_increase else ""
            said += f"; {format_bytes(self.least_memory_bytes)}{more} would do"
        if self.dropped_exact is not None:
            period = format_duration(Fraction(*self.dropped_exact))
            said += f"; what comes before it is read has no room in one of {period}"
        if self.detail:
            said += f"{': ' if self.outcome is Outcome.REFUSED else '; '}{self.detail}"
        return f"stopped early: {said}" if self.stopped else said
