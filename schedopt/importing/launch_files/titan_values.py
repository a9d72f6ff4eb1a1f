"""What a configuration of torchtitan sets, by section and name, and what its command line changes.

References
----------
torchtitan 0.3: ``config/manager.py``, which reads the command line with tyro; up to 0.2
``--job.config_file FILE`` and settings behind it.
"""

from __future__ import annotations

import ast
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from schedopt.errors import InputError
from schedopt.importing.launch_files.titan_config import CHECKPOINTS, read_configuration
from schedopt.validation import show

ARGUMENTS: Final = "arguments"
OLD: Final = {"training.batch_size": "training.local_batch_size"}
"""Names of earlier versions."""
_CHECKPOINT: Final = "activation_checkpoint:"
_CHECKPOINTS: Final[Mapping[str, str]] = {
    "full": "FullAC.Config",
    "memory_budget": "MemoryBudgetAC.Config",
    "none": "None",
    "selective": "SelectiveAC.Config",
}
"""Words by which its command line chooses what is computed again."""


def read_values(text: str, config: str | None, arguments: str, *, is_code: bool) -> dict[str, Any]:
    """Return the settings of a file by section and name, as its command line changes them.

    Parameters
    ----------
    text : str
        TOML, or Python.
    config : str, optional
        Of Python: the function that returns the configuration.
    arguments : str
        The command line: ``--parallelism.tensor_parallel_degree 2`` or ``--SECTION.NAME=VALUE``.
    is_code : bool
        Whether the text is Python.

    Raises
    ------
    InputError
        For a text that is neither, and for arguments that set nothing by name.
    """
    changed = read_arguments(arguments)
    asked = changed.pop("config", None)
    if None not in (asked, config) and asked != config:
        _refuse(f"--config {asked}, and import_launch.config is {config}", "Keep one of them")
    changed.pop("module", None)
    return _read(text, asked or config, is_code=is_code) | changed


def _read(text: str, config: str | None, *, is_code: bool) -> dict[str, Any]:
    if is_code:
        return read_configuration(text, config)
    if config is not None:
        raise InputError(
            "a TOML is one configuration", field="config", way_out="Leave import_launch.config out"
        )
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"it is no TOML: {error}",
            way_out="Give the TOML of torchtitan 0.2, or a Python file (.py) that returns a "
            "Trainer.Config; what a command line adds is import_launch.arguments",
        ) from None
    found: dict[str, Any] = {}
    for section, members in document.items():
        if isinstance(members, dict):
            for key, value in members.items():
                found[OLD.get(f"{section}.{key}", f"{section}.{key}")] = value
        else:
            found[section] = members
    return found


def read_arguments(text: str) -> dict[str, Any]:
    """Return what a command line sets, by section and name; the last word counts.

    Raises
    ------
    InputError
        For words that set nothing by name, and quotes that do not end.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        _refuse("a quote does not end", "Close it")
    found: dict[str, Any] = {}
    for name, value in _pairs(words):
        section, _, key = name.rpartition(".")
        if value is None and key.startswith("no_"):
            name, value = f"{section}.{key.removeprefix('no_')}", False
        found[OLD.get(name, name)] = True if value is None else value
        if name.startswith(_CHECKPOINT):
            del found[name]
            found |= CHECKPOINTS[_CHECKPOINTS[name.removeprefix(_CHECKPOINT)]]
    return found


@contextmanager
def naming_arguments(text: str) -> Iterator[None]:
    """Name the command line, not the file, in each error about a setting that it changes."""
    try:
        yield
    except InputError as error:
        if error.source or error.field == ARGUMENTS or error.field not in read_arguments(text):
            raise
        raise InputError(
            f"{error.field}: {error.rule}", field=ARGUMENTS, way_out=error.way_out
        ) from None


def _pairs(words: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield names with their values; None: there is none."""
    name: str | None = None
    for word in words:
        plain = word.replace("-", "_")
        chosen = plain.removeprefix(_CHECKPOINT) if plain.startswith(_CHECKPOINT) else ""
        if name is not None and not word.startswith("--") and chosen not in _CHECKPOINTS:
            yield name, _value(word)
            name = None
            continue
        if name is not None:
            yield name, None
            name = None
        if chosen in _CHECKPOINTS:
            yield plain, True
        elif word.startswith("--") and word[2:].partition("=")[0]:
            written, is_set, value = word[2:].partition("=")
            name = written.replace("-", "_")
            if is_set:
                yield name, _value(value)
                name = None
        else:
            _refuse(
                f"{show(word)} sets nothing by name",
                "Write --SECTION.NAME VALUE for each, as behind torchtitan's own command",
            )
    if name is not None:
        yield name, None


def _value(word: str) -> Any:
    """Return a number, a list or a truth that a word writes; else the word."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    try:
        return ast.literal_eval(word)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return word


def _refuse(rule: str, way_out: str) -> NoReturn:
    raise InputError(rule, field=ARGUMENTS, way_out=way_out)
