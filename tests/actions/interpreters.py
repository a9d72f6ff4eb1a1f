"""Naive ways to run lists of actions, and what must hold on each rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from schedopt.actions import Action, parse_action
from tests.examples import EXAMPLES

ONE_GPU_EACH = [name for name in EXAMPLES if name not in ("data_parallel", "cyclic")]

Lists = Sequence[Sequence[Action]]
Place = tuple[str, int, int]
"""Kind, stage and micro-batch."""


def other_end(action: Action) -> Action:
    way, what = action.kind.split("_")
    step = 0 if action.part else 1 if (way == "SEND") == (what == "F") else -1
    kind: Any = f"{'RECV' if way == 'SEND' else 'SEND'}_{what}"
    if action.part and action.part.other_stage is not None:
        part = replace(action.part, other_stage=action.stage)
        return replace(action, stage=action.part.other_stage, kind=kind, part=part)
    return replace(action, stage=action.stage + step, kind=kind)


def run(lists: Lists, *, buffered: bool = False) -> bool:
    """Run the lists, each rank on its own, and return whether they finish.

    With rendezvous a send and its receive happen together, when both are next; buffered sends go
    on at once.
    """
    place = [0] * len(lists)
    sent: set[Action] = set()
    ready = list(range(len(lists)))
    while ready:
        rank = ready.pop()
        while place[rank] < len(lists[rank]):
            action = lists[rank][place[rank]]
            if action.is_transfer:
                other = other_end(action)
                if buffered and action.is_send:
                    sent.add(other)
                    ready = list(range(len(lists)))
                elif buffered:
                    if action not in sent:
                        break
                else:
                    found = [
                        r
                        for r, at in enumerate(place)
                        if r != rank and at < len(lists[r]) and lists[r][at] == other
                    ]
                    if not found:
                        break
                    place[found[0]] += 1
                    ready.append(found[0])
            place[rank] += 1
    return all(at == len(actions) for at, actions in zip(place, lists, strict=True))


def in_order(lists: Lists) -> bool:
    """Whether each action comes after those of its rank that it needs."""
    back = [("F", 0), ("RECV_B", 0), ("B", 1), ("I", 1), ("R", 0)]
    needs: dict[str, list[tuple[str, int]]] = {
        "F": [("RECV_F", 0), ("F", -1)],
        "B": back,
        "I": back,
        "W": [("I", 0)],
        "R": [("F", 0)],
        "SEND_F": [("F", 0)],
        "SEND_B": [("B", 0), ("I", 0)],
    }
    for actions in lists:
        at: dict[Place, int] = {
            (a.kind, a.stage, i): n for n, a in enumerate(actions) for i in a.micro_batches
        }
        every = max(i for _, _, i in at) + 1
        every //= len({i for kind, _, i in at if kind == "U"})
        for (kind, s, i), place in at.items():
            before: list[Place] = [(name, s + step, i) for name, step in needs.get(kind, [])]
            if kind == "U":
                own = range(i * every, (i + 1) * every)
                before = [(half, s, j) for half in "BW" for j in own] + [("U", s, i - 1)]
            if actions[place].version:
                before.append(("U", s, (actions[place].version or 0) - 1))
            if any(at.get(one, -1) > place for one in before):
                return False
    return True


def assert_circle(lists: Lists, told: str) -> None:
    """Assert that each part of a circle is so, and that each is followed by the next one."""
    found = re.findall(r"(\w[\w-]*) waits for (\w[\w-]*) on rank (\d+)", told)
    assert len(found) > 1
    parts = [(parse_action(a), parse_action(b), lists[int(rank)]) for a, b, rank in found]
    for (after, before, actions), (_, following, _) in pairwise([*parts, parts[0]]):
        assert actions.index(before) < actions.index(after)
        same_event = {str(after), *([str(after.other_end)] if after.is_transfer else [])}
        assert str(following) in same_event
