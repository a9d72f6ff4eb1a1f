"""``schedopt export``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from schedopt.cli.options import Microbatches, PlanFile, naming_options
from schedopt.exporting.targets import TARGETS


def export_plan(
    plan: PlanFile,
    to: Annotated[
        str,
        typer.Option(
            help="; ".join(f"{target.name}: {target.title}" for target in TARGETS) + ".",
            metavar="TARGET",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Where to write it: a file, or a folder for a target of several files.",
            metavar="OUT",
        ),
    ],
    microbatches: Microbatches = None,
) -> None:
    """Write a plan in the words of another tool.

    What the tool cannot express is refused, with the reason and what to ask for instead, before
    anything is written.

    Examples
    --------
    schedopt export plan.json --to torch-csv --microbatches 16 -o schedule.csv

    schedopt export plan.json --to torchtitan -o titan
    """
    from schedopt.cli.charts import load_valid
    from schedopt.exporting.targets import find_target
    from schedopt.simulation import usual_micro_batches

    with naming_options():
        target = find_target(to)
    loaded = load_valid(plan).plan
    assert loaded is not None
    count = usual_micro_batches(loaded) if microbatches is None else microbatches
    with naming_options():
        files = target.export(loaded, count)
    for path in _write(files, output):
        typer.echo(f"Written: {path}")


def _write(files: Mapping[str, str], output: Path) -> list[Path]:
    """Write one file as it is named, several into a folder, and return their paths."""
    from schedopt.formats import check_writable, make_folder, write_whole

    if len(files) == 1:
        paths = [output]
    else:
        make_folder(output)
        paths = [output / name for name in files]
    for path in paths:
        check_writable(path)
    for path, text in zip(paths, files.values(), strict=True):
        write_whole(path, text)
    return paths
