"""Commands whose help reads well at every width."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from schedopt.cli.options import usage_error


class Command(TyperCommand):
    """Tells of a value that an option cannot have as of any other bad input."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if type(error) is not typer.BadParameter:
                raise
            raise usage_error(error) from None


class Commands(typer.Typer):
    """Takes the help of a command from its docstring, each paragraph as one line."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Return what registers a function as a command."""

        def register(function: Any) -> Any:
            given = {
                "cls": Command,
                "help": one_line_a_paragraph(inspect.getdoc(function) or ""),
                **options,
            }
            return super(Commands, self).command(name, **given)(function)

        return register


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
