"""Whether a period is possible on any allocation at all, as far as spans, counts and sums say.

No order is chosen, so that a period may be possible here and not in truth; what is impossible here
is impossible for every allocation; and for every k, unless instants of patterns with k up to 2
are added (`schedopt.solving.fitting_instants`). On top of the allocation, with l a layer and T the
normalized period:

    span[l]   from the start of the forward of l to the end of its backward, or of the half that
              its gradient waits for, at least
    grown[l]  by how much more than the least count of `propagate` l keeps what it saves
    again[l]  what is recomputed together with l, from the layer on with which its run begins to l,
              bytes; in the reading *sum* each recomputed layer counts anyway
"""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from typing import TYPE_CHECKING, Final

from ortools.sat.python import cp_model

from schedopt.bounds.propagation import ForcedWork
from schedopt.platform import Gpu
from schedopt.solving.cp_sat import solve_model
from schedopt.solving.fitting_instants import FittingInstants
from schedopt.solving.relaxed_allocation import RelaxedAllocation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedopt.bounds.amounts import Array
    from schedopt.solving.run import Run
    from schedopt.stage import Stage

    Sizes = Sequence[int] | Array

LONG: Final = 8
"""A transfer is long if it takes such a part of a period."""
PARTS: Final = 16
"""In the reading *peak* counts are averages, looked at in such parts."""


def decide(
    model: RelaxationModel, run: Run, most_work: float, seed: int | None = None
) -> tuple[int, tuple[Stage, ...]]:
    """Return what CP-SAT says with `most_work`, and the last allocation that it found.

    The seed is that of the run, if none is given. Instants at which an allocation does not fit
    are added until one does.
    """
    found: tuple[Stage, ...] = ()
    while most_work > 0:
        status, solver = solve_model(
            model.model, run, most_work=most_work, simplify=True, seed=seed
        )
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return status, found
        found = model.chosen.stages(solver)
        if not model.add_violated(solver):
            return status, found
        model.chosen.hint(found)
        most_work -= solver.deterministic_time
    return int(cp_model.UNKNOWN), found


class RelaxationModel:
    """The relaxation at the period of what is known."""

    def __init__(self, forced: ForcedWork) -> None:
        self.forced, self.scaled = forced, forced.scaled
        self.problem = self.scaled.problem
        self.layers = range(len(forced.spans))
        self.held = self.scaled.resident(forced.spans)
        parts = PARTS if self.scaled.peak else 1
        self.saved, self.checkpoint = self.scaled.saved // parts, self.scaled.checkpoint // parts
        self.chosen = RelaxedAllocation(forced)
        self.model = self.chosen.model
        gpus = [self.problem.platform.gpus[number] for number in self.chosen.gpus]
        self.rooms = [self.scaled.size(gpu.usable_bytes) for gpu in gpus]
        self._lengthen_spans()
        self._round_spans()
        self._count_micro_batches()
        self.again = (
            self._add_up_runs() if self.scaled.peak and self.problem.scope.recompute else []
        )
        self._fit_time()
        self._fit_memory()
        self._fit_links()
        self.instants: FittingInstants | None = None
        if forced.instants is not None:
            self.instants = FittingInstants(
                self.chosen, forced.instants, self.rooms, self.span, self.most, self.again
            )

    def add_violated(self, solver: cp_model.CpSolver) -> bool:
        """Add instants at which an answer does not fit the memory; whether there are any."""
        return self.instants is not None and self.instants.add_violated(solver)

    def _lengthen_spans(self) -> None:
        """span[l] >= span[l + 1] + own time + cut[l] times a transfer there and back."""
        scaled = self.scaled
        self.most = self._longest_spans()
        self.span = [
            self.model.new_int_var(int(least), most, "")
            for least, most in zip(self.forced.spans, self.most, strict=True)
        ]
        for layer in self.layers:
            whole, half = int(scaled.whole[layer]), int(scaled.half[layer])
            own = int(scaled.ahead[layer]) + whole - (whole - half) * self.chosen.halves[layer]
            if layer < self.layers[-1]:
                self.model.add(self.span[layer] >= self._sent(layer) + own)
            else:
                self.model.add(self.span[layer] >= own)

    def _sent(self, layer: int) -> cp_model.LinearExpr | cp_model.IntVar:
        """Return the least time from the end of a layer's forward to its gradient's arrival.

        With a cut both transfers may have to share a link: see `Scaled.sent`. That is worth its
        time only if they are long.
        """
        scaled, chosen, repeat = self.scaled, self.chosen, self.scaled.amounts.repeat
        trip = int(scaled.trips[layer]) * chosen.cut[layer] + chosen.crossings.longer(layer)
        through = self.span[layer + 1] + trip
        busy = int(scaled.links[layer])
        if repeat is None or LONG * busy < scaled.limit or not scaled.amounts.shares_links:
            return through
        most = self.most[layer + 1] + chosen.crossings.longest(layer)
        most = max(most, scaled.rounded(most, busy))
        sent = self.model.new_int_var(0, most, "")
        self.model.add(sent >= through)
        turn = self.model.new_int_var(0, most // (repeat * scaled.above) + 1, "")
        self.model.add(sent <= repeat * scaled.above * (turn + 1))
        fits = self.model.add(sent >= repeat * scaled.limit * turn + busy)
        fits.only_enforce_if(chosen.cut[layer])
        return sent

    def _longest_spans(self) -> list[int]:
        """Return what spans come to if every cut is made; none needs to be longer."""
        scaled, span, spans = self.scaled, 0, []
        for layer in reversed(self.layers):
            back = max(int(scaled.whole[layer]), int(scaled.half[layer]))
            own = int(scaled.ahead[layer]) + back
            if layer < self.layers[-1] and self.forced.may_cut[layer]:
                span += self.chosen.crossings.longest(layer)
                if scaled.amounts.shares_links:
                    span = scaled.rounded(span, int(scaled.links[layer]))
            span = max(span + own, int(self.forced.spans[layer]))
            span = scaled.rounded(span, int(scaled.ahead[layer] + scaled.back[layer]))
            spans.append(span)
        return spans[::-1]

    def _count_micro_batches(self) -> None:
        """T n[l] >= span[l], with the second half of a backward where it keeps what is saved.

        Counts go up to what the longest span asks for; or to what no memory holds, and then that
        many are enough for any span.
        """
        scaled, above = self.scaled, self.scaled.above
        self.grown, self.growth = [], []
        for layer in self.layers:
            tail = int(scaled.tail[layer])
            held = self.span[layer] + tail * self.chosen.halves[layer]
            whole, half = int(scaled.whole[layer]), int(scaled.half[layer])
            freed = min(whole, half + tail) - min(whole, half)
            known = int(self.forced.spans[layer]) + freed
            longest = self.most[layer] + tail
            count = int(self.forced.counts[layer])
            if scaled.peak:
                needed = -(-PARTS * (longest - known) // above)
            else:
                needed = -(-longest // above) - count
            enough = self._more_than_fits(layer)
            most = max(0, min(needed, enough))
            grown = self.model.new_int_var(0, most, "")
            self.grown.append(grown)
            self.growth.append(most)
            if scaled.peak:
                counted = self.model.add(above * (grown + 1) >= PARTS * (held - known))
            else:
                counted = self.model.add(above * (grown + count) >= held)
            if most < needed:
                below = self.model.new_bool_var("")
                self.model.add(grown == most).only_enforce_if(~below)
                counted.only_enforce_if(below)

    def _round_spans(self) -> None:
        """Let forward and backward of a layer share its GPU: see `Scaled.rounded`.

        span[l] = m t + r with r at least the work of both, where all repeats after t.
        """
        scaled = self.scaled
        repeat = scaled.amounts.repeat
        if repeat is None:
            return
        for layer in self.layers:
            own = int(scaled.ahead[layer] + scaled.back[layer])
            first = -(-int(self.forced.spans[layer]) // (repeat * scaled.above)) - 1
            last = -(-self.most[layer] // (repeat * scaled.above)) - 1
            turn = self.model.new_int_var(first, max(first, last), "")
            self.model.add(self.span[layer] <= repeat * scaled.above * (turn + 1))
            self.model.add(self.span[layer] >= repeat * scaled.limit * turn + own)

    def _add_up_runs(self) -> list[cp_model.IntVar]:
        """again[l] >= saved[l], and >= again[l - 1] + saved[l] if l goes on with a run.

        One R makes all that a run saves, which lies there when the backward of l is about to end.
        """
        room, found = self.scaled.room, list[cp_model.IntVar]()
        for layer in self.layers:
            saved = int(self.scaled.saved[layer])
            recomputed = sum(self.chosen.recomputed[layer])
            found.append(self.model.new_int_var(0, room, ""))
            self.model.add(found[-1] >= saved * recomputed)
            if layer:
                apart = 1 - recomputed + sum(self.chosen.begins[layer])
                self.model.add(found[-1] >= found[-2] + saved - (room + saved) * apart)
        return found

    def _more_than_fits(self, layer: int) -> int:
        """Return a growth that no memory holds, of anything that is counted."""
        sizes = [int(self.saved[layer]), int(self.checkpoint[layer])]
        return max((self.scaled.room // size + 1 for size in sizes if size), default=0)

    def _fit_time(self) -> None:
        """Let the work of each GPU, recompute included, take at most T."""
        for place, number in enumerate(self.chosen.gpus):
            gpu = self.problem.platform.gpus[number]
            work, forward = self._times(gpu)
            terms = []
            for layer in self.layers:
                terms.append(work[layer] * self.chosen.on[layer][place])
                terms.append(forward[layer] * self.chosen.recomputed[layer][place])
            self.model.add(sum(terms) <= self.scaled.limit)

    def _times(self, gpu: Gpu) -> tuple[Sizes, Sizes]:
        """Return the work of each layer on a GPU, and its forward."""
        layers = self.problem.chain.layers

        def time(count: int | None) -> Fraction:
            return Fraction(gpu.duration_ns(count or 0))

        backs = [time(layer.backward_ns) for layer in layers]
        if self.problem.scope.split_backward:
            halves = (
                time(layer.backward_input_ns) + time(layer.backward_weight_ns) for layer in layers
            )
            backs = [min(back, both) for back, both in zip(backs, halves, strict=True)]
        forwards = [time(layer.forward_ns) for layer in layers]
        work = map(sum, zip(forwards, backs, strict=True))
        return [*map(self.scaled.time, work)], [*map(self.scaled.time, forwards)]

    def _fit_memory(self) -> None:
        """Let what lies on each GPU fit it.

        In the reading *peak* that is an average; and the worst instant of a layer fits with all
        weights, and so does what all layers keep when a micro-batch turns.
        """
        chosen = self.chosen
        grown = self._shares(self.saved, chosen.kept)
        again = self.problem.scope.recompute
        later = self._shares(self.checkpoint, chosen.begun) if again else None
        second = self._second()
        for place, room in enumerate(self.rooms):
            row = [on[place] for on in chosen.on]
            weights = [int(size) * on for size, on in zip(self.scaled.weight, row, strict=True)]
            terms = [*weights, *second[place], self._largest(self.held.workspace, row)]
            for layer in self.layers:
                kept, recomputed = chosen.kept(layer, place), chosen.recomputed[layer][place]
                terms.append(int(self.held.saved[layer]) * kept)
                terms.append(int(self.held.again[layer]) * recomputed)
                terms.append(int(self.held.checkpoint[layer]) * chosen.begins[layer][place])
                terms.append(int(self.held.input[layer]) * chosen.receives[layer][place])
                terms.append(int(self.saved[layer]) * grown[layer][place])
                if later is not None:
                    terms.append(int(self.checkpoint[layer]) * later[layer][place])
            self.model.add(sum(terms) <= room)
            if self.scaled.peak:
                self.model.add(sum([*weights, self._largest(self.held.worst, row)]) <= room)
                turn = [int(size) * on for size, on in zip(self.held.turn, row, strict=True)]
                self.model.add(sum([*weights, *turn]) <= room)
                for layer, run in enumerate(self.again):
                    if self.scaled.saved[layer]:
                        fits = self.model.add(sum([*weights, run]) <= room)
                        fits.only_enforce_if(chosen.recomputed[layer][place])

    def _largest(self, sizes: Sizes, row: Sequence[cp_model.IntVar]) -> cp_model.LinearExpr | int:
        """Return at least the largest size of what lies on a GPU."""
        most = max(int(size) for size in sizes)
        if not most:
            return 0
        largest = self.model.new_int_var(0, most, "")
        for size, on in zip(sizes, row, strict=True):
            if size:
                self.model.add(largest >= int(size) * on)
        return largest

    def _shares(
        self, sizes: Sizes, on: Callable[[int, int], cp_model.LinearExpr]
    ) -> list[list[cp_model.LinearExprT]]:
        """Return on which GPU each layer grows, if it lies there in the way asked for."""
        shares: list[list[cp_model.LinearExprT]] = []
        for layer in self.layers:
            most = self.growth[layer]
            if not most or not sizes[layer]:
                shares.append([0] * len(self.chosen.gpus))
                continue
            row = [self.model.new_int_var(0, most, "") for _ in self.chosen.gpus]
            here = [on(layer, place) for place in range(len(self.chosen.gpus))]
            for share, on_gpu in zip(row, here, strict=True):
                self.model.add(share <= most * on_gpu)
            self.model.add(sum(row) >= self.grown[layer] - most * (1 - sum(here)))
            shares.append(list(row))
        return shares

    def _second(self) -> list[list[cp_model.LinearExprT]]:
        """Return what the second halves of split backwards keep, by GPU."""
        kept: list[list[cp_model.LinearExprT]] = [[] for _ in self.chosen.gpus]
        if not self.problem.scope.split_backward:
            return kept
        for layer in self.layers:
            if not (size := int(self.held.second[layer])):
                continue
            for place, terms in enumerate(kept):
                here = self.model.new_bool_var("")
                on, halves = self.chosen.on[layer][place], self.chosen.halves[layer]
                self.model.add_bool_or(~on, ~halves, here)
                terms.append(size * here)
        return kept

    def _fit_links(self) -> None:
        """Let all links together carry what all cuts send, and each hop what goes over it."""
        self.chosen.crossings.fit_hops()
        platform = self.problem.platform
        pairs = permutations(range(len(platform.gpus)), 2)
        links = {link for pair in pairs for link in platform.route(*pair)}
        sent = [
            int(busy) * cut
            for busy, cut in zip(self.scaled.links[:-1], self.chosen.cut, strict=True)
        ]
        if links and sent:
            self.model.add(sum(sent) <= len(links) * self.scaled.limit)
