"""The one table of systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.systems.setting import Setting

Constructor = Callable[[Setting], Plan]
"""Makes a plan; raises `InputError` for a chain or a number of GPUs that it cannot do."""


@dataclass(frozen=True)
class System:
    """A way to train that people know by a name.

    Parameters
    ----------
    name : str
        What one types.
    title : str
        What one reads.
    constructor : str
        "module:function".
    source : str
        Who described it.
    """

    name: str
    title: str
    constructor: str
    source: str

    def plan(self, setting: Setting) -> Plan:
        """Make the plan of this system.

        Raises
        ------
        InputError
            If it cannot do the chain or the number of GPUs, with the reason.
        """
        module, _, function = self.constructor.partition(":")
        return cast(Constructor, getattr(import_module(module), function))(setting)


SYSTEMS: Final[tuple[System, ...]] = ()


def find_system(name: str) -> System:
    """Return a system by name.

    Raises
    ------
    InputError
        With the names that there are.
    """
    for system in SYSTEMS:
        if system.name == name:
            return system
    raise InputError(
        f"{name!r} is not known",
        field="systems",
        way_out=f"Choose {', '.join(system.name for system in SYSTEMS)}",
    )
