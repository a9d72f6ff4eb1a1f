"""Running a model without its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def without_memory() -> Iterator[FakeTensorMode]:
    """Make, move and run tensors that have a shape and a type, but no values."""

    def untouched(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        return tensor

    with (
        FakeTensorMode() as mode,
        # This initialisation looks at values, which are not there.
        mock.patch("torch.nn.init._no_grad_trunc_normal_", untouched),
        # torch changes a parameter in place where a module is moved, which these do not allow.
        mock.patch.object(nn.Module, "_apply", _with_new_parameters()),
    ):
        yield mode


def _with_new_parameters() -> Callable[..., nn.Module]:
    """Return what moves a module by giving it new parameters; what was shared stays shared."""
    made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    def apply(
        module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> nn.Module:
        for child in module.children() if recurse else ():
            child._apply(change)  # type: ignore[no-untyped-call]
        for name, old in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(old) not in made:
                new = nn.Parameter(change(old.detach()), old.requires_grad)
                # The old one is kept, so that its identity is not given to another.
                made[id(old)] = (old, new)
            module._parameters[name] = made[id(old)][1]
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            module._buffers[name] = change(buffer)
        return module

    return apply


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor has no values."""
    return isinstance(tensor, torch._subclasses.FakeTensor) or isinstance(
        tensor.data, torch._subclasses.FakeTensor
    )
