"""The claims of four papers: a table for each, in a TOML file of its name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

from schedopt.bench.claims.result import Claim, Row

PAPERS: Final = ("cyclic", "timeprest", "complexity", "data_parallel")


def load_table(name: str) -> Iterator[Claim]:
    """Yield the claims of a paper, in the order of its table."""
    table = tomllib.loads((files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))
    paper = table.pop("paper")
    for row_id, row in table.items():
        yield Claim(
            row_id,
            row["says"],
            [*(f"{paper}, {place}" for place in row["places"]), *row.get("other_sources", ())],
            row["compute"],
            {
                says: [Row(**reading) for reading in readings]
                for says, *readings in row["statements"]
            },
            row.get("notes", ()),
        )


CLAIMS: Final = {claim.id: claim for name in PAPERS for claim in load_table(name)}
"""By their ids, in the order of the tables."""
