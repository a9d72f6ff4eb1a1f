"""What the library says of fields and suggestions, in options of the command line."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from typer.main import get_command

from schedopt import InputError, Platform, Problem, Scope
from schedopt.cli.app import app
from schedopt.cli.flags import OPTIONS, SUGGESTIONS, say_note, say_ways, with_options
from schedopt.importing.launch_files.deepspeed_json import Pipeline
from schedopt.profiling.profiler import Estimator
from schedopt.proofs import Note, Outcome, Suggestion
from schedopt.running.job import Job

WORDS = [
    ("Allow it (Scope.recompute), or leave it out", "Allow it (--recompute), or leave it out"),
    ("Allow them (Scope(max_k=2))", "Allow them (--max-k 2)"),
    ('Ask for any (Scope(allocation="general"))', "Ask for any (--allocation general)"),
    ("Give 3 (Platform(gpus=3)), or less", "Give 3 (--gpus 3), or less"),
    (
        'Solve with Scope(engine="megatron", microbatches=8)',
        "Solve with --for megatron --microbatches 8",
    ),
    ("Run Job(model=None)", "Run --synthetic"),
    ("See torch.float32 and Scope(other=1)", "See torch.float32 and Scope(other=1)"),
]


@pytest.mark.parametrize(("library", "command"), WORDS)
def test_a_way_out_names_options(library: str, command: str) -> None:
    error = with_options(InputError("no", field="f", way_out=library, source="s"))
    assert (error.rule, error.field, error.way_out, error.source) == ("no", "f", command, "s")


def test_the_options_and_the_fields_are_there() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    options = {
        name
        for command in ("solve", "import", "run", "profile")
        for option in commands[command].params
        for name in option.opts
    }
    owners = {
        "Estimator": Estimator,
        "Job": Job,
        "Pipeline": Pipeline,
        "Platform": Platform,
        "Problem": Problem,
        "Scope": Scope,
    }
    known_of = {name: {one.name for one in fields(owner)} for name, owner in owners.items()}
    known_of |= {
        "import_chain": {"source"},
        "import_launch": {"arguments", "config", "ignored"},
        "import_profile": {"layers"},
        "solve": {"batch"},
        "tied_weights": {"copy_tied_weights"},
    }
    for name, option in OPTIONS.items():
        owner, field = re.findall(r"\w+", name)[:2]
        known = known_of[owner]
        flag = option.partition(" ")[0]
        assert (field in known | {"bandwidth"}, flag in options) == (True, True), name
    for words in SUGGESTIONS.values():
        assert set(re.findall(r"--[a-z-]+", words)) <= options


def test_notes_and_suggestions_name_options() -> None:
    note = Note(Outcome.WOULD_HELP, suggestion=Suggestion.RECOMPUTE)
    assert say_note(note) == "not allowed: --recompute"
    assert say_note("older words") == "older words"
    ways = (Suggestion.LONGER_PATTERN, Suggestion.MORE_GPUS)
    assert say_ways(ways) == "--max-k 4, or more GPUs"
