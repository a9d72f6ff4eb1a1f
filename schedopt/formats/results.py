"""``schedopt.plan/1`` files: a plan, complete in itself, with what is known about it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from schedopt.chain import Chain
from schedopt.errors import InputError, naming_file
from schedopt.formats.chains import chain_document
from schedopt.formats.explaining import build, dump_plain
from schedopt.formats.profiles import variant_document
from schedopt.formats.reading import read_document
from schedopt.formats.writing import to_text
from schedopt.plan import PLAN_FORMAT, Plan
from schedopt.result import Result
from schedopt.stage import Shard

_PLAN_FIELDS = tuple(field.name for field in fields(Plan))
_RESULT_FIELDS = tuple(
    field.name for field in fields(Result) if field.name not in ("plan", "problem")
)


def result_to_json(result: Result) -> str:
    """Return the text of a ``schedopt.plan/1`` file.

    Raises
    ------
    InputError
        As `result_document`.
    """
    return to_text({"format": PLAN_FORMAT, **result_document(result)})


def result_document(result: Result) -> dict[str, Any]:
    """Return a result with its plan as a JSON document without its format.

    Raises
    ------
    InputError
        If the result has no plan, or one for something else than its problem.
    """
    plan = _plan_of(result)
    answer = dump_plain(plan, Plan, exclude={"chain", "variants"})
    answer["variants"] = [variant_document(variant) for variant in plan.variants]
    known = dump_plain(result, Result, exclude={"plan", "problem"})
    document: dict[str, Any] = {
        "status": known.pop("status"),
        "chain": chain_document(plan.chain),
        "chain_sha256": plan.chain.sha256,
        **{name: answer[name] for name in _PLAN_FIELDS if name != "chain"},
        **known,
    }
    for name in ("variants", "sizes"):
        if not document[name]:
            del document[name]
    leave_out_defaults(document)
    for owner in (document, *document["bounds"], document.get("infeasibility", {})):
        if "scope" in owner:
            complete_scope(owner["scope"])
    return document


def complete_scope(scope: dict[str, Any]) -> None:
    """Say in a scope, as a document, where None is a value; leave out what is not allowed anyway.

    None stands for any k, any number of replicas, and tensor groups of any size.
    """
    for name in ("max_k", "replicas", "tensor"):
        scope.setdefault(name, None)
    for name, usual in (
        *(("replicas", 1), ("shard", "none"), ("tensor", 1)),
        *(("uneven", False), ("hybrid", False)),
    ):
        if scope.get(name) == usual:
            del scope[name]


def leave_out_defaults(plan: dict[str, Any]) -> None:
    """Take from stages and pattern, as a document, what speaks of groups or folds that are none."""
    for stage in plan["stages"]:
        for name, usual in (("shard", "none"), ("tensor", 1), ("shard_copies", 1)):
            if stage[name] == usual:
                del stage[name]
    pattern = plan["pattern"]
    if pattern["fold"] == 1:
        del pattern["fold"]
    if not pattern["collectives"]:
        del pattern["collectives"]
    for collective in pattern.get("collectives", ()):
        for name in ("across", "pauses"):
            if not collective[name]:
                del collective[name]
    for transfer in pattern["transfers"]:
        if "source" not in transfer:
            for name in ("chunk", "chunks", "mode"):
                del transfer[name]
    for operation in pattern["operations"]:
        if not operation["replica"]:
            del operation["replica"]


def _plan_of(result: Result) -> Plan:
    plan, problem = result.plan, result.problem
    if plan is None:
        raise InputError(
            f"a result without a plan ({result.status}) makes no plan file",
            way_out="Look at result.infeasibility and result.ladder",
        )
    for name in ("chain", "platform", "rule", "variants"):
        if getattr(plan, name) != getattr(problem, name):
            raise InputError(
                f"is not the {name} of the problem",
                field=f"plan.{name}",
                way_out="A file holds one problem and a plan for it; solve again",
            )
    return plan


def load_result(path: str | Path) -> Result:
    """Read a plan with what is known about it. It is not checked."""
    document = read_document(path, PLAN_FORMAT)
    with naming_file(path):
        return result_from_document(document)


def result_from_document(document: dict[str, Any]) -> Result:
    """Return the result that a JSON document without its format holds, which is taken apart.

    Raises
    ------
    InputError
        Naming the field.
    """
    sha256 = document.pop("chain_sha256", None)
    if sha256 is None:
        raise InputError("is missing", field="chain_sha256", way_out="Write the plan again")
    known = {name: document.pop(name) for name in _RESULT_FIELDS if name in document}
    _move_shards(document)
    plan = _plan(document)
    _check_same_chain(plan.chain, sha256)
    problem = {name: document[name] for name in document if name not in ("pattern", "stages")}
    if plan.scope.allocation == "fixed":
        problem["stages"] = document["stages"]
    return replace(build(Result, {**known, "problem": problem}), plan=plan, problem=plan.problem)


def _move_shards(document: dict[str, Any]) -> None:
    """Give each stage the level that older files have in their rule, as `partition`, for all.

    Stages on one GPU get none: everything is at home there, whatever the level.
    """
    rule, stages = document.get("rule"), document.get("stages")
    if not isinstance(rule, dict) or rule.get("partition") not in get_args(Shard):
        return
    if not isinstance(stages, list) or any(_names_shard(stage) for stage in stages):
        return
    level = rule.pop("partition")
    for stage in stages:
        gpus = stage.get("gpus") if isinstance(stage, dict) else None
        if level != "none" and isinstance(gpus, list) and any(gpu != gpus[0] for gpu in gpus):
            stage["shard"] = level


def _names_shard(stage: object) -> bool:
    return isinstance(stage, dict) and "shard" in stage


def _plan(document: dict[str, Any]) -> Plan:
    try:
        return build(Plan, document, others=(*_RESULT_FIELDS, "chain_sha256"))
    except InputError as error:
        # A problem names what its chain lacks as the file of the chain would.
        raise (error.within("chain") if error.field.startswith("layers[") else error) from None


def _check_same_chain(chain: Chain, sha256: object) -> None:
    if chain.sha256 != sha256:
        raise InputError(
            f"{sha256!r:.80} does not belong to the chain in the file ({chain.sha256})",
            field="chain_sha256",
            way_out="The plan is for another chain, or one of them was edited: solve again",
        )
