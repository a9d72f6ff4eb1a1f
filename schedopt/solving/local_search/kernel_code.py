"""Code of functions that compiled ones alone call: these optimize it, and make machine code of it.

numba optimizes a function with all that it calls as one module, and makes machine code of that. A
kernel would be optimized anew in each function above it, and machine code be made of it that nobody
runs: two fifths of the time to compile a search.
"""

from __future__ import annotations

from typing import Any, Final, cast

from numba.core import compiler, compiler_machinery, typed_passes
from numba.core.codegen import JITCodeLibrary

_machinery: Final[Any] = compiler_machinery
_Code: Final[Any] = JITCodeLibrary
_Compiler: Final[Any] = compiler.CompilerBase
_Lowering: Final[Any] = typed_passes.NativeLowering

_NEEDLESS: Final = {
    "WithLifting",
    "InlineClosureLikes",
    "RewriteSemanticConstants",
    "DeadBranchPrune",
    "RewriteDynamicRaises",
    "MakeFunctionToJitFunction",
    "FindLiterallyCalls",
    "LiteralUnroll",
    "LiteralPropagationSubPipelinePass",
    "InlineOverloads",
    "NopythonRewrites",
}
"""Passes of numba for what no kernel has: contexts, closures, literals, numpy's whole arrays.

Each looks at every statement of a function, and then numba at what is alive where.
"""


class _KernelCode(_Code):
    """A kernel and those that it calls, linked and no more. It is asked what numba's own is."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return that there is no machine code."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> _KernelCode:
        """Return what is told the environment of a function: this."""
        return self

    def set_env(self, name: str, env: object) -> None:
        """Note no environment: only what calls Python needs one."""


@_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(_Lowering):
    _name = "schedopt_kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _KernelCode(state.targetctx.codegen(), state.func_id.func_qualname)
        return cast(bool, super().run_pass(state))


class KernelCompiler(_Compiler):
    """numba's compiler, but for how code is kept."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's passes but for some, with one of ours for that which makes code."""
        builder = cast(Any, compiler).DefaultPassBuilder
        passes = builder.define_nopython_pipeline(self.state)
        passes.passes = [
            (_KernelLowering if each is _Lowering else each, why)
            for each, why in passes.passes
            if each.__name__ not in _NEEDLESS
        ]
        passes.finalize()
        return [passes]
