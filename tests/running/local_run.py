"""Plans run with all ranks in one process, and what plain torch makes of the same model."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from schedopt import Chain, Plan, Platform, Rule, Scope, Stage, check
from schedopt.account import concurrent_activations
from schedopt.account.profile import peak_of
from schedopt.account.reading import Reader
from schedopt.account.versions import held_versions
from schedopt.actions import make_actions
from schedopt.profiling import Model, profile
from schedopt.profiling.outline import Outline
from schedopt.profiling.pieces import Piece
from schedopt.running.backends import step_in_one_process
from schedopt.running.controller import MicroBatches, keep_gradients, keep_weights
from schedopt.running.figures import predict
from schedopt.running.model_match import Boundary, trace_boundaries
from schedopt.running.rank import Rank, build_ranks
from schedopt.running.trained import Kept, Trained, put_together
from schedopt.running.workload import Workload, name_parameters, tied_names
from schedopt.simulation import Simulation
from tests.budgets import PROFILE
from tests.random_plans import fill

Runs = tuple[tuple[int, int], ...]
Optimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]
MOST: Final = 1e-12
"""By how much numbers in double precision may differ that were added up in another order."""
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
    quick = replace(chain, layers=tuple(replace(layer, **times) for layer in chain.layers))
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


_FAST: Final = ("general", "three-periodic", "two runs again", "all, too")
"""Kinds of plans that a slow model runs in fast tests."""


def kinds_of_plans(chain: Chain, *, is_slow: bool = False) -> dict[str, Plan]:
    """Return a plan of each kind for a chain of at least 6 layers, by day fewer for a slow one."""
    last = len(chain.layers) - 1
    ends = (last // 4, last // 2, 3 * last // 4, last)
    a, b, c, _ = ends
    first: Sequence[Runs] = (((0, a),), (), (), ())
    two: Sequence[Runs] = (
        ((0, 0), (1, a)) if a else ((0, 0),),
        (),
        ((b + 1, b + 1),),
        ((last, last),),
    )
    middle: Sequence[Runs] = ((), ((a + 1, b),), ((c, c),), ((c + 1, last - 1),))
    kinds: dict[str, tuple[tuple[int, ...], Sequence[Runs], dict[str, Any]]] = {
        "contiguous": ((0, 1, 2, 3), (), {}),
        "general": ((0, 1, 0, 1), (), {}),
        "neighbours": ((0, 0, 1, 1), (), {}),
        "two-periodic": ((0, 1, 0, 2), (), {"k": 2}),
        "three-periodic": ((0, 1, 2, 0), (), {"k": 3}),
        "split": ((0, 1, 2, 3), (), {"split": (0, 1, 2, 3)}),
        "some split": ((0, 1, 1, 0), (), {"split": (0, 2)}),
        "first again": ((0, 1, 2, 3), first, {}),
        "two runs again": ((0, 1, 2, 3), two, {}),
        "middle again": ((0, 1, 2, 3), middle, {}),
        "all": ((0, 1, 0, 1), two, {"split": (0, 1, 3), "k": 2}),
        "all, too": ((0, 0, 1, 0), middle, {"split": (0, 1, 2, 3), "k": 3}),
    }

    def stages(gpus: tuple[int, ...], recompute: Sequence[Runs]) -> list[Stage]:
        for group in chain.same_gpu:
            holding = [sum(layer > end for end in ends) for layer in group]
            home = gpus[holding[0]]
            gpus = tuple(home if row in holding else gpu for row, gpu in enumerate(gpus))
        begins = (0, a + 1, b + 1, c + 1)
        rows = zip(begins, ends, gpus, recompute or ((),) * 4, strict=True)
        return [Stage(layers=(x, y), gpus=(gpu,), recompute=runs) for x, y, gpu, runs in rows]

    by_day = is_slow and PROFILE != "nightly"
    plans = {
        name: place(chain, *stages(gpus, recompute), **more)
        for name, (gpus, recompute, more) in kinds.items()
        if not by_day or name in _FAST
    }
    if not by_day:
        plans["one stage"] = place(chain, Stage(layers=(0, last), gpus=(0,)))
    return plans


@dataclass
class LocalRun:
    """The ranks of a plan, their own copy of the model, and what a step did."""

    plan: Plan
    model: Model
    work: Workload
    batches: MicroBatches
    ranks: list[Rank]
    done: Trained = field(default_factory=Trained)
    """Of all ranks."""
    steps: int = 0

    def step(self) -> list[Trained]:
        """Run the next step; return the gradients that each rank applies, and its weights."""
        self.batches.load(self.steps)
        self.steps += 1
        kept = [Kept() for _ in self.ranks]
        for rank, own in zip(self.ranks, kept, strict=True):
            keep_gradients(rank, own)
        step_in_one_process(self.ranks)
        self.done = Trained()
        for rank, own in zip(self.ranks, kept, strict=True):
            keep_weights(rank, own)
        found = put_together(kept)
        for one in found:
            self.done.gradients.update(one.gradients)
            self.done.weights.update(one.weights)
        return found

    def inputs(self) -> list[Tensor]:
        """Return the input of each micro-batch of the step that is loaded."""
        count = self.work.actions.micro_batches
        return [self.batches(i, ["input"])["input"] for i in range(count)]


@cache
def cut_once(model: Model, cuts: tuple[str, ...] | None) -> tuple[list[Piece], list[Boundary]]:
    """Return the layers of a model and what they hand on; to trace it takes a second."""
    outline = Outline(model)
    return trace_boundaries(outline.pieces(cuts or outline.cuts), model.tensors)


def prepare(
    plan: Plan, model: Model, count: int, optimizer: Optimizer = sgd, seed: int = 0
) -> tuple[Workload, Model, MicroBatches]:
    """Return what a plan runs on the host, a copy of a model: cut as its chain, or everywhere."""
    recipe = plan.chain.recipe
    pieces, boundaries = cut_once(model, recipe.cuts if recipe else None)
    module, loss, pieces = copy.deepcopy((model.module, model.loss, pieces))
    own = replace(model, module=module, loss=loss)
    batches = MicroBatches(own, count, seed, torch.device("cpu"))
    batches.load(0)
    names = name_parameters(module, loss)
    work = Workload(
        plan=plan,
        actions=make_actions(plan, count),
        pieces=pieces,
        boundaries=boundaries,
        optimizer=optimizer,
        data=batches,
        before=batches.seed_layer,
        names=names,
        device=torch.device("cpu"),
        tied=tied_names(plan, pieces, names),
    )
    return work, own, batches


def start(
    plan: Plan, model: Model, count: int, optimizer: Optimizer = sgd, seed: int = 0
) -> LocalRun:
    """Return the ranks of a plan, ready to train a copy of a model."""
    assert not check(plan)
    work, own, batches = prepare(plan, model, count, optimizer, seed)
    return LocalRun(plan, own, work, batches, build_ranks(work))


@cache
def train_unsplit(model: Model, count: int) -> tuple[nn.Module, dict[int, float]]:
    """Train a copy of a model on the micro-batches of a step, in plain torch, without an update.

    Layers that draw random numbers do so from the seed of their own: those of an `nn.Sequential`,
    and of another model those into which it is cut. Returns the copy and the losses.
    """
    own = replace(model, module=copy.deepcopy(model.module))
    module = own.module
    batches = MicroBatches(model, count, 0, torch.device("cpu"))
    batches.load(0)
    is_random = any(isinstance(part, nn.Dropout) and part.p for part in module.modules())
    pieces: list[Piece] = []
    if is_random and not isinstance(module, nn.Sequential):
        outline = Outline(own)
        pieces = outline.pieces(outline.cuts)
    losses = {}
    for micro_batch in range(count):
        given = batches(micro_batch, model.tensors)
        output: Any = None
        if isinstance(module, nn.Sequential):
            output = given["input"]
            for position, layer in enumerate(module):
                batches.seed_layer(position, micro_batch)
                output = layer(output)
        elif not pieces:
            output = module(**{**model.kwargs, **given})
        for position, piece in enumerate(pieces):
            batches.seed_layer(position, micro_batch)
            output = piece.run(output, given)
        if model.loss is not None:
            output = model.loss(output)
        loss = output.loss if hasattr(output, "loss") else output.sum()
        loss.backward()
        losses[micro_batch] = loss.item()
    return module, losses


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the gradients of a model."""
    own = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {name: gradient.clone() for name, gradient in own.items() if gradient is not None}


def apart(tensor: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors over the largest element of the second."""
    assert tensor.shape == other.shape
    assert tensor.dtype == other.dtype
    most = float(other.detach().abs().max()) if other.numel() else 0.0
    largest = float((tensor.detach() - other.detach()).abs().max()) if other.numel() else 0.0
    return largest / most if most else largest


class Training(Protocol):
    """What a step did to gradients and weights, by name."""

    @property
    def gradients(self) -> Mapping[Any, Tensor]: ...

    @property
    def weights(self) -> Mapping[str, Tensor]: ...


def assert_trained(found: Sequence[Training], wanted: Training) -> None:
    """Hold what each rank has after a step against a whole: nothing is missing, nothing else."""
    for name in ("gradients", "weights"):
        of_ranks: list[Mapping[Any, Tensor]] = [getattr(one, name) for one in found]
        expected: Mapping[Any, Tensor] = getattr(wanted, name)
        assert {key for own in of_ranks for key in own} == expected.keys()
        for key, tensor in (pair for own in of_ranks for pair in own.items()):
            # What several ranks have in slices is one row.
            own = tensor.reshape(expected[key].shape) if tensor.dim() == 1 else tensor
            assert apart(own, expected[key]) < MOST, key


def assert_nothing_left(local: LocalRun) -> None:
    """After a step a rank keeps nothing but its weights."""
    for rank in local.ranks:
        assert not rank._received
        assert not rank._outgoing
        for work in rank.stages.values():
            assert not work._flights
            assert not work.weights.older()
            assert not work.weights.gradients._early
            assert not work.weights.gradients._at_home
            gradients = [own.grad for own in work.weights.parameters.values()]
            assert not any(gradient is not None and gradient.any() for gradient in gradients)


def assert_live(local: LocalRun, of: Simulation, *, is_long: bool = False) -> None:
    """Hold the most micro-batches in flight on each rank against the step and the account.

    Of a step that is long enough, some replica has as many as the endless run.
    """
    gpus = sorted({gpu for stage in of.plan.stages for gpu in stage.gpus})
    most, predicted = concurrent_activations(of.plan), predict(of).live
    for number, stage in enumerate(of.plan.stages):
        found = {
            gpus[rank.number]: rank.stages[number].most_live
            for rank in local.ranks
            if number in rank.stages
        }
        assert found.keys() == set(stage.gpus)
        assert max(found.values()) == predicted[number], str(local.work.actions)
        assert all(live <= most[number, gpu] for gpu, live in found.items())
        assert not is_long or max(found.values()) == max(most[number, gpu] for gpu in found)


def assert_versions(local: LocalRun, of: Simulation) -> None:
    """Hold the most versions at once on each rank against the account of the step.

    A rank takes in what comes between two operations, the account when it comes. Where something
    takes no time, its reads and an update share an instant: they still run one after the other,
    but in the account all that ends at an instant ends before what begins there.
    """
    gpus = sorted({gpu for stage in of.plan.stages for gpu in stage.gpus})
    runs = [(item, run) for item, _, run in of.operations() if item.kind != "U"]
    in_no_time = {item.stage for item, run in runs if run.start_ns == run.end_ns}
    held: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for version in held_versions(Reader(of)):
        during = [
            run.end_ns
            for _, run in runs
            if run.gpu == version.gpu and run.start_ns < version.made_ns < run.end_ns
        ]
        made = max([version.made_ns, *during])
        held[version.stage, version.gpu].append((1, made, max(made, version.end_ns)))
    for rank in local.ranks:
        for stage, work in rank.stages.items():
            spans = held[stage, gpus[rank.number]]
            most = peak_of(spans, of.length_ns) if spans else 1
            assert work.weights.most_held == most or stage in in_no_time
