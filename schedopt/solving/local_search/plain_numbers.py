"""`max`, `min` and `int` of plain numbers in compiled code: a comparison, or a conversion.

numba makes a function of each, by types and by how its caller is compiled, and machine code of it:
a tenth of the time to compile a search. What they return is the same.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numba.extending
from numba.core.typing import templates

types: Final[Any] = numba.types
extending: Final[Any] = numba.extending
_Template: Final[Any] = templates.AbstractTemplate
_PLAIN: Final = (types.int64, types.float64)


class _Plain(_Template):
    """As that of a processor it is asked before what numba knows of any machine."""

    metadata: Final = {"target": "cpu"}


class _Choice(_Plain):
    def generic(self, args: Any, kws: Any) -> Any:
        alike = len(args) == 2 and args[0] == args[1] and args[0] in _PLAIN
        return templates.signature(args[0], *args) if alike and not kws else None


@templates.infer_global(max)
class _Max(_Choice):
    pass


@templates.infer_global(min)
class _Min(_Choice):
    pass


@templates.infer_global(int)
class _Int(_Plain):
    def generic(self, args: Any, kws: Any) -> Any:
        plain = len(args) == 1 and args[0] in _PLAIN
        return templates.signature(types.int64, *args) if plain and not kws else None


def _choose(compare: str) -> Any:
    """Return what takes the second number where it compares so with the first one."""

    def lower(_context: Any, builder: Any, signature: Any, values: Any) -> Any:
        first, second = values
        whole = signature.return_type == types.int64
        is_better = (builder.icmp_signed if whole else builder.fcmp_ordered)(compare, second, first)
        return builder.select(is_better, second, first)

    return lower


for _kind in _PLAIN:
    extending.lower_builtin(max, _kind, _kind)(_choose(">"))
    extending.lower_builtin(min, _kind, _kind)(_choose("<"))


@extending.lower_builtin(int, types.int64)
@extending.lower_builtin(int, types.float64)
def _convert(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    return context.cast(builder, values[0], signature.args[0], types.int64)
