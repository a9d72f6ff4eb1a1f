"""Split backwards: I and W apart, whole where that is better, against trying every start."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Scope, Stage, check, solve
from schedopt.solving.models.pipeline import AllocatedPipeline
from tests.budgets import trials
from tests.solvers.patterns import Op, exists, holding
from tests.strategies import platforms, split_chains


def scope_of(k: int) -> Scope:
    return Scope(allocation="fixed", max_k=k, split_backward=True)


def least_period(
    chain: Chain, platform: Platform, stages: list[Stage], k: int, longest: int
) -> int | None:
    """Return the least T over all choices of split and whole backwards, by trying every start."""
    for period in range(1, longest + 1):
        for choice in product((False, True), repeat=len(stages)):
            ops, after = _ops(chain, platform, stages, choice)
            fitting = partial(_fits, chain, platform, stages, ops, period=period, choice=choice)
            if exists(ops, after, k, period, fitting):
                return period
    return None


def _ops(
    chain: Chain, platform: Platform, stages: list[Stage], choice: tuple[bool, ...]
) -> tuple[list[Op], list[int]]:
    """Return the operations of a micro-batch, and which one each follows."""
    ops: list[Op] = []
    after: list[int] = []
    last = -1

    def add(op: Op, *, moves_on: bool = True) -> None:
        nonlocal last
        ops.append(op)
        after.append(last)
        if moves_on:
            last = len(ops) - 1

    def time(stage: Stage, name: str) -> int:
        gpu = platform.gpus[stage.gpus[0]]
        return sum(
            gpu.duration_ns(getattr(layer, name) or 0)
            for layer in chain.layers[stage.first : stage.last + 1]
        )

    def link(kind: str, index: int, ends: tuple[int, int]) -> None:
        if route := platform.route(*ends):
            sent = chain.layers[stages[index].last].activation_bytes
            add((kind, index, platform.transfer_ns(sent, *ends), route))

    for index, stage in enumerate(stages):
        add(("F", index, time(stage, "forward_ns"), (("gpu", stage.gpus[0]),)))
        if index + 1 < len(stages):
            link("a", index, (stage.gpus[0], stages[index + 1].gpus[0]))
    for index in reversed(range(len(stages))):
        stage = stages[index]
        gpu = (("gpu", stage.gpus[0]),)
        if choice[index]:
            add(("I", index, time(stage, "backward_input_ns"), gpu))
            # Behind I, like what comes next.
            add(("W", index, time(stage, "backward_weight_ns"), gpu), moves_on=False)
        else:
            add(("B", index, time(stage, "backward_ns"), gpu))
        if index:
            link("g", index - 1, (stage.gpus[0], stages[index - 1].gpus[0]))
    return ops, after


def _fits(
    chain: Chain,
    platform: Platform,
    stages: list[Stage],
    ops: list[Op],
    starts: list[list[int]],
    period: int,
    choice: tuple[bool, ...],
) -> bool:
    place = {op[:2]: number for number, op in enumerate(ops)}

    def most(stage: int, enter: str, leave: str) -> int:
        """Return the most micro-batches at once, at least one."""
        begin, end = place[enter, stage], place[leave, stage]
        spans = [(row[begin], row[end] + ops[end][2]) for row in starts]
        instants = {time % period for span in spans for time in span}
        return max(1, *(sum(holding(*span, at, period) for span in spans) for at in instants))

    for number, gpu in enumerate(platform.gpus):
        need = workspace = 0
        for index, stage in enumerate(stages):
            if stage.gpus[0] != number:
                continue
            layers = chain.layers[stage.first : stage.last + 1]
            need += sum(layer.weight_bytes for layer in layers)
            if any(layer.longest_ns for layer in layers):
                workspace = max(workspace, *(layer.workspace_bytes or 0 for layer in layers))
            own = [layer.saved for layer in layers]
            own[0] += layers[0].saved_input_bytes or 0
            if not choice[index]:
                need += sum(own) * most(index, "F", "B")
                continue
            late = [layer.saved_weight_bytes is None for layer in layers]
            until_i = sum(size for size, is_late in zip(own, late, strict=True) if not is_late)
            until_w = sum(size for size, is_late in zip(own, late, strict=True) if is_late)
            half = sum(layer.saved_weight_bytes or 0 for layer in layers)
            need += until_i * most(index, "F", "I")
            need += until_w * most(index, "F", "W")
            need += half * most(index, "I", "W")
        if need + workspace > gpu.usable_bytes:
            return False
    return True


@pytest.mark.nightly
@trials(150)
@given(st.data(), split_chains(), platforms(most=2), st.integers(1, 2))
def test_equal_to_trying_every_start(
    data: st.DataObject, chain: Chain, platform: Platform, k: int
) -> None:
    count = data.draw(st.integers(1, min(2, len(chain.layers))))
    edges = [len(chain.layers) * i // count for i in range(count + 1)]
    gpus = [data.draw(st.integers(0, len(platform.gpus) - 1)) for _ in range(count)]
    stages = [Stage(layers=(edges[i], edges[i + 1] - 1), gpus=(gpus[i],)) for i in range(count)]
    problem_scope = scope_of(k)
    result = solve(chain, platform, stages=stages, scope=problem_scope, solver="periodic")
    pipeline = AllocatedPipeline(result.problem)
    longest = 10
    steps = sum(step.split is not False for step in pipeline.path)
    assume(k * pipeline.whole_ns <= longest and k * steps <= 8)
    assert check(result) == ()
    least = [
        Fraction(period, j)
        for j in range(1, k + 1)
        if (period := least_period(chain, platform, stages, j, longest)) is not None
    ]
    if not least:
        assert result.plan is None
        return
    assert result.period == min(least)
    assert result.lower_bound is None or result.lower_bound <= min(least)
    assert result.status == "optimal"


def test_a_split_fills_the_bubble() -> None:
    """One stage a GPU, F = I = W = 1, room for 2 of stage 0: whole backwards take 4, halves 3."""
    layer = Layer(
        forward_ns=1, backward_ns=2, backward_input_ns=1, backward_weight_ns=1,
        weight_bytes=0, activation_bytes=1, saved_bytes=10, saved_weight_bytes=1,
    )  # fmt: skip
    chain = Chain(layers=(layer,) * 2)
    stages = [Stage(layers=(i, i), gpus=(i,)) for i in range(2)]
    whole = solve(chain, Platform(2, [11, 11]), stages=stages)
    assert whole.period == 6
    split = solve(chain, Platform(2, [12, 12]), stages=stages, scope=scope_of(1))
    assert check(split) == ()
    assert split.status == "optimal"
    # Stage 0 keeps one activation from F0 to the end of I0, which is F0, F1, I1, I0: 4.
    assert split.period == 4


def test_whole_backwards_are_kept_where_halves_take_longer() -> None:
    layer = Layer(
        forward_ns=1, backward_ns=2, backward_input_ns=2, backward_weight_ns=2,
        weight_bytes=0, activation_bytes=1, saved_bytes=1, saved_weight_bytes=1,
    )  # fmt: skip
    stages = [Stage(layers=(0, 0), gpus=(0,))]
    result = solve(Chain(layers=(layer,)), Platform(1, 99), stages=stages, scope=scope_of(1))
    assert (result.status, result.period) == ("optimal", Fraction(3))
    assert result.plan is not None
    assert {operation.kind for operation in result.plan.pattern.operations} == {"F", "B"}
    assert replace(result.plan.scope, split_backward=True) == scope_of(1)


def test_a_workspace_counts_only_for_the_way_that_takes_time() -> None:
    # Whole, the backward takes no time and no workspace; in halves it takes both. And the other
    # way round.
    for whole, half in ((0, 1), (1, 0)):
        layer = Layer(
            forward_ns=0,
            backward_ns=whole,
            backward_input_ns=half,
            backward_weight_ns=half,
            weight_bytes=0,
            activation_bytes=0,
            workspace_bytes=1,
        )
        result = solve(
            Chain(layers=(layer,)),
            Platform(1, 0),
            stages=[Stage(layers=(0, 0), gpus=(0,))],
            scope=scope_of(1),
            solver="periodic",
        )
        assert (result.status, result.period) == ("optimal", Fraction(1))
