"""Processes that stay warm between tests, each a rank of what is to run.

They are forked from a server that has imported torch once, and do one job after the other. Where a
test is about the start, the failure or the end of ranks, it starts them by `execute` instead.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final

from schedopt.running import Job, Report
from schedopt.running.records import Outcome

_PRELOADED: Final = [
    "torch",
    "torch.distributed.pipelining",
    "networkx",
    "transformers.models.gpt2.modeling_gpt2",
    "schedopt.formats.results",
    "schedopt.running.rank_process",
    "schedopt.torch",
]
_PATIENCE_S: Final = 180
"""How long a job may take, and a rank wait for another."""


class RankPool:
    """Ranks on this machine, as many as have been needed so far."""

    def __init__(self) -> None:
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._ranks: list[tuple[Any, Connection]] = []

    def run(
        self, job: Callable[..., Any], ranks: int, *args: Any, in_group: bool = True
    ) -> list[Any]:
        """Run ``job(rank, *args)`` on each of some ranks; return the results.

        Ranks are in a gloo group unless the job makes one from the environment.
        """
        while len(self._ranks) < ranks:
            own, other = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(other,), daemon=True)
            process.start()
            other.close()
            self._ranks.append((process, own))
        folder = tempfile.mkdtemp()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        try:
            for rank, (_, connection) in enumerate(self._ranks[:ranks]):
                numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                variables = {**environment, **numbers}
                connection.send((job, rank, args, variables, folder if in_group else None))
            results = []
            for rank, (_, connection) in enumerate(self._ranks[:ranks]):
                assert connection.poll(_PATIENCE_S), f"rank {rank} does not answer"
                results.append(connection.recv())
        except BaseException:
            self.close()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def close(self) -> None:
        """End all ranks; the next job starts new ones."""
        for process, connection in self._ranks:
            connection.close()
            process.kill()
            process.join()
            process.close()
        self._ranks.clear()


@cache
def warm_ranks() -> RankPool:
    """Return the ranks of this test process, which end with it."""
    return RankPool()


def execute_warm(job: Job) -> Report:
    """Run a job as `execute` does, on ranks that are there already."""
    return Report(job, launch_warm(job), 0.0)


def launch_warm(job: Job, port: int = 0) -> Outcome:
    """Run each rank of a job in a process that is there already."""
    outcome: Outcome
    outcome, *_ = warm_ranks().run(_run_job, job.processes, job, in_group=False)
    return outcome


def _run_job(rank: int, job: Job) -> Any:
    from schedopt.running.rank_process import run_rank

    return run_rank(job, rank, rank)


def _serve(jobs: Connection) -> None:
    """Do jobs until the other end is closed."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            job, rank, args, environment, folder = jobs.recv()
        except EOFError:
            return
        os.environ.update(environment)
        result: Any
        try:
            if folder is not None:
                dist.init_process_group(
                    "gloo",
                    init_method=f"file://{folder}/store",
                    rank=rank,
                    world_size=int(environment["WORLD_SIZE"]),
                    timeout=timedelta(seconds=_PATIENCE_S),
                )
            result = job(rank, *args)
        except Exception as error:
            error.add_note(f"rank {rank}: {traceback.format_exc()}")
            result = error
        finally:
            # As long as the folder is there: the store looks for its file.
            if dist.is_initialized():
                dist.destroy_process_group()
        jobs.send(result)
