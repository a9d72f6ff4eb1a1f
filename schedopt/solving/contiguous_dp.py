"""The exact dynamic programme over cuts: which contiguous stages 1F1B* can run with a period.

At a fixed period T the chain is read from its end. A suffix of layers on the last GPUs is
described by its span alone, written as (g, load): g full groups behind it and the load of the
open one, as in 1F1B* (Beaumont et al. 2021, Algorithm 1). Adding an item is monotone in the span
and memory is monotone in g, so the least (g, load) for each (first layer, GPUs used) decides
whether T is possible.

Where a GPU has one port, the transfers at both ends of its stage share it (`Ports`).

Where links differ, what lies behind a cut is kept for each GPU before it: the least over the later
GPUs, with the transfers from one to the other. Cuts that share a link are taken as if they did not,
so that what is impossible is so in any case; `schedopt.solving.shared_links` finds their patterns.

The pair is one 64-bit key, g << 48 | load, so that keys compare like pairs.

With recompute a stage takes the least time of it with which its group number fits into memory.
Those times come from a table of bounds. The stages of a solution are worked out exactly, and the
programme is run again until all stages of its solution were exact before.

Notes
-----
With L layers, P GPUs and stages of at most W layers (those that T and the memory allow), one period
takes O(L W P) operations on whole rows, and O(L P) memory; with a network of K kinds of links the
step behind a cut takes O(K P^2) more for each layer. A bisection asks for about log2(T) periods.
With recompute the table has O(L W) entries for each number of micro-batches in flight, and each run
again makes at least one of them exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from schedopt.bounds.recomputation import Runs
from schedopt.bounds.recompute_table import NEVER, Array, RecomputeTable
from schedopt.chain import Layer
from schedopt.interrupts import Stopped, raise_if_stopped
from schedopt.network import Link
from schedopt.platform import Gpu
from schedopt.problem import Problem
from schedopt.solving.ports import Ports
from schedopt.solving.run import Run
from schedopt.solving.stage_chain import EVERY_PERIOD, SparsePattern, StageChain
from schedopt.stage import Stage

SHIFT: Final = 48
GROUP: Final = np.int64(1 << SHIFT)
LOAD: Final = np.int64((1 << SHIFT) - 1)


class ContiguousDP:
    """The dynamic programme for one problem. Row q of a table is the q-th GPU from the end.

    The tables of recompute take long: they ask whether to stop.
    """

    def __init__(
        self,
        problem: Problem,
        sparse: SparsePattern = EVERY_PERIOD,
        *,
        stopped: Callable[[], bool],
    ) -> None:
        self.problem, self.sparse = problem, sparse
        layers, gpus = problem.chain.layers, problem.platform.gpus[::-1]
        self.count, self.gpus = len(layers), len(gpus)
        kinds = list(dict.fromkeys(gpus))
        self.kind = np.array([kinds.index(gpu) for gpu in gpus])
        self.alike = len(kinds) == 1
        self.uniform = problem.platform.uniform
        self.load = np.array([_prefix([_work(gpu, layer) for layer in layers]) for gpu in kinds])
        self.room = np.array([gpu.usable_bytes for gpu in kinds])
        self.fixed = _prefix([layer.weight_bytes for layer in layers])
        self.saved = _prefix([layer.saved for layer in layers])
        self.saved_input = np.array([layer.saved_input_bytes or 0 for layer in layers])
        self.workspace = np.array([layer.workspace_bytes or 0 for layer in layers])
        self.links = problem.platform.kinds_of_links
        self.trips = [self._trips(link) for link in self.links]
        self.link_between = self._links_between() if problem.platform.network is not None else None
        self.ports: Ports | None = None
        if problem.platform.network is not None and sparse is EVERY_PERIOD:
            self.ports = Ports(problem.platform, np.min(self.trips, axis=0))
        self.may_cut = np.ones(self.count + 1, dtype=bool)
        for group in problem.chain.same_gpu:
            self.may_cut[group[0] + 1 : group[-1] + 1] = False
        self.caps = [self._caps(first) for first in range(self.count)]
        self._refined = False
        self.recompute_tables: list[RecomputeTable] = []
        if problem.scope.recompute:
            self.recompute_tables = [RecomputeTable(problem.chain, gpu, stopped) for gpu in kinds]

    def _trips(self, link: Link | None) -> Array:
        """Time of the transfers at each cut over a link, both directions, ns."""
        trip = np.zeros(self.count + 1, dtype=np.int64)
        if link is not None:
            for cut, layer in enumerate(self.problem.chain.layers[:-1], start=1):
                trip[cut] = 2 * link.transfer_ns(layer.activation_bytes)
        return trip

    def _links_between(self) -> Array:
        """Return which link leads from a GPU, by row less one, to each later one; -1: none."""
        links = np.full((self.gpus + 1, self.gpus + 1), -1)
        for before in range(1, self.gpus):
            for row in range(1, before + 1):
                ends = self.gpus - 1 - before, self.gpus - row
                link = self.problem.platform.link_between(*ends)
                links[before, row] = self.links.index(link)
        return links

    def _caps(self, first: int) -> Array:
        """For stages from `first`, by kind of GPU and end: the least key that does not fit."""
        ends = slice(first + 1, self.count + 1)
        works = self.load[0, ends] > self.load[0, first]
        workspace = np.where(works, np.maximum.accumulate(self.workspace[first:]), 0)
        fixed = self.fixed[ends] - self.fixed[first] + workspace
        each = self.saved[ends] - self.saved[first] + self.saved_input[first]
        spare = self.room[:, None] - fixed
        counts = np.where(each > 0, spare // np.maximum(each, 1), NEVER >> SHIFT)
        groups = self.sparse.periods(np.minimum(counts, NEVER >> SHIFT))
        caps = np.where(spare < 0, 0, np.minimum(groups, NEVER >> SHIFT) << SHIFT)
        fitting = int((caps > 0).any(axis=0).sum())
        return caps[:, :fitting].astype(np.int64)

    def descend(
        self,
        stages: list[Stage],
        high: int,
        run: Run,
        refuted: Callable[[int], None] = lambda period: None,
    ) -> tuple[list[Stage], int]:
        """Return the stages of least period, and that period, from some possible at `high`.

        The best so far if the run stops. `refuted` hears of each period that no stages reach.
        """
        low, high = self.least_period(), self.shorten(stages, high, run)
        while low < high and not run.stopped():
            middle = (low + high) // 2
            shorter = self.stages_at(middle, run)
            if shorter is not None:
                stages, high = shorter, self.shorten(shorter, middle, run)
            elif not run.stopped():
                low = middle + 1
                refuted(middle)
        return stages, high

    def shorten(self, stages: Sequence[Stage], period: int, run: Run) -> int:
        """Return the least period of stages that are possible at one, or one that is near."""
        chain = StageChain(self.problem, stages, sparse=self.sparse)
        short = chain.shorten(period, run) if self.recompute_tables else chain.tighten(period)
        return short if self.ports is None else max(short, self.ports.least_period(stages))

    def least_period(self) -> int:
        """Return a bound: the average load and the longest layer, on the fastest GPUs, ns."""
        fastest = self.load.min(axis=0)
        if self.alike:
            average = -(-int(fastest[-1]) // self.gpus)
        else:
            speeds = sum(gpu.speed for gpu in self.problem.platform.gpus)
            work = sum(a.forward_ns + a.backward_ns for a in self.problem.chain.layers)
            average = int(work // speeds)
        return max(1, average, int(np.diff(self.load, axis=1).min(axis=0).max()))

    def longest_period(self) -> int:
        """Return a period at which every plan is one group, ns."""
        slowest = np.diff(self.load, axis=1).max(axis=0).sum()
        recompute = slowest if self.recompute_tables else 0
        trips = np.sort(np.max(self.trips, axis=0))[-self.gpus :]
        return max(1, int(slowest + recompute + trips.sum()))

    def stages_at(self, period: int, run: Run) -> list[Stage] | None:
        """Return stages with which 1F1B* reaches a period, or None (also when stopped)."""
        least = self._least_gpus(period)
        if least is None:
            return None
        try:
            return self._stages_at(period, *least, run)
        except Stopped:
            return None

    def _stages_at(
        self, period: int, behind: list[int], ahead: list[int], run: Run
    ) -> list[Stage] | None:
        """Fill the table until its stages are exact: see `stages_at`."""
        for table in self.recompute_tables:
            table.widen(self._longest_stage(period))
        while True:
            raise_if_stopped(run.stopped)
            stages = self._read_stages(self._fill(period, behind, ahead, run), period)
            if stages is not None or not self._refined:
                return stages

    def _longest_stage(self, period: int) -> int:
        """Return how many layers a stage can have at a period at most."""
        ends = [np.searchsorted(row, row + period, side="right") for row in self.load]
        return int(max((end - np.arange(self.count + 1)).max() for end in ends)) - 1

    def _least_gpus(self, period: int) -> tuple[list[int], list[int]] | None:
        """For each layer: how many GPUs the layers from it on need, and those before it.

        Layer l is followed by R_l of work, itself included, on any contiguous plan, so at least
        ceil(R_l / T) of its activations are kept, or as many of them as are carried.
        """
        rest = self.load[:, -1:] - self.load[:, :-1]
        counts = self.sparse.carried(np.maximum(1, -(-rest.min(axis=0) // period)))
        most = int(self.room.max())
        each = np.diff(self.saved)
        if self.recompute_tables:
            # What is recomputed lies there once, and so does what a single micro-batch keeps.
            counts = np.ones_like(counts)
        if ((each > 0) & (counts > most // np.maximum(each, 1))).any():
            return None
        need = np.diff(self.fixed) + each * counts
        if (need > most).any():
            return None
        rooms = np.concatenate([[0], np.cumsum(self.room[self.kind])])
        from_end = np.concatenate([[0], np.cumsum(need[::-1])])[::-1]
        from_start = from_end[0] - from_end
        total = int(rooms[-1])
        work = self.load.min(axis=0)
        behind = np.maximum(np.searchsorted(rooms, from_end), -(-(work[-1] - work) // period))
        ahead = np.maximum(
            self.gpus + 1 - np.searchsorted(rooms, total - from_start, side="right"),
            -(-work // period),
        )
        if from_end[0] > total or behind[0] > self.gpus:
            return None
        return behind.tolist(), ahead.tolist()

    def _fill(self, period: int, behind: list[int], ahead: list[int], run: Run) -> Array:
        """Return the least key behind each cut: entry [q, l] for at most q GPUs and layers l on.

        The transfers at the cut are included, from the GPU of row q + 1.
        """
        keys = np.full((self.gpus + 1, self.count + 1), NEVER)
        keys[:, self.count] = 0
        for first in range(self.count - 1, -1, -1):
            # With fewer or more GPUs, what comes from here on, or before, cannot fit.
            low, high = max(1, behind[first]), self.gpus - ahead[first]
            if low > high or not self.may_cut[first]:
                continue
            if first % 64 == 0:
                raise_if_stopped(run.stopped)
            # Which end of the stage is best depends on nothing before it: keys are monotone.
            best = self._stage_keys(keys, first, low, high, period).min(axis=1, initial=NEVER)
            keys[low : high + 1, first] = self._behind(best, first, low, period)
        return keys

    def _behind(self, best: Array, first: int, low: int, period: int) -> Array:
        """Return the least keys behind a cut from those of the stages there, by GPUs from `low` on.

        GPUs in between may be left out, unless all are alike.
        """
        if self.uniform:
            return self._transfer(best, 0, first, period)
        if self.link_between is None or first == 0:
            among_all: Array = np.minimum.accumulate(best)
            return self._transfer(among_all, 0, first, period)
        least = np.full(best.shape, NEVER)
        rows = slice(low, low + len(best))
        between = self.link_between[rows, rows]
        for link in range(len(self.links)):
            sent = self._transfer(best, link, first, period)
            by_row = np.where(between == link, sent, NEVER).min(axis=1)
            np.minimum(least, by_row, out=least)
        return least

    def _stage_keys(self, keys: Array, first: int, low: int, high: int, period: int) -> Array:
        """Return the keys of stages from `first`, by GPUs used (low..high) and end."""
        caps = self.caps[first]
        begins = self.load[:, first]
        within = max(
            int(np.searchsorted(row, begin + period, side="right")) - 1
            for row, begin in zip(self.load, begins, strict=True)
        )
        last = min(first + caps.shape[1], within)
        if self.recompute_tables:
            last = min(within, first + self.recompute_tables[0].window)
        ends = slice(first + 1, last + 1)
        length = self.load[:, ends] - begins[:, None]
        caps = caps[:, : last - first]
        if not self.alike:
            rows = self.kind[low - 1 : high]
            length, caps = length[rows], caps[rows]
        behind = keys[low - 1 : high, ends]
        if self.ports is not None:
            # Row q of a table is the q-th GPU from the end.
            gpus = slice(self.gpus - high, self.gpus - low + 1)
            full = self.ports.are_full(gpus, first, ends, period)[::-1]
            behind = np.where(full, NEVER, behind)
        if self.recompute_tables:
            return self._with_recompute(behind, length, first, low, period)
        added: Array = behind + length
        over = (behind & LOAD) + length > period
        np.copyto(added, (behind & ~LOAD) + (GROUP + length), where=over)
        added[(added >= caps) | (length > period)] = NEVER
        return added

    def _with_recompute(
        self, behind: Array, length: Array, first: int, low: int, period: int
    ) -> Array:
        """Return the keys of stages that recompute as little as their group lets them.

        The span grows as in `ChainItem.span` of `schedopt.solving.stage_chain`.
        """
        keys = np.full(behind.shape, NEVER)
        there = (behind < NEVER) & (length <= period)
        if not there.any():
            return keys
        groups, load = behind >> SHIFT, behind & LOAD
        over = load + length > period
        groups, load = groups + over, np.where(over, 0, load)
        least = np.full(behind.shape, NEVER)
        in_flight = self.sparse.carried(np.where(there, groups + 1, 1))
        most, width = int(in_flight.max()), behind.shape[1]
        at = in_flight - 1, np.arange(width)
        for kind, table in enumerate(self.recompute_tables):
            of_kind = table.of_first(first, most, width)[at]
            rows = slice(None) if self.alike else self.kind[low - 1 :][: len(behind)] == kind
            least[rows] = of_kind[rows]
        there &= least + length <= period
        in_gap = (least <= load) | ((groups > 0) & (least <= period - length - load))
        load = np.where(in_gap, load, least)
        np.copyto(keys, (groups << SHIFT) + load + length, where=there)
        return keys

    def _transfer(self, keys: Array, number: int, cut: int, period: int) -> Array:
        """Add the transfers at a cut over a link to the keys behind it."""
        trip, link = int(self.trips[number][cut]), self.links[number]
        if trip == 0:
            return keys
        if link is None or link.duplex == "half":
            if trip > period:
                return np.full_like(keys, NEVER)
            over = (keys & LOAD) + trip > period
            added: Array = np.where(over, (keys & ~LOAD) + GROUP + trip, keys + trip)
        else:
            if trip > 2 * period:
                return np.full_like(keys, NEVER)
            load = (keys & LOAD) + trip
            wraps = np.maximum(0, (load - 1) // period)
            added = (keys & ~LOAD) + wraps * GROUP + (load - wraps * period)
        added[keys >= NEVER] = NEVER
        return added

    def _read_stages(self, keys: Array, period: int) -> list[Stage] | None:
        """Walk the table from the first layer and return its stages.

        None if there are none, or if one takes more recompute than the table said.
        """
        self._refined = False
        if keys[self.gpus, 0] >= NEVER:
            return None
        stages: list[Stage] = []
        for first, last, row, in_flight in self._walk(keys, period):
            gpu = len(stages) if self.uniform else self.gpus - row
            recompute: Runs = ()
            if self.recompute_tables:
                table = self.recompute_tables[self.kind[row - 1]]
                self._refined |= not table.make_exact(first, last, in_flight)
                choice = table.stage(first, last, in_flight)
                recompute = choice.runs if choice is not None else ()
            stages.append(Stage(layers=(first, last), gpus=(gpu,), recompute=recompute))
        return None if self._refined else stages

    def _walk(self, keys: Array, period: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield first and last layer, row, and micro-batches in flight of each stage."""
        first, row = 0, self.gpus
        while first < self.count:
            row, end, groups = self._find_stage(keys, first, row, period)
            yield first, end - 1, row, int(self.sparse.carried(groups))
            first, row = end, row - 1

    def _find_stage(self, keys: Array, first: int, most: int, period: int) -> tuple[int, int, int]:
        """Return row, end and group of the stage behind a cut, of at most that many GPUs."""
        for row in range(1, most + 1):
            link = 0
            if self.link_between is None or first == 0:
                if keys[row, first] != keys[most, first]:
                    continue
            else:
                link = int(self.link_between[most, row])
            options = self._stage_keys(keys, first, row, row, period)[0]
            sent = self._transfer(options, link, first, period)
            ends = np.flatnonzero(sent == keys[most, first])
            if len(ends):
                return row, first + 1 + int(ends[0]), int(options[ends[0]] >> SHIFT) + 1
        raise AssertionError("a key came from nowhere")


def _work(gpu: Gpu, layer: Layer) -> int:
    return gpu.duration_ns(layer.forward_ns) + gpu.duration_ns(layer.backward_ns)


def _prefix(values: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(np.array(values, dtype=np.int64))])
