"""The commands in one place."""

from __future__ import annotations

from typing import Annotated

import typer

from schedopt.cli.bench import EXIT_CODES as BENCH_EXIT_CODES
from schedopt.cli.bench import bench_app
from schedopt.cli.check import check_plan
from schedopt.cli.claims import bench_claims
from schedopt.cli.commands import Commands
from schedopt.cli.compare import compare_systems
from schedopt.cli.export import export_plan
from schedopt.cli.import_chain import import_profile
from schedopt.cli.instance import instance_app
from schedopt.cli.profile import profile_model
from schedopt.cli.report import report_plan
from schedopt.cli.run import run_plan
from schedopt.cli.show import show_plan
from schedopt.cli.simulate import simulate_plan
from schedopt.cli.solve import solve_chain
from schedopt.cli.sweep import sweep_chain
from schedopt.version import __version__

EXIT_CODES = (
    "Exit codes: 0 a plan (or valid) · 1 a fault of ours · 2 bad usage or bad input · "
    "3 proven infeasible · 4 no plan found in time, none proven impossible · 5 a check failed"
)

app = Commands(
    name="schedopt",
    help="Optimal allocations and periodic schedules for training that does not fit one GPU.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
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


app.command("profile", epilog=EXIT_CODES)(profile_model)
app.command("import", epilog=EXIT_CODES)(import_profile)
app.command("solve", epilog=EXIT_CODES)(solve_chain)
app.command("compare", epilog=f"{EXIT_CODES} · 3 also if nothing fits · 130 interrupted")(
    compare_systems
)
app.command("sweep", epilog=f"{EXIT_CODES} · 130 interrupted")(sweep_chain)
app.command("check", epilog=EXIT_CODES)(check_plan)
app.command("show", epilog=EXIT_CODES)(show_plan)
app.command("simulate", epilog=EXIT_CODES)(simulate_plan)
app.command("export", epilog=EXIT_CODES)(export_plan)
app.command("report", epilog=EXIT_CODES)(report_plan)
app.command("run", epilog=f"{EXIT_CODES} · 1 also if a rank fails")(run_plan)
app.add_typer(instance_app, name="instance")
bench_app.command("claims", epilog=BENCH_EXIT_CODES)(bench_claims)
app.add_typer(bench_app, name="bench")
