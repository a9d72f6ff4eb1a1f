"""Plans with models to run them on, and what the unsplit model gives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor, nn

from schedopt.chain import Chain
from schedopt.plan import Pattern, Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.profiling import Model
from schedopt.stage import Stage
from tests import examples
from tests.examples import layer, op
from tests.profiling.networks import tiny
from tests.running.local_run import place


@dataclass(frozen=True)
class Case:
    """A plan with a model in double precision."""

    plan: Callable[[], Plan]
    microbatches: int
    network: Callable[[], Model]

    @cached_property
    def model(self) -> Model:
        """The same model in each process."""
        torch.manual_seed(1)
        return self.network()


class Transposed(nn.Module):
    """Returns a view that is not contiguous."""

    def forward(self, value: Tensor) -> Tensor:
        return value.transpose(0, 1)


class Viewed(nn.Module):
    """Returns a view of what it takes."""

    def forward(self, value: Tensor) -> Tensor:
        return value.view(4, 4)


class WritesOver(nn.Module):
    """Writes over what it takes; twice would be once too often."""

    def forward(self, value: Tensor) -> Tensor:
        return value.mul_(3).add_(1)


class Failing(nn.Module):
    """Fails forward or backward."""

    def __init__(self, backward: bool) -> None:
        super().__init__()
        self.backward = backward

    def forward(self, value: Tensor) -> Tensor:
        if not self.backward:
            raise RuntimeError("no luck")
        value = value + 0
        if value.requires_grad:
            value.register_hook(self._fail)  # type: ignore[no-untyped-call]
        return value

    def _fail(self, gradient: Tensor) -> None:
        raise RuntimeError("no luck")


def sequence(*layers: nn.Module) -> Callable[[], Model]:
    """Return what makes a model of layers, of 4 numbers to 4 numbers, with new parameters."""

    def build() -> Model:
        module = copy.deepcopy(nn.Sequential(*layers)).double()
        for part in module.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
        return Model(module=module, inputs=_sample(0))

    return build


def _sample(seed: int) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(4, 4, generator=made, dtype=torch.float64)


def block(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), *more)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def stages_of(
    *rows: tuple[int, int, int], recompute: Sequence[tuple[int, int]] = ()
) -> tuple[Stage, ...]:
    """Return stages, each with its first and last layer, its GPU, and what it computes again."""
    return tuple(
        Stage(
            layers=(first, last),
            gpus=(gpu,),
            recompute=tuple(run for run in recompute if first <= run[0] <= last),
        )
        for first, last, gpu in rows
    )


def placed(
    *rows: tuple[int, int, int],
    recompute: Sequence[tuple[int, int]] = (),
    split: Sequence[int] = (),
) -> Callable[[], Plan]:
    """Return what makes a plan of stages that is as short as it can be."""

    def build() -> Plan:
        chain = Chain(layers=(layer(1, 2, 1),) * (rows[-1][1] + 1))
        return place(chain, *stages_of(*rows, recompute=recompute), split=split)

    return build


def out_of_order() -> Plan:
    """Return a plan whose last stage runs micro-batch 1 before micro-batch 0."""
    order: Sequence[tuple[Any, int, int]] = (
        *(("F", 0, 0), ("F", 0, 1), ("F", 1, 1), ("F", 1, 0)),
        *(("B", 1, 1), ("B", 1, 0), ("B", 0, 0), ("B", 0, 1)),
    )
    return Plan(
        chain=Chain(layers=(layer(0, 0, 0),) * 2),
        platform=Platform(gpus=2, memory=2**40),
        scope=Scope(allocation="general", max_k=2),
        stages=stages_of((0, 0, 0), (1, 1, 1)),
        pattern=Pattern(
            k=2,
            period_total_ns=8,
            operations=tuple(op(*what, start) for start, what in enumerate(order)),
        ),
    )


def _tied() -> Model:
    shared = block()
    return sequence(shared, block(), shared)()


_GPT: Final = 14
"""Where a GPT-2 of two layers can be cut."""

CASES: Final[Mapping[str, Case]] = {
    "contiguous": Case(examples.contiguous, 5, sequence(block(), block(), block())),
    "two-periodic": Case(examples.two_periodic, 4, sequence(block(), block(), Transposed())),
    "general": Case(examples.general, 4, sequence(block(), block(), block())),
    "tied": Case(examples.general, 3, _tied),
    "split": Case(
        examples.split_backward, 4, sequence(block(Transposed()), block(), block(Transposed()))
    ),
    "split-everywhere": Case(
        placed((0, 0, 0), (1, 1, 1), (2, 2, 0), split=(0, 1, 2)),
        3,
        sequence(block(), block(Viewed()), Transposed()),
    ),
    "recomputed": Case(
        examples.recomputed,
        4,
        sequence(
            nn.Sequential(WritesOver(), block(nn.Dropout(0.5))),
            block(nn.BatchNorm1d(4, momentum=0.5), nn.Dropout(0.5)),
            block(nn.BatchNorm1d(4, momentum=0.5)),
            block(nn.Dropout(0.5)),
        ),
    ),
    "recomputed-in-place": Case(
        placed((0, 1, 0), (2, 3, 1), recompute=((1, 1), (2, 3))),
        2,
        sequence(
            nn.Linear(4, 4),
            nn.Sequential(WritesOver(), block(nn.Linear(4, 4))),
            nn.Sequential(WritesOver(), block(nn.Dropout(0.5))),
            block(),
        ),
    ),
    "in-place": Case(
        placed((0, 0, 0), (1, 1, 0), (2, 2, 1)),
        2,
        sequence(nn.Linear(4, 4), nn.Sequential(WritesOver(), nn.Linear(4, 4)), WritesOver()),
    ),
    "covering": Case(examples.covering, 2, sequence(block(), block())),
    "flushed": Case(examples.flushed, 2, sequence(block(), block())),
    "out-of-order": Case(out_of_order, 4, sequence(block(), block(nn.Dropout(0.5)))),
    "frozen": Case(
        placed((0, 0, 0), (1, 1, 1), (2, 2, 0), split=(2,)),
        2,
        sequence(frozen(block()), block(), block()),
    ),
    "one-gpu": Case(placed((0, 0, 0), (1, 2, 0)), 2, sequence(block(), block(), block())),
    "one-stage": Case(placed((0, 2, 0), split=(0,)), 2, sequence(block(), block(), block())),
    "gpt2": Case(
        placed((0, 2, 0), (3, 5, 1), (6, _GPT - 1, 2)),
        4,
        lambda: tiny("gpt2", dtype="float64"),
    ),
    "gpt2-general": Case(
        placed((0, 2, 0), (3, 5, 1), (6, _GPT - 1, 0), split=(1, 2)),
        3,
        lambda: tiny("gpt2", dtype="float64"),
    ),
    "gpt2-dropout": Case(
        placed((0, 2, 0), (3, 5, 1), (6, _GPT - 1, 0), recompute=((0, 1), (3, 5), (7, 8))),
        3,
        lambda: tiny("gpt2-dropout", dtype="float64"),
    ),
    "fails-forward": Case(placed((0, 2, 0)), 2, sequence(block(), Failing(False), block())),
    "fails-backward": Case(placed((0, 2, 0)), 2, sequence(block(), Failing(True), block())),
}


def buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the means and variances that a model keeps."""
    return {name: buffer.clone() for name, buffer in module.named_buffers() if buffer.dim()}
