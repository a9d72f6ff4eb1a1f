"""Whether the collectives of a fold come behind what they send, on links that are free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import Final

from schedopt.checking.copies import find_partners
from schedopt.checking.parts import Kind, Part, list_collectives
from schedopt.checking.resources import find_overlaps_in_round, list_uses, name_resource
from schedopt.checking.timeline import Timeline, Use
from schedopt.checking.violations import Violation
from schedopt.folding import Hop, Ring, hops, list_runs, ring
from schedopt.network import Resource
from schedopt.plan import Collective, Operation, Transfer

_NEVER: Final = -1


def find_wrong_collectives(timeline: Timeline, part: Part) -> Iterator[Violation]:
    """Yield what is wrong with the collectives and updates of a plan, by the timeline of a part.

    In a step with a flush each replica has made its own gradient, chunks are added up, the whole is
    applied, and all is where it is read when the next step begins.
    """
    plan = part.of
    rings = [ring(plan, one) for one in plan.pattern.collectives]
    for stage in range(len(plan.stages)):
        yield from _Ending(timeline, part, stage, rings).follow()
    yield from _find_overlaps(timeline, part, rings)


class _Ending:
    """What follows the last backwards of a stage."""

    def __init__(self, timeline: Timeline, part: Part, stage: int, rings: list[Ring]) -> None:
        self.timeline, self.part, self.stage = timeline, part, stage
        self.gpus = part.of.stages[stage].gpus
        self.found: list[Violation] = []
        listed = {
            (one.tensor, one.mode, one.across): (f"collectives[{number}]", one, rings[number])
            for number, one in enumerate(part.of.pattern.collectives)
            if one.stage == stage
        }
        every = list_collectives(part.of.stages[stage])
        self.collectives: dict[Kind, tuple[str, Collective, Ring]] = {
            kind: listed[kind] for kind in every
        }

    def follow(self) -> list[Violation]:
        """Return what comes before what it needs, or after the step."""
        there: Mapping[int, int] = self.with_copies(self.made_alone())
        what = "its own gradient is there"
        for kind in self.collectives:
            if kind[0] == "weight_gradient":
                self.require(kind, "gradient", there, what)
                came, what = self.arrivals(kind), "its chunk is added up"
                there = {gpu: max(came[gpu], there[gpu]) for gpu in self.gpus}
        there = self.update(there)
        for kind in self.collectives:
            if kind[0] == "weights":
                self.require(kind, "version", there, "it has made the next version")
                self.arrivals(kind)
        return self.found

    def made_alone(self) -> dict[int, int]:
        """Return when each GPU has made its own gradient, ns."""
        part, latest = self.part.plan, dict.fromkeys(self.part.plan.stages[self.stage].gpus, _NEVER)
        last = "W" if self.timeline.is_split(self.stage) else "B"
        for i in range(part.pattern.k):
            gpu = part.stages[self.stage].gpu(i)
            latest[gpu] = max(latest[gpu], self.timeline.span((last, self.stage), i)[1])
        return {gpu: latest[self.part.twins[gpu]] for gpu in self.gpus}

    def with_copies(self, there: Mapping[int, int]) -> dict[int, int]:
        """Return when each GPU has the gradients of copies, too; note what does not come once."""
        timeline, twins = self.timeline, self.part.twins
        latest = {twins[gpu]: end for gpu, end in there.items()}
        for partner in find_partners(self.part.plan, self.stage):
            made = timeline.own_gradients(partner, self.part.plan.pattern.k)
            came = Counter(i for gpu in latest for _, i in made.get(gpu, ()))
            for gpu in latest:
                latest[gpu] = max([latest[gpu], *(end for end, _ in made.get(gpu, ()))])
            for _, item in timeline.by_stage[self.stage]:
                if not isinstance(item, Transfer) or item.source_stage != partner:
                    continue
                start, (source, target) = item.start_ns, timeline.ends(item, item.shift)
                came.update(i for end, i in made.get(source, ()) if end <= start)
                latest[target] = max(latest[target], start + timeline.length(item, item.shift))
            wrong = [i for i in range(self.part.plan.pattern.k) if came[i] != 1]
            if wrong:
                times = "more than once" if came[wrong[0]] else "never"
                self.found.append(
                    Violation(
                        "gradient",
                        f"stage {self.stage}",
                        f"the gradient of the copy in stage {partner}, micro-batch {wrong[0]}, is "
                        f"added {times}",
                    )
                )
        return {gpu: latest[twins[gpu]] for gpu in self.gpus}

    def require(self, sent: Kind, kind: str, there: Mapping[int, int], what: str) -> None:
        """Note where GPUs send in the first round of a collective what they do not have yet."""
        place, collective, around = self.collectives[sent]
        starts = {
            self.gpus[replica]: collective.start_ns + delay
            for replica, delay in zip(around.replicas, around.delays_ns, strict=True)
        }
        gpu = max(starts, key=lambda gpu: there[gpu] - starts[gpu])
        if there[gpu] > starts[gpu]:
            self.found.append(
                Violation(
                    kind,
                    place,
                    f"starts at {starts[gpu]} ns, {there[gpu] - starts[gpu]} ns before {what} on "
                    f"GPU {gpu} of stage {self.stage}",
                )
            )

    def arrivals(self, sent: Kind) -> dict[int, int]:
        """Return when the last chunk of a collective comes to each GPU, ns."""
        place, collective, around = self.collectives[sent]
        period = self.part.of.pattern.period_total_ns
        found, end = {}, 0
        for hop in hops(collective, around, around.rounds - 1):
            length = _length_ns(self.timeline, collective, hop)
            found[self.gpus[hop.target]] = hop.start_ns + length
            # What takes no time begins before the end, too.
            end = max(end, hop.start_ns + max(1, length))
        if end > period:
            self.found.append(
                Violation("scope", place, f"ends at {end} ns, {end - period} ns after the step")
            )
        return found

    def update(self, there: Mapping[int, int]) -> Mapping[int, int]:
        """Return when each GPU has applied the gradient; note where that is not there."""
        part = self.part.plan
        updates: dict[int, list[tuple[str, Operation]]] = {}
        for place, item in self.timeline.by_stage[self.stage]:
            if isinstance(item, Operation) and item.kind == "U":
                gpu = part.stages[self.stage].gpu(item.shift)
                updates.setdefault(gpu, []).append((place, item))
        if not updates:
            return there
        made = {}
        for gpu in self.gpus:
            listed = updates.get(self.part.twins[gpu], [])
            made[gpu] = there[gpu]
            if len(listed) != 1:
                where = f"stage {self.stage}, GPU {gpu}"
                times = "by no U" if not listed else "more than once"
                self.found.append(
                    Violation("gradient", where, f"the gradient is applied {times} in the step")
                )
                continue
            place, item = listed[0]
            if item.start_ns < there[gpu]:
                self.found.append(
                    Violation(
                        "gradient",
                        place,
                        f"U of stage {self.stage} starts at {item.start_ns} ns, "
                        f"{there[gpu] - item.start_ns} ns before the gradient is whole on GPU "
                        f"{gpu}",
                    )
                )
            made[gpu] = item.start_ns + self.timeline.length_on(item, gpu)
        return made


def _length_ns(timeline: Timeline, collective: Collective, hop: Hop) -> int:
    gpus = timeline.weights_of.stages[collective.stage].gpus
    field = "parameter_bytes" if collective.tensor == "weights" else "gradient_bytes"
    count = timeline.size(collective.stage, field, [hop.chunk])
    plan = timeline.plan
    lanes = plan.lanes(collective)
    return plan.platform.transfer_ns(count, gpus[hop.source], gpus[hop.target], lanes)


def _find_overlaps(timeline: Timeline, part: Part, rings: list[Ring]) -> Iterator[Violation]:
    """Yield what is sent on a link while a collective sends on it.

    All that the first part sends is looked at in the place of what others do. Transfers of a
    collective are only looked at one by one where something else goes on in one of its rounds.
    """
    uses = list_uses(timeline)
    users: dict[Resource, set[int]] = {}
    for number, around in enumerate(rings):
        for route in around.routes:
            for resource in route:
                users.setdefault(resource, set()).add(number)
    spans = [
        [(start, start + length) for start, length in list_runs(one, around)]
        for one, around in zip(part.of.pattern.collectives, rings, strict=True)
    ]
    hop_uses: dict[int, dict[Resource, list[Use]]] = {}
    seen, known = set(), dict[tuple[Resource | None, frozenset[int]], bool]()
    for resource, numbers in sorted(users.items()):
        twin = part.resources.get(resource)
        others = uses.get(twin, []) if twin is not None else []
        key = twin, frozenset(numbers)
        if key not in known:
            sent = [(use.start, use.start + use.length) for use in others]
            known[key] = _meet([*chain.from_iterable(spans[number] for number in numbers), *sent])
        if not known[key]:
            continue
        together = list(others)
        for number in sorted(numbers):
            if number not in hop_uses:
                hop_uses[number] = _spell_out(timeline, part, rings, number)
            together += hop_uses[number][resource]
        place = name_resource(timeline, resource)
        for violation in find_overlaps_in_round(timeline, place, together, part.plan.pattern.k):
            if violation not in seen:
                seen.add(violation)
                yield violation


def _meet(spans: list[tuple[int, int]]) -> bool:
    """Return whether two spans overlap; one without length may touch another one."""
    return any(following < end for (_, end), (following, _) in pairwise(sorted(spans)))


def _spell_out(
    timeline: Timeline, part: Part, rings: list[Ring], number: int
) -> dict[Resource, list[Use]]:
    """Return what the transfers of a collective occupy."""
    collective, around = part.of.pattern.collectives[number], rings[number]
    found: dict[Resource, list[Use]] = {}
    for hop in hops(collective, around):
        item = Transfer(
            tensor=collective.tensor,
            mode=collective.mode,
            stage=collective.stage,
            shift=collective.shift,
            start_ns=collective.start_ns,
            source=hop.source,
            target=hop.target,
            chunk=hop.chunk,
            chunks=len(around.replicas),
        )
        length = _length_ns(timeline, collective, hop)
        every = part.plan.pattern.k
        use = Use(item, f"collectives[{number}]", collective.shift, hop.start_ns, length, every)
        for resource in around.routes[hop.place]:
            found.setdefault(resource, []).append(use)
    return found
