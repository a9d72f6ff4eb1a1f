"""What comes behind the last backward of a GPU: its gradients go round, for any allocation.

In a step of D ns with replicas, take some layers H, and of a GPU the last backward of a stage with
one of them. All that the GPU works on layers of H comes before it. Behind it the gradients of that
stage go round the R replicas, which for a layer of H takes s ns at least: so the GPU has D - s for
H. Together the GPUs do m times the work of H, and each is in tensor groups of one size t only. With
the time w of a layer in such a group, m t w / (D - s_t) of the least t, summed up over H, is at
most P.

**Rings.** All gradients of a training step go round in rings: R chunks are added up, each on its
way to its home, and then go on in the same direction, updated as weights where these are shared,
and else as gradients, which each replica applies. A chunk leaves the GPU behind its last backward,
unless its home is there: that is R - 1 hops on one link. The last chunk is updated at its home, and
makes R - 1 hops more. A single replica has its update only.

**Nodes.** Replicas that do not fit into one node of N GPUs have a link out of that of the GPU, with
N / t - 1 other replicas before it at most. At least R - N / t chunks go over it behind the
backward, and later all but one of those that are added up.

**Groups.** Where g groups of h replicas have copies of all shards, a chunk goes round each group,
then round its homes in all groups to one of them, and round them again from there. R - g chunks
leave a GPU inside its group, the last of which makes g - 1 hops across groups. Or take a link from
a home in its group to the next: it carries g - 1 chunks with what that GPU has added, and g - 1
sums. If not all replicas fit into a node, the homes of some chunks lie in several, as groups have
GPUs in a row; and since the whole of a group lies between two groups with one between them, at most
k = (N / t - 2) / h + 2 of them lie in one. So some link out of a node carries g - k chunks and
g - 1 sums. Behind each of these the share of a home is updated, and its g chunks leave it one after
the other, the last of which makes h - 2 hops more.

**Replicas.** R of them have at most R D ns for the m micro-batches of a layer: R >= m w / D.

This holds for any H. Those layers are tried behind which no less than some time comes.

**All that comes before.** Now let a layer have R replicas, in groups of T GPUs at most. All work on
a micro-batch but the backwards of earlier layers comes before its backward there ends, and so by
D - s. All GPUs have that long for it, and the replicas for that layer. Nor may all of them begin at
once with what is no forward of an earlier layer: let a be the time of these, and f and b those of
the layer. By a + k f each replica is through with k forwards at most. So there are R k
micro-batches that GPUs may work on, one group each, and R replicas: R T (k + 1) GPUs have work. It
is the same with backwards in the end: k b before D - s, no more than R k micro-batches are still to
have theirs. In between all GPUs may work. What is recomputed counts as no work. If for each R one
of these takes longer, no step takes D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import Final, NamedTuple

from schedopt.bounds.load import load_bound
from schedopt.bounds.scopes import make_bound, widest
from schedopt.chain import Layer
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound

PROOF: Final = Proof(ProofKind.STEP_OF_GRADIENTS)
CLOSE: Final = 1 << 16
"""The step is found up to this part of itself."""
MOST_TRIED: Final = 8
"""Sets H, the largest."""
FIRST_LAYERS: Final = 16
"""Of which it is looked at what comes before."""


def gradient_step_bound(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Bound | None:
    """Return the step that leaves time for gradients behind all work, on any allocation.

    Returns
    -------
    Bound or None
        None if it is no longer than all work takes; if no step with updates is asked for, with
        whole backwards; if GPUs differ, or share more than optimizer states.
    """
    scope, count = problem.scope, problem.scope.microbatches
    if count is None or not problem.is_training_step or scope.split_backward:
        return None
    if scope.shard not in ("none", "optimizer") or problem.chain.together > 1:
        return None
    if len(set(problem.platform.gpus)) > 1 or not problem.chain.knows_gradients:
        return None
    step = _Step(problem, count)
    low = max(1, ceil(load_bound(problem).period * count))
    if not step.is_refuted(low):
        return None
    high = 2 * low
    while step.is_refuted(high):
        low, high = high, 2 * high
    while high - low > 1 + low // CLOSE:
        raise_if_stopped(stopped)
        middle = (low + high) // 2
        if step.is_refuted(middle):
            low = middle
        else:
            high = middle
    wide = replace(widest(scope), grain="stage", microbatches=count)
    return make_bound(Fraction(low + 1, count), wide, PROOF)


class Ramp(NamedTuple):
    """What there is before a layer, and behind it, ns.

    Parameters
    ----------
    early, late : int
        What all forwards of earlier layers take of a micro-batch on all GPUs together, and all but
        these and their backwards.
    ahead : int
        How long the way to the layer takes, a.
    forward, backward : int
        Of the layer, f and b.
    behind : tuple of (int, int)
        R, and s.
    """

    early: int
    late: int
    ahead: int
    forward: int
    backward: int
    behind: tuple[tuple[int, int], ...]


def _filled(limit: int, gpus: int, more: int, each: int) -> int:
    """Return what GPUs do within a time at most, ns of one GPU.

    After k times `each` ns k + 1 times `more` of them have work.
    """
    if limit <= 0 or not each:
        return gpus * max(0, limit)
    whole, rest = divmod(limit, each)
    growing = min(whole, gpus // more)
    part = more * growing * (growing + 1) // 2 + gpus * (whole - growing)
    return each * part + rest * min(gpus, more * (whole + 1))


class _Step:
    """Whether a step of m micro-batches may have a makespan, ns.

    Attributes
    ----------
    degrees : tuple of int
        t.
    work : list of tuple of int
        w of each layer, for each t.
    behind : list of tuple of list of int
        s of each layer, for each t, with 1, 2, ... replicas or more.
    ramps : list of Ramp
        Of the first layers.
    """

    def __init__(self, problem: Problem, count: int) -> None:
        self.problem, self.count, self.degrees = problem, count, problem.degrees
        self.counts = sorted({*problem.replica_counts, *problem.uneven_counts})
        self.gpus = len(problem.platform.gpus)
        gpu, network = problem.platform.gpus[0], problem.platform.network
        self.node = self.gpus if network is None else max(node.gpus for node in network.nodes)
        self.paths = [] if network is None else [*{link for _, link in network.paths()}]
        self.duration_ns = gpu.duration_ns
        rows = [*zip(*(problem.in_group(t).layers for t in self.degrees), strict=True)]
        self.work = [
            tuple(gpu.duration_ns(one.forward_ns) + gpu.duration_ns(one.backward_ns) for one in row)
            for row in rows
        ]
        self.ramps = [self._ramp(rows, number) for number in range(len(rows[:FIRST_LAYERS]))]
        known: dict[tuple[int, int, int, int], list[int]] = {}
        self.behind = [
            tuple(self._behind(known, t, one) for t, one in zip(self.degrees, row, strict=True))
            for row in rows
        ]

    def is_refuted(self, makespan: int) -> bool:
        """Whether no step has this makespan or a shorter one."""
        # What is left of the step behind each layer, for each t; less than 0: no such stage.
        left = [
            [self._left(makespan, work, times) for work, times in zip(*row, strict=True)]
            for row in zip(self.work, self.behind, strict=True)
        ]
        longest = [max(row) for row in left]
        return any(
            self._are_too_long([n for n, one in enumerate(longest) if one <= value], left)
            for value in sorted({*longest})[-MOST_TRIED:]
        ) or any(
            all(self._is_too_early(ramp, makespan, *row) for row in ramp.behind)
            for ramp in self.ramps
        )

    def _is_too_early(self, ramp: Ramp, makespan: int, replicas: int, behind: int) -> bool:
        """Whether all that comes before the gradients of a layer takes longer than is left, ns."""
        until = makespan - behind
        window, turn = until - ramp.ahead, ramp.forward + ramp.backward
        if self.count * (ramp.early + ramp.late) > self.gpus * until:
            return True
        if self.count * turn > replicas * until:
            return True
        begin = window * ramp.forward // turn if turn else window
        most = replicas * max(self.degrees)
        capacity = _filled(begin, self.gpus, most, ramp.forward) + _filled(
            window - begin, self.gpus, most, ramp.backward
        )
        return self.count * ramp.late > capacity

    def _ramp(self, rows: Sequence[Sequence[Layer]], number: int) -> Ramp:
        """Return what there is before and behind a layer."""
        times = [
            [(self.duration_ns(one.forward_ns), self.duration_ns(one.backward_ns)) for one in row]
            for row in rows
        ]

        def shared(row: Sequence[tuple[int, ...]]) -> int:
            return min(t * sum(own) for t, own in zip(self.degrees, row, strict=True))

        before, own = times[:number], times[number]
        return Ramp(
            early=sum(shared([one[:1] for one in row]) for row in before),
            late=sum(map(shared, times[number:])),
            ahead=sum(min(row)[0] for row in before),
            forward=min(own)[0],
            backward=min(back for _, back in own),
            behind=tuple(
                (replicas, min(found))
                for replicas in self.counts
                if (
                    found := [
                        self._around(
                            t,
                            replicas,
                            self.duration_ns(one.update_ns or 0),
                            one.gradient_bytes or 0,
                            one.parameter_bytes or 0,
                        )
                        for t, one in zip(self.degrees, rows[number], strict=True)
                        if replicas * t <= self.gpus
                    ]
                )
            ),
        )

    def _left(self, makespan: int, work: int, times: Sequence[int]) -> int:
        """Return the time before the gradients of a layer go round, ns."""
        fewest = max(1, -(-self.count * work // makespan))
        return makespan - times[fewest - 1] if fewest <= len(times) else -1

    def _are_too_long(self, layers: Sequence[int], left: Sequence[Sequence[int]]) -> bool:
        """Whether GPUs do not have the time for some layers, given what each leaves."""
        most = [max(left[n][place] for n in layers) for place in range(len(self.degrees))]
        needed = Fraction(0)
        for n in layers:
            # What takes no time may come when none is left.
            parts = [
                Fraction(self.count * t * work, max(1, time))
                for t, work, time, own in zip(
                    self.degrees, self.work[n], most, left[n], strict=True
                )
                if own >= (work > 0)
            ]
            if not parts:
                return True
            needed += min(parts)
        return needed > self.gpus

    def _behind(
        self, known: dict[tuple[int, int, int, int], list[int]], tensor: int, layer: Layer
    ) -> list[int]:
        """Return the least time behind a layer with 1, 2, ... replicas or more, ns."""
        gradient, parameter = layer.gradient_bytes or 0, layer.parameter_bytes or 0
        update = self.duration_ns(layer.update_ns or 0)
        key = tensor, gradient, parameter, update
        if key not in known:
            fitting = self.gpus // tensor
            most = min(fitting, self.count, self.problem.scope.replicas or fitting)
            every = [
                self._around(tensor, replicas, update, gradient, parameter)
                for replicas in range(1, most + 1)
            ]
            known[key] = [*accumulate(reversed(every), min)][::-1]
        return known[key]

    def _around(
        self, tensor: int, replicas: int, update: int, gradient: int, parameter: int
    ) -> int:
        """Return the least time, ns, behind a layer that has these replicas."""
        if replicas == 1:
            return update
        own = self._rings(tensor, replicas, gradient, gradient, update, update)
        if self.problem.scope.shard == "none":
            return own
        share = update * (parameter // replicas) // parameter if parameter else update // replicas
        # Other chunks go between nodes while one is updated.
        every = [own, self._rings(tensor, replicas, gradient, parameter, share, 0)]
        if self.problem.scope.hybrid:
            sizes = gradient // replicas, parameter // replicas
            every += [
                self._in_groups(tensor, replicas, copies, sizes, copies * share)
                for copies in range(2, replicas + 1)
                if replicas % copies == 0
            ]
        return min(every)

    def _in_groups(
        self, tensor: int, replicas: int, copies: int, sizes: tuple[int, int], update: int
    ) -> int:
        """Return the least time where groups have copies of all shards, ns.

        `sizes` are those of a chunk of gradients and of weights, bytes.
        """
        group, room = replicas // copies, self.node // tensor
        added, sent = (self.problem.platform.least_transfer_ns(size) * (size > 0) for size in sizes)
        behind = update + (copies + group - 2 if group > 1 else 0) * sent
        hops = (replicas - 1 if group > 1 else 2 * (copies - 1)) * added
        if replicas > room and sizes[0]:
            in_a_node = min(room, (room - 2) // group + 2)
            across = min(link.transfer_ns(sizes[0]) for link in self.paths)
            hops = max(hops, (2 * copies - 1 - min(in_a_node, copies)) * across)
        return hops + behind

    def _rings(
        self, tensor: int, replicas: int, added: int, sent: int, update: int, last: int
    ) -> int:
        """Return the least time of two rings with an update, and `last` behind all chunks, ns."""
        hops = replicas - 1
        chunks = added // replicas, sent // replicas
        near = update + hops * sum(
            self.problem.platform.least_transfer_ns(size) for size in chunks if size
        )
        if replicas * tensor <= self.node:
            return near
        first, second = (
            min(link.transfer_ns(size) for link in self.paths) if size else 0 for size in chunks
        )
        return max(near, max(0, replicas - self.node // tensor) * first + hops * second + last)
