"""What is drawn, and what stands in a picture."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from schedopt import Plan, Result


def result_of(plan: Plan) -> Result:
    return Result(problem=plan.problem, status="feasible", plan=plan)


def texts(path: Path) -> list[str]:
    """Return the texts of an SVG file."""
    root = ElementTree.parse(path).getroot()
    return [(node.text or "").strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]
