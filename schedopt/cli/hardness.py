"""``schedopt bench hardness``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedopt.cli.suites import EXIT_CODES, RESULTS, make_effort, run_suite, suite_command
from schedopt.errors import InputError, naming_file

if TYPE_CHECKING:
    from schedopt.bench.suite import Effort


@suite_command(
    "hardness",
    epilog=f"{EXIT_CODES} · 4 no answer to an instance in time",
    instance="none",
    time_limit="10; 60 with --instance",
    output="results/hardness.jsonl",
)
def bench_hardness(
    quick: bool = False,
    instance: Path | None = None,
    as_json: Annotated[bool, "With --instance: print one JSON document, nothing else."] = False,
    workers: int = 2,
    time_limit: float | None = None,
    output: Path | None = None,
    resume: bool = True,
) -> None:
    """Answer instances of Theorems 1 and 2, by special methods and by solvers of all problems.

    Numbers with and without a 3-partition, m = 2 to 8, become chains that have a plan of a given
    period or not (Beaumont, Eyraud-Dubois and Shilova 2021). Every answer is compared with the
    known one, every plan is checked and turned back into groups of three.

    Examples
    --------
    schedopt bench hardness --quick -o quick.jsonl

    schedopt bench hardness --instance chain.json --json
    """
    from schedopt.bench.hardness import FULL, QUICK, SUITE, batches

    effort = make_effort(workers, time_limit, 10.0 if instance is None else 60.0)
    if instance is None and as_json:
        raise InputError(
            "goes with --instance",
            field="--json",
            way_out="Name one (--instance), or leave it out: the figures are JSON anyway",
        )
    if instance is None:
        extent, output = QUICK if quick else FULL, output or RESULTS / "hardness.jsonl"
        run_suite(SUITE, lambda file: batches(extent, file.records), effort, output, resume)
        return
    for option, is_given in (("--quick", quick), ("--output", output is not None)):
        if is_given:
            raise InputError(
                "given beside --instance, which answers one chain and writes no figures",
                field=option,
                way_out="Leave one of them out",
            )
    _answer(instance, effort, as_json)


def _answer(path: Path, effort: Effort, as_json: bool) -> None:
    from schedopt.bench.hardness import answer
    from schedopt.chain import Chain
    from schedopt.families.reductions import read_reduction
    from schedopt.units import format_duration

    chain = Chain.load(path)
    with naming_file(path):
        reduction = read_reduction(chain)
    document = answer(reduction, effort)
    total, period = document["V"], format_duration(document["period_ns"])
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        size = f"Theorem {document['theorem']}, m = {document['m']}, V = {total}"
        typer.echo(f"Instance  {size}: is there a plan of period {period}?")
        typer.echo(f"Numbers   {' '.join(map(str, document['numbers']))}")
        typer.echo(f"Answer    {document['answer']}, in {document['seconds']:g} s")
        typer.echo(f"Proof     {document['proof']}")
        for group in document["groups"]:
            typer.echo(f"Group     {' + '.join(map(str, group))} = {total}")
    if document["answer"] == "unknown":
        raise typer.Exit(4)
