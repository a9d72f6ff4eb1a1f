"""What a rank says of its failure, and which of several failures was the first."""

from __future__ import annotations

import pickle
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any, Final

import torch.distributed as dist

from schedopt.errors import RankError, SchedoptError
from schedopt.profiling.error_format import format_error

FAILURE: Final = "failure"
_GLOO: Final = re.compile(r"^RuntimeError: \[\S+\] |\. This is typically .*")
_TALK: Final = str(Path(dist.__file__).parent)


@dataclass(frozen=True)
class Failure:
    """What a rank says before it ends.

    Parameters
    ----------
    time : float
        Of this machine, in seconds since the epoch.
    rank : int
    error : SchedoptError
    """

    time: float
    rank: int
    error: SchedoptError


class LostError(RankError):
    """Another rank does not answer any more, and so is the one that failed."""


def as_failure(error: BaseException, number: int) -> SchedoptError:
    """Return what ended a rank as an error that says which it was."""
    if isinstance(error, SchedoptError):
        return error
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    last = traceback.extract_tb(cause.__traceback__)[-1:]
    if any(frame.filename.startswith(_TALK) for frame in last):
        return LostError(
            f"rank {number} lost another, which ended itself (os._exit) or cannot be reached: "
            f"{_GLOO.sub('', format_error(cause))}"
        )
    return RankError(f"rank {number} raised {format_error(error)}")


def first_failure(directory: Path, ended: Mapping[int, Any]) -> SchedoptError:
    """Return the failure that the others follow from.

    Parameters
    ----------
    directory : Path
        Where ranks wrote why they failed.
    ended : mapping
        The ranks that the launcher saw failing, the first of them first, each with its exit code.
        Those after the first may have been ended by the launcher.
    """
    told: list[Failure] = [
        pickle.loads(path.read_bytes()) for path in directory.glob(f"{FAILURE}-*.pickle")
    ]
    told.sort(key=lambda one: (isinstance(one.error, LostError), one.time))
    if told and not isinstance(told[0].error, LostError):
        return told[0].error
    lost = {one.rank for one in told}
    for rank, one in ended.items():
        if rank not in lost and not (lost and one.exitcode == -Signals.SIGTERM):
            return _silent(rank, one.exitcode)
    return told[0].error if told else RankError("the ranks ended before their work was done")


def _silent(rank: int, code: int) -> RankError:
    """Return the error of a rank that ended without a word."""
    if code >= 0:
        return RankError(f"rank {rank} ended with exit code {code} before its work was done")
    guess = ": the machine may have run out of memory" if code == -Signals.SIGKILL else ""
    return RankError(f"rank {rank} was ended by {Signals(-code).name}{guess}")
