"""From the names of parameters to those of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from schedopt.errors import InputError


@contextmanager
def naming_options(names: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Name the option in each error about a parameter; what is wrong in a file stays as it is.

    Parameters
    ----------
    names : mapping of str to str
        Parameters whose option has another name.
    """
    try:
        yield
    except InputError as error:
        if error.source:
            raise
        name = names.get(error.field, error.field).replace("_", "-")
        raise InputError(error.rule, field=f"--{name}", way_out=error.way_out) from None
