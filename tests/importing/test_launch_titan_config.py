"""Functions that return a configuration of torchtitan, read without running them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schedopt.importing import ImportedLaunch
from schedopt.importing.launch_files.titan_config import read_configuration
from tests.importing.launching import layers_of, read
from tests.refusals import assert_refused

FILE = '''
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.trainer import Trainer

RANKS, OTHER = 2, 3


def small() -> Trainer.Config:
    """A configuration to begin with."""
    spec = model_registry("small")
    training = TrainingConfig(local_batch_size=2 * RANKS, seq_len=64)
    return Trainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(size=vocabulary(spec)),
        optimizer=default_adamw(lr=8e-4),
        training=training,
        parallelism=ParallelismConfig(
            pipeline_parallel_degree=RANKS, pipeline_parallel_schedule="Interleaved1F1B"
        ),
        activation_checkpoint=FullAC.Config(),
    )


def changed() -> Trainer.Config:
    config = small()
    parallelism = config.parallelism
    parallelism.tensor_parallel_degree = 2
    config.training.global_batch_size = 4 * config.training.local_batch_size
    config.activation_checkpoint = None
    return config


def with_size(size, *, more: int = 1) -> Trainer.Config:
    config = small()
    config.parallelism = ParallelismConfig(pipeline_parallel_degree=size)
    config.training.local_batch_size = size * more
    return config


def called(size: int = 4) -> Trainer.Config:
    return with_size(size, more=2)
'''
BEGIN = "def a() -> Trainer.Config:\n    config = Trainer.Config(activation_checkpoint=None)\n"


def titan(folder: Path, text: str, gpus: int = 4, **options: Any) -> ImportedLaunch:
    return read(folder, "torchtitan-toml", text, gpus, file="registry.py", **options)


def test_a_function_is_read_with_what_it_begins_with() -> None:
    ranks = {
        "parallelism.pipeline_parallel_degree": 2,
        "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
    }
    numbers = {
        key: value
        for key, value in read_configuration(FILE, "small").items()
        if key.startswith(("parallelism", "training", "activation_checkpoint"))
    }
    sizes = {"training.local_batch_size": 4, "training.seq_len": 64}
    assert numbers == {**ranks, **sizes, "activation_checkpoint.mode": "full"}
    found = read_configuration(FILE, "changed")
    assert found.items() >= {**ranks, **sizes, "activation_checkpoint.mode": "none"}.items()
    assert found["parallelism.tensor_parallel_degree"] == 2
    assert found["training.global_batch_size"] == 16
    # A new section has the defaults of its class for what it does not say.
    found = read_configuration(FILE, "called")
    assert [key for key in found if key.startswith("parallelism.")] == [
        "parallelism.pipeline_parallel_degree"
    ]
    assert found["parallelism.pipeline_parallel_degree"] == 4
    assert found["training.local_batch_size"] == 8


GIVEN = """
def a() -> Trainer.Config:
    compiled = CompileConfig(enable=True)
    spec = model_registry("a", converters=[Converter.Config(on=compiled.enable and {given})])
    return Trainer.Config(model_spec=spec, compile=compiled, activation_checkpoint=None)
"""


def test_a_call_may_be_given_settings_but_no_section() -> None:
    found = read_configuration(GIVEN.replace("{given}", '"model" in compiled.components'))
    assert found["compile.enable"] is True
    for given in ("compiled", "change(compiled)", "compiled.change()"):
        assert_refused(
            lambda given=given: read_configuration(GIVEN.replace("{given}", given)),  # type: ignore[misc]
            "line 4",
            "it may change what was made before",
        )


def test_the_step_of_a_function(tmp_path: Path) -> None:
    found = titan(tmp_path, FILE, 2, config="small")
    assert layers_of(found) == [(0, 2), (3, 5), (6, 7), (8, 9)]
    assert found.launch.microbatches == 4
    assert all(again for again in found.launch.recompute)
    found = titan(tmp_path, FILE, 8, config="changed")
    assert (found.launch.tensor, found.launch.replicas, found.launch.microbatches) == (2, 2, 8)
    assert not any(again for again in found.launch.recompute)


def test_the_only_function_needs_no_name(tmp_path: Path) -> None:
    found = titan(tmp_path, BEGIN + "    config.training.local_batch_size = 1\n    return config\n")
    assert (found.launch.ranks, found.launch.replicas, found.launch.shard) == (1, 4, "parameter")


@pytest.mark.parametrize(
    ("text", "config", "field", "rule"),
    [
        (FILE, None, "config", "the file has several configurations"),
        (FILE, "with_size", "config", "no function 'with_size' returns a configuration"),
        # The default.
        ("def a():\n    return Trainer.Config()\n", None,
         "activation_checkpoint.selective_ac_option", "operations are chosen"),
        (BEGIN + "    config.parallelism.new = 3\n    return config\n", None, "parallelism.new",
         "it is unknown here"),
        (BEGIN + "    change(config)\n    return config\n", "a", "change(config)",
         "it is unknown here"),
        (BEGIN + "    if BIG:\n        config.training.steps = 3\n    return config\n", None,
         "line 3", "more than assignments decides"),
        (BEGIN + "    config.parallelism = large()\n    return config\n", None, "line 3",
         "parallelism is made elsewhere"),
        (BEGIN + "    config = replace(config, training=large())\n    return config\n", None,
         "line 3", "the configuration is made elsewhere"),
        ("def a() -> Trainer.Config:\n    b = TrainingConfig()\n    b.local_batch_size = 1\n"
         "    return Trainer.Config(training=b)\n", None, "line 3", "it changes what was made"),
        (BEGIN + "    config.training.steps += 1\n    return config\n", None, "line 3",
         "more than assignments decides"),
        (BEGIN + "    other = config\n    other.parallelism.new = 1\n    return config\n", None,
         "parallelism.new", "it is unknown here"),
        (BEGIN + "    config.optimizer = OptimizersInBackwardContainer.Config(lr=1)\n"
         "    return config\n", None, "optimizer.early_step_in_backward",
         "updated within the backward"),
        ("def a() -> Trainer.Config:\n    config = other.b()\n    return config\n", None, "line 3",
         "it returns what is made elsewhere"),
        ("def a() -> Trainer.Config:\n    return a()\n", None, "line 2",
         "functions begin with each other"),
        ("def a() -> Trainer.Config:\n    config = Trainer.Config()\n", None, "line 1",
         "it returns nothing"),
        # Sections and sizes that conditions, loops and calls change.
        (BEGIN + "    part = config.training\n    if BIG:\n        part.local_batch_size = 2\n"
         "    return config\n", None, "line 4", "more than assignments decides"),
        (BEGIN + "    part = config.training\n    part.local_batch_size *= 2\n    return config\n",
         None, "line 4", "more than assignments decides"),
        (BEGIN + "    part = config.training\n    change(part)\n    return config\n", None,
         "change(part)", "it is unknown here"),
        (BEGIN + "    _ = change(config)\n    return config\n", None, "change(config)",
         "it is unknown here"),
        (BEGIN + "    vars(config.training)['local_batch_size'] = 1\n    return config\n", None,
         "line 3", "it changes what was made before"),
        ("def a() -> Trainer.Config:\n    b = TrainingConfig()\n    change(b)\n"
         "    return Trainer.Config(training=b)\n", None, "line 3", "it may change what was made"),
        (BEGIN + "    size = 1\n    if BIG:\n        size = 2\n"
         "    config.training.local_batch_size = size\n    return config\n", None,
         "training.local_batch_size", "'size' is not a whole number"),
        ("SIZE = 1\nfor SIZE in (1, 2):\n    pass\n" + BEGIN
         + "    config.training.local_batch_size = SIZE\n    return config\n", None,
         "training.local_batch_size", "'SIZE' is not a whole number"),
        ("SIZE = 1\nSIZE *= 2\n" + BEGIN
         + "    config.training.local_batch_size = SIZE\n    return config\n", None,
         "training.local_batch_size", "'SIZE' is not a whole number"),
        (BEGIN + "    config.training = TrainingConfig(1, 2)\n    return config\n", None, "line 3",
         "it gives settings without their names"),
        ("def _b(size=1) -> Trainer.Config:\n    return Trainer.Config()\n"
         "def a() -> Trainer.Config:\n    return _b(**SIZES)\n", None, "line 4",
         "it unpacks arguments"),
        # Longer than Python's stack is deep.
        (BEGIN + f"    config.training.local_batch_size = {'2 * ' * 600}1\n    return config\n",
         None, "line 3", "parts lie within each other"),
        ("x = 3\n", None, "", "no function without parameters returns a Trainer.Config"),
        ("x = 3\n", "a", "config", "no function 'a' returns a configuration"),
    ],
)  # fmt: skip
def test_what_is_not_known_without_running_it_is_refused(
    tmp_path: Path, text: str, config: str | None, field: str, rule: str
) -> None:
    assert_refused(
        partial(titan, tmp_path, text, config=config),
        field,
        rule,
        source=tmp_path / "registry.py",
    )


def test_a_toml_has_no_functions(tmp_path: Path) -> None:
    assert_refused(
        partial(read, tmp_path, "torchtitan-toml", "[training]\n", config="a"),
        "config",
        "a TOML is one configuration",
        source=tmp_path / "job.toml",
    )
