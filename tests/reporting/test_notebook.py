"""What a notebook shows of results, plans, comparisons and sweeps."""

from __future__ import annotations

import sys
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from types import ModuleType
from xml.etree import ElementTree

import pytest

from schedopt import Chain, Platform, Scope, compare, solve
from schedopt.reporting.notebook import show_progress
from tests.layers import layer
from tests.sweeping.test_picture import SEVERAL

CHAIN = Chain(layers=(replace(layer(1, 2, 1), name="<b>&"), layer(2, 4, 1)), name="<i>two")
PLATFORM = Platform(2, 100, bandwidth="1GB/s")


class Reader(HTMLParser):
    """Elements that are opened and closed, and the pictures between."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.pictures: list[bytes] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag == "img":
            kind, _, data = (dict(attrs)["src"] or "").partition(",")
            assert kind == "data:image/svg+xml;base64"
            self.pictures.append(b64decode(data))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(shown: str) -> Reader:
    """Read what is shown: well-formed, with nothing from elsewhere, pictures that can be drawn."""
    reader = Reader()
    reader.feed(shown)
    assert not reader.open
    assert "http" not in shown
    assert not {"i", "b", "script"} & reader.seen
    for picture in reader.pictures:
        ElementTree.fromstring(picture)
    return reader


def test_a_result_shows_its_verdict_its_tables_and_a_picture() -> None:
    result = solve(CHAIN, PLATFORM, scope=Scope())
    shown = result._repr_html_()
    reader = read(shown)
    assert len(reader.pictures) == 1
    assert "Proven optimal" in shown
    assert "&lt;b&gt;&amp;" in shown
    assert result.plan is not None
    of_plan = result.plan._repr_html_()
    assert len(read(of_plan).pictures) == 1
    assert "optimal" not in of_plan


def test_a_result_without_a_plan_says_why() -> None:
    shown = solve(CHAIN, Platform(2, 0), scope=Scope())._repr_html_()
    assert read(shown).seen == {"p"}
    assert "No plan. Proven infeasible." in shown


def test_a_comparison_and_a_sweep_show_a_row_for_each_and_a_picture() -> None:
    comparison = compare(CHAIN, PLATFORM, systems=["gpipe", "one_f_one_b_flush"], microbatches=2)
    shown = comparison._repr_html_()
    assert len(read(shown).pictures) == 1
    assert all(row.system.name in shown for row in comparison.rows)
    shown = SEVERAL._repr_html_()
    assert len(read(shown).pictures) == 1
    assert shown.count("<tr>") == 1 + len(SEVERAL.points)


def test_without_matplotlib_there_are_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    result = solve(CHAIN, PLATFORM, scope=Scope())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = result._repr_html_()
    assert not read(shown).pictures
    assert "pip install matplotlib" in shown


def test_progress_shows_the_best_plan_and_its_bound_as_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []

    class Place:
        def update(self, content: str) -> None:
            shown.append(content)

    def display(content: str, *, display_id: bool) -> Place:
        assert display_id
        shown.append(content)
        return Place()

    module = ModuleType("IPython.display")
    vars(module).update(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    result = solve(CHAIN, PLATFORM, scope=Scope(), on_progress=show_progress())
    assert shown[0] == ""
    assert len(shown) > 2
    for content in shown:
        read(content)
    assert result.period == 6
    assert "best 6\N{NO-BREAK SPACE}ns, bound 6\N{NO-BREAK SPACE}ns, gap 0.00%" in shown[-1]
    assert "Stages" in shown[-1]
    assert "&lt;b&gt;&amp;" in shown[-1]
