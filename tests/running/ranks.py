"""Ranks in processes of their own, on this machine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from schedopt.errors import InputError
from schedopt.running.actions import make_actions
from schedopt.running.pipelining import TorchRuntime
from tests.running.networks import CASES, Case, buffers, cut, gradients, micro_batch, seed

RANKS = 3
STEPS = 2


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
            found = _run(case, rank)
        except InputError as error:
            found = [str(error)]
        finally:
            dist.destroy_process_group()
        torch.save(found, Path(folder, f"{name}.{rank}"))


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
