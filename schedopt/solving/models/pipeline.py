"""What a micro-batch does on a given allocation, and what it stashes on its path.

Bounds on useful micro-batches in flight: fix all start times and only choose which micro-batch each
operation runs. From the forward of the last stage outwards, let each backward, and each W, take the
earliest run that comes in time, and each forward the latest. No stage keeps more than before.
Between two tasks that follow one another at most one micro-batch waits at some instant of each
period, or there would be an earlier run, and k more come before it is so again: never more than
k + 1. A recompute takes the latest run before its backward, and the forward the latest before
both; in the last stage recompute and backward take the earliest behind the forward.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from schedopt.account.timeline import layer_ns
from schedopt.bounds.recomputation import held_bytes, input_bytes, keeps_something
from schedopt.chain import Layer
from schedopt.plan import Kind, Operation, Pattern, Transfer, place_in_period
from schedopt.problem import Problem
from schedopt.scope import MemoryReading
from schedopt.solving.models.tasks import PatternSolution, Stash, Task, round_trip
from schedopt.transfer import Tensor


class AllocatedPipeline:
    """The tasks of a micro-batch on a given allocation, and what it stashes.

    Parameters
    ----------
    problem : Problem
        With stages, each on one GPU.
    free : bool
        Whether each stage may recompute any of its layers, and not what it says.

    Attributes
    ----------
    path : list of Task
        Forwards with transfers, then backwards.
    stashes : list of Stash
    usable : dict of int to int
        Bytes that each GPU has next to weights.
    spare : dict of int to int
        Bytes that each GPU has next to weights and the largest workspace that is always taken.
    """

    def __init__(self, problem: Problem, *, free: bool = False) -> None:
        self.problem, self.free = problem, free
        self.path = round_trip(
            len(problem.stages),
            self._operation,
            self._transfer,
            recomputes=self._may_recompute,
            split_backward=problem.scope.split_backward,
        )
        self.usable = self._usable()
        self.spare = self._spare()
        self._task_of = {task.key: task for task in self.path}
        self._exact = self._exact_peaks()
        self._hops, self._along = self._hops_through(), self._held_along()
        self.stashes = [
            stash for stage in range(len(problem.stages)) for stash in self._stashes_of(stage)
        ]

    @property
    def load_ns(self) -> int:
        """The longest time that a resource works for a micro-batch."""
        work: dict[tuple[object, ...], int] = defaultdict(int)
        backward: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for task in self.path:
            if task.split is None:
                for resource in task.resources:
                    work[resource] += task.length_ns
            else:
                backward[task.stage][task.split] += task.length_ns
        for stage, choices in backward.items():
            work["gpu", self.problem.stages[stage].gpus[0]] += min(choices)
        return max(work.values())

    @property
    def has_recompute(self) -> bool:
        """Whether a stage recomputes, or may."""
        return any(task.kind == "R" for task in self.path)

    @property
    def whole_ns(self) -> int:
        """How long a micro-batch takes on its own, its backwards whole, with all recompute."""
        whole = sum(task.length_ns for task in self.path if not task.split)
        return whole + (
            sum(task.length_ns for task in self.path if task.kind == "F") if self.free else 0
        )

    def most_in_flight(self, k: int, *, flush: bool = False) -> list[int]:
        """Return how many micro-batches each stash may hold.

        A stage has no more than the next one, and what may be between the two.
        """
        most = [stash.most_in_flight(k, flush=flush) for stash in self.stashes]
        if flush:
            return most
        through: dict[int, list[int]] = defaultdict(list)
        for number, stash in enumerate(self.stashes):
            if stash.enter == "F" and stash.leave != "W":
                through[stash.stage].append(number)
        for stage in reversed(range(len(through) - 1)):
            behind = max(most[number] for number in through[stage + 1])
            useful = behind + (self._hops[stage] - self._hops[stage + 1]) * (k + 1)
            for number in through[stage]:
                most[number] = min(most[number], useful)
        return most

    def lacking(self) -> tuple[int, int]:
        """Return the GPU that lacks the most with one micro-batch in flight, and the bytes."""
        short = {gpu: -spare for gpu, spare in self.spare.items()}
        for stash in self.stashes:
            if not stash.split:
                short[stash.gpu] += stash.each_bytes
        worst = max(short, key=lambda gpu: short[gpu])
        return worst, short[worst]

    def _may_recompute(self, index: int) -> bool:
        return self.free or bool(self.problem.stages[index].recompute)

    def _layers(self, index: int) -> Sequence[Layer]:
        stage = self.problem.stages[index]
        return self.problem.chain.layers[stage.first : stage.last + 1]

    def _recomputed(self, index: int) -> list[Layer]:
        recomputed = self.problem.stages[index].recomputed_layers
        return [self.problem.chain.layers[layer] for layer in sorted(recomputed)]

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
            Stage, whether it is split, and the bytes that its GPU then has next to weights.
        """
        return [
            (stage, split, self.usable[gpu] - size)
            for stage, sizes in self._workspaces()
            for split, size in zip((False, True), sizes, strict=True)
            if self.problem.stages[stage].gpus[0] == gpu and size > min(sizes)
        ]

    def workspace_bytes(self, task: Task) -> int:
        """Return what an operation takes for its length."""
        if task.length_ns == 0:
            return 0
        layers = self._layers(task.stage)
        if task.kind == "R":
            layers = self._recomputed(task.stage)
        return max(layer.workspace_bytes or 0 for layer in layers)

    def proven_reading(self) -> MemoryReading:
        """Return the reading of memory for which the order model is exact.

        Both are the same for a GPU that keeps one thing only.
        """
        on = Counter(stash.gpu for stash in self.stashes)
        exact = all(
            self.exact_peak(gpu) or (count == 1 and not self.free) for gpu, count in on.items()
        )
        return "peak" if exact else "sum"

    def exact_peak(self, gpu: int) -> bool:
        """Whether the order of a GPU's operations says what lies there at the worst, exactly.

        In the reading peak, unless both what begins to keep something and what ends it take no
        time, and may come and go at one instant. Then the reading sum is taken, which is never
        less.
        """
        return gpu in self._exact

    def _exact_peaks(self) -> set[int]:
        if self.problem.scope.memory == "sum":
            return set()
        instant: dict[int, set[bool]] = defaultdict(set)
        for task in self.path:
            if self._may_take_no_time(task) and self._keeps_something(task.stage):
                gpu = self.problem.stages[task.stage].gpus[0]
                instant[gpu] |= self._comes_and_goes(task)
        return {gpu for gpu in self.usable if len(instant[gpu]) < 2}

    def _may_take_no_time(self, task: Task) -> bool:
        if task.kind == "R" and self.free:
            return any(layer.forward_ns == 0 for layer in self._layers(task.stage))
        return task.length_ns == 0

    def _keeps_something(self, index: int) -> bool:
        chain, again = self.problem.chain, self._may_recompute(index)
        layers = self.problem.stages[index].layer_range
        return any(keeps_something(chain, number, again=again) for number in layers)

    def _comes_and_goes(self, task: Task) -> set[bool]:
        """Return whether something comes with a task (True), and whether something goes (False)."""
        match task.kind:
            case "F" | "R":
                return {True}
            case "B" | "W":
                return {False}
            case "I":
                comes = any(layer.saved_weight_bytes for layer in self._layers(task.stage))
                return {True, False} if comes else {False}
            case _:
                return set()

    def _stashes_of(self, index: int) -> Iterator[Stash]:
        stage = self.problem.stages[index]
        numbers, again = stage.layer_range, self._may_recompute(index)
        split = False if self.problem.scope.split_backward else None
        whole = held_bytes(self.problem.chain, numbers, stage.recompute)
        yield self._stash(
            index, "F", "B", self._least_held(index) if self.free else whole["F", "B"], split=split
        )
        if again:
            yield self._stash(index, "R", "B", 0 if self.free else whole["R", "B"], split=split)
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
                yield self._stash(index, enter, leave, halves[enter, leave], split=True)
        if again:
            yield self._stash(index, "R", "I", halves["R", "I"], split=True)
            if ("R", "W") in may_be:
                yield self._stash(index, "R", "W", halves["R", "W"], split=True)

    def _stash(
        self, index: int, enter: Kind, leave: Kind, each: int, *, split: bool | None = None
    ) -> Stash:
        gpu = self.problem.stages[index].gpus[0]
        enters, leaves = self._task_of[enter, index], self._task_of[leave, index]
        room, along = self.spare[gpu], each
        if self.exact_peak(gpu):
            # The most are there as one enters, and still as the next one to leave starts that.
            room = self.usable[gpu] - max(map(self.workspace_bytes, (enters, leaves)))
        if leave != "W" and (enters.length_ns or leaves.length_ns):
            along += self._along[index] + (self._held_through(index) if enter == "R" else 0)
        fit = max(1, room // along) if along else None
        through = max(self._hops[index], 2 if self._may_recompute(index) else 1)
        hops = {"F": through, "R": 1, "I": 0}[enter] + (leave == "W")
        return Stash(index, gpu, enter, leave, each, fit, hops, split)

    def _held_along(self) -> list[int]:
        """Return what a micro-batch keeps on a stage's GPU for the stages before it, bytes.

        The least, from the forward of the stage to its backward: by then it has begun theirs, and
        has not ended their backwards. W may come behind all of these. What stays for no time may
        be there when that has left already.
        """
        before: dict[int, int] = defaultdict(int)
        along: list[int] = []
        for index, stage in enumerate(self.problem.stages):
            along.append(before[stage.gpus[0]])
            before[stage.gpus[0]] += self._held_through(index)
        return along

    def _held_through(self, index: int) -> int:
        """Return the least that a micro-batch keeps from the forward to the backward of a stage."""
        stage, chain = self.problem.stages[index], self.problem.chain
        if self.free:
            return self._least_held(index)
        whole = held_bytes(chain, stage.layer_range, stage.recompute)["F", "B"]
        if not self.problem.scope.split_backward:
            return whole
        halves = held_bytes(chain, stage.layer_range, stage.recompute, split=True)
        return min(whole, halves["F", "I"] + halves["F", "W"])

    def _least_held(self, index: int) -> int:
        """Return the least that a stage free to recompute keeps from its forward, bytes."""
        chain, first = self.problem.chain, self.problem.stages[index].first
        layer = chain.layers[first]
        return min(layer.saved + (layer.saved_input_bytes or 0), input_bytes(chain, first))

    def _hops_through(self) -> list[int]:
        """Return the tasks from the forward of each stage to its backward.

        Forwards and backwards of the stages behind with the transfers between them.
        """
        hops = [-1] * len(self.problem.stages)
        for task in self.path:
            if task.split is not True and task.kind != "R":
                hops[task.stage] += 1
        for stage in reversed(range(len(hops) - 1)):
            hops[stage] += hops[stage + 1] + 1
        return hops

    def pattern(self, solution: PatternSolution) -> Pattern:
        """Return the pattern of a solution, with starts in [0, T) and index shifts."""
        operations: list[Operation] = []
        transfers: list[Transfer] = []
        stages = solution.stages or self.problem.stages
        for task, starts in zip(self.path, solution.starts, strict=True):
            if task.kind == "R" and not stages[task.stage].recompute:
                continue
            for micro_batch, begin in enumerate(starts):
                start, shift = place_in_period(begin, micro_batch, solution.k, solution.period_ns)
                match task.kind:
                    case "activation" | "gradient" as tensor:
                        transfers.append(
                            Transfer(tensor=tensor, stage=task.stage, shift=shift, start_ns=start)
                        )
                    case "F" | "B" | "I" | "W" | "R" as kind:
                        operations.append(
                            Operation(kind=kind, stage=task.stage, shift=shift, start_ns=start)
                        )
        return Pattern(
            k=solution.k,
            period_total_ns=solution.period_ns,
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
