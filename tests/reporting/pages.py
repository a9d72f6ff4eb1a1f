"""Pages of plans, and what a reader of HTML finds in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from schedopt import Plan, Result
from schedopt.comparing.baselines import Baseline
from schedopt.comparing.measures import measure_plan
from schedopt.reporting.page import render_page
from schedopt.simulation import simulate, usual_micro_batches
from tests.drawing.helpers import result_of

VOID = {"meta", "link", "br", "input", "img", "hr"}


class Reader(HTMLParser):
    """Reads a page; every element must be closed, in its place.

    Attributes
    ----------
    attributes : list of (str, dict)
        Of each element, by its name.
    texts : dict of str to list of str
        What stands directly in elements of a name.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self._said: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        self.attributes.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)
            if self.open[-1] not in ("script", "style"):
                self._said.append(data)

    @property
    def words(self) -> str:
        """All that a person reads, with plain spaces."""
        return " ".join(" ".join(self._said).split())

    @property
    def data(self) -> Any:
        """What the script draws."""
        return json.loads(self.texts["script"][0])


def page_of(
    given: Plan | Result,
    *,
    microbatches: int | None = None,
    file: str = "plan.json",
    baselines: Sequence[Baseline] = (),
) -> str:
    result = given if isinstance(given, Result) else result_of(given)
    assert result.plan is not None
    step = simulate(result.plan, microbatches or usual_micro_batches(result.plan))
    ours = measure_plan(result.plan, step.microbatches, "this plan")
    return render_page(result, file=file, step=step, figures=ours, baselines=baselines)
