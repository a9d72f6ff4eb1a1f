"""Proofs, notes and suggestions: data that can be read as text, and names no option."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import schedopt
from schedopt import InputError
from schedopt.proofs import (
    Note,
    Outcome,
    Proof,
    ProofKind,
    Suggestion,
    say_suggestions,
)

PACKAGE = Path(schedopt.__file__).parent
ROOMS = (
    "account actions bounds checking comparing exporting families formats importing profiling "
    "running simulation solvers solving sweeping systems"
)
OTHERS = (
    "megatron.py",
    "megatron_args.py",
    "shell.py",
    "devices.py",
    "titan_values.py",
)
"""Modules that name options of other programs."""
OPTION = re.compile(r"(?<![\w-])--[a-z]")


def example(kind: ProofKind) -> Proof:
    """Return a proof with all parameters that any kind needs."""
    return Proof(
        kind,
        gpu=1,
        stage=2,
        layers=(3, 4),
        memory_bytes=5,
        room_bytes=6,
        time_ns=7,
        period_exact=(8, 1),
        engine="megatron",
        solver="theirs",
        basis=Proof(ProofKind.ORDERS),
    )


def test_each_proof_outcome_and_suggestion_has_words_of_its_own() -> None:
    proofs = {str(example(kind)) for kind in ProofKind}
    outcomes = {str(Note(outcome)) for outcome in Outcome}
    assert (len(proofs), len(outcomes)) == (len(ProofKind), len(Outcome))
    assert len({suggestion.words for suggestion in Suggestion}) == len(Suggestion)


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        (
            Proof(ProofKind.GPU_NEEDS, gpu=1, layers=(3, 4), memory_bytes=5, basis="an oracle"),
            "an oracle; GPU 1 with layers 3 to 4 needs 5 bytes",
        ),
        (
            Proof(
                ProofKind.BOUND_ABOVE, period_exact=(2500, 1), basis=Proof(ProofKind.LONG_LAYERS)
            ),
            "no period is below 2.500 us: long layers that must share a GPU, on the fastest one",
        ),
        (
            Proof(ProofKind.NO_ENGINE_CUT, engine="deepspeed"),
            "of all cuts that DeepSpeed can run, none fits",
        ),
        (
            Proof(ProofKind.LAYER_TOO_LARGE, layers=(2, 2), memory_bytes=3000),
            "layer 2 alone needs 3.00 KB, more than any GPU has",
        ),
        (
            Proof(ProofKind.CLAIMED, solver="theirs", basis="trust me"),
            "the solver theirs says so, which schedopt has not verified: trust me",
        ),
    ],
)
def test_a_proof_reads_as_text(proof: Proof, words: str) -> None:
    assert str(proof) == words


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (Note(Outcome.REFUSED, detail="too large"), "left out: too large"),
        (Note(Outcome.NO_PLAN, stopped=True, detail="half"), "stopped early: no plan; half"),
        (
            Note(Outcome.NO_PLAN_EXISTS, proof="because", least_memory_bytes=5, is_increase=True),
            "no plan: because; 5 B more on every GPU would do",
        ),
    ],
)
def test_a_note_reads_as_text(note: Note, words: str) -> None:
    assert str(note) == words


def test_suggestions_read_as_text() -> None:
    assert say_suggestions(()) == ""
    assert say_suggestions("ask somebody") == "ask somebody"
    assert say_suggestions([Suggestion.MORE_GPUS]) == str(Suggestion.MORE_GPUS) == "more GPUs"


def test_a_parameter_that_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="basis: is missing"):
        Proof(ProofKind.NO_MEMORY_HELPS)


def test_a_kind_that_is_only_a_text_is_refused() -> None:
    with pytest.raises(InputError, match="kind: 'shared_work' is not a ProofKind"):
        Proof("shared_work")  # type: ignore[arg-type]


def texts(path: Path) -> Iterator[str]:
    """Yield what a module can say: its strings without the docstrings."""
    tree = ast.parse(path.read_text())
    said = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


@pytest.mark.parametrize("room", ["", *ROOMS.split()])
def test_the_library_names_no_option_of_the_command_line(room: str) -> None:
    paths = list((PACKAGE / room).glob("*.py" if not room else "**/*.py"))
    assert paths
    said = [
        (path.name, text)
        for path in paths
        if path.name not in OTHERS
        for text in texts(path)
        if OPTION.search(text.replace("torchrun --nproc-per-node", ""))
    ]
    assert said == []
