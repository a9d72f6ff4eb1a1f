"""Whatever is wrong with a profile: one error with the file, the place, the rule, the way out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schedopt import InputError
from schedopt.formats import reading
from schedopt.importing import graph as graphs
from schedopt.importing import import_chain
from tests.importing.files import DNN, FILES, PIPEDREAM, PIPER, dnn_document, piper_document
from tests.refusals import assert_refused, drop, put

Case = tuple[str, str | bytes, str, str, str]


def dnn(change: Callable[[Any], Any]) -> str:
    return changed(dnn_document(), change)


def piper(change: Callable[[Any], Any]) -> str:
    return changed(piper_document(), change)


def changed(document: Any, change: Callable[[Any], Any]) -> str:
    change(document)
    return json.dumps(document)


FIGURES = "forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1"
DEVICE = ("nodes", 3, "TMPCs", "1")

BAD: dict[str, Case] = {
    "empty": ("piper", "", "", "the file is empty", "right file"),
    "blank": ("pipedream", "\n \n", "", "the file is empty", "right file"),
    "not text": ("pipedream", b"\xff\xfe\x00", "", "not UTF-8 text (byte 0)", "right file"),
    "truncated": ("piper", PIPER[:-9], "", "is not JSON: ", "complete"),
    "no JSON": ("piper", "hello", "", "this is not piper; expected is a JSON", "Choose "),
    "a list": ("piper", "[1]", "", "this is not piper; expected is a JSON", "Choose "),
    "prose": ("pipedream", "hello\n", "line 1", "neither a node nor an edge", "description --"),
    "other JSON": ("pipedream", '{"a": 1}', "", "this is not pipedream; expected", "Choose "),
    "deep": ("piper", '{"a":' * 100_000, "", "nested too deeply", "right file"),
    "a chain": ("piper", '{"format": "schedopt.chain/1"}', "", "a file of schedopt", "no import"),
    "piper as pipedream": ("pipedream", PIPER, "", "looks like piper, not pipedream; expected is "
                           "a line 'name -- description --", '"piper"'),
    "piper as dnn": ("dnn-partitioning", PIPER, "", "looks like piper", '"piper"'),
    "dnn as pipedream": ("pipedream", DNN, "", "dnn-partitioning", '"dnn-partitioning"'),
    "dnn as piper": ("piper", DNN, "", "looks like dnn-partitioning", '"dnn-partitioning"'),
    "pipedream as piper": ("piper", PIPEDREAM, "", "looks like pipedream", '"pipedream"'),
    "pipedream as dnn": ("dnn-partitioning", PIPEDREAM, "", "pipedream", '"pipedream"'),

    "no figures": ("pipedream", "a -- b\n", "line 1", "neither a node", "Expected is a line"),
    "missing figure": (
        "pipedream", PIPEDREAM.replace(", parameter_size=40.000", ""),
        "line 2.parameter_size", "is missing", "Write forward_compute_time=",
    ),
    "figure given twice": (
        "pipedream", f"a -- b -- {FIGURES}, parameter_size=2\n",
        "line 1.parameter_size", "given twice", "Keep one",
    ),
    "junk for figures": ("pipedream", f"a -- b -- {FIGURES}, [\n", "line 1", "no list of", "Write"),
    "open tuple": (
        "pipedream", PIPEDREAM.replace("20.0]", "20.0"), "line 4", "no list of figures", "Write",
    ),
    "broken tuple": (
        "pipedream", PIPEDREAM.replace("30.0;", "x;"), "line 4.activation_size", "not a number",
        "finite",
    ),
    "negative": (
        "pipedream", PIPEDREAM.replace("time=1.5", "time=-1.5"),
        "line 2.forward_compute_time", "-1.5 is negative", "0 or more",
    ),
    "nan": (
        "pipedream", PIPEDREAM.replace("time=1.5", "time=nan"),
        "line 2.forward_compute_time", "'nan' is not a number", "finite",
    ),
    "inf": (
        "pipedream", PIPEDREAM.replace("size=1000.000", "size=inf"),
        "line 2.activation_size", "'inf' is not a number", "finite",
    ),
    "no figure at all": (
        "pipedream", PIPEDREAM.replace("time=1.5", "time="),
        "line 2.forward_compute_time", "'' is not a number", "finite",
    ),
    "other digits": (
        "pipedream", PIPEDREAM.replace("time=1.5", "time=\u0661"),
        "line 2.forward_compute_time", "is not a number", "finite",
    ),
    "digits without end": (
        "pipedream", PIPEDREAM.replace("time=1.5", "time=" + "9" * 5000),
        "line 2.forward_compute_time", "not a number of sensible length", "finite",
    ),
    "an exponent without end": (
        "pipedream", PIPEDREAM.replace("time=1.5", "time=1e999999999"),
        "line 2.forward_compute_time", "is not a number", "finite",
    ),
    "too long": (
        "pipedream", PIPEDREAM.replace("time=1.5", "time=1e30"),
        "line 2.forward_compute_time", "a number of 37 digits is out of range", "unit",
    ),
    "too large": (
        "pipedream", PIPEDREAM.replace("size=40.000", "size=1e16"),
        "line 2.parameter_size", "out of range", "unit",
    ),
    "more than a chain may take": (
        "pipedream", PIPEDREAM.replace("time=1.5", "time=600000"), "layers", "ns in all", "unit",
    ),
    "edge to nowhere": (
        "pipedream", PIPEDREAM + "\tnode8 -- node9\n", "line 17", "'node9'", "Add the node",
    ),
    "half an edge": ("pipedream", PIPEDREAM + "\tnode8\n", "line 17", "is no edge", "source --"),
    "edge with three ends": ("pipedream", PIPEDREAM + "\ta -- b -- c\n", "line 17", "no edge", ""),
    "twice": (
        "pipedream", f"a -- b -- {FIGURES}\n" * 2, "line 2", "node 'a' is given twice", "Keep one",
    ),
    "cycle": (
        "pipedream", PIPEDREAM + "\tnode6 -- node4\n", "edges",
        "there is a cycle: 'node4' to 'node5' to 'node6' to 'node4'", "remove one",
    ),
    "own reader": (
        "pipedream", PIPEDREAM + "\tnode6 -- node6\n", "edges", "'node6' to 'node6'", "remove one",
    ),
    "two parts": (
        "pipedream", PIPEDREAM + f"node9 -- b -- {FIGURES}\n", "edges",
        "2 parts that no edge connects, one with node 'node2' and one with node 'node9'",
        "one network",
    ),
    "parts that only an input connects": (
        "pipedream", PIPEDREAM.replace("\tnode2 -- node3\n", "\tnode1 -- node3\n"), "edges",
        "2 parts", "inputs of the loader connect nothing",
    ),
    "nothing but inputs": (
        "pipedream", f"a -- Input -- {FIGURES}\n", "nodes", "nothing but inputs", "complete",
    ),
    "edges alone": ("pipedream", "\ta -- b\n", "line 1", "no such node", "Add the node"),
    "no time": (
        "pipedream", "a -- b -- forward_compute_time=0, backward_compute_time=0, "
        "activation_size=1, parameter_size=1\n", "nodes", "no node takes any time", "measured",
    ),

    "no nodes": ("dnn-partitioning", dnn(put("nodes", value=[])), "edges[0].sourceId", "no such",
                 "Add the node"),
    "nothing": ("dnn-partitioning", '{"isBackwardNode": 0, "nodes": [], "edges": []}', "nodes",
                "there are no nodes", "complete"),
    "no edges": ("dnn-partitioning", dnn(drop("edges")), "edges", "is missing", "complete"),
    "missing latency": (
        "dnn-partitioning", dnn(drop("nodes", 2, "fpgaLatency")), "nodes[2].fpgaLatency",
        "is missing", "complete",
    ),
    "latency in quotes": (
        "dnn-partitioning", dnn(put("nodes", 2, "fpgaLatency", value="1")),
        "nodes[2].fpgaLatency", "'1' is not a number", "Give a number",
    ),
    "latency of NaN": (
        "dnn-partitioning", dnn(put("nodes", 2, "fpgaLatency", value=float("nan"))),
        "nodes[2].fpgaLatency", "NaN is not a number", "finite",
    ),
    "negative latency": (
        "dnn-partitioning", dnn(put("nodes", 2, "fpgaLatency", value=-0.5)),
        "nodes[2].fpgaLatency", "-0.5 is negative", "0 or more",
    ),
    "name that is a number": (
        "dnn-partitioning", dnn(put("nodes", 2, "name", value=7)),
        "nodes[2].name", "7 is not text", "Give text",
    ),
    "half an id": (
        "dnn-partitioning", dnn(put("nodes", 2, "id", value=1.5)),
        "nodes[2].id", "1.5 is not a whole number", "Number the nodes",
    ),
    "no id": (
        "dnn-partitioning", dnn(put("nodes", 2, "id", value=None)), "nodes[2].id",
        "null is not text", "",
    ),
    "id twice": (
        "dnn-partitioning", dnn(put("nodes", 2, "id", value=1)), "nodes[2].id", "given twice", "",
    ),
    "a node that is none": (
        "dnn-partitioning", dnn(put("nodes", 2, value=[])), "nodes[2]", "a list is not an object",
        "Give an object",
    ),
    "nodes that are no list": (
        "dnn-partitioning", dnn(put("nodes", value={})), "nodes", "an object is not a list", "",
    ),
    "for inference": (
        "dnn-partitioning",
        dnn(lambda document: [node.update(isBackwardNode=0) for node in document["nodes"]]),
        "nodes", "no backward nodes", "for inference; give the one for training",
    ),
    "a forward without its backward": (
        "dnn-partitioning", dnn(drop("nodes", 1)), "nodes[0].colorClass",
        "1 forward and 0 backward nodes share colour '1'", "one forward and one backward",
    ),
    "not on the accelerator": (
        "dnn-partitioning", dnn(put("nodes", 2, "supportedOnFpga", value=0)),
        "nodes[2].supportedOnFpga", "does not run on the accelerator", "as a whole",
    ),
    "smaller than its output": (
        "dnn-partitioning", dnn(put("nodes", 0, "size", value=99)), "nodes[0].size",
        "node 'a' is smaller than its output of 100 bytes", "together",
    ),
    "unknown end": (
        "dnn-partitioning", dnn(put("edges", 1, "destId", value=77)), "edges[1].destId",
        "'77', and there is no such node", "Add the node",
    ),
    "edge without size": (
        "dnn-partitioning", dnn(drop("edges", 1, "size")), "edges[1].size", "is missing", "",
    ),
    "field given twice": (
        "dnn-partitioning", DNN.replace('"name": "a"', '"name": "a", "name": "a"', 1),
        "nodes[0].name", "is given twice", "Keep one",
    ),
    "cycle in JSON": (
        "dnn-partitioning", dnn(put("edges", 0, "sourceId", value=4)), "edges", "a cycle", "",
    ),

    "no degree of one": (
        "piper", piper(drop(*DEVICE)), "nodes[3].TMPCs.1", "is missing", "complete",
    ),
    "without recomputation": (
        "piper", piper(drop(*DEVICE, 1)), "nodes[3].TMPCs.1",
        "no entries are called 'activation recomp'", "their difference is the forward",
    ),
    "plain twice": (
        "piper", piper(put(*DEVICE, 1, "id", value="vanilla")), "nodes[3].TMPCs.1",
        "2 entries are called 'vanilla'", "Give one",
    ),
    "recomputation that gains time": (
        "piper", piper(put(*DEVICE, 1, "timePerSample", value=0.02)),
        "nodes[3].TMPCs.1[1].timePerSample", "recomputation adds -0.01 s to 0.03 s", "forward",
    ),
    "a forward longer than the whole": (
        "piper", piper(put(*DEVICE, 1, "timePerSample", value=0.07)),
        "nodes[3].TMPCs.1[1].timePerSample", "recomputation adds 0.04 s to 0.03 s", "a part of",
    ),
    "no memory": (
        "piper", piper(drop(*DEVICE, 0, "memoryUsageA")), "nodes[3].TMPCs.1[0].memoryUsageA",
        "is missing", "",
    ),
    "size of an edge in words": (
        "piper", piper(put("edges", 2, "communicationCost", value="big")),
        "edges[2].communicationCost", "'big' is not a number", "Give a number",
    ),
    "size of an edge that is true": (
        "piper", piper(put("edges", 2, "communicationCost", value=True)),
        "edges[2].communicationCost", "true is not a number", "Give a number",
    ),
    "a long number where text belongs": (
        "piper", piper(put("nodes", 3, "name", value=10**80)), "nodes[3].name",
        "a number of 81 characters is not text", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_gives_one_clear_error(tmp_path: Path, case: str) -> None:
    source, content, field, rule, way_out = BAD[case]
    path = tmp_path / "profile"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(lambda: import_chain(path, source), field, rule, way_out, path)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", FILES)
def test_a_file_that_ends_anywhere_breaks_nothing(tmp_path: Path, source: Any) -> None:
    path = tmp_path / "profile"
    for end in range(0, len(FILES[source]), 7):
        path.write_text(FILES[source][:end])
        with contextlib.suppress(InputError):
            import_chain(path, source)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none: no such file\. Check the path"):
        import_chain(tmp_path / "none", "piper")
    with pytest.raises(InputError, match="is a folder"):
        import_chain(tmp_path, "piper")
    with pytest.raises(InputError, match="cannot be read"):
        import_chain("a\0b", "piper")


def test_a_file_beyond_all_sizes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LARGEST_FILE", 50)
    (tmp_path / "profile").write_text(PIPER)
    with pytest.raises(InputError, match="larger than 50 bytes"):
        import_chain(tmp_path / "profile", "piper")


def test_nodes_beyond_all_numbers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_NODES", 3)
    (tmp_path / "profile").write_text(PIPER)
    with pytest.raises(InputError, match=r"nodes\[3\]\.id: there are more than 3 nodes"):
        import_chain(tmp_path / "profile", "piper")


def test_more_layers_than_a_chain_may_have_are_refused(tmp_path: Path) -> None:
    lines = [f"n{i} -- Linear -- {FIGURES}" for i in range(5000)]
    lines += [f"\tn{i} -- n{i + 1}" for i in range(4999)]
    (tmp_path / "profile").write_text("\n".join(lines))
    with pytest.raises(InputError, match="5000 layers are too many"):
        import_chain(tmp_path / "profile", "pipedream")


def test_a_mark_of_utf_8_at_the_start_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text(PIPEDREAM, encoding="utf-8-sig")
    assert len(import_chain(tmp_path / "profile", "pipedream").chain.layers) == 5


def test_many_nodes_in_reverse_are_no_trouble(tmp_path: Path) -> None:
    figures = FIGURES.replace("=1", "=0")
    lines = [f"n{i} -- Size -- {figures}" for i in range(15_000)] + [f"last -- Linear -- {FIGURES}"]
    lines += [f"\tn{i + 1} -- n{i}" for i in range(14_999)] + ["\tn0 -- last"]
    (tmp_path / "profile").write_text("\n".join(lines))
    chain = import_chain(tmp_path / "profile", "pipedream").chain
    assert len(chain.layers) == 1
    assert chain.provenance["absorbed"] == 15_000
