"""The command line, run as a user does: in this process, or in one of its own."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from unittest import mock

import typer.main

from schedopt.cli import main

ROOT = Path(__file__).parents[2]
GPT2 = ROOT / "instances" / "gpt2-small.json"
_BUILT_ONCE = cache(typer.main.get_command)
"""All commands and their options. A process builds them anew whenever it runs one."""
USUAL_SIGNALS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def run(
    *arguments: str | Path, folder: Path | None = None, quick: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, with the exit code and output that one of its own has.

    Quick: solve looks for contiguous plans, if nothing else is said, for these are found at once.
    """
    typed = [*map(str, arguments)]
    if quick and typed[:1] == ["solve"] and not {"--allocation", "--fix", "--solver"} & {*typed}:
        typed += ["--allocation", "contiguous"]
    with ExitStack() as stack:
        stack.enter_context(as_a_new_process(folder))
        stack.enter_context(mock.patch.object(sys, "argv", ["schedopt", *typed]))
        stack.enter_context(mock.patch.object(typer.main, "get_command", _BUILT_ONCE))
        out, err = (stack.enter_context(_captured(number)) for number in (1, 2))
        code = _exit_code()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return subprocess.CompletedProcess(typed, code, _read(out), _read(err))


def printed(*arguments: str | Path, folder: Path | None = None, quick: bool = True) -> str:
    """Run what must end well and without errors, and return what it prints."""
    done = run(*arguments, folder=folder, quick=quick)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_process(
    *arguments: str | Path, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, and wait for its end."""
    code, out, err = ended(start("-m", "schedopt", *arguments, folder=folder))
    return subprocess.CompletedProcess(arguments, code, out, err)


def start(
    *arguments: str | Path, folder: Path | None = None, **variables: str
) -> subprocess.Popen[str]:
    """Start Python in a session of its own, hearing signals even where this process ignores them.

    Tests may be started by ``nohup`` or in the background, where SIGINT is ignored.
    """
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **variables},
        start_new_session=True,
        preexec_fn=hear_signals,
    )


def ended(process: subprocess.Popen[str], timeout_s: float = 120) -> tuple[int, str, str]:
    """Wait for the end of a process, and of all that holds its output.

    Returns
    -------
    int, str, str
        The exit code, standard output and standard error.
    """
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return process.returncode, out, err


def hear_signals() -> None:
    """Give the signals that end a program their default effect, in a child before it starts."""
    for number in USUAL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def solve_json(*arguments: str | Path) -> dict[str, Any]:
    done = run("solve", *arguments, "--json")
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def as_a_new_process(folder: Path | None) -> Iterator[None]:
    """Set what a command may change, or that depends on who starts it, and put it back."""
    before = Path.cwd()
    path, modules = [*sys.path], {*sys.modules}
    numbers = [*USUAL_SIGNALS, signal.SIGPIPE]
    handlers = {number: signal.getsignal(number) for number in numbers}
    for number, usual in USUAL_SIGNALS.items():
        signal.signal(number, usual)
    if folder is not None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        # A module may have been written a moment ago.
        importlib.invalidate_caches()
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        if folder is not None:
            for name in {*sys.modules} - modules:
                if _lies_in(sys.modules[name], folder):
                    del sys.modules[name]
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _lies_in(module: object, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).is_relative_to(folder)


@contextmanager
def _captured(number: int) -> Iterator[IO[bytes]]:
    """Send what is written to standard output (1) or error (2) to a file, also by children."""
    redirect: Any = redirect_stdout if number == 1 else redirect_stderr
    with TemporaryFile() as file:
        before = os.dup(number)
        os.dup2(file.fileno(), number)
        stream = io.TextIOWrapper(open(number, "wb", closefd=False), encoding="utf-8")  # noqa: SIM115
        try:
            with stream, redirect(stream):
                yield file
        finally:
            os.dup2(before, number)
            os.close(before)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
