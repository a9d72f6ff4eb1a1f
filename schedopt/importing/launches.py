"""What people run now, from the launch file of their engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from schedopt.errors import InputError
from schedopt.importing.launch_files.deepspeed_json import Pipeline, read_deepspeed
from schedopt.importing.launch_files.launch import Launch
from schedopt.importing.launch_files.megatron_args import read_megatron
from schedopt.importing.launch_files.steps import lay_out, say_assumed
from schedopt.importing.launch_files.titan_values import naming_arguments
from schedopt.importing.launch_files.torchtitan_toml import read_torchtitan
from schedopt.importing.reading import read_file
from schedopt.platform import Platform
from schedopt.profile import Profile
from schedopt.result import Result
from schedopt.validation import show

LaunchSource = Literal["megatron-args", "torchtitan-toml", "deepspeed-json"]
LAUNCH_SOURCES: Final[tuple[LaunchSource, ...]] = get_args(LaunchSource)


@dataclass(frozen=True)
class ImportedLaunch:
    """A step that is run now, as a plan; what the file says of it; and notes on what it left out.

    The status of the result is *unknown* where the plan does not fit into the memory.
    """

    result: Result
    launch: Launch
    notes: tuple[str, ...]


def import_launch(
    path: str | Path,
    source: LaunchSource,
    profile: Profile,
    platform: Platform,
    *,
    ignored: Collection[str] = (),
    pipeline: Pipeline | None = None,
    config: str | None = None,
    arguments: str = "",
) -> ImportedLaunch:
    """Turn a launch file into a plan, laid out as its engine runs it.

    Parameters
    ----------
    path : path
        *megatron-args*: arguments of Megatron-LM, in a script for bash, as a command line, a flag
        a line, or YAML. *torchtitan-toml*: its TOML, or the Python of ``schedopt export``.
        *deepspeed-json*: its JSON, or the Python of ``schedopt export``.
    source : {"megatron-args", "torchtitan-toml", "deepspeed-json"}
    profile : Profile
        Of the model: with the size of micro-batches and the tensor groups of the file.
    platform : Platform
        The GPUs that it runs on, all of them.
    ignored : collection of str
        Settings to leave out, since they change neither the step nor the memory of this chain.
    pipeline : Pipeline, optional
        Of DeepSpeed, what its configuration does not say.
    config : str, optional
        Of torchtitan in Python: the function that returns the configuration. Default: the only one.
    arguments : str
        Of torchtitan: what its command line adds (``--parallelism.tensor_parallel_degree 2``).

    Raises
    ------
    InputError
        Naming the file and the setting, for settings that contradict each other, that the engine
        or the chain do not allow, or that change the step or the memory in a way that a plan
        cannot; for degrees whose product is not the number of GPUs; and naming no file where the
        profile lacks something.
    """
    path, gpus = Path(path), len(platform.gpus)
    chain = next((one.chain for one in profile.variants if one.tensor == 1), None)
    if chain is None:
        chain = profile.variants[0].chain
    with _naming(path):
        if source not in LAUNCH_SOURCES:
            raise InputError(
                f"{show(source)} is not known",
                field="source",
                way_out=f"Choose {' or '.join(LAUNCH_SOURCES)}",
            )
        text = read_file(path)[0]
        if source == "megatron-args":
            launch = read_megatron(text, chain, gpus, path, ignored)
        elif source == "torchtitan-toml":
            with naming_arguments(arguments):
                launch = read_torchtitan(text, chain, gpus, path, ignored, config, arguments)
        else:
            launch = read_deepspeed(text, chain, gpus, path, ignored, pipeline)
        result = lay_out(launch, profile, platform)
    return ImportedLaunch(result, launch, (*launch.notes, *say_assumed(launch, platform)))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in errors about it: not in those about the chain, parameters or other files."""
    try:
        yield
    except InputError as error:
        others = (
            *("arguments", "chain", "ignore", "layers", "partition", "platform", "source"),
            "variants",
        )
        if error.source or error.field.startswith(others):
            raise
        raise error.in_file(str(path)) from None
