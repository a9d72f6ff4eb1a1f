"""TiMePReSt and the pipelines that it is compared with, small runs by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from schedopt.account import versions
from schedopt.bench.claims import timeprest_memory
from schedopt.bench.claims.timeprest import LENGTHS, draw_differences, fit_laws, run_timeprest
from schedopt.bench.claims.timeprest_baselines import plan_of
from schedopt.bench.claims.timeprest_influence import unlike_sequences
from schedopt.bench.claims.timeprest_memory import measure_versions, split_vgg, vgg16, vgg16_chain
from schedopt.bench.claims.training import Network, make_plan, train
from schedopt.rule import Rule
from tests.bench.claims.results import compute, small, verdicts


def test_a_run_of_two_stages_by_hand() -> None:
    # GPU 0: 1A 1B 2A 2B 1* 3A 3B 2* …; GPU 1: from 1 on 1A 1B 1* 2A 2B 2* …
    run = run_timeprest(2, 2, 1, 4)
    assert [run.points(run.span_ns("F", 0, i)[0]) for i in range(6)] == [0, 1, 2, 3, 5, 6]
    assert [run.points(run.backward_ns(i, 1)[0]) for i in range(4)] == [3, 6, 9, 12]
    assert [run.points(run.backward_ns(i, 0)[0]) for i in range(2)] == [4, 7]
    assert run.order(0).startswith("FFFFBFFB")
    # At 6 the first is through: it ends at 5.
    assert [run.version_difference(i) for i in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("stages", "count", "backward", "expected"),
    [
        # Those of the figures.
        (4, 2, 1, 2),
        (4, 4, 1, 1),
        (3, 3, 1, 1),
        # Backwards start every 3 points and take 6, so two are on their way, not 3.
        (6, 2, 1, 2),
        # One starts every 2 + 2 points and takes 3 x 2.
        (3, 2, 2, 2),
    ],
)
def test_version_differences(stages: int, count: int, backward: int, expected: int) -> None:
    run = run_timeprest(stages, count, backward)
    assert {run.version_difference(i + 1) for i in run.steady} == {expected}


def test_the_printed_law_is_wrong_from_six_stages_on() -> None:
    assert compute("T2", largest=5).verdict == "holds-under-convention"
    found = small("T2")
    assert found.computed.figures["best_laws"][0] == {"law": "ceil((L W) / (N + L))", "fits": 100}
    alone = found.sections[0].readings[1].counterexamples
    assert alone == [{"W": 6, "N": 2, "B": "1", "v": 2, "printed": 3}]


def test_laws_are_fitted() -> None:
    cases = [{"W": w, "N": n, "L": 1, "v": w // n} for w in range(1, 9) for n in range(1, 5)]
    assert fit_laws(cases)[0] == {"law": "floor((W) / N)", "fits": 32}


def test_forwards_grow_until_backwards_come() -> None:
    assert small("T3").computed.figures["steady"]["W = 4, N = 2"] == [5, 6, 7, 8, 8]


def test_differences_are_drawn() -> None:
    sizes = [(w, n) for w in (2, 3) for n in (2, 3)]
    cases = [
        {"W": w, "N": n, "B": name, "v": 1, "printed": w - 1} for name in LENGTHS for w, n in sizes
    ]
    texts = [text.get_text() for axes in draw_differences(cases, 3).axes for text in axes.texts]
    assert texts == ["1", "1", "1 (2)", "1 (2)"] * 4


def one_number(value: float) -> Network:
    """Return two stages, w x and nothing more, with the loss 0.5 (w x - y)^2."""
    layers = [nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 1, bias=False).double()]
    with torch.no_grad():
        layers[0].weight.fill_(value)
        layers[1].weight.fill_(1.0)
    layers[1].weight.requires_grad_(False)
    return Network(layers, lambda output, target: 0.5 * ((output - target) ** 2).mean())


@pytest.mark.parametrize(("delay", "weights"), [(0, [3, 2, 1.5]), (1, [3, 2, 1])])
def test_a_training_reads_the_versions_of_its_rule(delay: int, weights: list[float]) -> None:
    # x = 1, y = 1, rate 0.5: w - 0.5 (r - 1), where r is w or the weight before.
    network = one_number(weights[0])
    data = (torch.ones(1, 1).double(), torch.ones(1, 1).double())
    rule = Rule(update_every=1, forward_reads="delay", delay=delay)
    plan = make_plan(network, rule, overlap=bool(delay))
    for updates in (1, 2):
        found = train(network, plan, updates, lambda i: data, lambda p: torch.optim.SGD(p, 0.5))
        assert float(found["0.weight"]) == weights[updates]
    (weight,) = network.layers[0].parameters()
    assert weight.item() == weights[0]


def test_sequences() -> None:
    assert unlike_sequences({2: [0, 1, 0, 1]}) == []
    assert [case["mini_batch"] for case in unlike_sequences({2: [1, 1, 0, 0]})] == [1, 4]
    assert unlike_sequences({1: [1, 1], 3: [1, 0, 0, 1]}) == []


def test_as_printed_all_mini_batches_have_a_say() -> None:
    found = small("T4")
    assert [case["mini_batch"] for case in found.counterexamples] == [1, 3]
    # By the plan and by the update written out, the weights are the same.
    assert found.computed.figures["two_ways_apart"] < 1e-12


def test_vgg_and_its_chain() -> None:
    with torch.device("meta"):
        model = vgg16(1000)
    # Table 2 of Simonyan and Zisserman 2015: 138 million.
    assert sum(parameter.numel() for parameter in model.parameters()) == 138_357_544
    weighted = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    chain = vgg16_chain(4, 32, 100)
    assert len(weighted) == len(model) == len(chain.layers) == 16
    first, last = chain.layers[0], chain.layers[-1]
    # 3 x 3 x 3 weights and a bias for each of 64 channels, single precision.
    assert first.parameter_bytes == 4 * 64 * (27 + 1)
    assert first.activation_bytes == 4 * 4 * 64 * 32 * 32
    assert last.parameter_bytes == 4 * 100 * (4096 + 1)


def test_versions_of_two_stages_by_hand() -> None:
    # Stage 2 updates mini-batch i before the forwards of i + 1 come, stage 1 two later. With
    # vertical sync stage 2 still reads what stage 1 had, and keeps two.
    case = measure_versions(2, 2, "live")
    assert (case["held"], case["pipedream"]) == ([1, 1], [2, 1])
    assert (case["forward"], case["backward"], case["backward_all"]) == (1, 0, 0)
    assert measure_versions(2, 2, "entry")["held"] == [1, 2]


@pytest.mark.parametrize(
    ("own", "less", "expected"),
    [([50, 60], [50.0, 40.0], ["if", "if"]), ([50, 100], [50.0, 30.0], ["no", "no"])],
)
def test_verdicts_on_memory(
    own: list[int], less: list[float], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def splits(data: str, images: int, count: int, reads: str) -> list[dict[str, Any]]:
        given = {"data": data, "images": images, "N": count, "cut": 7, "reads": reads}
        return [{**given, "bytes": own, "pipedream_bytes": [100, 100], "less": less}]

    monkeypatch.setattr(timeprest_memory, "split_vgg", splits)
    assert verdicts("T5", largest=3, sizes=[(64, 2)]) == ["if", "no", "if", *expected]


def test_a_split_of_vgg() -> None:
    cases = split_vgg("CIFAR-100", 8, 2, "live")
    assert [case["cut"] for case in cases] == list(range(1, 16))
    for case in cases:
        pairs = zip(case["bytes"], case["pipedream_bytes"], strict=True)
        assert all(own < other for own, other in pairs)


def test_pipedream_of_three_stages() -> None:
    # Stage 0 runs 3 forwards before the first backward: weights of two updates ago, 3 versions.
    found = versions(plan_of("PipeDream", 3, 3))
    assert [found.held[stage, stage] for stage in range(3)] == [3, 2, 1]
    assert [found.backward_staleness[0, stage] for stage in range(3)] == [2, 1, 0]


def test_figures_of_the_baselines() -> None:
    found = small("T6")
    assert found.computed.figures["least_m_of_2bw"] == {"2": 1, "3": 2, "4": 3}
    table: dict[Any, Any] = {row[0]: row[2:] for row in found.computed.tables[0].rows}
    # 2 (M + W - 1), W = 4, M = 12; Chimera idles 2 slots.
    assert table["GPipe"][0] == 30
    assert table["Chimera"][0] == 26
    # Half of the W in flight in each direction, of both stages of GPU 1 (Li and Hoefler 2021,
    # table 2).
    assert table["Chimera"][2] == 4
    assert table["XPipe"][0] == "not a plan"
