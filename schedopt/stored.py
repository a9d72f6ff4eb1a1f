"""Data that people keep in files: `load` and `save` for classes that know no file format.

A class names the functions that read and write it as "module:function", as the registry names
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
    load, save : str
        Of the class: "module:function" that reads one from a path, and that writes one to a path.
    """

    _load: ClassVar[str]
    _save: ClassVar[str]

    def __init_subclass__(cls, *, load: str, save: str) -> None:
        cls._load, cls._save = load, save

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read one from a file.

        Raises
        ------
        InputError
            Naming the file, the field, the rule and the way out.
        """
        read: Self = _find(cls._load)(path)
        return read

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all.

        Raises
        ------
        InputError
            If it holds something that the format cannot, or the path cannot be written.
        """
        _find(self._save)(self, path)


def _find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
