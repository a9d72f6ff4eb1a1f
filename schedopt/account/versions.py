"""Which versions of the weights a plan reads and holds, and how stale its gradients are.

For rules with updates only; nothing here is typed in: it follows from the pattern.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from schedopt.account.gathering import find_gathers
from schedopt.account.profile import Span, peak_of
from schedopt.account.reading import Place, Reader
from schedopt.account.timeline import Timeline
from schedopt.plan import Plan


@dataclass(frozen=True)
class HeldVersion:
    """One version of a stage's weights on a GPU, from when it is made to its last use, ns.

    Of one chunk, or where `chunk` is None of the whole stage.
    """

    stage: int
    gpu: int
    chunk: int | None
    made_ns: int
    end_ns: int


@dataclass(frozen=True)
class Versions:
    """What a plan does to the weights.

    Parameters
    ----------
    held : dict of (stage, GPU) to int
        The most versions at once; where parameters are sharded, of a chunk that is at home there.
    forward_staleness, backward_staleness : dict of (micro-batch, stage) to int
        Updates between the version that F or B reads and the one that the gradient is applied
        to, for the micro-batches of one hyperperiod.
    """

    held: dict[tuple[int, int], int]
    forward_staleness: dict[tuple[int, int], int]
    backward_staleness: dict[tuple[int, int], int]


def versions(plan: Plan) -> Versions:
    """Return versions and staleness of a plan whose rule has updates."""
    timeline = Timeline(plan)
    reader = Reader(timeline)
    lying: dict[Place, list[Span]] = defaultdict(list)
    for version in held_versions(reader):
        place = (version.stage, version.gpu, version.chunk)
        lying[place].append((1, version.made_ns, version.end_ns))
    forward, backward = {}, {}
    for stage in range(len(plan.stages)):
        for micro_batch in range(timeline.length):
            reads = reader.reads(stage, micro_batch)
            mini_batch = micro_batch // reader.every
            forward[micro_batch, stage] = mini_batch - reads["F"]
            backward[micro_batch, stage] = mini_batch - reads[reader.backward(stage)]
    held = {(stage, gpu): 0 for stage, one in enumerate(plan.stages) for gpu in one.gpus}
    for (stage, gpu, _), found in lying.items():
        held[stage, gpu] = max(held[stage, gpu], peak_of(found, timeline.length_ns))
    return Versions(held, forward, backward)


def held_versions(reader: Reader) -> Iterator[HeldVersion]:
    """Yield the versions of one hyperperiod or step, each until it is replaced and used last.

    None if the rule is given. Where several updates come at once, one that nobody uses has no
    memory of its own.
    """
    if reader.rule.is_given:
        return
    last_use: dict[tuple[Place, int], int] = {}
    for place, version, end in _uses(reader):
        # The same use one hyperperiod on or back, moved to a version made in this one.
        here, later_ns = reader.fold(version)
        last_use[place, here] = max(last_use.get((place, here), end - later_ns), end - later_ns)
    for stage, one in enumerate(reader.schedule.plan.stages):
        for gpu in dict.fromkeys(one.gpus):
            for chunk in reader.places(stage, gpu):
                place = (stage, gpu, chunk)
                for version, made, replaced in reader.lives(place):
                    used = last_use.get((place, version))
                    if used is not None or made != replaced:
                        end = replaced if used is None else max(replaced, used)
                        yield HeldVersion(stage, gpu, chunk, made, end)


def _uses(reader: Reader) -> Iterator[tuple[Place, int, int]]:
    """Yield where a version is read or sent from, the version, and the end of that, ns."""
    schedule = reader.schedule
    for stage in range(len(schedule.plan.stages)):
        for micro_batch in range(schedule.length):
            for kind, version in reader.reads(stage, micro_batch).items():
                run = schedule.at(kind, stage, micro_batch)
                for chunk in reader.places(stage, run.gpu):
                    yield (stage, run.gpu, chunk), version, run.end_ns
    for gather in find_gathers(reader):
        if gather.from_home:
            place = (gather.stage, gather.source, gather.chunk)
            yield place, gather.version, gather.end_ns
    for transfer, i, source, _, run in schedule.transfers():
        if transfer.tensor == "weights" and not reader.scattered(transfer.stage):
            yield (transfer.stage, source, None), i // reader.every + 1, run.end_ns
