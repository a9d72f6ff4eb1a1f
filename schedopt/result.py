"""A plan with what is known about it: its bound, its scope, and how it was found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.proofs import Note, Proof, ProofKind, Suggestion
from schedopt.stored import Stored, find_function
from schedopt.units import counted, format_bytes, format_duration, format_gap
from schedopt.validation import STRICT, Ratio, as_tuple, check_ratio

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A normalized period that no plan of a scope can beat.

    Parameters
    ----------
    exact : (int, int)
        Numerator and denominator, ns.
    scope : Scope
        The plans that it speaks of.
    proof : Proof or str
        Why it holds; in words where another package, or an older file, says it.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    exact: Ratio
    scope: Scope
    proof: Proof | str

    def __post_init__(self) -> None:
        check_ratio(self, "exact")

    @property
    def period(self) -> Fraction:
        """The bound in ns."""
        return Fraction(*self.exact)


@dataclass(frozen=True, kw_only=True)
class Infeasibility:
    """A proof that no plan of a scope exists.

    Parameters
    ----------
    scope : Scope
        The plans that cannot exist.
    proof : Proof or str
        Why; in words where another package, or an older file, says it.
    least_memory_bytes : int, optional
        The least memory, with what is reserved, with which a plan of the scope was found: on
        every GPU, or for unequal GPUs on the one that binds, all others growing by as much. None
        where more memory does not help, or none was looked for.
    proven_memory_bytes : int, optional
        With less than this, in the same sense, no plan of the scope exists.
    gpu : int, optional
        The GPU that binds.
    wider : tuple of Suggestion or str
        What to try next, the least intrusive first.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    scope: Scope
    proof: Proof | str
    least_memory_bytes: int | None = None
    proven_memory_bytes: int | None = None
    gpu: int | None = None
    wider: tuple[Suggestion, ...] | str = ()

    def amount(self, memory_bytes: int, platform: Platform) -> tuple[int, bool]:
        """Return an amount of memory as a person needs it, and whether it is an increase.

        Per GPU. With unequal GPUs: the increase over the present memory.
        """
        if self.gpu is None or len({gpu.memory_bytes for gpu in platform.gpus}) == 1:
            return memory_bytes, False
        return memory_bytes - platform.gpus[self.gpu].memory_bytes, True

    def say(self, memory_bytes: int, platform: Platform, *, exact: bool = False) -> str:
        """Write one of the amounts of memory for a person, perhaps with the bytes behind it."""
        count, is_increase = self.amount(memory_bytes, platform)
        more = " more on every GPU" if is_increase else ""
        behind = f" ({count} bytes)" if exact else ""
        return f"{format_bytes(count)}{more}{behind}"


@dataclass(frozen=True, kw_only=True)
class PhaseResult:
    """One phase of the portfolio: what one solver added.

    Parameters
    ----------
    solver : str
    freedom : str
        What it may do that those before may not, as far as the scope allows it.
    period_exact : (int, int), optional
        The best normalized period that it found, ns.
    bound_exact : (int, int), optional
        The best bound known then for plans with the freedoms so far, ns.
    seconds : float
        What it took.
    note : Note or str
        What it proved, or why it found nothing; in words in older files.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    solver: str
    freedom: str = ""
    period_exact: Ratio | None = None
    bound_exact: Ratio | None = None
    seconds: float = 0.0
    note: Note | str = ""

    def __post_init__(self) -> None:
        check_ratio(self, "period_exact")
        check_ratio(self, "bound_exact")


@dataclass(frozen=True, kw_only=True)
class SizeResult:
    """What was found for one size of micro-batches, where several may make a batch.

    Parameters
    ----------
    samples : int
        Of a micro-batch.
    microbatches : int
        Of a step.
    step_ns : int, optional
        The shortest step found.
    bound_exact : (int, int)
        No step with such micro-batches is shorter, ns.
    infeasible : bool
        Whether there is no plan with them.
    recomputed_modules : sequence of str
        Modules of each layer that are computed again, where a profile has layers of several kinds.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    samples: int
    microbatches: int
    step_ns: int | None = None
    bound_exact: Ratio = (0, 1)
    infeasible: bool = False
    recomputed_modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        as_tuple(self, "recomputed_modules", str)
        check_ratio(self, "bound_exact")

    @property
    def bound(self) -> Fraction:
        """The bound of the step, ns."""
        return Fraction(*self.bound_exact)


Rung = PhaseResult
"""Its old name, for one release."""


@dataclass(frozen=True, kw_only=True)
class Result(
    Stored,
    load="schedopt.formats.results:load_result",
    text="schedopt.formats.results:result_to_json",
):
    """The answer to a problem.

    In a file ``schedopt.plan/1``, which needs a plan. What is loaded is not checked: see
    `schedopt.check`.

    Parameters
    ----------
    problem : Problem
        What was asked.
    status : {"optimal", "feasible", "infeasible", "unknown"}
        *optimal* only if the period equals a bound of the scope; *infeasible* only with a proof.
    plan : Plan, optional
        The best plan found.
    bounds : tuple of Bound
        What was proven.
    infeasibility : Infeasibility, optional
    ladder : tuple of PhaseResult
        What each solver added, in order.
    solver : str
        The one that found the plan.
    seconds : float
    seed : int
    version : str
        Of schedopt.
    sizes : tuple of SizeResult
        Where micro-batches of several sizes may make the batch, or layers of several kinds: what
        was found for each, by its samples. The problem, its plan and its bounds are those of the
        size that is best.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    problem: Problem
    status: Status
    plan: Plan | None = None
    bounds: tuple[Bound, ...] = ()
    infeasibility: Infeasibility | None = None
    ladder: tuple[PhaseResult, ...] = ()
    solver: str = ""
    seconds: float = 0.0
    seed: int = 0
    version: str = ""
    sizes: tuple[SizeResult, ...] = ()

    def __str__(self) -> str:
        if self.plan is None or self.period is None:
            return f"No plan for {self.problem.chain}: {self.verdict}"
        pattern = self.plan.pattern
        length = f"period {format_duration(self.period)}"
        if self.plan.is_training_step:
            samples = self.plan.chain.samples_of(pattern.k)
            length = f"step {format_duration(pattern.period_total_ns)} for {samples} samples"
        gpus = len(self.plan.first_of_group)
        return (
            f"{self.plan.chain}: {length} with {counted(len(self.plan.stages), 'stage')} on "
            f"{counted(gpus, 'GPU')}, {self.verdict}"
        )

    @property
    def period(self) -> Fraction | None:
        """The normalized period T / k in ns, exact; None without a plan."""
        if self.plan is None:
            return None
        return self.plan.pattern.period

    @property
    def lower_bound(self) -> Fraction | None:
        """The best bound that holds in the scope asked, in ns, exact."""
        return best_bound(self.bounds, self.problem.scope)

    @property
    def gap(self) -> Fraction | None:
        """(period - bound) / bound; None where either is missing or the bound is 0."""
        period, bound = self.period, self.lower_bound
        return (period - bound) / bound if period is not None and bound else None

    @property
    def gap_of_sizes(self) -> Fraction | None:
        """The gap to the best step with micro-batches of any size that was asked about.

        None without a plan, or without such sizes.
        """
        if self.plan is None or not self.sizes:
            return None
        step = Fraction(self.plan.pattern.period_total_ns)
        bounds = [size.bound for size in self.sizes if not size.infeasible]
        least = min([step, *bounds])
        return (step - least) / least if least else None

    @property
    def gaps(self) -> dict[str, Fraction]:
        """The gaps to the best plan with short patterns, and with longer ones.

        By the length in words, from k = 1 to any k, as far as shorter ones have a smaller gap. A
        step has one gap, and no word.
        """
        period, asked = self.period, self.problem.scope
        if period is None:
            return {}
        if asked.microbatches is not None:
            return {} if self.gap is None else {"": self.gap}
        found: dict[str, Fraction] = {}
        above = Fraction(0)
        for longest in dict.fromkeys((None, asked.max_k, 1)):
            bound = best_bound(self.bounds, replace(asked, max_k=longest))
            if bound is not None and above < bound <= period:
                words = {None: "any k", 1: "k = 1"}.get(longest, f"k up to {longest}")
                found[words], above = (period - bound) / bound, bound
        return dict(reversed(found.items()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the model was left out, and why, in words."""
        degrees = " and ".join(map(str, self.problem.degrees_without_node))
        most = self.problem.platform.largest_node
        return (f"tensor groups of {degrees} GPUs: no node has more than {most}",) * bool(degrees)

    @property
    def verdict(self) -> str:
        """The status in words."""
        asked = self.problem.scope.period_ns
        match self.status:
            case "optimal":
                return f"{self._proven(self.proof)} optimal"
            case "feasible" if asked is not None:
                return f"within the {format_duration(asked)} that were asked"
            case "feasible" if gaps := self.gaps:
                if self.gap_of_sizes is not None:
                    gaps = {"micro-batches of any size": self.gap_of_sizes}
                parts = (
                    (f"within {format_gap(gap)} of the best" if gap else "the best")
                    + (f" with {length}" if length else "")
                    for length, gap in gaps.items()
                )
                return f"{self._proven(self.proof)} {' and '.join(parts)}"
            case "feasible":
                return "not proven optimal"
            case "infeasible":
                why = self.infeasibility
                return f"{self._proven('' if why is None else why.proof)} infeasible"
            case "unknown" if self.plan is not None:
                return "does not fit into the memory"
            case "unknown":
                return "no plan found, and none proven impossible"

    @staticmethod
    def _proven(proof: Proof | str) -> str:
        if isinstance(proof, Proof) and proof.kind is ProofKind.CLAIMED:
            return f"claimed by {proof.solver} to be"
        return "proven"

    @property
    def proof(self) -> Proof | str:
        """Why the lower bound holds; empty without one."""
        scope = self.problem.scope
        holding = [bound for bound in self.bounds if bound.scope.covers(scope)]
        return max(holding, key=lambda bound: bound.period).proof if holding else ""

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        text: str = find_function("schedopt.reporting.notebook:show_result")(self)
        return text


def best_bound(bounds: Iterable[Bound], scope: Scope) -> Fraction | None:
    """Return the largest bound that holds in a scope."""
    return max((bound.period for bound in bounds if bound.scope.covers(scope)), default=None)
