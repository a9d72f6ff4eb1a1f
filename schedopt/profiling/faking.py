"""Running a model without its memory and without its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# The kernels of the CPU, which torch's own count leaves out.
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class FlopClock(TorchDispatchMode):
    """Tells how long floating-point operations take at a rate.

    Those of matrix products, convolutions and attention, forward and backward, are counted while
    it is entered.

    Parameters
    ----------
    rate : int
        Operations a second.
    bytes_rate : int, optional
        Bytes a second. An operator takes at least as long as its tensors take to be read and
        written. Default: no time at all.
    """

    def __init__(self, rate: int, bytes_rate: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rate = rate
        self._bytes_rate = bytes_rate
        self._time_ns = Fraction(0)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator and count what it computes."""
        given = kwargs or {}
        result = func(*args, **given)
        time = Fraction(_count_flops(func, args, given, result) * 10**9, self._rate)
        if self._bytes_rate is not None:
            moved = sum(
                tensor.numel() * tensor.element_size()
                for tensor in tree_leaves((args, given, result))
                if isinstance(tensor, Tensor)
            )
            time = max(time, Fraction(moved * 10**9, self._bytes_rate))
        self._time_ns += time
        return result

    def mark(self) -> Fraction:
        """Return the time so far, ns."""
        return self._time_ns

    def settle(self) -> None:
        """Do nothing."""

    def between(self, start: Fraction, end: Fraction) -> int:
        """Return the time between two marks, ns."""
        return round(end - start)


def _count_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    name = func._overloadpacket
    if name in flop_registry:
        return int(flop_registry[name](*args, **kwargs, out_val=result))
    if name is _ATTENTION:
        query, key, value = (tensor.shape for tensor in args[:3])
        return _pairs(query, key) * int(query[-1] + value[-1])
    if name is _ATTENTION_BACKWARD:
        _, query, key, value = (tensor.shape for tensor in args[:4])
        # The scores again, and the gradients of query and key; those of scores and value.
        return _pairs(query, key) * int(3 * query[-1] + 2 * value[-1])
    return 0


def _pairs(query: torch.Size, key: torch.Size) -> int:
    """Return twice the pairs of a query and a key over all samples and heads of the query."""
    samples, heads, length, _ = query
    return 2 * samples * heads * length * key[-2]


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
