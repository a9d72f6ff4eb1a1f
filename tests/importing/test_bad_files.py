"""Whatever is wrong with a profile: one error with the file, the place, the rule, the way out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from schedopt import InputError
from schedopt.formats import reading
from schedopt.importing import graph as graphs
from schedopt.importing import import_chain
from schedopt.importing.chains import Source
from tests.importing.files import DNN, FILES, PIPEDREAM, PIPER
from tests.refusals import assert_refused, drop, put

FIGURES = "forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1"
DEVICE = ("nodes", 3, "TMPCs", "1")

Change = Callable[[Any], Any]
Row = tuple[str | bytes | Change, str, str, str]
"""A file, or what makes one from a good one; field, rule and way out of the error."""


def edit(old: str, new: str) -> str:
    return PIPEDREAM.replace(old, new)


def timed(time: str, rule: str, way_out: str = "finite") -> Row:
    """Return a file with another time in line 2."""
    return edit("time=1.5", f"time={time}"), "line 2.forward_compute_time", rule, way_out


def latency(value: object, rule: str, way_out: str) -> Row:
    """Return a change of the latency of a node."""
    return put("nodes", 2, "fpgaLatency", value=value), "nodes[2].fpgaLatency", rule, way_out


def for_inference(document: Any) -> None:
    for node in document["nodes"]:
        node["isBackwardNode"] = 0


OF_PIPEDREAM: dict[str, Row] = {
    "blank": ("\n \n", "", "the file is empty", "right file"),
    "not text": (b"\xff\xfe\x00", "", "not UTF-8 text (byte 0)", "right file"),
    "prose": ("hello\n", "line 1", "neither a node nor an edge", "description --"),
    "other JSON": ('{"a": 1}', "", "this is not pipedream; expected", "Choose "),
    "piper": (PIPER, "", "looks like piper, not pipedream; expected is a line 'name -- description "
              "--", '"piper"'),
    "dnn": (DNN, "", "dnn-partitioning", '"dnn-partitioning"'),
    "no figures": ("a -- b\n", "line 1", "neither a node", "Expected is a line"),
    "missing figure": (edit(", parameter_size=40.000", ""), "line 2.parameter_size", "is missing",
                       "Write forward_compute_time="),
    "figure given twice": (f"a -- b -- {FIGURES}, parameter_size=2\n", "line 1.parameter_size",
                           "given twice", "Keep one"),
    "junk for figures": (f"a -- b -- {FIGURES}, [\n", "line 1", "no list of", "Write"),
    "open tuple": (edit("20.0]", "20.0"), "line 4", "no list of figures", "Write"),
    "broken tuple": (edit("30.0;", "x;"), "line 4.activation_size", "not a number", "finite"),
    "negative": timed("-1.5", "-1.5 is negative", "0 or more"),
    "nan": timed("nan", "'nan' is not a number"),
    "inf": (edit("size=1000.000", "size=inf"), "line 2.activation_size", "'inf' is not a number",
            "finite"),
    "no figure at all": timed("", "'' is not a number"),
    "other digits": timed("\u0661", "is not a number"),
    "digits without end": timed("9" * 5000, "not a number of sensible length"),
    "an exponent without end": timed("1e999999999", "is not a number"),
    "too long": timed("1e30", "a number of 37 digits is out of range", "unit"),
    "too large": (edit("size=40.000", "size=1e16"), "line 2.parameter_size", "out of range",
                  "unit"),
    "more than a chain may take": (edit("time=1.5", "time=600000"), "layers", "ns in all", "unit"),
    "edge to nowhere": (PIPEDREAM + "\tnode8 -- node9\n", "line 17", "'node9'", "Add the node"),
    "half an edge": (PIPEDREAM + "\tnode8\n", "line 17", "is no edge", "source --"),
    "edge with three ends": (PIPEDREAM + "\ta -- b -- c\n", "line 17", "no edge", ""),
    "twice": (f"a -- b -- {FIGURES}\n" * 2, "line 2", "node 'a' is given twice", "Keep one"),
    "cycle": (PIPEDREAM + "\tnode6 -- node4\n", "edges",
              "there is a cycle: 'node4' to 'node5' to 'node6' to 'node4'", "remove one"),
    "own reader": (PIPEDREAM + "\tnode6 -- node6\n", "edges", "'node6' to 'node6'", "remove one"),
    "two parts": (
        PIPEDREAM + f"node9 -- b -- {FIGURES}\n", "edges",
        "2 parts that no edge connects, one with node 'node2' and one with node 'node9'",
        "one network",
    ),
    "parts that only an input connects": (
        edit("\tnode2 -- node3\n", "\tnode1 -- node3\n"), "edges", "2 parts",
        "inputs of the loader connect nothing",
    ),
    "nothing but inputs": (f"a -- Input -- {FIGURES}\n", "nodes", "nothing but inputs", "complete"),
    "edges alone": ("\ta -- b\n", "line 1", "no such node", "Add the node"),
    "no time": (f"a -- b -- {FIGURES}\n".replace("time=1", "time=0"), "nodes",
                "no node takes any time", "measured"),
}  # fmt: skip

OF_DNN_PARTITIONING: dict[str, Row] = {
    "piper": (PIPER, "", "looks like piper", '"piper"'),
    "pipedream": (PIPEDREAM, "", "pipedream", '"pipedream"'),
    "no nodes": (put("nodes", value=[]), "edges[0].sourceId", "no such", "Add the node"),
    "nothing": ('{"isBackwardNode": 0, "nodes": [], "edges": []}', "nodes", "there are no nodes",
                "complete"),
    "no edges": (drop("edges"), "edges", "is missing", "complete"),
    "missing latency": (drop("nodes", 2, "fpgaLatency"), "nodes[2].fpgaLatency", "is missing",
                        "complete"),
    "latency in quotes": latency("1", "'1' is not a number", "Give a number"),
    "latency of NaN": latency(float("nan"), "NaN is not a number", "finite"),
    "negative latency": latency(-0.5, "-0.5 is negative", "0 or more"),
    "name that is a number": (put("nodes", 2, "name", value=7), "nodes[2].name", "7 is not text",
                              "Give text"),
    "half an id": (put("nodes", 2, "id", value=1.5), "nodes[2].id", "1.5 is not a whole number",
                   "Number the nodes"),
    "no id": (put("nodes", 2, "id", value=None), "nodes[2].id", "null is not text", ""),
    "id twice": (put("nodes", 2, "id", value=1), "nodes[2].id", "given twice", ""),
    "a node that is none": (put("nodes", 2, value=[]), "nodes[2]", "a list is not an object",
                            "Give an object"),
    "nodes that are no list": (put("nodes", value={}), "nodes", "an object is not a list", ""),
    "for inference": (for_inference, "nodes", "no backward nodes",
                      "for inference; give the one for training"),
    "a forward without its backward": (
        drop("nodes", 1), "nodes[0].colorClass",
        "1 forward and 0 backward nodes share colour '1'", "one forward and one backward",
    ),
    "not on the accelerator": (put("nodes", 2, "supportedOnFpga", value=0),
                               "nodes[2].supportedOnFpga", "does not run on the accelerator",
                               "as a whole"),
    "smaller than its output": (put("nodes", 0, "size", value=99), "nodes[0].size",
                                "node 'a' is smaller than its output of 100 bytes", "together"),
    "unknown end": (put("edges", 1, "destId", value=77), "edges[1].destId",
                    "'77', and there is no such node", "Add the node"),
    "edge without size": (drop("edges", 1, "size"), "edges[1].size", "is missing", ""),
    "field given twice": (DNN.replace('"name": "a"', '"name": "a", "name": "a"', 1),
                          "nodes[0].name", "is given twice", "Keep one"),
    "cycle in JSON": (put("edges", 0, "sourceId", value=4), "edges", "a cycle", ""),
}  # fmt: skip

OF_PIPER: dict[str, Row] = {
    "empty": ("", "", "the file is empty", "right file"),
    "truncated": (PIPER[:-9], "", "is not JSON: ", "complete"),
    "no JSON": ("hello", "", "this is not piper; expected is a JSON", "Choose "),
    "a list": ("[1]", "", "this is not piper; expected is a JSON", "Choose "),
    "deep": ('{"a":' * 100_000, "", "nested too deeply", "right file"),
    "a chain": ('{"format": "schedopt.chain/1"}', "", "a file of schedopt", "no import"),
    "dnn": (DNN, "", "looks like dnn-partitioning", '"dnn-partitioning"'),
    "pipedream": (PIPEDREAM, "", "looks like pipedream", '"pipedream"'),
    "no degree of one": (drop(*DEVICE), "nodes[3].TMPCs.1", "is missing", "complete"),
    "without recomputation": (drop(*DEVICE, 1), "nodes[3].TMPCs.1",
                              "no entries are called 'activation recomp'",
                              "their difference is the forward"),
    "plain twice": (put(*DEVICE, 1, "id", value="vanilla"), "nodes[3].TMPCs.1",
                    "2 entries are called 'vanilla'", "Give one"),
    "recomputation that gains time": (
        put(*DEVICE, 1, "timePerSample", value=0.02), "nodes[3].TMPCs.1[1].timePerSample",
        "recomputation adds -0.01 s to 0.03 s", "forward",
    ),
    "a forward longer than the whole": (
        put(*DEVICE, 1, "timePerSample", value=0.07), "nodes[3].TMPCs.1[1].timePerSample",
        "recomputation adds 0.04 s to 0.03 s", "a part of",
    ),
    "no memory": (drop(*DEVICE, 0, "memoryUsageA"), "nodes[3].TMPCs.1[0].memoryUsageA",
                  "is missing", ""),
    "size of an edge in words": (put("edges", 2, "communicationCost", value="big"),
                                 "edges[2].communicationCost", "'big' is not a number",
                                 "Give a number"),
    "size of an edge that is true": (put("edges", 2, "communicationCost", value=True),
                                     "edges[2].communicationCost", "true is not a number",
                                     "Give a number"),
    "a long number where text belongs": (put("nodes", 3, "name", value=10**80), "nodes[3].name",
                                         "a number of 81 characters is not text", ""),
}  # fmt: skip

BAD: dict[Source, dict[str, Row]] = {
    "pipedream": OF_PIPEDREAM,
    "dnn-partitioning": OF_DNN_PARTITIONING,
    "piper": OF_PIPER,
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return tmp_path / "profile"


@pytest.mark.parametrize(("source", "case"), [(of, case) for of in BAD for case in BAD[of]])
def test_a_bad_file_gives_one_clear_error(profile: Path, source: Source, case: str) -> None:
    content, field, rule, way_out = BAD[source][case]
    if callable(content):
        document = json.loads(FILES[source])
        content(document)
        content = json.dumps(document)
    profile.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(lambda: import_chain(profile, source), field, rule, way_out, profile)


@pytest.mark.parametrize("source", FILES)
def test_a_file_that_ends_anywhere_breaks_nothing(profile: Path, source: Any) -> None:
    for end in range(0, len(FILES[source]), 7):
        profile.write_text(FILES[source][:end])
        with contextlib.suppress(InputError):
            import_chain(profile, source)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    for path, rule in (
        (tmp_path / "none", r"none: no such file\. Check the path"),
        (tmp_path, "is a folder"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(InputError, match=rule):
            import_chain(path, "piper")


@pytest.mark.parametrize(
    ("module", "limit", "rule"),
    [
        (reading, "LARGEST_FILE", "larger than 3 bytes"),
        (graphs, "MOST_NODES", r"nodes\[3\]\.id: there are more than 3 nodes"),
    ],
)
def test_a_file_beyond_all_sizes_is_refused(
    profile: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str, rule: str
) -> None:
    monkeypatch.setattr(module, limit, 3)
    profile.write_text(PIPER)
    with pytest.raises(InputError, match=rule):
        import_chain(profile, "piper")


def test_more_layers_than_a_chain_may_have_are_refused(profile: Path) -> None:
    lines = [f"n{i} -- Linear -- {FIGURES}" for i in range(5000)]
    lines += [f"\tn{i} -- n{i + 1}" for i in range(4999)]
    profile.write_text("\n".join(lines))
    with pytest.raises(InputError, match="5000 layers are too many"):
        import_chain(profile, "pipedream")


def test_a_mark_of_utf_8_at_the_start_does_no_harm(profile: Path) -> None:
    profile.write_text(PIPEDREAM, encoding="utf-8-sig")
    assert len(import_chain(profile, "pipedream").chain.layers) == 5


def test_many_nodes_in_reverse_are_no_trouble(profile: Path) -> None:
    figures = FIGURES.replace("=1", "=0")
    lines = [f"n{i} -- Size -- {figures}" for i in range(15_000)] + [f"last -- Linear -- {FIGURES}"]
    lines += [f"\tn{i + 1} -- n{i}" for i in range(14_999)] + ["\tn0 -- last"]
    profile.write_text("\n".join(lines))
    chain = import_chain(profile, "pipedream").chain
    assert len(chain.layers) == 1
    assert chain.provenance["absorbed"] == 15_000
