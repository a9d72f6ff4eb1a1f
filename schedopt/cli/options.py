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
        Parameters whose option has another name; one in capitals is an argument.
    """
    try:
        yield
    except InputError as error:
        if error.source or not error.field:
            raise
        name = names.get(error.field, error.field).replace("_", "-")
        field = name if name.isupper() else f"--{name}"
        raise InputError(error.rule, field=field, way_out=error.way_out) from None
