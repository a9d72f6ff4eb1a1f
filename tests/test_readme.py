"""What the README and the docstrings show runs as shown."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from schedopt import Chain, Layer, Platform, Result, Scope, check, solve
from schedopt.formats import result_to_json
from tests.cli.commands import run
from tests.importing.files import PIPEDREAM

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SOLVERS = (ROOT / "solvers" / "README.md").read_text()
TOUR = "\n".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL))
COMMANDS = re.findall(r"^\$ schedopt (.*)$", TOUR, re.MULTILINE)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
Tour = Mapping[str, subprocess.CompletedProcess[str]]
LIMITS = {"solve": "1", "compare": "2"}
"""Seconds, where others would be too many."""


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    """Run the commands of the tour in order, in a terminal of 100 columns; return their ends."""
    folder = tmp_path_factory.mktemp("tour")
    shutil.copytree(ROOT / "instances", folder / "instances")
    (folder / "graph.txt").write_text(PIPEDREAM)
    ends = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        for command in COMMANDS:
            typed = shlex.split(command)
            if typed[0] in LIMITS and "--help" not in typed:
                typed += ["--time-limit", LIMITS[typed[0]]]
            ends[command] = run(*typed, folder=folder, quick=False)
    return ends


def printed(tour: Tour, name: str) -> list[str]:
    """Return the lines that the first command of a name prints."""
    command = next(command for command in tour if command.startswith(name))
    return tour[command].stdout.splitlines()


def test_the_commands_of_the_tour_run_in_order(tour: Tour) -> None:
    assert len(tour) == len(COMMANDS) >= 30
    for command, done in tour.items():
        assert done.returncode == (3 if "0.9G" in command else 0), (command, done.stderr)


def test_the_table_of_the_sweep_is_what_is_printed(tour: Tour) -> None:
    table = re.findall(r"```text\n( +Step.*?)```", README, re.DOTALL)[0].splitlines()
    assert len(table) == 7
    assert set(table) <= {line.rstrip() for line in printed(tour, "sweep")}


def test_the_table_of_the_comparison_is_what_is_printed(tour: Tour) -> None:
    table = re.findall(r"```text\n( +System.*?)```", README, re.DOTALL)[0].splitlines()
    rows = [line.split() for line in table]
    assert len(rows) == 10
    shown = [line.split() for line in printed(tour, "compare")]
    assert all(row in shown for row in rows)


def test_the_library_example_runs() -> None:
    (code,) = (one for one in PYTHON if "solve" in one)
    exec(compile(code, "README.md", "exec"), {})


def test_the_chain_example_loads(tmp_path: Path) -> None:
    example = next(b for b in re.findall(r"```json\n(.*?)```", README, re.DOTALL) if "chain/1" in b)
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
    written = {part for note in notes for part in note.split(": ")[: 2 if "early" in note else 1]}
    assert len(written) >= 5
    assert written <= explained


def test_the_plan_example_is_the_shipped_one_and_valid() -> None:
    shipped = ROOT / "instances" / "two-stages.plan.json"
    result = Result.load(shipped)
    assert check(result) == ()
    assert result_to_json(result) == shipped.read_text()
    example = next(b for b in re.findall(r"```json\n(.*?)```", README, re.DOTALL) if '"k"' in b)
    assert json.loads(example) == json.loads(shipped.read_text())["pattern"]


@pytest.mark.parametrize(
    "name",
    [
        "formats.presets",
        "units",
        "platform",
        "problem",
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
    blocks = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    example = next(block for block in blocks if "platform/1" in block)
    assert example == (ROOT / "instances" / "two-nodes.platform.json").read_text()


def test_links_lead_somewhere() -> None:
    pages = [page for page in ROOT.rglob("*.md") if ".venv" not in page.parts]
    assert len(pages) >= 8
    for page in pages:
        text = page.read_text()
        for link in re.findall(r"\]\(([^)#][^)]*)\)", text):
            path, _, place = link.partition("#")
            if "://" in path:
                continue
            target = page.parent / path
            assert target.exists(), f"{page.name}: {link}"
            assert not place or place in _places(target), f"{page.name}: {link}"
        for place in re.findall(r"\]\(#([^)]*)\)", text):
            assert place in _places(page), f"{page.name}: #{place}"


def _places(page: Path) -> set[str]:
    """Return the anchors of headings, as they are made of their words."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
