"""Provably good allocations and periodic schedules for pipelined training.

The five nouns: `Chain` and `Platform` make a `Problem`; `solve` answers with a `Result`, which
holds a `Plan`; `check` says whether a plan is valid.
"""

from __future__ import annotations

from schedopt.chain import Chain, Layer, Recipe
from schedopt.checking import Violation, check
from schedopt.errors import InputError, InvalidPlanError, SchedoptError
from schedopt.plan import Operation, Pattern, Plan, Transfer
from schedopt.platform import Gpu, Link, Platform
from schedopt.problem import Problem, Scope
from schedopt.result import Bound, Infeasibility, Result, Rung
from schedopt.rule import Rule
from schedopt.solving import solve
from schedopt.stage import Stage
from schedopt.version import __version__

__all__ = [
    "Bound",
    "Chain",
    "Gpu",
    "Infeasibility",
    "InputError",
    "InvalidPlanError",
    "Layer",
    "Link",
    "Operation",
    "Pattern",
    "Plan",
    "Platform",
    "Problem",
    "Recipe",
    "Result",
    "Rule",
    "Rung",
    "SchedoptError",
    "Scope",
    "Stage",
    "Transfer",
    "Violation",
    "__version__",
    "check",
    "solve",
]
