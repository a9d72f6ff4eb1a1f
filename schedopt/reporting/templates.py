"""Pages that are complete in themselves: their template, style and scripts put together."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any, Final

from schedopt.drawing.chart import LETTERS
from schedopt.drawing.styles import COLOURS, NAMES, SENT, hatch
from schedopt.plan import Kind, Plan
from schedopt.reporting.markup import embedded, escape
from schedopt.transfer import Tensor
from schedopt.version import __version__

SCRIPTS: Final = ("data.js", "painting.js", "timeline.js")
"""Those of each page with a timeline, in order; its own comes last."""


def fill_template(
    template: str,
    script: str,
    *,
    title: str,
    data: Mapping[str, Any],
    shown: Sequence[Kind | Tensor],
    **parts: str,
) -> str:
    """Return a page with a timeline.

    Parameters
    ----------
    template, script : str
        Files of this room.
    title : str
        HTML.
    data : mapping
        What the script gets, as a JSON document, beside what boxes look like.
    shown : sequence of str
        What runs and is sent in the timelines, in the order of the legend.
    **parts : str
        HTML by the name of its place in the template.
    """
    code = "\n".join(["'use strict';", *map(_read, (*SCRIPTS, script))])
    head = Template(_read("head.html")).substitute(
        digest=b64encode(sha256(code.encode()).digest()).decode(),
        style=_read("report.css"),
        title=title,
    )
    return Template(_read(template)).substitute(
        head=head,
        title=title,
        script=code,
        data=embedded({**data, **_looks(shown)}),
        timeline=Template(_read("timeline.html")).substitute(legend="\n".join(_legend(shown))),
        version=escape(__version__),
        **parts,
    )


def _read(name: str) -> str:
    return files("schedopt.reporting").joinpath(name).read_text(encoding="utf-8")


def shown_in(plans: Collection[Plan]) -> list[Kind | Tensor]:
    """Return what runs and is sent in plans, in the order of the field."""
    patterns = [plan.pattern for plan in plans]
    there = {
        *(operation.kind for pattern in patterns for operation in pattern.operations),
        *(transfer.tensor for pattern in patterns for transfer in pattern.transfers),
        *(collective.tensor for pattern in patterns for collective in pattern.collectives),
    }
    return [kind for kind in NAMES if kind in there]


def _looks(shown: Sequence[Kind | Tensor]) -> dict[str, Any]:
    return {
        "names": {kind: NAMES[kind] for kind in shown},
        "letters": {kind: LETTERS.get(kind, kind) for kind in shown},
        "hatches": {kind: hatch(kind)[:1] for kind in shown},
        "colours": list(COLOURS),
        "sent": {kind: SENT[kind][0] for kind in shown if kind in SENT},
    }


def _legend(shown: Sequence[Kind | Tensor]) -> Iterator[str]:
    for kind in shown:
        yield (
            f'<li><canvas width="32" height="18" data-what="{kind}" aria-hidden="true">'
            f"</canvas><b>{LETTERS.get(kind, kind)}</b> {escape(NAMES[kind])}</li>"
        )
