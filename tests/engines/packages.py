"""The engines' own packages, which only `make test-all` installs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


def needs(package: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a file whose tests need the package of an engine."""
    missing = find_spec(package.partition(".")[0]) is None
    reason = f"{package} is not installed: make test-all, or see the Makefile"
    return [
        pytest.mark.nightly,
        pytest.mark.engines,
        pytest.mark.skipif(missing, reason=reason),
    ]


def load(module: str) -> Any:
    """Import a module of an engine, whatever it warns of."""
    with quietly():
        return import_module(module)


@contextmanager
def quietly() -> Iterator[None]:
    """Let an engine warn: of GPUs that are missing, of options that it sets itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
