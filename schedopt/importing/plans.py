"""Plans of others from published tables: Aceso's and Megatron-LM's, as plans of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path
from typing import Final

from schedopt.chain import MOST_LAYERS, Chain
from schedopt.checking import check
from schedopt.errors import InputError, naming_file
from schedopt.importing.profiles import operator_chains
from schedopt.importing.reading import Item
from schedopt.importing.tables import Line, chosen, read_table, whole
from schedopt.platform import Platform
from schedopt.profile import Profile, Variant
from schedopt.result import Result
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from schedopt.systems.flushes import one_f_one_b_order
from schedopt.version import __version__

_PLANS: Final = "plan set model layers mbs microbatches gpus stages"
_OPERATORS: Final = (
    "set model mbs tp algo op forward_ns backward_ns input_mib output_mib weights_mib "
    "activations_mib"
)
OPERATORS_TABLE: Final = "ops.json"


@dataclass(frozen=True)
class _Stage:
    """A stage as it stands in the table: operators, GPUs, and degrees."""

    place: str
    first: int
    last: int
    gpus: int
    tensor: int
    replicas: int
    recompute: tuple[tuple[int, int], ...]


def import_plan(
    path: str | Path,
    platform: Platform,
    *,
    plan: str | None = None,
    profile: str | Path | None = None,
) -> Result:
    """Turn a plan of a table into one of ours, laid out as a step of 1F1B.

    A layer of the chain is an operator. R replicas that share each micro-batch become R that take
    turns, with micro-batches of an R-th of the samples: they do the same work. Where stages have
    different numbers of replicas, those with fewer run several such micro-batches in turn.

    Parameters
    ----------
    path : path
        The table of plans.
    platform : Platform
        Stages take its GPUs in order.
    plan : str, optional
        Which one. Needed where the table has several.
    profile : path, optional
        The table of operators. Default: ``ops.json`` in the same folder.

    Raises
    ------
    InputError
        Naming the file, the line, the rule and the way out: also if the plan names operators that
        the profile lacks, or splits a stage in a way that stages of ours cannot have.
    """
    path = Path(path)
    lines = chosen(path, read_table(path, _PLANS), "plan", plan, "plan")
    with naming_file(path):
        if not lines:
            raise InputError("there are no plans", field="rows", way_out="Is the table complete?")
        line = lines[0]
        stages = [_read_stage(item) for item in line["stages"].entries()]
        _check_gpus(line, stages)
        replicas = _replicas(stages)
        samples = whole(line["mbs"], 1)
        if samples % replicas:
            raise InputError(
                f"{replicas} replicas cannot share {samples} samples",
                field=line["mbs"].path,
                way_out="Give a multiple",
            )
    table = path.with_name(OPERATORS_TABLE) if profile is None else Path(profile)
    with naming_file(path):
        measured = _profile(table, line, samples // replicas)
        with naming_file(table):
            chain, groups = measured.of_size(samples // replicas)
        made = [*_place(stages, chain, groups, platform)]
        count = replicas * whole(line["microbatches"], 1)
        config = SystemConfig(chain=chain, platform=platform, microbatches=count, variants=groups)
        found = flush_step(config, made, _order(len(made), replicas, count))
    found = replace(found, scope=replace(found.scope, memory="peak", tensor=None))
    fits = not check(found)
    return Result(
        problem=found.problem,
        status="feasible" if fits else "unknown",
        plan=found,
        solver="imported",
        version=__version__,
    )


def _check_gpus(line: Line, stages: Sequence[_Stage]) -> None:
    """Require the GPUs of all stages to be those of the plan."""
    every, taken = whole(line["gpus"], 1), sum(stage.gpus for stage in stages)
    if stages and taken != every:
        raise InputError(
            f"{every}, and the stages have {taken} GPUs",
            field=line["gpus"].path,
            way_out="Correct that, or the stages",
        )


def _profile(table: Path, line: Line, samples: int) -> Profile:
    """Return the operators of a plan with micro-batches of one size, in all tensor degrees."""
    kind, model, layers = (
        line["set"].text(),
        line["model"].text(),
        whole(line["layers"], 1, MOST_LAYERS),
    )
    with naming_file(table):
        lines = chosen(table, read_table(table, _OPERATORS), "set", kind, "set")
        lines = chosen(table, lines, "model", model, "model")
        chains = operator_chains([one for one in lines if whole(one["mbs"], 1) == samples], layers)
        if not chains:
            raise InputError(
                f"no micro-batches of {samples} samples of which all operators of {model} ran on "
                "one GPU",
                field="mbs",
                way_out="Import a plan of other micro-batches, or add them",
            )
        return Profile(
            name=f"{model} on {kind}",
            variants=tuple(
                Variant(tensor=tensor, chain=chain) for (tensor, _), chain in sorted(chains.items())
            ),
        )


def _read_stage(item: Item) -> _Stage:
    first, end = _two(item.get("ops"))
    lists = {name: _runs(item.get(name)) for name in ("tp", "dp", "recompute")}
    if end <= first or any(len(values) != end - first for values in lists.values()):
        raise InputError(
            f"the lists of a stage are not as long as its operators, {first} to {end}",
            field=item.path,
            way_out="Give each operator its degrees",
        )
    for name in ("tp", "dp"):
        if len(set(lists[name])) > 1:
            raise InputError(
                f"operators of one stage have degrees {sorted(set(lists[name]))}",
                field=item.get(name).path,
                way_out="Import a plan whose stages have one each",
            )
    stage = _Stage(
        place=item.path,
        first=first,
        last=end - 1,
        gpus=whole(item.get("gpus"), 1),
        tensor=lists["tp"][0],
        replicas=lists["dp"][0],
        recompute=tuple(_again(first, lists["recompute"])),
    )
    if stage.gpus != stage.tensor * stage.replicas:
        raise InputError(
            f"{stage.gpus} GPUs are not {stage.replicas} replicas of {stage.tensor}",
            field=item.path,
            way_out="Give as many GPUs as replicas times the tensor degree",
        )
    return stage


def _runs(item: Item) -> list[int]:
    """Return the values of a list of runs: a value and how often it comes."""
    values: list[int] = []
    for run in item.entries():
        value, count = _two(run)
        values += [value] * count
    return values


def _two(item: Item) -> tuple[int, int]:
    values = [whole(value) for value in item.entries()]
    if len(values) != 2:
        raise InputError(f"has {len(values)} values, not two", field=item.path, way_out="Give two")
    return values[0], values[1]


def _again(first: int, recomputed: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of operators that are computed again."""
    begin: int | None = None
    for number, again in enumerate((*recomputed, 0), first):
        if again and begin is None:
            begin = number
        if not again and begin is not None:
            yield begin, number - 1
            begin = None


def _replicas(stages: Sequence[_Stage]) -> int:
    """Return how many micro-batches of ours are one of theirs."""
    if not stages:
        raise InputError("there are no stages", field="stages", way_out="Is the table complete?")
    return lcm(*(stage.replicas for stage in stages))


def _place(
    stages: Sequence[_Stage], chain: Chain, groups: Sequence[Variant], platform: Platform
) -> Iterator[Stage]:
    """Yield the stages on GPUs in order."""
    free, behind = 0, 0
    degrees = {1, *(variant.tensor for variant in groups)}
    for stage in stages:
        if stage.first != behind or stage.last >= len(chain.layers):
            raise InputError(
                f"names operators {stage.first} to {stage.last}; the stage before ends at "
                f"{behind - 1}, and the profile has {len(chain.layers)}",
                field=stage.place,
                way_out="Give the profile of the model that the plan is for",
            )
        if stage.tensor not in degrees:
            raise InputError(
                f"the profile has no tensor degree {stage.tensor} for {chain.samples} samples",
                field=stage.place,
                way_out="Add it to the table of operators",
            )
        if free + stage.gpus > len(platform.gpus):
            raise InputError(
                f"takes GPUs {free} to {free + stage.gpus - 1}, and the platform has "
                f"{len(platform.gpus)}",
                field=stage.place,
                way_out="Give a larger platform",
            )
        yield Stage(
            layers=(stage.first, stage.last),
            gpus=tuple(range(free, free + stage.gpus, stage.tensor)),
            tensor=stage.tensor,
            recompute=stage.recompute,
        )
        free, behind = free + stage.gpus, stage.last + 1
    if behind != len(chain.layers):
        raise InputError(
            f"the stages end at operator {behind - 1}, and the profile has {len(chain.layers)}",
            field="stages",
            way_out="Give the profile of the model that the plan is for",
        )


def _order(stages: int, replicas: int, microbatches: int) -> Iterator[Turn]:
    """Yield what each replica runs in a step of 1F1B."""
    for kind, stage, turn in one_f_one_b_order(stages, microbatches // replicas):
        for replica in range(replicas):
            yield kind, stage, turn * replicas + replica
