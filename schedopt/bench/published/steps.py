"""The step of a pipeline of which each pass was measured."""

from __future__ import annotations

from collections.abc import Sequence

from schedopt.solving.replicas.timing import STRICT, Simulation


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
    ones = [1] * stages
    simulation = Simulation(stages, stages, microbatches)
    simulation.load(
        replicas=ones,
        forward=[round(time) for time in forward],
        backward=[round(time) for time in backward],
        depth=range(stages, 0, -1),
        trip=round(message),
        links=ones,
        full=ones,
    )
    return simulation.run(STRICT)


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
