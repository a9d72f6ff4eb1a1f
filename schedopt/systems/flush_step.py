"""A step that ends in a flush, of stages with replicas and shards of their own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from schedopt.errors import InputError
from schedopt.plan import Kind, Plan, Transfer
from schedopt.stage import Stage
from schedopt.systems.collectives import AT_ONCE, apply_gradients, exchange_copies, hop
from schedopt.systems.config import SystemConfig, require_time
from schedopt.systems.steady_state import Name

Turn = tuple[Kind, int, int]
"""Kind, stage and micro-batch of an operation."""

_TIMES: Final[dict[Kind, str]] = {
    "F": "forward_ns",
    "R": "forward_ns",
    "I": "backward_input_ns",
}
"""What an operation takes that other readers of weights come behind."""


_NONE: Final[Mapping[int, int]] = MappingProxyType({})


def flush_step(
    config: SystemConfig,
    stages: Sequence[Stage],
    turns: Iterable[Turn],
    *,
    split: bool = False,
    ahead: Mapping[int, int] = _NONE,
) -> Plan:
    """Return a step of turns, after which each stage applies the gradients of its replicas.

    Each stage has GPUs, recompute and a shard level of its own. Micro-batch i runs on replica i mod
    R, and the replicas add their gradients up behind their last backwards, in rings, after those of
    copies of tied weights in other stages (`exchange_copies`). Where nothing is sharded all of them
    get the sum, and all update. Otherwise each updates what is at home there; an all-gather then
    takes the weights to the others, but where parameters are sharded: there they come from home for
    each operation. A GPU that begins an operation begins to fetch the weights of the next one, and
    not further ahead, so that it has copies for two.

    Gradients that are kept at home only may go there straight behind each backward. Then a GPU has
    at most those of the last two operations: the next one waits until others are at home. Updates
    of these stages come behind all turns of their GPU.

    Where the micro-batches are no multiple of R, the next step begins on another GPU of the stage:
    they must be alike, and so must their links, or the plan is not valid.

    In a step without shards updates come behind all turns. In one with shards they come in between
    as soon as they can, so that the weights are on their way.

    Parameters
    ----------
    config : SystemConfig
    stages : sequence of Stage
    turns : iterable of Turn
        Each F and B (or I and W) of each stage and micro-batch once. A GPU runs its own in this
        order. Stages that recompute do so right before a backward, or where a turn R says so.
    split : bool
        Whether the turns have I and W instead of B.
    ahead : mapping of int to int
        The stages, by number, whose gradients go home behind each backward. Of these 1 begins to
        fetch weights with the operation before, as above; 0 when that has ended and its gradients
        are at home, so that only one operation has copies and gradients at a time.

    Raises
    ------
    InputError
        If a stage names a GPU twice, or has more GPUs than there are micro-batches; if these are no
        multiple of its GPUs, so that the next step begins on another of them, and the stage shards
        or one of them has another stage; if the chain lacks what a stage with replicas or shards
        needs; or if operations and the fetching of weights take no time, so that nothing tells
        apart what comes for which.
    """
    _refuse(config, stages)
    step = _FlushStep(config, stages, ahead)
    for kind, stage, i in with_recompute(stages, turns):
        step.run(kind, stage, i)
    step.finish()
    return config.flushed(step.scheduler, split=split)


def with_recompute(stages: Sequence[Stage], turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield turns, with the R of stages that recompute right before a backward if none says so."""
    told = [*turns]
    recomputed = {(stage, i) for kind, stage, i in told if kind == "R"}
    for kind, stage, i in told:
        if kind in ("B", "I") and stages[stage].recompute and (stage, i) not in recomputed:
            yield "R", stage, i
        yield kind, stage, i


def _refuse(config: SystemConfig, stages: Sequence[Stage]) -> None:
    named = Counter(gpu for stage in stages for gpu in stage.gpus)
    m = config.microbatches
    for number, stage in enumerate(stages):
        replicas = len(stage.gpus)
        if len(set(stage.gpus)) < replicas:
            raise InputError(
                f"stage {number} names a GPU twice, and each adds its gradients up once",
                field=f"stages[{number}].gpus",
                way_out="Name each GPU of a stage once",
            )
        if m < replicas:
            raise InputError(
                f"stage {number} has {replicas} GPUs, and there is no micro-batch for each",
                field="microbatches",
                way_out=f"Use {replicas} micro-batches or more, or fewer GPUs",
            )
        turning = stage.shard != "none" or any(named[gpu] > 1 for gpu in stage.gpus)
        if m % replicas and turning:
            below = m // replicas * replicas
            why = "shares a GPU with another stage" if stage.shard == "none" else "is sharded"
            raise InputError(
                f"{m} is no multiple of {replicas}, the GPUs of stage {number}, which {why}: the "
                f"next step would begin on another one",
                field="microbatches",
                way_out=f"Use {below} or {below + replicas} micro-batches",
            )


class _FlushStep:
    """The turns of each GPU, behind what they wait for."""

    def __init__(
        self, config: SystemConfig, stages: Sequence[Stage], ahead: Mapping[int, int]
    ) -> None:
        several = any(len(stage.gpus) > 1 or stage.shard != "none" for stage in stages)
        self.stages, self.ahead = stages, ahead
        self.in_order = all(stage.shard == "none" for stage in stages)
        rule = config.flush_rule(replicated=several)
        self.scheduler = config.scheduler(rule, [*stages], ordered=self.in_order)
        self.ran: dict[int, list[Name]] = defaultdict(list)
        """What a GPU runs, in order."""
        self.awaited: dict[int, list[Name | Transfer]] = defaultdict(list)
        """What the last of these waits for in addition to the one before."""
        self.sent_home: dict[int, list[list[Transfer]]] = defaultdict(list)
        """What takes gradients home behind each operation that a GPU runs."""
        self.gone_home: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        """The same by stage and the replica that is home."""
        self.last: dict[tuple[int, int], Name] = {}
        """The last operation of each stage on a GPU."""
        named = Counter(gpu for stage in stages for gpu in stage.gpus)
        self.held_up = {
            gpu
            for number, stage in enumerate(stages)
            for gpu in stage.gpus
            if named[gpu] > 1 and number not in ahead
        }
        """GPUs on which an update of another stage may hold up an operation."""
        self.together = config.chain.together
        """How many replicas run an operation together, each of which may hold it up."""

    def run(self, kind: Kind, stage: int, i: int) -> None:
        """Add an operation behind the one before it on its GPU and behind its weights."""
        gpu = self.stages[stage].gpu(i)
        if self.in_order:
            self.scheduler.run(kind, stage, i)
        else:
            came: list[Name | Transfer] = []
            if self.stages[stage].shard == "parameter":
                came = [*self.fetch(kind, stage, i)]
            came += self.sent_before(gpu, 1 + self.ahead.get(stage, 1))
            after = [*self.ran[gpu][-1:], *came]
            self.scheduler.run(kind, stage, i, after=after, priority=1)
            self.awaited[gpu] = [*came, *self.arrivals(kind, stage, i)]
            self.sent_home[gpu].append(self.take_home(kind, stage, i))
        self.ran[gpu].append((kind, stage, i))
        self.last[stage, gpu] = (kind, stage, i)

    def sent_before(self, gpu: int, back: int) -> list[Transfer]:
        """Return what takes gradients home of an operation so far back: 1 is the last one."""
        sent = self.sent_home[gpu]
        return sent[-back] if len(sent) >= back else []

    def take_home(self, kind: Kind, stage: int, i: int) -> list[Transfer]:
        """Send what a backward has added to the gradients straight home; return what does."""
        found: list[Transfer] = []
        if stage not in self.ahead or kind not in ("B", "W"):
            return found
        own, replicas = self.stages[stage], len(self.stages[stage].gpus)
        for chunk in range(replicas):
            at_home = own.home(stage, chunk, i % replicas)
            if target := (at_home - i) % replicas:
                item = hop("weight_gradient", stage, i, (0, target), (chunk, replicas), "reduce")
                self.scheduler.send(item, after=[(kind, stage, i)])
                self.gone_home[stage, at_home].append(item)
                found.append(item)
        return found

    def arrivals(self, kind: Kind, stage: int, i: int) -> list[Name]:
        """Return what comes to an operation from the stage before or behind it."""
        near = stage - 1 if kind == "F" else stage + 1
        if kind not in ("F", "B", "I") or not 0 <= near < len(self.stages):
            return []
        if self.stages[near].gpu(i) == self.stages[stage].gpu(i):
            return [(kind, near, i)]
        return [("activation", near, i) if kind == "F" else ("gradient", stage, i)]

    def fetch(self, kind: Kind, stage: int, i: int) -> list[Transfer]:
        """Add the transfers of the weights that an operation reads, from home.

        They come for the operation that starts next in that stage, so those for another one than F
        must not be there before the one before has started.
        """
        one = self.stages[stage]
        gpu, replicas = one.gpu(i), len(one.gpus)
        kinds = self._readers(kind, stage)
        before = self.ran[gpu][-1:]
        follows = bool(before) and before[0][1:] == (stage, i)
        found = []
        for chunk in range(replicas):
            source = (one.home(stage, chunk, i % replicas) - i) % replicas
            if not source:
                continue
            part = (chunk, replicas)
            item = hop("weights", stage, i, (source, 0), part, reading=len(kinds))
            at_once = not self.scheduler.length_ns(item)
            if at_once and kinds:
                layers = one.recomputed_layers if kinds[-1] == "R" else one.layer_range
                require_time(self.scheduler, layers, _TIMES[kinds[-1]], AT_ONCE)
            after: list[Name | Transfer] = [*self.ran[gpu][-2:-1], *self.sent_before(gpu, 3)]
            if self.ahead.get(stage) == 0:
                after = [*before, *self.sent_before(gpu, 1)]
            elif follows and (at_once or gpu in self.held_up or self.together > 1):
                after = [*before]
            elif follows:
                after += self.awaited[gpu]
            found.append(self.scheduler.send(item, after=after))
        return found

    def _readers(self, kind: Kind, stage: int) -> list[Kind]:
        """Return what reads the weights of a stage before an operation of a micro-batch."""
        order: list[Kind] = ["F", "R", "W" if kind == "W" else kind]
        if kind == "W":
            order.insert(2, "I")
        if not self.stages[stage].recompute:
            order.remove("R")
        return order[: order.index(kind)]

    def finish(self) -> None:
        """Add what follows the last backwards of each stage."""
        came = exchange_copies(self.scheduler, self.last)
        for number in reversed(range(len(self.stages))):
            gpus = self.stages[number].gpus
            whole = [self.last[number, gpu] for gpu in gpus]
            gone_home: list[list[Name | Transfer]] | None = None
            if number in self.ahead:
                gone_home = [
                    [*self.ran[gpu][-1:], *self.gone_home[number, replica]]
                    for replica, gpu in enumerate(gpus)
                ]
            of_copies = [came.get((number, gpu), []) for gpu in gpus]
            apply_gradients(self.scheduler, number, whole, gone_home, of_copies)
