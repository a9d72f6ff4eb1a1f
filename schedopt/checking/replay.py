"""Whether each GPU has the memory that a plan needs, by replaying what comes and goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import lcm

from schedopt.checking.residencies import Group, Residency, list_residencies
from schedopt.checking.timeline import Timeline
from schedopt.checking.violations import Violation
from schedopt.units import format_bytes

_RELEASE, _ACQUIRE, _RELEASE_AT_ONCE = range(3)


def find_memory_violations(
    timeline: Timeline, versions: Iterable[Residency], unknown: Iterable[int]
) -> Iterator[Violation]:
    """Yield the GPUs that need more memory than they have, in the reading of the scope.

    Of stages whose versions are unknown one version is counted.
    """
    plan = timeline.plan
    coming: dict[int, list[Residency]] = {}
    for residency in (*list_residencies(timeline), *versions):
        coming.setdefault(residency.group[0], []).append(residency)
    moving = {gpu: replay(residencies) for gpu, residencies in coming.items()}
    for gpu, lying in sorted(_count_constants(timeline, frozenset(unknown)).items()):
        twin = gpu if timeline.part is None else timeline.part.twins[gpu]
        in_sum, peak = moving.get(twin, (0, 0))
        need = lying + (peak if plan.scope.memory == "peak" else in_sum)
        usable = plan.platform.gpus[gpu].usable_bytes
        if need > usable:
            yield Violation(
                "memory",
                f"GPU {gpu}",
                f"needs {format_bytes(need)} of {format_bytes(usable)} in the reading "
                f"{plan.scope.memory}: {need} bytes, {need - usable} too many",
            )


def _count_constants(timeline: Timeline, unknown: frozenset[int]) -> dict[int, int]:
    """Return what always lies on each GPU that has a stage."""
    plan = timeline.weights_of
    constants: dict[int, int] = {}
    for position, stage in enumerate(plan.stages):
        sharded = [] if stage.shard == "none" else ["optimizer_bytes"]
        if stage.shard in ("gradient", "parameter"):
            sharded.append("gradient_bytes")
        size = timeline.size(position, "weight_bytes")
        if not plan.rule.is_given and position not in unknown:
            size -= timeline.size(position, "parameter_bytes")
        for gpu in set(stage.gpus):
            home, held = timeline.home(position, gpu), timeline.held(position, gpu)
            less = sum(
                timeline.size(position, part, held) - timeline.size(position, part, home)
                for part in sharded
            )
            constants[gpu] = constants.get(gpu, 0) + size - less
    return constants


def replay(residencies: Iterable[Residency]) -> tuple[int, int]:
    """Return what comes and goes on a GPU: each group at its own maximum, added up; and at most.

    From a cold start at time 0, until all that can lie there at once has come, and for a whole
    round more. Of what lies there for longer than such a round, whole repetitions are counted at
    once instead. At one instant releases come before acquisitions; what has no length counts after
    the releases, together with all acquisitions.
    """
    coming = list(residencies)
    together = lcm(*(residency.every_ns for residency in coming))
    numbers: dict[Group, int] = {}
    held: list[int] = []
    repeated: list[tuple[int, int, int, int, int]] = []
    for group, size, since, until, every in coming:
        number = numbers.setdefault(group, len(numbers))
        if number == len(held):
            held.append(0)
        length = until - since
        rounds = max(0, length - together) // every
        held[number] += rounds * size
        repeated.append((number, size, since % every, length - rounds * every, every))
    events: list[tuple[int, int, int, int]] = []
    last = together + max((length for _, _, _, length, _ in repeated), default=0)
    for number, size, since, length, every in repeated:
        release = _RELEASE if length else _RELEASE_AT_ONCE
        for start in range(since, last, every):
            events.append((start, _ACQUIRE, number, size))
            events.append((start + length, release, number, -size))
    most = [*held]
    now = peak = sum(held)
    events.sort()
    for _, _, number, size in events:
        now += size
        held[number] += size
        if size > 0:
            peak = max(peak, now)
            most[number] = max(most[number], held[number])
    return sum(most), peak
