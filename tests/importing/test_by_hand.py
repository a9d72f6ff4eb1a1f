"""Small files whose chains were worked out by hand."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, InputError, Layer, Platform, Scope, solve
from schedopt.checking import check
from schedopt.importing import SOURCES, Imported, import_chain
from tests.importing.files import FILES, PIPEDREAM, PIPER, dnn_document, half, piper_document


def write(folder: Path, text: str, name: str = "small.graph.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def imported(folder: Path, source: Any, text: str | None = None, **options: Any) -> Imported:
    return import_chain(write(folder, FILES[source] if text is None else text), source, **options)


def layer(name: str, times: tuple[int, int], parameters: int, output: int, *kept: int) -> Layer:
    saved, over = (*kept, 0)[:2]
    return Layer(
        name=name,
        forward_ns=times[0],
        backward_ns=times[1],
        weight_bytes=4 * parameters,
        activation_bytes=output,
        saved_bytes=saved,
        saved_input_bytes=over,
        parameter_bytes=parameters,
        gradient_bytes=parameters,
    )


def node(
    name: str,
    description: str = "Op",
    forward: float = 1,
    backward: float = 1,
    output: float = 1,
    parameters: float = 0,
) -> str:
    return (
        f"{name} -- {description} -- forward_compute_time={forward}, "
        f"backward_compute_time={backward}, activation_size={output}, "
        f"parameter_size={parameters}\n"
    )


def edges(text: str) -> str:
    """Return the lines of edges such as ``a-b``."""
    return "".join("\t{} -- {}\n".format(*edge.split("-")) for edge in text.split())


def test_pipedream(tmp_path: Path) -> None:
    chain = imported(tmp_path, "pipedream").chain
    assert chain.name == "small"
    assert chain.input_bytes == 100
    assert chain.layers == (
        layer("node2 Conv2d", (1_500_000, 2_000_500), 40, 1000, 1000),
        layer("node3 ReLU", (250_000, 750_000), 0, 1000, 0, 1000),
        # After it only the item of the tuple is live, which is a view of what is saved.
        layer("node4 LSTM", (3_000_000, 4_000_000), 200, 600, 650),
        # The sum has no time; it is a tensor of its own, and only that leaves the layer.
        layer("node6 Dropout", (500_000, 500_000), 7, 600, 1200),
        layer("node8 Linear", (1_000_000, 2_000_000), 80, 50, 50),
    )


def test_dnn_partitioning(tmp_path: Path) -> None:
    chain = imported(tmp_path, "dnn-partitioning").chain
    assert chain.input_bytes == 0
    assert chain.layers == (
        # The largest of its edges counts: an output of 100, so 200 of parameters.
        layer("a", (100_000, 300_000), 200, 100, 100),
        layer("b", (200_000, 400_000), 0, 120, 20),
        layer("c", (500_000, 500_000), 1, 50, 30),
        # No edge leaves it; the gradient that reaches it has 8 bytes.
        layer("d", (1_000_000, 2_000_000), 1000, 8, 8),
    )


def test_piper(tmp_path: Path) -> None:
    chain = imported(tmp_path, "piper").chain
    assert chain.input_bytes == 96
    assert chain.layers == (
        layer("1 Embedding", (297_000, 819_000), 500, 31, 70),
        layer("3 Block", (10_000_000, 20_000_000), 176, 16, 606),
        layer("4 Block", (10_000_000, 20_000_000), 190, 17, 637),
    )


def test_articulation_cuts_of_the_diamond(tmp_path: Path) -> None:
    result = imported(tmp_path, "dnn-partitioning", cuts="articulation")
    assert result.chain.layers == (
        layer("a", (100_000, 300_000), 200, 100, 100),
        layer("b to d", (1_700_000, 2_900_000), 1001, 8, 58),
    )
    assert "4 layers in topological order were merged to 2" in result.notes[0]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("cuts", ["order", "articulation"])
def test_an_imported_chain_can_be_saved_and_solved(tmp_path: Path, source: Any, cuts: Any) -> None:
    chain = imported(tmp_path, source, cuts=cuts).chain
    chain.save(tmp_path / "chain.json")
    assert Chain.load(tmp_path / "chain.json") == chain
    result = solve(chain, Platform(2, "1M", bandwidth="1GB/s"), scope=Scope())
    assert result.status == "optimal"
    assert check(result) == ()


def test_the_provenance_says_how(tmp_path: Path) -> None:
    result = imported(tmp_path, "pipedream")
    assert result.chain.provenance == {
        "format": "pipedream",
        "file": "small.graph.txt",
        "sha256": hashlib.sha256(PIPEDREAM.encode()).hexdigest(),
        "linearised": "order",
        "cuts": 4,
        "single_tensor_cuts": 4,
        "weight_copies": 4,
        "dropped": ["node1"],
        "absorbed": ["node5", "node7"],
    }
    document = imported(tmp_path, "dnn-partitioning").chain.provenance
    assert (document["cuts"], document["single_tensor_cuts"]) == (3, 1)


def test_a_long_list_of_names_is_counted(tmp_path: Path) -> None:
    document = piper_document()
    document["nodes"] += [
        piper_document()["nodes"][0] | {"id": number} for number in range(100, 130)
    ]
    result = imported(tmp_path, "piper", json.dumps(document))
    assert result.chain.provenance["dropped"] == 32
    assert "0, 2, 100, 101, 102 and 27 more" in "".join(result.notes)


def test_copies_make_the_weights(tmp_path: Path) -> None:
    once = imported(tmp_path, "pipedream", copies=1).chain.layers[0]
    twice = imported(tmp_path, "pipedream", copies=2).chain.layers[0]
    assert (once.weight_bytes, once.parameter_bytes, once.gradient_bytes) == (40, 40, None)
    assert (twice.weight_bytes, twice.parameter_bytes, twice.gradient_bytes) == (80, 40, 40)


def test_a_name_can_be_given(tmp_path: Path) -> None:
    assert imported(tmp_path, "piper", name="mine").chain.name == "mine"


@pytest.mark.parametrize(
    ("text", "saved"),
    [
        # A second reader of the convolution needs what it wrote.
        (PIPEDREAM + edges("node2-node8"), (1000, 0)),
        (PIPEDREAM.replace("(inplace)", "(inplace=False)"), (1000, 0)),
        (PIPEDREAM.replace("(inplace)", "(inplace=True)"), (0, 1000)),
    ],
)
def test_what_is_in_place_saves_its_output_where_it_cannot_share(
    tmp_path: Path, text: str, saved: tuple[int, int]
) -> None:
    second = imported(tmp_path, "pipedream", text).chain.layers[1]
    assert (second.saved_bytes, second.saved_input_bytes) == saved


def test_a_constant_without_a_time_joins_the_first_that_reads_it(tmp_path: Path) -> None:
    text = PIPEDREAM + node("node9", "hidden", 0, 0, 5, 3) + edges("node9-node6 node9-node8")
    layers = imported(tmp_path, "pipedream", text).chain.layers
    assert [entry.parameter_bytes for entry in layers] == [40, 0, 200, 10, 80]
    assert [entry.activation_bytes for entry in layers] == [1000, 1000, 600, 605, 50]
    assert layers[3].name == "node6 Dropout"


def test_nodes_without_a_time_far_from_any_that_has_one_find_their_layer(tmp_path: Path) -> None:
    text = PIPEDREAM + "".join(node(f"z{i}", "Size", 0, 0, 1, 1) for i in range(4))
    # z0 is read by a timed node and by z1; z2 is read by z1 alone; z3 reads z2.
    text += edges("z0-node8 z0-z1 z2-z1 z2-z3")
    layers = imported(tmp_path, "pipedream", text).chain.layers
    assert [entry.parameter_bytes for entry in layers] == [40, 0, 200, 7, 84]


def test_times_are_exact_before_they_are_rounded(tmp_path: Path) -> None:
    document = piper_document()
    for entry, time in zip(document["nodes"][1]["TMPCs"]["1"], (0.3, 0.4), strict=True):
        entry["timePerSample"] = time
    text = json.dumps(document).replace("0.4,", "0.40000000149999999999,")
    first = imported(tmp_path, "piper", text).chain.layers[0]
    assert (first.forward_ns, first.backward_ns) == (100_000_001, 199_999_999)


def test_a_stage_that_the_partitioner_chose_is_skipped(tmp_path: Path) -> None:
    lines = [
        f"{line} -- stage_id=1" if line.startswith("node") else line
        for line in PIPEDREAM.splitlines()
    ]
    chain = imported(tmp_path, "pipedream", "\r\n".join(lines)).chain
    assert chain.layers == imported(tmp_path, "pipedream").chain.layers


def test_names_are_short_and_printable(tmp_path: Path) -> None:
    text = PIPEDREAM.replace("Conv2d", "Co\x1b[31m" + "n" * 90).replace("node8", "n\x07")
    names = [entry.name for entry in imported(tmp_path, "pipedream", text).chain.layers]
    assert names[0] == "node2 Co?[31m" + "n" * 33
    assert names[-1] == "n? Linear"


def test_notes_say_what_was_left_out(tmp_path: Path) -> None:
    notes = imported(tmp_path, "pipedream").notes
    assert notes[0] == "The graph is a chain: exactly one tensor crosses each of 4 cuts."
    assert "inputs from the loader: node1." in notes[1]
    assert "part of the layer that feeds them: node5, node7." in notes[2]
    assert len(notes) == 3
    assert "1 of 3 cuts" in imported(tmp_path, "dnn-partitioning").notes[0]


def test_a_backward_on_the_wrong_node_is_named_and_kept(tmp_path: Path) -> None:
    document = dnn_document()
    document["nodes"][1]["fpgaLatency"] = 6.9
    document["nodes"][7]["fpgaLatency"] = 0.02
    result = imported(tmp_path, "dnn-partitioning", json.dumps(document))
    assert [note for note in result.notes if note.startswith("Suspicious")] == [
        "Suspicious: the backward seems too long for its forward: a (forward 100.000 us, "
        "backward 6.900 ms).",
        "Suspicious: the backward seems too short for its forward: d (forward 1.000 ms, "
        "backward 20.000 us).",
    ]
    assert result.chain.layers[0].backward_ns == 6_900_000


def test_a_backward_unlike_that_of_its_like_is_named(tmp_path: Path) -> None:
    text = PIPEDREAM
    for number, back in enumerate((2, 2, 9), start=20):
        text += node(f"node{number}", "LSTM(4)", 1, back) + edges(f"node8-node{number}")
    assert "node22 (forward 1.000 ms, backward 9.000 ms)." in "".join(
        imported(tmp_path, "pipedream", text).notes
    )


def test_edges_of_one_tensor_that_differ_are_named(tmp_path: Path) -> None:
    document = piper_document()
    document["edges"][2]["communicationCost"] = 16
    notes = imported(tmp_path, "piper", json.dumps(document)).notes
    assert "the edges that leave node '2' carry 16 B to 32 B" in notes[-1]


def test_a_node_alone_is_a_chain(tmp_path: Path) -> None:
    document = {"nodes": [half("a", 1, 1, 1, 5, False), half("b", 2, 1, 1, 5, True)], "edges": []}
    chain = imported(tmp_path, "dnn-partitioning", json.dumps(document)).chain
    assert [entry.parameter_bytes for entry in chain.layers] == [5]


@pytest.mark.parametrize(
    ("source", "options", "rule"),
    [
        ("onnx", {}, "'onnx' is not known. Choose pipedream or dnn-partitioning or piper"),
        ("piper", {"cuts": "onnx"}, "'onnx' is not known. Choose order or articulation"),
        ("piper", {"copies": 0}, "0 is out of range. Give an integer from 1 to 64"),
    ],
)
def test_options_that_are_not_known_are_refused(
    tmp_path: Path, source: Any, options: dict[str, Any], rule: str
) -> None:
    field = next(iter(options), "source")
    with pytest.raises(InputError, match=f"{field}: {rule}"):
        import_chain(write(tmp_path, PIPER), source, **options)


def test_the_first_of_the_file_that_is_ready_comes_first(tmp_path: Path) -> None:
    text = "".join(node(name) for name in "dbca") + edges("a-c a-b b-d c-d")
    chain = imported(tmp_path, "pipedream", text).chain
    assert [entry.name for entry in chain.layers] == ["a Op", "b Op", "c Op", "d Op"]


def test_what_is_in_place_saves_its_output_where_another_layer_lies_between(
    tmp_path: Path,
) -> None:
    text = node("a", "Op", 1, 1, 5) + node("b", "Op", 1, 1, 7) + node("c", "Op", 1, 1, 3)
    text += node("d", "ReLU(inplace)", 1, 1, 7) + node("e", "Add", 1, 1, 7)
    text += edges("a-b a-c b-d c-e d-e")
    layers = imported(tmp_path, "pipedream", text).chain.layers
    assert [entry.name[0] for entry in layers] == ["a", "b", "c", "d", "e"]
    assert (layers[3].saved_bytes, layers[3].saved_input_bytes) == (7, 0)


def test_an_edge_that_is_given_twice_is_one(tmp_path: Path) -> None:
    chain = imported(tmp_path, "pipedream", PIPEDREAM + edges("node2-node3")).chain
    assert chain.layers == imported(tmp_path, "pipedream").chain.layers


def test_merged_layers_keep_only_what_lies_before_the_first(tmp_path: Path) -> None:
    text = node("a", "Op", 1, 1, 5) + node("b", "ReLU(inplace)", 1, 1, 5)
    text += node("c", "Op", 1, 1, 3) + node("d", "ReLU(inplace)", 1, 1, 3) + node("e")
    text += edges("a-b b-c c-d d-e b-e")
    chain = imported(tmp_path, "pipedream", text, cuts="articulation").chain
    assert [entry.name for entry in chain.layers] == ["a Op", "b ReLU", "c Op to e Op"]
    assert [entry.saved_input_bytes for entry in chain.layers] == [0, 5, 0]
    assert [entry.saved_bytes for entry in chain.layers] == [5, 0, 4]


def test_an_input_that_nobody_reads_is_no_input(tmp_path: Path) -> None:
    chain = imported(tmp_path, "pipedream", PIPEDREAM + node("n", "Input1", 0, 0, 50)).chain
    assert chain.input_bytes == 100
    assert chain.provenance["dropped"] == ["node1", "n"]


def test_an_operator_whose_name_begins_like_an_input_is_kept(tmp_path: Path) -> None:
    text = PIPEDREAM.replace("Conv2d(3", "InputEmbedding(3")
    assert imported(tmp_path, "pipedream", text).chain.layers[0].name == "node2 InputEmbedding"


def test_sizes_are_rounded_to_the_nearest_byte(tmp_path: Path) -> None:
    text = PIPEDREAM.replace("parameter_size=40.000", "parameter_size=39.6")
    assert imported(tmp_path, "pipedream", text).chain.layers[0].parameter_bytes == 40


def test_small_times_are_no_reason_for_suspicion(tmp_path: Path) -> None:
    text = PIPEDREAM + node("s", "Slice", 0.0001, 0.005) + node("t", "Slice", 0.005, 0.0001)
    text += edges("node8-s node8-t")
    assert len(imported(tmp_path, "pipedream", text).notes) == 3
