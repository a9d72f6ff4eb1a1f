"""Charts on the terminal, and what the commands that draw share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from schedopt.checking import Violation
    from schedopt.drawing import Chart
    from schedopt.plan import Plan
    from schedopt.result import Result


def load_valid(path: Path) -> Result:
    """Read a plan; end with exit code 5 if the check refuses it."""
    result, violations = _load_checked(path)
    if violations:
        _refuse(path, violations)
    return result


def load_drawable(path: Path) -> tuple[Result, int]:
    """Read a plan that is valid, or needs too much memory and nothing else is wrong.

    Too much memory is said on standard error. All else ends with exit code 5.

    Returns
    -------
    Result, int
        The second is the exit code: 5 for too much memory.
    """
    result, violations = _load_checked(path)
    if not violations:
        return result, 0
    if any(violation.kind != "memory" for violation in violations):
        _refuse(path, violations)
    assert result.plan is not None
    typer.echo(
        f"{path}: over memory: {_say_over(result.plan)}. See: schedopt check {path}", err=True
    )
    return result, 5


def _load_checked(path: Path) -> tuple[Result, tuple[Violation, ...]]:
    from schedopt.checking import check
    from schedopt.result import Result

    result = Result.load(path)
    return result, check(result)


def _refuse(path: Path, violations: Sequence[Violation]) -> NoReturn:
    # Memory comes last: what else is wrong is worth more.
    more = f" and {len(violations) - 1} more" if len(violations) > 1 else ""
    typer.echo(
        f"{path}: not a valid plan: {violations[0]}{more}. See: schedopt check {path}", err=True
    )
    raise typer.Exit(5)


def _say_over(plan: Plan) -> str:
    """Return which GPU needs the most too much, and how many others do."""
    from schedopt.account import memory
    from schedopt.units import format_bytes

    over = [
        (need.reading(plan.scope.memory) - gpu.usable_bytes, number)
        for number, (need, gpu) in enumerate(zip(memory(plan), plan.platform.gpus, strict=True))
    ]
    most, worst = max(over, key=lambda pair: (pair[0], -pair[1]))
    usable = format_bytes(plan.platform.gpus[worst].usable_bytes)
    others = sum(size > 0 for size, _ in over) - 1
    more = f"; {others} more GPU{'s' if others > 1 else ''} too" if others else ""
    return f"GPU {worst} needs {format_bytes(most)} more than its {usable}{more}"


def print_chart(chart: Chart) -> None:
    """Print a chart with what it says in words."""
    from schedopt.cli.tables import make_console
    from schedopt.drawing import explain_glyphs, render_chart

    console = make_console()
    unicode = console.encoding.lower().startswith("utf")
    console.print(chart.title, style="bold")
    for fact in chart.facts:
        console.print(fact)
    console.print()
    console.print(render_chart(chart, console.width, unicode=unicode), no_wrap=True, crop=False)
    console.print()
    console.print(explain_glyphs(chart, console.width, unicode=unicode))
