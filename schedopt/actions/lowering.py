"""From a plan to what each rank does in a step.

The actions follow the events of a simulated step: both ends of a transfer stand where it starts,
before the operations that start with it. So the earliest action that is not done can always go on,
there is no deadlock, and no transfer waits for an operation that does not concern it. What comes
from another replica is taken in where its transfer ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final, cast

from schedopt.account.timeline import transfer_bytes
from schedopt.actions.action import Action, ActionKind, Part
from schedopt.actions.lists import Actions
from schedopt.actions.validation import check_order
from schedopt.errors import InputError
from schedopt.plan import Operation, Plan, Tensor, Transfer
from schedopt.rule import Rule
from schedopt.simulation import Event, Simulation, simulate

_Placed = tuple[int, Action]
"""Rank and action."""
_Moment = tuple[int, int, int, int]
"""Start of an event, ns; what goes first at one instant; number of the event; place in it."""

_SENT: Final[Mapping[Tensor, str]] = {
    "activation": "F",
    "gradient": "B",
    "weight_gradient": "G",
    "weights": "V",
}
"""The letter behind ``SEND_`` and ``RECV_`` of what a transfer carries."""


def make_actions(plan: Plan, microbatches: int) -> Actions:
    """Return what each rank does to run a plan for some micro-batches, with a flush at the end.

    Rank r is the r-th GPU that has a stage. Under the rule *given* each stage is updated once, at
    the end.

    Parameters
    ----------
    plan : Plan
        Valid: `schedopt.check` finds nothing.
    microbatches : int
        A multiple of the micro-batches of one update.

    Raises
    ------
    InputError
        For a number of micro-batches that does not fit, and for a plan that is not run yet.
    """
    return actions_of(simulate(plan, microbatches))


def actions_of(step: Simulation) -> Actions:
    """Return what each rank does in a simulated step: see `make_actions`."""
    plan = step.plan
    _refuse(plan)
    order = [placed for _, placed in sorted(_Lowering(step).actions())]
    if plan.rule.is_given:
        ranks = gpu_ranks(plan)
        order += [(ranks[stage.gpus[0]], Action(s, "U", 0)) for s, stage in enumerate(plan.stages)]
    else:
        order = list(_with_versions(plan.rule, _when_needed(plan, order)))
    actions = Actions(tuple(order))
    check_order(actions.ranks, actions.order)
    return actions


def gpu_ranks(plan: Plan) -> dict[int, int]:
    """Return the rank of each GPU that has a stage."""
    used = sorted({gpu for stage in plan.stages for gpu in stage.gpus})
    return {gpu: rank for rank, gpu in enumerate(used)}


def sent_bytes(plan: Plan, send: Action) -> int:
    """Return what the transfer of one micro-batch carries, bytes."""
    (tensor,) = [tensor for tensor, letter in _SENT.items() if send.kind.endswith(letter)]
    more: dict[str, Any] = {}
    if send.part is not None:
        more = {"source": 0, "target": 1, "chunk": send.part.chunk, "chunks": send.part.chunks}
    stage = min(send.stage, send.other_end.stage)
    return transfer_bytes(plan, Transfer(tensor=tensor, stage=stage, shift=0, start_ns=0, **more))


def sending_end(transfer: Transfer, event: Event, ranks: Mapping[int, int]) -> Action:
    """Return what the source of a transfer does; `ranks` has the rank of each GPU."""
    assert event.source is not None
    kind = cast(ActionKind, f"SEND_{_SENT[transfer.tensor]}")
    if transfer.is_boundary:
        stage = transfer.stage + (transfer.tensor == "gradient")
        return Action(stage, kind, event.first, event.count)
    ends = ranks[event.source], ranks[event.gpu]
    part = Part(*ends, transfer.chunk, transfer.chunks, transfer.mode == "reduce")
    return Action(transfer.stage, kind, event.first, 1, None, part)


def _refuse(plan: Plan) -> None:
    """Refuse what cannot be run: shards, and replicas of which nothing says how they agree."""
    for number, stage in enumerate(plan.stages):
        if stage.shard != "none":
            raise InputError(
                f"{stage.shard} of stage {number} is sharded over replicas, which is not run yet",
                field=f"stages[{number}].shard",
                way_out="Run a plan whose stages shard none",
            )
    for number, transfer in enumerate(plan.pattern.transfers):
        if transfer.tensor not in _SENT:
            raise InputError(
                f"{transfer.tensor} is not sent yet where a plan is run",
                field=f"pattern.transfers[{number}].tensor",
                way_out="Run a plan in which each replica runs the whole backward of its own "
                "micro-batches",
            )
    for number, stage in enumerate(plan.stages):
        if plan.rule.is_given and len(set(stage.gpus)) > 1:
            raise InputError(
                f"stage {number} has replicas on GPUs {', '.join(map(str, stage.gpus))}, and "
                f"the rule says nothing of updates",
                field="rule.update_every",
                way_out="Give the micro-batches of one update, or each stage one GPU",
            )


def _stages_with_updates(plan: Plan) -> set[int]:
    return {operation.stage for operation in plan.pattern.operations if operation.kind == "U"}


class _Lowering:
    """The actions of the events of a step, with what orders them."""

    def __init__(self, step: Simulation) -> None:
        self.step, self.plan = step, step.plan
        self.ranks = gpu_ranks(step.plan)
        self.sent = {(t.tensor, t.stage) for t in step.plan.pattern.transfers}

    def actions(self) -> Iterator[tuple[_Moment, _Placed]]:
        """Yield rank and action, each with its moment."""
        events = self.step.events
        versions = self._versions_left_out()
        forwarded = {stage for tensor, stage in self.sent if tensor == "weights"}
        instants = {(event.gpu, event.start_ns) for event in events if not event.length_ns}
        for number, event in enumerate(events):
            item = event.item
            # What takes no time may be what another event of the instant needs.
            turn = 0 if not event.length_ns else 1 if isinstance(item, Transfer) else 2
            for place, placed in enumerate(self._own(event)):
                yield (event.start_ns, turn, number, place), placed
            behind = (*self._reductions(event), *self._free_transfers(event))
            for place, placed in enumerate(behind, start=2):
                yield (event.end_ns, 0, number, place), placed
            # Another rank waits for what is sent, and only operations of this one for the update,
            # unless the weights are sent.
            soon = (event.gpu, event.end_ns) in instants or item.stage in forwarded
            moment = (event.end_ns, 0, number) if soon else (event.end_ns, 2, -1)
            for place, placed in enumerate(versions.get(number, ()), start=len(events)):
                yield (*moment, place), placed

    def _own(self, event: Event) -> list[_Placed]:
        """Return an operation, or both ends of a transfer."""
        item = event.item
        if isinstance(item, Transfer):
            if event.source is None or event.source == event.gpu:
                return []
            send = sending_end(item, event, self.ranks)
            return [(self.ranks[event.source], send), (self.ranks[event.gpu], send.other_end)]
        action = Action(item.stage, item.kind, event.first, event.count)
        if item.kind == "U":
            action = Action(item.stage, "U", event.first // (self.plan.rule.update_every or 1))
        return [(self.ranks[event.gpu], action)]

    def _reductions(self, event: Event) -> list[_Placed]:
        """Return where the target of a gradient of weights takes it in."""
        if isinstance(event.item, Operation) or event.item.tensor != "weight_gradient":
            return []
        return [
            (rank, Action(end.stage, "REDUCE_GRAD", end.first, 1, None, end.part))
            for rank, end in self._own(event)
            if not end.is_send
        ]

    def _free_transfers(self, event: Event) -> Iterator[_Placed]:
        """Yield the transfers of what an operation made, where a plan leaves them out as free."""
        item = event.item
        if isinstance(item, Transfer) or item.kind not in ("F", "B", "I"):
            return
        forward = item.kind == "F"
        other = item.stage + (1 if forward else -1)
        sent: tuple[Tensor, int] = ("activation", item.stage) if forward else ("gradient", other)
        if sent in self.sent or not 0 <= other < len(self.plan.stages):
            return
        for micro_batch in range(event.first, event.first + event.count):
            target = self.plan.stages[other].gpu(micro_batch)
            if target != event.gpu:
                send = Action(item.stage, "SEND_F" if forward else "SEND_B", micro_batch)
                yield self.ranks[event.gpu], send
                yield self.ranks[target], send.other_end

    def _versions_left_out(self) -> dict[int, list[_Placed]]:
        """Return what makes versions and is not an operation, by the number of the event before.

        Where the weights of a mini-batch come, they are the next version when all chunks are
        there. Elsewhere, without an operation U, a stage is updated when the last gradient of the
        mini-batch is there, and those of the mini-batches before.
        """
        every = self.plan.rule.update_every
        if every is None:
            return {}
        updated = _stages_with_updates(self.plan)
        last: dict[tuple[int, int, int], tuple[bool, int, int]] = {}
        for number, event in enumerate(self.step.events):
            item, is_copy = event.item, False
            if isinstance(item, Transfer):
                if item.is_boundary or event.source == event.gpu:
                    continue
                is_copy = item.tensor == "weights"
            elif item.kind != ("W" if self.step.has("W", item.stage) else "B"):
                continue
            for micro_batch in range(event.first, event.first + event.count):
                key = item.stage, self.ranks[event.gpu], micro_batch // every
                # Of what makes a version, a copy that arrives counts before gradients.
                last[key] = max(last.get(key, (False, 0, -1)), (is_copy, event.end_ns, number))
        after: dict[int, list[_Placed]] = defaultdict(list)
        through: dict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, -1))
        for (stage, rank, mini_batch), (is_copy, end_ns, number) in sorted(last.items()):
            if stage in updated and not is_copy:
                continue
            through[stage, rank] = max(through[stage, rank], (end_ns, number))
            kind: ActionKind = "BROADCAST_PARAM" if is_copy else "U"
            after[through[stage, rank][1]].append((rank, Action(stage, kind, mini_batch)))
        return after


def _when_needed(plan: Plan, order: Iterable[_Placed]) -> Iterator[_Placed]:
    """Yield rank and action, new versions that wait for other ranks right before they are needed.

    What the rank computes in other stages meanwhile does not wait.
    """
    updated = _stages_with_updates(plan)
    merging: set[tuple[int, int]] = set()
    waiting: dict[tuple[int, int], list[_Placed]] = defaultdict(list)
    for rank, action in order:
        key = rank, action.stage
        if action.kind == "REDUCE_GRAD":
            merging.add(key)
        merged = action.kind == "U" and key in merging and action.stage not in updated
        if merged or action.kind == "BROADCAST_PARAM":
            waiting[key].append((rank, action))
            continue
        if action.reads_weights or action.makes_version or action.kind == "SEND_V":
            yield from waiting.pop(key, ())
        yield rank, action
    for left in waiting.values():
        yield from left


def _with_versions(rule: Rule, order: Iterable[_Placed]) -> Iterator[_Placed]:
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
