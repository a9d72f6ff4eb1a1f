"""What each rank does: a list of actions a rank, all of them parts of one total order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from schedopt.actions.action import Action, parse_action
from schedopt.actions.validation import find_order
from schedopt.errors import InputError


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
    def rank_of(self) -> dict[tuple[int, int], int]:
        """The rank of each micro-batch in each stage."""
        return {
            (action.stage, i): rank
            for rank, action in self.order
            if action.kind == "F"
            for i in action.micro_batches
        }

    @cached_property
    def owners(self) -> dict[int, tuple[int, ...]]:
        """The ranks of each stage, ascending."""
        owners: dict[int, tuple[int, ...]] = defaultdict(tuple)
        for stage, rank in sorted({(action.stage, rank) for rank, action in self.order}):
            owners[stage] += (rank,)
        return dict(owners)

    @property
    def micro_batches(self) -> int:
        """How many micro-batches run."""
        return 1 + max(action.micro_batches[-1] for _, action in self.order if action.kind == "F")

    def stages(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank, ascending."""
        return tuple(sorted(stage for stage, owners in self.owners.items() if rank in owners))

    def peer(self, end: Action) -> int:
        """Return the rank of the other end of a transfer of one micro-batch."""
        other = end.other_end
        if other.part is not None:
            return other.part.source if other.is_send else other.part.target
        return self.rank_of[other.stage, other.first]

    def __str__(self) -> str:
        return "".join(",".join(map(str, actions)) + "\n" for actions in self.ranks)


def parse_actions(text: str) -> Actions:
    """Read lists of actions, one line a rank, as `Actions` prints them.

    Raises
    ------
    InputError
        If a word is not an action, if an action is missing or lacks what it needs, or if actions
        wait for each other in a cycle, with their names.
    """
    lists = []
    for rank, line in enumerate(text.rstrip().splitlines()):
        try:
            lists.append([parse_action(word) for word in line.split(",")])
        except InputError as error:
            raise error.within(f"rank {rank}") from None
    return Actions(tuple(find_order(lists)))
