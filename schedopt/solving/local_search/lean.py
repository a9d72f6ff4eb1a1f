"""Arrays of compiled code as a place and a shape, in tuples that are passed as one pointer.

numba hands on an owner, a number of items and strides with each array, copies a tuple of arrays for
each call, and looks at each index for whether it counts from the end. Most of the time to compile
went into that, and a quarter of the time to search. What is made lean lies in memory once: places
and shapes of the arrays of a named tuple, and its numbers. Compiled code gets a pointer to it.
Nobody writes there again, so what was read from it need not be read a second time.

Compiled functions read and write lean arrays and tuples as they would others, but arrays lie in
rows (C order), an index is a whole number from 0 on for each axis that nobody checks, and a field
is read by its name. A lean generator of random numbers is asked for `random()` alone, and draws the
numbers that it would draw in Python.
"""

from __future__ import annotations

import ctypes
import operator
from itertools import chain
from typing import Any, Final, TypeVar, cast

import numba
import numba.extending
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils
from numba.core.imputils import lower_getattr, lower_getattr_generic
from numba.core.typing import templates

T = TypeVar("T")
types: Final[Any] = numba.types
extending: Final[Any] = numba.extending
_AttributeTemplate: Final[Any] = templates.AttributeTemplate
_Template: Final[Any] = templates.AbstractTemplate
_WORD: Final[Any] = ir.IntType(64)


class LeanArray(types.Buffer):
    """Where the words of a place and a shape lie. A kind of buffer: numba's rules index it."""

    mutable = True
    slice_is_copy = False

    def __init__(self, dtype: Any, ndim: int) -> None:
        super().__init__(dtype, ndim, "C", name=f"LeanArray({dtype}, {ndim})")


class LeanTuple(types.Type):
    """Where the words of what a named tuple holds lie."""

    def __init__(self, names: tuple[str, ...], parts: tuple[Any, ...]) -> None:
        self.names, self.parts = names, parts
        fields = (f"{name}: {part}" for name, part in zip(names, parts, strict=True))
        super().__init__(f"LeanTuple({', '.join(fields)})")


class LeanDraw(types.Type):
    """Where the words of what draws the next number lie: a function, and what it is called with."""

    def __init__(self) -> None:
        super().__init__("LeanDraw")


class Lean:
    """What Python hands to compiled code for a named tuple or a generator, and keeps alive.

    Attributes
    ----------
    _numba_type_ : LeanTuple or LeanDraw
        Its type, where numba looks for it without a call of Python.
    address : int
        Of a word of eight bytes for each number, for where each array begins, and for each axis.
    """

    def __init__(self, value: Any) -> None:
        layout, words = _read(value)
        if layout not in _KINDS:
            _KINDS[layout] = _kind_of(cast(Any, numba).typeof(value))
        self._numba_type_ = _KINDS[layout]
        self._value, self._words = value, np.array(words, dtype=np.int64)
        self.address = _address_of(self._words)


def lean(value: T) -> T:
    """Return a named tuple of arrays and numbers, or a generator, as compiled functions take it.

    Arrays are shared; numbers are those of now. To type checkers it is what it was.
    """
    return cast(T, Lean(cast(Any, value)))


def _kind_of(kind: Any) -> Any:
    if isinstance(kind, types.Array):
        if kind.layout != "C":
            raise TypeError(f"{kind} does not lie in rows")
        return LeanArray(kind.dtype, kind.ndim)
    if isinstance(kind, types.BaseNamedTuple):
        return LeanTuple(kind.fields, tuple(map(_kind_of, kind.types)))
    return kind


_KINDS: Final[dict[Any, LeanTuple | LeanDraw]] = {np.random.Generator: LeanDraw()}
"""By the layout of tuples. What numba says of each takes longer than most of what is called."""


def _read(value: Any) -> tuple[Any, list[int]]:
    """Return how something lies in memory, and its words."""
    if isinstance(value, tuple):
        layouts, words = zip(*map(_read, value), strict=True)
        return (type(value), layouts), [*chain.from_iterable(words)]
    if isinstance(value, np.ndarray):
        in_rows = bool(value.flags.c_contiguous)
        return (value.dtype, value.ndim, in_rows), [_address_of(value), *value.shape]
    if isinstance(value, np.random.Generator):
        source = value.bit_generator.ctypes
        draw = ctypes.cast(source.next_double, ctypes.c_void_p).value
        return type(value), [draw or 0, source.state_address]
    word = value if isinstance(value, int) else int(np.array(value).view(np.int64))
    return type(value), [word]


def _address_of(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


@extending.unbox(LeanTuple)
@extending.unbox(LeanDraw)
def _unbox(kind: Any, value: Any, c: Any) -> Any:
    address = c.pyapi.object_getattr_string(value, "address")
    word = c.pyapi.long_as_longlong(address)
    c.pyapi.decref(address)
    return extending.NativeValue(c.builder.inttoptr(word, c.context.get_value_type(kind)))


@extending.register_model(LeanTuple)
@extending.register_model(LeanArray)
@extending.register_model(LeanDraw)
class _Words(extending.models.PrimitiveModel):
    """One pointer whatever is there: LLVM reads its type wherever it is named."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _WORD.as_pointer())


@templates.infer_getattr
class _Fields(_AttributeTemplate):
    key = LeanTuple

    def generic_resolve(self, kind: LeanTuple, name: str) -> Any:
        return kind.parts[kind.names.index(name)] if name in kind.names else None


@templates.infer_getattr
class _Shape(_AttributeTemplate):
    key = LeanArray

    def resolve_shape(self, kind: LeanArray) -> Any:
        return types.UniTuple(types.intp, kind.ndim)


@lower_getattr_generic(LeanTuple)
def _read_field(context: Any, builder: Any, kind: LeanTuple, value: Any, name: str) -> Any:
    number = kind.names.index(name)
    part, word = kind.parts[number], sum(map(_count_words, kind.parts[:number]))
    if isinstance(part, LeanTuple | LeanArray):
        return _point(builder, value, word)
    return _load(builder, value, word, context.get_value_type(part))


@lower_getattr(LeanArray, "shape")
def _read_shape(_context: Any, builder: Any, kind: LeanArray, value: Any) -> Any:
    axes = [_load(builder, value, 1 + axis) for axis in range(kind.ndim)]
    return cgutils.pack_array(builder, axes)


class _Random(_Template):
    key = "LeanDraw.random"

    def generic(self, args: Any, kws: Any) -> Any:
        kind = cast(Any, self).this
        return None if args or kws else templates.signature(types.float64, recvr=kind)


@templates.infer_getattr
class _Methods(_AttributeTemplate):
    key = LeanDraw

    def resolve_random(self, kind: LeanDraw) -> Any:
        return types.BoundFunction(_Random, kind)


@extending.lower_builtin("LeanDraw.random", LeanDraw)
def _draw(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
    state = ir.IntType(8).as_pointer()
    function = ir.FunctionType(ir.DoubleType(), [state]).as_pointer()
    draw = _load(builder, values[0], 0, function)
    return builder.call(draw, [_load(builder, values[0], 1, state)])


def _count_words(kind: Any) -> int:
    if isinstance(kind, LeanTuple | types.BaseTuple):
        parts = kind.parts if isinstance(kind, LeanTuple) else kind.types
        return sum(map(_count_words, parts))
    return 1 + kind.ndim if isinstance(kind, LeanArray) else 1


def _point(builder: Any, value: Any, word: int) -> Any:
    return builder.gep(value, [_WORD(word)], inbounds=True) if word else value


def _load(builder: Any, value: Any, word: int, kind: Any = _WORD) -> Any:
    """Read what never changes."""
    place = _point(builder, value, word)
    found = builder.load(builder.bitcast(place, kind.as_pointer()))
    found.set_metadata("invariant.load", builder.module.add_metadata([]))
    return found


class _Item(_Template):
    """Type an item that is read or written.

    As that of a processor it is asked before all that numba knows how to index on any machine.
    """

    metadata: Final = {"target": "cpu"}

    def generic(self, args: Any, kws: Any) -> Any:
        array, index, *values = args
        axes = [*index] if isinstance(index, types.BaseTuple) else [index]
        whole = all(isinstance(axis, types.Integer) for axis in axes)
        if not (isinstance(array, LeanArray) and whole and len(axes) == array.ndim):
            return None
        return templates.signature(types.none if values else array.dtype, *args)


@templates.infer_global(operator.getitem)
class _ItemRead(_Item):
    pass


@templates.infer_global(operator.setitem)
class _ItemWritten(_Item):
    pass


@extending.lower_builtin(operator.getitem, LeanArray, types.Integer)
@extending.lower_builtin(operator.getitem, LeanArray, types.BaseTuple)
def _read_item(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    return builder.load(_point_to(context, builder, signature.args, values))


@extending.lower_builtin(operator.setitem, LeanArray, types.Integer, types.Any)
@extending.lower_builtin(operator.setitem, LeanArray, types.BaseTuple, types.Any)
def _write_item(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    array, _, kind = signature.args
    value = context.cast(builder, values[2], kind, array.dtype)
    builder.store(value, _point_to(context, builder, signature.args, values))
    return context.get_dummy_value()


def _point_to(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Return the place of an item."""
    array, index = values[:2]
    axes = [(kinds[1], index)]
    if isinstance(kinds[1], types.BaseTuple):
        axes = [(kind, builder.extract_value(index, axis)) for axis, kind in enumerate(kinds[1])]
    place = None
    for axis, (kind, value) in enumerate(axes):
        here = context.cast(builder, value, kind, types.intp)
        if place is not None:
            length = _load(builder, array, 1 + axis)
            here = builder.add(builder.mul(place, length, flags=["nsw"]), here, flags=["nsw"])
        place = here
    items = _load(builder, array, 0, context.get_data_type(kinds[0].dtype).as_pointer())
    return builder.gep(items, [place], inbounds=True)
