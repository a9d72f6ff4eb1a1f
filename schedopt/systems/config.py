"""What a system is asked to make a plan for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from schedopt.chain import Chain
from schedopt.cuts import balanced_cuts, stages_in_order
from schedopt.engine import Engine
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.profile import Variant
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.list_scheduler import ListScheduler
from schedopt.validation import check_whole

_FEWEST_ROUNDS: Final = 12
_MANY_ROUNDS: Final = 4 * _FEWEST_ROUNDS
_MOST_ROUNDS: Final = 32 * _FEWEST_ROUNDS


@dataclass(frozen=True, kw_only=True)
class SystemConfig:
    """A chain, the GPUs, and how many micro-batches make one update where a system may choose.

    Parameters
    ----------
    chain : Chain
    platform : Platform
        Of which a system may leave GPUs unused. Whether a plan fits into the memory is not its
        question.
    microbatches : int
        m, the micro-batches of a step. Systems whose updates do not follow from their idea (a
        flush, data parallelism) update once in m.
    bucket_bytes : int
        Gradients that are sent together where a system has buckets.
    variants : tuple of Variant
        As of a `Problem`.
    engine : Engine, optional
        That runs the step: its recompute is a part of the backward, and so waits for the gradient.
    """

    chain: Chain
    platform: Platform
    microbatches: int
    bucket_bytes: int = 25 * 2**20
    variants: tuple[Variant, ...] = ()
    engine: Engine | None = None

    def __post_init__(self) -> None:
        check_whole(self, "microbatches", low=1, high=2**20)
        check_whole(self, "bucket_bytes", low=1)

    @property
    def updated(self) -> bool:
        """Whether updates take time."""
        return any(layer.update_ns for layer in self.chain.layers)

    def flush_rule(self, *, replicated: bool) -> Rule:
        """Return the rule of a flush: an update every m micro-batches, which all wait for.

        Where there are no replicas, a chain that does not say what its weights take is scheduled
        by the rule *given*: its `weight_bytes` are all that a flush needs.
        """
        if not (self.chain.knows_gradients or replicated):
            return Rule()
        return Rule.of_flush(self.microbatches)

    def require_multiple(self, why: str) -> None:
        """Refuse a number of micro-batches that is no multiple of the number of GPUs."""
        gpus = len(self.platform.gpus)
        below = self.microbatches // gpus * gpus
        if below != self.microbatches:
            raise InputError(
                f"{self.microbatches} is no multiple of {gpus}, and {why}",
                field="microbatches",
                way_out=f"Use {f'{below} or ' if below else ''}{below + gpus} micro-batches, or "
                f"another number of GPUs",
            )

    def pipeline(self) -> list[Stage]:
        """Return one stage for each GPU, in order, balanced."""
        return stages_in_order(balanced_cuts(self.chain, len(self.platform.gpus)))

    def scheduler(self, rule: Rule, stages: list[Stage], *, ordered: bool = True) -> ListScheduler:
        """Return an empty scheduler of stages under a rule."""
        problem = Problem(
            chain=self.chain, platform=self.platform, rule=rule, variants=self.variants
        )
        return ListScheduler(
            problem, stages, ordered=ordered, recomputed_inside=self.engine is not None
        )

    def flushed(self, scheduler: ListScheduler, *, split: bool = False) -> Plan:
        """Return the plan of a step of m micro-batches, from an empty pipeline to a flush."""
        scheduler.settle()
        scope = Scope(
            allocation="general",
            microbatches=self.microbatches,
            split_backward=split,
            recompute=any(stage.recompute for stage in scheduler.stages),
            max_k=None,
            engine=self.engine,
        )
        return scheduler.plan(scheduler.step(self.microbatches), scope)

    def steady(self, follow: Callable[[int], ListScheduler], k: int) -> Plan:
        """Return the plan of the steady state, of k micro-batches or a few times k.

        Parameters
        ----------
        follow : callable
            Returns the run of a number of micro-batches, a multiple of k, from an empty pipeline.
        k : int

        Raises
        ------
        InputError
            If even a long run does not settle.
        """
        rounds = _FEWEST_ROUNDS
        while True:
            scheduler = follow(k * rounds)
            scheduler.settle()
            try:
                pattern = scheduler.steady(k, fold=rounds > _MANY_ROUNDS)
            except InputError:
                if rounds >= _MOST_ROUNDS:
                    raise
                rounds *= 2
            else:
                return scheduler.plan(pattern, Scope(allocation="general", max_k=None))


def require_time(scheduler: ListScheduler, layers: Collection[int], name: str, why: str) -> None:
    """Refuse layers of a stage that all take no time, where nothing else decides what comes first.

    The time is that of a field, and `why` ends the sentence.
    """
    first, last = min(layers), max(layers)
    if not any(getattr(scheduler.costs.layers[layer], name) for layer in layers):
        others = f", like that of all layers to {last} of its stage" if last > first else ""
        raise InputError(
            f"0 ns{others}, and {why}",
            field=f"layers[{first}].{name}",
            way_out="Give it 1 ns, or choose another system",
        )
