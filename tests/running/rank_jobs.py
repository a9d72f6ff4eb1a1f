"""What a rank in a process of its own does in tests: it runs its part of a plan for two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from schedopt import Plan
from schedopt.errors import InputError
from schedopt.profiling import Model
from schedopt.running.backends import make_room, step_over_links
from schedopt.running.controller import keep_gradients, keep_weights
from schedopt.running.links import Links, StreamLinks, ThreadLinks
from schedopt.running.rank import Rank, build_rank
from schedopt.running.records import Span
from schedopt.running.torch_runtime import TorchRuntime
from schedopt.running.trained import Kept, put_together
from tests.running import by_hand
from tests.running.local_run import gradients, prepare
from tests.running.networks import CASES, buffers

STEPS: Final = 2
LINKS: Final[Mapping[str, Callable[..., Links]]] = {"threads": ThreadLinks, "streams": StreamLinks}
"""With a thread for each way, or all started in order."""
REPLICATED: Final = (
    "exchanged in chunks",
    "gathered in chunks",
    "twice round",
    "CDP-v1, 3 stages",
    "CDP-v2, 3 stages",
    "CDP-v2, 2 stages, spread",
    "dp_overlapped, 2 GPUs",
    "dp_overlapped, 3 GPUs, slow",
    "chimera, 4 GPUs, m = 4, links",
    "optimizer sharded on 6 GPUs",
    "mixed shards on 6 GPUs, again",
    "parameter sharded by layer, 1 ahead",
    "gradient sharded on 6 GPUs, home at once, 1 ahead",
    "zero_3, 3 GPUs",
    "cdp_v2_zero, 2 GPUs",
)


def run_case(rank: int, name: str, engine: str) -> list[Any] | str:
    """Run a plan of `CASES`; return after each step gradients, spans, losses and buffers.

    Of our engines the gradients are means. What a layer raises is returned as text.
    """
    try:
        case = CASES[name]
        work, model, _ = prepare(case.plan(), case.model, case.microbatches, still)
        if engine == "runtime":
            return _run_runtime(TorchRuntime(work, rank), model)
        return _run_links(build_rank(work, rank), model, engine)
    except InputError as error:
        return str(error)


def _run_runtime(runtime: TorchRuntime, model: Model) -> list[Any]:
    results = []
    for _ in range(STEPS):
        model.module.zero_grad()
        spans = _readable(runtime.step())
        results.append((gradients(model.module), spans, runtime.losses, buffers(model.module)))
    return results


def _run_links(rank: Rank, model: Model, engine: str) -> list[Any]:
    results = []
    for kept, spans in _steps(rank, engine):
        means = {
            name: gradient
            for own in put_together([kept])
            for (_, name), gradient in own.gradients.items()
        }
        results.append((means, _readable(spans), dict(rank.losses), buffers(model.module)))
    return results


def _steps(
    rank: Rank, engine: str, load: Callable[[int], None] = lambda step: None
) -> Iterator[Any]:
    """Run the steps over links; yield what each did to the weights, and its spans."""
    room = make_room(rank, rank.work.device)
    for step in range(STEPS):
        load(step)
        kept = Kept()
        keep_gradients(rank, kept)
        yield kept, step_over_links(rank, lambda: LINKS[engine](rank, room))


def _readable(spans: Iterable[Span]) -> list[tuple[int, str, int, int]]:
    """Return forwards and backwards: rank, action, start and end."""
    return [
        (span.rank, str(span.action), span.start_ns, span.end_ns)
        for span in spans
        if span.action.kind in ("F", "B", "I", "W")
    ]


def run_replicated(
    rank: int, plan: Plan, count: int, engine: str, net: Callable[[], Model] = by_hand.net
) -> list[Kept]:
    """Run a plan with replicas; return gradients and weights after each step."""
    work, _, batches = prepare(plan, net(), count, by_hand.sgd)
    own = build_rank(work, rank)
    results = []
    for kept, _ in _steps(own, engine, batches.load):
        keep_weights(own, kept)
        results.append(kept)
    return results


def still(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Return an optimizer that leaves the weights as they are."""
    return torch.optim.SGD(parameters, 0.0)
