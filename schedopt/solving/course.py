"""What a micro-batch does on a given allocation, and what it keeps on the way.

How many micro-batches in flight are of use: leave every operation where it is, and only choose
which micro-batch it runs. From the forward of the last stage outwards, let each backward, and each
W, take the earliest run that comes in time, and each forward the latest. No stage keeps more than
before. Between two steps that follow one another at most one micro-batch waits at some instant of
each period, or there would be an earlier run, and k more come before it is so again: never more
than k + 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from schedopt.account.timeline import layer_ns
from schedopt.errors import InputError
from schedopt.plan import Kind, Operation, Pattern, Tensor, Transfer, place_in_period
from schedopt.platform import Resource
from schedopt.problem import Problem


@dataclass(frozen=True)
class Step:
    """An operation or a transfer on the way of a micro-batch.

    Parameters
    ----------
    what : Kind or Tensor
    stage : int
    length_ns : int
    resource : tuple
        What it occupies: a GPU or a link.
    split : bool or None
        Whether it is there only where the stage's backward is split (I, W), or only where it is
        whole (B). None: always.
    """

    what: Kind | Tensor
    stage: int
    length_ns: int
    resource: tuple[object, ...]
    split: bool | None = None


@dataclass(frozen=True)
class Kept:
    """Bytes that a stage keeps for each micro-batch between two of its operations.

    Parameters
    ----------
    stage, gpu : int
    enter, leave : Kind
        From the start of the first to the end of the second.
    each_bytes : int
    fit : int or None
        Micro-batches that the memory holds, at least 1; None: any number.
    links : int
        Steps from the first operation to the second.
    split : bool or None
        As in `Step`.
    """

    stage: int
    gpu: int
    enter: Kind
    leave: Kind
    each_bytes: int
    fit: int | None
    links: int
    split: bool | None = None

    def most(self, k: int, *, flush: bool = False) -> int:
        """Return how many micro-batches may be in flight, as far as they fit and are of use."""
        useful = k if flush else self.links * (k + 1)
        return useful if self.fit is None else min(self.fit, useful)


@dataclass(frozen=True)
class Answer:
    """A pattern: the period and the start of each step of each micro-batch, ns.

    A step that is not there has no starts; without steps there is no pattern up to the period.
    """

    k: int
    period_ns: int
    starts: tuple[tuple[int, ...], ...]


class Course:
    """What a micro-batch does on a given allocation, and what it keeps on the way.

    Parameters
    ----------
    problem : Problem
        With stages, each on one GPU.

    Attributes
    ----------
    way : list of Step
        Forwards with transfers, then backwards.
    kept : list of Kept
    spare : dict of int to int
        Bytes that each GPU has beside weights and the largest workspace.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.way = list(self._steps())
        self.spare = self._spare()
        self.kept = [one for stage in range(len(problem.stages)) for one in self._keeps(stage)]

    @property
    def load_ns(self) -> int:
        """The longest time that a resource works for a micro-batch."""
        work: dict[tuple[object, ...], int] = defaultdict(int)
        backward: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for step in self.way:
            if step.split is None:
                work[step.resource] += step.length_ns
            else:
                backward[step.stage][step.split] += step.length_ns
        for stage, choices in backward.items():
            work["gpu", self.problem.stages[stage].gpus[0]] += min(choices)
        return max(work.values())

    @property
    def whole_ns(self) -> int:
        """How long a micro-batch takes on its own, its backwards whole."""
        return sum(step.length_ns for step in self.way if not step.split)

    def lacking(self) -> tuple[int, int]:
        """Return the GPU that lacks the most with one micro-batch in flight, and the bytes."""
        short = {gpu: -spare for gpu, spare in self.spare.items()}
        for one in self.kept:
            if not one.split:
                short[one.gpu] += one.each_bytes
        worst = max(short, key=lambda gpu: short[gpu])
        return worst, short[worst]

    def _steps(self) -> Iterator[Step]:
        count = len(self.problem.stages)
        for stage in range(count):
            yield self._operation("F", stage)
            if stage < count - 1:
                yield from self._transfer("activation", stage, stage, stage + 1)
        for stage in reversed(range(count)):
            if self.problem.scope.split_backward:
                yield self._operation("B", stage, split=False)
                yield self._operation("I", stage, split=True)
                yield self._operation("W", stage, split=True)
            else:
                yield self._operation("B", stage)
            if stage > 0:
                yield from self._transfer("gradient", stage - 1, stage, stage - 1)

    def _operation(self, kind: Kind, index: int, *, split: bool | None = None) -> Step:
        stage = self.problem.stages[index]
        gpu = self.problem.platform.gpus[stage.gpus[0]]
        layers = self.problem.chain.layers[stage.first : stage.last + 1]
        length = sum(gpu.duration_ns(layer_ns(layer, kind)) for layer in layers)
        return Step(kind, index, length, ("gpu", stage.gpus[0]), split)

    def _transfer(self, tensor: Tensor, index: int, source: int, target: int) -> Iterator[Step]:
        """Yield the transfer between two stages, if they lie on GPUs with a link between them."""
        stages, platform = self.problem.stages, self.problem.platform
        ends = stages[source].gpus[0], stages[target].gpus[0]
        route: tuple[Resource, ...] = platform.route(*ends)
        if route:
            count = self.problem.chain.layers[stages[index].last].activation_bytes
            yield Step(tensor, index, platform.transfer_ns(count, *ends), route[0])

    def _spare(self) -> dict[int, int]:
        spare: dict[int, int] = {}
        workspaces: dict[int, int] = defaultdict(int)
        for stage in self.problem.stages:
            gpu = stage.gpus[0]
            layers = self.problem.chain.layers[stage.first : stage.last + 1]
            left = spare.get(gpu, self.problem.platform.gpus[gpu].usable_bytes)
            spare[gpu] = left - sum(layer.weight_bytes for layer in layers)
            if any(layer.longest_ns for layer in layers):
                most = max(layer.workspace_bytes or 0 for layer in layers)
                workspaces[gpu] = max(workspaces[gpu], most)
        return {gpu: left - workspaces[gpu] for gpu, left in spare.items()}

    def _keeps(self, index: int) -> Iterator[Kept]:
        stage = self.problem.stages[index]
        layers = self.problem.chain.layers[stage.first : stage.last + 1]
        received = layers[0].saved_input_bytes or 0
        saved = sum(layer.saved for layer in layers) + received
        if not self.problem.scope.split_backward:
            yield self._kept(index, "F", "B", saved)
            return
        yield self._kept(index, "F", "B", saved, split=False)
        to_the_end = [layer for layer in layers if layer.saved_weight_bytes is None]
        late = sum(layer.saved for layer in to_the_end)
        late += received if layers[0].saved_weight_bytes is None else 0
        half = sum(layer.saved_weight_bytes or 0 for layer in layers)
        # What keeps nothing needs no count where another one covers its time.
        if saved > late or not late:
            yield self._kept(index, "F", "I", saved - late, split=True)
        if late:
            yield self._kept(index, "F", "W", late, split=True)
        if half or not late:
            yield self._kept(index, "I", "W", half, split=True)

    def _kept(
        self, index: int, enter: Kind, leave: Kind, each: int, *, split: bool | None = None
    ) -> Kept:
        gpu = self.problem.stages[index].gpus[0]
        fit = max(1, self.spare[gpu] // each) if each else None
        # Forwards and backwards of the stages behind, and the transfers between them.
        behind = [step for step in self.way if step.split is not True and step.stage >= index]
        through = sum(step.what != "gradient" or step.stage >= index for step in behind) - 1
        links = {("F", "B"): through, ("F", "I"): through, ("F", "W"): through + 1}
        return Kept(index, gpu, enter, leave, each, fit, links.get((enter, leave), 1), split)

    def pattern(self, answer: Answer) -> Pattern:
        """Return the pattern of an answer, with starts in [0, T) and index shifts."""
        operations: list[Operation] = []
        transfers: list[Transfer] = []
        for step, starts in zip(self.way, answer.starts, strict=True):
            for micro_batch, begin in enumerate(starts):
                start, shift = place_in_period(begin, micro_batch, answer.k, answer.period_ns)
                match step.what:
                    case "activation" | "gradient" as tensor:
                        transfers.append(
                            Transfer(tensor=tensor, stage=step.stage, shift=shift, start_ns=start)
                        )
                    case "F" | "B" | "I" | "W" as kind:
                        operations.append(
                            Operation(kind=kind, stage=step.stage, shift=shift, start_ns=start)
                        )
        return Pattern(
            k=answer.k,
            period_total_ns=answer.period_ns,
            operations=tuple(operations),
            transfers=tuple(transfers),
        )


def require_stages(problem: Problem, solver: str) -> None:
    """Raise `InputError` unless every layer lies in one of the stages, each on one GPU."""
    if problem.scope.allocation != "fixed":
        raise InputError(
            f"{solver} needs an allocation",
            field="solver",
            way_out="Fix the stages of a plan (--fix), or use contiguous",
        )
    count = len(problem.platform.gpus)
    for stage in problem.stages:
        if len(stage.gpus) > 1:
            raise InputError(
                f"{solver} needs one GPU for each stage",
                field="stages",
                way_out="Give stages without replicas",
            )
        if not 0 <= stage.gpus[0] < count:
            raise InputError(
                f"there is no GPU {stage.gpus[0]}, but {count} from 0 to {count - 1}",
                field="stages",
                way_out="Give more GPUs, or stages for these",
            )
    layers = [layer for stage in problem.stages for layer in range(stage.first, stage.last + 1)]
    if layers != list(range(len(problem.chain.layers))):
        raise InputError(
            f"the stages do not hold each of {len(problem.chain.layers)} layers once and in order",
            field="stages",
            way_out="Start each stage behind the last layer of the one before",
        )
