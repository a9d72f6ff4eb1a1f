"""Whether an engine runs a plan: its stages, and on each GPU its own order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from schedopt.checking.violations import Violation
from schedopt.engine import TITLES, Engine, why_not_stages
from schedopt.errors import InputError
from schedopt.plan import Plan

Turn = tuple[str, int, int]
"""Kind, stage and micro-batch of an operation."""


def find_inexpressible(plan: Plan, engine: Engine) -> Iterator[Violation]:
    """Yield what an engine does not run."""
    try:
        why = why_not_stages(plan.chain, plan.stages, engine)
    except InputError as error:
        why = error.rule
    if why:
        yield Violation("scope", "stages", f"{TITLES[engine]} cannot run them: {why}")
        return
    ranks = len({stage.gpus for stage in plan.stages})
    firsts = [stage.gpus[0] for stage in plan.stages[:ranks]]
    if not plan.rule.is_given and firsts != sorted(firsts):
        yield Violation(
            "scope", "stages", f"{TITLES[engine]} numbers the ranks of a pipeline as the GPUs lie"
        )
        return
    chunks, replicas = len(plan.stages) // ranks, len(plan.stages[0].gpus)
    count, rest = divmod(plan.pattern.k, replicas)
    if rest:
        yield Violation(
            "scope",
            "pattern.k",
            f"{plan.pattern.k} micro-batches are no multiple of {replicas} replicas",
        )
        return
    if chunks > 1 and count % ranks:
        each = " for each replica" if replicas > 1 else ""
        yield Violation(
            "scope",
            "pattern.k",
            f"{count} micro-batches{each} are no multiple of the {ranks} GPUs, and stages of "
            "a GPU take turns in groups of as many",
        )
        return
    if engine == "torchtitan" and ranks == 1 < replicas < plan.pattern.k:
        yield Violation(
            "scope",
            "pattern.k",
            f"without a pipeline {TITLES[engine]} adds up the gradients of replicas after each of "
            f"{count} micro-batches, not once a step",
        )
        return
    for number, operation in enumerate(plan.pattern.operations):
        if operation.kind not in ("F", "B", "R", "U") or operation.covers > 1:
            covers = f" of {operation.covers} micro-batches" if operation.covers > 1 else ""
            what = f"{operation.kind}{covers}"
            yield Violation("scope", f"operations[{number}]", f"{TITLES[engine]} runs no {what}")
            return
    starts: dict[Turn, int] = {
        (operation.kind, operation.stage, operation.shift): operation.start_ns
        for operation in plan.pattern.operations
    }
    # Of a fold one part stands for all.
    own = replicas // plan.pattern.fold
    for rank in range(ranks):
        order = _order(rank, ranks, chunks, count)
        for replica in range(own):
            turns = ((kind, stage, i * own + replica) for kind, stage, i in order)
            before: Turn | None = None
            for turn in _with_recompute(turns, starts):
                if turn not in starts:
                    # Other checks name what is missing.
                    break
                if before is not None and starts[turn] < starts[before]:
                    yield Violation(
                        "scope",
                        f"GPU {plan.stages[rank].gpus[replica]}",
                        f"runs {_name(turn)} before {_name(before)}, which {TITLES[engine]} does "
                        "not",
                    )
                    break
                before = turn


def _with_recompute(turns: Iterable[Turn], starts: Mapping[Turn, int]) -> Iterator[Turn]:
    """Yield turns, with the R of a micro-batch right before its backward where there is one."""
    for kind, stage, i in turns:
        if kind == "B" and ("R", stage, i) in starts:
            yield "R", stage, i
        yield kind, stage, i


def _name(turn: Turn) -> str:
    kind, stage, micro_batch = turn
    return f"{kind} of stage {stage} for micro-batch {micro_batch}"


def _order(rank: int, ranks: int, chunks: int, count: int) -> list[Turn]:
    """Return what a rank runs: `ahead` forwards, then one and a backward in turn, and the rest."""
    if chunks == 1:
        forwards = [("F", rank, i) for i in range(count)]
        backwards = [("B", rank, i) for i in range(count)]
        ahead = min(count, ranks - rank - 1)
    else:
        turns = [
            (chunk, group + i)
            for group in range(0, count, ranks)
            for chunk in range(chunks)
            for i in range(ranks)
        ]
        forwards = [("F", chunk * ranks + rank, i) for chunk, i in turns]
        backwards = [("B", (chunks - 1 - chunk) * ranks + rank, i) for chunk, i in turns]
        ahead = min(len(turns), 2 * (ranks - rank - 1) + (chunks - 1) * ranks)
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]
