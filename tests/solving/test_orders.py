from __future__ import annotations

from schedopt import Chain, Layer, Platform, Scope, Stage
from schedopt.problem import Problem
from schedopt.solving.course import Course

FIXED = Scope(allocation="fixed", max_k=2)


def problem_of(count: int, gpus: int, memory: int) -> Problem:
    """Return a problem of equal layers, each a stage, on GPU 0, 1, ... and again from 0 on."""
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
    return Problem(
        chain=Chain(layers=(layer,) * count),
        platform=Platform(gpus, memory),
        scope=FIXED,
        stages=tuple(Stage(layers=(i, i), gpus=(i % gpus,)) for i in range(count)),
    )


def test_layers_on_one_gpu_share_its_memory() -> None:
    # What is in flight in a layer is in all layers before it. 6 bytes hold 6, 3, 2 and 1 of them.
    kept = Course(problem_of(4, 1, 6)).kept
    assert [one.fit for one in kept] == [6, 3, 2, 1]
    # On two GPUs layers 0 and 2 share one, and layers 1 and 3 the other.
    assert [one.fit for one in Course(problem_of(4, 2, 6)).kept] == [6, 6, 3, 3]


def test_what_stays_for_no_time_is_not_there_with_what_is_before_it() -> None:
    layers = tuple(
        Layer(forward_ns=time, backward_ns=time, weight_bytes=0, activation_bytes=1)
        for time in (1, 0)
    )
    problem = problem_of(2, 1, 6)
    kept = Course(
        Problem(
            chain=Chain(layers=layers),
            platform=problem.platform,
            scope=FIXED,
            stages=problem.stages,
        )
    ).kept
    assert [one.fit for one in kept] == [6, 6]


def test_no_more_than_behind_and_in_between() -> None:
    # 1 in flight at the end, and for k = 1 two before each of the two steps from layer to layer.
    course = Course(problem_of(3, 3, 100))
    last = course.most_in_flight(1)[-1]
    assert course.most_in_flight(1) == [last + 8, last + 4, last]
    tight = Problem(
        chain=Chain(
            layers=tuple(
                Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=size)
                for size in (1, 1, 100)
            )
        ),
        platform=course.problem.platform,
        scope=FIXED,
        stages=course.problem.stages,
    )
    assert Course(tight).most_in_flight(1) == [9, 5, 1]
