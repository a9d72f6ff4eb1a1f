"""Data that people keep in files: `load` and `save` for classes that know no file format.

A class names the functions that know its format as "module:function", as the registry names
solvers; they are imported at the first use. So `Chain.load(path)` is there and typed, and yet
nothing that a problem or a plan is made of imports the code of files, which stands above it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self


class Stored:
    """Base of data with a file format.

    Parameters
    ----------
    load, text : str
        Of the class: "module:function" that reads one from a path, and that returns one as the
        text of its file. A class derived from such a class need not name them: it has its files.
    """

    _load: ClassVar[str]
    _text: ClassVar[str]

    def __init_subclass__(cls, *, load: str | None = None, text: str | None = None) -> None:
        if load is not None:
            cls._load = load
        if text is not None:
            cls._text = text

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read one from a file.

        Raises
        ------
        InputError
            Naming the file, the field, the rule and the way out.
        """
        read: Any = find_function(cls._load)(path)
        if not isinstance(read, cls):
            # The file says nothing of a derived class: what was read becomes one.
            read, state = object.__new__(cls), read.__dict__
            read.__dict__.update(state)
        loaded: Self = read
        return loaded

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all.

        Raises
        ------
        InputError
            If it holds something that the format cannot, or the path cannot be written.
        """
        write_whole = find_function("schedopt.formats.writing:write_whole")
        write_whole(path, find_function(self._text)(self))


def find_function(name: str) -> Callable[..., Any]:
    """Return the function that is named as "module:function"."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
