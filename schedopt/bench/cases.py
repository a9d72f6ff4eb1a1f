"""What methods are compared on: chains, numbers of GPUs, memory levels and bandwidths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any, Final

from schedopt.chain import Chain, Layer
from schedopt.errors import InputError
from schedopt.families import (
    Instance,
    lemma_2,
    random_chain,
    section_6_1,
    theorem_4,
    theorem_5,
    theorem_6,
    uniform_chain,
)
from schedopt.formats import read_format
from schedopt.plan import PLAN_FORMAT, Plan
from schedopt.platform import PLATFORM_FORMAT, Platform
from schedopt.problem import Problem, Scope
from schedopt.result import Result
from schedopt.running.report import RUN_FORMAT
from schedopt.solving import Run, solve
from schedopt.sweeping.points import SWEEP_FORMAT

OTHERS = frozenset({PLAN_FORMAT, PLATFORM_FORMAT, RUN_FORMAT, SWEEP_FORMAT})
"""Formats of other files in a folder of chains."""
OWN = "own"
"""The memory level of an instance that comes with its platform."""


@dataclass(frozen=True)
class SolverInstance:
    """A chain on a platform."""

    chain: Chain
    platform: Platform
    level: str
    """Memory of a GPU over the least with which a contiguous plan exists, or "own"."""
    batch: int | None = None
    """Samples of a training step; None: micro-batches go on for ever."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What chains are combined with."""

    gpus: tuple[int, ...]
    levels: tuple[Decimal, ...]
    """Memory of a GPU over the least with which a contiguous plan exists."""
    bandwidths: tuple[int | None, ...]
    """Bytes per second of each link; None: transfers are free."""
    batches: tuple[int | None, ...] = (None,)
    """Samples of a training step; None: micro-batches go on for ever."""

    def instances(self, chains: Iterable[Chain]) -> Iterator[SolverInstance]:
        """Yield every chain with every number of GPUs, bandwidth, memory level and batch."""
        for chain, count, rate in product(chains, self.gpus, self.bandwidths):
            least = least_memory(chain, count, rate)
            for level, batch in product(self.levels, self.batches):
                platform = Platform(count, ceil(least * level), bandwidth=rate)
                yield SolverInstance(chain, platform, str(level), batch)


FULL: Final = Grid(
    gpus=(2, 4, 8),
    levels=(Decimal(1), Decimal("1.5"), Decimal(4)),
    bandwidths=(12 * 10**9, 10**9),
)
QUICK: Final = Grid(gpus=(4, 8), levels=(Decimal("1.5"), Decimal(4)), bandwidths=(12 * 10**9,))
QUICK_CHAINS: Final = frozenset({"gpt2", "resnet50", "random-layers-40-seed-1"})
"""Those of our chains, by name, that a quick suite takes."""


def choose_quick(chains: Sequence[Chain]) -> list[Chain]:
    """Return the chains that a quick suite takes: the first one where it knows none."""
    return [chain for chain in chains if chain.name in QUICK_CHAINS] or list(chains[:1])


def family_chains() -> list[Chain]:
    """Return the chains by rule that every suite holds."""
    return [uniform_chain(32).chain, *(random_chain(40, seed).chain for seed in (1, 2, 3))]


def theorem_instances() -> Iterator[SolverInstance]:
    """Yield the instances of the theorems, each on its own platform."""
    instances: list[Instance] = [section_6_1(), lemma_2(), theorem_4(3), theorem_5(2), theorem_6(4)]
    for instance in instances:
        yield SolverInstance(instance.chain, instance.platform, OWN)


def load_chains(folder: Path) -> list[Chain]:
    """Return the chains of a folder, by name of the file; plans and the like are passed over."""
    if not folder.is_dir():
        raise InputError("is not a folder", way_out="Name one with chain files", source=str(folder))
    paths = sorted(path for path in folder.glob("*.json") if read_format(path) not in OTHERS)
    if not paths:
        raise InputError(
            "holds no chain",
            way_out="Put schedopt.chain/1 files (*.json) there",
            source=str(folder),
        )
    return [Chain.load(path) for path in paths]


@contextmanager
def naming_chain(chain: Chain) -> Iterator[None]:
    """Let an input error say which chain it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"{chain.name or 'a chain'}: {error.rule}", field=error.field, way_out=error.way_out
        ) from None


def solve_problem(problem: Problem, **options: Any) -> Result:
    """Solve a problem; the options are those of `solve`."""
    return solve(
        problem.chain,
        problem.platform,
        scope=problem.scope,
        stages=problem.stages,
        **options,
    )


def need_plan(result: Result) -> Plan:
    """Return the plan of what can be solved: without one, somebody asked to stop.

    Solving takes the first Ctrl-C for "stop here".
    """
    if result.plan is None:
        raise KeyboardInterrupt
    return result.plan


def least_memory(
    chain: Chain, gpus: int, rate: str | int | None, *, recompute: bool = False
) -> int:
    """Return the least memory of a GPU with which a contiguous plan exists, at least 1 byte."""
    platform = Platform(gpus, 1, bandwidth=rate)
    result = solve(chain, platform, scope=Scope(recompute=recompute), solver="contiguous")
    if result.plan is not None:
        return 1
    why = result.infeasibility
    if why is None or why.least_memory_bytes != why.proven_memory_bytes:
        # Solving takes the first Ctrl-C for "stop here".
        raise KeyboardInterrupt
    if why.least_memory_bytes is None:
        raise InputError(
            f"{chain.name or 'a chain'}: no memory lets it run on {gpus} GPUs",
            field="chain",
            way_out="Leave the chain or this number of GPUs out",
        )
    return why.least_memory_bytes


@cache
def compile_search() -> None:
    """Load or compile the local search once a process, so that no run's time holds that."""
    from schedopt.solving.local_search.search import is_compiled

    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    is_compiled(Run(Problem(chain=Chain(layers=(layer,)), platform=Platform(1, 0))))
