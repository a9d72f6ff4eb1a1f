"""Rates that bound operators: floating-point operations, bytes, and links of a group."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from schedopt.errors import InputError
from schedopt.formats.presets import GPUS, link_inside
from schedopt.units import parse_bandwidth, parse_bytes

COMPUTE_PERCENT: Final = 75
MEMORY_PERCENT: Final = 80
"""Of what a vendor gives, as large products and copies reach it: an assumption."""
OPERATIONS_OF_A_BYTE: Final = 100
"""Operations that take as long as a byte, on GPUs of today, where only their rate is known."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The rates that bound an operator (Williams et al. 2009).

    Parameters
    ----------
    flops : int
        Floating-point operations a second.
    bytes_per_s : int, optional
        Of the memory. An operator takes at least as long as its tensors take to be read and
        written. Default: no time at all.
    link_bytes_per_s, latency_ns : int, optional
        Of the link between two GPUs of a tensor group, in each direction. Default: no time at all.
    times : str
        What they are, for the provenance.
    """

    flops: int
    bytes_per_s: int | None = None
    link_bytes_per_s: int | None = None
    latency_ns: int = 0
    times: str = ""

    @property
    def with_traffic(self) -> Roofline:
        """The same rates, with one for bytes where there is none."""
        if self.bytes_per_s is not None:
            return self
        bytes_per_s = max(1, self.flops // OPERATIONS_OF_A_BYTE)
        return Roofline(flops=self.flops, bytes_per_s=bytes_per_s)

    def moving_ns(self, count: int) -> Fraction:
        """Return the time in which bytes are read or written."""
        return (
            Fraction(0) if self.bytes_per_s is None else Fraction(count * 10**9, self.bytes_per_s)
        )

    def all_reduce_ns(self, count: int, degree: int) -> Fraction:
        """Return the time in which a ring of GPUs adds up bytes that each of them has.

        2 (t - 1) steps, in each of which every GPU sends a t-th (Patarasuk and Yuan 2009).
        """
        return 2 * self.ring_ns(Fraction(count, degree), degree)

    def ring_ns(self, count: int | Fraction, degree: int) -> Fraction:
        """Return the time in which bytes of each GPU of a ring go all round it."""
        steps = degree - 1
        if self.link_bytes_per_s is None:
            return Fraction(steps * self.latency_ns)
        return steps * (self.latency_ns + Fraction(count) * 10**9 / self.link_bytes_per_s)


def find_rates(gpu: str, precision: Literal["half", "single"]) -> Roofline:
    """Return the rates of a kind of GPU, one of those of `schedopt.formats.presets`.

    Raises
    ------
    InputError
        If the kind is not known.
    """
    if gpu not in GPUS:
        raise InputError(
            f"{gpu!r:.60} is not known", field="on", way_out=f"Choose {' or '.join(GPUS)}"
        )
    kind, link = GPUS[gpu], link_inside(gpu)
    return Roofline(
        flops=parse_bytes(getattr(kind, precision)) * COMPUTE_PERCENT // 100,
        bytes_per_s=parse_bandwidth(kind.bandwidth) * MEMORY_PERCENT // 100,
        link_bytes_per_s=link.bandwidth_bytes_per_s,
        latency_ns=link.latency_ns,
        times=f"roofline of {gpu}, not measured",
    )
