"""Ranks in processes of their own, on this machine."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from schedopt.actions import make_actions
from schedopt.errors import InputError
from schedopt.running.crew import Work, make_rank, name_parameters
from schedopt.running.links import Links, StreamLinks, ThreadLinks
from schedopt.running.process import make_room, step
from schedopt.running.reference import Trained
from schedopt.running.torch_rank import TorchRuntime
from tests.running.networks import CASES, Case, buffers, cut, gradients, micro_batch, seed

RANKS = 3
STEPS = 2
ENGINES = ("runtime", "threads", "streams")
"""Torch's own runtime, and ours with a thread for each way or all started in order."""


def run_all(rank: int, folder: str) -> None:
    """Run one rank of all plans, one after the other, and leave what came of it in a folder."""
    torch.set_num_threads(1)
    for name, case in CASES.items():
        actions = make_actions(case.plan(), case.microbatches)
        if rank >= len(actions.ranks):
            continue
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/{name}.store",
            rank=rank,
            world_size=len(actions.ranks),
            timeout=timedelta(seconds=20),
        )
        try:
            for engine in ENGINES:
                try:
                    found = (
                        _run(case, rank) if engine == "runtime" else _run_ours(case, rank, engine)
                    )
                except InputError as error:
                    found = [str(error)]
                torch.save(found, Path(folder, f"{name}.{engine}.{rank}"))
        finally:
            dist.destroy_process_group()


def _run_ours(case: Case, number: int, engine: str) -> list[Any]:
    """Return the same of a rank of ours; its gradients are means."""
    model, plan = case.model(), case.plan()
    actions = make_actions(plan, case.microbatches)
    pieces, boundaries = cut(model)
    device = torch.device("cpu")

    def data(i: int, names: Collection[str]) -> dict[str, Tensor]:
        return {name: one.clone() for name, one in micro_batch(model, i).items() if name in names}

    work = Work(
        plan=plan,
        actions=actions,
        pieces=pieces,
        boundaries=boundaries,
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.0),
        data=data,
        before=seed,
        names=name_parameters(model.module, None),
        device=device,
    )
    rank = make_rank(work, number)

    def links() -> Links:
        if engine == "streams":
            return StreamLinks(number, actions, make_room(work, rank, device), rank.exchange)
        room = make_room(work, rank, device)
        return ThreadLinks(number, actions, room, rank.exchange, device)

    found = []
    for _ in range(STEPS):
        kept = Trained()
        for one in rank.stages.values():
            one.weights.on_update = kept.keep
        spans = step(rank, actions, links)
        means = {name: gradient for (_, name), gradient in kept.gradients.items()}
        told = [
            (span.rank, str(span.action), span.start_ns, span.end_ns)
            for span in spans
            if span.action.kind in ("F", "B", "I", "W")
        ]
        found.append((means, told, dict(rank.losses), buffers(model.module)))
    return found


def _run(case: Case, rank: int) -> list[Any]:
    """Return the gradients, the spans, the losses and the buffers after each step."""
    model = case.model()
    plan = case.plan()
    runtime = TorchRuntime(
        plan,
        make_actions(plan, case.microbatches),
        rank,
        *cut(model),
        torch.device("cpu"),
        lambda number: micro_batch(model, number),
        seed,
    )
    found = []
    for _ in range(STEPS):
        model.module.zero_grad()
        spans = runtime.step()
        found.append(
            (
                gradients(model.module),
                [(span.rank, str(span.action), span.start_ns, span.end_ns) for span in spans],
                runtime.losses,
                buffers(model.module),
            )
        )
    return found


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest value."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-300))
