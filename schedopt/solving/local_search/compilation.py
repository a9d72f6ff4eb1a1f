"""Compiling the searches in processes of their own, next to what searches without them.

It takes some six seconds, once on a machine. A thread would hold the interpreter's lock for half of
them, and could not be ended. What is compiled is kept on disk, and loaded from there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Final

from schedopt.solving.garbage_collection import pause_garbage_collection
from schedopt.stored import find_function

if TYPE_CHECKING:
    from schedopt.solving.run import Run

LOADING_S: Final = 2.0
"""What was compiled before takes less."""
LEAST_S: Final = 1.0
"""Of the search that had to be compiled, where there is no plan before it."""
NOT_READY: Final = "the search was still being compiled, once on a machine: the next solve has it"
"""What is said where time was up before."""
NOT_KEPT: Final = (
    "the search was still being compiled, as in each solve: what is compiled can be kept nowhere. "
    "Name a folder that can be written in NUMBA_CACHE_DIR"
)
"""The same where the next solve has it no sooner."""
NOT_LOADED: Final = "the search was still being loaded, once in each process: give it more time"
"""The same where it was compiled before."""
POLL_S: Final = 0.05
"""How often a stop is looked for."""
COMPILED_ROOMS: Final = (
    "local_search",
    "replicas",
    "flush_search",
    "engines",
    "disjunctive",
    "one_gpu",
    "all_gpus",
)
"""Rooms of `schedopt.solving` in which functions are compiled."""


@cache
def code_folder(chosen: str) -> Path:
    """Return where code is kept: where the user says, next to the sources, or in the home.

    It belongs to one state of all sources of the rooms in which functions are compiled, where they
    lie, and to one version of Python and numba: code of another one is not loaded. Perhaps it
    cannot be written: then each process compiles for itself.
    """
    room = Path(__file__).absolute().parent
    digest = sha256(f"{room} {sys.implementation.cache_tag} {_numba_version()}".encode())
    for name in COMPILED_ROOMS:
        for source in sorted((room.parent / name).glob("*.py")):
            digest.update(source.read_bytes())
    name = f"schedopt-{digest.hexdigest()[:16]}"
    if chosen:
        return Path(chosen) / name
    if not os.access(room, os.W_OK):
        # Some users have no home.
        with suppress(RuntimeError):
            return Path.home() / ".cache" / name
    return room / "__pycache__" / name


def _numba_version() -> str:
    """Return the version, without loading the package; nothing where no metadata say it."""
    with suppress(PackageNotFoundError):
        return version("numba")
    return ""


class Compilation:
    """Compiling one search, by a process next to all solves of this process that may need it.

    Parameters
    ----------
    room : str
        The room of `schedopt.solving` that is compiled.
    compile_all : str
        What does it, as "module:function".
    entry : str
        The function that is compiled last, and its module, as numba names files.
    """

    def __init__(self, room: str, compile_all: str, entry: str) -> None:
        self.room, self.compile_all, self.entry = room, compile_all, entry
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to compile in a process, if it is not done.

        It goes on when this process ends, so that the next one has what is compiled.
        """
        with self._lock:
            if self._process is None and not self.is_kept() and _can_keep():
                self._process = _start(self._code())

    def is_under_way(self) -> bool:
        """Whether what is compiled may soon be there."""
        process = self._process
        return process is not None and process.poll() is None

    def is_kept(self) -> bool:
        """Whether code is there; perhaps not for this processor."""
        # numba names a folder by that of the source; rooms may have functions of one name.
        return next(_folder().glob(f"{self.room}_*/{self.entry}-*.nbc"), None) is not None

    def wait(self, run: Run, *, late: bool) -> bool:
        """Wait until all is compiled and loaded; False if there is no need to, or asked to stop.

        What is waited for counts for all solvers alike: this one then has its share of what is
        left. The limit is kept where there is a plan; where there is none yet, the wait may go on
        beyond it, and the search has `LEAST_S` at most then. `late`: time may be up for the solver
        at work, but not for the whole search.
        """
        clock = run.clock
        begin, had = clock.seconds(), clock.remaining()
        was_kept = self.is_kept() and not self.is_under_way()

        def needs_plan() -> bool:
            return run.must_answer and run.best() is None

        def goes_on() -> bool:
            over = clock.all_ended() if late else clock.stopped()
            return not ((over and not needs_plan()) or clock.stop_requested() or run.settled())

        if self.is_under_way():
            threading.Thread(target=_load_compiler, daemon=True).start()
        while self.is_under_way() and goes_on():
            sleep(POLL_S)
        loaded = goes_on()
        if loaded:
            thread = threading.Thread(target=self.compile_here, daemon=True)
            thread.start()
            while thread.is_alive() and goes_on():
                thread.join(POLL_S)
            loaded = not thread.is_alive() and goes_on()
        if not loaded:
            if not run.settled():
                missing = NOT_READY if _can_keep() else NOT_KEPT
                run.leave_out(NOT_LOADED if was_kept else missing)
            return False
        waited = clock.seconds() - begin
        if had is not None and waited > LOADING_S:
            clock.share_again(waited)
            left = clock.remaining()
            if left is not None and needs_plan():
                clock.extend(max(0.0, min(had, LEAST_S) - left))
        return True

    def compile_here(self) -> None:
        """Compile or load all of the search in this thread."""
        with pause_garbage_collection():
            find_function(self.compile_all)()

    def compile_alone(self) -> None:
        """Compile what no other process compiles, or has compiled by now."""
        # One after the other: two side by side would leave no core to what searches meanwhile.
        with _alone(_folder() / "compiling.lock"):
            if not self.is_kept():
                self.compile_here()

    def _code(self) -> str:
        # What Python and numba would take down at the end takes as long as a tenth of compiling; so
        # does one look for garbage.
        return (
            f"import gc, os; gc.disable(); from {__name__} import COMPILATIONS as each; "
            f"each[{self.room!r}].compile_alone(); os._exit(0)"
        )


COMPILATIONS: Final = {
    one.room: one
    for one in (
        Compilation(
            "local_search",
            "schedopt.solving.local_search.search:compile_search",
            "annealing._anneal",
        ),
        Compilation(
            "replicas",
            "schedopt.solving.replicated_dp:compile_search",
            "least_spans._find_least_spans",
        ),
        Compilation(
            "flush_search",
            "schedopt.solving.flush_search.search:compile_search",
            "annealing._anneal",
        ),
        Compilation(
            "engines",
            "schedopt.solving.engines.order:compile_runs",
            "makespan.steps_in_order",
        ),
        Compilation(
            "one_gpu",
            "schedopt.solving.one_gpu.columns:compile_columns",
            "heavy_columns.find_heavy",
        ),
        Compilation(
            "all_gpus",
            "schedopt.solving.all_gpus.compiling:compile_all_gpus",
            "moves.walk",
        ),
    )
}
"""By the room that is compiled."""


def _load_compiler() -> None:
    """Load what numba needs for any code, which takes most of the time to load some."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    with global_compiler_lock:
        cpu_target.target_context.refresh()


def _folder() -> Path:
    return code_folder(os.environ.get("NUMBA_CACHE_DIR", ""))


def _can_keep() -> bool:
    folder = _folder()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return os.access(folder, os.W_OK)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process is inside; where files cannot be locked it does not wait."""
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.open("w")), fcntl.LOCK_EX)
        yield


def _start(code: str) -> subprocess.Popen[bytes] | None:
    """Start a process; None where there is no interpreter for it."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    paths = os.pathsep.join(path for path in sys.path if path)
    nothing = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            # Ctrl-C and a closed terminal end the solve alone.
            start_new_session=True,
        )
    except OSError:
        return None
