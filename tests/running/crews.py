"""Plans run with all ranks in one process, and what plain torch makes of the same model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from schedopt import Chain, Plan, Platform, Rule, Scope, Stage, check
from schedopt.actions import make_actions
from schedopt.profiling import Model, profile
from schedopt.profiling.pieces import Outline, Piece
from schedopt.running import logical
from schedopt.running.crew import Work, make_ranks, name_parameters
from schedopt.running.fitting import Boundary, check_bytes, look
from schedopt.running.micro_batches import MicroBatches
from schedopt.running.rank import Rank
from schedopt.running.reference import Trained
from tests.random_plans import fill

Optimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]
FREE = Scope(allocation="general", max_k=None, memory="peak", split_backward=True, recompute=True)


def sgd(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def adamw(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 0.01)


def sequential(*layers: nn.Module, value: Tensor, **more: Any) -> Model:
    """Return a model in double precision whose loss is a mean of squares."""
    module = nn.Sequential(*layers).double()
    more = {"loss": lambda y: (y**2).mean(), **more}
    return Model(module=module, inputs=value, factory="tests:none", **more)


def profile_of(model: Model, **options: Any) -> Chain:
    return profile(model, **{"warmup": 0, "repeats": 2, "min_share": 0, **options})


def place(
    chain: Chain, *stages: Stage, split: Sequence[int] = (), k: int = 1, rule: Rule | None = None
) -> Plan:
    """Return a plan of a chain whose layers take 1 ns forward, 2 back and none to update.

    Its period is short.

    Parameters
    ----------
    split : sequence of int
        Stages whose backward comes in halves.
    """
    times: dict[str, Any] = {
        "forward_ns": 1,
        "backward_ns": 2,
        "backward_input_ns": 1,
        "backward_weight_ns": 1,
        "update_ns": None,
    }
    quick = replace(chain, layers=tuple(replace(one, **times) for one in chain.layers))
    gpus = 1 + max(gpu for stage in stages for gpu in stage.gpus)
    platform = Platform(gpus=gpus, memory="1T")
    halves = [stage in split for stage in range(len(stages))]
    for period in range(1, 10**6):
        pattern = fill(lambda _: 0, quick, platform, stages, halves, range(k), period, k)  # type: ignore[arg-type]
        if pattern is not None:
            break
    assert pattern is not None
    plan = Plan(
        chain=quick,
        platform=platform,
        rule=rule or Rule(),
        scope=FREE,
        stages=stages,
        pattern=pattern,
    )
    assert check(plan) == ()
    return plan


def kinds_of_plans(chain: Chain) -> dict[str, Plan]:
    """Return one plan of each kind for a chain of at least 6 layers."""
    last = len(chain.layers) - 1
    a, b, c = last // 4, last // 2, 3 * last // 4

    def rows(*gpus: int, recompute: Sequence[Sequence[tuple[int, int]]] = ((),) * 4) -> list[Stage]:
        begins, ends = (0, a + 1, b + 1, c + 1), (a, b, c, last)
        for group in chain.same_gpu:
            holding = [sum(one > end for end in (a, b, c)) for one in group]
            gpus = tuple(
                gpus[holding[0]] if row in holding else gpu for row, gpu in enumerate(gpus)
            )
        joined = zip(begins, ends, gpus, recompute, strict=True)
        return [
            Stage(layers=(begin, end), gpus=(gpu,), recompute=tuple(runs))
            for begin, end, gpu, runs in joined
        ]

    first = [[(0, a)], [], [], []]
    two = [[(0, 0), (1, a)] if a else [(0, 0)], [], [(b + 1, b + 1)], [(last, last)]]
    middle: list[list[tuple[int, int]]] = [[], [(a + 1, b)], [(c, c)], [(c + 1, last - 1)]]
    return {
        "contiguous": place(chain, *rows(0, 1, 2, 3)),
        "one stage": place(chain, Stage(layers=(0, last), gpus=(0,))),
        "general": place(chain, *rows(0, 1, 0, 1)),
        "neighbours": place(chain, *rows(0, 0, 1, 1)),
        "two-periodic": place(chain, *rows(0, 1, 0, 2), k=2),
        "three-periodic": place(chain, *rows(0, 1, 2, 0), k=3),
        "split": place(chain, *rows(0, 1, 2, 3), split=(0, 1, 2, 3)),
        "some split": place(chain, *rows(0, 1, 1, 0), split=(0, 2)),
        "first again": place(chain, *rows(0, 1, 2, 3, recompute=first)),
        "two runs again": place(chain, *rows(0, 1, 2, 3, recompute=two)),
        "middle again": place(chain, *rows(0, 1, 2, 3, recompute=middle)),
        "all": place(chain, *rows(0, 1, 0, 1, recompute=two), split=(0, 1, 3), k=2),
        "all, too": place(chain, *rows(0, 0, 1, 0, recompute=middle), split=(0, 1, 2, 3), k=3),
    }


@dataclass
class Crew:
    """The ranks of a plan, their own copy of the model, and what a step did."""

    plan: Plan
    model: Model
    work: Work
    batches: MicroBatches
    ranks: list[Rank]
    done: Trained = field(default_factory=Trained)
    steps: int = 0

    def step(self) -> None:
        """Run the next step, and keep the gradients of its mini-batches and the weights."""
        self.batches.load(self.steps)
        self.steps += 1
        self.done = Trained()
        works = [work for rank in self.ranks for work in rank.stages.values()]
        for work in works:
            work.weights.on_update = self.done.keep
        logical.step(self.ranks, self.work.actions)
        for work in works:
            for name, one in work.weights.parameters.items():
                self.done.weights[name] = one.detach().clone()

    @property
    def most_live(self) -> tuple[int, ...]:
        every = {s: work.most_live for rank in self.ranks for s, work in rank.stages.items()}
        return tuple(every[stage] for stage in range(len(every)))


@cache
def cut_once(model: Model, cuts: tuple[str, ...]) -> tuple[list[Piece], list[Boundary]]:
    """Return the layers of a model and what they hand on; to trace it takes a second."""
    return look(Outline(model).pieces(cuts), model.tensors)


def hire(plan: Plan, model: Model, count: int, optimizer: Optimizer = sgd, seed: int = 0) -> Crew:
    """Return the ranks of a plan, ready to train a copy of a model."""
    assert not check(plan)
    assert plan.chain.recipe is not None
    pieces, boundaries = cut_once(model, plan.chain.recipe.cuts)
    check_bytes(plan.chain, pieces, boundaries, model.tensors)
    module, loss, pieces = copy.deepcopy((model.module, model.loss, pieces))
    own = replace(model, module=module, loss=loss)
    actions = make_actions(plan, count)
    batches = MicroBatches(own, count, seed, torch.device("cpu"))
    batches.load(0)
    work = Work(
        plan=plan,
        actions=actions,
        pieces=pieces,
        boundaries=boundaries,
        optimizer=optimizer,
        data=batches,
        before=batches.seed_layer,
        names=name_parameters(own.module, own.loss),
        device=torch.device("cpu"),
    )
    return Crew(plan, own, work, batches, make_ranks(work))


def apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors over the largest element."""
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    most = float(other.detach().abs().max()) if other.numel() else 0.0
    found = float((one.detach() - other.detach()).abs().max()) if other.numel() else 0.0
    return found / most if most else found
