"""A step of a plan as a trace that Perfetto (ui.perfetto.dev) and Chrome show.

Three groups: a track for each GPU that has a stage, one for each link that carries something, and
for each of these GPUs a counter of the bytes that lie on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from schedopt.drawing.trace_events import (
    Event,
    counting,
    lasting,
    make_document,
    name_process,
    name_thread,
)
from schedopt.plan import Operation, Plan, Transfer
from schedopt.simulation import Simulation, simulate
from schedopt.units import printable

FILE: Final = "trace.json"
GPUS: Final = 1
LINKS: Final = 2
MEMORY: Final = 3


def export(plan: Plan, microbatches: int) -> dict[str, str]:
    """Return the trace of a step, everything as soon as the order of the plan allows.

    Raises
    ------
    InputError
        For a number of micro-batches that does not fit, or that makes too many events.
    """
    step = simulate(plan, microbatches)
    events = [*_work(step), *_transfers(step), *_memory(step)]
    return {FILE: json.dumps(make_document(events), separators=(",", ":")) + "\n"}


def _work(step: Simulation) -> Iterator[Event]:
    plan = step.plan
    yield name_process(GPUS, f"GPUs: {printable(plan.chain.name) or 'unnamed'}")
    for gpu in _used(plan):
        yield name_thread(GPUS, gpu, f"GPU {gpu}: {_layers(plan, gpu)}")
    for event in step.events:
        item = event.item
        if isinstance(item, Operation):
            yield lasting(
                f"{item.kind}{item.stage}:{event.first}",
                item.kind,
                (GPUS, event.gpu),
                event.start_ns,
                event.end_ns,
                {"stage": item.stage, "micro-batch": event.first},
            )


def _layers(plan: Plan, gpu: int) -> str:
    """Return the layers of a GPU, in words."""
    own = [stage for stage in plan.stages if gpu in stage.gpus]
    return "layers " + ", ".join(f"{stage.first}-{stage.last}" for stage in own)


def _transfers(step: Simulation) -> Iterator[Event]:
    """Yield what each link carries; a route of several hops shows on each of them."""
    platform = step.plan.platform
    sent = [
        (resource, event)
        for event in step.events
        if event.source is not None and isinstance(event.item, Transfer)
        for resource in platform.route(event.source, event.gpu, step.plan.lanes(event.item))
    ]
    tracks = {link: track for track, link in enumerate(sorted({link for link, _ in sent}))}
    if tracks:
        yield name_process(LINKS, "links")
    for link, track in tracks.items():
        yield name_thread(LINKS, track, f"link {printable(platform.name_link(link, ' to '))}")
    for link, event in sent:
        item = event.item
        assert not isinstance(item, Operation)
        yield lasting(
            f"{item.tensor} {item.stage}:{event.first}",
            item.tensor,
            (LINKS, tracks[link]),
            event.start_ns,
            event.end_ns,
            {"stage": item.stage, "micro-batch": event.first, "bytes": event.sent_bytes},
        )


def _memory(step: Simulation) -> Iterator[Event]:
    yield name_process(MEMORY, "memory")
    for gpu in _used(step.plan):
        for level in step.memory_profile[gpu]:
            # What takes no time holds its memory for an instant.
            for count in dict.fromkeys((level.most, level.count)):
                yield counting(f"GPU {gpu}", MEMORY, level.start_ns, count, "bytes")


def _used(plan: Plan) -> list[int]:
    """Return the GPUs that have a stage."""
    return sorted({gpu for stage in plan.stages for gpu in stage.gpus})
