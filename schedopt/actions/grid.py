"""The GPUs of a plan as pipelines side by side: stages x data parallel x tensor parallel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from schedopt.errors import InputError
from schedopt.plan import Plan


@dataclass(frozen=True)
class Grid:
    """The GPUs of a plan whose stages have equally many replicas of equally many GPUs each.

    Parameters
    ----------
    gpus : tuple of tuple of tuple of int
        By place in the pipeline, replica and place in the tensor group. Replica d runs the
        micro-batches i with i mod R = d, in all stages.
    """

    gpus: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def replicas(self) -> int:
        """R, the pipelines side by side."""
        return len(self.gpus[0])

    @property
    def tensor(self) -> int:
        """t, the GPUs of a tensor group."""
        return len(self.gpus[0][0])

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The GPU of each process, ascending."""
        return tuple(sorted(gpu for column in self.gpus for group in column for gpu in group))

    @cached_property
    def places(self) -> tuple[tuple[int, int, int], ...]:
        """Where each process is: place in the pipeline, replica, place in the tensor group."""
        found = {
            gpu: (p, d, t)
            for p, column in enumerate(self.gpus)
            for d, group in enumerate(column)
            for t, gpu in enumerate(group)
        }
        return tuple(found[gpu] for gpu in self.processes)

    def lane(self, replica: int) -> tuple[int, ...]:
        """Return the GPUs of a pipeline, ascending: of each tensor group the first."""
        return tuple(sorted(column[replica][0] for column in self.gpus))


def find_grid(plan: Plan) -> Grid:
    """Return the GPUs of a plan as a grid.

    Raises
    ------
    InputError
        If stages have other numbers of replicas or of GPUs in a group, or pipelines share a GPU.
    """
    first = plan.stages[0]
    columns: dict[int, tuple[int, ...]] = {}
    for number, stage in enumerate(plan.stages):
        if len(stage.gpus) != len(first.gpus):
            raise _no_grid(
                number, f"has {len(stage.gpus)} replicas, and stage 0 has {len(first.gpus)}"
            )
        if stage.tensor != first.tensor:
            raise _no_grid(
                number,
                f"has {stage.tensor} GPUs in each tensor group, and stage 0 has {first.tensor}",
            )
        if columns.setdefault(stage.gpus[0], stage.gpus) != stage.gpus:
            raise _no_grid(number, "shares some of its GPUs with another stage, and not all")
    used = [gpu for gpus in columns.values() for gpu in gpus]
    for number, stage in enumerate(plan.stages):
        if any(used.count(gpu) > 1 for gpu in stage.gpus):
            raise _no_grid(number, "has a GPU on which several replicas run")
    return Grid(tuple(tuple(tuple(first.group(gpu)) for gpu in gpus) for gpus in columns.values()))


def _no_grid(number: int, rule: str) -> InputError:
    return InputError(
        f"stage {number} {rule}, which is no grid of pipelines side by side",
        field=f"stages[{number}].gpus",
        way_out='Solve with Scope(engine="torch"), or run it with the backend p2p of schedopt run',
    )
