"""Every proof that a bound may have is told in plain words."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Scope, solve
from schedopt.reporting.proofs import explain_proof
from tests.budgets import trials
from tests.strategies import chains, platforms

SOLVERS = Path(__file__).parents[2] / "solvers"


def constants() -> list[str]:
    """Return what solvers call PROOF, and the like."""
    found = []
    for path in SOLVERS.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                named = ast.unparse(target).startswith(("PROOF", "WAY", "LOAD"))
                if named and isinstance(node.value, ast.Constant):
                    found.append(str(node.value.value))
    return found


@pytest.mark.parametrize("proof", constants())
def test_the_proofs_of_solvers(proof: str) -> None:
    assert explain_proof(proof)


def test_there_are_proofs() -> None:
    assert len(constants()) >= 8


@given(data=st.data())
@trials(40)
def test_the_proofs_of_bounds_without_a_search(data: st.DataObject) -> None:
    result = solve(
        data.draw(chains()), data.draw(platforms()), scope=Scope(), solver="even_split", workers=1
    )
    for bound in result.bounds:
        assert explain_proof(bound.proof), bound.proof


def test_what_other_packages_prove_is_not_explained() -> None:
    assert explain_proof("an oracle") == ""
