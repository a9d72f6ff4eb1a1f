"""Where a rank makes a version of weights in a step, and which version each action reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby

from schedopt.account.shard_owners import ShardOwners
from schedopt.actions.action import Action, Share
from schedopt.errors import InputError
from schedopt.plan import Plan, Transfer
from schedopt.rule import Rule
from schedopt.simulation import Event, Simulation
from schedopt.tied_weights import exchanging_stages

Placed = tuple[int, Action]
"""Rank and action."""
_Moment = tuple[int, int]
"""End of an event, ns, and its number."""
_START: _Moment = (0, -1)


def share_of(owners: ShardOwners, stage: int, gpu: int) -> Share | None:
    """Return the chunks of a stage that a GPU updates; None if these are all."""
    owned = owners.owned(stage, gpu)
    return None if len(owned) == owners.chunks[stage] else Share(owned, owners.chunks[stage])


def find_updates(
    step: Simulation, ranks: Mapping[int, int], owners: ShardOwners
) -> dict[int, list[Placed]]:
    """Return what makes versions and is not an operation, by the number of the event before.

    Where all weights of a mini-batch come, they are the next version when all chunks are there.
    Elsewhere, without an operation U, weights are updated when the last gradient of the mini-batch
    is there, and those of the mini-batches before. Of weights that are sharded the next version is
    there when what is at home is updated and the rest has come; of sharded parameters, when all
    homes have updated theirs.
    """
    every = step.plan.rule.update_every
    if every is None:
        return {}
    found = _Updates(step, ranks, owners, every)
    for stage in range(len(step.plan.stages)):
        found.add(stage)
    return found.after


class _Updates:
    """The updates of each stage, behind the events that they wait for."""

    def __init__(
        self, step: Simulation, ranks: Mapping[int, int], owners: ShardOwners, every: int
    ) -> None:
        self.plan, self.ranks, self.owners = step.plan, ranks, owners
        self.mini_batches, self.events = step.length // every, step.events
        self.after: dict[int, list[Placed]] = defaultdict(list)
        self.updated = _stages_with_updates(step.plan)
        self.last: dict[tuple[str, int, int, int | None, int], _Moment] = {}
        for number, event in enumerate(step.events):
            name = self._name(step, event)
            if name:
                chunk = None
                if isinstance(event.item, Transfer) and event.item.source_stage is None:
                    chunk = event.item.chunk
                for i in range(event.first, event.first + event.count):
                    key = name, event.item.stage, event.gpu, chunk, i // every
                    self.last[key] = max(self.last.get(key, _START), (event.end_ns, number))
        own = {key: moment for key, moment in self.last.items() if key[0] == "own"}
        for source, target in exchanging_stages(step.plan.chain, step.plan.stages):
            for (_, stage, gpu, _, mini_batch), moment in own.items():
                if stage == source and gpu in step.plan.stages[target].gpus:
                    key = "own", target, gpu, None, mini_batch
                    self.last[key] = max(self.last.get(key, _START), moment)

    def _name(self, step: Simulation, event: Event) -> str:
        """Return what an event brings to the weights of its stage; empty if nothing."""
        item = event.item
        if isinstance(item, Transfer):
            gathered = self.plan.stages[item.stage].shard == "parameter"
            if item.is_boundary or event.source == event.gpu:
                return ""
            return "" if gathered and item.tensor == "weights" else item.tensor
        if item.kind == "U":
            return "update"
        return "own" if item.kind == ("W" if step.has("W", item.stage) else "B") else ""

    def add(self, stage: int) -> None:
        """Add what makes the versions of a stage."""
        planned = self.plan.stages[stage]
        self.through: dict[tuple[int, int], _Moment] = defaultdict(lambda: _START)
        for mini_batch in range(self.mini_batches):
            gpus = dict.fromkeys(planned.gpus)
            made = {gpu: self._update(stage, gpu, mini_batch) for gpu in gpus}
            everywhere = max(made.values())
            for gpu in gpus:
                if self._takes_in(stage, gpu, mini_batch):
                    came = self._latest("weights", stage, gpu, mini_batch)
                    behind = everywhere if planned.shard == "parameter" else max(made[gpu], came)
                    self._put(gpu, (), behind, Action(stage, "BROADCAST_PARAM", mini_batch))

    def _update(self, stage: int, gpu: int, mini_batch: int) -> _Moment:
        """Add the updates of a mini-batch on a GPU; return when all are made."""
        share = share_of(self.owners, stage, gpu)
        if stage in self.updated:
            made = self.last.get(("update", stage, gpu, None, mini_batch), _START)
            if share is not None and made != _START:
                self._refuse_ahead(stage, gpu, mini_batch, self.events[made[1]].start_ns)
            return made
        update, chunks = Action(stage, "U", mini_batch), self.owners.owned(stage, gpu)
        if share is None:
            if self._takes_in(stage, gpu, mini_batch):
                return _START
            whole = max(self._whole(stage, gpu, mini_batch, chunk) for chunk in chunks)
            return self._put(gpu, chunks, whole, update)
        together: dict[_Moment, list[int]] = defaultdict(list)
        for chunk in share.chunks:
            together[self._whole(stage, gpu, mini_batch, chunk)].append(chunk)
        made = _START
        for whole, found in sorted(together.items()):
            part = replace(update, share=Share(tuple(found), share.of))
            made = max(made, self._put(gpu, found, whole, part))
        return made

    def _refuse_ahead(self, stage: int, gpu: int, mini_batch: int, instant: int) -> None:
        """Refuse to update chunks before the version before is whole, but of what is gathered."""
        gathered = self.plan.stages[stage].shard == "parameter"
        if not gathered and self.through[gpu, -1][0] > instant:
            raise InputError(
                f"GPU {gpu} updates stage {stage} for mini-batch {mini_batch} before it has all "
                f"weights of the one before",
                field=f"stages[{stage}].shard",
                way_out="Run a plan whose updates come one after the other",
            )

    def _takes_in(self, stage: int, gpu: int, mini_batch: int) -> bool:
        """Whether not all that a GPU has of a mini-batch's weights is updated there."""
        if self.plan.stages[stage].shard != "none":
            return share_of(self.owners, stage, gpu) is not None
        return self._latest("weights", stage, gpu, mini_batch) != _START

    def _whole(self, stage: int, gpu: int, mini_batch: int, chunk: int) -> _Moment:
        """Return when the last gradient of a chunk is there."""
        return max(
            self._latest("own", stage, gpu, mini_batch),
            *(
                self.last.get(("weight_gradient", stage, gpu, part, mini_batch), _START)
                for part in (chunk, None)
            ),
        )

    def _latest(self, name: str, stage: int, gpu: int, mini_batch: int) -> _Moment:
        """Return when the last of something is there, whole or in chunks."""
        chunks = (None, *range(self.owners.chunks[stage]))
        keys = ((name, stage, gpu, chunk, mini_batch) for chunk in chunks)
        return max(self.last.get(key, _START) for key in keys)

    def _put(self, gpu: int, chunks: Iterable[int], behind: _Moment, action: Action) -> _Moment:
        """Put an action behind an event, and behind those of the mini-batch before.

        Where a rank has weights whole, but updates chunks, these cannot be ahead of each other.
        """
        keys = [(gpu, chunk) for chunk in chunks] or [(gpu, -1)]
        if self.plan.stages[action.stage].shard != "parameter":
            keys = [(gpu, -1)]
            if action.share:
                self._refuse_ahead(action.stage, gpu, action.first, behind[0])
        moment = max(behind, *(self.through[key] for key in keys))
        self.through.update(dict.fromkeys(keys, moment))
        self.after[moment[1]].append((self.ranks[gpu], action))
        return moment


def _stages_with_updates(plan: Plan) -> set[int]:
    return {operation.stage for operation in plan.pattern.operations if operation.kind == "U"}


def when_needed(plan: Plan, order: Iterable[Placed]) -> Iterator[Placed]:
    """Yield rank and action, new versions that wait for other ranks right before they are needed.

    What the rank computes in other stages meanwhile does not wait.
    """
    updated = _stages_with_updates(plan)
    merging: set[tuple[int, int]] = set()
    waiting: dict[tuple[int, int], list[Placed]] = defaultdict(list)
    for rank, action in order:
        key = rank, action.stage
        if action.kind in ("REDUCE_GRAD", "ADD_COPY"):
            merging.add(key)
        merged = action.kind == "U" and key in merging and action.stage not in updated
        if merged or action.kind == "BROADCAST_PARAM":
            waiting[key].append((rank, action))
            continue
        if action.reads_weights or action.is_of_mini_batch or action.kind in ("SEND_V", "SEND_P"):
            yield from waiting.pop(key, ())
        yield rank, action
    for left in waiting.values():
        yield from left


def with_versions(rule: Rule, order: Iterable[Placed]) -> Iterator[Placed]:
    """Yield rank and action with the versions that are read, as many as an operation reads.

    What would read a version from before the step reads the one that the step starts from.
    """
    made: dict[tuple[int, int], int] = defaultdict(int)
    read: dict[tuple[str, int, int], int] = {}
    for rank, action in order:
        stage, kind = action.stage, action.kind
        if action.makes_version:
            made[stage, rank] += 1
        if not action.reads_weights:
            yield rank, action
            continue
        for i in action.micro_batches:
            read[kind, stage, i] = _version(rule, action, i, made[stage, rank], read)
        first = action.first
        for version, group in groupby(read[kind, stage, i] for i in action.micro_batches):
            count = len(list(group))
            yield rank, Action(stage, kind, first, count, version)
            first += count


def _version(
    rule: Rule, action: Action, i: int, newest: int, read: Mapping[tuple[str, int, int], int]
) -> int:
    """Return the version that an action reads for micro-batch i, after what was made and read."""
    stage = action.stage
    if action.kind == "F":
        delay = rule.forward_delay(i, stage)
        if delay is not None:
            return max(0, i // (rule.update_every or 1) - delay)
        return read["F", 0, i] if rule.forward_reads == "entry" and stage else newest
    if action.kind == "W":
        return read["I", stage, i]
    recomputed = rule.backward_reads == "recomputed"
    if rule.backward_reads == "live" or (action.kind == "R" and recomputed):
        return newest
    if recomputed and ("R", stage, i) in read:
        return read["R", stage, i]
    return read["F", stage, i]
