"""Pictures of plans and of finite steps: in the terminal, and as SVG, PNG or PDF."""

from __future__ import annotations

from schedopt.drawing.chart import Box, Chart, Row
from schedopt.drawing.charts import (
    chart_plan,
    chart_simulation,
    name_group,
    name_shards,
    name_unused,
)
from schedopt.drawing.files import picture_suffix
from schedopt.drawing.picture import save_picture
from schedopt.drawing.terminal import explain_glyphs, render_chart

__all__ = [
    "Box",
    "Chart",
    "Row",
    "chart_plan",
    "chart_simulation",
    "explain_glyphs",
    "name_group",
    "name_shards",
    "name_unused",
    "picture_suffix",
    "render_chart",
    "save_picture",
]
