"""Provably good allocations and periodic schedules for pipelined training.

The five nouns: `Chain` and `Platform` make a `Problem`; `solve` answers with a `Result`, which
holds a `Plan`; `check` says whether a plan is valid; `compare` puts the systems that people train
with next to it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "Bound",
    "Chain",
    "Collective",
    "Comparison",
    "Gpu",
    "Infeasibility",
    "InputError",
    "InvalidPlanError",
    "Layer",
    "Link",
    "Network",
    "Node",
    "NodeLink",
    "Note",
    "Operation",
    "Outcome",
    "Pattern",
    "PhaseResult",
    "Plan",
    "Platform",
    "Problem",
    "Profile",
    "Proof",
    "ProofKind",
    "Recipe",
    "Result",
    "Rule",
    "Rung",
    "SchedoptError",
    "Scope",
    "SizeResult",
    "Stage",
    "Suggestion",
    "Transfer",
    "Variant",
    "Violation",
    "__version__",
    "check",
    "compare",
    "solve",
]

# Each name is loaded when it is first used, so that the command line can end quietly on a signal
# from the first moment on.
if TYPE_CHECKING:
    from schedopt.chain import Chain, Layer
    from schedopt.checking import Violation, check
    from schedopt.comparing.builder import compare
    from schedopt.comparing.comparison import Comparison
    from schedopt.errors import InputError, InvalidPlanError, SchedoptError
    from schedopt.network import Link, Network, Node, NodeLink
    from schedopt.plan import Operation, Pattern, Plan
    from schedopt.platform import Gpu, Platform
    from schedopt.problem import Problem
    from schedopt.profile import Profile, Variant
    from schedopt.proofs import Note, Outcome, Proof, ProofKind, Suggestion
    from schedopt.recipe import Recipe
    from schedopt.result import Bound, Infeasibility, PhaseResult, Result, Rung, SizeResult
    from schedopt.rule import Rule
    from schedopt.scope import Scope
    from schedopt.solving import solve
    from schedopt.stage import Stage
    from schedopt.transfer import Collective, Transfer
    from schedopt.version import __version__
else:
    _HOMES = {
        "Chain": "schedopt.chain",
        "Layer": "schedopt.chain",
        "Recipe": "schedopt.recipe",
        "Violation": "schedopt.checking",
        "check": "schedopt.checking",
        "InputError": "schedopt.errors",
        "InvalidPlanError": "schedopt.errors",
        "SchedoptError": "schedopt.errors",
        "Link": "schedopt.network",
        "Network": "schedopt.network",
        "Node": "schedopt.network",
        "NodeLink": "schedopt.network",
        "Collective": "schedopt.transfer",
        "Operation": "schedopt.plan",
        "Pattern": "schedopt.plan",
        "Plan": "schedopt.plan",
        "Transfer": "schedopt.transfer",
        "Gpu": "schedopt.platform",
        "Platform": "schedopt.platform",
        "Problem": "schedopt.problem",
        "Scope": "schedopt.scope",
        "Profile": "schedopt.profile",
        "Note": "schedopt.proofs",
        "Outcome": "schedopt.proofs",
        "Proof": "schedopt.proofs",
        "ProofKind": "schedopt.proofs",
        "Suggestion": "schedopt.proofs",
        "Bound": "schedopt.result",
        "Infeasibility": "schedopt.result",
        "PhaseResult": "schedopt.result",
        "Result": "schedopt.result",
        "Rung": "schedopt.result",
        "SizeResult": "schedopt.result",
        "Rule": "schedopt.rule",
        "solve": "schedopt.solving",
        "Stage": "schedopt.stage",
        "Variant": "schedopt.profile",
        "Comparison": "schedopt.comparing.comparison",
        "compare": "schedopt.comparing.builder",
        "__version__": "schedopt.version",
    }

    def __getattr__(name: str) -> object:
        """Load a name when it is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        """Return what the package offers, loaded or not."""
        return sorted({*globals(), *__all__})
