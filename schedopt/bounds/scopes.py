"""The scopes that bounds speak of, and the periods that plans of a scope can have."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from typing import Final

from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof
from schedopt.result import Bound
from schedopt.validation import as_ratio

MOST_LENGTHS: Final = 1024
"""Patterns up to this long are looked at when a bound is rounded up."""
MOST_DROPS: Final = 64
"""How often a period is lowered at most."""
CLOSE: Final = Fraction(1, 512)
"""A bound that is bisected is found up to this part of itself."""


def widest(scope: Scope) -> Scope:
    """Return the scope of all plans with the same kinds of operations: any allocation, any k."""
    return Scope(
        allocation="general",
        max_k=None,
        grain="layer",
        memory="peak",
        split_backward=scope.split_backward,
        recompute=scope.recompute,
        gpu_order="any",
        replicas=scope.replicas,
        shard=scope.shard,
        tensor=scope.tensor,
        uneven=scope.uneven,
        hybrid=scope.hybrid,
    )


def contiguous(problem: Problem) -> Scope:
    """Return the scope of all contiguous plans of the length, grain and operations asked.

    The stage of a GPU holds the most while one of its operations runs, so that both readings of
    memory agree.
    """
    scope, platform = problem.scope, problem.platform
    return replace(
        widest(scope),
        allocation="contiguous",
        max_k=scope.max_k,
        microbatches=scope.microbatches,
        grain=scope.grain,
        gpu_order="any" if platform.uniform else scope.gpu_order,
    )


def longest_pattern(scope: Scope) -> int | None:
    """Return the most micro-batches of a pattern; None: any number."""
    return scope.max_k if scope.microbatches is None else scope.microbatches


def make_bound(value: Fraction | int, scope: Scope, proof: Proof | str) -> Bound:
    """Return a bound, rounded up to a period that a pattern of the scope can have.

    A pattern of k micro-batches takes a whole number of ns, and at least 1.
    """
    value = Fraction(value)
    longest = longest_pattern(scope)
    if scope.microbatches is not None:
        value = Fraction(max(1, ceil(scope.microbatches * value)), scope.microbatches)
    elif longest is not None and longest <= MOST_LENGTHS:
        value = min(Fraction(max(1, ceil(k * value)), k) for k in range(1, longest + 1))
    return Bound(exact=as_ratio(value), scope=scope, proof=proof)


def _lengths(scope: Scope) -> range:
    """Return the lengths of patterns of a scope; none where they may be any, or very long."""
    longest = longest_pattern(scope)
    if longest is None or longest > MOST_LENGTHS:
        return range(0)
    return range(1 if scope.microbatches is None else longest, longest + 1)


def period_above(value: Fraction, scope: Scope) -> Fraction:
    """Return the least period above a value that a pattern of the scope can have.

    For patterns of any length, or very long ones, the value itself.
    """
    return min((Fraction(floor(k * value) + 1, k) for k in _lengths(scope)), default=value)


def period_below(value: Fraction, scope: Scope) -> Fraction:
    """Return the greatest period below a value that a pattern of the scope can have.

    For patterns of any length, or very long ones, the value itself.
    """
    return max((Fraction(ceil(k * value) - 1, k) for k in _lengths(scope)), default=value)


def period_between(low: Fraction, high: Fraction, scope: Scope) -> Fraction | None:
    """Return a period between two for a bisection, one that a pattern of the scope can have.

    None if there is none, or if they are close.
    """
    least = period_above(low, scope)
    if high - low <= low * CLOSE or least >= high:
        return None
    middle = (low + high) / 2
    lengths = _lengths(scope)
    return max(least, *(Fraction(floor(k * middle), k) for k in lengths)) if lengths else middle


def first_possible(low: int, latest: int, possible: Callable[[int], bool]) -> int:
    """Return the first whole number from `low` on that is possible; then so are all larger ones.

    One is possible up to the latest, and `low` is above 0.
    """
    high = low
    while not possible(high):
        low, high = high + 1, min(2 * high, latest)
    return low + bisect_left(range(low, high), True, key=possible)


def lowered(
    reach: Callable[[Fraction, bool], Fraction | None], least: Fraction, high: Fraction
) -> Fraction:
    """Return the least period between two that can be reached; the higher one can.

    `reach` returns one at most, or below, the period given, None if there is none. The period is
    bisected over whole ns, then lowered to what is reached; where that takes too long, what is
    returned is the last whole period that cannot be reached.
    """
    low, drops = floor(least), 0
    while high > least and drops < MOST_DROPS:
        middle = (low + ceil(high)) // 2
        if low < middle < high:
            found = reach(Fraction(middle), False)
            if found is None:
                low = middle
        else:
            drops += 1
            found = reach(high, True)
            if found is None:
                return high
        high = high if found is None else found
    return max(least, Fraction(low))


def refuted_bound(problem: Problem, period: Fraction, proof: Proof | str) -> Bound:
    """Return what follows if no plan of any allocation has a period, or a shorter one.

    It speaks of the reading of memory and of the lengths of patterns that were asked for.
    """
    asked = problem.scope
    scope = replace(
        widest(asked), memory=asked.memory, max_k=asked.max_k, microbatches=asked.microbatches
    )
    return make_bound(period_above(period, asked), scope, proof)
