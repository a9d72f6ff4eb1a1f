"""What a sweep asks and knows: cells of its grid, the options that all share, and points."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Final

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.network import Duplex
from schedopt.plan import Pattern, Plan
from schedopt.platform import MOST_GPUS, Platform
from schedopt.problem import Problem, Scope, training_step
from schedopt.profile import Profile, Variant, of_one_size
from schedopt.proofs import Proof
from schedopt.result import Bound, Infeasibility, Result, Status
from schedopt.solving.options import as_time_limit
from schedopt.stage import Stage
from schedopt.stored import Stored, find_function
from schedopt.units import counted, format_bandwidth, format_bytes
from schedopt.validation import (
    STRICT,
    Ratio,
    as_tuple,
    check_choice,
    check_ratio,
    check_whole,
    require_kind,
)
from schedopt.version import __version__

SWEEP_FORMAT: Final = "schedopt.sweep/1"
MOST_POINTS: Final = 1000
"""Of a sweep; its file is written after each of them."""

Series = tuple[int, int | None]
"""Number of GPUs and bandwidth: points of one series differ in memory alone."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all points of a sweep share.

    Parameters
    ----------
    scope : Scope
        The plans that are allowed, of any allocation that is not fixed.
    batch : int, optional
        Samples of a training step, for its points to be steps: see `schedopt.solve`. Default: the
        steady state.
    solver : str, optional
        One by name, instead of those that the scope calls for.
    time_limit_s : float, optional
        Seconds for each point.
    seed : int
    reserved_bytes : int
        What is not ours on each GPU.
    latency_ns : int
        Added to each transfer, where links have a bandwidth.
    duplex : {"half", "full"}
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    scope: Scope = field(default_factory=Scope)
    batch: int | None = None
    solver: str | None = None
    time_limit_s: float | None = None
    seed: int = 0
    reserved_bytes: int = 0
    latency_ns: int = 0
    duplex: Duplex = "half"

    def __post_init__(self) -> None:
        for name in ("seed", "reserved_bytes", "latency_ns"):
            check_whole(self, name)
        check_whole(self, "batch", low=1, optional=True)
        check_choice(self, "duplex", ("half", "full"))
        as_time_limit(self.time_limit_s, "time_limit_s")
        require_kind(self.scope, Scope, "scope")
        if self.scope.allocation == "fixed":
            raise InputError(
                "stages that are given lie on GPUs that are given",
                field="scope.allocation",
                way_out="Sweep contiguous or general",
            )

    def ask(self, model: Chain | Profile, platform: Platform) -> Problem:
        """Return the question of a point; of a profile, a step may have its tensor groups."""
        chain, variants = of_one_size(model)
        if self.batch is not None:
            return training_step(chain, platform, self.batch, self.scope, variants)
        return Problem(chain=chain, platform=platform, scope=self.scope)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Where a point lies.

    Parameters
    ----------
    gpus : int
    memory_bytes : int
        Of each GPU, with what is reserved.
    bandwidth_bytes_per_s : int, optional
        Of each link. None: transfers are free.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    gpus: int
    memory_bytes: int
    bandwidth_bytes_per_s: int | None = None

    def __post_init__(self) -> None:
        check_whole(self, "gpus", low=1, high=MOST_GPUS)
        check_whole(self, "memory_bytes")
        check_whole(self, "bandwidth_bytes_per_s", low=1, optional=True)

    @property
    def series(self) -> Series:
        """What it shares with the points that differ from it in memory alone."""
        return self.gpus, self.bandwidth_bytes_per_s

    @property
    def key(self) -> tuple[int, int, int]:
        """Unique among points, and their order; free transfers come last."""
        return self.gpus, -(self.bandwidth_bytes_per_s or 0), self.memory_bytes

    @property
    def total_bytes(self) -> int:
        """The memory of all GPUs."""
        return self.gpus * self.memory_bytes

    def platform(self, options: Options) -> Platform:
        """Return the machine."""
        rate = self.bandwidth_bytes_per_s
        return Platform(
            self.gpus,
            self.memory_bytes,
            reserved=options.reserved_bytes,
            bandwidth=rate,
            latency=0 if rate is None else options.latency_ns,
            duplex=options.duplex,
        )

    def __str__(self) -> str:
        rate = self.bandwidth_bytes_per_s
        links = "free transfers" if rate is None else format_bandwidth(rate)
        return f"{counted(self.gpus, 'GPU')} of {format_bytes(self.memory_bytes)}, {links}"


@dataclass(frozen=True, kw_only=True)
class Point(Cell):
    """What is known of a cell.

    Parameters
    ----------
    gpus, memory_bytes, bandwidth_bytes_per_s
        The cell.
    status : {"optimal", "feasible", "infeasible", "unknown"}
        As in a result.
    period_exact : (int, int), optional
        The normalized period of the plan, ns.
    bound_exact : (int, int), optional
        A normalized period that no plan of the scope can beat here, ns.
    proof : Proof or str
        Why the bound holds, or why there is no plan.
    seconds : float
        What solving took.
    solver : str
        The one that found the plan.
    plan_memory_bytes : int, optional
        The memory for which the plan was found, where that is less than here.
    bound_memory_bytes : int, optional
        The memory for which the bound was proven, where that is more than here.
    least_memory_bytes, proven_memory_bytes : int, optional
        Where there is no plan: the least memory with which one is known, and that below which
        there is none, as in `schedopt.Infeasibility`.
    stages : tuple of Stage
    pattern : Pattern, optional
        With the stages, the plan.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    status: Status
    period_exact: Ratio | None = None
    bound_exact: Ratio | None = None
    proof: Proof | str = ""
    seconds: float = 0.0
    solver: str = ""
    plan_memory_bytes: int | None = None
    bound_memory_bytes: int | None = None
    least_memory_bytes: int | None = None
    proven_memory_bytes: int | None = None
    stages: tuple[Stage, ...] = ()
    pattern: Pattern | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "status", ("optimal", "feasible", "infeasible", "unknown"))
        check_ratio(self, "period_exact")
        check_ratio(self, "bound_exact")
        as_tuple(self, "stages")
        for name in ("plan", "bound", "least", "proven"):
            check_whole(self, f"{name}_memory_bytes", optional=True)
        pattern = self.pattern
        if (pattern is None) != (self.status in ("infeasible", "unknown")):
            raise InputError(
                f"{self.status} does not go with {'no' if pattern is None else 'a'} plan",
                field="status",
                way_out="Take the point away, to have it solved again",
            )
        own = None if pattern is None else pattern.period
        if own != self.period:
            raise InputError(
                "is not the period of the pattern",
                field="period_exact",
                way_out="Take the point away, to have it solved again",
            )

    @property
    def cell(self) -> Cell:
        """Where it lies."""
        return Cell(
            gpus=self.gpus,
            memory_bytes=self.memory_bytes,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
        )

    @property
    def period(self) -> Fraction | None:
        """The normalized period, ns; None without a plan."""
        return None if self.period_exact is None else Fraction(*self.period_exact)

    @property
    def bound(self) -> Fraction | None:
        """The bound, ns."""
        return None if self.bound_exact is None else Fraction(*self.bound_exact)

    @property
    def gap(self) -> Fraction | None:
        """(period - bound) / bound; None where either is missing or the bound is 0."""
        period, bound = self.period, self.bound
        return (period - bound) / bound if period is not None and bound else None

    def plan(self, chain: Chain | Profile, options: Options) -> Plan | None:
        """Return the plan, on the platform of this cell."""
        if self.pattern is None:
            return None
        problem = options.ask(chain, self.platform(options))
        return Plan.answering(problem, self.stages, self.pattern)

    def result(self, chain: Chain | Profile, options: Options) -> Result:
        """Return the answer to the problem of this cell."""
        problem = options.ask(chain, self.platform(options))
        scope = problem.scope
        bounds: tuple[Bound, ...] = ()
        why = None
        if self.bound_exact is not None:
            bounds = (Bound(exact=self.bound_exact, scope=scope, proof=self.proof),)
        if self.status == "infeasible":
            why = Infeasibility(
                scope=scope,
                proof=self.proof,
                least_memory_bytes=self.least_memory_bytes,
                proven_memory_bytes=self.proven_memory_bytes,
            )
        return Result(
            problem=problem,
            status=self.status,
            plan=self.plan(chain, options),
            bounds=bounds,
            infeasibility=why,
            solver=self.solver,
            seconds=self.seconds,
            seed=options.seed,
            version=__version__,
        )


@dataclass(frozen=True, kw_only=True)
class Sweep(
    Stored, load="schedopt.sweeping.files:load_sweep", text="schedopt.sweeping.files:sweep_to_json"
):
    """The points that are known of one chain, or of a profile with one size of micro-batches.

    In a file ``schedopt.sweep/1``. The plans of what is loaded are not checked.

    Parameters
    ----------
    chain_name : str
    chain_sha256 : str
    options : Options
    points : tuple of Point
        One for each cell, as `schedopt.sweeping.propagate_monotone` leaves them.
    chain : Chain, optional
        What the plans of the points are for. Older files lack it.
    variants : tuple of Variant
        The chain in tensor groups, where the sweep is of a profile.
    version : str
        Of schedopt, that wrote it last.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    chain_name: str = ""
    chain_sha256: str
    options: Options
    points: tuple[Point, ...] = ()
    chain: Chain | None = None
    variants: tuple[Variant, ...] = ()
    version: str = ""

    def __post_init__(self) -> None:
        as_tuple(self, "points")
        as_tuple(self, "variants", Variant)
        if self.model is not None and self.model.sha256 != self.chain_sha256:
            raise InputError(
                "does not belong to the chain in the sweep",
                field="chain_sha256",
                way_out="The points are for another chain, or it was edited: sweep again",
            )
        seen = set()
        for position, point in enumerate(self.points):
            if point.key in seen:
                raise InputError(
                    f"a second point for {point.cell}",
                    field=f"points[{position}]",
                    way_out="Keep one of them",
                )
            seen.add(point.key)

    @classmethod
    def of(cls, model: Chain | Profile, options: Options) -> Sweep:
        """Return a sweep without points, of a profile with micro-batches of one size."""
        chain, variants = of_one_size(model)
        return cls(
            chain_name=model.name,
            chain_sha256=model.sha256,
            options=options,
            chain=chain,
            variants=variants,
            version=__version__,
        )

    @property
    def model(self) -> Chain | Profile | None:
        """What the plans of the points are for; None in older files."""
        if self.chain is None or not self.variants:
            return self.chain
        on_one = Variant(tensor=1, chain=self.chain)
        return Profile(name=self.chain_name, variants=(on_one, *self.variants))

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        text: str = find_function("schedopt.reporting.notebook:show_sweep")(self)
        return text
