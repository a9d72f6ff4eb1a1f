"""Stages of a contiguous plan on fewer GPUs: those share one that never meet there.

Where only some periods carry a micro-batch, a GPU with one stage idles in the others, and another
stage may run then. Start times stay as they are: the stages are packed onto the GPUs like things
into bins, the one with the most memory first, each onto the first GPU where it fits (first fit
decreasing).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from schedopt.account import memory
from schedopt.account.timeline import Timeline
from schedopt.network import Resource
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.solving.circular import Interval, meet


def pack_stages(plan: Plan, platform: Platform) -> Plan | None:
    """Return a plan with the same start times on the GPUs of a platform; None if none was found.

    Parameters
    ----------
    plan : Plan
        Contiguous, each stage on a GPU of its own, all GPUs and links alike.
    platform : Platform
        Fewer of the same GPUs, with the same links.
    """
    packing = _Packing(plan, platform)
    needs = [gpu.sum_bytes for gpu in memory(plan)]
    for stage in sorted(range(len(plan.stages)), key=lambda one: -needs[plan.stages[one].gpus[0]]):
        if not packing.place(stage, needs[plan.stages[stage].gpus[0]]):
            return None
    home = packing.home
    stages = [replace(stage, gpus=(home[number],)) for number, stage in enumerate(plan.stages)]
    sent = [one for one in plan.pattern.transfers if home[one.stage] != home[one.stage + 1]]
    pattern = replace(plan.pattern, transfers=tuple(sent))
    return replace(plan, platform=platform, stages=tuple(stages), pattern=pattern)


class _Packing:
    """Stages on GPUs, with what occupies GPUs and links.

    Attributes
    ----------
    home : dict
        The GPU of each stage that is placed.
    """

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
        found: list[tuple[Resource, Sequence[Interval]]] = [(("gpu", gpu, gpu), self.works[stage])]
        for cut, other in ((stage - 1, stage - 1), (stage, stage + 1)):
            if other in self.home and self.home[other] != gpu:
                ends = (self.home[other], gpu) if other < stage else (gpu, self.home[other])
                for ahead in (True, False):
                    way = self.platform.route(*(ends if ahead else ends[::-1]))
                    found += [(resource, self.sends[cut, ahead]) for resource in way]
        return found

    def _are_free(self, uses: Iterable[tuple[Resource, Sequence[Interval]]]) -> bool:
        """Whether nothing meets what is there, or itself on a link that serves both directions."""
        added: dict[Resource, list[Interval]] = defaultdict(list)
        for resource, busy in uses:
            there = self.taken[resource] + added[resource]
            if any(meet(interval, other, self.period) for interval in busy for other in there):
                return False
            added[resource] += busy
        return True
