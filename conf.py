"""The site: ``make docs`` builds it with Sphinx from the pages that lie beside the code."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pydoc import locate
from typing import TYPE_CHECKING, Any, Final

import typer
from sphinx.ext.autodoc import mock

from schedopt.cli.app import app as command_line
from schedopt.version import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MENU: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "README": {
        "Start": ["Start in five minutes <self>", "schedopt/examples/concepts", "GLOSSARY"],
        "Guides": [
            "schedopt/examples/cluster",
            "schedopt/examples/launch",
            "schedopt/examples/library",
            "schedopt/examples/research",
        ],
        "Reference": [
            "schedopt/cli/README",
            "schedopt/README",
            "schedopt/formats/README",
            "schedopt/profiling/README",
            "schedopt/running/README",
            "schedopt/exporting/README",
            "instances/README",
            "instances/PRESETS",
        ],
        "Science": [
            "Solvers <solvers/README>",
            "schedopt/bounds/README",
            "schedopt/systems/README",
            "results/README",
        ],
        "The project": ["CONTRIBUTING", "CHANGELOG"],
    },
    "results/README": {
        "Tables": [
            "Plans with any allocation, of published profiles <general-published>",
            "Training steps, of published profiles <hybrid-published>",
            "*",
        ]
    },
}
"""Below which page which others stand, by heading."""
WRAPPED: Final = (
    ".highlight-console pre, .highlight-default pre"
    " { white-space: pre-wrap; overflow-wrap: anywhere; }"
)
"""Commands are long; what a reader looks for is often at their end."""

project = "schedopt"
release = __version__
root_doc = "README"
include_patterns = ["**.md"]
exclude_patterns = [".*", "**/site-packages", "build", "dist", "schedopt/solvers", "tests"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "py:obj"
myst_heading_anchors = 4
autodoc_mock_imports = ["torch"]
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = f"schedopt {__version__}"
html_show_sphinx = False
html_copy_source = False
napoleon_use_ivar = True


def setup(app: Sphinx) -> None:
    """Register what turns pages of the repository into pages of the site."""
    app.connect("source-read", extend_page)
    app.connect("build-finished", finish)
    app.add_css_file("wrapped.css")


def extend_page(_app: Sphinx, name: str, source: list[str]) -> None:
    """Add the menu, and the reference and the options where a comment asks for them."""
    source[0] = re.sub(r"<!-- api: (.*?) -->", lambda found: reference(found[1]), source[0])
    source[0] = re.sub("<!-- options -->", lambda found: options(), source[0])
    for heading, pages in MENU.get(name, {}).items():
        settings = f":hidden:\n:glob:\n:caption: {heading}"
        source[0] += "\n".join(["", "```{toctree}", settings, "", *pages, "```", ""])


def reference(names: str) -> str:
    """Return the directives that make the reference of modules, classes and functions."""
    with mock(autodoc_mock_imports):
        found = {name: locate(name) for name in names.split()}
    lines = []
    for name, what in found.items():
        if inspect.ismodule(what):
            lines += [f".. rubric:: {name}", "", f".. automodule:: {name}", "   :no-members:", ""]
        else:
            kind = "class" if inspect.isclass(what) else "function"
            lines += [f".. auto{kind}:: {name}", ""]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def options() -> str:
    """Return the options of all commands, a table for each."""
    lines = []
    for name, command in all_commands("", typer.main.get_command(command_line)):
        context = typer.Context(command, info_name=name)
        about = command.help.split("\n\n")[0]
        lines += ["", f"### `{name.strip()}`", "", about, "", "| option | meaning |", "|---|---|"]
        for parameter in command.params:
            typed, text = parameter.get_help_record(context)
            typed, said = typed.replace("|", r"\|"), re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)
            said = re.sub(r"--[a-z][a-z-]*", r"`\g<0>`", said)
            lines.append(f"| `{typed}` | {said} |")
    return "\n".join(lines)


def all_commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group with what one types for them."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, below in command.commands.items():
        yield from all_commands(f"{name} {word}", below)


def finish(app: Sphinx, error: Exception | None) -> None:
    """Write the style, and let the folder of the site open with the README."""
    if error is None:
        folder = Path(app.outdir)
        (folder / "_static" / "wrapped.css").write_text(WRAPPED)
        shutil.copy(folder / "README.html", folder / "index.html")
