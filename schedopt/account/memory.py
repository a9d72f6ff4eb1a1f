"""How much memory a plan needs on each GPU, in both readings, and for what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from schedopt.account.parts import find_part
from schedopt.account.profile import Level, Span, peak_of, profile_of
from schedopt.account.residencies import Residency, residencies, residencies_of
from schedopt.account.timeline import Schedule, Timeline
from schedopt.plan import Kind, Plan

_TOGETHER: Final = frozenset({"workspace", "gathered", "gradient", "received"})
"""Kinds of which the stages of a GPU share the room, so that they count together."""


@dataclass(frozen=True)
class GpuMemory:
    """What one GPU needs, bytes.

    Parameters
    ----------
    sum_bytes : int
        Each kind and stage at its own maximum, added up: the sum of NCA times saved of Beaumont
        et al. 2021, section 3.2. What stages share the room for counts together.
    peak_bytes : int
        The maximum over time.
    by_kind : dict of str to int
        The parts of `sum_bytes`.
    """

    sum_bytes: int
    peak_bytes: int
    by_kind: dict[str, int]

    def reading(self, name: str) -> int:
        """Return the memory in the reading *sum* or *peak*."""
        return self.sum_bytes if name == "sum" else self.peak_bytes


def memory(plan: Plan) -> tuple[GpuMemory, ...]:
    """Return what each GPU of the platform needs."""
    part = find_part(plan)
    if part is None:
        return memory_of(plan, residencies(plan), Timeline(plan).length_ns)
    first = memory_of(plan, residencies_of(part.timeline), part.timeline.length_ns)
    nothing = GpuMemory(0, 0, {})
    of_group = plan.first_of_group
    return tuple(
        _without(first[part.twins[own]], part.elsewhere(own)) if own in part.twins else nothing
        for own in (of_group.get(gpu, gpu) for gpu in range(len(plan.platform.gpus)))
    )


def _without(need: GpuMemory, count: int) -> GpuMemory:
    """Return a need without some bytes of the weights that always lie there."""
    by_kind = need.by_kind | {"weights": need.by_kind["weights"] - count}
    return GpuMemory(need.sum_bytes - count, need.peak_bytes - count, by_kind)


def memory_without_buffers(schedule: Schedule) -> tuple[GpuMemory, ...]:
    """Return what each GPU of the platform would need if nothing came before it is read."""
    found = (one for one in residencies_of(schedule) if one.kind != "received")
    return memory_of(schedule.plan, found, schedule.length_ns)


def fits(plan: Plan, *, buffers: bool = True) -> bool:
    """Whether the GPUs hold a plan, in the reading of memory of its scope.

    Without `buffers`: whether they would if nothing came before it is read.
    """
    needs = memory(plan) if buffers else memory_without_buffers(Timeline(plan))
    return all(
        need.reading(plan.scope.memory) <= gpu.usable_bytes
        for need, gpu in zip(needs, plan.platform.gpus, strict=True)
    )


def memory_of(plan: Plan, found: Iterable[Residency], period: int) -> tuple[GpuMemory, ...]:
    """Return what each GPU needs for residencies that repeat with a period, ns."""
    return tuple(_gpu_memory(members, period) for members in _by_gpu(plan, found))


def memory_profile(
    plan: Plan, found: Iterable[Residency], period: int
) -> tuple[tuple[Level, ...], ...]:
    """Return the bytes on each GPU over time, for residencies that repeat with a period, ns."""
    return tuple(tuple(profile_of(map(_span, members), period)) for members in _by_gpu(plan, found))


def _by_gpu(plan: Plan, found: Iterable[Residency]) -> list[list[Residency]]:
    of_first: dict[int, list[Residency]] = defaultdict(list)
    for residency in found:
        of_first[residency.gpu].append(residency)
    first = plan.first_of_group
    return [of_first[first.get(gpu, gpu)] for gpu in range(len(plan.platform.gpus))]


def _gpu_memory(found: list[Residency], period: int) -> GpuMemory:
    groups: dict[tuple[str, int, str], list[Residency]] = defaultdict(list)
    for residency in found:
        stage = -1 if residency.kind in _TOGETHER else residency.stage
        groups[residency.kind, stage, residency.until].append(residency)
    by_kind: dict[str, int] = defaultdict(int)
    for (kind, _, _), members in groups.items():
        by_kind[kind] += peak_of(map(_span, members), period)
    return GpuMemory(sum(by_kind.values()), peak_of(map(_span, found), period), dict(by_kind))


def _span(residency: Residency) -> Span:
    return residency.count, residency.start_ns, residency.end_ns


def concurrent_activations(plan: Plan) -> dict[tuple[int, int], int]:
    """Return the NCA of each (stage, GPU): micro-batches between F and B at once.

    Beaumont et al. 2021, section 3.2. With a split backward they count to the end of I.
    """
    part = find_part(plan)
    if part is not None:
        first = concurrent_activations(part.plan)
        return {
            (number, gpu): first[number, part.twins[gpu]]
            for number, stage in enumerate(plan.stages)
            for gpu in stage.gpus
        }
    timeline = Timeline(plan)
    held: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for stage in range(len(plan.stages)):
        half: Kind = "I" if timeline.has("I", stage) else "B"
        for micro_batch in range(timeline.length):
            forward = timeline.at("F", stage, micro_batch)
            backward = timeline.at(half, stage, micro_batch)
            held[stage, forward.gpu].append((1, forward.start_ns, backward.end_ns))
    return {key: peak_of(spans, timeline.length_ns) for key, spans in held.items()}
