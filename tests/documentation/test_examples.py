"""What pages and docstrings show of files and notes is what there is."""

from __future__ import annotations

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

from schedopt import Chain, Layer, Platform, Result, Scope, check, solve
from schedopt.formats import result_to_json
from schedopt.solving.registry import PARTITIONERS
from tests.documentation.pages import PAGES, ROOT

FORMATS = PAGES["schedopt/formats/README.md"].blocks("json")
SOLVERS = PAGES["solvers/README.md"].text
CITED = re.compile(r"\b[A-Z][\w-]+(?: et al\.| and [A-Z][\w-]+) (?:19|20)\d\d\b")


def test_the_chain_example_loads(tmp_path: Path) -> None:
    example = next(block for block in FORMATS if "chain/1" in block)
    (tmp_path / "chain.json").write_text(example)
    assert len(Chain.load(tmp_path / "chain.json").layers) == 2


def test_the_notes_of_the_ladder_are_explained() -> None:
    table = re.findall(r"^\| `([^`]*)` \| ", SOLVERS.split("| note in the ladder")[1], re.MULTILINE)
    explained = {
        part for row in table[: table.index("stopped early") + 1] for part in row.split("`, `")
    }
    layers = tuple(
        Layer(forward_ns=a, backward_ns=2 * a, weight_bytes=0, activation_bytes=3)
        for a in (5, 3, 4, 2, 6)
    )
    notes = set()
    for memory, scope in (
        (1, Scope(max_k=2)),
        (9, Scope(max_k=3)),
        (12, Scope(max_k=2, recompute=True)),
        (20, Scope(allocation="general", max_k=2)),
        (40, Scope(microbatches=4)),
    ):
        for seconds in (2, 1e-3):
            result = solve(
                Chain(layers=layers), Platform(3, memory), scope=scope, time_limit=seconds
            )
            notes |= {str(phase.note) for phase in result.ladder}
    said = {part for note in notes for part in note.split(": ")[: 2 if "early" in note else 1]}
    written = {part for both in said for part in both.split("; ")}
    assert len(written) >= 5
    assert written <= explained


def test_the_plan_example_is_the_shipped_one_and_valid() -> None:
    shipped = ROOT / "instances" / "two-stages.plan.json"
    result = Result.load(shipped)
    assert check(result) == ()
    assert result_to_json(result) == shipped.read_text()
    example = next(block for block in FORMATS if '"k"' in block)
    assert json.loads(example) == json.loads(shipped.read_text())["pattern"]


@pytest.mark.parametrize(
    "name",
    [
        "formats.presets",
        "units",
        "platform",
        "scope",
        "solving.solve",
        "solvers.even_split",
        "solvers.block_partition",
        "families.instance",
        "cli.commands",
    ],
)
def test_the_examples_in_docstrings_hold(name: str) -> None:
    failures, tried = doctest.testmod(importlib.import_module(f"schedopt.{name}"))
    assert tried > 0
    assert failures == 0


def test_the_platform_example_is_the_shipped_one() -> None:
    example = next(block for block in FORMATS if "platform/1" in block)
    assert example == (ROOT / "instances" / "two-nodes.platform.json").read_text()


def test_every_source_that_is_cited_has_its_title() -> None:
    titles = PAGES["GLOSSARY.md"].text.partition("## Sources")[2]
    read = [*(ROOT / "schedopt").rglob("*.py"), *(ROOT / "solvers").glob("*.py")]
    texts = [path.read_text() for path in read] + [page.text for page in PAGES.values()]
    cited: set[str] = set()
    for text in texts:
        cited |= set(CITED.findall(re.sub(r"\s+(# )?", " ", text)))
    assert len(cited) > 25
    assert {source for source in cited if source not in titles} == set()


def test_every_planner_has_its_source() -> None:
    for name, entry in PARTITIONERS.items():
        assert f"| `{name}` | {entry.source} |" in SOLVERS
