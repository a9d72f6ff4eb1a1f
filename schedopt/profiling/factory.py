"""The model that a user names: a factory that returns it with an input, a loss, an optimizer."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from schedopt.errors import InputError
from schedopt.profiling.error_format import format_error

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    Loss: TypeAlias = Callable[[Any], Tensor]
    OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]
    DataFactory: TypeAlias = Callable[[int], Any]

_FIELD: Final = "model"
_RETURNS: Final = "Return (module, inputs), then, if you like, loss, optimizer and data"
_CONSTANTS: Final = (bool, int, float, str, type(None))
_OPTIONAL_PACKAGES: Final = ("torch", "transformers")


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
                f"the module is {_kind(self.module)}, not a torch.nn.Module",
                field=_FIELD,
                way_out="Return the model itself",
            )
        if isinstance(self.module, torch.nn.Sequential) and len(self.module) == 0:
            raise InputError(
                "the nn.Sequential has no layer", field=_FIELD, way_out="Put a layer into it"
            )
        self._check_inputs(torch)
        for what in ("loss", "optimizer", "data"):
            value = getattr(self, what)
            if value is not None and not callable(value):
                raise InputError(
                    f"the {what} is {_kind(value)}, which cannot be called",
                    field=_FIELD,
                    way_out=_RETURNS,
                )

    def _check_inputs(self, torch: ModuleType) -> None:
        if not isinstance(self.inputs, Mapping | list | tuple):
            given: list[object] = [self.inputs]
        elif isinstance(self.inputs, Mapping):
            given = [value for value in self.inputs.values() if not isinstance(value, _CONSTANTS)]
        else:
            given = list(self.inputs)
        for value in given:
            if not isinstance(value, torch.Tensor):
                raise InputError(
                    f"an input is {_kind(value)}, not a tensor",
                    field=_FIELD,
                    way_out="Return one tensor, a tuple of tensors, or a dict of tensors by name",
                )
        if not given:
            raise InputError(
                "there are no inputs", field=_FIELD, way_out="Return the tensors of a micro-batch"
            )
        if isinstance(self.module, torch.nn.Sequential) and not self.args:
            raise InputError(
                "an nn.Sequential takes no inputs by name",
                field=_FIELD,
                way_out="Return one tensor as the input",
            )
        if isinstance(self.module, torch.nn.Sequential) and len(self.args) > 1:
            raise InputError(
                f"an nn.Sequential takes one input, not {len(self.args)}",
                field=_FIELD,
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


def load_model(spec: str, **options: Any) -> Model:
    """Build the model that ``package.module:function`` or ``hf:NAME`` names.

    Parameters
    ----------
    spec : str
    options
        For ``hf:``: ``batch``, ``seq``, ``image`` and ``dtype``. A factory takes none.

    Raises
    ------
    InputError
        If there is no such factory, or it fails, or what it returns breaks a rule.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if spec.startswith("hf:"):
        require_package("transformers")
        from schedopt.profiling.hf import build_model

        return replace(build_model(spec.removeprefix("hf:"), **given), arguments=given)
    if given:
        raise InputError(
            f"{spec} makes its own inputs",
            field=next(iter(given)),
            way_out="Leave it out, or let the factory do it",
        )
    factory = load_factory(spec)
    try:
        returned = factory()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{spec} raised {format_error(error)}",
            field=_FIELD,
            way_out="Give a function that needs no arguments; make python -c "
            f"'import {factory.__module__} as m; m.{spec.partition(':')[2]}()' work first",
        ) from error
    return as_model(returned, factory=spec)


def as_model(returned: object, *, factory: str = "") -> Model:
    """Check what a factory returned and give it names.

    Parameters
    ----------
    returned : tuple
        (module, inputs), then optionally loss, optimizer and data, each of which may be None.
    factory : str
        Where it came from.

    Raises
    ------
    InputError
        With the rule and the way out.
    """
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 5:
        size = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        raise InputError(
            f"the factory returned {_kind(returned)}{size}", field=_FIELD, way_out=_RETURNS
        )
    names = ("module", "inputs", "loss", "optimizer", "data")
    return Model(**dict(zip(names, returned, strict=False)), factory=factory)


def load_factory(spec: str) -> Callable[[], Any]:
    """Import the function that ``package.module:function`` names.

    The current directory is searched first, as with ``python -m``.

    Raises
    ------
    InputError
        Without a colon, if the module is not found or fails, or if it has no such function.
    """
    module_name, colon, function = spec.partition(":")
    if not (module_name and colon and function):
        raise InputError(
            f"{spec!r:.200} is not package.module:function",
            field=_FIELD,
            way_out="Write the module, a colon and the function, such as models:build, or hf:gpt2",
        )
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise InputError(
            f"{module_name!r:.200} is a file, not a module",
            field=_FIELD,
            way_out=f"Write {dotted}:{function}, from the directory in which it can be imported",
        )
    module = _import(module_name)
    factory: Callable[[], Any] | None = getattr(module, function, None)
    if factory is None:
        close = get_close_matches(function, list(vars(module)), n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Define {function} in {module.__file__}"
        raise InputError(f"{module_name} has no {function}", field=_FIELD, way_out=hint)
    if not callable(factory):
        raise InputError(
            f"{spec} is {_kind(factory)}, which cannot be called",
            field=_FIELD,
            way_out="Name a function that returns the model",
        )
    return factory


def require_torch() -> ModuleType:
    """Import torch.

    Raises
    ------
    InputError
        If it is not installed, with the command that installs it.
    """
    return require_package("torch")


def require_package(name: str) -> ModuleType:
    """Import a package of one of the extras, ``torch`` or ``transformers``.

    Raises
    ------
    InputError
        If it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise _not_installed(name) from error


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing in _OPTIONAL_PACKAGES:
            raise _not_installed(missing) from error
        if not f"{name}.".startswith(f"{missing}."):
            raise _import_failed(name, error) from error
        raise InputError(
            f"there is no module {missing!r}",
            field=_FIELD,
            way_out="Run in the directory that holds it, or install it into this environment",
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> InputError:
    return InputError(
        f"importing {name} raised {format_error(error)}",
        field=_FIELD,
        way_out=f"Make python -c 'import {name}' work first",
    )


def _not_installed(package: str) -> InputError:
    return InputError(
        f"{package} is not installed",
        field=_FIELD,
        way_out=f"Run pip install {package}",
    )


def _kind(value: object) -> str:
    name = type(value).__name__
    article = "an" if name[0] in "AEIOUaeiou" else "a"
    return "None" if value is None else f"{article} {name}"
