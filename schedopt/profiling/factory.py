"""The model that a user names: a factory that returns it with an input, a loss, an optimizer."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final

from schedopt.errors import InputError
from schedopt.profiling.error_format import format_error
from schedopt.profiling.model import (
    FIELD,
    RETURNS,
    Model,
    name_kind,
    not_installed,
    require_package,
)

_OPTIONAL_PACKAGES: Final = ("torch", "transformers")


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
            field=FIELD,
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
            f"the factory returned {name_kind(returned)}{size}", field=FIELD, way_out=RETURNS
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
            field=FIELD,
            way_out="Write the module, a colon and the function, such as models:build, or hf:gpt2",
        )
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise InputError(
            f"{module_name!r:.200} is a file, not a module",
            field=FIELD,
            way_out=f"Write {dotted}:{function}, from the directory in which it can be imported",
        )
    module = _import(module_name)
    factory: Callable[[], Any] | None = getattr(module, function, None)
    if factory is None:
        close = get_close_matches(function, list(vars(module)), n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Define {function} in {module.__file__}"
        raise InputError(f"{module_name} has no {function}", field=FIELD, way_out=hint)
    if not callable(factory):
        raise InputError(
            f"{spec} is {name_kind(factory)}, which cannot be called",
            field=FIELD,
            way_out="Name a function that returns the model",
        )
    return factory


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
            raise not_installed(missing) from error
        if not f"{name}.".startswith(f"{missing}."):
            raise _import_failed(name, error) from error
        raise InputError(
            f"there is no module {missing!r}",
            field=FIELD,
            way_out="Run in the directory that holds it, or install it into this environment",
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> InputError:
    return InputError(
        f"importing {name} raised {format_error(error)}",
        field=FIELD,
        way_out=f"Make python -c 'import {name}' work first",
    )
