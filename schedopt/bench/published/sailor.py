"""Data, tensor and pipeline parallelism under DeepSpeed, as Sailor's repository has it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from schedopt.bench.published.prediction import Predicted, Prediction
from schedopt.bench.published.steps import in_flight, one_f_one_b_ns
from schedopt.bench.published.tables import Line, Tables

RUNS: Final = (
    "run site model stages dp layers_per_stage gpu_tp mbs microbatches step_ns "
    "reduce_gradients_ns max_memory_bytes clean flags"
)
PROFILES: Final = "model gpu mbs tp forward_ns backward_ns update_ns"
BYTES: Final = "model tp layer params_bytes act_output_bytes act_mem_bytes"
NETWORK: Final = "kind gpu gpus max_bytes_per_s"
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


def predict_all(tables: Tables) -> Iterator[Prediction]:
    """Yield the predictions of the package."""
    names = ("sailor/runs", "sailor/profiles", "sailor/bytes", "sailor/network")
    if not tables.has(*names):
        return
    profiles = {
        (line["model"], line["gpu"], line["mbs"], line["tp"]): line
        for line in tables.lines("sailor/profiles", PROFILES)
    }
    sizes = {
        (line["model"], line["tp"], line["layer"]): line
        for line in tables.lines("sailor/bytes", BYTES)
    }
    rates = {
        line["gpu"]: line["max_bytes_per_s"]
        for line in tables.lines("sailor/network", NETWORK)
        if line["kind"] == "homo-inter" and line["gpus"] == 1
    }
    for run in tables.lines("sailor/runs", RUNS):
        stages = _read_stages(run, profiles, sizes, rates)
        if stages is None:
            continue

        def step(run: Line = run, stages: list[_Stage] = stages) -> Predicted:
            return Predicted(_step_ns(run, stages))

        def memory(run: Line = run, stages: list[_Stage] = stages) -> Predicted:
            return Predicted(max(_memory_bytes(run, stages)))

        # The first site has the plain names: its network is the measured one.
        site = "" if run["site"] == "clariden" else f" {run['site']}"
        doubt = "" if run["clean"] else "; ".join(run["flags"]) or "not clean"
        figures = (("a step", "step_ns", step), ("a memory", "max_memory_bytes", memory))
        for test, column, predict in figures:
            if run[column]:
                yield Prediction(
                    test=test + site,
                    row=run["run"],
                    measured=run[column],
                    predict=predict,
                    doubt=doubt,
                )


def _read_stages(
    run: Line,
    profiles: Mapping[tuple[str, str, int, int], Line],
    sizes: Mapping[tuple[str, int, int], Line],
    rates: Mapping[str, float],
) -> list[_Stage] | None:
    """Return the stages of a run; None where its layers were not profiled on its GPUs.

    Replicas of a stage may be of several kinds, and the slowest counts.
    """
    stages = []
    for layers, kinds in zip(run["layers_per_stage"], run["gpu_tp"], strict=True):
        groups = kinds if isinstance(kinds[0], list) else [kinds]
        found = [profiles.get((run["model"], gpu, run["mbs"], tp)) for gpu, tp in groups]
        bytes_of = [sizes.get((run["model"], groups[0][1], layer)) for layer in layers]
        if any(
            profile is None or max(layers) >= len(profile["forward_ns"]) for profile in found
        ) or any(line is None for line in bytes_of):
            return None
        profiled = [line for line in found if line]
        known = [line for line in bytes_of if line]

        def slowest(name: str, layers: list[int] = layers, all_of: list[Line] = profiled) -> float:
            return float(max(sum(line[name][layer] for layer in layers) for line in all_of))

        stages.append(
            _Stage(
                slowest("forward_ns"),
                slowest("backward_ns"),
                slowest("update_ns"),
                sum(line["params_bytes"] for line in known),
                run["mbs"] * sum(line["act_mem_bytes"] for line in known),
                run["mbs"] * known[-1]["act_output_bytes"],
                min(rates.get(gpu, math.inf) for gpu, _ in groups),
            )
        )
    return stages


def _step_ns(run: Line, stages: list[_Stage]) -> float:
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


def _memory_bytes(run: Line, stages: list[_Stage]) -> Iterator[float]:
    """Yield the peak of a GPU of each stage."""
    for number, stage in enumerate(stages):
        held = in_flight(len(stages), number, run["microbatches"])
        yield STATES // WEIGHT * stage.weights + held * stage.saved + RESERVED
