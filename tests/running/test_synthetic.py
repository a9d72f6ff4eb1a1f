from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from schedopt import Chain, InputError, Layer, Plan, Platform, Scope, Stage
from schedopt.plan import Kind, Pattern
from schedopt.profiling.devices import CpuClock
from schedopt.profiling.layer_sweeps import split_sweep, sweep
from schedopt.profiling.memory_meter import Meter
from schedopt.profiling.pieces import Piece
from schedopt.running.synthetic import Sleeper, synthetic_inputs, synthetic_pieces
from tests.examples import op

FLOAT = 4


class Diary(Sleeper):
    """Writes down what it is asked to sleep, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self._slept: list[int] = []

    def sleep(self, nanoseconds: int) -> None:
        self._slept.append(nanoseconds)

    def read(self) -> list[int]:
        """Return what was written since it was last read."""
        read, self._slept = self._slept, []
        return read


PARTS = ("activation", "weight", "saved", "saved_weight", "workspace")
SIZES = tuple(f"{part}_bytes" for part in PARTS)
TIMES = ("forward_ns", "backward_ns", "backward_input_ns", "backward_weight_ns")


def layer(number: int = 0, **more: Any) -> Layer:
    """Return a layer whose durations end in its number: F 1x, B 2x, I 3x, W 4x."""
    durations = {name: 10 * tens + number for tens, name in enumerate(TIMES, start=1)}
    sizes = {"weight_bytes": 100, "activation_bytes": 40}
    return Layer(**{**durations, **sizes, **more})


def plan_of(
    layers: Sequence[Layer],
    *stages: Stage,
    split: Sequence[int] = (),
    platform: Platform | None = None,
    input_bytes: int = 80,
) -> Plan:
    """Return a plan with the operations of its stages, one in `split` with I and W, and no times.

    Without stages all layers are one.
    """
    stages = stages or (Stage(layers=(0, len(layers) - 1), gpus=(0,)),)

    def kinds(number: int) -> tuple[Kind, ...]:
        recomputed: tuple[Kind, ...] = ("R",) if stages[number].recompute else ()
        return ("F", *recomputed, *(("I", "W") if number in split else ("B",)))

    return Plan(
        chain=Chain(layers=tuple(layers), input_bytes=input_bytes),
        platform=platform or Platform(gpus=len(stages), memory="1G"),
        scope=Scope(allocation="general", split_backward=True, recompute=True),
        stages=stages,
        pattern=Pattern(
            k=1,
            period_total_ns=1000,
            operations=tuple(
                op(kind, number, 0, 0) for number in range(len(stages)) for kind in kinds(number)
            ),
        ),
    )


def apart(count: int) -> tuple[Stage, ...]:
    return tuple(Stage(layers=(number, number), gpus=(number,)) for number in range(count))


def trained(pieces: Sequence[Piece]) -> list[torch.nn.Parameter]:
    every = [parameter for piece in pieces for parameter in piece.module.parameters()]
    return [parameter for parameter in every if parameter.requires_grad]


def counts(pieces: Sequence[Piece]) -> list[float | None]:
    return [None if one.grad is None else one.grad.item() for one in trained(pieces)]


def run_all(pieces: Sequence[Piece], inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the loss of the layers as one graph."""
    value: Tensor | None = None
    for piece in pieces:
        value = piece.run(value, inputs)
    assert value is not None
    return value


def input_half(
    pieces: Sequence[Piece], output: Tensor, gradient: Tensor | None, value: Tensor
) -> list[dict[str, Any]]:
    """Run the input half of layers that are one graph; return what the other half needs."""
    gradients = None if gradient is None else [gradient]
    return stage_backward_input([output], gradients, [value], iter(trained(pieces)))[1]


def weight_half(pieces: Sequence[Piece], groups: list[dict[str, Any]]) -> None:
    stage_backward_weight(iter(trained(pieces)), groups)


def leaf(size: int) -> Tensor:
    return torch.empty(size // FLOAT, requires_grad=True)


@contextmanager
def metered(pieces: Sequence[Piece], *permanent: Tensor) -> Iterator[Meter]:
    weights = [weight for piece in pieces for weight in piece.module.parameters()]
    with Meter([*weights, *permanent]) as meter:
        yield meter


UNEVEN = Platform(gpus=2, memory="1G", speed=["1", "3"])


@pytest.mark.parametrize(
    ("run", "count", "more", "slept"),
    [
        (sweep, 3, {}, [10, 11, 12, 22, 21, 20]),
        # The first layer takes nothing with a gradient: both of its halves come in the second.
        (split_sweep, 3, {"split": [0]}, [10, 11, 12, 32, 31, 42, 41, 30, 40]),
        # Only stages with halves sleep in halves.
        (sweep, 2, {"split": [1], "apart": True}, [10, 11, 31, 41, 20]),
        # Of the GPU of the stage: 11, 31 and 41 at a third, rounded up.
        (sweep, 2, {"split": [1], "apart": True, "platform": UNEVEN}, [10, 4, 11, 14, 20]),
    ],
)
def test_layers_sleep_forward_and_whole_or_in_halves_backward(
    run: Any, count: int, more: dict[str, Any], slept: list[int]
) -> None:
    diary = Diary()
    stages = apart(count) if more.pop("apart", False) else ()
    layers = [layer(number, name="stem" if not number else "") for number in range(count)]
    pieces = synthetic_pieces(plan_of(layers, *stages, **more), diary)
    named = [("stem", "0", ("input",)), ("1", "1", ()), ("2", "2", ())]
    assert [(piece.name, piece.cut, piece.side) for piece in pieces] == named[:count]
    for times in (1, 2):
        run(pieces, {"input": torch.empty(20)}, CpuClock())
        assert diary.read() == slept
        assert counts(pieces) == [times] * count


def test_activations_are_as_large_as_the_chain_says_where_a_stage_ends() -> None:
    plan = plan_of(
        [layer(activation_bytes=size) for size in (400, 42, 0, 400)],
        *(Stage(layers=pair, gpus=(0,)) for pair in ((0, 1), (2, 2), (3, 3))),
    )
    seen = sweep(synthetic_pieces(plan, Diary()), {"input": torch.empty(20)}, CpuClock())
    assert seen.activation_bytes == [FLOAT, 44, FLOAT, FLOAT]


def test_a_stage_as_one_graph_sleeps_all_input_halves_first() -> None:
    diary = Diary()
    plan = plan_of([layer(0), layer(1), layer(2)], split=[0])
    pieces = synthetic_pieces(plan, diary)
    value = synthetic_inputs(plan)["input"]
    loss = run_all(pieces, {"input": value})
    assert diary.read() == [10, 11, 12]
    groups = input_half(pieces, loss, None, value)
    assert (diary.read(), counts(pieces)) == ([32, 31, 30], [None] * 3)
    assert value.grad is not None
    assert value.grad.numel() * FLOAT == plan.chain.input_bytes
    weight_half(pieces, groups)
    assert (sorted(diary.read()), counts(pieces)) == ([40, 41, 42], [1] * 3)


def test_a_stage_with_gpus_of_several_speeds_is_refused() -> None:
    plan = plan_of([layer()], Stage(layers=(0, 0), gpus=(0, 1)), platform=UNEVEN)
    with pytest.raises(InputError, match=r"stages\[0\].gpus"):
        synthetic_pieces(plan, Diary())


@pytest.mark.parametrize("size", [0, 3, FLOAT, 5, 1000])
def test_weights_take_the_bytes_of_the_chain(size: int) -> None:
    (piece,) = synthetic_pieces(plan_of([layer(weight_bytes=size)]), Diary())
    tensors = [*piece.module.parameters(), *piece.module.buffers()]
    assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) == max(size, FLOAT)
    assert len(trained([piece])) == 1


def test_what_is_saved_is_held_from_the_forward_to_the_backward() -> None:
    layers = [layer(saved_bytes=1001), layer(saved_bytes=2002), layer(saved_bytes=3003)]
    pieces = synthetic_pieces(plan_of(layers), Diary())
    value = leaf(80)
    with metered(pieces, value) as meter:
        loss = run_all(pieces, {"input": value})
        assert meter.now == 1001 + 2002 + 3003 + FLOAT
        torch.autograd.backward(loss)
        meter.leave_out([one.grad for one in trained(pieces) if one.grad is not None])
        del loss
        # The gradients of the input and of three weights.
        assert meter.now == 80 + 3 * FLOAT


def test_by_default_the_output_is_saved_and_without_a_graph_nothing() -> None:
    diary = Diary()
    pieces = synthetic_pieces(plan_of([layer(), layer()], *apart(2)), diary)
    value = leaf(80)
    with metered(pieces, value) as meter:
        output = pieces[0].run(None, {"input": value})
        assert meter.now == 40 + 40
        del output
        assert meter.now == 0
        diary.read()
        with torch.no_grad():
            output = pieces[0].run(None, {"input": value})
            assert (diary.read(), meter.now) == ([10], 40)
            del output


def held_by(pieces: Sequence[Piece], number: int) -> int:
    """Return what autograd holds after the forward of one layer."""
    value = leaf(80)
    with metered(pieces, value) as meter:
        output = pieces[number].run(value if number else None, {"input": value})
        return meter.now - output.untyped_storage().nbytes()


def test_layers_at_the_start_of_a_stage_and_behind_a_recompute_hold_more() -> None:
    layers = [
        layer(saved_bytes=100, saved_input_bytes=7, activation_bytes=40 + 4 * number)
        for number in range(6)
    ]
    # What comes on top is held where a stage starts.
    two = (Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 2), gpus=(1,)))
    pieces = synthetic_pieces(plan_of(layers[:3], *two), Diary())
    assert [held_by(pieces, number) for number in range(3)] == [107, 100, 107]
    # Layer 0 hands on the input of a run, layer 2 that of another; layer 4 takes what the last
    # run made, and that stays.
    stage = Stage(layers=(0, 5), gpus=(0,), recompute=((1, 2), (3, 3)))
    pieces = synthetic_pieces(plan_of(layers, stage), Diary())
    assert [held_by(pieces, number) for number in range(6)] == [107, 100, 100, 100, 107, 100]
    seen = sweep(pieces, {"input": torch.empty(20)}, CpuClock())
    assert seen.activation_bytes == [40, FLOAT, 48, FLOAT, FLOAT, FLOAT]


@pytest.mark.parametrize(
    ("size", "after_input_half"), [(500, 500), (0, FLOAT), (None, 2000)], ids=str
)
def test_what_the_halves_hold(size: int | None, after_input_half: int) -> None:
    """Without bytes of its own the weight half keeps what was saved."""
    layers = [layer(), layer(saved_bytes=2000, saved_weight_bytes=size), layer()]
    pieces = synthetic_pieces(plan_of(layers, *apart(3), split=[1]), Diary())
    value, gradient = leaf(40), torch.empty(10)
    with metered(pieces, value, gradient) as meter:
        output = pieces[1].run(value, {})
        assert meter.now == 40 + 2000
        groups = input_half(pieces[1:2], output, gradient, value)
        del output
        value.grad = None
        assert meter.now == after_input_half
        weight_half(pieces[1:2], groups)
        assert (meter.now, counts(pieces[1:2])) == (FLOAT, [1])


def test_a_workspace_is_taken_while_it_sleeps() -> None:
    class Looking(Diary):
        def sleep(self, nanoseconds: int) -> None:
            super().sleep(meter.now)

    diary = Looking()
    pieces = synthetic_pieces(
        plan_of([layer(saved_bytes=100, workspace_bytes=3000, saved_weight_bytes=50)], split=[0]),
        diary,
    )
    value = leaf(80)
    with metered(pieces, value) as meter:
        loss = run_all(pieces, {"input": value})
        groups = input_half(pieces, loss, None, value)
        del loss
        value.grad = None
        weight_half(pieces, groups)
    forward, first, second = diary.read()
    tokens = range(0, 8 * FLOAT)
    # The input of 80 bytes lies beside, and is a part of the workspace of a real layer.
    assert forward + 80 - 3100 in tokens
    assert first - 3150 in tokens
    assert second - 3050 in tokens


class Touching(TorchDispatchMode):
    """Writes down the operators that read or write more than a few numbers."""

    WITHOUT_DATA = ("empty", "detach", "slice", "view", "new_empty", "as_strided")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        tensors = [leave for leave in tree_leaves((args, results)) if isinstance(leave, Tensor)]
        if name not in self.WITHOUT_DATA and any(tensor.numel() > 1 for tensor in tensors):
            self.seen.append(name)
        return results


@pytest.mark.parametrize("split", [(), (0, 1)])
def test_nothing_large_is_read_or_written(split: tuple[int, ...]) -> None:
    layers = [layer(**dict.fromkeys(SIZES, 4000))] * 4
    stages = (Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 3), gpus=(1,)))
    with Touching() as touching:
        pieces = synthetic_pieces(plan_of(layers, *stages, split=split), Diary())
        value = leaf(4000)
        output = run_all(pieces[:2], {"input": value})
        received = output.detach().requires_grad_()
        loss = pieces[3].run(pieces[2].run(received, {}), {})
        if split:
            last = input_half(pieces[2:], loss, None, received)
            first = input_half(pieces[:2], output, received.grad, value)
            weight_half(pieces[2:], last)
            weight_half(pieces[:2], first)
        else:
            torch.autograd.backward(loss)
            torch.autograd.backward(output, received.grad)
    assert counts(pieces) == [1] * 4
    assert touching.seen == []


@pytest.mark.parametrize("run", [sweep, split_sweep])
def test_a_chain_of_zeros_runs(run: Any) -> None:
    none: dict[str, Any] = dict.fromkeys((*TIMES, *SIZES), 0)
    diary = Diary()
    split = [0] if run is split_sweep else []
    plan = plan_of([Layer(**none), Layer(**none)], split=split, input_bytes=0)
    pieces = synthetic_pieces(plan, diary)
    run(pieces, {name: one.detach() for name, one in synthetic_inputs(plan).items()}, CpuClock())
    assert (diary.read(), counts(pieces)) == ([], [1, 1])


class Clocked:
    """A clock that goes on only while someone sleeps or looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late_ns: int) -> None:
        self.now = 10**12
        self.late_ns = late_ns
        monkeypatch.setattr(time, "monotonic_ns", self.look)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def look(self) -> int:
        self.now += 100
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += round(seconds * 1e9) + self.late_ns


def test_a_sleep_ends_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clocked(monkeypatch, late_ns=40_000)
    sleeper = Sleeper()

    def took(at_once_ns: int) -> int:
        """Return how long an operation sleeps that was busy with other things first."""
        sleeper.begin()
        clock.now += at_once_ns
        begun = clock.now
        sleeper.sleep(1_000_000)
        return clock.now - begun

    # What is done between the layers of an operation is no longer for it.
    assert 0 <= took(200_000) - 800_000 <= 300
    begun = clock.now
    for number in (1, 2):
        clock.now += 200_000
        sleeper.sleep(1_000_000)
        assert 0 <= clock.now - begun - number * 1_000_000 <= 300
    # Who is late does not sleep, and owes nothing to the next.
    assert took(5_000_000) <= 200
    assert 0 <= took(0) - 1_000_000 <= 200


def test_a_sleeper_sleeps() -> None:
    sleeper = Sleeper()
    before = time.monotonic_ns()
    sleeper.begin()
    sleeper.sleep(2_000_000)
    assert time.monotonic_ns() - before >= 2_000_000
