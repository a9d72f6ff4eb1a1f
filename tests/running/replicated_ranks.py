"""Plans with replicas in processes of their own, on this machine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from schedopt import Plan
from schedopt.actions import make_actions
from schedopt.running.crew import Work, make_rank, name_parameters
from schedopt.running.links import Links, StreamLinks, ThreadLinks
from schedopt.running.micro_batches import MicroBatches
from schedopt.running.process import make_room, step
from schedopt.running.reference import Trained
from tests.running import by_hand
from tests.running.crews import cut_once, profile_of
from tests.running.replicated import every_plan

RANKS: Final = 4
STEPS: Final = 2
ENGINES: Final = ("threads", "streams")
"""With a thread for each way, or all started in order."""
NAMES: Final = (
    "exchanged in chunks",
    "gathered in chunks",
    "twice round",
    "CDP-v1, 3 stages",
    "CDP-v2, 3 stages",
    "CDP-v2, 2 stages, spread",
    "dp_overlapped, 2 GPUs",
    "dp_overlapped, 3 GPUs, slow",
    "chimera, 4 GPUs, m = 4, links",
)


def plans() -> dict[str, tuple[Plan, int]]:
    """Return what is run, with the number of micro-batches."""
    every = every_plan(profile_of(by_hand.net()))
    return {name: every[name] for name in NAMES}


def run_all(number: int, folder: str) -> None:
    """Run one rank of all plans, one after the other, and leave what came of it in a folder."""
    torch.set_num_threads(1)
    for place, (plan, count) in enumerate(plans().values()):
        ranks = len(make_actions(plan, count).ranks)
        if number >= ranks:
            continue
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/{place}.store",
            rank=number,
            world_size=ranks,
            timeout=timedelta(seconds=30),
        )
        try:
            for engine in ENGINES:
                found = _run(plan, count, number, engine)
                torch.save(found, Path(folder, f"{place}.{engine}.{number}"))
        finally:
            dist.destroy_process_group()


def _run(plan: Plan, count: int, number: int, engine: str) -> list[tuple[Any, Any]]:
    """Return gradients and weights of each step."""
    model = by_hand.net()
    assert plan.chain.recipe is not None
    pieces, boundaries = cut_once(model, plan.chain.recipe.cuts)
    device = torch.device("cpu")
    actions = make_actions(plan, count)
    batches = MicroBatches(model, count, 0, device)
    work = Work(
        plan=plan,
        actions=actions,
        pieces=pieces,
        boundaries=boundaries,
        optimizer=by_hand.sgd,
        data=batches,
        before=batches.seed_layer,
        names=name_parameters(model.module, model.loss),
        device=device,
    )
    rank = make_rank(work, number)

    def links() -> Links:
        room = make_room(work, rank, device)
        if engine == "streams":
            return StreamLinks(number, actions, room, rank.exchange)
        return ThreadLinks(number, actions, room, rank.exchange, device)

    found = []
    for one in range(STEPS):
        batches.load(one)
        kept = Trained()
        for stage in rank.stages.values():
            stage.weights.on_update = kept.keep
        step(rank, actions, links)
        weights = {
            name: parameter.detach().clone()
            for stage in rank.stages.values()
            for name, parameter in stage.weights.parameters.items()
        }
        found.append((kept.gradients, weights))
    return found
