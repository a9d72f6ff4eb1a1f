"""What keeps the period of a plan from being shorter."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from schedopt.units import format_bytes


@dataclass(frozen=True)
class Shortfall:
    """A GPU without room for one more micro-batch of a stage between forward and backward."""

    gpu: int
    short_bytes: int
    micro_batches: int


@dataclass(frozen=True)
class Binding:
    """What keeps a period from being shorter, as far as the plan shows it.

    Parameters
    ----------
    gpu : int
        The GPU that works the most.
    share : Fraction
        Of the period in which it works.
    links : tuple of (int, int)
        Links that are busy all the time.
    shortfalls : tuple of Shortfall
        The GPUs without room for one more micro-batch in flight, the largest first.
    """

    gpu: int
    share: Fraction
    links: tuple[tuple[int, int], ...]
    shortfalls: tuple[Shortfall, ...]

    def __str__(self) -> str:
        words = [f"GPU {self.gpu} works {float(self.share):.1%} of the period"]
        words += [
            f"the link of GPUs {source} and {target} is busy all the time"
            for source, target in self.links
        ]
        if self.shortfalls:
            short = ", ".join(
                f"{found.gpu} ({format_bytes(found.short_bytes)} short of {found.micro_batches})"
                for found in self.shortfalls[:3]
            )
            more = f" and {len(self.shortfalls) - 3} more" if len(self.shortfalls) > 3 else ""
            words.append(f"no room for one more micro-batch in flight on GPU {short}{more}")
        return "; ".join(words)
