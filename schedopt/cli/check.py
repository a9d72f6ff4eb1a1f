"""``schedopt check``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from schedopt.cli.options import PlanFile


def check_plan(
    plan: PlanFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check a plan with code that knows no solver: every violation, with its place, or none.

    Everything is derived again from the file: each layer placed once, every dependency, one
    operation at a time on each GPU and link, memory by replay over time, gradients and versions.

    Example: schedopt check plan.json
    """
    from schedopt.checking import check
    from schedopt.result import Result

    result = Result.load(plan)
    violations = check(result)
    if as_json:
        document = {
            "valid": not violations,
            "violations": [
                {"kind": item.kind, "place": item.place, "message": item.message}
                for item in violations
            ],
        }
        typer.echo(json.dumps(document, indent=2))
    elif violations:
        for item in violations:
            typer.echo(str(item))
        typer.echo(f"{plan}: {len(violations)} violation{'s' if len(violations) > 1 else ''}")
    else:
        from schedopt.cli.tables import print_plan

        print_plan(result)
        typer.echo(f"{plan}: valid")
    if violations:
        raise typer.Exit(5)
