"""`compare`: every system and our best plans on the same GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from types import MappingProxyType
from typing import Final

from schedopt.chain import Chain, say_recomputed
from schedopt.comparing.comparison import LEAST_STEP, OURS, Comparison, Row
from schedopt.comparing.measures import measure_plan
from schedopt.comparing.our_step import shortest_step, step_problem
from schedopt.effort import GAP, TIME_LIMIT
from schedopt.errors import InputError
from schedopt.interrupts import Late, Stopped, interrupts, raising_late, raising_stopped
from schedopt.plan import Plan, require_plan
from schedopt.platform import Platform
from schedopt.problem import MOST_OF_BATCH, Problem, Scope
from schedopt.profile import Profile, Variant, kinds_of_one_size
from schedopt.result import Result
from schedopt.scope import MemoryReading
from schedopt.solving import Progress
from schedopt.solving.options import as_time_limit
from schedopt.solving.registry import default_scope
from schedopt.solving.sizes import solve_sizes
from schedopt.systems import catalogue
from schedopt.systems.catalogue import System
from schedopt.systems.config import SystemConfig
from schedopt.units import format_duration
from schedopt.validation import as_whole, check_mapping, show
from schedopt.version import __version__

SYSTEMS_SHARE: Final = 2 / 3
"""The most of the time for systems, where our plans are looked for, too."""
SLOW: Final = (
    "zero_1", "zero_2", "dp_bucketed", "dp_overlapped", "dp_by_layer", "zero_3", "cdp_v1", "cdp_v2",
    "cdp_v1_one_gpu", "cdp_v2_one_gpu", "timeprest", "cdp_v1_zero", "cdp_v2_zero",
)  # fmt: skip
"""Systems that take longest to be laid out and checked, and so come last, in this order."""
LEAST_S: Final = 0.1
"""For each of our plans at least, seconds."""

Kinds = Sequence[tuple[Chain, tuple[Variant, ...]]]
"""Chains with their variants: one for each set of modules that are computed again."""


def compare(
    chain: Chain | Profile,
    platform: Platform,
    *,
    microbatches: int | None = None,
    systems: Sequence[str] | None = None,
    bucket_bytes: int | None = None,
    memory: MemoryReading = "peak",
    recompute: bool = False,
    time_limit: float | None = TIME_LIMIT,
    seed: int = 0,
    workers: int | None = None,
    gap: float = GAP,
    plans: Mapping[str, Plan] = MappingProxyType({}),
    on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Comparison:
    """Put every system and our best plans on the same GPUs, and look at what each costs.

    Each plan goes through `schedopt.check`. The first Ctrl-C, or a request to end (SIGTERM), ends
    it with the rows so far.

    Parameters
    ----------
    chain : Chain or Profile
        A profile has one size of micro-batches. Only our step may have its tensor groups, and
        modules that are computed again; of the latter all others have the fewest.
    platform : Platform
    microbatches : int, optional
        m, of a step. Default: 4 for each GPU. A system whose updates need a multiple of another
        number takes the next one above.
    systems : sequence of str, optional
        Names of `schedopt.systems.catalogue.SYSTEMS`, or of our plans: ``"schedopt"`` has the least
        period, ``"schedopt_step"`` the shortest step with a flush, which starts from the shortest
        one of its kind among the systems, if there is time to check that. Default: all.
    bucket_bytes : int, optional
        Gradients that systems with buckets send together. Default: 25 MiB.
    memory : {"sum", "peak"}
        The reading of memory that must fit.
    recompute : bool
        Whether our plans may recompute, as in a `Scope`. They may split the backward wherever the
        chain has its halves.
    time_limit : float, optional
        Seconds for all but `plans`; None: until our plans are proven. Where our plans are asked
        for, at most two thirds are for systems. One for which no time is left has a row that says
        so; outside of the main thread none is stopped once it has begun.
    seed : int
    workers : int, optional
        Threads of the search for our plans.
    gap : float
        How close to the best they need to be: see `schedopt.solve`.
    plans : mapping of str to Plan
        Other plans to put beside them, with a name for each: for this chain on this platform,
        such as what is run now (`schedopt.importing.import_launch`).
    on_progress : callable, optional
        Called with the number of rows done, the number of all, and the name of the row in work.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        For bad input. What one system cannot do is a row.
    InvalidPlanError
        If a plan is refused by the check for another reason than memory.
    """
    kinds = kinds_of_one_size(chain)
    chain = kinds[0][0]
    # Refuses anything but a chain and a platform.
    Problem(chain=chain, platform=platform)
    if microbatches is None:
        microbatches = 4 * len(platform.gpus)
    as_whole(microbatches, "microbatches", low=1, high=MOST_OF_BATCH)
    time_limit = as_time_limit(time_limit)
    chosen = _chosen(systems)
    config = SystemConfig(chain=chain, platform=platform, microbatches=microbatches)
    if bucket_bytes is not None:
        config = replace(config, bucket_bytes=bucket_bytes)
    scope = replace(
        default_scope(None, fixed=False),
        memory=memory,
        split_backward=chain.has_halves,
        recompute=recompute,
    )
    search = _Search(scope=scope, time_limit=time_limit, seed=seed, workers=workers, gap=gap)
    _check_plans(plans, config, kinds)
    rows = _Rows(config, kinds, chosen, search, on_progress).fill(plans)
    done = {row.system.name for row in rows}
    return Comparison(
        chain=chain,
        platform=platform,
        microbatches=microbatches,
        memory=memory,
        bucket_bytes=config.bucket_bytes,
        rows=tuple(rows),
        missing=tuple(system.name for system in chosen if system.name not in done),
        version=__version__,
    ).ordered("throughput")


def _chosen(names: Sequence[str] | None) -> list[System]:
    """Return the systems of these names, each once, ours last."""
    known = {system.name: system for system in (*catalogue.SYSTEMS, *OURS)}
    if names is None:
        return [*known.values()]
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(
            f"{show(names)} is not a list of names",
            field="systems",
            way_out="Give a list, such as ['gpipe', 'schedopt']",
        )
    wanted = [*names]
    for name in wanted:
        if not isinstance(name, str) or name not in known:
            raise InputError(
                f"{show(name)} is not known",
                field="systems",
                way_out=f"Choose {', '.join(known)}",
            )
    return [system for name, system in known.items() if name in wanted]


def _check_plans(plans: Mapping[str, Plan], config: SystemConfig, kinds: Kinds) -> None:
    """Require that other plans have names of their own, one of the chains, and the platform."""
    check_mapping(plans, "plans")
    known_chains = {chain.sha256 for chain, _ in kinds}
    for name, plan in plans.items():
        require_plan(plan)
        for known in (*catalogue.SYSTEMS, *OURS):
            if name == known.name:
                raise InputError(
                    f"{show(name)} is the name of a system",
                    field="plans",
                    way_out="Give it another name",
                )
        for field, alike in (
            ("chain", plan.chain.sha256 in known_chains),
            ("platform", plan.platform == config.platform),
        ):
            if not alike:
                raise InputError(
                    f"{show(name)} is a plan for another {field}",
                    field="plans",
                    way_out=f"Give a plan for this {field}",
                )


@dataclass(frozen=True, kw_only=True)
class _Search:
    """How our plans are searched for: that of least period in this scope, within `time_limit`."""

    scope: Scope
    time_limit: float | None
    seed: int
    workers: int | None
    gap: float


class _Rows:
    """The rows of a comparison, filled one by one."""

    def __init__(
        self,
        config: SystemConfig,
        kinds: Kinds,
        chosen: Sequence[System],
        search: _Search,
        on_progress: Callable[[int, int, str], None],
    ) -> None:
        self.config, self.chosen, self.search = config, chosen, search
        self.kinds = kinds
        self.on_progress = on_progress
        self.done: list[Row] = []
        self.total = len(chosen)

    def _show(self, words: str) -> None:
        self.on_progress(len(self.done), self.total, words)

    def fill(self, plans: Mapping[str, Plan]) -> list[Row]:
        """Return a row for each, or for those before somebody asked to stop."""
        self.total += len(plans)
        try:
            with raising_stopped():
                for name, plan in plans.items():
                    self._show(name)
                    system = System(name=name, title="a plan of yours", constructor="", source="")
                    result = _result(system, plan, self.search.scope.memory)
                    count = self.config.microbatches
                    self.done.append(_measured(system, result, count, count))
                begin = monotonic()
                self._fill_systems(begin)
        except Stopped:
            return self.done
        # A search that is asked to stop ends with the best so far, which is a row.
        with interrupts() as interrupted:
            self._fill_ours(begin, interrupted)
        return self.done

    def _fill_systems(self, begin: float) -> None:
        """Add the rows of systems, the quick ones first, as long as there is time."""
        systems = [system for system in self.chosen if system not in OURS]
        limit = self.search.time_limit
        share = 1.0 if len(systems) == len(self.chosen) else SYSTEMS_SHARE
        for system in sorted(systems, key=_place):
            self._show(system.name)
            left = None if limit is None else share * limit - (monotonic() - begin)
            try:
                with raising_late(left):
                    row = _row(system, self.config, self.search.scope.memory)
            except Late:
                row = Row(system=system, note="no time was left for it", is_late=True)
            self.done.append(row)

    def _fill_ours(self, begin: float, interrupted: Callable[[], bool]) -> None:
        limit = self.search.time_limit
        ours = [system for system in self.chosen if system in OURS]
        for number, system in enumerate(ours):
            if interrupted():
                return
            self._show(system.name)
            left = None if limit is None else limit - (monotonic() - begin)
            seconds = None if left is None else max(LEAST_S, left / (len(ours) - number))
            self.done.append(self._our_row(system, seconds))

    def _our_row(self, system: System, seconds: float | None) -> Row:
        """Return the row of one of our plans, of which a step starts from the best known one."""

        def report(progress: Progress) -> None:
            best = "none" if progress.period is None else format_duration(progress.period)
            self._show(f"{system.name}: {progress.solver}, best {best}")

        begin, config, scope, start = monotonic(), self.config, self.search.scope, None
        count = config.microbatches
        try:
            problem = Problem(chain=config.chain, platform=config.platform, scope=scope)
            problems = [problem]
            if system is LEAST_STEP:
                problems = [
                    step_problem(replace(problem, chain=chain), variants, count)
                    for chain, variants in self.kinds
                ]
                with suppress(Late), raising_late(seconds):
                    start = shortest_step(self.done, problems)
            if seconds is not None:
                seconds = max(LEAST_S, seconds - (monotonic() - begin))
            result = solve_sizes(
                problems,
                time_limit=seconds,
                seed=self.search.seed,
                workers=self.search.workers,
                gap=self.search.gap,
                initial=None if start is None else start[1],
                on_progress=report,
            )
        except InputError as error:
            return _impossible(system, error)
        scope, modules = result.problem.scope, result.problem.chain.recomputed_modules
        alone = "" if scope.replicas is None else " among plans without replicas"
        note = f"{result.verdict}{alone}{say_recomputed(modules)}"
        if start is not None and result.solver == "initial":
            note = f"that of {start[0]}; {note}"
        if result.plan is not None:
            return _measured(system, result, count, count, note)
        return Row(system=system, result=result, note=_why_none(result))


def _place(system: System) -> int:
    """Return where a system comes among those that take long; the others come before."""
    return SLOW.index(system.name) if system.name in SLOW else -1


def _row(system: System, config: SystemConfig, memory: MemoryReading) -> Row:
    if config.chain.together > 1:
        note = f"laid out for GPUs without others, and {config.chain.sharing}"
        return Row(system=system, note=note)
    try:
        plan, count = _made(system, config)
        return _measured(system, _result(system, plan, memory), config.microbatches, count)
    except InputError as error:
        return _impossible(system, error)


def _result(system: System, plan: Plan, memory: MemoryReading) -> Result:
    """Return a plan that nobody searched for, in a reading of memory."""
    plan = replace(plan, scope=replace(plan.scope, memory=memory))
    return Result(
        problem=plan.problem,
        status="feasible",
        plan=plan,
        solver=system.name,
        version=__version__,
    )


def _made(system: System, config: SystemConfig) -> tuple[Plan, int]:
    """Return the plan of a system for m micro-batches, or else for the next number that it can do.

    A number that it cannot do is one that does not go up in its GPUs.
    """
    gpus, asked = len(config.platform.gpus), config.microbatches
    more = -(-asked // gpus) * gpus
    try:
        return system.plan(config), asked
    except InputError as error:
        if error.field != "microbatches" or more == asked:
            raise
    return system.plan(replace(config, microbatches=more)), more


def _impossible(system: System, error: InputError) -> Row:
    where = f"{error.field}: " if error.field else ""
    return Row(system=system, note=f"{where}{error.rule}")


def _why_none(result: Result) -> str:
    note, why = result.verdict, result.infeasibility
    if result.status == "infeasible":
        note += " without replicas"
    if why is None or why.least_memory_bytes is None:
        return note
    least = why.say(why.least_memory_bytes, result.problem.platform)
    return f"{note}: a plan exists with {least}"


def _measured(system: System, result: Result, asked: int, count: int, note: str = "") -> Row:
    """Return the row of a plan, whose step has `count` micro-batches instead of those asked."""
    assert result.plan is not None
    figures = measure_plan(result.plan, count, system.name)
    taken = f"a step of {figures.microbatches}" if figures.microbatches != asked else ""
    said = "; ".join(part for part in (taken, note) if part)
    return Row(system=system, figures=figures, result=result, note=said)
