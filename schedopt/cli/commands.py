"""Commands whose help reads well at every width, and whose options may come in groups."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Any, Final, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from schedopt.errors import InputError
from schedopt.units import printable

# Typer does not export it.
UsageError: Any = typer.BadParameter.__bases__[0]
NAMES: Final = {"as_json": ("--json",), "output": ("--output", "-o")}
"""What users type for a parameter where that is not its own name."""
PARTS: Final = ("--gap",)
"""Options that take a part of a whole, which some write as a percentage."""
_METAVAR: Final = re.compile(r"([A-Z0-9|,.]+): (.*)", re.DOTALL)
_PERCENTAGE: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?%")
_HEADING: Final = re.compile(r"(\w+)\n-+\n")
_EXTRA: Final = re.compile(r"Got unexpected extra argument\S* \((.*)\)")


class Command(TyperCommand):
    """Reports bad usage like any other input error."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return _without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        with _as_input_errors(ctx):
            return super().parse_args(ctx, args)


class Group(TyperGroup):
    """Reports a command that it does not have, and other bad usage, like any other input error."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return _without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; without any, typer shows the help."""
        if not args:
            return super().parse_args(ctx, args)
        with _as_input_errors(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command by its name."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise _unknown("command", args[0], self.commands, ctx)
        return super().resolve_command(ctx, args)


class Commands(typer.Typer):
    """Takes the help of a command from its docstring, each paragraph as one line.

    A parameter whose type is a dataclass stands for a group of options: one for each field.
    ``Annotated[int, "N: How many."]`` is an option with this metavar and help.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Return a decorator that registers a function as a command."""

        def register(function: Any) -> Any:
            given = {
                "cls": Command,
                "help": one_line_a_paragraph(inspect.getdoc(function) or ""),
                **options,
            }
            super(Commands, self).command(name, **given)(expand_groups(function))
            return function

        return register


def expand_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function with a keyword for each field of the dataclasses that it takes.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> def show(name: str, at: Point) -> None:
    ...     print(name, at)
    >>> expand_groups(show)(name="corner", x=1, y=2)
    corner Point(x=1, y=2)
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            parameters.append(_keyword(name, hints[name], parameter.default))
            continue
        own = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(_keyword(field.name, own[field.name], default))

    def expanded(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    expanded.__name__ = function.__name__
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {item.name: item.annotation for item in parameters}
    return expanded


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a keyword; a text in its annotation becomes the metavar and help of an option."""
    kind, declared = inspect.Parameter.KEYWORD_ONLY, getattr(annotation, "__metadata__", (None,))[0]
    if isinstance(declared, str):
        parts = _METAVAR.fullmatch(declared)
        metavar, text = parts.groups() if parts else (None, declared)
        names = NAMES.get(name, ())
        if default is False and not names:
            names = (f"--{name.replace('_', '-')}",)
        option = typer.Option(
            *names, help=text, metavar=metavar, show_default="Default:" not in text
        )
        annotation = Annotated[annotation.__origin__, option]
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def one_line_a_paragraph(text: str) -> str:
    r"""Join the lines of each paragraph, but not that of a heading, which ends with a colon.

    Examples
    --------
    >>> one_line_a_paragraph("One\ntwo.\n\nThree\n-----\nFour.")
    'One two.\n\nThree:\nFour.'
    """
    return "\n\n".join(
        _HEADING.sub(r"\1:\n", part) if _HEADING.match(part) else " ".join(part.split("\n"))
        for part in text.split("\n\n")
    )


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Let help show no type of what takes no value: some would type one."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


@contextmanager
def _as_input_errors(context: Any) -> Iterator[None]:
    """Say in one line of ours what typer says of bad usage in a box."""
    try:
        yield
    except UsageError as error:
        if type(error) is typer.BadParameter:
            raise _invalid_value(error) from None
        option = getattr(error, "option_name", "")
        if hasattr(error, "possibilities"):
            options = [
                param for param in context.command.params if param.param_type_name == "option"
            ]
            known = [name for param in options for name in param.opts]
            raise _unknown("option", option, known, context) from None
        message = " ".join(error.format_message().split()).removesuffix(".")
        if isinstance(error, typer.BadParameter):
            _, _, choices = message.partition(". ")
            way_out = f"{choices}. {_see(context)}" if choices else _see(context)
            raise InputError("not given", field=_name(error.param), way_out=way_out) from None
        extra = _EXTRA.fullmatch(message)
        raise InputError(
            "is not expected" if extra else message.removeprefix(f"Option {option!r} "),
            field=printable(extra[1]) if extra else option,
            way_out=_see(context),
        ) from None


def _unknown(kind: str, name: str, known: Iterable[str], context: Any) -> InputError:
    """Return that there is no such option or command, and the nearest one that there is."""
    nearest = "".join(f"Did you mean {near}? " for near in get_close_matches(name, known, 1))
    return InputError(f"no such {kind}", field=printable(name), way_out=nearest + _see(context))


def _see(context: Any) -> str:
    return f"See: {context.command_path} --help"


def _name(param: Any) -> str:
    """Return what a user types for a parameter: --mem, --yes/--no, or FILE."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper()
    return "/".join((max(param.opts, key=len), *param.secondary_opts))


def _invalid_value(error: typer.BadParameter) -> InputError:
    """Return what typer says about the value of an option in words of ours."""
    from pydantic import ValidationError

    field = _name(error.param)
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return InputError(error.message.removesuffix("."), field=field)
    first = cause.errors()[0]
    value = f"{first['input']!r:.60}"
    match first["type"]:
        case "int_parsing" | "int_from_float":
            return InputError(f"{value} is not a whole number", field=field, way_out="Give one")
        case "float_parsing":
            way_out = (_as_part(first["input"]) if field in PARTS else "") or "Give one"
            return InputError(f"{value} is not a number", field=field, way_out=way_out)
        case "greater_than_equal":
            least = first["ctx"]["ge"]
            way_out = f"Give at least {least:g}"
            return InputError(f"{value} is too little", field=field, way_out=way_out)
    text = first["msg"].removeprefix("Value error, ").removesuffix(".")
    return InputError(text, field=field)


def _as_part(typed: object) -> str:
    """Return how to give a percentage; nothing for what is none."""
    match = _PERCENTAGE.fullmatch(str(typed))
    return f"Give it as a part: {Decimal(match[1]) / 100:f}" if match else ""
