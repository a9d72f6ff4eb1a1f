"""numba's compiler with our options; what it makes is kept on disk.

What is kept belongs to one state of all sources of the rooms that are compiled: a function holds
the code of those that it calls, and only a change of its own file would be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Final, TypeVar, cast

import numba
from numba.core.options import DefaultOptions

import schedopt.solving.local_search.plain_numbers  # noqa: F401
from schedopt.errors import InputError
from schedopt.solving.local_search.compilation import code_folder
from schedopt.solving.local_search.kernel_code import KernelCompiler

F = TypeVar("F", bound=Callable[..., object])

if cast(Any, numba.config).DISABLE_JIT:
    raise InputError(
        "NUMBA_DISABLE_JIT has numba compile nothing, and the searches are compiled by it",
        way_out="Unset this variable",
    )

_UNCOUNTED: Final = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
"""Lets numba count no references.

It would note in an atomic instruction each time that an array is taken out of a tuple. States have
many, and the search spent most of its time there. Where numba does not know this setting, the
search is slower, but the same.
"""
_CALLED: Final = {
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
    "pipeline_class": KernelCompiler,
    **_UNCOUNTED,
}
"""Of what Python does not call. What a caller says of itself would hold for it too: see each."""
_SETTING: Final = Lock()
"""Held while numba's folder is ours: threads import modules side by side."""


def njit_kernel(function: F) -> F:
    """Compile a function when it is first called by a compiled one.

    It counts no references, so it cannot make an array, which numba refuses. Python cannot call it,
    and need not: entering it would be a fifth of what there is to compile. It is kept with the
    entry that calls it.
    """
    return _compile(function, forceinline=False, **_CALLED)


def njit_inline(function: F) -> F:
    """Let a function be part of those that call it, once it is compiled.

    So callers need not pass what it is given.
    """
    return _compile(function, forceinline=True, **_CALLED)


def njit_paste(function: F) -> F:
    """Let a function be part of those that call it, before they are compiled.

    What it calls is then compiled and optimized for them alone. It should be short: numba takes
    long to paste what is not.
    """
    return _compile(function, inline="always", **_CALLED)


def njit_entry(function: F) -> F:
    """Compile a function by which Python enters others, with references counted; it is kept.

    It runs next to others (no interpreter lock).
    """
    options = {"forceinline": False, "no_cfunc_wrapper": True}
    try:
        return _compile(function, cache=True, **options)
    except RuntimeError:
        # There is no folder that can be written.
        return _compile(function, **options)


def _without_literals(find: Callable[..., Any], args: tuple[Any, ...], named: Any) -> Any:
    """Let a call with a number written out be compiled as one with any number."""
    unliteral = cast(Any, numba.types).unliteral
    return find(tuple(unliteral(arg) for arg in args), named)


def _compile(function: F, **options: Any) -> F:
    settings, njit = cast(Any, numba.config), cast(Any, numba.njit)
    with _SETTING:
        before = settings.CACHE_DIR
        settings.CACHE_DIR = str(code_folder(before))
        try:
            compiled = njit(nogil=True, error_model="numpy", **options)(function)
        finally:
            settings.CACHE_DIR = before
    if not options.get("inline"):
        compiled.get_call_template = partial(_without_literals, compiled.get_call_template)
    return cast(F, compiled)
