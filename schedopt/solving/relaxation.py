"""Whether a period is possible on any allocation at all, as far as spans, counts and sums say.

No order is chosen, so that a period may be possible here and not in truth; what is impossible here
is impossible for every allocation and every k. With l a layer, p a GPU and T the normalized period:

    on[l, p]          layer l lies on p
    cut[l]            layers l and l + 1 lie on two GPUs
    halves[l]         the backward of l is split
    recomputed[l, p]  l lies on p and is recomputed
    begins[l, p]      a run of recomputed layers begins with l
    span[l]           from the start of the forward of l to the end of its backward, or of the half
                      that its gradient waits for, at least
    grown[l]          by how much more than the least count of `propagate` l keeps what it saves

Of equal GPUs one is used only after the one before it.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import groupby, pairwise, permutations
from typing import TYPE_CHECKING, Final

from ortools.sat.python import cp_model

from schedopt.bounds.propagation import ForcedWork
from schedopt.bounds.recomputation import runs_of
from schedopt.platform import Gpu
from schedopt.solving.models.cut_transfers import CutTransfers
from schedopt.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedopt.bounds.amounts import Array

    Literals = list[list[cp_model.IntVar]]
    Sizes = Sequence[int] | Array

MOST_CLAUSES: Final = 200_000
LONG: Final = 8
"""A transfer is long if it takes such a part of a period."""
PARTS: Final = 16
"""In the reading *peak* counts are averages, looked at in such parts."""


class RelaxationModel:
    """The relaxation at one period.

    Parameters
    ----------
    forced : ForcedWork
        What is known of the period.
    """

    def __init__(self, forced: ForcedWork) -> None:
        self.forced, self.scaled = forced, forced.scaled
        self.problem = self.scaled.problem
        self.split = self.problem.scope.split_backward
        self.recompute = self.problem.scope.recompute
        self.layers = range(len(forced.spans))
        self.gpus = self._row_of_gpus()
        self.held = self.scaled.resident(forced.spans)
        parts = PARTS if self.scaled.peak else 1
        self.saved, self.checkpoint = self.scaled.saved // parts, self.scaled.checkpoint // parts
        self.model = cp_model.CpModel()
        self.on = self._literals("on")
        self.cut = [self.model.new_bool_var(f"cut{layer}") for layer in self.layers[:-1]]
        self.halves = [self.model.new_bool_var(f"halves{layer}") for layer in self.layers]
        self.recomputed = self._literals("recomputed")
        self.begins = self._literals("begins")
        self.receives = self._literals("receives")
        self._place_layers()
        self._break_symmetry()
        self._cut_between_gpus()
        self.crossings = CutTransfers(self.model, self.scaled, self.on, self.gpus)
        self._keep_apart()
        self._choose_runs()
        self._lengthen_spans()
        self._round_spans()
        self._count_micro_batches()
        self._fit_time()
        self._fit_memory()
        self._fit_links()

    def _row_of_gpus(self) -> list[int]:
        """Return the numbers of the GPUs, equal ones together; no more of these than layers."""
        numbers = sorted(range(len(self.problem.platform.gpus)), key=self._kind)
        alike = [list(members) for _, members in groupby(numbers, self._kind)]
        return [number for members in alike for number in members[: len(self.layers)]]

    def _kind(self, number: int) -> tuple[int, int]:
        """Return what GPUs have in common that may take each other's place: also their node."""
        platform = self.problem.platform
        node = 0 if platform.network is None else platform.network.node_of[number]
        return platform.gpus.index(platform.gpus[number]), node

    def _literals(self, name: str) -> Literals:
        return [
            [self.model.new_bool_var(f"{name}{layer},{gpu}") for gpu in self.gpus]
            for layer in self.layers
        ]

    def _place_layers(self) -> None:
        """Place each layer on one GPU, and layers of a group on the same one."""
        for row in self.on:
            self.model.add_exactly_one(row)
        for first, *others in self.problem.chain.same_gpu:
            for other in others:
                for here, there in zip(self.on[first], self.on[other], strict=True):
                    self.model.add(here == there)

    def _break_symmetry(self) -> None:
        """Use a GPU only behind the first use of an equal one before it."""
        for place, (before, number) in enumerate(pairwise(self.gpus)):
            if self._kind(before) != self._kind(number):
                continue
            self.model.add(self.on[0][place + 1] == 0)
            used = self.on[0][place]
            for layer in self.layers[1:]:
                self.model.add_implication(self.on[layer][place + 1], used)
                so_far = self.model.new_bool_var("")
                self.model.add_bool_or(used, self.on[layer][place]).only_enforce_if(so_far)
                used = so_far

    def _cut_between_gpus(self) -> None:
        """Let neighbours without a cut share their GPU."""
        for layer, cut in enumerate(self.cut):
            for before, behind in zip(self.on[layer], self.on[layer + 1], strict=True):
                self.model.add_bool_or(~before, cut, behind)
                self.model.add_bool_or(before, cut, ~behind)
            # Somewhere within as many layers as a GPU holds, and one more.
            window = self.cut[layer : layer + int(self.forced.windows[layer])]
            if layer + len(window) < len(self.layers) and len(window) == self.forced.windows[layer]:
                self.model.add_bool_or(window)
            if not self.forced.may_cut[layer]:
                self.model.add(cut == 0)

    def _keep_apart(self) -> None:
        """Keep pairs apart that cannot share a GPU."""
        apart = self.forced.non_coresident()
        pairs = [(a, b) for a in self.layers for b in self.layers[:a] if apart[a, b]]
        for a, b in pairs[: MOST_CLAUSES // len(self.gpus)]:
            for first, second in zip(self.on[a], self.on[b], strict=True):
                self.model.add_bool_or(~first, ~second)

    def _choose_runs(self) -> None:
        """Let what is recomputed lie there, and begin a run unless it goes on with one.

        What is kept receives its input unless it goes on with what is kept.
        """
        if not self.split:
            self._set_to_zero(self.halves)
        for layer in self.layers:
            if not self.recompute:
                self._set_to_zero(self.recomputed[layer])
                self._set_to_zero(self.begins[layer])
            for place in range(len(self.gpus)):
                on, recomputed = self.on[layer][place], self.recomputed[layer][place]
                self.model.add_implication(recomputed, on)
                if not layer:
                    self.model.add(self.begins[0][place] == recomputed)
                    self.model.add(self.receives[0][place] == on - recomputed)
                    continue
                before, goes_on = self.on[layer - 1][place], self.recomputed[layer - 1][place]
                self.model.add(self.begins[layer][place] >= recomputed - goes_on)
                kept = on - recomputed
                self.model.add(self.receives[layer][place] >= kept - (before - goes_on))

    def _set_to_zero(self, variables: Sequence[cp_model.IntVar]) -> None:
        for variable in variables:
            self.model.add(variable == 0)

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
            own = int(scaled.ahead[layer]) + whole - (whole - half) * self.halves[layer]
            if layer < self.layers[-1]:
                self.model.add(self.span[layer] >= self._sent(layer) + own)
            else:
                self.model.add(self.span[layer] >= own)

    def _sent(self, layer: int) -> cp_model.LinearExpr | cp_model.IntVar:
        """Return the least time from the end of a layer's forward to its gradient's arrival.

        With a cut both transfers may have to share a link: see `Scaled.sent`. That is worth its
        time only if they are long.
        """
        scaled, repeat = self.scaled, self.scaled.amounts.repeat
        trip = int(scaled.trips[layer]) * self.cut[layer] + self.crossings.longer(layer)
        through = self.span[layer + 1] + trip
        busy = int(scaled.links[layer])
        if repeat is None or LONG * busy < scaled.limit or not scaled.amounts.shares_links:
            return through
        most = self.most[layer + 1] + self.crossings.longest(layer)
        most = max(most, scaled.rounded(most, busy))
        sent = self.model.new_int_var(0, most, "")
        self.model.add(sent >= through)
        turn = self.model.new_int_var(0, most // (repeat * scaled.above) + 1, "")
        self.model.add(sent <= repeat * scaled.above * (turn + 1))
        fits = self.model.add(sent >= repeat * scaled.limit * turn + busy)
        fits.only_enforce_if(self.cut[layer])
        return sent

    def _longest_spans(self) -> list[int]:
        """Return what spans come to if every cut is made; none needs to be longer."""
        scaled, span, spans = self.scaled, 0, []
        for layer in reversed(self.layers):
            back = max(int(scaled.whole[layer]), int(scaled.half[layer]))
            own = int(scaled.ahead[layer]) + back
            if layer < self.layers[-1] and self.forced.may_cut[layer]:
                span += self.crossings.longest(layer)
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
            held = self.span[layer] + tail * self.halves[layer]
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

    def _more_than_fits(self, layer: int) -> int:
        """Return a growth that no memory holds, of anything that is counted."""
        sizes = [int(self.saved[layer]), int(self.checkpoint[layer])]
        return max((self.scaled.room // size + 1 for size in sizes if size), default=0)

    def _fit_time(self) -> None:
        """Let the work of each GPU, recompute included, take at most T."""
        for place, number in enumerate(self.gpus):
            gpu = self.problem.platform.gpus[number]
            work, forward = self._times(gpu)
            terms = []
            for layer in self.layers:
                terms.append(work[layer] * self.on[layer][place])
                terms.append(forward[layer] * self.recomputed[layer][place])
            self.model.add(sum(terms) <= self.scaled.limit)

    def _times(self, gpu: Gpu) -> tuple[Sizes, Sizes]:
        """Return the work of each layer on a GPU, and its forward."""
        layers = self.problem.chain.layers

        def time(count: int | None) -> Fraction:
            return Fraction(gpu.duration_ns(count or 0))

        backs = [time(layer.backward_ns) for layer in layers]
        if self.split:
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
        grown = self._shares(self.saved, self._kept)
        later = self._shares(self.checkpoint, self._begun) if self.recompute else None
        second = self._second()
        for place, number in enumerate(self.gpus):
            room = self.scaled.size(self.problem.platform.gpus[number].usable_bytes)
            row = [on[place] for on in self.on]
            weights = [int(size) * on for size, on in zip(self.scaled.weight, row, strict=True)]
            terms = [*weights, *second[place], self._largest(self.held.workspace, row)]
            for layer in self.layers:
                kept, recomputed = self._kept(layer, place), self.recomputed[layer][place]
                terms.append(int(self.held.saved[layer]) * kept)
                terms.append(int(self.held.again[layer]) * recomputed)
                terms.append(int(self.held.checkpoint[layer]) * self.begins[layer][place])
                terms.append(int(self.held.input[layer]) * self.receives[layer][place])
                terms.append(int(self.saved[layer]) * grown[layer][place])
                if later is not None:
                    terms.append(int(self.checkpoint[layer]) * later[layer][place])
            self.model.add(sum(terms) <= room)
            if self.scaled.peak:
                self.model.add(sum([*weights, self._largest(self.held.worst, row)]) <= room)
                turn = [int(size) * on for size, on in zip(self.held.turn, row, strict=True)]
                self.model.add(sum([*weights, *turn]) <= room)

    def _kept(self, layer: int, place: int) -> cp_model.LinearExpr:
        return self.on[layer][place] - self.recomputed[layer][place]

    def _begun(self, layer: int, place: int) -> cp_model.LinearExpr:
        return self.begins[layer][place]

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
                shares.append([0] * len(self.gpus))
                continue
            row = [self.model.new_int_var(0, most, "") for _ in self.gpus]
            here = [on(layer, place) for place in range(len(self.gpus))]
            for share, on_gpu in zip(row, here, strict=True):
                self.model.add(share <= most * on_gpu)
            self.model.add(sum(row) >= self.grown[layer] - most * (1 - sum(here)))
            shares.append(list(row))
        return shares

    def _second(self) -> list[list[cp_model.LinearExprT]]:
        """Return what the second halves of split backwards keep, by GPU."""
        kept: list[list[cp_model.LinearExprT]] = [[] for _ in self.gpus]
        if not self.split:
            return kept
        for layer in self.layers:
            if not (size := int(self.held.second[layer])):
                continue
            for place, terms in enumerate(kept):
                here = self.model.new_bool_var("")
                on, halves = self.on[layer][place], self.halves[layer]
                self.model.add_bool_or(~on, ~halves, here)
                terms.append(size * here)
        return kept

    def _fit_links(self) -> None:
        """Let all links together carry what all cuts send, and each hop what goes over it."""
        self.crossings.fit_hops()
        platform = self.problem.platform
        pairs = permutations(range(len(platform.gpus)), 2)
        links = {link for pair in pairs for link in platform.route(*pair)}
        sent = [int(busy) * cut for busy, cut in zip(self.scaled.links[:-1], self.cut, strict=True)]
        if links and sent:
            self.model.add(sum(sent) <= len(links) * self.scaled.limit)

    def hint(self, stages: Sequence[Stage]) -> None:
        """Start from an allocation; its GPUs are taken in the order of their first use if equal."""
        names, left = dict[int, int](), list(self.gpus)
        for stage in stages:
            (own,) = stage.gpus
            if own not in names:
                names[own] = next(
                    number for number in left if self._kind(number) == self._kind(own)
                )
                left.remove(names[own])
            recomputed = {n for first, last in stage.recompute for n in range(first, last + 1)}
            for layer in range(stage.first, stage.last + 1):
                for place, number in enumerate(self.gpus):
                    here = number == names[own]
                    self.model.add_hint(self.on[layer][place], here)
                    self.model.add_hint(self.recomputed[layer][place], here and layer in recomputed)

    def stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the allocation of an answer, and what it recomputes."""
        places = [
            next(place for place, on in enumerate(row) if solver.boolean_value(on))
            for row in self.on
        ]
        recomputed = [
            solver.boolean_value(row[place])
            for row, place in zip(self.recomputed, places, strict=True)
        ]
        stages: list[Stage] = []
        for place, members in groupby(self.layers, key=lambda layer: places[layer]):
            row = list(members)
            flags = [recomputed[layer] for layer in row]
            stages.append(
                Stage(
                    layers=(row[0], row[-1]),
                    gpus=(self.gpus[place],),
                    recompute=runs_of(flags, row[0]),
                )
            )
        return tuple(stages)
