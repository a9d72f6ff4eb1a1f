"""The one table of targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.stored import find_function

Exporter = Callable[[Plan, int], Mapping[str, str]]
"""From a valid plan and the micro-batches of a step to the texts of files, by name.

Raises `InputError` for what the target cannot express.
"""


@dataclass(frozen=True)
class Target:
    """A tool that takes plans: what one types, what one reads, and "module:function"."""

    name: str
    title: str
    exporter: str

    def export(self, plan: Plan, microbatches: int) -> Mapping[str, str]:
        """Return the texts of the files of this target, by name, for a step of a valid plan.

        Raises
        ------
        InputError
            For what the target cannot express, with the reason and the way out.
        """
        return cast(Exporter, find_function(self.exporter))(plan, microbatches)


_TABLE: Final = (
    # What one types and what one reads; the module in this room has the name in snake case.
    ("torch-csv", "compute-only rows for torch.distributed.pipelining"),
    ("torchtitan", "a configuration for torchtitan, and the rows"),
    ("megatron", "arguments of Megatron-LM"),
    ("deepspeed", "a PipelineModule and a configuration for DeepSpeed"),
    ("perfetto", "a step to scale with memory, for ui.perfetto.dev"),
)

TARGETS: Final = tuple(
    Target(name, title, f"schedopt.exporting.{name.replace('-', '_')}:export")
    for name, title in _TABLE
)


def find_target(name: str) -> Target:
    """Return a target by name.

    Raises
    ------
    InputError
        With the list of those that there are.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    known = ", ".join(target.name for target in TARGETS)
    raise InputError(f"{name!r:.60} is not known", field="to", way_out=f"Choose {known}")


def refused(target: str, rule: str, way_out: str) -> InputError:
    """Return the error for what a target cannot express."""
    return InputError(f"{target} cannot express it: {rule}", field="to", way_out=way_out)


def refuse_copies(plan: Plan, target: str) -> None:
    """Refuse copies of tied weights, for a target that does not add up their gradients."""
    if plan.chain.copied:
        told = ", ".join(map(str, plan.chain.copied[0]))
        raise refused(
            target,
            f"layers {told} have copies of the same weights, and it would train each apart",
            "Export to megatron, which adds up their gradients, or keep tied layers together",
        )
