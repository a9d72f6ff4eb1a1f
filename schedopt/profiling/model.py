"""What is profiled: a module with its inputs, and the packages that it takes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from schedopt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    Loss: TypeAlias = Callable[[Any], Tensor]
    OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]
    DataFactory: TypeAlias = Callable[[int], Any]

FIELD: Final = "model"
RETURNS: Final = "Return (module, inputs), then, if you like, loss, optimizer and data"
_CONSTANTS: Final = (bool, int, float, str, type(None))


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """What is profiled: a module, the inputs of one micro-batch, and how it is trained.

    Parameters
    ----------
    module : torch.nn.Module
        A ``torch.nn.Sequential`` is cut between its children, each of which takes one tensor and
        returns one. Any other module is traced, and cut where exactly one tensor is live.
    inputs : Tensor, sequence of Tensor, or mapping
        One micro-batch: what the module's forward takes, by position or by name. A mapping may
        hold constants, too. Inputs need no gradient.
    loss : callable, optional
        From what the module returns to a scalar, run as part of the last layer. A
        ``torch.nn.Module`` is moved to the device and its buffers count as weights; a function
        must itself keep to the device of what it gets. Default: the ``loss`` of what the module
        returns if it has one, else the sum of the tensor that it returns.
    optimizer : callable, optional
        From parameters to a ``torch.optim.Optimizer``, in place of the one named when profiling.
    data : callable, optional
        From the number of a micro-batch to what it is fed in a run, as `inputs`. Default: elements
        of `inputs`, drawn at random.
    factory : str
        ``package.module:function`` or ``hf:NAME``, where the model came from one.
    arguments : mapping
        What the factory was given.

    Raises
    ------
    InputError
        With the rule and the way out.
    """

    module: nn.Module
    inputs: Tensor | Sequence[Tensor] | Mapping[str, Any]
    loss: Loss | None = None
    optimizer: OptimizerFactory | None = None
    data: DataFactory | None = None
    factory: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch = require_torch()
        if not isinstance(self.module, torch.nn.Module):
            raise InputError(
                f"the module is {name_kind(self.module)}, not a torch.nn.Module",
                field=FIELD,
                way_out="Return the model itself",
            )
        if isinstance(self.module, torch.nn.Sequential) and len(self.module) == 0:
            raise InputError(
                "the nn.Sequential has no layer", field=FIELD, way_out="Put a layer into it"
            )
        self._check_inputs(torch)
        for what in ("loss", "optimizer", "data"):
            value = getattr(self, what)
            if value is not None and not callable(value):
                raise InputError(
                    f"the {what} is {name_kind(value)}, which cannot be called",
                    field=FIELD,
                    way_out=RETURNS,
                )

    def _check_inputs(self, torch: ModuleType) -> None:
        if not isinstance(self.inputs, Mapping | list | tuple):
            given: list[object] = [self.inputs]
        elif isinstance(self.inputs, Mapping):
            given = [one for one in self.inputs.values() if not isinstance(one, _CONSTANTS)]
        else:
            given = list(self.inputs)
        for one in given:
            if not isinstance(one, torch.Tensor):
                raise InputError(
                    f"an input is {name_kind(one)}, not a tensor",
                    field=FIELD,
                    way_out="Return one tensor, a tuple of tensors, or a dict of tensors by name",
                )
        if not given:
            raise InputError(
                "there are no inputs", field=FIELD, way_out="Return the tensors of a micro-batch"
            )
        if isinstance(self.module, torch.nn.Sequential) and len(self.args) != 1:
            takes = f"one input, not {len(self.args)}" if self.args else "no inputs by name"
            raise InputError(
                f"an nn.Sequential takes {takes}",
                field=FIELD,
                way_out="Return one tensor as the input",
            )

    @property
    def args(self) -> tuple[Tensor, ...]:
        """The inputs by position."""
        if isinstance(self.inputs, Mapping):
            return ()
        if isinstance(self.inputs, Sequence):
            return tuple(self.inputs)
        return (self.inputs,)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The inputs by name, constants included."""
        return dict(self.inputs) if isinstance(self.inputs, Mapping) else {}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors of a micro-batch, each with a name."""
        torch = require_torch()
        if len(self.args) == 1:
            named = {"input": self.args[0]}
        else:
            named = {f"input_{position}": value for position, value in enumerate(self.args)}
        return named | {
            name: value for name, value in self.kwargs.items() if isinstance(value, torch.Tensor)
        }


def require_torch() -> ModuleType:
    """Import torch."""
    return require_package("torch")


def require_package(name: str) -> ModuleType:
    """Import a package of one of the extras; refuse with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise not_installed(name) from error


def not_installed(package: str) -> InputError:
    """Return the refusal where a package is missing."""
    return InputError(
        f"{package} is not installed",
        field=FIELD,
        way_out=f"Run pip install {package}",
    )


def name_kind(value: object) -> str:
    """Return the type of a value with its article, for a person."""
    name = type(value).__name__
    article = "an" if name[0] in "AEIOUaeiou" else "a"
    return "None" if value is None else f"{article} {name}"
