"""From a plan to what each rank does in a step.

The actions follow the events of a simulated step: both ends of a transfer stand where it starts,
before the operations that start with it. So the earliest action that is not done can always go on,
there is no deadlock, and no transfer waits for an operation that does not concern it. What comes
from another replica is taken in where its transfer ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from schedopt.account.gathering import Gather, find_gathers
from schedopt.account.reading import Reader
from schedopt.account.shard_owners import ShardOwners
from schedopt.account.timeline import transfer_bytes
from schedopt.actions.action import Action, ActionKind, Part
from schedopt.actions.lists import Actions
from schedopt.actions.updates import Placed, find_updates, share_of, when_needed, with_versions
from schedopt.actions.validation import check_order
from schedopt.errors import InputError
from schedopt.plan import Operation, Plan, Transfer
from schedopt.simulation import Event, Simulation, simulate
from schedopt.tied_weights import exchanging_stages
from schedopt.transfer import Tensor

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

    Rank r is the r-th GPU that has a stage, of a tensor group its first: the others do the same.
    Under the rule *given* each stage is updated once, at the end.

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
    _refuse_empty(plan)
    _refuse(plan)
    _refuse_at_once(step)
    order = [placed for _, placed in sorted(_Lowering(step).actions())]
    if plan.rule.is_given:
        order += _at_the_end(plan)
    else:
        order = list(with_versions(plan.rule, when_needed(plan, order)))
    actions = Actions(tuple(order))
    check_order(actions.ranks, actions.order)
    return actions


def gpu_ranks(plan: Plan) -> dict[int, int]:
    """Return the rank of each GPU that has a stage, of a tensor group the first."""
    used = sorted({gpu for stage in plan.stages for gpu in stage.gpus})
    return {gpu: rank for rank, gpu in enumerate(used)}


def process_gpus(plan: Plan) -> tuple[int, ...]:
    """Return the GPU of each process, ascending: all that have a stage, also of tensor groups."""
    return tuple(sorted({gpu for stage in plan.stages for gpu in stage.every_gpu}))


def sent_bytes(plan: Plan, send: Action) -> int:
    """Return what the transfer of one micro-batch carries, bytes."""
    more: dict[str, Any] = {}
    if send.part is not None:
        more = {"source": 0, "target": 1, "chunk": send.part.chunk, "chunks": send.part.chunks}
    stage = min(send.stage, send.other_end.stage)
    sent = "V" if send.is_gather else send.kind[-1]
    if send.part is not None and send.part.other_stage is not None:
        ends = (send.stage, send.part.other_stage)
        source, stage = ends if send.is_send else ends[::-1]
        sent, more = "G", more | {"source_stage": source, "mode": "reduce"}
    (tensor,) = [tensor for tensor, letter in _SENT.items() if letter == sent]
    return transfer_bytes(plan, Transfer(tensor=tensor, stage=stage, shift=0, start_ns=0, **more))


def sending_end(plan: Plan, event: Event, ranks: Mapping[int, int]) -> Action:
    """Return what the source of a transfer does; `ranks` has the rank of each GPU."""
    transfer = cast(Transfer, event.item)
    assert event.source is not None
    gathered = plan.stages[transfer.stage].shard == "parameter" and transfer.tensor == "weights"
    kind = cast(ActionKind, f"SEND_{'P' if gathered else _SENT[transfer.tensor]}")
    if transfer.is_boundary:
        stage = transfer.stage + (transfer.tensor == "gradient")
        return Action(stage, kind, event.first, event.count)
    ends = ranks[event.source], ranks[event.gpu]
    if transfer.source_stage is not None:
        part = Part(*ends, other_stage=transfer.stage)
        return Action(transfer.source_stage, "SEND_C", event.first, 1, None, part)
    part = Part(*ends, transfer.chunk, transfer.chunks, transfer.mode == "reduce")
    return Action(transfer.stage, kind, event.first, 1, None, part)


def _refuse_empty(plan: Plan) -> None:
    for number, stage in enumerate(plan.stages):
        if stage.is_empty:
            raise InputError(
                f"stage {number} has no layers, which only Megatron-LM runs",
                field=f"stages[{number}].layers",
                way_out="Export the plan for megatron, or solve for another engine",
            )


def _refuse(plan: Plan) -> None:
    """Refuse weight halves of other replicas, and replicas or copies that none makes agree."""
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
        if plan.expert_chunks(number):
            raise InputError(
                f"stage {number} has {len(stage.gpus)} replicas, some of which have the same "
                "experts, and nothing of these is sent yet where a plan is run",
                field=f"stages[{number}].gpus",
                way_out="Export the plan for megatron or torchtitan",
            )

    for number, _ in exchanging_stages(plan.chain, plan.stages):
        if plan.stages[number].shard in ("gradient", "parameter"):
            raise InputError(
                f"stage {number} has copies of tied weights, whose gradients are added up whole, "
                "and its own go home in parts",
                field=f"stages[{number}].shard",
                way_out="Share the optimizer state at most, or keep tied layers together",
            )


def _at_the_end(plan: Plan) -> Iterator[Placed]:
    """Yield the updates behind a flush, behind the gradients of copies in other stages."""
    ranks = gpu_ranks(plan)
    own = [ranks[stage.gpus[0]] for stage in plan.stages]
    for source, target in exchanging_stages(plan.chain, plan.stages):
        part = Part(own[source], own[target], other_stage=target)
        send = Action(source, "SEND_C", 0, 1, None, part)
        receive = send.other_end
        if own[source] != own[target]:
            yield from ((own[source], send), (own[target], receive))
        yield own[target], replace(receive, kind="ADD_COPY")
    yield from ((own[stage], Action(stage, "U", 0)) for stage in range(len(plan.stages)))


def _refuse_at_once(step: Simulation) -> None:
    """Refuse operations without length for which weights are gathered: their order is not known."""
    for operation, _, run in step.operations():
        stage = step.plan.stages[operation.stage]
        gathered = stage.shard == "parameter" and len(set(stage.gpus)) > 1
        if gathered and operation.kind != "U" and run.start_ns == run.end_ns:
            raise InputError(
                f"stage {operation.stage} gathers its weights for {operation.kind}, which takes no "
                f"time, so that nothing tells what comes first",
                field=f"stages[{operation.stage}].shard",
                way_out="Give its layers times, or shard the gradients at most",
            )


class _Lowering:
    """The actions of the events of a step, with what orders them."""

    def __init__(self, step: Simulation) -> None:
        self.step, self.plan = step, step.plan
        self.ranks = gpu_ranks(step.plan)
        self.owners = ShardOwners(step.plan)
        self.gathers = _index_gathers(step)
        self.sent = {(t.tensor, t.stage) for t in step.plan.pattern.transfers}
        self.copies = self._index_copies()

    def actions(self) -> Iterator[tuple[_Moment, Placed]]:
        """Yield rank and action, each with its moment."""
        events = self.step.events
        versions = find_updates(self.step, self.ranks, self.owners)
        forwarded = {stage for tensor, stage in self.sent if tensor == "weights"}
        instants = {(event.gpu, event.start_ns) for event in events if not event.length_ns}
        for number, event in enumerate(events):
            item = event.item
            # What takes no time may be what another event of the instant needs.
            turn = 0 if not event.length_ns else 1 if isinstance(item, Transfer) else 2
            for place, placed in enumerate(self._own(event)):
                yield (event.start_ns, turn, number, place), placed
            behind = (
                *self._reductions(event),
                *self._free_transfers(event),
                *self.copies.get(number, ()),
            )
            for place, placed in enumerate(behind, start=2):
                yield (event.end_ns, 0, number, place), placed
            # Another rank waits for what is sent, and only operations of this one for the update,
            # unless the weights are sent.
            soon = (event.gpu, event.end_ns) in instants or item.stage in forwarded
            moment = (event.end_ns, 0, number) if soon else (event.end_ns, 2, -1)
            for place, placed in enumerate(versions.get(number, ()), start=len(events)):
                yield (*moment, place), placed

    def _own(self, event: Event) -> list[Placed]:
        """Return an operation, or both ends of a transfer."""
        item = event.item
        if isinstance(item, Transfer):
            if event.source is None or event.source == event.gpu:
                return []
            send = sending_end(self.plan, event, self.ranks)
            part = cast(Part, send.part)
            sharded = self.plan.stages[item.stage].shard in ("gradient", "parameter")
            if send.kind == "SEND_G" and sharded:
                at_home = item.chunk in self.owners.owned(item.stage, event.source)
                send = replace(send, part=replace(part, is_taken=not at_home))
            if send.is_gather:
                gather = self.gathers[_of_event(event)].pop()
                version = max(0, gather.version)
                send = replace(send, version=version, part=replace(part, reader=gather.kind))
            return [(self.ranks[event.source], send), (self.ranks[event.gpu], send.other_end)]
        action = Action(item.stage, item.kind, event.first, event.count)
        if item.kind == "U":
            mini_batch = event.first // (self.plan.rule.update_every or 1)
            share = share_of(self.owners, item.stage, event.gpu)
            action = Action(item.stage, "U", mini_batch, share=share)
            if share is not None and not share.chunks:
                return []
        return [(self.ranks[event.gpu], action)]

    def _reductions(self, event: Event) -> list[Placed]:
        """Return where the target of a gradient of weights takes it in."""
        if isinstance(event.item, Operation) or event.item.tensor != "weight_gradient":
            return []
        return [
            (rank, replace(end, kind="REDUCE_GRAD" if end.kind == "RECV_G" else "ADD_COPY"))
            for rank, end in self._own(event)
            if not end.is_send
        ]

    def _index_copies(self) -> dict[int, list[Placed]]:
        """Return what adds up gradients of copies on one GPU, by the event that makes the last."""
        every, plan = self.plan.rule.update_every, self.plan
        found: dict[int, list[Placed]] = defaultdict(list)
        if every is None:
            return found
        for source, target in exchanging_stages(plan.chain, plan.stages):
            half = "W" if self.step.has("W", source) else "B"
            last: dict[tuple[int, int], tuple[int, int]] = {}
            for number, event in enumerate(self.step.events):
                item = event.item
                if isinstance(item, Operation) and (item.kind, item.stage) == (half, source):
                    for i in range(event.first, event.first + event.count):
                        key = event.gpu, i // every
                        last[key] = max(last.get(key, (0, 0)), (event.end_ns, number))
            for (gpu, mini_batch), (_, number) in last.items():
                if gpu in plan.stages[target].gpus:
                    part = Part(self.ranks[gpu], self.ranks[gpu], other_stage=source)
                    action = Action(target, "ADD_COPY", mini_batch * every, 1, None, part)
                    found[number].append((self.ranks[gpu], action))
        return found

    def _free_transfers(self, event: Event) -> Iterator[Placed]:
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


_Sent = tuple[int, int, int, int, int | None, int]
"""Stage, micro-batch, chunk, start, source and target of weights on their way."""


def _index_gathers(step: Simulation) -> dict[_Sent, list[Gather]]:
    """Return the weights that come for single operations."""
    found: dict[_Sent, list[Gather]] = defaultdict(list)
    if any(stage.shard == "parameter" for stage in step.plan.stages):
        for one in find_gathers(Reader(step)):
            key = (one.stage, one.micro_batch, one.chunk, one.start_ns, one.source, one.gpu)
            found[key].append(one)
    return found


def _of_event(event: Event) -> _Sent:
    item = cast(Transfer, event.item)
    return item.stage, event.first, item.chunk, event.start_ns, event.source, event.gpu
