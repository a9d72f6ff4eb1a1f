"""What operators take at given rates: floating-point operations, bytes, and links of a group."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from schedopt.errors import InputError
from schedopt.profiling.group_operators import COLLECTIVES
from schedopt.profiling.rates import Roofline, find_rates

if TYPE_CHECKING:
    from schedopt.profiling.model import Model

_RATES: Final[dict[str, Literal["half", "single"]]] = {
    "torch.float32": "single",
    "torch.float16": "half",
    "torch.bfloat16": "half",
}
_LOOKUPS: Final = tuple(
    getattr(torch.ops.aten, name) for name in ("embedding", "gather", "index", "index_select")
)
"""What reads as much as it returns, whatever it reads from."""
# The kernels of the CPU, which torch's own count leaves out.
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def roofline_of(gpu: str, model: Model) -> Roofline:
    """Return the rates at which a kind of GPU runs a model, in the dtype of its parameters.

    Raises
    ------
    InputError
        If the kind is not known, or it does not say how fast that dtype is.
    """
    half = find_rates(gpu, "half")
    dtypes = {parameter.dtype for parameter in model.module.parameters()}
    floating = sorted(str(dtype) for dtype in dtypes if dtype.is_floating_point)
    rates = {_RATES.get(name) for name in floating}
    rate = rates.pop() if len(rates) == 1 else None
    if rate is None:
        names = " and ".join(name.removeprefix("torch.") for name in floating)
        raise InputError(
            f"how fast {gpu} computes {names or 'without parameters'} is not known",
            field="on",
            way_out="Choose another dtype (float32, bfloat16, float16), or give a rate (flops)",
        )
    return half if rate == "half" else find_rates(gpu, rate)


class FlopClock(TorchDispatchMode):
    """Tells how long operators take at the rates of a roofline.

    The operations of matrix products, convolutions and attention, forward and backward, are counted
    while it is entered.
    """

    def __init__(self, roofline: Roofline) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._roofline = roofline
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
        roofline = self._roofline
        if func._overloadpacket in COLLECTIVES:
            self._time_ns += roofline.all_reduce_ns(_bytes(result), args[1])
            return result
        computed = Fraction(_count_flops(func, args, given, result) * 10**9, roofline.flops)
        if roofline.bytes_per_s is not None:
            moved = _count_bytes(func, (args, given), result)
            computed = max(computed, roofline.moving_ns(moved))
        self._time_ns += computed
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


def _count_bytes(func: Any, given: Any, result: Any) -> int:
    """Return the bytes that an operator reads and writes: none where it makes no new tensor."""
    returns = func._schema.returns
    written = _bytes(result)
    if not written or all(each.alias_info and not each.alias_info.is_write for each in returns):
        return 0
    return 2 * written if func._overloadpacket in _LOOKUPS else _bytes(given) + written


def _bytes(values: Any) -> int:
    """Return the bytes of tensors; of one that repeats its elements, those in its memory."""
    return sum(
        min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
        for tensor in tree_leaves(values)
        if isinstance(tensor, Tensor)
    )
