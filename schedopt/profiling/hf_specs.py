"""What stands behind ``hf:``: the name of a known model and its options, read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from schedopt.errors import InputError
from schedopt.profiling.hf_families import FAMILIES, KNOWN, NAMES, PATCH, Family, Sizes

_LARGEST: Final = 2**20
_SHRINKING: Final = 32


@dataclass(frozen=True)
class Spec:
    """A known model, and the options that were given.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    given : Sizes
        The options, their values read.
    """

    name: str
    given: Sizes

    @property
    def kind(self) -> str:
        """The name of the family."""
        return KNOWN[self.name][0]

    @property
    def family(self) -> Family:
        """The family."""
        return FAMILIES[self.kind]

    @property
    def sizes(self) -> Sizes:
        """All sizes: those that were given, the others as known or as they follow."""
        named = KNOWN[self.name][1]
        sizes = named | self.given
        if "mlp" in named and "mlp" not in self.given:
            sizes["mlp"] = max(1, sizes["width"] * named["mlp"] // named["width"])
        if "kv_heads" in named and "kv_heads" not in self.given:
            sizes["kv_heads"] = min(sizes["heads"], named["kv_heads"])
        return sizes

    def __str__(self) -> str:
        """Return it as a factory is written, its options in the order of the family."""
        given = self.given
        options = [f"{key}={_shown(given[key])}" for key in self.family.options if key in given]
        return f"hf:{self.name}{':' if options else ''}{','.join(options)}"

    def check_inputs(self, batch: int, seq: int, image: int) -> None:
        """Refuse a micro-batch that the model cannot take."""
        extent = ("seq", seq) if self.family.tokens else ("image", image)
        for what, value in (("batch", batch), extent):
            _check_whole(what, value)
        _check_image(self.kind, image, batch)


def parse_spec(text: str) -> Spec:
    """Return the model that is written behind ``hf:``.

    Raises
    ------
    InputError
        If there is no such model, or it cannot have such options.
    """
    name, colon, rest = text.partition(":")
    name = name.strip()
    if name not in KNOWN:
        raise refuse(f"there is no model hf:{name:.60}", _choice(name, NAMES))
    known = FAMILIES[KNOWN[name][0]].options
    given: Sizes = {}
    for part in rest.split(",") if colon else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            raise refuse(f"{name} has no option {key!r:.60}", _choice(key, known))
        if not equals or not value:
            raise refuse(f"{key} has no value", f"Write it as {key}=VALUE")
        if key in given:
            raise refuse(f"{key} is given twice", "Give it once")
        given[key] = _read(key, value)
    spec = Spec(name, given)
    _check_sizes(spec.kind, spec.sizes)
    return spec


def either(names: Iterable[str]) -> str:
    """Return names as a choice: a, b or c."""
    *most, last = names
    return f"{', '.join(most)} or {last}"


def refuse(rule: str, way_out: str) -> InputError:
    """Return an error about a known model."""
    return InputError(rule, field="model", way_out=way_out)


def _choice(word: str, names: Sequence[str]) -> str:
    close = get_close_matches(word.lower(), names, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}Choose {either(names)}"


def _read(key: str, text: str) -> int | float | bool:
    if key == "tied":
        if text not in ("yes", "no"):
            raise refuse(f"tied={text:.60} is neither yes nor no", "Write tied=yes or tied=no")
        return text == "yes"
    if key == "dropout":
        if not re.fullmatch(r"([0-9]+\.?|[0-9]*\.[0-9]+)(e-[0-9]+)?", text) or float(text) > 1:
            raise refuse(
                f"dropout={text:.60} is not a number from 0 to 1", "Write it as dropout=0.1"
            )
        return float(text)
    if not re.fullmatch(r"-?[0-9]+", text):
        raise refuse(f"{key}={text:.60} is not a whole number", _way_out_of_whole(key))
    value = int(text[:20])
    _check_whole(key, value)
    return value


def _check_whole(key: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(f"{key}={value!r:.60} is not a whole number", _way_out_of_whole(key))
    if not _smallest(key) <= value <= _LARGEST:
        size = "small" if value < _smallest(key) else "large"
        raise refuse(f"{key}={value} is too {size}", _way_out_of_whole(key))


def _smallest(key: str) -> int:
    return 2 if key == "classes" else 1


def _way_out_of_whole(key: str) -> str:
    return f"Give a whole number from {_smallest(key)} to {_LARGEST}"


def _check_sizes(kind: str, sizes: Sizes) -> None:
    if kind == "resnet":
        return
    width, heads = sizes["width"], sizes["heads"]
    if width % heads:
        raise refuse(f"width={width} is not a multiple of heads={heads}", "Change one of them")
    if kind != "llama":
        return
    if heads % sizes["kv_heads"]:
        raise refuse(
            f"heads={heads} is not a multiple of kv_heads={sizes['kv_heads']}", "Change one of them"
        )
    if width // heads % 2:
        raise refuse(
            f"width={width} over heads={heads} is odd, and its halves are rotated",
            "Make the width an even multiple of the heads",
        )


def _check_image(kind: str, image: int, batch: int) -> None:
    if kind == "vit" and image % PATCH:
        raise refuse(
            f"image={image} is not a multiple of the patch of {PATCH}",
            f"Give a multiple of {PATCH}, such as 224",
        )
    if kind == "resnet" and batch == 1 and image <= _SHRINKING:
        raise refuse(
            f"image={image} shrinks to one pixel, over which batch norm has no variance",
            f"Give a batch of 2 or an image above {_SHRINKING}",
        )


def _shown(value: float | bool) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value}"
