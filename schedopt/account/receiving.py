"""What comes from another GPU before it is read: until then it lies in a receive buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schedopt.account.timeline import Schedule
from schedopt.plan import Kind, Transfer


@dataclass(frozen=True)
class Buffer:
    """The tensor of one micro-batch that waits on a GPU for the stage that reads it."""

    gpu: int
    stage: int
    count: int
    start_ns: int
    end_ns: int


def find_buffers(schedule: Schedule) -> Iterator[Buffer]:
    """Yield the activations and gradients that come before they are read.

    They lie there from the end of their transfer to the start of the operation that reads them.
    What comes just in time, or stays on its GPU, takes no buffer.
    """
    plan = schedule.plan
    for transfer, first, source, count, run in schedule.transfers():
        if not transfer.is_boundary or not count or source == run.gpu:
            continue
        kind, stage = reader_of(schedule, transfer)
        each = plan.costs.layers[plan.stages[transfer.stage].last].activation_bytes
        for i in range(first, first + transfer.covers):
            read = schedule.at(kind, stage, i)
            if run.end_ns < read.start_ns:
                yield Buffer(run.gpu, stage, each, run.end_ns, read.start_ns)


def maker_of(schedule: Schedule, transfer: Transfer) -> tuple[Kind, int]:
    """Return the kind and stage of the operation that makes an activation or a gradient."""
    if transfer.tensor == "activation":
        return "F", transfer.stage
    return ("I" if schedule.has("I", transfer.stage + 1) else "B"), transfer.stage + 1


def reader_of(schedule: Schedule, transfer: Transfer) -> tuple[Kind, int]:
    """Return the kind and stage of the operation that reads an activation or a gradient."""
    if transfer.tensor == "activation":
        return "F", transfer.stage + 1
    return ("I" if schedule.has("I", transfer.stage) else "B"), transfer.stage
