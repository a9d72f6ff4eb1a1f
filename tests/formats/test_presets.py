"""Platforms by name: what they hold, where it is from, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import pytest

from schedopt import Platform
from schedopt.formats import platform_to_json
from schedopt.formats.presets import GPUS, PRESETS
from tests.cli.commands import run
from tests.refusals import assert_refused

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "instances" / "PRESETS.md").read_text()


def rates(name: str) -> tuple[int, int]:
    """Return the bytes per second inside a node and between two."""
    platform = Platform.load(f"{name}:2")
    inside, between = platform.link_between(0, 7), platform.link_between(0, 8)
    assert inside is not None
    assert between is not None
    assert inside.duplex == between.duplex == "full"
    return inside.bandwidth_bytes_per_s, between.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("name", "memory", "nvlink", "card_bits"),
    [
        ("dgx-a100", 80, 600, 200),
        ("dgx-h100", 80, 900, 400),
        ("hgx-h200", 141, 900, 400),
        ("dgx-b200", 180, 1800, 400),
    ],
)
def test_links_are_four_fifths_of_what_the_vendor_says(
    name: str, memory: int, nvlink: int, card_bits: int
) -> None:
    """NVLink is given for both directions together, a card in bits of each."""
    assert rates(name) == (nvlink * 10**9 // 2 * 4 // 5, card_bits * 10**9 // 8 * 4 // 5)
    assert {gpu.memory_bytes for gpu in Platform.load(f"{name}:2").gpus} == {memory * 10**9}


@pytest.mark.parametrize("name", ["a10g", "l4"])
def test_links_are_what_was_measured(name: str) -> None:
    table = json.loads((ROOT / "instances" / "published" / "mist" / "p2p.json").read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    for kind, rate in zip(("intra", "inter"), rates(name), strict=True):
        measured = median(
            row["gib_per_s"] * 2**30
            for row in rows
            if (row["set"], row["link"]) == (name, kind) and row["size_mib"] >= 16
        )
        assert rate == pytest.approx(measured, rel=0.01)


def test_the_page_has_a_row_for_each() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \| .* \| (\d+) GB \| ([\d.]+) GB/s \| ([\d.]+) GB/s \| (1|all) \|$",
        PAGE,
        re.M,
    )
    said = {
        name: (f"{memory}G", f"{one}GB/s", f"{other}GB/s", shared == "all")
        for name, memory, one, other, shared in rows
    }
    assert said == {
        name: (GPUS[node.gpu].memory, node.inside, node.between, node.shared)
        for name, node in PRESETS.items()
    }


def test_the_page_has_a_platform_whose_gpus_have_ports(tmp_path: Path) -> None:
    (text,) = re.findall(r'^    (\{"format".*?\]\})$', PAGE, re.M | re.S)
    path = tmp_path / "ports.json"
    path.write_text(text)
    network = Platform.load(path).network
    assert network is not None
    for gpu in range(2):
        port = network.port_of(gpu)
        assert port is not None
        assert (port.bandwidth_bytes_per_s, port.duplex) == (40 * 10**9, "full")


def test_nodes_are_linked_by_a_switch() -> None:
    platform = Platform.load("a10g:3x2")
    assert len(platform.gpus) == 6
    assert platform.route(0, 5) == (("hop", 0, 3), ("hop", 3, 2))
    assert platform.route(4, 5) == (("link", 4, 5),)
    assert platform.gpus[0].usable_bytes == 23 * 10**9


def test_gpus_have_network_cards_of_their_own_or_share_one() -> None:
    own, shared = Platform.load("dgx-h100:2"), Platform.load("l4:2")
    assert not {*own.route(3, 8)} & {*own.route(4, 9)}
    assert {*shared.route(3, 8)} == {*shared.route(4, 9)}
    # So many at once take as long as one, or eight times as long, but for the latency.
    one, eight = own.transfer_ns(10**9, 0, 8), own.transfer_ns(10**9, 0, 8, 8)
    assert one == eight == 10_000 + 25_000_000
    one, eight = shared.transfer_ns(10**9, 0, 8), shared.transfer_ns(10**9, 0, 8, 8)
    assert eight - 10_000 == pytest.approx(8 * (one - 10_000))


def test_one_node_has_no_network() -> None:
    platform = Platform.load("dgx-h100:1")
    assert platform.uniform
    assert len(platform.gpus) == 8


@pytest.mark.parametrize("name", ["l4:2x4", "dgx-a100:2x4"])
def test_a_preset_can_be_written_and_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "platform.json"
    path.write_text(platform_to_json(Platform.load(name)))
    assert Platform.load(path) == Platform.load(name)


def test_a_file_goes_before_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Platform(2, "1G").save("l4:2")
    assert len(Platform.load("l4:2").gpus) == 2


@pytest.mark.parametrize(
    ("text", "field", "rule", "way_out"),
    [
        ("l4:9x9x9", "", "there is no preset 'l4:9x9x9'", "such as dgx-h100:8 or l4:4x8"),
        ("dgx-z9:2", "", "there is no preset 'dgx-z9'", "Give one of dgx-a100, dgx-h100"),
        ("dgx-a100", "", "does not say how many nodes", "Write dgx-a100:1 for one, dgx-a100:4x8"),
        ("l4:0", "nodes", "0 is out of range", "1 to 511"),
        ("l4:600", "nodes", "600 is out of range", "1 to 511"),
        ("l4:2x9", "gpus", "9 is out of range", "1 to 8"),
        ("l4:2x0", "gpus", "0 is out of range", "1 to 8"),
    ],
)
def test_what_is_no_preset_is_refused(text: str, field: str, rule: str, way_out: str) -> None:
    assert_refused(lambda: Platform.load(text), field, rule, way_out, source=text)


def test_show_prints_a_preset_and_says_which_there_are() -> None:
    shown = run("show", "dgx-h100:2").stdout
    assert "360.00 GB/s" in shown
    assert "node0 - switch - node1" in shown
    done = run("solve", "--chain", "instances/gpt2-small.json", "--platform", "dgx-z9:2")
    assert done.returncode == 2
    assert "Give one of dgx-a100" in done.stderr


def test_the_page_has_the_rates_of_each_kind_of_gpu() -> None:
    for name, gpu in GPUS.items():
        (row,) = re.findall(rf"^\| `{name}` \| ([^|]*FLOP/s) \| ([^|]*) \| ([^|]*) \|", PAGE, re.M)
        said = [gpu.half, gpu.single, gpu.bandwidth]
        assert [text.replace(" TFLOP/s", "T").replace(" ", "") for text in row] == said


def test_each_kind_of_node_has_a_kind_of_gpu() -> None:
    assert {preset.gpu for preset in PRESETS.values()} == set(GPUS)
