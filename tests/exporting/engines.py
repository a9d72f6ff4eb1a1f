"""What the exports to engines are held against."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import strategies as st

from schedopt import Chain, Plan, Platform, Problem, Scope
from schedopt.engine import Engine
from schedopt.solving.engine_cuts import EngineCuts
from schedopt.systems.steps import engine_step
from tests.transformers import transformers


@st.composite
def engine_plans(draw: st.DrawFn, engine: Engine) -> Plan:
    """Draw a plan in the order of an engine, on GPUs with ample memory."""
    chain: Chain = draw(transformers(most=6))
    gpus = draw(st.integers(1, 4))
    most = len(chain.layers) - 2
    ranks = min(gpus, most)
    chunks = draw(st.integers(1, 3)) if engine == "megatron" and ranks > 1 else 1
    scope = Scope(
        allocation="general",
        max_k=None,
        microbatches=ranks * draw(st.integers(1, 2)),
        engine=engine,
    )
    problem = Problem(chain=chain, platform=Platform(gpus, 10**9), scope=scope)
    shapes = [EngineCuts(problem, ranks, many) for many in range(chunks, 0, -1)]
    shapes.append(EngineCuts(problem, 1, 1))
    cuts = next(shape for shape in shapes if shape.exist)
    begins = draw(st.sampled_from([*cuts.promising(None, lambda: False)]))
    return engine_step(problem, cuts.stages(begins))


def blocks_of(plan: Plan, first: int, last: int) -> list[int]:
    """Return the transformer layers of a stage, as the names of the strategy say."""
    found = [
        re.search(r"model\.layers\.(\d+)", layer.name)
        for layer in plan.chain.layers[first : last + 1]
    ]
    return sorted({int(match[1]) for match in found if match})


def parse_layout(layout: str) -> list[str]:
    """Return the letters of each stage of a layout of Megatron-LM.

    Commas say nothing. ``(...)*n`` is what is in the parentheses n times, ``x*n`` one sign so
    often; then ``|`` parts the stages.
    """
    text = layout.replace(",", "")
    while match := re.search(r"\(([^()]*)\)\*(\d+)", text):
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    while match := re.search(r"([^*()])\*(\d+)", text):
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    stages = text.split("|")
    assert set("".join(stages)) <= set("EtmL")
    return stages


def by_rank(stages: Sequence[str], ranks: int) -> list[list[str]]:
    """Return the letters of each virtual stage of each rank: stage s is on rank s mod P."""
    assert len(stages) % ranks == 0
    return [list(stages[rank::ranks]) for rank in range(ranks)]
