"""Plans of Aceso and Megatron-LM on L4 and A10G, as the repository of Mist has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from statistics import mean
from typing import Final

from schedopt.bench.published.mist_memory import at_once_bytes, run_by_run_bytes
from schedopt.bench.published.mist_profiles import MIB
from schedopt.bench.published.mist_tables import NAMES, Mist, MistPlan
from schedopt.bench.published.prediction import Predicted, Prediction, Unpredicted
from schedopt.bench.published.steps import blocked_ns, in_flight, one_f_one_b_ns
from schedopt.bench.published.tables import Tables
from schedopt.importing.saved_activations import stashed_bytes

STATES: Final = 9
"""Over the bytes of a weight in half precision: gradient, copy and moments in single precision."""
SHARES: Final = tuple(step / 20 for step in range(21))
"""How much longer a message takes for each other GPU that uses the same network card: from not at
all to as long as without them, where they take turns."""
ALONE: Final = 0.0
"""Where nothing tells, none waits for another: on A10G that fits best, and on L4 steps are within
6.3 % with it, 4.6 % with about a half."""


def predict_all(tables: Tables) -> Iterator[Prediction | Unpredicted]:
    """Yield the predictions of the package."""
    if lacking := tables.lacking(*NAMES):
        yield Unpredicted(row="every row", why=f"there is no table {', '.join(lacking)}")
        return
    mist = Mist(tables)
    for name, why in sorted(mist.unpredicted.items()):
        yield Unpredicted(row=name, why=why)
    step_ns = cache(lambda number, share: _step_ns(mist, mist.plans[number], share))
    for plan in mist.plans:
        if plan.on_one_node:
            yield from _from_passes(mist, plan)
    for number, plan in enumerate(mist.plans):
        if plan.line["set"] not in mist.update_ns:
            why = "from profiles: no rank of its set tells how long the optimizer takes"
            yield Unpredicted(row=plan.name, why=why)
            continue

        def step(number: int = number, plan: MistPlan = plan) -> Predicted:
            kind = plan.line["set"]
            constants = {f"ns of the optimizer for a MiB of weights, {kind}": mist.update_ns[kind]}
            share = 0.0
            if not plan.on_one_node:
                share = _fit_share(mist, number, step_ns)
                constants[f"longer for each other GPU at a network card, {plan.name}"] = share
            return Predicted(step_ns(number, share), constants)

        where = "one node" if plan.on_one_node else "several nodes"
        yield Prediction(
            test=f"b {where}",
            row=plan.name,
            measured=plan.step_ns,
            predict=step,
            doubt=plan.doubt,
        )
        if not plan.on_one_node:
            yield Prediction(
                test="b several nodes, passes",
                row=plan.name,
                measured=plan.step_ns,
                predict=partial(_from_some_passes, mist, number, step_ns),
                doubt=plan.doubt,
            )
    for plan in mist.plans:
        yield from _of_stages(plan)


def _from_passes(mist: Mist, plan: MistPlan) -> Iterator[Prediction | Unpredicted]:
    """Yield the step from measured passes, optimizer and all-reduces."""
    stages = range(len(plan.stages))
    count = plan.line["microbatches"]
    sums = [
        [plan.mean_of(stage, f"{which}_compute_ns") for stage in stages]
        for which in ("forward", "backward")
    ]
    forward, backward = ([time / count for time in times if time] for times in sums)
    if len(forward) < len(stages) or len(backward) < len(stages):
        why = "from its passes: those of a stage were not measured"
        yield Unpredicted(row=plan.name, why=why)
        return

    def step() -> Predicted:
        messages = _messages_ns(mist, plan, 0.0)
        passes = one_f_one_b_ns(*blocked_ns(forward, backward, messages), count)
        behind = (
            sum(
                rank[name] or 0
                for name in (
                    "optimizer_ns",
                    "backward_params_all_reduce_ns",
                    "backward_embedding_all_reduce_ns",
                )
            )
            for rank in plan.ranks
        )
        return Predicted(passes + max(behind))

    yield Prediction(test="a", row=plan.name, measured=plan.step_ns, predict=step, doubt=plan.doubt)


def _messages_ns(mist: Mist, plan: MistPlan, share: float) -> list[float]:
    """Return how long each message takes between stages.

    Between nodes every GPU of the larger stage sends or takes one over the same network card.
    """
    found = []
    for stage, (one, after) in enumerate(zip(plan.stages, plan.stages[1:], strict=False)):
        others = max(len(one.gpus), len(after.gpus)) - 1 if plan.leaves_node(stage) else 0
        found.append(mist.message_ns(plan, stage) * (1 + share * others))
    return found


def _from_some_passes(mist: Mist, number: int, step_ns: Callable[[int, float], float]) -> Predicted:
    """Predict a step with the passes of the stages that were measured, those of the first node."""
    plan = mist.plans[number]
    share = _fit_share(mist, number, step_ns)
    return Predicted(_step_ns(mist, plan, share, measured=True))


def _step_ns(mist: Mist, plan: MistPlan, share: float, *, measured: bool = False) -> float:
    """Return the step from profiles: passes with blocking messages, all-reduces, the optimizer.

    With passes as measured, where they were.
    """
    forward = [stage.forward_ns for stage in plan.stages]
    backward = [stage.backward_ns for stage in plan.stages]
    for stage in range(len(plan.stages)) if measured else ():
        sums = [plan.mean_of(stage, f"{which}_compute_ns") for which in ("forward", "backward")]
        if sums[0] and sums[1]:
            forward[stage], backward[stage] = (each / plan.line["microbatches"] for each in sums)
    passes = blocked_ns(forward, backward, _messages_ns(mist, plan, share))
    step = one_f_one_b_ns(*passes, plan.line["microbatches"])
    reduced = max(mist.all_reduce_ns(plan, stage) for stage in plan.stages)
    weights = max(stage.weights_mib for stage in plan.stages)
    update = mist.update_ns[plan.line["set"]] * weights
    return step + reduced + mist.embedding_ns(plan) + update


def _fit_share(mist: Mist, number: int, step_ns: Callable[[int, float], float]) -> float:
    """Return the share that fits the other plans of the same GPUs on several nodes best."""
    plan = mist.plans[number]
    others = {
        other: judged
        for other, judged in enumerate(mist.plans)
        if other != number
        and judged.line["set"] == plan.line["set"]
        and not judged.on_one_node
        and not judged.doubt
    }
    if not others:
        return ALONE

    def error(share: float) -> float:
        return mean(
            abs(step_ns(other, share) / judged.step_ns - 1) for other, judged in others.items()
        )

    return min(SHARES, key=error)


def _of_stages(plan: MistPlan) -> Iterator[Prediction]:
    """Yield the memory of each stage, and its passes."""
    for number in range(len(plan.stages)):
        # Where memory was not measured, passes are those of other stages.
        if plan.mean_of(number, "max_allocated_bytes") is not None:
            yield from _of_stage(plan, number)


def _of_stage(plan: MistPlan, number: int) -> Iterator[Prediction]:
    stage, count = plan.stages[number], plan.line["microbatches"]
    last = number + 1 == len(plan.stages)
    held = in_flight(len(plan.stages), number, count)
    operators, again, weights = stage.operators, stage.again, MIB * stage.weights_mib

    def peak() -> float:
        stashed = stashed_bytes(operators, again, first=not number, last=last)
        return STATES * weights + held * stashed

    stage_of = (operators, again, held, weights)
    figures: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("c0", "allocated_bytes", lambda: STATES * weights),
        ("c", "max_allocated_bytes", peak),
        ("c at once", "max_allocated_bytes", lambda: at_once_bytes(*stage_of, last=last)),
        ("c run by run", "max_allocated_bytes", lambda: run_by_run_bytes(*stage_of, last=last)),
        ("d forward", "forward_compute_ns", lambda: count * stage.as_profiled.forward_ns),
        ("d backward", "backward_compute_ns", lambda: count * stage.as_profiled.backward_ns),
        ("d forward, collectives", "forward_compute_ns", lambda: count * stage.forward_ns),
        ("d backward, collectives", "backward_compute_ns", lambda: count * stage.backward_ns),
    )
    for test, column, value in figures:
        measured = plan.mean_of(number, column)
        if measured:
            yield Prediction(
                test=test,
                row=f"{plan.name}, stage {number}{stage.group}",
                measured=measured,
                predict=partial(_predicted, value),
            )


def _predicted(value: Callable[[], float]) -> Predicted:
    return Predicted(value())
