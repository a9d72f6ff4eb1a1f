"""Where points are solved: processes on this machine, or a Dask cluster.

Both through the interface of concurrent.futures, so that callers need not tell them apart.
"""

from __future__ import annotations

import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

from schedopt.effort import usable_cores
from schedopt.errors import InputError
from schedopt.version import __version__

T = TypeVar("T")
S = TypeVar("S")


class Pool(ABC):
    """Where points are solved, as a context manager.

    Attributes
    ----------
    lost : tuple of exception types
        Raised by a future whose process ended, or had no memory left, before it had an answer.
    tries : int
        How often a point may end the process that solves nothing else before it is given up.
    sent : set of Future
        Those that are not done yet.
    """

    lost: tuple[type[BaseException], ...]
    tries: int
    executor: Executor

    def __init__(self) -> None:
        self.sent: set[Future[Any]] = set()

    def submit(self, work: Callable[[S], T], task: S) -> Future[T]:
        """Submit a task."""
        future = self.executor.submit(work, task)
        self.sent.add(future)
        future.add_done_callback(self.sent.discard)
        return future

    @abstractmethod
    def slots(self) -> int:
        """How many tasks it can do at a time."""

    @abstractmethod
    def renew(self) -> None:
        """Go on after processes were lost."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """End, and leave what is not done."""


class ProcessPool(Pool):
    """Processes on this machine.

    Each is a fresh interpreter, so that no lock or thread is inherited. None outlives this one.

    Parameters
    ----------
    jobs : int, optional
        How many. Default: one for each core that we may use.
    """

    lost = (BrokenProcessPool, MemoryError)
    tries = 2

    def __init__(self, jobs: int | None) -> None:
        super().__init__()
        self._jobs = jobs or usable_cores()

    def slots(self) -> int:
        """How many tasks it can do at a time."""
        return self._jobs

    def __enter__(self) -> Self:
        context = get_context("spawn")
        reader, self._alive = context.Pipe(duplex=False)
        self._reader = reader
        self.executor = ProcessPoolExecutor(
            self._jobs, mp_context=context, initializer=_begin, initargs=(reader,)
        )
        return self

    def submit(self, work: Callable[[S], T], task: S) -> Future[T]:
        """Submit a task. A process that starts for it never hears of Ctrl-C."""
        with _interrupts_held_back():
            return super().submit(work, task)

    def renew(self) -> None:
        """Start new processes."""
        self.__exit__()
        self.__enter__()

    def __exit__(self, *error: object) -> None:
        """End all processes, at once."""
        if self.sent:
            self._alive.close()
        self.executor.shutdown(cancel_futures=True)
        self._reader.close()
        self._alive.close()


class ClusterPool(Pool):
    """The workers of a Dask cluster.

    The scheduler has a task of a worker that is lost done by another one, three times unless it
    is configured otherwise (``distributed.scheduler.allowed-failures``).

    Parameters
    ----------
    address : str
        Of the scheduler: ``tcp://host:8786``.
    timeout : float
        Seconds to wait for the scheduler, and for the first worker.
    """

    tries = 1

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        super().__init__()
        try:
            import distributed
        except ImportError:
            raise InputError(
                "a cluster needs dask.distributed, which is not installed",
                field="dask",
                way_out="Run pip install distributed",
            ) from None
        self._address, self._timeout = address, timeout
        self.lost = (distributed.KilledWorker, MemoryError)

    def slots(self) -> int:
        """How many tasks it can do at a time, at least one: workers may still come."""
        threads: dict[str, int] = self._client.nthreads()
        return max(1, sum(threads.values()))

    def __enter__(self) -> Self:
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port

        try:
            # A client that is made for an invalid address cannot be closed.
            get_address_host_port(self._address)
            self._client = Client(self._address, timeout=self._timeout, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"no Dask scheduler answers at {self._address}: {error}",
                field="dask",
                way_out="Give the address that dask scheduler prints: tcp://host:8786",
            ) from None
        try:
            self._check_workers()
        except BaseException:
            self._client.close()
            raise
        # Not pure: a task that is tried again is a new one, not the answer known of the old one.
        self.executor = self._client.get_executor(pure=False)
        return self

    def _check_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=self._timeout)
        except TimeoutError:
            raise InputError(
                f"the cluster at {self._address} has no workers",
                field="dask",
                way_out=f"Start some: dask worker {self._address}",
            ) from None
        for worker, version in self._client.run(_version, on_error="return").items():
            if version != __version__:
                found = "no schedopt" if isinstance(version, Exception) else f"schedopt {version}"
                raise InputError(
                    f"the worker {worker} has {found}",
                    field="dask",
                    way_out=f"Install schedopt {__version__} where the workers run",
                )

    def renew(self) -> None:
        """Nothing: the scheduler goes on with the workers that are left."""

    def __exit__(self, *error: object) -> None:
        """Withdraw what is not done, and leave the cluster to others."""
        self.executor.shutdown(wait=False)
        self._client.close()


def _version() -> str:
    return __version__


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C wait, here and in processes that are started meanwhile."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # The first process starts this too, which would let interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(alive: Connection[Any, Any]) -> None:
    """Prepare a process: Ctrl-C is for the parent, and without that it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()


def _end_with_parent(alive: Connection[Any, Any]) -> None:
    """Wait until the other end is closed: on purpose, or since the parent is gone."""
    try:
        alive.recv()
    except (EOFError, OSError):
        os._exit(1)
