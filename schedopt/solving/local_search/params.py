"""How the search for a general allocation goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schedopt.errors import InputError
from schedopt.solving.local_search.annealing import Schedule
from schedopt.validation import check_whole


@dataclass(frozen=True, kw_only=True)
class LocalSearchParams:
    """How the search goes; the shares of its moves are compiled in (`annealing`).

    Parameters
    ----------
    placements : int
        Of one annealing at most, which then takes a fraction of a second.
    placements_times_layers : int
        At most: those of long chains take longer.
    placements_of_few : int
        At most, times the cube of the number of layers: few layers have few allocations, and
        another start, or the other reading of memory, finds what one long annealing misses.
    shortest : int
        Placements of the first annealing where layers may be recomputed. One for more
        micro-batches in a period than the best plan has may have as many, too.
    part : int
        A later one has this part there, as 1 / `part`, of all that were looked at before. So
        annealings are short where there is little time, and it need not be known how much there
        is. Without recompute such ones found longer plans at tight memory.
    drops : tuple of float
        How far below the best period an annealing looks, in turn: far ones leave local optima,
        near ones find what is there. No farther than halfway to the bound.
    hot, warm, cold : float
        Temperatures, as penalties, at the beginning of an annealing from a start, and of one that
        goes on from a placement, and at the end. `hot` would leave little of a placement.
    """

    placements: int = 400_000
    placements_times_layers: int = 100_000_000
    placements_of_few: int = 50
    shortest: int = 8_000
    part: int = 16
    drops: tuple[float, ...] = (0.02, 0.005, 0.05, 0.001)
    hot: float = 0.03
    warm: float = 0.004
    cold: float = 0.0005

    def __post_init__(self) -> None:
        most = ("placements", "placements_times_layers", "placements_of_few")
        for name in (*most, "shortest", "part"):
            check_whole(self, name, low=1)
        if not 0 < self.cold <= self.warm <= self.hot:
            raise InputError(
                f"{self.cold}, {self.warm} and {self.hot} do not rise",
                field="cold",
                way_out="Give less, above 0",
            )
        if not self.drops or not all(0 <= drop < 1 for drop in self.drops):
            raise InputError("not shares", field="drops", way_out="Give at least one, all below 1")

    def schedule(self, number: int, steps: int, low: int, *, warm: bool = False) -> Schedule:
        """Return how annealing `number` from a start goes, or that from a placement."""
        drop = self.drops[number % len(self.drops)]
        hot = self.warm if warm else self.hot
        return Schedule(steps=steps, low=low, drop=drop, hot=hot, cold=self.cold)


DEFAULTS: Final = LocalSearchParams()
