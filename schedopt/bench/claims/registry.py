"""The rows of the suite: which function computes which claim again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, TypeAlias

from schedopt.bench.claims.claim import Finding, Step
from schedopt.errors import InputError

Find: TypeAlias = Callable[[Step], Finding]

CLAIMS: Final = {
    "C1": "schedopt.bench.claims.cyclic_steps:find_starts",
    "C2": "schedopt.bench.claims.cyclic_steps:find_occupied",
    "C3": "schedopt.bench.claims.cyclic_memory:find_activations",
    "C4": "schedopt.bench.claims.cyclic_rule:find_rule",
    "C5": "schedopt.bench.claims.pyramid:find_gpus",
    "C6": "schedopt.bench.claims.cyclic_table:find_table",
    "C7": "schedopt.bench.claims.algorithm_1:find_algorithm_1",
    "C8": "schedopt.bench.claims.worker_memory:find_savings",
    "C9": "schedopt.bench.claims.equal_flops:find_evenness",
    "C10": "schedopt.bench.claims.accuracy:find_accuracies",
    "T1": "schedopt.bench.claims.timeprest_order:find_order",
    "T2": "schedopt.bench.claims.version_difference:find_difference",
    "T3": "schedopt.bench.claims.timeprest_order:find_forwards",
    "T4": "schedopt.bench.claims.staleness:find_influence",
    "T5": "schedopt.bench.claims.weight_versions:find_versions",
    "T6": "schedopt.bench.claims.pipelines:find_pipelines",
    "P1": "schedopt.bench.claims.three_partition:find_reductions",
    "P2": "schedopt.bench.claims.activations:find_fewest_activations",
    "P3": "schedopt.bench.claims.periods:find_periods_of_theorem_4",
    "P4": "schedopt.bench.claims.allocations:find_ratios",
    "B1": "schedopt.bench.claims.shards:find_consistency",
    "B2": "schedopt.bench.claims.overlap:find_overlap",
    "B3": "schedopt.bench.claims.states:find_bytes_a_parameter",
    "B4": "schedopt.bench.claims.exchange_volumes:find_volumes",
}
"""Row to "module:function": C for cyclic data parallelism, T for TiMePReSt, P for the complexity
of pipelined model parallelism, B for data parallelism."""

PACKAGES: Final = {"sklearn": "scikit-learn"}
"""What is installed under another name than it is imported under."""


def choose_claims(only: str | None) -> list[str]:
    """Return the rows that are asked for, in the order of the table.

    Parameters
    ----------
    only : str, optional
        Rows with commas between them. Default: all.

    Raises
    ------
    InputError
        For a row that there is not.
    """
    if only is None:
        return [*CLAIMS]
    asked = [name.strip() for name in only.split(",")]
    for name in asked:
        if name not in CLAIMS:
            raise InputError(
                f"{name!r:.60} is no claim", field="--only", way_out=f"Choose {', '.join(CLAIMS)}"
            )
    return [name for name in CLAIMS if name in asked]


def load_claims(names: Sequence[str]) -> dict[str, Find]:
    """Return what computes each row; all are imported before any is run.

    Raises
    ------
    InputError
        If a package is not installed.
    """
    return {name: _load(name) for name in names}


def _load(name: str) -> Find:
    module, _, function = CLAIMS[name].partition(":")
    try:
        found: Find = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "schedopt":
            raise
        package = PACKAGES.get(missing, missing)
        raise InputError(
            f"{package} is not installed, and {name} needs it",
            field="--only",
            way_out=f"Run pip install {package}, or leave {name} out",
        ) from error
    return found
