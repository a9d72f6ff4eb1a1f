"""Instances by rule: those of the theorems, uniform chains, random chains.

Each is a chain with the platform that it is for and with what is known about it.
"""

from __future__ import annotations

from schedopt.families.instance import Fact, Instance
from schedopt.families.synthetic import random_chain, uniform_chain
from schedopt.families.theorems import lemma_2, section_6_1, theorem_4, theorem_5, theorem_6

__all__ = [
    "Fact",
    "Instance",
    "lemma_2",
    "random_chain",
    "section_6_1",
    "theorem_4",
    "theorem_5",
    "theorem_6",
    "uniform_chain",
]
