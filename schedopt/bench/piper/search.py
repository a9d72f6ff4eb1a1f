"""The best plan of a graph by the rule of Piper, with proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.bench.piper.model import Model, PiperStage, Variant
from schedopt.errors import InputError

MOST_ENDS: Final = 2_000
"""Sets of nodes that can lie behind a cut; a chain of n nodes has n + 1."""

Sums = dict[tuple[int, int, int], tuple[int, tuple[int, ...]]]
"""Parameters, saved and fixed bytes of a stage: least time (scaled), and a variant of each node."""


class Choice(NamedTuple):
    """A stage of the nodes in `end` and not in `behind` (positions of ends), on a grid of GPUs."""

    end: int
    behind: int
    tensor: int
    replicas: int


@dataclass(frozen=True)
class Found:
    """A plan with the least largest load, whole ns, rounded up; no plan has a smaller one."""

    load_ns: int
    plan: tuple[PiperStage, ...]


class PiperSearch:
    """Finds best plans of one model; what does not depend on GPUs and memory is kept.

    Raises
    ------
    InputError
        If the graph has a cycle or too many cuts.
    """

    def __init__(self, model: Model, bytes_per_s: int, microbatches: int) -> None:
        self.model, self.microbatches = model, microbatches
        rate = Fraction(bytes_per_s, 10**9)
        self.per_ns, self.per_byte = rate.numerator * microbatches, rate.denominator
        self.ends = _ends(model)
        self.sums = {
            (end, behind, tensor): sums
            for end, whole in enumerate(self.ends)
            for behind, part in enumerate(self.ends[:end])
            if part & whole == part
            for tensor, sums in self._sums(whole & ~part)
        }

    def solve(self, gpus: int, memory_bytes: int) -> Found | None:
        """Return a plan whose largest load is least; None where no plan fits.

        Whether all loads can be at most T is asked by halving: each stage then has a most of
        micro-batches that it can keep, and the fewest GPUs for a set of nodes and a number of
        replicas follow from those of the sets behind it.
        """
        table = _Table(self, gpus, memory_bytes)
        if not len(table.load) or table.fewest(high := int(table.load.max())) is None:
            return None
        low = -1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if table.fewest(middle) is None else (low, middle)
        return Found(high, self._plan(table, high, memory_bytes))

    def _plan(self, table: _Table, load: int, memory_bytes: int) -> tuple[PiperStage, ...]:
        fewest = table.fewest(load)
        assert fewest is not None
        end, stages = len(self.ends) - 1, []
        behind = int(fewest[end].argmin())
        while end:
            choice = table.explain(fewest, end, behind, load)
            nodes = _nodes(self.ends[end] & ~self.ends[choice.behind])
            sums = self.sums[end, choice.behind, choice.tensor]
            kept = -(-behind // choice.replicas)
            positions = min(
                (self._load(work, parameters, choice.replicas), picked)
                for (parameters, saved, fixed), (work, picked) in sums.items()
                if saved * kept + fixed <= memory_bytes
            )[1]
            stages.append(
                PiperStage(dict(zip(nodes, positions, strict=True)), choice.replicas, choice.tensor)
            )
            end, behind = choice.behind, behind - choice.replicas
        return tuple(stages)

    def _load(self, work: int, parameters: int, replicas: int) -> int:
        scaled = work + 4 * (replicas - 1) * parameters * self.per_byte
        return -(-scaled // (replicas * self.per_ns))

    def _sums(self, inside: int) -> Iterator[tuple[int, Sums]]:
        """Yield for each tensor degree that all nodes know what a stage of them may cost."""
        nodes = _nodes(inside)
        for tensor in sorted(set.intersection(*(set(self.model.nodes[n]) for n in nodes))):
            sums: Sums = {(0, 0, 0): (0, ())}
            for node in nodes:
                options = [
                    (self._work(node, variant, inside), variant)
                    for variant in self.model.nodes[node][tensor]
                ]
                grown: Sums = {}
                for (parameters, saved, fixed), (work, picked) in sums.items():
                    for at, (more, variant) in enumerate(options):
                        key = (
                            parameters + variant.parameter_bytes,
                            saved + variant.saved_bytes,
                            fixed + variant.fixed_bytes,
                        )
                        if key not in grown or work + more < grown[key][0]:
                            grown[key] = work + more, (*picked, at)
                sums = grown
            yield tensor, sums

    def _work(self, node: int, variant: Variant, inside: int) -> int:
        moved = 0
        for a, b, size in self.model.edges:
            if a == node and not inside >> b & 1:
                moved += 2 * (size + variant.scattered[b])
            elif b == node and not inside >> a & 1:
                moved += 2 * (size + variant.gathered[a])
        return variant.time_ns * self.per_ns + moved * self.per_byte * self.microbatches


class _Table:
    """Loads of all stages on all grids of a cluster, and what they can keep."""

    def __init__(self, search: PiperSearch, gpus: int, memory_bytes: int) -> None:
        self.gpus, self.most = gpus, min(gpus, search.microbatches)
        self.ends = len(search.ends)
        counts = [d for d in range(1, self.most + 1) if search.microbatches % d == 0]
        loads, keeps, owners = [], [], []
        choices: list[Choice] = []
        for (end, behind, tensor), sums in search.sums.items():
            fitting = _fitting(sums, memory_bytes, self.most)
            for replicas in counts:
                if replicas * tensor > gpus or not fitting:
                    break
                for work, parameters, kept in fitting:
                    loads.append(search._load(work, parameters, replicas))
                    keeps.append(kept)
                    owners.append(len(choices))
                choices.append(Choice(end, behind, tensor, replicas))
        self.load = np.array(loads)
        self.keep, self.owner = np.array(keeps, dtype=np.int64), np.array(owners, dtype=np.int64)
        self.choices = np.array(choices, dtype=np.int64).reshape(-1, 4)

    def _usable(self, load: int) -> npt.NDArray[np.int64]:
        """Return for each choice how many replicas may be from its stage on, with such a load."""
        kept = np.zeros(len(self.choices), dtype=np.int64)
        within = self.load <= load
        np.maximum.at(kept, self.owner[within], self.keep[within])
        return (kept * self.choices[:, 3]).clip(max=self.most)

    def fewest(self, load: int) -> npt.NDArray[np.int64] | None:
        """Return the fewest GPUs for each end and number of replicas in it; None: too many."""
        limit = self._usable(load)
        fewest = np.full((self.ends, self.most + 1), self.gpus + 1, dtype=np.int64)
        fewest[0, 0] = 0
        for end in range(1, self.ends):
            mine = np.flatnonzero((self.choices[:, 0] == end) & (limit > 0))
            for _, behind, tensor, replicas, most in np.column_stack(
                [self.choices[mine], limit[mine]]
            ).tolist():
                row = fewest[end, replicas : most + 1]
                before = fewest[behind, : most + 1 - replicas]
                np.minimum(row, before + tensor * replicas, out=row)
        return fewest if fewest[-1].min() <= self.gpus else None

    def explain(self, fewest: npt.NDArray[np.int64], end: int, behind: int, load: int) -> Choice:
        """Return the stage that stands first in a plan of the fewest GPUs."""
        limit = self._usable(load)
        for number in np.flatnonzero((self.choices[:, 0] == end) & (limit >= behind)):
            choice = Choice(*self.choices[number].tolist())
            rest = behind - choice.replicas
            if rest >= 0 and (
                fewest[choice.behind, rest] + choice.tensor * choice.replicas == fewest[end, behind]
            ):
                return choice
        raise AssertionError("the table has no stage for its own entry")


def _fitting(sums: Sums, memory_bytes: int, most: int) -> list[tuple[int, int, int]]:
    """Return work, parameters and micro-batches kept, without what another is no worse than."""
    found: list[tuple[int, int, int]] = []
    for (parameters, saved, fixed), (work, _) in sorted(sums.items(), key=lambda x: x[1][0]):
        free = memory_bytes - fixed
        kept = (min(most, free // saved) if saved else most) if free >= 0 else 0
        if kept and not any(p <= parameters and k >= kept for _, p, k in found):
            found.append((work, parameters, kept))
    return found


def _nodes(members: int) -> list[int]:
    return [node for node in range(members.bit_length()) if members >> node & 1]


def _ends(model: Model) -> list[int]:
    """Return the sets of nodes that hold the readers of their nodes, as bits, small ones first."""
    readers = [0] * len(model.nodes)
    for a, b, _ in model.edges:
        readers[a] |= 1 << b
    found, fresh = {0}, [0]
    while fresh:
        fresh = list(
            {
                members | 1 << node
                for members in fresh
                for node, needed in enumerate(readers)
                if not members >> node & 1 and members & needed == needed
            }
        )
        found.update(fresh)
        if len(found) > MOST_ENDS:
            raise InputError(
                f"the graph can be cut in more than {MOST_ENDS} ways",
                field="rows",
                way_out="Join nodes that lie next to each other",
                source="piper/edges.json",
            )
    ends = sorted(found, key=lambda members: (members.bit_count(), members))
    if ends[-1].bit_count() != len(readers):
        raise InputError(
            "the edges have a cycle",
            field="rows",
            way_out="Remove one of its edges",
            source="piper/edges.json",
        )
    return ends
