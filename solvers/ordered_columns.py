"""Whether GPUs can hold all layers in parts, those of each with an order there, case by case.

For k = 1 that is one question about columns (`schedopt.solving.packing_columns`). For k = 2 it is
one for each gap of the two micro-batches (`schedopt.bounds.pairs`): a plan has one of these, so a
period is refuted if all are. With tight memory what gaps force leaves few of them open, where the
micro-batches come nearly evenly, and there the distances of one to the next are long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from schedopt.bounds.pairs import Gap
from schedopt.bounds.propagation import MOST_LAYERS, ForcedWork, propagate

if TYPE_CHECKING:
    from schedopt.solving.packing_columns import Flags
    from schedopt.solving.run import Run

PARTS: Final = 16
"""Parts of all gaps, a power of 4."""
GAP_WORK: Final = 2.0
"""Work on each gap, at least: what it refutes is seldom refuted with less."""


class OrderedColumns:
    """What is kept from one question to the next.

    Attributes
    ----------
    columns : list of array of bool, shape (layers,)
        Those of the last question.
    gap : Gap
        That which was the last to be left open, and is asked about first.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.columns: list[Flags] = []
        self.gap = Gap()

    def may_hold_all(self, forced: ForcedWork, most_work: float) -> bool | None:
        """Whether parts of columns with an order hold all layers; None if it is not known.

        `most_work`, or `GAP_WORK`, goes to each gap, in the unit of `solve_model`.
        """
        for gap, case in self._cases(forced):
            enough = most_work if gap.parts == 1 else max(GAP_WORK, most_work)
            may_hold = self._may_hold(case, enough)
            if may_hold is not False:
                self.gap = gap
                return may_hold
        return False

    def _cases(self, forced: ForcedWork) -> Iterator[tuple[Gap, ForcedWork]]:
        """Yield the gaps that are possible, with what each forces."""
        amounts, whole = forced.scaled.amounts, Gap()
        if amounts.repeat != 2 or len(forced.spans) > MOST_LAYERS:
            yield whole, forced
            return
        first = self.gap
        gaps = [whole] if first == whole else [whole, first]
        asked = set[Gap]()
        while gaps:
            gap = gaps.pop()
            if gap in asked:
                continue
            asked.add(gap)
            case = propagate(amounts, forced.scaled.period, gap, self.run.stopped)
            if case is None:
                continue
            if gap.parts == PARTS:
                yield gap, case
            else:
                gaps.extend(gap.split())

    def _may_hold(self, case: ForcedWork, most_work: float) -> bool | None:
        from schedopt.solving.one_gpu.columns import GpuOrders
        from schedopt.solving.packing_columns import UNITS, GpuLimits, PackingColumns

        limits = GpuLimits.of(case)
        orders = GpuOrders(case, limits.sizes, UNITS, limits.apart, self.run.stopped)
        gpus = len(case.scaled.problem.platform.gpus)
        columns = PackingColumns(limits, gpus, self.run, self.columns, orders)
        may_hold = columns.may_hold_all(most_work)
        self.columns = columns.columns
        return may_hold
