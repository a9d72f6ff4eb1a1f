"""The order in which an engine runs a step, and the paths through it that decide how long it takes.

The order does not depend on where the chain is cut. So the step is the longest of all paths of
operations and transfers that wait for each other, and each path counts every kind of operation of
every stage a fixed number of times: for all cuts no step is shorter than any path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from schedopt.systems.steps import engine_order

Array = npt.NDArray[np.int64]
Turn = tuple[str, int, int]
"""Kind, stage and micro-batch of an operation."""
ROUNDS: Final = 4
"""Micro-batches for each rank, after which a rank holds again what it held before."""
_NONE: Final = -1


@dataclass(frozen=True)
class CriticalPath:
    """How often a path has each kind of operation and transfer.

    Parameters
    ----------
    operations : (2 S,) or (3 S,) tuple
        Forwards of each stage, then backwards, then what follows its last backward.
    transfers : (2 S,) tuple
        From each stage to the next one, then to each stage from the next one.
    """

    operations: tuple[int, ...]
    transfers: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Operations, then transfers."""
        return (*self.operations, *self.transfers)


class EngineOrder:
    """A step of `count` micro-batches: stage s on rank s mod `ranks`, `chunks` on each.

    Transfers of a kind go one after the other, and wait for no others. `updates`: behind its last
    backward each stage adds gradients up and applies them, one after the other stage of its rank.
    """

    def __init__(self, ranks: int, chunks: int, count: int, *, updates: bool = False) -> None:
        self.ranks, self.chunks, self.count, self.updates = ranks, chunks, count, updates
        self.parts = ranks * chunks

    @cached_property
    def turns(self) -> list[list[Turn]]:
        """What each rank runs."""
        own: list[list[Turn]] = [[] for _ in range(self.ranks)]
        for turn in engine_order(self.ranks, self.chunks, self.count):
            own[turn[1] % self.ranks].append(turn)
        return own

    def _of_rounds(self, rounds: int) -> EngineOrder:
        """Return the order of a step of `rounds` micro-batches for each rank, if it has more."""
        count = rounds * self.ranks
        if self.count <= count:
            return self
        return _short_order(self.ranks, self.chunks, count, self.updates)

    @property
    def _short(self) -> list[list[Turn]]:
        """The same of a step that is just long enough for what each rank holds to repeat."""
        return self._of_rounds(ROUNDS).turns

    @cached_property
    def ends(self) -> list[tuple[Array, Array]]:
        """Of each rank, by stage: its Fs before its first B, and its Bs behind its last F."""
        found = []
        for turns in self._short:
            kinds = [kind for kind, _, _ in turns]
            first, last = kinds.index("B"), len(kinds) - kinds[::-1].index("F")
            found.append((self._count(turns[:first]), self._count(turns[last:])))
        return found

    def _count(self, turns: Sequence[Turn]) -> Array:
        """Return how many turns each stage of a rank has."""
        stages = [stage // self.ranks for _, stage, _ in turns]
        return np.bincount(np.array(stages, dtype=np.int64), minlength=self.chunks)

    @cached_property
    def in_flight(self) -> list[int]:
        """The most micro-batches that each stage keeps."""
        return [
            max(vector[chunk] for vector in self.held_together[rank])
            for chunk in range(self.chunks)
            for rank in range(self.ranks)
        ]

    @cached_property
    def held_together(self) -> list[list[tuple[int, ...]]]:
        """For each rank what its stages keep at once, in micro-batches: all that others contain."""
        return [self._held(rank) for rank in range(self.ranks)]

    def _held(self, rank: int) -> list[tuple[int, ...]]:
        return undominated({vector for vector, _ in self.held_at_backwards[rank]})

    @cached_property
    def held_at_backwards(self) -> list[list[tuple[tuple[int, ...], int]]]:
        """For each rank what its stages hold as a backward begins, and the place of its stage.

        In micro-batches; all that others contain for the same stage.
        """
        return [[*self._at_backwards(rank)] for rank in range(self.ranks)]

    def _at_backwards(self, rank: int) -> Iterator[tuple[tuple[int, ...], int]]:
        now = [0] * self.chunks
        found: list[set[tuple[int, ...]]] = [set() for _ in now]
        for kind, stage, _ in self._short[rank]:
            if kind == "B":
                found[stage // self.ranks].add(tuple(now))
            now[stage // self.ranks] += 1 if kind == "F" else -1
        for chunk, vectors in enumerate(found):
            yield from ((vector, chunk) for vector in undominated(vectors))

    @cached_property
    def sequence(self) -> list[tuple[int, int, int, int]]:
        """What runs in a step, each behind what it waits for.

        Rank, or P more for what follows its last backwards; kind, as in
        `CriticalPath.operations`; what it waits for besides its rank; and the kind of transfer
        between, as in `CriticalPath.transfers`; -1: none.
        """
        places: dict[tuple[str, int, int], int] = {}
        sequence: list[tuple[int, int, int, int]] = []
        todo = [0] * self.ranks
        while len(sequence) < 2 * self.parts * self.count:
            for rank, turns in enumerate(self.turns):
                while todo[rank] < len(turns):
                    kind, number, i = turns[todo[rank]]
                    forth, last = kind == "F", number + 1 == self.parts
                    if forth:
                        before, link = ("F", number - 1, i), number - 1
                    else:
                        before = ("F", number, i) if last else ("B", number + 1, i)
                        link = _NONE if last else self.parts + number
                    if before not in places and (number or not forth):
                        break
                    what = number if forth else self.parts + number
                    places[turns[todo[rank]]] = len(sequence)
                    sequence.append((rank, what, places.get(before, _NONE), link))
                    todo[rank] += 1
        if self.updates:
            ended = {stage: place for (kind, stage, _), place in places.items() if kind == "B"}
            sequence += [
                (self.ranks + stage % self.ranks, 2 * self.parts + stage, ended[stage], _NONE)
                for stage in reversed(range(self.parts))
            ]
        return sequence

    def makespan(self, lengths: Array, sent: Array) -> int:
        """Return how long a step takes in which transfers wait for none of the other way, ns."""
        return self._run(lengths, sent, self._nothing)[0]

    def makespans(self, times: Array, limit: int) -> Array:
        """Return the same for each row of times, of operations and then of transfers, ns.

        Of one that reaches the limit only that it does.
        """
        from schedopt.solving.engines.makespan import steps_in_order

        kinds = times.shape[1] - 2 * self.parts
        return steps_in_order(self._rows, times, kinds, self._threads, limit)

    def estimate(self, lengths: Array, sent: Array) -> int:
        """Return about how long a step takes, ns: from what a few more micro-batches add."""
        few, more = (self._of_rounds(rounds) for rounds in (ROUNDS, ROUNDS + 1))
        if self.count <= more.count:
            return self.makespan(lengths, sent)
        short, long = (order.makespan(lengths, sent) for order in (few, more))
        return short + (long - short) * (self.count - few.count) // self.ranks

    def critical_path(
        self, lengths: Array, sent: Array, through: tuple[int, range] | None = None
    ) -> CriticalPath:
        """Return the longest path, or of those through most of some operations of a rank.

        These are the rank and their places among its own.
        """
        added = self._nothing
        if through is not None:
            rank, places = through
            added = np.zeros_like(added)
            own = np.flatnonzero(self._rows[:, 0] == rank)
            added[own[places.start : places.stop]] = 1 + 2 * self.count * (
                lengths.sum() + sent.sum()
            )
        counts = self._run(lengths, sent, added)[1].tolist()
        return CriticalPath(tuple(counts[: len(lengths)]), tuple(counts[len(lengths) :]))

    def _run(self, lengths: Array, sent: Array, added: Array) -> tuple[int, Array]:
        from schedopt.solving.engines.makespan import run_in_order

        makespan, counts = run_in_order(self._rows, lengths, sent, added, self._threads)
        return int(makespan), counts

    @property
    def _threads(self) -> int:
        """Ranks, and the exchange of gradients on each."""
        return self.ranks * (2 if self.updates else 1)

    @cached_property
    def _rows(self) -> Array:
        return np.array(self.sequence, dtype=np.int64)

    @cached_property
    def _nothing(self) -> Array:
        return np.zeros(len(self.sequence), dtype=np.int64)

    def rank_paths(self, lengths: Array, sent: Array) -> Iterator[CriticalPath]:
        """Yield for each rank the longest paths through all its operations, or all of some.

        Those from its first backward on, up to its last forward, and between the two.
        """
        for rank, turns in enumerate(self.turns):
            kinds = [kind for kind, _, _ in turns]
            first_back = kinds.index("B")
            last_forth = len(kinds) - 1 - kinds[::-1].index("F")
            for begin in {0, first_back}:
                for end in {last_forth + 1, len(kinds)}:
                    if begin < end:
                        yield self.critical_path(lengths, sent, (rank, range(begin, end)))


def compile_runs() -> None:
    """Run a step of one micro-batch on one GPU, alone and among others."""
    order, times = EngineOrder(1, 1, 1), np.ones(2, dtype=np.int64)
    order.makespan(times, times)
    order.makespans(np.ones((1, 4), dtype=np.int64), 9)


@lru_cache(maxsize=64)
def _short_order(ranks: int, chunks: int, count: int, updates: bool) -> EngineOrder:
    return EngineOrder(ranks, chunks, count, updates=updates)


def undominated(vectors: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the vectors that no other one contains."""
    rows = np.array(sorted(vectors))
    contain = (rows[:, None] <= rows[None]).all(axis=2).sum(axis=1)
    return [tuple(row) for row in rows[contain == 1].tolist()]
