"""The step of a pipeline of which each pass was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedopt.solving.replicas.arrays import NEVER
from schedopt.solving.replicas.copies import NO_COPIES
from schedopt.solving.replicas.timing import STRICT, simulate_step


def one_f_one_b_ns(
    forward: Sequence[float], backward: Sequence[float], microbatches: int, message: float = 0
) -> int:
    """Return how long a step of 1F1B takes without an update, ns.

    Parameters
    ----------
    forward, backward : sequence of float
        Of each stage, for a micro-batch, ns.
    microbatches : int
    message : float
        Between stages, ns, while GPUs go on; each direction has a link of its own.
    """
    stages = len(forward)
    zeros, ones = np.zeros(stages, dtype=np.int64), np.ones(stages, dtype=np.int64)
    makespan, _ = simulate_step(
        ones,
        np.array([round(time) for time in forward], dtype=np.int64),
        np.array([round(time) for time in backward], dtype=np.int64),
        zeros,
        np.arange(stages, 0, -1, dtype=np.int64),
        zeros,
        zeros,
        zeros + round(message),
        ones,
        ones,
        NO_COPIES,
        microbatches,
        STRICT,
        NEVER,
    )
    return int(makespan)


def blocked_ns(
    forward: Sequence[float], backward: Sequence[float], messages: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return passes with the exchanges that block their GPU, ns.

    Megatron-LM sends and receives between two passes and waits until both are done: behind a
    forward a GPU sends its output and takes a gradient from the next stage, behind a backward it
    does so with the stage before. So each such exchange occupies the GPUs at both of its ends.

    Parameters
    ----------
    forward, backward : sequence of float
        Of each stage, ns.
    messages : sequence of float
        Between each stage and the next, ns for one message.
    """
    behind, before = [*messages, 0], [0, *messages]
    return (
        [time + message for time, message in zip(forward, behind, strict=True)],
        [time + message for time, message in zip(backward, before, strict=True)],
    )


def in_flight(stages: int, stage: int, microbatches: int) -> int:
    """Return how many micro-batches a stage of 1F1B holds at most."""
    return min(microbatches, stages - stage)
