"""``schedopt profile --shape``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from schedopt.cli.options import ModelOptions, naming_options, refuse_together
from schedopt.errors import InputError

USUAL_SEQUENCE = 4096
"""Tokens of a sample, where nothing is said."""


def write_shape(
    text: str,
    on: str | None,
    config: ModelOptions,
    sizes: Sequence[int],
    degrees: Sequence[int],
    recomputed_modules: Sequence[str],
    output: Path,
) -> None:
    """Write the profile of a decoder given by numbers, and print it."""
    from schedopt.cli.profile_tables import print_chain, print_profile
    from schedopt.profiling.rates import find_rates
    from schedopt.profiling.shape import make_profile, read_shape

    if on is None:
        raise InputError(
            "needs a GPU whose rates are known", field="--shape", way_out="Add --on h100"
        )
    if config.dtype not in (None, "bfloat16"):
        refuse_together("--dtype", "--shape", "which is of bfloat16")
    sequence = USUAL_SEQUENCE if config.seq is None else config.seq
    if sequence < 1:
        raise InputError(
            f"{sequence} is no number of tokens", field="--seq", way_out="Give 1 or more"
        )
    with naming_options({"degrees": "tensor-parallel", "recomputed_modules": "recompute-modules"}):
        shape, rates = read_shape(text), find_rates(on, "half")
        profile = make_profile(
            shape,
            rates,
            sequence=sequence,
            sizes=sizes,
            degrees=degrees,
            recomputed_modules=recomputed_modules,
        )
    if len(profile.variants) == 1 and profile.degrees == (1,):
        chain = profile.variants[0].chain
        chain.save(output)
        print_chain(chain)
        typer.echo(f"Chain written to {output}")
        return
    profile.save(output)
    print_profile(profile)
    typer.echo(f"Profile written to {output}")
