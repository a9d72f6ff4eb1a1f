"""``schedopt.bks/1`` files, and the plans next to them that show what they say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from schedopt.bench.best_known import (
    PLANS,
    WAY_OUT,
    BestBound,
    BestKnown,
    BestPlan,
    NoPlan,
    Origin,
)
from schedopt.bench.general import GENERAL
from schedopt.bench.records import InstanceKey, Record
from schedopt.checking import check
from schedopt.errors import InputError, naming_file
from schedopt.problem import Scope
from schedopt.result import Bound, Result
from schedopt.validation import STRICT

BKS_FORMAT: Final = "schedopt.bks/1"


@dataclass(frozen=True, kw_only=True)
class BestKnownList:
    """What a file holds."""

    __pydantic_config__: ClassVar[Any] = STRICT

    scope: Scope
    """The plans that all of it speaks of but for training steps: see `BestKnown.scope`."""
    instances: tuple[BestKnown, ...]

    def __post_init__(self) -> None:
        if self.scope != GENERAL:
            raise InputError(
                f"is {self.scope}, not {GENERAL}", field="scope", way_out="Write to another folder"
            )
        seen: set[InstanceKey] = set()
        for position, known in enumerate(self.instances):
            if known.instance in seen:
                raise InputError(
                    f"{known} is given twice",
                    field=f"instances[{position}]",
                    way_out="Keep one of them",
                )
            seen.add(known.instance)


class BestKnownFile:
    """A list of best-known plans that is written whenever something better is found.

    Plans go into a folder next to it. A plan that is missing, not valid or not what the list says
    is refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = {known.instance: known for known in load_best_known(path)}
        for known in self._known.values():
            if known.plan is not None:
                self.load_plan(known)

    @property
    def instances(self) -> tuple[BestKnown, ...]:
        """What is known."""
        return tuple(self._known.values())

    def holds(self, record: Record) -> bool:
        """Whether a plan is known that is as good as that of a run."""
        known = self._known.get(record.instance)
        plan = None if known is None else known.plan
        return record.period is None or (plan is not None and plan.period <= record.period)

    def keep(self, record: Record, result: Result) -> None:
        """Write down what a run found if it is better than what is known.

        A plan of a narrower scope is one of this scope; bounds and proofs count if what they
        speak of covers this scope.
        """
        new = _blank(record)
        old = self._known.get(record.instance, new)
        scope = old.scope(result.problem.chain)
        names = ("date", "machine", "schedopt")
        by = Origin(solver=record["solver"], **{name: record.conditions[name] for name in names})
        known = old.learn(
            _plan(new, result, by), _bound(scope, result, by), _no_plan(scope, result, by)
        )
        if known == old and old is not new:
            return
        if known.plan is not None:
            found = result if known.plan is not old.plan else self.load_plan(old)
            self._save_plan(known, found)
        self._known[known.instance] = known
        save_best_known(self._known.values(), self.path)

    def load_plan(self, known: BestKnown) -> Result:
        """Return the best plan of an instance, with its bound."""
        assert known.plan is not None
        path = self.path.parent / known.plan.certificate
        if not path.is_file():
            raise InputError(
                f"is gone, and {self.path.name} names it", way_out=WAY_OUT, source=str(path)
            )
        result = Result.load(path)
        with naming_file(path):
            _check_certificate(known, result)
        return result

    def _save_plan(self, known: BestKnown, found: Result) -> None:
        from schedopt.formats import make_folder

        assert known.plan is not None
        assert found.plan is not None
        bounds: tuple[Bound, ...] = ()
        scope = known.scope(found.plan.chain)
        if known.bound is not None:
            bounds = (Bound(exact=known.bound.exact, scope=scope, proof=known.bound.proof),)
        path = self.path.parent / known.plan.certificate
        make_folder(path.parent)
        replace(
            found,
            problem=replace(found.problem, scope=scope),
            plan=replace(found.plan, scope=scope),
            status=known.status,
            bounds=bounds,
            ladder=(),
        ).save(path)


def load_best_known(path: Path) -> tuple[BestKnown, ...]:
    """Return what a ``schedopt.bks/1`` file holds; nothing if there is none. Plans are not read."""
    from schedopt.formats.explaining import build
    from schedopt.formats.reading import read_document

    if not path.exists():
        return ()
    document = read_document(path, BKS_FORMAT)
    with naming_file(path):
        return build(BestKnownList, document).instances


def save_best_known(instances: Iterable[BestKnown], path: Path) -> None:
    """Write a list, whole or not at all."""
    from schedopt.formats import to_text, write_whole
    from schedopt.formats.explaining import dump_plain

    found = BestKnownList(scope=GENERAL, instances=tuple(instances))
    write_whole(path, to_text({"format": BKS_FORMAT, **dump_plain(found, BestKnownList)}))


def _check_certificate(known: BestKnown, result: Result) -> None:
    assert known.plan is not None
    assert result.plan is not None
    bound = None if known.bound is None else known.bound.period
    said: dict[str, tuple[object, object]] = {
        "chain_sha256": (result.plan.chain.sha256, known.chain_sha256),
        "platform": (result.plan.platform, known.platform),
        "scope": (result.plan.scope, known.scope(result.plan.chain)),
        "microbatches": (result.plan.scope.microbatches, known.microbatches),
        "pattern.period_total_ns": (result.period, known.plan.period),
        "bounds": (result.lower_bound, bound),
        "status": (result.status, known.status),
    }
    for field, (found, wanted) in said.items():
        if found != wanted:
            raise InputError(
                f"is {found}, and {wanted} in the list of best-known plans",
                field=field,
                way_out=WAY_OUT,
            )
    if violations := check(result):
        raise InputError(f"the plan is not valid: {violations[0]}", way_out=WAY_OUT)


def _blank(record: Record) -> BestKnown:
    names = ("chain", "chain_sha256", "layers", "gpus", "memory_bytes", "bandwidth_bytes_per_s")
    given = {name: record[name] for name in names}
    count = record["scope"].microbatches
    return BestKnown(**given, batch=record["batch"], microbatches=count)


def _plan(known: BestKnown, result: Result, by: Origin) -> BestPlan | None:
    if result.period is None:
        return None
    rate = known.bandwidth_bytes_per_s
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", known.chain)[:60]
    links = "free" if rate is None else str(rate)
    where = f"{known.gpus}x{known.memory_bytes}-{links}"
    if known.batch is not None:
        where += f"-batch-{known.batch}"
    return BestPlan(
        period_exact=result.period.as_integer_ratio(),
        certificate=f"{PLANS}/{name}-{known.chain_sha256[:8]}-{where}.plan.json",
        by=by,
    )


def _bound(scope: Scope, result: Result, by: Origin) -> BestBound | None:
    holding = [bound for bound in result.bounds if bound.scope.covers(scope)]
    if not holding:
        return None
    best = max(holding, key=lambda bound: bound.period)
    return BestBound(exact=best.exact, proof=best.proof, by=by)


def _no_plan(scope: Scope, result: Result, by: Origin) -> NoPlan | None:
    why = result.infeasibility
    if why is None or not why.scope.covers(scope):
        return None
    return NoPlan(proof=why.proof, by=by)
