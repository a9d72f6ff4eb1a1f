"""Saving and loading the state of a training, whatever plan it ran on and goes on with."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from schedopt.errors import InputError
from schedopt.profiling.error_format import format_error
from schedopt.torch.agreement import Agreement
from schedopt.torch.blocks import Block, BlockReader, BlockWriter
from schedopt.torch.weights import Weight, WholeState, local_part

_MODEL: Final = "model."
_STATE: Final = "optimizer.state."
_GROUPS: Final = "optimizer.groups"
_KIND: Final = "optimizer.kind"
_PLAIN: Final = (bool, int, float, str, type(None))


@dataclass(frozen=True, eq=False)
class Owned:
    """What a process has: of the whole state of the model its parameters and buffers."""

    parameters: Sequence[Weight]
    buffers: Sequence[Weight]
    whole: WholeState

    @property
    def all(self) -> list[Weight]:
        """Parameters, then buffers."""
        return [*self.parameters, *self.buffers]


def save_state(
    folder: str | PathLike[str],
    own: Owned,
    optimizer: torch.optim.Optimizer | None,
    agreement: Agreement,
) -> None:
    """Write model and optimizer to a folder, whole or not at all."""
    path = Path(folder)
    part = path.with_name(path.name + ".part")
    state: dict[str, Any] = {_MODEL + one.name: _block(one, one.tensor) for one in own.all}
    with agreement.together():
        if optimizer is not None:
            state |= _optimizer_state(own, optimizer)
    agreement.on_first(lambda: _make_room(path, part))
    with agreement.together():
        try:
            save(
                state,
                storage_writer=FileSystemWriter(part),
                planner=BlockWriter(),
                process_group=agreement.group,
            )
        except (OSError, CheckpointException) as failed:
            raise InputError(
                f"it cannot be written: {format_error(failed)}",
                field=str(path),
                way_out="Give a folder that all processes can write",
            ) from failed
    agreement.on_first(lambda: _take_place(path, part))


def load_state(
    folder: str | PathLike[str],
    own: Owned,
    optimizer: torch.optim.Optimizer | None,
    agreement: Agreement,
) -> None:
    """Read model and optimizer from a folder; nothing changes unless all of it can be read."""
    path = Path(folder)
    wanted: dict[str, Any] = {}
    with agreement.together():
        stored = _read_metadata(path)
        _check_model(path, stored, own.whole)
        wanted = {_MODEL + one.name: _room(one, one.tensor.dtype) for one in own.all}
        if optimizer is not None:
            wanted |= _wanted_of_optimizer(path, stored, own)
    with agreement.together():
        try:
            load(
                wanted,
                storage_reader=FileSystemReader(path),
                planner=BlockReader(),
                process_group=agreement.group,
            )
        except InputError:
            raise
        except (OSError, EOFError, RuntimeError, ValueError, CheckpointException) as failed:
            raise _unreadable(path, failed) from failed
        if optimizer is not None:
            _check_optimizer(path, wanted, optimizer)
    with torch.no_grad():
        for one in own.all:
            one.local.copy_(wanted[_MODEL + one.name].tensor)
    if optimizer is not None:
        _give_optimizer(wanted, own, optimizer)


def _block(weight: Weight, tensor: Tensor) -> Block:
    return Block(local_part(tensor), weight.shape, weight.offsets)


def _room(weight: Weight, dtype: torch.dtype) -> Block:
    return Block(torch.empty(weight.local.shape, dtype=dtype), weight.shape, weight.offsets)


def _optimizer_state(own: Owned, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer under the names of its parameters."""
    weights = {id(one.tensor): one for one in own.parameters}
    found: dict[str, Any] = {_KIND: type(optimizer).__name__}
    found[_GROUPS] = [
        {key: value for key, value in group.items() if _is_plain(value)}
        for group in optimizer.param_groups
    ]
    for parameter in _parameters(optimizer):
        if id(parameter) not in weights:
            raise InputError(
                "it has a parameter that this process has not",
                field="optimizer",
                way_out="Make it from pipe.parameters()",
            )
        weight = weights[id(parameter)]
        for key, value in optimizer.state.get(parameter, {}).items():
            name = f"{_STATE}{weight.name}.{key}"
            if not isinstance(value, Tensor):
                found[name] = value
            elif value.shape == parameter.shape:
                found[name] = _block(weight, value)
            elif value.numel() > 1 and weight.local.shape != weight.shape:
                raise InputError(
                    f"what it keeps of {weight.name} as {key} has another shape than the "
                    "parameter, of which this process has a part",
                    field="optimizer",
                    way_out="Take one whose state has the shape of the parameter, such as AdamW, "
                    "or save without it",
                )
            else:
                found[name] = Block.whole(value)
    return found


def _wanted_of_optimizer(path: Path, stored: Metadata, own: Owned) -> dict[str, Any]:
    """Return room for what a checkpoint has of the optimizer's parameters."""
    names = stored.state_dict_metadata
    if _KIND not in names:
        raise InputError(
            "no optimizer was saved with it",
            field=str(path),
            way_out="Load without one, pipe.load(folder)",
        )
    wanted: dict[str, Any] = {_KIND: None, _GROUPS: None}
    own_names = {one.name: one for one in own.parameters}
    for name, value in names.items():
        weight_name, _, key = name.removeprefix(_STATE).rpartition(".")
        if not name.startswith(_STATE) or not key or weight_name not in own_names:
            continue
        if not isinstance(value, TensorStorageMetadata):
            wanted[name] = None
            continue
        weight, dtype = own_names[weight_name], value.properties.dtype
        if value.size == weight.shape:
            wanted[name] = _room(weight, dtype)
        else:
            wanted[name] = Block.whole(torch.empty(value.size, dtype=dtype))
    return wanted


def _check_optimizer(
    path: Path, wanted: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> None:
    kind, groups = type(optimizer).__name__, len(optimizer.param_groups)
    if wanted[_KIND] != kind:
        raise InputError(
            f"it has the state of {wanted[_KIND]!s:.60}, and the optimizer is {kind}",
            field=str(path),
            way_out="Make the optimizer that was saved, or load without one",
        )
    if len(wanted[_GROUPS]) != groups:
        raise InputError(
            f"its optimizer has {len(wanted[_GROUPS])} groups of parameters, and this one {groups}",
            field=str(path),
            way_out="Make the same groups, or load without an optimizer",
        )


def _give_optimizer(
    wanted: Mapping[str, Any], own: Owned, optimizer: torch.optim.Optimizer
) -> None:
    numbers = {id(one): number for number, one in enumerate(_parameters(optimizer))}
    state: dict[int, dict[str, Any]] = {}
    for weight in own.parameters:
        prefix = f"{_STATE}{weight.name}."
        found = {
            name.removeprefix(prefix): value
            for name, value in wanted.items()
            if name.startswith(prefix) and "." not in name.removeprefix(prefix)
        }
        if found and id(weight.tensor) in numbers:
            state[numbers[id(weight.tensor)]] = {
                key: _as_state(weight, value) for key, value in found.items()
            }
    groups = []
    for group, hyperparameters in zip(optimizer.param_groups, wanted[_GROUPS], strict=True):
        others = {key: value for key, value in group.items() if key != "params"}
        indices = [numbers[id(one)] for one in group["params"]]
        groups.append({**others, **hyperparameters, "params": indices})
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _as_state(weight: Weight, value: Any) -> Any:
    if not isinstance(value, Block):
        return value
    if value.shape != weight.shape:
        return value.tensor
    made = torch.empty_like(weight.tensor, dtype=value.tensor.dtype, requires_grad=False)
    local_part(made).copy_(value.tensor)
    return made


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(isinstance(one, _PLAIN) for one in value)
    return isinstance(value, _PLAIN)


def _read_metadata(path: Path) -> Metadata:
    try:
        return FileSystemReader(path).read_metadata()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            "there is no checkpoint",
            field=str(path),
            way_out="Give the folder that pipe.save was given; all processes must see it",
        ) from None
    except (OSError, EOFError, AttributeError, pickle.UnpicklingError, ValueError) as failed:
        raise _unreadable(path, failed) from failed


def _unreadable(path: Path, failed: BaseException) -> InputError:
    return InputError(
        f"the checkpoint cannot be read: {format_error(failed)}",
        field=str(path),
        way_out="Load another one; this one is not whole",
    )


def _check_model(path: Path, stored: Metadata, whole: WholeState) -> None:
    """Refuse a checkpoint of another model."""
    found = {
        name.removeprefix(_MODEL): value
        for name, value in stored.state_dict_metadata.items()
        if name.startswith(_MODEL)
    }
    rule = ""
    missing = [name for name in whole.tensors if name not in found]
    unknown = [name for name in found if name not in whole.tensors and name not in whole.aliases]
    if missing:
        rule = f"it has no {missing[0]}"
    elif unknown:
        rule = f"it has {unknown[0]}, which this model has not"
    for name, (shape, dtype) in whole.tensors.items():
        value = found.get(name)
        if rule:
            break
        if not isinstance(value, TensorStorageMetadata):
            rule = f"{name} is no tensor there"
        elif (value.size, value.properties.dtype) != (shape, dtype):
            rule = (
                f"{name} is of shape {tuple(value.size)} and {value.properties.dtype}, and in this "
                f"model of {tuple(shape)} and {dtype}"
            )
    if rule:
        raise InputError(
            f"it is of another model: {rule}",
            field=str(path),
            way_out="Build the model that was saved, or give another folder",
        )


def _make_room(path: Path, part: Path) -> None:
    if path.exists() and not (path / ".metadata").exists():
        raise InputError(
            "it is there, and is no checkpoint",
            field=str(path),
            way_out="Give another folder",
        )
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"it cannot be made: {error.strerror or error}",
            field=str(path),
            way_out="Give a folder that can be written",
        ) from error


def _take_place(path: Path, part: Path) -> None:
    """Let a checkpoint that is whole take the place of the one before."""
    before = path.with_name(path.name + ".before")
    shutil.rmtree(before, ignore_errors=True)
    try:
        if path.exists():
            path.rename(before)
        part.rename(path)
    except OSError as error:
        if before.exists() and not path.exists():
            with suppress(OSError):
                before.rename(path)
        raise InputError(
            f"it cannot be replaced: {error.strerror or error}",
            field=str(path),
            way_out=f"The new checkpoint is whole, and lies in {part.name}: rename that folder",
        ) from error
    shutil.rmtree(before, ignore_errors=True)
