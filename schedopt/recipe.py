"""How to cut a model again, as its chain was cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from schedopt.validation import STRICT, as_tuple, check_mapping


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to cut the same model in the same places again.

    A recipe is compared with the model that a user names; it is never obeyed: nothing is imported
    or run because a file says so.

    Parameters
    ----------
    factory : str
        ``package.module:function`` that builds the model.
    arguments : mapping
        What it was called with.
    torch : str
        The version of torch.
    cuts : sequence of str
        The name of the module at which each layer starts.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    torch: str = ""
    cuts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_mapping(self.arguments, "arguments")
        as_tuple(self, "cuts")
