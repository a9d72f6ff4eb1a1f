"""Which option of the command line says what the library calls a field or a suggestion."""

from __future__ import annotations

import re
import sys
from typing import Final

from schedopt.errors import InputError, SchedoptError
from schedopt.launcher import tell_torchrun
from schedopt.proofs import Note, Suggestion, say_suggestions

OPTIONS: Final = {
    "Estimator.min_share": "--min-share",
    "Estimator.on": "--on",
    "Job(model=None)": "--synthetic",
    "Job.device": "--device",
    "Pipeline.partition": "--partition",
    "Pipeline.stages": "--stages",
    "Pipeline.tensor": "--tensor-parallel",
    "Platform.bandwidth": "--bandwidth",
    "Platform.gpus": "--gpus",
    "Problem.stages": "--fix",
    "Scope.allocation": "--allocation",
    "Scope.engine": "--for",
    "Scope.grain": "--grain",
    "Scope.hybrid": "--hybrid",
    "Scope.max_k": "--max-k",
    "Scope.memory": "--memory",
    "Scope.microbatches": "--microbatches",
    "Scope.period_ns": "--period",
    "Scope.recompute": "--recompute",
    "Scope.replicas": "--replicas",
    "Scope.shard": "--shard",
    "Scope.split_backward": "--split-backward",
    "Scope.tensor": "--tensor-parallel",
    "Scope.uneven": "--uneven",
    "import_chain.source": "--from",
    "import_launch.arguments": "--arguments",
    "import_launch.config": "--config",
    "import_launch.ignored": "--ignore",
    "import_profile.layers": "--layers",
    "solve.batch": "--batch",
    "tied_weights.copy_tied_weights": "--tied copied",
}
"""What the library calls that which an option sets."""
SUGGESTIONS: Final = {
    Suggestion.PLAIN_TORCH: "--for torch",
    Suggestion.NO_GRID: "--allocation contiguous (leave --for out)",
    Suggestion.ANOTHER_ORDER: "another order (leave --for out)",
    Suggestion.LONGER_PERIOD: "a longer period (without --period the least is found)",
    Suggestion.LONGER_PATTERN: "--max-k 4",
    Suggestion.SPLIT_BACKWARD: "--split-backward",
    Suggestion.RECOMPUTE: "--recompute",
    Suggestion.REPLICAS: "--replicas",
    Suggestion.SHARE_OPTIMIZER: "--shard optimizer",
    Suggestion.SHARE_MORE: "--shard parameter",
    Suggestion.COPIES: "--tied copied",
    Suggestion.TRAINING_STEP: "--batch",
    Suggestion.PEAK_MEMORY: "--memory peak",
    Suggestion.ANY_ALLOCATION: "--allocation general",
    Suggestion.OTHER_STAGES: "another allocation (leave --fix out)",
}
"""Suggestions that an option, or leaving one out, follows."""
MORE_TIME: Final = "more time (--time-limit)"
CONTIGUOUS: Final = "--solver contiguous, which has a plan wherever a partitioner has one"

_NAME: Final = re.compile(r"\b[A-Za-z_]+\.\w+")
_CALL: Final = re.compile(r"\b([A-Za-z_]+)\((\w+=[^)]*)\)")


def report(error: SchedoptError) -> int:
    """Print an error in one line, and return the exit code: 2 for bad input, 1 for all else."""
    shown = with_options(error) if isinstance(error, InputError) else error
    print(f"Error: {shown}", file=sys.stderr, flush=True)
    tell_torchrun(f"Error: {shown}")
    return 2 if isinstance(error, InputError) else 1


def with_options(error: InputError) -> InputError:
    """Return an error whose way out names options of the command line, not fields.

    ``Scope.recompute`` becomes ``--recompute``, and ``Scope(max_k=2)`` becomes ``--max-k 2``.
    """
    way_out = _CALL.sub(_say_call, error.way_out)
    way_out = _NAME.sub(lambda name: OPTIONS.get(name[0], name[0]), way_out)
    return InputError(error.rule, field=error.field, way_out=way_out, source=error.source)


def _say_call(call: re.Match[str]) -> str:
    """Return the options of a call with keywords; the call where one has no option."""
    if call[0] in OPTIONS:
        return OPTIONS[call[0]]
    arguments = [part.partition("=") for part in call[2].split(", ")]
    options = [OPTIONS.get(f"{call[1]}.{name}") for name, _, _ in arguments]
    if None in options:
        return call[0]
    values = (value.strip('"') for _, _, value in arguments)
    return " ".join(f"{option} {value}" for option, value in zip(options, values, strict=True))


def say_note(note: Note | str) -> str:
    """Return the note of a phase in words."""
    return note.say(_say) if isinstance(note, Note) else note


def say_ways(suggestions: tuple[Suggestion, ...] | str) -> str:
    """Return what to try next in words."""
    return say_suggestions(suggestions, _say)


def _say(suggestion: Suggestion) -> str:
    return SUGGESTIONS.get(suggestion, suggestion.words)
