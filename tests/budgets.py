"""How many random examples and parameters a test takes, by night and by day.

A test says how many it is worth: ``@trials(2000)``. The profile of Hypothesis, chosen by the
environment variable HYPOTHESIS_PROFILE, says how many of them are tried: ``fast``, the default,
tries about a twentieth, the same ones each time; ``nightly`` tries all, new ones each time, and
keeps those that failed in ``.hypothesis``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "fast")

FEWEST: Final = 5
"""Examples that a fast test tries at least, where it is worth as many."""

_COMMON: Final = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

settings.register_profile("fast", _COMMON, derandomize=True, max_examples=10)
settings.register_profile(
    "nightly",
    _COMMON,
    derandomize=False,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
    print_blob=True,
)
settings.load_profile(PROFILE)


def trials(number: int, by_day: int | None = None, **others: Any) -> settings:
    """Return settings for `number` examples by night, and a twentieth of them by day.

    Parameters
    ----------
    number : int
        Examples in the profile ``nightly``.
    by_day : int, optional
        Examples in the profile ``fast``, where a twentieth is not what its branches need.
    **others
        Further settings of Hypothesis.
    """
    fast = max(min(FEWEST, number), number // 20) if by_day is None else by_day
    return settings(max_examples=number if PROFILE == "nightly" else fast, **others)


def nightly_but(by_day: str | tuple[str, ...], names: Iterable[str]) -> list[Any]:
    """Return parameters of a test, of which all but one, or some, are tried by night only."""
    chosen = (by_day,) if isinstance(by_day, str) else by_day
    marks = pytest.mark.nightly
    return [name if name in chosen else pytest.param(name, marks=marks) for name in names]
