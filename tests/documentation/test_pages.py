"""What pages show runs as shown, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from schedopt.cli.app import COMMANDS, app
from schedopt.formats import reading
from tests.documentation.pages import PAGES, Page, expected_exit, prepare, words

BY_NIGHT = [pytest.mark.nightly, pytest.mark.timeout(1800)]
GROUP: Any = typer.main.get_command(app)


def chosen(kind: str) -> list[Any]:
    """Return the pages that show something that runs; all but the README are for the night."""
    return [
        pytest.param(page, id=name, marks=[] if name == "README.md" else BY_NIGHT)
        for name, page in PAGES.items()
        if getattr(page, kind)
    ]


@pytest.mark.parametrize("page", chosen("commands"))
def test_commands_run_and_print_what_is_shown(page: Page, tmp_path: Path) -> None:
    printed = set()
    for command, done in page.run(tmp_path):
        assert done.returncode == expected_exit(command), (command, done.stderr)
        printed |= words(done.stdout)
    for block in page.blocks("text"):
        assert words(block) <= printed


@pytest.mark.parametrize("page", chosen("programs"))
def test_programs_run(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    page.execute()


def test_a_page_that_shows_something_else_is_noticed(tmp_path: Path) -> None:
    page = Page("README.md")
    page.text = "```console\n$ schedopt --version\n$ schedopt solve  # exit code 2\n```\n"
    ends = list(page.run(tmp_path))
    assert [done.returncode for _, done in ends] == [0, 2]
    assert [expected_exit(command) for command, _ in ends] == [0, 2]
    assert not words("schedopt 0.0.7") <= words(ends[0][1].stdout)


def test_every_option_says_what_it_means() -> None:
    names = [name for name, *_ in COMMANDS]
    assert {"solve", "run"} <= {*names}
    for name in names:
        for parameter in GROUP.commands[name].params:
            assert parameter.help, (name, parameter.opts)
            assert not re.match(r"[A-Z0-9,.|]+: ", parameter.help), (name, parameter.opts)


def test_options_that_are_only_shown_exist() -> None:
    seen = 0
    for name, page in PAGES.items():
        for command in page.commands_to_read:
            typed = shlex.split(command.partition("schedopt ")[2], comments=True)
            if "schedopt " not in command or typed[0] == "bench":
                continue
            known = {option for one in GROUP.commands[typed[0]].params for option in one.opts}
            assert {word for word in typed if word.startswith("-")} <= known, (name, command)
            seen += 1
    assert seen >= 8


def test_every_command_and_every_format_is_on_its_page() -> None:
    rows = PAGES["schedopt/cli/README.md"].text
    for name in [*(name for name, *_ in COMMANDS), "instance", "bench"]:
        assert f"\n| `{name}` | " in rows
    for name in reading.KINDS:
        assert f"\n| `{name}` | " in PAGES["schedopt/formats/README.md"].text


def test_links_lead_somewhere() -> None:
    assert {"README.md", "CHANGELOG.md", "solvers/README.md", "results/claims.md"} <= {*PAGES}
    for name, page in PAGES.items():
        for file, place in page.links:
            target = (page.path.parent / file).resolve() if file else page.path
            assert target.exists(), f"{name}: {file}"
            if place:
                assert place in Page(str(target)).places, f"{name}: {file}#{place}"


def test_the_readme_is_short() -> None:
    assert PAGES["README.md"].text.count("\n") < 200
