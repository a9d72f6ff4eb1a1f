"""Values that a Python file assigns, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from schedopt.errors import InputError

DEEPEST: Final = 150
"""Parts of a text within each other: with more Python's stack may not do to look at them."""


class Code(str):
    """An expression whose value is not known without running the file."""

    __slots__ = ()

    @property
    def file(self) -> str | None:
        """The file that ``Path(__file__).with_name("NAME")`` in it names."""
        for node in ast.walk(ast.parse(self)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "with_name"
                and isinstance(node.args[0], ast.Constant)
            ):
                return Path(str(node.args[0].value)).name
        return None


def is_python(path: Path, text: str) -> bool:
    """Whether a file is Python, by its name, or as it begins where ``schedopt export`` wrote it."""
    return path.suffix == ".py" or text.startswith('"""')


def parse(text: str) -> ast.Module:
    """Return the tree of a file.

    Raises
    ------
    InputError
        If it is no Python, or an expression of more than 150 terms or so.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InputError(f"it is no Python: {error}", way_out="Correct it there") from None
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        line = next((node.lineno for node in level if hasattr(node, "lineno")), 1)
        raise InputError(
            f"parts lie within each other, more than {DEEPEST} deep",
            field=f"line {line}",
            way_out="Write shorter expressions",
        )
    return tree


def read_assignments(text: str) -> dict[str, Any]:
    """Return what a file assigns to names and attributes, in modules and functions, the last each.

    A name that stands for an attribute, such as ``parallelism = config.parallelism``, is spelled
    out; what is no constant, list or product of these is `Code`.

    Raises
    ------
    InputError
        If it is no Python.
    """
    tree = parse(text)
    values: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for target, expression in _assignments(tree):
        name = dotted(target, aliases)
        if name is None:
            continue
        told = dotted(expression, aliases)
        if told is not None and "." in told and told not in values:
            aliases[name] = told
        else:
            values[name] = value_of(expression, values, aliases)
    return values


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield targets with what is assigned to them, in the order of the text."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    yield target, statement.value
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                yield statement.target, statement.value


def dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """Return the name of a name or an attribute; None of anything else."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value, aliases)
        return None if inner is None else f"{inner}.{node.attr}"
    return None


def value_of(node: ast.expr, values: dict[str, Any], aliases: dict[str, str]) -> Any:
    """Return a value, of which whole numbers may be products."""
    name = dotted(node, aliases)
    if name is not None and name in values:
        return values[name]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors = [value_of(side, values, aliases) for side in (node.left, node.right)]
        if all(type(factor) is int for factor in factors):
            return factors[0] * factors[1]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and len(node.args) == 1:
        return value_of(node.args[0], values, aliases)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return Code(ast.unparse(node))
