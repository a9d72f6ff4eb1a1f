"""The gradients that a mini-batch of a stage is made of, as the bits of an integer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_MOST_NAMED: Final = 4


@dataclass(frozen=True)
class Wanted:
    """Which gradients an update waits for.

    Behind the bits of the micro-batches of the stage itself stand those of each other stage that
    has copies of some of its weights.

    Parameters
    ----------
    every : int
        Micro-batches of an update.
    partners : tuple of int
        The other stages.
    """

    every: int
    partners: tuple[int, ...]

    @property
    def whole(self) -> int:
        """All of them."""
        return (1 << self.every * (1 + len(self.partners))) - 1

    def bits(self, micro_batches: Iterable[int], partner: int | None = None) -> int:
        """Return micro-batches of one mini-batch, of this stage or of a copy in another one."""
        place = 0 if partner is None else 1 + self.partners.index(partner)
        return sum(1 << place * self.every + i % self.every for i in micro_batches)

    def describe(self, bits: int, mini_batch: int) -> str:
        """Write some of them: ``micro-batches 0, 1 and micro-batch 3 of the copy in stage 2``."""
        return " and ".join(self._parts(bits, mini_batch))

    def _parts(self, bits: int, mini_batch: int) -> Iterator[str]:
        owners = "", *(f" of the copy in stage {partner}" for partner in self.partners)
        for place, owner in enumerate(owners):
            own = bits >> place * self.every
            numbers = [n + mini_batch * self.every for n in range(self.every) if own >> n & 1]
            if numbers:
                named = ", ".join(map(str, numbers[:_MOST_NAMED]))
                left = len(numbers) - _MOST_NAMED
                more = f" and {left} more" if left > 0 else ""
                yield f"micro-batch{'es' if len(numbers) > 1 else ''} {named}{more}{owner}"
