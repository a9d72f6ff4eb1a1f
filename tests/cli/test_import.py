from __future__ import annotations

import json
from pathlib import Path

import pytest

from schedopt import Chain
from tests.cli.commands import printed, run
from tests.importing.files import DNN, FILES, PIPEDREAM


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "small.graph.txt"
    path.write_text(PIPEDREAM)
    return path


def test_import_prints_what_a_reader_looks_for(tmp_path: Path, profile: Path) -> None:
    chain = tmp_path / "my chain.json"
    shown = printed("import", profile, "--from", "pipedream", "-o", chain)
    assert shown.splitlines() == [
        "Chain     small: 5 layers, forward 6.250 ms, backward 9.251 ms for one micro-batch",
        "Sizes     parameters 327 B, weights 1.31 KB (4 copies)",
        "          saved 2.90 KB for each micro-batch, input 100 B, largest output of a layer "
        "1.00 KB",
        "Note      The graph is a chain: exactly one tensor crosses each of 4 cuts.",
        "Note      Dropped, being inputs from the loader: node1. What is read of them is the input "
        "of the chain.",
        "Note      Without a time, so part of the layer that feeds them: node5, node7.",
        f"Chain written to {chain}",
        f"Solve     schedopt solve --chain '{chain}' --gpus 4 --mem 16G",
    ]
    assert run("solve", "--chain", chain, "--gpus", "4", "--mem", "16G").returncode == 0


@pytest.mark.parametrize("source", FILES)
def test_json_is_one_document(tmp_path: Path, source: str) -> None:
    (tmp_path / "profile").write_text(FILES[source])
    chain = tmp_path / "chain.json"
    done = run("import", tmp_path / "profile", "--from", source, "-o", chain, "--json")
    assert done.stderr == ""
    document = json.loads(done.stdout)
    written = Chain.load(chain)
    assert document["chain_sha256"] == written.sha256
    assert document["layers"] == len(written.layers)
    assert document["provenance"] == written.provenance
    assert document["saved_bytes"] == sum(layer.saved for layer in written.layers)
    assert document["notes"]
    assert {"name", "forward_ns", "backward_ns", "parameter_bytes", "weight_bytes"} <= set(document)


def test_options_reach_the_chain(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text(DNN)
    chain = tmp_path / "chain.json"
    options = ("--cuts", "articulation", "--copies", "2", "--name", "mine")
    done = run("import", tmp_path / "profile", "--from", "dnn-partitioning", *options, "-o", chain)
    assert done.returncode == 0
    assert "were merged to 2" in done.stdout
    written = Chain.load(chain)
    assert (written.name, len(written.layers)) == ("mine", 2)
    assert written.provenance["weight_copies"] == 2
