"""Sparse 1F1B*: a k-periodic pattern for k > 1 in closed form.

1F1B* runs with a period t, but only k of every K periods carry a micro-batch. A stage that would
keep g micro-batches then keeps at most ceil(g k / K), and T / k = t K / k. With F = 1, B = 2 and
room for N micro-batches on P stages, N of every P periods give the best pattern of all, max(3,
3 P / N). Here t is the least with which 1F1B* fits when it keeps so much less: of the stages that
are given, or of all contiguous ones, which may recompute. Where a GPU may run several stages there
may be more of them than GPUs: in the periods without a micro-batch another stage runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import count
from math import ceil, floor, gcd
from typing import Final

from schedopt.account import memory
from schedopt.account.timeline import Timeline
from schedopt.bounds import load_bound
from schedopt.bounds.load import longest_layer_ns
from schedopt.errors import InputError
from schedopt.network import Resource
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.simulation.delaying import delay_transfers
from schedopt.solvers import contiguous, one_f_one_b_star
from schedopt.solvers.contiguous import best_stages
from schedopt.solving.circular import Interval, meet
from schedopt.solving.models.pattern_search import LONGEST
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.requirements import refuse_unsupported, require_contiguous, require_stages
from schedopt.solving.run import Run
from schedopt.solving.shared_links import plan_at
from schedopt.solving.stage_chain import SparsePattern, StageChain

MOST_MISSES: Final = 8
"""Stop after this many consecutive failures to improve with more stages than GPUs."""
MOST_LAYERS: Final = 256
"""With more, more stages than GPUs take too long."""


def solve(problem: Problem, run: Run) -> None:
    """Report each sparse pattern that is better than the best so far, or than that for k = 1.

    Raises
    ------
    InputError
        If stages are given that are not contiguous, or the problem asks for more than this.
    """
    refuse_unsupported(problem, "thinned")
    if problem.scope.max_k == 1:
        raise InputError(
            "thinned makes patterns of two micro-batches or more",
            field="scope.max_k",
            way_out="Allow them (Scope(max_k=2)), or use another solver",
        )
    fixed = problem.scope.allocation == "fixed"
    if fixed:
        require_stages(problem, "thinned")
        require_contiguous(problem, "thinned")
    if run.best() is None and problem.scope.period_ns is None:
        single = replace(problem, scope=replace(problem.scope, max_k=1))
        if not run.settled(single.scope):
            (one_f_one_b_star if fixed else contiguous).solve(single, run)
        if run.best() is None:
            # Without a plan for k = 1 there is nothing to improve.
            return
    least = ceil(AllocatedPipeline(problem).load_ns if fixed else load_bound(problem).period)
    misses = 0
    for k in range(2, (problem.scope.max_k or LONGEST) + 1):
        for slots in count(k + 1):
            if run.stopped() or run.settled():
                return
            sparse = SparsePattern(k, slots)
            high = _longest_slot(sparse, problem, run)
            alone = high >= least
            packed = misses < MOST_MISSES and _may_pack(problem, high)
            if not (alone or packed) or high < 1:
                break
            if gcd(k, slots) > 1:
                continue
            if alone:
                _report((_fixed if fixed else _contiguous)(problem, sparse, high, run), run)
            if packed and slots >= 2 * k:
                high = _longest_slot(sparse, problem, run)
                plan = _packed(problem, sparse, high, run)
                misses = misses + 1 if plan is None else 0
                _report(plan, run)


def _report(plan: Plan | None, run: Run) -> None:
    if plan is not None:
        run.report(plan)


def _longest_slot(sparse: SparsePattern, problem: Problem, run: Run) -> int:
    """Return the longest 1-periodic period that makes a better plan than the best, ns."""
    share = Fraction(sparse.k, sparse.slots)
    best, asked = run.period(), problem.scope.period_ns
    limits = [] if best is None else [ceil(best * share) - 1]
    limits += [] if asked is None else [floor(asked * share)]
    return min(limits)


def _contiguous(problem: Problem, sparse: SparsePattern, high: int, run: Run) -> Plan | None:
    best = best_stages(problem, high, run, sparse)
    if best is None:
        return None
    stages, period = best
    return plan_at(StageChain(problem, stages, sparse=sparse), period)


def _may_pack(problem: Problem, high: int) -> bool:
    """Whether stages may share a GPU, and there may be more of them than GPUs."""
    platform = problem.platform
    return (
        problem.scope.allocation == "general"
        and platform.uniform
        and len(platform.gpus) < len(problem.chain.layers) <= MOST_LAYERS
        and high >= longest_layer_ns(problem)
    )


def _packed(problem: Problem, sparse: SparsePattern, high: int, run: Run) -> Plan | None:
    """Return the best plan found with more stages than GPUs, as many as there may be first."""
    gpus, turns = problem.platform.gpus, sparse.slots // sparse.k
    more = min(len(problem.chain.layers), turns * len(gpus)) - len(gpus)
    while more > 0 and not run.stopped():
        platform = problem.platform.with_gpus(gpus[:1] * (len(gpus) + more))
        plan = _contiguous(replace(problem, platform=platform), sparse, high, run)
        if plan is None:
            # With fewer stages the period would be longer.
            return None
        packed = pack_stages(delay_transfers(plan), problem.platform)
        if packed is not None:
            return packed
        more //= 2
    return None


def _fixed(problem: Problem, sparse: SparsePattern, high: int, run: Run) -> Plan | None:
    chain = StageChain(problem, problem.stages, free=problem.scope.recompute, sparse=sparse)
    return plan_at(chain, chain.shorten(high, run)) if chain.fits(high) else None


def pack_stages(plan: Plan, platform: Platform) -> Plan | None:
    """Return a plan with the same start times on fewer GPUs; None if none was found.

    Where only some periods carry a micro-batch, a GPU with one stage idles in the others, and
    another stage may run then. The stages are packed onto the GPUs like things into bins, the one
    with the most memory first, each onto the first GPU where it fits (first fit decreasing).

    Parameters
    ----------
    plan : Plan
        Contiguous, each stage on a GPU of its own, all GPUs and links alike.
    platform : Platform
        Fewer of the same GPUs, with the same links.
    """
    packing = _Packing(plan, platform)
    needs = [gpu.sum_bytes for gpu in memory(plan)]
    need_of = [needs[stage.gpus[0]] for stage in plan.stages]
    for stage in sorted(range(len(plan.stages)), key=lambda stage: -need_of[stage]):
        if not packing.place(stage, need_of[stage]):
            return None
    home = packing.home
    stages = [replace(stage, gpus=(home[number],)) for number, stage in enumerate(plan.stages)]
    sent = [sent for sent in plan.pattern.transfers if home[sent.stage] != home[sent.stage + 1]]
    pattern = replace(plan.pattern, transfers=tuple(sent))
    return replace(plan, platform=platform, stages=tuple(stages), pattern=pattern)


class _Packing:
    """Stages on GPUs, with what occupies GPUs and links; `home` says the GPU of each."""

    def __init__(self, plan: Plan, platform: Platform) -> None:
        self.platform = platform
        timeline = Timeline(plan)
        self.period = timeline.length_ns
        self.home: dict[int, int] = {}
        self.room = [gpu.usable_bytes for gpu in platform.gpus]
        self.taken: dict[Resource, list[Interval]] = defaultdict(list)
        self.works: dict[int, list[Interval]] = defaultdict(list)
        for operation, _, when in timeline.operations():
            self.works[operation.stage].append((when.start_ns, when.end_ns - when.start_ns))
        # By the stage before the cut, and whether ahead.
        self.sends: dict[tuple[int, bool], list[Interval]] = defaultdict(list)
        for transfer, _, _, _, when in timeline.transfers():
            ahead = transfer.tensor == "activation"
            self.sends[transfer.stage, ahead].append((when.start_ns, when.end_ns - when.start_ns))

    def place(self, stage: int, need: int) -> bool:
        """Place a stage on the first GPU where it fits; return whether there is one."""
        for gpu in range(len(self.room)):
            uses = self._uses(stage, gpu)
            if need <= self.room[gpu] and self._are_free(uses):
                for resource, busy in uses:
                    self.taken[resource] += busy
                self.room[gpu] -= need
                self.home[stage] = gpu
                return True
        return False

    def _uses(self, stage: int, gpu: int) -> list[tuple[Resource, Sequence[Interval]]]:
        """Return what a stage would occupy on a GPU, with links to neighbours that are placed."""
        uses: list[tuple[Resource, Sequence[Interval]]] = [(("gpu", gpu, gpu), self.works[stage])]
        for cut, other in ((stage - 1, stage - 1), (stage, stage + 1)):
            if other in self.home and self.home[other] != gpu:
                ends = (self.home[other], gpu) if other < stage else (gpu, self.home[other])
                for ahead in (True, False):
                    route = self.platform.route(*(ends if ahead else ends[::-1]))
                    uses += [(resource, self.sends[cut, ahead]) for resource in route]
        return uses

    def _are_free(self, uses: Iterable[tuple[Resource, Sequence[Interval]]]) -> bool:
        """Whether nothing meets what is there, or itself on a link that serves both directions."""
        added: dict[Resource, list[Interval]] = defaultdict(list)
        for resource, busy in uses:
            others = self.taken[resource] + added[resource]
            if any(meet(interval, other, self.period) for interval in busy for other in others):
                return False
            added[resource] += busy
        return True
