"""Data, tensor and pipeline parallelism under DeepSpeed, as Sailor's repository has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from schedopt.bench.published.prediction import Predicted, Prediction, Unpredicted, unknown
from schedopt.bench.published.steps import in_flight, one_f_one_b_ns
from schedopt.bench.published.tables import Line, Tables
from schedopt.errors import InputError

RUNS: Final = (
    "run site model stages dp layers_per_stage gpu_tp mbs microbatches step_ns "
    "reduce_gradients_ns max_memory_bytes clean flags"
)
PASSES: Final = ("forward_ns", "backward_ns", "update_ns")
"""Lists with a time for each layer."""
PROFILES: Final = " ".join(("model gpu mbs tp", *PASSES))
BYTES: Final = "model tp layer params_bytes act_output_bytes act_mem_bytes"
NETWORK: Final = "kind gpu gpus max_bytes_per_s"
TABLES: Final = ("sailor/runs", "sailor/profiles", "sailor/bytes", "sailor/network")
NEEDED: Final = "layers_per_stage gpu_tp mbs microbatches reduce_gradients_ns"
STATES: Final = 24
"""Bytes for a weight: with its gradient and Adam's moments in single precision, and two copies."""
WEIGHT: Final = 4
RESERVED: Final = 5_060_000_000
"""Bytes that every GPU needs besides, in the source's own formula."""


@dataclass(frozen=True)
class _Stage:
    """What one stage takes, ns and bytes."""

    forward: float
    backward: float
    update: float
    weights: int
    saved: int
    message: int
    rate: float


def predict_all(tables: Tables) -> Iterator[Prediction | Unpredicted]:
    """Yield the predictions of the package."""
    if lacking := tables.lacking(*TABLES):
        yield Unpredicted(row="every row", why=f"there is no table {', '.join(lacking)}")
        return
    inputs, runs = _Inputs(tables), tables.lines("sailor/runs", RUNS)
    mixed = {run["site"] for run in runs if _is_mixed(run)}
    for run in runs:
        why = unknown(run, NEEDED)
        try:
            stages = [] if why else inputs.stages(run)
        except InputError as error:
            why = str(error)
        if why:
            yield Unpredicted(row=run["run"], why=why)
        else:
            yield from _of_run(run, stages, mixed=run["site"] in mixed)


def _is_mixed(run: Line) -> bool:
    """Whether a run lists the GPUs of each replica, or has several kinds of them."""
    stages = run["gpu_tp"] or ()
    listed = any(isinstance(kinds[0], list) for kinds in stages)
    return listed or len({gpu for kinds in stages for gpu, _ in _groups(kinds)}) > 1


def _of_run(
    run: Line, stages: Sequence[_Stage], *, mixed: bool
) -> Iterator[Prediction | Unpredicted]:
    def step() -> Predicted:
        return Predicted(_step_ns(run, stages))

    def memory() -> Predicted:
        return Predicted(max(_memory_bytes(run, stages)))

    # The site that mixes several kinds of GPUs is MIT.
    cluster = " mit" if mixed else ""
    doubt = "" if run["clean"] else "; ".join(run["flags"] or ()) or "not clean"
    figures = (("a step", "step_ns", step), ("a memory", "max_memory_bytes", memory))
    for test, column, predict in figures:
        if run[column]:
            yield Prediction(
                test=test + cluster,
                row=run["run"],
                measured=run[column],
                predict=predict,
                doubt=doubt,
            )
    if not any(run[column] for _, column, _ in figures):
        yield Unpredicted(row=run["run"], why="nothing was measured")


def _groups(kinds: Any) -> list[tuple[str, int]]:
    """Return GPU and tensor degree of each replica of a stage, or of one where they are alike."""
    several = kinds if isinstance(kinds[0], list) else [kinds]
    return [(gpu, tensor) for gpu, tensor in several]


class _Inputs:
    """The tables that a step is predicted from."""

    def __init__(self, tables: Tables) -> None:
        self.profiles = {
            (line["model"], line["gpu"], line["mbs"], line["tp"]): line
            for line in tables.lines("sailor/profiles", PROFILES)
        }
        self.sizes = {
            (line["model"], line["tp"], line["layer"]): line
            for line in tables.lines("sailor/bytes", BYTES)
        }
        self.rates: dict[str, float] = {
            line["gpu"]: line["max_bytes_per_s"]
            for line in tables.lines("sailor/network", NETWORK)
            if line["kind"] == "homo-inter" and line["gpus"] == 1
        }

    def stages(self, run: Line) -> list[_Stage]:
        """Return the stages of a run. Its replicas may be of several kinds: the slowest counts.

        Raises
        ------
        InputError
            If its layers were not profiled on its GPUs, or their network was not measured.
        """
        if len(run["layers_per_stage"]) != len(run["gpu_tp"]):
            raise InputError("layers_per_stage and gpu_tp are not of as many stages")
        if not all(isinstance(layers, list) for layers in run["layers_per_stage"]):
            raise InputError("layers_per_stage does not list the layers of each stage")
        pairs = zip(run["layers_per_stage"], run["gpu_tp"], strict=True)
        found = [self._stage(run, layers, _groups(kinds)) for layers, kinds in pairs]
        if len(found) > 1 and not all(stage.rate for stage in found):
            raise InputError("the network of its GPUs was not measured")
        return found

    def _stage(self, run: Line, layers: list[int], groups: Sequence[tuple[str, int]]) -> _Stage:
        lines = []
        for gpu, tensor in groups:
            line = self.profiles.get((run["model"], gpu, run["mbs"], tensor))
            on = f"{run['model']} on {gpu} with {run['mbs']} samples and tensor degree {tensor}"
            if line is None or unknown(line, PROFILES):
                raise InputError(f"there is no profile of {on}")
            profiled = min(len(line[name]) for name in PASSES)
            if max(layers) >= profiled:
                raise InputError(
                    f"names layer {max(layers)}, and the profile of {on} has {profiled}"
                )
            lines.append(line)
        tensor = groups[0][1]
        sizes = [self.sizes.get((run["model"], tensor, layer)) for layer in layers]
        known = [line for line in sizes if line and not unknown(line, BYTES)]
        if len(known) < len(sizes):
            layer = next(layer for layer in layers if layer not in {one["layer"] for one in known})
            raise InputError(f"there are no bytes of layer {layer} of {run['model']}, tp {tensor}")

        def slowest(name: str) -> float:
            return float(max(sum(line[name][layer] for layer in layers) for line in lines))

        return _Stage(
            slowest("forward_ns"),
            slowest("backward_ns"),
            slowest("update_ns"),
            sum(line["params_bytes"] for line in known),
            run["mbs"] * sum(line["act_mem_bytes"] for line in known),
            run["mbs"] * known[-1]["act_output_bytes"],
            min(self.rates.get(gpu, 0.0) for gpu, _ in groups),
        )


def _step_ns(run: Line, stages: Sequence[_Stage]) -> float:
    """Return the step: DeepSpeed sends and receives each tensor by itself, and waits for it.

    So a message occupies the GPUs at both of its ends, ahead and back. Every GPU sends over its
    own network card.
    """
    messages = [
        stage.message / min(stage.rate, after.rate) * 1e9 for stage, after in pairwise(stages)
    ]
    around = [one + other for one, other in zip([0, *messages], [*messages, 0], strict=True)]
    forward = [stage.forward + time for stage, time in zip(stages, around, strict=True)]
    backward = [stage.backward + time for stage, time in zip(stages, around, strict=True)]
    passes = one_f_one_b_ns(forward, backward, run["microbatches"])
    # A message was counted at both of its ends where nothing else goes on.
    twice = 2 * sum(messages)
    update = max(stage.update for stage in stages)
    return float(passes - twice + run["reduce_gradients_ns"] + update)


def _memory_bytes(run: Line, stages: Sequence[_Stage]) -> Iterator[float]:
    """Yield the peak of a GPU of each stage."""
    for number, stage in enumerate(stages):
        held = in_flight(len(stages), number, run["microbatches"])
        yield STATES // WEIGHT * stage.weights + held * stage.saved + RESERVED
