"""What stages with replicas cost: times, bytes and collectives of any run of layers, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schedopt.bounds.recomputation import input_bytes
from schedopt.bounds.recompute_table import PRICES, RecomputeTable
from schedopt.errors import InputError
from schedopt.interrupts import Stopped, never_stop
from schedopt.problem import Problem
from schedopt.solving.replicas.arrays import (
    LAYERED,
    WAITING,
    Array,
    Costs,
    Layered,
    Layers,
    Machine,
    Option,
    StepData,
)
from schedopt.solving.replicas.copies import least_copy_trips, trip_ns
from schedopt.solving.replicas.layered import passing_bytes, tabulate
from schedopt.solving.replicas.machine import degrees_of, lanes_of_card, read_machine, width_of
from schedopt.stage import SHARDS

MOST_LAYERED: Final = 4_000_000
"""Of each table of stages that run layer by layer."""
MOST_ENTRIES: Final = 40_000_000
"""Of the table of recompute, which takes 8 bytes for each."""
FEW: Final = 8
"""Micro-batches in flight that are told apart; of more, only ranges that grow with their number."""
MOST_GPUS: Final = 128
"""Jobs on more are laid out as folds, of which one part is looked for."""


def find_fold(problem: Problem) -> int:
    """Return the least fold whose parts have few enough GPUs to be laid out soon; 1 if none has.

    A part has nodes of its own, so that no other one sends over their links.
    """
    machine, most = read_machine(problem), problem.scope.replicas
    if machine is None:
        return 1
    # Groups of more GPUs fill a node with fewer replicas.
    width = 1 if machine.node == machine.gpus else machine.node
    unit = max(1, width // max(degrees_of(problem, machine)))
    for fold in sorted({1, *problem.replica_counts}):
        gpus, rest = divmod(machine.gpus, fold)
        if not rest and gpus <= MOST_GPUS and gpus % width == 0:
            return fold if most is None or fold * unit <= most else 1
    return 1


def read_step(
    problem: Problem, fold: int = 1, stopped: Callable[[], bool] = never_stop
) -> StepData | None:
    """Return what a training step, or a part of a fold, needs to know.

    None where some GPUs or links differ, no number of replicas fits, or it is stopped. In a fold
    stages have whole nodes, and share nothing but their optimizer states.
    """
    machine, count = read_machine(problem), problem.scope.microbatches
    if machine is None:
        return None
    assert count is not None
    degrees, whole = degrees_of(problem, machine), machine
    if fold > 1:
        machine = machine._replace(gpus=machine.gpus // fold, copies=fold)
        machine = machine._replace(node=min(machine.node, machine.gpus))
        count //= fold
    options, least = (
        [
            Option(n // fold, shard, group)
            for group, tensor in enumerate(degrees)
            for n in _counts(problem, whole, fold, tensor)
            for shard in choose(problem, n, tensor)
        ]
        for choose in (_shards, _levels)
    )
    # Groups one behind the other lie inside nodes.
    options = [
        option
        for option in options
        if (fold == 1 or option.shard < LAYERED)
        and (whole.node == whole.gpus or whole.node % width_of(whole, degrees[option.group]) == 0)
    ]
    if not options:
        return None
    try:
        costs = read_costs(problem, machine, sorted({*options, *least}), count, stopped)
    except Stopped:
        return None
    return StepData(
        problem=problem,
        machine=machine,
        costs=costs,
        count=count,
        replicas=tuple(sorted({option.replicas for option in options})),
        options=tuple(options),
        least_options=tuple(least),
    )


def _counts(problem: Problem, machine: Machine, fold: int, tensor: int) -> Iterator[int]:
    """Yield the numbers of replicas, of all parts of a fold, for groups of some size."""
    several = machine.node < machine.gpus
    uneven = problem.uneven_counts if fold == 1 else ()
    for count in sorted((*problem.replica_counts, *uneven)):
        own, rest = divmod(count, fold)
        whole = not (fold > 1 and several) or own * tensor % machine.node == 0
        shared = own % machine.together == 0
        # A fold does not say which experts replicas have.
        alike = fold > 1 and 1 < problem.chain.expert < count
        if not rest and whole and shared and not alike and count * tensor <= machine.gpus:
            yield count


def _levels(problem: Problem, replicas: int, tensor: int) -> Sequence[int]:
    """Return what replicas may share of a stage, as far as the bound can tell it apart.

    Of the optimizer state a share is smaller and updated sooner, and weights go round in place of
    summed gradients. More is shared best where as little as possible is there at a time.
    """
    most = SHARDS.index(problem.scope.shard)
    if most == 0 or replicas == 1 or replicas in problem.uneven_counts:
        return (0,)
    if 1 < problem.chain.expert < replicas:
        most = min(most, LAYERED - 1)
    layers = problem.in_group(tensor).layers
    more = any((layer.parameter_bytes or 0) > (layer.gradient_bytes or 0) for layer in layers)
    found = [0, 1] if more else [1]
    return found if most < LAYERED else [*found, most + WAITING]


def _shards(problem: Problem, replicas: int, tensor: int) -> Sequence[int]:
    """Return what replicas may share of a stage, and whether they wait for that.

    Weights that come for a backward in no time, behind a forward of none, cannot be told apart.
    """
    levels = _levels(problem, replicas, tensor)
    most = SHARDS.index(problem.scope.shard)
    if levels[-1] < LAYERED:
        return levels
    if problem.chain.copied:
        # Gradients of copies are added up whole, before any of them go home.
        return [level for level in levels if level < LAYERED]
    timed = all(layer.forward_ns for layer in problem.chain.layers if layer.has_state)
    most = most if timed else LAYERED
    return [*levels[:-1], *range(LAYERED, most + 1), most + WAITING]


def read_costs(
    problem: Problem,
    machine: Machine,
    options: Sequence[Option],
    count: int,
    stopped: Callable[[], bool] = never_stop,
) -> Costs:
    """Return what stages cost in tensor groups of all sizes, for steps of some micro-batches."""
    degrees = degrees_of(problem, machine)
    groups = [
        _read_sums(problem, machine, tensor)
        | _read_recompute(problem, count, tensor, len(degrees), stopped)
        for tensor in degrees
    ]
    rows = {name: np.stack([one[name] for one in groups]) for name in groups[0]}
    forward, backward = (np.diff(rows[name], axis=1) for name in ("forward", "backward"))
    tensor = np.array(degrees, dtype=np.int64)
    return Costs(
        tensor=tensor,
        counts=rows.pop("counts")[0],
        joined=_joined(problem),
        layered=_read_layered(problem, machine, options),
        load=_sums((tensor[:, None] * (forward + backward)).min(axis=0)),
        head=_sums(forward.min(axis=0)),
        tail=_sums(backward.min(axis=0)),
        rest=np.zeros_like(rows["backward"]),
        copies=least_copy_trips(problem, machine, degrees),
        among=problem.chain.expert,
        **rows,
    )


def with_halves(step: StepData) -> StepData:
    """Return a step for the bound where backwards may be split.

    Then the gradient of a micro-batch is sent on behind its input half, and the weight half may
    come at the end. What takes less counts: the whole backward, or the half, or both.
    """
    problem = step.problem
    if not problem.scope.split_backward:
        return step
    gpu, least, rest = problem.platform.gpus[0], [], []
    for tensor in step.costs.tensor:
        rows = [
            tuple(
                gpu.duration_ns(time or 0)
                for time in (layer.backward_ns, layer.backward_input_ns, layer.backward_weight_ns)
            )
            for layer in problem.in_group(int(tensor)).layers
        ]
        least.append(_sums(min(whole, half) for whole, half, _ in rows))
        works = (min(whole, half + other) - min(whole, half) for whole, half, other in rows)
        rest.append(_sums(works))
    backward, others = np.stack(least), np.stack(rest)
    return replace(
        step,
        costs=step.costs._replace(
            backward=backward,
            rest=others,
            layered=_without_gradients(step.costs.layered),
            tail=_sums(np.diff(backward, axis=1).min(axis=0)),
        ),
    )


def with_layers_recomputed(step: StepData) -> StepData | None:
    """Return a step whose stages may also recompute layer by layer, though they share no gradients.

    Such a stage is several of the plan on the same GPUs, so that its allocation is not contiguous.
    None where that is not allowed or not known to fit: in the reading *sum*, with copies of tied
    weights, in tensor groups; and for very long chains.
    """
    problem = step.problem
    scope, chain = problem.scope, problem.chain
    again = tuple(
        option._replace(shard=option.shard + WAITING)
        for option in step.options
        if option.shard < LAYERED and option.replicas in problem.replica_counts
    )
    allowed = scope.recompute and scope.allocation == "general" and scope.memory == "peak"
    options = (*step.options, *again)
    long = len(options) * len(chain.layers) ** 2 > MOST_LAYERED
    if not allowed or chain.copied or problem.degrees != (1,) or long:
        return None
    layered = _read_layered(problem, step.machine, options)
    return replace(step, costs=step.costs._replace(layered=layered), options=options)


def _without_gradients(layered: Layered) -> Layered:
    """Return tables for backwards whose input halves run before there are gradients."""
    layers = layered.layers
    most = np.zeros(layered.least.shape[1:], dtype=np.int64)
    for first in range(len(layers.gradient)):
        rows = np.maximum.accumulate(layers.gradient[first:])
        most[first, : len(rows)] = rows
    return layered._replace(
        least=layered.least - most,
        least_recomputed=layered.least_recomputed - most,
        layers=layers._replace(
            weight=layers.weight - layers.gradient, gradient=np.zeros_like(layers.gradient)
        ),
    )


def _read_sums(problem: Problem, machine: Machine, tensor: int) -> dict[str, Array]:
    """Return what `Costs` knows of a chain in tensor groups of some size, by its names."""
    layers, gpu = problem.in_group(tensor).layers, problem.platform.gpus[0]
    degrees = degrees_of(problem, machine)
    sent = [layer.activation_bytes for layer in layers[:-1]]
    forward = [gpu.duration_ns(layer.forward_ns) for layer in layers]
    saved = [layer.saved for layer in layers]
    trips, fars = (
        np.stack([_trips([n * -(-count // lanes) for count in sent], link) for lanes, n in ways])
        for link, ways in (
            (machine.inside, [(lanes, 1) for lanes in degrees]),
            (machine.between, [(lanes, lanes_of_card(machine, lanes)) for lanes in degrees]),
        )
    )
    place = degrees.index(tensor) + 1
    return {
        "lanes": lanes_of_card(machine, tensor),
        "forward": _sums(forward),
        "backward": _sums(gpu.duration_ns(layer.backward_ns) for layer in layers),
        "update": _sums(gpu.duration_ns(layer.update_ns or 0) for layer in layers),
        "weight": _sums(layer.weight_bytes for layer in layers),
        "gradient": _sums(layer.gradient_bytes or 0 for layer in layers),
        "parameter": _sums(layer.parameter_bytes or 0 for layer in layers),
        "optimizer": _sums(layer.optimizer_bytes or 0 for layer in layers),
        **{
            name: _sums(getattr(layer, f"{name}_bytes") or 0 for layer in layers)
            for name in ("expert_gradient", "expert_parameter", "expert_optimizer")
        },
        "saved": _sums(saved),
        "received": np.array([layer.saved_input_bytes or 0 for layer in layers], dtype=np.int64),
        "workspace": np.array([layer.workspace_bytes or 0 for layer in layers], dtype=np.int64),
        "trip": trips,
        "far": fars,
        "least_trip": np.minimum(trips, fars)[:place].min(axis=0),
        "least_far": fars[:place].min(axis=0),
    }


def _read_layered(problem: Problem, machine: Machine, options: Sequence[Option]) -> Layered:
    """Return the tables of the options whose stages run layer by layer."""
    chain, gpu = problem.chain, problem.platform.gpus[0]
    found = [option[:2] for option in options if option.shard >= LAYERED]
    entries = len(found) * len(chain.layers) ** 2
    if entries > MOST_LAYERED:
        raise InputError(
            f"{len(chain.layers)} layers are too many to try stages of all of them that share "
            "gradients or parameters",
            field="scope.shard",
            way_out="Merge layers, or share the optimizer state alone (Scope.shard)",
        )
    columns = {
        "forward": [gpu.duration_ns(layer.forward_ns) for layer in chain.layers],
        "backward": [gpu.duration_ns(layer.backward_ns) for layer in chain.layers],
        "saved": [layer.saved for layer in chain.layers],
        "kept": [layer.saved + (layer.saved_input_bytes or 0) for layer in chain.layers],
        "recomputed": [input_bytes(chain, number) for number in range(len(chain.layers))],
    }
    columns["passing"] = passing_bytes(columns["forward"], columns["kept"])
    for name in ("parameter", "gradient", "optimizer", "weight", "workspace"):
        columns[name] = [getattr(layer, f"{name}_bytes") or 0 for layer in chain.layers]
    layers = Layers(**{name: np.array(row, dtype=np.int64) for name, row in columns.items()})
    return tabulate(
        layers,
        found,
        machine.gpus,
        lambda count: int(_trips([count], machine.inside)[1]),
        half=not machine.inside[2],
        recompute=problem.scope.recompute,
    )


def _read_recompute(
    problem: Problem, most: int, tensor: int, tables: int, stopped: Callable[[], bool]
) -> dict[str, npt.NDArray[Any]]:
    """Return bounds for up to `most` micro-batches in flight; none where the scope forbids it.

    In groups of `tensor` GPUs, by the names in `Costs`; `tables` such tables are made in all.
    """
    layers, counts = len(problem.chain.layers), [1]
    if not problem.scope.recompute:
        return {
            "counts": np.zeros(0, dtype=np.int64),
            "prices": np.zeros((0, 1)),
            "lengths": np.zeros((0, 1, 1, 1)),
            "sizes": np.zeros((0, 1, 1), dtype=np.int64),
        }
    while counts[-1] < most:
        counts.append(min(most, counts[-1] + 1 + max(0, counts[-1] - FEW) // 4))
    del counts[max(2, MOST_ENTRIES // (layers**2 * PRICES * tables)) :]
    table = RecomputeTable(problem.in_group(tensor), problem.platform.gpus[0], stopped)
    table.widen(layers)
    prices = np.zeros((len(counts), PRICES))
    lengths = np.zeros((len(counts), layers, layers, PRICES))
    # Sums of fewer bytes than 2**53 are exact.
    sizes = np.zeros((len(counts), layers, layers), dtype=np.int64)
    for place, count in enumerate(counts):
        # Where one price says all there is but one.
        prices[place], lengths[place], sizes[place] = table.priced(count)
    numbers = np.array(counts, dtype=np.int64)
    return {"counts": numbers, "prices": prices, "lengths": lengths, "sizes": sizes}


def _trips(sent: Sequence[int], link: tuple[int, int, int]) -> Array:
    times = [trip_ns(count, link) for count in sent]
    return np.array([0, *times, 0], dtype=np.int64)


def _joined(problem: Problem) -> Array:
    joined = np.zeros(len(problem.chain.layers) + 1, dtype=np.int64)
    for group in problem.chain.same_gpu:
        joined[group[0] + 1 : group[-1] + 1] = 1
    return joined


def _sums(values: Iterable[int]) -> Array:
    return np.concatenate([[0], np.cumsum(np.array([*values], dtype=np.int64))])
