"""Models for `schedopt.torch`, and a rank that runs their plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from schedopt import InputError, Result
from schedopt.examples import train_pipeline
from schedopt.exporting import find_target
from schedopt.torch import pipeline, split
from schedopt.torch.agreement import Agreement

RANKS: Final = 2
MICROBATCHES: Final = 4
STEPS: Final = 2
Built = tuple[nn.Module, Any]


def sequential() -> Built:
    """Return layers of which the first and the last are one."""
    torch.manual_seed(2)
    shared = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    layers = [shared, nn.Linear(4, 4), nn.Tanh(), shared]
    return nn.Sequential(*layers).double(), torch.ones(3, 4, dtype=torch.float64)


def dropping() -> Built:
    """Return layers that draw random numbers."""
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(4)]
    return nn.Sequential(*layers).double(), torch.ones(3, 4, dtype=torch.float64)


def steady() -> Built:
    """Return the same layers, as they draw none."""
    module, inputs = dropping()
    return module.eval(), inputs


MODELS: Final[Mapping[str, Callable[[], Built]]] = {
    "spread": sequential,
    "again": dropping,
    "kept": dropping,
}
"""Those of cases that are pipelines of ours."""


def batch(step: int) -> dict[str, Tensor]:
    """Return a mini-batch."""
    made = torch.Generator().manual_seed(step)
    return {"input": torch.randn(MICROBATCHES * 3, 4, generator=made, dtype=torch.float64)}


def gradients(model: nn.Module, own: set[int]) -> dict[str, Tensor]:
    """Return copies of the gradients of some parameters, by name."""
    return {
        name: one.grad.clone()
        for name, one in model.named_parameters()
        if one.grad is not None and id(one) in own
    }


def examples_in_readme() -> list[str]:
    """Return the Python code of the README."""
    text = (Path(__file__).parents[1] / "README.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def train(rank: int, name: str, folder: str) -> list[Any]:
    """Return the loss and the gradients after each step, which add up."""
    model, inputs = MODELS[name]()
    pipe = pipeline((model, inputs), Result.load(f"{folder}/{name}.json"), MICROBATCHES)
    own = {id(parameter) for parameter in pipe.parameters()}
    torch.manual_seed(rank)
    found = []
    for step in range(STEPS):
        given = batch(step)
        loss = pipe.step(**{one: given[one] for one in pipe.inputs})
        found.append((loss, gradients(model, own)))
    return found


def run_readme(rank: int, folder: str) -> Any:
    """Return the loss of the lines that the README shows, with a plan of the example."""
    code = next(one for one in examples_in_readme() if "pipeline" in one)
    code = code.replace("plan.json", f"{folder}/example.json")
    code = code.replace('"state"', f'"{folder}/state"')
    given = train_pipeline.draw(16 * train_pipeline.SIZE, 0)
    space: dict[str, Any] = {"torch": torch, "build": train_pipeline.build, "batch": given}
    exec(compile(code, "README.md", "exec"), space)
    return space["loss"]


def run_rows(rank: int, folder: str) -> list[Any]:
    """Return what torch's own stages and schedule make of the rows that are exported."""
    model, inputs = steady()
    plan = Result.load(f"{folder}/kept.json").plan
    assert plan is not None
    modules = split((model, inputs), plan)
    between = torch.empty(3, 4, dtype=torch.float64).requires_grad_()
    loss = torch.empty((), dtype=torch.float64).requires_grad_()
    stages = [
        PipelineStage(
            module,
            number,
            RANKS,
            torch.device("cpu"),
            input_args=(between,) if number else (),
            output_args=(loss,) if number else (between,),
        )
        for number, module in modules.items()
    ]
    schedule: Any = schedules._PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
        stages,
        MICROBATCHES,
        loss_fn=lambda output, target: output / MICROBATCHES,
        scale_grads=False,
    )
    [text] = find_target("torch-csv").export(plan, MICROBATCHES).values()
    file = Path(folder, f"rows.{rank}.csv")
    file.write_text(text)
    schedule._load_csv(file, format="compute_only")
    own = {id(parameter) for module in modules.values() for parameter in module.parameters()}
    found: list[Any] = []
    for step in range(STEPS):
        losses: list[Tensor] = []
        given = {} if rank else batch(step)
        nothing = torch.zeros(MICROBATCHES)
        schedule.step(**given, target=nothing, losses=losses, return_outputs=False)
        mean = torch.stack(losses).sum().detach() if losses else None
        found.append((mean, gradients(model, own)))
    return found


def run_example(rank: int, folder: str) -> str:
    """Return what the example prints."""
    with redirect_stdout(StringIO()) as printed:
        train_pipeline.main(f"{folder}/example.json")
    return printed.getvalue()


def fail_alone(rank: int) -> list[str]:
    """Return what each process raises where the second one alone fails, as nobody foresaw."""
    agreement = Agreement()

    def fail() -> int:
        if rank:
            raise RuntimeError("no idea")
        return 1

    def fail_together() -> None:
        with agreement.together():
            fail()

    acts: list[Callable[[], object]] = [fail_together, partial(agreement.count, fail, 1)]
    found = []
    for act in acts:
        try:
            act()
        except (InputError, RuntimeError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found
