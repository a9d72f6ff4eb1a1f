"""Figures into files: SVG, PNG or PDF."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from schedopt.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES: Final = (".svg", ".png", ".pdf")


def picture_suffix(path: str | Path) -> str:
    """Return the kind of a picture by the end of its name, before anything is drawn.

    Raises
    ------
    InputError
        For a name that says no kind, or where matplotlib is not installed.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{suffix or 'no ending'} is no kind of picture",
            way_out=f"End the name in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}",
            source=str(path),
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(
            "pictures need matplotlib, which is not installed",
            way_out="Run pip install matplotlib",
            source=str(path),
        ) from None
    return suffix


def save_figure(draw: Callable[[], Figure], path: str | Path) -> None:
    """Write what is drawn into a file, whole or not at all; the same figure, the same bytes.

    Raises
    ------
    InputError
        Before anything is drawn: for a name that says no kind of picture, a path that cannot be
        written, or where matplotlib is not installed.
    """
    from schedopt.formats import check_writable, write_whole

    suffix = picture_suffix(path)
    check_writable(path)
    from matplotlib import rc_context

    buffer = BytesIO()
    with rc_context({"svg.hashsalt": "schedopt", "svg.fonttype": "none", "hatch.linewidth": 0.5}):
        figure = draw()
        stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[suffix]
        figure.savefig(buffer, format=suffix[1:], dpi=150, metadata=stamp)
    write_whole(path, buffer.getvalue())
