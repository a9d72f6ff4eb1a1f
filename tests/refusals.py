"""One error for what is wrong: the file, the field, the rule, the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schedopt import InputError


def assert_refused(
    action: Callable[[], object],
    field: str | None,
    rule: str = "",
    way_out: str = "",
    source: object = "",
) -> None:
    """Assert that an action is refused in one line; a field of None may be any."""
    with pytest.raises(InputError) as caught:
        action()
    error = caught.value
    assert error.source == str(source)
    assert error.field == (error.field if field is None else field)
    assert rule in error.rule
    assert way_out in error.way_out
    assert error.way_out
    assert "\n" not in str(error)


def put(*path: str | int, value: Any) -> Callable[[Any], None]:
    """Return what puts a value into a document."""

    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        document[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[Any], None]:
    """Return what takes an entry out of a document."""

    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        del document[path[-1]]

    return change
