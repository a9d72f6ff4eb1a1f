"""Ctrl-C and a request to end, at any moment of a command."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from schedopt.cli import main
from tests.cli.commands import GPT2, as_a_new_process, ended, start

# Sends the signal when a module is looked for, which is a moment that every run has.
CODE = """
import os, sys

class Sender:
    sent = False

    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and not Sender.sent:
            Sender.sent = True
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Sender())
from schedopt.cli import main
main()
"""


def interrupted(
    module: str, number: signal.Signals, *, ignored: bool = False
) -> tuple[int, str, str]:
    """Run solve, and send a signal when it starts to import a module.

    Returns
    -------
    int, str, str
        The exit code, standard output and standard error.
    """
    code = CODE.format(module=module, number=int(number))
    if ignored:
        code = f"import signal; signal.signal({int(number)}, signal.SIG_IGN)\n{code}"
    asked = ["--gpus", "4", "--mem", "2G", "--allocation", "contiguous", "--json"]
    return ended(start("-c", code, "solve", "--chain", GPT2, *asked, OMP_NUM_THREADS="1"))


@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("schedopt.cli.app", signal.SIGINT),
        ("typer", signal.SIGTERM),
        ("schedopt.chain", signal.SIGINT),
        ("schedopt.solving", signal.SIGTERM),
        ("pydantic", signal.SIGINT),
    ],
)
def test_a_signal_before_the_search_ends_quietly(module: str, number: signal.Signals) -> None:
    assert interrupted(module, number) == (128 + number, "", f"Ended by {number.name}.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_search_gives_what_there_is(number: signal.Signals) -> None:
    # The ladder loads its solvers when the clock runs.
    code, out, err = interrupted("schedopt.solvers.contiguous", number)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["status"] == "feasible"
    assert found["period_ns"] > 0


def test_a_signal_that_is_ignored_stays_so() -> None:
    code, _, err = interrupted("typer", signal.SIGINT, ignored=True)
    assert (code, err) == (0, "")


def test_a_program_that_calls_the_command_line_has_its_signals_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["schedopt", "--version"])
    with as_a_new_process(None):
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 0
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert capsys.readouterr().out.startswith("schedopt ")
