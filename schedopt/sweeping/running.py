"""The run of a sweep: which point next, what is kept, and what is done when a process is lost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, replace

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.interrupts import broken_pipes_as_errors, interrupts
from schedopt.sweeping.carrying import best_below, carry
from schedopt.sweeping.pools import Pool
from schedopt.sweeping.sweep import MOST_POINTS, Place, Point, Sweep
from schedopt.sweeping.worker import Task, solve_point

LOOK_S = 0.2
"""How often to look whether somebody asked to stop."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Parameters
    ----------
    sweep : Sweep
        All that is known.
    interrupted : bool
        By Ctrl-C, or a request to end, with points left to solve.
    given_up : tuple of Place
        Where each process ended before it had an answer.
    """

    sweep: Sweep
    interrupted: bool
    given_up: tuple[Place, ...]


def run_sweep(
    sweep: Sweep,
    chain: Chain,
    places: Iterable[Place],
    pool: Pool,
    *,
    save: Callable[[Sweep], None] = lambda sweep: None,
    on_point: Callable[[int, int, str], None] = lambda done, total, name: None,
    work: Callable[[Task], Point] = solve_point,
) -> Outcome:
    """Solve the places that a sweep lacks.

    Those with little memory first, since their plans are where those with more start.

    Parameters
    ----------
    sweep : Sweep
        What is known already, of the same chain.
    chain : Chain
    places : iterable of Place
    pool : Pool
        Where, not entered yet.
    save : callable
        Called with all that is known after each point.
    on_point : callable
        Called with the number of points done, of all, and the name of one that runs.
    work : callable
        What solves a point, in another process.

    Raises
    ------
    InputError
        If a point cannot be asked, or there are too many. What was done is saved.
    """
    asked = {place.key: place for place in places}
    total = len(asked.keys() | {point.key for point in sweep.points})
    if total > MOST_POINTS:
        raise InputError(
            f"{total} points are too many",
            field="mem",
            way_out=f"Ask for {MOST_POINTS} at most, with those that the file holds",
        )
    done = {point.key for point in sweep.points}
    missing = sorted(
        (place for key, place in asked.items() if key not in done),
        key=lambda place: (place.memory_bytes, place.key),
    )
    if not missing:
        return Outcome(sweep=sweep, interrupted=False, given_up=())
    with interrupts() as interrupted, broken_pipes_as_errors(), pool:
        return _Run(sweep, chain, missing, pool, work, save, on_point).go(interrupted)


class _Run:
    """What is to do, what runs, and what is suspected.

    When a process ends without an answer, each point that ran then is suspected, and tried again
    while nothing else runs; so none is given up for the fault of another.
    """

    def __init__(
        self,
        sweep: Sweep,
        chain: Chain,
        missing: list[Place],
        pool: Pool,
        work: Callable[[Task], Point],
        save: Callable[[Sweep], None],
        on_point: Callable[[int, int, str], None],
    ) -> None:
        self.sweep, self.chain, self.pool, self.work = sweep, chain, pool, work
        self.save, self.on_point = save, on_point
        self.total = len(sweep.points) + len(missing)
        self.to_do = deque(missing)
        self.suspects: deque[Place] = deque()
        self.alone = False
        self.ends: Counter[Place] = Counter()
        self.given_up: list[Place] = []
        self.runs: dict[Future[Point], Place] = {}

    def go(self, interrupted: Callable[[], bool]) -> Outcome:
        while not interrupted() and (self.to_do or self.suspects or self.runs):
            self._fill()
            for future in wait(self.runs, LOOK_S, FIRST_COMPLETED).done:
                if future in self.runs and not interrupted():
                    self._take(future)
        left = bool(self.to_do or self.suspects or self.runs)
        return Outcome(sweep=self.sweep, interrupted=left, given_up=tuple(self.given_up))

    def _fill(self) -> None:
        if not self.runs:
            self.alone = bool(self.suspects)
            if self.alone:
                self._submit_first(self.suspects)
        while self.to_do and not self.alone and not self.suspects and self._has_room():
            if not self._submit_first(self.to_do):
                return

    def _has_room(self) -> bool:
        return len(self.runs) < self.pool.slots()

    def _submit_first(self, places: deque[Place]) -> bool:
        """Have the first place of a queue solved; not if a process was lost meanwhile."""
        place = places[0]
        line = (point for point in self.sweep.points if point.line == place.line)
        task = Task(
            chain=self.chain,
            options=self.sweep.options,
            place=place,
            start=best_below(place.memory_bytes, line),
        )
        try:
            future = self.pool.submit(self.work, task)
        except self.pool.lost:
            if not self.runs:
                self.pool.renew()
            return False
        self.runs[future] = places.popleft()
        self.on_point(len(self.sweep.points), self.total, str(place))
        return True

    def _take(self, future: Future[Point]) -> None:
        try:
            point = future.result()
        except self.pool.lost:
            self._suspect()
            return
        except CancelledError:
            raise InputError(
                "the connection to the cluster is lost",
                field="dask",
                way_out="What is done is kept: start again to go on",
            ) from None
        except InputError as error:
            place = self.runs[future]
            raise InputError(
                f"{error.rule} ({place})", field=error.field, way_out=error.way_out
            ) from None
        del self.runs[future]
        self.sweep = replace(self.sweep, points=carry((*self.sweep.points, point)))
        self.save(self.sweep)
        self.on_point(len(self.sweep.points), self.total, str(point.place))

    def _suspect(self) -> None:
        """Sort what ran when a process was lost into answers, suspects, and what is given up."""
        broken = [
            future
            for future in wait(self.runs, LOOK_S).done
            if not future.cancelled() and isinstance(future.exception(), self.pool.lost)
        ]
        for future in broken:
            place = self.runs.pop(future)
            self.ends[place] += self.alone
            if self.ends[place] < self.pool.tries:
                self.suspects.append(place)
            else:
                self.given_up.append(place)
