"""When an action ran."""

from __future__ import annotations

from dataclasses import dataclass

from schedopt.actions import Action


@dataclass(frozen=True)
class Span:
    """An action that ran.

    Parameters
    ----------
    rank : int
    action : Action
    start_ns, end_ns : int
        By `time.monotonic_ns` of the machine of the rank. Transfers run from when both ends were
        ready, as far as the rank can tell.
    """

    rank: int
    action: Action
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns
