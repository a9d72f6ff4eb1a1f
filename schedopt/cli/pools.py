"""Options that say where work of many parts runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from schedopt.errors import InputError

if TYPE_CHECKING:
    from schedopt.sweeping import Pool

Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="How many run at a time, each in a process. Default: one for each core.",
        min=1,
        metavar="N",
        show_default=False,
    ),
]
Dask: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Run on the workers of this Dask cluster instead: tcp://host:8786.",
        metavar="ADDRESS",
    ),
]


def make_pool(jobs: int | None, dask: str | None) -> Pool:
    """Return processes on this machine, or the workers of a Dask cluster.

    Raises
    ------
    InputError
        If both are asked for, or Dask is not installed.
    """
    from schedopt.sweeping import ClusterPool, ProcessPool

    if dask is None:
        return ProcessPool(jobs)
    if jobs is not None:
        raise InputError(
            "given beside --dask, whose workers say how many run at a time",
            field="jobs",
            way_out="Leave one of them out",
        )
    pool = ClusterPool(dask)
    # What it would say of a lost connection, our error says in one line.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return pool
