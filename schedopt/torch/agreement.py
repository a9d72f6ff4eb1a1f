"""What all processes of a pipeline must agree on before any of them begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

from schedopt.errors import InputError
from schedopt.profiling.error_format import format_error

_UNKNOWN: Final = -(2**40)
_T = TypeVar("_T")


class Agreement:
    """Talks between all processes, over gloo: what is said lies on the host.

    Attributes
    ----------
    group : ProcessGroup or None
        None where all of them are over gloo.
    """

    def __init__(self) -> None:
        on_host = "gloo" in str(dist.get_backend()) or dist.get_backend() == "fake"
        self.group = None if on_host else dist.new_group(backend="gloo")

    def count(self, find: Callable[[], int | None], default: int) -> int:
        """Return the number that all find, where some may know none; `default` if none does.

        Raises
        ------
        InputError
            In all processes, if one of them raises anything or finds another number; in that one
            what it raises.
        """
        found, error = None, None
        try:
            found = find()
        except Exception as caught:
            error = caught
        told = [_UNKNOWN, _UNKNOWN] if found is None else [found, -found]
        heard = torch.tensor([*told, int(error is not None)])
        dist.all_reduce(heard, dist.ReduceOp.MAX, group=self.group)
        most, least, failed = heard[0].item(), -heard[1].item(), heard[2].item()
        if error is not None:
            raise error
        if failed:
            raise InputError(
                "another process refuses its inputs",
                field="step",
                way_out="See the error of that process",
            )
        if most == _UNKNOWN:
            return default
        if most != least:
            raise InputError(
                f"one process was given {most} micro-batches and another one {least}",
                field="step",
                way_out="Give each process equally many in a step",
            )
        return int(most)

    def every(self, own: _T) -> list[_T]:
        """Return what each process has, in their order."""
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, own, group=self.group)
        return found

    def on_first(self, act: Callable[[], None]) -> None:
        """Let the first process act, and the others wait for it.

        Raises
        ------
        InputError
            In all processes; in the first one what it raises.
        """
        with self.together():
            if dist.get_rank() == 0:
                act()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let all processes go on behind a block, or none.

        Raises
        ------
        InputError
            In all processes, if one raises anything there: that of the first which refuses. One
            that fails in another way raises what it did.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as failed:
            error = failed
        told = error
        if error is not None and not isinstance(error, InputError):
            told = InputError(
                f"process {dist.get_rank()} failed: {format_error(error)}",
                field="processes",
                way_out="See the error of that process",
            )
        heard = [one for one in self.every(told) if one is not None]
        if error is not None and error is not told:
            raise error
        if heard:
            raise heard[0]
