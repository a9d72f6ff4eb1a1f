"""The command line.

Exit codes: 0 a plan (or valid), 1 an internal error, a failed rank or a failed solver of another
package, 2 bad usage or bad input, 3 proven infeasible, 4 no plan found and none proven impossible,
5 a check failed, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from io import TextIOWrapper

from schedopt.cli.signals import quiet_end

TRACEBACK = "SCHEDOPT_TRACEBACK"
"""Where it is set in the environment, the traceback of a solver of another package is shown."""


def main() -> None:
    """Run the command line; every bad input becomes one message and exit code 2."""
    _open_closed()
    with quiet_end():
        _run()


def _open_closed() -> None:
    """Open standard output and error where they are closed (``>&-``): what is said is lost.

    Without them an error would be printed on standard output, and a file could take their place.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _run() -> None:
    from schedopt.cli.app import app
    from schedopt.errors import InputError, RankError, SolverError

    if hasattr(signal, "SIGPIPE"):
        # Who reads only the first lines (head) ends the program quietly, as with other commands.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        # A terminal or pipe that cannot show a letter shows "?" instead of ending the program.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="schedopt")
    except (InputError, RankError) as error:
        from schedopt.cli.flags import report

        sys.exit(report(error))
    except SolverError as error:
        if os.environ.get(TRACEBACK):
            raise
        print(f"Error: {error}. For the traceback set {TRACEBACK}=1", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print("Error: standard output cannot be written: no space left", file=sys.stderr)
        sys.exit(2)
