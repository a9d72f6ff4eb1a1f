"""The three ways to run a step: in one process, a process a rank, or on torch's own runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

import torch
from torch import Tensor

from schedopt.actions import Action, gpu_ranks, sent_bytes
from schedopt.running.job import Job
from schedopt.running.links import Links, Room, StreamLinks, SyntheticLinks, ThreadLinks
from schedopt.running.rank import Rank
from schedopt.running.records import Span
from schedopt.running.replica_exchange import Mailbox
from schedopt.running.workload import Workload

_TAKING_IN: Final = ("REDUCE_GRAD", "ADD_COPY")
"""What a message or an update does that adds up what came before it."""

Step = Callable[[], list[Span]]
"""Runs a step and returns what ran."""


def make_step(job: Job, rank: Rank, over_nccl: bool) -> Step:
    """Return what runs a step of a rank that has this process to itself."""
    if job.backend == "pytorch":
        from schedopt.running.torch_runtime import TorchRuntime

        runtime = TorchRuntime(rank.work, rank.number)

        def torch_step() -> list[Span]:
            rank.begin_step()
            with rank.meter or nullcontext():
                spans = runtime.step()
            rank.losses.update(runtime.losses)
            rank.count_live(spans)
            updates = [action for action in rank.actions if action.kind == "U"]
            return spans + [rank.perform(update) for update in updates]

        return torch_step
    return partial(step_over_links, rank, _links(job, rank, over_nccl))


def step_in_one_process(ranks: Sequence[Rank]) -> list[Span]:
    """Run one step in the total order of its actions: each rank has tensors of its own."""
    for rank in ranks:
        rank.begin_step()
    spans = []
    mailboxes = [Mailbox[Tensor](rank.exchange.uses) for rank in ranks]

    def carry(send: Action, rank: Rank, peer: Rank) -> None:
        """Give another rank its own copy of what is sent."""
        message = rank.message(send, rank.take, mailboxes[rank.number].get)
        came = peer.copied(message)
        if came is None or send.part is None:
            peer.put(send.other_end, came)
        else:
            came = peer.received(send.other_end, came)
            peer.note(send.other_end, came)
            mailboxes[peer.number].put(send.other_end, came)

    def deliver(rank: Rank, action: Action) -> None:
        """Give a rank what came from other replicas for an operation or a broadcast."""
        for receive in rank.exchange.needs(action):
            rank.put(receive, mailboxes[rank.number].get(receive))

    actions = ranks[0].work.actions
    for number, action in actions.order:
        rank = ranks[number]
        if action.is_send:
            for send in action.singles:
                carry(send, rank, ranks[actions.peer(send)])
        elif action.kind == "BROADCAST_PARAM":
            deliver(rank, action)
            rank.take_weights(action)
        elif action.kind == "ADD_COPY" and action.part is not None and action.part.is_local:
            carry(action.received.other_end, rank, rank)
        elif not action.is_transfer and action.kind not in _TAKING_IN:
            deliver(rank, action)
            spans.append(rank.perform(action))
    for rank in ranks:
        rank.sample_memory()
    return spans


def step_over_links(rank: Rank, make_links: Callable[[], Links]) -> list[Span]:
    """Do the list of a rank: compute, and let the links carry."""
    rank.begin_step()
    links = make_links()

    def offer() -> None:
        for send, output in rank.release().items():
            links.offer(send, output)

    offer()
    transfers = [action for action in rank.actions if action.is_transfer]
    expected = {end for action in transfers for end in action.singles}
    spans = []
    ready_ns = 0
    for number, action in enumerate(rank.actions):
        if action.is_transfer:
            links.reach(action)
            continue
        if action.reads_weights:
            following = (one for one in rank.actions[number + 1 :] if one.reads_weights)
            for receive in rank.exchange.needs(next(following, action)):
                links.announce(receive)
        from_others = [receive for receive in _receives(action) if receive in expected]
        for receive in (*from_others, *rank.exchange.needs(action)):
            tensor, since_ns = links.wait(receive)
            rank.put(receive, tensor)
            ready_ns = max(ready_ns, since_ns)
            del tensor
        if action.kind == "BROADCAST_PARAM":
            rank.take_weights(action)
        elif action.kind not in _TAKING_IN:
            spans.append(rank.perform(action, ready_ns))
            ready_ns = 0
        offer()
    spans += links.finish()
    rank.sample_memory()
    return spans


def _receives(action: Action) -> list[Action]:
    """Return what an operation may have to wait for."""
    match action.kind:
        case "F":
            return [Action(action.stage, "RECV_F", i) for i in action.micro_batches]
        case "B" | "I":
            return [Action(action.stage, "RECV_B", i) for i in action.micro_batches]
        case _:
            return []


def _links(job: Job, rank: Rank, over_nccl: bool) -> Callable[[], Links]:
    """Return what makes the links of a step."""
    work = rank.work
    room = make_room(rank, work.device if over_nccl else torch.device("cpu"))
    if over_nccl:
        return lambda: StreamLinks(rank, room)
    if job.model is not None:
        return lambda: ThreadLinks(rank, room)
    platform, gpus = work.plan.platform, sorted(gpu_ranks(work.plan))

    def lasts_ns(send: Action) -> int:
        ends = [gpus[work.actions.peer(end)] for end in (send.other_end, send)]
        return int(platform.transfer_ns(sent_bytes(work.plan, send), *ends) * job.stretch)

    one_way = platform.link is not None and platform.link.duplex == "half"
    one_clock = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return lambda: SyntheticLinks(rank, room, one_way, lasts_ns, one_clock)


def make_room(rank: Rank, device: torch.device) -> Room:
    """Return what makes room on a device for what a receive takes in."""
    work: Workload = rank.work

    def room(receive: Action) -> Tensor:
        if receive.part is not None:
            return rank.room(receive, device)
        stage = work.plan.stages[receive.stage]
        layer = stage.first - 1 if receive.kind == "RECV_F" else stage.last
        return work.boundaries[layer].empty(device)

    return room
