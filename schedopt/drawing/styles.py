"""What operations and transfers look like in a picture: colours, hatches, names."""

from __future__ import annotations

from typing import Final

from schedopt.drawing.chart import Box, Chart
from schedopt.plan import Kind
from schedopt.transfer import Tensor

COLOURS: Final = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#832db6", "#a96b59"),
    *("#e76300", "#b9ac70", "#717581", "#92dadd"),
)
"""Of up to nine stages: those of Petroff 2021 (Accessible Color Sequences) without the grey."""

HATCHES: Final = {"B": "////", "I": r"\\\\", "W": "....", "R": "xxxx", "U": "++++"}
NAMES: Final[dict[Kind | Tensor, str]] = {
    "F": "forward",
    "B": "backward",
    "I": "input half",
    "W": "weight half",
    "R": "recompute",
    "U": "weight update",
    "activation": "activation sent",
    "gradient": "gradient sent",
    "weight_gradient": "weight gradient sent",
    "weights": "weights sent",
    "weight_half": "weight half sent",
}
SENT: Final = {
    "activation": ("#bbbbbb", ""),
    "gradient": ("#777777", "////"),
    "weight_gradient": ("#c9a66b", "xxxx"),
    "weights": ("#7fa87f", "...."),
    "weight_half": ("#b79bd1", "++++"),
}


def hatch(kind: str) -> str:
    """Return the hatch of an operation or a transfer."""
    return SENT[kind][1] if kind in SENT else HATCHES.get(kind, "")


def colour(chart: Chart, box: Box) -> tuple[float, float, float]:
    """Return the colour of a stage, or of a transfer.

    The input half of a backward is lighter than the whole, all but backwards lighter still, and
    so is what has been shown before.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    if box.what in SENT:
        red, green, blue = to_rgb(SENT[box.what][0])
    elif chart.stages <= len(COLOURS):
        red, green, blue = to_rgb(COLOURS[box.stage])
    else:
        red, green, blue = to_rgb(colormaps["turbo"](0.05 + 0.9 * box.stage / (chart.stages - 1)))
    share = {"B": 1.0, "I": 0.75}.get(box.what, 1.0 if box.what in SENT else 0.45)
    if box.start_ns >= chart.repeats_from_ns:
        share *= 0.55
    return 1 - share * (1 - red), 1 - share * (1 - green), 1 - share * (1 - blue)
