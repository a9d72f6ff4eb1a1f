"""The commands in one place."""

from __future__ import annotations

from typing import Annotated

import typer

from schedopt.cli.bench import bench_app
from schedopt.cli.commands import Commands
from schedopt.cli.compare import compare_systems
from schedopt.cli.doctor import examine
from schedopt.cli.import_chain import import_profile
from schedopt.cli.instance import instance_app
from schedopt.cli.plans import check_plan, export_plan, show_plan, simulate_plan
from schedopt.cli.profile import profile_model
from schedopt.cli.report import report_files
from schedopt.cli.run import run_plan
from schedopt.cli.solve import solve_chain
from schedopt.cli.sweep import sweep_chain
from schedopt.version import __version__

EXIT_CODES = (
    "Exit codes: 0 a plan (or valid) · 1 an internal error · 2 bad usage or bad input · "
    "3 proven infeasible · 4 no plan found in time, none proven impossible · 5 a check failed · "
    "130 interrupted"
)
COMMANDS = (
    ("profile", profile_model, ""),
    ("import", import_profile, ""),
    ("solve", solve_chain, ""),
    ("compare", compare_systems, " · 3 also if nothing fits"),
    ("sweep", sweep_chain, ""),
    ("check", check_plan, ""),
    ("show", show_plan, ""),
    ("simulate", simulate_plan, ""),
    ("export", export_plan, ""),
    ("report", report_files, ""),
    ("run", run_plan, " · 1 also if a rank fails"),
    ("doctor", examine, ""),
)
"""Name, function, and exit codes beyond the usual ones."""

app = Commands(
    name="schedopt",
    help="Optimal allocations and periodic schedules for training that does not fit one GPU.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"schedopt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


for name, function, more in COMMANDS:
    app.command(name, epilog=EXIT_CODES + more)(function)
app.add_typer(instance_app, name="instance")
app.add_typer(bench_app, name="bench")
