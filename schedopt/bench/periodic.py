"""How long exact proofs take: patterns of k micro-batches, steps, split backwards, recompute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Final

from schedopt.bench.effort import Effort
from schedopt.bench.machine import describe_machine
from schedopt.bench.proofs import TIGHT, Drawn, Known
from schedopt.chain import Chain, Layer
from schedopt.families import theorem_4
from schedopt.interrupts import interrupts
from schedopt.platform import Platform
from schedopt.problem import Scope

MOST_SLOW: Final = 10
"""Seeds at most where one run takes long."""


def problems(seeds: int) -> list[Known | Drawn]:
    """Return what is measured, with so many random chains of each size."""
    few = min(seeds, MOST_SLOW)
    return [
        *(_theorem_4(k) for k in range(1, 8)),
        *(_uniform(gpus, room) for gpus in (4, 6, 8) for room in range(1, gpus + 1)),
        _random(8, 4, seeds),
        _random(8, 7, seeds, goal_s=30.0),
        _random(16, 4, seeds, goal_s=30.0, goal_median_s=5.0),
        split_backward(layers=16, gpus=8, seeds=seeds),
        *(
            recompute_contiguous(layers=160, gpus=8, seeds=seeds, level=level)
            for level in (Decimal("1.5"), TIGHT)
        ),
        recompute_fixed(layers=8, gpus=4, seeds=few),
        *(steps(layers=8, gpus=4, seeds=few, microbatches=count) for count in (8, 16)),
    ]


def split_backward(*, layers: int, gpus: int, seeds: int) -> Drawn:
    """Return the split of the backward, k = 1."""
    return Drawn(
        family="split_backward",
        layers=layers,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(allocation="fixed", split_backward=True),
        ratio="whole_over_split",
        goal_s=5.0,
    )


def recompute_contiguous(*, layers: int, gpus: int, seeds: int, level: Decimal) -> Drawn:
    """Return recompute of any layers in the contiguous programme."""
    return Drawn(
        family="recompute_contiguous",
        layers=layers,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(recompute=True),
        solver="contiguous",
        bandwidth="12GB/s",
        level=level,
        ratio="without_over_with",
        goal_s=2.0,
    )


def recompute_fixed(*, layers: int, gpus: int, seeds: int) -> Drawn:
    """Return recompute of any layers for a given allocation, k up to 2."""
    return Drawn(
        family="recompute_fixed",
        layers=layers,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(allocation="fixed", max_k=2, recompute=True),
        ratio="contiguous_over_found",
    )


def steps(*, layers: int, gpus: int, seeds: int, microbatches: int) -> Drawn:
    """Return a step with a flush for a given allocation."""
    return Drawn(
        family="steps",
        layers=layers,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(allocation="fixed", microbatches=microbatches),
        solver="step",
    )


def measure_periodic(
    seeds: int,
    workers: int,
    time_limit: float,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> dict[str, Any]:
    """Return the figures of all problems with machine, versions and date: see `measure`."""
    return measure(problems(seeds), Effort(workers, time_limit), on_run)


def measure(
    wanted: Sequence[Known | Drawn],
    effort: Effort,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> dict[str, Any]:
    """Return figures with machine, versions and date: a list of rows for each family.

    Parameters
    ----------
    wanted : sequence of Known or Drawn
    effort : Effort
    on_run : callable
        Called before each run with the number of runs done, of all, and the name of this one.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, at the end of the run that it meets and shortens.
    """
    document: dict[str, Any] = {
        **describe_machine(),
        "workers": effort.workers,
        "time_limit_s": effort.time_limit,
    }
    total = sum(one.seeds for one in wanted)
    done = 0
    with interrupts() as interrupted:

        def begin(one: Known | Drawn, seed: int) -> None:
            nonlocal done
            if interrupted():
                raise KeyboardInterrupt
            which = f", seed {seed}" if isinstance(one, Drawn) else ""
            on_run(done, total, f"{one.family}, {one.gpus} GPUs{which}")
            done += 1

        for one in wanted:
            row = one.measure(effort, partial(begin, one))
            document.setdefault(one.family, []).append(row)
        if interrupted():
            raise KeyboardInterrupt
    return document


def _theorem_4(k: int) -> Known:
    instance = theorem_4(k)
    return Known(
        family="theorem_4",
        given={"k": k},
        chain=instance.chain,
        platform=instance.platform,
        max_k=k,
        period=2_000_000 * (1 + Fraction(1, k)),
        goal_s=1.0,
    )


def _uniform(gpus: int, room: int) -> Known:
    """Return equal stages, F = 1 and B = 2 ms, with room for so many activations."""
    layer = Layer(forward_ns=1_000_000, backward_ns=2_000_000, weight_bytes=0, activation_bytes=1)
    return Known(
        family="uniform",
        given={"gpus": gpus, "activations": room},
        chain=Chain(layers=(layer,) * gpus),
        platform=Platform(gpus, room),
        max_k=room,
        period=1_000_000 * max(Fraction(3), Fraction(3 * gpus, room)),
        goal_s=10.0,
    )


def _random(
    gpus: int,
    longest: int,
    seeds: int,
    *,
    goal_s: float | None = None,
    goal_median_s: float | None = None,
) -> Drawn:
    return Drawn(
        family="random",
        layers=2 * gpus,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(allocation="fixed", max_k=longest),
        ratio="k_1_over_found",
        goal_s=goal_s,
        goal_median_s=goal_median_s,
    )
