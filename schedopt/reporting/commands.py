"""What to type to check, look at and run a plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from schedopt.exporting.targets import TARGETS
from schedopt.plan import Plan
from schedopt.simulation import Simulation
from schedopt.units import printable

_SHORT_NS = 10**9
_LONG_NS = 60 * 10**9


def commands(plan: Plan, file: str, step: Simulation) -> Iterator[tuple[str, str]]:
    """Yield lines for a shell that take a plan from its file, each with what it does."""
    name, count = shlex.quote(printable(file)), f"--microbatches {step.microbatches}"
    yield "pip install -e '.[torch,hf]'", "once, in a copy of the schedopt repository"
    yield f"schedopt check {name}", "derives everything again, with code that knows no solver"
    yield f"schedopt show {name}", "draws two periods of the plan on the terminal"
    yield f"schedopt simulate {name} {count}", "computes the step that is drawn above"
    others = ", ".join(target.name for target in TARGETS if target.name != "perfetto")
    yield (
        f"schedopt export {name} --to perfetto {count} -o trace.json",
        "writes this step to scale, with the memory of each GPU, for ui.perfetto.dev; the other "
        f"targets are {others}, where they can express the plan",
    )
    yield (
        f"schedopt run {name} --synthetic{_stretch(step)} {count}",
        "runs the plan on this machine with layers that only sleep and hold memory, a process for "
        "each GPU: does the order hold?",
    )
    model = _model(plan)
    yield (
        f"schedopt run {name} --model {model} --device cuda {count}",
        "trains the model, cut where the plan says, and prints what was measured next to what "
        "was predicted",
    )
    if len({gpu for stage in plan.stages for gpu in stage.gpus}) % 2 == 0:
        yield (
            f"schedopt run {name} --model {model} --device cuda {count} --nodes 2",
            "prints the line for torchrun that starts the same on two machines",
        )


def _stretch(step: Simulation) -> str:
    """Return the option that makes a step of synthetic layers take about 10 s, if it is needed."""
    if _SHORT_NS <= step.makespan_ns <= _LONG_NS:
        return ""
    return f" --stretch {10 * 10**9 / max(1, step.makespan_ns):.2g}"


def _model(plan: Plan) -> str:
    """Return the model that the chain was profiled from, if its name alone makes no code run."""
    recipe = plan.chain.recipe
    if recipe is None or not recipe.factory.startswith("hf:"):
        return "package.module:factory"
    options = [
        f"--{name} {shlex.quote(printable(str(recipe.arguments[name])))}"
        for name in ("batch", "seq", "image", "dtype")
        if recipe.arguments.get(name) is not None
    ]
    return " ".join((shlex.quote(printable(recipe.factory)), *options))
