"""Figures in the style that all of them share, and into files: SVG, PNG or PDF."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final
from warnings import catch_warnings, filterwarnings

from schedopt.errors import InputError
from schedopt.validation import as_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES: Final = (".svg", ".png", ".pdf")
DARK: Final = "#444444"
"""What is neither data nor text."""
TIME_UNITS: Final = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
SIZE_UNITS: Final = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3), ("B", 1))
MARKERS: Final = "osD^vPX<>"
DASHES: Final = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))


def pick_unit(
    units: tuple[tuple[str, int], ...], values: Iterable[int | Fraction]
) -> tuple[str, int]:
    """Return the largest unit that the largest value reaches."""
    most = max(values, default=0)
    return next((unit for unit in units if most >= unit[1]), units[-1])


def set_title(figure: Figure, text: str) -> None:
    """Write what a figure is about above it."""
    figure.suptitle(text, weight="bold", x=0.01, ha="left").set_fontsize(13)


def style_axes(axes: Axes) -> None:
    """Draw a pale grid behind the data, and no frame but the two axes."""
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def picture_suffix(path: str | Path) -> str:
    """Return the kind of a picture by the end of its name, before anything is drawn.

    Raises
    ------
    InputError
        For no path, a name that says no kind, or where matplotlib is not installed.
    """
    suffix = as_path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{suffix or 'a name without ending'} is not a kind of picture",
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
    write_whole(path, encode_figure(draw, suffix))


def encode_figure(draw: Callable[[], Figure], suffix: str) -> bytes:
    """Return what is drawn as the bytes of a file: .svg, .png or .pdf.

    Text is drawn as it stands: dollars in the name of a chain are no formula. A sign that the font
    lacks is drawn as an empty box, without a warning.
    """
    from matplotlib import rc_context

    buffer = BytesIO()
    style = rc_context(
        {
            "svg.hashsalt": "schedopt",
            "svg.fonttype": "none",
            "hatch.linewidth": 0.5,
            "text.parse_math": False,
        }
    )
    with style, catch_warnings():
        filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        figure = draw()
        stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[suffix]
        figure.savefig(buffer, format=suffix[1:], dpi=150, metadata=stamp)
    return buffer.getvalue()
