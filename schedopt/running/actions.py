"""What each rank does, one list a rank, all parts of one total order.

They follow the events of a simulated step: both ends of a transfer stand where it starts, before
the operations that start with it. So the earliest action that is not done can always go on, nothing
waits for ever, and no transfer waits for an operation that does not concern it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from schedopt.errors import InputError
from schedopt.plan import Plan, Transfer
from schedopt.rule import Rule
from schedopt.running.action import Action, ActionKind, parse_action
from schedopt.running.waiting import order_lists
from schedopt.simulation import Event, Simulation, simulate


@dataclass(frozen=True, eq=False)
class Actions:
    """What each rank does in one step. Two are equal if each rank has the same list in both.

    Parameters
    ----------
    order : tuple of (int, Action)
        Rank and action, in a total order in which everything can be done one after the other.
    """

    order: tuple[tuple[int, Action], ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Actions) and self.ranks == other.ranks

    def __hash__(self) -> int:
        return hash(self.ranks)

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
        If something is no action, if an action is missing or lacks what it needs, or if actions
        wait for each other in a circle, with their names.
    """
    lists = []
    for number, line in enumerate(text.rstrip().splitlines()):
        try:
            lists.append([parse_action(one) for one in line.split(",")])
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
        A multiple of the micro-batches of one update.

    Raises
    ------
    InputError
        For a number of micro-batches that does not fit, and for stages with several GPUs.
    """
    _refuse_replicas(plan)
    return actions_of(simulate(plan, microbatches))


def actions_of(step: Simulation) -> Actions:
    """Return what each rank does in a simulated step."""
    plan = step.plan
    _refuse_replicas(plan)
    order = [placed for _, placed in sorted(_placed(step))]
    if plan.rule.is_given:
        ranks = gpu_ranks(plan)
        order += [(ranks[stage.gpus[0]], Action(s, "U", 0)) for s, stage in enumerate(plan.stages)]
    else:
        order = list(_with_versions(plan.rule, order))
    found = Actions(tuple(order))
    order_lists(found.ranks)
    return found


def _refuse_replicas(plan: Plan) -> None:
    for number, stage in enumerate(plan.stages):
        if len(set(stage.gpus)) > 1:
            raise InputError(
                f"stage {number} has replicas on GPUs {', '.join(map(str, stage.gpus))}, and "
                f"transfers between replicas are not run yet",
                field=f"stages[{number}].gpus",
                way_out="Run a plan in which each stage has one GPU",
            )


def gpu_ranks(plan: Plan) -> dict[int, int]:
    """Return the rank of each GPU that has a stage."""
    used = sorted({gpu for stage in plan.stages for gpu in stage.gpus})
    return {gpu: rank for rank, gpu in enumerate(used)}


_Moment = tuple[int, int, int, int]
"""Start of an event, ns, what goes first at one instant, number of the event, place in it."""


def _placed(step: Simulation) -> Iterator[tuple[_Moment, tuple[int, Action]]]:
    """Yield the actions of a step with what orders them."""
    plan = step.plan
    ranks = gpu_ranks(plan)
    updates = dict(_updates_left_out(step))
    instants = {(event.gpu, event.start_ns) for event in step.events if not event.length_ns}
    for number, event in enumerate(step.events):
        item = event.item
        if isinstance(item, Transfer):
            actions = _ends(event, item, ranks)
        elif item.kind == "U":
            mini_batch = event.first // (plan.rule.update_every or 1)
            actions = [(ranks[event.gpu], Action(item.stage, "U", mini_batch))]
        else:
            operation = Action(item.stage, item.kind, event.first, event.count)
            actions = [(ranks[event.gpu], operation)]
        # What takes no time may be what another event of the instant needs.
        turn = 0 if not event.length_ns else 1 if isinstance(item, Transfer) else 2
        for place, action in enumerate(actions):
            yield (event.start_ns, turn, number, place), action
        for place, action in enumerate(_free_transfers(plan, event, ranks), start=1):
            yield (event.end_ns, 0, number, place), action
        # Another rank waits for what is sent, and only operations of this one for the update.
        soon = (event.gpu, event.end_ns) in instants
        moment = (event.end_ns, 0, number) if soon else (event.end_ns, 2, -1)
        for place, action in enumerate(updates.get(number, ()), start=len(step.events)):
            yield (*moment, place), action


def _ends(event: Event, transfer: Transfer, ranks: dict[int, int]) -> list[tuple[int, Action]]:
    """Return what both ends of a transfer do."""
    if event.source is None or event.source == event.gpu:
        return []
    send = sending_end(transfer, event)
    return [(ranks[event.source], send), (ranks[event.gpu], send.other_end)]


def sending_end(transfer: Transfer, event: Event) -> Action:
    """Return what the source of an activation or its gradient does."""
    if transfer.tensor == "activation":
        return Action(transfer.stage, "SEND_F", event.first, event.count)
    return Action(transfer.stage + 1, "SEND_B", event.first, event.count)


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

    Without an operation U a stage is updated when the last gradient of the mini-batch is there,
    and those of the mini-batches before.
    """
    plan = step.plan
    if plan.rule.update_every is None:
        return
    ranks = gpu_ranks(plan)
    told = {operation.stage for operation in plan.pattern.operations if operation.kind == "U"}
    last: dict[tuple[int, int], int] = {}
    for number, event in enumerate(step.events):
        item = event.item
        if isinstance(item, Transfer) or item.stage in told:
            continue
        if item.kind == ("W" if step.has("W", item.stage) else "B"):
            for micro_batch in range(event.first, event.first + event.count):
                last[item.stage, micro_batch // plan.rule.update_every] = number
    after: dict[int, list[tuple[int, Action]]] = defaultdict(list)
    through: dict[int, int] = defaultdict(int)
    for stage, mini_batch in sorted(last):
        through[stage] = max(through[stage], last[stage, mini_batch])
        rank = ranks[plan.stages[stage].gpus[0]]
        after[through[stage]].append((rank, Action(stage, "U", mini_batch)))
    yield from after.items()


def _with_versions(rule: Rule, order: Iterable[tuple[int, Action]]) -> Iterator[tuple[int, Action]]:
    """Yield rank and action with the versions that are read, as many as an operation reads.

    What would read a version from before the step reads the one that the step starts from.
    """
    made: dict[int, int] = defaultdict(int)
    read: dict[tuple[str, int, int], int] = {}
    for rank, action in order:
        if action.kind == "U":
            made[action.stage] += 1
        if action.kind == "U" or action.is_transfer:
            yield rank, action
            continue
        stage, kind = action.stage, action.kind
        for i in action.micro_batches:
            read[kind, stage, i] = _version(rule, action, i, made, read)
        versions = [read[kind, stage, i] for i in action.micro_batches]
        first = action.first
        for version, group in groupby(versions):
            count = len(list(group))
            yield rank, Action(stage, kind, first, count, version)
            first += count


def _version(
    rule: Rule,
    action: Action,
    i: int,
    made: dict[int, int],
    read: dict[tuple[str, int, int], int],
) -> int:
    """Return the version that an action reads for micro-batch i, after what was made and read."""
    stage = action.stage
    if action.kind == "F":
        delay = rule.forward_delay(i, stage)
        if delay is not None:
            return max(0, i // (rule.update_every or 1) - delay)
        return read["F", 0, i] if rule.forward_reads == "entry" and stage else made[stage]
    if action.kind == "W":
        return read["I", stage, i]
    again = action.kind == "R" and rule.backward_reads == "recomputed"
    if again or rule.backward_reads == "live":
        return made[stage]
    if rule.backward_reads == "recomputed" and ("R", stage, i) in read:
        return read["R", stage, i]
    return read["F", stage, i]
