"""Pictures in files: their kinds, what stands in them, and that they never change by themselves."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

from schedopt import Chain, InputError, Layer, Platform, Scope, solve
from schedopt.drawing import Box, Chart, chart_plan, chart_simulation, save_picture
from schedopt.drawing.styles import NAMES, colour, hatch
from schedopt.plan import Kind
from schedopt.simulation import simulate, usual_micro_batches
from schedopt.transfer import TENSORS, Tensor
from tests.drawing.helpers import result_of, texts
from tests.examples import EXAMPLES
from tests.shards import EVERY_PLAN


def test_the_picture_says_what_a_reader_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    save_picture(chart_plan(result_of(EXAMPLES["contiguous"]())), path)
    found = texts(path)
    for text in (
        "period 4 ns",
        "GPU 2",
        "F0+0",
        "B0-4",
        "link 0-1",
        "100.0% busy",
        "100.0% busy, the most",
        "memory 100.0% of 511 B, no room",
        "time in ns",
        "forward",
        "backward",
        "Bubble 0.0%: idle time of the GPUs that have a stage",
    ):
        assert text in found
    assert any(text.startswith("Binding: GPU 0 works 100.0% of the period") for text in found)


@pytest.mark.parametrize("name", EVERY_PLAN)
@pytest.mark.parametrize("kind", ["plan", pytest.param("step", marks=pytest.mark.nightly)])
def test_every_plan_by_hand_can_be_drawn(name: str, kind: str, tmp_path: Path) -> None:
    plan = EVERY_PLAN[name]()
    if kind == "plan":
        chart = chart_plan(result_of(plan))
    else:
        chart = chart_simulation(simulate(plan, usual_micro_batches(plan)))
    save_picture(chart, tmp_path / "picture.svg")
    found = texts(tmp_path / "picture.svg")
    assert {f"GPU {gpu}" for stage in plan.stages for gpu in stage.gpus} <= set(found)


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".svg", b"<?xml"), (".PNG", b"\x89PNG"), (".pdf", b"%PDF")]
)
def test_the_same_chart_gives_the_same_bytes(suffix: str, magic: bytes, tmp_path: Path) -> None:
    chart = chart_plan(result_of(EXAMPLES["two_periodic"]()))
    for name in ("one", "two"):
        save_picture(chart, tmp_path / f"{name}{suffix}")
    first = (tmp_path / f"one{suffix}").read_bytes()
    assert first.startswith(magic)
    assert first == (tmp_path / f"two{suffix}").read_bytes()


def chart_of_all_kinds() -> Chart:
    """Return a chart with every kind, and with the widest words beside it."""
    chart = chart_plan(result_of(EXAMPLES["contiguous"]()))
    kinds: tuple[Kind | Tensor, ...] = ("F", "B", "I", "W", "R", "U")
    sent: tuple[Kind | Tensor, ...] = TENSORS
    first, *others = chart.gpus
    link, *links = chart.links
    first = replace(first, boxes=tuple(Box(i, i + 1, k, 0, 17) for i, k in enumerate(kinds)))
    link = replace(link, boxes=tuple(Box(i, i + 1, k, 0, 17) for i, k in enumerate(sent)))
    full = tuple(
        replace(one, limit_bytes=999_990_000_000, need_bytes=999_990_000_000, lacks=True)
        for one in chart.memory
    )
    return replace(
        chart,
        facts=("so much that binds, " * 20,),
        gpus=(first, *others),
        links=(link, *links),
        memory=full,
    )


def test_nothing_is_cut_at_the_edges_with_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    save_picture(chart_of_all_kinds(), path)
    pixels = imread(path)[:, :, :3]
    for edge in (pixels[:, -12:], pixels[:, :12], pixels[:6], pixels[-6:]):
        assert (edge == 1).all()


def test_every_kind_looks_unlike_every_other_in_the_legend() -> None:
    chart = chart_of_all_kinds()
    looks = {what: (colour(chart, Box(0, 1, what, 0, 0)), hatch(what)) for what in NAMES}
    assert len(set(looks.values())) == len(NAMES)


@pytest.mark.parametrize("count", [16, 24])
def test_narrow_boxes_say_which_micro_batch_they_run(count: int, tmp_path: Path) -> None:
    plan = EXAMPLES["contiguous"]()
    save_picture(chart_simulation(simulate(plan, count)), tmp_path / "step.svg")
    found = texts(tmp_path / "step.svg")
    for kind in "FB":
        for number in range(count):
            ends = [text for text in found if text.endswith(f":{number}") and text[0] == kind]
            assert len(ends) == len(plan.stages)


def test_sixty_four_gpus_stay_within_a_page_that_can_be_read(tmp_path: Path) -> None:
    layer = Layer(forward_ns=1000, backward_ns=2000, weight_bytes=1, activation_bytes=1)
    result = solve(Chain(layers=(layer,) * 64), Platform(64, 10**6, bandwidth=10**9), scope=Scope())
    save_picture(chart_plan(result), tmp_path / "plan.svg")
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    width, height = (float(root.attrib[name].removesuffix("pt")) for name in ("width", "height"))
    assert height < 1.5 * width
    assert "GPU 63" in texts(tmp_path / "plan.svg")


@pytest.mark.parametrize("name", ["plan.gif", "plan", "plan.svg.txt"])
def test_other_kinds_of_pictures_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a kind of picture") as caught:
        save_picture(chart_plan(result_of(EXAMPLES["contiguous"]())), tmp_path / name)
    assert ".svg, .png or .pdf" in caught.value.way_out
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_one_clear_error(tmp_path: Path) -> None:
    chart = chart_plan(result_of(EXAMPLES["contiguous"]()))
    with pytest.raises(InputError, match="cannot be written"):
        save_picture(chart, tmp_path / "missing" / "plan.svg")


def test_without_matplotlib_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="need matplotlib") as caught:
        save_picture(chart_plan(result_of(EXAMPLES["contiguous"]())), tmp_path / "plan.svg")
    assert "pip install matplotlib" in caught.value.way_out


def test_a_step_of_very_many_micro_batches_stays_small(tmp_path: Path) -> None:
    plan = EXAMPLES["contiguous"]()
    save_picture(chart_simulation(simulate(plan, 3_000)), tmp_path / "step.svg")
    assert (tmp_path / "step.svg").stat().st_size < 2**21
    assert "share of the time that is busy" in texts(tmp_path / "step.svg")


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_names_are_drawn_as_they_stand(suffix: str, tmp_path: Path) -> None:
    plan = EXAMPLES["contiguous"]()
    named = replace(plan, chain=replace(plan.chain, name="$\\frac{a$ of $x_2$ \U0001f680"))
    path = tmp_path / f"plan{suffix}"
    save_picture(chart_plan(result_of(named)), path)
    assert path.stat().st_size
    if suffix == ".svg":
        assert any(text.startswith(named.chain.name) for text in texts(path))
