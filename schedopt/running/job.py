"""What is asked of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, get_args

from schedopt.actions import Actions, actions_of
from schedopt.errors import InputError
from schedopt.folding import whole
from schedopt.plan import Plan
from schedopt.simulation import Simulation, simulate
from schedopt.validation import as_whole, check_choice, show

Backend = Literal["logical", "p2p", "pytorch"]
BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked of a run.

    Parameters
    ----------
    plan : Plan
        Valid: `schedopt.check` finds nothing.
    model : str or None
        What `schedopt.profiling.load_model` takes. None runs synthetic layers.
    backend : {"logical", "p2p", "pytorch"}
        All ranks in this process; a process each; or torch's own pipeline runtime.
    microbatches : int
        Of one step.
    steps : int
        That are timed, after those that are not.
    device : str
        ``cpu``; ``cuda``, where each rank has a GPU; or one GPU for all, such as ``cuda:0``.
    seed : int
        Of weights, inputs and dropout.
    optimizer : str
        Unless the model brings its own.
    options : mapping
        For ``hf:`` models.
    compare : bool
        Whether gradients are compared with those of one process.
    stretch : float
        By how much longer synthetic layers and their transfers take than the plan says. What is
        measured is reported in the time of the plan.

    Raises
    ------
    InputError
        With the rule and the way out.
    """

    plan: Plan
    model: str | None
    backend: Backend
    microbatches: int
    steps: int = 3
    device: str = "cpu"
    seed: int = 0
    optimizer: str = "adamw"
    options: Mapping[str, Any] = field(default_factory=dict)
    compare: bool = True
    stretch: float = 1

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            raise InputError(
                f"{show(self.plan)} is not a Plan", field="plan", way_out="Give result.plan"
            )
        object.__setattr__(self, "plan", whole(self.plan))
        check_choice(self, "backend", BACKENDS)
        if not isinstance(self.device, str):
            raise InputError(
                f"{show(self.device)} is not the name of a device",
                field="device",
                way_out="Choose cpu, cuda or cuda:0",
            )
        for name, low in (("microbatches", 1), ("steps", 1), ("seed", 0)):
            value = as_whole(getattr(self, name), name, low=low, high=2**20)
            object.__setattr__(self, name, value)
        if not isinstance(self.stretch, int | float) or not 0 < self.stretch < float("inf"):
            raise InputError(
                f"{show(self.stretch)} is not a factor",
                field="stretch",
                way_out="Give a number above 0, such as 0.1",
            )
        self._check_model()
        self._check_groups()
        self.plan.chain.require_alone(needed_by="a run here")
        self.plan.require_one_copy(needed_by="a run here")
        if self.model is not None and self.stretch != 1:
            raise InputError(
                "given, but a model takes the time that it takes",
                field="stretch",
                way_out="Leave it out, or run synthetic layers",
            )
        if self.model is None and self.device != "cpu":
            raise InputError(
                f"{self.device!r:.60} is given, but synthetic layers compute nothing",
                field="device",
                way_out="Leave it out",
            )

    def _check_model(self) -> None:
        if self.model is None:
            return
        if not isinstance(self.model, str):
            raise InputError(
                f"{show(self.model)} is not the name of a model",
                field="model",
                way_out="Name it as in models:build, so that each rank can build it",
            )
        if self.backend != "logical" and self.model.startswith("__main__:"):
            raise InputError(
                "__main__ is another module in each rank",
                field="model",
                way_out="Put the function into a module of its own and name that, or take the "
                "backend logical",
            )

    def _check_groups(self) -> None:
        """Refuse tensor groups where nothing runs them."""
        for number, stage in enumerate(self.plan.stages):
            if stage.tensor != self.tensor:
                raise InputError(
                    f"stage {number} runs in tensor groups of {stage.tensor} GPUs, and stage 0 in "
                    f"groups of {self.tensor}: groups of several sizes are not run yet",
                    field=f"stages[{number}].tensor",
                    way_out='Solve with Scope(engine="torch"), or with groups of one size',
                )
            if stage.tensor > 1 and (self.model is None or self.backend != "p2p"):
                how = "synthetic layers" if self.model is None else f"the backend {self.backend}"
                raise InputError(
                    f"stage {number} runs in tensor groups of {stage.tensor} GPUs, which {how} "
                    "cannot",
                    field=f"stages[{number}].tensor",
                    way_out="Name the model and take the backend p2p",
                )

    @property
    def tensor(self) -> int:
        """The GPUs of a tensor group, which is one rank."""
        return self.plan.stages[0].tensor

    @property
    def processes(self) -> int:
        """How many run: one for each GPU that has a stage.

        Raises
        ------
        InputError
            As `make_actions`.
        """
        return len(self.actions.ranks) * self.tensor

    @cached_property
    def simulated(self) -> Simulation:
        """A step as the plan has it.

        Raises
        ------
        InputError
            For a number of micro-batches that does not fit.
        """
        return simulate(self.plan, self.microbatches)

    @cached_property
    def actions(self) -> Actions:
        """What each rank does in a step.

        Raises
        ------
        InputError
            As `make_actions`.
        """
        return actions_of(self.simulated)

    def __getstate__(self) -> dict[str, Any]:
        # Ranks in other processes need the actions, not the step that they come from.
        return {name: value for name, value in vars(self).items() if name != "simulated"}
