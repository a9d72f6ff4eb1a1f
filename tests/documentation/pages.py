"""The pages of the repository: what they show, and how their commands are run.

Commands in a block ``console`` run as they stand, in order, in a folder that has ``instances``;
``# exit code N`` behind one says how it ends, if not well. A block ``text`` shows lines that they
print, and blocks ``python`` run one after the other, but for those that need processes of torchrun.
Blocks without a language are not run: they need what a test does not have.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import pytest

from schedopt.running import execution
from tests.budgets import PROFILE
from tests.cli.commands import run
from tests.importing.files import PIPEDREAM
from tests.running.pool import launch_warm

ROOT: Final = Path(__file__).parents[2]
LEFT_OUT: Final = ("build", "dist", "tests")
"""Folders without pages, besides hidden ones."""
LIMITS: Final = {"solve": 1, "compare": 12}
"""Seconds of commands that do not say how long they may take."""
NOTHING_IN_TIME: Final = 4
"""The exit code of a search without an answer."""
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([^)\s]*)\)")
_EXIT: Final = re.compile(r"# exit code (\d+)$")


class Page:
    """A page, by its path from the root."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = ROOT / name

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    def blocks(self, language: str) -> list[str]:
        """Return the texts of the blocks of a language, in order."""
        return [text for kind, text in _BLOCK.findall(self.text) if kind == language]

    @property
    def commands(self) -> list[str]:
        """What is typed in the blocks that run."""
        return _typed(self.blocks("console"))

    @property
    def commands_to_read(self) -> list[str]:
        """What is typed in blocks that are not run."""
        return _typed(self.blocks(""))

    @property
    def programs(self) -> list[str]:
        """The Python that runs."""
        return [text for text in self.blocks("python") if "schedopt.torch" not in text]

    @property
    def links(self) -> list[tuple[str, str]]:
        """File, "" for the page itself, and place of each link that stays in the repository."""
        links = [link.partition("#") for link in _LINK.findall(self.text) if "://" not in link]
        return [(file, place) for file, _, place in links]

    @cached_property
    def places(self) -> set[str]:
        """The anchors of its headings, as they are made of their words."""
        headings = re.findall(r"^#+ (.*)$", re.sub(_BLOCK, "", self.text), re.MULTILINE)
        return {re.sub(r"[^\w -]", "", words).lower().replace(" ", "-") for words in headings}

    def run(self, folder: Path) -> Iterator[tuple[str, subprocess.CompletedProcess[str]]]:
        """Run its commands in order, in a terminal of 100 columns; yield each with its end."""
        prepare(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "100")
            if PROFILE != "nightly":
                # To start ranks anew takes as long as all other commands of a page.
                patch.setattr(execution, "launch", launch_warm)
            for command in self.commands:
                yield command, _run(shlex.split(command, comments=True), folder)

    def execute(self) -> None:
        """Run its Python, in the folder where one is."""
        names: dict[str, object] = {"__name__": self.name}
        for program in self.programs:
            exec(compile(program, self.name, "exec"), names)


def find_pages() -> Mapping[str, Page]:
    """Return all pages by name."""
    folders = [
        path
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name not in LEFT_OUT
    ]
    paths = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))]
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    return {name: Page(name) for name in names if not name.startswith("schedopt/solvers/")}


def prepare(folder: Path) -> None:
    """Put what commands and programs of pages read into a folder."""
    (folder / "instances").symlink_to(ROOT / "instances")
    (folder / "graph.txt").write_text(PIPEDREAM)


def expected_exit(command: str) -> int:
    """Return the exit code that a page promises."""
    found = _EXIT.search(command)
    return int(found[1]) if found else 0


def words(text: str) -> set[tuple[str, ...]]:
    """Return the lines of a text, each as its words."""
    return {tuple(line.split()) for line in text.splitlines() if line.strip()}


PAGES: Final = find_pages()


def _typed(blocks: list[str]) -> list[str]:
    return [line[2:] for text in blocks for line in text.splitlines() if line.startswith("$ ")]


def _run(typed: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = typed
    if program == "schedopt":
        name = arguments[0]
        if name not in LIMITS or {"--help", "--time-limit"} & {*arguments}:
            return run(*arguments, folder=folder, quick=False)
        limited = [*arguments, "--time-limit"]
        done = run(*limited, str(LIMITS[name]), folder=folder, quick=False)
        if done.returncode == NOTHING_IN_TIME:
            # As on a machine that others use, too.
            done = run(*limited, str(20 * LIMITS[name]), folder=folder, quick=False)
        return done
    assert program == "torchrun"
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
