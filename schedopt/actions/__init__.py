"""What each rank does to run a plan: lists of actions, made, read and validated without torch."""

from __future__ import annotations

from schedopt.actions.action import ACTION_KINDS, Action, ActionKind, Part, Share, parse_action
from schedopt.actions.grid import Grid, find_grid
from schedopt.actions.lists import Actions, parse_actions
from schedopt.actions.lowering import (
    actions_of,
    gpu_ranks,
    make_actions,
    process_gpus,
    sending_end,
    sent_bytes,
)
from schedopt.actions.torch_rows import Rows, halved_stages, make_lane_rows, make_rows
from schedopt.actions.updates import share_of

__all__ = [
    "ACTION_KINDS",
    "Action",
    "ActionKind",
    "Actions",
    "Grid",
    "Part",
    "Rows",
    "Share",
    "actions_of",
    "find_grid",
    "gpu_ranks",
    "halved_stages",
    "make_actions",
    "make_lane_rows",
    "make_rows",
    "parse_action",
    "parse_actions",
    "process_gpus",
    "sending_end",
    "sent_bytes",
    "share_of",
]
