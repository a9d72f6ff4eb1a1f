"""What a micro-batch does on a given allocation, and what it keeps on the way.

How many micro-batches in flight are of use: leave every operation where it is, and only choose
which micro-batch it runs. From the forward of the last stage outwards, let each backward, and each
W, take the earliest run that comes in time, and each forward the latest. No stage keeps more than
before. Between two steps that follow one another at most one micro-batch waits at some instant of
each period, or there would be an earlier run, and k more come before it is so again: never more
than k + 1. A recompute takes the latest run before its backward, and the forward the latest before
both; in the last stage recompute and backward take the earliest behind the forward.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from schedopt.account.timeline import layer_ns
from schedopt.bounds.recomputation import held_bytes, input_bytes
from schedopt.chain import Layer
from schedopt.plan import Kind, Operation, Pattern, Tensor, Transfer, place_in_period
from schedopt.problem import MemoryReading, Problem
from schedopt.solving.models.tasks import PatternSolution, Stash, Task

LONGEST: Final = 8
"""The k to which a search goes where any is allowed."""


class AllocatedPipeline:
    """What a micro-batch does on a given allocation, and what it keeps on the way.

    Parameters
    ----------
    problem : Problem
        With stages, each on one GPU.
    free : bool
        Whether each stage may recompute any of its layers, and not what it says.

    Attributes
    ----------
    way : list of Task
        Forwards with transfers, then backwards.
    stashes : list of Stash
    usable : dict of int to int
        Bytes that each GPU has beside weights.
    spare : dict of int to int
        Bytes that each GPU has beside weights and the largest workspace that is always taken.
    """

    def __init__(self, problem: Problem, *, free: bool = False) -> None:
        self.problem, self.free = problem, free
        self.path = list(self._steps())
        self.usable = self._usable()
        self.spare = self._spare()
        self._step_of = {(step.what, step.stage): step for step in self.path}
        self._exact = self._exact_peaks()
        self._links, self._along = self._links_through(), self._held_along()
        self.stashes = [one for stage in range(len(problem.stages)) for one in self._keeps(stage)]

    @property
    def load_ns(self) -> int:
        """The longest time that a resource works for a micro-batch."""
        work: dict[tuple[object, ...], int] = defaultdict(int)
        backward: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for step in self.path:
            if step.split is None:
                for resource in step.resources:
                    work[resource] += step.length_ns
            else:
                backward[step.stage][step.split] += step.length_ns
        for stage, choices in backward.items():
            work["gpu", self.problem.stages[stage].gpus[0]] += min(choices)
        return max(work.values())

    @property
    def has_recompute(self) -> bool:
        """Whether a stage recomputes, or may."""
        return any(step.what == "R" for step in self.path)

    @property
    def whole_ns(self) -> int:
        """How long a micro-batch takes on its own, its backwards whole, with all recompute."""
        whole = sum(step.length_ns for step in self.path if not step.split)
        return whole + (
            sum(step.length_ns for step in self.path if step.what == "F") if self.free else 0
        )

    def most_in_flight(self, k: int, *, flush: bool = False) -> list[int]:
        """Return how many micro-batches may be in flight of each that is kept.

        A stage has no more than the next one, and what may be between the two.
        """
        found = [one.most(k, flush=flush) for one in self.stashes]
        if flush:
            return found
        through: dict[int, list[int]] = defaultdict(list)
        for number, one in enumerate(self.stashes):
            if one.enter == "F" and one.leave != "W":
                through[one.stage].append(number)
        last = len(through) - 1
        for stage in reversed(range(last)):
            behind = max(found[number] for number in through[stage + 1])
            useful = behind + (self._links[stage] - self._links[stage + 1]) * (k + 1)
            for number in through[stage]:
                found[number] = min(found[number], useful)
        return found

    def lacking(self) -> tuple[int, int]:
        """Return the GPU that lacks the most with one micro-batch in flight, and the bytes."""
        short = {gpu: -spare for gpu, spare in self.spare.items()}
        for one in self.stashes:
            if not one.split:
                short[one.gpu] += one.each_bytes
        worst = max(short, key=lambda gpu: short[gpu])
        return worst, short[worst]

    def _steps(self) -> Iterator[Task]:
        count = len(self.problem.stages)
        for stage in range(count):
            yield self._operation("F", stage)
            if stage < count - 1:
                yield from self._transfer("activation", stage, stage, stage + 1)
        for stage in reversed(range(count)):
            if self._may_recompute(stage):
                yield self._operation("R", stage)
            if self.problem.scope.split_backward:
                yield self._operation("B", stage, split=False)
                yield self._operation("I", stage, split=True)
                yield self._operation("W", stage, split=True)
            else:
                yield self._operation("B", stage)
            if stage > 0:
                yield from self._transfer("gradient", stage - 1, stage, stage - 1)

    def _may_recompute(self, index: int) -> bool:
        return self.free or bool(self.problem.stages[index].recompute)

    def _layers(self, index: int) -> Sequence[Layer]:
        stage = self.problem.stages[index]
        return self.problem.chain.layers[stage.first : stage.last + 1]

    def _recomputed(self, index: int) -> list[Layer]:
        return [
            layer
            for first, last in self.problem.stages[index].recompute
            for layer in self.problem.chain.layers[first : last + 1]
        ]

    def _operation(self, kind: Kind, index: int, *, split: bool | None = None) -> Task:
        stage = self.problem.stages[index]
        gpu = self.problem.platform.gpus[stage.gpus[0]]
        layers = self._layers(index)
        if kind == "R":
            layers = [] if self.free else self._recomputed(index)
        length = sum(gpu.duration_ns(layer_ns(layer, kind)) for layer in layers)
        return Task(kind, index, length, (("gpu", stage.gpus[0]),), split)

    def _transfer(self, tensor: Tensor, index: int, source: int, target: int) -> Iterator[Task]:
        """Yield the transfer between two stages, if they lie on GPUs with a link between them."""
        stages, platform = self.problem.stages, self.problem.platform
        ends = stages[source].gpus[0], stages[target].gpus[0]
        route = platform.route(*ends)
        if route:
            count = self.problem.chain.layers[stages[index].last].activation_bytes
            yield Task(tensor, index, platform.transfer_ns(count, *ends), route)

    def _usable(self) -> dict[int, int]:
        usable: dict[int, int] = {}
        for index, stage in enumerate(self.problem.stages):
            gpu = stage.gpus[0]
            left = usable.get(gpu, self.problem.platform.gpus[gpu].usable_bytes)
            usable[gpu] = left - sum(layer.weight_bytes for layer in self._layers(index))
        return usable

    def _spare(self) -> dict[int, int]:
        workspaces = dict.fromkeys(self.usable, 0)
        for stage, (whole, halves) in self._workspaces():
            gpu = self.problem.stages[stage].gpus[0]
            workspaces[gpu] = max(workspaces[gpu], min(whole, halves))
        return {gpu: left - workspaces[gpu] for gpu, left in self.usable.items()}

    def _workspaces(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield each stage and what its operations take, its backward whole or split."""
        split = self.problem.scope.split_backward
        for index in range(len(self.problem.stages)):
            layers = self._layers(index)
            most = max(layer.workspace_bytes or 0 for layer in layers)
            ahead = any(layer.forward_ns for layer in layers)
            whole = ahead or any(layer.backward_ns for layer in layers)
            halves = ahead or any(
                layer.backward_input_ns or layer.backward_weight_ns for layer in layers
            )
            halves = halves if split else whole
            yield index, (most if whole else 0, most if halves else 0)

    def workspaces_of_one_way(self, gpu: int) -> list[tuple[int, bool, int]]:
        """Return what takes a workspace only if a backward is whole, or split, and takes no time.

        Returns
        -------
        list of (int, bool, int)
            Stage, whether it is split, and the bytes that its GPU then has beside weights.
        """
        return [
            (stage, split, self.usable[gpu] - size)
            for stage, sizes in self._workspaces()
            for split, size in zip((False, True), sizes, strict=True)
            if self.problem.stages[stage].gpus[0] == gpu and size > min(sizes)
        ]

    def workspace_bytes(self, step: Task) -> int:
        """Return what an operation takes for its length."""
        if step.length_ns == 0:
            return 0
        layers = self._layers(step.stage)
        if step.what == "R":
            layers = self._recomputed(step.stage)
        return max(layer.workspace_bytes or 0 for layer in layers)

    def proven_reading(self) -> MemoryReading:
        """Return the reading of memory for which the order model is exact.

        Both are the same for a GPU that keeps one thing only.
        """
        on = Counter(one.gpu for one in self.stashes)
        exact = all(
            self.exact_peak(gpu) or (count == 1 and not self.free) for gpu, count in on.items()
        )
        return "peak" if exact else "sum"

    def exact_peak(self, gpu: int) -> bool:
        """Whether the order of a GPU's operations says what lies there at the worst, exactly.

        In the reading peak, where nothing is chosen. What takes no time may come and go at the
        instant of something else; then the reading sum is taken, which is never less.
        """
        return gpu in self._exact

    def _exact_peaks(self) -> set[int]:
        if self.free or self.problem.scope.memory == "sum":
            return set()
        instant = {one for step in self.path if not step.length_ns for one in step.resources}
        return {gpu for gpu in self.usable if ("gpu", gpu) not in instant}

    def _keeps(self, index: int) -> Iterator[Stash]:
        stage = self.problem.stages[index]
        numbers = range(stage.first, stage.last + 1)
        again = self._may_recompute(index)
        split = False if self.problem.scope.split_backward else None
        whole = held_bytes(self.problem.chain, numbers, stage.recompute)
        yield self._kept(
            index, "F", "B", self._least_held(index) if self.free else whole["F", "B"], split=split
        )
        if again:
            yield self._kept(index, "R", "B", 0 if self.free else whole["R", "B"], split=split)
        if split is None:
            return
        halves = held_bytes(self.problem.chain, numbers, stage.recompute, split=True)
        if self.free:
            halves = Counter({("I", "W"): halves["I", "W"]})
        may_be = {ends for ends, size in halves.items() if size}
        if self.free:
            may_be |= {
                (enter, "W" if layer.saved_weight_bytes is None else "I")
                for enter in ("F", "R")
                for layer in self._layers(index)
            }
        # What keeps nothing needs no count where another one covers its time.
        needed = may_be if ("F", "W") in may_be else {*may_be, ("F", "I"), ("I", "W")}
        ends: list[tuple[Kind, Kind]] = [("F", "I"), ("F", "W"), ("I", "W")]
        for enter, leave in ends:
            if (enter, leave) in needed:
                yield self._kept(index, enter, leave, halves[enter, leave], split=True)
        if again:
            yield self._kept(index, "R", "I", halves["R", "I"], split=True)
            if ("R", "W") in may_be:
                yield self._kept(index, "R", "W", halves["R", "W"], split=True)

    def _kept(
        self, index: int, enter: Kind, leave: Kind, each: int, *, split: bool | None = None
    ) -> Stash:
        gpu = self.problem.stages[index].gpus[0]
        enters, leaves = self._step_of[enter, index], self._step_of[leave, index]
        room, along = self.spare[gpu], each
        if self.exact_peak(gpu):
            # The most are there as one enters, when no other workspace needs to be.
            room = self.usable[gpu] - self.workspace_bytes(enters)
        if leave != "W" and (enters.length_ns or leaves.length_ns):
            along += self._along[index] + (self._held_through(index) if enter == "R" else 0)
        fit = max(1, room // along) if along else None
        through = max(self._links[index], 2 if self._may_recompute(index) else 1)
        links = {"F": through, "R": 1, "I": 0}[enter] + (leave == "W")
        return Stash(index, gpu, enter, leave, each, fit, links, split)

    def _held_along(self) -> list[int]:
        """Return what a micro-batch keeps on a stage's GPU for the stages before it, bytes.

        The least, from the forward of the stage to its backward: by then it has begun theirs, and
        has not ended their backwards. W may come behind all of these. What stays for no time may
        be there when that has left already.
        """
        before: dict[int, int] = defaultdict(int)
        found: list[int] = []
        for index, stage in enumerate(self.problem.stages):
            found.append(before[stage.gpus[0]])
            before[stage.gpus[0]] += self._held_through(index)
        return found

    def _held_through(self, index: int) -> int:
        """Return the least that a micro-batch keeps from the forward to the backward of a stage."""
        stage, chain = self.problem.stages[index], self.problem.chain
        if self.free:
            return self._least_held(index)
        numbers = range(stage.first, stage.last + 1)
        whole = held_bytes(chain, numbers, stage.recompute)["F", "B"]
        if not self.problem.scope.split_backward:
            return whole
        halves = held_bytes(chain, numbers, stage.recompute, split=True)
        return min(whole, halves["F", "I"] + halves["F", "W"])

    def _least_held(self, index: int) -> int:
        """Return the least that a stage free to recompute keeps from its forward, bytes."""
        chain, first = self.problem.chain, self.problem.stages[index].first
        layer = chain.layers[first]
        return min(layer.saved + (layer.saved_input_bytes or 0), input_bytes(chain, first))

    def _links_through(self) -> list[int]:
        """Return the steps from the forward of each stage to its backward.

        Forwards and backwards of the stages behind with the transfers between them.
        """
        found = [-1] * len(self.problem.stages)
        for step in self.path:
            if step.split is not True and step.what != "R":
                found[step.stage] += 1
        for stage in reversed(range(len(found) - 1)):
            found[stage] += found[stage + 1] + 1
        return found

    def pattern(self, answer: PatternSolution) -> Pattern:
        """Return the pattern of an answer, with starts in [0, T) and index shifts."""
        operations: list[Operation] = []
        transfers: list[Transfer] = []
        stages = answer.stages or self.problem.stages
        for step, starts in zip(self.path, answer.starts, strict=True):
            if step.what == "R" and not stages[step.stage].recompute:
                continue
            for micro_batch, begin in enumerate(starts):
                start, shift = place_in_period(begin, micro_batch, answer.k, answer.period_ns)
                match step.what:
                    case "activation" | "gradient" as tensor:
                        transfers.append(
                            Transfer(tensor=tensor, stage=step.stage, shift=shift, start_ns=start)
                        )
                    case "F" | "B" | "I" | "W" | "R" as kind:
                        operations.append(
                            Operation(kind=kind, stage=step.stage, shift=shift, start_ns=start)
                        )
        return Pattern(
            k=answer.k,
            period_total_ns=answer.period_ns,
            operations=tuple(operations),
            transfers=tuple(transfers),
        )


def covers_grain(problem: Problem) -> bool:
    """Whether layers apart, if they may be, can do all that several in one stage can.

    Not if a stage saves what its input needs, and not if a run of layers is recomputed at once.
    """
    if problem.scope.grain == "stage":
        return True
    saves = any(layer.saved_input_bytes for layer in problem.chain.layers)
    return not saves and not problem.scope.recompute
