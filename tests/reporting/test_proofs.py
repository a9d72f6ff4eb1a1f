"""Every kind of proof is told in plain words, however a file says it."""

from __future__ import annotations

import pytest

from schedopt.proofs import Proof, ProofKind
from schedopt.reporting.proofs import explain_proof
from tests.test_proofs import example


@pytest.mark.parametrize("kind", ProofKind)
def test_each_kind_is_explained(kind: ProofKind) -> None:
    assert explain_proof(example(kind)).endswith(".")


@pytest.mark.parametrize("kind", [kind for kind in ProofKind if "{basis}" not in kind.words])
def test_the_words_of_an_older_file_are_explained_alike(kind: ProofKind) -> None:
    proof = example(kind)
    if kind not in (ProofKind.LAYER_TOO_LARGE, ProofKind.LAYERS_TOO_LARGE):
        # These two, of which no bound speaks, name sizes with their units.
        assert explain_proof(str(proof)) == explain_proof(proof) or "Megatron" in str(proof)


def test_words_are_explained_as_a_whole_only() -> None:
    words = str(Proof(ProofKind.CONTIGUOUS_DP))
    assert explain_proof(words)
    assert explain_proof(f"{words}, as I think") == ""


def test_what_other_packages_prove_is_not_explained() -> None:
    assert explain_proof("an oracle") == ""
