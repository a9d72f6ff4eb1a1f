"""Commands whose help reads well at every width, and whose options may come in groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from typer.core import TyperCommand

from schedopt.errors import InputError

if TYPE_CHECKING:
    from typer import BadParameter


class Command(TyperCommand):
    """Reports an invalid value of an option like any other input error."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if type(error) is not typer.BadParameter:
                raise
            raise _usage_error(error) from None


class Commands(typer.Typer):
    """Takes the help of a command from its docstring, each paragraph as one line.

    A parameter whose type is a dataclass stands for a group of options: one for each field.
    """

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
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def one_line_a_paragraph(text: str) -> str:
    r"""Join the lines of each paragraph, but not those of a heading.

    Examples
    --------
    >>> one_line_a_paragraph("One\ntwo.\n\nThree.")
    'One two.\n\nThree.'
    """
    return "\n\n".join(
        part if "\n---" in part else " ".join(part.split("\n")) for part in text.split("\n\n")
    )


def _usage_error(error: BadParameter) -> InputError:
    """Return what typer says about the value of an option in one line, in words of ours."""
    from pydantic import ValidationError

    names = [] if error.param is None else [*error.param.opts]
    field = max(names, key=len, default="")
    field = field if field.startswith("-") else field.upper()
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return InputError(error.message.removesuffix("."), field=field)
    first = cause.errors()[0]
    value = f"{first['input']!r:.60}"
    match first["type"]:
        case "int_parsing" | "int_from_float":
            return InputError(f"{value} is not a whole number", field=field, way_out="Give one")
        case "float_parsing":
            return InputError(f"{value} is not a number", field=field, way_out="Give one")
        case "greater_than_equal":
            least = first["ctx"]["ge"]
            way_out = f"Give at least {least:g}"
            return InputError(f"{value} is too little", field=field, way_out=way_out)
    text = first["msg"].removeprefix("Value error, ").removesuffix(".")
    return InputError(text, field=field)
