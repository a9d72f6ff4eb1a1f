"""The bound of steps by gradients that go round behind all work: by hand, and against steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from schedopt import Chain, Gpu, InputError, Layer, Plan, Platform, Problem, Stage, check
from schedopt.bounds import gradient_step_bound, load_bound, lower_bounds
from schedopt.network import Link, Network, Node, NodeLink
from schedopt.problem import training_step, widest_step
from schedopt.profile import Variant
from schedopt.stage import Shard
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from tests.budgets import trials
from tests.layers import layer


def bound_ns(problem: Problem) -> int | None:
    bound, count = gradient_step_bound(problem), problem.scope.microbatches
    if bound is None:
        return None
    assert count is not None
    assert bound.scope.covers(problem.scope)
    return int(bound.period * count)


def stateful(forward: int, backward: int, size: int, update: int = 0) -> Layer:
    """Return a layer with so many bytes of parameters, of gradients, and of optimizer state."""
    return replace(
        layer(forward, backward, weight=3 * size),
        parameter_bytes=size,
        gradient_bytes=size,
        optimizer_bytes=size,
        update_ns=update,
    )


def step(chain: Chain, platform: Platform, count: int, *variants: Variant) -> Problem:
    return training_step(
        chain, platform, count, widest_step(chain, None if variants else 1), variants
    )


def nodes(number: int, gpus: int) -> Platform:
    """Return nodes with links of 1 byte a ns inside, and a fifth of that between them."""
    names = [f"n{n}" for n in range(number)]
    inside = Link(bandwidth_bytes_per_s=10**9, duplex="full")
    between = [
        NodeLink(between=(one, other), bandwidth_bytes_per_s=2 * 10**8, duplex="full")
        for place, one in enumerate(names)
        for other in names[place + 1 :]
    ]
    network = Network(
        nodes=tuple(Node(name=name, gpus=gpus, link=inside) for name in names), links=tuple(between)
    )
    return Platform([Gpu(memory_bytes=10**6)] * (number * gpus), network=network)


def test_groups_that_share_in_their_node_send_less_between_nodes() -> None:
    # A group of two in each of two nodes. A GPU works 4000 ns, sends 2 of 4 chunks of 100 bytes to
    # the other of its group, then 2 between nodes, over a link of both, and 2 updated ones.
    chain, platform = Chain(layers=(stateful(1000, 3000, 400),)), nodes(2, 2)
    problem = step(chain, platform, 4)
    turns: list[Turn] = [(kind, 0, i) for i in range(4) for kind in ("F", "B")]
    scope = replace(problem.scope, hybrid=True)
    config = SystemConfig(chain=chain, platform=platform, microbatches=4)
    stage = Stage(layers=(0, 0), gpus=(0, 1, 2, 3), shard="optimizer", shard_copies=2)
    plan = replace(flush_step(config, [stage], turns), scope=scope)
    assert not check(plan)
    assert plan.pattern.period_total_ns == 4000 + 2 * 100 + 4 * 500 + 2 * 100
    flat = bound_ns(problem)
    assert flat is not None
    assert flat > plan.pattern.period_total_ns
    # As if a chunk crossed for each home, and the homes of one were in a node: one crosses, then
    # two sums; and two updated ones.
    assert bound_ns(plan.problem) == 4000 + (2 * 2 - 1 - 2) * 500 + 2 * 100
    assert all(one.period <= plan.pattern.period for one in lower_bounds(plan.problem))


def test_two_replicas_add_up_update_and_send() -> None:
    # Two of four micro-batches each take 60 ns; then 20 bytes go either way, half of the update
    # takes 3 ns, and 20 bytes go back. On one GPU all would take 126 ns.
    chain = Chain(layers=(stateful(10, 20, 40, update=6),))
    platform = Platform(2, 10**6, bandwidth=10**9, duplex="full")
    problem = step(chain, platform, 4)
    assert bound_ns(problem) == 60 + 20 + 3 + 20
    turns: list[Turn] = [(kind, 0, i) for i in range(4) for kind in ("F", "B")]
    config = SystemConfig(chain=chain, platform=platform, microbatches=4)
    plan = flush_step(config, [Stage(layers=(0, 0), gpus=(0, 1), shard="optimizer")], turns)
    assert not check(plan)
    assert plan.pattern.period_total_ns == 103
    # Without shards the gradients go on, and each has the whole update.
    alone = replace(problem, scope=replace(problem.scope, shard="none"))
    assert bound_ns(alone) == 60 + 20 + 20 + 6


def test_more_replicas_than_a_node_holds_take_the_links_between() -> None:
    # Two GPUs of a node take 180 ns for 12 micro-batches, and 20 ns twice. Three take 120 ns; then
    # one chunk of 13 bytes crosses in 65 ns, and two of them later. Four take 90 + 2 x 50 + 3 x 50.
    chain = Chain(layers=(stateful(10, 20, 40),))
    assert bound_ns(step(chain, nodes(2, 2), 12)) == min(180 + 40, 120 + 3 * 65, 90 + 5 * 50)
    # In one node four of them take 3 x 10 ns twice.
    assert bound_ns(step(chain, nodes(1, 4), 12)) == 90 + 6 * 10


def test_layers_of_little_work_are_left_out() -> None:
    # Backwards of a layer of no parameters are free to come last; its forwards take 2 ns a GPU.
    chain = Chain(layers=(stateful(1, 1, 0), stateful(10, 20, 40)))
    platform = Platform(2, 10**6, bandwidth=10**9, duplex="full")
    assert bound_ns(step(chain, platform, 4)) == 2 + 60 + 40
    # That is no longer so if it is all the work.
    chain = Chain(layers=(stateful(100, 200, 0), stateful(1, 2, 40)))
    assert bound_ns(step(chain, platform, 4)) is None


def test_a_tensor_group_has_less_to_send() -> None:
    # A group of two takes 25 ns, and has no replica: 4 x 25. Two GPUs have 60 + 200 ns.
    chain = Chain(layers=(stateful(10, 20, 200),))
    group = Variant(tensor=2, chain=Chain(layers=(stateful(10, 15, 100),)))
    platform = Platform(2, 10**6, bandwidth=10**9, duplex="full")
    assert bound_ns(step(chain, platform, 4, group)) == 100
    assert bound_ns(step(chain, platform, 4)) == 120


def test_says_nothing_of_other_steps() -> None:
    chain = Chain(layers=(stateful(10, 20, 40),))
    problem = step(chain, Platform(2, 10**6, bandwidth=10**9), 4)
    assert bound_ns(problem) is not None
    assert bound_ns(replace(problem, scope=replace(problem.scope, shard="gradient"))) is None
    halved = replace(chain.layers[0], backward_input_ns=10, backward_weight_ns=10)
    split = replace(problem, chain=Chain(layers=(halved,)))
    assert bound_ns(split) is not None
    assert bound_ns(replace(split, scope=replace(split.scope, split_backward=True))) is None
    unequal = [Gpu(memory_bytes=10**6), Gpu(memory_bytes=10**5)]
    assert bound_ns(replace(problem, platform=problem.platform.with_gpus(unequal))) is None


def some_problem(rng: Random) -> Problem:
    def some_chain() -> Chain:
        return Chain(
            layers=tuple(
                replace(
                    stateful(rng.randint(0, 9), rng.randint(0, 12), 0, rng.choice([0, 3])),
                    weight_bytes=3 * 60,
                    parameter_bytes=rng.choice([0, 20, 60]),
                    gradient_bytes=rng.choice([0, 20, 60]),
                    optimizer_bytes=rng.choice([0, 40]),
                )
                for _ in range(layers)
            )
        )

    layers = rng.choice([1, 1, 2, 3])
    platform = rng.choice(
        [
            Platform(2, 10**6, bandwidth=4 * 10**9),
            Platform(4, 10**6, bandwidth=10**9, duplex="full", latency=1),
            nodes(2, 2),
            nodes(3, 2),
        ]
    )
    chain, variants = some_chain(), [Variant(tensor=2, chain=some_chain())]
    problem = step(chain, platform, rng.choice([2, 4, 6, 12]), *variants[: rng.choice([0, 1])])
    shard: Shard = rng.choice(["none", "optimizer"])
    scope = replace(problem.scope, shard=shard, hybrid=shard != "none" and rng.random() < 0.5)
    return replace(problem, scope=scope)


def some_step(problem: Problem, rng: Random) -> Plan:
    """Return a step on stages anywhere; each pair of GPUs is a tensor group, or two GPUs."""
    layers, gpus = len(problem.chain.layers), len(problem.platform.gpus)
    groups: dict[int, list[int]] = {1: [], 2: []}
    for first in range(0, gpus, 2):
        tensor = rng.choice(problem.degrees)
        groups[tensor] += [first] if tensor == 2 else [first, first + 1]
    cuts = sorted(rng.sample(range(1, layers), rng.randint(0, layers - 1)))
    stages: list[Stage] = []
    for first, end in zip([0, *cuts], [*cuts, layers], strict=True):
        tensor = rng.choice([one for one in problem.degrees if groups[one]])
        counts = [one for one in problem.replica_counts if one <= len(groups[tensor])]
        replicas = max(rng.choice(counts), rng.choice(counts))
        shard = problem.scope.shard if replicas > 1 and rng.random() < 0.7 else "none"
        own = tuple(rng.sample(groups[tensor], replicas))
        own = own if rng.random() < 0.3 else tuple(sorted(own))
        copies = [n for n in range(1, replicas + 1) if replicas % n == 0]
        stages.append(
            Stage(
                layers=(first, end - 1),
                gpus=own,
                shard=shard,
                tensor=tensor,
                shard_copies=rng.choice(copies) if problem.scope.hybrid and shard != "none" else 1,
            )
        )
    count, late = problem.scope.microbatches or 1, rng.random() ** 3
    ways: list[list[Turn]] = [
        [("F", part, i) for part in range(len(stages))]
        + [("B", part, i) for part in reversed(range(len(stages)))]
        for i in range(count)
    ]
    turns: list[Turn] = []
    while ways:
        way = ways[int(late * rng.random() * len(ways))]
        turns.append(way.pop(0))
        ways = [way for way in ways if way]
    config = SystemConfig(
        chain=problem.chain,
        platform=problem.platform,
        microbatches=count,
        variants=problem.variants,
    )
    return replace(flush_step(config, stages, turns), scope=problem.scope)


def test_no_step_is_shorter() -> None:
    near: list[float] = []

    @trials(1000)
    @given(st.integers(min_value=0, max_value=2**32))
    def look(seed: int) -> None:
        rng = Random(seed)
        problem = some_problem(rng)
        bound = bound_ns(problem)
        if bound is None:
            return
        assert bound > load_bound(problem).period * (problem.scope.microbatches or 1)
        for _ in range(3):
            try:
                plan = some_step(problem, rng)
            except InputError:
                continue
            if not check(plan):
                near.append(bound / plan.pattern.period_total_ns)

    look()
    assert max(near) == 1


def test_gpus_without_a_first_layer_begin_later_and_end_sooner() -> None:
    # Layer 0 is on one GPU: more would send for 2 x 60 ns at least. After 1, 2 and 3 ns one GPU
    # more has something to do, and 2, 4 and 6 ns before the end one less: 6 and 12 ns of the four
    # are idle beside 4 x 33 of work.
    chain = Chain(layers=(stateful(1, 2, 120), stateful(10, 20, 0)))
    platform = Platform(4, 10**6, bandwidth=10**9, duplex="full")
    assert bound_ns(step(chain, platform, 4)) == -(-(4 * 33 + 6 + 12) // 4)
    # Gradients of 4 bytes are better added up by two GPUs, in 4 ns: then it is 2 x 3 ns that two of
    # them are idle; or by all of them, in 6 ns, with none idle.
    light = Chain(layers=(stateful(1, 2, 4), stateful(10, 20, 0)))
    assert bound_ns(step(light, platform, 4)) == min(38, -(-(4 * 33 + 2 * 3) // 4) + 4, 33 + 6)


def test_all_but_the_backwards_of_earlier_layers_comes_before_gradients() -> None:
    # Layer 1 needs two GPUs below 360 ns, which then send for 80. Before that both do forwards, and
    # backwards of layer 1; those of layer 0 may come meanwhile.
    chain = Chain(layers=(stateful(10, 20, 0), stateful(30, 60, 80)))
    platform = Platform(2, 10**6, bandwidth=10**9, duplex="full")
    assert bound_ns(step(chain, platform, 4)) == 4 * (10 + 30 + 60) // 2 + 80
    stages = [Stage(layers=(n, n), gpus=(0, 1)) for n in range(2)]
    turns: list[Turn] = [("F", 0, i) for i in range(4)] + [("F", 1, i) for i in range(4)]
    turns += [("B", 1, i) for i in range(4)] + [("B", 0, i) for i in range(4)]
    config = SystemConfig(chain=chain, platform=platform, microbatches=4)
    plan = flush_step(config, stages, turns)
    assert not check(plan)
    # Behind the others come transfers of no bytes, which the step must still hold.
    assert plan.pattern.period_total_ns == 280 + 1


def test_work_that_takes_no_time() -> None:
    # On one GPU it is updated in 6 ns, and on two in 20 + 3 + 20.
    chain = Chain(layers=(stateful(0, 0, 40, update=6),))
    platform = Platform(2, 10**6, bandwidth=10**9, duplex="full")
    assert bound_ns(step(chain, platform, 4)) == 6


def is_possible(
    chain: Chain, allocation: Sequence[Sequence[int]], count: int, makespan: int
) -> bool:
    """Whether layers on some GPUs take so long with free transfers, and rings behind them, ns."""
    model = cp_model.CpModel()
    own: dict[int, list[cp_model.IntervalVar]] = defaultdict(list)
    layers = [*range(len(chain.layers))]
    for i in range(count):
        before: cp_model.LinearExprT = 0
        for kind, number in [("F", n) for n in layers] + [("B", n) for n in reversed(layers)]:
            one, gpus = chain.layers[number], allocation[number]
            start = model.new_int_var(0, makespan, "")
            length = one.forward_ns if kind == "F" else one.backward_ns
            end = start + length
            model.add(start >= before)
            own[gpus[i % len(gpus)]].append(model.new_fixed_size_interval_var(start, length, ""))
            around = 2 * (len(gpus) - 1) * ((one.gradient_bytes or 0) // len(gpus))
            model.add(end + around * (kind == "B") <= makespan)
            before = end
    for intervals in own.values():
        model.add_no_overlap(intervals)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = 5
    return solver.solve(model) != cp_model.INFEASIBLE


def test_no_order_of_any_allocation_is_shorter() -> None:
    higher = []

    @trials(2000, by_day=30)
    @given(st.integers(min_value=0, max_value=2**32))
    def look(seed: int) -> None:
        rng = Random(seed)
        gpus, count = rng.choice([2, 3, 4]), rng.choice([2, 3, 4])
        layers = [
            stateful(rng.randint(0, 4), rng.randint(0, 6), rng.choice([0, 12, 24, 48]))
            for _ in range(rng.choice([2, 2, 3]))
        ]
        chain = Chain(layers=tuple(layers))
        problem = step(chain, Platform(gpus, 10**6, bandwidth=10**9, duplex="full"), count)
        bound = bound_ns(problem)
        if bound is None:
            return
        higher.append(bound)
        groups = [group for n in problem.replica_counts for group in combinations(range(gpus), n)]
        for allocation in product(groups, repeat=len(layers)):
            # GPUs are alike: the first ones are taken first.
            taken = [*dict.fromkeys(gpu for group in allocation for gpu in group)]
            if taken == sorted(taken) and taken[-1] == len(taken) - 1:
                assert not is_possible(chain, allocation, count, bound - 1)

    look()
    assert higher
