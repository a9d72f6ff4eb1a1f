"""Sending what is needed later as late as possible, so that it waits at its maker's.

What comes before the operation that reads it starts lies in a receive buffer. Operations keep their
times, and so does everything that does not go from stage to stage.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from schedopt.account.receiving import maker_of, reader_of
from schedopt.account.timeline import Interval, Timeline
from schedopt.network import Resource
from schedopt.plan import Plan, Transfer

_OTHERS: Final = -1
_ROUNDS: Final = 8
"""The most rounds in which transfers make room for each other around the period."""


def delay_transfers(
    plan: Plan, first: Collection[int] = (), taken: Iterable[tuple[Resource, int, int]] = ()
) -> Plan:
    """Return the plan with each activation and gradient sent as late as links and its reader allow.

    One transfer after the other takes the last gap of its links before its reader starts, those
    first that are needed last, until none comes later. So none comes earlier than before.

    Parameters
    ----------
    plan : Plan
        Valid, but perhaps for its memory. One with a fold or collectives is returned as it is.
    first : collection of int
        GPUs that have no room for what waits. If there are any, all transfers are laid out anew,
        those to these GPUs before the others, which may then come earlier than before. Where they
        do not come in time the plan is what it is without.
    taken : iterable of (resource, int, int)
        Links that something else than the transfers of the plan has, from when on and how long, ns.
    """
    if not any(transfer.is_boundary for transfer in plan.pattern.transfers):
        return plan
    if plan.pattern.is_short:
        return plan
    taken = [*taken]
    links = _Links(plan, taken)
    if first and not links.lay_out(first):
        links = _Links(plan, taken)
    waiting = sorted(links.movable, key=lambda sent: -sent.deadline_ns)
    for _ in range(_ROUNDS):
        if not sum(links.delay(sent) for sent in waiting):
            break
    moved = {id(sent.item): sent.delay_ns for sent in links.movable if sent.delay_ns}
    if not moved:
        return plan
    k, period = plan.pattern.k, plan.pattern.period_total_ns

    def later(transfer: Transfer) -> Transfer:
        if id(transfer) not in moved:
            return transfer
        periods, start = divmod(transfer.start_ns + moved[id(transfer)], period)
        return transfer.at(transfer.shift - k * periods, start)

    transfers = tuple(map(later, plan.pattern.transfers))
    return replace(plan, pattern=replace(plan.pattern, transfers=transfers))


@dataclass
class _Sent:
    """A transfer with all of its runs in a hyperperiod, which come `delay_ns` later together."""

    item: Transfer
    number: int
    runs: list[tuple[Interval, tuple[Resource, ...]]] = field(default_factory=list)
    slack_ns: int | None = None
    earliest_ns: int | None = None
    """By how much it may come later, and (below 0) earlier, for what it carries to be there."""
    deadline_ns: int = 0
    delay_ns: int = 0


@dataclass
class _Users:
    """What is on a link in a hyperperiod: start, length and the number of the transfer."""

    runs: list[tuple[int, int, int]] = field(default_factory=list)
    longest_ns: int = 0

    def add(self, start: int, length: int, number: int) -> None:
        insort(self.runs, (start, length, number))
        self.longest_ns = max(self.longest_ns, length)

    def remove(self, start: int, length: int, number: int) -> None:
        del self.runs[bisect_left(self.runs, (start, length, number))]

    def between(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return what starts between two instants."""
        return self.runs[bisect_left(self.runs, (first,)) : bisect_left(self.runs, (last + 1,))]


class _Links:
    def __init__(self, plan: Plan, taken: Iterable[tuple[Resource, int, int]]) -> None:
        self.timeline = timeline = Timeline(plan)
        # Engines recompute inside the backward.
        self.inside = plan.scope.engine is not None
        self.users: dict[Resource, _Users] = defaultdict(_Users)
        for resource, start, length in taken:
            self.users[resource].add(start, length, _OTHERS)
        every: dict[int, _Sent] = {}
        for transfer, first, source, _, run in timeline.transfers():
            sent = every.setdefault(id(transfer), _Sent(transfer, len(every)))
            sent.runs.append((run, timeline.route(transfer, source, run.gpu)))
            if transfer.is_boundary:
                start = min(self._reads(transfer, first))
                slack = start - run.end_ns
                if sent.slack_ns is None or slack < sent.slack_ns:
                    sent.slack_ns, sent.deadline_ns = slack, start % timeline.length_ns
                early = max(self._makes(transfer, first)) - run.start_ns
                if sent.earliest_ns is None or early > sent.earliest_ns:
                    sent.earliest_ns = early
        self.movable = [sent for sent in every.values() if sent.item.is_boundary]
        for sent in every.values():
            for users, start, length in self._uses(sent):
                users.add(start, length, sent.number)

    def _reads(self, transfer: Transfer, first: int) -> Iterator[int]:
        """Yield when the operations start that read what a transfer carries."""
        kind, stage = reader_of(self.timeline, transfer)
        if kind == "B" and self.inside and self.timeline.has("R", stage):
            kind = "R"
        for micro_batch in range(first, first + transfer.covers):
            yield self.timeline.at(kind, stage, micro_batch).start_ns

    def _makes(self, transfer: Transfer, first: int) -> Iterator[int]:
        """Yield when the operations end that make what a transfer carries."""
        kind, stage = maker_of(self.timeline, transfer)
        for micro_batch in range(first, first + transfer.covers):
            yield self.timeline.at(kind, stage, micro_batch).end_ns

    def _uses(self, sent: _Sent) -> Iterator[tuple[_Users, int, int]]:
        """Yield where a transfer is in the lists of its links: list, start and length."""
        for run, route in sent.runs:
            start = (run.start_ns + sent.delay_ns) % self.timeline.length_ns
            for resource in route:
                yield self.users[resource], start, run.end_ns - run.start_ns

    def lay_out(self, first: Collection[int]) -> bool:
        """Lay out all anew, what goes to some GPUs before all else; return whether it was possible.

        Among both what is needed last comes first.
        """
        for sent in self.movable:
            self._remove(sent)

        def turn(sent: _Sent) -> tuple[bool, int]:
            return all(run.gpu not in first for run, _ in sent.runs), -sent.deadline_ns

        for sent in sorted(self.movable, key=turn):
            least = sent.earliest_ns or 0
            sent.delay_ns = self._latest(sent, least)
            if sent.delay_ns < least:
                return False
            self._add(sent)
        return True

    def delay(self, sent: _Sent) -> bool:
        """Delay a transfer as far as it can be; return whether that is further than before."""
        found = self._latest(sent, sent.delay_ns)
        if found <= sent.delay_ns:
            return False
        self._remove(sent)
        sent.delay_ns = found
        self._add(sent)
        return True

    def _add(self, sent: _Sent) -> None:
        for users, start, length in self._uses(sent):
            users.add(start, length, sent.number)

    def _remove(self, sent: _Sent) -> None:
        for users, start, length in self._uses(sent):
            users.remove(start, length, sent.number)

    def _latest(self, sent: _Sent, least: int) -> int:
        """Return the most by which a transfer can be delayed, if that is not below the least."""
        found = sent.slack_ns or 0
        if found <= least:
            return found
        for end, begin in sorted(self._taken(sent, least, found), reverse=True):
            # The later ends come first, so that what was passed can hold up no more.
            if begin < found < end:
                found = begin
        return found

    def _taken(self, sent: _Sent, least: int, most: int) -> Iterator[tuple[int, int]]:
        """Yield between which delays a transfer would meet another one: end and begin.

        Of the last hyperperiod before the most: what is free there is free in each.
        """
        whole = self.timeline.length_ns
        least = max(least, most - whole)
        for run, route in sent.runs:
            lasts = run.end_ns - run.start_ns
            for resource in route:
                users = self.users[resource]
                first = run.start_ns + least - users.longest_ns
                last = run.start_ns + most + lasts
                for turn in range(first // whole, last // whole + 1):
                    for start, length, number in users.between(
                        first - turn * whole, last - turn * whole
                    ):
                        if number != sent.number:
                            begin = start + turn * whole - run.start_ns - lasts
                            yield begin + lasts + length, begin
