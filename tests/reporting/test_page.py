"""A page without a browser: whole, from nowhere else, escaped, and true."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files

import pytest
from hypothesis import assume, given

from schedopt import Chain, Layer, Plan, Platform, Result, Scope, check, solve
from schedopt.account import memory, versions
from schedopt.comparing.baselines import Baseline
from schedopt.reporting.page import page_views
from schedopt.simulation import simulate
from schedopt.units import format_bytes, format_duration
from tests.budgets import trials
from tests.examples import EXAMPLES
from tests.random_plans import valid_plans
from tests.reporting.pages import Reader, page_of
from tests.sharded_plans import sharded_plans

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\" onload='x' &amp; ]]> ‮"


def solved(*, name: str = "a chain", layer_name: str = "block", first_ms: int = 1) -> Result:
    chain = Chain(
        name=name,
        layers=tuple(
            Layer(
                forward_ns=1_000_000 * (1 + i % 2 if i else first_ms),
                backward_ns=2_000_000,
                weight_bytes=4_000_000,
                activation_bytes=1_000_000,
                name=f"{layer_name} {i}",
            )
            for i in range(6)
        ),
    )
    return solve(chain, Platform(gpus=3, memory="20M", bandwidth="1GB/s"), scope=Scope())


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_kind_of_plan_makes_a_whole_page(name: str) -> None:
    reader = Reader(page_of(EXAMPLES[name]()))
    ids = [given["id"] for _, given in reader.attributes if "id" in given]
    assert len(ids) == len(set(ids))
    targets = [given["href"] for tag, given in reader.attributes if tag == "a"]
    assert len(targets) == 9
    assert {f"#{one}" for one in ids} >= set(targets)
    for tag, has in reader.attributes:
        if tag == "th":
            assert has["scope"] in ("row", "col")
    assert reader.texts["title"] == reader.texts["h1"]


@given(plan=valid_plans())
@trials(15)
def test_random_plans_make_pages(plan: Plan) -> None:
    reader = Reader(page_of(plan))
    needs = memory(plan)
    for gpu in {gpu for stage in plan.stages for gpu in stage.gpus}:
        need = format_bytes(needs[gpu].reading(plan.scope.memory))
        assert f"of the time and needs {need} of" in reader.words


def test_nothing_comes_from_elsewhere() -> None:
    text = page_of(solved())
    reader = Reader(text)
    for tag, has in reader.attributes:
        assert "src" not in has
        assert tag not in ("iframe", "object", "embed", "base", "form")
        if tag == "link":
            assert has["href"] == "data:,"
        if tag == "a":
            assert has["href"].startswith("#")
        assert not any(name.startswith("on") for name in has)
    for word in ("http:", "https:", "//cdn", "url(", "@import", "fetch(", "XMLHttp", "import("):
        assert word not in text


def test_the_policy_of_the_page_lets_its_own_script_run_and_nothing_else() -> None:
    reader = Reader(page_of(solved()))
    (policy,) = (
        given["content"]
        for _, given in reader.attributes
        if given.get("http-equiv") == "Content-Security-Policy"
    )
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    script = reader.texts["script"][1]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert allowed["script-src"] == f"'sha256-{digest}'"
    assert allowed["default-src"] == "'none'"


def test_what_files_say_is_text() -> None:
    result = solved(name=EVIL, layer_name=EVIL)
    assert result.plan is not None
    evil = replace(result, solver=EVIL, ladder=(replace(result.ladder[0], note=EVIL),))
    baselines = [Baseline(name=EVIL, note=EVIL)]
    text = page_of(evil, file=f"{EVIL}.json", baselines=baselines)
    reader = Reader(text)
    assert [tag for tag, _ in reader.attributes].count("script") == 2
    assert "img" not in [tag for tag, _ in reader.attributes]
    assert text.count("<script") == text.count("</script") == 2
    assert "alert(1)" in reader.words
    assert EVIL[:30] in reader.data["views"][0]["stages"][0]
    assert "\u202e" not in text


def test_the_same_plan_gives_the_same_page() -> None:
    result = solved()
    assert page_of(result) == page_of(result)


def test_the_words_are_those_of_the_plan() -> None:
    result = solved()
    assert result.plan is not None
    assert check(result) == ()
    words = Reader(page_of(result)).words
    period = result.period
    assert period is not None
    for text in (
        "Pipeline plan: a chain on 3 GPUs",
        f"Period {format_duration(period)} time from one finished micro-batch",
        "a chain has 6 layers, one after the other.",
        "takes 21.000 ms on one GPU of speed 1",
        "into 3 stages on 3 of 3 GPUs",
        "GPU 0 runs layers 0-1 (block 0 … block 1)",
        "layers 4-5",
        "Proven optimal. Found by the solver even_split",
        "A GPU or a link cannot do more in a period than work all the time.",
        "The two are equal, as exact fractions: this plan is the best possible, proven.",
        f"can have a period of less than {format_duration(period)}. This plan",
        "each GPU runs one stage, of neighbouring layers",
        "schedopt check plan.json",
        "--microbatches 12",
        "--model package.module:factory",
    ):
        assert text in words, text


def test_a_bound_below_the_period_says_how_much_can_be_saved() -> None:
    result = solved()
    period = result.period
    assert period is not None
    # Without what was proven but one bound, four fifths of the period.
    lower = replace(result.bounds[0], exact=(4 * period.numerator, 5 * period.denominator))
    words = Reader(page_of(replace(result, status="feasible", bounds=(lower,)))).words
    assert "No plan of this kind can save more than 20.00% of the period." in words
    assert "Gap to the best at most 25.00%" in words
    assert "Proven within 25.00% of the best with" in words


def test_a_plan_of_which_nothing_is_known_says_so() -> None:
    words = Reader(page_of(EXAMPLES["contiguous"]())).words
    assert "Nothing is proven about this plan" in words
    assert "The plan file does not say what else was tried." in words
    assert "Found by" not in words
    assert "Gap to the best unknown" in words


def test_the_ladder_is_that_of_the_file() -> None:
    result = solved(first_ms=5)
    reader = Reader(page_of(result))
    assert {"even_split", "contiguous"} <= {phase.solver for phase in result.ladder}
    for phase in result.ladder:
        assert str(phase.note) in reader.words
    assert "Those further down may do all that those before may" in reader.words


def test_versions_are_told_where_weights_are_updated() -> None:
    plan = EXAMPLES["double_buffered"]()
    found = versions(plan)
    words = Reader(page_of(plan)).words
    most = max(found.held.values())
    assert f"updated after every {plan.rule.update_every} micro-batch" in words
    assert f"at most {most} version{'s' if most > 1 else ''} of the weights" in words


def test_every_layer_is_there_with_its_name_and_stage() -> None:
    text = page_of(solved())
    for layer in range(6):
        row = f'<th scope="row">{layer}</th><td class="words">block {layer}</td>'
        assert f'{row}<td class="figure">{layer // 2}</td>' in text


def test_lines_for_the_shell_quote_the_file() -> None:
    page = page_of(solved(), file="my plan; rm.json")
    assert "schedopt check 'my plan; rm.json'" in Reader(page).words


@given(plan=sharded_plans())
@trials(5)
def test_a_plan_that_shards_weights_has_lines_that_run_it(plan: Plan) -> None:
    assume(check(plan) == ())
    words = Reader(page_of(plan)).words
    assert "schedopt simulate plan.json" in words
    assert "schedopt run plan.json --synthetic" in words


def test_templates_and_scripts_lie_in_the_package() -> None:
    names = {item.name for item in files("schedopt.reporting").iterdir()}
    scripts = {"data.js", "painting.js", "timeline.js", "plan.js", "explorer.js"}
    assert names >= {"head.html", "report.html", "explorer.html", "timeline.html", *scripts}
    for name in scripts:
        script = files("schedopt.reporting").joinpath(name).read_text()
        # Text only: nothing that a file says can become an element.
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval", script)


def test_a_plan_of_one_gpu_has_a_page() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=1, activation_bytes=0)
    found = solve(Chain(layers=(layer,)), Platform(gpus=1, memory=10), scope=Scope())
    words = Reader(page_of(found)).words
    assert "unnamed model on 1 GPU" in words
    assert "The model has 1 layer, one after" in words
    assert "into 1 stage on 1 of 1 GPU." in words
    assert "--nodes" not in words


def test_a_plan_that_is_a_step_is_drawn_once() -> None:
    chain = solved().problem.chain
    platform = Platform(gpus=3, memory="20M")
    result = solve(chain, platform, scope=Scope(microbatches=4, max_k=None))
    assert result.plan is not None
    for count, views in ((4, ["A step of 4 micro-batches"]), (8, None)):
        step = simulate(result.plan, count)
        found = [view["title"] for view in page_views(result, step)]
        assert found == (views or ["A step of 8 micro-batches", "The planned step"])
