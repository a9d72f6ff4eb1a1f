"""What each rank does, one list a rank, all parts of one total order.

They follow the events of a simulated step: both ends of a transfer stand where it starts. So the
earliest action that is not done can always go on, and nothing waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import lcm

from schedopt.account.timeline import Timeline
from schedopt.account.versions import Reader
from schedopt.errors import InputError
from schedopt.plan import Operation, Plan, Transfer
from schedopt.running.action import Action, ActionKind, parse_action
from schedopt.running.waiting import order_lists
from schedopt.simulation import Event, Simulation, simulate


@dataclass(frozen=True)
class Actions:
    """What each rank does in one step.

    Parameters
    ----------
    order : tuple of (int, Action)
        Rank and action, in a total order in which everything can be done one after the other.
    """

    order: tuple[tuple[int, Action], ...]

    @cached_property
    def ranks(self) -> tuple[tuple[Action, ...], ...]:
        """The list of each rank."""
        lists: list[list[Action]] = [[] for _ in range(1 + max(rank for rank, _ in self.order))]
        for rank, action in self.order:
            lists[rank].append(action)
        return tuple(map(tuple, lists))

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """The rank of each stage."""
        return {action.stage: rank for rank, action in self.order if action.kind == "F"}

    @property
    def micro_batches(self) -> int:
        """How many micro-batches run."""
        return 1 + max(action.micro_batches[-1] for _, action in self.order if action.kind == "F")

    def stages(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank, ascending."""
        return tuple(sorted(stage for stage, owner in self.rank_of.items() if owner == rank))

    def __str__(self) -> str:
        return "".join(",".join(map(str, actions)) + "\n" for actions in self.ranks)


def parse_actions(text: str) -> Actions:
    """Read lists of actions, one line a rank, as `Actions` prints them.

    Raises
    ------
    InputError
        If something is no action, if an action lacks what it needs, or if actions wait for each
        other in a circle, with their names.
    """
    lists = []
    for number, line in enumerate(text.strip("\n").splitlines()):
        try:
            lists.append([parse_action(one) for one in line.split(",") if one.strip()])
        except InputError as error:
            raise error.within(f"rank {number}") from None
    return Actions(tuple(order_lists(lists)))


def make_actions(plan: Plan, microbatches: int) -> Actions:
    """Return what each rank does to run a plan for so many micro-batches, with a flush at the end.

    Rank r is the r-th GPU that has a stage. Under the rule *given* each stage is updated once, at
    the end.

    Parameters
    ----------
    plan : Plan
        Valid: `schedopt.check` finds nothing.
    microbatches : int
        A multiple of the replicas of each stage and of the micro-batches of one update.

    Raises
    ------
    InputError
        For a number of micro-batches that does not fit.
    """
    every = lcm(*(len(stage.gpus) for stage in plan.stages), plan.rule.update_every or 1)
    if microbatches % every:
        raise InputError(
            f"{microbatches} is no multiple of {every}, after which GPUs and updates repeat",
            field="microbatches",
            way_out=f"Give {max(1, microbatches // every) * every}",
        )
    return actions_of(simulate(plan, microbatches))


def actions_of(step: Simulation) -> Actions:
    """Return what each rank does in a simulated step."""
    plan = step.plan
    order = [placed for _, placed in sorted(_placed(step))]
    if plan.rule.is_given:
        ranks = gpu_ranks(plan)
        order += [(ranks[stage.gpus[0]], Action(s, "U", 0)) for s, stage in enumerate(plan.stages)]
    found = Actions(tuple(order))
    order_lists(found.ranks)
    return found


def gpu_ranks(plan: Plan) -> dict[int, int]:
    """Return the rank of each GPU that has a stage."""
    used = sorted({gpu for stage in plan.stages for gpu in stage.gpus})
    return {gpu: rank for rank, gpu in enumerate(used)}


_Moment = tuple[int, int, int, int]
"""Start and end, ns, of an event, its number, and the place of an action in it."""


def _placed(step: Simulation) -> Iterator[tuple[_Moment, tuple[int, Action]]]:
    """Yield the actions of a step with what orders them."""
    plan = step.plan
    ranks = gpu_ranks(plan)
    reader = None if plan.rule.is_given else Reader(Timeline(plan))
    updates = dict(_updates_left_out(step))
    for number, event in enumerate(step.events):
        item = event.item
        actions: list[tuple[int, Action]]
        if isinstance(item, Transfer):
            actions = _ends(event, item, ranks)
        elif item.kind == "U":
            mini_batch = event.first // (plan.rule.update_every or 1)
            actions = [(ranks[event.gpu], Action(item.stage, "U", mini_batch))]
        else:
            read = _by_version(event, item, reader)
            actions = [(ranks[event.gpu], Action(item.stage, item.kind, *one)) for one in read]
        for place, action in enumerate(actions):
            yield (event.start_ns, event.end_ns, number, place), action
        after = [*_free_transfers(plan, event, ranks), *updates.get(number, ())]
        for place, action in enumerate(after, start=len(actions)):
            yield (event.end_ns, event.end_ns, number, place), action


def _ends(event: Event, transfer: Transfer, ranks: dict[int, int]) -> list[tuple[int, Action]]:
    """Return what both ends of a transfer do."""
    if not transfer.is_boundary:
        raise InputError(
            f"{transfer} is between replicas, which are not run yet",
            field="pattern.transfers",
            way_out="Run a plan in which each stage has one GPU",
        )
    if event.source is None or event.source == event.gpu:
        return []
    forward = transfer.tensor == "activation"
    kind: ActionKind = "SEND_F" if forward else "SEND_B"
    sender = transfer.stage if forward else transfer.stage + 1
    send = Action(sender, kind, event.first, event.count)
    return [(ranks[event.source], send), (ranks[event.gpu], send.other_end)]


def _free_transfers(
    plan: Plan, event: Event, ranks: dict[int, int]
) -> Iterator[tuple[int, Action]]:
    """Yield the transfers of what an operation made, where a plan leaves them out as free."""
    item = event.item
    if isinstance(item, Transfer) or item.kind not in ("F", "B", "I"):
        return
    forward = item.kind == "F"
    other = item.stage + (1 if forward else -1)
    tensor, stage = ("activation", item.stage) if forward else ("gradient", other)
    told = any((t.tensor, t.stage) == (tensor, stage) for t in plan.pattern.transfers)
    if told or not 0 <= other < len(plan.stages):
        return
    kind: ActionKind = "SEND_F" if forward else "SEND_B"
    for micro_batch in range(event.first, event.first + event.count):
        target = plan.stages[other].gpu(micro_batch)
        if target != event.gpu:
            send = Action(item.stage, kind, micro_batch)
            yield ranks[event.gpu], send
            yield ranks[target], send.other_end


def _updates_left_out(step: Simulation) -> Iterator[tuple[int, list[tuple[int, Action]]]]:
    """Yield the updates that a plan leaves out, by the number of the event after which they come.

    Without an operation U a stage is updated when the last gradient of the mini-batch is there.
    """
    plan = step.plan
    if plan.rule.update_every is None:
        return
    ranks = gpu_ranks(plan)
    told = {operation.stage for operation in plan.pattern.operations if operation.kind == "U"}
    last: dict[tuple[int, int, int], int] = {}
    for number, event in enumerate(step.events):
        item = event.item
        if isinstance(item, Transfer) or item.stage in told:
            continue
        if item.kind == ("W" if step.has("W", item.stage) else "B"):
            for micro_batch in range(event.first, event.first + event.count):
                last[item.stage, event.gpu, micro_batch // plan.rule.update_every] = number
    after: dict[int, list[tuple[int, Action]]] = {}
    for (stage, gpu, mini_batch), number in last.items():
        after.setdefault(number, []).append((ranks[gpu], Action(stage, "U", mini_batch)))
    yield from after.items()


def _by_version(
    event: Event, operation: Operation, reader: Reader | None
) -> list[tuple[int, int, int | None]]:
    """Return first micro-batch, count and version of the parts of an operation that read the same.

    What would read a version from before the step reads the one that the step starts from.
    """
    if reader is None:
        return [(event.first, event.count, None)]
    covered = range(event.first, event.first + event.count)
    read = [max(0, reader.reads(operation.stage, i)[operation.kind]) for i in covered]
    parts: list[tuple[int, int, int | None]] = []
    for version, group in groupby(zip(covered, read, strict=True), key=lambda pair: pair[1]):
        found = [micro_batch for micro_batch, _ in group]
        parts.append((found[0], len(found), version))
    return parts
