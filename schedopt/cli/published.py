"""``schedopt bench published``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from schedopt.cli.suites import RESULTS, SHIPPED, run_suite, suite_command

if TYPE_CHECKING:
    from schedopt.bench.records import RecordFile
    from schedopt.bench.suite import Case


@suite_command("published")
def bench_published(
    data: Path = SHIPPED / "published",
    output: Annotated[
        Path,
        "DIR: The folder of the figures (published.json), tables (.md) and the picture (.svg).",
    ] = RESULTS,
    resume: bool = True,
) -> None:
    """Hold predictions against what others measured and published.

    Steps and memory of 1F1B, interleaved and zero-bubble schedules, on eight kinds of GPU, from
    profiles, collectives and plans of the same sources. Each test has a mark, and the reference of
    a plain simulator. Where the program has changed since, all rows are predicted anew.

    Examples
    --------
    schedopt bench published

    schedopt bench published --data measured -o predictions
    """
    from schedopt.bench.published.suite import SUITE, published_cases, test_cases
    from schedopt.bench.published.tables import Tables
    from schedopt.bench.records import program_digest

    tables = Tables(data)

    def batches(file: RecordFile) -> Iterator[list[Case]]:
        yield [*published_cases(tables)]
        yield [*test_cases(file)]

    output.mkdir(parents=True, exist_ok=True)
    path = output / "published.json"
    conditions = {"data": tables.digest, "program": program_digest()}
    run_suite(SUITE, batches, None, path, resume, **conditions)
