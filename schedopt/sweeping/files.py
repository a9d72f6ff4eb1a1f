"""``schedopt.sweep/1`` files: read, written, and continued."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from schedopt.chain import Chain
from schedopt.checking import check
from schedopt.errors import InputError, naming_file
from schedopt.formats.chains import chain_document
from schedopt.formats.explaining import build, dump_plain
from schedopt.formats.profiles import variant_document
from schedopt.formats.reading import read_document
from schedopt.formats.results import complete_scope, leave_out_defaults
from schedopt.formats.writing import to_text
from schedopt.profile import Profile
from schedopt.sweeping.points import SWEEP_FORMAT, Options, Sweep
from schedopt.sweeping.propagation import propagate_monotone


def sweep_to_json(sweep: Sweep) -> str:
    """Return the text of a ``schedopt.sweep/1`` file."""
    document = dump_plain(sweep, Sweep, exclude={"chain", "variants"})
    complete_scope(document["options"]["scope"])
    if sweep.chain is not None:
        document["chain"] = chain_document(sweep.chain)
    if sweep.variants:
        document["variants"] = [variant_document(variant) for variant in sweep.variants]
    for point in document["points"]:
        if "pattern" in point:
            leave_out_defaults(point)
    return to_text({"format": SWEEP_FORMAT, **document})


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep. Its plans are not checked.

    Raises
    ------
    InputError
        Naming the file, the field, the rule and the way out.
    """
    document = read_document(path, SWEEP_FORMAT)
    with naming_file(path):
        return build(Sweep, document)


def resume_sweep(path: str | Path, chain: Chain | Profile, options: Options) -> Sweep:
    """Return the sweep of a file to continue, an empty one if there is no such file.

    Raises
    ------
    InputError
        If the file holds something else, another chain, other options, or a plan that is not
        valid.
    """
    if not Path(path).exists():
        return Sweep.of(chain, options)
    sweep = load_sweep(path)
    with naming_file(path):
        _check_same(sweep, chain, options)
        _check_plans(sweep, chain)
    return replace(Sweep.of(chain, options), points=propagate_monotone(sweep.points))


def _check_same(sweep: Sweep, chain: Chain | Profile, options: Options) -> None:
    way_out = "Write to another file"
    if sweep.chain_sha256 != chain.sha256:
        raise InputError(
            f"the sweep is of another chain ({sweep.chain_name or 'unnamed'})",
            field="chain_sha256",
            way_out=f"{way_out}, or give that chain",
        )
    ours, theirs = _flat(options), _flat(sweep.options)
    differ = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    if differ:
        made = " and ".join(
            f"{f'{name} ' if len(differ) > 1 else ''}{_said(theirs.get(name))}, "
            f"not {_said(ours.get(name))}"
            for name in differ
        )
        raise InputError(
            f"the sweep was made with {made}",
            field=f"options.{differ[0]}" if len(differ) == 1 else "options",
            way_out=f"{way_out}, or give the same options",
        )


def _flat(options: Options) -> dict[str, Any]:
    document = dump_plain(options, Options)
    scope: dict[str, Any] = document.pop("scope")
    return document | scope


def _said(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def _check_plans(sweep: Sweep, chain: Chain | Profile) -> None:
    """Refuse plans that were edited, since others start from them."""
    for position, point in enumerate(sweep.points):
        plan = point.plan(chain, sweep.options)
        violations = () if plan is None else check(plan)
        if violations:
            raise InputError(
                f"the plan is not valid: {violations[0]}",
                field=f"points[{position}]",
                way_out="Take the point away, to have it solved again",
            )
