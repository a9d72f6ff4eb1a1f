"""The independent check of a plan: everything is derived again from the plan alone.

It shares no code with `schedopt.account`, so that each can be held against the other.

Examples
--------
>>> from schedopt.checking import check
>>> check(plan)  # doctest: +SKIP
()
"""

from schedopt.checking.checks import check
from schedopt.checking.violations import Violation

__all__ = ["Violation", "check"]
