"""Exporting: a plan in the words of the tools that people train and look with.

A target is a module with ``export(plan, microbatches)``, which returns the texts of its files by
name, and a line in `schedopt.exporting.targets.TARGETS`.
"""

from __future__ import annotations

from schedopt.exporting.targets import TARGETS, Target, find_target, refused

__all__ = ["TARGETS", "Target", "find_target", "refused"]
