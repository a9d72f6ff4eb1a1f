"""Plans of orders that agree: valid, in these orders, and as short as what was looked for."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Plan, Platform, Problem, Scope, check
from schedopt.solving.all_gpus.allocations import Allocations
from schedopt.solving.all_gpus.layout import JointOrder, join_stages, lay_out, read_order
from tests.bounds.linked import linked_problems
from tests.budgets import trials
from tests.solving.test_one_gpu_columns import forced_by, orders_of

ONE = Scope(allocation="general", memory="peak", max_k=1)


def around_the_period(plan: Plan, gpu: int) -> list[tuple[str, int]]:
    """Return the operations of a GPU in the order of a period, from the first one of its layers.

    Those of a stage are those of its layers.
    """
    own = [each for each in plan.pattern.operations if plan.stages[each.stage].gpus == (gpu,)]
    turns = list[tuple[str, int]]()
    for each in sorted(own, key=lambda each: each.start_ns):
        first, last = plan.stages[each.stage].layers
        layers = range(first, last + 1)
        turns += [(each.kind, layer) for layer in (layers if each.kind == "F" else layers[::-1])]
    first = turns.index(min(turns, key=lambda turn: (turn[0] != "F", turn[1])))
    return [*turns[first:], *turns[:first]]


@trials(400, by_day=100)
@given(data=st.data())
def test_plans_of_orders_are_valid_and_keep_them(data: st.DataObject) -> None:
    problem = data.draw(linked_problems(longest=4))
    forced = forced_by(problem)
    if forced is None:
        return
    allocations = Allocations(forced, orders_of(forced)[1])
    holds = allocations.find(60)
    if holds is None or not len(holds):
        return
    order = read_order(allocations.data, allocations.scratch)
    layers, gpus = problem.chain.layers, problem.platform.gpus
    # In the unit of the order, on the fastest GPU, rounded down.
    take_time = all(order.lengths)
    for each in (order, join_stages(order)):
        plan = lay_out(problem, each)
        if plan is None:
            # Where operations take no time, several may be at one place.
            assert not take_time
            continue
        assert plan.chain == problem.chain
        assert plan.platform == problem.platform
        assert {violation.kind for violation in check(plan)} <= {"memory"}
        if not take_time:
            continue
        for gpu in set(order.owner):
            turns = [
                ("F", n) if n < len(layers) else ("B", n - len(layers)) for n in on(order, gpu)
            ]
            first = turns.index(min(turns, key=lambda turn: (turn[0] != "F", turn[1])))
            assert around_the_period(plan, gpu) == [*turns[first:], *turns[:first]]
        alike = len({gpu.speed for gpu in gpus}) == 1
        if alike and problem.platform.link is None and forced.scaled.above == forced.scaled.period:
            # Nothing was rounded, and nothing waits for a link.
            assert plan.pattern.period <= forced.scaled.period


def on(order: JointOrder, gpu: int) -> list[int]:
    """Return the operations of a GPU, by number, in the order of a period."""
    numbers = [
        n for n, start in enumerate(order.starts) if order.owner[n % len(order.owner)] == gpu
    ]
    return sorted(numbers, key=lambda number: order.starts[number] % order.period)


def test_stages_are_joined_where_nothing_runs_between_their_operations() -> None:
    # Forwards of all four, then backwards; the third one lies elsewhere.
    order = JointOrder(
        stages=[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)],
        owner=[0, 0, 1, 0, 0],
        starts=[0, 2, 4, 5, 6, 16, 14, 12, 10, 8],
        lengths=[2, 1, 1, 1, 1, 2, 2, 2, 2, 2],
        period=40,
    )
    joined = join_stages(order)
    assert joined.stages == [(0, 1), (2, 2), (3, 4)]
    assert joined.owner == [0, 1, 0]
    assert joined.starts == [0, 4, 5, 14, 12, 8]
    assert joined.lengths == [3, 1, 2, 4, 2, 4]
    assert join_stages(joined) == joined
    # The forward of the last one comes a period later, and backwards run apart.
    late = order._replace(starts=[0, 2, 4, 5, 46, 58, 54, 52, 50, 48])
    assert join_stages(late).stages == [(0, 1), (2, 2), (3, 3), (4, 4)]
    apart = order._replace(starts=[0, 2, 4, 5, 6, 60, 14, 12, 10, 8], period=50)
    assert join_stages(apart).stages == [(0, 0), (1, 1), (2, 2), (3, 4)]


def test_a_plan_has_the_least_period_of_its_orders() -> None:
    layers = tuple(
        Layer(forward_ns=ahead, backward_ns=back, weight_bytes=0, activation_bytes=6)
        for ahead, back in ((4, 6), (2, 5), (3, 4))
    )
    problem = Problem(chain=Chain(layers=layers), platform=Platform(2, 99), scope=ONE)
    # The first GPU runs F0 F2 B2 B0 without a break, and F1 and B1 of the other one lie between.
    order = JointOrder(
        stages=[(0, 0), (1, 1), (2, 2)],
        owner=[0, 1, 0],
        starts=[0, 4, 6, 18, 13, 9],
        lengths=[4, 2, 3, 6, 5, 4],
        period=24,
    )
    plan = lay_out(problem, order)
    assert plan is not None
    assert not check(plan)
    # 24 ns of one micro-batch after the other: all in its path.
    assert plan.pattern.period == 24
    apart = order._replace(starts=[0, 4, 6 + 24, 18 + 48, 13 + 48, 9 + 24])
    shorter = lay_out(problem, apart)
    assert shorter is not None
    assert not check(shorter)
    # What the first GPU works: with periods between, nothing else is in its way.
    assert shorter.pattern.period == 17


def test_links_take_what_they_send_one_after_the_other() -> None:
    layers = tuple(
        Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=10) for _ in range(2)
    )
    platform = Platform(2, 10**6, bandwidth=10**9)
    problem = Problem(chain=Chain(layers=layers), platform=platform, scope=ONE)
    order = JointOrder(
        stages=[(0, 0), (1, 1)], owner=[0, 1], starts=[0, 31, 80, 32], lengths=[1] * 4, period=30
    )
    plan = lay_out(problem, order)
    assert plan is not None
    assert not check(plan)
    # 10 ns there and 10 back on one link.
    assert plan.pattern.period == 20
    duplex = replace(problem, platform=Platform(2, 10**6, bandwidth=10**9, duplex="full"))
    assert Fraction(10) <= lay_out(duplex, order).pattern.period < 20  # type: ignore[union-attr]


def test_operations_without_time_come_when_they_can() -> None:
    layers = tuple(
        Layer(forward_ns=ahead, backward_ns=back, weight_bytes=1, activation_bytes=1)
        for ahead, back in ((0, 0), (2, 3), (0, 0), (1, 0), (3, 2), (0, 0))
    )
    chain = Chain(layers=layers)
    problem = Problem(chain=chain, platform=Platform(2, 99, bandwidth="1GB/s"), scope=ONE)
    forced = forced_by(problem)
    assert forced is not None
    allocations = Allocations(forced, orders_of(forced)[1])
    holds = allocations.find(60)
    assert holds is not None
    assert len(holds)
    plan = lay_out(problem, read_order(allocations.data, allocations.scratch))
    assert plan is not None
    assert not check(plan)
